//! Rows of rounded starts: finds the first of many children in constant time.
//!
//! Why: two orders need it, one in virtual and one in real time.
//! From: QFQ (Checconi, Rizzo and Valente, "QFQ: efficient packet scheduling with tight guarantees", 2013).
//! Not here: how time moves, and what a byte costs (`grouped`, `rate_share`).
//! Invariant: a group's base slot is that of its earliest child; all of its children lie within [`SLOTS`] slots.
//!
//! Children are grouped by the length of a largest packet, rounded up to a power of two. Inside a group, starts are
//! rounded down to that length, so that a short row of slots with a bitmap sorts them. The finish of a group is its
//! rounded start plus twice that length. There are few groups (one for each power of two between the largest and the
//! least weight), so the best one is found by looking at each rather than by QFQ's four bitmaps.

use prefetch_index::prefetch_index;

use super::virtual_time::earlier;

/// Children by group and rounded start.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// Groups that hold a child.
    busy: u64,
    groups: Vec<Group>,
    pub(crate) kids: Vec<Kid>,
}

#[derive(Clone, Debug)]
struct Group {
    /// log2 of the slots' virtual length.
    shift: u32,
    /// Number of the first occupied slot, counted from virtual time zero.
    base: u64,
    occupied: u64,
    slots: [Slot; SLOTS as usize],
}

/// Children of one rounded start, first come first served.
#[derive(Clone, Copy, Debug)]
struct Slot {
    front: u32,
    back: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Kid {
    pub(crate) start: u64,
    /// The amount that a byte adds to the start, in the owner's unit.
    pub(crate) inverse: u64,
    /// Neighbours in a row; or a cell of a heap, and which one this child has (`heaps`).
    pub(super) next: u32,
    pub(super) prev: u32,
    /// The fraction of the start below its unit, for owners that carry one.
    pub(crate) rest: u32,
    group: u8,
    /// Index into the group's row, or which heap; or `ABSENT`.
    pub(super) slot: u8,
}

pub(crate) const SLOTS: u64 = 64;
const NONE: u32 = u32::MAX;
pub(super) const ABSENT: u8 = u8::MAX;

impl Rows {
    /// A group with its row.
    pub(crate) const GROUP_BYTES: usize = size_of::<Group>();

    /// Children by what a byte adds to each one's start.
    pub(crate) fn new(inverses: impl Iterator<Item = u64>) -> Self {
        let kid =
            |inverse| Kid { start: 0, inverse, next: NONE, prev: NONE, rest: 0, group: 0, slot: ABSENT };
        Self { busy: 0, groups: Vec::new(), kids: inverses.map(kid).collect() }
    }

    /// Puts a child, which must not be queued, into the group of those whose largest packet is about as long. May add
    /// a group: called when a policy changes, not per packet.
    pub(crate) fn join_group(&mut self, slot: u32, longest: u64) {
        let shift = longest.clamp(2, 1 << 60).next_power_of_two().ilog2();
        let found = self.groups.iter().position(|group| group.shift == shift);
        let group = found.unwrap_or_else(|| {
            let empty = Slot { front: NONE, back: NONE };
            self.groups.push(Group { shift, base: 0, occupied: 0, slots: [empty; SLOTS as usize] });
            self.groups.len() - 1
        });
        self.kids[slot as usize].group = u8::try_from(group).expect("at most 64 powers of two");
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.busy == 0
    }

    #[inline]
    pub(crate) fn is_queued(&self, slot: u32) -> bool {
        self.kids[slot as usize].slot != ABSENT
    }

