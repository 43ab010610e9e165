//! What a tenant's vNIC is promised, and what follows from that for queues, thresholds and bursts.
//!
//! Why: an operator states what a tenant shall get; how long a queue may then be is arithmetic, and ours to do.
//! From: PicNIC §4 and Table 2 (envelope in both directions, delay by percentiles), §5.1 (a weight from the envelope).
//! Not here: whether the link can hold it (`check`), keeping and judging it (`nic`, `daemon`).
//! Invariant: integers only; every rounding makes queues, bursts and thresholds smaller, down to what traffic needs to
//! flow at all.
//!
//! # Derivation
//!
//! A packet's delay is its sender's way out and its receiver's way in, so each way has half of a target.
//!
//! - *Burst* of a `max` that states none: what `max` carries in the way out's half of the widest target, at most what it
//!   carries in a millisecond, and two largest frames at least.
//! - *Queue on the way in*: the frames that the tenant's part of a core delivers in the way in's half of the widest
//!   target, at [`FRAME_COST`] each; [`LEAST_SLOTS`] to [`MOST_SLOTS`].
//! - *Ceiling* on the way in, for senders that obey nothing: what is delivered of what comes is `max` and [`CEILING_SLACK`]
//!   parts of a hundred, and a burst of what that carries in [`CEILING_BURST`], two largest segments at least. A
//!   sender that a limit or control shapes to `max` must never wait for it: clocks differ, and control needs
//!   some epochs.
//! - *Threshold* above which control presses senders back: it holds the mean near the threshold, and the tail below one
//!   and a half of it (PicNIC §6.1.2, Figure 10). So of each target's half: ten elevenths up to the median, two thirds
//!   beyond; the least of them, and [`LEAST_THRESHOLD`] at least, below which goodput suffers (Figure 11).

use core::fmt;
use core::str::FromStr;

use plimsoll_units::{BitRate, Bytes, Span};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

/// CPU time that delivering a received frame is taken to cost.
pub const FRAME_COST: Span = Span::ns(500);
/// Frames that may wait for a tenant on the way in without a target.
pub const DEFAULT_SLOTS: u32 = 256;
/// The fewest frames that may wait with a target: two batches from the uplink, so that none is lost while the core keeps up.
pub const LEAST_SLOTS: u32 = 64;
/// The most frames that may wait with a target: memory is fixed by configuration.
pub const MOST_SLOTS: u32 = 1_024;
/// Parts of a hundred by which what comes may exceed what a tenant may receive before it waits.
pub const CEILING_SLACK: u64 = 5;
/// How long the burst of a ceiling may last.
pub const CEILING_BURST: Span = Span::millis(50);
/// The least burst of a ceiling: two segments as long as segments get.
const LEAST_CEILING_BURST: Bytes = Bytes::new(131_072);
/// The least delay above which control presses senders back.
pub const LEAST_THRESHOLD: Span = Span::micros(5);

/// A tenant's promises, and the figures derived from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Slo {
    /// Its envelope for sending.
    pub egress: Envelope,
    /// Its envelope for receiving: that for sending, unless stated.
    pub ingress: Envelope,
    /// Its weight among the policy's tenants: for its part of a core on the way in, and of what receivers allow.
    pub weight: u32,
    /// The longest delays, the least percentile first; empty without a target.
    pub delay: Vec<DelayTarget>,
    /// The part of the widest target that each direction has; none without a target.
    pub each_way: Option<Span>,
    /// Frames that may wait for it on the way in.
    pub slots: u32,
    /// The rate at which frames for it are admitted, where it has a `max`; the rest waits until it may have it.
    pub ceiling: Option<Ceiling>,
    /// Delay on the way in above which its senders are pressed back, where control does that.
    pub threshold: Option<Span>,
}

/// The range of rates that a tenant is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Envelope {
    /// The rate that it gets whenever it wants it.
    pub min: Option<BitRate>,
    /// The rate that it never exceeds.
    pub max: Option<BitRate>,
}

/// The rate at which received frames are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ceiling {
    /// The rate in the long run, by the bytes of whole frames.
    pub rate: BitRate,
    /// Bytes that are admitted at once after a pause.
    pub burst: Bytes,
}

/// A bound on the delay of a percentage of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DelayTarget {
    /// The percentage.
    #[schemars(with = "String")]
    pub percentile: Percentile,
    /// Their longest delay.
    pub most: Span,
}

/// A part of all packets, written `p99` or `p99.9`.
///
/// ```
/// use plimsoll_policy::Percentile;
///
/// let tail: Percentile = "p99.9".parse().expect("a percentile");
/// assert!(tail > "p50".parse().expect("another"));
/// assert_eq!((tail.to_string(), tail.fraction()), ("p99.9".to_owned(), 0.999));
/// assert!("p100".parse::<Percentile>().is_err() && "99".parse::<Percentile>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percentile(u32);

/// A text that is no percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a percentile such as `p50`, `p99` or `p99.9`")]
pub struct PercentileError;

