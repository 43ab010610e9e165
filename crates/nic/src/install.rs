//! From a compiled policy to the engine's tables, at the start and at each reload.
//!
//! Why: everything that allocates happens here, never per packet.
//! From: Loom §4.3.2 (reconfiguration without stopping); a reload keeps flow queues and what they hold.
//! Not here: the language (`plimsoll_policy`).
//! Invariant: after an install every open flow queue has a bundle of the new policy, and holds what it held, in order.
//! Between flow queues there is no order to keep: a caller that puts one flow into several must keep it itself.

use std::collections::HashMap;

use plimsoll_policy::{FlowOrder, LimitId, Node, NodeId, NodeKind, Placement, Program, Scope, TenantId};
use plimsoll_queues::{Pace, Wheel};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::account::{Accounts, Capped, NO_TENANT};
use crate::bundle::{Asks, Bundle, Done, Hold, Holds, MOST_HOLDS, Place};
use crate::completions::CompletionQueue;
use crate::config::Config;
use crate::egress::{Ahead, Link, Nic};
use crate::host::{Cut, Host};
use crate::ids::{BundleId, GateId, OwnerId, QueueId, RecordId, Table, Tagged, TreeId};
use crate::layout::Layout;
use crate::limit::Limit;
use crate::ranks::{Below, Ranks};
use crate::refusal::Refusal;
use crate::stats::EngineStats;
use crate::tree::{Adoption, Forest, Purpose, Seat};

/// Slots of the wheel and the span of each: a horizon of 67 ms, beyond which entries are looked at once per horizon.
pub(crate) const WHEEL_SLOTS: usize = 1 << 16;
const WHEEL_GRAIN: Span = Span::ns(1_024);

impl Nic {
    /// An engine for a checked policy.
    #[must_use]
    pub fn new(program: &Program, config: &Config) -> Self {
        let program = &program.carried_out();
        let cut = cut_of(program, config.pull);
        let largest = cut.largest();
        let frame = u32::try_from((program.max_frame + program.overhead).as_u64()).unwrap_or(u32::MAX);
        let mut forest = Forest::plant(program, main_tree(largest, config.catch_up));
        let pull = u32::try_from(largest).unwrap_or(u32::MAX);
        let made = |limit| Limit::new(limit, frame, pull);
        let mut limits: Table<LimitId, Limit> = program.limits.iter().map(made).collect();
        for node in &program.nodes {
            if let (Some(limit), Some(&child)) = (node.max, node.children.first()) {
                let gate = forest.add_gate(forest.seat(child).node, limit);
                limits[limit].gate = gate.unwrap_or(GateId::NONE);
            }
        }
        let timers = forest.timers().len();
        Self {
            program: program.clone(),
            host: host_of(program, config, cut),
            accounts: accounts_of(program, config.descriptors),
            wheel: Wheel::new(program.limits.len() + timers, WHEEL_SLOTS, WHEEL_GRAIN),
            forest,
            bundles: Table::default(),
            holds: Vec::new(),
            limits,
            resting: Vec::with_capacity(program.limits.len()),
            layout: Layout::new(program, largest),
            ranks: Ranks::new(program),
            link: Link {
                pace: Pace::new(program.link),
                catch_up: config.catch_up,
                emptied: Nanos::ZERO,
                unused: Span::ZERO,
            },
            ahead: Ahead::default(),
            arrivals: 0,
            refused: vec![[0; Refusal::COUNT]; program.nodes.len()].into(),
            sums: vec![Done::default(); program.nodes.len()].into(),
            completions: CompletionQueue::with_capacity(config.descriptors as usize),
            stats: EngineStats::default(),
            config: config.clone(),
            now: Nanos::ZERO,
        }
    }

    /// Opens a flow queue for one flow.
    ///
    /// # Errors
    /// [`Refusal::NoQueue`] when none is left, or when the placement names no class, or more limits than fit.
    pub fn open_queue(&mut self, placement: &Placement) -> Result<QueueId, Refusal> {
        let home = self.home_for(placement).ok_or(Refusal::NoQueue)?;
        let (owner, pull) = (self.owner_of(placement.class), self.pull_of(home));
        let queue = self.host.open(home, owner, pull).ok_or(Refusal::NoQueue)?;
        self.move_in(queue, home);
        Ok(queue)
    }

