//! How often to mark a flow's packets so that its congestion control settles at a target rate.
//!
//! Why: a mark on each packet stops a flow, and no marks leave it as it is.
//! From: MIMIC §V-A, which gives 1/2000 and 1/5000; the formula is the response of TCP to one loss in each K packets (Mathis
//! et al. 1997): W = √(3K/2) packets, rate = W·MSS/RTT.
//! Not here: which packets are marked, and measuring round-trip times.
//! Invariant: an interval is at least 1; arithmetic saturates.

use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Span};

/// One packet of how many is to be marked for a flow to settle at `target`: K = (2/3)·(target·RTT/MSS)², rounded down, at least 1
/// (MIMIC §V-A).
///
/// `mss` is a packet's size as `target` counts it. A zero `mss` counts as one byte.
///
/// ```
/// use plimsoll_control::backpressure::marking_interval;
/// use plimsoll_units::{BitRate, Bytes, Span};
///
/// let interval = marking_interval(BitRate::mbps(850), Span::micros(770), Bytes::new(1_500));
/// assert_eq!(interval, 1_983, "MIMIC marks one packet of 2,000");
/// ```
#[must_use]
pub fn marking_interval(target: BitRate, rtt: Span, mss: Bytes) -> u32 {
    let bit_nanos = u128::from(target.get()) * u128::from(rtt.as_u64());
    let of_one = u128::from(mss.as_u64().max(1)) * 8 * u128::from(NS_PER_SEC);
    let whole = (bit_nanos / of_one).min(u32::MAX.into());
    let window = whole * FRACTION + bit_nanos % of_one * FRACTION / of_one;
    narrow(2 * window * window / (3 * FRACTION * FRACTION))
}

/// The mean window, in thousandths of a packet and rounded down, of a flow of which one packet in `interval` is marked:
/// W = √(3K/2).
#[must_use]
pub fn marking_window(interval: u32) -> u64 {
    (u64::from(interval) * 1_500_000).isqrt()
}

/// The rate at which a flow settles when one packet in `interval` is marked: W·MSS/RTT, rounded down. At least 1 bit per second;
/// the highest rate there is where `rtt` is zero.
#[must_use]
pub fn marked_rate(interval: u32, rtt: Span, mss: Bytes) -> BitRate {
    let bits = u128::from(marking_window(interval)) * u128::from(mss.bits());
    let rate = (bits * u128::from(NS_PER_SEC / 1_000)).checked_div(u128::from(rtt.as_u64()));
    let rate = rate.map_or(u64::MAX, |rate| u64::try_from(rate).unwrap_or(u64::MAX));
    BitRate::new(rate.max(1)).expect("at least 1")
}

/// The next interval for a flow that sent `bits` per second while one packet in `interval` was marked: K·(target/rate)², but at
/// most four times and at least a quarter of `interval`.
///
/// A rate from three quarters of the target up to it changes nothing: congestion control moves in such steps by itself.
#[must_use]
pub fn trimmed(interval: u32, target: BitRate, bits: u64) -> u32 {
    if bits <= target.get() && u128::from(bits) * 4 >= u128::from(target.get()) * 3 {
        return interval;
    }
    scaled(interval, target, bits).clamp(interval / MOST_STEP, interval.saturating_mul(MOST_STEP)).max(1)
}

/// The interval for `target` where `interval` gives `bits` per second: K·(target/bits)², rounded down, at least 1.
pub(super) fn scaled(interval: u32, target: BitRate, bits: u64) -> u32 {
    let ratio = (u128::from(target.get()) * FRACTION).checked_div(bits.into()).unwrap_or(u128::MAX);
    let ratio = ratio.min(FRACTION * FRACTION);
    narrow(u128::from(interval) * ratio * ratio / (FRACTION * FRACTION))
}

fn narrow(interval: u128) -> u32 {
    u32::try_from(interval).unwrap_or(u32::MAX).max(1)
}

/// Parts of a packet, and of a ratio, in which is computed.
const FRACTION: u128 = 1 << 16;
/// By how much an interval changes at most in one step.
const MOST_STEP: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TARGET: BitRate = BitRate::mbps(850);
    const RTT: Span = Span::micros(770);

    /// G11. 2,000 is what packets of 1,500 bytes give; 1,460 and 1,448 are the payloads of such packets.
    #[test]
    fn the_papers_rate_and_interval_agree() {
        let interval = |mss| marking_interval(TARGET, RTT, Bytes::new(mss));
        assert_eq!([interval(1_500), interval(1_460), interval(1_448)], [1_983, 2_093, 2_128]);
    }

    /// G11.
    #[test]
    fn windows_are_54_8_and_86_6_packets() {
        assert_eq!([marking_window(2_000), marking_window(5_000)], [54_772, 86_602]);
        let [dense, loose] = [2_000, 5_000].map(|k| marked_rate(k, RTT, Bytes::new(1_500)).get());
        assert_eq!([dense / 1_000_000, loose / 1_000_000], [853, 1_349]);
        assert_eq!(loose * 100 / dense, 158, "1.58 times the rate");
    }

    #[test]
    fn extremes_saturate() {
        let most = BitRate::new(u64::MAX).expect("some");
        assert_eq!(marking_interval(most, Span::ns(u64::MAX), Bytes::ZERO), u32::MAX);
        assert_eq!(marking_interval(most, Span::ZERO, Bytes::new(1_500)), 1);
        assert_eq!(marked_rate(u32::MAX, Span::ZERO, Bytes::new(1_500)), most);
        assert_eq!(marked_rate(0, RTT, Bytes::ZERO).get(), 1);
    }

    #[test]
    fn trims_by_the_square_of_the_error_and_at_most_fourfold() {
        let trim = |percent: u64| trimmed(2_000, TARGET, 8_500_000 * percent);
        let near = |interval: u32, want: u32| assert!(interval.abs_diff(want) <= 1, "{interval} for {want}");
        near(trim(125), 1_280);
        near(trim(300), 500);
        assert_eq!([trim(100), trim(75)], [2_000; 2]);
        near(trim(62), 5_202);
        assert_eq!([trim(10), trim(0)], [8_000; 2]);
        assert_eq!([trimmed(1, TARGET, u64::MAX), trimmed(u32::MAX, TARGET, 0)], [1, u32::MAX]);
    }

    proptest! {
        /// The interval and the rate are each other's inverse, but for rounding.
        #[test]
        fn the_rate_of_an_interval_is_the_target(
            target in 100_000_000_u64..100_000_000_000, rtt in 200_000_u64..100_000_000, mss in 536_u64..1_500,
        ) {
            let (rtt, mss) = (Span::ns(rtt), Bytes::new(mss));
            let interval = marking_interval(BitRate::new(target).expect("some"), rtt, mss);
            prop_assume!(interval > 1 && interval < u32::MAX);
            let rate = marked_rate(interval, rtt, mss).get();
            let low = marked_rate(interval - 1, rtt, mss).get();
            prop_assert!(low <= target && u128::from(rate) <= u128::from(target) * 1_001 / 1_000, "{low} {rate}");
        }
    }
}
