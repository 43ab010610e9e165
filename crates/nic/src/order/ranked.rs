//! Orders that look at packets: FIFO, least slack and earliest deadline across a node's children.
//!
//! Why: a child stands as far in front as its most urgent head packet, whatever the child's own order is.
//! From: Loom §4.1 (LSTF by slack at enqueue); earliest deadline first.
//! Not here: what slack or deadline a packet has (`host`).
//! Invariant: one entry for each active bundle below the node.

use plimsoll_queues::{RankHeap, RankQueue};

use crate::ids::{BundleId, SlotId, Table};

/// Children ordered by the heads of the bundles below them.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    queue: Heads,
    /// For each bundle, the child below which it lies.
    slots: Table<BundleId, SlotId>,
    by: By,
}

/// What heads are ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Arrival,
    Deadline,
    /// The rank that a program gave, and among equal ones the arrival.
    Rank,
}

/// Heads by rank.
#[derive(Clone, Debug)]
pub(crate) enum Heads {
    /// Equal ranks leave in the order of their ids.
    One(RankQueue),
    /// Equal ranks leave in the order of their arrival (PIFO): a program may give many packets one rank.
    Pifo(RankHeap<(u64, u64)>),
}

impl Heads {
    pub(crate) fn new(by: By) -> Self {
        if by == By::Rank { Self::Pifo(RankHeap::default()) } else { Self::One(RankQueue::default()) }
    }

    pub(crate) fn grow(&mut self, ids: usize) {
        match self {
            Self::One(queue) => queue.grow(ids),
            Self::Pifo(queue) => queue.grow(ids),
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, id: u32, rank: u64, arrival: u64) {
        match self {
            Self::One(queue) => queue.set(id, rank),
            Self::Pifo(queue) => queue.set(id, (rank, arrival)),
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u32) {
        match self {
            Self::One(queue) => queue.remove(id),
            Self::Pifo(queue) => queue.remove(id),
        }
    }

    #[inline]
    pub(crate) fn first_id(&self) -> Option<u32> {
        match self {
            Self::One(queue) => queue.first_id(),
            Self::Pifo(queue) => queue.first().map(|(_, id)| id),
        }
    }

    pub(crate) fn rank(&self, id: u32) -> Option<u64> {
        match self {
            Self::One(queue) => queue.rank(id),
            Self::Pifo(queue) => queue.rank(id).map(|(rank, _)| rank),
        }
    }
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
    pub(crate) fn new(by: By) -> Self {
        Self { queue: Heads::new(by), slots: Table::default(), by }
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
        let rank = if self.by == By::Arrival { head.arrival } else { head.deadline };
        self.queue.set(bundle.0, rank, head.arrival);
    }

    #[inline]
    pub(crate) fn remove(&mut self, bundle: BundleId) {
        self.queue.remove(bundle.0);
    }

    #[inline]
    pub(crate) fn pick(&self) -> Option<SlotId> {
        self.queue.first_id().map(|bundle| self.slots[BundleId(bundle)])
    }

    pub(crate) fn first_rank(&self) -> u64 {
        self.queue.first_id().and_then(|bundle| self.queue.rank(bundle)).unwrap_or(0)
    }
}
