//! Heap of the moments in the far future.
//!
//! From: an indexed 4-ary heap (fewer levels than a binary one).
//! Invariant: no entry sorts before its parent, and each source's place is known.

use plimsoll_units::Nanos;

use super::{Entry, SourceId};

/// A heap of entries, the least first.
#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    heap: Vec<Entry>,
    /// Where each source stands in the heap.
    places: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

impl Heap {
    pub(super) fn new(sources: usize) -> Self {
        Self { heap: Vec::with_capacity(sources), places: vec![ABSENT; sources] }
    }

    pub(super) fn add(&mut self) {
        self.places.push(ABSENT);
    }

    /// Exchanges what is scheduled with another heap. The places of all sources stay here.
    pub(super) fn exchange(&mut self, other: &mut Self) {
        core::mem::swap(&mut self.heap, &mut other.heap);
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Entry> {
        self.heap.first().copied()
    }

    #[inline]
    pub(super) fn moment(&self, source: SourceId) -> Option<Nanos> {
        let place = self.places[source as usize];
        (place != ABSENT).then(|| self.heap[place as usize].at())
    }

    /// Inserts the entry of a source that has none here.
    pub(super) fn insert(&mut self, entry: Entry) {
        self.heap.push(entry);
        self.rise(self.heap.len() - 1, entry);
    }

    /// Removes a source's entry, if it has one here.
    pub(super) fn remove(&mut self, source: SourceId) {
        let place = core::mem::replace(&mut self.places[source as usize], ABSENT);
        if place == ABSENT {
            return;
        }
        let (place, last) = (place as usize, self.heap.pop().expect("it stands there"));
        if place < self.heap.len() {
            let parent = place.wrapping_sub(1) / ARITY;
            if place > 0 && last < self.heap[parent] {
                self.rise(place, last);
            } else {
                self.sink(place, last);
            }
        }
    }

    fn rise(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if entry > self.heap[parent] {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize, entry: Entry) {
        while let Some((child, least)) = self.least_child(place)
            && least < entry
        {
            self.put(place, least);
            place = child;
        }
        self.put(place, entry);
    }

    fn least_child(&self, place: usize) -> Option<(usize, Entry)> {
        let first = place * ARITY + 1;
        let children = self.heap.get(first..)?.iter().copied().take(ARITY);
        (first..).zip(children).min_by_key(|&(_, child)| child)
    }

    #[inline]
    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.source() as usize] = place as u32;
    }
}
