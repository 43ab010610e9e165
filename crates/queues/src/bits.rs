//! A set of small integers that finds its next member in constant time.
//!
//! Why: calendars and priorities ask "which is the next occupied place?" for every packet.
//! From: find-first-set hierarchies, as in Eiffel's cFFS (NSDI 2019).
//! Invariant: a bit of an upper level is set exactly when its word below is not zero.

/// A set of integers below a fixed bound of at most 2^24.
#[derive(Clone, Debug)]
pub struct Bits {
    levels: [Vec<u64>; 4],
}

impl Bits {
    /// An empty set for integers below `bound`.
    #[must_use]
    pub fn new(bound: usize) -> Self {
        assert!(bound <= 1 << 24, "a set of at most 2^24 integers");
        let words = |bits: usize| vec![0; bits.div_ceil(64).max(1)];
        let l0 = words(bound);
        let l1 = words(l0.len());
        let l2 = words(l1.len());
        let l3 = words(l2.len());
        Self { levels: [l0, l1, l2, l3] }
    }

    /// Puts `n` into the set.
    #[inline]
    pub fn insert(&mut self, n: usize) {
        let mut at = n;
        for level in &mut self.levels {
            let word = &mut level[at >> 6];
            let was = *word;
            *word |= 1 << (at & 63);
            if was != 0 {
                return;
            }
            at >>= 6;
        }
    }

    /// Takes `n` out of the set.
    #[inline]
    pub fn remove(&mut self, n: usize) {
        let mut at = n;
        for level in &mut self.levels {
            let word = &mut level[at >> 6];
            *word &= !(1 << (at & 63));
            if *word != 0 {
                return;
            }
            at >>= 6;
        }
    }

    /// Whether `n` is in the set.
    #[must_use]
    pub fn contains(&self, n: usize) -> bool {
        self.levels[0].get(n >> 6).is_some_and(|word| word >> (n & 63) & 1 == 1)
    }

    /// The least member.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        match self.levels[0][0] {
            0 => self.next(64),
            word => Some(word.trailing_zeros() as usize),
        }
    }

    /// The least member that is not below `from`.
    #[inline]
    #[must_use]
    pub fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(at >> 6)? & (u64::MAX << (at & 63));
            if word != 0 {
                return Some(self.descend(height, (at & !63) + word.trailing_zeros() as usize));
            }
            at = (at >> 6) + 1;
        }
        None
    }

    /// The least member below the bit `at` of level `height`.
    #[inline]
    fn descend(&self, height: usize, mut at: usize) -> usize {
        for level in self.levels[..height].iter().rev() {
            at = (at << 6) + level[at].trailing_zeros() as usize;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::Bits;
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// Any sequence of operations agrees with an ordered set.
        #[test]
        fn agrees_with_an_ordered_set(ops in proptest::collection::vec((0_usize..300_000, 0..3_u8), 1..300)) {
            let mut bits = Bits::new(300_000);
            let mut oracle = BTreeSet::new();
            for (n, op) in ops {
                match op {
                    0 => { bits.insert(n); oracle.insert(n); }
                    1 => { bits.remove(n); oracle.remove(&n); }
                    _ => {}
                }
                proptest::prop_assert_eq!(bits.next(n), oracle.range(n..).next().copied());
                proptest::prop_assert_eq!(bits.first(), oracle.first().copied());
                proptest::prop_assert_eq!(bits.contains(n), oracle.contains(&n));
            }
        }
    }
}
