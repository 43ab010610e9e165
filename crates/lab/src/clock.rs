//! The lab's clock: nanoseconds of the system's monotonic clock, counted from the start of one run.
//!
//! Why: sources, sinks and tools must agree on the time of the run.
//! From: CLOCK_MONOTONIC, which all namespaces of a host share.
//! Not here: the engine's clock (the daemon has its own).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The clock of a run, shared by all its threads; it starts when every server is ready.
#[derive(Debug, Default)]
pub struct Clock {
    zero: OnceLock<Instant>,
}

/// The result of [`Clock::until`] while the clock does not run yet.
const NOT_YET: Duration = Duration::from_secs(3_600);

impl Clock {
    /// Starts the clock so that it reads zero after `delay`, when every thread is ready. Only the first call counts.
    pub fn start_in(&self, delay: Duration) {
        self.zero.get_or_init(|| Instant::now() + delay);
    }

    /// Nanoseconds since the start; zero before it.
    pub fn now(&self) -> u64 {
        let elapsed = self.zero.get().map(|zero| Instant::now().saturating_duration_since(*zero));
        u64::try_from(elapsed.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    }

    /// An instant on this clock, in nanoseconds; negative before the start.
    pub fn offset(&self, instant: Instant) -> i64 {
        let zero = *self.zero.get().unwrap_or(&instant);
        let after = instant.saturating_duration_since(zero).as_nanos();
        let before = zero.saturating_duration_since(instant).as_nanos();
        i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
    }

    /// Time left until `ns` nanoseconds after the start; zero when that is past.
    pub fn until(&self, ns: u64) -> Duration {
        let moment = self.zero.get().map(|zero| *zero + Duration::from_nanos(ns));
        moment.map_or(NOT_YET, |moment| moment.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_does_not_run_reads_zero_and_nothing_is_due() {
        let clock = Clock::default();
        assert_eq!(clock.now(), 0);
        assert_eq!(clock.until(0), NOT_YET);
        clock.start_in(Duration::ZERO);
        assert_eq!(clock.until(0), Duration::ZERO);
    }
}
