//! Two heaps in the records of the children themselves: those that are due, and those whose start has not come.
//!
//! Why: a child is in one of them at most, so cells for all children do for both; and a record has the room for a cell and
//! for its child's place that rows of rounded starts (`rows`) would need for neighbours. So the exact form takes no more
//! memory than the grouped one.
//! From: a four-way heap, as in `plimsoll_queues::RankQueue`, whose ranks are looked up instead of kept.
//! Not here: what a start means (`rate_share`).
//! Invariant: cell `at` of a heap holds the child whose place is `at`; equal ranks leave in the order of the children. A
//! queued child's record does not change.

use super::rows::{ABSENT, Kid};

/// How many are in each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heaps {
    later: u32,
    due: u32,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heap {
    /// By start. Its cells are the first of all.
    Later = 0,
    /// By finish. Its cells are the last, from the end on.
    Due = 1,
}

const WAYS: usize = 4;

impl Heap {
    /// Of a queued child.
    #[inline]
    fn of(kid: &Kid) -> Option<Self> {
        match kid.slot {
            ABSENT => None,
            0 => Some(Self::Later),
            _ => Some(Self::Due),
        }
    }
}

impl Heaps {
    #[inline]
    fn len(&mut self, heap: Heap) -> &mut u32 {
        match heap {
            Heap::Later => &mut self.later,
            Heap::Due => &mut self.due,
        }
    }

    /// Whether the child is among those that are due.
    pub(crate) fn is_due(kid: &Kid) -> bool {
        Heap::of(kid) == Some(Heap::Due)
    }

    /// The least start of those that are not due, and the child.
    #[inline]
    pub(crate) fn first_later(self, kids: &[Kid]) -> Option<(u64, u32)> {
        let id = kids.first().filter(|_| self.later > 0)?.next;
        Some((kids[id as usize].start, id))
    }

    /// The least finish of those that are due, and the child; `finish` says what that is.
    #[inline]
    pub(crate) fn first_due(self, kids: &[Kid], finish: impl Fn(&Kid) -> u64) -> Option<(u64, u32)> {
        let id = kids.last().filter(|_| self.due > 0)?.next;
        Some((finish(&kids[id as usize]), id))
    }

    /// Queues a child, which must not be queued.
    #[inline]
    pub(crate) fn insert(&mut self, kids: &mut [Kid], id: u32, heap: Heap, finish: impl Fn(&Kid) -> u64) {
        let len = self.len(heap);
        *len += 1;
        let last = *len as usize - 1;
        kids[id as usize].slot = heap as u8;
        Cells { kids, heap, finish }.rise(last, id);
    }

    /// Takes a child out, if it is queued.
    #[inline]
    pub(crate) fn remove(&mut self, kids: &mut [Kid], id: u32, finish: impl Fn(&Kid) -> u64) {
        let kid = &mut kids[id as usize];
        let Some(heap) = Heap::of(kid) else { return };
        kid.slot = ABSENT;
        let at = kid.prev as usize;
        let len = self.len(heap);
        *len -= 1;
        let len = *len as usize;
        let mut cells = Cells { kids, heap, finish };
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
struct Cells<'k, F> {
    kids: &'k mut [Kid],
    heap: Heap,
    finish: F,
}

impl<F: Fn(&Kid) -> u64> Cells<'_, F> {
    #[inline]
    fn cell(&self, at: usize) -> usize {
        match self.heap {
            Heap::Later => at,
            Heap::Due => self.kids.len() - 1 - at,
        }
    }

    #[inline]
    fn get(&self, at: usize) -> u32 {
        self.kids[self.cell(at)].next
    }

    #[inline]
    fn put(&mut self, at: usize, id: u32) {
        let cell = self.cell(at);
        self.kids[cell].next = id;
        self.kids[id as usize].prev = at as u32;
    }

    #[inline]
    fn rank(&self, id: u32) -> (u64, u32) {
        let kid = &self.kids[id as usize];
        match self.heap {
            Heap::Later => (kid.start, id),
            Heap::Due => ((self.finish)(kid), id),
        }
    }

    #[inline]
    fn rise(&mut self, mut at: usize, id: u32) {
        let rank = self.rank(id);
        while at > 0 {
            let above = self.get((at - 1) / WAYS);
            if self.rank(above) <= rank {
                break;
            }
            self.put(at, above);
            at = (at - 1) / WAYS;
        }
        self.put(at, id);
    }

    #[inline]
    fn sink(&mut self, mut at: usize, id: u32, len: usize) {
        let rank = self.rank(id);
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
        self.put(at, id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::order::rows::Rows;

    proptest::proptest! {
        /// Any sequence of operations agrees with two sorted sets.
        #[test]
        fn agree_with_sorted_sets(ops in proptest::collection::vec((0_u32..30, 0_u64..50, 0..5_u8), 1..400)) {
            let mut kids = Rows::new((0..30).map(|n| n % 3)).kids;
            let (mut heaps, mut later, mut due) = (Heaps::default(), BTreeSet::new(), BTreeSet::new());
            let finish = |kid: &Kid| kid.start + 10 * kid.inverse;
            for (id, start, op) in ops {
                heaps.remove(&mut kids, id, finish);
                later.retain(|&(_, other)| other != id);
                due.retain(|&(_, other)| other != id);
                kids[id as usize].start = start;
                match op {
                    0 | 1 => {
                        heaps.insert(&mut kids, id, Heap::Later, finish);
                        later.insert((start, id));
                    }
                    2 | 3 => {
                        heaps.insert(&mut kids, id, Heap::Due, finish);
                        due.insert((finish(&kids[id as usize]), id));
                    }
                    _ => {}
                }
                proptest::prop_assert_eq!(heaps.first_later(&kids), later.first().copied());
                proptest::prop_assert_eq!(heaps.first_due(&kids, finish), due.first().copied());
                proptest::prop_assert_eq!(Heaps::is_due(&kids[id as usize]), due.iter().any(|&(_, other)| other == id));
            }
        }
    }
}
