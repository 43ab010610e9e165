//! The event queue: one next moment for each source of events.
//!
//! Why: a link, a host or a timer has at most one next moment, which moves often; where each source has one place, the
//! agenda stays as small as the world, and holds nothing stale.
//! From: a calendar queue (Brown, 1988) for what is near, whose cost does not grow with the number of sources; a heap for
//! what is far, mostly timers that never come due.
//! Not here: what a source does when its moment comes (`world`).
//! Invariant: sources of an island leave in the order of (moment, order of setting), so that a run never depends on anything
//! else.

mod calendar;
mod heap;

use plimsoll_units::Nanos;

use calendar::Calendar;
use heap::Heap;

/// The number of a source of events.
pub(crate) type SourceId = u32;

/// The next moment of every source that has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agenda {
    near: Calendar,
    far: Heap,
    set: u64,
    /// By island: what is scheduled there while it is another one's turn.
    others: Vec<(Calendar, Heap)>,
    /// The island whose turn it is.
    turn: usize,
}

/// A moment, the number of its setting and its source, in one integer that sorts in this order: a comparison without a
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
    fn set(self) -> u64 {
        self.0 as u64 >> Self::SOURCE_BITS
    }

    #[inline]
    fn source(self) -> SourceId {
        self.0 as SourceId & ((1 << Self::SOURCE_BITS) - 1)
    }
}

impl Agenda {
    /// The largest number of sources.
    pub(crate) const MOST: usize = 1 << Entry::SOURCE_BITS;

    /// An agenda for this number of sources, none of which has a moment yet, on this number of islands.
    pub(crate) fn new(sources: usize, islands: usize) -> Self {
        assert!(sources <= Self::MOST, "more sources of events than there are numbers for them");
        let others = (0..islands.max(1)).map(|_| Default::default()).collect();
        Self { near: Calendar::new(sources), far: Heap::new(sources), set: 0, others, turn: 0 }
    }

    /// The number of islands.
    pub(crate) fn islands(&self) -> usize {
        self.others.len()
    }

    /// Gives an island its turn: from then on, all sources that are asked for or set must be its own.
    pub(crate) fn give_turn(&mut self, island: usize) {
        if island == self.turn {
            return;
        }
        for number in [self.turn, island] {
            let (near, far) = &mut self.others[number];
            self.near.exchange(near);
            self.far.exchange(far);
        }
        self.turn = island;
    }

    /// Adds a source, which has no moment yet, behind the last one.
    pub(crate) fn add(&mut self) {
        self.near.add();
        self.far.add();
    }

    /// The earliest moment of the island, with its source. None of its sources is set to an earlier one from then on.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(Nanos, SourceId)> {
        let first = match (self.near.first(), self.far.first()) {
            (Some(near), Some(far)) => near.min(far),
            (near, far) => near.or(far)?,
        };
        self.near.turn_to(first.at());
        Some((first.at(), first.source()))
    }

    /// Gives a source its moment, in place of the one that it may have.
    #[inline]
    pub(crate) fn set(&mut self, source: SourceId, at: Nanos) {
        self.clear(source);
        self.set += 1;
        let entry = Entry::new(at, self.set, source);
        if self.near.covers(at) {
            if self.near.insert(entry) {
                self.refine();
            }
        } else {
            self.far.insert(entry);
        }
    }

    /// Like [`Agenda::set`], but a source that has this moment already keeps its place.
    #[inline]
    pub(crate) fn keep(&mut self, source: SourceId, at: Option<Nanos>) {
        match at {
            None => self.clear(source),
            Some(at) if self.moment(source) != Some(at) => self.set(source, at),
            Some(_) => {}
        }
    }

    /// Sets the next moment of a source whose moment has come: behind other sources with the same moment.
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
        self.near.moment(source).or_else(|| self.far.moment(source))
    }

    /// Removes a source's moment.
    #[inline]
    pub(crate) fn clear(&mut self, source: SourceId) {
        if !self.near.remove(source) {
            self.far.remove(source);
        }
    }

    /// Makes days shorter, because too many moments share one; entries that they no longer cover go to the heap.
    #[cold]
    fn refine(&mut self) {
        for entry in self.near.shorten_days() {
            self.far.insert(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// The next is always the one that a sorted set has first, however moments move, near and far.
        #[test]
        fn agrees_with_a_sorted_set(
            ops in proptest::collection::vec((0_u32..40, 0_u64..1 << 24, 0_u32..24, 0_u8..6), 1..600),
        ) {
            let mut agenda = Agenda::new(40, 1);
            let mut oracle: BTreeSet<(u64, u64, u32)> = BTreeSet::new();
            let mut now = 0;
            for (step, (source, ahead, shift, op)) in ops.into_iter().enumerate() {
                let next = agenda.next();
                proptest::prop_assert_eq!(next, oracle.first().map(|&(at, _, source)| (Nanos::new(at), source)));
                // Some take the next one's turn, others come from elsewhere; none is set before now.
                let turn = next.filter(|_| op < 3);
                now = turn.map_or(now, |(at, _)| at.as_u64());
                let source = turn.map_or(source, |(_, source)| source);
                oracle.retain(|&(.., other)| other != source);
                if op == 0 {
                    agenda.clear(source);
                    proptest::prop_assert_eq!(agenda.moment(source), None);
                } else {
                    let at = now + (ahead >> shift);
                    agenda.set(source, Nanos::new(at));
                    proptest::prop_assert_eq!(agenda.moment(source), Some(Nanos::new(at)));
                    oracle.insert((at, step as u64, source));
                }
            }
            while let Some((_, source)) = agenda.next() {
                proptest::prop_assert_eq!(oracle.pop_first().map(|(.., source)| source), Some(source));
                agenda.clear(source);
            }
            proptest::prop_assert!(oracle.is_empty());
        }
    }

    #[test]
    fn a_crowded_agenda_keeps_its_order() {
        let mut agenda = Agenda::new(10_000, 1);
        (0..10_000).for_each(|source| agenda.set(source, Nanos::new(u64::from(source) * 7_919 % 10_007)));
        let mut before = Nanos::ZERO;
        for left in (0..10_000).rev() {
            let (at, source) = agenda.next().expect("one is left");
            assert!(at >= before, "in order, with {left} left");
            assert_eq!(at.as_u64(), u64::from(source) * 7_919 % 10_007);
            before = at;
            agenda.clear(source);
        }
        assert_eq!(agenda.next(), None);
    }
}
