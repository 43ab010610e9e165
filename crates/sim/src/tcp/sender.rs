//! The sending end: new segments, retransmissions and timeouts.

mod recovery;
mod transmit;

use plimsoll_units::{Bytes, Nanos, Span};

use super::config::{Config, Congestion, LocalQueue};
use super::congestion::{Arrival, CongestionControl, Progress};
use super::rtt::Rtt;
use super::scoreboard::{Delivery, Scoreboard};
use super::segment::{Ack, SackBlock};
use recovery::{Phase, Recovery};

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Segments given out with payload, as handed over: a descriptor counts once.
    pub segments: u64,
    /// Payload bytes given out more than once.
    pub retransmitted: Bytes,
    /// Packets given out more than once.
    pub resent: u64,
    /// Times that a loss has lowered the window, short of a timeout.
    pub recoveries: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Times that an echoed mark has lowered the window.
    pub mark_reductions: u64,
    /// Packets that were acknowledged together with the echo of a mark, as Linux counts `delivered_ce`.
    pub echoed: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Reductions taken back because nothing was lost.
    pub undone: u64,
    /// Acknowledgements of bytes that were never sent, or older than the latest: ignored.
    pub ignored_acks: u64,
}

/// The sending end of a stream.
///
/// Its memory grows with the packets in flight and is reused; no packet allocates once the window has reached its largest
/// size.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Sender {
    // The first cache line is all that the silent half of a connection looks at.
    // Sequence space: una <= nxt <= written; edge is where the receiver's window ends.
    una: u64,
    nxt: u64,
    written: u64,
    edge: u64,
    open: Open,

    /// ECN is agreed on: data is ECN-capable.
    ecn: bool,
    /// The next new segment says that the window was reduced.
    say_cwr: bool,
    probe_now: bool,
    tail_probe_now: bool,
    paced: bool,
    pacing: bool,
    // Whether the window is what holds us back (RFC 7661 in Linux's form).
    window_limited: bool,
    config: Settings,

    mss: u64,
    // Timers. The timeout runs from `waiting_since`, the tail loss probe from `last_news`.
    waiting_since: Nanos,
    last_news: Nanos,
    doubt_until: Option<Nanos>,
    most_outstanding: u64,
    usage_until: u64,

    // The host's transmit path.
    queued: u64,
    local_queue: LocalQueue,
    offload: u64,
    /// Bytes that the application may have written and the other end has not acknowledged.
    send_buffer: u64,
    /// The largest congestion window so far, after which the buffer is made.
    largest_window: u64,

    rtt: Rtt,
    control: CongestionControl,
    board: Scoreboard,
    tail_probe: Option<TailProbe>,
    next_send: Nanos,
    stats: SenderStats,
    recovery: Recovery,
}

/// The settings that are still used after the start.
#[derive(Clone, Copy, Debug)]
struct Settings {
    sack: bool,
    ecn: bool,
    tail_loss_probe: bool,
    restart_after_idle: bool,
}

/// The state of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// No packet has been sent. `passive`: the other end has to begin.
    Closed { passive: bool },
    /// A SYN has left `sent` times; or has to, when `due`.
    Asked { sent: u32, due: bool },
    /// Data may flow.
    Yes,
}

/// A tail loss probe that is not answered yet (RFC 8985 §7.4).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    end: u64,
    retransmission: bool,
}

