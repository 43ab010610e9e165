//! The engine as it should be: slow, and obviously right.
//!
//! Why: an independent statement of what every node, limit and flow queue does, to compare departures with.
//! From: the definitions of WF²Q+ (Bennett and Zhang 1997), SENIC (NSDI 2014, its V divided by phi), surplus round robin
//! (Adiseshu et al. 1996), virtual clock (Zhang 1990), GCRA; and docs/decisions, 15, for limits.
//! Not here: nodes with more than sixteen children (`fair_lag`), caps, reloads.
//! Invariant: nothing is cached: what is active, eligible or due is looked up whenever it is asked.
//!
//! The rules:
//!
//! - A *bundle* is the flow queues of one class behind the same limits. It is idle, in the main tree, or waits for limits.
//! - A node's `max` is a gate. It closes once its rate is used up, and opens when a pull like the last is earned. A closed node
//!   is as if nothing were below it. A head that was picked before its gates had earned as much as it needs stays where it is;
//!   until it has left, its gates open only when they have earned that much.
//! - Each other limit has a copy of the tree for the bundles that ask it. A bundle asks a limit for what its head lacks beyond
//!   what it was granted and has not used. Where bundles share the limit and packets follow, it also asks for as much as its
//!   head once more: up to one pull, or up to two as far as the burst covers what all bundles have beyond one. It does not ask
//!   while the limit has that much to give and no bundle asks.
//! - At each slot a limit grants its tree's choice what that asks for, and is charged at once.
//! - A bundle is in the main tree if at each limit its head lacks nothing, or lacks what the limit can give while no bundle asks.
//! - A bundle that becomes idle gives back what it did not use.

mod clock;
mod flows;
mod gates;
mod limits;
mod rates;
mod tree;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plimsoll_nic::Descriptor;
use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Placement, Program, Scope};
use plimsoll_units::BitRate;

use clock::Clock;
use flows::{Flow, Packet};
use limits::Limit;
use tree::Tree;

/// A pull that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub queue: u32,
    pub addr: u64,
    pub offset: u32,
    pub len: u32,
    pub last: bool,
    pub arrived: u64,
    pub head: u64,
    pub limited: u64,
    pub limited_by: Option<LimitId>,
}

pub struct Reference {
    program: Program,
    pull: u64,
    largest: u64,
    flows: Vec<Flow>,
    bundles: Vec<Bundle>,
    limits: Vec<Limit>,
    /// The main tree, then one for each limit.
    trees: Vec<Tree>,
    link: Clock,
    arrivals: u64,
}

struct Bundle {
    class: usize,
    order: FlowOrder,
    limits: Vec<usize>,
    place: Place,
    /// For flows that take turns.
    turns: Vec<usize>,
    /// By index among its limits: the amount that was granted and not used; and, where it asks, whether its head needs that.
    granted: BTreeMap<usize, u64>,
    asks: BTreeMap<usize, bool>,
    fresh: bool,
    entered: u32,
    waits: Vec<(usize, u64)>,
    waits_since: u64,
    /// Since when its head is below gates.
    below_since: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Idle,
    Main,
    Waits,
}

impl Reference {
    pub fn new(program: &Program, pull: u64) -> Self {
        let program = &program.carried_out();
        let frame = program.max_frame.as_u64() + program.overhead.as_u64();
        let largest = pull.max(frame);
        let limits = program.limits.iter().map(|limit| Limit {
            clock: Clock::new(limit.rate),
            burst: limit.burst.as_u64(),
            expected: 0,
            top: match limit.scope {
                Scope::Subtree(top) => Some(top.0 as usize),
                Scope::Match { .. } | Scope::Peer(_) => None,
            },
            opens: None,
            kept: BTreeSet::new(),
            longest: 0,
            spans: vec![],
        });
        let mut trees = vec![Tree::new(program, 0, true, true, largest)];
        for limit in &program.limits {
            trees.push(match limit.scope {
                Scope::Subtree(top) => Tree::new(program, top.0 as usize, true, false, largest),
                Scope::Match { .. } | Scope::Peer(_) => Tree::new(program, 0, false, false, largest),
            });
        }
        Self {
            pull: largest,
            largest,
            flows: vec![],
            bundles: vec![],
            limits: limits.collect(),
            trees,
            link: Clock::new(program.link),
            arrivals: 0,
            program: program.clone(),
        }
    }

