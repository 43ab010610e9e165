//! Maxima that close their node until the next pull is earned.

use plimsoll_policy::{NodeId, NodeKind};

use super::Reference;
use super::limits::Limit;

impl Reference {
    /// Whether the limit is a gate at its node. It is none below an order that looks at packets, nor at a class of one bundle:
    /// there the bundle waits.
    pub(super) fn is_gate(&self, limit: usize) -> bool {
        let Some(top) = self.limits[limit].top else { return false };
        let by_packets = |above: NodeId| {
            matches!(self.program.node(above).kind, NodeKind::Fifo | NodeKind::Lstf | NodeKind::Edf)
        };
        let class = matches!(self.program.nodes[top].kind, NodeKind::Class(_));
        let below_packets = self.program.path(NodeId(top as u32)).skip(1).any(by_packets);
        !below_packets && (!class || !self.single(0, top))
    }

    /// The gate at a node of the main tree.
    fn gate_at(&self, node: usize) -> Option<usize> {
        (0..self.limits.len()).find(|&limit| self.limits[limit].top == Some(node) && self.is_gate(limit))
    }

    pub(super) fn is_closed(&self, tree: usize, node: usize) -> bool {
        tree == 0 && self.gate_at(node).is_some_and(|gate| self.limits[gate].opens.is_some())
    }

    /// Gates that keep something back, and when they open.
    pub(super) fn openings(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let keeps = |&(_, gate): &(u64, usize)| {
            let node = self.limits[gate].top.expect("a gate");
            self.is_busy(0, node) && self.trees[0].nodes[node].paced.asleep.is_none()
        };
        (0..self.limits.len()).filter_map(|gate| Some((self.limits[gate].opens?, gate))).filter(keeps)
    }

    fn open_gate(&mut self, gate: usize, now: u64) {
        let state = &mut self.limits[gate];
        state.opens = None;
        state.spans.last_mut().expect("it was closed").1 = now;
    }

    /// The bundle was picked before its gates had earned enough: until it has sent, they open for no less than its head needs.
    pub(super) fn keep(&mut self, bundle: usize, len: u64) {
        for limit in self.bundles[bundle].limits.clone() {
            let state = &mut self.limits[limit];
            state.kept.insert(bundle);
            state.longest = state.longest.max(len);
        }
    }

    /// Closes the bundle's gates that cannot let as much as `len` says pass now. Returns whether any closed.
    pub(super) fn close_gates(&mut self, bundle: usize, len: impl Fn(&Limit) -> u64, now: u64) -> bool {
        let mut closed = false;
        for limit in self.bundles[bundle].limits.clone() {
            if !self.is_gate(limit) {
                continue;
            }
            self.limits[limit].expected = len(&self.limits[limit]);
            let due = self.due(limit);
            if due > now {
                self.limits[limit].opens = Some(due);
                self.limits[limit].spans.push((now, u64::MAX));
                closed = true;
            }
        }
        closed
    }

    /// How long gates have held the head, each moment counted once, as a wait for the one that opened last.
    pub(super) fn note_gates(&mut self, bundle: usize, now: u64) {
        let class = NodeId(self.bundles[bundle].class as u32);
        let gates: Vec<usize> =
            self.program.path(class).filter_map(|node| self.gate_at(node.0 as usize)).collect();
        let since = self.bundles[bundle].below_since;
        let mut spans: Vec<(u64, u64)> =
            gates.iter().flat_map(|&gate| self.limits[gate].spans.iter().copied()).collect();
        spans.sort_unstable();
        let (mut waited, mut until) = (0, since);
        for (from, to) in spans {
            let (from, to) = (from.max(until), to.min(now));
            waited += to.saturating_sub(from);
            until = until.max(to);
        }
        self.bundles[bundle].below_since = now;
        let opened =
            |&gate: &usize| self.limits[gate].spans.iter().map(|&(_, to)| to).filter(|&to| to <= now).max();
        let last = gates.into_iter().rev().max_by_key(opened); // of equal ones, the innermost
        if waited > 0 {
            self.bundles[bundle].waits.push((last.expect("a gate held it"), waited));
        }
    }

    /// A gate's moment has come: its node goes on as from the moment at which it could.
    pub(super) fn open_at(&mut self, gate: usize, now: u64) {
        let node = self.limits[gate].top.expect("a gate");
        let since = self.limits[gate].opens.expect("closed").min(now);
        let (path, active) = self.way_up(0, node);
        self.open_gate(gate, now);
        self.enter_along(0, &path, &active, true, since, now);
    }

    /// For a node that could go but for its gate: whether the gate is open, or opens now.
    pub(super) fn passes_gate(&mut self, tree: usize, node: usize, now: u64) -> bool {
        let Some(gate) = self.gate_at(node).filter(|_| tree == 0) else { return true };
        match self.limits[gate].opens {
            None => true,
            Some(opens) if opens <= now => {
                self.open_gate(gate, now);
                true
            }
            Some(_) => false,
        }
    }
}
