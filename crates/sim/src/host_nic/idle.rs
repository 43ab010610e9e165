//! How an engine's thread waits for what is due next, as the daemon's does.
//!
//! Why: a thread that sleeps is woken late, and one that spins uses up its core; how even gaps are follows from both.
//! From: the daemon's `thread` (it sleeps until shortly before what is due, then it spins), `wait` (how long before: nine tenths of
//! recent sleeps ended no later) and `urgency` (a thread that uses most of its core stops spinning).
//! Not here: naps of a wake-up grain, the CPU time of a wake-up, and the priority that a thread gives up, as nothing else wants
//! its core.
//! Invariant: a thread that sleeps does nothing until it is woken, and packets that come wake it.

use plimsoll_scenario::Lateness;
use plimsoll_units::{Nanos, Span};

use crate::chance::Chance;

/// What a thread does while it has no work.
#[derive(Debug)]
pub(super) struct Idle {
    lateness: Lateness,
    chance: Chance,
    state: State,
    /// How long before what is due a sleep is to end.
    early: Span,
    /// Whether it spins from then on; else sleeps end when something is due, and the thread is late.
    spins: bool,
    /// When its use of its core was last looked at, and its CPU time by then.
    looked: Nanos,
    used: Span,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Awake,
    /// From this moment on.
    Spins(Nanos),
    Sleeps(Sleep),
}

#[derive(Clone, Copy, Debug)]
struct Sleep {
    since: Nanos,
    /// When the timer rings; without one only packets wake the thread.
    rings: Option<Nanos>,
    /// When it is awake.
    wakes: Option<Nanos>,
    /// Whether a packet has come meanwhile.
    called: bool,
}

/// Bounds of `early`, and how it follows the sleeps: the daemon's.
const LEAST: Span = Span::micros(5);
const MOST: Span = Span::micros(100);
const STEP: Span = Span::ns(200);

/// How often the thread's use of its core is looked at, and the parts of it, in thousandths, above which it stops spinning and below
/// which it begins again: the daemon's.
const LOOK: Span = Span::millis(100);
const MUCH: u64 = 850;
const LITTLE: u64 = 150;

impl Idle {
    /// A thread whose sleeps end late like this. As the daemon's, it has tried some sleeps.
    pub(super) fn new(lateness: Lateness, chance: Chance) -> Self {
        let (looked, used) = (Nanos::ZERO, Span::ZERO);
        let mut idle =
            Self { lateness, chance, state: State::Awake, early: LEAST, spins: true, looked, used };
        for _ in 0..16 {
            let late = idle.chance.lateness(&lateness);
            idle.learn(late);
        }
        idle
    }

    /// Whether it sleeps, until when: for good without an end.
    pub(super) fn sleeps_until(&self) -> Option<Option<Nanos>> {
        match self.state {
            State::Sleeps(sleep) => Some(sleep.wakes),
            State::Awake | State::Spins(_) => None,
        }
    }

    /// Something happens at the host; `called` if packets have come for the thread. Answers how long it has spun.
    pub(super) fn rouse(&mut self, called: bool, now: Nanos) -> Span {
        match &mut self.state {
            State::Spins(since) if called || now > *since => {
                let spun = now.since(*since);
                self.state = State::Awake;
                return spun;
            }
            State::Sleeps(sleep) if called && now <= sleep.since => self.state = State::Awake,
            State::Sleeps(sleep) => {
                if called && !sleep.called {
                    sleep.called = true;
                    let wakes = now + self.chance.lateness(&self.lateness);
                    if sleep.wakes.is_none_or(|timer| wakes < timer) {
                        (sleep.wakes, sleep.rings) = (Some(wakes), None);
                    }
                }
                let Sleep { rings, wakes, .. } = *sleep;
                if let Some(wakes) = wakes.filter(|wakes| *wakes <= now) {
                    self.state = State::Awake;
                    if let Some(rings) = rings {
                        self.learn(wakes.since(rings));
                    }
                }
            }
            State::Awake | State::Spins(_) => {}
        }
        Span::ZERO
    }