impl Default for Slo {
    /// Nothing promised.
    fn default() -> Self {
        let (egress, ingress) = (Envelope::default(), Envelope::default());
        let (each_way, threshold, slots) = (None, None, DEFAULT_SLOTS);
        Self { egress, ingress, weight: 1, delay: Vec::new(), each_way, slots, ceiling: None, threshold }
    }
}

impl Slo {
    /// For a tenant with this much of the weights of all tenants together.
    pub(crate) fn new(
        egress: Envelope,
        ingress: Envelope,
        delay: Vec<DelayTarget>,
        weight: u32,
        weights: u64,
    ) -> Self {
        let each_way = each_way(&delay);
        let slots = each_way.map_or(DEFAULT_SLOTS, |budget| slots(budget, weight, weights));
        let threshold = delay.iter().map(threshold).min();
        let ceiling = ingress.max.map(Ceiling::above);
        Self { egress, ingress, weight, delay, each_way, slots, ceiling, threshold }
    }

    /// The target of the highest percentile, which is the widest.
    #[must_use]
    pub fn tail(&self) -> Option<DelayTarget> {
        self.delay.last().copied()
    }

    /// The longest wait on the way in of a frame that the queue takes; `weights` is the sum over all tenants that may have
    /// frames waiting.
    #[must_use]
    pub fn worst_on_the_way_in(&self, weights: u64) -> Span {
        let cost = u128::from(FRAME_COST.as_u64()) * u128::from(self.slots) * u128::from(weights);
        let span = cost.div_ceil(u128::from(self.weight.max(1)));
        Span::ns(u64::try_from(span).unwrap_or(u64::MAX))
    }
}

impl Ceiling {
    /// The ceiling of a tenant with this `max` for receiving.
    fn above(max: BitRate) -> Self {
        let slack = u128::from(max.get()) * u128::from(CEILING_SLACK) / 100;
        let rate = max.get().saturating_add(u64::try_from(slack).unwrap_or(u64::MAX));
        let rate = BitRate::new(rate).unwrap_or(max);
        Self { rate, burst: rate.bytes_in(CEILING_BURST).max(LEAST_CEILING_BURST) }
    }
}

impl DelayTarget {
    /// The part of the target that each direction has.
    #[must_use]
    pub fn half(&self) -> Span {
        Span::ns(self.most.as_u64() / 2)
    }
}

/// Half of the widest target.
pub(crate) fn each_way(delay: &[DelayTarget]) -> Option<Span> {
    delay.last().map(DelayTarget::half)
}

/// Burst of a `max` that states none, for a tenant with a target.
pub(crate) fn burst(max: BitRate, each_way: Span, frame: Bytes) -> Bytes {
    frame.times(2).max(max.bytes_in(each_way.min(Span::millis(1))))
}

fn slots(budget: Span, weight: u32, weights: u64) -> u32 {
    let work = u128::from(budget.as_u64()) * u128::from(weight);
    let frames = work / (u128::from(weights.max(1)) * u128::from(FRAME_COST.as_u64()));
    u32::try_from(frames).unwrap_or(u32::MAX).clamp(LEAST_SLOTS, MOST_SLOTS)
}

fn threshold(target: &DelayTarget) -> Span {
    let budget = target.half().as_u64();
    let kept = if target.percentile <= Percentile::MEDIAN { budget / 11 * 10 } else { budget / 3 * 2 };
    Span::ns(kept).max(LEAST_THRESHOLD)
}

