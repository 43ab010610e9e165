//! Rows of rounded starts: finds the first of many children in constant time.
//!
//! Why: two orders need it, one in virtual and one in real time.
//! From: QFQ (Checconi, Rizzo and Valente, "QFQ: efficient packet scheduling with tight guarantees", 2013).
//! Not here: how time moves, and what a byte costs (`grouped`, `rate_share`).
//! Invariant: a group's base is the row of its earliest child; all of its children are in the [`ROWS`] rows from there on.
//!
//! Children are grouped by the length of a largest packet, rounded up to a power of two. Inside a group, starts are
//! rounded down to that length, so that a few rows, one for each rounded start, and a bitmap sort them. The finish of a group is
//! its rounded start plus twice that length. There are few groups (one for each power of two between the largest and the
//! least weight), so the best one is found by looking at each rather than by QFQ's four bitmaps.

use super::child::Child;
use super::virtual_time::earlier;
use crate::ids::{SlotId, Table};

/// Children by group and rounded start.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// Groups that hold a child.
    busy: u64,
    groups: Vec<Group>,
    pub(crate) children: Table<SlotId, Child<Links>>,
}

#[derive(Clone, Debug)]
struct Group {
    /// log2 of the distance between two rows, in virtual time.
    shift: u32,
    /// Number of the first occupied row, counted from virtual time zero.
    base: u64,
    occupied: u64,
    rows: [Row; ROWS as usize],
}

/// Children of one rounded start, first come first served.
#[derive(Clone, Copy, Debug)]
struct Row {
    front: SlotId,
    back: SlotId,
}

/// A child's neighbours in its row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    next: SlotId,
    prev: SlotId,
    group: u8,
    /// The row, as an index into the group's; or `ABSENT`.
    row: u8,
}

const _: () = assert!(size_of::<Child<Links>>() == 32);

/// Rows of a group.
pub(crate) const ROWS: u64 = 64;
const NONE: SlotId = SlotId::NONE;
const ABSENT: u8 = u8::MAX;

impl Rows {
    /// A group with its rows.
    pub(crate) const GROUP_BYTES: usize = size_of::<Group>();
    pub(crate) const CHILD_BYTES: usize = size_of::<Child<Links>>();

    /// Children by what a byte adds to each one's start.
    pub(crate) fn new(inverses: impl Iterator<Item = u64>) -> Self {
        let place = Links { next: NONE, prev: NONE, group: 0, row: ABSENT };
        let child = |inverse| Child { start: 0, inverse, rest: 0, place };
        Self { busy: 0, groups: Vec::new(), children: inverses.map(child).collect() }
    }

    /// Puts a child, which must not be queued, into the group of those whose largest packet is about as long. May add
    /// a group: called when a policy changes, not per packet.
    pub(crate) fn join_group(&mut self, slot: SlotId, longest: u64) {
        let shift = longest.clamp(2, 1 << 60).next_power_of_two().ilog2();
        let found = self.groups.iter().position(|group| group.shift == shift);
        let group = found.unwrap_or_else(|| {
            let empty = Row { front: NONE, back: NONE };
            self.groups.push(Group { shift, base: 0, occupied: 0, rows: [empty; ROWS as usize] });
            self.groups.len() - 1
        });
        self.children[slot].place.group = u8::try_from(group).expect("at most 64 powers of two");
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.busy == 0
    }

    #[inline]
    pub(crate) fn is_queued(&self, slot: SlotId) -> bool {
        self.children[slot].place.row != ABSENT
    }

    /// Children that are not queued.
    pub(crate) fn idle(&mut self) -> impl Iterator<Item = &mut Child<Links>> {
        self.children.iter_mut().filter(|child| child.place.row == ABSENT)
    }

    /// How many groups there are.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The only busy group, if there is one.
    #[inline]
    pub(crate) fn only_group(&self) -> Option<usize> {
        self.busy.is_power_of_two().then(|| self.busy.trailing_zeros() as usize)
    }

    /// The rounded start of a group's first child.
    #[inline]
    pub(crate) fn start_of(&self, group: usize) -> u64 {
        self.groups[group].base << self.groups[group].shift
    }

    /// The first child of a busy group.
    #[inline]
    pub(crate) fn first_of(&self, group: usize) -> SlotId {
        self.groups[group].first()
    }

    /// The least rounded start; at least one child must be queued.
    #[inline]
    pub(crate) fn first_start(&self) -> u64 {
        let mut left = self.busy & (self.busy - 1);
        let mut first = self.start_of(self.busy.trailing_zeros() as usize);
        while left != 0 {
            let start = self.start_of(left.trailing_zeros() as usize);
            left &= left - 1;
            if earlier(start, first) {
                first = start;
            }
        }
        first
    }

