//! Faults that are injected into a run.
//!
//! Why: isolation must hold when things fail, so each fault must come on demand, and at the same moment every time.
//! From: `docs/scenarios.md`, "Faults".
//! Not here: reading them (`read::fault`), injecting them (`sim`).
//! Invariant: every name refers to something that exists; moments lie inside the run.

use plimsoll_units::Span;

/// All faults of a run; none by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Faults of feedback messages.
    pub feedback: FeedbackFaults,
    /// Hosts that take no part in control: they send no limits and obey none.
    pub silent: Vec<String>,
    /// Daemons that end, and start again without state.
    pub restarts: Vec<Restart>,
    /// Hosts whose clock is set.
    pub clocks: Vec<ClockStep>,
    /// Tenants that stop reading.
    pub stalls: Vec<Stall>,
}

/// Faults of messages between hosts: parts of them, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FeedbackFaults {
    /// The part that never arrives.
    pub loss: f64,
    /// The part that arrives twice, the second time late.
    pub duplicate: f64,
    /// The part that is late, so that later messages overtake it.
    pub reorder: f64,
    /// The longest delay of a late message.
    pub late: Span,
}

/// The fate of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// It never arrives.
    pub lost: bool,
    /// Its delay.
    pub late: Span,
    /// The delay of its second arrival, if it arrives twice.
    pub again: Option<Span>,
}

impl FeedbackFaults {
    /// Draws the fate of a message, with random numbers from 0 to 1.
    pub fn fate(&self, mut unit: impl FnMut() -> f64) -> Fate {
        let &Self { loss, duplicate, reorder, late } = self;
        let mut happens = |part: f64| part > 0.0 && unit() <= part;
        let (lost, again, delayed) = (happens(loss), happens(duplicate), happens(reorder));
        let mut delay = || Span::ns((unit() * late.as_u64() as f64) as u64);
        let late = if delayed { delay() } else { Span::ZERO };
        Fate { lost, late, again: again.then(delay) }
    }
}

/// A daemon that ends with all that its engine holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Its host.
    pub host: String,
    /// When it ends.
    pub at: Span,
    /// How long the host has no engine.
    pub gap: Span,
}

/// A clock that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// Its owner's name.
    pub host: String,
    /// When it is set.
    pub at: Span,
    /// By how much it is set.
    pub step: Span,
    /// Whether it is set back.
    pub back: bool,
}

/// A tenant whose guest takes nothing from its device for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Its owner's name.
    pub tenant: String,
    /// Its start.
    pub from: Span,
    /// Its end.
    pub to: Span,
}

impl Faults {
    /// Multiplies every moment by `scale`.
    pub(crate) fn scale(&mut self, scale: impl Fn(&mut Span)) {
        self.restarts.iter_mut().for_each(|restart| {
            scale(&mut restart.at);
            scale(&mut restart.gap);
        });
        self.clocks.iter_mut().for_each(|clock| scale(&mut clock.at));
        self.stalls.iter_mut().for_each(|stall| {
            scale(&mut stall.from);
            scale(&mut stall.to);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_messages_are_lost_repeated_and_late() {
        let faults = FeedbackFaults { loss: 0.3, duplicate: 0.1, reorder: 0.2, late: Span::millis(3) };
        let mut state = 1_u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let all: Vec<Fate> = (0..100_000).map(|_| faults.fate(&mut unit)).collect();
        let part =
            |of: fn(&Fate) -> bool| all.iter().filter(|fate| of(fate)).count() as f64 / all.len() as f64;
        assert!((part(|fate| fate.lost) - 0.3).abs() < 0.01);
        assert!((part(|fate| fate.again.is_some()) - 0.1).abs() < 0.01);
        assert!((part(|fate| fate.late > Span::ZERO) - 0.2).abs() < 0.01);
        assert!(all.iter().all(|fate| fate.late < Span::millis(3)));
    }

    #[test]
    fn without_faults_all_arrives_at_once() {
        let fate = FeedbackFaults::default().fate(|| 0.0);
        assert_eq!(fate, Fate { lost: false, late: Span::ZERO, again: None });
    }
}
