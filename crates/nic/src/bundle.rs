//! Bundles: the flow queues of one class that wait behind the same limits.
//!
//! Why: a limit holds all of them or none, so one entry in each tree does for any number of flow queues, and the
//! cost of a packet does not grow with them.
//! Not here: the order among bundles (`order::bundles`), rates (`limit`).
//! Invariant: an active bundle is in the main tree, below gates that may be closed, or waits for limits that have not granted what
//! its head needs; in a limit's tree it stands while it asks.

use core::cmp::Reverse;
use core::ops::Range;
use core::slice::from_ref;
use std::collections::BinaryHeap;

use plimsoll_policy::{FlowOrder, LimitId, NodeId};
use plimsoll_units::{Nanos, Span};
use prefetch_index::prefetch_index;

use crate::circle::Circle;
use crate::fair::{Fair, Signals};
use crate::heads::Heads;
use crate::host::{Host, NextCharge, Pull, Turn};
use crate::ids::{GateId, RecordId, SlotId, TreeId};
use crate::order::Seen;
use crate::stats::Transmit;
use crate::tree::Seat;

/// Flow queues of one class behind the same limits. What every packet needs fills the first cache line, and what one behind limits
/// needs the second.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Bundle {
    flows: Flows,
    pub(crate) seat: Seat,
    pub(crate) class: NodeId,
    pub(crate) place: Place,
    /// Times that the head entered the main tree.
    pub(crate) entries: u8,
    /// The part of it that some order looks at.
    pub(crate) seen: Seen,
    /// Whether it has sent nothing since it was idle.
    pub(crate) fresh: bool,
    /// Its limits, in the order in which they are passed.
    pub(crate) holds: Holds,
    /// What its flow queues have counted, as far as it is added up.
    pub(crate) done: Done,
    /// The nearest gate above it.
    pub(crate) gate: GateId,
    /// Whether a gate held its head back when the head was picked; reset when the head is sent.
    pub(crate) kept: bool,
    pub(crate) waits_since: Nanos,
    /// How long the head waited for limits, altogether.
    pub(crate) limited: Span,
    pub(crate) longest_wait: Span,
    /// The limit that it waited for the longest.
    pub(crate) limited_by: Option<LimitId>,
    /// The sum of the times for which the gates above had been closed when its head began to wait below them.
    pub(crate) blocked: Span,
    /// Flow queues that exist.
    pub(crate) members: u32,
    pub(crate) order: FlowOrder,
}

/// Counters of one bundle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// The state of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Idle,
    /// In the main tree.
    Tree,
    /// Behind limits that have not granted what its head needs.
    Waits,
}

/// A limit that a bundle must pass, and where it hangs in that limit's tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) limit: LimitId,
    /// Its place in the limit's tree; `NOWHERE` while no other bundle shares the limit: then there is nothing to decide.
    seat: Seat,
    /// The amount that the limit has granted and the bundle has not used, in the limit's unit.
    pub(crate) granted: u32,
    pub(crate) asks: Asks,
}

/// A bundle's request to a limit, for which it stands in the limit's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    No,
    /// For more than its head needs.
    More,
    /// For an amount without which its head cannot leave.
    Needs,
}

const NOWHERE: Seat = Seat { node: TreeId::NONE, slot: SlotId(0) };

impl Hold {
    pub(crate) fn new(limit: LimitId) -> Self {
        Self { limit, seat: NOWHERE, granted: 0, asks: Asks::No }
    }

    #[inline]
    pub(crate) fn seat(&self) -> Option<Seat> {
        (self.seat.node != TreeId::NONE).then_some(self.seat)
    }

    pub(crate) fn set_seat(&mut self, seat: Seat) {
        self.seat = seat;
    }

    /// Whether the bundle neither has a grant nor asks for one.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        (self.granted == 0) & (self.asks == Asks::No)
    }

    /// Its place in the limit's tree, while it has one and asks.
    pub(crate) fn asking_seat(&self) -> Option<Seat> {
        self.seat().filter(|_| self.asks != Asks::No)
    }
}

/// The range of a bundle's limits in the list of all bundles' limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holds {
    first: u32,
    count: u32,
}

impl Holds {
    /// The place of `count` limits that are added after `all`.
    pub(crate) fn next(all: &[Hold], count: usize) -> Option<Self> {
        let (first, count) = (u32::try_from(all.len()).ok()?, u32::try_from(count).ok()?);
        first.checked_add(count).map(|_| Self { first, count })
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.count as usize
    }

