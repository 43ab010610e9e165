//! Delivering: the frames of a batch go to their receivers.
//!
//! Why: frames that go to one port one after the other find its lane once, and its ring at hand.
//! From: PicNIC §5.2: what costs most of the time comes after the queue, and is charged to the tenant.
//! Not here: what a frame's headers decide (`bound`), and the receiver's port (`depart::hand`).
//! Invariant: the frames of a station leave in their order; each is delivered, or lost for a counted reason.

use core::ops::Range;

use plimsoll_control::backpressure::FlowSource;
use plimsoll_ports::{Frame, Received, Sending};
use plimsoll_units::Nanos;
use plimsoll_wire::Offload;

use super::super::Dataplane;
use super::super::crossing::Via;
use super::super::emit::{Emitted, Part};
use super::super::lane::Lane;
use super::super::pool::Pool;
use super::known::KnownFlows;
use super::look_up::FROM_OUTSIDE;
use super::take::Visit;
use super::{COMMON, QUANTUM, Waits, can_be_known, source_of};

impl Dataplane {
    /// Delivers the station's oldest frames, at most `quantum`: one visit through all stages behind the queue. Answers how many.
    pub(super) fn deliver_some(&mut self, station: u32, quantum: usize, now: Nanos) -> usize {
        let at = station as usize;
        // These are taken out meanwhile, so that frames can be read while ports are written.
        let mut pool = self.inward.pools[at].take().expect("in its place between deliveries");
        let mut visit = self.inward.visit.take().expect("in its place between deliveries");
        let mut known = self.inward.known[at].take();
        let was_uncounted = known.as_ref().is_some_and(|known| known.is_uncounted());
        self.take(station, (&mut visit, &mut pool), quantum, now);
        if self.fleet.is_some() {
            self.deliver_wrapped(station, (&visit, &mut pool), known.as_deref_mut(), quantum, now);
        } else {
            self.deliver_batch(station, (&mut visit, &mut pool), known.as_deref_mut(), now);
        }
        self.inward.via = Via::Uplink;
        self.inward.account(station, &mut visit, &mut pool);
        if !was_uncounted && known.as_ref().is_some_and(|known| known.is_uncounted()) {
            self.inward.uncounted.push(station);
        }
        let delivered = visit.delivered().len();
        self.inward.known[at] = known;
        self.inward.visit = Some(visit);
        self.inward.pools[at] = Some(pool);
        delivered
    }

    /// Delivers what is for no single tenant, or for nobody that is known.
    pub(in super::super) fn deliver_common(&mut self, now: Nanos) {
        while self.inward.has_waiting(COMMON) && self.deliver_some(COMMON, QUANTUM, now) > 0 {}
    }

    /// Delivers a batch: frames of known flows together, and each other one by itself.
    fn deliver_batch(
        &mut self,
        station: u32,
        (visit, pool): (&mut Visit, &mut Pool<Waits>),
        mut known: Option<&mut KnownFlows>,
        now: Nanos,
    ) {
        let mut at = 0;
        while at < visit.count {
            let end = match known.as_deref_mut() {
                Some(known) => {
                    let end = self.look_up(station, visit, (&*pool, &*known), at, now);
                    self.deliver_found((&*visit, &mut *pool), known, at..end, now);
                    end
                }
                None => at,
            };
            if end == at {
                self.deliver_alone(station, (&mut *visit, &mut *pool), known.as_deref_mut(), at, now);
            }
            at = end.max(at + 1);
        }
    }

    /// Delivers frames whose flows are known.
    fn deliver_found(
        &mut self,
        (visit, pool): (&Visit, &mut Pool<Waits>),
        known: &mut KnownFlows,
        mut places: Range<usize>,
        now: Nanos,
    ) {
        while !places.is_empty() {
            let first = places.start;
            let flow = usize::from(visit.flows[first]);
            if let Some(to) = self.plain(known, flow) {
                let alike = |&at: &usize| known.plain(visit.flows[at].into()) == Some(to);
                places.start += places.clone().take_while(alike).count();
                self.deliver_run((first..places.start).map(|at| visit.frame(pool, at)), to);
            } else {
                places.start += 1;
                self.deliver_bound(visit.frame_mut(pool, first), known, flow, now);
            }
        }
    }

    /// Delivers a frame whose flow is not known, or whose receiver has to be looked up, or that lies in the pool of a program.
    fn deliver_alone(
        &mut self,
        station: u32,
        (visit, pool): (&mut Visit, &mut Pool<Waits>),
        known: Option<&mut KnownFlows>,
        at: usize,
        now: Nanos,
    ) {
        let (arrival, verdict) = visit.taken[at];
        if visit.is_in_pool(at) {
            if let Some(noted) = self.deliver_in_pool(station, (&arrival, verdict), now) {
                visit.note(noted);
            }
            return;
        }
        let &Waits { vnet, waited, via, .. } = visit.waits(pool, at);
        self.inward.via = via;
        let lane = self.inward.lane_of(station, &arrival);
        let frame = visit.frame_mut(pool, at);
        let received = Received { len: frame.len(), vnet, at: None, waited };
        // Where a frame without a lane goes depends on addresses that were learned.
        match known.filter(|_| lane.is_some()) {
            Some(known) => self.deliver_new((frame, &received), known, (lane, FROM_OUTSIDE), now),
            None => self.deliver_once(frame, &received, (lane, FROM_OUTSIDE), now),
        }
    }

