//! Seconds in which a NIC dropped many received packets.
//!
//! Why: their number over a fleet shows how often isolation breaks, and whether it gets better.
//! From: PicNIC §2.3, which counts the intervals of one second in which a NIC drops more than 10,000 received packets.
//! Not here: counting the drops (the uplink's port; `sim`'s receive ring).
//! Invariant: a second counts at most once.

use plimsoll_units::Nanos;

/// Packets that may be dropped in a second that does not count.
const MOST_DROPS: u64 = 10_000;

/// Counts the seconds in which more than 10,000 packets were dropped.
///
/// ```
/// use plimsoll_slo::DropSeconds;
/// use plimsoll_units::Nanos;
///
/// let mut seconds = DropSeconds::default();
/// seconds.dropped(10_000, Nanos::new(200_000_000));
/// assert_eq!(seconds.count(), 0);
/// seconds.dropped(1, Nanos::new(900_000_000));
/// seconds.dropped(50_000, Nanos::new(950_000_000));
/// assert_eq!(seconds.count(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropSeconds {
    /// The second of the last drop, and the drops in it.
    second: u64,
    drops: u64,
    count: u64,
}

impl DropSeconds {
    /// Adds packets that were dropped at `now`, which must not run backwards.
    pub fn dropped(&mut self, drops: u64, now: Nanos) {
        let second = now.as_u64() / 1_000_000_000;
        let before = if second == self.second { self.drops } else { 0 };
        (self.second, self.drops) = (second, before.saturating_add(drops));
        self.count += u64::from(before <= MOST_DROPS && self.drops > MOST_DROPS);
    }

    /// Adds the packets that were dropped between two reads of a counter, `length` seconds apart, which is rounded to
    /// whole seconds and counts as at least one. Of a longer interval all seconds count, or none.
    pub fn read(&mut self, drops: u64, length: f64) {
        let seconds = (length.round() as u64).max(1);
        if drops > MOST_DROPS.saturating_mul(seconds) {
            self.count += seconds;
        }
    }

    /// The seconds that count so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_counts_by_itself_and_once() {
        let mut seconds = DropSeconds::default();
        for (drops, millis, count) in
            [(9_000, 999, 0), (9_000, 1_000, 0), (1_001, 1_999, 1), (90_000, 1_999, 1), (10_001, 5_000, 2)]
        {
            seconds.dropped(drops, Nanos::new(millis * 1_000_000));
            assert_eq!(seconds.count(), count, "{drops} at {millis} ms");
        }
    }

    #[test]
    fn reads_that_are_a_little_late_count_as_a_second_each() {
        let mut seconds = DropSeconds::default();
        for (drops, length, count) in
            [(9_999, 1.001, 0), (9_999, 0.998, 0), (10_001, 1.001, 1), (20_000, 2.1, 1), (30_000, 2.1, 3)]
        {
            seconds.read(drops, length);
            assert_eq!(seconds.count(), count, "{drops} in {length} s");
        }
    }
}
