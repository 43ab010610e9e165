//! Egress: from a doorbell to a frame on the wire.
//!
//! Why: this is the story that everything else in the crate serves.
//! From: Loom §4.2 and §4.3.
//! Not here: how nodes choose (`order`), what limits grant (`grants`), how a policy is installed (`install`).
//! Invariant: a bundle with packets is in the main tree, below gates that may be closed, or waits for limits.

mod grants;

use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Program, TenantId};
use plimsoll_queues::{Pace, Wheel};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};
use plimsoll_wire::doorbell::ESCAPE;
use prefetch_index::prefetch_index;

use crate::account::{Accounts, NOBODY};
use crate::bundle::{Asks, Bundle, Done, Hold, Place};
use crate::doorbell::{self, Note};
use crate::host::{Descriptor, FlowId, Home, Host, Pull, QueueId, Refusal};
use crate::install::Layout;
use crate::limit::Limit;
use crate::order::ranked::Head;
use crate::order::{Entrant, Settlement};
use crate::stats::{Completion, EngineStats, Outcome, Transmit};
use crate::tree::{Alarm, Child, Forest, NONE, Pick, Seat};

/// The engine of one virtual NIC. See the crate's documentation for how it is driven.
#[derive(Clone, Debug)]
pub struct Nic {
    pub(crate) program: Program,
    pub(crate) host: Host,
    pub(crate) accounts: Accounts,
    pub(crate) forest: Forest,
    pub(crate) bundles: Vec<Bundle>,
    /// Of all bundles, the limits that they are behind.
    pub(crate) holds: Vec<Hold>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) wheel: Wheel,
    pub(crate) layout: Layout,
    /// Limits that granted a bundle into the main tree since the last pick; they choose again after it.
    pub(crate) resting: Vec<u32>,
    pub(crate) link: Link,
    pub(crate) arrivals: u64,
    /// Refusals by class and reason.
    pub(crate) refused: Vec<[u64; Refusal::COUNT]>,
    /// Of classes without a bundle, the frames that left, and their bytes, as far as they are added up.
    pub(crate) sums: Vec<[u64; 2]>,
    pub(crate) completions: Completions,
    pub(crate) stats: EngineStats,
    pub(crate) config: crate::install::Config,
    /// The latest moment that the engine was told.
    pub(crate) now: Nanos,
}

/// Completions that the host has not seen, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Completions {
    entries: Vec<Completion>,
    seen: usize,
}

/// Stands for a bundle that no order looks at.
const UNSEEN: Entrant = Entrant { bundle: u32::MAX, flows: 0, head: Head { arrival: 0, deadline: 0 } };

/// Limits that are looked at ahead in one go.
const FETCHED: usize = 32;

/// The uplink's own pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) pace: Pace,
    /// How far the pace may lag behind the present and be made up.
    pub(crate) catch_up: Span,
    /// When the tree was last left empty.
    pub(crate) emptied: Nanos,
}

impl Link {
    /// A pull of `len` takes its time on the link from now on.
    #[inline]
    fn charge(&mut self, len: u32, now: Nanos) {
        self.pace.catch_up(now - self.catch_up);
        self.pace.charge(Bytes::new(len.into()));
    }

    /// Packets come after a pause: what a late caller had to make up before is not lost, but the pause itself earns
    /// nothing.
    fn resume(&mut self, now: Nanos) {
        let forgotten = now.since(self.emptied) > self.catch_up;
        let lag = if forgotten { Span::ZERO } else { self.emptied.since(self.pace.earned()) };
        self.pace.catch_up(now - lag);
    }
}

impl Nic {
    /// The host writes a descriptor. It is scheduled from the next doorbell of `queue` on.
    ///
    /// # Errors
    /// A [`Refusal`], counted for the tenant and the class: the caller keeps the frame, and holds it back or drops it.
    #[inline]
    pub fn post(&mut self, queue: QueueId, descriptor: Descriptor) -> Result<(), Refusal> {
        let taken = self.host.write(queue, &descriptor, &mut self.accounts);
        if taken.is_ok() { taken } else { self.post_anew(queue, &descriptor, taken) }
    }