    pub fn open(&mut self, placement: &Placement) {
        let limits: Vec<usize> = placement.limits.iter().map(|limit| limit.0 as usize).collect();
        let class = placement.class.0 as usize;
        let known = self.bundles.iter().position(|bundle| bundle.class == class && bundle.limits == limits);
        let bundle = known.unwrap_or_else(|| {
            let NodeKind::Class(order) = self.program.nodes[class].kind else {
                panic!("flows belong to classes")
            };
            self.bundles.push(Bundle {
                class,
                order,
                limits,
                place: Place::Idle,
                turns: vec![],
                granted: BTreeMap::new(),
                asks: BTreeMap::new(),
                fresh: true,
                entered: 0,
                waits: vec![],
                waits_since: 0,
                below_since: 0,
            });
            self.bundles.len() - 1
        });
        let (packets, posted) = (VecDeque::new(), vec![]);
        self.flows.push(Flow { bundle, packets, posted, offset: 0, head_since: 0, deficit: 0 });
    }

    pub fn post(&mut self, queue: u32, addr: u64, descriptor: Descriptor) {
        self.flows[queue as usize].posted.push((addr, descriptor));
    }

    pub fn ring(&mut self, queue: u32, now: u64) {
        let id = queue as usize;
        let was_empty = self.flows[id].packets.is_empty();
        for (addr, descriptor) in core::mem::take(&mut self.flows[id].posted) {
            let packet = Packet { addr, descriptor, arrived: now, number: self.arrivals };
            self.arrivals += 1;
            self.flows[id].packets.push_back(packet);
        }
        if !was_empty || self.flows[id].packets.is_empty() {
            return;
        }
        self.flows[id].head_since = now;
        let bundle = self.flows[id].bundle;
        self.bundles[bundle].turns.push(id);
        if self.bundles[bundle].place == Place::Idle {
            let state = &mut self.bundles[bundle];
            (state.fresh, state.entered) = (true, 0);
            state.waits.clear();
            self.go_on(bundle, now);
        }
    }

    pub fn set_weight(&mut self, node: NodeId, weight: u32) {
        self.program.nodes[node.0 as usize].weight = weight;
    }

    pub fn set_class_rate(&mut self, node: NodeId, rate: BitRate, now: u64) {
        let child = node.0 as usize;
        let (Some(_), Some(parent)) = (self.program.nodes[child].rate, self.program.nodes[child].parent)
        else {
            return;
        };
        self.program.nodes[child].rate = Some(rate);
        for tree in 0..self.trees.len() {
            self.trees[tree].nodes[parent.0 as usize].set_rate(child, rate.get(), now);
            self.look_again(tree, parent.0 as usize, now);
        }
        for below in 0..self.program.nodes.len() {
            let id = NodeId(below as u32);
            if self.trees[0].nodes[below].paced.real && self.program.path(id).any(|above| above == node) {
                self.trees[0].nodes[below].advance(now);
                self.trees[0].nodes[below].paced.drain = self.program.drain(id).get();
                self.look_again(0, below, now);
            }
        }
    }

    pub fn set_rate(&mut self, limit: LimitId, rate: BitRate, now: u64) {
        let id = limit.0 as usize;
        self.limits[id].clock.change_rate(rate, now);
        if self.limits[id].opens.is_some() {
            self.limits[id].opens = Some(self.due(id));
        }
    }

    /// When the next pull can leave, if nothing else happens.
    pub fn next(&self) -> Option<u64> {
        let link = self.link.earned();
        if self.is_active(0, 0) {
            return Some(link);
        }
        let waited_for = (0..self.limits.len()).filter(|&limit| self.is_waited_for(limit));
        let asleep = self.trees[0].nodes.iter().filter_map(|node| node.paced.asleep);
        let waits = waited_for.map(|limit| self.due(limit));
        waits.chain(asleep).chain(self.openings().map(|(due, _)| due)).min().map(|due| due.max(link))
    }

    /// Everything that leaves at `now`.
    pub fn poll(&mut self, now: u64) -> Vec<Sent> {
        let mut sent = vec![];
        while self.link.earned() <= now {
            let released = self.release_due(now);
            let Some(bundle) = self.pick(0, now) else { if released { continue } else { break } };
            let len = self.head_charge(bundle);
            if self.is_held(bundle, now) {
                self.note_gates(bundle, now);
                self.settle(0, bundle, 0, true, false);
                self.ask_around(bundle, true, now);
                self.wait(bundle, now);
            } else if self.close_gates(bundle, |_| len, now) {
                self.keep(bundle, len);
                self.settle(0, bundle, 0, false, false);
            } else {
                sent.push(self.send(bundle, now));
            }
        }
        sent
    }

