//! How many packets the next call of a program gets, and when a program is halted.
//!
//! Why: others wait for the core while a call runs, and a program whose calls take too long would hold them up again and again.
//! From: FairNIC §4.1 (batches run to completion); `docs/programs.md`, "Time".
//! Not here: what a call took: measured live, and counted by fuel in virtual time.
//! Invariant: a call gets at least one packet; a program that is halted stays halted.

use std::collections::VecDeque;

use plimsoll_units::{Nanos, Span};

/// The pace of one program.
#[derive(Clone, Debug)]
pub struct Pace {
    /// What a packet has taken lately.
    cost: Span,
    /// When the last calls took too long, the oldest first.
    overruns: VecDeque<Nanos>,
    halted: bool,
}

/// How long a call may take, by what packets have taken before: others wait for the core meanwhile.
const CALL: Span = Span::micros(50);

/// A program is halted when so many of its calls have taken too long within this time.
const MOST_OVERRUNS: usize = 4;
const OVERRUNS_WITHIN: Span = Span::secs(60);

impl Default for Pace {
    fn default() -> Self {
        Self { cost: Span::ns(100), overruns: VecDeque::with_capacity(MOST_OVERRUNS), halted: false }
    }
}

impl Pace {
    /// Most packets of one call.
    pub const BATCH: usize = 32;

    /// How often `tick` is called.
    pub const TICK: Span = Span::millis(100);

    /// Most packets of the next call, so that others do not wait for long.
    #[must_use]
    pub fn most(&self) -> usize {
        let fit = CALL.as_u64() / self.cost.as_u64().max(1);
        (fit as usize).clamp(1, Self::BATCH)
    }

    /// Notes how long a call with so many packets took.
    pub fn took(&mut self, packets: usize, took: Span) {
        if packets > 0 {
            let one = took.as_u64() / packets as u64;
            self.cost = Span::ns((3 * self.cost.as_u64() + one) / 4);
        }
    }

    /// Notes that a call has taken too long; answers whether the program is halted by that.
    pub fn overrun(&mut self, now: Nanos) -> bool {
        self.overruns.push_back(now);
        if self.overruns.len() < MOST_OVERRUNS || self.halted {
            return false;
        }
        let first = self.overruns.pop_front().unwrap_or(now);
        self.halted = now.since(first) <= OVERRUNS_WITHIN;
        self.halted
    }

    /// Whether the program was halted.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.halted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Nanos {
        Nanos::ZERO + Span::secs(secs)
    }

    #[test]
    fn four_overruns_within_a_minute_halt_a_program() {
        let mut pace = Pace::default();
        assert_eq!([0, 30, 59, 61, 119, 121].map(|secs| pace.overrun(at(secs))), [false; 6]);
        assert!(!pace.is_halted());
        assert!(pace.overrun(at(121)) && pace.is_halted());
        assert!(!pace.overrun(at(121)), "it is halted once");
    }

    #[test]
    fn a_call_gets_as_many_packets_as_50_us_hold() {
        let mut pace = Pace::default();
        assert_eq!(pace.most(), Pace::BATCH);
        (0..50).for_each(|_| pace.took(10, Span::micros(100)));
        assert_eq!(pace.most(), 5);
        (0..50).for_each(|_| pace.took(1, Span::millis(1)));
        assert_eq!(pace.most(), 1);
    }
}
