//! WF²Q+ by its definition, for nodes with few children.
//!
//! Why: up to sixteen children, looking at each is faster than any structure, and exact.
//! From: Bennett and Zhang, "Hierarchical packet fair queueing algorithms" (1997).
//! Not here: many children (`grouped`).
//! Invariant: for every backlogged child, start + one largest packet's worth >= V (globally bounded timestamps).
//!
//! One deviation, shared with `grouped`: a child's finish is that of a largest packet, because which packet a child
//! will send is decided when its turn comes, not before. The child is charged with what it sent.

use super::virtual_time::{Weight, earlier, passes_eighth, raise};
use crate::ids::SlotId;

/// Weighted fair queueing over at most [`MOST_CHILDREN`].
#[derive(Clone, Debug)]
pub(crate) struct Exact {
    v: u64,
    total: Weight,
    active: u32,
    largest: u64,
    count: usize,
    children: [Child; MOST_CHILDREN],
}

#[derive(Clone, Copy, Debug)]
struct Child {
    start: u64,
    weight: Weight,
    /// The virtual time that a largest packet takes at its weight.
    reach: u64,
}

impl Child {
    fn new(weight: Weight, largest: u64) -> Self {
        Self { start: 0, weight, reach: weight.span(largest) }
    }
}

/// Beyond this many children `grouped` takes over.
pub(crate) const MOST_CHILDREN: usize = 16;

impl Exact {
    pub(crate) fn new(weights: &[u32], largest: u64) -> Self {
        assert!(weights.len() <= MOST_CHILDREN, "few enough children to look at each");
        let weight = |slot: usize| Weight::new(weights.get(slot).copied().unwrap_or(1).into());
        let children = core::array::from_fn(|slot| Child::new(weight(slot), largest));
        let total = Weight::total(weights.iter().map(|&w| u64::from(w)).sum());
        Self { v: 0, total, active: 0, largest, count: weights.len(), children }
    }

    pub(crate) fn set_weight(&mut self, slot: SlotId, weight: u32) {
        let child = &mut self.children[slot.0 as usize];
        *child = Child { start: child.start, ..Child::new(Weight::new(weight.into()), self.largest) };
        self.total =
            Weight::total(self.children.iter().take(self.count).map(|child| child.weight.get()).sum());
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: SlotId, returning: bool) {
        let child = &mut self.children[slot.0 as usize];
        let floor = if returning { self.v.wrapping_sub(child.reach) } else { self.v };
        raise(&mut child.start, floor);
        self.active |= 1 << slot.0;
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: SlotId) {
        self.active &= !(1 << slot.0);
    }

    #[inline]
    pub(crate) fn charge(&mut self, slot: SlotId, len: u64) {
        let child = &mut self.children[slot.0 as usize];
        child.start = child.start.wrapping_add(child.weight.span(len));
        self.advance(self.v.wrapping_add(self.total.span(len)));
    }

    #[inline]
    fn advance(&mut self, v: u64) {
        let before = core::mem::replace(&mut self.v, v);
        if passes_eighth(before, v) {
            self.raise_idle();
        }
    }

    /// Keeps children that have been idle for long within half the range of virtual time.
    #[cold]
    fn raise_idle(&mut self) {
        let (v, active) = (self.v, self.active);
        for (_, child) in self.children.iter_mut().enumerate().filter(|(slot, _)| active >> slot & 1 == 0) {
            let floor = v.wrapping_sub(child.reach);
            raise(&mut child.start, floor);
        }
    }

    /// The eligible child with the least finish; when none is eligible, V jumps to the first start. A child that is alone goes
    /// without a look at the others: it is far ahead of V after each of its packets, so that V would have to jump.
    #[inline]
    pub(crate) fn pick(&mut self) -> Option<SlotId> {
        if self.active.is_power_of_two() {
            return Some(self.only());
        }
        self.eligible().or_else(|| self.jump())
    }

    /// The eligible child with the least finish. Which children are eligible, and which finish is less, cannot be predicted, so
    /// there is no branch.
    #[inline]
    fn eligible(&self) -> Option<SlotId> {
        let mut best = (i64::MAX, u32::MAX);
        for (slot, child) in (0..).zip(&self.children[..self.count.min(MOST_CHILDREN)]) {
            let takes_part = (self.active >> slot & 1 == 1) & !earlier(self.v, child.start);
            // Counted from V, from which no eligible child's finish is half the range away.
            let finish = child.start.wrapping_add(child.reach).wrapping_sub(self.v) as i64;
            let finish = if takes_part { finish } else { i64::MAX };
            best = if finish < best.0 { (finish, slot) } else { best };
        }
        (best.1 != u32::MAX).then_some(SlotId(best.1))
    }

