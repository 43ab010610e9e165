//! A meter: holds one flow to a rate at its source for as long as its installer asks.
//!
//! Why: a sender that ignores marks, or cannot see them, must be slowed down as well.
//! From: MIMIC §III-C (a meter with a band in the source's NIC); RFC 2697's committed bucket. Burst and lifetime are ours.
//! Not here: which flows have a meter (`meters`), and what happens to excess packets.
//! Invariant: conforming bytes in any window <= burst + rate x time; past its lifetime everything conforms.

use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Nanos, Span};

/// What a meter says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet keeps to the rate, or no meter applies.
    Conforming,
    /// The packet exceeds the rate. It was not charged.
    Excess,
}

/// A token bucket that lapses.
///
/// The bucket is full when made, so that a flow at its rate loses nothing at first, and a faster one sends at most a burst too
/// much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    pace: Pace,
    burst: Bytes,
    /// How far ahead of its rate a burst may be.
    ahead: Span,
    until: Nanos,
}

impl Meter {
    /// The smallest burst, 66 KiB: a bucket must hold the longest frame, 64 KiB of segments that are still to be cut and their
    /// headers.
    pub const LEAST_BURST: Bytes = Bytes::kib(66);

    /// A full bucket, until `until`. A burst below [`Meter::LEAST_BURST`] counts as that.
    #[must_use]
    pub fn new(rate: BitRate, burst: Bytes, until: Nanos) -> Self {
        let burst = burst.max(Self::LEAST_BURST);
        Self { pace: Pace::new(rate), burst, ahead: time_of(burst, rate), until }
    }

    /// Holds the flow to `rate` from now on, until `until`. What the bucket lacks stays lacking.
    pub fn refresh(&mut self, rate: BitRate, until: Nanos, now: Nanos) {
        if rate != self.rate() {
            self.pace.change_rate(rate, now);
            self.ahead = time_of(self.burst, rate);
        }
        self.until = until;
    }

    /// Judges a packet of `len` bytes, below 2^30, and charges it if it conforms. A packet longer than the burst conforms when
    /// the bucket is full. Constant time.
    #[inline]
    pub fn judge(&mut self, len: u32, now: Nanos) -> Verdict {
        if self.has_lapsed(now) {
            return Verdict::Conforming;
        }
        let (pace, counted) = self.with(len, now);
        if pace.earned() > now + self.ahead {
            return Verdict::Excess;
        }
        self.pace = pace;
        // What a long frame takes beyond the bucket is owed as well.
        let beyond = u64::from(len) - counted.as_u64();
        if beyond > 0 {
            self.pace.charge(Bytes::new(beyond));
        }
        Verdict::Conforming
    }

    /// When a packet of `len` bytes, below 2^30, will conform if none comes before it; `now` if it does already.
    #[must_use]
    pub fn ready_at(&self, len: u32, now: Nanos) -> Nanos {
        let earned = self.with(len, now).0.earned();
        Nanos::new(earned.as_u64().saturating_sub(self.ahead.as_u64())).max(now).min(self.until)
    }

    /// The clock once what was sent and `len` bytes more are charged, as far as the bucket can hold those, and how many that are.
    #[inline]
    fn with(&self, len: u32, now: Nanos) -> (Pace, Bytes) {
        let mut pace = self.pace;
        pace.catch_up(now);
        // A little less than the bucket, as `ahead` is rounded down.
        let counted = Bytes::new(len.into()).min(self.burst - Bytes::new(64));
        pace.charge(counted);
        (pace, counted)
    }