    /// Where records are scarce, the flow queue's is found, or it takes one; whatever is refused then, or was before, is
    /// counted.
    #[cold]
    fn post_anew(
        &mut self,
        queue: QueueId,
        descriptor: &Descriptor,
        refused: Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let Some(home) = self.host.home(queue) else {
            self.accounts.refuse(NOBODY, Refusal::NoQueue);
            return refused;
        };
        let taken = match self.host.find(queue).or_else(|| self.employ(queue, home)) {
            _ if !self.host.is_scarce() => refused,
            Some(id) => self.host.write_found(id, descriptor, &mut self.accounts),
            // Only while as many flow queues hold descriptors as the host may.
            None => Err(Refusal::HostFull),
        };
        if let Err(why) = taken {
            let class = self.class_at(home);
            self.accounts.refuse(self.tenant_of(class), why);
            self.refused[class.0 as usize][why as usize] += 1;
            self.retire(queue);
        }
        taken
    }

    /// A flow queue that is about to hold something takes a record, if one is spare.
    fn employ(&mut self, queue: QueueId, home: Home) -> Option<FlowId> {
        let (owner, pull) = (self.owner_of(self.class_at(home)), self.pull_of(home));
        let id = self.host.give_record(queue, owner, pull)?;
        if let Some(class) = home.as_class() {
            self.forest.hang(self.forest.seat(class), Some(id.0));
        }
        Some(id)
    }

    /// Where records are scarce, a flow queue that holds nothing leaves its own to others.
    fn retire(&mut self, queue: QueueId) {
        let Some(id) = self.host.find(queue).filter(|&id| self.host.is_scarce() && self.host.is_empty(id))
        else {
            return;
        };
        if let Some(class) = self.host.home(queue).and_then(Home::as_class) {
            self.add_up(id, class);
            self.forest.hang(self.forest.seat(class), Some(queue.0));
        }
        self.host.take_record(queue);
    }

    pub(crate) fn class_at(&self, home: Home) -> NodeId {
        home.as_class().unwrap_or_else(|| self.bundles[home.as_bundle().map_or(0, |id| id as usize)].class)
    }

    /// Brings a flow queue into the cache: a host with a batch to post may say so for all of it first.
    #[inline]
    pub fn prefetch(&self, queue: QueueId) {
        self.host.prefetch(FlowId(queue.0));
    }

    /// The same for the place of its next descriptor, once the flow queue itself has come.
    #[inline]
    pub fn prefetch_ring(&self, queue: QueueId) {
        self.host.prefetch_tail(FlowId(queue.0));
    }

    /// Descriptors that the tenant may still post; at 0 its port need not be read.
    #[must_use]
    pub fn tenant_room(&self, tenant: TenantId) -> u32 {
        self.accounts.room(tenant.0)
    }

    /// The class of an open flow queue.
    #[must_use]
    pub fn class_of(&self, queue: QueueId) -> Option<NodeId> {
        self.host.home(queue).map(|home| self.class_at(home))
    }

    /// A batch of doorbell words arrives. Words that make no sense are counted and change nothing.
    #[inline]
    pub fn ring(&mut self, doorbells: &[u16], now: Nanos) {
        self.now = now;
        if self.outgrows_cache() {
            self.prefetch_rung(doorbells);
        }
        let mut words = doorbells;
        while let Some((&word, rest)) = words.split_first() {
            words = rest;
            if word == ESCAPE {
                let (note, used) = doorbell::read_extension(rest);
                words = rest.get(used..).unwrap_or(&[]);
                self.heed(note, now);
            } else {
                self.admit(QueueId(word.into()), now);
            }
        }
    }

