//! Timing wheel: ids that become due at a moment, earliest first.
//!
//! Why: one global shaping queue serves every limit (Loom §4.2.2), at a cost that does not grow with their number.
//! From: Varghese and Lauck's calendar, with a find-first-set hierarchy so that empty slots cost nothing.
//! Not here: what happens when an id is due.
//! Invariant: ids leave in the order of (moment, id), never before their moment.

use crate::Bits;
use plimsoll_units::{Nanos, Span};

/// A calendar of the integers below a bound, each at most once.
#[derive(Clone, Debug)]
pub struct Wheel {
    /// A slot covers 2^shift nanoseconds.
    shift: u32,
    mask: u64,
    heads: Vec<u32>,
    occupied: Bits,
    entries: Vec<Entry>,
    /// The slot, counted from time zero, before which nothing is left.
    cursor: u64,
    /// Nothing is due before this moment: most calls end here.
    quiet_until: u64,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    due: u64,
    next: u32,
    prev: u32,
    slot: u32,
}

const NONE: u32 = u32::MAX;
const IDLE: Entry = Entry { due: 0, next: NONE, prev: NONE, slot: NONE };

impl Wheel {
    /// A wheel for ids below `ids`, with slots of at most `grain` (rounded down to a power of two nanoseconds).
    /// The grain is a matter of speed, not of precision.
    #[must_use]
    pub fn new(ids: usize, slots: usize, grain: Span) -> Self {
        let slots = slots.next_power_of_two().max(64);
        Self {
            shift: grain.as_u64().max(1).ilog2(),
            mask: slots as u64 - 1,
            heads: vec![NONE; slots],
            occupied: Bits::new(slots),
            entries: vec![IDLE; ids],
            cursor: 0,
            quiet_until: u64::MAX,
            len: 0,
        }
    }

    /// Bytes that an id takes.
    pub const ENTRY_BYTES: usize = size_of::<Entry>();

    /// Bytes that a wheel of `slots` takes without ids.
    #[must_use]
    pub const fn bytes(slots: usize) -> usize {
        slots * size_of::<u32>() + slots.div_ceil(64) * size_of::<u64>()
    }

    /// How many ids wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no id waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `id` wait until `due`, or moves it there. `now` must not run backwards.
    #[inline]
    pub fn set(&mut self, id: u32, due: Nanos, now: Nanos) {
        self.remove(id);
        if self.len == 0 {
            self.cursor = self.cursor.max(now.as_u64() >> self.shift); // no id waits in the slots that are skipped
        }
        self.len += 1;
        self.entries[id as usize].due = due.as_u64();
        let slot = self.link(id);
        // An id beyond the horizon is in the last slot: look again when that slot ends.
        self.quiet_until = self.quiet_until.min(due.as_u64().min(self.end_of(slot)));
    }

    /// Takes `id` out, if it waits.
    #[inline]
    pub fn remove(&mut self, id: u32) {
        let Entry { next, prev, slot, .. } = self.entries[id as usize];
        if slot == NONE {
            return;
        }
        self.len -= 1;
        self.entries[id as usize].slot = NONE;
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
        if prev != NONE {
            self.entries[prev as usize].next = next;
        } else {
            self.heads[slot as usize] = next;
            if next == NONE {
                self.occupied.remove(slot as usize);
            }
        }
    }

