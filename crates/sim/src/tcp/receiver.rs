//! The receiving end: reassembles, delays acknowledgements, echoes marks.

use plimsoll_units::{Bytes, Nanos, Span};

use super::config::{Config, Congestion};
use super::reassembly::Reassembly;
use super::segment::{Ack, Ecn, Flags, SackBlock, Segment};

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Segments with payload, as handed over: a descriptor counts once.
    pub segments: u64,
    /// Segments that arrived beyond a gap.
    pub out_of_order: u64,
    /// Segments that had arrived before.
    pub duplicates: u64,
    /// Segments that reach beyond the window; the bytes beyond it are not kept.
    pub refused: u64,
    /// Segments with a congestion mark.
    pub marked: u64,
    /// Acknowledgements given out.
    pub acks: u64,
}

/// The receiving end of a stream.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Receiver {
    /// Bytes before this have arrived without a gap.
    next: u64,
    /// `next` as last acknowledged.
    acked: u64,
    /// The end of the window as last stated; never moves back.
    edge: u64,
    /// Bytes that the application has taken.
    taken: u64,
    /// Timestamp to echo (RFC 7323 §4.3).
    echo: Nanos,
    delayed_until: Option<Nanos>,
    ack_now: bool,
    syn_pending: bool,
    /// A SYN has come. The first one decides about ECN: Linux repeats its answer as it was.
    asked: bool,
    /// DCTCP: an acknowledgement for the bytes before a change of marking, which goes first.
    early: Option<u64>,
    echoing: Echo,
    quick: u8,
    interactive: bool,
    auto_read: bool,
    sack: bool,
    wants_ecn: bool,
    dctcp: bool,
    quick_acks: u8,
    mss: u16,
    /// How far the window reaches now, and how far it may reach.
    window: u32,
    largest_window: u32,
    /// The window grows when the application has taken all before this.
    grows_at: u64,
    delayed_ack: Span,
    stats: ReceiverStats,
    beyond: Reassembly,
    duplicate: Option<SackBlock>,
}

/// How marks are echoed, once ECN is agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echo {
    /// ECN is off.
    No,
    /// RFC 3168: from a mark until the sender says that it has reduced.
    Latched(bool),
    /// RFC 8257 §3.2: as the latest segment was marked.
    Exact(bool),
}

