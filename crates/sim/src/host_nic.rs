//! One host's virtual NIC: the real engine, driven in virtual time as the daemon drives it live.
//!
//! Why: what is simulated must be what runs; only clock, ports and frames' bytes are missing.
//! From: `daemon`'s loop: read tenants, ring, ask what leaves, complete, free.
//! Not here: how it decides (`nic`), where packets go then (`world`), how guests make them (`traffic`).
//! Invariant: a packet is in the tenant's own ring, or in the engine with one descriptor, or gone; nothing is allocated
//! for a packet once buffers have grown to what the policy's caps allow.

use core::slice::from_ref;
use std::collections::{BTreeMap, VecDeque};

use plimsoll_control::Limits;
use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId, Refusal, Transmit, Waits};
use plimsoll_policy::{Checked, Classifier, Fields, LimitId, NodeId, Peers, Placement, TenantId, UNLIMITED};
use plimsoll_scenario::{Change, Completions, EngineCost, Host, Setting, TransmitRing};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};
use prefetch_index::prefetch_index;

use crate::control::Vm;
use crate::meter::Holdings;
use crate::packet::Packet;
use crate::promise::Promises;

/// Packets that wait at a tenant's device while the engine reads no more from it: Linux's `txqueuelen`.
const GUEST_QUEUE: usize = 1_000;

/// Transmits that are asked for at once, as the daemon does.
const BATCH: usize = 64;

/// The engine is asked at whole nanoseconds, a frame ends in between. What lies between is made up: without that a link
/// of 10 Gb/s lost 0.07 % of its rate, and with it every class its guarantee.
const ONE_TICK: Span = Span::ns(1);

/// What a thread that needs time for its work makes up, as the daemon does (`CATCH_UP`).
const LATE: Span = Span::millis(5);

/// The engine of one host, and what it holds.
#[derive(Debug)]
pub(crate) struct HostNic {
    engine: Nic,
    classifier: Classifier,
    doorbells: DoorbellQueue,
    /// Packets by the address in their descriptors.
    held: Vec<Held>,
    free: Vec<u32>,
    out: Vec<Transmit>,
    /// The policy's tenants by the scenario's.
    tenants: Vec<Option<TenantId>>,
    guests: Vec<Guest>,
    /// Who is read first when descriptors come free that anybody may take; none where each tenant has its own.
    first: Option<u32>,
    /// What waits in all of them.
    waiting: usize,
    transmit: TransmitRing,
    /// Packets whose senders may send as much again.
    completed: Vec<Packet>,
    cpu: Cpu,
    /// Flow queues for what found no queue of its own.
    shared: BTreeMap<(NodeId, Vec<u32>), QueueId>,
    /// By flow queue.
    queues: Vec<Queue>,
    waits: Waits,
    /// Reads from the host beside one for each pull.
    dma: u64,
    /// Room for what receivers elsewhere allow, and whose it is: by a tenant here and its peer there.
    peers: Peers,
    known_peers: BTreeMap<(u32, Vm), u32>,
    /// Changes of the policy that wait for the next doorbell, to go in front of it.
    changes: Vec<Update>,
    /// The flow queue of the packet before, in the batch that is being made.
    before: Option<QueueId>,
    flow_changes: u64,
    pub(crate) promises: Promises,
    /// What it holds for each workload, where that is counted.
    pub(crate) holdings: Option<Box<Holdings>>,
}

/// A change of the policy, as doorbells carry it.
#[derive(Clone, Copy, Debug)]
enum Update {
    Limit(LimitId, BitRate),
    Weight(NodeId, u32),
    Rate(NodeId, BitRate),
}

/// A tenant's side of its device.
#[derive(Clone, Debug, Default)]
struct Guest {
    /// What its ring has no room for, or the engine does not read.
    waiting: VecDeque<(QueueId, Packet)>,
    /// Addresses of what was posted and not completed, where that counts.
    ring: VecDeque<u32>,
    /// How many those are.
    used: u32,
    /// Packets that had to wait there.
    held_back: u64,
}

/// The engine's thread.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    cost: EngineCost,
    /// Descriptors that were posted and not yet paid for.
    posted: u64,
    /// When it is through with what it has taken on.
    busy: Nanos,
    spent: Span,
}