/// Tenants' weights from what each may have at most, in the least whole numbers that are no more than `most`.
pub(crate) fn weights_of(maxima: &[BitRate], most: u32) -> Vec<u32> {
    let common = maxima.iter().fold(0, |common, max| gcd(common, max.get())).max(1);
    let greatest = maxima.iter().map(|max| max.get() / common).max().unwrap_or(1);
    let scaled = |max: &BitRate| {
        let weight = u128::from(max.get() / common);
        let weight = if greatest > u64::from(most) {
            weight * u128::from(most) / u128::from(greatest)
        } else {
            weight
        };
        u32::try_from(weight).unwrap_or(most).max(1)
    };
    maxima.iter().map(scaled).collect()
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Percentile {
    /// Half of the packets.
    pub const MEDIAN: Self = Self(50_000);
    const WHOLE: u32 = 100_000;

    /// The percentile as a fraction of 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }

    /// Packets of `count` that may take longer.
    #[must_use]
    pub fn rest_of(self, packets: u64) -> u64 {
        let rest = u128::from(packets) * u128::from(Self::WHOLE - self.0) / u128::from(Self::WHOLE);
        u64::try_from(rest).unwrap_or(u64::MAX)
    }
}

impl FromStr for Percentile {
    type Err = PercentileError;

    fn from_str(text: &str) -> Result<Self, PercentileError> {
        let number = text.strip_prefix('p').ok_or(PercentileError)?;
        let (whole, parts) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most| {
            (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(whole, 2) || !digits(parts, 3) {
            return Err(PercentileError);
        }
        let number = |text: &str| text.parse::<u32>().map_err(|_| PercentileError);
        let found = number(whole)? * 1_000 + number(&format!("{parts:0<3}"))?;
        if found == 0 { Err(PercentileError) } else { Ok(Self(found)) }
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, parts) = (self.0 / 1_000, format!("{:03}", self.0 % 1_000));
        match parts.trim_end_matches('0') {
            "" => write!(f, "p{whole}"),
            parts => write!(f, "p{whole}.{parts}"),
        }
    }
}

impl Serialize for Percentile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for DelayTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.percentile, self.most)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn targets(list: &[(&str, u64)]) -> Vec<DelayTarget> {
        let target = |&(name, micros): &(&str, u64)| DelayTarget {
            percentile: name.parse().expect("a percentile"),
            most: Span::micros(micros),
        };
        list.iter().map(target).collect()
    }

    fn slo(list: &[(&str, u64)], weight: u32, weights: u64) -> Slo {
        Slo::new(Envelope::default(), Envelope::default(), targets(list), weight, weights)
    }

    /// Half of 200 us at 500 ns a frame are 200 frames for the whole core, and 100 for half of it.
    #[test]
    fn a_queue_holds_what_is_delivered_in_time() {
        assert_eq!((slo(&[("p99", 200)], 1, 1).slots, slo(&[("p99", 200)], 1, 2).slots), (200, 100));
        assert_eq!(slo(&[], 1, 2).slots, DEFAULT_SLOTS);
        assert_eq!((slo(&[("p99", 10)], 1, 2).slots, slo(&[("p99", 9_000)], 1, 2).slots), (64, 1_024));
        assert_eq!(slo(&[("p99", 200)], 1, 2).worst_on_the_way_in(2), Span::micros(100));
    }

    #[test]
    fn the_strictest_target_sets_the_threshold_and_the_widest_the_queue() {
        let both = slo(&[("p50", 44), ("p99", 120)], 1, 1);
        assert_eq!((both.threshold, both.each_way), (Some(Span::micros(20)), Some(Span::micros(60))));
        assert_eq!(slo(&[("p99", 60)], 1, 1).threshold, Some(Span::micros(20)));
        assert_eq!(slo(&[("p99", 1)], 1, 1).threshold, Some(LEAST_THRESHOLD));
        assert_eq!(slo(&[], 1, 1).threshold, None);
    }

    #[test]
    fn a_burst_is_what_the_way_outs_half_carries() {
        let frame = Bytes::new(1_518);
        // 8 Gb/s are a byte each nanosecond.
        assert_eq!(burst(BitRate::gbps(8), Span::micros(50), frame), Bytes::new(50_000));
        assert_eq!(burst(BitRate::mbps(8), Span::micros(50), frame), Bytes::new(3_036));
        assert_eq!(burst(BitRate::gbps(8), Span::millis(20), frame), Bytes::new(1_000_000));
    }

    #[test]
    fn weights_are_the_least_numbers_in_the_maximas_ratio() {
        let gbps = |list: &[u64]| list.iter().map(|&n| BitRate::gbps(n)).collect::<Vec<_>>();
        assert_eq!(weights_of(&gbps(&[8, 4, 2]), 65_535), [4, 2, 1]);
        assert_eq!(weights_of(&gbps(&[12, 12]), 65_535), [1, 1]);
        let odd = [BitRate::gbps(100), BitRate::new(1_000_003).expect("above zero")];
        assert_eq!(weights_of(&odd, 65_535), [65_535, 1]);
    }

    #[test]
    fn of_a_thousand_packets_ten_are_beyond_the_ninety_ninth_percentile() {
        let percentile = |text: &str| text.parse::<Percentile>().expect("a percentile");
        assert_eq!(percentile("p99").rest_of(1_000), 10);
        assert_eq!(percentile("p99.9").rest_of(999), 0);
        for bad in ["p", "p0", "p100", "p99.", "p99.9999", "p-1", "P99", "p9 9"] {
            assert!(bad.parse::<Percentile>().is_err(), "{bad}");
        }
    }

    proptest! {
        /// A wider target, or a larger part of the core, never makes a queue or a threshold smaller; and what a queue
        /// takes is delivered in the way in's half, unless the queue is as short as queues get.
        #[test]
        fn more_time_never_means_less(micros in 1_u64..20_000, more in 0_u64..20_000, weight in 1_u32..100, other in 0_u64..1_000) {
            let weights = u64::from(weight) + other;
            let (narrow, wide) = (slo(&[("p99", micros)], weight, weights), slo(&[("p99", micros + more)], weight, weights));
            prop_assert!(narrow.slots <= wide.slots && narrow.threshold <= wide.threshold);
            prop_assert!((LEAST_SLOTS..=MOST_SLOTS).contains(&wide.slots));
            if wide.slots > LEAST_SLOTS {
                prop_assert!(wide.worst_on_the_way_in(weights) <= wide.each_way.expect("a target"));
            }
        }
    }
}
