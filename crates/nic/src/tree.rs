//! The scheduling tree, and its restrictions to what waits behind each limit.
//!
//! Why: behind a limit that binds, the same policy decides among those that wait; so one structure serves both.
//! From: Loom §4.1 (PIFO tree), with one entry for each active child instead of one for each packet.
//! Not here: flow queues (`bundle`), rates (`limit`), frames.
//! Invariant: a node is in its parent's order exactly while something below it is active and it is not asleep. Asleep is
//! only a node whose rates hold in real time, while none of its children is eligible.

use plimsoll_policy::{FlowOrder, NodeId, NodeKind, Program};
use plimsoll_queues::Bits;
use plimsoll_units::{BitRate, Nanos, Span};

use crate::order::bundles::Bundles;
use crate::order::guarantee::Guarantee;
use crate::order::ranked::Ranked;
use crate::order::rate_share::RateShare;
use crate::order::{Coming, Entrant, Order, Settlement};

/// Every node of the main tree and of the limits' trees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forest {
    nodes: Vec<Node>,
    /// Nodes whose rates hold in real time, by alarm.
    timed: Vec<u32>,
    /// Alarms that have just changed: when to call [`Forest::wake`], or `None` for never.
    alarms: Vec<(u32, Option<Nanos>)>,
}

/// What a tree is for.
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
    parent: u32,
    /// Which child of its parent it is.
    slot: u32,
    /// Active children.
    active: u32,
    /// Whether the last pick was owed to a guarantee.
    guaranteed: bool,
    /// Whether a node above orders by packets, so that it must hear of each bundle.
    ranked_above: bool,
    /// Whether its rates hold in real time.
    timed: bool,
    /// Whether it waits until one of its children is eligible.
    asleep: bool,
    order: Order,
    guarantee: Option<Box<Guarantee>>,
    /// By slot: nodes, or bundles below a class. `NONE` where a restriction has no such child.
    children: Vec<u32>,
}

/// A walk down a tree: the bundle that goes next, and where it hangs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) bundle: u32,
    pub(crate) seat: Seat,
}

/// Where a bundle hangs in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) node: u32,
    pub(crate) slot: u32,
}

/// What hanging up a bundle changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adoption {
    pub(crate) seat: Seat,
    /// The class's first bundle and its new seat, when this is the second.
    pub(crate) first: Option<(u32, Seat)>,
}

pub(crate) const NONE: u32 = u32::MAX;
pub(crate) const NODE_BYTES: usize = size_of::<Node>();
/// Marks a child that is a bundle, not a node.
const BUNDLE: u32 = 1 << 31;

impl Forest {
    /// Room for so many nodes, and no more: one for each class of a large policy must not be two.
    pub(crate) fn with_capacity(nodes: usize) -> Self {
        Self { nodes: Vec::with_capacity(nodes), ..Self::default() }
    }

    /// Adds a node for `id` of the policy below `parent` (a node of this forest), and returns it.
    pub(crate) fn add(
        &mut self,
        program: &Program,
        id: NodeId,
        parent: Option<u32>,
        purpose: Purpose,
    ) -> u32 {
        let index = u32::try_from(self.nodes.len()).expect("fewer nodes than u32 holds");
        let (slot, ranked_above) = match (parent, program.node(id).parent) {
            (Some(parent), Some(above)) => {
                let slot = program.node(above).children.iter().position(|&child| child == id);
                let slot = slot.expect("a child is listed by its parent");
                let node = &mut self.nodes[parent as usize];
                node.children[slot] = index;
                (slot, node.ranked_above || matches!(node.order, Order::Ranked(_)))
            }
            _ => (0, false),
        };
        let mut order = order_of(program, id, purpose, ranked_above);
        let timed = match &mut order {
            Order::RateShare(order) if order.is_real() => {
                order.alarm = u32::try_from(self.timed.len()).expect("fewer alarms than u32 holds");
                self.timed.push(index);
                self.alarms.reserve(2 * self.timed.len());
                true
            }
            _ => false,
        };
        self.nodes.push(Node {
            parent: parent.unwrap_or(NONE),
            slot: u32::try_from(slot).expect("fewer children than u32 holds"),
            active: 0,
            guaranteed: false,
            ranked_above,
            timed,
            asleep: false,
            order,
            guarantee: if purpose.minima { guarantee_of(program, id, purpose.largest) } else { None },
            children: vec![NONE; program.node(id).children.len()],
        });
        index
    }

