//! Egress: from a doorbell to a frame on the wire.
//!
//! Why: this file is the path of a packet; every other file of the crate is a part of it.
//! From: Loom §4.2 and §4.3.
//! Not here: how nodes choose (`order`), what limits grant (`grants`), how a policy is installed (`install`).
//! Invariant: a bundle with packets is in the main tree, below gates that may be closed, or waits for limits.

mod alarms;
mod descriptors;
mod doorbells;
mod grants;
mod leases;
mod link;
mod short;

use plimsoll_policy::{FlowOrder, LimitId, NodeId, Program};
use plimsoll_queues::Wheel;
use plimsoll_queues::codel::Verdict;
use plimsoll_units::{Nanos, Span};

use crate::account::Accounts;
use crate::bundle::{Asks, Bundle, Done, Hold, Place};
use crate::completions::CompletionQueue;
use crate::config::Config;
use crate::host::{Host, Pull};
use crate::ids::{BundleId, GateId, QueueId, RecordId, Table, Tagged};
use crate::layout::Layout;
use crate::limit::Limit;
use crate::order::ranked::Head;
use crate::order::{Entrant, Settlement};
use crate::refusal::Refusal;
use crate::stats::{EngineStats, Transmit};
use crate::tree::{Forest, Pick, Seat};
pub use leases::ClassBytes;
pub(crate) use link::Link;

/// The engine of one virtual NIC. See the crate's documentation for how it is driven.
#[derive(Clone, Debug)]
pub struct Nic {
    pub(crate) program: Program,
    pub(crate) host: Host,
    pub(crate) accounts: Accounts,
    pub(crate) forest: Forest,
    pub(crate) bundles: Table<BundleId, Bundle>,
    /// The limits that bundles are behind; of all bundles, one after the other.
    pub(crate) holds: Vec<Hold>,
    pub(crate) limits: Table<LimitId, Limit>,
    pub(crate) wheel: Wheel,
    pub(crate) layout: Layout,
    /// Limits that let a bundle into the main tree since the last pick; they choose again after the next one.
    pub(crate) resting: Vec<LimitId>,
    pub(crate) link: Link,
    pub(crate) arrivals: u64,
    /// Refusals by class and reason.
    pub(crate) refused: Table<NodeId, [u64; Refusal::COUNT]>,
    /// The frames that left classes without a bundle, and their bytes, as far as they are added up.
    pub(crate) sums: Table<NodeId, [u64; 2]>,
    /// The frames that CoDel marked and dropped, by class.
    pub(crate) signalled: Table<NodeId, [u64; 2]>,
    pub(crate) completions: CompletionQueue,
    pub(crate) stats: EngineStats,
    pub(crate) config: Config,
    /// The latest moment that the engine was told.
    pub(crate) now: Nanos,
}

impl Nic {
    /// The class of a flow queue's home.
    pub(crate) fn class_at(&self, home: Tagged) -> NodeId {
        let of_bundle = || home.as_bundle().map(|id| self.bundles[id].class);
        home.as_class().or_else(of_bundle).expect("a flow queue belongs to a class or a bundle")
    }

    /// The class of an open flow queue.
    #[must_use]
    pub fn class_of(&self, queue: QueueId) -> Option<NodeId> {
        self.host.home(queue).map(|home| self.class_at(home))
    }

    /// Whether there is more state than a core's own caches keep, so that looking ahead pays.
    #[inline]
    fn outgrows_cache(&self) -> bool {
        self.host.open_count() > 512
    }

    /// Appends what leaves at `now`, up to the spare capacity of `out`: at most what the link carries. Never
    /// allocates. `now` must not run backwards.
    #[inline]
    pub fn poll_transmit(&mut self, now: Nanos, out: &mut Vec<Transmit>) {
        self.now = now;
        let wide = self.outgrows_cache();
        while out.len() < out.capacity() && self.link.pace.earned() <= now {
            self.release_due(now);
            let pick = self.forest.pick(self.layout.root, now);
            let released = !self.resting.is_empty();
            while let Some(limit) = self.resting.pop() {
                self.arm(limit);
            }
            let Some(pick) = pick else { if released { continue } else { return } };
            if wide {
                self.look_ahead(&pick);
            }
            match pick.child.as_bundle() {
                Some(bundle) => self.serve_bundle(bundle, pick.seat, now, out),
                None => self.serve_queue(pick.child, pick.seat, now, out),
            }
            if !self.forest.is_active(self.layout.root) {
                self.link.emptied = now;
            }
        }
    }

