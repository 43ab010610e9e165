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

/// A moment, the number of its setting, and whose it is, in one integer that sorts as they do: a comparison without a
/// branch, and a node's children in one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

impl Entry {
    /// Sources have 24 bits, and settings 40: at ten million a second, a day's worth.
    const SOURCE_BITS: u32 = 24;

    #[inline]
    fn new(at: Nanos, set: u64, source: SourceId) -> Self {
        debug_assert!(source >> Self::SOURCE_BITS == 0 && set >> (64 - Self::SOURCE_BITS) == 0);
        Self(u128::from(at.as_u64()) << 64 | u128::from(set << Self::SOURCE_BITS | u64::from(source)))
    }

    #[inline]
    fn at(self) -> Nanos {
        Nanos::new((self.0 >> 64) as u64)
    }

    #[inline]
    fn source(self) -> SourceId {
        self.0 as SourceId & ((1 << Self::SOURCE_BITS) - 1)
    }
}

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

impl Agenda {
    /// The most sources that there can be.
    pub(crate) const MOST: usize = 1 << Entry::SOURCE_BITS;

    /// For so many sources, none of which has a moment yet.
    pub(crate) fn new(sources: usize) -> Self {
        assert!(sources <= Self::MOST, "more sources of events than there are numbers for them");
        Self { heap: Vec::with_capacity(sources), places: vec![ABSENT; sources], set: 0 }
    }

    /// The earliest moment, and whose it is.
    #[inline]
    pub(crate) fn first(&self) -> Option<(Nanos, SourceId)> {
        self.heap.first().map(|entry| (entry.at(), entry.source()))
    }

    /// Gives a source its moment, in place of the one that it may have.
    #[inline]
    pub(crate) fn set(&mut self, source: SourceId, at: Nanos) {
        self.set += 1;
        let entry = Entry::new(at, self.set, source);
        let place = self.places[source as usize];
        if place == ABSENT {
            self.heap.push(entry);
            return self.rise(self.heap.len() - 1, entry);
        }
        let place = place as usize;
        if entry < self.heap[place] { self.rise(place, entry) } else { self.sink(place, entry) }
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

    /// The source that is first has had its moment: gives it the next one, if it has one.
    #[inline]
    pub(crate) fn renew(&mut self, source: SourceId, at: Option<Nanos>) {
        match at {
            None => self.clear(source),
            Some(at) => self.set(source, at),
        }
    }

    /// The moment of a source.
    #[inline]
    pub(crate) fn moment(&self, source: SourceId) -> Option<Nanos> {
        let place = self.places[source as usize];
        (place != ABSENT).then(|| self.heap[place as usize].at())
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
            if place > 0 && last < self.heap[parent] {
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
            if entry > self.heap[parent] {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    #[inline]
    fn sink(&mut self, mut place: usize, entry: Entry) {
        while let Some((child, least)) = self.least_child(place)
            && least < entry
        {
            self.put(place, least);
            place = child;
        }
        self.put(place, entry);
    }

    #[inline]
    fn least_child(&self, place: usize) -> Option<(usize, Entry)> {
        let first = place * ARITY + 1;
        let children = self.heap.get(first..)?;
        if let Some(&[a, b, c, d]) = children.first_chunk::<ARITY>() {
            let (left, right) = (
                if b < a { (first + 1, b) } else { (first, a) },
                if d < c { (first + 3, d) } else { (first + 2, c) },
            );
            return Some(if right.1 < left.1 { right } else { left });
        }
        (first..).zip(children.iter().copied()).min_by_key(|&(_, child)| child)
    }

    #[inline]
    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.source() as usize] = place as u32;
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
