//! Bundles: the flow queues of one class that wait behind the same limits.
//!
//! Why: a limit holds all of them or none, so one entry in each tree does for any number of flow queues, and the
//! cost of a packet does not grow with them.
//! Not here: the order among bundles (`order::bundles`), rates (`limit`).
//! Invariant: an active bundle is in the main tree or waits for exactly one limit.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use plimsoll_policy::{FlowOrder, LimitId, NodeId};
use plimsoll_units::{Nanos, Span};

use crate::host::QueueId;
use crate::order::drr::{Round, Turns};
use crate::tree::Seat;

/// Flow queues of one class behind the same limits.
#[derive(Clone, Debug)]
pub(crate) struct Bundle {
    pub(crate) class: NodeId,
    pub(crate) seat: Seat,
    pub(crate) place: Place,
    flows: Flows,
    /// Flow queues that hold packets.
    pub(crate) active: u32,
    /// Flow queues that exist.
    pub(crate) members: u32,
    /// Limits, in the order in which they are passed.
    pub(crate) holds: Box<[Hold]>,
    /// Which of them the head has paid, by bit.
    pub(crate) paid: u32,
    /// What it paid for.
    pub(crate) paid_len: u32,
    /// Times that the head entered the main tree.
    pub(crate) entries: u8,
    pub(crate) waits_since: Nanos,
    pub(crate) limited: Span,
    pub(crate) limited_by: Option<LimitId>,
}

/// Where a bundle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Idle,
    /// In the main tree.
    Tree,
    /// Behind the limit of this index in `holds`.
    Waits(u8),
}

/// A limit that a bundle must pass, and where it hangs in that limit's tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) limit: u32,
    /// `None` while no other bundle shares the limit: then there is nothing to decide.
    pub(crate) seat: Option<Seat>,
}

/// Most limits that one packet can be behind.
pub(crate) const MOST_HOLDS: usize = 32;

#[derive(Clone, Debug)]
enum Flows {
    /// By arrival or deadline of the head.
    Ranked(BinaryHeap<Reverse<(u64, u32)>>),
    /// In turns.
    Round(Round),
}

impl Bundle {
    pub(crate) fn new(class: NodeId, order: FlowOrder, seat: Seat, holds: Box<[Hold]>) -> Self {
        let flows = match order {
            FlowOrder::Drr => Flows::Round(Round::EMPTY),
            FlowOrder::Fifo | FlowOrder::Lstf(_) | FlowOrder::Edf(_) => Flows::Ranked(BinaryHeap::new()),
        };
        Self {
            class,
            seat,
            place: Place::Idle,
            flows,
            active: 0,
            members: 0,
            holds,
            paid: 0,
            paid_len: 0,
            entries: 0,
            waits_since: Nanos::ZERO,
            limited: Span::ZERO,
            limited_by: None,
        }
    }

    /// Makes room for one more flow queue.
    pub(crate) fn join(&mut self) {
        self.members += 1;
        if let Flows::Ranked(heap) = &mut self.flows {
            let wanted = self.members as usize;
            heap.reserve(wanted.saturating_sub(heap.len()));
        }
    }

    /// The flow queue whose head goes next.
    #[inline]
    pub(crate) fn front(&self) -> Option<QueueId> {
        match &self.flows {
            Flows::Ranked(heap) => heap.peek().map(|&Reverse((_, queue))| QueueId(queue)),
            Flows::Round(round) => round.front().map(QueueId),
        }
    }

    /// A flow queue that was empty has packets.
    #[inline]
    pub(crate) fn insert(&mut self, queue: QueueId, rank: u64, turns: &mut Turns) {
        self.active += 1;
        match &mut self.flows {
            Flows::Ranked(heap) => heap.push(Reverse((rank, queue.0))),
            Flows::Round(round) => turns.insert(round, queue.0, false),
        }
    }

    /// The front flow queue sent `len` bytes; `next` is the rank of its new head, if it has one.
    #[inline]
    pub(crate) fn settle(&mut self, queue: QueueId, len: u32, next: Option<u64>, turns: &mut Turns) {
        self.active -= u32::from(next.is_none());
        match &mut self.flows {
            Flows::Ranked(heap) => {
                let Some(mut front) = heap.peek_mut() else { return };
                match next {
                    Some(rank) => *front = Reverse((rank, queue.0)),
                    None => {
                        PeekMut::pop(front);
                    }
                }
            }
            Flows::Round(round) => {
                turns.charge(round, queue.0, len);
                if next.is_none() {
                    turns.remove(round, queue.0, false);
                }
            }
        }
    }
}
