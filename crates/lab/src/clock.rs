//! The lab's clock: nanoseconds of the system's monotonic clock, counted from the start of one run.
//!
//! Why: sources, sinks and tools must agree on what "at 2 s" means.
//! From: CLOCK_MONOTONIC, which all namespaces of a host share.
//! Not here: the engine's clock (the daemon has its own).

use std::time::{Duration, Instant};

/// The moment from which a run counts, shared by all its threads.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
}

impl Clock {
    /// A clock that reads zero after `delay`: time for every thread to be ready.
    pub fn starting_in(delay: Duration) -> Self {
        Self { zero: Instant::now() + delay }
    }

    /// Nanoseconds since the start; zero before it.
    pub fn now(&self) -> u64 {
        u64::try_from(Instant::now().saturating_duration_since(self.zero).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Where an instant lies on this clock, in nanoseconds; below zero when before its start.
    pub fn offset(&self, instant: Instant) -> i64 {
        let after = instant.saturating_duration_since(self.zero).as_nanos();
        let before = self.zero.saturating_duration_since(instant).as_nanos();
        i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
    }

    /// How long until `ns` after the start; zero when it is past.
    pub fn until(&self, ns: u64) -> Duration {
        (self.zero + Duration::from_nanos(ns)).saturating_duration_since(Instant::now())
    }
}
