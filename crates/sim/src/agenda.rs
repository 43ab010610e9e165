//! What happens next: one moment for each source of events.
//!
//! Why: a link, a host or a timer has at most one next moment, which moves often; a heap in which each source has one
//! place stays as small as the world, and holds nothing stale.
//! From: an indexed 4-ary heap (fewer levels than a binary one, and a node's children share a cache line or two).
//! Not here: what a source does when its moment comes (`world`).
//! Invariant: sources leave in the order of (moment, order of setting), so that a run never depends on anything else.

use plimsoll_units::Nanos;

/// Names a source of events.
pub(crate) type SourceId = u32;

/// The next moment of every source that has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agenda {
    heap: Vec<Entry>,
    /// Where each source stands in the heap.
    places: Vec<u32>,
    set: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    set: u64,
    source: SourceId,
}

impl Entry {
    #[inline]
    fn before(&self, other: &Self) -> bool {
        (self.at, self.set) < (other.at, other.set)
    }
}

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

impl Agenda {
    /// For so many sources, none of which has a moment yet.
    pub(crate) fn new(sources: usize) -> Self {
        Self { heap: Vec::with_capacity(sources), places: vec![ABSENT; sources], set: 0 }
    }

    /// The earliest moment, and whose it is.
    #[inline]
    pub(crate) fn first(&self) -> Option<(Nanos, SourceId)> {
        self.heap.first().map(|entry| (Nanos::new(entry.at), entry.source))
    }

    /// Gives a source its moment, in place of the one that it may have.
    #[inline]
    pub(crate) fn set(&mut self, source: SourceId, at: Nanos) {
        self.set += 1;
        let entry = Entry { at: at.as_u64(), set: self.set, source };
        let place = self.places[source as usize];
        if place == ABSENT {
            self.heap.push(entry);
            return self.rise(self.heap.len() - 1, entry);
        }
        let place = place as usize;
        if entry.at < self.heap[place].at { self.rise(place, entry) } else { self.sink(place, entry) }
    }

    /// As [`Agenda::set`], unless the source stands there with this moment already.
    #[inline]
    pub(crate) fn keep(&mut self, source: SourceId, at: Option<Nanos>) {
        match at {
            None => self.clear(source),
            Some(at) if self.moment(source) != Some(at) => self.set(source, at),
            Some(_) => {}
        }
    }

    /// The moment of a source.
    #[inline]
    pub(crate) fn moment(&self, source: SourceId) -> Option<Nanos> {
        let place = self.places[source as usize];
        (place != ABSENT).then(|| Nanos::new(self.heap[place as usize].at))
    }

    /// Takes a source's moment away.
    #[inline]
    pub(crate) fn clear(&mut self, source: SourceId) {
        let place = core::mem::replace(&mut self.places[source as usize], ABSENT);
        if place == ABSENT {
            return;
        }
        let (place, last) = (place as usize, self.heap.pop().expect("it stands there"));
        if place < self.heap.len() {
            let parent = place.wrapping_sub(1) / ARITY;
            if place > 0 && last.before(&self.heap[parent]) {
                self.rise(place, last);
            } else {
                self.sink(place, last);
            }
        }
    }

    #[inline]
    fn rise(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if !entry.before(&self.heap[parent]) {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    #[inline]
    fn sink(&mut self, mut place: usize, entry: Entry) {
        loop {
            let first = place * ARITY + 1;
            let Some(children) = self.heap.get(first..) else { break };
            let mut least = None;
            for (index, child) in children.iter().take(ARITY).enumerate() {
                if child.before(least.map_or(&entry, |at: usize| &self.heap[at])) {
                    least = Some(first + index);
                }
            }
            let Some(least) = least else { break };
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }

    #[inline]
    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.source as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// The first is always the one that a sorted set has first, however moments move.
        #[test]
        fn agrees_with_a_sorted_set(
            ops in proptest::collection::vec((0_u32..20, 0_u64..50, 0_u8..4), 1..400),
        ) {
            let mut agenda = Agenda::new(20);
            let mut oracle: BTreeSet<(u64, u64, u32)> = BTreeSet::new();
            for (step, (source, at, op)) in ops.into_iter().enumerate() {
                oracle.retain(|&(.., other)| other != source);
                if op == 0 {
                    agenda.clear(source);
                } else {
                    agenda.set(source, Nanos::new(at));
                    oracle.insert((at, step as u64, source));
                }
                let first = oracle.first().map(|&(at, _, source)| (Nanos::new(at), source));
                proptest::prop_assert_eq!(agenda.first(), first);
            }
            while let Some((_, source)) = agenda.first() {
                proptest::prop_assert_eq!(oracle.pop_first().map(|(.., source)| source), Some(source));
                agenda.clear(source);
            }
            proptest::prop_assert!(oracle.is_empty());
        }
    }
}