    #[inline]
    pub(crate) fn range(self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// Most limits that one packet can be behind.
pub(crate) const MOST_HOLDS: usize = 32;

#[derive(Clone, Debug)]
enum Flows {
    /// By arrival or deadline of the head, and then by the flow queue's number; with its record.
    Ranked(Heads),
    /// By the rank that a program gave the head, and then by its arrival.
    Pifo(BinaryHeap<Reverse<(u64, u64, RecordId)>>),
    /// In turns, by deficit round robin (Shreedhar and Varghese, 1995) with the turn paid after its use.
    Round(Circle),
    /// In turns, flows that have just begun first.
    Fair(Box<Fair>),
}

impl Done {
    /// Adds frames and bytes that a flow queue has counted.
    pub(crate) fn add(&mut self, (packets, bytes): (u32, u32)) {
        self.packets += u64::from(packets);
        self.bytes += u64::from(bytes);
    }
}

impl Bundle {
    /// `quantum`: bytes of a flow queue's turn, where flow queues take turns.
    pub(crate) fn new(class: NodeId, order: FlowOrder, seat: Seat, holds: Holds, quantum: i32) -> Self {
        let flows = match order {
            FlowOrder::Drr => Flows::Round(Circle::new()),
            FlowOrder::Fq(codel) => Flows::Fair(Box::new(Fair::new(codel, quantum))),
            FlowOrder::Fifo | FlowOrder::Lstf(_) | FlowOrder::Edf(_) => Flows::Ranked(Heads::default()),
            FlowOrder::Ranked(_) => Flows::Pifo(BinaryHeap::new()),
        };
        Self {
            flows,
            seat,
            class,
            place: Place::Idle,
            entries: 0,
            seen: Seen::Nothing,
            fresh: true,
            holds,
            done: Done::default(),
            gate: GateId::NONE,
            kept: false,
            waits_since: Nanos::ZERO,
            limited: Span::ZERO,
            longest_wait: Span::ZERO,
            limited_by: None,
            blocked: Span::ZERO,
            members: 0,
            order,
        }
    }

    /// A new head has waited for nothing yet.
    #[inline]
    pub(crate) fn forget_waits(&mut self) {
        (self.limited, self.limited_by, self.longest_wait) = (Span::ZERO, None, Span::ZERO);
    }

    /// The head has waited for this limit.
    #[inline]
    pub(crate) fn note_wait(&mut self, limit: LimitId, waited: Span) {
        if self.limited_by.is_none() || waited > self.longest_wait {
            (self.limited_by, self.longest_wait) = (Some(limit), waited);
        }
        self.limited += waited;
    }

    /// Whether it is behind limits.
    #[inline]
    pub(crate) fn has_limits(&self) -> bool {
        self.holds.len() > 0
    }

    /// Whether limits will ask what its next head is charged.
    #[inline]
    pub(crate) fn next_charge(&self) -> NextCharge {
        if self.has_limits() { NextCharge::Always } else { NextCharge::Never }
    }

    /// The rank of the front flow queue among the others, where they are in the order of their heads.
    #[inline]
    pub(crate) fn front_rank(&self) -> Option<u64> {
        let Flows::Ranked(heads) = &self.flows else { return None };
        heads.first().map(|(rank, _, _)| rank)
    }

    /// Whether more packets follow the head.
    #[inline]
    pub(crate) fn follows(&self, host: &Host) -> bool {
        self.active() > 1 || self.front().is_some_and(|flow| host.follows(flow))
    }

    /// Brings what a packet behind limits needs of the bundle into the cache.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_index(from_ref(&self.flows), 0);
        prefetch_index(from_ref(&self.done), 0);
    }

    /// Makes room for one more flow queue.
    pub(crate) fn join(&mut self) {
        self.members += 1;
        let wanted = self.members as usize;
        match &mut self.flows {
            Flows::Ranked(heads) => heads.reserve(wanted),
            Flows::Pifo(heads) => heads.reserve(wanted.saturating_sub(heads.len())),
            Flows::Round(circle) => circle.reserve(wanted),
            Flows::Fair(fair) => fair.reserve(wanted),
        }
    }

    /// Flow queues that hold packets.
    #[inline]
    pub(crate) fn active(&self) -> u32 {
        match &self.flows {
            Flows::Ranked(heads) => heads.len() as u32,
            Flows::Pifo(heads) => heads.len() as u32,
            Flows::Round(circle) => circle.len(),
            Flows::Fair(fair) => fair.len(),
        }
    }

    /// The flow queue whose head goes next.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<RecordId> {
        match &self.flows {
            Flows::Ranked(heads) => heads.first().map(|(_, _, record)| record),
            Flows::Pifo(heads) => heads.peek().map(|&Reverse((_, _, record))| record),
            Flows::Round(circle) => circle.get(0),
            Flows::Fair(fair) => fair.get(0),
        }
    }

