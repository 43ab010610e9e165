//! Gates: a node's `max`, at the node itself.
//!
//! Why: a node that has used up its rate leaves its parent's order, whole, until the next packet is earned; below it
//! everything stands as before. So the node's own order decides who uses the rate, and limits nest by themselves.
//! From: classes that wait for their rate in HTB and hClock, with the clock of our limits.
//! Not here: the clock (`limit`), limits that cut across the tree.
//! Invariant: a closed node is in no order; it has an alarm exactly while something below it could go.

use plimsoll_policy::LimitId;
use plimsoll_units::{Nanos, Span};

use crate::ids::{GateId, Table, TreeId};

/// A node that a limit opens and closes.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(super) node: TreeId,
    pub(super) limit: LimitId,
    /// The nearest gate above.
    above: GateId,
    pub(super) closed: bool,
    /// Until when.
    pub(super) opens: Nanos,
    /// Since when it is open, if it is.
    opened: Nanos,
    /// Times that it kept something back.
    pub(super) held: u64,
    /// Heads below that were picked in vain and have not left yet, and the most that one of them was charged. While there
    /// are any, the gate opens for that much only: they are picked in vain no more.
    kept: u32,
    longest: u32,
    tally: Tally,
}

/// How long something below a gate could not go, because of this one or of one above.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    blocked: Span,
    at: Nanos,
    /// What the gate above had counted then.
    above: Span,
}

pub(crate) const GATE_BYTES: usize = size_of::<Gate>();

impl Gate {
    pub(super) fn new(node: TreeId, limit: LimitId, above: GateId) -> Self {
        Self {
            node,
            limit,
            above,
            closed: false,
            opens: Nanos::ZERO,
            opened: Nanos::ZERO,
            held: 0,
            kept: 0,
            longest: 0,
            tally: Tally::default(),
        }
    }
}

impl Gate {
    /// A head that is charged `len` was picked in vain, for the first time if it is `new`.
    pub(super) fn keep(&mut self, len: u32, new: bool) {
        self.kept += u32::from(new);
        self.longest = self.longest.max(len);
    }

    /// One of the heads that were picked in vain has left.
    pub(super) fn let_through(&mut self) {
        self.kept -= 1;
        if self.kept == 0 {
            self.longest = 0;
        }
    }

    pub(super) fn longest(&self) -> u32 {
        self.longest
    }
}

/// Opens or closes a gate.
pub(super) fn turn(gates: &mut Table<GateId, Gate>, id: GateId, closed: bool, now: Nanos) {
    blocked(gates, id, now);
    let gate = &mut gates[id];
    if !closed {
        gate.opened = now;
    }
    gate.closed = closed;
}

/// How long what is below gate `id` could not go, since the engine began: time counts once, however many gates were closed
/// on the way.
pub(super) fn blocked(gates: &mut Table<GateId, Gate>, id: GateId, now: Nanos) -> Span {
    let Some(above) = gates.get(id).map(|gate| gate.above) else { return Span::ZERO };
    let above = if above == GateId::NONE { Span::ZERO } else { blocked(gates, above, now) };
    let Gate { closed, tally, .. } = &mut gates[id];
    tally.blocked += if *closed { now - tally.at } else { above - tally.above };
    (tally.at, tally.above) = (now, above);
    tally.blocked
}

/// The limit of the gate, of `id` and those above, that opened last.
pub(super) fn latest(gates: &Table<GateId, Gate>, id: GateId) -> Option<LimitId> {
    let above = |gate: &&Gate| gates.get(gate.above);
    let way = core::iter::successors(gates.get(id), above);
    // Of those that opened at the same moment, the innermost.
    way.reduce(|last, gate| if gate.opened > last.opened { gate } else { last }).map(|gate| gate.limit)
}
