//! The engine as it should be: slow, and obviously right.
//!
//! Why: an independent statement of what every node, limit and flow queue does, to compare departures with.
//! From: the definitions of WF²Q+ (Bennett and Zhang 1997), SENIC (NSDI 2014, its V divided by phi), surplus round robin (Adiseshu et al. 1996), virtual
//! clock (Zhang 1990), GCRA; and `design`, "Egress", for what happens behind limits.
//! Not here: nodes with more than sixteen children (`fair_lag`), caps, reloads.
//! Invariant: nothing is cached: who is active, who is eligible and what is due is looked up whenever it is asked.
//!
//! The rules: a *bundle* is the flow queues of one class behind the same limits. It is idle, in the main tree, or waits
//! for limits. A node's `max` closes the node once its rate is used up, and until a pull like the last is earned; a
//! closed node is as if nothing were below it. A head that was picked at an open gate that has not earned as much as it needs
//! stays, and its gates open for no less until it has left. Each other limit has a copy of the tree for those that ask it. A bundle asks a limit
//! for what its head lacks beyond what it was granted and has not used, and, where bundles share the limit and packets follow, for as much as
//! its head once more: up to a pull, or up to two, as far as the burst covers what all have beyond one. It does not ask
//! while the limit has as much in hand and no bundle asks. At each slot the tree's choice is granted what it asks for, and
//! pays for it there. A bundle whose head lacks nothing anywhere, or lacks what a limit has in hand while no bundle asks, is in
//! the main tree. One that becomes idle gives back what it did not use.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plimsoll_nic::Descriptor;
use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Placement, Program, Scope};
use plimsoll_units::{BitRate, Bytes};

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

struct Flow {
    bundle: usize,
    packets: VecDeque<Packet>,
    posted: Vec<(u64, Descriptor)>,
    offset: u32,
    head_since: u64,
    deficit: i64,
}

#[derive(Clone, Copy)]
struct Packet {
    addr: u64,
    descriptor: Descriptor,
    arrived: u64,
    number: u64,
}

struct Bundle {
    class: usize,
    order: FlowOrder,
    limits: Vec<usize>,
    place: Place,
    /// For flows that take turns.
    turns: Vec<usize>,
    /// By index among its limits: what was granted and not used, and where it asks, whether its head needs it.
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

struct Limit {
    clock: Clock,
    burst: u64,
    /// The amount that the next choice is expected to ask for: the least request since the last choice, or else its own.
    expected: u64,
    /// Where it closes a node: until when, when it did, and all such spans of time.
    top: Option<usize>,
    opens: Option<u64>,
    /// Bundles below whose heads were picked in vain since they sent last, and the longest of those heads.
    kept: BTreeSet<usize>,
    longest: u64,
    spans: Vec<(u64, u64)>,
}

/// Everything charged is earned at `at / rate` nanoseconds.
#[derive(Clone, Copy)]
struct Clock {
    at: u128,
    rate: u128,
}

/// Keeps what an order must remember, for every node of the policy.
struct Tree {
    top: usize,

    inside: BTreeSet<usize>,
    nodes: Vec<Node>,
}

#[derive(Clone, Default)]
struct Node {
    /// Virtual time, and each child's (or bundle's) start.
    v: u64,
    starts: BTreeMap<usize, u64>,
    step: u64,
    ring: Vec<usize>,
    deficits: BTreeMap<usize, i64>,
    paced: Paced,
    clocks: BTreeMap<usize, Clock>,
    guaranteed: bool,
}

/// The state of a node with rates beyond V and starts.
#[derive(Clone, Default)]
struct Paced {
    /// Whether V goes with real time, when it was last looked at, and its fraction in 2^-32.
    real: bool,
    at: u64,
    fraction: u128,
    drain: u64,
    patience: u64,
    largest: u64,
    /// Children that are active, those of them that have been eligible since they were charged, and their rates.
    members: BTreeSet<usize>,
    due: BTreeSet<usize>,
    rates: BTreeMap<usize, u64>,
    rests: BTreeMap<usize, u128>,
    /// The moment until which no child is eligible.
    asleep: Option<u64>,
}

impl Clock {
    fn new(rate: BitRate) -> Self {
        Self { at: 0, rate: rate.get().into() }
    }

