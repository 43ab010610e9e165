//! The core of an experiment (`engine.experiment`): slower than this machine's, or with one queue for all tenants.
//!
//! Why: a receiver's core that cannot keep up shows at rates that a small machine can send, if each frame costs more.
//! From: PicNIC §6's experiments at a fraction of their rates: a frame takes some tens of microseconds of the core, which
//! then does nothing else on the way in until that time is over. The core waits rather than computes, so that the machine's
//! own cores are left to the tenants.
//! Not here: which tenant is next, and what is charged (`dataplane::inward`); the way out, which goes on meanwhile.
//! Invariant: over any time in which frames wait, the core takes each for its cost at least, and for no more than that and
//! what this machine needs; a late wake-up is made up for, up to [`LATE`].

use plimsoll_policy::{Experiment, IngressOrder};
use plimsoll_units::{Nanos, Span};

use crate::dataplane::{COMMON, Core};

/// The core, and until when it is busy.
#[derive(Debug)]
pub struct ExperimentCore {
    drain: Span,
    cost: Span,
    order: IngressOrder,
    /// When the core is done with the frames that it has taken.
    free: Nanos,
    /// Whether it was busy when it was last asked.
    busy: bool,
    /// Whether it has had work ever since: the next work begins at `free`, however late the core is asked.
    at_work: bool,
}

/// How late the core may be asked without losing time.
const LATE: Span = Span::millis(10);

/// What a batch may take: as much as the bound on fetching can save up.
const BATCH_TIME: Span = Span::micros(100);

impl ExperimentCore {
    /// A core as the experiment states it.
    #[must_use]
    pub fn new(experiment: &Experiment) -> Self {
        let Experiment { drain, cost, ingress: order, .. } = *experiment;
        Self { drain, cost, order, free: Nanos::ZERO, busy: false, at_work: false }
    }

    fn work(&mut self, frames: usize, each: Span, took: Span) -> Span {
        let took = took.max(each.times(frames as u64));
        self.free += took;
        self.at_work = true;
        took
    }

    fn is_slower(&self) -> bool {
        self.drain > Span::ZERO || self.cost > Span::ZERO
    }
}

impl Core for ExperimentCore {
    fn is_busy(&mut self, now: Nanos) -> bool {
        self.busy = self.is_slower() && self.free > now;
        if !self.busy {
            let late = Nanos::new(now.as_u64().saturating_sub(LATE.as_u64()));
            self.free = self.free.max(if self.at_work { late } else { now });
        }
        self.busy
    }

    fn free_at(&self) -> Option<Nanos> {
        self.busy.then_some(self.free)
    }

    /// As many frames as a batch's time allows, at least one.
    fn batches(&self, fetches: usize, deliveries: usize) -> (usize, usize) {
        let in_time = |each: Span, most: usize| {
            let count = BATCH_TIME.as_u64() / each.as_u64().max(1);
            usize::try_from(count).unwrap_or(usize::MAX).clamp(1, most)
        };
        (in_time(self.drain, fetches), in_time(self.cost, deliveries))
    }

    /// In the order of arrival a frame is fetched when no other waits.
    fn fetches_first(&self) -> bool {
        self.order == IngressOrder::Fair
    }

    fn queue(&self, station: u32) -> u32 {
        match self.order {
            IngressOrder::Fair => station,
            IngressOrder::Shared => COMMON,
        }
    }

    fn fetched(&mut self, frames: usize, took: Span) -> Span {
        self.work(frames, self.drain, took)
    }

    fn delivered(&mut self, frames: usize, took: Span) -> Span {
        self.work(frames, self.cost, took)
    }

    fn idle(&mut self) {
        self.at_work = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(drain: u64, cost: u64) -> ExperimentCore {
        let experiment =
            Experiment { drain: Span::micros(drain), cost: Span::micros(cost), ..Experiment::default() };
        ExperimentCore::new(&experiment)
    }

    /// When the core is free, if it is not now.
    fn busy_until(core: &mut ExperimentCore, now: Nanos) -> Option<Nanos> {
        let busy = core.is_busy(now);
        assert_eq!(busy, core.free_at().is_some());
        core.free_at()
    }

    fn at(micros: u64) -> Nanos {
        Nanos::ZERO + Span::micros(micros)
    }

    #[test]
    fn a_frame_takes_its_cost_and_a_late_look_costs_nothing() {
        let mut core = core(20, 80);
        assert_eq!(busy_until(&mut core, at(1_000)), None);
        assert_eq!(core.fetched(1, Span::micros(3)), Span::micros(20));
        assert_eq!(core.delivered(1, Span::micros(5)), Span::micros(80));
        assert_eq!(busy_until(&mut core, at(1_050)), Some(at(1_100)));
        // 300 us late: three more frames of 100 us may begin at once.
        for _ in 0..3 {
            assert_eq!(busy_until(&mut core, at(1_400)), None);
            core.delivered(1, Span::ZERO);
            core.fetched(1, Span::ZERO);
        }
        assert_eq!(busy_until(&mut core, at(1_400)), None, "through just now");
        core.delivered(1, Span::ZERO);
        assert_eq!(busy_until(&mut core, at(1_400)), Some(at(1_480)));
        assert_eq!(busy_until(&mut core, at(20_000)), None);
        core.delivered(125, Span::ZERO);
        assert_eq!(busy_until(&mut core, at(20_000)), None, "10 ms are made up for, and no more");
    }

    #[test]
    fn a_core_with_nothing_to_do_saves_nothing_up() {
        let mut core = core(20, 80);
        assert_eq!(busy_until(&mut core, at(1_000)), None);
        core.delivered(1, Span::ZERO);
        core.idle();
        assert_eq!(busy_until(&mut core, at(9_000)), None);
        core.delivered(1, Span::ZERO);
        assert_eq!(busy_until(&mut core, at(9_010)), Some(at(9_080)));
    }

    #[test]
    fn what_this_machine_needs_itself_is_not_made_shorter() {
        let mut core = core(0, 2);
        assert_eq!(busy_until(&mut core, at(0)), None);
        assert_eq!(core.delivered(8, Span::micros(40)), Span::micros(40));
        let mut same = ExperimentCore::new(&Experiment::default());
        assert_eq!(same.delivered(8, Span::micros(40)), Span::micros(40));
        assert!(!same.is_busy(at(0)), "nothing is to be slower");
    }

    #[test]
    fn batches_are_as_long_as_on_a_fast_core() {
        assert_eq!(core(52, 76).batches(32, 8), (1, 1));
        assert_eq!(core(1, 2).batches(32, 8), (32, 8));
        assert_eq!(core(25, 0).batches(32, 8), (4, 8));
    }
}
