//! A core that is slower than this machine's, for the way in.
//!
//! Why: what a receiver's core cannot keep up with shows at rates that a small machine can send, if each frame costs more.
//! From: PicNIC §6's experiments at a fraction of their rates: a frame takes some tens of microseconds of the core, which
//! then does nothing else on the way in until that time is over. The time passes; it is not burnt, so that the machine's
//! own cores are left to the tenants.
//! Not here: who is next, and what is charged (`inward`); the way out, which goes on meanwhile.
//! Invariant: over any time in which frames wait, the core takes each for its cost at least, and for no more than that and
//! what this machine needs; a late wake-up is made up for, up to [`LATE`].

use plimsoll_policy::Experiment;
use plimsoll_units::{Nanos, Span};

/// The core, and how far it is.
#[derive(Debug)]
pub(crate) struct SlowCore {
    drain: Span,
    cost: Span,
    /// When it is through with what it has taken.
    free: Nanos,
    /// It has had something to do ever since: what it takes next begins there, and not when somebody looks.
    at_work: bool,
}

/// How late somebody may look without the core losing time.
const LATE: Span = Span::millis(10);

/// What a batch may take: as much as the bound on fetching can save up.
const BATCH_TIME: Span = Span::micros(100);

impl SlowCore {
    /// None where nothing is to be slower.
    pub(crate) fn of(experiment: &Experiment) -> Option<Self> {
        let Experiment { drain, cost, .. } = *experiment;
        let slower = drain > Span::ZERO || cost > Span::ZERO;
        slower.then_some(Self { drain, cost, free: Nanos::ZERO, at_work: false })
    }

    /// When it is free, if it is not now.
    pub(crate) fn busy_until(&mut self, now: Nanos) -> Option<Nanos> {
        if self.free > now {
            return Some(self.free);
        }
        let earliest =
            if self.at_work { Nanos::new(now.as_u64().saturating_sub(LATE.as_u64())) } else { now };
        self.free = self.free.max(earliest);
        None
    }

    /// Nothing is there for it.
    pub(crate) fn idle(&mut self) {
        self.at_work = false;
    }

    /// It has fetched so many frames, for which this machine needed `took`; what that is on the slower core.
    pub(crate) fn fetched(&mut self, frames: usize, took: Span) -> Span {
        self.work(frames, self.drain, took)
    }

    /// It has delivered so many.
    pub(crate) fn processed(&mut self, frames: usize, took: Span) -> Span {
        self.work(frames, self.cost, took)
    }

    fn work(&mut self, frames: usize, each: Span, took: Span) -> Span {
        let took = took.max(each.times(frames as u64));
        self.free += took;
        self.at_work = true;
        took
    }

    /// How many frames it fetches, and delivers, at once: as many as a batch's time allows, one at least.
    pub(crate) fn batches(&self, fetches: usize, deliveries: usize) -> (usize, usize) {
        let in_time = |each: Span, most: usize| {
            let count = BATCH_TIME.as_u64() / each.as_u64().max(1);
            usize::try_from(count).unwrap_or(usize::MAX).clamp(1, most)
        };
        (in_time(self.drain, fetches), in_time(self.cost, deliveries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(drain: u64, cost: u64) -> SlowCore {
        let experiment =
            Experiment { drain: Span::micros(drain), cost: Span::micros(cost), ..Experiment::default() };
        SlowCore::of(&experiment).expect("slower")
    }

    fn at(micros: u64) -> Nanos {
        Nanos::ZERO + Span::micros(micros)
    }

    #[test]
    fn a_frame_takes_its_cost_and_a_late_look_costs_nothing() {
        let mut core = core(20, 80);
        assert_eq!(core.busy_until(at(1_000)), None);
        assert_eq!(core.fetched(1, Span::micros(3)), Span::micros(20));
        assert_eq!(core.processed(1, Span::micros(5)), Span::micros(80));
        assert_eq!(core.busy_until(at(1_050)), Some(at(1_100)));
        // 300 us late: three more frames of 100 us may begin at once.
        for _ in 0..3 {
            assert_eq!(core.busy_until(at(1_400)), None);
            core.processed(1, Span::ZERO);
            core.fetched(1, Span::ZERO);
        }
        assert_eq!(core.busy_until(at(1_400)), None, "through just now");
        core.processed(1, Span::ZERO);
        assert_eq!(core.busy_until(at(1_400)), Some(at(1_480)));
        assert_eq!(core.busy_until(at(20_000)), None);
        core.processed(125, Span::ZERO);
        assert_eq!(core.busy_until(at(20_000)), None, "10 ms are made up for, and no more");
    }

    #[test]
    fn a_core_with_nothing_to_do_saves_nothing_up() {
        let mut core = core(20, 80);
        assert_eq!(core.busy_until(at(1_000)), None);
        core.processed(1, Span::ZERO);
        core.idle();
        assert_eq!(core.busy_until(at(9_000)), None);
        core.processed(1, Span::ZERO);
        assert_eq!(core.busy_until(at(9_010)), Some(at(9_080)));
    }

    #[test]
    fn what_this_machine_needs_itself_is_not_made_shorter() {
        let mut core = core(0, 2);
        assert_eq!(core.busy_until(at(0)), None);
        assert_eq!(core.processed(8, Span::micros(40)), Span::micros(40));
        assert!(SlowCore::of(&Experiment::default()).is_none());
    }

    #[test]
    fn batches_are_as_long_as_on_a_fast_core() {
        assert_eq!(core(52, 76).batches(32, 8), (1, 1));
        assert_eq!(core(1, 2).batches(32, 8), (32, 8));
        assert_eq!(core(25, 0).batches(32, 8), (4, 8));
    }
}
