//! The clock of one rate, exact to the bit.

use plimsoll_units::BitRate;

/// Everything charged is earned at `at / rate` nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    pub(super) at: u128,
    pub(super) rate: u128,
}

impl Clock {
    pub(super) fn new(rate: BitRate) -> Self {
        Self { at: 0, rate: rate.get().into() }
    }

    pub(super) fn earned(self) -> u64 {
        u64::try_from(self.at.div_ceil(self.rate)).expect("within the test's time")
    }

    pub(super) fn not_before(&mut self, now: u64) {
        self.at = self.at.max(u128::from(now) * self.rate);
    }

    pub(super) fn charge(&mut self, len: u64) {
        self.at += u128::from(len) * 8_000_000_000;
    }

    pub(super) fn change_rate(&mut self, rate: BitRate, now: u64) {
        let present = u128::from(now) * self.rate;
        let rate = u128::from(rate.get());
        self.at = if self.at > present {
            u128::from(now) * rate + (self.at - present)
        } else {
            self.at / self.rate * rate
        };
        self.rate = rate;
    }

    pub(super) fn refund(&mut self, len: u64) {
        self.at -= u128::from(len) * 8_000_000_000;
    }
}
