//! What BBR remembers of the last round trips: the highest bandwidth, and how much acknowledgements come in bursts.

use plimsoll_units::{NS_PER_SEC, Nanos};
use std::collections::VecDeque;

/// The highest value of the last ten round trips.
#[derive(Clone, Debug, Default)]
pub(super) struct Highest {
    /// Values that may still become the highest, falling, each with its round trip.
    values: VecDeque<(u64, u64)>,
}

impl Highest {
    pub(super) fn value(&self) -> u64 {
        self.values.front().map_or(0, |&(_, value)| value)
    }

    pub(super) fn update(&mut self, value: u64, round: u64) {
        while self.values.back().is_some_and(|&(_, last)| last <= value) {
            self.values.pop_back();
        }
        // A lower one of the same round trip is forgotten as soon as the higher one.
        if self.values.back().is_none_or(|&(last, _)| last < round) {
            self.values.push_back((round, value));
        }
        while self.values.front().is_some_and(|&(first, _)| first + ROUNDS < round) {
            self.values.pop_front();
        }
    }
}

/// Bytes that acknowledgements bring beyond what the bandwidth explains: they need room in the window.
#[derive(Clone, Debug, Default)]
pub(super) struct Aggregation {
    epoch: Nanos,
    acked: u64,
    /// The most in this spell of five round trips, and in the one before.
    most: [u64; 2],
    rounds: u32,
}

impl Aggregation {
    pub(super) fn update(&mut self, acked: u64, window: u64, bandwidth: u64, round_start: bool, now: Nanos) {
        if round_start {
            self.rounds += 1;
            if self.rounds >= SPELL {
                self.rounds = 0;
                self.most = [0, self.most[0]];
            }
        }
        let mut expected = bytes_in(bandwidth, now, self.epoch);
        if self.acked <= expected || self.acked + acked >= MOST_ACKED {
            (self.acked, self.epoch, expected) = (0, now, 0);
        }
        self.acked += acked;
        self.most[0] = self.most[0].max((self.acked - expected).min(window));
    }

    pub(super) fn restart(&mut self, now: Nanos) {
        (self.epoch, self.acked) = (now, 0);
    }

    /// The room that they need: at most what comes in 100 ms.
    pub(super) fn extra(&self, bandwidth: u64) -> u64 {
        self.most[0].max(self.most[1]).min(bandwidth / 10)
    }
}

fn bytes_in(bandwidth: u64, now: Nanos, since: Nanos) -> u64 {
    let bytes = u128::from(bandwidth) * u128::from((now - since).as_u64()) / u128::from(NS_PER_SEC);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

const ROUNDS: u64 = 10;
const SPELL: u32 = 5;
/// 2^20 segments: then an epoch ends in any case.
const MOST_ACKED: u64 = 1_500 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_of_ten_rounds() {
        let mut highest = Highest::default();
        highest.update(100, 1);
        highest.update(60, 3);
        highest.update(80, 5);
        assert_eq!(highest.value(), 100);
        highest.update(10, 11);
        assert_eq!(highest.value(), 100, "ten rounds ago");
        highest.update(10, 12);
        assert_eq!(highest.value(), 80, "60 was before it, and lower");
    }

    #[test]
    fn what_comes_in_bursts_needs_room() {
        let mut aggregation = Aggregation::default();
        // 1 MB/s in bursts of 10 kB every 10 ms: each burst is beyond what its moment explains.
        for burst in 1..20 {
            aggregation.update(10_000, 1 << 20, 1_000_000, false, Nanos::new(burst * 10_000_000));
        }
        assert_eq!(aggregation.extra(1_000_000), 10_000);
    }
}