/// What is known of a flow queue.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    class: NodeId,
    /// Where the packet that was posted last is held, or was.
    last: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Held {
    packet: Packet,
    tenant: u32,
    /// Where the packet behind it in its queue is, most likely: to be fetched into the cache ahead of its turn.
    next: u32,
    /// Frames of it that have left, of a segment that is cut.
    cut: u16,
    /// It has left, and waits for those before it to complete.
    done: bool,
    /// Whether the class had sent no more than its bound allows for when it came.
    conforms: bool,
}

// Two cache lines, which are fetched ahead.
const _: () = assert!(size_of::<Held>() == 128);

/// Why a packet did not get into the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refused {
    /// The engine's own reason.
    Engine(&'static str),
    /// The tenant's ring has no descriptor, or the engine no room, and its device's queue is full as well.
    GuestQueue,
}

impl HostNic {
    /// The engine of a checked policy, sized for as many flows as the host will have, and for receivers elsewhere that
    /// control its tenants.
    pub(crate) fn new(checked: &Checked, tenants: &[String], flows: u32, peers: u32, host: &Host) -> Self {
        let program = &mut checked.program.clone();
        let peers = program.add_peers(peers, Bytes::ZERO);
        let never_stalls = host.cpu == EngineCost::default() && host.pcie.is_none();
        let stated = &checked.config.engine;
        // One shared queue for each class, should the flows be more than the engine's queues.
        let spare = u32::try_from(program.nodes.len()).unwrap_or(u32::MAX);
        let queues = stated.queues.min(flows.saturating_add(spare)).max(1);
        let descriptors = stated.descriptors.min(queues.saturating_mul(u32::from(stated.ring)));
        let catch_up = if host.cpu == EngineCost::default() { ONE_TICK } else { LATE };
        let config = Config { queues, ring: stated.ring, descriptors, pull: Bytes::ZERO, catch_up };
        let id = |name: &String| {
            (0..).map(TenantId).zip(&program.tenants).find(|(_, t)| t.name == *name).map(|(id, _)| id)
        };
        Self {
            engine: Nic::new(program, &config),
            classifier: Classifier::new(program),
            doorbells: DoorbellQueue::with_capacity(4 * BATCH),
            held: Vec::new(),
            free: Vec::new(),
            // A thread that needs time for a packet does one after the other.
            out: Vec::with_capacity(if host.cpu == EngineCost::default() { BATCH } else { 1 }),
            tenants: tenants.iter().map(id).collect(),
            guests: vec![Guest::default(); tenants.len()],
            first: None,
            waiting: 0,
            transmit: host.transmit,
            completed: Vec::new(),
            cpu: Cpu { cost: host.cpu, ..Cpu::default() },
            shared: BTreeMap::new(),
            queues: vec![Queue::default(); queues as usize],
            waits: Waits::new(queues),
            dma: 0,
            peers,
            known_peers: BTreeMap::new(),
            changes: Vec::new(),
            before: None,
            flow_changes: 0,
            // The bounds are those of a link that never stalls, and of what the policy alone holds back.
            promises: if never_stalls && peers.count() == 0 {
                Promises::new(program)
            } else {
                Promises::default()
            },
            holdings: None,
        }
    }

    /// The flow queue of a flow that looks like this, to a tenant elsewhere if it goes to one.
    pub(crate) fn open(&mut self, mut fields: Fields, tenant: u32, to: Option<Vm>) -> Option<QueueId> {
        fields.tenant = self.tenants[tenant as usize];
        let mut placement = self.classifier.classify(self.engine.program(), &fields);
        let peer = to.and_then(|to| self.peer(tenant, to));
        placement.limits.extend(peer.into_iter().flatten());
        let queue = match self.engine.open_queue(&placement) {
            Ok(queue) => queue,
            Err(_) => self.open_shared(&placement)?,
        };
        self.queues[queue.0 as usize].class = placement.class;
        Some(queue)
    }

    /// The limits of a tenant's packets to a peer, as long as there is room.
    fn peer(&mut self, tenant: u32, to: Vm) -> Option<[LimitId; 2]> {
        let next = self.known_peers.len() as u32;
        let known = self.known_peers.get(&(tenant, to)).copied();
        let peer = known.or((next < self.peers.count()).then_some(next))?;
        self.known_peers.insert((tenant, to), peer);
        Some(self.peers.limits(peer))
    }

