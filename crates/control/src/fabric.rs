//! The fabric law: limits a VM's senders while a link on their way is congested, by the fabric's marks.
//!
//! Why: receivers divide their own line and CPU; a queue in the fabric shows in neither, only as marks on packets.
//! From: PicNIC §6.4 and App. C (fabric ECN with a DCTCP-like rate term); DCTCP's estimate of the marked part (Alizadeh et
//! al., SIGCOMM 2010 §3.1, RFC 8257 §3.3), applied to a rate once an epoch in place of a window once a round trip.
//! Not here: what marks mean inside a tenant's own packets (RFC 6040, `wire`): only the outer header's count here.
//! Invariant: off until some packets in a hundred are marked; while on, above zero and at most the most; one cut or one step
//! each epoch.

use plimsoll_units::BitRate;

use crate::{PerMille, WHOLE};

/// How fast the limit moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricLaw {
    /// Weight of the newest epoch in the estimate of the marked part: g.
    pub newest: PerMille,
    /// The increase in an epoch without marks, or with few, as a part of the most.
    pub step: PerMille,
}

impl Default for FabricLaw {
    /// DCTCP's sixteenth, and a hundredth.
    fn default() -> Self {
        Self { newest: 63, step: 10 }
    }
}

/// Packets that came in an epoch, and how many of those the fabric had marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// All packets.
    pub packets: u64,
    /// The marked packets.
    pub marked: u64,
}

impl Marks {
    /// Whether at least one packet in a hundred is marked. Fewer marks change nothing: if each epoch with a mark led to a cut,
    /// one marked packet now and then, which any host on the way can make, would bring the rate to nothing.
    fn are_many(self) -> bool {
        self.marked > 0 && u128::from(self.marked) * u128::from(FEW) >= u128::from(self.packets)
    }
}

/// The limit that the fabric's marks set for a sender of weight one to a VM.
///
/// ```
/// use plimsoll_control::{FabricLaw, FabricLimit, Marks};
/// use plimsoll_units::BitRate;
///
/// let (law, most) = (FabricLaw::default(), BitRate::gbps(10));
/// let mut limit = FabricLimit::default();
/// assert_eq!(limit.epoch(&law, Marks { packets: 100, marked: 0 }, most, most), None);
/// // The first marks: half of the estimate is cut, which begins at all of it, as DCTCP's.
/// assert_eq!(limit.epoch(&law, Marks { packets: 100, marked: 100 }, most, most), Some(BitRate::gbps(5)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricLimit(Option<On>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct On {
    rate: u64,
    /// Estimate of the marked part, in parts of [`PART`].
    part: u64,
}

impl FabricLimit {
    /// The limit now; `None` while the fabric marks nothing.
    #[must_use]
    pub fn get(self) -> Option<BitRate> {
        self.0.and_then(|on| BitRate::new(on.rate))
    }

    /// Handles the end of an epoch. `allowed` is the limit of the VM's other laws, from which the first cut starts; `most` is
    /// its maximum, at which the limit goes off again.
    pub fn epoch(
        &mut self,
        law: &FabricLaw,
        marks: Marks,
        allowed: BitRate,
        most: BitRate,
    ) -> Option<BitRate> {
        match &mut self.0 {
            None if marks.are_many() => {
                let mut on = On { rate: allowed.get().min(most.get()), part: PART };
                on.follow(law, marks, most.get());
                self.0 = Some(on);
            }
            None => {}
            Some(on) => {
                // A limit that is not used must not grow without end: the next cut would then have no effect.
                on.rate = on.rate.min(allowed.get().saturating_mul(2));
                on.follow(law, marks, most.get());
                if on.rate >= most.get() {
                    self.0 = None;
                }
            }
        }
        self.get()
    }
}

