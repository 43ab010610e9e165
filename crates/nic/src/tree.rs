//! The scheduling tree, and its restrictions to what waits behind each limit.
//!
//! Why: behind a limit that binds, the same policy decides among those that wait; so one structure serves both.
//! From: Loom §4.1 (PIFO tree), with one entry for each active child instead of one for each packet.
//! Not here: flow queues (`bundle`), rates (`limit`), frames.
//! Invariant: a node is in its parent's order exactly while something below it is active, it is not asleep, and no limit has
//! closed it (`gate`). Asleep is only a node whose rates hold in real time, while none of its children is eligible.

mod gate;

use core::ops::{Index, IndexMut};

use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Program};
use plimsoll_units::{BitRate, Nanos, Span};
use prefetch_index::prefetch_index;

use crate::ids::{BundleId, GateId, SlotId, Table, Tagged, TimerId, TreeId};
use crate::order::bundles::Bundles;
use crate::order::grouped::Grouped;
use crate::order::guarantee::Guarantee;
use crate::order::ranked::{By, Ranked};
use crate::order::rate_share::RateShare;
use crate::order::{Coming, Entrant, Fate, Order, Seen};
pub(crate) use gate::GATE_BYTES;
use gate::Gate;

/// Every node of the main tree and of the limits' trees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forest {
    /// Nodes that order something: inner ones, and classes that have a bundle.
    nodes: Table<TreeId, Node>,
    /// For each node: the seat in the nearest node above to which it matters that a bundle below was served and is still active;
    /// nowhere if there is none.
    heeding: Table<TreeId, Seat>,
    /// For each node of the policy: where it hangs in the main tree. All that a class without a bundle needs.
    seats: Table<NodeId, Seat>,
    /// Nodes whose rates hold in real time, by alarm: here, and in the policy.
    timed: Table<TimerId, (TreeId, NodeId)>,
    gates: Table<GateId, Gate>,
    /// Alarms that have just changed: when they are due, or `None` for never.
    alarms: Vec<(Alarm, Option<Nanos>)>,
}

/// A wake-up for a part of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// A node that sleeps, by its timer: [`Forest::wake`].
    Rates(TimerId),
    /// A limit that keeps a node back: [`Forest::open`].
    Gate(LimitId),
}

/// The kind of tree: the main one, or a restriction behind a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    /// Bytes of the largest pull.
    pub(crate) largest: u64,
    /// Whether minima hold in it.
    pub(crate) minima: bool,
    /// In the main tree, where rates hold in real time: how late its caller may be.
    pub(crate) late: Option<Span>,
}

#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    parent: TreeId,
    /// Its slot in its parent.
    slot: SlotId,
    /// Active children.
    active: u32,
    /// Whether the last pick was owed to a guarantee.
    guaranteed: bool,
    /// Whether a node above orders by packets, so that the node must pass on every bundle.
    ranked_above: bool,
    /// Whether it may leave its parent's order with something active below: its rates hold in real time, or it has a gate.
    pauses: bool,
    /// Whether it is a root with weighted shares for many children, without minima, that never pauses: then there is nothing to it
    /// but its order.
    alone: bool,
    /// Whether nothing changes here when something below is served and stays active.
    indifferent: bool,
    /// Whether it waits until one of its children is eligible.
    asleep: bool,
    /// The gate here.
    gate: GateId,
    order: Order,
    guarantee: Option<Box<Guarantee>>,
    /// The child in each slot: a node, a bundle, or the only flow queue of a class without a bundle, by its record or,
    /// where it has none, by its own number. Nothing where a restriction has no such child, or a class no flow queue.
    children: Children,
}

/// A node's children, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children(Box<[Tagged]>);

/// The result of a walk down a tree: the child that goes next, and its seat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) child: Tagged,
    pub(crate) seat: Seat,
}

/// Where a bundle, a flow queue or a node hangs in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) node: TreeId,
    pub(crate) slot: SlotId,
}

/// A node's children in the order in which they are likely to be picked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    order: &'a Grouped,
    children: &'a Children,
}