    /// Hangs a bundle below the class `class` of this forest. A class with one bundle has nothing to decide: the
    /// bundle takes its place below the class's parent. Says where the class's first bundle hangs now.
    pub(crate) fn adopt(&mut self, class: u32, bundle: u32, flow_order: FlowOrder) -> Adoption {
        let Node { parent, slot: class_slot, .. } = self.nodes[class as usize];
        let slot =
            u32::try_from(self.nodes[class as usize].children.len()).expect("fewer bundles than u32 holds");
        self.nodes[class as usize].children.push(bundle | BUNDLE);
        let seat = Seat { node: class, slot };
        if slot == 0 && parent != NONE {
            self.nodes[parent as usize].children[class_slot as usize] = bundle | BUNDLE;
            let seat = Seat { node: parent, slot: class_slot };
            self.announce(seat, bundle);
            return Adoption { seat, first: None };
        }
        let first = (slot == 1).then(|| self.start_ordering(class, flow_order));
        if let Order::Bundles(order) = &mut self.nodes[class as usize].order {
            order.adopt();
        }
        self.announce(seat, bundle);
        Adoption { seat, first }
    }

    /// A class gets its second bundle: from now on there is something to decide, and the first hangs below it.
    fn start_ordering(&mut self, class: u32, flow_order: FlowOrder) -> (u32, Seat) {
        let mut order = Bundles::new(flow_order);
        order.adopt();
        let Node { parent, slot, .. } = self.nodes[class as usize];
        if parent != NONE {
            self.nodes[parent as usize].children[slot as usize] = class;
        }
        let node = &mut self.nodes[class as usize];
        node.order = Order::Bundles(Box::new(order));
        (node.children[0] & !BUNDLE, Seat { node: class, slot: 0 })
    }

    /// Enters a bundle that is active already into the order that its class has just been given.
    pub(crate) fn enter_first(&mut self, seat: Seat, entrant: &Entrant) {
        let node = &mut self.nodes[seat.node as usize];
        let coming = Coming { returning: false, since: Nanos::ZERO, now: Nanos::ZERO };
        node.order.insert(seat.slot, entrant, &coming);
        node.active = 1;
    }

    /// Whether something below the node may go now.
    #[inline]
    pub(crate) fn is_active(&self, node: u32) -> bool {
        self.nodes[node as usize].active > 0 && !self.nodes[node as usize].asleep
    }

    /// How many nodes have an alarm.
    pub(crate) fn alarm_count(&self) -> usize {
        self.timed.len()
    }

    /// The node of an alarm. The main tree's nodes stand where the policy's do.
    pub(crate) fn timed_node(&self, alarm: usize) -> NodeId {
        NodeId(self.timed[alarm])
    }

    /// An alarm that has changed, and when it is due; `None` for never.
    #[inline]
    pub(crate) fn next_alarm(&mut self) -> Option<(u32, Option<Nanos>)> {
        self.alarms.pop()
    }

