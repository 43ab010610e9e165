//! From a compiled policy to the engine's tables, at the start and at each reload.
//!
//! Why: everything that allocates happens here, never per packet.
//! From: Loom §4.3.2 (reconfiguration without stopping); a reload keeps flow queues and what they hold.
//! Not here: the language (`plimsoll_policy`).
//! Invariant: after an install every open flow queue has a bundle of the new policy, and holds what it held, in order.
//! Between flow queues there is no order to keep: whoever puts one flow into several has to see to it.

use std::collections::HashMap;

use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Placement, Program, Scope, TenantId};
use plimsoll_queues::{Pace, Wheel};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::account::{Accounts, NOBODY};
use crate::bundle::{Bundle, Hold, MOST_HOLDS, Place};
use crate::egress::{Completions, Link, Nic};
use crate::host::{Cut, Host, QueueId, Refusal};
use crate::limit::Limit;
use crate::stats::{ClassCounters, EngineStats, LimitCounters, NodeRank, TenantCounters};
use crate::tree::{Adoption, Forest, NONE, Purpose, Seat};

/// Sizes of the engine; they decide its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Flow queues that may be open at once.
    pub queues: u32,
    /// Descriptors that a flow queue holds at most; rounded up to a power of two, at most 16,384.
    pub ring: u16,
    /// Descriptors that the host holds at most.
    pub descriptors: u32,
    /// Most bytes, overhead included, that one pull takes; at least one frame.
    pub pull: Bytes,
    /// How far the link's pace may lag behind a late caller and be made up: zero in virtual time.
    pub catch_up: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { queues: 1_024, ring: 256, descriptors: 65_536, pull: Bytes::ZERO, catch_up: Span::ZERO }
    }
}

/// Where things of the policy are in the engine.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: u32,
    pub(crate) largest: u64,
    /// Bytes of a flow queue's turn, in classes that take turns.
    pub(crate) quantum: i32,
    /// Whether anything in the policy orders by deadline.
    pub(crate) deadlines: bool,
    /// For each node of the policy: the node of the main tree, and its copies behind limits.
    places: Vec<Vec<u32>>,
    bundles: HashMap<Placement, u32>,
    copies: HashMap<(LimitId, NodeId), u32>,
}

/// Slots of the wheel and the span of each: a horizon of 67 ms, beyond which entries are looked at once per horizon.
pub(crate) const WHEEL_SLOTS: usize = 1 << 16;
const WHEEL_GRAIN: Span = Span::ns(1_024);

impl Layout {
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        (node.0 as usize) < self.places.len()
    }

    pub(crate) fn places(&self, node: NodeId) -> &[u32] {
        &self.places[node.0 as usize]
    }
}

