//! Round-trip times of heavy hitters, from their segments and from what comes back.
//!
//! Why: how often a flow's packets are marked follows from its round trip, which only its own packets show.
//! From: `control::backpressure::{RoundTrip, Handshakes}`.
//! Not here: which flows are heavy hitters (`heavy`).
//! Invariant: a packet of no heavy hitter costs a look at one byte and one bit, and where there are heavy hitters one at what is
//! remembered of its flow, or at one byte where its driver remembers that; all tables have a fixed size.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use foldhash::quality::RandomState;
use plimsoll_control::backpressure::{FlowSource, Handshakes, RoundTrip, Segment};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::{FlowKey, TcpPlace, TcpProgress, protocol};

use super::heavy::{Counted, MOST};

/// The connections whose round trips are measured.
#[derive(Debug)]
pub(super) struct RoundTrips {
    hasher: RandomState,
    handshakes: Handshakes,
    /// Where each one lies, by a keyed hash of the connection.
    places: HashMap<u64, usize, FixedState>,
    measured: Vec<Measured>,
    /// By hash of a flow: what its last packet found. A flow whose connection is looked up for each packet costs twice as much as
    /// counting it.
    known: Box<[Known]>,
    /// Grows when a connection comes or goes, as what is known of flows may be wrong then.
    generation: u32,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    connection: u64,
    /// Where the packets for the tenant come from, if that is known: others with the same headers are forged.
    from: Option<FlowSource>,
    /// As the lower one of the two flows sees it.
    round: RoundTrip,
    /// Heavy hitters of this connection: one, or one each way.
    flows: u8,
}

/// What was found for a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    hash: u64,
    generation: u32,
    /// The place of its connection with the lowest bit for the direction, or [`NOWHERE`].
    place: u32,
}

/// No connection is measured.
const NOWHERE: u32 = u32::MAX;

/// Flows of which is remembered what their last packet found, a power of two.
const KNOWN: usize = 4_096;

/// How long a flow that is not measured need not be looked at again: it may become a heavy hitter meanwhile.
const UNMEASURED: Span = Span::millis(1);

/// A connection on its way past a tenant's port: both of its flows have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Connection {
    /// The lower one of its two flows.
    flow: FlowKey,
    tenant: u32,
    /// The way of that flow.
    inward: bool,
}

impl Connection {
    /// The connection of a flow, and whether the flow is the lower one.
    fn of(counted: &Counted) -> (Self, bool) {
        // Both ends choose their own DSCP.
        let flow = counted.flow.without_dscp();
        let back = flow.reversed();
        let lower = flow <= back;
        let inward = counted.inward == lower;
        (Self { flow: flow.min(back), tenant: counted.tenant, inward }, lower)
    }
}

