//! Rank queue: least rank first, exact, with removal and change of rank by id.
//!
//! Why: a PIFO (push-in first-out queue) whose elements can also leave, or move, when their head packet changes.
//! From: Loom §4.1 (PIFO).
//! Not here: what a rank means.
//! Invariant: equal ranks leave in the order of their ids, whichever form the queue has.

mod few;
mod heap;

use few::{FEW, Few};
pub use heap::{Rank, RankHeap};

/// A priority queue of the integers below a bound, each at most once, ordered by (rank, id).
#[derive(Clone, Debug)]
pub struct RankQueue(Form);

#[derive(Clone, Debug)]
enum Form {
    Few(Box<Few>),
    Many(RankHeap<u64>),
}

type Entry = (u64, u32);

/// An entry's (rank, id) as one number, so that two entries compare without a branch; a branch here would be mispredicted.
#[inline]
fn key((rank, id): Entry) -> u128 {
    u128::from(rank) << 32 | u128::from(id)
}

impl Default for RankQueue {
    fn default() -> Self {
        Self(Form::Few(Box::default()))
    }
}

impl RankQueue {
    /// A queue for ids below `ids`.
    #[must_use]
    pub fn new(ids: usize) -> Self {
        let mut queue = Self::default();
        queue.grow(ids);
        queue
    }

    /// Makes room for ids below `ids`; the only call that allocates.
    pub fn grow(&mut self, ids: usize) {
        match &mut self.0 {
            Form::Few(few) if ids > FEW => {
                let mut heap = RankHeap::<u64>::default();
                heap.grow(ids);
                few.entries().for_each(|(rank, id)| heap.set(id, rank));
                self.0 = Form::Many(heap);
            }
            Form::Few(_) => {}
            Form::Many(heap) => heap.grow(ids),
        }
    }

    /// How many ids are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Few(few) => few.len(),
            Form::Many(heap) => heap.len(),
        }
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queues `id` at `rank`, or moves it there.
    #[inline]
    pub fn set(&mut self, id: u32, rank: u64) {
        match &mut self.0 {
            Form::Few(few) => few.set(id, rank),
            Form::Many(heap) => heap.set(id, rank),
        }
    }

    /// Takes `id` out, if it is queued.
    #[inline]
    pub fn remove(&mut self, id: u32) {
        match &mut self.0 {
            Form::Few(few) => few.remove(id),
            Form::Many(heap) => heap.remove(id),
        }
    }

    /// The least rank and its id.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<(u64, u32)> {
        match &self.0 {
            Form::Few(few) => few.first(),
            Form::Many(heap) => heap.first(),
        }
    }

    /// The id with the least rank.
    #[inline]
    #[must_use]
    pub fn first_id(&self) -> Option<u32> {
        match &self.0 {
            Form::Few(few) => few.first_id(),
            Form::Many(heap) => heap.first().map(|(_, id)| id),
        }
    }

    /// The rank of `id`, if it is queued.
    #[must_use]
    pub fn rank(&self, id: u32) -> Option<u64> {
        match &self.0 {
            Form::Few(few) => few.entries().find(|&(_, queued)| queued == id).map(|(rank, _)| rank),
            Form::Many(heap) => heap.rank(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RankHeap, RankQueue};
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// Any sequence of operations agrees with a sorted set, where equal ranks are told apart.
        #[test]
        fn pairs_agree_with_a_sorted_set(
            ids in 1_usize..60,
            ops in proptest::collection::vec((0_u32..60, (0_u64..4, 0_u64..1_000), 0..3_u8), 1..400),
        ) {
            let mut queue = RankHeap::<(u64, u64)>::default();
            queue.grow(ids);
            let mut oracle: BTreeSet<((u64, u64), u32)> = BTreeSet::new();
            for (id, rank, op) in ops {
                let id = id % ids as u32;
                oracle.retain(|&(_, other)| other != id);
                if op == 0 {
                    queue.remove(id);
                } else {
                    queue.set(id, rank);
                    oracle.insert((rank, id));
                }
                proptest::prop_assert_eq!(queue.first(), oracle.first().copied());
                proptest::prop_assert_eq!((queue.len(), queue.is_empty()), (oracle.len(), oracle.is_empty()));
                proptest::prop_assert_eq!(queue.rank(id), (op != 0).then_some(rank));
            }
        }

        /// Any sequence of operations agrees with a sorted set, with few ids, with many, and from few to many.
        #[test]
        fn agrees_with_a_sorted_set(
            (few, many) in (1_usize..40, 1_usize..60),
            ops in proptest::collection::vec((0_u32..60, 0_u64..50, 0..3_u8), 1..400),
        ) {
            let mut queue = RankQueue::new(few);
            let mut oracle: BTreeSet<(u64, u32)> = BTreeSet::new();
            let mut ids = few;
            for (step, (id, rank, op)) in ops.into_iter().enumerate() {
                if step == 100 {
                    ids = few.max(many);
                    queue.grow(ids);
                }
                let id = id % ids as u32;
                match op {
                    0 => {
                        oracle.retain(|&(_, other)| other != id);
                        oracle.insert((rank, id));
                        queue.set(id, rank);
                    }
                    1 => {
                        oracle.retain(|&(_, other)| other != id);
                        queue.remove(id);
                    }
                    _ => if let Some((_, first)) = queue.first() {
                        oracle.pop_first();
                        queue.remove(first);
                    }
                }
                proptest::prop_assert_eq!(queue.first(), oracle.first().copied());
                proptest::prop_assert_eq!(queue.len(), oracle.len());
                let rank = oracle.iter().find(|&&(_, other)| other == id).map(|&(rank, _)| rank);
                proptest::prop_assert_eq!(queue.rank(id), rank);
            }
        }
    }
}
