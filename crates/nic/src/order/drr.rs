//! Deficit round robin over a node's children.
//!
//! Why: constant time at any number, and fair in bytes.
//! From: Shreedhar and Varghese (1995), as surplus round robin: a child pays for its turn after the turn was used, because the
//! length of its next packet is known only when it sends it.
//! Not here: a class's flow queues. They take turns in `bundle` and `host`, where a turn needs no entry of its own.
//! Invariant: -largest < deficit <= quantum, and the child at the front has a positive deficit.

use crate::ids::{SlotId, Table};

/// The children that take turns, in a circle.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    entries: Table<SlotId, Entry>,
    /// The child whose turn it is; `NONE` while no child is active.
    front: SlotId,
    back: SlotId,
    /// Bytes that a child of weight 1 may send in a turn.
    base: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    deficit: i32,
    quantum: i32,
    next: SlotId,
    prev: SlotId,
}

const NONE: SlotId = SlotId::NONE;

impl Rounds {
    pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>();

    /// Rounds for children of these weights: in a turn, the child of the least weight may send `largest` bytes.
    pub(crate) fn new(weights: &[u32], largest: u64) -> Self {
        let least = weights.iter().copied().min().unwrap_or(1).max(1);
        let base = u32::try_from(largest.div_ceil(least.into())).unwrap_or(u32::MAX);
        let idle = Entry { deficit: 0, quantum: 0, next: NONE, prev: NONE };
        let entries = vec![idle; weights.len()].into();
        let mut rounds = Self { entries, front: NONE, back: NONE, base };
        for (slot, &weight) in rounds.entries.ids().zip(weights) {
            rounds.set_weight(slot, weight);
        }
        rounds
    }

    pub(crate) fn set_weight(&mut self, slot: SlotId, weight: u32) {
        let quantum = u64::from(self.base) * u64::from(weight.max(1));
        self.entries[slot].quantum = i32::try_from(quantum).unwrap_or(i32::MAX);
    }

    /// The child whose turn it is.
    #[inline]
    pub(crate) fn front(&self) -> Option<SlotId> {
        (self.front != NONE).then_some(self.front)
    }

    /// A child joins at the end; one that was taken out in the middle of its turn goes on with it.
    #[inline]
    pub(crate) fn insert(&mut self, slot: SlotId) {
        if self.entries[slot].deficit > 0 {
            self.link(slot, NONE, self.front);
        } else {
            self.link(slot, self.back, NONE);
        }
        self.begin_turn();
    }

    /// The child sent `len` bytes (0: it waits for a limit). If it does not stay, its turn is over only if it leaves because
    /// it is `idle`.
    #[inline]
    pub(crate) fn settle(&mut self, slot: SlotId, len: u64, idle: bool, stays: bool) {
        if len > 0 {
            self.charge(slot, u32::try_from(len).unwrap_or(u32::MAX));
        }
        if !stays {
            self.remove(slot, idle);
        }
    }

    #[inline]
    fn charge(&mut self, slot: SlotId, len: u32) {
        let entry = &mut self.entries[slot];
        entry.deficit = entry.deficit.saturating_sub_unsigned(len);
        if entry.deficit <= 0 && self.front == slot && self.back != slot {
            self.unlink(slot);
            self.link(slot, self.back, NONE);
        }
        self.begin_turn();
    }

    #[inline]
    fn remove(&mut self, slot: SlotId, idle: bool) {
        self.unlink(slot);
        let entry = &mut self.entries[slot];
        if idle {
            entry.deficit = entry.deficit.min(0); // an idle child saves nothing up, and keeps its debt
        }
        self.begin_turn();
    }

    pub(crate) fn deficit(&self, slot: SlotId) -> i32 {
        self.entries[slot].deficit
    }

    #[inline]
    fn begin_turn(&mut self) {
        if let Some(front) = self.front() {
            let entry = &mut self.entries[front];
            if entry.deficit <= 0 {
                entry.deficit = entry.deficit.saturating_add(entry.quantum).max(1);
            }
        }
    }

    #[inline]
    fn link(&mut self, slot: SlotId, prev: SlotId, next: SlotId) {
        let entry = &mut self.entries[slot];
        (entry.prev, entry.next) = (prev, next);
        if prev == NONE {
            self.front = slot
        } else {
            self.entries[prev].next = slot
        }
        if next == NONE { self.back = slot } else { self.entries[next].prev = slot }
    }

    #[inline]
    fn unlink(&mut self, slot: SlotId) {
        let Entry { next, prev, .. } = self.entries[slot];
        if prev == NONE {
            self.front = next
        } else {
            self.entries[prev].next = next
        }
        if next == NONE { self.back = prev } else { self.entries[next].prev = prev }
    }
}
