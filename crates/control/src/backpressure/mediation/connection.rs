//! One connection, as the host of one of its ends sees it.
//!
//! Why, from, not here: see the module above.
//! Invariant: what an end has agreed to is taken from the handshake as the guest sent and got it, before and after the changes
//! made here; a guest that sends ECT is in ECN state whatever the handshake said.

use super::super::connections::{Connected, Stage};
use super::numbers::Numbers;
use super::{Change, Codepoint, EcnFlags, MediationCounters, Segment};

/// What the ends of a connection have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Agreed {
    /// The handshake was not seen.
    #[default]
    Unknown,
    /// Accurate ECN.
    Accurate,
    /// ECN as in RFC 3168, or none.
    Classic {
        /// The guest is in ECN state.
        guest: bool,
        /// The peer is, or may be.
        peer: bool,
    },
}

/// The guest's own SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnSyn {
    sequence: u32,
    /// The guest has asked for ECN in any of its transmissions.
    asked: bool,
    accurate: bool,
}

/// The peer's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PeerSyn {
    sequence: u32,
    /// Any of its transmissions asked for ECN, and the last one did.
    asked: bool,
    asks: bool,
    accurate: bool,
    /// The guest has answered it.
    answered: bool,
}

/// A CWR in the guest's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cwr {
    /// No echo has arrived since the last one.
    #[default]
    None,
    /// The next data that the guest sends gets it.
    Due,
    /// The segment that ends with this number had it. Echoes in acknowledgements of earlier data are still for older marks.
    Sent(u32),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    own: Option<OwnSyn>,
    peer: Option<PeerSyn>,
    agreed: Agreed,
    stage: Stage,
    numbers: Numbers,
    /// Marks are echoed in the guest's place.
    echoes: bool,
    cwr: Cwr,
    /// The peer sends ECT(1).
    ect1: bool,
    /// The guest has sent its last byte, and the peer has.
    ends: [bool; 2],
}

impl Connected for Connection {
    fn stage(&self) -> Stage {
        self.stage
    }
}

impl Connection {
    /// A segment that the guest sends; `takes` says whether a new connection is mediated.
    pub(super) fn outbound(
        &mut self,
        segment: &Segment,
        takes: bool,
        counters: &mut MediationCounters,
    ) -> Change {
        if segment.rst {
            self.stage = Stage::Ended;
            return Change::NONE;
        }
        let change = match (segment.syn, segment.ack) {
            (true, false) => self.ask(segment, takes, counters),
            (true, true) => self.grant(segment, takes, counters),
            (false, _) => self.send(segment, counters),
        };
        self.numbers.note_sent(segment);
        change
    }

    pub(super) fn inbound(&mut self, segment: &Segment, counters: &mut MediationCounters) -> (Change, bool) {
        if segment.rst {
            // Anyone who guesses the ports can send one. What is known stays until the place is needed, and a guest that goes
            // on has not believed it.
            self.stage = Stage::Ended;
            return (Change::NONE, false);
        }
        match (segment.syn, segment.ack) {
            (true, false) => {
                self.note_peer(segment);
                (Change::NONE, false)
            }
            (true, true) => (self.hear_grant(segment, counters), false),
            (false, _) => self.receive(segment, counters),
        }
    }

    /// Of a connection that is not mediated nothing is known.
    fn over() -> Self {
        Self { stage: Stage::Ended, ..Self::default() }
    }

