//! A four-way heap of ranked integers.
//!
//! Why: touches half the cache lines of a binary one.
//! From: d-ary heaps (Johnson, 1975).
//! Not here: few integers (`few`).
//! Invariant: `place[id]` is where `id` stands in `heap`; equal ranks leave in the order of their ids.

use super::{Entry, key};

#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    heap: Vec<Entry>,
    place: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;
const WAYS: usize = 4;

impl Heap {
    pub(super) fn grow(&mut self, ids: usize) {
        if ids > self.place.len() {
            self.place.resize(ids, ABSENT);
            self.heap.reserve(ids - self.heap.len());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    #[inline]
    pub(super) fn set(&mut self, id: u32, rank: u64) {
        let at = self.place[id as usize];
        if at == ABSENT {
            self.heap.push((rank, id));
            self.rise(self.heap.len() - 1, (rank, id));
            return;
        }
        let at = at as usize;
        if (rank, id) < self.heap[at] { self.rise(at, (rank, id)) } else { self.sink(at, (rank, id)) }
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u32) {
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

    #[inline]
    pub(super) fn first(&self) -> Option<Entry> {
        self.heap.first().copied()
    }

    pub(super) fn rank(&self, id: u32) -> Option<u64> {
        let at = *self.place.get(id as usize)?;
        self.heap.get(at as usize).map(|&(rank, _)| rank)
    }

    #[inline]
    fn rise(&mut self, mut at: usize, entry: Entry) {
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
    fn sink(&mut self, mut at: usize, entry: Entry) {
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
    fn put(&mut self, at: usize, entry: Entry) {
        self.heap[at] = entry;
        let place = at as u32;
        self.place[entry.1 as usize] = place;
    }
}
