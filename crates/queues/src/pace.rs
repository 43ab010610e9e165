//! A rate clock: the moment by which everything charged so far has been earned, exact to the fraction.
//!
//! Why: shapers, guarantees and the link itself all ask "when may the next byte follow?".
//! From: the generic cell rate algorithm's theoretical arrival time; RFC 2697's committed bucket seen from the other side.
//! Not here: what waits for the clock.
//! Invariant: the clock has advanced by exactly bits / rate since it last stood at the present, fractions included.

use core::hint::select_unpredictable;

use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Nanos, Span};

/// When everything that was charged has been earned at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    at: u64,
    /// Bit-nanoseconds beyond `at`, less than `rate`.
    rest: u64,
    rate: u64,
    /// The time of the last length: frames of one length follow each other, and the division costs most.
    memo: Memo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memo {
    len: u32,
    ns: u32,
    /// What the time lacks of one nanosecond more, in bit-nanoseconds.
    lacks: u64,
}

impl Memo {
    /// No time for no bytes.
    fn empty(rate: u64) -> Self {
        Self { len: 0, ns: 0, lacks: rate }
    }
}

impl Pace {
    /// A clock that owes nothing.
    #[must_use]
    pub fn new(rate: BitRate) -> Self {
        Self { at: 0, rest: 0, rate: rate.get(), memo: Memo::empty(rate.get()) }
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> BitRate {
        BitRate::new(self.rate).expect("made from a rate")
    }

    /// The first whole nanosecond by which everything has been earned.
    #[inline]
    #[must_use]
    pub fn earned(&self) -> Nanos {
        Nanos::new(self.at.saturating_add(u64::from(self.rest > 0)))
    }

    /// Whether everything has been earned at `now`.
    #[inline]
    #[must_use]
    pub fn is_earned(&self, now: Nanos) -> bool {
        self.at < now.as_u64() || self.at == now.as_u64() && self.rest == 0
    }

    /// Forgets credit that was saved up before `now`.
    #[inline]
    pub fn catch_up(&mut self, now: Nanos) {
        // Whether there is any cannot be predicted, so there is no branch.
        let behind = self.at < now.as_u64();
        self.at = select_unpredictable(behind, now.as_u64(), self.at);
        self.rest = select_unpredictable(behind, 0, self.rest);
    }

    /// Charges `len`, at most 2^30 bytes.
    #[inline]
    pub fn charge(&mut self, len: Bytes) {
        if u64::from(self.memo.len) != len.as_u64() {
            self.learn(len);
        }
        if u64::from(self.memo.len) != len.as_u64() {
            return self.charge_slowly(len);
        }
        // A sum that does not reach a nanosecond is short of it by less than the rate.
        let (beyond, short) = self.rest.overflowing_sub(self.memo.lacks);
        // Whether it does cannot be predicted, so there is no branch.
        self.rest = beyond.wrapping_add(self.rate & u64::from(short).wrapping_neg());
        self.at = self.at.saturating_add(u64::from(self.memo.ns) + u64::from(!short));
    }

    /// Takes back a charge of `len` that was made since the clock last stood at the present.
    pub fn refund(&mut self, len: Bytes) {
        let bit_nanos = len.as_u64() * 8 * NS_PER_SEC;
        let (ns, rest) = (bit_nanos / self.rate, bit_nanos % self.rate);
        let borrow = self.rest < rest;
        self.rest = if borrow { self.rest + (self.rate - rest) } else { self.rest - rest };
        self.at = self.at.saturating_sub(ns + u64::from(borrow));
    }

    /// Divides once for many charges of the same length. Lengths that take seconds are not remembered.
    fn learn(&mut self, len: Bytes) {
        let bit_nanos = len.as_u64() * 8 * NS_PER_SEC;
        let (Ok(short), Ok(ns)) = (u32::try_from(len.as_u64()), u32::try_from(bit_nanos / self.rate)) else {
            return;
        };
        self.memo = Memo { len: short, ns, lacks: self.rate - bit_nanos % self.rate };
    }

    #[cold]
    fn charge_slowly(&mut self, len: Bytes) {
        let bit_nanos = (len.as_u64() * 8 * NS_PER_SEC).saturating_add(self.rest);
        self.at = self.at.saturating_add(bit_nanos / self.rate);
        self.rest = bit_nanos % self.rate;
    }

    /// Goes on at another rate from `now`: what is still owed is earned at the new one.
    pub fn change_rate(&mut self, rate: BitRate, now: Nanos) {
        let owed = u128::from(self.at.saturating_sub(now.as_u64())) * u128::from(self.rate)
            + u128::from(if self.at >= now.as_u64() { self.rest } else { 0 });
        (self.rate, self.memo) = (rate.get(), Memo::empty(rate.get()));
        if owed > 0 {
            let wait = owed / u128::from(self.rate);
            self.at = now.as_u64().saturating_add(u64::try_from(wait).unwrap_or(u64::MAX));
            self.rest = u64::try_from(owed % u128::from(self.rate)).unwrap_or(0);
        } else {
            self.rest = 0;
        }
    }

    /// How long this rate takes for `len`, rounded up.
    #[inline]
    #[must_use]
    pub fn wire_time(&self, len: Bytes) -> Span {
        if u64::from(self.memo.len) == len.as_u64() {
            return Span::ns(u64::from(self.memo.ns) + u64::from(self.memo.lacks < self.rate));
        }
        self.rate().wire_time(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_a_nanosecond_is_not_lost() {
        let mut pace = Pace::new(BitRate::gbps(24)); // one byte takes a third of a nanosecond
        for _ in 0..3_000 {
            pace.charge(Bytes::new(1));
        }
        assert_eq!(pace.earned(), Nanos::new(1_000));
    }

    #[test]
    fn a_new_rate_takes_over_what_is_owed() {
        let mut pace = Pace::new(BitRate::mbps(1));
        pace.charge(Bytes::new(1_500)); // 12 ms at 1 Mb/s
        pace.change_rate(BitRate::mbps(12), Nanos::ZERO);
        assert_eq!(pace.earned(), Nanos::new(1_000_000));
    }

    proptest::proptest! {
        /// A charge that is taken back leaves the clock where it was, to the fraction.
        #[test]
        fn a_refund_undoes_a_charge(
            rate in 1_u64..500_000_000_000,
            lens in proptest::collection::vec(1_u64..70_000, 1..50),
            undone in 1_u64..70_000,
        ) {
            let mut pace = Pace::new(BitRate::new(rate).expect("above zero"));
            lens.iter().for_each(|&len| pace.charge(Bytes::new(len)));
            let (at, rest) = (pace.at, pace.rest);
            pace.charge(Bytes::new(undone));
            pace.refund(Bytes::new(undone));
            proptest::prop_assert_eq!((pace.at, pace.rest), (at, rest));
        }

        /// The clock never runs ahead of the rate, nor behind it by a nanosecond.
        #[test]
        fn advances_by_exactly_bits_over_rate(
            rate in 1_u64..500_000_000_000,
            lens in proptest::collection::vec(1_u64..70_000, 1..200),
        ) {
            let mut pace = Pace::new(BitRate::new(rate).expect("above zero"));
            lens.iter().for_each(|&len| pace.charge(Bytes::new(len)));
            let bits = u128::from(lens.iter().sum::<u64>()) * 8;
            let exact = (bits * u128::from(NS_PER_SEC)).div_ceil(u128::from(rate));
            proptest::prop_assert_eq!(u128::from(pace.earned().as_u64()), exact);
        }
    }
}