    fn wait(&mut self, bundle: usize, now: u64) {
        let state = &mut self.bundles[bundle];
        (state.place, state.waits_since) = (Place::Waits, now);
        for index in 0..self.bundles[bundle].limits.len() {
            let needs = self.lacks(bundle, index) > 0;
            if let Some(asks) = self.bundles[bundle].asks.get_mut(&index) {
                *asks |= needs;
            }
        }
    }

    /// The bundle enters the main tree, unless a limit holds its head.
    fn go_on(&mut self, bundle: usize, now: u64) -> bool {
        let held = self.ask_around(bundle, self.bundles[bundle].entered > 0, now);
        if held {
            self.wait(bundle, now);
        } else {
            self.bundles[bundle].asks.values_mut().for_each(|needs| *needs = false);
            self.enter_main(bundle, now);
        }
        !held
    }

    fn enter_main(&mut self, bundle: usize, now: u64) {
        let state = &mut self.bundles[bundle];
        state.place = Place::Main;
        state.entered += 1;
        let returning = state.entered > 1 || !state.fresh;
        self.activate(0, bundle, returning, now);
        self.bundles[bundle].below_since = now;
    }

    /// Before each pick, limits grant what they have earned, gates open, and nodes that slept until now wake up, the earliest
    /// first. A limit whose grant let a bundle into the main tree grants no more before the pick. Returns whether any did.
    fn release_due(&mut self, now: u64) -> bool {
        let mut done = BTreeSet::new();
        let limits = self.limits.len();
        loop {
            let waited_for = (0..limits).filter(|&limit| self.is_waited_for(limit) && !done.contains(&limit));
            let slots = waited_for.map(|limit| (self.due(limit), limit));
            let asleep = self.trees[0].nodes.iter().enumerate();
            let asleep = asleep.filter_map(|(node, state)| Some((state.paced.asleep?, limits + node)));
            let next = slots.chain(asleep).chain(self.openings()).filter(|&(due, _)| due <= now).min();
            match next {
                None => return !done.is_empty(),
                Some((_, at)) if at >= limits => self.look_again(0, at - limits, now),
                Some((_, at)) if self.is_gate(at) => self.open_at(at, now),
                Some((_, at)) if self.release(at, now) => {
                    done.insert(at);
                }
                Some(_) => {}
            }
        }
    }

    fn send(&mut self, bundle: usize, now: u64) -> Sent {
        let flow = self.front(bundle).expect("a bundle in the tree holds packets");
        let (packet, offset) = (self.flows[flow].packets[0], self.flows[flow].offset);
        let (payload, len, charge) = self.piece(flow);
        let last = offset + payload >= packet.descriptor.len - u32::from(packet.descriptor.header)
            || self.whole(flow);
        self.note_gates(bundle, now);
        let waits = core::mem::take(&mut self.bundles[bundle].waits);
        let longest = waits.iter().rev().max_by_key(|&&(_, span)| span); // of equal ones the first
        let sent = Sent {
            queue: flow as u32,
            addr: packet.addr,
            offset,
            len,
            last,
            arrived: packet.arrived,
            head: self.flows[flow].head_since,
            limited: waits.iter().map(|&(_, span)| span).sum(),
            limited_by: longest.map(|&(limit, _)| LimitId(limit as u32)),
        };
        if last {
            let state = &mut self.flows[flow];
            state.packets.pop_front();
            (state.offset, state.head_since) = (0, now);
        } else {
            self.flows[flow].offset += payload;
        }
        self.use_turn(bundle, flow, charge);
        for index in 0..self.bundles[bundle].limits.len() {
            let (limit, granted) = (self.bundles[bundle].limits[index], self.granted(bundle, index));
            if self.ahead(limit) > 0 {
                self.catch_up(limit, now);
            }
            self.bundles[bundle].granted.insert(index, granted.saturating_sub(charge));
            let state = &mut self.limits[limit];
            if state.kept.remove(&bundle) && state.kept.is_empty() {
                state.longest = 0;
            }
            if charge > granted {
                self.pay(limit, charge - granted, now);
            }
        }
        self.close_gates(bundle, |limit| charge.max(limit.longest), now);
        self.link.not_before(now);
        self.link.charge(charge);
        self.move_on(bundle, charge, now);
        sent
    }

    fn move_on(&mut self, bundle: usize, charge: u64, now: u64) {
        let idle = self.front(bundle).is_none();
        (self.bundles[bundle].fresh, self.bundles[bundle].entered) = (false, 1);
        let held = !idle && self.ask_around(bundle, false, now);
        if idle {
            self.withdraw(bundle, now);
            self.bundles[bundle].place = Place::Idle;
        }
        self.settle(0, bundle, charge, idle || held, idle);
        if held {
            self.bundles[bundle].entered = 0;
            self.wait(bundle, now);
        }
    }
}
