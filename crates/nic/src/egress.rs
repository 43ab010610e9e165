//! Egress: from a doorbell to a frame on the wire.
//!
//! Why: this file is the path of a packet; every other file of the crate is a part of it.
//! From: Loom §4.2 and §4.3.
//! Not here: how nodes choose (`order`), what limits grant (`grants`), how a policy is installed (`install`).
//! Invariant: a bundle with packets is in the main tree, below gates that may be closed, or waits for limits.

mod ahead;
mod alarms;
mod descriptors;
mod doorbells;
mod flat;
mod grants;
mod leases;
mod link;
mod ranked;
mod short;

use plimsoll_policy::{FlowOrder, LimitId, NodeId, Program};
use plimsoll_queues::Wheel;
use plimsoll_units::{Nanos, Span};

use crate::account::Accounts;
use crate::bundle::{Asks, Bundle, Done, Hold, Place};
use crate::completions::CompletionQueue;
use crate::config::Config;
use crate::host::{Host, NextCharge, Turn};
use crate::ids::{BundleId, GateId, QueueId, RecordId, Table, Tagged};
use crate::layout::Layout;
use crate::limit::Limit;
use crate::order::ranked::Head;
use crate::order::{Entrant, Fate, Seen};
use crate::ranks::Ranks;
use crate::refusal::Refusal;
use crate::stats::{EngineStats, Transmit};
use crate::tree::{Forest, Seat};
pub(crate) use ahead::Ahead;
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
    pub(crate) ranks: Ranks,
    pub(crate) link: Link,
    pub(crate) ahead: Ahead,
    pub(crate) arrivals: u64,
    /// Refusals by class and reason.
    pub(crate) refused: Table<NodeId, [u64; Refusal::COUNT]>,
    /// The frames that left classes without a bundle, and their bytes, as far as they are added up.
    pub(crate) sums: Table<NodeId, Done>,
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
    pub fn poll_transmit(&mut self, now: Nanos, out: &mut Vec<Transmit>) {
        self.now = now;
        let wide = self.outgrows_cache();
        if self.limits.is_empty() {
            self.poll_flat(wide, now, out);
        }
        while out.len() < out.capacity() && self.link.pace.is_earned(now) {
            self.release_due(now);
            let pick = self.forest.pick(self.layout.root, now);
            let released = !self.resting.is_empty();
            if released {
                self.arm_rested();
            }
            let Some(pick) = pick else { if released { continue } else { return } };
            if wide {
                self.look_ahead(&pick);
            }
            match pick.child.as_bundle() {
                Some(bundle) => self.serve_bundle(bundle, pick.seat, now, out),
                None => self.serve_queue(pick.child, pick.seat, now, out),
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

    /// Whether a packet waits for the link alone, not for a limit.
    #[must_use]
    pub fn waits_for_link(&self) -> bool {
        self.forest.is_active(self.layout.root)
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
            return self.awaken(id, now);
        }
        if bundle.entries > 1 && bundle.front() == Some(record) {
            bundle.entries = 1; // its new head's
        }
        if bundle.seen == Seen::Head {
            self.announce_head(id);
        }
    }

    /// An idle bundle enters the tree, unless a limit is known to be exceeded: then it waits for that at once.
    fn awaken(&mut self, id: BundleId, now: Nanos) {
        let bundle = &mut self.bundles[id];
        (bundle.entries, bundle.fresh) = (0, true);
        bundle.forget_waits();
        if bundle.has_limits() && !self.is_calm(id, now) {
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
            self.settle(seat, &entrant, 0, Fate::Remains, now);
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
        self.settle(seat, &entrant, 0, Fate::Waits, now);
        self.stats.pairs += 1; // one without a pull
        self.ask_around(id, true, now);
        self.wait(id, now);
    }

    /// Whether no limit and no gate keeps the picked bundle's head. If one does, the bundle goes to wait for it.
    #[inline]
    fn may_leave(&mut self, id: BundleId, seat: Seat, now: Nanos) -> bool {
        let len = self.head_charge(id);
        if self.is_held(id, len, now) {
            self.park(id, seat, now);
            return false;
        }
        if self.bundles[id].gate != GateId::NONE {
            if self.keep_back(id, seat, len, now) {
                return false;
            }
            self.note_gates(id, now);
        }
        true
    }

    /// The picked bundle's head leaves, unless a limit or a gate keeps it.
    #[inline]
    fn serve_bundle(&mut self, id: BundleId, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        if self.bundles[id].has_limits() {
            return self.serve_limited(id, seat, now, out);
        }
        let Some((charge, fate)) = self.hand_out(id, NextCharge::Never, now, out) else { return };
        let entrant =
            if self.bundles[id].seen == Seen::Nothing { &Entrant::UNSEEN } else { &self.entrant(id) };
        self.settle(seat, entrant, charge, fate, now);
    }

    /// Like [`Nic::serve_bundle`], behind limits that would grant any pull now. Not inlined, so that packets that no limit concerns
    /// have the processor's registers to themselves.
    #[inline(never)]
    fn serve_limited(&mut self, id: BundleId, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        if !self.is_calm(id, now) {
            return self.serve_restless(id, seat, now, out);
        }
        let Some((charge, fate)) = self.hand_out(id, NextCharge::Seldom, now, out) else { return };
        let Self { bundles, holds, limits, .. } = self;
        let bundle = &mut bundles[id];
        note_limits(bundle, out);
        let mut calm = true;
        for hold in &holds[bundle.holds.range()] {
            calm &= limits[hold.limit].leave_calm(charge, now);
        }
        if !calm {
            return self.ask_again(id, seat, charge, (fate == Fate::Idle, false), now);
        }
        bundle.fresh = false;
        bundle.forget_waits();
        let entrant = self.entrant(id);
        self.settle(seat, &entrant, charge, fate, now);
    }

    /// Like [`Nic::serve_bundle`], behind limits of which one may hold the head, or the next.
    #[inline(never)]
    fn serve_restless(&mut self, id: BundleId, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        if !self.may_leave(id, seat, now) {
            return;
        }
        let Some((charge, fate)) = self.hand_out(id, NextCharge::Always, now, out) else { return };
        note_limits(&self.bundles[id], out);
        let asks = self.pass_limits(id, charge, now);
        self.ask_again(id, seat, charge, (fate == Fate::Idle, asks), now);
    }

    /// Hands out a bundle's next pull, unless CoDel drops it. Returns what it is charged, and whether the bundle is idle now.
    #[inline(always)]
    fn hand_out(
        &mut self,
        id: BundleId,
        next: NextCharge,
        now: Nanos,
        out: &mut Vec<Transmit>,
    ) -> Option<(u32, Fate)> {
        let bundle = &mut self.bundles[id];
        let pull = bundle.serve(&mut self.host, (next, self.layout.quantum, self.arrivals), now, out);
        if !self.ranks.is_empty() && !pull.is_dropped() {
            self.tell_program(now, out);
        }
        let bundle = &mut self.bundles[id];
        if pull.is_dropped() {
            self.drop_head(id, now, out);
            return None;
        }
        bundle.entries = 1;
        let idle = pull.is_last();
        if idle {
            bundle.place = Place::Idle;
        }
        if let (true, Some(left)) = (pull.overflows(), out.last()) {
            bundle.done.add(self.host.take_counted_of(left.queue));
        }
        self.stats.pulls += 1;
        self.link.charge(pull.charge, now);
        Some((pull.charge, Fate::of(!idle, idle)))
    }

    /// The head of a class's only flow queue leaves: there are no limits to wait for.
    fn serve_queue(&mut self, child: Tagged, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        let record = child.as_record().expect("a flow queue that is picked has a record");
        let home = self.host.home_of(record);
        let class = home.as_class().expect("it hangs in its class's seat");
        let pull = self.host.pull(record, class, Turn::FREE, now, out);
        if pull.overflows() {
            self.add_up(record, home);
        }
        self.stats.pulls += 1;
        self.link.charge(pull.charge, now);
        self.settle(seat, &Entrant::UNSEEN, pull.charge, Fate::of(pull.more(), !pull.more()), now);
    }

    /// Tells the main tree what became of what was picked.
    #[inline]
    fn settle(&mut self, seat: Seat, entrant: &Entrant, len: u32, fate: Fate, now: Nanos) {
        if !self.forest.settle(seat, entrant, len.into(), fate) {
            self.link.emptied = now;
        }
        self.set_alarms(now);
    }

    /// A pull that has left is paid to the bundle's limits. Returns whether the bundle asks one of them for more.
    #[inline]
    fn pass_limits(&mut self, id: BundleId, charge: u32, now: Nanos) -> bool {
        let bundle = &self.bundles[id];
        let mut asks = false;
        for hold in &mut self.holds[bundle.holds.range()] {
            let limit = &mut self.limits[hold.limit];
            asks |= hold.asks != Asks::No;
            if limit.leave(charge, &mut hold.granted, now) && limit.waiting > 0 {
                self.wheel.set(hold.limit.0, limit.due(), now); // its next slot has just moved
            }
            if limit.gate != GateId::NONE {
                if bundle.kept {
                    self.forest.let_through(limit.gate);
                }
                if !limit.opens_for(charge.max(self.forest.longest_kept(limit.gate)), now) {
                    self.forest.close(limit.gate, limit.due(), now);
                }
            }
        }
        asks
    }

    /// After its packet has left and was paid: the bundle stays in the tree, waits for limits that are exceeded now, or is idle.
    #[inline(always)]
    fn ask_again(&mut self, id: BundleId, seat: Seat, charge: u32, (idle, asks): (bool, bool), now: Nanos) {
        let bundle = &mut self.bundles[id];
        (bundle.fresh, bundle.kept) = (false, false);
        bundle.forget_waits();
        if asks && bundle.seen == Seen::Head && !idle {
            self.announce_asking(id);
        }
        let held = !idle && self.ask_around(id, false, now);
        if idle {
            self.withdraw(id, now);
        }
        let remains = !idle && !held;
        let entrant = self.entrant(id);
        self.settle(seat, &entrant, charge, Fate::of(remains, idle), now);
        if held {
            self.bundles[id].entries = 0;
            self.wait(id, now);
        }
    }

    #[inline(always)]
    pub(crate) fn head_charge(&self, id: BundleId) -> u32 {
        self.bundles[id].front().map_or(0, |queue| self.host.charge(queue))
    }

    /// The part of a bundle that orders look at.
    #[inline(always)]
    pub(crate) fn entrant(&self, id: BundleId) -> Entrant {
        let bundle = &self.bundles[id];
        match bundle.seen {
            Seen::Nothing => Entrant::UNSEEN,
            Seen::Flows => Entrant { bundle: id, flows: bundle.active(), head: Head::default() },
            Seen::Head => Entrant { bundle: id, flows: bundle.active(), head: self.head_of(bundle) },
        }
    }

    #[inline(never)]
    fn head_of(&self, bundle: &Bundle) -> Head {
        // In order of arrival, flow queues are ranked by that already: their descriptors need not be read.
        if let (FlowOrder::Fifo, false, Some(arrival)) =
            (bundle.order, self.layout.deadlines, bundle.front_rank())
        {
            return Head { arrival, deadline: 0 };
        }
        let Some(queue) = bundle.front() else { return Head::default() };
        let default = match bundle.order {
            FlowOrder::Lstf(default) | FlowOrder::Edf(default) => default.as_u64(),
            FlowOrder::Fifo | FlowOrder::Drr | FlowOrder::Fq(_) | FlowOrder::Ranked(_) => 0,
        };
        // The deadline stands in the descriptor: a cache miss that most policies need not pay.
        let deadline = match self.ranks.above(bundle.class) {
            Some(_) => self.host.rank(queue),
            None if self.layout.deadlines => self.host.deadline(queue, default),
            None => 0,
        };
        Head { arrival: self.host.arrival(queue, self.arrivals), deadline }
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

/// Writes into what has just left how long limits held it.
#[inline]
fn note_limits(bundle: &Bundle, out: &mut [Transmit]) {
    if let Some(transmit) = out.last_mut() {
        (transmit.limited_by, transmit.limited) = (bundle.limited_by, bundle.limited);
    }
}