    /// Of the groups whose start has come at `v`, the one with the least finish, and that.
    #[inline]
    pub(crate) fn best(&self, v: u64) -> Option<(u64, usize)> {
        let mut best: Option<(u64, usize)> = None;
        let mut left = self.busy;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let start = self.start_of(index);
            let finish = start.wrapping_add(2 << self.groups[index].shift);
            if !earlier(v, start) && best.is_none_or(|(least, _)| earlier(finish, least)) {
                best = Some((finish, index));
            }
        }
        best
    }

    /// Like [`Rows::best`], but a group counts only once its first child's exact start has come.
    #[inline]
    pub(crate) fn best_started(&self, v: u64) -> Option<(u64, SlotId)> {
        let mut best: Option<(u64, SlotId)> = None;
        let mut left = self.busy;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let first = self.first_of(index);
            let finish = self.start_of(index).wrapping_add(2 << self.groups[index].shift);
            let started = self.children[first].start <= v;
            if started && best.is_none_or(|(least, _)| earlier(finish, least)) {
                best = Some((finish, first));
            }
        }
        best
    }

    /// The least start of all groups' first children.
    pub(crate) fn first_of_all(&self) -> Option<u64> {
        let mut left = self.busy;
        let mut first = None;
        while left != 0 {
            let start = self.children[self.first_of(left.trailing_zeros() as usize)].start;
            left &= left - 1;
            first = Some(first.map_or(start, |first: u64| first.min(start)));
        }
        first
    }

    /// The children behind `slot` in the same row of equal starts, as far as there are any.
    #[inline]
    pub(crate) fn upcoming(&self, slot: SlotId) -> [Option<SlotId>; 3] {
        let mut at = slot;
        core::array::from_fn(|_| {
            at = self.children.get(at)?.place.next;
            (at != NONE).then_some(at)
        })
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: SlotId) {
        self.children.prefetch(slot);
    }

    #[inline]
    pub(crate) fn link(&mut self, slot: SlotId) {
        self.enter(slot, self.children[slot]);
    }

    #[inline]
    pub(crate) fn unlink(&mut self, slot: SlotId) {
        let child = &mut self.children[slot];
        if child.place.row != ABSENT {
            let before = child.place;
            child.place.row = ABSENT;
            self.leave(before);
        }
    }

    /// Writes the record of a child, which must not be queued, and puts it at the end of the row for its start.
    #[inline(always)]
    pub(crate) fn enter(&mut self, slot: SlotId, mut child: Child<Links>) {
        let place = &mut child.place;
        let group = &mut self.groups[place.group as usize];
        if group.occupied == 0 {
            self.busy |= 1 << place.group;
        }
        let index = (group.admit(child.start >> group.shift) % ROWS) as u8;
        let row = &mut group.rows[usize::from(index) % ROWS as usize];
        let back = core::mem::replace(&mut row.back, slot);
        if back == NONE {
            row.front = slot;
            group.occupied |= 1 << index;
        } else {
            self.children[back].place.next = slot;
        }
        (place.row, place.next, place.prev) = (index, NONE, back);
        self.children[slot] = child;
    }

    /// Puts a child, which must not be queued, in front of the row for its start.
    pub(crate) fn link_first(&mut self, slot: SlotId) {
        let mut child = self.children[slot];
        let place = &mut child.place;
        let group = &mut self.groups[place.group as usize];
        self.busy |= 1 << place.group;
        let index = (group.admit(child.start >> group.shift) % ROWS) as u8;
        let row = &mut group.rows[usize::from(index) % ROWS as usize];
        let front = core::mem::replace(&mut row.front, slot);
        if front == NONE {
            row.back = slot;
            group.occupied |= 1 << index;
        } else {
            self.children[front].place.prev = slot;
        }
        (place.row, place.next, place.prev) = (index, front, NONE);
        self.children[slot] = child;
    }

    /// Takes the child that stands there out of its row.
    #[inline(always)]
    pub(crate) fn leave(&mut self, place: Links) {
        let Links { next, prev, group, row: index } = place;
        let home = &mut self.groups[group as usize];
        let row = &mut home.rows[usize::from(index) % ROWS as usize];
        if prev == NONE {
            row.front = next
        } else {
            self.children[prev].place.next = next
        }
        if next == NONE {
            row.back = prev
        } else {
            self.children[next].place.prev = prev
        }
        if row.front == NONE {
            home.vacate(index);
            if home.occupied == 0 {
                self.busy &= !(1 << group);
            }
        }
    }

    /// The group and the row of a queued child, and whether it is the first there.
    #[inline]
    pub(crate) fn place(&self, slot: SlotId) -> (u8, u8, bool) {
        let Links { group, row, prev, .. } = self.children[slot].place;
        (group, row, prev == NONE)
    }
}

impl Group {
    /// The row to use for a start that rounds to row `number`, kept within those that the group has.
    #[inline]
    fn admit(&mut self, number: u64) -> u64 {
        let mask = u64::MAX >> self.shift; // row numbers wrap with virtual time
        if self.occupied == 0 {
            self.base = number;
            return number;
        }
        let ahead = number.wrapping_sub(self.base) & mask;
        if ahead > mask / 2 {
            let back = (self.base.wrapping_sub(number) & mask).min(ROWS - 1 - self.span());
            self.base = self.base.wrapping_sub(back) & mask;
            return self.base;
        }
        self.base.wrapping_add(ahead.min(ROWS - 1)) & mask
    }

    /// Distance from the base to the last occupied row.
    fn span(&self) -> u64 {
        u64::from(63 - self.occupied_ahead().leading_zeros())
    }

    /// The occupied rows as bits, the base first.
    #[inline]
    fn occupied_ahead(&self) -> u64 {
        self.occupied.rotate_right((self.base % ROWS) as u32)
    }

    #[inline]
    fn vacate(&mut self, row: u8) {
        self.occupied &= !(1 << row);
        if self.occupied != 0 {
            self.base = self.base.wrapping_add(u64::from(self.occupied_ahead().trailing_zeros()))
                & (u64::MAX >> self.shift);
        }
    }

    #[inline]
    fn first(&self) -> SlotId {
        self.rows[(self.base % ROWS) as usize].front
    }
}