    fn prefetch_rung(&self, doorbells: &[u16]) {
        let mut words = doorbells;
        while let Some((&word, rest)) = words.split_first() {
            words = rest;
            let mut queue = u32::from(word);
            if word == ESCAPE {
                let (note, used) = doorbell::read_extension(rest);
                words = rest.get(used..).unwrap_or(&[]);
                queue = if let Note::NewDescriptors(QueueId(queue)) = note { queue } else { continue };
            }
            match self.host.owner(FlowId(queue)).map(|(home, _)| (home.as_class(), home.as_bundle())) {
                Some((Some(class), _)) => self.forest.prefetch_seat(class),
                Some((_, Some(bundle))) => prefetch_index(&self.bundles, bundle as usize),
                _ => {}
            }
        }
    }

    /// An entry with extension words.
    fn heed(&mut self, note: Note, now: Nanos) {
        match note {
            Note::NewDescriptors(queue) => self.admit(queue, now),
            Note::Tag(queue, tag) if self.host.is_open(queue) => self.host.set_tag(queue, tag),
            Note::Weight(node, weight) if self.forest.knows(node) && weight > 0 => {
                self.set_weight(node, weight)
            }
            Note::Rate(limit, rate) if (limit.0 as usize) < self.limits.len() => {
                self.set_rate(limit, rate, now)
            }
            Note::ClassRate(node, rate) if self.has_rate(node) => self.set_class_rate(node, rate, now),
            _ => self.stats.bad_doorbells += 1,
        }
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
                Some(bundle) => self.serve(bundle, pick.seat, now, out),
                None => self.serve_alone(FlowId(pick.child.name()), pick.seat, now, out),
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

    /// The frame has left, or could not. To be called for each [`Transmit`], in their order.
    #[inline]
    pub fn complete(&mut self, transmit: &Transmit, outcome: Outcome) {
        if !transmit.last {
            return;
        }
        let Transmit { queue, addr, .. } = *transmit;
        self.completions.push(Completion { queue, addr, outcome });
        match self.host.release(queue) {
            Some(tenant) => self.accounts.give_back(tenant),
            None => self.release_found(queue),
        }
    }

    /// The same where records are scarce.
    #[cold]
    fn release_found(&mut self, queue: QueueId) {
        if let Some(id) = self.host.find(queue) {
            let tenant = self.host.release_found(id);
            self.accounts.give_back(tenant);
            self.retire(queue);
        }
    }

    /// The next descriptor that the host may use again.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop()
    }

    /// New descriptors of a flow queue: the queue joins its bundle, the bundle its tree.
    #[inline]
    fn admit(&mut self, queue: QueueId, now: Nanos) {
        match self.host.take_new(queue, now, &mut self.arrivals) {
            Ok(Some(home)) => self.join(home, FlowId(queue.0), now),
            Ok(None) => {}
            Err(_) => self.admit_found(queue, now),
        }
    }

    /// The same where records are scarce.
    #[cold]
    fn admit_found(&mut self, queue: QueueId, now: Nanos) {
        let found = self.host.find(queue);
        if let Some((id, home)) =
            found.and_then(|id| Some((id, self.host.take_new_found(id, now, &mut self.arrivals)?)))
        {
            return self.join(home, id, now);
        }
        self.stats.bad_doorbells += u64::from(!self.host.is_open(queue));
    }

    /// A flow queue with packets joins its bundle, or the tree if it has none.
    #[inline]
    pub(crate) fn join(&mut self, home: Home, queue: FlowId, now: Nanos) {
        let Some(id) = home.as_bundle() else {
            return home.as_class().into_iter().for_each(|class| self.enter_alone(class, now));
        };
        let bundle = &mut self.bundles[id as usize];
        bundle.insert(queue, &self.host, self.arrivals);
        if bundle.place == Place::Idle {
            self.enter(id, now);
        } else if bundle.ranks_packets {
            self.announce_head(id);
        }
    }

    /// An idle bundle enters the tree, unless a limit is known to be exceeded: then it waits there at once.
    fn enter(&mut self, id: u32, now: Nanos) {
        let bundle = &mut self.bundles[id as usize];
        (bundle.entries, bundle.fresh) = (0, true);
        bundle.forget_waits();
        if bundle.has_limits() {
            self.go_on(id, now);
        } else {
            self.enter_tree(id, now);
        }
    }

