//! How a class orders its bundles, when it has several.
//!
//! Why: flow queues of one class may wait behind different limits; the class's order holds across them all the same.
//! From: start-time fair queueing by number of flows, so that each flow counts the same (Goyal, Vin and Cheng, 1996).
//! Not here: the order of flow queues inside a bundle (`bundle`).

use core::hint::select_unpredictable;

use plimsoll_policy::FlowOrder;

use super::Seen;
use super::ranked::{By as Ranks, Head, Heads};
use crate::ids::{SlotId, Table};

/// A class's bundles in its own order.
#[derive(Clone, Debug)]
pub(crate) struct Bundles {
    by: By,
    queue: Heads,
    /// For a fair class: where each bundle's next service begins, in 2^-8 bytes per flow.
    starts: Table<SlotId, u64>,
    /// The latest start of a bundle that was served.
    v: u64,
    /// Largest step of any start so far: how far behind `v` a bundle that returns may start.
    step: u64,
}

/// The rank of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Its start.
    Flows,
    Arrival,
    Deadline,
    /// A program's rank, and among equal ones the arrival.
    Rank,
}

impl Bundles {
    pub(crate) fn new(order: FlowOrder) -> Self {
        let by = match order {
            FlowOrder::Fifo => By::Arrival,
            FlowOrder::Lstf(_) | FlowOrder::Edf(_) => By::Deadline,
            FlowOrder::Ranked(_) => By::Rank,
            FlowOrder::Drr | FlowOrder::Fq(_) => By::Flows,
        };
        let queue = Heads::new(if by == By::Rank { Ranks::Rank } else { Ranks::Arrival });
        Self { by, queue, starts: Table::default(), v: 0, step: 0 }
    }

    /// Makes room for one more bundle.
    pub(crate) fn adopt(&mut self) {
        self.starts.push(self.v);
        self.queue.grow(self.starts.len());
    }

    /// The part of a bundle that this order looks at.
    pub(crate) fn looks_at(&self) -> Seen {
        if self.by == By::Flows { Seen::Flows } else { Seen::Head }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, slot: SlotId, head: Head, returning: bool) {
        let rank = if self.by == By::Flows {
            let floor = if returning { self.v.saturating_sub(self.step) } else { self.v };
            let start = &mut self.starts[slot];
            *start = (*start).max(floor);
            *start
        } else {
            select_unpredictable(self.by == By::Arrival, head.arrival, head.deadline)
        };
        self.queue.set(slot.0, rank, head.arrival);
    }

    #[inline]
    pub(crate) fn pick(&self) -> Option<SlotId> {
        self.queue.first_id().map(SlotId)
    }

    /// The bundle sent `len` bytes (0: it waits for a limit) and has `flows` flow queues; `next` is its new head, if it
    /// stays.
    #[inline(never)]
    pub(crate) fn settle(&mut self, slot: SlotId, len: u64, flows: u32, next: Option<Head>) {
        if len > 0 && self.by == By::Flows {
            let start = &mut self.starts[slot];
            self.v = self.v.max(*start);
            let step = (len << 8) / u64::from(flows.max(1));
            *start += step;
            self.step = self.step.max(step);
            if self.v >= REBASE {
                self.rebase();
            }
        }
        match next {
            Some(head) => self.insert(slot, head, true),
            None => self.queue.remove(slot.0),
        }
    }

    /// Begins to count again from zero, long before the counter would be full.
    #[cold]
    fn rebase(&mut self) {
        let by = core::mem::take(&mut self.v);
        for (slot, start) in (0..).zip(self.starts.iter_mut()) {
            *start = start.saturating_sub(by);
            if self.by == By::Flows && self.queue.rank(slot).is_some() {
                self.queue.set(slot, *start, 0);
            }
        }
    }
}

/// Two weeks of one class at 100 Gb/s.
const REBASE: u64 = 1 << 62;