impl RoundTrips {
    /// Bytes of the tables, about.
    pub(super) const BYTES: usize = Handshakes::BYTES
        + (MOST * 8 / 7).next_power_of_two() * (size_of::<(u64, usize)>() + 1)
        + MOST * size_of::<Measured>()
        + KNOWN * size_of::<Known>();

    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::default(),
            handshakes: Handshakes::default(),
            places: HashMap::with_capacity_and_hasher(MOST, FixedState::default()),
            measured: Vec::with_capacity(MOST),
            known: vec![Known::default(); KNOWN].into(),
            generation: 1,
        }
    }

    /// Handles a TCP segment of a counted flow with this hash. Answers until when further segments of the flow need not be handled,
    /// unless they have SYN.
    #[inline]
    pub(super) fn note(
        &mut self,
        (hash, of): (u64, &Counted),
        place: TcpPlace,
        frame: &[u8],
        now: Nanos,
    ) -> Nanos {
        if place.is_syn(frame) || self.handshakes.awaits(hash) {
            self.shake_hands((hash, of), place, frame, now);
            return now;
        }
        if self.measured.is_empty() {
            return now + UNMEASURED;
        }
        let known = self.known[hash as usize % KNOWN];
        let known = if (known.hash, known.generation) == (hash, self.generation) {
            known.place
        } else {
            self.look_up(hash, of)
        };
        let Some(Measured { round, .. }) = self.measured.get_mut(known as usize >> 1) else {
            return now + UNMEASURED;
        };
        if !round.rests(now)
            && let Some(segment) = read(place, frame)
        {
            round.note(known & 1 == 1, &segment, now);
        }
        round.rests_until()
    }

    /// Finds the connection of a flow, and remembers it for the flow's next packets.
    fn look_up(&mut self, hash: u64, of: &Counted) -> u32 {
        let (connection, lower) = Connection::of(of);
        let at = self.places.get(&self.hasher.hash_one(connection)).copied();
        let at = at.filter(|at| self.measured[*at].is_of(of));
        let place = at.map_or(NOWHERE, |at| (at as u32) << 1 | u32::from(lower));
        self.known[hash as usize % KNOWN] = Known { hash, generation: self.generation, place };
        place
    }

    /// Handles a segment that may belong to a handshake.
    #[cold]
    fn shake_hands(&mut self, (hash, of): (u64, &Counted), place: TcpPlace, frame: &[u8], now: Nanos) {
        let (connection, lower) = Connection::of(of);
        let connection = self.hasher.hash_one(connection);
        let Some(segment) = read(place, frame) else { return };
        let at = self.places.get(&connection).copied();
        if let Some(known) = at.map(|at| &mut self.measured[at]).filter(|known| known.is_of(of)) {
            known.round.note(lower, &segment, now);
        }
        if place.is_syn(frame) {
            self.handshakes.open(connection, hash, &segment, now);
        } else {
            self.handshakes.end(connection, hash, &segment, now);
        }
    }

    /// Begins to measure a heavy hitter with this hash.
    pub(super) fn begin(&mut self, (hash, of): (u64, &Counted), now: Nanos) {
        if of.flow.protocol() != Some(protocol::TCP) {
            return;
        }
        let (connection, lower) = Connection::of(of);
        let connection = self.hasher.hash_one(connection);
        let at = *self.places.entry(connection).or_insert(self.measured.len());
        if at == self.measured.len() {
            let round = self.handshakes.of(connection, hash, now).unwrap_or_default();
            let round = if lower { round } else { round.reversed() };
            let from = of.inward.then_some(of.from);
            self.measured.push(Measured { connection, from, round, flows: 0 });
            self.generation = self.generation.wrapping_add(1);
        }
        let known = &mut self.measured[at];
        known.flows = known.flows.saturating_add(1);
    }

    /// Ends what [`RoundTrips::begin`] began.
    pub(super) fn end(&mut self, of: &Counted) {
        let connection = self.hasher.hash_one(Connection::of(of).0);
        let Some(&at) = self.places.get(&connection) else { return };
        let known = &mut self.measured[at];
        known.flows = known.flows.saturating_sub(1);
        if known.flows == 0 {
            self.measured.swap_remove(at);
            self.places.remove(&connection);
            if let Some(moved) = self.measured.get(at) {
                self.places.insert(moved.connection, at);
            }
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// The round trip of a heavy hitter, once it is known.
    pub(super) fn of(&self, of: &Counted) -> Option<Span> {
        let at = *self.places.get(&self.hasher.hash_one(Connection::of(of).0))?;
        let known = &self.measured[at];
        known.round.get().filter(|_| known.is_of(of))
    }
}

impl Measured {
    /// Whether packets of this flow belong to the connection: others that come for the tenant have copied its headers.
    fn is_of(&self, of: &Counted) -> bool {
        !of.inward || self.from.is_none_or(|from| from == of.from)
    }
}

fn read(place: TcpPlace, frame: &[u8]) -> Option<Segment> {
    let TcpProgress { seq, len, acknowledged, timestamps, .. } = place.read(frame)?;
    Some(Segment { seq, len, acknowledged, timestamps })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_control::HostId;
    use plimsoll_control::backpressure::SenderMac;
    use plimsoll_wire::parse;

    const SENDER: SenderMac = SenderMac([2, 0, 0, 0, 0, 1]);

    /// A segment of TCP over IPv4 with timestamps.
    fn frame(back: bool, stamps: [u8; 2]) -> Vec<u8> {
        let mut frame = vec![0; 66];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[17] = 52;
        frame[23] = 6;
        let [src, dst] = if back { [2, 1] } else { [1, 2] };
        (frame[29], frame[33], frame[35], frame[37]) = (src, dst, src, dst);
        (frame[46], frame[47]) = (0x80, 16);
        frame[54..58].copy_from_slice(&[1, 1, 8, 10]);
        (frame[61], frame[65]) = (stamps[0], stamps[1]);
        frame
    }

    fn note(trips: &mut RoundTrips, frame: &[u8], inward: bool, from: FlowSource, us: u64) -> Counted {
        let parsed = parse(frame).expect("sound");
        let of =
            Counted { flow: FlowKey::of(&parsed), tenant: 3, inward, from, untouched: false, sibling: 0 };
        let place = TcpPlace::of(&parsed).expect("TCP");
        trips.note((of.hashed(), &of), place, frame, Nanos::ZERO + Span::micros(us));
        of
    }

    fn victim() -> Counted {
        note(&mut RoundTrips::new(), &frame(false, [0, 0]), true, FlowSource::Host(HostId(1), SENDER), 0)
    }

    #[test]
    fn both_flows_of_a_connection_share_what_is_measured() {
        let mut trips = RoundTrips::new();
        let there = victim();
        let back = Counted { flow: there.flow.reversed(), inward: false, from: FlowSource::Here, ..there };
        trips.begin((1, &there), Nanos::ZERO);
        trips.begin((2, &back), Nanos::ZERO);
        note(&mut trips, &frame(false, [9, 4]), true, FlowSource::Host(HostId(1), SENDER), 0);
        note(&mut trips, &frame(true, [5, 9]), false, FlowSource::Here, 0);
        note(&mut trips, &frame(false, [10, 5]), true, FlowSource::Host(HostId(1), SENDER), 0);
        note(&mut trips, &frame(true, [6, 10]), false, FlowSource::Here, 100);
        note(&mut trips, &frame(false, [11, 6]), true, FlowSource::Host(HostId(1), SENDER), 400);
        assert_eq!((trips.of(&there), trips.of(&back)), (Some(Span::micros(400)), Some(Span::micros(400))));
        trips.end(&back);
        assert_eq!(trips.of(&there), Some(Span::micros(400)));
        trips.end(&there);
        assert_eq!((trips.of(&there), trips.measured.len()), (None, 0));
    }

    /// A sender elsewhere copies the headers and reads the timestamps.
    #[test]
    fn what_another_source_sends_with_a_flows_headers_is_not_timed() {
        let mut trips = RoundTrips::new();
        let there = victim();
        trips.begin((1, &there), Nanos::ZERO);
        note(&mut trips, &frame(false, [9, 4]), true, FlowSource::Host(HostId(1), SENDER), 0);
        note(&mut trips, &frame(true, [5, 9]), false, FlowSource::Here, 0);
        note(&mut trips, &frame(false, [10, 5]), true, FlowSource::Host(HostId(1), SENDER), 0);
        note(&mut trips, &frame(true, [6, 10]), false, FlowSource::Here, 100);
        let mimic = note(
            &mut trips,
            &frame(false, [11, 6]),
            true,
            FlowSource::Host(HostId(1), SenderMac([2, 0, 0, 0, 0, 2])),
            101,
        );
        assert_eq!(trips.of(&there), None, "its sender has not answered");
        note(&mut trips, &frame(false, [11, 6]), true, FlowSource::Host(HostId(1), SENDER), 400);
        assert_eq!((trips.of(&there), trips.of(&mimic)), (Some(Span::micros(400)), None));
    }
}