    /// Closes a flow queue, unless it holds something.
    pub fn close_queue(&mut self, queue: QueueId) -> bool {
        let Some(home) = self.host.home(queue) else { return false };
        let id = self.host.resolve(queue);
        let closed = self.host.close(queue);
        if closed {
            self.move_out(id, home);
        }
        closed
    }

    /// Puts another policy in force: `place` says where each open flow queue belongs in it. What flow queues hold
    /// stays, in its order; limits of the same name go on owing what they owed; counters begin again at zero.
    pub fn install(&mut self, program: &Program, place: &mut dyn FnMut(QueueId) -> Placement, now: Nanos) {
        let mut old = core::mem::replace(self, Self::new(program, &self.config.without_queues()));
        core::mem::swap(&mut self.host, &mut old.host);
        core::mem::swap(&mut self.completions, &mut old.completions);
        self.completions.reserve(old.config.descriptors as usize);
        self.config = old.config.clone();
        self.now = now;
        let cut = cut_of(program, self.config.pull);
        self.host.set_cut(cut);
        self.host.fit(self.config.descriptors);
        self.host.keep_flows(has_fair_class(program));
        self.host.keep_ranks(!self.ranks.is_empty());
        let kept = self.ranks.inherit(&old.ranks, (&self.program, &old.program));
        self.arrivals = old.arrivals;
        self.stats = old.stats;
        self.link = old.link;
        self.link.pace.change_rate(program.link, now);
        old.take_back_grants(now);
        self.inherit_limits(&old, now);
        let mut queues: Vec<QueueId> = self.host.open_queues().collect();
        let holding = |queue| self.host.resolve(queue).filter(|&id| self.host.holds_packets(id));
        queues.sort_by_key(|&queue| (holding(queue).map(|id| self.host.arrival(id, self.arrivals)), queue));
        for queue in queues {
            let before = self.host.home(queue).and_then(|home| old.ranks.above(old.class_at(home)));
            self.replant(queue, &place(queue), before.and_then(|before| kept.place(before)), now);
        }
    }

    fn take_back_grants(&mut self, now: Nanos) {
        for hold in &mut self.holds {
            self.limits[hold.limit].take_back(&mut hold.granted, now);
        }
    }

    fn inherit_limits(&mut self, old: &Self, now: Nanos) {
        let by_name: HashMap<&str, &Limit> =
            old.program.limits.iter().map(|limit| limit.name.as_str()).zip(old.limits.iter()).collect();
        for (limit, stated) in self.limits.iter_mut().zip(&self.program.limits) {
            if let Some(before) = by_name.get(stated.name.as_str()) {
                limit.inherit(before, now);
            }
        }
    }

    /// An open flow queue moves to its place in the new policy, with all that it holds.
    /// `ranked`: where the program is that has ranked its packets, if it goes on with its state.
    fn replant(&mut self, queue: QueueId, placement: &Placement, ranked: Option<Below>, now: Nanos) {
        let fallback = Placement { class: self.program.default_class, limits: Vec::new() };
        let placed = self.home_for(placement).map(|home| (home, placement.class));
        let placed = placed.or_else(|| self.home_for(&fallback).map(|home| (home, fallback.class)));
        let (home, class) = placed.expect("the default class takes anything");
        let owner = self.owner_of(class);
        self.host.rehome(queue, home, owner, self.pull_of(home));
        self.move_in(queue, home);
        let Some(id) = self.host.resolve(queue) else { return };
        self.accounts.charge(owner, self.host.held(id));
        if self.host.holds_packets(id) {
            if !self.ranks.is_empty() {
                self.keep_or_clear_ranks(id, class, ranked);
            }
            self.host.load_head(id);
            self.join(home, id, now);
        }
    }

    /// Where a flow queue of this placement belongs: a class with one flow queue and no limits needs no bundle.
    fn home_for(&mut self, placement: &Placement) -> Option<Tagged> {
        let class = placement.class;
        let NodeKind::Class(order) = self.program.nodes.get(class.0 as usize)?.kind else { return None };
        let seat = self.forest.seat(class);
        // CoDel looks at bundles' packets only.
        let plain = !matches!(order, FlowOrder::Fq(_)) && placement.limits.is_empty();
        let bare = plain && self.forest.does_without_bundle(seat);
        if bare && self.forest.child(seat).is_nothing() {
            return Some(Tagged::class(class));
        }
        self.bundle_for(placement).map(Tagged::bundle)
    }

