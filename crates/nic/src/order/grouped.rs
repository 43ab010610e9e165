//! Weighted fair queueing for many children in constant time, by grouping and rounding.
//!
//! Why: four thousand tenants must not cost more than four.
//! From: QFQ (Checconi, Rizzo and Valente, "QFQ: efficient packet scheduling with tight guarantees", 2013).
//! Not here: few children (`exact`).
//! Invariant: a group's base slot is that of its earliest child; all of its children lie within [`SLOTS`] slots.
//!
//! Children are grouped by the virtual length of a largest packet, rounded up to a power of two. Inside a group,
//! starts are rounded down to that length, so that a short row of slots with a bitmap sorts them. The finish of a
//! group is its rounded start plus twice that length. There are few groups (one for each power of two between the
//! largest and the least weight), so the best one is found by looking at each rather than by QFQ's four bitmaps.

use prefetch_index::prefetch_index;

use super::virtual_time::{Inverse, Weight, earlier, passes_eighth, raise};

/// Weighted fair queueing over any number of children.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    v: u64,
    total: Weight,
    weights: Vec<u32>,
    largest: u64,
    /// Groups that hold a child.
    busy: u64,
    groups: Vec<Group>,
    kids: Vec<Kid>,
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
struct Kid {
    start: u64,
    weight: Inverse,
    next: u32,
    prev: u32,
    group: u8,
    /// Index into the group's row, or `ABSENT`.
    slot: u8,
}

const SLOTS: u64 = 64;
const NONE: u32 = u32::MAX;
const ABSENT: u8 = u8::MAX;

impl Grouped {
    pub(crate) fn new(weights: &[u32], largest: u64) -> Self {
        let kid = |&w: &u32| Kid {
            start: 0,
            weight: Weight::new(w.into()).inverse(),
            next: NONE,
            prev: NONE,
            group: 0,
            slot: ABSENT,
        };
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let mut grouped = Self {
            v: 0,
            total: Weight::total(total),
            weights: weights.to_vec(),
            largest,
            busy: 0,
            groups: Vec::new(),
            kids: weights.iter().map(kid).collect(),
        };
        for slot in 0..grouped.kids.len() {
            grouped.join_group(slot);
        }
        grouped
    }

    /// Takes effect at the child's next charge. May add a group: called when a policy changes, not per packet.
    pub(crate) fn set_weight(&mut self, slot: u32, weight: u32) {
        let queued = self.kids[slot as usize].slot != ABSENT;
        if queued {
            self.unlink(slot);
        }
        self.weights[slot as usize] = weight;
        self.kids[slot as usize].weight = Weight::new(weight.into()).inverse();
        self.total = Weight::total(self.weights.iter().map(|&w| u64::from(w)).sum());
        self.join_group(slot as usize);
        if queued {
            self.link(slot);
        }
    }

    fn join_group(&mut self, slot: usize) {
        let shift = self.kids[slot].weight.span(self.largest).max(2).next_power_of_two().ilog2();
        let found = self.groups.iter().position(|group| group.shift == shift);
        let group = found.unwrap_or_else(|| {
            let empty = Slot { front: NONE, back: NONE };
            self.groups.push(Group { shift, base: 0, occupied: 0, slots: [empty; SLOTS as usize] });
            self.groups.len() - 1
        });
        self.kids[slot].group = u8::try_from(group).expect("at most 64 powers of two");
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: u32, returning: bool) {
        let kid = &mut self.kids[slot as usize];
        let floor = if returning { self.v.wrapping_sub(kid.weight.span(self.largest)) } else { self.v };
        raise(&mut kid.start, floor);
        self.link(slot);
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        self.unlink(slot);
    }

    /// Charges a child and moves it to its new place. A child that is about to leave is charged by
    /// [`Grouped::charge_and_remove`] instead.
    #[inline]
    pub(crate) fn charge(&mut self, slot: u32, len: u64) {
        let kid = self.kids[slot as usize];
        self.leave(&kid);
        let start = kid.start.wrapping_add(kid.weight.span(len));
        self.advance(self.v.wrapping_add(self.total.span(len)));
        self.enter(slot, Kid { start, ..kid });
    }