impl<'a> Row<'a> {
    #[inline]
    pub(crate) fn new(order: &'a Grouped, children: &'a Children) -> Self {
        Self { order, children }
    }

    /// The child that follows the one in a slot, and its slot; `NONE` at the end of a row. Brings its place in the order into the
    /// cache.
    #[inline]
    pub(crate) fn after(&self, slot: SlotId) -> (SlotId, Tagged) {
        let slot = self.order.next_in_row(slot);
        (slot, self.children.get(slot).unwrap_or(Tagged::NOTHING))
    }
}

/// The places that changed when a bundle was added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adoption {
    pub(crate) seat: Seat,
    /// The class's first bundle and its new seat, when this is the second.
    pub(crate) first: Option<(BundleId, Seat)>,
}

// The packet path touches one cache line of each node.
const _: () = assert!(size_of::<Node>() == 64);
pub(crate) const NODE_BYTES: usize = size_of::<Node>() + size_of::<Seat>();
pub(crate) const SEAT_BYTES: usize = size_of::<Seat>();
pub(crate) const CHILD_BYTES: usize = size_of::<Tagged>();
const NOWHERE: Seat = Seat { node: TreeId::NONE, slot: SlotId(0) };

impl Children {
    #[inline]
    pub(crate) fn get(&self, slot: SlotId) -> Option<Tagged> {
        self.0.get(slot.0 as usize).copied()
    }

    /// Adds a child, and returns its slot.
    fn push(&mut self, child: Tagged) -> SlotId {
        let mut children = core::mem::take(&mut self.0).into_vec();
        let slot = SlotId(u32::try_from(children.len()).expect("fewer children than u32 holds"));
        children.push(child);
        self.0 = children.into();
        slot
    }

    #[inline]
    fn prefetch(&self, slot: SlotId) {
        prefetch_index(&self.0, slot.0 as usize);
    }
}

impl Index<SlotId> for Children {
    type Output = Tagged;

    #[inline]
    fn index(&self, slot: SlotId) -> &Tagged {
        &self.0[slot.0 as usize]
    }
}

impl IndexMut<SlotId> for Children {
    #[inline]
    fn index_mut(&mut self, slot: SlotId) -> &mut Tagged {
        &mut self.0[slot.0 as usize]
    }
}

impl Forest {
    /// The main tree of a policy, without the nodes of classes: those come with their first bundle.
    pub(crate) fn plant(program: &Program, purpose: Purpose) -> Self {
        let is_class = |id: usize| id > 0 && matches!(program.nodes[id].kind, NodeKind::Class(_));
        let inner = (0..program.nodes.len()).filter(|&id| !is_class(id));
        let mut forest = Self {
            nodes: Vec::with_capacity(inner.clone().count()).into(),
            heeding: Vec::with_capacity(inner.clone().count()).into(),
            seats: vec![NOWHERE; program.nodes.len()].into(),
            ..Self::default()
        };
        for id in inner.map(|id| NodeId(id as u32)) {
            let node = forest.add(program, id, forest.seats[id], purpose);
            for (slot, &child) in (0..).map(SlotId).zip(&program.node(id).children) {
                forest.seats[child] = Seat { node, slot };
            }
        }
        forest
    }

    /// Adds a node for `id` of the policy in a seat of this forest, and returns it.
    pub(crate) fn add(&mut self, program: &Program, id: NodeId, seat: Seat, purpose: Purpose) -> TreeId {
        let index = self.nodes.next_id();
        let ranked_above = seat != NOWHERE && self.is_below_ranked(seat);
        if let Some(above) = self.nodes.get_mut(seat.node) {
            above.children[seat.slot] = Tagged::node(index);
        }
        let mut order = order_of(program, id, purpose, ranked_above);
        let timed = match &mut order {
            Order::RateShare(order) if order.is_real() => {
                order.timer = self.timed.next_id();
                self.timed.push((index, id));
                self.reserve_alarms();
                true
            }
            _ => false,
        };
        let guarantee = if purpose.minima { guarantee_of(program, id, purpose.largest) } else { None };
        let alone = seat == NOWHERE && guarantee.is_none() && matches!(order, Order::Grouped(_));
        // One with a maximum gets a gate.
        let indifferent =
            order.heeds_only_who_leaves() && guarantee.is_none() && program.node(id).max.is_none();
        let skips = self.nodes.get(seat.node).is_some_and(|above| above.indifferent);
        let heeding = if skips { self.heeding[seat.node] } else { seat };
        self.heeding.push(heeding);
        self.nodes.push(Node {
            parent: seat.node,
            slot: seat.slot,
            active: 0,
            guaranteed: false,
            ranked_above,
            pauses: timed,
            asleep: false,
            gate: GateId::NONE,
            order,
            alone,
            indifferent,
            guarantee,
            children: Children(vec![Tagged::NOTHING; program.node(id).children.len()].into()),
        });
        index
    }