    fn earned(self) -> u64 {
        u64::try_from(self.at.div_ceil(self.rate)).expect("within the test's time")
    }

    fn not_before(&mut self, now: u64) {
        self.at = self.at.max(u128::from(now) * self.rate);
    }

    fn charge(&mut self, len: u64) {
        self.at += u128::from(len) * 8_000_000_000;
    }

    fn change_rate(&mut self, rate: BitRate, now: u64) {
        let present = u128::from(now) * self.rate;
        let rate = u128::from(rate.get());
        self.at = if self.at > present {
            u128::from(now) * rate + (self.at - present)
        } else {
            self.at / self.rate * rate
        };
        self.rate = rate;
    }

    fn refund(&mut self, len: u64) {
        self.at -= u128::from(len) * 8_000_000_000;
    }
}

/// A child and the node above it.
type Step = (usize, usize);

/// Virtual time of `len` bytes in units of 2^-20 bytes at weight 1, each weight's reciprocal rounded to 2^-32.
fn span(len: u64, inverse: u64) -> u64 {
    (len * inverse) >> 12
}

fn own(weight: u32) -> u64 {
    (1_u64 << 32).div_ceil(weight.into())
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

    /// Whether the limit closes its node: not below an order that looks at packets, nor a class of one bundle, which waits
    /// itself.
    fn is_gate(&self, limit: usize) -> bool {
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

    fn is_closed(&self, tree: usize, node: usize) -> bool {
        tree == 0 && self.gate_at(node).is_some_and(|gate| self.limits[gate].opens.is_some())
    }

    /// Gates that keep something back, and when they open.
    fn openings(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let keeps = |&(_, gate): &(u64, usize)| {
            let node = self.limits[gate].top.expect("a gate");
            self.is_busy(0, node) && self.trees[0].nodes[node].paced.asleep.is_none()
        };
        (0..self.limits.len()).filter_map(|gate| Some((self.limits[gate].opens?, gate))).filter(keeps)
    }

    /// Whether something below the node could go, but for what holds the node itself.
    fn is_busy(&self, tree: usize, node: usize) -> bool {
        self.trees[tree].inside.iter().any(|&bundle| {
            let path = self.path(tree, bundle);
            let end = path.iter().position(|&(_, at)| at == node);
            end.is_some_and(|end| path[..end].iter().all(|&(_, at)| self.is_awake(tree, at)))
        })
    }

    fn is_awake(&self, tree: usize, node: usize) -> bool {
        self.trees[tree].nodes[node].paced.asleep.is_none() && !self.is_closed(tree, node)
    }

    fn open_gate(&mut self, gate: usize, now: u64) {
        let state = &mut self.limits[gate];
        state.opens = None;
        state.spans.last_mut().expect("it was closed").1 = now;
    }

    /// The bundle was picked in vain: until it has sent, its gates open for no less than its head needs.
    fn keep(&mut self, bundle: usize, len: u64) {
        for limit in self.bundles[bundle].limits.clone() {
            let state = &mut self.limits[limit];
            state.kept.insert(bundle);
            state.longest = state.longest.max(len);
        }
    }

    /// Those of a bundle's gates that do not let what `len` says pass now close. Answers whether any did.
    fn close_gates(&mut self, bundle: usize, len: impl Fn(&Limit) -> u64, now: u64) -> bool {
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
    fn note_gates(&mut self, bundle: usize, now: u64) {
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
        let last = gates.into_iter().rev().max_by_key(opened); // of equal ones the innermost
        if waited > 0 {
            self.bundles[bundle].waits.push((last.expect("a gate held it"), waited));
        }
    }

    /// Whether the limit has a tree that decides.
    fn is_shared(&self, limit: usize) -> bool {
        !self.is_gate(limit)
            && self.bundles.iter().filter(|bundle| bundle.limits.contains(&limit)).count() > 1
    }

    /// The part of it beyond a pull.
    fn beyond(&self, limit: usize, granted: u64) -> u64 {
        granted.saturating_sub(self.pull_at(limit))
    }

    /// The longest pull behind a limit: half the burst, or a frame.
    fn pull_at(&self, limit: usize) -> u64 {
        let frame = self.program.max_frame.as_u64() + self.program.overhead.as_u64();
        self.largest.min(self.limits[limit].burst / 2).max(frame)
    }

    /// The sum of what all bundles have beyond a pull.
    fn ahead(&self, limit: usize) -> u64 {
        let own = |bundle: &Bundle| {
            let index = bundle.limits.iter().position(|&other| other == limit);
            index.map_or(0, |index| self.beyond(limit, bundle.granted.get(&index).copied().unwrap_or(0)))
        };
        self.bundles.iter().map(own).sum()
    }

    fn granted(&self, bundle: usize, index: usize) -> u64 {
        self.bundles[bundle].granted.get(&index).copied().unwrap_or(0)
    }

    fn lacks(&self, bundle: usize, index: usize) -> u64 {
        self.head_charge(bundle).saturating_sub(self.granted(bundle, index))
    }

    /// The amount that the bundle may ask the limit for.
    fn asked(&self, bundle: usize, index: usize) -> u64 {
        let (limit, len) = (self.bundles[bundle].limits[index], self.head_charge(bundle));
        let granted = self.granted(bundle, index);
        let more = granted + len;
        let beyond = self.beyond(limit, more) - self.beyond(limit, granted);
        match () {
            () if granted < len => len - granted,
            () if !self.is_shared(limit) || !self.follows(bundle) => 0,
            () if beyond == 0 => len,
            () if more > 2 * self.pull_at(limit) => 0,
            () if self.ahead(limit) + beyond + self.pull_at(limit) > self.limits[limit].burst => 0,
            () => len,
        }
    }

    /// Whether more packets follow the bundle's head.
    fn follows(&self, bundle: usize) -> bool {
        let flows = || self.flows.iter().filter(|flow| flow.bundle == bundle);
        flows().map(|flow| flow.packets.len()).sum::<usize>() > 1
    }

    /// Whether as much may leave without asking.
    fn has(&self, limit: usize, len: u64, now: u64) -> bool {
        len == 0 || !self.is_waited_for(limit) && self.due_for(limit, len) <= now
    }

    fn is_held(&self, bundle: usize, now: u64) -> bool {
        let limits = self.bundles[bundle].limits.iter().enumerate();
        let mut open = limits.filter(|&(_, &limit)| !self.is_gate(limit));
        open.any(|(index, &limit)| !self.has(limit, self.lacks(bundle, index), now))
    }

    /// Asks each limit that has not what the bundle may ask for. What its head lacks elsewhere it is granted at once if it `claims`
    /// that. Answers whether one holds it.
    fn ask_around(&mut self, bundle: usize, claims: bool, now: u64) -> bool {
        let mut held = false;
        for index in 0..self.bundles[bundle].limits.len() {
            let limit = self.bundles[bundle].limits[index];
            if self.is_gate(limit) {
                continue;
            }
            let lacks = self.lacks(bundle, index);
            if claims && lacks > 0 && self.has(limit, lacks, now) {
                self.pay(limit, lacks, now);
                *self.bundles[bundle].granted.entry(index).or_default() += lacks;
                continue;
            }
            held |= !self.has(limit, self.lacks(bundle, index), now);
            let asked = self.asked(bundle, index);
            if self.bundles[bundle].asks.contains_key(&index) || self.has(limit, asked, now) {
                continue;
            }
            let first = !self.is_waited_for(limit);
            let expected = &mut self.limits[limit].expected;
            *expected = if first { asked } else { asked.min(*expected) };
            self.bundles[bundle].asks.insert(index, false);
            let keeps_place = !self.bundles[bundle].fresh;
            self.activate(1 + limit, bundle, keeps_place, now);
        }
        held
    }

    /// A bundle that has become idle asks for nothing, and gives back what it was granted.
    fn withdraw(&mut self, bundle: usize, now: u64) {
        for index in 0..self.bundles[bundle].limits.len() {
            let limit = self.bundles[bundle].limits[index];
            if self.bundles[bundle].asks.remove(&index).is_some() {
                self.settle(1 + limit, bundle, 0, true, true);
            }
            if self.granted(bundle, index) > 0 {
                self.catch_up(limit, now);
                let granted = self.bundles[bundle].granted.remove(&index).expect("it is above zero");
                self.limits[limit].clock.refund(granted);
            }
        }
    }

    fn is_waited_for(&self, limit: usize) -> bool {
        !self.trees[1 + limit].inside.is_empty()
    }

    /// When the next choice is made.
    fn due(&self, limit: usize) -> u64 {
        self.due_for(limit, self.limits[limit].expected)
    }

    fn time(&self, limit: usize, len: u64) -> u64 {
        let rate = u64::try_from(self.limits[limit].clock.rate).expect("a rate");
        BitRate::new(rate).expect("above zero").wire_time(Bytes::new(len)).as_u64()
    }

    /// When as much may pass: what the burst allows beyond it may be owed.
    fn due_for(&self, limit: usize, len: u64) -> u64 {
        let Limit { clock, burst, .. } = &self.limits[limit];
        let owed = (self.time(limit, *burst) - 1).saturating_sub(self.time(limit, len));
        clock.earned().saturating_sub(owed)
    }

    /// The credit is the burst at most, less what bundles have beyond a pull.
    fn catch_up(&mut self, limit: usize, now: u64) {
        let ahead = self.ahead(limit);
        let ahead = if ahead == 0 { 0 } else { self.time(limit, ahead) };
        self.limits[limit].clock.not_before(now + ahead);
    }

    fn pay(&mut self, limit: usize, len: u64, now: u64) {
        self.catch_up(limit, now);
        self.limits[limit].clock.charge(len);
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

    /// Into the main tree, unless a limit holds the head.
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
    /// first. A limit for whose grant a bundle entered the main tree grants no more before the pick. Says whether any did.
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
                Some((_, who)) if who >= limits => self.look_again(0, who - limits, now),
                Some((_, who)) if self.is_gate(who) => self.open_at(who, now),
                Some((_, who)) if self.release(who, now) => {
                    done.insert(who);
                }
                Some(_) => {}
            }
        }
    }

    /// A gate's moment has come: its node goes on as from the moment at which it could.
    fn open_at(&mut self, gate: usize, now: u64) {
        let node = self.limits[gate].top.expect("a gate");
        let since = self.limits[gate].opens.expect("closed").min(now);
        let (path, active) = self.way_up(0, node);
        self.open_gate(gate, now);
        self.enter_along(0, &path, &active, true, since, now);
    }

    /// From a node up: each (child, node), and whether that node is active and whether it has an active child.
    fn way_up(&self, tree: usize, node: usize) -> (Vec<Step>, Vec<(bool, bool)>) {
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

    /// A node that may be asleep: if a child is eligible, it is again active, as from the moment of that.
    fn look_again(&mut self, tree: usize, node: usize, now: u64) {
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

    /// A node that could go but for its gate: whether that is open, or may be opened.
    fn passes_gate(&mut self, tree: usize, node: usize, now: u64) -> bool {
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

    /// The tree's choice is granted what it asks for, unless that is too much for now: then that is what is expected next.
    /// Whether it entered the main tree.
    fn release(&mut self, limit: usize, now: u64) -> bool {
        let bundle = self.pick(1 + limit, now).expect("a bundle asks");
        let index = self.bundles[bundle].limits.iter().position(|&other| other == limit).expect("it asks");
        let asked = self.asked(bundle, index);
        if asked > 0 {
            self.limits[limit].expected = asked;
            if self.due(limit) > now {
                return false;
            }
            self.pay(limit, asked, now);
            *self.bundles[bundle].granted.entry(index).or_default() += asked;
        }
        let remains = self.asked(bundle, index) > 0;
        let needed = self.bundles[bundle].asks.insert(index, false).expect("it asks");
        if !remains {
            self.bundles[bundle].asks.remove(&index);
        }
        self.settle(1 + limit, bundle, asked, !remains, false);
        if !needed || self.bundles[bundle].place != Place::Waits {
            return false;
        }
        let state = &mut self.bundles[bundle];
        state.waits.push((limit, now - state.waits_since));
        self.go_on(bundle, now)
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

    /// Whether the head leaves in one piece.
    fn whole(&self, flow: usize) -> bool {
        let Descriptor { len, segment, header, .. } = self.flows[flow].packets[0].descriptor;
        segment == 0 || len <= u32::from(header) + u32::from(segment)
    }

    /// Payload, bytes and charge of the head's next pull.
    fn piece(&self, flow: usize) -> (u32, u32, u64) {
        let limits = &self.bundles[self.flows[flow].bundle].limits;
        let halves = limits.iter().map(|&limit| self.limits[limit].burst / 2);
        let pull = halves.min().unwrap_or(self.pull).min(self.pull);
        let Descriptor { len, segment, header, .. } = self.flows[flow].packets[0].descriptor;
        let overhead = self.program.overhead.as_u64();
        if self.whole(flow) {
            return (len, len, u64::from(len) + overhead);
        }
        let (segment, header) = (u32::from(segment), u32::from(header));
        let rest = len - header - self.flows[flow].offset;
        let (mut payload, mut charge) = (0, 0);
        while payload < rest {
            let next = segment.min(rest - payload);
            let full_frame = u64::from(segment + header) + overhead;
            if payload > 0 && (u64::from(payload / segment) + 1) * full_frame > pull {
                break;
            }
            payload += next;
            charge += u64::from(next + header) + overhead;
        }
        (payload, header + payload, charge)
    }

    fn head_charge(&self, bundle: usize) -> u64 {
        self.piece(self.front(bundle).expect("waits with a packet")).2
    }

    /// The flow queue of a bundle that goes next.
    fn front(&self, bundle: usize) -> Option<usize> {
        let state = &self.bundles[bundle];
        match state.order {
            FlowOrder::Drr => state.turns.first().copied(),
            _ => state.turns.iter().copied().min_by_key(|&flow| (self.rank(bundle, flow), flow)),
        }
    }

    fn rank(&self, bundle: usize, flow: usize) -> u64 {
        match self.bundles[bundle].order {
            FlowOrder::Fifo | FlowOrder::Drr => self.flows[flow].packets[0].number,
            FlowOrder::Lstf(_) | FlowOrder::Edf(_) => self.deadline(bundle, flow),
        }
    }

    fn deadline(&self, bundle: usize, flow: usize) -> u64 {
        let Packet { arrived, descriptor, .. } = self.flows[flow].packets[0];
        let default = match self.bundles[bundle].order {
            FlowOrder::Lstf(span) | FlowOrder::Edf(span) => span.as_u64(),
            FlowOrder::Fifo | FlowOrder::Drr => 0,
        };
        arrived + if descriptor.tag == 0 { default } else { u64::from(descriptor.tag) * 1_000 }
    }

    fn use_turn(&mut self, bundle: usize, flow: usize, charge: u64) {
        let more = !self.flows[flow].packets.is_empty();
        let turns = &mut self.bundles[bundle].turns;
        let at = turns.iter().position(|&other| other == flow).expect("it has packets");
        let state = &mut self.flows[flow];
        if state.deficit <= 0 {
            state.deficit = (state.deficit + self.largest as i64).max(1);
        }
        state.deficit -= charge as i64;
        if !more {
            state.deficit = state.deficit.min(0);
            turns.remove(at);
        } else if state.deficit <= 0 {
            let flow = turns.remove(at);
            turns.push(flow);
        }
    }
}

/// Trees.
impl Reference {
    /// From the class to the top of the tree: (child, node); a class's child is the bundle.
    fn path(&self, tree: usize, bundle: usize) -> Vec<(usize, usize)> {
        let (mut child, mut node) = (bundle, self.bundles[bundle].class);
        let mut path = vec![(child, node)];
        while node != self.trees[tree].top {
            (child, node) = (node, self.program.nodes[node].parent.expect("the top is above").0 as usize);
            path.push((child, node));
        }
        path
    }

    /// Whether something below the node may go: a bundle with no sleeping node on the way there.
    fn is_active(&self, tree: usize, node: usize) -> bool {
        self.is_awake(tree, node) && self.is_busy(tree, node)
    }

    fn slot(&self, node: usize, child: usize) -> usize {
        let children = &self.program.nodes[node].children;
        children.iter().position(|other| other.0 as usize == child).expect("a child")
    }

    fn weight(&self, child: usize) -> u32 {
        self.program.nodes[child].weight
    }

    /// Whether a class has but one bundle in this tree, so that it decides nothing.
    fn single(&self, tree: usize, class: usize) -> bool {
        let here =
            |bundle: &&Bundle| bundle.class == class && (tree == 0 || bundle.limits.contains(&(tree - 1)));
        self.bundles.iter().filter(here).count() == 1
    }

    fn activate(&mut self, tree: usize, bundle: usize, returning: bool, now: u64) {
        let path = self.path(tree, bundle);
        let active = self.activity(tree, &path);
        self.enter_along(tree, &path, &active, returning, now, now);
        self.trees[tree].inside.insert(bundle);
    }

    /// Each (child, node) of the way enters, as far as its node was not active before, nor falls asleep.
    fn enter_along(
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

    fn pick(&mut self, tree: usize, now: u64) -> Option<usize> {
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

    /// The picked bundle sent `len` bytes (0: it was parked), and leaves or stays.
    fn settle(&mut self, tree: usize, bundle: usize, len: u64, leaves: bool, idle: bool) {
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

/// Rates: SENIC §4.1, `V += elapsed / max(1, phi)`; behind a limit `V += served / phi`.
impl Node {
    fn phi(&self) -> u64 {
        self.paced.members.iter().map(|child| self.paced.rates[child]).sum()
    }

    fn start(&self, child: usize) -> u64 {
        self.starts.get(&child).copied().unwrap_or(0)
    }

    /// A byte takes 8 / rate, kept in 2^-30 ns and rounded up.
    fn fine(&self, child: usize, len: u64) -> u128 {
        u128::from(len) * (8_000_000_000_u128 << 30).div_ceil(self.paced.rates[&child].into())
    }

    fn pass(&mut self, bits: u128) {
        let fine = (bits << 32) / u128::from(self.phi()) + self.paced.fraction;
        self.v += (fine >> 32) as u64;
        self.paced.fraction = fine & 0xffff_ffff;
    }

    fn ripen(&mut self) {
        let come = self.paced.members.iter().copied().filter(|&child| self.start(child) <= self.v);
        let come: Vec<usize> = come.collect();
        self.paced.due.extend(come);
    }

    fn finish(&self, child: usize) -> u64 {
        self.start(child) + (self.fine(child, self.paced.largest) >> 30) as u64
    }

    /// V comes to the present, but no further than a few frames beyond the first that should have been through.
    fn advance(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.paced.at);
        if !self.paced.real || elapsed == 0 {
            return;
        }
        let before = self.v;
        self.paced.at = now;
        if self.phi() <= self.paced.drain {
            self.v += elapsed;
        } else {
            self.pass(u128::from(elapsed) * u128::from(self.paced.drain));
        }
        self.ripen();
        if let Some(first) = self.paced.due.iter().map(|&child| self.finish(child)).min() {
            self.v = self.v.min(first + self.paced.patience).max(before);
        }
    }

    fn wakes_at(&self) -> u64 {
        let later = self.paced.members.difference(&self.paced.due);
        let Some(first) = later.map(|&child| self.start(child)).min() else { return self.paced.at };
        let gap = first - self.v;
        if self.phi() <= self.paced.drain {
            return self.paced.at + gap;
        }
        let fine = (u128::from(gap) << 32) - self.paced.fraction;
        self.paced.at + (fine * u128::from(self.phi())).div_ceil(u128::from(self.paced.drain) << 32) as u64
    }

    fn join(&mut self, child: usize, since: u64, now: u64) {
        self.advance(now);
        let waited = now - since;
        let passed = match self.phi() {
            phi if phi > self.paced.drain => {
                (u128::from(waited) * u128::from(self.paced.drain) / u128::from(phi)) as u64
            }
            _ => waited,
        };
        let floor = if self.paced.real { self.v.saturating_sub(passed) } else { self.v };
        if self.start(child) < floor {
            self.starts.insert(child, floor);
            self.paced.rests.insert(child, 0);
        }
        self.paced.members.insert(child);
        self.place(child);
    }

    fn place(&mut self, child: usize) {
        self.paced.due.remove(&child);
        if self.start(child) <= self.v {
            self.paced.due.insert(child);
        }
    }

    fn pick(&mut self, slots: &[usize], now: u64) -> usize {
        self.advance(now);
        if self.paced.due.is_empty() {
            assert!(!self.paced.real, "an active node has an eligible child");
            let first = self.paced.members.iter().map(|&child| self.start(child)).min();
            self.v = self.v.max(first.expect("an active child"));
            self.ripen();
        }
        let slot = |child: usize| slots.iter().position(|&other| other == child);
        let due = self.paced.due.iter().copied();
        due.min_by_key(|&child| (self.finish(child), slot(child))).expect("a child is eligible")
    }

    fn serve(&mut self, child: usize, charged: u64, stays: bool) {
        if charged > 0 {
            let fine = self.fine(child, charged) + self.paced.rests.get(&child).copied().unwrap_or(0);
            *self.starts.entry(child).or_insert(0) += (fine >> 30) as u64;
            self.paced.rests.insert(child, fine & ((1 << 30) - 1));
            if !self.paced.real {
                self.pass(u128::from(charged) * 8_000_000_000);
                self.ripen();
            }
        }
        if stays {
            return self.place(child);
        }
        self.paced.members.remove(&child);
        self.paced.due.remove(&child);
    }

    fn set_rate(&mut self, child: usize, rate: u64, now: u64) {
        self.advance(now);
        let before = self.paced.rates.insert(child, rate).expect("it has one");
        let start = self.start(child);
        let due = self.paced.due.contains(&child);
        if start > self.v && !due {
            let owed = u128::from(start - self.v) * u128::from(before);
            self.starts.insert(child, self.v + owed.div_ceil(rate.into()) as u64);
        }
        self.paced.rests.insert(child, 0);
        if self.paced.members.contains(&child) && !due {
            self.place(child);
        }
    }
}

impl Paced {
    /// Rates hold in real time in the main tree, unless an order above looks at packets.
    fn new(program: &Program, id: usize, main: bool, largest: u64) -> Self {
        let node = &program.nodes[id];
        if !matches!(node.kind, NodeKind::RateShare(_)) {
            return Self::default();
        }
        let id = NodeId(id as u32);
        let by_packets = |above: NodeId| {
            matches!(program.node(above).kind, NodeKind::Fifo | NodeKind::Lstf | NodeKind::Edf)
        };
        let rate = |&child: &NodeId| (child.0 as usize, program.node(child).rate.expect("stated").get());
        let drain = program.drain(id);
        Self {
            real: main && !program.path(id).any(by_packets),
            drain: drain.get(),
            patience: 3 * drain.wire_time(Bytes::new(largest)).as_u64(),
            largest,
            rates: node.children.iter().map(rate).collect(),
            ..Self::default()
        }
    }
}

impl Tree {
    fn new(program: &Program, top: usize, minima: bool, main: bool, largest: u64) -> Self {
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
