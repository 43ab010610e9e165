//! Weighted fair queueing for many children in constant time, by grouping and rounding.
//!
//! Why: four thousand tenants must not cost more than four.
//! From: QFQ (Checconi, Rizzo and Valente, "QFQ: efficient packet scheduling with tight guarantees", 2013).
//! Not here: few children (`exact`), the rows of rounded starts (`rows`).
//! Invariant: for every queued child, start + a largest packet's worth + the distance between two rows of its group >= V.

use super::child::Child;
use super::rows::Rows;
use super::virtual_time::{Inverse, Weight, earlier, passes_eighth, raise};
use crate::ids::{SlotId, Table};

/// Weighted fair queueing over any number of children.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    v: u64,
    total: Weight,
    weights: Table<SlotId, u32>,
    largest: u64,
    rows: Rows,
}

/// log2 of the rows in the length of a largest packet.
///
/// A child may be ahead of virtual time by the distance between two rows. A largest packet may be a segment of 64 KiB where nearly
/// all packets are frames; with one row for that length the share of a small child was 26 % off over 10 ms. Children stand at most
/// one such length behind virtual time and one before it, 32 rows each: all the rows that there are. A child that would come just
/// beyond them takes the outermost row, and keeps its start.
const SPLIT: u32 = 5;

impl Grouped {
    pub(crate) fn new(weights: &[u32], largest: u64) -> Self {
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let mut grouped = Self {
            v: 0,
            total: Weight::total(total),
            weights: weights.to_vec().into(),
            largest,
            rows: Rows::new(weights.iter().map(|&w| Weight::new(w.into()).inverse().get()), SPLIT),
        };
        for slot in grouped.weights.ids() {
            grouped.join_group(slot);
        }
        grouped
    }

    /// Takes effect at the child's next charge. May add a group: called when a policy changes, not per packet.
    pub(crate) fn set_weight(&mut self, slot: SlotId, weight: u32) {
        let queued = self.rows.is_queued(slot);
        self.rows.unlink(slot);
        self.weights[slot] = weight;
        self.rows.children[slot].inverse = Weight::new(weight.into()).inverse().get();
        self.total = Weight::total(self.weights.iter().map(|&w| u64::from(w)).sum());
        self.join_group(slot);
        if queued {
            self.rows.link(slot);
        }
    }

    fn join_group(&mut self, slot: SlotId) {
        let longest = self.rows.children[slot].span(self.largest);
        self.rows.join_group(slot, longest);
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: SlotId, returning: bool) {
        let child = &mut self.rows.children[slot];
        let floor = if returning { self.v.wrapping_sub(child.span(self.largest)) } else { self.v };
        raise(&mut child.start, floor);
        self.rows.link(slot);
    }

    /// The child, which was picked, sent `len` bytes; 0 if it waits for a limit. It has its next place at once if it stays.
    #[inline(always)]
    pub(crate) fn settle(&mut self, slot: SlotId, len: u64, stays: bool) {
        if len > 0 && stays {
            let child = &self.rows.children[slot];
            let start = child.start.wrapping_add(child.span(len));
            self.advance(self.v.wrapping_add(self.total.span(len)));
            self.rows.requeue(slot, start);
        } else if !stays {
            self.leave(slot, len);
        }
    }

    #[inline(never)]
    fn leave(&mut self, slot: SlotId, len: u64) {
        self.rows.unlink(slot);
        if len > 0 {
            let child = &mut self.rows.children[slot];
            child.start = child.start.wrapping_add(child.span(len));
            self.advance(self.v.wrapping_add(self.total.span(len)));
        }
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
        let (v, largest) = (self.v, self.largest);
        for child in self.rows.idle() {
            let floor = v.wrapping_sub(child.span(largest));
            raise(&mut child.start, floor);
        }
    }

    /// The first child of the eligible group with the least finish; when none is eligible, V jumps to the first
    /// start.
    #[inline]
    pub(crate) fn pick(&mut self) -> Option<SlotId> {
        let Some(group) = self.rows.only_group() else { return self.pick_among_groups() };
        // With one group busy, its first child is the answer; V jumps to it when it has to.
        let (start, slot) = self.rows.first_of(group);
        if earlier(self.v, start) {
            self.advance(start);
        }
        Some(slot)
    }

    #[inline(never)]
    fn pick_among_groups(&mut self) -> Option<SlotId> {
        if self.rows.is_empty() {
            return None;
        }
        let first = self.rows.first_start();
        if earlier(self.v, first) {
            self.advance(first);
        }
        self.rows.best(self.v).map(|(_, group)| self.rows.first_of(group).1)
    }

    /// The child behind `slot` in the same row of equal starts, or `NONE`; and brings its record into the cache.
    #[inline]
    pub(crate) fn next_in_row(&self, slot: SlotId) -> SlotId {
        self.rows.next_in_row(slot)
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: SlotId) {
        self.rows.prefetch(slot);
    }

    pub(crate) fn rank(&self, slot: SlotId) -> u64 {
        super::virtual_time::ahead(self.rows.children[slot].start, self.v)
    }
}

impl<Place> Child<Place> {
    /// The virtual time that `len` bytes take at its weight.
    #[inline]
    fn span(&self, len: u64) -> u64 {
        Inverse::of(self.inverse).span(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children of equal weight, and one of twice as much, so that there are two groups.
    fn order() -> Grouped {
        let mut weights = [1; 20];
        weights[7] = 2;
        Grouped::new(&weights, 1_500)
    }

    #[test]
    fn who_was_idle_for_any_time_gets_its_share_at_once() {
        let busy = SlotId(0);
        for (gibibytes, idle) in
            (0..800_000).step_by(50_000).flat_map(|gibibytes| [1, 7].map(|idle| (gibibytes, SlotId(idle))))
        {
            let mut order = order();
            order.insert(idle, false);
            assert_eq!(order.pick(), Some(idle));
            order.settle(idle, 1_500, false);
            order.insert(busy, false);
            for _ in 0..gibibytes {
                assert_eq!(order.pick(), Some(busy));
                order.settle(busy, 1 << 30, true);
            }
            order.insert(idle, false);
            let mut served = [0; 20];
            for _ in 0..40 {
                let slot = order.pick().expect("two are active");
                order.settle(slot, 1_500, true);
                served[slot.0 as usize] += 1;
            }
            assert!(served[idle.0 as usize] >= 18, "after {gibibytes} GiB: {served:?}");
        }
    }
}
