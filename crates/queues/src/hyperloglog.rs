//! Estimates how many different things have been seen, in the space of a few cache lines.
//!
//! Why: what a receiver allows each sender depends on how many there are, and a list of them would be as long as an
//! attacker likes.
//! From: Flajolet and others' HyperLogLog (2007), with linear counting while few registers are used.
//! Not here: hashing. Hashes must be keyed, or a sender that chooses what is counted chooses the count.
//! Invariant: integers only; the count does not depend on order or on repetition.

/// A counter of distinct hashes.
///
/// ```
/// use plimsoll_queues::HyperLogLog;
///
/// let mut senders = HyperLogLog::with_registers(64);
/// for hash in [0x9e37_79b9_7f4a_7c15, 0x1234_5678_9abc_def0, 0x9e37_79b9_7f4a_7c15] {
///     senders.insert(hash);
/// }
/// assert_eq!(senders.count(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct HyperLogLog {
    registers: Vec<u8>,
    /// By how many registers are empty: the count by linear counting.
    few: Vec<u32>,
}

impl HyperLogLog {
    /// An empty counter with `registers`, a power of two from 16 to 65,536. The count's standard error is `1.04 / √registers`.
    ///
    /// # Panics
    /// If `registers` is not such a power of two.
    #[must_use]
    pub fn with_registers(registers: usize) -> Self {
        assert!(
            registers.is_power_of_two() && (16..=1 << 16).contains(&registers),
            "a power of two from 16 to 65,536"
        );
        // `m · ln(m / empty)` is `m` times the sum of 1/k from `empty + 1` to `m`, up to half a thing.
        let mut few = vec![0; registers + 1];
        let mut sum = 0_u64;
        for empty in (0..registers).rev() {
            sum += ((registers as u64) << SHIFT) / (empty as u64 + 1);
            few[empty] = ((sum + (1 << (SHIFT - 1))) >> SHIFT) as u32;
        }
        Self { registers: vec![0; registers], few }
    }

    /// Counts a thing by its hash, of which all 64 bits must be good.
    #[inline]
    pub fn insert(&mut self, hash: u64) {
        let bits = self.registers.len().trailing_zeros();
        let register = &mut self.registers[(hash >> (64 - bits)) as usize];
        // The guard bit bounds the rank where the rest of the hash is zero.
        let rank = ((hash << bits) | (1 << (bits - 1))).leading_zeros() + 1;
        *register = (*register).max(rank as u8);
    }

    /// The estimated number of different hashes.
    #[must_use]
    pub fn count(&self) -> u64 {
        let len = self.registers.len() as u128;
        let empty = self.registers.iter().filter(|&&rank| rank == 0).count();
        // Σ 2^-rank, in parts of 2^64.
        let sum: u128 = self.registers.iter().map(|&rank| (1_u128 << 64) >> rank).sum();
        let raw = ((len * len * Self::alpha(self.registers.len()) / 1_000_000) << 64) / sum;
        let count = if empty > 0 && raw * 2 <= len * 5 { u128::from(self.few[empty]) } else { raw };
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.registers.fill(0);
    }

    /// The bytes that the registers take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.registers.len() + size_of_val(self.few.as_slice())
    }

    /// The bias of the harmonic mean, in millionths.
    fn alpha(registers: usize) -> u128 {
        match registers {
            16 => 673_000,
            32 => 697_000,
            64 => 709_000,
            more => 721_300 * more as u128 * 1_000 / (more as u128 * 1_000 + 1_079),
        }
    }
}

/// Fraction bits of the sums.
const SHIFT: u32 = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// splitmix64: a hash with 64 good bits.
    fn hash(n: u64) -> u64 {
        let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn counted(registers: usize, things: u64, seed: u64) -> u64 {
        let mut counter = HyperLogLog::with_registers(registers);
        (0..things).for_each(|n| counter.insert(hash(n ^ seed << 40)));
        counter.count()
    }

    #[test]
    fn is_within_four_standard_errors_from_one_to_a_million() {
        for registers in [64_usize, 256, 1_024] {
            let error = 4.0 * 1.04 / (registers as f64).sqrt();
            for things in [1_u64, 2, 5, 20, 100, 500, 2_000, 20_000, 200_000, 1_000_000] {
                let count = counted(registers, things, 3);
                let off = (count as f64 - things as f64).abs();
                assert!(
                    off <= (error * things as f64).max(1.0),
                    "{things} in {registers} registers: {count}"
                );
            }
        }
    }

    /// The error is the one that theory gives: not by luck of one seed.
    #[test]
    fn has_the_standard_error_of_the_paper() {
        for things in [40_u64, 1_000, 10_000] {
            let runs = 200;
            let square: f64 =
                (0..runs).map(|seed| (counted(256, things, seed) as f64 / things as f64 - 1.0).powi(2)).sum();
            let error = (square / runs as f64).sqrt();
            assert!(error < 1.3 * 1.04 / 16.0, "{things}: {error}");
        }
    }

    proptest! {
        #[test]
        fn neither_order_nor_repetition_matters(mut hashes in proptest::collection::vec(any::<u64>(), 0..300)) {
            let count = |hashes: &[u64]| {
                let mut counter = HyperLogLog::with_registers(16);
                hashes.iter().for_each(|&hash| counter.insert(hash));
                counter.count()
            };
            let once = count(&hashes);
            hashes.reverse();
            hashes.extend_from_within(..);
            prop_assert_eq!(once, count(&hashes));
        }
    }
}