    /// Orders that look at packets learn below which of their children the bundle lies.
    fn announce(&mut self, seat: Seat, bundle: u32) {
        let Seat { node: mut at, mut slot } = seat;
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            if let Order::Ranked(order) = &mut node.order {
                order.adopt(bundle, slot);
            }
            (at, slot) = (node.parent, node.slot);
        }
    }

    /// Whether some order on the way from the seat to its root looks at packets.
    pub(crate) fn ranks_packets(&self, seat: Seat) -> bool {
        let node = &self.nodes[seat.node as usize];
        node.ranked_above || matches!(node.order, Order::Ranked(_) | Order::Bundles(_))
    }

    /// Brings what the seat's node keeps of it into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, seat: Seat) {
        if let Order::Grouped(order) = &self.nodes[seat.node as usize].order {
            order.prefetch(seat.slot);
        }
    }

    /// Bundles that are likely to be picked soon after the one in this seat, the next one first.
    #[inline]
    pub(crate) fn upcoming(&self, seat: Seat) -> [Option<u32>; 3] {
        let node = &self.nodes[seat.node as usize];
        let Order::Grouped(order) = &node.order else { return [None; 3] };
        order.upcoming(seat.slot).map(|slot| {
            let child = *node.children.get(slot? as usize)?;
            (child & BUNDLE != 0).then_some(child & !BUNDLE)
        })
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
            let node = &mut self.nodes[at as usize];
            if newly {
                node.order.insert(slot, entrant, coming);
                if let Some(guarantee) = &mut node.guarantee {
                    guarantee.insert(slot, coming.returning, coming.now);
                }
                node.active += 1;
                newly = node.active == 1;
                if node.timed {
                    newly = node.stir(&mut self.alarms);
                }
            } else if matches!(node.order, Order::Ranked(_)) {
                node.order.insert(slot, entrant, coming);
            }
            if node.parent == NONE || !(newly || node.ranked_above) {
                return;
            }
            (at, slot) = (node.parent, node.slot);
        }
    }

    /// The bundle that goes next below `root`.
    #[inline]
    pub(crate) fn pick(&mut self, root: u32, now: Nanos) -> Option<Pick> {
        let mut at = root;
        if !self.is_active(at) {
            return None;
        }
        loop {
            let node = &mut self.nodes[at as usize];
            let promised = node.guarantee.as_mut().and_then(|guarantee| guarantee.pick(now));
            node.guaranteed = promised.is_some();
            let slot = promised.or_else(|| node.order.pick(now))?;
            let child = node.children[slot as usize];
            if child & BUNDLE != 0 {
                return Some(Pick { bundle: child & !BUNDLE, seat: Seat { node: at, slot } });
            }
            at = child;
        }
    }

    /// Tells every node on the way up what became of the bundle that [`Forest::pick`] returned last.
    #[inline]
    pub(crate) fn settle(&mut self, seat: Seat, outcome: &Settlement<'_>) {
        let Seat { node: mut at, mut slot } = seat;
        let mut stays = outcome.remains;
        let asleep = Settlement { idle: false, ..*outcome };
        let mut outcome = outcome;
        loop {
            let node = &mut self.nodes[at as usize];
            let mut charged = outcome.len;
            if let Some(guarantee) = &mut node.guarantee {
                if node.guaranteed && charged > 0 {
                    guarantee.charge(slot, charged);
                    charged = 0;
                }
                if !stays {
                    guarantee.remove(slot);
                }
            }
            node.order.settle(slot, charged, outcome, stays);
            node.active -= u32::from(!stays);
            stays = node.active > 0;
            if node.timed && stays && node.falls_asleep(&mut self.alarms) {
                (stays, outcome) = (false, &asleep); // it leaves, but is not idle
            }
            if node.parent == NONE {
                return;
            }
            (at, slot) = (node.parent, node.slot);
        }
    }

    /// The moment of an alarm has come: if a child of its node is eligible, the node is again in its parent's order, as
    /// from the moment at which the child became so.
    pub(crate) fn wake(&mut self, alarm: u32, now: Nanos) {
        self.reconsider(self.timed[alarm as usize], now);
    }

    /// Time has passed, or rates have changed, for a node that may be asleep.
    fn reconsider(&mut self, at: u32, now: Nanos) {
        let node = &mut self.nodes[at as usize];
        let Order::RateShare(order) = &mut node.order else { return };
        if !node.asleep {
            return;
        }
        let since = order.wakes_at().min(now);
        order.advance(now);
        if !node.stir(&mut self.alarms) || node.parent == NONE {
            return;
        }
        let seat = Seat { node: node.parent, slot: node.slot };
        // Orders that look at packets are never above.
        self.enter(seat, &Entrant::default(), &Coming { returning: true, since, now });
    }

    /// The bundle, active in this tree, has another head: orders that look at packets must know.
    pub(crate) fn new_head(&mut self, seat: Seat, entrant: &Entrant) {
        let Seat { node: mut at, mut slot } = seat;
        loop {
            let node = &mut self.nodes[at as usize];
            if matches!(node.order, Order::Ranked(_) | Order::Bundles(_)) {
                let coming = Coming { returning: true, since: Nanos::ZERO, now: Nanos::ZERO };
                node.order.insert(slot, entrant, &coming);
            }
            if node.parent == NONE || !node.ranked_above {
                return;
            }
            (at, slot) = (node.parent, node.slot);
        }
    }

    /// Gives a node's child `slot` another weight.
    pub(crate) fn set_weight(&mut self, node: u32, slot: u32, weight: u32) {
        self.nodes[node as usize].order.set_weight(slot, weight);
    }

    /// Gives a node's child `slot` another rate.
    pub(crate) fn set_rate(&mut self, node: u32, slot: u32, rate: BitRate, now: Nanos) {
        self.nodes[node as usize].order.set_rate(slot, rate, now);
        self.reconsider(node, now);
    }

    /// The most that a node whose rates hold in real time gets.
    pub(crate) fn set_drain(&mut self, node: NodeId, drain: BitRate, now: Nanos) {
        if let Order::RateShare(order) = &mut self.nodes[node.0 as usize].order {
            order.set_drain(drain, now);
            self.reconsider(node.0, now);
        }
    }

    /// From `class` to its root: the node and the rank that a packet from below would get there.
    pub(crate) fn ranks(&self, class: u32) -> impl Iterator<Item = u64> + '_ {
        let mut at = class;
        core::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.parent;
            Some(self.nodes.get(at as usize)?.order.rank(node.slot))
        })
    }
}

