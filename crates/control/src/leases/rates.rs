//! Bytes and bits per second, in an epoch; parts of a whole. All rounded down.
//!
//! Why: each is needed several times for each member, and a division of 128 bits costs more than all the rest. So the divisor is
//! inverted once.
//! Invariant: results are never above the exact ones.

use plimsoll_units::{NS_PER_SEC, Span};

/// A factor in 2^-40, at most 2^24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Factor(u64);

const FRACTION: u32 = 40;

impl Factor {
    /// `part / whole`; 0 of nothing.
    pub(super) fn new(part: u64, whole: u64) -> Self {
        let factor = (u128::from(part) << FRACTION).checked_div(u128::from(whole)).unwrap_or(0);
        Self(u64::try_from(factor).unwrap_or(u64::MAX))
    }

    /// The product with a value.
    #[inline]
    pub(super) fn of(self, value: u64) -> u64 {
        u64::try_from((u128::from(self.0) * u128::from(value)) >> FRACTION).unwrap_or(u64::MAX)
    }
}

/// An epoch's length, for conversions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elapsed {
    rate: Factor,
    bytes: Factor,
}

impl Elapsed {
    pub(super) fn new(span: Span) -> Self {
        let (span, bit_nanos) = (span.as_u64().max(1), 8 * NS_PER_SEC);
        Self { rate: Factor::new(bit_nanos, span), bytes: Factor::new(span, bit_nanos) }
    }

    /// Bits per second of so many bytes.
    #[inline]
    pub(super) fn rate_of(self, bytes: u64) -> u64 {
        self.rate.of(bytes)
    }

    /// Bytes of a rate.
    #[inline]
    pub(super) fn bytes_of(self, rate: u64) -> u64 {
        self.bytes.of(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_a_lease_is_so_many_bits_a_second() {
        let lease = Elapsed::new(Span::micros(100));
        assert_eq!(lease.rate_of(1_500), 120_000_000);
        let there_and_back = lease.bytes_of(120_000_000);
        assert!((1_499..=1_500).contains(&there_and_back), "{there_and_back}");
    }

    #[test]
    fn parts_are_never_too_large() {
        for (part, whole, value) in [(1, 3, 3), (7, 9, 1_000_000_007), (u64::MAX, 1, u64::MAX), (5, 0, 9)] {
            let exact = (u128::from(value) * u128::from(part)).checked_div(u128::from(whole)).unwrap_or(0);
            assert!(u128::from(Factor::new(part, whole).of(value)) <= exact);
        }
        assert_eq!(Factor::new(1, 2).of(10_000_000_000), 5_000_000_000);
    }
}
