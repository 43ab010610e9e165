//! The bandwidth law: what each sender to a VM may send, steered until the VM receives its fair capacity.
//!
//! Why: the receiver knows neither the number of senders nor their demands, only the rate that arrives.
//! From: PicNIC §5.3.1 (PCCB), from RCP and EyeQ; the clamps are ours.
//! Not here: the fair capacity (`share`), each sender's weight, which multiplies the limit where it is enforced.
//! Invariant: the limit is never zero, falls to no less than [`BandwidthLaw::floor`] of itself in an epoch, and never
//! exceeds the caller's `most`.

use plimsoll_units::BitRate;

use crate::{PerMille, WHOLE};

/// How fast the limit follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthLaw {
    /// Part of the relative error that is corrected in one epoch: α.
    pub gain: PerMille,
    /// The least part of a limit that is left after one epoch: a flood would otherwise bring it to zero or below.
    pub floor: PerMille,
}

impl Default for BandwidthLaw {
    /// EyeQ's gain of a half, and a tenth.
    fn default() -> Self {
        Self { gain: 500, floor: 100 }
    }
}

/// The limit in bits per second of a sender of weight one to a VM.
///
/// ```
/// use plimsoll_control::{BandwidthLaw, BandwidthLimit};
/// use plimsoll_units::BitRate;
///
/// let capacity = BitRate::gbps(12);
/// let mut limit = BandwidthLimit::new(capacity);
/// // 18 Gb/s arrive where 12 may: half again too much, of which half is corrected.
/// let next = limit.epoch(&BandwidthLaw::default(), 18_000_000_000, capacity, capacity);
/// assert_eq!(next, BitRate::gbps(9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthLimit(BitRate);

impl BandwidthLimit {
    /// The first limit of a VM that has received nothing: its capacity.
    #[must_use]
    pub fn new(capacity: BitRate) -> Self {
        Self(capacity)
    }

    /// The limit now.
    #[must_use]
    pub fn get(self) -> BitRate {
        self.0
    }

    /// Handles the end of an epoch in which `received` bits per second came in for a VM whose fair capacity is `capacity`.
    /// `most` is its maximum over the least weight of a sender: without it, senders that have little to send would let
    /// the limit grow without end.
    pub fn epoch(&mut self, law: &BandwidthLaw, received: u64, capacity: BitRate, most: BitRate) -> BitRate {
        let next = if received == 0 { capacity.get() } else { self.steered(law, received, capacity.get()) };
        self.0 = BitRate::new(next.clamp(LEAST, most.get().max(LEAST))).expect("clamped above zero");
        self.0
    }

    /// `limit · max(floor, 1 − gain · (received − capacity) / capacity)`, rounded down.
    fn steered(self, law: &BandwidthLaw, received: u64, capacity: u64) -> u64 {
        let whole = i128::from(WHOLE) * i128::from(capacity);
        let error = i128::from(received) - i128::from(capacity);
        let factor = (whole - i128::from(law.gain) * error).max(i128::from(law.floor) * i128::from(capacity));
        let next = i128::from(self.0.get()).saturating_mul(factor) / whole;
        u64::try_from(next).unwrap_or(u64::MAX)
    }
}

/// The least limit, a frame of 1,500 bytes in twelve seconds: a sender that may send nothing could not show that it has less to
/// send.
const LEAST: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: BitRate = BitRate::gbps(12);
    const LINE: u64 = 20_000_000_000;
    /// Microseconds from the end of an epoch until its limit is obeyed.
    const FEEDBACK: u64 = 400;
    const STEP: u64 = 8;

    /// Two senders that always have more to send, from 12 Gb/s each: when their limit stayed within 5 % of 6 Gb/s, and
    /// between which values it moved from half the time on. In microseconds and Mb/s.
    fn two_senders(epoch: u64, phase: u64) -> (u64, u64, u64) {
        let end = 60_000;
        let (mut limit, mut obeyed) = (BandwidthLimit::new(CAPACITY), CAPACITY);
        let mut feedback = std::collections::VecDeque::new();
        let (mut settled, mut least, mut most) = (0, u64::MAX, 0);
        let mut bits = 0_u128;
        for now in (0..end).step_by(STEP as usize) {
            while feedback.front().is_some_and(|&(at, _)| at <= now) {
                obeyed = feedback.pop_front().expect("it is there").1;
            }
            bits += u128::from((2 * obeyed.get()).min(LINE)) * u128::from(STEP);
            if obeyed.get().abs_diff(6_000_000_000) > 300_000_000 {
                settled = now + STEP;
            }
            if now >= end / 2 {
                (least, most) = (least.min(obeyed.get()), most.max(obeyed.get()));
            }
            if (now + STEP + phase).is_multiple_of(epoch) {
                let received = (bits / u128::from(epoch.min(now + STEP))) as u64;
                feedback.push_back((
                    now + STEP + FEEDBACK,
                    limit.epoch(&BandwidthLaw::default(), received, CAPACITY, CAPACITY),
                ));
                bits = 0;
            }
        }
        (settled, least / 1_000_000, most / 1_000_000)
    }

    /// G5, from PicNIC Fig 9: 512 µs is right for a feedback of 400 µs; longer is slower, shorter never settles.
    #[test]
    fn settles_within_ten_epochs_unless_the_epoch_is_shorter_than_the_feedback() {
        for quarter in 0..4 {
            let (settled, least, most) = two_senders(512, 128 * quarter);
            assert!((3_000..3_700).contains(&settled), "512 us: after {settled} us");
            assert!(settled <= 10 * 512 && least >= 5_990 && most <= 6_010, "{least} to {most}");
            let (slower, ..) = two_senders(2_048, 512 * quarter);
            assert!((4_900..6_700).contains(&slower) && slower > settled, "2,048 us: after {slower} us");
        }
        let (settled, least, most) = two_senders(128, 0);
        assert!(settled == 60_000 && least < 2_100 && most > 10_700, "128 us: {least} to {most}");
    }

    proptest! {
        /// Whatever is measured, the limit is above zero, at most the most, and falls to no less than a tenth.
        #[test]
        fn stays_within_its_clamps(
            received in proptest::collection::vec(any::<u64>(), 1..50),
            capacity in 1_u64..400_000_000_000,
            most in 1_u64..400_000_000_000,
        ) {
            let (capacity, most) = (BitRate::new(capacity).expect("some"), BitRate::new(most).expect("some"));
            let mut limit = BandwidthLimit::new(capacity);
            for received in received {
                let before = limit.get().get();
                let after = limit.epoch(&BandwidthLaw::default(), received, capacity, most).get();
                prop_assert!(after <= most.get().max(LEAST) && after >= LEAST);
                let floor = if received == 0 { 0 } else { before / 10 };
                prop_assert!(after >= floor.min(most.get()), "{before} to {after}");
            }
        }
    }
}
