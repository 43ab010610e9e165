//! Trees: what is active below a node, and which child goes next.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_policy::{FlowOrder, NodeId, NodeKind, Program};
use plimsoll_units::{BitRate, Bytes};

use super::clock::Clock;
use super::rates::Paced;
use super::{Bundle, Reference};

/// The state of every node's order, and the bundles that are active.
pub(super) struct Tree {
    pub(super) top: usize,
    /// Active bundles.
    pub(super) inside: BTreeSet<usize>,
    pub(super) nodes: Vec<Node>,
}

/// The state of one node.
#[derive(Clone, Default)]
pub(super) struct Node {
    /// Virtual time, and each child's (or bundle's) start.
    pub(super) v: u64,
    pub(super) starts: BTreeMap<usize, u64>,
    pub(super) step: u64,
    pub(super) ring: Vec<usize>,
    pub(super) deficits: BTreeMap<usize, i64>,
    pub(super) paced: Paced,
    pub(super) clocks: BTreeMap<usize, Clock>,
    pub(super) guaranteed: bool,
}

fn own(weight: u32) -> u64 {
    (1_u64 << 32).div_ceil(weight.into())
}

/// Virtual time of `len` bytes in units of 2^-20 bytes at weight 1, each weight's reciprocal rounded to 2^-32.
fn span(len: u64, inverse: u64) -> u64 {
    (len * inverse) >> 12
}

/// A child and the node above it.
type Step = (usize, usize);

impl Reference {
    /// Whether something below the node could go, but for what holds the node itself.
    pub(super) fn is_busy(&self, tree: usize, node: usize) -> bool {
        self.trees[tree].inside.iter().any(|&bundle| {
            let path = self.path(tree, bundle);
            let end = path.iter().position(|&(_, at)| at == node);
            end.is_some_and(|end| path[..end].iter().all(|&(_, at)| self.is_awake(tree, at)))
        })
    }

    fn is_awake(&self, tree: usize, node: usize) -> bool {
        self.trees[tree].nodes[node].paced.asleep.is_none() && !self.is_closed(tree, node)
    }

    /// From a node up: each (child, node), and whether that node is active and whether it has an active child.
    pub(super) fn way_up(&self, tree: usize, node: usize) -> (Vec<Step>, Vec<(bool, bool)>) {
        let above: Vec<NodeId> = self.program.path(NodeId(node as u32)).collect();
        let path: Vec<Step> = above.windows(2).map(|pair| (pair[0].0 as usize, pair[1].0 as usize)).collect();
        let active = self.activity(tree, &path);
        (path, active)
    }

    fn activity(&self, tree: usize, path: &[(usize, usize)]) -> Vec<(bool, bool)> {
        let waits =
            |node: usize| self.is_busy(tree, node) && self.trees[tree].nodes[node].paced.asleep.is_none();
        path.iter().map(|&(_, node)| (self.is_active(tree, node), waits(node))).collect()
    }

    /// Looks again at a node that may be asleep: once a child is eligible, the node is active as from that moment.
    pub(super) fn look_again(&mut self, tree: usize, node: usize, now: u64) {
        let state = &mut self.trees[tree].nodes[node];
        if state.paced.asleep.is_none() {
            return;
        }
        let since = state.wakes_at().min(now);
        state.advance(now);
        if state.paced.due.is_empty() {
            state.paced.asleep = Some(state.wakes_at());
            return;
        }
        let (path, active) = self.way_up(tree, node);
        self.trees[tree].nodes[node].paced.asleep = None;
        if self.passes_gate(tree, node, now) {
            self.enter_along(tree, &path, &active, true, since, now);
        }
    }

    /// From the class to the top of the tree: (child, node); a class's child is the bundle.
    pub(super) fn path(&self, tree: usize, bundle: usize) -> Vec<(usize, usize)> {
        let (mut child, mut node) = (bundle, self.bundles[bundle].class);
        let mut path = vec![(child, node)];
        while node != self.trees[tree].top {
            (child, node) = (node, self.program.nodes[node].parent.expect("the top is above").0 as usize);
            path.push((child, node));
        }
        path
    }