    /// Whether the policy has such a node.
    pub(crate) fn knows(&self, id: NodeId) -> bool {
        self.seats.has(id)
    }

    /// Where a node of the policy hangs in the main tree; nowhere for the root.
    #[inline]
    pub(crate) fn seat(&self, id: NodeId) -> Seat {
        self.seats[id]
    }

    /// The seat of a node's copy, below `copy`, the one of its parent.
    pub(crate) fn seat_below(&self, copy: Option<TreeId>, id: NodeId) -> Seat {
        copy.map_or(NOWHERE, |node| Seat { node, ..self.seat(id) })
    }

    /// Whether a class that hangs there may do without a bundle as long as it has one flow queue and no limits: orders
    /// that look at packets know bundles only.
    pub(crate) fn does_without_bundle(&self, seat: Seat) -> bool {
        seat != NOWHERE && !self.is_below_ranked(seat)
    }

    fn is_below_ranked(&self, seat: Seat) -> bool {
        let above = &self.nodes[seat.node];
        above.ranked_above || matches!(above.order, Order::Ranked(_))
    }

    /// The child in a seat.
    pub(crate) fn child(&self, seat: Seat) -> Tagged {
        self.nodes[seat.node].children[seat.slot]
    }

    /// Puts the only flow queue of a class into the class's seat, or nothing.
    pub(crate) fn hang(&mut self, seat: Seat, child: Tagged) {
        self.nodes[seat.node].children[seat.slot] = child;
    }

    /// Hangs a bundle below the class `class` of this forest. A class with one bundle has nothing to decide: the
    /// bundle takes its place below the class's parent. Says where the class's first bundle hangs now.
    pub(crate) fn adopt(&mut self, class: TreeId, bundle: BundleId, flow_order: FlowOrder) -> Adoption {
        let Node { parent, slot: class_slot, .. } = self.nodes[class];
        let seat = Seat { node: class, slot: self.nodes[class].children.push(Tagged::bundle(bundle)) };
        if seat.slot == SlotId(0) && parent != TreeId::NONE {
            self.nodes[parent].children[class_slot] = Tagged::bundle(bundle);
            let seat = Seat { node: parent, slot: class_slot };
            self.announce(seat, bundle);
            return Adoption { seat, first: None };
        }
        let first = (seat.slot == SlotId(1)).then(|| self.start_ordering(class, flow_order));
        if let Order::Bundles(order) = &mut self.nodes[class].order {
            order.adopt();
        }
        self.announce(seat, bundle);
        Adoption { seat, first }
    }

    /// A class gets its second bundle: from now on there is something to decide, and the first hangs below it.
    fn start_ordering(&mut self, class: TreeId, flow_order: FlowOrder) -> (BundleId, Seat) {
        let mut order = Bundles::new(flow_order);
        order.adopt();
        let Node { parent, slot, .. } = self.nodes[class];
        if parent != TreeId::NONE {
            self.nodes[parent].children[slot] = Tagged::node(class);
        }
        let node = &mut self.nodes[class];
        node.order = Order::Bundles(Box::new(order));
        (
            node.children[SlotId(0)].as_bundle().expect("classes hold bundles"),
            Seat { node: class, slot: SlotId(0) },
        )
    }