impl Node {
    /// A child has come, or its time has: whether the node may go now, and could not before. Otherwise it sleeps until
    /// a child is eligible.
    fn stir(&mut self, alarms: &mut Vec<(u32, Option<Nanos>)>) -> bool {
        let Order::RateShare(order) = &self.order else { return false };
        let was_ready = self.active > 1 && !self.asleep;
        if !order.is_ready() {
            self.asleep = true;
            alarms.push((order.alarm, Some(order.wakes_at())));
            return false;
        }
        if core::mem::take(&mut self.asleep) {
            alarms.push((order.alarm, None));
            return true;
        }
        !was_ready
    }

    /// Something has left: whether no child may go now, although some have packets.
    fn falls_asleep(&mut self, alarms: &mut Vec<(u32, Option<Nanos>)>) -> bool {
        let Order::RateShare(order) = &self.order else { return false };
        self.asleep = !order.is_ready();
        if self.asleep {
            alarms.push((order.alarm, Some(order.wakes_at())));
        }
        self.asleep
    }
}

fn order_of(program: &Program, id: NodeId, purpose: Purpose, ranked_above: bool) -> Order {
    let (node, largest) = (program.node(id), purpose.largest);
    let weights = || node.children.iter().map(|&child| program.node(child).weight).collect::<Vec<_>>();
    match node.kind {
        NodeKind::Class(_) => Order::One,
        NodeKind::Priority => Order::Priority(Box::new(Bits::new(node.children.len()))),
        NodeKind::Wfq => Order::fair(&weights(), largest),
        NodeKind::Drr => Order::rounds(&weights(), largest),
        NodeKind::Fifo => Order::Ranked(Box::new(Ranked::new(false))),
        NodeKind::Lstf | NodeKind::Edf => Order::Ranked(Box::new(Ranked::new(true))),
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