    /// Whether something below the node may go: a bundle with no sleeping or closed node on its way.
    pub(super) fn is_active(&self, tree: usize, node: usize) -> bool {
        self.is_awake(tree, node) && self.is_busy(tree, node)
    }

    fn slot(&self, node: usize, child: usize) -> usize {
        let children = &self.program.nodes[node].children;
        children.iter().position(|other| other.0 as usize == child).expect("a child")
    }

    fn weight(&self, child: usize) -> u32 {
        self.program.nodes[child].weight
    }

    /// Whether a class has only one bundle in this tree, so that it decides nothing.
    pub(super) fn single(&self, tree: usize, class: usize) -> bool {
        let here =
            |bundle: &&Bundle| bundle.class == class && (tree == 0 || bundle.limits.contains(&(tree - 1)));
        self.bundles.iter().filter(here).count() == 1
    }

    pub(super) fn activate(&mut self, tree: usize, bundle: usize, returning: bool, now: u64) {
        let path = self.path(tree, bundle);
        let active = self.activity(tree, &path);
        self.enter_along(tree, &path, &active, returning, now, now);
        self.trees[tree].inside.insert(bundle);
    }

    /// Enters each (child, node) on the way up, until a node was active before, or sleeps, or is closed.
    pub(super) fn enter_along(
        &mut self,
        tree: usize,
        path: &[(usize, usize)],
        active: &[(bool, bool)],
        returning: bool,
        since: u64,
        now: u64,
    ) {
        for (&(child, node), &(was_active, was_busy)) in path.iter().zip(active) {
            if matches!(self.program.nodes[node].kind, NodeKind::RateShare(_)) {
                self.trees[tree].nodes[node].join(child, since, now);
            }
            self.insert(tree, node, child, returning);
            let largest = Bytes::new(self.largest);
            if let Some(clock) = self.trees[tree].nodes[node].clocks.get_mut(&child) {
                let rate = BitRate::new(clock.rate as u64).expect("above zero");
                let owed = if returning { rate.wire_time(largest).as_u64() } else { 0 };
                clock.not_before(now.saturating_sub(owed));
            }
            let state = &mut self.trees[tree].nodes[node];
            if state.paced.real {
                state.paced.asleep = state.paced.due.is_empty().then(|| state.wakes_at());
            }
            if was_active || self.trees[tree].nodes[node].paced.asleep.is_some() {
                break;
            }
            // A closed node with others below has its moment to wait for already.
            let waits = was_busy && self.is_closed(tree, node);
            if waits || !self.passes_gate(tree, node, now) {
                break;
            }
        }
    }

    fn insert(&mut self, tree: usize, node: usize, child: usize, returning: bool) {
        let single = self.single(tree, node);
        let kind = self.program.nodes[node].kind;
        let reach = match kind {
            NodeKind::Wfq => span(self.largest, own(self.weight(child))),
            _ => self.trees[tree].nodes[node].step,
        };
        let state = &mut self.trees[tree].nodes[node];
        match kind {
            NodeKind::Wfq => state.enter(child, if returning { reach } else { 0 }),
            NodeKind::Class(FlowOrder::Drr) if !single => {
                state.enter(child, if returning { reach } else { 0 })
            }
            NodeKind::Drr => {
                let goes_on = state.deficits.get(&child).copied().unwrap_or(0) > 0;
                state.ring.insert(if goes_on { 0 } else { state.ring.len() }, child);
                self.begin_turn(tree, node);
            }
            _ => {}
        }
    }

    fn begin_turn(&mut self, tree: usize, node: usize) {
        let Some(&front) = self.trees[tree].nodes[node].ring.first() else { return };
        let quantum = self.quantum(node, front);
        let deficit = self.trees[tree].nodes[node].deficits.entry(front).or_insert(0);
        if *deficit <= 0 {
            *deficit = (*deficit + quantum).max(1);
        }
    }

    /// A turn: a largest packet for the least weight that the policy was installed with.
    fn quantum(&self, node: usize, child: usize) -> i64 {
        let least = self.trees[0].nodes[node].step.max(1);
        (self.largest.div_ceil(least) * u64::from(self.weight(child))) as i64
    }