    /// The flow queues that will be in front after so many more `turns`, as far as that can be foreseen.
    #[inline]
    pub(crate) fn upcoming(&self, turns: [u32; 2]) -> [Option<RecordId>; 2] {
        match &self.flows {
            Flows::Ranked(heads) => turns.map(|turns| heads.upcoming(turns)),
            Flows::Pifo(_) => [None; 2],
            Flows::Round(circle) => turns.map(|turns| circle.get(turns)),
            Flows::Fair(fair) => turns.map(|turns| fair.get(turns)),
        }
    }

    /// A flow queue that was empty has packets.
    #[inline]
    pub(crate) fn insert(&mut self, id: RecordId, host: &mut Host, arrivals: u64) {
        match &mut self.flows {
            Flows::Ranked(heads) => {
                let rank = flow_rank(self.order, id, host, arrivals);
                heads.push((rank, host.queue_of(id), id));
            }
            Flows::Pifo(heads) => heads.push(Reverse((host.rank(id), host.arrival(id, arrivals), id))),
            Flows::Round(circle) => circle.push_back(id),
            Flows::Fair(fair) => fair.insert(id, host),
        }
    }

    /// Frames that CoDel marked and dropped.
    pub(crate) fn signals(&self) -> Signals {
        if let Flows::Fair(fair) = &self.flows { fair.signals } else { Signals::default() }
    }

    /// CoDel dropped frames.
    pub(crate) fn note_drop(&mut self, frames: u32) {
        if let Flows::Fair(fair) = &mut self.flows {
            fair.signals.dropped += u64::from(frames);
        }
    }

    /// Hands out the next pull of the front flow queue, unless CoDel decides to drop it. `next`: whether
    /// limits will ask about the head that follows; `quantum`: bytes of a flow queue's turn.
    #[inline(always)]
    pub(crate) fn serve(
        &mut self,
        host: &mut Host,
        (next, quantum, arrivals): (NextCharge, i32, u64),
        now: Nanos,
        out: &mut Vec<Transmit>,
    ) -> Pull {
        let class = self.class;
        let turn = |quantum| Turn { quantum, next };
        match &mut self.flows {
            Flows::Round(circle) => {
                let id = circle.front();
                let pull = host.pull(id, class, turn(Some(quantum)), now, out);
                circle.serve(id, pull.turn_over(), !pull.more());
                pull.of_bundle(circle.len() > 0)
            }
            Flows::Ranked(heads) => {
                let (_, queue, id) = heads.pop_first().expect("a bundle in a tree holds packets");
                let pull = host.pull(id, class, turn(None), now, out);
                if pull.more() {
                    heads.push((flow_rank(self.order, id, host, arrivals), queue, id));
                }
                pull.of_bundle(heads.len() > 0)
            }
            Flows::Pifo(heads) => {
                let Reverse((_, _, id)) = heads.pop().expect("a bundle in a tree holds packets");
                let pull = host.pull(id, class, turn(None), now, out);
                if pull.more() {
                    heads.push(Reverse((host.rank(id), host.arrival(id, arrivals), id)));
                }
                pull.of_bundle(!heads.is_empty())
            }
            Flows::Fair(fair) => fair.serve(host, class, turn(None), now, out),
        }
    }
}

/// The rank of a flow queue inside its bundle.
#[inline]
fn flow_rank(order: FlowOrder, id: RecordId, host: &Host, arrivals: u64) -> u64 {
    match order {
        FlowOrder::Fifo => host.arrival(id, arrivals),
        FlowOrder::Drr | FlowOrder::Fq(_) | FlowOrder::Ranked(_) => 0,
        FlowOrder::Lstf(default) | FlowOrder::Edf(default) => host.deadline(id, default.as_u64()),
    }
}
