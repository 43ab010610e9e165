//! Random early detection: drops with a probability that grows with the queue's average length.
//!
//! Why: it is what most switches have, and what others are compared with.
//! From: Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance" (1993), Figures 2 and 17; RFC 3168
//! §7: beyond the upper threshold packets are dropped whether they are ECN-capable or not.
//! Not here: the "gentle" variant.
//! Invariant: no packet is dropped while the average is below `min`, and every one is from `max` on.

use plimsoll_scenario::Red as Spec;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::{Arriving, Verdict};

/// RED's state for one queue.
#[derive(Clone, Debug)]
pub(in crate::link) struct Red {
    spec: Spec,
    /// The average length, in bytes.
    average: f64,
    /// Packets since the last one that was dropped or marked; none while the average is below `min`.
    count: Option<u32>,
    /// When the queue became empty, or will.
    empty_from: Nanos,
    rate: Option<BitRate>,
}

/// A packet of usual size, in bytes.
const USUAL: Bytes = Bytes::new(1_000);

impl Red {
    pub(super) fn new(spec: Spec, rate: Option<BitRate>) -> Self {
        Self { spec, average: 0.0, count: None, empty_from: Nanos::ZERO, rate }
    }

    pub(super) fn decide(&mut self, packet: &Arriving, chance: impl FnMut() -> f64) -> Verdict {
        self.measure(packet);
        let verdict = self.judge(packet, chance);
        let taken = self.rate.filter(|_| verdict != Verdict::Drop);
        let own = taken.map_or(Span::ZERO, |rate| rate.wire_time(Bytes::new(packet.len.into())));
        self.empty_from = packet.free + own;
        verdict
    }

    /// Moves the average on. While the queue was empty, it falls as if the packets that the link could have sent had come.
    fn measure(&mut self, packet: &Arriving) {
        let weight = self.spec.weight;
        if packet.backlog == 0 {
            let idle = packet.now.as_u64().saturating_sub(self.empty_from.as_u64()) as f64;
            let usual = self.rate.map_or(Span::ns(1), |rate| rate.wire_time(USUAL));
            self.average *= libm::pow(1.0 - weight, idle / usual.as_u64().max(1) as f64);
        } else {
            self.average += weight * (packet.backlog as f64 - self.average);
        }
    }

    fn judge(&mut self, packet: &Arriving, mut chance: impl FnMut() -> f64) -> Verdict {
        let (min, max) = (self.spec.min.as_u64() as f64, self.spec.max.as_u64() as f64);
        if self.average < min {
            self.count = None;
            return Verdict::Pass;
        }
        if self.average >= max {
            self.count = Some(0);
            return Verdict::Drop;
        }
        let count = self.count.map_or(0, |count| count.saturating_add(1));
        let at_once = self.spec.probability * (self.average - min) / (max - min);
        // Drops are spread evenly: the longer ago the last one, the likelier the next.
        let spread = 1.0 - f64::from(count) * at_once;
        if spread > 0.0 && chance() > at_once / spread {
            self.count = Some(count);
            return Verdict::Pass;
        }
        self.count = Some(0);
        if packet.ecn { Verdict::Mark } else { Verdict::Drop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    const SPEC: Spec =
        Spec { min: Bytes::new(30_000), max: Bytes::new(90_000), probability: 0.1, weight: 0.002 };

    /// Verdicts about packets that come to a queue of this length.
    fn verdicts(red: &mut Red, backlog: u64, ecn: bool, count: u64) -> Vec<Verdict> {
        let mut chance = Chance::of(7, "red");
        let packet = |n: u64| Arriving {
            now: Nanos::new(n * 1_200),
            free: Nanos::new(n * 1_200 + backlog),
            backlog,
            len: 1_500,
            ecn,
        };
        (0..count).map(|n| red.decide(&packet(n), || chance.unit())).collect()
    }

    fn red() -> Red {
        Red::new(SPEC, Some(BitRate::gbps(10)))
    }

    #[test]
    fn the_average_decides_and_not_the_length() {
        let mut red = red();
        // After n packets the average is 1 - 0.998^n of the length: a fifth after 111.
        let all = verdicts(&mut red, 150_000, false, 400);
        assert!(all[..100].iter().all(|&verdict| verdict == Verdict::Pass));
        assert_eq!(verdicts(&mut red, 150_000, false, 2_000).last(), Some(&Verdict::Drop));
    }

    /// Halfway between the thresholds packets are marked with 5 %; uniform spacing makes that one in every 1 to 19 (Figure 8 of
    /// the paper): on average each tenth.
    #[test]
    fn between_the_thresholds_marks_are_spread_evenly() {
        let mut red = red();
        red.average = 60_000.0;
        let all = verdicts(&mut red, 60_000, true, 21_000);
        let marks: Vec<usize> =
            (0..).zip(&all).filter(|(_, v)| **v == Verdict::Mark).map(|(n, _)| n).collect();
        assert!((1_950..2_250).contains(&marks.len()), "{}", marks.len());
        assert!(marks.windows(2).all(|pair| pair[1] - pair[0] <= 21));
        assert!(!all.contains(&Verdict::Drop));
    }

    #[test]
    fn beyond_the_upper_threshold_even_capable_packets_are_dropped() {
        let mut red = red();
        red.average = 90_000.0;
        assert_eq!(verdicts(&mut red, 95_000, true, 1), [Verdict::Drop]);
    }

    #[test]
    fn an_idle_queue_forgets() {
        let mut red = red();
        red.average = 60_000.0;
        // 800 ns for a packet of usual size: 400 us are 500 of them, and 0.998^500 is 0.37.
        let packet = Arriving {
            now: Nanos::new(400_000),
            free: Nanos::new(400_000),
            backlog: 0,
            len: 1_500,
            ecn: false,
        };
        assert_eq!(red.decide(&packet, || 0.0), Verdict::Pass);
        assert!((22_000.0..22_100.0).contains(&red.average), "{}", red.average);
    }
}
