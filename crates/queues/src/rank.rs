//! Rank queue: least rank first, exact, with removal and change of rank by id.
//!
//! Why: a PIFO (push-in first-out queue) whose elements can also leave, or move, when their head packet changes.
//! From: Loom §4.1 (PIFO); a four-way heap, because it touches half the cache lines of a binary one.
//! Not here: what a rank means.
//! Invariant: `place[id]` is where `id` stands in `heap`; equal ranks leave in the order of their ids.

/// A priority queue of the integers below a bound, each at most once, ordered by (rank, id).
#[derive(Clone, Debug, Default)]
pub struct RankQueue {
    heap: Vec<(u64, u32)>,
    place: Vec<u32>,
}

/// An entry's (rank, id) as one number, so that two entries compare without a branch; a branch here would be mispredicted.
#[inline]
fn key((rank, id): (u64, u32)) -> u128 {
    u128::from(rank) << 32 | u128::from(id)
}

const ABSENT: u32 = u32::MAX;
const WAYS: usize = 4;

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
        if ids > self.place.len() {
            self.place.resize(ids, ABSENT);
            self.heap.reserve(ids - self.heap.len());
        }
    }

    /// How many ids are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Queues `id` at `rank`, or moves it there.
    #[inline]
    pub fn set(&mut self, id: u32, rank: u64) {
        let at = self.place[id as usize];
        if at == ABSENT {
            self.heap.push((rank, id));
            self.rise(self.heap.len() - 1, (rank, id));
            return;
        }
        let at = at as usize;
        if (rank, id) < self.heap[at] { self.rise(at, (rank, id)) } else { self.sink(at, (rank, id)) }
    }

    /// Takes `id` out, if it is queued.
    #[inline]
    pub fn remove(&mut self, id: u32) {
        let at = self.place[id as usize];
        if at == ABSENT {
            return;
        }
        self.place[id as usize] = ABSENT;
        let at = at as usize;
        let Some(last) = self.heap.pop() else { return };
        if at < self.heap.len() {
            if at > 0 && last < self.heap[(at - 1) / WAYS] {
                self.rise(at, last)
            } else {
                self.sink(at, last)
            }
        }
    }

    /// The least rank and its id.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<(u64, u32)> {
        self.heap.first().copied()
    }

    /// The rank of `id`, if it is queued.
    #[must_use]
    pub fn rank(&self, id: u32) -> Option<u64> {
        let at = *self.place.get(id as usize)?;
        self.heap.get(at as usize).map(|&(rank, _)| rank)
    }

    #[inline]
    fn rise(&mut self, mut at: usize, entry: (u64, u32)) {
        while at > 0 {
            let above = (at - 1) / WAYS;
            if self.heap[above] <= entry {
                break;
            }
            self.put(at, self.heap[above]);
            at = above;
        }
        self.put(at, entry);
    }

    #[inline]
    fn sink(&mut self, mut at: usize, entry: (u64, u32)) {
        loop {
            let first = at * WAYS + 1;
            let last = (first + WAYS).min(self.heap.len());
            let Some(children) = self.heap.get(first..last).filter(|children| !children.is_empty()) else {
                break;
            };
            let mut least = 0;
            for child in 1..children.len() {
                least = if key(children[child]) < key(children[least]) { child } else { least };
            }
            if key(entry) <= key(children[least]) {
                break;
            }
            let least = first + least;
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, entry);
    }

    #[inline]
    fn put(&mut self, at: usize, entry: (u64, u32)) {
        self.heap[at] = entry;
        let place = at as u32;
        self.place[entry.1 as usize] = place;
    }
}

#[cfg(test)]
mod tests {
    use super::RankQueue;
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// Any sequence of operations agrees with a sorted set.
        #[test]
        fn agrees_with_a_sorted_set(ops in proptest::collection::vec((0_u32..40, 0_u64..50, 0..3_u8), 1..400)) {
            let mut queue = RankQueue::new(40);
            let mut oracle: BTreeSet<(u64, u32)> = BTreeSet::new();
            for (id, rank, op) in ops {
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