    /// The thread has no work from `free` on until something is `due`. It has used this much CPU time so far.
    pub(super) fn rest(&mut self, free: Nanos, due: Option<Nanos>, used: Span) {
        if !matches!(self.state, State::Awake) || due.is_some_and(|due| due <= free) {
            return;
        }
        self.look(used, free);
        let early = if self.spins { self.early } else { Span::ZERO };
        self.state = match due {
            Some(due) if due.since(free) <= early => State::Spins(free),
            _ => {
                let rings = due.map(|due| due - early);
                let wakes = rings.map(|rings| rings + self.chance.lateness(&self.lateness));
                State::Sleeps(Sleep { since: free, rings, wakes, called: false })
            }
        };
    }

    /// Whether it spins from now on, by the part of its core that it has used.
    fn look(&mut self, used: Span, now: Nanos) {
        let span = now.since(self.looked);
        if span < LOOK {
            return;
        }
        let thousandths = (used - self.used).as_u64().saturating_mul(1_000) / span.as_u64();
        self.spins = if self.spins { thousandths <= MUCH } else { thousandths < LITTLE };
        (self.looked, self.used) = (now, used);
    }

    fn learn(&mut self, late: Span) {
        let next = if late > self.early { self.early + STEP.times(9) } else { self.early - STEP };
        self.early = next.clamp(LEAST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Nanos {
        Nanos::ZERO + Span::micros(micros)
    }

    fn idle(late: u64) -> Idle {
        let mut idle = Idle::new(Lateness::constant(Span::micros(late)), Chance::of(1, "idle"));
        idle.early = Span::micros(10);
        idle
    }

    #[test]
    fn it_sleeps_until_shortly_before_what_is_due_and_then_spins() {
        let mut idle = idle(8);
        idle.rest(at(0), Some(at(100)), Span::ZERO);
        assert_eq!(idle.sleeps_until(), Some(Some(at(98))), "the timer rings at 90, and it is 8 late");
        assert_eq!(idle.rouse(false, at(98)), Span::ZERO);
        idle.rest(at(98), Some(at(100)), Span::ZERO);
        assert_eq!(idle.sleeps_until(), None, "it spins");
        assert_eq!(idle.rouse(false, at(100)), Span::micros(2));
        assert_eq!(idle.early, Span::micros(10) - STEP, "the sleep was no later");
    }

    #[test]
    fn a_packet_wakes_it_as_late_as_a_timer() {
        let mut idle = idle(30);
        idle.rest(at(0), None, Span::ZERO);
        assert_eq!(idle.sleeps_until(), Some(None), "for good");
        idle.rouse(true, at(50));
        idle.rouse(true, at(60));
        assert_eq!(idle.sleeps_until(), Some(Some(at(80))), "by the first packet");
        idle.rouse(false, at(80));
        assert_eq!((idle.sleeps_until(), idle.early), (None, Span::micros(10)), "no timer rang");
        idle.rest(at(90), Some(at(200)), Span::ZERO);
        idle.rouse(true, at(85));
        assert_eq!(idle.sleeps_until(), None, "it had not lain down yet");
    }

    #[test]
    fn it_stops_spinning_when_it_uses_most_of_its_core() {
        let mut idle = idle(30);
        idle.rest(at(100_000), Some(at(100_100)), Span::millis(90));
        assert_eq!(idle.sleeps_until(), Some(Some(at(100_130))));
        idle.rouse(false, at(100_130));
        idle.rest(at(200_000), Some(at(200_100)), Span::millis(110));
        assert_eq!(idle.sleeps_until(), Some(Some(at(200_130))), "200 thousandths");
        idle.rouse(false, at(200_130));
        idle.rest(at(300_000), Some(at(300_009)), Span::millis(120));
        assert_eq!(idle.sleeps_until(), None, "100 thousandths: it spins again");
    }
}
