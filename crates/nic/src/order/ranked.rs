//! Orders that look at packets: FIFO, least slack and earliest deadline across a node's children.
//!
//! Why: a child stands as far in front as its most urgent head packet, whatever the child's own order is.
//! From: Loom §4.1 (LSTF by slack at enqueue); earliest deadline first.
//! Not here: what slack or deadline a packet has (`host`).
//! Invariant: one entry for each active bundle below the node.

use plimsoll_queues::RankQueue;

use crate::ids::{BundleId, SlotId, Table};

/// Children ordered by the heads of the bundles below them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranked {
    queue: RankQueue,
    /// For each bundle, the child below which it lies.
    slots: Table<BundleId, SlotId>,
    /// Whether the rank is the deadline rather than the arrival.
    pub(crate) by_deadline: bool,
}

/// A bundle's next packet: the part of it that ranks the bundle among others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    /// Number of its doorbell, host-wide.
    pub(crate) arrival: u64,
    /// Moment by which it should have left, in nanoseconds; below a rank program, its rank.
    pub(crate) deadline: u64,
}

impl Ranked {
    pub(crate) fn new(by_deadline: bool) -> Self {
        Self { by_deadline, ..Self::default() }
    }

    /// Makes room for a bundle below the child `slot`.
    pub(crate) fn adopt(&mut self, bundle: BundleId, slot: SlotId) {
        let bundles = bundle.0 as usize + 1;
        if bundles > self.slots.len() {
            self.slots.resize(bundles, SlotId::NONE);
        }
        self.slots[bundle] = slot;
        self.queue.grow(bundles);
    }

    #[inline]
    pub(crate) fn set(&mut self, bundle: BundleId, head: Head) {
        self.queue.set(bundle.0, if self.by_deadline { head.deadline } else { head.arrival });
    }

    #[inline]
    pub(crate) fn remove(&mut self, bundle: BundleId) {
        self.queue.remove(bundle.0);
    }

    #[inline]
    pub(crate) fn pick(&self) -> Option<SlotId> {
        self.queue.first().map(|(_, bundle)| self.slots[BundleId(bundle)])
    }

    pub(crate) fn first_rank(&self) -> u64 {
        self.queue.first().map_or(0, |(rank, _)| rank)
    }
}
