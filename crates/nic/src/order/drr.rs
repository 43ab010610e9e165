//! Deficit round robin over a node's children.
//!
//! Why: constant time at any number, and fair in bytes.
//! From: Shreedhar and Varghese (1995), as surplus round robin: a turn is paid after it was used, because how long a
//! child's next packet is, is known only when it sends it.
//! Not here: weights' meaning; callers give the quantum. A class's flow queues take turns in `bundle` and `host`,
//! where a turn needs no entry of its own.
//! Invariant: -largest < deficit <= quantum, and the child at the front has a positive deficit.

/// The circle of children that take turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    entries: Vec<Entry>,
}

/// One circle of entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    front: u32,
    back: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    deficit: i32,
    quantum: i32,
    next: u32,
    prev: u32,
}

const NONE: u32 = u32::MAX;

impl Round {
    pub(crate) const EMPTY: Self = Self { front: NONE, back: NONE };

    /// The child whose turn it is.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        (self.front != NONE).then_some(self.front)
    }
}

impl Turns {
    pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>();

    pub(crate) fn with_entries(entries: usize, quantum: i32) -> Self {
        Self { entries: vec![Entry { deficit: 0, quantum, next: NONE, prev: NONE }; entries] }
    }

    /// Bytes a turn; at least one largest packet.
    pub(crate) fn set_quantum(&mut self, id: u32, quantum: i32) {
        self.entries[id as usize].quantum = quantum;
    }

    /// Joins at the end; one that was taken out in the middle of its turn goes on with it.
    #[inline]
    pub(crate) fn insert(&mut self, round: &mut Round, id: u32) {
        if self.entries[id as usize].deficit > 0 {
            self.link(round, id, NONE, round.front);
        } else {
            self.link(round, id, round.back, NONE);
        }
        self.begin_turn(round);
    }

    /// Leaves the round; its turn is over only if it leaves because it is idle.
    #[inline]
    pub(crate) fn remove(&mut self, round: &mut Round, id: u32, idle: bool) {
        self.unlink(round, id);
        let entry = &mut self.entries[id as usize];
        if idle {
            entry.deficit = entry.deficit.min(0); // an idle one saves nothing up, and takes its debt along
        }
        self.begin_turn(round);
    }

    #[inline]
    pub(crate) fn charge(&mut self, round: &mut Round, id: u32, len: u32) {
        let entry = &mut self.entries[id as usize];
        entry.deficit = entry.deficit.saturating_sub_unsigned(len);
        if entry.deficit <= 0 && round.front == id && round.back != id {
            self.unlink(round, id);
            self.link(round, id, round.back, NONE);
        }
        self.begin_turn(round);
    }

    pub(crate) fn deficit(&self, id: u32) -> i32 {
        self.entries[id as usize].deficit
    }

    #[inline]
    fn begin_turn(&mut self, round: &Round) {
        if let Some(front) = round.front() {
            let entry = &mut self.entries[front as usize];
            if entry.deficit <= 0 {
                entry.deficit = entry.deficit.saturating_add(entry.quantum).max(1);
            }
        }
    }

    #[inline]
    fn link(&mut self, round: &mut Round, id: u32, prev: u32, next: u32) {
        let entry = &mut self.entries[id as usize];
        (entry.prev, entry.next) = (prev, next);
        if prev == NONE {
            round.front = id
        } else {
            self.entries[prev as usize].next = id
        }
        if next == NONE { round.back = id } else { self.entries[next as usize].prev = id }
    }

    #[inline]
    fn unlink(&mut self, round: &mut Round, id: u32) {
        let Entry { next, prev, .. } = self.entries[id as usize];
        if prev == NONE {
            round.front = next
        } else {
            self.entries[prev as usize].next = next
        }
        if next == NONE { round.back = prev } else { self.entries[next as usize].prev = prev }
    }
}