    /// Enters a bundle that is active already into the order that its class has just been given.
    pub(crate) fn enter_first(&mut self, seat: Seat, entrant: &Entrant) {
        let node = &mut self.nodes[seat.node];
        let coming = Coming { returning: false, since: Nanos::ZERO, now: Nanos::ZERO };
        node.order.insert(seat.slot, entrant, &coming);
        node.active = 1;
    }

    /// Whether something below the node may go now.
    #[inline]
    pub(crate) fn is_active(&self, node: TreeId) -> bool {
        let state = &self.nodes[node];
        state.active > 0 && !(state.pauses && is_paused(state, &self.gates))
    }

    fn reserve_alarms(&mut self) {
        self.alarms.reserve(2 * (self.timed.len() + self.gates.len()));
    }

    /// A child has come to a node that pauses. Returns whether the node may go now, and could not before.
    fn starts(&mut self, at: TreeId, newly: bool, now: Nanos) -> bool {
        let node = &mut self.nodes[at];
        let may = if node.real_rates().is_some() { node.stir(&mut self.alarms) } else { newly };
        may && self.passes_gate(at, now)
    }

    /// Nodes whose rates hold in real time, and which they are in the policy.
    pub(crate) fn timers(&self) -> impl ExactSizeIterator<Item = (TimerId, NodeId)> {
        self.timed.ids().zip(self.timed.iter().map(|&(_, id)| id))
    }

    /// Whether alarms have changed.
    #[inline]
    pub(crate) fn has_alarms(&self) -> bool {
        !self.alarms.is_empty()
    }

    /// An alarm that has changed, and when it is due; `None` for never.
    pub(crate) fn next_alarm(&mut self) -> Option<(Alarm, Option<Nanos>)> {
        self.alarms.pop()
    }

    /// Orders that look at packets learn below which of their children the bundle lies.
    fn announce(&mut self, seat: Seat, bundle: BundleId) {
        let Seat { node: mut at, mut slot } = seat;
        while at != TreeId::NONE {
            let node = &mut self.nodes[at];
            if let Order::Ranked(order) = &mut node.order {
                order.adopt(bundle, slot);
            }
            (at, slot) = (node.parent, node.slot);
        }
    }

    /// The part of a bundle in this seat that orders on the way from there to the root look at.
    pub(crate) fn looks_at(&self, seat: Seat) -> Seen {
        let node = &self.nodes[seat.node];
        match &node.order {
            _ if node.ranked_above => Seen::Head,
            Order::Ranked(_) => Seen::Head,
            Order::Bundles(order) => order.looks_at(),
            _ => Seen::Nothing,
        }
    }

