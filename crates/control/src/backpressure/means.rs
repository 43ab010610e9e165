//! How a chosen flow is slowed down: by which means, and which of its packets are marked.
//!
//! Why: live and in virtual time the same flow must be slowed down in the same way.
//! From: MIMIC §III-B to D; which means takes another's place is ours.
//! Not here: which flows are chosen (`choice`), marking and holding packets (the driver).
//! Invariant: a flow is marked only where its packets can be, and at most once in an interval.

use plimsoll_policy::PressMode;
use plimsoll_units::Nanos;

use super::mediation::Codepoint;
use crate::HostId;

/// Where a flow comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowSource {
    /// A tenant of this host.
    #[default]
    Here,
    /// A place that cannot be told.
    Elsewhere(SenderMac),
    /// A host that can be told.
    Host(HostId, SenderMac),
}

/// The hardware address that a flow is sent from at another host, if that host lets no other tenant of its own send from it. Zeros
/// where no host vouches for it, so that a sender cannot become many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SenderMac(pub [u8; 6]);

/// How a flow is slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Some of its packets are marked.
    Marked,
    /// This host holds it to the rate: what is beyond waits, and is dropped where too much waits.
    MeteredHere,
    /// This host drops what is beyond the rate.
    Dropped,
    /// The host that it comes from was told its rate.
    Told(HostId),
    /// Some of its packets are marked, and this host holds it to the rate.
    MarkedAndMetered,
    /// Some of its packets are marked, and the host that it comes from was told its rate.
    MarkedAndTold(HostId),
    /// The receive window in its acknowledgements is made smaller.
    Windowed,
}

/// What can be done to the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Able {
    /// They can be marked: their tenant allows it, and they have ECT.
    pub mark: bool,
    /// The windows in its acknowledgements can be read and changed.
    pub window: bool,
}

impl Means {
    /// The means for a flow in this mode. Where the mode's own does not work, the next best takes its place.
    #[must_use]
    pub fn of(mode: PressMode, from: FlowSource, able: Able, ignores: bool) -> Self {
        match (mode, from) {
            (PressMode::Mark, _) if able.mark && !ignores => Self::Marked,
            (PressMode::MarkAndMeter, FlowSource::Host(host, _)) if able.mark => Self::MarkedAndTold(host),
            (PressMode::MarkAndMeter, FlowSource::Here) if able.mark => Self::MarkedAndMetered,
            // Its source cannot be told: a meter here would lose packets that marks spare.
            (PressMode::MarkAndMeter, FlowSource::Elsewhere(_)) if able.mark && !ignores => Self::Marked,
            (PressMode::Window, _) if able.window && !ignores => Self::Windowed,
            (PressMode::Drop, _) => Self::Dropped,
            (_, FlowSource::Host(host, _)) => Self::Told(host),
            (_, FlowSource::Here) => Self::MeteredHere,
            // What comes from the uplink cannot wait at its source.
            (_, FlowSource::Elsewhere(_)) => Self::Dropped,
        }
    }

    /// Whether packets are marked.
    #[must_use]
    pub const fn marks(self) -> bool {
        matches!(self, Self::Marked | Self::MarkedAndMetered | Self::MarkedAndTold(_))
    }
}

/// The marking of one flow: one of `interval` packets.
#[derive(Clone, Copy, Debug)]
pub struct Marking {
    interval: u32,
    until: Nanos,
    /// Packets since the last mark.
    since: u32,
    /// Packets that were seen, and those of them that could be marked.
    seen: u32,
    capable: u32,
}

impl Default for Marking {
    /// Marks the first packet that can be: where one of millions is to be marked, the next one is seconds away.
    fn default() -> Self {
        Self { interval: 1, until: Nanos::ZERO, since: u32::MAX, seen: 0, capable: 0 }
    }
}

impl Marking {
    /// Marks one packet in `interval` until this moment.
    pub fn set(&mut self, interval: u32, until: Nanos) {
        (self.interval, self.until) = (interval, until);
    }