impl Nic {
    /// An engine for a checked policy.
    #[must_use]
    pub fn new(program: &Program, config: &Config) -> Self {
        let cut = cut_of(program, config.pull);
        let largest = cut.largest();
        let (forest, layout) = plant(program, largest, config.catch_up);
        Self {
            program: program.clone(),
            host: Host::new(config.queues, config.ring, cut),
            accounts: accounts_of(program, config.descriptors),
            wheel: Wheel::new(program.limits.len() + forest.alarm_count(), WHEEL_SLOTS, WHEEL_GRAIN),
            forest,
            bundles: Vec::new(),
            limits: program.limits.iter().map(Limit::new).collect(),
            resting: Vec::with_capacity(program.limits.len()),
            layout,
            link: Link { pace: Pace::new(program.link), catch_up: config.catch_up, emptied: Nanos::ZERO },
            arrivals: 0,
            classes: vec![[0; Refusal::COUNT]; program.nodes.len()],
            completions: Completions::with_capacity(config.descriptors as usize),
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
        let bundle = self.bundle_for(placement).ok_or(Refusal::NoQueue)?;
        let (tenant, pull) = (self.tenant_of(placement.class), self.pull_of(bundle));
        let queue = self.host.open(bundle, tenant, pull).ok_or(Refusal::NoQueue)?;
        self.bundles[bundle as usize].join();
        Ok(queue)
    }

    /// Closes a flow queue, unless it holds something.
    pub fn close_queue(&mut self, queue: QueueId) -> bool {
        let bundle = self.host.bundle(queue);
        let closed = self.host.close(queue);
        if let Some(bundle) = bundle {
            self.bundles[bundle as usize].members -= u32::from(closed);
        }
        closed
    }

    /// Puts another policy in force: `place` says where each open flow queue belongs in it. What flow queues hold
    /// stays, in its order; limits of the same name go on owing what they owed; counters begin anew.
    pub fn install(&mut self, program: &Program, place: &mut dyn FnMut(QueueId) -> Placement, now: Nanos) {
        let mut old = core::mem::replace(self, Self::new(program, &self.config.without_queues()));
        core::mem::swap(&mut self.host, &mut old.host);
        core::mem::swap(&mut self.completions, &mut old.completions);
        self.completions.reserve(old.config.descriptors as usize);
        self.config = old.config.clone();
        self.now = now;
        let cut = cut_of(program, self.config.pull);
        self.host.set_cut(cut);
        self.arrivals = old.arrivals;
        self.stats = old.stats;
        self.link = old.link;
        self.link.pace.change_rate(program.link, now);
        self.inherit_limits(&old, now);
        let mut queues: Vec<QueueId> = self.host.open_queues().collect();
        queues.sort_by_key(|&queue| (self.host.arrival(queue, self.arrivals), queue));
        for queue in queues {
            self.replant(queue, &place(queue), now);
        }
    }

    fn inherit_limits(&mut self, old: &Self, now: Nanos) {
        let by_name: HashMap<&str, &Limit> =
            old.program.limits.iter().map(|limit| limit.name.as_str()).zip(&old.limits).collect();
        for (limit, stated) in self.limits.iter_mut().zip(&self.program.limits) {
            if let Some(before) = by_name.get(stated.name.as_str()) {
                limit.inherit(before, now);
            }
        }
    }

    /// An open flow queue moves to its place in the new policy, with all that it holds.
    fn replant(&mut self, queue: QueueId, placement: &Placement, now: Nanos) {
        let fallback = Placement { class: self.program.default_class, limits: Vec::new() };
        let placed = self.bundle_for(placement).map(|bundle| (bundle, placement.class));
        let placed = placed.or_else(|| self.bundle_for(&fallback).map(|bundle| (bundle, fallback.class)));
        let (bundle, class) = placed.expect("the default class takes anything");
        let tenant = self.tenant_of(class);
        self.host.rehome(queue, bundle, tenant, self.pull_of(bundle));
        self.bundles[bundle as usize].join();
        self.accounts.charge(tenant, self.host.held(queue));
        if self.host.holds_packets(queue) {
            self.host.load_head(queue);
            self.join(bundle, queue, now);
        }
    }

    /// Most bytes that one pull may take behind the bundle's limits.
    fn pull_of(&self, bundle: u32) -> u32 {
        let holds = &self.bundles[bundle as usize].holds;
        holds.iter().map(|hold| self.limits[hold.limit as usize].longest_pull()).min().unwrap_or(u32::MAX)
    }

    /// The bundle of a placement, made when it is the first of its kind.
    fn bundle_for(&mut self, placement: &Placement) -> Option<u32> {
        if let Some(&bundle) = self.layout.bundles.get(placement) {
            return Some(bundle);
        }
        let NodeKind::Class(order) = self.program.nodes.get(placement.class.0 as usize)?.kind else {
            return None;
        };
        let known = placement.limits.iter().all(|limit| (limit.0 as usize) < self.limits.len());
        if !known || placement.limits.len() > MOST_HOLDS {
            return None;
        }
        let id = u32::try_from(self.bundles.len()).ok()?;
        let place = self.layout.places(placement.class)[0];
        let Adoption { seat, first } = self.forest.adopt(place, id, order);
        let holds = placement.limits.iter().map(|&limit| Hold { limit: limit.0, seat: None }).collect();
        self.bundles.push(Bundle::new(placement.class, order, seat, holds));
        self.bundles[id as usize].ranks_packets = self.forest.ranks_packets(seat);
        if let Some((first, seat)) = first {
            self.bundles[first as usize].seat = seat;
            self.reseat(first, seat, self.bundles[first as usize].place == Place::Tree);
        }
        for (index, &limit) in placement.limits.iter().enumerate() {
            self.share(limit, id, index);
        }
        self.layout.bundles.insert(placement.clone(), id);
        Some(id)
    }

    /// The first bundle of a class was moved below it, as there is a second one now.
    fn reseat(&mut self, first: u32, seat: Seat, active: bool) {
        self.bundles[first as usize].ranks_packets = true;
        if active {
            let entrant = self.entrant(first);
            self.forest.enter_first(seat, &entrant);
        }
    }

    /// One more bundle behind a limit. From the second on, the policy restricted to them decides who goes.
    fn share(&mut self, limit: LimitId, bundle: u32, index: usize) {
        let state = &mut self.limits[limit.0 as usize];
        match (state.only, state.root) {
            (NONE, None) => state.only = bundle,
            (NONE, Some(_)) => self.restrict_at(limit, bundle, index),
            (first, _) => {
                state.only = NONE;
                self.restrict(limit, first);
                self.restrict_at(limit, bundle, index);
            }
        }
    }

    /// The bundle that was alone behind the limit gets its place in the restricted policy, waiting or not.
    fn restrict(&mut self, limit: LimitId, bundle: u32) {
        let holds = &self.bundles[bundle as usize].holds;
        let Some(index) = holds.iter().position(|hold| hold.limit == limit.0) else { return };
        self.restrict_at(limit, bundle, index);
        let place = self.bundles[bundle as usize].place;
        if place == Place::Waits(u8::try_from(index).expect("at most MOST_HOLDS"))
            && let Some(seat) = self.bundles[bundle as usize].holds[index].seat
        {
            let entrant = self.entrant(bundle);
            self.forest.activate(seat, &entrant, false, self.now);
        }
    }

    fn restrict_at(&mut self, limit: LimitId, bundle: u32, index: usize) {
        let Bundle { class, order, .. } = self.bundles[bundle as usize];
        let copy = self.copy_for(limit, class);
        let Adoption { seat, first } = self.forest.adopt(copy, bundle, order);
        self.bundles[bundle as usize].holds[index].seat = Some(seat);
        self.bundles[bundle as usize].ranks_packets |= self.forest.ranks_packets(seat);
        if let Some((first, seat)) = first {
            let holds = &mut self.bundles[first as usize].holds;
            let Some(index) = holds.iter().position(|hold| hold.limit == limit.0) else { return };
            holds[index].seat = Some(seat);
            let waits = Place::Waits(u8::try_from(index).expect("at most MOST_HOLDS"));
            self.reseat(first, seat, self.bundles[first as usize].place == waits);
        }
    }

    /// The copy of a policy node behind a limit, with all that lies between it and the limit's root.
    fn copy_for(&mut self, limit: LimitId, id: NodeId) -> u32 {
        if let Some(&copy) = self.layout.copies.get(&(limit, id)) {
            return copy;
        }
        let (top, minima) = match self.program.limit(limit).scope {
            Scope::Subtree(top) => (top, true),
            Scope::Match { .. } => (NodeId(0), false),
        };
        let above = if id == top { None } else { self.program.node(id).parent };
        let parent = above.map(|above| self.copy_for(limit, above));
        let purpose = Purpose { largest: self.layout.largest, minima, late: None };
        let copy = self.forest.add(&self.program, id, parent, purpose);
        if parent.is_none() {
            self.limits[limit.0 as usize].root = Some(copy);
        }
        self.layout.copies.insert((limit, id), copy);
        self.layout.places[id.0 as usize].push(copy);
        copy
    }

    fn tenant_of(&self, class: NodeId) -> u32 {
        self.program.path(class).find_map(|id| self.program.node(id).tenant).map_or(NOBODY, |TenantId(id)| id)
    }

    /// What a class has done since the policy was installed. Linear in flow queues: for all classes at once there
    /// is [`Nic::all_class_counters`].
    #[must_use]
    pub fn class_counters(&self, class: NodeId) -> ClassCounters {
        self.all_class_counters().get(class.0 as usize).copied().unwrap_or_default()
    }

    /// What each node's own flow queues have done since the policy was installed, by [`NodeId`].
    #[must_use]
    pub fn all_class_counters(&self) -> Vec<ClassCounters> {
        let refused = |&refused| ClassCounters { refused, ..ClassCounters::default() };
        let mut classes: Vec<ClassCounters> = self.classes.iter().map(refused).collect();
        for bundle in &self.bundles {
            let class = &mut classes[bundle.class.0 as usize];
            class.packets += bundle.done.packets;
            class.bytes += bundle.done.bytes;
        }
        for (bundle, packets, bytes) in self.host.backlogs() {
            let class = &mut classes[self.bundles[bundle as usize].class.0 as usize];
            class.backlog_packets += packets;
            class.backlog_bytes += bytes;
        }
        classes
    }

    /// What a limit has done since the policy was installed. Linear in bundles: for all limits at once there is
    /// [`Nic::all_limit_counters`].
    #[must_use]
    pub fn limit_counters(&self, limit: LimitId) -> LimitCounters {
        self.all_limit_counters().get(limit.0 as usize).copied().unwrap_or_default()
    }

    /// What each limit has done since the policy was installed, by [`LimitId`].
    #[must_use]
    pub fn all_limit_counters(&self) -> Vec<LimitCounters> {
        let counted = |limit: &Limit| LimitCounters {
            waiting: limit.waiting,
            parked: limit.parked(),
            released: limit.parked() - u64::from(limit.waiting),
            ..LimitCounters::default()
        };
        let mut limits: Vec<LimitCounters> = self.limits.iter().map(counted).collect();
        for bundle in &self.bundles {
            for hold in &bundle.holds {
                let limit = &mut limits[hold.limit as usize];
                limit.packets += bundle.done.packets;
                limit.bytes += bundle.done.bytes;
            }
        }
        limits
    }

    /// What a tenant holds and was refused.
    #[must_use]
    pub fn tenant_counters(&self, tenant: TenantId) -> TenantCounters {
        TenantCounters { held: self.accounts.held(tenant.0), refused: self.accounts.refused(tenant.0) }
    }

    /// What the engine as a whole has done.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            held: self.accounts.host_held(),
            pairs: self.stats.pairs + self.stats.pulls,
            ..self.stats
        }
    }

    /// From a class to the root: where its packet would stand now at each node.
    #[must_use]
    pub fn ranks(&self, class: NodeId) -> Vec<NodeRank> {
        let Some(&[place, ..]) = self.layout.places.get(class.0 as usize).map(Vec::as_slice) else {
            return Vec::new();
        };
        let path: Vec<NodeId> = self.program.path(class).collect();
        path.windows(2)
            .zip(self.forest.ranks(place))
            .map(|(pair, rank)| NodeRank { child: pair[0], node: pair[1], rank })
            .collect()
    }

    /// How many flow queues are open.
    #[must_use]
    pub fn open_queues(&self) -> usize {
        self.host.open_count()
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

impl Config {
    /// The same without flow queues: for a policy that will take over those of another.
    fn without_queues(&self) -> Self {
        Self { queues: 0, ..self.clone() }
    }
}

fn cut_of(program: &Program, pull: Bytes) -> Cut {
    let small = |bytes: Bytes| u32::try_from(bytes.as_u64()).unwrap_or(u32::MAX / 2).min(u32::MAX / 2);
    let (overhead, max_frame) = (small(program.overhead), small(program.max_frame));
    Cut { overhead, max_frame, pull: small(pull).max(max_frame + overhead) }
}

fn accounts_of(program: &Program, descriptors: u32) -> Accounts {
    Accounts::new(descriptors, program.tenants.iter().map(|tenant| tenant.descriptors))
}

fn by_deadline(kind: NodeKind) -> bool {
    matches!(kind, NodeKind::Lstf | NodeKind::Edf | NodeKind::Class(FlowOrder::Lstf(_) | FlowOrder::Edf(_)))
}

/// The main tree of a policy.
fn plant(program: &Program, largest: u64, late: Span) -> (Forest, Layout) {
    let mut forest = Forest::with_capacity(program.nodes.len());
    let mut places: Vec<Vec<u32>> = Vec::with_capacity(program.nodes.len());
    for id in (0..).map(NodeId).take(program.nodes.len()) {
        let parent = program.node(id).parent.map(|above| places[above.0 as usize][0]);
        let purpose = Purpose { largest, minima: true, late: Some(late) };
        places.push(vec![forest.add(program, id, parent, purpose)]);
    }
    let quantum = i32::try_from(largest).unwrap_or(i32::MAX);
    let layout = Layout {
        root: 0,
        largest,
        quantum,
        deadlines: program.nodes.iter().any(|node| by_deadline(node.kind)),
        places,
        bundles: HashMap::new(),
        copies: HashMap::new(),
    };
    (forest, layout)
}