    /// Brings what the seat's node keeps of it into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, seat: Seat) {
        match self.nodes.get(seat.node).map(|node| &node.order) {
            Some(Order::Grouped(order)) => order.prefetch(seat.slot),
            Some(Order::RateShare(order)) => order.prefetch(seat.slot),
            _ => {}
        }
    }

    /// Brings where a class hangs into the cache.
    #[inline]
    pub(crate) fn prefetch_seat(&self, class: NodeId) {
        self.seats.prefetch(class);
    }

    /// Whether a node's order says which children are likely to be picked after one that is.
    #[inline]
    pub(crate) fn foretells(&self, node: TreeId) -> bool {
        matches!(self.nodes[node].order, Order::Grouped(_) | Order::RateShare(_))
    }

    /// A node's children in their rows of equal starts, if they stand in such.
    #[inline]
    pub(crate) fn row(&self, node: TreeId) -> Option<Row<'_>> {
        let node = &self.nodes[node];
        let Order::Grouped(order) = &node.order else { return None };
        Some(Row::new(order, &node.children))
    }

    /// The root, if it is alone: then there is nothing to the tree but the root's order and its children. With the number of active ones.
    #[inline]
    pub(crate) fn flat(&mut self, root: TreeId) -> Option<(&mut Grouped, &Children, &mut u32)> {
        let Node { order: Order::Grouped(order), alone: true, children, active, .. } = &mut self.nodes[root]
        else {
            return None;
        };
        Some((order, children, active))
    }

    /// The children that a `rate_share` says are likely to be picked soon after the one in this seat, the next one first.
    pub(crate) fn upcoming(&mut self, seat: Seat) -> Option<[Option<Tagged>; 2]> {
        let node = &mut self.nodes[seat.node];
        let children = &node.children;
        let leaf = |slot: Option<SlotId>| children.get(slot?).filter(|child| child.as_node().is_none());
        let Order::RateShare(order) = &mut node.order else { return None };
        let [far, soon, next] = order.look_ahead(seat.slot);
        if let Some(far) = far {
            children.prefetch(far);
        }
        Some([leaf(next), leaf(soon)])
    }

    /// Makes a bundle active below its class. One that returns from a limit keeps its earlier rank.
    #[inline]
    pub(crate) fn activate(&mut self, seat: Seat, entrant: &Entrant, returning: bool, now: Nanos) {
        self.enter(seat, entrant, &Coming { returning, since: now, now });
    }

    #[inline]
    fn enter(&mut self, seat: Seat, entrant: &Entrant, coming: &Coming) {
        let Seat { node: mut at, mut slot } = seat;
        let mut newly = true;
        loop {
            let node = &mut self.nodes[at];
            if newly {
                node.order.insert(slot, entrant, coming);
                if let Some(guarantee) = &mut node.guarantee {
                    guarantee.insert(slot, coming.returning, coming.now);
                }
                node.active += 1;
                newly = node.active == 1;
                if node.pauses {
                    newly = self.starts(at, newly, coming.now);
                }
            } else if matches!(node.order, Order::Ranked(_)) {
                node.order.insert(slot, entrant, coming);
            }
            let node = &self.nodes[at];
            if node.parent == TreeId::NONE || !(newly || node.ranked_above) {
                return;
            }
            (at, slot) = (node.parent, node.slot);
        }
    }

    /// The bundle that goes next below `root`.
    #[inline(always)]
    pub(crate) fn pick(&mut self, root: TreeId, now: Nanos) -> Option<Pick> {
        let mut at = root;
        let mut node = &mut self.nodes[at];
        if node.active == 0 || node.pauses && is_paused(node, &self.gates) {
            return None;
        }
        loop {
            let slot = if node.indifferent
                && let Some(slot) = node.order.foremost()
            {
                slot
            } else if node.guarantee.is_none() {
                node.order.pick(now)?
            } else {
                node.pick_promised(now)?
            };
            let child = node.children[slot];
            let Some(below) = child.as_node() else {
                return Some(Pick { child, seat: Seat { node: at, slot } });
            };
            at = below;
            node = &mut self.nodes[at];
        }
    }

    /// Tells every node on the way up what became of the bundle that [`Forest::pick`] returned last, and that it sent `len` bytes;
    /// 0 if it waits for a limit. Returns whether the root is still active.
    #[inline(always)]
    pub(crate) fn settle(&mut self, seat: Seat, entrant: &Entrant, len: u64, fate: Fate) -> bool {
        let node = &mut self.nodes[seat.node];
        if let (Order::Grouped(order), true) = (&mut node.order, node.alone) {
            let stays = fate == Fate::Remains;
            order.settle(seat.slot, len, stays);
            node.active -= u32::from(!stays);
            return node.active > 0;
        }
        self.settle_path(seat, entrant, len, fate)
    }

    #[inline(never)]
    fn settle_path(&mut self, seat: Seat, entrant: &Entrant, len: u64, mut fate: Fate) -> bool {
        let Seat { node: mut at, mut slot } = seat;
        let mut stays = fate == Fate::Remains;
        loop {
            let node = &mut self.nodes[at];
            let mut charged = len;
            if node.guarantee.is_some() {
                charged = node.settle_promised(slot, charged, stays);
            }
            node.order.settle(slot, entrant, charged, fate, stays);
            node.active -= u32::from(!stays);
            stays = node.active > 0;
            if node.pauses && stays && node.stops(&mut self.gates, &mut self.alarms) {
                (stays, fate) = (false, Fate::Waits); // it leaves, but is not idle
            }
            let above = if stays { self.heeding[at] } else { Seat { node: node.parent, slot: node.slot } };
            if above.node == TreeId::NONE {
                return stays;
            }
            (at, slot) = (above.node, above.slot);
        }
    }

    /// The moment of an alarm has come. If a child of its node is eligible, the node enters its parent's order again, as if at
    /// the moment at which the child became eligible.
    pub(crate) fn wake(&mut self, timer: TimerId, now: Nanos) {
        self.reconsider(self.timed[timer].0, now);
    }

    /// Time has passed, or rates have changed, for a node that may be asleep.
    fn reconsider(&mut self, at: TreeId, now: Nanos) {
        let node = &mut self.nodes[at];
        let Order::RateShare(order) = &mut node.order else { return };
        if !node.asleep {
            return;
        }
        let since = order.wakes_at().min(now);
        order.advance(now);
        if node.stir(&mut self.alarms) && self.passes_gate(at, now) {
            self.return_to_parent(at, since, now);
        }
    }

    /// A node that could not go can: it enters its parent's order, as if it had come at `since`.
    fn return_to_parent(&mut self, at: TreeId, since: Nanos, now: Nanos) {
        let Node { parent, slot, .. } = self.nodes[at];
        if parent != TreeId::NONE {
            // Orders that look at packets are never above.
            let coming = Coming { returning: true, since, now };
            self.enter(Seat { node: parent, slot }, &Entrant::UNSEEN, &coming);
        }
    }

    /// The bundle, active in this tree, has another head: orders that look at packets must know.
    pub(crate) fn new_head(&mut self, seat: Seat, entrant: &Entrant) {
        let Seat { node: mut at, mut slot } = seat;
        loop {
            let node = &mut self.nodes[at];
            if matches!(node.order, Order::Ranked(_) | Order::Bundles(_)) {
                let coming = Coming { returning: true, since: Nanos::ZERO, now: Nanos::ZERO };
                node.order.insert(slot, entrant, &coming);
            }
            if node.parent == TreeId::NONE || !node.ranked_above {
                return;
            }
            (at, slot) = (node.parent, node.slot);
        }
    }

    /// Gives a node's child `slot` another weight.
    pub(crate) fn set_weight(&mut self, node: TreeId, slot: SlotId, weight: u32) {
        self.nodes[node].order.set_weight(slot, weight);
    }

    /// Gives a node's child `slot` another minimum, if it has one.
    pub(crate) fn set_min(&mut self, node: TreeId, slot: SlotId, min: BitRate, largest: u64, now: Nanos) {
        if let Some(guarantee) = &mut self.nodes[node].guarantee {
            guarantee.set_min(slot, min, largest, now);
        }
    }

    /// Gives a node's child `slot` another rate.
    pub(crate) fn set_rate(&mut self, node: TreeId, slot: SlotId, rate: BitRate, now: Nanos) {
        self.nodes[node].order.set_rate(slot, rate, now);
        self.reconsider(node, now);
    }

    /// Changes the most that the timer's node gets.
    pub(crate) fn set_drain(&mut self, timer: TimerId, drain: BitRate, now: Nanos) {
        let (node, _) = self.timed[timer];
        if let Order::RateShare(order) = &mut self.nodes[node].order {
            order.set_drain(drain, now);
            self.reconsider(node, now);
        }
    }

    /// From a class to the root of the main tree: the rank that a packet from below would get at each node.
    pub(crate) fn ranks(&self, class: NodeId) -> impl Iterator<Item = u64> + '_ {
        let mut at = self.seat(class);
        core::iter::from_fn(move || {
            let node = self.nodes.get(at.node)?;
            let rank = node.order.rank(at.slot);
            at = Seat { node: node.parent, slot: node.slot };
            Some(rank)
        })
    }
}

