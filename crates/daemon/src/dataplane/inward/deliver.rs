//! Delivering: frames that have waited at a station go to their receiver.
//!
//! Why: a tenant's frames are delivered several at a time, so that what they share is looked up once.
//! From: PicNIC §5.2: what costs most of the time comes after the queue, and is charged to the tenant.
//! Not here: which station is next (`nic`'s ingress), and what a frame's headers decide (`depart`).
//! Invariant: the frames of a station leave in their order; each is delivered, or lost for a counted reason.

use core::num::NonZeroU32;

use plimsoll_control::backpressure::{FlowSource, SenderMac};
use plimsoll_nic::Verdict;
use plimsoll_ports::Received;
use plimsoll_units::Nanos;
use plimsoll_wire::Ecn;

use super::super::Dataplane;
use super::super::crossing::Via;
use super::super::drops::Loss;
use super::super::hosted::is_in_pool;
use super::super::pool::Buffer;
use super::known::KnownFlows;
use super::{COMMON, Inward, MOST, QUANTUM, Waits, can_be_known, source_of};

impl Dataplane {
    /// Delivers the station's oldest frames, at most `quantum`; answers how many.
    pub(super) fn deliver_some(&mut self, station: u32, quantum: usize, now: Nanos) -> usize {
        let at = station as usize;
        let wrapped = self.fleet.is_some();
        let Inward { ingress, taken, .. } = &mut self.inward;
        let count = ingress.take_some(station, &mut taken[..quantum.min(QUANTUM)], now);
        // These are taken out meanwhile, so that frames can be read while ports are written.
        let mut pool = self.inward.pools[at].take().expect("in its place between deliveries");
        for (arrival, _) in self.inward.taken[..count].iter().filter(|(arrival, _)| !is_in_pool(arrival)) {
            pool.fetch(Buffer::from_address(arrival.addr).1);
        }
        let mut known = self.inward.known[at].take();
        let was_uncounted = known.as_ref().is_some_and(|known| known.is_uncounted());
        let (mut delivered, mut number, mut last) = (0, 0, false);
        loop {
            let next = if number < count {
                Some(self.inward.taken[number])
            } else if wrapped && (delivered < quantum || last && delivered < MOST) {
                // Frames between hosts that came in one datagram are delivered together.
                self.inward.ingress.take(station, now)
            } else {
                None
            };
            let Some((arrival, verdict)) = next else { break };
            number += 1;
            if is_in_pool(&arrival) {
                delivered += usize::from(self.deliver_in_pool(station, (&arrival, verdict), delivered, now));
                continue;
            }
            let (_, buffer) = Buffer::from_address(arrival.addr);
            let Waits { vnet, waited, place, via, followed, datagram } = *pool.held(buffer);
            self.inward.via = via;
            last = followed;
            if place.is_some() {
                self.inward.sources[at].end(place);
            }
            let frame = &mut pool.bytes_mut(buffer)[..arrival.len as usize];
            if verdict != Verdict::Pass && !self.signal_inward(frame, station, verdict) {
                pool.give(buffer);
                continue;
            }
            self.inward.note_taken(station, delivered, (arrival.at, waited));
            let lane = self.inward.lane_of(station, &arrival);
            let received = Received { len: frame.len(), vnet, at: None, waited };
            if wrapped {
                let waits = number < count || self.inward.has_waiting(station);
                self.note_following(waits && (followed || delivered + 1 < quantum));
            }
            self.deliver_from((frame, &received), (known.as_deref_mut(), datagram), lane, now);
            pool.give(buffer);
            delivered += 1;
        }
        self.inward.via = Via::Uplink;
        if wrapped {
            self.end_joining(now);
        }
        if !was_uncounted && known.as_ref().is_some_and(|known| known.is_uncounted()) {
            self.inward.uncounted.push(station);
        }
        self.inward.known[at] = known;
        self.inward.pools[at] = Some(pool);
        delivered
    }

    /// Delivers what is for no single tenant, or for nobody that is known.
    pub(in super::super) fn deliver_common(&mut self, now: Nanos) {
        while self.inward.has_waiting(COMMON) && self.deliver_some(COMMON, QUANTUM, now) > 0 {}
    }