    /// The guest's SYN.
    fn ask(&mut self, segment: &Segment, takes: bool, counters: &mut MediationCounters) -> Change {
        let asks = is_asking(segment.flags);
        let accurate = asks && segment.flags.ae;
        if let Some(own) = self.own.as_mut().filter(|own| own.sequence == segment.sequence) {
            own.asked |= asks;
            own.accurate |= accurate;
            return Change::NONE;
        }
        if !takes {
            *self = Self::over();
            return Change::NONE;
        }
        // Where both ends open at the same time, the peer's SYN came before.
        let peer = self.peer.filter(|peer| self.stage == Stage::Opening && !peer.answered);
        let own = OwnSyn { sequence: segment.sequence, asked: asks, accurate };
        *self = Self { own: Some(own), peer, ..Self::default() };
        if segment.flags != EcnFlags::default() {
            return Change::NONE;
        }
        counters.asked += 1;
        Change { ece: Some(true), cwr: Some(true), ecn: None }
    }

    /// The peer's SYN. What is agreed stays until the guest answers it.
    fn note_peer(&mut self, segment: &Segment) {
        let asks = is_asking(segment.flags);
        let accurate = asks && segment.flags.ae;
        match &mut self.peer {
            Some(peer) if peer.sequence == segment.sequence => {
                peer.asked |= asks;
                peer.asks = asks;
                peer.accurate |= accurate;
            }
            peer => {
                let sequence = segment.sequence;
                *peer = Some(PeerSyn { sequence, asked: asks, asks, accurate, answered: false });
            }
        }
    }

    /// The guest's SYN-ACK.
    fn grant(&mut self, segment: &Segment, takes: bool, counters: &mut MediationCounters) -> Change {
        let Some(peer) = self.peer.filter(|peer| segment.acknowledged == peer.sequence.wrapping_add(1))
        else {
            return Change::NONE;
        };
        let first = !peer.answered;
        if first && !takes {
            *self = Self::over();
            return Change::NONE;
        }
        if first {
            // Of a connection that had the same ports nothing stays; where both ends open, the guest's own SYN does.
            let own = self.own.filter(|own| own.sequence == segment.sequence);
            *self = Self { own, peer: Some(PeerSyn { answered: true, ..peer }), ..Self::default() };
        }
        let (guest, may) = match self.agreed {
            Agreed::Classic { guest, peer } => (guest, peer),
            _ => (false, false),
        };
        if peer.accurate && is_accurate_answer(segment.flags) {
            self.agreed = Agreed::Accurate;
        } else if peer.asked && is_grant(segment.flags) {
            self.agreed = Agreed::Classic { guest: true, peer: true };
        } else if first && peer.asks && segment.flags == EcnFlags::default() {
            self.agreed = Agreed::Classic { guest: false, peer: true };
            counters.granted += 1;
            return Change { ece: Some(true), ..Change::NONE };
        } else if self.agreed != Agreed::Accurate {
            self.agreed = Agreed::Classic { guest, peer: may };
        }
        Change::NONE
    }

    /// A SYN-ACK for the guest.
    fn hear_grant(&mut self, segment: &Segment, counters: &mut MediationCounters) -> Change {
        let Some(own) = self.own.filter(|own| segment.acknowledged == own.sequence.wrapping_add(1)) else {
            return Change::NONE;
        };
        if self.stage == Stage::Opening {
            self.numbers.note_expected(segment.sequence.wrapping_add(1));
            let grants = is_grant(segment.flags);
            self.agreed = if own.accurate && is_accurate_answer(segment.flags) {
                Agreed::Accurate
            } else {
                Agreed::Classic { guest: own.asked && grants, peer: grants }
            };
        }
        let EcnFlags { cwr, ece, .. } = segment.flags;
        if own.asked || !(cwr || ece) {
            return Change::NONE;
        }
        counters.hidden += 1;
        Change { ece: ece.then_some(false), cwr: cwr.then_some(false), ecn: None }
    }