impl Sender {
    /// An end that connects when it first has something to send.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let open = if config.handshake { Open::Closed { passive: false } } else { Open::Yes };
        Self {
            una: 0,
            nxt: 0,
            written: 0,
            edge: if config.handshake { 0 } else { u64::from(config.first_window()) },
            mss: u64::from(config.segment_size()),
            open,
            board: Scoreboard::new(config.congestion == Congestion::Bbr),
            control: CongestionControl::new(config),
            recovery: Recovery::new(),
            rtt: Rtt::new(config),
            ecn: config.ecn && !config.handshake,
            say_cwr: false,
            waiting_since: Nanos::ZERO,
            last_news: Nanos::ZERO,
            doubt_until: None,
            probe_now: false,
            tail_probe: None,
            tail_probe_now: false,
            window_limited: false,
            most_outstanding: 0,
            usage_until: 0,
            queued: 0,
            local_queue: config.local_queue,
            offload: config.offload.as_u64().min(MAX_DESCRIPTOR),
            send_buffer: config.send_buffer.as_u64().max(1),
            largest_window: 0,
            pacing: config.pacing || config.congestion == Congestion::Bbr,
            next_send: Nanos::ZERO,
            paced: false,
            config: Settings {
                sack: config.sack,
                ecn: config.ecn,
                tail_loss_probe: config.tail_loss_probe && config.sack,
                restart_after_idle: config.slow_start_after_idle,
            },
            stats: SenderStats::default(),
        }
    }

    /// The application writes `bytes`. Ask [`Self::poll_transmit`] afterwards.
    pub fn write(&mut self, bytes: Bytes) {
        self.written = self.written.saturating_add(bytes.as_u64()).min(UNLIMITED);
    }

    /// The application always has more to send.
    pub fn write_unlimited(&mut self) {
        self.written = UNLIMITED;
    }

    /// The application stops writing: only what the socket's buffer holds is still sent.
    ///
    /// Linux's buffer has room for twice the packets of the largest window so far, and counts for each as much memory as a packet
    /// alone takes, though payload that is written in long pieces takes little more than itself. An application is woken when a
    /// third of the buffer is free, so that at any moment five sixths of it are full on average.
    pub fn stop(&mut self) {
        let packets = self.largest_window.max(self.control.initial()).div_ceil(self.mss);
        let memory = (self.mss + PACKET_HEADERS).next_power_of_two() + PACKET_RECORD;
        let buffer = (2 * packets * memory).min(self.send_buffer) / 6 * 5;
        self.written = self.written.min(self.una + buffer).max(self.nxt);
    }

    /// Takes what the receiver says. Ask [`Self::poll_transmit`] afterwards.
    ///
    /// No acknowledgement can do harm: those of bytes never sent and stale ones are counted and ignored, as are blocks that
    /// no receiver would send.
    pub fn handle_ack(&mut self, ack: &Ack, now: Nanos) {
        if self.open != Open::Yes || ack.syn() {
            self.handle_handshake(ack, now);
            return;
        }
        if ack.ack > self.nxt || ack.ack < self.una {
            self.stats.ignored_acks += 1;
            return;
        }
        let clean = self.board.is_clean() && self.recovery.phase == Phase::Open;
        let before = self.before();
        // A window may become smaller, as in Linux; of two acknowledgements of the same byte the wider one holds.
        let edge = ack.ack.saturating_add(u64::from(ack.window));
        if ack.ack > self.una || edge > self.edge {
            self.edge = edge;
        }

        let mut delivery = Delivery::default();
        let floor = Span::ns(self.rtt.least());
        if ack.ack > self.una {
            self.board.acknowledge(ack.ack, floor, now, &mut delivery);
            self.una = ack.ack;
            self.rtt.reset_backoff();
            self.waiting_since = now;
            self.last_news = now;
        }
        let duplicate = ack.has_blocks() && self.take_blocks(ack, floor, now, &mut delivery);
        if let Some(sent) = delivery.first_sent {
            self.rtt.sample(now - sent);
        }
        self.control.account(&self.progress(&delivery, now), ack.ece());
        if ack.ece() && self.ecn {
            self.stats.echoed += delivery.bytes.div_ceil(self.mss);
        }

        if clean && self.config.sack && !ack.ece() && !ack.has_blocks() && self.tail_probe.is_none() {
            self.grow(&delivery, now);
        } else {
            self.react(ack, &before, &delivery, duplicate, now);
        }
        if self.control.has_model() {
            self.learn(&before, &delivery, now);
        }
        self.largest_window = self.largest_window.max(self.control.cwnd);
    }

    /// `bytes` of payload have left the host's transmit path, or were dropped in it: credit comes back. Ask
    /// [`Self::poll_transmit`] afterwards.
    pub fn handle_sent(&mut self, bytes: Bytes) {
        self.queued = self.queued.saturating_sub(bytes.as_u64());
    }

    /// When to call [`Self::handle_timeout`]; `None` when nothing is waited for. It may have passed already: a sample
    /// of the round trip can bring the timeout forward.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let sooner = |timer: Option<Nanos>, other: Option<Nanos>| match (timer, other) {
            (Some(timer), Some(other)) => Some(timer.min(other)),
            (timer, other) => timer.or(other),
        };
        let mut next = sooner(self.retransmission_due(), self.tail_probe_due());
        if self.doubt_until.is_some() || self.paced {
            next = sooner(sooner(next, self.doubt_until), self.pacing_due());
        }
        next
    }

    /// Time has come to `now`. Early calls do nothing. Ask [`Self::poll_transmit`] afterwards.
    pub fn handle_timeout(&mut self, now: Nanos) {
        let is_due = |timer: Option<Nanos>| timer.is_some_and(|due| due <= now);
        if is_due(self.tail_probe_due()) {
            self.tail_probe_now = true;
            self.waiting_since = now;
        } else if is_due(self.retransmission_due()) {
            self.time_out(now);
        } else if is_due(self.doubt_until) {
            self.look_for_losses(now);
        }
        self.paced &= now < self.next_send;
    }

    /// The application's bytes that the other end has acknowledged.
    #[must_use]
    pub fn acked(&self) -> Bytes {
        Bytes::new(self.una)
    }

    /// Whether all that was written is acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.una == self.written
    }

    /// Bytes written that have not left yet.
    #[must_use]
    pub fn unsent(&self) -> Bytes {
        Bytes::new(self.written - self.nxt)
    }

    /// The congestion window.
    #[must_use]
    pub fn cwnd(&self) -> Bytes {
        Bytes::new(self.control.cwnd)
    }

    /// The slow start threshold; `None` before the first reduction.
    #[must_use]
    pub fn ssthresh(&self) -> Option<Bytes> {
        (self.control.ssthresh != u64::MAX).then(|| Bytes::new(self.control.ssthresh))
    }

    /// Bytes in flight: sent, and neither acknowledged nor taken for lost.
    #[must_use]
    pub fn in_flight(&self) -> Bytes {
        Bytes::new(self.pipe())
    }

    /// Bytes in the host's transmit path: given out, and not yet reported by [`Self::handle_sent`].
    #[must_use]
    pub fn queued(&self) -> Bytes {
        Bytes::new(self.queued)
    }

    /// The smoothed round trip; `None` before the first sample.
    #[must_use]
    pub fn smoothed_rtt(&self) -> Option<Span> {
        (self.rtt.smoothed() > 0).then(|| Span::ns(self.rtt.smoothed()))
    }

    /// The least round trip so far; `None` before the first sample.
    #[must_use]
    pub fn least_rtt(&self) -> Option<Span> {
        (self.rtt.smoothed() > 0).then(|| Span::ns(self.rtt.least()))
    }

    /// DCTCP's estimate of the marked fraction, in 2^-10; `None` for other algorithms.
    #[must_use]
    pub fn dctcp_alpha(&self) -> Option<u32> {
        self.control.alpha()
    }

    /// Whether ECN is agreed on.
    #[must_use]
    pub fn ecn(&self) -> bool {
        self.ecn
    }

    /// The counters of this end.
    #[must_use]
    pub fn stats(&self) -> SenderStats {
        self.stats
    }

    /// When pacing lets the next segment leave, while it holds one back.
    fn pacing_due(&self) -> Option<Nanos> {
        self.paced.then_some(self.next_send)
    }

    /// Notes that the other end has connected to this one.
    pub(super) fn open_passively(&mut self, ecn: bool) {
        if (self.open == Open::Closed { passive: true }) {
            self.open = Open::Yes;
            self.ecn = ecn;
        }
    }

    /// Waits for the other end to connect.
    pub(super) fn wait_for_peer(&mut self) {
        if self.open != Open::Yes {
            self.open = Open::Closed { passive: true };
        }
    }

    /// Whether data may flow.
    pub(super) fn is_open(&self) -> bool {
        self.open == Open::Yes
    }

    fn handle_handshake(&mut self, ack: &Ack, now: Nanos) {
        let Open::Asked { sent, .. } = self.open else {
            return; // a SYN-ACK that was sent twice, or a stray acknowledgement
        };
        if !ack.syn() {
            return;
        }
        self.open = Open::Yes;
        self.ecn = self.config.ecn && ack.ece();
        self.edge = u64::from(ack.window);
        self.rtt.reset_backoff();
        if sent == 1 {
            self.rtt.sample(now - self.waiting_since);
        } else if sent > 2 {
            self.control.set_cwnd(0); // one loss is forgiven, as in Linux; two say that the path is bad
        }
        self.waiting_since = now;
        self.last_news = now;
    }

    /// Takes SACK blocks; says whether the first reports a duplicate (RFC 2883).
    fn take_blocks(&mut self, ack: &Ack, floor: Span, now: Nanos, delivery: &mut Delivery) -> bool {
        if !self.config.sack {
            return false;
        }
        let mut blocks = ack.blocks();
        let (first, second) = (blocks.next(), blocks.next());
        let within =
            |inner: SackBlock, outer: SackBlock| outer.start <= inner.start && inner.end <= outer.end;
        let duplicate = first
            .is_some_and(|first| first.end <= self.una || second.is_some_and(|second| within(first, second)));
        for block in ack.blocks() {
            if self.una < block.end
                && self.una <= block.start
                && block.start < block.end
                && block.end <= self.nxt
            {
                self.board.sack(block, floor, now, delivery);
            }
        }
        self.board.remember(ack.blocks());
        duplicate
    }

    /// Lets the window grow by what has arrived, if the window is what holds us back.
    fn grow(&mut self, delivery: &Delivery, now: Nanos) {
        let limited = self.window_limited
            || self.recovery.phase == Phase::Loss
            || (self.control.in_slow_start() && self.control.cwnd < 2 * self.most_outstanding);
        if limited && delivery.bytes > 0 {
            self.control.grow(&self.progress(delivery, now));
        }
    }

    /// What the next acknowledgement is compared with.
    fn before(&self) -> Before {
        let in_flight = if self.control.has_model() { self.pipe() } else { 0 };
        let (lost, losses) = (self.board.lost(), self.board.losses());
        Before { una: self.una, edge: self.edge, lost, losses, in_flight }
    }

    /// Shows a model of the path what an acknowledgement says about it.
    fn learn(&mut self, before: &Before, delivery: &Delivery, now: Nanos) {
        let (in_flight, least_rtt) = (self.pipe(), Span::ns(self.rtt.least()));
        let lost = self.board.losses() - before.losses;
        let delayed = delivery.bytes <= self.mss && self.outstanding() == 0;
        let Some(rates) = self.board.rates() else { return };
        let arrival = Arrival {
            sample: rates.sample(least_rtt, now),
            acked: delivery.bytes,
            delivered: rates.delivered(),
            lost,
            in_flight_before: before.in_flight,
            in_flight,
            rtt: delivery.last_sent.map(|sent| (now - sent).as_u64()),
            delayed,
            recovering: matches!(self.recovery.phase, Phase::Recovery | Phase::Loss),
            next_send: self.next_send,
            now,
        };
        if self.control.learn(&arrival)
            && let Some(rates) = self.board.rates()
        {
            rates.limit(in_flight);
        }
    }

    /// Notes that the application has nothing to send though the window has room, for a model of the path.
    fn note_app_limited(&mut self) {
        let in_flight = self.pipe();
        if in_flight < self.control.cwnd
            && !self.board.has_unsent_losses()
            && let Some(rates) = self.board.rates()
        {
            rates.limit(in_flight);
        }
    }

    fn progress(&self, delivery: &Delivery, now: Nanos) -> Progress {
        Progress {
            delivered: delivery.bytes,
            una: self.una,
            nxt: self.nxt,
            rtt: delivery.last_sent.map(|sent| (now - sent).as_u64()),
            srtt: self.rtt.smoothed(),
            now,
        }
    }

    fn outstanding(&self) -> u64 {
        self.nxt - self.una
    }

    fn pipe(&self) -> u64 {
        self.board.pipe(self.outstanding())
    }

    /// Retransmission timeout, SYN timeout or window probe: they exclude each other.
    fn retransmission_due(&self) -> Option<Nanos> {
        let waits = match self.open {
            Open::Closed { .. } => false,
            Open::Asked { due, .. } => !due,
            Open::Yes => self.outstanding() > 0 || self.is_window_closed(),
        };
        waits.then(|| self.waiting_since + self.rtt.timeout())
    }

    /// RFC 8985 §7.2, with Linux's two ticks of slack. No later than the timeout, whose place it takes.
    fn tail_probe_due(&self) -> Option<Nanos> {
        if !self.config.tail_loss_probe
            || self.outstanding() == 0
            || self.tail_probe.is_some()
            || self.tail_probe_now
            || self.rtt.smoothed() == 0
            || !matches!(self.recovery.phase, Phase::Open | Phase::Reduced)
            || !self.board.is_clean()
        {
            return None;
        }
        let slack = if self.outstanding() <= self.mss { self.rtt.min_rto() } else { TAIL_PROBE_SLACK };
        let due = self.last_news + Span::ns(2 * self.rtt.smoothed() + slack);
        Some(due.min(self.waiting_since + self.rtt.timeout()))
    }

    /// Whether data waits for a wider window, and no packet is in flight whose acknowledgement could bring one.
    fn is_window_closed(&self) -> bool {
        self.outstanding() == 0 && self.written > self.nxt && self.edge <= self.nxt && !self.probe_now
    }
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Before {
    una: u64,
    edge: u64,
    lost: u64,
    losses: u64,
    in_flight: u64,
}

/// Far enough for a century at a terabit, and its sums with windows stay within 64 bits.
const UNLIMITED: u64 = u64::MAX / 2;
/// An IP packet, and so a descriptor, has at most 64 KiB.
const MAX_DESCRIPTOR: u64 = 65_535;
/// Memory that Linux counts for a packet in a socket's buffer, beside its payload: headers and what describes its pages, which share
/// a power of two with the payload, and its record (`MAX_TCP_HEADER`, `skb_shared_info` and `sk_buff`, about).
const PACKET_HEADERS: u64 = 512;
const PACKET_RECORD: u64 = 256;
/// Two of Linux's ticks.
const TAIL_PROBE_SLACK: u64 = 2_000_000;