    fn move_in(&mut self, queue: QueueId, home: Tagged) {
        match home.as_class() {
            Some(class) => {
                let child = self.host.resolve(queue).map_or(Tagged::queue(queue), Tagged::record);
                self.forest.hang(self.forest.seat(class), child);
            }
            None => home.as_bundle().into_iter().for_each(|bundle| self.bundles[bundle].join()),
        }
    }

    fn move_out(&mut self, record: Option<RecordId>, home: Tagged) {
        record.into_iter().for_each(|id| self.add_up(id, home));
        if let Some(class) = home.as_class() {
            self.forest.hang(self.forest.seat(class), Tagged::NOTHING);
        } else if let Some(bundle) = home.as_bundle() {
            self.bundles[bundle].members -= 1;
        }
    }

    /// The only flow queue of a class that needed no bundle so far moves into one, with what it holds.
    fn bundle_up(&mut self, class: NodeId) -> Option<()> {
        let Some((queue, record)) = self.alone_in(class) else { return Some(()) };
        record.into_iter().for_each(|id| self.add_up(id, Tagged::class(class)));
        let bundle = self.make_bundle(&Placement { class, limits: Vec::new() })?;
        self.host.set_home(queue, Tagged::bundle(bundle));
        let bundle = &mut self.bundles[bundle];
        bundle.join();
        if let Some(id) = record.filter(|&id| self.host.holds_packets(id)) {
            bundle.insert(id, &mut self.host, self.arrivals);
            (bundle.place, bundle.entries, bundle.fresh) = (Place::Tree, 1, false);
        }
        Some(())
    }

    /// The only flow queue of a class that needs no bundle, and its record. It hangs in the tree by its record, or by its
    /// own name while it has none.
    fn alone_in(&self, class: NodeId) -> Option<(QueueId, Option<RecordId>)> {
        let seat = self.forest.seat(class);
        let bare = self.forest.does_without_bundle(seat);
        let child = if bare { self.forest.child(seat) } else { return None };
        let record = child.as_record();
        Some((child.as_queue().or_else(|| record.map(|id| self.host.queue_of(id)))?, record))
    }

    /// Most bytes that one pull may take behind the limits that hold there.
    pub(crate) fn pull_of(&self, home: Tagged) -> u32 {
        let Some(bundle) = home.as_bundle() else { return u32::MAX };
        let holds = &self.holds[self.bundles[bundle].holds.range()];
        holds.iter().map(|hold| self.limits[hold.limit].longest_pull()).min().unwrap_or(u32::MAX)
    }

    /// The bundle of a placement, made when it is the first of its kind.
    fn bundle_for(&mut self, placement: &Placement) -> Option<BundleId> {
        if let Some(&bundle) = self.layout.bundles.get(placement) {
            return Some(bundle);
        }
        self.bundle_up(placement.class)?;
        match self.layout.bundles.get(placement) {
            Some(&bundle) => Some(bundle), // the one that was just made
            None => self.make_bundle(placement),
        }
    }

    fn make_bundle(&mut self, placement: &Placement) -> Option<BundleId> {
        let NodeKind::Class(order) = self.program.node(placement.class).kind else { return None };
        let known = placement.limits.iter().all(|&limit| self.limits.has(limit));
        if !known || placement.limits.len() > MOST_HOLDS {
            return None;
        }
        let id = self.bundles.next_id();
        let holds = Holds::next(&self.holds, placement.limits.len())?;
        let place = self.node_for(placement.class);
        let Adoption { seat, first } = self.forest.adopt(place, id, order);
        self.holds.extend(placement.limits.iter().map(|&limit| Hold::new(limit)));
        self.bundles.push(Bundle::new(placement.class, order, seat, holds, self.layout.quantum));
        self.bundles[id].seen = self.forest.looks_at(seat);
        self.bundles[id].gate = self.forest.gate_above(seat);
        if let Some((first, seat)) = first {
            self.bundles[first].seat = seat;
            self.reseat(first, seat, self.bundles[first].place == Place::Tree);
        }
        for (hold, &limit) in holds.range().zip(&placement.limits) {
            self.share(limit, id, hold);
        }
        self.layout.bundles.insert(placement.clone(), id);
        Some(id)
    }

