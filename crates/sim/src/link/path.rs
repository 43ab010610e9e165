//! What happens to packets between a link's ends, where that is more than a delay: jitter, reordering and bursts of loss.
//!
//! Why: long and wireless ways vary, and congestion control must be tried on such ways too.
//! From: Linux's netem (tc-netem(8)), and the model of Gilbert (1960) and Elliott (1963) for bursts of loss.
//! Not here: independent loss and the queue (`link`).
//! Invariant: a packet that is not reordered never overtakes another; none arrives before the link's delay is over.

use std::collections::VecDeque;

use plimsoll_scenario::{BurstLoss, Reorder};
use plimsoll_units::{Nanos, Span};

use crate::chance::Chance;

/// What a path does beyond its delay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PathSpec {
    /// Most that a packet is late, evenly distributed.
    pub(crate) jitter: Span,
    /// Packets that others overtake.
    pub(crate) reorder: Option<Reorder>,
    /// Bursts of loss.
    pub(crate) burst_loss: Option<BurstLoss>,
}

/// A path in use.
#[derive(Clone, Debug)]
pub(super) struct Path {
    spec: PathSpec,
    chance: Chance,
    /// Whether there is a burst of loss.
    bad: bool,
    /// The latest arrival of a packet that was not reordered.
    latest: Nanos,
    /// Packets still in the link's queue: when each leaves, and its bytes.
    leaving: VecDeque<(Nanos, u32)>,
    last_departure: Nanos,
}

impl Path {
    pub(super) fn new(spec: PathSpec, chance: Chance) -> Self {
        Self {
            spec,
            chance,
            bad: false,
            latest: Nanos::ZERO,
            leaving: VecDeque::new(),
            last_departure: Nanos::ZERO,
        }
    }

    /// When a packet that leaves at `departure` arrives; `None` if it is lost.
    pub(super) fn arrival(&mut self, departure: Nanos, delay: Span) -> Option<Nanos> {
        self.last_departure = departure;
        if self.spec.burst_loss.is_some_and(|burst| self.loses(burst)) {
            return None;
        }
        let due = departure + delay;
        if let Some(Reorder { part, late }) = self.spec.reorder
            && self.chance.unit() <= part
        {
            return Some(due + self.part_of(late));
        }
        let jitter = if self.spec.jitter > Span::ZERO { self.part_of(self.spec.jitter) } else { Span::ZERO };
        self.latest = self.latest.max(due + jitter);
        Some(self.latest)
    }

    /// Moves on by a packet: whether it is lost. The state changes before the packet is sent, as in netem.
    fn loses(&mut self, burst: BurstLoss) -> bool {
        let changes = if self.bad { burst.leave } else { burst.enter };
        self.bad ^= self.chance.unit() <= changes;
        self.bad && self.chance.unit() <= burst.loss
    }

    /// An evenly distributed time, at most `most`.
    fn part_of(&mut self, most: Span) -> Span {
        Span::ns((self.chance.unit() * most.as_u64() as f64) as u64)
    }

    /// Notes a packet of the queue.
    pub(super) fn note(&mut self, departure: Nanos, len: u32) {
        self.leaving.push_back((departure, len));
    }

    /// Packets in the queue.
    pub(super) fn waiting(&self) -> usize {
        self.leaving.len()
    }

    /// Forgets the packets that have left the queue by `now`; returns their bytes.
    pub(super) fn departed(&mut self, now: Nanos) -> u64 {
        let mut bytes = 0;
        while let Some((_, len)) = self.leaving.pop_front_if(|(at, _)| *at <= now) {
            bytes += u64::from(len);
        }
        bytes
    }

    /// When the last bit of the last packet leaves.
    pub(super) fn last_departure(&self) -> Nanos {
        self.last_departure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Span = Span::micros(100);

    fn path(spec: PathSpec, seed: u64) -> Path {
        Path::new(spec, Chance::of(seed, "path"))
    }

    /// Arrivals of packets that leave each `gap`; `None` for those that are lost.
    fn arrivals(spec: PathSpec, seed: u64, gap: u64) -> Vec<Option<u64>> {
        let mut path = path(spec, seed);
        (0..20_000).map(|n| path.arrival(Nanos::new(n * gap), DELAY).map(Nanos::as_u64)).collect()
    }

    #[test]
    fn jitter_is_even_and_overtakes_nothing() {
        let spec = PathSpec { jitter: Span::micros(50), ..PathSpec::default() };
        for seed in 1..=5 {
            let close: Vec<u64> = arrivals(spec, seed, 1_000).into_iter().flatten().collect();
            assert!(close.is_sorted());
            // Packets that are further apart than the jitter are late independently: 25 us on average.
            let apart = arrivals(spec, seed, 60_000).into_iter().flatten();
            let late: Vec<u64> = (0..).zip(apart).map(|(n, at)| at - n * 60_000 - 100_000).collect();
            let mean = late.iter().sum::<u64>() / 20_000;
            assert!((24_000..26_000).contains(&mean), "{mean}");
            assert!(late.iter().all(|&late| late <= 50_000));
        }
    }

    #[test]
    fn the_stated_part_of_the_packets_is_overtaken() {
        let reorder = Reorder { part: 0.1, late: Span::millis(1) };
        let spec = PathSpec { reorder: Some(reorder), ..PathSpec::default() };
        for seed in 1..=5 {
            let late =
                (0..).zip(arrivals(spec, seed, 1_000)).filter(|&(n, at)| at > Some(n * 1_000 + 100_000));
            let late = late.count();
            // A tenth of 20,000, with a standard deviation of 42.
            assert!((1_800..2_200).contains(&late), "{late}");
        }
    }

    /// With 1 % into a burst and 20 % out of it, 1/21 of the time is bad, and bursts are 5 packets long on average.
    #[test]
    fn bursts_of_loss_have_the_models_rate_and_length() {
        let burst = BurstLoss { enter: 0.01, leave: 0.2, loss: 1.0 };
        let spec = PathSpec { burst_loss: Some(burst), ..PathSpec::default() };
        for seed in 1..=5 {
            let lost: Vec<bool> = arrivals(spec, seed, 1_000).iter().map(Option::is_none).collect();
            let count = lost.iter().filter(|&&lost| lost).count();
            let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
            assert!((750..1_200).contains(&count), "952 expected: {count}");
            let length = count as f64 / bursts as f64;
            assert!((4.0..6.2).contains(&length), "{length}");
        }
        let half = PathSpec { burst_loss: Some(BurstLoss { loss: 0.5, ..burst }), ..PathSpec::default() };
        let count = arrivals(half, 1, 1_000).iter().filter(|at| at.is_none()).count();
        assert!((350..620).contains(&count), "476 expected: {count}");
    }
}
