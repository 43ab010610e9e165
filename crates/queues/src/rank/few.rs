//! Few ranked integers, sorted, in a ring.
//!
//! Why: a new rank is mostly among the greatest, so its place is found from the back in a step or two; a heap moves the entry
//! that it puts on top all the way down, and no processor predicts on which way.
//! From: insertion sort.
//! Not here: many integers (`heap`), as a rank in the middle moves all entries behind it.
//! Invariant: entries ascend from `head` on; bit `id` of `queued` says whether `id` is among them.

use super::{Entry, key};

/// Integers below [`FEW`].
#[derive(Clone, Debug, Default)]
pub(super) struct Few {
    /// Each as one number, its [`key`].
    ring: [u128; FEW],
    head: usize,
    len: usize,
    queued: u32,
}

pub(super) const FEW: usize = 32;

/// The entry of a key.
#[inline]
fn entry(key: u128) -> Entry {
    ((key >> 32) as u64, key as u32)
}

impl Few {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn set(&mut self, id: u32, rank: u64) {
        self.remove(id);
        self.queued |= 1 << id;
        let key = key((rank, id));
        let mut at = self.head + self.len;
        while at > self.head {
            let before = self.ring[(at - 1) % FEW];
            if before < key {
                break;
            }
            self.ring[at % FEW] = before;
            at -= 1;
        }
        self.ring[at % FEW] = key;
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u32) {
        if self.queued >> id & 1 == 0 {
            return;
        }
        self.queued &= !(1 << id);
        let mut at = self.head % FEW;
        self.len -= 1;
        if self.ring[at] as u32 == id {
            self.head = (at + 1) % FEW;
            return;
        }
        while self.ring[at] as u32 != id {
            at = (at + 1) % FEW;
        }
        let end = (self.head + self.len) % FEW;
        while at != end {
            let next = (at + 1) % FEW;
            self.ring[at] = self.ring[next];
            at = next;
        }
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Entry> {
        (self.len > 0).then(|| entry(self.ring[self.head % FEW]))
    }

    #[inline]
    pub(super) fn first_id(&self) -> Option<u32> {
        (self.len > 0).then(|| self.ring[self.head % FEW] as u32)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.len).map(|at| entry(self.ring[(self.head + at) % FEW]))
    }
}