    /// What the guest sends behind the handshake.
    fn send(&mut self, segment: &Segment, counters: &mut MediationCounters) -> Change {
        self.note_end(0, segment);
        let Agreed::Classic { guest, peer } = &mut self.agreed else { return Change::NONE };
        if self.ends != [true; 2] {
            self.stage = Stage::Open;
        }
        *guest |= segment.payload > 0 && segment.ecn != Codepoint::NotEct;
        if *guest || !*peer {
            return Change::NONE;
        }
        let mut change = Change::NONE;
        if self.echoes && segment.ack {
            change.ece = Some(true);
            counters.echoed += 1;
        }
        if self.cwr == Cwr::Due && segment.payload > 0 {
            self.cwr = Cwr::Sent(segment.sequence.wrapping_add(segment.payload));
            change.cwr = Some(true);
            counters.answered += 1;
        }
        change
    }

    /// What the guest receives behind the handshake, and whether it reports a mark on the guest's flow. A segment that does not
    /// fit the connection, as it may be forged, does nothing.
    fn receive(&mut self, segment: &Segment, counters: &mut MediationCounters) -> (Change, bool) {
        if !self.numbers.fits(segment) {
            return (Change::NONE, false);
        }
        self.numbers.note_acknowledged(segment.acknowledged);
        self.note_end(1, segment);
        let EcnFlags { ae, cwr, ece } = segment.flags;
        let (guest, peer) = match self.agreed {
            Agreed::Accurate => return (Change::NONE, false),
            Agreed::Unknown if ae => {
                self.agreed = Agreed::Accurate;
                return (Change::NONE, false);
            }
            Agreed::Unknown => return (Change::NONE, ece),
            Agreed::Classic { guest, peer } => (guest, peer),
        };
        if guest || !peer {
            return (Change::NONE, ece && guest);
        }
        let mut change = Change::NONE;
        if cwr {
            self.echoes = false;
        }
        match segment.ecn {
            Codepoint::Ce => {
                self.echoes = true;
                change.ecn = Some(if self.ect1 { Codepoint::Ect1 } else { Codepoint::Ect0 });
                counters.unmarked += 1;
            }
            Codepoint::Ect0 => self.ect1 = false,
            Codepoint::Ect1 => self.ect1 = true,
            Codepoint::NotEct => {}
        }
        self.hear_acknowledged(segment.acknowledged);
        // An echo is answered once for each window of data.
        if ece && self.cwr == Cwr::None {
            self.cwr = Cwr::Due;
        }
        (change, ece)
    }

    /// With the data that had the CWR acknowledged, the next echo is for later data. That is noted at once, as numbers begin
    /// anew after 4 GiB.
    fn hear_acknowledged(&mut self, number: u32) {
        if let Cwr::Sent(end) = self.cwr
            && number.wrapping_sub(end).cast_signed() >= 0
        {
            self.cwr = Cwr::None;
        }
    }

    fn note_end(&mut self, of: usize, segment: &Segment) {
        if segment.fin
            && let Some(end) = self.ends.get_mut(of)
        {
            *end = true;
            if self.ends == [true; 2] {
                self.stage = Stage::Ended;
            }
        }
    }

    /// Whether the guest is in ECN state, and the peer may be, where the handshake was seen.
    #[cfg(test)]
    pub(super) fn agreed(&self) -> Option<(bool, bool)> {
        match self.agreed {
            Agreed::Classic { guest, peer } => Some((guest, peer)),
            _ => None,
        }
    }
}

/// Whether a SYN with these flags asks for ECN; with AE, for accurate ECN if the server knows it.
fn is_asking(flags: EcnFlags) -> bool {
    flags.cwr && flags.ece
}

/// Whether a SYN-ACK with these flags grants ECN as in RFC 3168.
fn is_grant(flags: EcnFlags) -> bool {
    flags == EcnFlags { ece: true, ..EcnFlags::default() }
}

/// Whether a SYN-ACK with these flags answers a SYN that asked for accurate ECN in kind (RFC 9768, table 2).
fn is_accurate_answer(EcnFlags { ae, cwr, ece }: EcnFlags) -> bool {
    (ae || cwr) && (ae, cwr, ece) != (true, true, true) && (ae, cwr, ece) != (true, false, true)
}