    /// A class whose only flow queue has packets enters the tree.
    #[inline]
    fn enter_alone(&mut self, class: NodeId, now: Nanos) {
        if !self.forest.is_active(self.layout.root) {
            self.link.resume(now);
        }
        self.stats.most_pairs = self.stats.most_pairs.max(1);
        self.forest.activate(self.forest.seat(class), &UNSEEN, false, now);
        self.set_alarms(now);
    }

    pub(crate) fn enter_tree(&mut self, id: u32, now: Nanos) {
        if !self.forest.is_active(self.layout.root) {
            self.link.resume(now);
        }
        let entrant = self.entrant(id);
        let bundle = &mut self.bundles[id as usize];
        bundle.place = Place::Tree;
        bundle.entries = bundle.entries.saturating_add(1);
        let returning = bundle.entries > 1 || !bundle.fresh;
        self.stats.most_pairs = self.stats.most_pairs.max(bundle.entries);
        self.forest.activate(bundle.seat, &entrant, returning, now);
        bundle.blocked = self.forest.blocked(bundle.gate, now);
        self.set_alarms(now);
    }

    /// Puts nodes that have just fallen asleep on the wheel, behind the limits, and takes off those that woke up.
    #[inline]
    fn set_alarms(&mut self, now: Nanos) {
        if self.forest.has_alarms() {
            self.take_alarms(now);
        }
    }

    fn take_alarms(&mut self, now: Nanos) {
        while let Some((alarm, due)) = self.forest.next_alarm() {
            let id = match alarm {
                Alarm::Rates(node) => self.limits.len() as u32 + node,
                Alarm::Gate(limit) => limit,
            };
            match due {
                Some(due) => self.wheel.set(id, due, now),
                None => self.wheel.remove(id),
            }
        }
    }

    /// A node's rates, or its limit, let something go again.
    fn wake(&mut self, alarm: Alarm, now: Nanos) {
        let was_active = self.forest.is_active(self.layout.root);
        match alarm {
            Alarm::Rates(node) => self.forest.wake(node, now),
            Alarm::Gate(limit) => self.forest.open(self.limits[limit as usize].gate, now),
        }
        if !was_active && self.forest.is_active(self.layout.root) {
            self.link.resume(now);
        }
        self.set_alarms(now);
    }

    /// The head was picked, but a gate above is not open for it: those that are not close. From now on all of them open
    /// for no less than this head needs, until it has left.
    fn keep_back(&mut self, id: u32, seat: Seat, len: u32, now: Nanos) -> bool {
        let bundle = &mut self.bundles[id as usize];
        let mut closed = false;
        let holds = &self.holds[bundle.holds.range()];
        for hold in holds {
            let limit = &mut self.limits[hold.limit as usize];
            if limit.gate != NONE && !limit.opens_for(len, now) {
                self.forest.close(limit.gate, limit.due(), now);
                closed = true;
            }
        }
        if closed {
            let new = !core::mem::replace(&mut bundle.kept, true);
            for gate in holds.iter().map(|hold| self.limits[hold.limit as usize].gate) {
                if gate != NONE {
                    self.forest.keep(gate, len, new);
                }
            }
            bundle.entries = bundle.entries.saturating_add(1);
            self.stats.most_pairs = self.stats.most_pairs.max(bundle.entries);
            self.stats.pairs += 1; // one without a pull
            let entrant = self.entrant(id);
            let outcome = Settlement { entrant: &entrant, len: 0, remains: true, idle: false };
            self.forest.settle(seat, outcome);
            self.set_alarms(now);
        }
        closed
    }

