//! Two heaps in the records of the children themselves: those that are due, and those whose start has not come.
//!
//! Why: a child is in one of them at most, so cells for all children do for both; and a record has room for a cell and for its
//! child's position where rows of rounded starts (`rows`) keep neighbours. So the exact form takes no more memory than the
//! grouped one.
//! From: a four-way heap, as in `plimsoll_queues::RankQueue`, whose ranks are looked up instead of kept.
//! Not here: what a start means (`rate_share`).
//! Invariant: cell `at` of a heap holds the child whose position is `at`; equal ranks leave in the order of the children. The
//! start of a queued child does not change.

use super::child::Child;
use crate::ids::{SlotId, Table};

/// Children in two heaps, and those that are in neither.
#[derive(Clone, Debug)]
pub(crate) struct Heaps {
    pub(crate) children: Table<SlotId, Child<Cell>>,
    /// How many are in each.
    later: u32,
    due: u32,
}

/// A heap's cell, and where the child of this record is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// The child in the cell that this record lends.
    holds: SlotId,
    /// The cell of this record's own child, counted in its heap.
    at: u32,
    /// The heap that this record's own child is in.
    heap: Option<Heap>,
}

const _: () = assert!(size_of::<Child<Cell>>() == 32);

/// One of the two heaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heap {
    /// By start. Its cells are in the first records.
    Later,
    /// By finish. Its cells are in the last records, from the end on.
    Due,
}

const WAYS: usize = 4;

impl Heaps {
    /// Children by what a byte adds to each one's start.
    pub(crate) fn new(inverses: impl Iterator<Item = u64>) -> Self {
        let place = Cell { holds: SlotId::NONE, at: 0, heap: None };
        let child = |inverse| Child { start: 0, inverse, rest: 0, place };
        Self { children: inverses.map(child).collect(), later: 0, due: 0 }
    }

    #[inline]
    fn len(&mut self, heap: Heap) -> &mut u32 {
        match heap {
            Heap::Later => &mut self.later,
            Heap::Due => &mut self.due,
        }
    }

    #[inline]
    pub(crate) fn is_queued(&self, slot: SlotId) -> bool {
        self.children[slot].place.heap.is_some()
    }

    /// Whether the child is among those that are due.
    pub(crate) fn is_due(&self, slot: SlotId) -> bool {
        self.children[slot].place.heap == Some(Heap::Due)
    }

    /// The least start of those that are not due, and the child.
    #[inline]
    pub(crate) fn first_later(&self) -> Option<(u64, SlotId)> {
        let slot = self.children.first().filter(|_| self.later > 0)?.place.holds;
        Some((self.children[slot].start, slot))
    }

    /// The least finish of those that are due, and the child; `finish` says what that is.
    #[inline]
    pub(crate) fn first_due(&self, finish: impl Fn(&Child<Cell>) -> u64) -> Option<(u64, SlotId)> {
        let slot = self.children.last().filter(|_| self.due > 0)?.place.holds;
        Some((finish(&self.children[slot]), slot))
    }

    /// Queues a child, which must not be queued.
    #[inline]
    pub(crate) fn insert(&mut self, slot: SlotId, heap: Heap, finish: impl Fn(&Child<Cell>) -> u64) {
        let len = self.len(heap);
        *len += 1;
        let last = *len as usize - 1;
        self.children[slot].place.heap = Some(heap);
        Cells { children: &mut self.children, heap, finish }.rise(last, slot);
    }

    /// Takes a child out, if it is queued.
    #[inline]
    pub(crate) fn remove(&mut self, slot: SlotId, finish: impl Fn(&Child<Cell>) -> u64) {
        let place = &mut self.children[slot].place;
        let Some(heap) = place.heap.take() else { return };
        let at = place.at as usize;
        let len = self.len(heap);
        *len -= 1;
        let len = *len as usize;
        let mut cells = Cells { children: &mut self.children, heap, finish };
        if at == len {
            return;
        }
        let last = cells.get(len);
        if at > 0 && cells.rank(last) < cells.rank(cells.get((at - 1) / WAYS)) {
            cells.rise(at, last);
        } else {
            cells.sink(at, last, len);
        }
    }
}

/// One heap's cells.
struct Cells<'c, F> {
    children: &'c mut [Child<Cell>],
    heap: Heap,
    finish: F,
}

impl<F: Fn(&Child<Cell>) -> u64> Cells<'_, F> {
    /// The record that lends cell `at`.
    #[inline]
    fn lender(&self, at: usize) -> usize {
        match self.heap {
            Heap::Later => at,
            Heap::Due => self.children.len() - 1 - at,
        }
    }

    #[inline]
    fn get(&self, at: usize) -> SlotId {
        self.children[self.lender(at)].place.holds
    }

    #[inline]
    fn put(&mut self, at: usize, slot: SlotId) {
        let lender = self.lender(at);
        self.children[lender].place.holds = slot;
        self.children[slot.0 as usize].place.at = at as u32;
    }

    #[inline]
    fn rank(&self, slot: SlotId) -> (u64, SlotId) {
        let child = &self.children[slot.0 as usize];
        match self.heap {
            Heap::Later => (child.start, slot),
            Heap::Due => ((self.finish)(child), slot),
        }
    }

    #[inline]
    fn rise(&mut self, mut at: usize, slot: SlotId) {
        let rank = self.rank(slot);
        while at > 0 {
            let above = self.get((at - 1) / WAYS);
            if self.rank(above) <= rank {
                break;
            }
            self.put(at, above);
            at = (at - 1) / WAYS;
        }
        self.put(at, slot);
    }

    #[inline]
    fn sink(&mut self, mut at: usize, slot: SlotId, len: usize) {
        let rank = self.rank(slot);
        loop {
            let first = at * WAYS + 1;
            let below = (first..(first + WAYS).min(len)).map(|at| (self.rank(self.get(at)), at)).min();
            let Some(((least, child), from)) = below else { break };
            if rank <= (least, child) {
                break;
            }
            self.put(at, child);
            at = from;
        }
        self.put(at, slot);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    proptest::proptest! {
        /// Any sequence of operations agrees with two sorted sets.
        #[test]
        fn agree_with_sorted_sets(ops in proptest::collection::vec((0_u32..30, 0_u64..50, 0..5_u8), 1..400)) {
            let (mut heaps, mut later, mut due) = (Heaps::new((0..30).map(|n| n % 3)), BTreeSet::new(), BTreeSet::new());
            let finish = |child: &Child<Cell>| child.start + 10 * child.inverse;
            for (slot, start, op) in ops {
                let slot = SlotId(slot);
                heaps.remove(slot, finish);
                later.retain(|&(_, other)| other != slot);
                due.retain(|&(_, other)| other != slot);
                heaps.children[slot].start = start;
                match op {
                    0 | 1 => {
                        heaps.insert(slot, Heap::Later, finish);
                        later.insert((start, slot));
                    }
                    2 | 3 => {
                        heaps.insert(slot, Heap::Due, finish);
                        due.insert((finish(&heaps.children[slot]), slot));
                    }
                    _ => {}
                }
                proptest::prop_assert_eq!(heaps.first_later(), later.first().copied());
                proptest::prop_assert_eq!(heaps.first_due(finish), due.first().copied());
                proptest::prop_assert_eq!(heaps.is_due(slot), due.iter().any(|&(_, other)| other == slot));
            }
        }
    }
}