    /// No child is eligible: V jumps to the first start.
    #[inline(never)]
    fn jump(&mut self) -> Option<SlotId> {
        let starts =
            (0..self.count).filter(|slot| self.active >> slot & 1 == 1).map(|slot| self.children[slot].start);
        let first = starts.reduce(|first, start| if earlier(start, first) { start } else { first })?;
        self.advance(first);
        self.eligible()
    }

    /// The only active child: V jumps to its start if that has not come.
    #[inline]
    fn only(&mut self) -> SlotId {
        let slot = self.active.trailing_zeros();
        let mut v = self.v;
        raise(&mut v, self.children[slot as usize % MOST_CHILDREN].start);
        self.advance(v);
        SlotId(slot)
    }

    /// How far the child's start lies ahead of V, in bytes at weight 1.
    pub(crate) fn rank(&self, slot: SlotId) -> u64 {
        super::virtual_time::ahead(self.children[slot.0 as usize].start, self.v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// WF²Q+ by its definition: the eligible child with the least finish, after V has jumped to the first start if it has to.
    fn by_definition(order: &mut Exact) -> Option<SlotId> {
        let active: Vec<usize> = (0..order.count).filter(|slot| order.active >> slot & 1 == 1).collect();
        let starts = active.iter().map(|&slot| order.children[slot].start);
        let first = starts.reduce(|first, start| if earlier(start, first) { start } else { first })?;
        if earlier(order.v, first) {
            order.v = first;
        }
        let finish = |slot: usize| {
            let child = &order.children[slot];
            child.start.wrapping_add(child.reach).wrapping_sub(order.v) as i64
        };
        let eligible = active.into_iter().filter(|&slot| !earlier(order.v, order.children[slot].start));
        eligible.min_by_key(|&slot| (finish(slot), slot)).map(|slot| SlotId(slot as u32))
    }

    proptest! {
        /// Children that come, go, send and wait, with equal weights and others, are picked as the definition says.
        #[test]
        fn picks_by_definition(
            weights in prop::collection::vec(1_u32..5, 1..=MOST_CHILDREN),
            v in prop::sample::select(vec![0, 1_u64 << 61, u64::MAX - (1 << 40)]),
            steps in prop::collection::vec((0_u32..16, any::<bool>(), any::<bool>(), 0_u64..=3), 1..300),
        ) {
            let mut order = Exact::new(&weights, 1_500);
            order.v = v;
            order.children.iter_mut().for_each(|child| child.start = v);
            for (child, returning, leaves, len) in steps {
                let slot = child as usize % weights.len();
                if order.active >> slot & 1 == 0 {
                    order.insert(SlotId(slot as u32), returning);
                }
                let mut model = order.clone();
                let (picked, expected) = (order.pick(), by_definition(&mut model));
                prop_assert_eq!((picked, order.v), (expected, model.v));
                let picked = picked.expect("one is active");
                if len > 0 {
                    order.charge(picked, len * 500);
                }
                if leaves {
                    order.remove(picked);
                }
            }
            order.active = 0;
            prop_assert_eq!(order.pick(), None);
        }
    }

    /// One child sends for a long time, then the other comes back and gets its half at once.
    #[test]
    fn who_was_idle_for_any_time_gets_its_share_at_once() {
        let (busy, away) = (SlotId(0), SlotId(1));
        for gibibytes in (0..80_000).step_by(3_000) {
            let mut order = Exact::new(&[1, 1], 1_500);
            order.insert(away, false);
            assert_eq!(order.pick(), Some(away));
            order.charge(away, 1_500);
            order.remove(away);
            order.insert(busy, false);
            for _ in 0..gibibytes {
                assert_eq!(order.pick(), Some(busy));
                order.charge(busy, 1 << 30);
            }
            order.insert(away, false);
            let mut served = [0; 2];
            for _ in 0..20 {
                let slot = order.pick().expect("both are active");
                order.charge(slot, 1_500);
                served[slot.0 as usize] += 1;
            }
            assert!(served[1] >= 10, "after {gibibytes} GiB: {served:?}");
        }
    }
}
