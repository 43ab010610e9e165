//! Two stacks, two hosts that mediate, and a path that marks and loses packets between them.
//!
//! Why: the promises of mediation are about what stacks do with it.
//! From: Linux's `net/ipv4/tcp_input.c` and `tcp_output.c`: `tcp_ecn_rcv_syn` and its neighbours, and the fallback to a SYN
//! without ECN when one is sent again.
//! Not here: windows and timers: a stack sends four segments a round, and repeats after three rounds without progress.

use plimsoll_units::{Nanos, Span};

use super::{Change, Codepoint, EcnFlags, Mediation, Segment};

/// Bytes of a segment.
const LEN: u32 = 100;
/// Rounds without progress after which something is sent again.
const PATIENCE: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Listen,
    SynSent,
    SynReceived,
    Open,
}

/// A stack with `net.ipv4.tcp_ecn` at 0, 1 or 2.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    tcp_ecn: u8,
    state: State,
    sequence: u32,
    next: u32,
    una: u32,
    end: u32,
    expects: u32,
    waited: u32,
    tries: u32,
    owes_ack: bool,
    demands_cwr: bool,
    says_cwr: bool,
    reduced_until: u32,
    pub(super) ecn_ok: bool,
    /// How often it slowed down for an echo.
    pub(super) reductions: u32,
    /// Marks that arrived although it does not use ECN.
    pub(super) ignored: u32,
    /// ECN flags on a SYN-ACK that it did not ask for.
    pub(super) surprised: bool,
    pub(super) sent_ect: bool,
}

impl Stack {
    pub(super) fn new(tcp_ecn: u8, client: bool, sequence: u32, segments: u32) -> Self {
        let state = if client { State::SynSent } else { State::Listen };
        let first = sequence.wrapping_add(1);
        Self {
            tcp_ecn,
            state,
            sequence,
            next: first,
            una: first,
            end: first.wrapping_add(segments * LEN),
            expects: 0,
            waited: PATIENCE,
            tries: 0,
            owes_ack: false,
            demands_cwr: false,
            says_cwr: false,
            reduced_until: first,
            ecn_ok: false,
            reductions: 0,
            ignored: 0,
            surprised: false,
            sent_ect: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Open && self.una == self.end
    }

    /// What it sends in this round.
    pub(super) fn send(&mut self) -> Vec<Segment> {
        self.waited += 1;
        let late = self.waited > PATIENCE;
        match self.state {
            State::Listen => vec![],
            State::SynSent | State::SynReceived if !late => vec![],
            State::SynSent => {
                let asks = self.tcp_ecn == 1 && self.tries == 0;
                self.tries += 1;
                self.waited = 0;
                let flags = EcnFlags { cwr: asks, ece: asks, ae: false };
                vec![Segment { syn: true, sequence: self.sequence, flags, ..Segment::default() }]
            }
            State::SynReceived => {
                self.waited = 0;
                let flags = EcnFlags { ece: self.ecn_ok, ..EcnFlags::default() };
                let (sequence, acknowledged) = (self.sequence, self.expects);
                vec![Segment { syn: true, ack: true, sequence, acknowledged, flags, ..Segment::default() }]
            }
            State::Open => self.send_data(late),
        }
    }

    fn segment(&self, sequence: u32, payload: u32) -> Segment {
        let flags = EcnFlags { ece: self.demands_cwr, ..EcnFlags::default() };
        let acknowledged = self.expects;
        Segment { ack: true, sequence, payload, acknowledged, flags, ..Segment::default() }
    }

    fn send_data(&mut self, late: bool) -> Vec<Segment> {
        let mut sent = Vec::new();
        if late && self.una != self.next {
            self.waited = 0;
            sent.push(self.segment(self.una, LEN)); // repeated data is never ECT
        }
        while self.next != self.end && self.next.wrapping_sub(self.una) < 4 * LEN {
            let mut segment = self.segment(self.next, LEN);
            if self.ecn_ok {
                segment.ecn = Codepoint::Ect0;
                segment.flags.cwr = core::mem::take(&mut self.says_cwr);
                self.sent_ect = true;
            }
            self.next = self.next.wrapping_add(LEN);
            sent.push(segment);
        }
        if core::mem::take(&mut self.owes_ack) && sent.is_empty() {
            sent.push(self.segment(self.next, 0));
        }
        sent
    }

    pub(super) fn receive(&mut self, segment: &Segment) {
        let EcnFlags { cwr, ece, .. } = segment.flags;
        match (segment.syn, segment.ack, self.state) {
            (true, false, State::Listen) => {
                self.ecn_ok = self.tcp_ecn > 0 && cwr && ece;
                self.expects = segment.sequence.wrapping_add(1);
                (self.state, self.waited) = (State::SynReceived, PATIENCE);
            }
            // Of an old request Linux repeats the answer as it was.
            (true, false, State::SynReceived) => self.waited = PATIENCE,
            (true, true, State::SynSent) => {
                self.surprised |= self.tcp_ecn != 1 && (ece || cwr);
                self.ecn_ok = self.tcp_ecn == 1 && ece && !cwr;
                self.expects = segment.sequence.wrapping_add(1);
                (self.state, self.owes_ack, self.waited) = (State::Open, true, 0);
            }
            (true, true, State::Open) => self.owes_ack = true,
            (false, true, State::SynReceived) => {
                (self.state, self.waited) = (State::Open, 0);
                self.receive_data(segment);
            }
            (false, true, State::Open) => self.receive_data(segment),
            _ => {}
        }
    }

    fn receive_data(&mut self, segment: &Segment) {
        let EcnFlags { cwr, ece, .. } = segment.flags;
        let marked = segment.ecn == Codepoint::Ce;
        if self.ecn_ok {
            self.demands_cwr = self.demands_cwr && !(cwr && segment.payload > 0) || marked;
        } else {
            self.ignored += u32::from(marked);
        }
        let forward = segment.acknowledged.wrapping_sub(self.una);
        if forward > 0 && forward <= self.next.wrapping_sub(self.una) {
            (self.una, self.waited) = (segment.acknowledged, 0);
        }
        let past = segment.acknowledged.wrapping_sub(self.reduced_until).cast_signed() > 0;
        if self.ecn_ok && ece && past {
            (self.reductions, self.says_cwr) = (self.reductions + 1, true);
            self.reduced_until = self.next;
        }
        if segment.payload > 0 {
            self.owes_ack = true;
            if segment.sequence == self.expects {
                self.expects = self.expects.wrapping_add(segment.payload);
            }
        }
    }
}

/// What happens to packets on their way, one entry for each.
#[derive(Clone, Debug)]
pub(super) struct Fate {
    pub(super) lost: bool,
    pub(super) marked: bool,
}

/// A client, its host, a path, the server's host, and the server.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) stacks: [Stack; 2],
    pub(super) hosts: [Option<Mediation<()>>; 2],
    /// Reports of marks on what each end sends, as its host got them.
    pub(super) reports: [u32; 2],
    /// Segments that each host changed.
    pub(super) changed: [u32; 2],
    /// Marks on what each end sends.
    pub(super) marks: [u32; 2],
    pub(super) lost: u32,
    /// Packets of the handshake are never lost.
    pub(super) spares_handshake: bool,
    now: Nanos,
}