    /// What a tenant may send to a peer from now on; everything if nothing is said. In force at the next doorbell.
    pub(crate) fn obey(&mut self, tenant: u32, to: Vm, limits: Option<Limits>) {
        let Some([bits, packets]) = self.peer(tenant, to) else { return };
        let by_packets = limits.and_then(|limits| limits.packets);
        let by_packets = by_packets.and_then(|packets| BitRate::new(packets.get().saturating_mul(8)));
        self.doorbells.set_rate(bits, limits.map_or(UNLIMITED, |limits| limits.bits));
        self.doorbells.set_rate(packets, by_packets.unwrap_or(UNLIMITED));
    }

    /// How often what receivers elsewhere allow held a tenant's packets.
    pub(crate) fn pressed(&self, tenant: u32) -> impl Iterator<Item = (&Vm, u64)> {
        let its = self.known_peers.iter().filter(move |((from, _), _)| *from == tenant);
        let parked = |limit: LimitId| self.engine.limit_counters(limit).parked;
        its.map(move |((_, to), &peer)| (to, self.peers.limits(peer).map(parked).iter().sum()))
            .filter(|&(_, times)| times > 0)
    }

    /// How many of a tenant's packets had to wait in its device, as its ring was not read.
    pub(crate) fn held_back(&self, tenant: u32) -> u64 {
        self.guests[tenant as usize].held_back
    }

    fn open_shared(&mut self, placement: &Placement) -> Option<QueueId> {
        let key = (placement.class, placement.limits.iter().map(|limit| limit.0).collect());
        if let Some(&queue) = self.shared.get(&key) {
            return Some(queue);
        }
        let queue = self.engine.open_queue(placement).ok()?;
        self.shared.insert(key, queue);
        Some(queue)
    }

