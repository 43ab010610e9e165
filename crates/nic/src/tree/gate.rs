//! Gates: a node's `max`, at the node itself.
//!
//! Why: a node that has used up its rate leaves its parent's order, whole, until the next packet is earned; below it
//! everything stands as before. So the node's own order decides who uses the rate, and limits nest by themselves.
//! From: classes that wait for their rate in HTB and hClock, with the clock of our limits.
//! Not here: the clock (`limit`), limits that cut across the tree.
//! Invariant: a closed node is in no order; it has an alarm exactly while something below it could go.

use plimsoll_policy::LimitId;
use plimsoll_units::{Nanos, Span};

use super::{Alarm, Forest, Node, Seat};
use crate::ids::{GateId, SlotId, Table, TreeId};

/// What opens and closes a node, as a limit says.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    node: TreeId,
    limit: LimitId,
    /// The nearest gate above.
    above: GateId,
    pub(super) closed: bool,
    /// When it opens again.
    opens: Nanos,
    /// When it opened last.
    opened: Nanos,
    /// Times that it held something back.
    held: u64,
    /// Heads below that were picked before the gate had earned enough, and that have not left yet.
    kept: u32,
    /// The most that one of these is charged. While there are any, the gate opens only once that is earned, so that they are
    /// not picked in vain again.
    longest: u32,
    tally: Tally,
}

/// How long something below a gate could not go, because of this one or of one above.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    blocked: Span,
    at: Nanos,
    /// The gate above's own `blocked` at that moment.
    above: Span,
}

pub(crate) const GATE_BYTES: usize = size_of::<Gate>();

impl Forest {
    /// Has a limit open and close a node of the main tree from now on. Nodes above get theirs first. `None` below an order
    /// that looks at packets: such an order cannot pass over the packets below a closed node.
    pub(crate) fn add_gate(&mut self, node: TreeId, limit: LimitId) -> Option<GateId> {
        let Node { parent, ranked_above, .. } = self.nodes[node];
        if ranked_above {
            return None;
        }
        let id = self.gates.next_id();
        let above = self.gate_above(Seat { node: parent, slot: SlotId(0) });
        self.gates.push(Gate::new(node, limit, above));
        let node = &mut self.nodes[node];
        assert!(!node.indifferent, "nodes below must not pass over it");
        (node.gate, node.pauses, node.alone) = (id, true, false);
        self.reserve_alarms();
        Some(id)
    }

    /// The nearest gate above a place of the main tree, or `NONE`.
    pub(crate) fn gate_above(&self, seat: Seat) -> GateId {
        let above = |node: &&Node| self.nodes.get(node.parent);
        let way = core::iter::successors(self.nodes.get(seat.node), above);
        way.map(|node| node.gate).find(|&gate| gate != GateId::NONE).unwrap_or(GateId::NONE)
    }

    /// Closes the node until `opens`. If something below was picked, the caller settles it afterwards.
    #[inline]
    pub(crate) fn close(&mut self, gate: GateId, opens: Nanos, now: Nanos) {
        turn(&mut self.gates, gate, true, now);
        self.gates[gate].opens = opens;
    }

    /// The limit's moment has come: what is below goes on, as if at the moment at which it could.
    pub(crate) fn open(&mut self, gate: GateId, now: Nanos) {
        let Gate { node, closed, opens, .. } = self.gates[gate];
        if !closed {
            return;
        }
        turn(&mut self.gates, gate, false, now);
        if self.is_active(node) {
            self.return_to_parent(node, opens.min(now), now);
        }
    }

    /// A head below the gate, charged `len`, was picked although a gate above it was not open for it; `new` is false if that
    /// has happened to its bundle since the bundle sent last.
    pub(crate) fn keep(&mut self, gate: GateId, len: u32, new: bool) {
        self.gates[gate].keep(len, new);
    }

    /// A head that had been picked in vain has left.
    pub(crate) fn let_through(&mut self, gate: GateId) {
        self.gates[gate].let_through();
    }

    /// The most that a head below the gate was charged that was picked in vain and is still there; 0 if there is none.
    #[inline]
    pub(crate) fn longest_kept(&self, gate: GateId) -> u32 {
        self.gates[gate].longest()
    }

    /// The limit's rate has changed: when it lets the node go on.
    pub(crate) fn reopen_at(&mut self, gate: GateId, opens: Nanos) {
        self.gates[gate].opens = opens;
        if self.keeps_back(gate) {
            self.alarms.push((Alarm::Gate(self.gates[gate].limit), Some(opens)));
        }
    }

    /// Whether something below the gate could go now but for it.
    fn keeps_back(&self, gate: GateId) -> bool {
        let state = &self.gates[gate];
        let node = &self.nodes[state.node];
        state.closed && node.active > 0 && !node.asleep
    }

    /// How long what is below a gate could not go because of gates, since the engine began.
    #[inline]
    pub(crate) fn blocked(&mut self, gate: GateId, now: Nanos) -> Span {
        blocked(&mut self.gates, gate, now)
    }

    /// The limit of the gate that opened last, of this one and those above.
    pub(crate) fn opened_last(&self, gate: GateId) -> Option<LimitId> {
        latest(&self.gates, gate)
    }

    /// Whether a gate keeps something back now, and how often it did.
    pub(crate) fn held_by(&self, gate: GateId) -> (bool, u64) {
        (self.keeps_back(gate), self.gates[gate].held)
    }

    /// A node that could go but for its gate: opens it, if that is due, or has an alarm set for when it is. Returns whether
    /// the node can go.
    #[inline]
    pub(super) fn passes_gate(&mut self, at: TreeId, now: Nanos) -> bool {
        let id = self.nodes[at].gate;
        let Some(gate) = self.gates.get_mut(id).filter(|gate| gate.closed) else { return true };
        if gate.opens > now {
            gate.hold_back(&mut self.alarms);
            return false;
        }
        turn(&mut self.gates, id, false, now);
        true
    }
}

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

    /// Something below could go but for this gate: it is counted, and has an alarm set for when the gate opens.
    pub(super) fn hold_back(&mut self, alarms: &mut Vec<(Alarm, Option<Nanos>)>) {
        self.held += 1;
        alarms.push((Alarm::Gate(self.limit), Some(self.opens)));
    }

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
fn turn(gates: &mut Table<GateId, Gate>, id: GateId, closed: bool, now: Nanos) {
    blocked(gates, id, now);
    let gate = &mut gates[id];
    if !closed {
        gate.opened = now;
    }
    gate.closed = closed;
}

/// How long what is below gate `id` could not go, since the engine began: time counts once, however many gates were closed
/// on the way.
fn blocked(gates: &mut Table<GateId, Gate>, id: GateId, now: Nanos) -> Span {
    let Some(above) = gates.get(id).map(|gate| gate.above) else { return Span::ZERO };
    let above = if above == GateId::NONE { Span::ZERO } else { blocked(gates, above, now) };
    let Gate { closed, tally, .. } = &mut gates[id];
    tally.blocked += if *closed { now - tally.at } else { above - tally.above };
    (tally.at, tally.above) = (now, above);
    tally.blocked
}

/// The limit of the gate, of `id` and those above, that opened last.
fn latest(gates: &Table<GateId, Gate>, id: GateId) -> Option<LimitId> {
    let above = |gate: &&Gate| gates.get(gate.above);
    let way = core::iter::successors(gates.get(id), above);
    // Of gates that opened at one moment, the innermost.
    way.reduce(|last, gate| if gate.opened > last.opened { gate } else { last }).map(|gate| gate.limit)
}
