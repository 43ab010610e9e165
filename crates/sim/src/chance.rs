//! Random numbers, all from one seed.
//!
//! Why: a run must be the same, bit for bit, on any machine, and a workload's choices must not depend on the other
//! workloads.
//! From: ChaCha8 (`rand_chacha`), whose streams stay independent however alike their keys are; inverse transforms with
//! `libm`, as the logarithms of systems' own libraries differ in their last bits.
//! Not here: how the numbers are used.
//! Invariant: a stream follows from the seed and its own name alone.

use plimsoll_scenario::Lateness;
use plimsoll_units::Span;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    /// The stream called `name` of a run with this seed.
    pub(crate) fn of(seed: u64, name: &str) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&fnv(name, 0xcbf2_9ce4_8422_2325).to_le_bytes());
        key[16..24].copy_from_slice(&fnv(name, 0x6c62_272e_07bb_0142).to_le_bytes());
        key[24..].copy_from_slice(&(name.len() as u64).to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Evenly distributed above 0, at most 1.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number below `end`, evenly distributed but for a part in 2^32.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(end)) >> 32) as u32
    }

    /// Evenly distributed from none to `most`, in nanoseconds.
    pub(crate) fn within(&mut self, most: Span) -> Span {
        let end = u32::try_from(most.as_u64()).unwrap_or(u32::MAX).saturating_add(1);
        Span::ns(self.below(end).into())
    }

    /// How late one sleep ends.
    pub(crate) fn lateness(&mut self, lateness: &Lateness) -> Span {
        lateness.as_constant().unwrap_or_else(|| lateness.quantile(self.unit()))
    }

    /// Exponentially distributed with this mean, at least a nanosecond.
    pub(crate) fn exponential(&mut self, mean: Span) -> Span {
        let draw = -libm::log(self.unit()) * mean.as_u64() as f64;
        Span::ns((draw as u64).max(1))
    }

    /// Normally distributed but for the tails beyond six standard deviations, at least a nanosecond: the sum of twelve
    /// even draws.
    pub(crate) fn normal(&mut self, mean: Span, sigma: Span) -> Span {
        if sigma == Span::ZERO {
            return mean;
        }
        let sum: f64 = (0..12).map(|_| self.unit()).sum();
        let draw = mean.as_u64() as f64 + (sum - 6.0) * sigma.as_u64() as f64;
        Span::ns((draw as u64).max(1))
    }
}

fn fnv(text: &str, basis: u64) -> u64 {
    text.bytes().fold(basis, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_everywhere() {
        let mut chance = Chance::of(1, "shop");
        let drawn: Vec<u64> = (0..4).map(|_| chance.exponential(Span::millis(1)).as_u64()).collect();
        assert_eq!(
            drawn, KNOWN,
            "the seed's meaning changed: results of earlier versions cannot be replayed"
        );
        assert_ne!(Chance::of(1, "shoq").below(u32::MAX), Chance::of(1, "shop").below(u32::MAX));
        assert_ne!(Chance::of(2, "shop").below(u32::MAX), Chance::of(1, "shop").below(u32::MAX));
    }

    const KNOWN: [u64; 4] = [468_838, 616_746, 3_038_826, 957_886];

    #[test]
    fn an_exponential_has_its_mean() {
        let mut chance = Chance::of(7, "mean");
        let sum: u64 = (0..100_000).map(|_| chance.exponential(Span::micros(100)).as_u64()).sum();
        let mean = sum / 100_000;
        assert!((99_000..101_000).contains(&mean), "{mean}");
    }
}