    pub(super) fn pick(&mut self, tree: usize, now: u64) -> Option<usize> {
        if !self.is_active(tree, self.trees[tree].top) {
            return None;
        }
        let mut node = self.trees[tree].top;
        loop {
            let kind = self.program.nodes[node].kind;
            if let NodeKind::Class(order) = kind {
                return self.pick_bundle(tree, node, order);
            }
            let promised = self.promised(tree, node, now);
            self.trees[tree].nodes[node].guaranteed = promised.is_some();
            node = promised.unwrap_or_else(|| self.pick_child(tree, node, kind, now));
        }
    }

    fn pick_bundle(&self, tree: usize, class: usize, order: FlowOrder) -> Option<usize> {
        let waiting =
            self.trees[tree].inside.iter().copied().filter(|&bundle| self.bundles[bundle].class == class);
        let starts = &self.trees[tree].nodes[class].starts;
        waiting.min_by_key(|&bundle| {
            let front = self.front(bundle).expect("active");
            let rank = match order {
                FlowOrder::Fifo => self.flows[front].packets[0].number,
                FlowOrder::Lstf(_) | FlowOrder::Edf(_) => self.deadline(bundle, front),
                FlowOrder::Drr => starts.get(&bundle).copied().unwrap_or(0),
                FlowOrder::Fq(_) | FlowOrder::Ranked(_) => unreachable!("the reference has no such class"),
            };
            (rank, bundle)
        })
    }

    /// The child whose guarantee is due, by earliest deadline.
    fn promised(&self, tree: usize, node: usize, now: u64) -> Option<usize> {
        let due = self.active_children(tree, node).into_iter().filter_map(|child| {
            let clock = self.trees[tree].nodes[node].clocks.get(&child)?;
            let rate = BitRate::new(u64::try_from(clock.rate).ok()?)?;
            let deadline = clock.earned() + rate.wire_time(Bytes::new(self.largest)).as_u64();
            (clock.earned() <= now).then_some((deadline, self.slot(node, child), child))
        });
        due.min().map(|(_, _, child)| child)
    }

    fn active_children(&self, tree: usize, node: usize) -> Vec<usize> {
        let children = self.program.nodes[node].children.iter().map(|child| child.0 as usize);
        children.filter(|&child| self.is_active(tree, child)).collect()
    }

    fn pick_child(&mut self, tree: usize, node: usize, kind: NodeKind, now: u64) -> usize {
        if let NodeKind::RateShare(_) = kind {
            let slots: Vec<usize> =
                self.program.nodes[node].children.iter().map(|child| child.0 as usize).collect();
            return self.trees[tree].nodes[node].pick(&slots, now);
        }
        let children = self.active_children(tree, node);
        match kind {
            NodeKind::Priority => children[0],
            NodeKind::Wfq => self.pick_fair(tree, node, &children),
            NodeKind::Drr => self.trees[tree].nodes[node].ring[0],
            _ => {
                let below = self.trees[tree].inside.iter().copied();
                let below = below.filter(|&bundle| self.path(tree, bundle).iter().any(|&(_, at)| at == node));
                let first = below.min_by_key(|&bundle| {
                    let front = self.front(bundle).expect("active");
                    let by_arrival = kind == NodeKind::Fifo;
                    let number = self.flows[front].packets[0].number;
                    (if by_arrival { number } else { self.deadline(bundle, front) }, bundle)
                });
                let path = self.path(tree, first.expect("a bundle is active"));
                path.into_iter().find(|&(_, at)| at == node).expect("below").0
            }
        }
    }

    fn pick_fair(&mut self, tree: usize, node: usize, children: &[usize]) -> usize {
        let state = &mut self.trees[tree].nodes[node];
        let start = |state: &Node, child: usize| state.starts[&child];
        let first = children.iter().map(|&child| start(state, child)).min().expect("an active child");
        state.v = state.v.max(first);
        let v = state.v;
        let eligible =
            children.iter().copied().filter(|&child| self.trees[tree].nodes[node].starts[&child] <= v);
        let finish = |child: usize| {
            let start = self.trees[tree].nodes[node].starts[&child];
            (start + span(self.largest, own(self.weight(child))), self.slot(node, child))
        };
        eligible.min_by_key(|&child| finish(child)).expect("the first is eligible")
    }