    /// What the bundle's head waited below closed gates.
    pub(crate) fn note_gates(&mut self, id: u32, now: Nanos) {
        let bundle = &mut self.bundles[id as usize];
        if bundle.gate == NONE {
            return;
        }
        let blocked = self.forest.blocked(bundle.gate, now);
        let waited = Span::ns(blocked.as_u64() - bundle.blocked.as_u64());
        bundle.blocked = blocked;
        if let (true, Some(limit)) = (waited > Span::ZERO, self.forest.opened_last(bundle.gate)) {
            bundle.note_wait(limit, waited);
        }
    }

    /// The head was picked, but a limit holds it: it leaves the tree with its rank and waits there.
    fn park(&mut self, id: u32, seat: Seat, now: Nanos) {
        self.note_gates(id, now);
        let entrant = self.entrant(id);
        self.forest.settle(seat, Settlement::leaves(&entrant));
        self.set_alarms(now);
        self.stats.pairs += 1; // one without a pull
        self.ask_around(id, true, now);
        self.wait(id, now);
    }

    /// Gates open, nodes wake up, and limits grant what they have earned, earliest first.
    #[inline]
    fn release_due(&mut self, now: Nanos) {
        let mut fetched = 0;
        while let Some(limit) = self.wheel.pop_due(now) {
            let alarm = match limit.checked_sub(self.limits.len() as u32) {
                Some(node) => Some(Alarm::Rates(node)),
                None => (self.limits[limit as usize].gate != NONE).then_some(Alarm::Gate(limit)),
            };
            if let Some(alarm) = alarm {
                self.wake(alarm, now);
                continue;
            }
            if fetched == 0 && self.outgrows_cache() {
                fetched = FETCHED;
                self.prefetch_due(now);
            }
            fetched = fetched.saturating_sub(1);
            self.release(limit, now);
        }
    }

    /// Brings what the limits that are due next will release into the cache, in steps, so that misses overlap.
    fn prefetch_due(&self, now: Nanos) {
        let mut due = [NONE; FETCHED];
        let mut size = 0;
        self.wheel.peek_due(now, FETCHED, |limit| {
            if (limit as usize) < self.limits.len() {
                due[size] = limit;
                size += 1;
            }
        });
        let due = &due[..size];
        due.iter().for_each(|&limit| prefetch_index(&self.limits, limit as usize));
        let alone =
            || due.iter().filter_map(|&limit| self.bundles.get(self.limits[limit as usize].only as usize));
        alone().for_each(Bundle::prefetch);
        alone().for_each(|bundle| prefetch_index(&self.holds, bundle.holds.range().start));
        alone().for_each(|bundle| self.forest.prefetch(bundle.seat));
        let fronts = || alone().filter_map(Bundle::front);
        fronts().for_each(|queue| self.host.prefetch(queue));
        fronts().for_each(|queue| self.host.prefetch_head(queue));
    }

    /// The picked bundle's head leaves, unless a limit or a gate keeps it.
    #[inline]
    fn serve(&mut self, id: u32, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        let bundle = &mut self.bundles[id as usize];
        let queue = bundle.front().expect("a bundle in a tree holds packets");
        if bundle.has_limits() {
            let len = self.host.charge(queue);
            if self.is_held(id, len, now) {
                return self.park(id, seat, now);
            }
            if self.bundles[id as usize].gate != NONE {
                if self.keep_back(id, seat, len, now) {
                    return;
                }
                self.note_gates(id, now);
            }
        }
        let bundle = &mut self.bundles[id as usize];
        let pull = self.host.pull(queue, now, bundle.quantum(self.layout.quantum));
        out.push(transmit(bundle.class, (bundle.limited_by, bundle.limited), &pull));
        bundle.done.count(&pull);
        bundle.settle(queue, &pull, &self.host, self.arrivals);
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
        let len = pull.charge.into();
        let entrant = if bundle.ranks_packets { &self.entrant(id) } else { &UNSEEN };
        self.forest.settle(seat, Settlement { entrant, len, remains: !idle, idle });
        self.set_alarms(now);
    }