    /// The node of the main tree for a class that gets a bundle.
    fn node_for(&mut self, class: NodeId) -> TreeId {
        let seat = self.forest.seat(class);
        if class.0 == 0 {
            return self.layout.root;
        }
        *self.layout.classes.entry(class).or_insert_with(|| {
            let purpose = main_tree(self.layout.largest, self.config.catch_up);
            self.forest.add(&self.program, class, seat, purpose)
        })
    }

    /// The first bundle of a class was moved below it, as there is a second one now.
    fn reseat(&mut self, first: BundleId, seat: Seat, active: bool) {
        self.see(first, seat);
        if active {
            let entrant = self.entrant(first);
            self.forest.enter_first(seat, &entrant);
        }
    }

    /// Orders above one more seat look at the bundle.
    fn see(&mut self, bundle: BundleId, seat: Seat) {
        let seen = &mut self.bundles[bundle].seen;
        *seen = self.forest.looks_at(seat).max(*seen);
    }

    /// One more bundle behind a limit. From the second on, the policy restricted to them decides which goes.
    fn share(&mut self, limit: LimitId, bundle: BundleId, hold: usize) {
        let state = &mut self.limits[limit];
        match (state.only, state.root) {
            _ if state.gate != GateId::NONE => {}
            (BundleId::NONE, None) => state.only = bundle,
            (BundleId::NONE, Some(_)) => self.restrict_at(limit, bundle, hold),
            (first, _) => {
                state.only = BundleId::NONE;
                if self.gate_at_class(limit, first, bundle) {
                    return;
                }
                self.restrict(limit, first);
                self.restrict_at(limit, bundle, hold);
            }
        }
    }

    /// A class with a `max` has got its second bundle: from now on the limit opens and closes the class's node, and the
    /// first bundle, if it waits for the limit, does so below it.
    fn gate_at_class(&mut self, limit: LimitId, first: BundleId, second: BundleId) -> bool {
        let Scope::Subtree(class) = self.program.limit(limit).scope else { return false };
        if !matches!(self.program.node(class).kind, NodeKind::Class(_)) {
            return false; // an inner node has its gate, or can't have one
        }
        let node = self.node_for(class);
        let Some(gate) = self.forest.add_gate(node, limit) else { return false };
        let now = self.now;
        if self.bundles[first].place == Place::Tree {
            self.note_gates(first, now);
        }
        let blocked = self.forest.blocked(gate, now);
        self.bundles[first].blocked = blocked;
        if self.bundles[first].kept {
            self.forest.keep(gate, self.head_charge(first), true);
        }
        for bundle in [first, second] {
            self.bundles[bundle].gate = gate;
        }
        let state = &mut self.limits[limit];
        state.gate = gate;
        let asked = core::mem::take(&mut state.waiting) > 0;
        let own = self.hold_of(first, limit).expect("it is behind the limit");
        let hold = &mut self.holds[own];
        let needed = core::mem::replace(&mut hold.asks, Asks::No) == Asks::Needs;
        self.limits[limit].take_back(&mut hold.granted, now);
        if asked {
            self.wheel.remove(limit.0);
        }
        if needed {
            // Only then is the bundle out of the tree, so that nothing stands below the gate.
            self.forest.close(gate, self.limits[limit].due(), now);
            let bundle = &mut self.bundles[first];
            bundle.note_wait(limit, now.since(bundle.waits_since));
            self.go_on(first, now);
        }
        true
    }

    /// The bundle that was alone behind the limit gets its place in the restricted policy, waiting or not.
    fn restrict(&mut self, limit: LimitId, bundle: BundleId) {
        let Some(hold) = self.hold_of(bundle, limit) else { return };
        self.restrict_at(limit, bundle, hold);
        if let Some(seat) = self.holds[hold].asking_seat() {
            let entrant = self.entrant(bundle);
            self.forest.activate(seat, &entrant, false, self.now);
        }
    }

    fn restrict_at(&mut self, limit: LimitId, bundle: BundleId, hold: usize) {
        let Bundle { class, order, .. } = self.bundles[bundle];
        let copy = self.copy_for(limit, class);
        let Adoption { seat, first } = self.forest.adopt(copy, bundle, order);
        self.holds[hold].set_seat(seat);
        self.see(bundle, seat);
        if let Some((first, seat)) = first {
            let Some(hold) = self.hold_of(first, limit) else { return };
            self.holds[hold].set_seat(seat);
            let asks = self.holds[hold].asks != Asks::No;
            self.reseat(first, seat, asks);
        }
    }