    /// Children that are not queued.
    pub(crate) fn idle(&mut self) -> impl Iterator<Item = &mut Kid> {
        self.kids.iter_mut().filter(|kid| kid.slot == ABSENT)
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
    pub(crate) fn first_of(&self, group: usize) -> u32 {
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
    pub(crate) fn best_started(&self, v: u64) -> Option<(u64, u32)> {
        let mut best: Option<(u64, u32)> = None;
        let mut left = self.busy;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let first = self.first_of(index);
            let finish = self.start_of(index).wrapping_add(2 << self.groups[index].shift);
            let started = self.kids[first as usize].start <= v;
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
            let start = self.kids[self.first_of(left.trailing_zeros() as usize) as usize].start;
            left &= left - 1;
            first = Some(first.map_or(start, |first: u64| first.min(start)));
        }
        first
    }

    /// The children behind `slot` in the same row of equal starts, as far as there are any.
    #[inline]
    pub(crate) fn upcoming(&self, slot: u32) -> [Option<u32>; 3] {
        let mut at = slot;
        core::array::from_fn(|_| {
            at = self.kids.get(at as usize)?.next;
            (at != NONE).then_some(at)
        })
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        prefetch_index(&self.kids, slot as usize);
    }

    #[inline]
    pub(crate) fn link(&mut self, id: u32) {
        self.enter(id, self.kids[id as usize]);
    }

    #[inline]
    pub(crate) fn unlink(&mut self, id: u32) {
        let kid = &mut self.kids[id as usize];
        if kid.slot != ABSENT {
            let before = *kid;
            kid.slot = ABSENT;
            self.leave(&before);
        }
    }

    /// Puts child `id` at the end of the row for its start.
    #[inline(always)]
    pub(crate) fn enter(&mut self, id: u32, mut kid: Kid) {
        let group = &mut self.groups[kid.group as usize];
        if group.occupied == 0 {
            self.busy |= 1 << kid.group;
        }
        let index = (group.admit(kid.start >> group.shift) % SLOTS) as u8;
        let row = &mut group.slots[usize::from(index) % SLOTS as usize];
        let back = core::mem::replace(&mut row.back, id);
        if back == NONE {
            row.front = id;
            group.occupied |= 1 << index;
        } else {
            self.kids[back as usize].next = id;
        }
        (kid.slot, kid.next, kid.prev) = (index, NONE, back);
        self.kids[id as usize] = kid;
    }

    /// Puts child `id`, which must not be queued, in front of the row for its start.
    pub(crate) fn link_first(&mut self, id: u32) {
        let mut kid = self.kids[id as usize];
        let group = &mut self.groups[kid.group as usize];
        self.busy |= 1 << kid.group;
        let index = (group.admit(kid.start >> group.shift) % SLOTS) as u8;
        let row = &mut group.slots[usize::from(index) % SLOTS as usize];
        let front = core::mem::replace(&mut row.front, id);
        if front == NONE {
            row.back = id;
            group.occupied |= 1 << index;
        } else {
            self.kids[front as usize].prev = id;
        }
        (kid.slot, kid.next, kid.prev) = (index, front, NONE);
        self.kids[id as usize] = kid;
    }

    /// Takes a child, as it stands, out of its row.
    #[inline(always)]
    pub(crate) fn leave(&mut self, kid: &Kid) {
        let Kid { next, prev, group, slot, .. } = *kid;
        let home = &mut self.groups[group as usize];
        let row = &mut home.slots[usize::from(slot) % SLOTS as usize];
        if prev == NONE {
            row.front = next
        } else {
            self.kids[prev as usize].next = next
        }
        if next == NONE {
            row.back = prev
        } else {
            self.kids[next as usize].prev = prev
        }
        if row.front == NONE {
            home.vacate(slot);
            if home.occupied == 0 {
                self.busy &= !(1 << group);
            }
        }
    }
}

impl Kid {
    /// Where a queued child stands: its group, the row in it, and whether it is the first there.
    #[inline]
    pub(crate) fn place(&self) -> (u8, u8, bool) {
        (self.group, self.slot, self.prev == NONE)
    }
}

impl Group {
    /// The slot to use for a start that rounds to slot `number`, kept within the row.
    #[inline]
    fn admit(&mut self, number: u64) -> u64 {
        let mask = u64::MAX >> self.shift; // slot numbers wrap with virtual time
        if self.occupied == 0 {
            self.base = number;
            return number;
        }
        let ahead = number.wrapping_sub(self.base) & mask;
        if ahead > mask / 2 {
            let back = (self.base.wrapping_sub(number) & mask).min(SLOTS - 1 - self.span());
            self.base = self.base.wrapping_sub(back) & mask;
            return self.base;
        }
        self.base.wrapping_add(ahead.min(SLOTS - 1)) & mask
    }

    /// Distance from the base to the last occupied slot.
    fn span(&self) -> u64 {
        let row = self.row();
        u64::from(63 - row.leading_zeros())
    }

    /// The occupied slots, the base first.
    #[inline]
    fn row(&self) -> u64 {
        self.occupied.rotate_right((self.base % SLOTS) as u32)
    }

    #[inline]
    fn vacate(&mut self, slot: u8) {
        self.occupied &= !(1 << slot);
        if self.occupied != 0 {
            self.base =
                self.base.wrapping_add(u64::from(self.row().trailing_zeros())) & (u64::MAX >> self.shift);
        }
    }

    #[inline]
    fn first(&self) -> u32 {
        self.slots[(self.base % SLOTS) as usize].front
    }
}