impl Node {
    /// The child that goes next: one that is promised a minimum, or else the order's own choice.
    #[inline(never)]
    fn pick_promised(&mut self, now: Nanos) -> Option<SlotId> {
        let promised = self.guarantee.as_mut().and_then(|guarantee| guarantee.pick(now));
        self.guaranteed = promised.is_some();
        promised.or_else(|| self.order.pick(now))
    }

    /// Charges a child that was served under its guarantee. Returns the bytes that the order accounts for.
    #[inline(never)]
    fn settle_promised(&mut self, slot: SlotId, len: u64, stays: bool) -> u64 {
        let Some(guarantee) = &mut self.guarantee else { return len };
        let promised = self.guaranteed && len > 0;
        if promised {
            guarantee.charge(slot, len);
        }
        if !stays {
            guarantee.remove(slot);
        }
        if promised { 0 } else { len }
    }

    fn real_rates(&self) -> Option<&RateShare> {
        let Order::RateShare(order) = &self.order else { return None };
        order.is_real().then_some(order)
    }

    /// A child has come, or time has passed, for a node with rates. Returns whether the node may go now, and could not before.
    /// While no child is eligible, it sleeps.
    fn stir(&mut self, alarms: &mut Vec<(Alarm, Option<Nanos>)>) -> bool {
        let Some(order) = self.real_rates() else { return false };
        let (alarm, wakes_at) = (Alarm::Rates(order.timer), order.wakes_at());
        let was_ready = self.active > 1 && !self.asleep;
        if !order.is_ready() {
            self.asleep = true;
            alarms.push((alarm, Some(wakes_at)));
            return false;
        }
        if core::mem::take(&mut self.asleep) {
            alarms.push((alarm, None));
            return true;
        }
        !was_ready
    }