fn apply(change: Change, segment: &mut Segment) -> u32 {
    let before = *segment;
    segment.flags.ece = change.ece.unwrap_or(segment.flags.ece);
    segment.flags.cwr = change.cwr.unwrap_or(segment.flags.cwr);
    segment.ecn = change.ecn.unwrap_or(segment.ecn);
    u32::from(before != *segment)
}

impl World {
    pub(super) fn new(tcp_ecn: [u8; 2], mediated: [bool; 2], sequences: [u32; 2], segments: u32) -> Self {
        let [client, server] = tcp_ecn;
        Self {
            stacks: [
                Stack::new(client, true, sequences[0], segments),
                Stack::new(server, false, sequences[1], segments),
            ],
            hosts: mediated.map(|mediated| mediated.then(|| Mediation::new(8, 0))),
            reports: [0; 2],
            changed: [0; 2],
            marks: [0; 2],
            lost: 0,
            spares_handshake: false,
            now: Nanos::ZERO,
        }
    }

    /// Runs until both ends have sent everything; answers whether they did within 5,000 rounds.
    pub(super) fn run(&mut self, fates: &mut impl Iterator<Item = Fate>) -> bool {
        for _ in 0..5_000 {
            if self.stacks.iter().all(Stack::is_done) {
                return true;
            }
            self.now += Span::millis(1);
            let sent = [0, 1].map(|end: usize| (end, self.stacks[end].send()));
            for (end, segments) in sent {
                for segment in segments {
                    self.carry(end, segment, fates);
                }
            }
        }
        false
    }

    fn carry(&mut self, from: usize, mut segment: Segment, fates: &mut impl Iterator<Item = Fate>) {
        let to = 1 - from;
        if let Some(host) = &mut self.hosts[from] {
            self.changed[from] += apply(host.outbound(&(), &segment, self.now), &mut segment);
        }
        let fate = fates.next().unwrap_or(Fate { lost: false, marked: false });
        if fate.lost && !(self.spares_handshake && segment.syn) {
            self.lost += 1;
            return;
        }
        if fate.marked && segment.ecn != Codepoint::NotEct {
            segment.ecn = Codepoint::Ce;
            self.marks[from] += 1;
        }
        if let Some(host) = &mut self.hosts[to] {
            let (change, report) = host.inbound(&(), &segment, self.now);
            self.changed[to] += apply(change, &mut segment);
            self.reports[to] += u32::from(report);
        }
        self.stacks[to].receive(&segment);
    }
}
