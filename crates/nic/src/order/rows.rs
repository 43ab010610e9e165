//! Rows of rounded starts: finds the first of many children in constant time.
//!
//! Why: two orders need it, one in virtual and one in real time.
//! From: QFQ (Checconi, Rizzo and Valente, "QFQ: efficient packet scheduling with tight guarantees", 2013).
//! Not here: how time moves, and what a byte costs (`grouped`, `rate_share`).
//! Invariant: a group's base is the row of its earliest child; all of its children are in the [`ROWS`] rows from there on.
//!
//! Children are grouped by the length of a largest packet, rounded up to a power of two. Inside a group, starts are
//! rounded down to that length or a part of it, so that some rows, one for each rounded start, and a bitmap sort them. The finish
//! of a group is its rounded start, plus that length, plus the distance between two rows. There are few groups (one for each power
//! of two between the largest and the least weight), so the best one is found by looking at each rather than by QFQ's four bitmaps.

use super::child::Child;
use super::virtual_time::earlier;
use crate::ids::{SlotId, Table};

/// Children by group and rounded start.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// Groups that hold a child.
    busy: u64,
    /// log2 of the rows in the length of a group's largest packet.
    split: u32,
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
    /// Of no meaning in the first child of a row: a child that leaves from there, as nearly all do, writes nothing to the next.
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

    /// Children by what a byte adds to each one's start. `split` is log2 of how many rows there are in the length of a largest packet.
    pub(crate) fn new(inverses: impl Iterator<Item = u64>, split: u32) -> Self {
        let place = Links { next: NONE, prev: NONE, group: 0, row: ABSENT };
        let child = |inverse| Child { start: 0, inverse, rest: 0, place };
        Self { busy: 0, split, groups: Vec::new(), children: inverses.map(child).collect() }
    }

    /// Puts a child, which must not be queued, into the group of those whose largest packet is about as long. May add
    /// a group: called when a policy changes, not per packet.
    pub(crate) fn join_group(&mut self, slot: SlotId, longest: u64) {
        let shift = longest.clamp(2 << self.split, 1 << 60).next_power_of_two().ilog2() - self.split;
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

    /// From a group's rounded start to its finish.
    #[inline]
    fn reach(&self, group: usize) -> u64 {
        (1 + (1 << self.split)) << self.groups[group].shift
    }

    /// The first child of a busy group, and its rounded start.
    #[inline]
    pub(crate) fn first_of(&self, group: usize) -> (u64, SlotId) {
        let group = &self.groups[group];
        (group.base << group.shift, group.first())
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
            let finish = start.wrapping_add(self.reach(index));
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
            let (start, first) = self.first_of(index);
            let finish = start.wrapping_add(self.reach(index));
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
            let start = self.children[self.first_of(left.trailing_zeros() as usize).1].start;
            left &= left - 1;
            first = Some(first.map_or(start, |first: u64| first.min(start)));
        }
        first
    }

    /// The child behind `slot` in the same row of equal starts, or `NONE`; and brings its record into the cache.
    #[inline]
    pub(crate) fn next_in_row(&self, slot: SlotId) -> SlotId {
        let next = self.children.get(slot).map_or(NONE, |child| child.place.next);
        self.prefetch(next);
        next
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: SlotId) {
        self.children.prefetch(slot);
    }

    /// Puts a child, which must not be queued, at the end of the row for its start.
    #[inline]
    pub(crate) fn link(&mut self, slot: SlotId) {
        let child = &mut self.children[slot];
        let group = &mut self.groups[child.place.group as usize];
        self.busy |= 1 << child.place.group;
        let back = group.push_back(slot, child);
        if back != NONE {
            self.children[back].place.next = slot;
        }
    }

    #[inline]
    pub(crate) fn unlink(&mut self, slot: SlotId) {
        let child = &mut self.children[slot];
        let before = child.place;
        if before.row == ABSENT {
            return;
        }
        child.place.row = ABSENT;
        if !self.leave(slot, before) {
            self.busy &= !(1 << before.group);
        }
    }

    /// Moves a queued child to the end of the row for another start.
    #[inline(always)]
    pub(crate) fn requeue(&mut self, slot: SlotId, start: u64) {
        let place = self.children[slot].place;
        self.leave(slot, place);
        let child = &mut self.children[slot];
        child.start = start;
        let back = self.groups[place.group as usize].push_back(slot, child);
        if back != NONE {
            self.children[back].place.next = slot;
        }
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
        (place.row, place.next) = (index, front);
        self.children[slot] = child;
    }

    /// Takes the child that stands there out of its row. Returns whether its group holds others.
    #[inline]
    fn leave(&mut self, slot: SlotId, place: Links) -> bool {
        let Links { next, prev, group, row: index } = place;
        let home = &mut self.groups[group as usize];
        let row = &mut home.rows[usize::from(index) % ROWS as usize];
        if row.front == slot {
            row.front = next;
            if next == NONE {
                home.vacate(index);
            }
        } else {
            self.children[prev].place.next = next;
            if next == NONE { row.back = prev } else { self.children[next].place.prev = prev }
        }
        home.occupied != 0
    }

    /// The group and the row of a queued child, and whether it is the first there.
    #[inline]
    pub(crate) fn place(&self, slot: SlotId) -> (u8, u8, bool) {
        let Links { group, row, .. } = self.children[slot].place;
        (group, row, self.groups[group as usize].rows[usize::from(row) % ROWS as usize].front == slot)
    }
}

