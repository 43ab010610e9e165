//! `HyStart` as Linux has it (Ha and Rhee, 2011): leaves slow start before the queue overflows.
//!
//! Two signs end it. An *acknowledgement train*: acknowledgements at most 2 ms apart, which began with the round, last for half
//! of the least round trip, so that the path is full. And *delay*: the least of a round's round trips has grown by an eighth.
//! RFC 9406 (`HyStart++`) has the second alone, with a slower slow start after it; it overflows a queue far more often.

use plimsoll_units::Nanos;

use super::Progress;

/// A round of slow start, and what it has shown.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    /// The bytes whose acknowledgement ends the round.
    round_end: u64,
    round_start: Nanos,
    /// The last acknowledgement of the train.
    last_ack: Nanos,
    /// The least round trip of the connection, and of the round, ns.
    least: u64,
    current: u64,
    samples: u32,
    /// Whether segments are paced, which makes a train of twice the length.
    paced: bool,
    found: bool,
}

impl HyStart {
    pub(super) fn new(paced: bool) -> Self {
        Self {
            round_end: 0,
            round_start: Nanos::ZERO,
            last_ack: Nanos::ZERO,
            least: u64::MAX,
            current: u64::MAX,
            samples: 0,
            paced,
            found: false,
        }
    }

    /// Takes an acknowledgement that comes in slow start; says whether slow start ends with it.
    pub(super) fn ends(&mut self, progress: &Progress, rtt: u64, window: u64, mss: u64) -> bool {
        self.least = self.least.min(rtt);
        if self.found {
            return false;
        }
        // Rounds begin with small windows too, as in Linux from 6.14 on: before, the first one began in mid-train.
        if progress.una > self.round_end {
            self.begin_round(progress);
        }
        if window < LOW_WINDOW * mss {
            return false;
        }
        self.found = self.is_long_train(progress, window) || self.is_delayed(rtt);
        self.found
    }

    /// A timeout has emptied the path: slow start begins anew.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.paced);
    }

    fn begin_round(&mut self, progress: &Progress) {
        (self.round_start, self.last_ack) = (progress.now, progress.now);
        self.round_end = progress.nxt;
        (self.current, self.samples) = (u64::MAX, 0);
    }

    fn is_long_train(&mut self, progress: &Progress, window: u64) -> bool {
        if (progress.now - self.last_ack).as_u64() > TRAIN_GAP {
            return false;
        }
        self.last_ack = progress.now;
        // What the host's own bursts add: four of the longest descriptors at twice the window a round trip.
        let bursts = u128::from(4 * LONGEST) * u128::from(progress.srtt) / u128::from(2 * window.max(1));
        let bursts = u64::try_from(bursts).unwrap_or(u64::MAX).min(MOST_BURSTS);
        let length = self.least.saturating_add(bursts) >> u32::from(!self.paced);
        (progress.now - self.round_start).as_u64() > length
    }

    fn is_delayed(&mut self, rtt: u64) -> bool {
        self.current = self.current.min(rtt);
        if self.samples < SAMPLES {
            self.samples += 1;
            return false;
        }
        let threshold = (self.least / 8).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
        self.current > self.least.saturating_add(threshold)
    }
}

/// Segments of a window below which nothing is looked for.
const LOW_WINDOW: u64 = 16;
/// Acknowledgements that are further apart, ns, are no train.
const TRAIN_GAP: u64 = 2_000_000;
/// Linux's longest descriptor for segmentation offload, which it counts whether or not there is offload.
const LONGEST: u64 = 65_536;
const MOST_BURSTS: u64 = 1_000_000;
const SAMPLES: u32 = 8;
const MIN_THRESHOLD: u64 = 4_000_000;
const MAX_THRESHOLD: u64 = 16_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1_000;

    /// A flow of 20 segments a round of 40 ms: each comes `gap` after the one before, and took `rtt`.
    fn first_end(gap: u64, rtt: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
        let mut hystart = HyStart::new(false);
        for round in 1..6_u64 {
            for segment in 0..20 {
                let una = 20 * round + segment + 1;
                let now = Nanos::new(40_000_000 * round + gap * segment);
                let (una, nxt, srtt) = (una * MSS, (una + 20) * MSS, 40_000_000);
                let progress = Progress { delivered: MSS, una, nxt, rtt: Some(rtt(round)), srtt, now };
                if hystart.ends(&progress, rtt(round), 20 * MSS, MSS) {
                    return Some((round, segment));
                }
            }
        }
        None
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        // Half of 40 ms and of the 1 ms for bursts is 20.5 ms: beyond it with the twelfth gap of 1.8 ms.
        assert_eq!(first_end(1_800_000, |_| 40_000_000), Some((1, 12)));
        assert_eq!(first_end(900_000, |_| 40_000_000), None, "it is shorter");
        assert_eq!(first_end(2_100_000, |_| 40_000_000), None, "these are no train");
    }

    #[test]
    fn a_train_that_began_with_a_smaller_window_counts_whole() {
        let mut hystart = HyStart::new(false);
        // Ten segments are acknowledged 240 us apart, and the window grows by each. Half of the least round trip, 400 us, and of
        // the 1 ms for bursts is over with the third gap; the window is large enough at the seventh.
        let first = (0..10_u64).find(|&segment| {
            let (now, una) = (Nanos::new(400_000 + 240_000 * segment), MSS * (segment + 1));
            let rtt = 400_000 + 240_000 * segment;
            let progress =
                Progress { delivered: MSS, una, nxt: una + 10 * MSS, rtt: Some(rtt), srtt: 400_000, now };
            hystart.ends(&progress, rtt, (10 + segment) * MSS, MSS)
        });
        assert_eq!(first, Some(6));
    }

    #[test]
    fn growing_round_trips_end_slow_start() {
        // An eighth of 40 ms is 5 ms. A round begins with the acknowledgement of the second segment sent in it, and the ninth
        // sample decides.
        let grown = |by: u64| move |round: u64| 40_000_000 + if round >= 3 { by } else { 0 };
        assert_eq!(first_end(100_000, grown(5_100_000)), Some((3, 10)));
        assert_eq!(first_end(100_000, grown(4_900_000)), None);
    }
}
