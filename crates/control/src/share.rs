//! Divides the line among the VMs that receive: minima first, then the spare rate.
//!
//! Why: a receiver's limit is steered towards its share.
//! From: PicNIC §5.3.1, with progressive filling in place of one division of the spare rate, so that the rate that a VM at its
//! maximum leaves goes to the others.
//! Not here: the law that gets there (`bandwidth`).
//! Invariant: minima first; no VM above its maximum; together never more than the line, and less only by the bits lost
//! in rounding down, by maxima, or by what idle VMs keep reserved.

use plimsoll_units::BitRate;

/// A VM that may receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The rate it gets whatever the other VMs do.
    pub min: Option<BitRate>,
    /// The rate it never exceeds; the spare is divided in this proportion.
    pub max: BitRate,
    /// Whether it received anything in the last epoch.
    pub active: bool,
}

/// How the minimum of a VM that receives nothing is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// The minimum stays free for the VM, so that its first packets find room (PicNIC's reading).
    #[default]
    Reserved,
    /// The minimum goes to the other VMs until the VM receives.
    Lent,
}

/// The division, with its working memory, so that an epoch allocates nothing.
///
/// ```
/// use plimsoll_control::{Idle, Receiver, Shares};
/// use plimsoll_units::BitRate;
///
/// let vm = |active| Receiver { min: Some(BitRate::gbps(4)), max: BitRate::gbps(12), active };
/// let mut shares = Shares::default();
/// assert_eq!(shares.divide(BitRate::gbps(20), &[vm(true), vm(true)], Idle::Reserved), [10_000_000_000; 2]);
/// assert_eq!(shares.divide(BitRate::gbps(20), &[vm(true), vm(false)], Idle::Reserved)[0], 12_000_000_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Shares {
    shares: Vec<u64>,
    /// The VMs among which the spare rate is divided, in the order in which they reach their maxima.
    order: Vec<u32>,
}

impl Shares {
    /// The fair capacity of each VM, in bits per second. An idle VM's share is its minimum or nothing.
    ///
    /// Minima that exceed the line together are refused by `policy`; here the later ones get what is left.
    pub fn divide(&mut self, line: BitRate, receivers: &[Receiver], idle: Idle) -> &[u64] {
        let mut spare = line.get();
        self.shares.clear();
        self.shares.extend(receivers.iter().map(|receiver| {
            let wanted = receiver.active || idle == Idle::Reserved;
            let min = receiver.min.filter(|_| wanted).map_or(0, |min| min.get().min(receiver.max.get()));
            let share = min.min(spare);
            spare -= share;
            share
        }));
        self.fill(receivers, spare);
        &self.shares
    }

    /// Raises each VM's share in proportion to its maximum, until it is full or nothing is left.
    fn fill(&mut self, receivers: &[Receiver], mut spare: u64) {
        let Self { shares, order } = self;
        let room = |shares: &[u64], at: u32| receivers[at as usize].max.get() - shares[at as usize];
        order.clear();
        order.extend((0..receivers.len() as u32).filter(|&at| receivers[at as usize].active));
        // The VM with the least room in proportion to its maximum is full first: room / max, compared crosswise.
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        order.sort_unstable_by(|&a, &b| {
            let (max_a, max_b) = (receivers[a as usize].max.get(), receivers[b as usize].max.get());
            product(room(shares, a), max_b).cmp(&product(room(shares, b), max_a)).then(a.cmp(&b))
        });
        let mut weights: u128 = order.iter().map(|&at| u128::from(receivers[at as usize].max.get())).sum();
        for &at in order.iter() {
            let max = receivers[at as usize].max.get();
            let part = (product(spare, max) / weights) as u64;
            let taken = part.min(room(shares, at));
            shares[at as usize] += taken;
            spare -= taken;
            weights -= u128::from(max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vm(min: u64, max: u64, active: bool) -> Receiver {
        Receiver { min: BitRate::new(min * 1_000_000_000), max: BitRate::gbps(max), active }
    }

    fn divided(line: u64, receivers: &[Receiver]) -> Vec<u64> {
        let mut shares = Shares::default();
        shares
            .divide(BitRate::gbps(line), receivers, Idle::Reserved)
            .iter()
            .map(|bits| bits / 1_000_000)
            .collect()
    }

    /// G4: PicNIC §5.3.1 on a line of 20 Gb/s.
    #[test]
    fn spare_goes_by_maximum_and_what_one_cannot_use_to_the_others() {
        assert_eq!(divided(20, &[vm(4, 12, true), vm(4, 12, false)]), [12_000, 4_000]);
        assert_eq!(divided(20, &[vm(4, 12, true), vm(4, 12, true)]), [10_000, 10_000]);
        assert_eq!(divided(20, &[vm(2, 3, true), vm(2, 12, true), vm(2, 12, true)]), [3_000, 8_500, 8_500]);
    }

    #[test]
    fn an_idle_minimum_is_kept_or_lent() {
        let receivers = [vm(4, 20, true), vm(8, 20, false)];
        let mut shares = Shares::default();
        let line = BitRate::gbps(20);
        assert_eq!(shares.divide(line, &receivers, Idle::Reserved), [12_000_000_000, 8_000_000_000]);
        assert_eq!(shares.divide(line, &receivers, Idle::Lent), [20_000_000_000, 0]);
    }

    proptest! {
        /// Raising a share would need another VM's: each active VM is full, or all are level and the line is used up.
        #[test]
        fn is_the_max_min_fair_division(
            line in 1_u64..1_000_000,
            raw in proptest::collection::vec((0_u64..400_000, 1_u64..1_000_000, any::<bool>()), 1..12),
        ) {
            let receivers: Vec<Receiver> = raw
                .iter()
                .map(|&(min, max, active)| {
                    let max = BitRate::new(max).expect("above zero");
                    Receiver { min: BitRate::new(min), max, active }
                })
                .collect();
            let mut shares = Shares::default();
            let shares = shares.divide(BitRate::new(line).expect("above zero"), &receivers, Idle::Reserved);
            let total: u64 = shares.iter().sum();
            prop_assert!(total <= line);
            let short = receivers.iter().zip(shares).any(|(vm, &share)| vm.active && share < vm.max.get());
            prop_assert!(!short || line - total <= receivers.len() as u64, "{total} of {line} with a VM short");
            for (vm, &share) in receivers.iter().zip(shares) {
                prop_assert!(share <= vm.max.get());
                let minima: u64 = receivers.iter().filter_map(|vm| vm.min).map(BitRate::get).sum();
                let min = vm.min.map_or(0, |min| min.get().min(vm.max.get()));
                prop_assert!(share >= min || minima > line);
            }
            // Level: each VM that has room has been raised as far, for its maximum, as any other.
            if receivers.iter().filter_map(|vm| vm.min).map(BitRate::get).sum::<u64>() <= line {
                let raised = |vm: &Receiver, share: u64| {
                    (share - vm.min.map_or(0, |min| min.get().min(vm.max.get()))) as f64 / vm.max.get() as f64
                };
                let active = || receivers.iter().zip(shares).filter(|(vm, _)| vm.active);
                for (a, &share_a) in active().filter(|(vm, share)| **share < vm.max.get()) {
                    for (b, &share_b) in active() {
                        let slack = 12.0 / a.max.get() as f64 + 12.0 / b.max.get() as f64;
                        prop_assert!(raised(b, share_b) <= raised(a, share_a) + slack);
                    }
                }
            }
        }
    }
}
