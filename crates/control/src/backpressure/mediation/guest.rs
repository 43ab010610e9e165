//! A tenant whose connections are mediated, and the meters of its flows whose receivers report marks.
//!
//! Why: live and in virtual time a report must install the same meter, within the same bounds.
//! From: MIMIC §III-D: an inbound ECE installs a meter for the reverse 5-tuple.
//! Not here: the rules for one connection ([`Mediation`]), reading and rewriting packets, and packets that wait for their meter.
//! Invariant: memory is fixed. While mediation ends, no meter is installed.

use core::hash::Hash;

use plimsoll_policy::Mediate;
use plimsoll_units::{BitRate, Nanos};

use super::super::{Installed, MeterSettings, Metered, Meters, Terms, Verdict};
use super::{Change, Mediation, MediationCounters, Segment};
use crate::HostId;

/// Connections of one tenant that are mediated; further ones are left alone.
const CONNECTIONS: usize = 8_192;

/// Flows of one tenant that are metered as their receivers report marks.
const METERS: usize = 256;

/// Of these, flows to one peer: what reports of one peer install leaves room for those of others.
const METERS_OF_A_PEER: usize = 64;

/// A tenant whose connections its host mediates. `K` names a connection, as the flow that the tenant sends on it.
///
/// ```
/// use plimsoll_control::HostId;
/// use plimsoll_control::backpressure::mediation::{EcnFlags, Guest, Segment};
/// use plimsoll_policy::Mediate;
/// use plimsoll_units::Nanos;
///
/// let mut guest: Guest<&str> = Guest::new(Mediate::default(), [0; 2]);
/// let now = Nanos::ZERO;
/// let sent = Segment { ack: true, sequence: 8, acknowledged: 2, payload: 1_000, ..Segment::default() };
/// guest.outbound(&"to the shop", &sent, now);
/// let ece = EcnFlags { ece: true, ..EcnFlags::default() };
/// let report = Segment { ack: true, sequence: 2, acknowledged: 1_008, flags: ece, ..Segment::default() };
/// let (change, metered) = guest.inbound(&"to the shop", &report, || HostId(7), now);
/// assert!(change.is_none() && metered, "a report on the tenant's flow installs a meter");
/// assert_eq!(guest.metered(now).len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Guest<K> {
    terms: Terms,
    connections: Mediation<K>,
    meters: Meters<K>,
}

impl<K> Guest<K> {
    /// Bytes of the tables, by what they hold. Nothing is allocated.
    #[must_use]
    pub fn memory() -> [(&'static str, usize); 2] {
        let settings = MeterSettings { meters: METERS, per_peer: METERS, ..MeterSettings::default() };
        [
            ("mediated connections", Mediation::<K>::bytes_of(CONNECTIONS)),
            ("meters for reported marks", Meters::<K>::bytes_of(&settings)),
        ]
    }
}

impl<K: Copy + Eq + Hash + Ord> Guest<K> {
    /// Allocates the tables. `seeds` are those of their hashes, which peers must not know live.
    #[must_use]
    pub fn new(stated: Mediate, seeds: [u64; 2]) -> Self {
        let [connections, seed] = seeds;
        let meters = MeterSettings { meters: METERS, per_peer: METERS_OF_A_PEER, seed };
        Self {
            terms: terms(stated),
            connections: Mediation::new(CONNECTIONS, connections),
            meters: Meters::new(meters),
        }
    }

    /// Handles a segment that the tenant sends, and returns what is to be changed in it. Constant time.
    pub fn outbound(&mut self, flow: &K, segment: &Segment, now: Nanos) -> Change {
        self.connections.outbound(flow, segment, now)
    }

    /// Handles a segment for the tenant, on the connection on which it sends `flow` to `peer`. Returns what is to be changed in it,
    /// and whether the flow is metered from now on. Constant time.
    pub fn inbound(
        &mut self,
        flow: &K,
        segment: &Segment,
        peer: impl FnOnce() -> HostId,
        now: Nanos,
    ) -> (Change, bool) {
        let (change, report) = self.connections.inbound(flow, segment, now);
        let reported = report && !self.connections.is_draining();
        let metered = reported && self.meters.install(*flow, peer(), self.terms, now) == Ok(Installed::New);
        (change, metered)
    }

    /// Whether the flow's rate allows these bytes now; if so they are charged.
    pub fn conforms(&mut self, flow: &K, bytes: u32, now: Nanos) -> bool {
        self.meters.judge(flow, bytes, now) == Verdict::Conforming
    }

    /// The rate of a flow's meter, if it has one.
    #[must_use]
    pub fn held_to(&self, flow: &K) -> Option<BitRate> {
        self.meters.rate(flow)
    }

    /// When the flow's rate will allow these bytes.
    #[must_use]
    pub fn ready_at(&self, flow: &K, bytes: u32, now: Nanos) -> Nanos {
        self.meters.ready_at(flow, bytes, now)
    }

    /// Whether any flow has a meter, one whose lifetime is over included.
    #[inline]
    #[must_use]
    pub fn has_meters(&self) -> bool {
        !self.meters.is_empty()
    }

    /// The rate of its meters.
    #[must_use]
    pub const fn rate(&self) -> BitRate {
        self.terms.rate
    }

    /// The flows that are metered now, in their order.
    #[must_use]
    pub fn metered(&self, now: Nanos) -> Vec<(K, Metered)> {
        self.meters.list(now)
    }

    /// Whether this flow has a meter, perhaps one whose lifetime is over.
    #[must_use]
    pub fn is_metered(&self, flow: &K) -> bool {
        self.meters.holds(flow)
    }

    /// Forgets meters whose lifetime is over.
    pub fn expire(&mut self, now: Nanos) {
        self.meters.expire(now);
    }

    /// Mediates new connections, on these terms.
    pub fn resume(&mut self, stated: Mediate) {
        self.terms = terms(stated);
        self.connections.drain(false);
    }

    /// Ends mediation: flows are metered no more, and connections that are known are mediated to their end.
    pub fn drain(&mut self, now: Nanos) {
        self.connections.drain(true);
        for (flow, held) in self.meters.list(now) {
            self.meters.remove(&flow, held.by);
        }
    }

    /// Whether no connection is known that still needs its place. Looks at all places.
    #[must_use]
    pub fn is_idle(&self, now: Nanos) -> bool {
        self.connections.is_idle(now)
    }

    /// What was done to connections.
    #[must_use]
    pub const fn counters(&self) -> MediationCounters {
        self.connections.counters()
    }

    /// Reports that installed no meter, as there was no place for it, or a lower one holds.
    #[must_use]
    pub const fn unmetered(&self) -> u64 {
        let meters = self.meters.counters();
        meters.full + meters.peer_full + meters.held_lower
    }
}

const fn terms(Mediate { rate, lifetime, burst }: Mediate) -> Terms {
    Terms { rate, burst, lifetime }
}
