//! Jump pointers: which children will be served soon, where there are more of them than a cache holds.
//!
//! Why: rows are linked lists, and each step along a list costs a cache miss, some 200 ns. So each child points to one that
//! stands far behind it, which is fetched in time.
//! From: jump pointers (Luk and Mowry, "Compiler-based prefetching for recursive data structures", 1996).
//! Not here: the rows themselves (`rows`), and what hangs below a child (`tree`).
//! Invariant: only hints: no decision depends on them.

use super::rows::ROWS;
use crate::ids::SlotId;

/// What is needed to set and to follow the jump pointers of a node's children.
#[derive(Clone, Debug)]
pub(crate) struct JumpPointers {
    /// The children that joined last, by group and row.
    rows: Vec<Recent>,
    /// The children that were jumped to last, by group.
    targets: Vec<Recent>,
}

/// The last few children, in a circle.
#[derive(Clone, Copy, Debug)]
struct Recent {
    ids: [SlotId; AHEAD],
    at: u32,
}

/// Children in a row from one to the one that it points to: a power of two. See docs/performance.md, "A million classes".
const AHEAD: usize = 8;
/// Services between two looks at a child that was jumped to: what one look fetched has arrived by the next.
const STAGE: u32 = 3;
/// Fewer children fit into the cache anyway.
const WORTHWHILE: usize = 4_096;
/// A jump pointer is kept in the spare bits of a rate.
pub(crate) const JUMP_BITS: u32 = 21;
const NO_CHILD: SlotId = SlotId((1 << JUMP_BITS) - 1);

impl JumpPointers {
    /// Jump pointers for `children`, if looking ahead pays and their numbers fit.
    pub(crate) fn new(children: usize) -> Option<Box<Self>> {
        let useful = (WORTHWHILE..NO_CHILD.0 as usize).contains(&children);
        useful.then(|| Box::new(Self { rows: Vec::new(), targets: Vec::new() }))
    }

    /// Bytes for `children` in one group, pointers in the rates' spare bits not counted.
    pub(crate) fn bytes(children: usize) -> usize {
        let group = (ROWS as usize + 1) * size_of::<Recent>();
        Self::new(children).map_or(0, |_| size_of::<Self>() + group)
    }

    /// Makes room for `groups`.
    pub(crate) fn reserve(&mut self, groups: usize) {
        self.rows.resize(groups * ROWS as usize, Recent::EMPTY);
        self.targets.resize(groups, Recent::EMPTY);
    }

    /// The child `id` joins a row at its end. Returns the child that joined [`AHEAD`] places before it, and is
    /// to point to it.
    #[inline]
    pub(crate) fn join(&mut self, id: SlotId, group: u8, row: u8, was_empty: bool) -> Option<SlotId> {
        let recent = &mut self.rows[usize::from(group) * ROWS as usize + usize::from(row)];
        if was_empty {
            *recent = Recent::EMPTY;
        }
        let before = recent.push(id);
        (before != NO_CHILD).then_some(before)
    }

    /// A child of the group, which points to `far`, is about to be served. Returns `far`, and two earlier targets.
    #[inline]
    pub(crate) fn look(&mut self, group: u8, far: SlotId) -> [Option<SlotId>; 3] {
        let targets = &mut self.targets[usize::from(group)];
        targets.push(far);
        [0, STAGE, 2 * STAGE].map(|before| {
            let id = targets.ids[(targets.at.wrapping_sub(1 + before)) as usize % AHEAD];
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

/// A child's rate, and its jump pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateAndJump(u64);

impl RateAndJump {
    pub(crate) fn new(bits: u64) -> Self {
        Self(bits << JUMP_BITS | u64::from(NO_CHILD.0))
    }

    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0 >> JUMP_BITS
    }

    #[inline]
    pub(crate) fn jump(self) -> SlotId {
        SlotId(self.0 as u32 & NO_CHILD.0)
    }

    #[inline]
    pub(crate) fn set_jump(&mut self, id: Option<SlotId>) {
        self.0 = self.0 & !u64::from(NO_CHILD.0) | u64::from(id.unwrap_or(NO_CHILD).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_eight_places_before_names_the_newcomer() {
        let mut jumps = JumpPointers::new(5_000).expect("enough children");
        jumps.reserve(1);
        let named: Vec<_> = (0..20).map(|id| jumps.join(SlotId(id), 0, 5, id == 0)).collect();
        let expected: Vec<_> = (0..20_u32).map(|id| id.checked_sub(AHEAD as u32).map(SlotId)).collect();
        assert_eq!(named, expected);
        assert_eq!(jumps.join(SlotId(99), 0, 5, true), None, "the row was empty meanwhile");
    }

    #[test]
    fn a_rate_keeps_its_bits_when_a_name_is_set() {
        let mut rate = RateAndJump::new(1 << 42);
        assert_eq!(rate.jump(), NO_CHILD);
        rate.set_jump(Some(SlotId(1_999_999)));
        assert_eq!((rate.bits(), rate.jump()), (1 << 42, SlotId(1_999_999)));
        rate.set_jump(None);
        assert_eq!((rate.bits(), rate.jump()), (1 << 42, NO_CHILD));
    }
}