    /// A tenant's packet, to be scheduled from the next [`Engine::ring`] on.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        tenant: u32,
        queue: QueueId,
        packet: Packet,
        now: Nanos,
    ) -> Result<(), Refused> {
        if !self.guests[tenant as usize].waiting.is_empty() || !self.takes(tenant) {
            let guest = &mut self.guests[tenant as usize];
            if guest.waiting.len() >= GUEST_QUEUE {
                return Err(Refused::GuestQueue);
            }
            guest.waiting.push_back((queue, packet));
            guest.held_back += 1;
            self.waiting += 1;
            return Ok(());
        }
        self.post(tenant, queue, packet, now).map_err(|why| Refused::Engine(why.name()))
    }

    /// Whether a tenant's next packet is read: its ring has a descriptor, and the engine room.
    #[inline]
    fn takes(&self, tenant: u32) -> bool {
        let id = self.tenants[tenant as usize].unwrap_or_default();
        self.guests[tenant as usize].used < self.transmit.ring && self.engine.tenant_room(id) > 0
    }

    fn post(&mut self, tenant: u32, queue: QueueId, packet: Packet, now: Nanos) -> Result<(), Refusal> {
        let address = self.free.last().copied().unwrap_or(self.held.len() as u32);
        let (segment, header) = packet.cut_as();
        let (addr, len) = (address.into(), packet.len);
        let descriptor = Descriptor { addr, len, segment, header, ..Descriptor::default() };
        // What is refused has been read and classified all the same.
        self.cpu.posted += 1;
        self.engine.post(queue, descriptor)?;
        if let Some(holdings) = &mut self.holdings {
            holdings.change(&packet, true, now);
        }
        let at = &mut self.queues[queue.0 as usize];
        let before = core::mem::replace(&mut at.last, address);
        if let Some(before) = self.held.get_mut(before as usize) {
            before.next = address;
        }
        let frames = packet.frames();
        let bytes = packet.len + (frames - 1) * u32::from(header);
        let conforms = self.promises.arrives(at.class, bytes, frames, now);
        let held = Held { packet, tenant, next: address, cut: 0, done: false, conforms };
        if self.free.pop().is_some() {
            self.held[address as usize] = held;
        } else {
            self.held.push(held);
        }
        let guest = &mut self.guests[tenant as usize];
        match self.transmit.completions {
            Completions::Early => {}
            Completions::OutOfOrder => guest.used += 1,
            Completions::InOrder => {
                guest.used += 1;
                guest.ring.push_back(address);
            }
        }
        self.flow_changes += u64::from(self.before.is_some_and(|before| before != queue));
        self.before = Some(queue);
        if !self.changes.is_empty() {
            self.announce_changes();
        }
        self.doorbells.bell(queue);
        Ok(())
    }

    /// Whether a change is one of something that this engine's policy has.
    pub(crate) fn knows(&self, change: &Change) -> bool {
        self.update(change).is_some()
    }

    /// Changes the policy from the next doorbell on: the change goes in front of it, in the same write (Loom §4.3.2).
    pub(crate) fn change(&mut self, change: &Change) {
        self.changes.extend(self.update(change));
    }

    fn update(&self, change: &Change) -> Option<Update> {
        let program = self.engine.program();
        let limit = || (0..).map(LimitId).zip(&program.limits).find(|(_, limit)| limit.name == change.name);
        let node = || program.find(&change.name);
        Some(match change.setting {
            Setting::Limit(rate) => Update::Limit(limit()?.0, rate),
            Setting::Weight(weight) => Update::Weight(node()?, weight),
            Setting::Rate(rate) => Update::Rate(node().filter(|&id| program.node(id).rate.is_some())?, rate),
        })
    }

    #[cold]
    fn announce_changes(&mut self) {
        for update in self.changes.drain(..) {
            match update {
                Update::Limit(limit, rate) => self.doorbells.set_rate(limit, rate),
                Update::Weight(node, weight) => self.doorbells.set_weight(node, weight),
                Update::Rate(node, rate) => self.doorbells.set_class_rate(node, rate),
            }
        }
    }

    /// The packet at this address has left: its descriptor, or those whose turn it is, come back.
    #[inline]
    fn complete(&mut self, address: u32) {
        match self.transmit.completions {
            Completions::Early => self.free.push(address),
            Completions::OutOfOrder => self.give_back(address),
            Completions::InOrder => {
                let tenant = self.held[address as usize].tenant as usize;
                self.held[address as usize].done = true;
                while let Some(&first) = self.guests[tenant].ring.front()
                    && self.held[first as usize].done
                {
                    self.guests[tenant].ring.pop_front();
                    self.give_back(first);
                }
            }
        }
    }

    fn give_back(&mut self, address: u32) {
        let Held { packet, tenant, .. } = self.held[address as usize];
        self.guests[tenant as usize].used -= 1;
        self.completed.push(packet);
        self.free.push(address);
    }

    /// Tells the engine of what was offered.
    #[inline]
    pub(crate) fn ring(&mut self, now: Nanos) {
        let engine = &mut self.engine;
        self.doorbells.flush(|words| engine.ring(words, now));
        self.before = None;
        let posted = core::mem::take(&mut self.cpu.posted);
        self.cpu.work(posted, self.cpu.cost.process, now);
    }

    /// The next batch that leaves at `now`, through `leave`, which answers when the link is through with a packet.
    /// False when there was none.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        mut leave: impl FnMut(Packet, &Transmit, Span, &Nic) -> Nanos,
    ) -> bool {
        let mut out = core::mem::take(&mut self.out);
        self.engine.poll_transmit(now, &mut out);
        let some = !out.is_empty();
        for transmit in out.drain(..) {
            let address = transmit.addr as u32;
            let Held { mut packet, conforms, next, .. } = self.held[address as usize];
            if transmit.segment > 0 {
                self.held[address as usize].cut += transmit.frames as u16;
                self.dma += u64::from(transmit.frames); // each frame's header is read apart from its payload
                packet = packet.cut(transmit.offset);
            }
            // It was last looked at when it came, a whole queue ago.
            if let Some(next) = self.held.get(next as usize) {
                prefetch_index(from_ref(&next.packet.flow), 0);
                prefetch_index(from_ref(&next.tenant), 0);
            }
            let waited = self.waits.of(&transmit, now);
            let end = leave(packet, &transmit, waited, &self.engine);
            self.promises.leaves(&transmit, conforms, end);
            self.engine.complete(&transmit, Outcome::Sent);
            if transmit.last {
                if let Some(holdings) = &mut self.holdings {
                    holdings.change(&packet, false, now);
                }
                self.complete(address);
            }
            self.cpu.work(1, self.cpu.cost.pull, now);
        }
        self.out = out;
        some
    }

    /// Packets whose buffers a guest has not got back: what is here when the daemon ends.
    pub(crate) fn abandoned(&self) -> Vec<Packet> {
        let mut free = vec![false; self.held.len()];
        self.free.iter().for_each(|&address| free[address as usize] = true);
        let held = self.held.iter().zip(free).filter(|(_, free)| !free).map(|(held, _)| held.packet);
        let waiting = self.guests.iter().flat_map(|guest| &guest.waiting).map(|(_, packet)| *packet);
        held.chain(waiting).chain(self.completed.iter().copied()).collect()
    }

    /// Takes completions, and reads on from tenants that had to wait. `refused` hears of what found no room then.
    #[inline]
    pub(crate) fn free_completed(&mut self, now: Nanos, mut refused: impl FnMut(Packet, Refusal)) {
        while self.engine.poll_completion().is_some() {}
        if self.waiting > 0 {
            self.read_on(now, &mut refused);
        }
    }

    fn read_on(&mut self, now: Nanos, refused: &mut dyn FnMut(Packet, Refusal)) {
        let count = self.guests.len() as u32;
        let first = self.first.map_or(0, |first| (first + 1) % count);
        self.first = self.first.map(|_| first);
        for tenant in (0..count).map(|turn| (first + turn) % count) {
            while self.takes(tenant)
                && let Some((queue, packet)) = self.guests[tenant as usize].waiting.pop_front()
            {
                self.waiting -= 1;
                if let Err(why) = self.post(tenant, queue, packet, now) {
                    refused(packet, why);
                }
            }
        }
    }

    /// Moves packets that have completed since the last call, where guests wait for that.
    pub(crate) fn move_completed(&mut self, to: &mut Vec<Packet>) {
        to.append(&mut self.completed);
    }

    /// Tenants have no descriptors of their own: they take them from each other, one after the other.
    pub(crate) fn share_descriptors(&mut self) {
        self.first = Some(0);
    }

    /// Whether guests wait for completions.
    pub(crate) fn completes_late(&self) -> bool {
        self.transmit.completions != Completions::Early
    }

    /// When it has to be asked next.
    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        let next = self.engine.poll_timeout();
        let more = (self.cpu.posted > 0).then_some(self.cpu.busy);
        next.map(|next| next.max(self.cpu.busy)).into_iter().chain(more).min()
    }

    /// What it counted of doorbells, and of its own work.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 7] {
        let (writes, stats) = (self.doorbells.writes(), self.engine.stats());
        [
            ("doorbell_writes", writes.batches),
            ("doorbell_lines", writes.lines),
            ("doorbell_queue_writes", writes.per_queue),
            ("flow_changes", self.flow_changes),
            ("pulls", stats.pulls),
            ("pairs", stats.pairs),
            ("dma_reads", stats.pulls + self.dma),
        ]
    }

    /// Whether its thread is still at work on what it took before.
    #[inline]
    pub(crate) fn is_busy(&self, now: Nanos) -> bool {
        self.cpu.busy > now
    }

    /// What its thread has worked so far; nothing where work takes no time.
    pub(crate) fn cpu(&self) -> Option<Span> {
        (self.cpu.cost != EngineCost::default()).then_some(self.cpu.spent)
    }

    /// Everything that it and its tenants' rings hold, and how many frames those are.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (&Packet, u32)> {
        let mut free = vec![false; self.held.len()];
        self.free.iter().for_each(|&address| free[address as usize] = true);
        let here = |(held, free): &(&Held, bool)| !free && !held.done;
        let held = self.held.iter().zip(free).filter(here);
        let held = held.map(|(held, _)| (&held.packet, held.packet.frames() - u32::from(held.cut)));
        let waiting = self.guests.iter().flat_map(|guest| &guest.waiting);
        held.chain(waiting.map(|(_, packet)| (packet, packet.frames())))
    }
}

impl Cpu {
    /// Takes on `count` pieces of work.
    #[inline]
    fn work(&mut self, count: u64, cost: Span, now: Nanos) {
        if cost > Span::ZERO && count > 0 {
            self.busy = self.busy.max(now) + cost.times(count);
            self.spent += cost.times(count);
        }
    }
}
