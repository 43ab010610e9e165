//! Divides one limit among the load balancers that bring the Internet's traffic.
//!
//! Why: traffic from the Internet has no sending host in the fleet. The load balancers that bring it can hold it back; there
//! are many, each brings a little of every client's traffic, and a receiver that tells one after the other is slow.
//! From: PicNIC §5.5: load balancers count as sources; a central server collects feedback and distributes it by the
//! sources' weights.
//! Not here: how messages travel, which VMs are load balancers (`membership`), and enforcing (`nic`).
//! Invariant: each part is in proportion to its source's weight, rounded down, and at least one bit a second; but for these bits
//! the parts together are never more than the whole; nothing is allocated for a message.

use plimsoll_units::{BitRate, PacketRate};

use crate::Limits;

/// Divides receivers' limits among a group of sources.
///
/// ```
/// use plimsoll_control::{Distributor, Limits};
/// use plimsoll_units::BitRate;
///
/// // Two load balancers, of which the second brings three times as much.
/// let group = Distributor::new(&[1_000, 3_000]);
/// assert_eq!(group.weight(), 4_000, "what a receiver counts them as, together");
/// let whole = Limits { bits: BitRate::gbps(8), packets: None };
/// let parts: Vec<u64> = group.split(whole).map(|part| part.bits.get() / 1_000_000_000).collect();
/// assert_eq!(parts, [2, 6]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distributor {
    weights: Vec<u32>,
    sum: u64,
}

impl Distributor {
    /// A distributor for sources of these weights, where an ordinary sender's weight is a thousand. A source of weight zero gets
    /// the least part.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        let mut group = Self { weights: weights.to_vec(), sum: 0 };
        group.add_up();
        group
    }

    /// The sum of the weights: a receiver counts the group as one sender of this weight.
    #[must_use]
    pub fn weight(&self) -> u32 {
        u32::try_from(self.sum).unwrap_or(u32::MAX)
    }

    /// Sets the weight of a source, to its part of the last minute's traffic for instance.
    pub fn set_weight(&mut self, source: usize, weight: u32) {
        self.weights[source] = weight;
        self.add_up();
    }

    fn add_up(&mut self) {
        self.sum = self.weights.iter().copied().map(u64::from).sum::<u64>().max(1);
    }

    /// Each source's part of what all of them may send together.
    pub fn split(&self, whole: Limits) -> impl ExactSizeIterator<Item = Limits> {
        self.weights.iter().map(move |&weight| {
            let part =
                |rate: u64| (u128::from(rate) * u128::from(weight) / u128::from(self.sum)).max(1) as u64;
            Limits {
                bits: BitRate::new(part(whole.bits.get())).expect("at least one"),
                packets: whole.packets.and_then(|packets| PacketRate::new(part(packets.get()))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The parts make up the whole but for what rounding loses, and follow the weights, also after those change.
        #[test]
        fn parts_are_the_weights_parts_of_the_whole(
            weights in proptest::collection::vec(0_u32..1_000_000, 1..40),
            changed in any::<proptest::sample::Index>(),
            weight in 0_u32..1_000_000,
            bits in 1_u64..400_000_000_000,
            packets in proptest::option::of(1_u64..1_000_000_000),
        ) {
            let mut group = Distributor::new(&weights);
            let mut weights = weights;
            let changed = changed.index(weights.len());
            weights[changed] = weight;
            group.set_weight(changed, weight);
            prop_assert_eq!(&group, &Distributor::new(&weights));

            let whole = Limits { bits: BitRate::new(bits).expect("some"), packets: packets.and_then(PacketRate::new) };
            let parts: Vec<Limits> = group.split(whole).collect();
            let sum: u128 = weights.iter().copied().map(u128::from).sum::<u128>().max(1);
            let together: u64 = parts.iter().map(|part| part.bits.get()).sum();
            prop_assert!(together <= bits + weights.len() as u64, "{together} of {bits}");
            prop_assert!(weights.iter().all(|weight| *weight == 0) || together + weights.len() as u64 >= bits);
            for (part, weight) in parts.iter().zip(&weights) {
                let exact = |rate: u64| (u128::from(rate) * u128::from(*weight) / sum).max(1) as u64;
                prop_assert_eq!(part.bits.get(), exact(bits));
                prop_assert_eq!(part.packets.map(PacketRate::get), packets.map(exact));
            }
        }
    }
}