    /// The picked bundle sent `len` bytes (0: it was parked), and leaves or stays in the tree.
    pub(super) fn settle(&mut self, tree: usize, bundle: usize, len: u64, leaves: bool, idle: bool) {
        if leaves {
            self.trees[tree].inside.remove(&bundle);
        }
        let mut idle = idle;
        for (child, node) in self.path(tree, bundle) {
            let class = node == self.bundles[bundle].class;
            let stays = if class { !leaves } else { self.is_active(tree, child) };
            let state = &mut self.trees[tree].nodes[node];
            let mut charged = len;
            if !class && state.guaranteed && len > 0 {
                state.clocks.get_mut(&child).expect("it had a guarantee").charge(len);
                charged = 0;
            }
            self.charge(tree, node, child, charged, stays, idle);
            let state = &mut self.trees[tree].nodes[node];
            if state.paced.real && !state.paced.members.is_empty() && state.paced.due.is_empty() {
                (state.paced.asleep, idle) = (Some(state.wakes_at()), false);
            }
            if self.is_closed(tree, node) && self.is_busy(tree, node) {
                idle = false;
            }
        }
    }

    fn charge(&mut self, tree: usize, node: usize, child: usize, charged: u64, stays: bool, idle: bool) {
        let kind = self.program.nodes[node].kind;
        match kind {
            NodeKind::Wfq if charged > 0 => {
                let total: u64 = self.program.nodes[node]
                    .children
                    .iter()
                    .map(|c| u64::from(self.weight(c.0 as usize)))
                    .sum();
                let step = span(charged, own(self.weight(child)));
                let state = &mut self.trees[tree].nodes[node];
                *state.starts.get_mut(&child).expect("it was active") += step;
                state.v += span(charged, (1 << 32) / total);
            }
            NodeKind::RateShare(_) => self.trees[tree].nodes[node].serve(child, charged, stays),
            NodeKind::Class(FlowOrder::Drr) if charged > 0 && !self.single(tree, node) => {
                let flows = self.bundles[child].turns.len().max(1) as u64;
                let state = &mut self.trees[tree].nodes[node];
                let start = state.starts.get_mut(&child).expect("it was active");
                state.v = state.v.max(*start);
                *start += (charged << 8) / flows;
                state.step = state.step.max((charged << 8) / flows);
            }
            NodeKind::Drr => {
                let state = &mut self.trees[tree].nodes[node];
                if charged > 0 {
                    let deficit = state.deficits.entry(child).or_insert(0);
                    *deficit -= charged as i64;
                    if *deficit <= 0 && state.ring[0] == child {
                        state.ring.rotate_left(1);
                    }
                    self.begin_turn(tree, node);
                }
                let state = &mut self.trees[tree].nodes[node];
                if !stays {
                    state.ring.retain(|&other| other != child);
                    if idle {
                        let deficit = state.deficits.entry(child).or_insert(0);
                        *deficit = (*deficit).min(0);
                    }
                    self.begin_turn(tree, node);
                }
            }
            _ => {}
        }
    }
}

impl Node {
    /// A child enters with its own start, or as far behind virtual time as `reach` says.
    fn enter(&mut self, child: usize, reach: u64) {
        let floor = self.v.saturating_sub(reach);
        let start = self.starts.entry(child).or_insert(0);
        *start = (*start).max(floor);
    }
}

impl Tree {
    pub(super) fn new(program: &Program, top: usize, minima: bool, main: bool, largest: u64) -> Self {
        let node = |id: usize| {
            let children = program.nodes[id].children.iter().map(|child| child.0 as usize);
            let clock = |child: usize| program.nodes[child].min.map(|min| (child, Clock::new(min)));
            let minima = minima && !matches!(program.nodes[id].kind, NodeKind::RateShare(_));
            let clocks = if minima { children.clone().filter_map(clock).collect() } else { BTreeMap::new() };
            let least = children.map(|child| u64::from(program.nodes[child].weight)).min();
            let step = if program.nodes[id].kind == NodeKind::Drr { least.unwrap_or(1) } else { 0 };
            let paced = Paced::new(program, id, main, largest);
            Node { clocks, step, paced, ..Node::default() }
        };
        Self { top, inside: BTreeSet::new(), nodes: (0..program.nodes.len()).map(node).collect() }
    }
}
