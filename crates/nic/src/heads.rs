//! Flow queues by the rank of their heads, where a new rank is nearly always the greatest.
//!
//! Why: in order of arrival a flow queue's next head came after all heads that wait, so that it belongs at the end; a
//! heap would move half of its entries for that (18 ns with 64 flow queues, and 2 ns with one).
//! From: a run that is sorted as it comes, and a heap for what comes out of order, as a merge sort's runs.
//! Not here: what a rank means.
//! Invariant: `run` ascends; the least entry is at the front of `run` or of `rest`. Equal ranks leave in the order of the second key.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::{QueueId, RecordId};

/// A head's rank, its flow queue's number, and its record.
pub(crate) type Entry = (u64, QueueId, RecordId);

/// The flow queues of a bundle that hold packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    run: Run,
    /// Allocated with the second flow queue: one alone cannot come out of order.
    #[expect(clippy::box_collection, reason = "a bundle keeps what every packet needs in a cache line")]
    rest: Option<Box<BinaryHeap<Reverse<Entry>>>>,
}

/// Entries in the order in which they came, in a ring. Smaller than a `VecDeque` by what leaves room, in a bundle's cache line,
/// for a word that says which order the flow queues are in.
#[derive(Clone, Debug)]
struct Run {
    /// A power of two of places.
    places: Box<[Entry]>,
    head: u32,
    len: u32,
}

const NO_ENTRY: Entry = (0, QueueId(0), RecordId::NONE);

impl Default for Run {
    fn default() -> Self {
        Self { places: Box::new([NO_ENTRY]), head: 0, len: 0 }
    }
}

impl Run {
    /// Makes room for `wanted` entries.
    fn reserve(&mut self, wanted: usize) {
        if wanted > self.places.len() {
            let mut places = vec![NO_ENTRY; wanted.next_power_of_two()];
            let entries = (0..self.len).filter_map(|turns| self.get(turns));
            places.iter_mut().zip(entries).for_each(|(place, entry)| *place = entry);
            (self.places, self.head) = (places.into(), 0);
        }
    }

    #[inline]
    fn place(&self, turns: u32) -> usize {
        self.head.wrapping_add(turns) as usize & (self.places.len() - 1)
    }

    #[inline]
    fn get(&self, turns: u32) -> Option<Entry> {
        (turns < self.len).then(|| self.places[self.place(turns)])
    }

    #[inline]
    fn back(&self) -> Option<Entry> {
        self.get(self.len.wrapping_sub(1))
    }

    #[inline]
    fn push_back(&mut self, entry: Entry) {
        assert!((self.len as usize) < self.places.len(), "room for every flow queue of the bundle");
        let place = self.place(self.len);
        self.places[place] = entry;
        self.len += 1;
    }

    #[inline]
    fn pop_front(&mut self) -> Option<Entry> {
        let front = self.get(0)?;
        self.head = self.head.wrapping_add(1);
        self.len -= 1;
        Some(front)
    }
}

impl Heads {
    /// Makes room for `wanted` flow queues in all.
    pub(crate) fn reserve(&mut self, wanted: usize) {
        self.run.reserve(wanted);
        if wanted > 1 {
            let rest = self.rest.get_or_insert_default();
            rest.reserve(wanted.saturating_sub(rest.len()));
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.run.len as usize + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) {
        match (self.run.back(), &mut self.rest) {
            (Some(last), Some(rest)) if last > entry => rest.push(Reverse(entry)),
            _ => self.run.push_back(entry),
        }
    }

    /// The flow queue with the least rank.
    #[inline]
    pub(crate) fn first(&self) -> Option<Entry> {
        let run = self.run.get(0);
        match self.late() {
            Some(late) if run.is_none_or(|run| late < run) => Some(late),
            _ => run,
        }
    }

    /// The flow queue that is in front after `turns` more, if nothing comes out of order.
    #[inline]
    pub(crate) fn upcoming(&self, turns: u32) -> Option<RecordId> {
        self.run.get(turns).map(|(_, _, flow)| flow)
    }

    #[inline(always)]
    pub(crate) fn pop_first(&mut self) -> Option<Entry> {
        let run = self.run.get(0);
        match self.late() {
            Some(late) if run.is_none_or(|run| late < run) => {
                self.rest.as_mut().and_then(|rest| rest.pop()).map(|Reverse(entry)| entry)
            }
            _ => self.run.pop_front(),
        }
    }

    /// The least entry that came out of order.
    #[inline]
    fn late(&self) -> Option<Entry> {
        self.rest.as_ref().and_then(|rest| rest.peek()).map(|&Reverse(entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any ranks, in any order, leave as from a sorted set.
        #[test]
        fn leaves_in_order(steps in proptest::collection::vec((any::<bool>(), 0_u64..40), 1..200)) {
            let (mut heads, mut model) = (Heads::default(), std::collections::BTreeSet::new());
            heads.reserve(steps.len());
            for (number, (push, rank)) in (0..).zip(steps) {
                if push {
                    heads.push((rank, QueueId(number), RecordId(number)));
                    model.insert((rank, QueueId(number), RecordId(number)));
                } else {
                    prop_assert_eq!(heads.pop_first(), model.pop_first());
                }
                prop_assert_eq!((heads.first(), heads.len()), (model.first().copied(), model.len()));
            }
        }
    }
}