    /// Takes out the earliest id whose moment has come.
    #[inline]
    pub fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        if now.as_u64() < self.quiet_until {
            return None;
        }
        let now_slot = now.as_u64() >> self.shift;
        while self.len > 0 {
            let slot = self.first_slot();
            if slot > now_slot {
                break;
            }
            self.cursor = slot;
            let (due, id) = self.earliest_in(slot);
            if due >> self.shift > slot {
                self.relink_far(slot, now_slot); // was beyond the horizon; its own slot may be within it now
                continue;
            }
            if due > now.as_u64() {
                self.quiet_until = due;
                return None;
            }
            self.remove(id);
            return Some(id);
        }
        self.cursor = self.cursor.max(now_slot);
        self.quiet_until = self.next_due().map_or(u64::MAX, Nanos::as_u64);
        None
    }

    /// Passes up to `most` ids that are, or may be, due at `now` to `name`, in no particular order, and does not take them out:
    /// for fetching what will be needed.
    #[inline]
    pub fn peek_due(&self, now: Nanos, most: usize, mut name: impl FnMut(u32)) {
        let now_slot = now.as_u64() >> self.shift;
        let mut named = 0;
        let mut slot =
            if self.len > 0 && now.as_u64() >= self.quiet_until { self.first_slot() } else { return };
        while slot <= now_slot && named < most {
            let index = (slot & self.mask) as usize;
            let mut id = self.heads[index];
            while id != NONE && named < most {
                name(id);
                named += 1;
                id = self.entries[id as usize].next;
            }
            let Some(next) = self.occupied.next(index + 1) else { return };
            slot += (next - index) as u64;
        }
    }

    /// When to ask again. No id is due earlier; where all ids lie beyond the horizon, it is the horizon's end.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        (self.len > 0).then(|| {
            let slot = self.first_slot();
            let (due, _) = self.earliest_in(slot);
            Nanos::new(due.min(self.end_of(slot)))
        })
    }

    /// The last moment of a slot.
    fn end_of(&self, slot: u64) -> u64 {
        ((slot + 1) << self.shift) - 1
    }

    /// Puts `id` into the slot of its moment, or the last one within reach. Returns which.
    fn link(&mut self, id: u32) -> u64 {
        let due_slot = self.entries[id as usize].due >> self.shift;
        let slot = due_slot.clamp(self.cursor, self.cursor + self.mask);
        let index = (slot & self.mask) as usize;
        let next = self.heads[index];
        let entry = &mut self.entries[id as usize];
        (entry.next, entry.prev, entry.slot) = (next, NONE, index as u32);
        if next == NONE {
            self.occupied.insert(index);
        } else {
            self.entries[next as usize].prev = id;
        }
        self.heads[index] = id;
        slot
    }

    /// The first occupied slot, counted from time zero. There must be one.
    #[inline]
    fn first_slot(&self) -> u64 {
        let from = (self.cursor & self.mask) as usize;
        let found = self.occupied.next(from).or_else(|| self.occupied.next(0));
        let index = found.expect("a wheel that holds something has an occupied slot") as u64;
        self.cursor + (index.wrapping_sub(self.cursor) & self.mask)
    }

    /// The earliest (moment, id) of a slot.
    #[inline]
    fn earliest_in(&self, slot: u64) -> (u64, u32) {
        let mut id = self.heads[(slot & self.mask) as usize];
        let mut least = (u64::MAX, NONE);
        while id != NONE {
            let entry = &self.entries[id as usize];
            least = least.min((entry.due, id));
            id = entry.next;
        }
        least
    }

    /// Puts all ids of `slot`, each of which is due in a later slot, into the slots of their moments as far as these are in reach.
    fn relink_far(&mut self, slot: u64, now_slot: u64) {
        let (due, _) = self.earliest_in(slot);
        let index = (slot & self.mask) as usize;
        let mut id = core::mem::replace(&mut self.heads[index], NONE);
        self.occupied.remove(index);
        let alone = self.occupied.next(0).is_none();
        // After a long sleep, walking one horizon at a time would take too many steps.
        let reach = if alone { now_slot.min(due >> self.shift) } else { 0 };
        // Never beyond `slot` when that is the present slot: the next id may be due in it.
        self.cursor = reach.max(slot);
        while id != NONE {
            let next = self.entries[id as usize].next;
            self.link(id);
            id = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Wheel;
    use plimsoll_units::{Nanos, Span};
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// Ids leave in the order of (moment, id), none early, none forgotten, also from beyond the horizon.
        #[test]
        fn agrees_with_a_sorted_set(
            ops in proptest::collection::vec((0_u32..30, 0_u64..40_000, 0..3_u8, 0_u64..3_000), 1..300),
        ) {
            let mut wheel = Wheel::new(30, 64, Span::ns(64)); // horizon 4,096 ns
            let mut oracle: BTreeSet<(u64, u32)> = BTreeSet::new();
            let mut now = 0;
            for (id, wait, op, step) in ops {
                match op {
                    0 => {
                        oracle.retain(|&(_, other)| other != id);
                        oracle.insert((now + wait, id));
                        wheel.set(id, Nanos::new(now + wait), Nanos::new(now));
                    }
                    1 => {
                        oracle.retain(|&(_, other)| other != id);
                        wheel.remove(id);
                    }
                    _ => {
                        now += step;
                        loop {
                            let due = oracle.first().filter(|&&(due, _)| due <= now).copied();
                            let popped = wheel.pop_due(Nanos::new(now));
                            proptest::prop_assert_eq!(popped, due.map(|(_, id)| id));
                            if oracle.pop_first_if_due(now).is_none() { break; }
                        }
                    }
                }
                proptest::prop_assert_eq!(wheel.len(), oracle.len());
                let next = wheel.next_due().map(Nanos::as_u64);
                proptest::prop_assert_eq!(next.is_none(), oracle.is_empty());
                if let (Some(next), Some(&(first, _))) = (next, oracle.first()) {
                    proptest::prop_assert!(next <= first, "woken too late: {next} > {first}");
                }
            }
        }
    }

    /// Days of sleep cost no more steps than a moment: this would not end otherwise.
    #[test]
    fn a_long_sleep_is_one_step() {
        let days = |n: u64| Nanos::new(n * 86_400_000_000_000);
        let mut wheel = Wheel::new(2, 64, Span::ns(1));
        wheel.set(0, days(30), days(30));
        assert_eq!(wheel.pop_due(days(30)), Some(0));
        wheel.set(0, days(90), days(31));
        wheel.set(1, days(91), days(31));
        assert_eq!(wheel.pop_due(days(89)), None);
        assert_eq!((wheel.pop_due(days(90)), wheel.pop_due(days(90))), (Some(0), None));
        assert_eq!(wheel.pop_due(days(91)), Some(1));
    }

    #[test]
    fn what_is_due_soon_is_not_late_after_a_look_at_the_horizon() {
        let mut wheel = Wheel::new(2, 64, Span::ns(64));
        wheel.set(0, Nanos::new(1_000_000), Nanos::ZERO);
        let horizon = Nanos::new(63 * 64); // the first moment of the last slot within reach
        assert_eq!(wheel.pop_due(horizon + Span::ns(63)), None);
        wheel.set(1, horizon + Span::ns(63), horizon + Span::ns(63));
        assert_eq!(wheel.pop_due(horizon + Span::ns(63)), Some(1));
    }

    proptest::proptest! {
        /// A caller that asks only when `next_due` says gets every id at its moment, after few moments in between, also from far
        /// beyond the horizon.
        #[test]
        fn asking_when_told_ends(waits in proptest::collection::vec(1_u64..2_000_000, 1..20)) {
            let mut wheel = Wheel::new(waits.len(), 64, Span::ns(64)); // horizon 4,096 ns
            for (id, &wait) in (0..).zip(&waits) {
                wheel.set(id, Nanos::new(wait), Nanos::ZERO);
            }
            let mut left: BTreeSet<(u64, u32)> = waits.iter().copied().zip(0..).collect();
            let mut asked = 0;
            while let Some(next) = wheel.next_due() {
                while let Some(id) = wheel.pop_due(next) {
                    proptest::prop_assert_eq!(Some((next.as_u64(), id)), left.pop_first());
                }
                asked += 1;
                proptest::prop_assert!(asked <= 2_000_000 / 4_000 + 2 * waits.len(), "{} left", left.len());
            }
            proptest::prop_assert!(left.is_empty());
        }
    }

    trait PopDue {
        fn pop_first_if_due(&mut self, now: u64) -> Option<(u64, u32)>;
    }

    impl PopDue for BTreeSet<(u64, u32)> {
        fn pop_first_if_due(&mut self, now: u64) -> Option<(u64, u32)> {
            if self.first()?.0 <= now { self.pop_first() } else { None }
        }
    }
}
