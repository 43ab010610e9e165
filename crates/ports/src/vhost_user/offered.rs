//! The descriptors that a guest has offered, in the order in which they complete.
//!
//! Why: descriptors complete in any order, but when a daemon was killed, all that is left to tell which have completed is
//! the used ring's index. QEMU goes on there, and so does the next daemon: each takes the entries of the available ring from
//! that index on for those in flight. QEMU even completes them itself when the guest has rung meanwhile, as it takes the link
//! for down. If one of them had completed before, it would complete twice, which stops the guest's driver.
//! From: QEMU's `virtio_queue_restore_last_avail_idx` and `virtio_net_drop_tx_queue_data`. Decision 19.
//! Not here: the rings in guest memory (`ring`).
//! Invariant: up to the used ring's end, the available ring lists the heads of the used ring, in its order; behind it, those
//! in flight, and then those that are still to be taken.

/// The heads in the available ring's slots, as they were taken.
#[derive(Debug)]
pub(super) struct Offered {
    /// The head in each slot.
    heads: Vec<u16>,
    /// The slot of each head in flight.
    slots: Vec<u16>,
}

impl Offered {
    pub(super) fn new(size: u16) -> Self {
        Self { heads: vec![0; size.into()], slots: vec![0; size.into()] }
    }

    /// Notes that `head` was taken from `slot`.
    #[inline]
    pub(super) fn take(&mut self, slot: u16, head: u16) {
        self.heads[usize::from(slot)] = head;
        self.slots[usize::from(head)] = slot;
    }

    /// Notes that `head` has completed, and that its place in the used ring is `slot`. If it was offered in another slot, it
    /// changes places with the head in `slot`; returns that head and its new slot.
    #[inline]
    pub(super) fn complete(&mut self, head: u16, slot: u16) -> Option<(u16, u16)> {
        let left = self.slots[usize::from(head)];
        if left == slot {
            return None;
        }
        let moved = self.heads[usize::from(slot)];
        self.take(slot, head);
        self.take(left, moved);
        Some((moved, left))
    }
}