    /// The same for a class with one flow queue and no limits: nothing to choose, nothing to wait for.
    #[inline]
    fn serve_alone(&mut self, queue: FlowId, seat: Seat, now: Nanos, out: &mut Vec<Transmit>) {
        let pull = self.host.pull(queue, now, None);
        let owner = self.host.owner(queue).and_then(|(home, _)| home.as_class());
        let class = owner.expect("it hangs in its class's seat");
        out.push(transmit(class, (None, Span::ZERO), &pull));
        if self.host.count(queue, pull.frames, wire_bytes(&pull)) {
            self.add_up(queue, class);
        }
        self.stats.pulls += 1;
        self.link.charge(pull.charge, now);
        let outcome =
            Settlement { entrant: &UNSEEN, len: pull.charge.into(), remains: pull.more, idle: !pull.more };
        self.forest.settle(seat, outcome);
        self.set_alarms(now);
    }

    /// Adds what a class's only flow queue has counted to the class's sum.
    pub(crate) fn add_up(&mut self, queue: FlowId, class: NodeId) {
        let (packets, bytes) = self.host.take_counted(queue);
        let [all_packets, all_bytes] = &mut self.sums[class.0 as usize];
        *all_packets += u64::from(packets);
        *all_bytes += u64::from(bytes);
    }

    /// Brings what will probably be picked next into the cache, the nearest one deepest.
    #[inline]
    fn look_ahead(&mut self, pick: &Pick) {
        let [next, soon, later] = self.forest.upcoming(pick.seat);
        if let Some(later) = later.and_then(Child::as_bundle) {
            prefetch_index(&self.bundles, later as usize);
        }
        let front = |child: Option<Child>| match child?.as_bundle() {
            Some(id) => self.bundles[id as usize].front(),
            None => child.map(|child| FlowId(child.name())),
        };
        let own = |turns| self.bundles.get(pick.child.as_bundle()? as usize)?.upcoming(turns);
        if let Some(queue) = front(soon).or_else(|| own(4)) {
            self.host.prefetch(queue);
        }
        if let Some(queue) = front(next).or_else(|| own(2)) {
            self.host.prefetch_head(queue);
        }
    }

