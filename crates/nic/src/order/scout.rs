//! Looks ahead to the children that will be served soon, among more than a cache holds.
//!
//! Why: rows are linked lists, and each step along a list costs a cache miss, some 200 ns. So each child names one that stands
//! far behind it, which is fetched in time.
//! From: jump pointers (Luk and Mowry, "Compiler-based prefetching for recursive data structures", 1996).
//! Not here: the rows themselves (`rows`), and what hangs below a child (`tree`).
//! Invariant: only hints: no decision depends on them.

use super::rows::ROWS;
use crate::ids::SlotId;

/// Looks ahead along the rows of a node's children.
#[derive(Clone, Debug)]
pub(crate) struct Scout {
    /// The children that joined last, by group and row.
    rows: Vec<Recent>,
    /// The children that were named last, by group.
    named: Vec<Recent>,
}

/// The last few children, in a circle.
#[derive(Clone, Copy, Debug)]
struct Recent {
    ids: [SlotId; AHEAD],
    at: u32,
}

/// How far behind a child the one is that it names, in children of their row: a power of two. See docs/performance.md, "A million classes".
const AHEAD: usize = 8;
/// Services between two looks at a named child: what one look fetched has arrived by the next.
const STAGE: u32 = 3;
/// Fewer children fit into the cache anyway.
const WORTHWHILE: usize = 4_096;
/// A name is kept in the spare bits of a rate.
pub(crate) const NAME_BITS: u32 = 21;
const NO_CHILD: SlotId = SlotId((1 << NAME_BITS) - 1);

impl Scout {
    /// A scout for `children`, if looking ahead pays and a name can tell them apart.
    pub(crate) fn new(children: usize) -> Option<Box<Self>> {
        let useful = (WORTHWHILE..NO_CHILD.0 as usize).contains(&children);
        useful.then(|| Box::new(Self { rows: Vec::new(), named: Vec::new() }))
    }

    /// Bytes of a scout for `children` in one group.
    pub(crate) fn bytes(children: usize) -> usize {
        let group = (ROWS as usize + 1) * size_of::<Recent>();
        Self::new(children).map_or(0, |_| size_of::<Self>() + group)
    }

    /// Makes room for `groups`.
    pub(crate) fn reserve(&mut self, groups: usize) {
        self.rows.resize(groups * ROWS as usize, Recent::EMPTY);
        self.named.resize(groups, Recent::EMPTY);
    }

    /// The child `id` joins a row at its end. Returns the child that joined [`AHEAD`] places before it, and names it from now on.
    #[inline]
    pub(crate) fn join(&mut self, id: SlotId, group: u8, row: u8, was_empty: bool) -> Option<SlotId> {
        let recent = &mut self.rows[usize::from(group) * ROWS as usize + usize::from(row)];
        if was_empty {
            *recent = Recent::EMPTY;
        }
        let before = recent.push(id);
        (before != NO_CHILD).then_some(before)
    }

    /// A child of the group, which names `far`, is about to be served. Returns `far`, and two children that were named before.
    #[inline]
    pub(crate) fn look(&mut self, group: u8, far: SlotId) -> [Option<SlotId>; 3] {
        let named = &mut self.named[usize::from(group)];
        named.push(far);
        [0, STAGE, 2 * STAGE].map(|before| {
            let id = named.ids[(named.at.wrapping_sub(1 + before)) as usize % AHEAD];
            (id != NO_CHILD).then_some(id)
        })
    }
}

impl Recent {
    const EMPTY: Self = Self { ids: [NO_CHILD; AHEAD], at: 0 };

    /// Notes a child in place of the oldest, and returns that.
    #[inline]
    fn push(&mut self, id: SlotId) -> SlotId {
        let oldest = core::mem::replace(&mut self.ids[self.at as usize % AHEAD], id);
        self.at = self.at.wrapping_add(1);
        oldest
    }
}

/// A rate, and the child that its child names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateAndName(u64);

impl RateAndName {
    pub(crate) fn new(bits: u64) -> Self {
        Self(bits << NAME_BITS | u64::from(NO_CHILD.0))
    }

    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0 >> NAME_BITS
    }

    #[inline]
    pub(crate) fn name(self) -> SlotId {
        SlotId(self.0 as u32 & NO_CHILD.0)
    }

    #[inline]
    pub(crate) fn set_name(&mut self, id: Option<SlotId>) {
        self.0 = self.0 & !u64::from(NO_CHILD.0) | u64::from(id.unwrap_or(NO_CHILD).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_eight_places_before_names_the_newcomer() {
        let mut scout = Scout::new(5_000).expect("enough children");
        scout.reserve(1);
        let named: Vec<_> = (0..20).map(|id| scout.join(SlotId(id), 0, 5, id == 0)).collect();
        let expected: Vec<_> = (0..20_u32).map(|id| id.checked_sub(AHEAD as u32).map(SlotId)).collect();
        assert_eq!(named, expected);
        assert_eq!(scout.join(SlotId(99), 0, 5, true), None, "the row was empty meanwhile");
    }

    #[test]
    fn a_rate_keeps_its_bits_when_a_name_is_set() {
        let mut rate = RateAndName::new(1 << 42);
        assert_eq!(rate.name(), NO_CHILD);
        rate.set_name(Some(SlotId(1_999_999)));
        assert_eq!((rate.bits(), rate.name()), (1 << 42, SlotId(1_999_999)));
        rate.set_name(None);
        assert_eq!((rate.bits(), rate.name()), (1 << 42, NO_CHILD));
    }
}