    /// Marks no packet from now on. What is known of the flow's packets stays.
    pub fn stop(&mut self) {
        self.until = Nanos::ZERO;
    }

    /// Handles `frames` packets with this ECN field, and says whether one of them is to be marked.
    ///
    /// A packet that comes marked takes the place of a mark: the fabric or its sender has set that one.
    #[inline]
    pub fn take(&mut self, frames: u32, ecn: Codepoint, now: Nanos) -> bool {
        if now >= self.until {
            return false;
        }
        let capable = ecn != Codepoint::NotEct;
        self.seen = self.seen.saturating_add(frames);
        self.capable = self.capable.saturating_add(if capable { frames } else { 0 });
        self.since = self.since.saturating_add(frames);
        if self.since < self.interval || !capable {
            return false;
        }
        self.since = 0;
        ecn != Codepoint::Ce
    }

    /// Whether hardly any of its packets can be marked, which is known after 256.
    #[must_use]
    pub const fn is_unmarkable(&self) -> bool {
        self.seen >= KNOWN && self.capable < self.seen / 8
    }
}

/// Packets after which it is known whether a flow can be marked.
const KNOWN: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Able = Able { mark: true, window: true };
    const NONE: Able = Able { mark: false, window: false };
    const ANY: SenderMac = SenderMac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn what_does_not_work_is_replaced_by_a_meter() {
        use PressMode::{Drop, Mark, MarkAndMeter, Meter, Window};
        let of = |mode, able, ignores| {
            [FlowSource::Here, FlowSource::Elsewhere(ANY), FlowSource::Host(HostId(7), ANY)]
                .map(|from| Means::of(mode, from, able, ignores))
        };
        let metered = [Means::MeteredHere, Means::Dropped, Means::Told(HostId(7))];
        assert_eq!(of(Mark, ALL, false), [Means::Marked; 3]);
        assert_eq!(of(Window, ALL, false), [Means::Windowed; 3]);
        for mode in [Mark, Window] {
            assert_eq!([of(mode, ALL, true), of(mode, NONE, false)], [metered; 2], "{mode}");
        }
        assert_eq!([of(Meter, ALL, false), of(MarkAndMeter, NONE, false)], [metered; 2]);
        let both = [Means::MarkedAndMetered, Means::Marked, Means::MarkedAndTold(HostId(7))];
        assert_eq!(of(MarkAndMeter, ALL, false), both);
        assert_eq!(of(MarkAndMeter, ALL, true), [both[0], Means::Dropped, both[2]]);
        assert_eq!(of(Drop, ALL, false), [Means::Dropped; 3]);
    }

    #[test]
    fn one_packet_of_an_interval_is_marked_and_only_one_that_can_be() {
        let mut marking = Marking::default();
        marking.set(3, Nanos::new(10));
        let mut take = |ecn, at| marking.take(1, ecn, Nanos::new(at));
        assert!(!take(Codepoint::NotEct, 0) && take(Codepoint::Ect0, 0), "the first that can be");
        assert_eq!([(); 4].map(|()| take(Codepoint::Ect1, 1)), [false, false, true, false]);
        assert!(!take(Codepoint::Ect0, 1) && !take(Codepoint::Ce, 1) && !take(Codepoint::Ect0, 1));
        assert!(!take(Codepoint::Ect0, 10) && !take(Codepoint::Ect0, 10), "it is over");
    }

    #[test]
    fn a_flow_without_ect_is_known_after_256_packets() {
        let mut marking = Marking::default();
        marking.set(2_000, Nanos::new(10));
        marking.take(20, Codepoint::Ect0, Nanos::ZERO);
        marking.take(235, Codepoint::NotEct, Nanos::ZERO);
        assert!(!marking.is_unmarkable());
        marking.take(1, Codepoint::NotEct, Nanos::ZERO);
        assert!(marking.is_unmarkable());
        marking.stop();
        assert!(!marking.take(2_000, Codepoint::Ect0, Nanos::ZERO) && marking.is_unmarkable());
    }
}