    /// After its packet has left: the bundle stays in the tree, waits for limits that are exceeded now, or is idle.
    #[inline]
    fn pass_limits(&mut self, id: u32, seat: Seat, pull: &Pull, idle: bool, now: Nanos) {
        let bundle = &mut self.bundles[id as usize];
        let mut asks = false;
        for hold in &mut self.holds[bundle.holds.range()] {
            let limit = &mut self.limits[hold.limit as usize];
            asks |= hold.asks != Asks::No;
            if limit.leave(pull.charge, &mut hold.granted, now) && limit.waiting > 0 {
                self.wheel.set(hold.limit, limit.due(), now); // its next slot has just moved
            }
            if limit.gate != NONE {
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
        self.forest.settle(seat, Settlement { entrant: &entrant, len, remains, idle });
        self.set_alarms(now);
        if held {
            self.bundles[id as usize].entries = 0;
            self.wait(id, now);
        }
    }

    #[inline]
    pub(crate) fn head_charge(&self, id: u32) -> u32 {
        self.bundles[id as usize].front().map_or(0, |queue| self.host.charge(queue))
    }

    /// What orders want to know of a bundle; the head only where some order looks at packets.
    #[inline]
    pub(crate) fn entrant(&self, id: u32) -> Entrant {
        let bundle = &self.bundles[id as usize];
        let head = if bundle.ranks_packets { self.head_of(bundle) } else { Head::default() };
        Entrant { bundle: id, flows: bundle.active(), head }
    }

    fn head_of(&self, bundle: &Bundle) -> Head {
        let default = match bundle.order {
            FlowOrder::Lstf(default) | FlowOrder::Edf(default) => default.as_u64(),
            FlowOrder::Fifo | FlowOrder::Drr => 0,
        };
        bundle.front().map_or_else(Head::default, |queue| Head {
            arrival: self.host.arrival(queue, self.arrivals),
            // The deadline stands in the descriptor: a cache miss that most policies need not pay.
            deadline: if self.layout.deadlines { self.host.deadline(queue, default) } else { 0 },
        })
    }

    /// A more urgent packet may have come to the front of an active bundle.
    fn announce_head(&mut self, id: u32) {
        let entrant = self.entrant(id);
        let bundle = &self.bundles[id as usize];
        if bundle.place == Place::Tree {
            self.forest.new_head(bundle.seat, &entrant);
        }
        self.announce_asking(id);
    }

    /// Tells the trees of limits that the bundle asks of its new head.
    fn announce_asking(&mut self, id: u32) {
        for at in self.bundles[id as usize].holds.range() {
            if let Some(seat) = self.holds[at].asking_seat() {
                let entrant = self.entrant(id);
                self.forest.new_head(seat, &entrant);
            }
        }
    }

    fn set_rate(&mut self, limit: LimitId, rate: BitRate, now: Nanos) {
        self.program.limits[limit.0 as usize].rate = rate;
        let state = &mut self.limits[limit.0 as usize];
        state.set_rate(rate, now);
        if state.gate != NONE {
            self.forest.reopen_at(state.gate, state.due());
            return self.set_alarms(now);
        }
        self.arm(limit.0);
    }

    fn set_weight(&mut self, node: NodeId, weight: u32) {
        self.program.nodes[node.0 as usize].weight = weight;
        let Some(parent) = self.program.node(node).parent else { return };
        let Seat { node: main, slot } = self.forest.seat(node);
        self.forest.set_weight(main, slot, weight);
        // Behind some limits the node may not stand yet, but its parent's order counts on its weight already.
        for &copy in self.layout.copies_of(parent) {
            self.forest.set_weight(copy, slot, weight);
        }
    }

    fn has_rate(&self, node: NodeId) -> bool {
        self.program.nodes.get(node.0 as usize).is_some_and(|node| node.rate.is_some())
    }

    /// In force at the next decision; nodes below that share what the rate gives them learn of it too.
    fn set_class_rate(&mut self, node: NodeId, rate: BitRate, now: Nanos) {
        self.program.nodes[node.0 as usize].rate = Some(rate);
        let Some(parent) = self.program.node(node).parent else { return };
        let Seat { node: main, slot } = self.forest.seat(node);
        self.forest.set_rate(main, slot, rate, now);
        for &copy in self.layout.copies_of(parent) {
            self.forest.set_rate(copy, slot, rate, now);
        }
        if matches!(self.program.node(node).kind, NodeKind::Class(_)) {
            return self.set_alarms(now); // nobody is below
        }
        for alarm in 0..self.forest.alarm_count() {
            let id = self.forest.timed_node(alarm);
            if self.program.path(id).any(|above| above == node) {
                self.forest.set_drain(alarm, self.program.drain(id), now);
            }
        }
        self.set_alarms(now);
    }
}

impl Completions {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self { entries: Vec::with_capacity(entries), seen: 0 }
    }

    /// Makes room for as many in all.
    pub(crate) fn reserve(&mut self, entries: usize) {
        self.entries.reserve(entries.saturating_sub(self.entries.len()));
    }

    #[inline]
    fn push(&mut self, completion: Completion) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.drain(..self.seen); // a host that never drained it all to the end
            self.seen = 0;
        }
        self.entries.push(completion);
    }

    #[inline]
    fn pop(&mut self) -> Option<Completion> {
        let next = self.entries.get(self.seen).copied();
        self.seen += 1;
        if next.is_none() {
            self.entries.clear();
            self.seen = 0;
        }
        next
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
fn transmit(class: NodeId, (limited_by, limited): (Option<LimitId>, Span), pull: &Pull) -> Transmit {
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
    }
}

/// Bytes on the wire, each segment's header included, overhead not.
#[inline]
fn wire_bytes(pull: &Pull) -> u64 {
    u64::from(pull.len) + u64::from(pull.frames - 1) * u64::from(pull.header)
}
