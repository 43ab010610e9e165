//! A four-way heap of ranked integers.
//!
//! Why: touches half the cache lines of a binary one.
//! From: d-ary heaps (Johnson, 1975).
//! Not here: few integers (`few`).
//! Invariant: `place[id]` is where `id` stands in `heap`; equal ranks leave in the order of their ids.

/// A rank that a [`RankHeap`] orders by.
pub trait Rank: Copy + Ord {
    /// A rank and an id as what compares without a branch, which would be mispredicted.
    type Key: Ord;

    /// The key of an entry.
    fn key(self, id: u32) -> Self::Key;
}

impl Rank for u64 {
    type Key = u128;

    #[inline]
    fn key(self, id: u32) -> u128 {
        super::key((self, id))
    }
}

/// A rank, and what decides among equal ones.
impl Rank for (u64, u64) {
    type Key = (u128, u32);

    #[inline]
    fn key(self, id: u32) -> (u128, u32) {
        (u128::from(self.0) << 64 | u128::from(self.1), id)
    }
}

/// A priority queue of the integers below a bound, each at most once, ordered by (rank, id).
#[derive(Clone, Debug)]
pub struct RankHeap<R> {
    heap: Vec<(R, u32)>,
    place: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;
const WAYS: usize = 4;

impl<R> Default for RankHeap<R> {
    fn default() -> Self {
        Self { heap: Vec::new(), place: Vec::new() }
    }
}

impl<R: Rank> RankHeap<R> {
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
    pub fn set(&mut self, id: u32, rank: R) {
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
    pub fn first(&self) -> Option<(R, u32)> {
        self.heap.first().copied()
    }

    /// The rank of `id`, if it is queued.
    #[must_use]
    pub fn rank(&self, id: u32) -> Option<R> {
        let at = *self.place.get(id as usize)?;
        self.heap.get(at as usize).map(|&(rank, _)| rank)
    }

    #[inline]
    fn rise(&mut self, mut at: usize, entry: (R, u32)) {
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
    fn sink(&mut self, mut at: usize, entry: (R, u32)) {
        loop {
            let first = at * WAYS + 1;
            let last = (first + WAYS).min(self.heap.len());
            let Some(children) = self.heap.get(first..last).filter(|children| !children.is_empty()) else {
                break;
            };
            let mut least = 0;
            for child in 1..children.len() {
                least = if Self::key(children[child]) < Self::key(children[least]) { child } else { least };
            }
            if Self::key(entry) <= Self::key(children[least]) {
                break;
            }
            let least = first + least;
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, entry);
    }

    #[inline]
    fn key((rank, id): (R, u32)) -> R::Key {
        rank.key(id)
    }

    #[inline]
    fn put(&mut self, at: usize, entry: (R, u32)) {
        self.heap[at] = entry;
        let place = at as u32;
        self.place[entry.1 as usize] = place;
    }
}