    /// When something can next happen without new doorbells: `None` when nothing waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let link = self.link.pace.earned();
        if self.forest.is_active(self.layout.root) {
            return Some(link);
        }
        self.wheel.next_due().map(|due| due.max(link))
    }

    /// A flow queue with packets joins its bundle, or the tree if it has none.
    #[inline]
    pub(crate) fn join(&mut self, home: Tagged, record: RecordId, now: Nanos) {
        if let Some(class) = home.as_class() {
            return self.enter(self.forest.seat(class), &Entrant::UNSEEN, false, now);
        }
        let Some(id) = home.as_bundle() else { return };
        let bundle = &mut self.bundles[id];
        bundle.insert(record, &mut self.host, self.arrivals);
        if bundle.place == Place::Idle {
            self.awaken(id, now);
        } else if bundle.ranks_packets {
            self.announce_head(id);
        }
    }

    /// An idle bundle enters the tree, unless a limit is known to be exceeded: then it waits for that at once.
    fn awaken(&mut self, id: BundleId, now: Nanos) {
        let bundle = &mut self.bundles[id];
        (bundle.entries, bundle.fresh) = (0, true);
        bundle.forget_waits();
        if bundle.has_limits() {
            self.go_on(id, now);
        } else {
            self.enter_tree(id, now);
        }
    }

    /// A bundle enters the main tree.
    pub(crate) fn enter_tree(&mut self, id: BundleId, now: Nanos) {
        let entrant = self.entrant(id);
        let bundle = &mut self.bundles[id];
        bundle.place = Place::Tree;
        bundle.entries = bundle.entries.saturating_add(1);
        let (seat, gate, returning) = (bundle.seat, bundle.gate, bundle.entries > 1 || !bundle.fresh);
        self.stats.most_pairs = self.stats.most_pairs.max(bundle.entries);
        self.enter(seat, &entrant, returning, now);
        if gate != GateId::NONE {
            self.bundles[id].blocked = self.forest.blocked(gate, now);
        }
    }

    /// Makes a bundle, or a class's only flow queue, active in the main tree.
    #[inline(always)]
    fn enter(&mut self, seat: Seat, entrant: &Entrant, returning: bool, now: Nanos) {
        if !self.forest.is_active(self.layout.root) {
            self.link.resume(now);
        }
        self.stats.most_pairs = self.stats.most_pairs.max(1);
        self.forest.activate(seat, entrant, returning, now);
        self.set_alarms(now);
    }

    /// Closes the gates above a picked head that may not let it pass yet. Until the head has left, each of them opens only
    /// when it could pass. Returns whether a gate was closed.
    fn keep_back(&mut self, id: BundleId, seat: Seat, len: u32, now: Nanos) -> bool {
        let bundle = &mut self.bundles[id];
        let mut closed = false;
        let holds = &self.holds[bundle.holds.range()];
        for hold in holds {
            let limit = &mut self.limits[hold.limit];
            if limit.gate != GateId::NONE && !limit.opens_for(len, now) {
                self.forest.close(limit.gate, limit.due(), now);
                closed = true;
            }
        }
        if closed {
            let new = !core::mem::replace(&mut bundle.kept, true);
            for gate in holds.iter().map(|hold| self.limits[hold.limit].gate) {
                if gate != GateId::NONE {
                    self.forest.keep(gate, len, new);
                }
            }
            bundle.entries = bundle.entries.saturating_add(1);
            self.stats.most_pairs = self.stats.most_pairs.max(bundle.entries);
            self.stats.pairs += 1; // one without a pull
            let entrant = self.entrant(id);
            let outcome = Settlement { entrant: &entrant, len: 0, remains: true, idle: false };
            self.settle(seat, outcome, now);
        }
        closed
    }

    /// Adds up how long the bundle's head waited below closed gates.
    pub(crate) fn note_gates(&mut self, id: BundleId, now: Nanos) {
        let bundle = &mut self.bundles[id];
        if bundle.gate == GateId::NONE {
            return;
        }
        let blocked = self.forest.blocked(bundle.gate, now);
        let waited = Span::ns(blocked.as_u64() - bundle.blocked.as_u64());
        bundle.blocked = blocked;
        if let (true, Some(limit)) = (waited > Span::ZERO, self.forest.opened_last(bundle.gate)) {
            bundle.note_wait(limit, waited);
        }
    }

    /// Sends a picked bundle, whose head a limit holds, to wait for that limit. It keeps its rank.
    fn park(&mut self, id: BundleId, seat: Seat, now: Nanos) {
        self.note_gates(id, now);
        let entrant = self.entrant(id);
        self.settle(seat, Settlement::leaves(&entrant), now);
        self.stats.pairs += 1; // one without a pull
        self.ask_around(id, true, now);
        self.wait(id, now);
    }

    /// The picked bundle's head leaves, unless a limit or a gate keeps it.
    #[inline]
    fn serve_bundle(&mut self, id: BundleId, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        let bundle = &mut self.bundles[id];
        let queue = bundle.front().expect("a bundle in a tree holds packets");
        if bundle.has_limits() {
            let len = self.host.charge(queue);
            if self.is_held(id, len, now) {
                return self.park(id, seat, now);
            }
            if self.bundles[id].gate != GateId::NONE {
                if self.keep_back(id, seat, len, now) {
                    return;
                }
                self.note_gates(id, now);
            }
        }
        let bundle = &mut self.bundles[id];
        let mut verdict = Verdict::Pass;
        if let Some(times) = bundle.codel() {
            verdict = self.host.judge(queue, times, now);
            if verdict != Verdict::Pass && self.signal(id, queue, verdict, now, out) {
                return;
            }
        }
        let bundle = &mut self.bundles[id];
        let pull = self.host.pull(queue, now, bundle.quantum(self.layout.quantum));
        out.push(transmit(bundle.class, (bundle.limited_by, bundle.limited), &pull, verdict));
        bundle.done.count(&pull);
        bundle.settle(queue, &pull, &mut self.host, self.arrivals);
        bundle.entries = 1;
        let idle = bundle.active() == 0;
        if idle {
            bundle.place = Place::Idle;
        }
        self.stats.pulls += 1;
        self.link.charge(pull.charge, now);
        if bundle.has_limits() {
            return self.pass_limits(id, seat, &pull, idle, now);
        }
        let entrant = if bundle.ranks_packets { &self.entrant(id) } else { &Entrant::UNSEEN };
        self.settle(seat, Settlement::sent(entrant, pull.charge, !idle), now);
    }

    /// The head of a class's only flow queue leaves: there are no limits to wait for.
    #[inline]
    fn serve_queue(&mut self, child: Tagged, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        let record = child.as_record().expect("a flow queue that is picked has a record");
        let pull = self.host.pull(record, now, None);
        let class = self.host.home_of(record).as_class().expect("it hangs in its class's seat");
        out.push(transmit(class, (None, Span::ZERO), &pull, Verdict::Pass));
        if self.host.count(record, pull.frames, wire_bytes(&pull)) {
            self.add_up(record, class);
        }
        self.stats.pulls += 1;
        self.link.charge(pull.charge, now);
        self.settle(seat, Settlement::sent(&Entrant::UNSEEN, pull.charge, pull.more), now);
    }

    /// Tells the main tree what became of what was picked.
    #[inline(always)]
    fn settle(&mut self, seat: Seat, outcome: Settlement<'_>, now: Nanos) {
        self.forest.settle(seat, outcome);
        self.set_alarms(now);
    }

    /// Brings what will probably be picked soon into the cache: of the nearer, more of its state.
    #[inline]
    fn look_ahead(&mut self, pick: &Pick) {
        let [next, soon, later] = self.forest.upcoming(pick.seat);
        if let Some(later) = later.and_then(Tagged::as_bundle) {
            self.bundles.prefetch(later);
        }
        let front = |child: Option<Tagged>| match child?.as_bundle() {
            Some(id) => self.bundles[id].front(),
            None => child?.as_record(),
        };
        let own = |turns| self.bundles[pick.child.as_bundle()?].upcoming(turns);
        if let Some(record) = front(soon).or_else(|| own(4)) {
            self.host.prefetch(record);
        }
        if let Some(record) = front(next).or_else(|| own(2)) {
            self.host.prefetch_head(record);
        }
    }

    /// After its packet has left: the bundle stays in the tree, waits for limits that are exceeded now, or is idle.
    #[inline]
    fn pass_limits(&mut self, id: BundleId, seat: Seat, pull: &Pull, idle: bool, now: Nanos) {
        let bundle = &mut self.bundles[id];
        let mut asks = false;
        for hold in &mut self.holds[bundle.holds.range()] {
            let limit = &mut self.limits[hold.limit];
            asks |= hold.asks != Asks::No;
            if limit.leave(pull.charge, &mut hold.granted, now) && limit.waiting > 0 {
                self.wheel.set(hold.limit.0, limit.due(), now); // its next slot has just moved
            }
            if limit.gate != GateId::NONE {
                if bundle.kept {
                    self.forest.let_through(limit.gate);
                }
                if !limit.opens_for(pull.charge.max(self.forest.longest_kept(limit.gate)), now) {
                    self.forest.close(limit.gate, limit.due(), now);
                }
            }
        }
        (bundle.fresh, bundle.kept) = (false, false);
        bundle.forget_waits();
        if asks && bundle.ranks_packets && !idle {
            self.announce_asking(id);
        }
        let held = !idle && self.ask_around(id, false, now);
        if idle {
            self.withdraw(id, now);
        }
        let remains = !idle && !held;
        let entrant = self.entrant(id);
        let len = pull.charge.into();
        self.settle(seat, Settlement { entrant: &entrant, len, remains, idle }, now);
        if held {
            self.bundles[id].entries = 0;
            self.wait(id, now);
        }
    }

    #[inline]
    pub(crate) fn head_charge(&self, id: BundleId) -> u32 {
        self.bundles[id].front().map_or(0, |queue| self.host.charge(queue))
    }

    /// The part of a bundle that orders look at; its head only where an order ranks packets.
    #[inline]
    pub(crate) fn entrant(&self, id: BundleId) -> Entrant {
        let bundle = &self.bundles[id];
        let head = if bundle.ranks_packets { self.head_of(bundle) } else { Head::default() };
        Entrant { bundle: id, flows: bundle.active(), head }
    }

    fn head_of(&self, bundle: &Bundle) -> Head {
        let default = match bundle.order {
            FlowOrder::Lstf(default) | FlowOrder::Edf(default) => default.as_u64(),
            FlowOrder::Fifo | FlowOrder::Drr | FlowOrder::Fq(_) => 0,
        };
        bundle.front().map_or_else(Head::default, |queue| Head {
            arrival: self.host.arrival(queue, self.arrivals),
            // The deadline stands in the descriptor: a cache miss that most policies need not pay.
            deadline: if self.layout.deadlines { self.host.deadline(queue, default) } else { 0 },
        })
    }

    /// A more urgent packet may have come to the front of an active bundle.
    fn announce_head(&mut self, id: BundleId) {
        let entrant = self.entrant(id);
        let bundle = &self.bundles[id];
        if bundle.place == Place::Tree {
            self.forest.new_head(bundle.seat, &entrant);
        }
        self.announce_asking(id);
    }

    /// Tells the trees of limits that the bundle asks of its new head.
    fn announce_asking(&mut self, id: BundleId) {
        for at in self.bundles[id].holds.range() {
            if let Some(seat) = self.holds[at].asking_seat() {
                let entrant = self.entrant(id);
                self.forest.new_head(seat, &entrant);
            }
        }
    }
}

impl Done {
    #[inline]
    fn count(&mut self, pull: &Pull) {
        self.packets += u64::from(pull.frames);
        self.bytes += wire_bytes(pull);
    }
}

#[inline(always)]
fn transmit(
    class: NodeId,
    (limited_by, limited): (Option<LimitId>, Span),
    pull: &Pull,
    verdict: Verdict,
) -> Transmit {
    Transmit {
        queue: pull.queue,
        class,
        addr: pull.addr,
        offset: pull.offset,
        len: pull.len,
        segment: pull.segment,
        header: pull.header,
        frames: pull.frames,
        last: pull.last,
        arrived: pull.arrived,
        head: pull.since,
        limited_by,
        limited,
        verdict,
    }
}

/// Bytes on the wire, each segment's header included, overhead not.
#[inline]
fn wire_bytes(pull: &Pull) -> u64 {
    u64::from(pull.len) + u64::from(pull.frames - 1) * u64::from(pull.header)
}