    /// Something has left a node that pauses. Returns whether the rest below must wait now.
    fn stops(&mut self, gates: &mut Table<GateId, Gate>, alarms: &mut Vec<(Alarm, Option<Nanos>)>) -> bool {
        if let Some(order) = self.real_rates().filter(|order| !order.is_ready()) {
            alarms.push((Alarm::Rates(order.timer), Some(order.wakes_at())));
            self.asleep = true;
            return true;
        }
        let Some(gate) = gates.get_mut(self.gate).filter(|gate| gate.closed) else { return false };
        gate.hold_back(alarms);
        true
    }
}

/// Whether a node that may pause does.
fn is_paused(node: &Node, gates: &Table<GateId, Gate>) -> bool {
    node.asleep || gates.get(node.gate).is_some_and(|gate| gate.closed)
}

fn order_of(program: &Program, id: NodeId, purpose: Purpose, ranked_above: bool) -> Order {
    let (node, largest) = (program.node(id), purpose.largest);
    let weights = || node.children.iter().map(|&child| program.node(child).weight).collect::<Vec<_>>();
    match node.kind {
        NodeKind::Class(_) => Order::One,
        NodeKind::Priority => Order::priority(node.children.len()),
        NodeKind::Wfq => Order::fair(&weights(), largest),
        NodeKind::Drr => Order::rounds(&weights(), largest),
        NodeKind::Fifo => Order::Ranked(Box::new(Ranked::new(By::Arrival))),
        NodeKind::Lstf | NodeKind::Edf => Order::Ranked(Box::new(Ranked::new(By::Deadline))),
        NodeKind::Program(_) => Order::Ranked(Box::new(Ranked::new(By::Rank))),
        NodeKind::RateShare(form) => {
            let rates: Vec<BitRate> =
                node.children.iter().map(|&child| program.node(child).rate.unwrap_or(program.link)).collect();
            // An order that looks at packets cannot be told to look away from those below a node that sleeps.
            let order = match purpose.late.filter(|_| !ranked_above) {
                Some(late) => RateShare::real(&rates, form, largest, program.drain(id), late),
                None => RateShare::served(&rates, form, largest),
            };
            Order::RateShare(Box::new(order))
        }
    }
}

fn guarantee_of(program: &Program, id: NodeId, largest: u64) -> Option<Box<Guarantee>> {
    if matches!(program.node(id).kind, NodeKind::RateShare(_)) {
        return None; // the rates are the guarantee, and strict
    }
    let minima: Vec<_> = program.node(id).children.iter().map(|&child| program.node(child).min).collect();
    Guarantee::new(&minima, largest).map(Box::new)
}