    /// Delivers the frames that are in packets of other hosts, one after the other.
    fn deliver_wrapped(
        &mut self,
        station: u32,
        (visit, pool): (&Visit, &mut Pool<Waits>),
        mut known: Option<&mut KnownFlows>,
        quantum: usize,
        now: Nanos,
    ) {
        for at in 0..visit.count {
            let arrival = visit.taken[at].0;
            let &Waits { vnet, waited, via, followed, datagram, .. } = visit.waits(pool, at);
            self.inward.via = via;
            let lane = self.inward.lane_of(station, &arrival);
            let waits = at + 1 < visit.count || self.inward.has_waiting(station);
            self.note_following(waits && (followed || at + 1 < quantum));
            let packet = visit.frame_mut(pool, at);
            let received = Received { len: packet.len(), vnet, at: None, waited };
            self.unwrap(packet, &received, (known.as_deref_mut(), datagram), lane, now);
        }
        self.inward.via = Via::Uplink;
        self.end_joining(now);
    }

    /// Delivers a frame that is not wrapped to its receiver, which is looked up unless the frame's flow is `known`.
    pub(in super::super) fn deliver_known(
        &mut self,
        (frame, received): (&mut [u8], &Received),
        known: Option<&mut KnownFlows>,
        (lane, from): (Option<u32>, FlowSource),
        now: Nanos,
    ) {
        let Some(known) = known.filter(|_| lane.is_some()) else {
            return self.deliver_once(frame, received, (lane, from), now);
        };
        let Some(flow) = known.find(frame, received, from) else {
            return self.deliver_new((frame, received), known, (lane, from), now);
        };
        if self.fleet.is_none() {
            self.learn_outside(source_of(frame), now);
        }
        match self.plain(known, flow) {
            Some(to) => self.deliver_run(core::iter::once(&*frame), to),
            None => self.deliver_bound(frame, known, flow, now),
        }
    }

    /// The lane of a known flow's frames, where nothing is to be done but to hand them on.
    #[inline]
    fn plain(&self, known: &KnownFlows, flow: usize) -> Option<u32> {
        if self.backpressure.mediates { None } else { known.plain(flow) }
    }

    /// Hands frames on to a tenant, for whom nothing else is to be done ([`super::bound::Bound::plain`]).
    #[inline]
    fn deliver_run<'f>(&mut self, mut frames: impl Iterator<Item = &'f [u8]>, to: u32) {
        let part = self.copying.part;
        while let Some(Lane { program: None, port: Some(port), wrote, conduct, .. }) = self.tenants.lane(to) {
            (*wrote, conduct.touched) = (true, part);
            let sendings = frames.by_ref().map(|frame| port.send(frame, None));
            let Some(refused) = { sendings }.find(|sending| *sending != Ok(Sending::Sent)) else { return };
            let handed = self.lane_refused(refused.map(Emitted::from), to);
            self.blame_sender(&handed, to);
            self.count_undelivered(&handed);
        }
        for frame in frames {
            let mut part = Part::whole(frame.len() as u32, &Offload::PLAIN);
            let handed = self.send_one(&Frame::whole(frame), &Offload::PLAIN, &mut part, to);
            self.count_undelivered(&handed);
        }
    }

    /// Delivers a frame of a known flow, which is counted or slowed down, or has work to be done.
    fn deliver_bound(&mut self, frame: &mut [u8], known: &mut KnownFlows, flow: usize, now: Nanos) {
        if let Some(bound) = known.bound(flow) {
            self.deliver(frame, bound, now);
            if bound.is_uncounted() {
                known.note_uncounted(flow);
            }
        }
    }

    /// Looks at a frame whose flow is not known, which takes the place of another one, and delivers it.
    fn deliver_new(
        &mut self,
        (frame, received): (&mut [u8], &Received),
        known: &mut KnownFlows,
        of: (Option<u32>, FlowSource),
        now: Nanos,
    ) {
        if !can_be_known(frame, received) {
            return self.deliver_once(frame, received, of, now);
        }
        let flow = known.next();
        let bound = known.bound(flow);
        bound.iter_mut().for_each(|bound| self.count_delivered(bound));
        self.look_at(frame, received, of, now, bound);
        known.copy(flow, frame, received);
        self.deliver_bound(frame, known, flow, now);
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