impl Group {
    /// Puts a child at the end of the row for its start. Returns the child before it, whose `next` is to name it; `NONE` if it
    /// is the first.
    #[inline]
    fn push_back(&mut self, slot: SlotId, child: &mut Child<Links>) -> SlotId {
        let index = (self.admit(child.start >> self.shift) % ROWS) as u8;
        let row = &mut self.rows[usize::from(index) % ROWS as usize];
        let mut back = NONE;
        if row.front == NONE {
            row.front = slot;
            self.occupied |= 1 << index;
        } else {
            back = row.back;
        }
        row.back = slot;
        let place = &mut child.place;
        (place.row, place.next, place.prev) = (index, NONE, back);
        back
    }

    /// The row to use for a start that rounds to row `number`, kept within those that the group has.
    #[inline]
    fn admit(&mut self, number: u64) -> u64 {
        if self.occupied == 0 {
            self.base = number;
            return number;
        }
        // Row numbers wrap with virtual time: the distance is one of as many bits as they have, with a sign.
        let ahead = number.wrapping_sub(self.base) << self.shift;
        if ahead > u64::MAX / 2 {
            return self.lower_base(number);
        }
        self.base.wrapping_add((ahead >> self.shift).min(ROWS - 1)) & self.mask()
    }

    /// A child comes before all others: the base moves back, as far as the last occupied row allows.
    #[cold]
    fn lower_base(&mut self, number: u64) -> u64 {
        let back = (self.base.wrapping_sub(number) & self.mask()).min(ROWS - 1 - self.span());
        self.base = self.base.wrapping_sub(back) & self.mask();
        self.base
    }

    /// The bits of a row's number.
    #[inline]
    fn mask(&self) -> u64 {
        u64::MAX >> self.shift
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
            self.base =
                self.base.wrapping_add(u64::from(self.occupied_ahead().trailing_zeros())) & self.mask();
        }
    }

    #[inline]
    fn first(&self) -> SlotId {
        self.rows[(self.base % ROWS) as usize].front
    }
}

#[cfg(test)]
mod tests {
    use super::{Rows, SlotId};
    use std::collections::{BTreeMap, VecDeque};

    const CHILDREN: u32 = 12;
    /// log2 of a row's length.
    const SHIFT: u32 = 4;

    fn rows() -> Rows {
        let mut rows = Rows::new((0..CHILDREN).map(|_| 1), 0);
        (0..CHILDREN).for_each(|slot| rows.join_group(SlotId(slot), 1 << SHIFT));
        rows
    }

    proptest::proptest! {
        /// Children leave from the front, from the middle and from the end of their rows as from a map of queues.
        #[test]
        fn agree_with_a_map_of_queues(ops in proptest::collection::vec((0..CHILDREN, 0_u64..32, 0..4_u8), 1..300)) {
            let (mut rows, mut model) = (rows(), BTreeMap::<u64, VecDeque<u32>>::new());
            for (slot, row, op) in ops {
                let queued = rows.is_queued(SlotId(slot));
                let start = row << SHIFT | 3;
                if queued {
                    model.values_mut().for_each(|queue| queue.retain(|&other| other != slot));
                }
                match (op, queued) {
                    (0, true) => rows.unlink(SlotId(slot)),
                    (_, true) => {
                        rows.requeue(SlotId(slot), start);
                        model.entry(row).or_default().push_back(slot);
                    }
                    (1, false) => {
                        rows.children[SlotId(slot)].start = start;
                        rows.link_first(SlotId(slot));
                        model.entry(row).or_default().push_front(slot);
                    }
                    (_, false) => {
                        rows.children[SlotId(slot)].start = start;
                        rows.link(SlotId(slot));
                        model.entry(row).or_default().push_back(slot);
                    }
                }
                model.retain(|_, queue| !queue.is_empty());
                let first = model.first_key_value().map(|(row, queue)| (row << SHIFT, SlotId(queue[0])));
                proptest::prop_assert_eq!(rows.only_group().map(|group| rows.first_of(group)), first);
                for queue in model.values() {
                    let mut at = SlotId(queue[0]);
                    for &slot in queue {
                        proptest::prop_assert_eq!(at, SlotId(slot));
                        at = rows.next_in_row(at);
                    }
                    proptest::prop_assert_eq!(at, SlotId::NONE);
                }
            }
        }
    }
}