impl Receiver {
    /// The end that waits for a stream from offset 0.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut receiver = Self {
            next: 0,
            acked: 0,
            edge: u64::from(config.first_window()),
            taken: 0,
            echo: Nanos::ZERO,
            delayed_until: None,
            ack_now: false,
            syn_pending: false,
            asked: false,
            early: None,
            duplicate: None,
            echoing: Echo::No,
            quick: config.quick_acks,
            interactive: false,
            auto_read: config.auto_read,
            sack: config.sack,
            wants_ecn: config.ecn,
            dctcp: config.congestion == Congestion::Dctcp,
            mss: config.segment_size(),
            window: config.first_window(),
            largest_window: config.window_limit(),
            grows_at: u64::from(config.first_window()),
            delayed_ack: config.delayed_ack,
            quick_acks: config.quick_acks,
            beyond: Reassembly::new(),
            stats: ReceiverStats::default(),
        };
        if !config.handshake {
            receiver.agree_on_ecn(true);
        }
        receiver
    }

    /// Takes what the network has delivered: a packet, or several merged by receive offload.
    ///
    /// Ask [`Self::poll_ack`] afterwards.
    pub fn handle_segment(&mut self, segment: &Segment, now: Nanos) {
        if segment.flags.contains(Flags::SYN) {
            if !core::mem::replace(&mut self.asked, true) {
                self.agree_on_ecn(segment.flags.contains(Flags::ECN_SETUP));
            }
            if self.next == 0 {
                self.echo = segment.sent;
            }
            self.syn_pending = true;
            return;
        }
        if segment.len == 0 {
            self.ack_now = true; // a window probe
            return;
        }
        self.stats.segments += 1;
        self.note_mark(segment);

        let room = self.offered_edge();
        if segment.end() > room {
            self.stats.refused += 1;
            self.ack_now = true;
        }
        let run = SackBlock { start: segment.seq, end: segment.end().min(room) };
        if run.start >= run.end {
            return; // wholly beyond the window
        }
        if run.end <= self.next {
            self.note_duplicate(run);
        } else if run.start > self.next {
            self.keep_beyond_gap(run);
        } else {
            self.deliver(run, segment.sent, now);
        }
    }

    /// The next acknowledgement that has to leave now; ask until there is none.
    pub fn poll_ack(&mut self, _now: Nanos) -> Option<Ack> {
        if let Some(ack) = self.early.take() {
            return Some(self.early_ack(ack));
        }
        (self.ack_now || self.syn_pending).then(|| self.state())
    }

    /// When an acknowledgement that is being delayed is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.delayed_until
    }

    /// Time has come to `now`. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.delayed_until.is_some_and(|due| due <= now) {
            self.delayed_until = None;
            self.ack_now = true;
        }
    }

    /// The application takes `bytes` of [`Self::available`]; only needed without [`Config::auto_read`].
    ///
    /// Ask [`Self::poll_ack`] afterwards: a window that has opened far is announced.
    pub fn read(&mut self, bytes: Bytes) {
        self.take(self.taken.saturating_add(bytes.as_u64()).min(self.next));
        let stated = self.edge.saturating_sub(self.next);
        let (room, step) = (self.offered_edge().saturating_sub(self.next), self.worthwhile_step());
        if room >= stated.saturating_mul(2) && room - stated >= step {
            self.ack_now = true;
        }
    }

    /// Bytes that have arrived in order since the start of the stream.
    #[must_use]
    pub fn delivered(&self) -> Bytes {
        Bytes::new(self.next)
    }

    /// Bytes that have arrived in order and wait for the application.
    #[must_use]
    pub fn available(&self) -> Bytes {
        Bytes::new(self.next - self.taken)
    }

    /// The counters of this end.
    #[must_use]
    pub fn stats(&self) -> ReceiverStats {
        self.stats
    }

    /// Whether ECN is agreed on.
    #[must_use]
    pub fn ecn(&self) -> bool {
        self.echoing != Echo::No
    }

    /// The answer to a SYN, if one is due. It travels alone, in front of data.
    pub(super) fn answer_syn(&mut self) -> Option<Ack> {
        self.syn_pending.then(|| self.state())
    }

    /// An acknowledgement to go with data that leaves anyway, if one is due or `owed`.
    pub(super) fn piggyback(&mut self, owed: bool) -> Option<Ack> {
        let due = owed || self.ack_now || self.delayed_until.is_some();
        (due && self.early.is_none()).then(|| self.state())
    }

    /// The acknowledgement on a SYN: it states the receive window.
    pub(super) fn window_statement(&self) -> Ack {
        Ack::new(self.next, self.stated_window(self.next), self.echo)
    }

    /// Notes that data was sent in reply: acknowledgements now wait for data to go with (Linux's ping-pong mode).
    pub(super) fn set_interactive(&mut self) {
        self.interactive = true;
    }

    /// Notes that the other end has answered: the connection is established.
    pub(super) fn open(&mut self, ecn: bool) {
        self.agree_on_ecn(ecn);
    }

    fn agree_on_ecn(&mut self, asked: bool) {
        self.echoing = match (asked && self.wants_ecn, self.dctcp) {
            (false, _) => Echo::No,
            (true, false) => Echo::Latched(false),
            (true, true) => Echo::Exact(false),
        };
    }

    fn note_mark(&mut self, segment: &Segment) {
        let marked = segment.ecn == Ecn::Ce;
        self.stats.marked += u64::from(marked);
        match &mut self.echoing {
            Echo::No => {}
            Echo::Latched(echo) => {
                if segment.flags.contains(Flags::CWR) {
                    *echo = false;
                    self.ack_now = true; // as Linux: the sender may be left with a small window and no other clock
                }
                if marked && !*echo {
                    *echo = true;
                    self.acknowledge_quickly(2);
                }
            }
            Echo::Exact(state) if *state != marked => {
                if self.delayed_until.is_some() {
                    self.early = Some(self.next);
                }
                *state = marked;
                self.ack_now = true;
            }
            Echo::Exact(_) => {}
        }
    }

    fn note_duplicate(&mut self, run: SackBlock) {
        self.stats.duplicates += 1;
        self.duplicate = Some(run);
        self.acknowledge_quickly(self.quick_acks);
        self.ack_now = true;
    }

    fn keep_beyond_gap(&mut self, run: SackBlock) {
        if self.beyond.insert(run) {
            self.stats.out_of_order += 1;
        } else {
            self.stats.duplicates += 1;
            self.duplicate = Some(run);
        }
        self.acknowledge_quickly(self.quick_acks);
        self.ack_now = true;
    }

    fn deliver(&mut self, run: SackBlock, sent: Nanos, now: Nanos) {
        if run.start <= self.acked {
            self.echo = sent;
        }
        self.next = run.end;
        if !self.beyond.is_empty() {
            self.next = self.beyond.advance(self.next);
            self.ack_now = true; // RFC 5681 §4.2: what fills a gap is acknowledged at once
        }
        if self.auto_read {
            self.take(self.next);
        }
        if self.next - self.acked > u64::from(self.mss) || (self.quick > 0 && !self.interactive) {
            self.ack_now = true;
        } else if self.delayed_until.is_none() {
            self.delayed_until = Some(now + self.delayed_ack);
            self.ack_now |= self.delayed_ack == Span::ZERO;
        }
    }

    /// The application has taken all before `end`. When it has taken a whole window since the window last grew, the window doubles:
    /// it stays ahead of a sender in slow start, as Linux's does, which allows twice of what came in the last round trip.
    fn take(&mut self, end: u64) {
        self.taken = end;
        if end >= self.grows_at && self.window < self.largest_window {
            self.window = self.window.saturating_mul(2).min(self.largest_window);
            self.grows_at = end + u64::from(self.window);
        }
    }

    fn acknowledge_quickly(&mut self, packets: u8) {
        self.quick = self.quick.max(packets);
        self.interactive = false;
    }

    /// The acknowledgement of all that has arrived; none is owed afterwards.
    fn state(&mut self) -> Ack {
        if self.offered_edge() - self.edge >= self.worthwhile_step() {
            self.edge = self.offered_edge();
        }
        let syn = core::mem::take(&mut self.syn_pending);
        let ece = match self.echoing {
            Echo::No => false,
            Echo::Latched(_) | Echo::Exact(_) if syn => true, // accepts ECN
            Echo::Latched(echo) | Echo::Exact(echo) => echo,
        };
        let mut ack =
            Ack::new(self.next, self.stated_window(self.next), self.echo).with_ece(ece).with_syn(syn);
        if self.sack && (self.duplicate.is_some() || !self.beyond.is_empty()) {
            ack = self.duplicate.take().into_iter().fold(ack, Ack::with_block);
            ack = self.beyond.recent().iter().copied().fold(ack, Ack::with_block);
        }
        self.acked = self.next;
        self.ack_now = false;
        self.delayed_until = None;
        self.quick = self.quick.saturating_sub(u8::from(!syn));
        self.stats.acks += 1;
        ack
    }

    /// Acknowledges up to where marking changed, with the echo as it was before.
    fn early_ack(&mut self, upto: u64) -> Ack {
        let was_marked = self.echoing == Echo::Exact(false);
        self.acked = self.acked.max(upto);
        self.stats.acks += 1;
        Ack::new(upto, self.stated_window(upto), self.echo).with_ece(was_marked)
    }

    fn stated_window(&self, ack: u64) -> u32 {
        u32::try_from(self.edge.saturating_sub(ack)).unwrap_or(u32::MAX)
    }

    /// Where the window could end. It never moves back: what arrives and is not read moves `next`, and not `taken`.
    fn offered_edge(&self) -> u64 {
        self.taken.saturating_add(u64::from(self.window))
    }

    /// A smaller opening would invite small segments (RFC 1122 §4.2.3.3).
    fn worthwhile_step(&self) -> u64 {
        u64::from(u32::from(self.mss).min(self.window / 2).max(1))
    }
}