    /// Marks a frame that has waited for too long behind its tenant's maximum; `false`: it is lost, also where the tenant's packets
    /// may not be changed.
    #[cold]
    fn signal_inward(&mut self, frame: &mut [u8], station: u32, verdict: Verdict) -> bool {
        let lane =
            station.checked_sub(COMMON + 1).and_then(|lane| self.tenants.lanes.get(lane as usize)?.as_ref());
        let untouched = lane.is_some_and(|lane| lane.untouched);
        if verdict == Verdict::Mark && !untouched && Ecn::Ce.write(frame) {
            return true;
        }
        self.arrivals_tally().lost(Loss::IngressOverMax);
        false
    }

    /// Notes the delays of the last `count` frames of a station: they end when the last of them was delivered. Frames that were fetched
    /// together are noted together.
    pub(super) fn note_delays(&mut self, station: u32, count: usize, now: Nanos) {
        let lane = station.checked_sub(1).and_then(|lane| self.tenants.lane(lane));
        let Some(lane) = lane else { return };
        for together in self.inward.delivered[..count].chunk_by(|one, next| one == next) {
            let &[(at, waited), ..] = together else { continue };
            lane.recent.delivered(waited, now.since(at), together.len() as u32, &lane.halves);
        }
    }

    /// Delivers one frame to its receiver, which is looked up unless the frame's flow is `known`.
    fn deliver_from(
        &mut self,
        (frame, received): (&mut [u8], &Received),
        (known, datagram): (Option<&mut KnownFlows>, Option<NonZeroU32>),
        lane: Option<u32>,
        now: Nanos,
    ) {
        if self.fleet.is_some() {
            return self.unwrap(frame, received, (known, datagram), lane, now);
        }
        let from = FlowSource::Elsewhere(SenderMac::default());
        self.deliver_known((frame, received), known, (lane, from), now);
    }

    /// Delivers a frame that is not wrapped to its receiver, which is looked up unless the frame's flow is `known`.
    pub(in super::super) fn deliver_known(
        &mut self,
        (frame, received): (&mut [u8], &Received),
        known: Option<&mut KnownFlows>,
        (lane, from): (Option<u32>, FlowSource),
        now: Nanos,
    ) {
        // Where a frame without a lane goes depends on addresses that were learned.
        let known = known.filter(|_| lane.is_some());
        let found = known.as_ref().and_then(|known| known.find(frame, received, from));
        let plain = known.as_ref().zip(found).and_then(|(known, at)| known.plain(at));
        if let Some(to) = plain.filter(|_| !self.backpressure.mediates) {
            self.learn_sender(frame, now);
            return self.deliver_plain(frame, to);
        }
        let Some(known) = known.filter(|_| found.is_some() || can_be_known(frame, received)) else {
            return self.deliver_once(frame, received, (lane, from), now);
        };
        let at = found.unwrap_or_else(|| known.next());
        let bound = known.bound(at);
        if found.is_some() {
            self.learn_sender(frame, now);
        } else {
            bound.iter_mut().for_each(|bound| self.count_delivered(bound));
            self.look_at(frame, received, (lane, from), now, bound);
            known.copy(at, frame, received);
        }
        if let Some(bound) = known.bound(at) {
            self.deliver(frame, bound, now);
            if bound.is_uncounted() {
                known.note_uncounted(at);
            }
        }
    }

    /// Learns a frame's sender behind the uplink. In a fleet the map states where each tenant is.
    #[inline]
    fn learn_sender(&mut self, frame: &[u8], now: Nanos) {
        if self.fleet.is_none() {
            self.learn_outside(source_of(frame), now);
        }
    }

    /// Looks at one frame, delivers it and counts it; nothing is kept of its headers.
    pub(in super::super) fn deliver_once(
        &mut self,
        frame: &mut [u8],
        received: &Received,
        of: (Option<u32>, FlowSource),
        now: Nanos,
    ) {
        let mut bound = None;
        self.look_at(frame, received, of, now, &mut bound);
        if let Some(bound) = &mut bound {
            self.deliver(frame, bound, now);
            self.count_delivered(bound);
        }
    }
}
