//! Taking: the oldest frames of a station leave its queue, and are a visit's batch.
//!
//! Why: the stages behind this one go over a batch. What each of them needs of a frame is asked for here, for all frames of the visit,
//! before the first one is looked at.
//! From: PicNIC §5.2; CoDel (RFC 8289), whose verdicts are carried out here.
//! Not here: which station is next (`share`), and frames in the pool of a tenant's program, whose verdicts are carried out as the program
//! gets them (`hosted`).
//! Invariant: the frames of a batch are in the order of the queue. A visit has up to [`QUANTUM`] frames, and behind them the other
//! pieces of a datagram from another host, so that these are joined: up to [`MOST`].

use plimsoll_nic::{Arrival, Verdict};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Ecn;

use super::super::Dataplane;
use super::super::drops::Loss;
use super::super::hosted::is_in_pool;
use super::super::pool::{Buffer, Pool};
use super::{COMMON, Inward, MOST, QUANTUM, Waits};

/// The frames of a visit. What a stage finds is in an array of its own, by a frame's place in the batch.
#[derive(Debug)]
pub(super) struct Visit {
    /// Frames in the batch.
    pub(super) count: usize,
    /// From the queue. Frames of other pools than the tenant's program's have passed their verdicts.
    pub(super) taken: [(Arrival, Verdict); MOST],
    /// The place of each frame's flow among those that are known (`look_up`).
    pub(super) flows: [u8; MOST],
    /// Of frames that are delivered: when each was fetched, and how long it had been in the kernel.
    delivered: [(Nanos, Option<Span>); MOST],
    noted: usize,
}

impl Default for Visit {
    fn default() -> Self {
        Self {
            count: 0,
            taken: [(Arrival::NONE, Verdict::Pass); MOST],
            flows: [0; MOST],
            delivered: [(Nanos::ZERO, None); MOST],
            noted: 0,
        }
    }
}

impl Visit {
    /// The frame in this place.
    #[inline(always)]
    pub(super) fn frame<'p>(&self, pool: &'p Pool<Waits>, at: usize) -> &'p [u8] {
        let arrival = &self.taken[at].0;
        let (_, buffer) = Buffer::from_address(arrival.addr);
        &pool.bytes(buffer)[..arrival.len as usize]
    }

    /// The frame in this place, to be changed.
    #[inline(always)]
    pub(super) fn frame_mut<'p>(&self, pool: &'p mut Pool<Waits>, at: usize) -> &'p mut [u8] {
        let arrival = &self.taken[at].0;
        let (_, buffer) = Buffer::from_address(arrival.addr);
        &mut pool.bytes_mut(buffer)[..arrival.len as usize]
    }

    /// What is known of the frame in this place.
    #[inline(always)]
    pub(super) fn waits<'p>(&self, pool: &'p Pool<Waits>, at: usize) -> &'p Waits {
        let (_, buffer) = Buffer::from_address(self.taken[at].0.addr);
        pool.held(buffer)
    }

    /// Notes of a frame that is delivered when it was fetched, and how long it had been in the kernel.
    #[inline]
    pub(super) fn note(&mut self, noted: (Nanos, Option<Span>)) {
        (self.delivered[self.noted], self.noted) = (noted, self.noted + 1);
    }

    /// Of each frame that is delivered, when it was fetched, and how long it had been in the kernel.
    #[inline]
    pub(super) fn delivered(&self) -> &[(Nanos, Option<Span>)] {
        &self.delivered[..self.noted]
    }

    /// Whether the frame in this place lies in the pool of the tenant's program.
    #[inline]
    pub(super) fn is_in_pool(&self, at: usize) -> bool {
        is_in_pool(&self.taken[at].0)
    }
}

impl Dataplane {
    /// Takes the station's oldest frames, at most `quantum` and what belongs to the last of them.
    pub(super) fn take(
        &mut self,
        station: u32,
        (visit, pool): (&mut Visit, &mut Pool<Waits>),
        quantum: usize,
        now: Nanos,
    ) {
        let batch = &mut visit.taken[..quantum.min(QUANTUM)];
        (visit.count, visit.noted) = (self.inward.ingress.take_some(station, batch, now), 0);
        for (arrival, _) in visit.taken[..visit.count].iter().filter(|(arrival, _)| !is_in_pool(arrival)) {
            pool.fetch(Buffer::from_address(arrival.addr).1);
        }
        let wraps = self.fleet.is_some();
        let is_followed = wraps && visit.count > 0 && visit.waits(pool, visit.count - 1).followed;
        self.heed_verdicts(station, (&mut *visit, &mut *pool), 0);
        if wraps {
            self.take_what_follows(station, (visit, pool), (quantum, is_followed), now);
        }
    }

    /// Between hosts, takes what follows the last frame in its datagram, and frames in place of those that are lost.
    fn take_what_follows(
        &mut self,
        station: u32,
        (visit, pool): (&mut Visit, &mut Pool<Waits>),
        (quantum, mut is_followed): (usize, bool),
        now: Nanos,
    ) {
        while visit.count < quantum || is_followed && visit.count < MOST {
            let Some(next) = self.inward.ingress.take(station, now) else { break };
            let at = visit.count;
            (visit.taken[at], visit.count) = (next, at + 1);
            is_followed = visit.waits(pool, at).followed;
            self.heed_verdicts(station, (&mut *visit, &mut *pool), at);
        }
    }

    /// Marks the frames that are to be marked, and drops those that are to be dropped, from this place of the batch on.
    #[inline]
    fn heed_verdicts(&mut self, station: u32, (visit, pool): (&mut Visit, &mut Pool<Waits>), from: usize) {
        let batch = &visit.taken[from..visit.count];
        if batch.iter().any(|&(_, verdict)| verdict != Verdict::Pass) {
            self.signal_inward(station, (visit, pool), from);
        }
    }

    #[cold]
    fn signal_inward(&mut self, station: u32, (visit, pool): (&mut Visit, &mut Pool<Waits>), from: usize) {
        let lane = station.checked_sub(COMMON + 1);
        let lane = lane.and_then(|lane| self.tenants.lanes.get(lane as usize)?.as_ref());
        let untouched = lane.is_some_and(|lane| lane.untouched);
        let mut stay = from;
        for at in from..visit.count {
            let (arrival, verdict) = visit.taken[at];
            let stays = verdict == Verdict::Pass
                || is_in_pool(&arrival)
                || verdict == Verdict::Mark && !untouched && Ecn::Ce.write(visit.frame_mut(pool, at));
            if stays {
                (visit.taken[stay], stay) = (visit.taken[at], stay + 1);
            } else {
                self.inward.via = visit.waits(pool, at).via;
                self.arrivals_tally().lost(Loss::IngressOverMax);
                self.inward.let_go(station, pool, &arrival);
            }
        }
        visit.count = stay;
    }
}

impl Inward {
    /// Frees the buffer of a frame that waits no longer. Answers how long the frame had been in the kernel.
    #[inline(always)]
    pub(super) fn let_go(&mut self, station: u32, pool: &mut Pool<Waits>, arrival: &Arrival) -> Option<Span> {
        let (_, buffer) = Buffer::from_address(arrival.addr);
        let &Waits { place, waited, .. } = pool.held(buffer);
        if place.is_some() {
            self.sources[station as usize].end(place);
        }
        pool.give(buffer);
        waited
    }
}