    /// Whether its lifetime is over.
    #[must_use]
    pub fn has_lapsed(&self, now: Nanos) -> bool {
        now >= self.until
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> BitRate {
        self.pace.rate()
    }

    /// The end of its lifetime, if it is not refreshed.
    #[must_use]
    pub const fn until(&self) -> Nanos {
        self.until
    }
}

/// How long `rate` takes for `len`, rounded down, so that never more than `len` is ahead.
fn time_of(len: Bytes, rate: BitRate) -> Span {
    let bit_nanos = u128::from(len.as_u64()) * 8 * u128::from(NS_PER_SEC);
    Span::ns(u64::try_from(bit_nanos / u128::from(rate.get())).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LATER: Nanos = Nanos::new(3_000_000_000);

    /// A flow at 2 Gb/s through 850 Mb/s: in its first 10 ms the rate and one burst pass, and nothing is lost before that.
    #[test]
    fn a_full_bucket_has_no_warm_up() {
        let mut meter = Meter::new(BitRate::mbps(850), Bytes::kib(128), LATER);
        let verdicts: Vec<_> = (0..1_666_u64).map(|n| meter.judge(1_500, Nanos::new(n * 6_000))).collect();
        let conforming = verdicts.iter().filter(|&&verdict| verdict == Verdict::Conforming).count();
        assert_eq!(conforming, 795, "(1,062,500 x 0.9996 + 131,072) / 1,500");
        let first = verdicts.iter().position(|&verdict| verdict == Verdict::Excess);
        assert_eq!(first, Some(151), "131,072 bytes at 1.15 Gb/s too much last 0.91 ms");
    }

    #[test]
    fn a_flow_at_its_rate_loses_nothing() {
        let mut meter = Meter::new(BitRate::mbps(12), Bytes::ZERO, LATER);
        assert!((0..2_999).all(|ms| meter.judge(1_500, Nanos::new(ms * 1_000_000)) == Verdict::Conforming));
    }

    #[test]
    fn all_conforms_once_it_has_lapsed() {
        let mut meter = Meter::new(BitRate::mbps(1), Bytes::ZERO, LATER);
        assert_eq!(meter.judge(60_000, Nanos::ZERO), Verdict::Conforming);
        assert_eq!(meter.judge(60_000, Nanos::ZERO), Verdict::Excess);
        assert_eq!(meter.judge(60_000, LATER), Verdict::Conforming);
        assert_eq!(meter.judge(60_000, LATER), Verdict::Conforming);
    }

    proptest! {
        /// A packet conforms at the moment that is named for it, and not a moment earlier.
        #[test]
        fn a_packet_conforms_when_it_is_said_to(
            packets in proptest::collection::vec((1_u32..70_000, 0_u64..2_000_000), 1..60),
            mbps in 1_u64..10_000,
        ) {
            let mut meter = Meter::new(BitRate::mbps(mbps), Bytes::kib(66), LATER);
            let mut now = Nanos::ZERO;
            for (len, after) in packets {
                now += Span::ns(after);
                let ready = meter.ready_at(len, now);
                if ready > now {
                    let mut early = meter;
                    prop_assert_eq!(early.judge(len, Nanos::new(ready.as_u64() - 1)), Verdict::Excess);
                }
                prop_assert_eq!(meter.judge(len, ready), Verdict::Conforming);
                now = ready;
            }
        }

        /// Conforming bytes between any two packets <= burst + rate x time, refreshed or not.
        #[test]
        fn never_exceeds_burst_and_rate(
            rate in 1_u64..100_000_000_000,
            packets in proptest::collection::vec((0_u64..2_000_000, 0_u32..67_000, any::<bool>()), 1..100),
        ) {
            let rate = BitRate::new(rate).expect("some");
            let mut meter = Meter::new(rate, Bytes::ZERO, LATER);
            let (mut now, mut passed) = (Nanos::ZERO, Vec::new());
            for (gap, len, refresh) in packets {
                now += Span::ns(gap);
                if refresh {
                    meter.refresh(rate, LATER, now);
                }
                if meter.judge(len, now) == Verdict::Conforming {
                    passed.push((now, u128::from(len)));
                }
            }
            for (at, &(began, _)) in passed.iter().enumerate() {
                let mut bytes = 0;
                for &(ended, len) in &passed[at..] {
                    bytes += len;
                    let bit_nanos = u128::from(rate.get()) * u128::from(ended.since(began).as_u64());
                    let burst = u128::from(Meter::LEAST_BURST.as_u64());
                    prop_assert!((bytes - burst.min(bytes)) * 8_000_000_000 <= bit_nanos);
                }
            }
        }
    }
}