    fn hold_of(&self, bundle: BundleId, limit: LimitId) -> Option<usize> {
        self.bundles[bundle].holds.range().find(|&hold| self.holds[hold].limit == limit)
    }

    /// The copy of a policy node behind a limit, with all that lies between it and the limit's root.
    fn copy_for(&mut self, limit: LimitId, id: NodeId) -> TreeId {
        if let Some(&copy) = self.layout.copies.get(&(limit, id)) {
            return copy;
        }
        let (top, minima) = match self.program.limit(limit).scope {
            Scope::Subtree(top) => (top, true),
            Scope::Match { .. } | Scope::Peer(_) => (NodeId(0), false),
        };
        let above = if id == top { None } else { self.program.node(id).parent };
        let parent = above.map(|above| self.copy_for(limit, above));
        let purpose = Purpose { largest: self.layout.largest, minima, late: None };
        let copy = self.forest.add(&self.program, id, self.forest.seat_below(parent, id), purpose);
        if parent.is_none() {
            self.limits[limit].root = Some(copy);
        }
        self.layout.copies.insert((limit, id), copy);
        self.layout.copied.entry(id).or_default().push(copy);
        copy
    }

    pub(crate) fn tenant_of(&self, class: NodeId) -> TenantId {
        tenant_of(&self.program, class)
    }

    /// The account that a flow queue of the class is charged to: that of the nearest cap on its path, or its tenant's.
    pub(crate) fn owner_of(&self, class: NodeId) -> OwnerId {
        let capped = self.program.path(class).find_map(|id| self.accounts.owner_of(id));
        capped.unwrap_or_else(|| OwnerId(self.tenant_of(class).0))
    }

    /// Descriptors that one flow queue holds.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.host.slots()
    }

    /// Most bytes that one pull takes, from the next [`Nic::install`] on.
    pub fn set_pull(&mut self, pull: Bytes) {
        self.config.pull = pull;
    }

    /// Descriptors that the host holds at most, from the next [`Nic::install`] on.
    pub fn set_descriptors(&mut self, descriptors: u32) {
        self.config.descriptors = descriptors;
    }

    /// The engine's sizes.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The policy in force.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }
}

fn cut_of(program: &Program, pull: Bytes) -> Cut {
    let small = |bytes: Bytes| u32::try_from(bytes.as_u64()).unwrap_or(u32::MAX / 2).min(u32::MAX / 2);
    // More than a gibibyte around each frame would not leave a turn's bytes room in an `i32`.
    let (overhead, max_frame) = (small(program.overhead).min(1 << 30), small(program.max_frame));
    Cut { overhead, max_frame, pull: small(pull).max(max_frame + overhead) }
}

fn host_of(program: &Program, config: &Config, cut: Cut) -> Host {
    let mut host = Host::new(config.queues, config.ring, config.descriptors, cut);
    host.keep_flows(has_fair_class(program));
    host.keep_ranks(!program.ranks.is_empty());
    host
}

pub(crate) fn has_fair_class(program: &Program) -> bool {
    program.nodes.iter().any(|node| matches!(node.kind, NodeKind::Class(FlowOrder::Fq(_))))
}

fn accounts_of(program: &Program, descriptors: u32) -> Accounts {
    let nodes = (0..).map(NodeId).zip(&program.nodes);
    let capped =
        |(id, node): (NodeId, &Node)| Some(Capped::new(id, node.descriptors?, tenant_of(program, id)));
    let tenants = program.tenants.iter().map(|tenant| tenant.descriptors);
    Accounts::new(descriptors, tenants, nodes.filter_map(capped).collect())
}

fn tenant_of(program: &Program, class: NodeId) -> TenantId {
    let of_subtree = program.path(class).find_map(|id| program.node(id).tenant);
    of_subtree.or(program.node(class).sender).unwrap_or(NO_TENANT)
}

/// The purpose of the main tree.
fn main_tree(largest: u64, late: Span) -> Purpose {
    Purpose { largest, minima: true, late: Some(late) }
}