impl On {
    fn follow(&mut self, law: &FabricLaw, marks: Marks, most: u64) {
        if marks.packets > 0 {
            let seen =
                u128::from(marks.marked.min(marks.packets)) * u128::from(PART) / u128::from(marks.packets);
            let newest = u128::from(law.newest.min(WHOLE as u32));
            let part = u128::from(self.part) * (u128::from(WHOLE) - newest) + seen * newest;
            self.part = (part / u128::from(WHOLE)) as u64;
        }
        let step = (most / WHOLE).saturating_mul(law.step.into()).max(1);
        let cut = u128::from(self.rate) * u128::from(self.part) / u128::from(2 * PART);
        let next = if marks.are_many() { self.rate - cut as u64 } else { self.rate.saturating_add(step) };
        self.rate = next.clamp(LEAST, most.max(LEAST));
    }
}

/// Fewer marked packets than one in this number count as none.
const FEW: u64 = 100;
/// The whole, in parts of `On::part`.
const PART: u64 = 1 << 20;
/// The least limit, as in the bandwidth law: a sender that may send nothing could not show that the queue is gone.
const LEAST: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: BitRate = BitRate::gbps(10);

    fn epoch(limit: &mut FabricLimit, marked: u64) -> Option<BitRate> {
        let allowed = limit.get().unwrap_or(MOST);
        limit.epoch(&FabricLaw::default(), Marks { packets: 1_000, marked }, allowed, MOST)
    }

    #[test]
    fn is_off_until_something_is_marked_and_goes_off_when_nothing_is() {
        let mut limit = FabricLimit::default();
        assert_eq!(epoch(&mut limit, 0), None);
        assert!(epoch(&mut limit, 10).is_some());
        let epochs = (0..1_000).take_while(|_| epoch(&mut limit, 0).is_some()).count();
        assert_eq!(epochs, 46, "from 5.3 Gb/s in steps of a hundredth");
    }

    /// A mark in each epoch is no congestion.
    #[test]
    fn a_few_marks_hold_no_sender_back() {
        let mut limit = FabricLimit::default();
        assert!((0..1_000).all(|_| epoch(&mut limit, 9).is_none()));
        assert!(epoch(&mut limit, 100).is_some());
        assert!((0..100).any(|_| epoch(&mut limit, 9).is_none()), "and it goes off beside them");
    }

    /// Two senders of one link of 10 Gb/s, which marks the part of the packets that is too much.
    #[test]
    fn settles_where_the_link_is_full_and_its_queue_short() {
        let mut limit = FabricLimit::default();
        let mut sent = Vec::new();
        for _ in 0..400 {
            let rate = 2 * limit.get().unwrap_or(MOST).get();
            let marked = 1_000 * rate.saturating_sub(MOST.get()) / rate;
            epoch(&mut limit, marked);
            sent.push(rate);
        }
        let mean = sent[200..].iter().sum::<u64>() / 200;
        assert!((9_500_000_000..=10_200_000_000).contains(&mean), "{mean}");
        assert!(sent[200..].iter().all(|rate| (9_000_000_000..10_500_000_000).contains(rate)));
    }

    proptest! {
        /// Whatever is marked: above zero, at most the most, at most halved in an epoch.
        #[test]
        fn stays_within_its_clamps(
            epochs in proptest::collection::vec((any::<u64>(), any::<u64>(), 1_u64..u64::MAX), 1..100),
            most in 1_u64..400_000_000_000,
        ) {
            let (law, mut limit) = (FabricLaw::default(), FabricLimit::default());
            let most = BitRate::new(most).expect("some");
            for (packets, marked, allowed) in epochs {
                let allowed = BitRate::new(allowed).expect("some");
                let before = limit.get().map_or(allowed.get().min(most.get()), BitRate::get);
                let before = before.min(allowed.get().saturating_mul(2));
                let after = limit.epoch(&law, Marks { packets, marked }, allowed, most);
                if let Some(after) = after.map(BitRate::get) {
                    prop_assert!(after >= LEAST && after <= most.get().max(LEAST));
                    prop_assert!(after >= before / 2);
                    let many = Marks { packets, marked }.are_many();
                    prop_assert!(many || after >= before.min(most.get()));
                }
            }
        }
    }
}