    #[inline]
    pub(crate) fn charge_and_remove(&mut self, slot: u32, len: u64) {
        self.unlink(slot);
        let kid = &mut self.kids[slot as usize];
        kid.start = kid.start.wrapping_add(kid.weight.span(len));
        self.advance(self.v.wrapping_add(self.total.span(len)));
    }

    #[inline]
    fn advance(&mut self, v: u64) {
        let before = core::mem::replace(&mut self.v, v);
        if passes_eighth(before, v) {
            self.raise_idle();
        }
    }

    /// Keeps children that have been idle for long within half the range of virtual time.
    #[cold]
    fn raise_idle(&mut self) {
        let (v, largest) = (self.v, self.largest);
        for kid in self.kids.iter_mut().filter(|kid| kid.slot == ABSENT) {
            let floor = v.wrapping_sub(kid.weight.span(largest));
            raise(&mut kid.start, floor);
        }
    }

    /// The first child of the eligible group with the least finish; when none is eligible, V jumps to the first
    /// start.
    #[inline]
    pub(crate) fn pick(&mut self) -> Option<u32> {
        if self.busy == 0 {
            return None;
        }
        if self.busy.is_power_of_two() {
            return Some(self.first_of_one_group());
        }
        let first = self.first_start();
        if earlier(self.v, first) {
            self.advance(first);
        }
        let mut best: Option<(u64, usize)> = None;
        let mut left = self.busy;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let group = &self.groups[index];
            let start = group.base << group.shift;
            let finish = start.wrapping_add(2 << group.shift);
            if !earlier(self.v, start) && best.is_none_or(|(least, _)| earlier(finish, least)) {
                best = Some((finish, index));
            }
        }
        best.map(|(_, index)| self.groups[index].first())
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

    pub(crate) fn rank(&self, slot: u32) -> u64 {
        super::virtual_time::ahead(self.kids[slot as usize].start, self.v)
    }

    /// With one group busy, its first child is the answer; V jumps to it when it has to.
    #[inline]
    fn first_of_one_group(&mut self) -> u32 {
        let index = self.busy.trailing_zeros() as usize;
        let start = self.groups[index].base << self.groups[index].shift;
        if earlier(self.v, start) {
            self.advance(start);
        }
        self.groups[index].first()
    }

    #[inline]
    fn first_start(&self) -> u64 {
        let mut left = self.busy & (self.busy - 1);
        let head = &self.groups[self.busy.trailing_zeros() as usize];
        let mut first = head.base << head.shift;
        while left != 0 {
            let group = &self.groups[left.trailing_zeros() as usize];
            left &= left - 1;
            let start = group.base << group.shift;
            if earlier(start, first) {
                first = start;
            }
        }
        first
    }

    #[inline]
    fn link(&mut self, id: u32) {
        self.enter(id, self.kids[id as usize]);
    }

    #[inline]
    fn unlink(&mut self, id: u32) {
        let kid = &mut self.kids[id as usize];
        if kid.slot != ABSENT {
            let before = *kid;
            kid.slot = ABSENT;
            self.leave(&before);
        }
    }

    /// Puts child `id` at the end of the row for its start.
    #[inline(always)]
    fn enter(&mut self, id: u32, mut kid: Kid) {
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

    /// Takes a child, as it stands, out of its row.
    #[inline(always)]
    fn leave(&mut self, kid: &Kid) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Children of equal weight, and one of twice as much, so that there are two groups.
    fn order() -> Grouped {
        let mut weights = [1; 20];
        weights[7] = 2;
        Grouped::new(&weights, 1_500)
    }

    #[test]
    fn who_was_idle_for_any_time_gets_its_share_at_once() {
        for (gibibytes, idle) in
            (0..800_000).step_by(50_000).flat_map(|gibibytes| [(gibibytes, 1), (gibibytes, 7)])
        {
            let mut order = order();
            order.insert(idle, false);
            assert_eq!(order.pick(), Some(idle));
            order.charge_and_remove(idle, 1_500);
            order.insert(0, false);
            for _ in 0..gibibytes {
                assert_eq!(order.pick(), Some(0));
                order.charge(0, 1 << 30);
            }
            order.insert(idle, false);
            let mut served = [0; 20];
            for _ in 0..40 {
                let slot = order.pick().expect("two are active");
                order.charge(slot, 1_500);
                served[slot as usize] += 1;
            }
            assert!(served[idle as usize] >= 18, "after {gibibytes} GiB: {served:?}");
        }
    }
}
