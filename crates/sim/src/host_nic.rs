//! The NIC of one host: the engine, or those of several threads, driven in virtual time as the daemon drives it live.
//!
//! Why: a simulation must run the code that runs live; only the clock, the ports and the bytes of frames are missing.
//! From: the daemon's loop: read tenants, ring, poll what leaves, complete, free.
//! Not here: the engine's decisions (`nic`), where packets go then (`world`), how guests make them (`traffic`).
//! Invariant: a packet is in the tenant's own ring, or in the engine with one descriptor, or gone; nothing is allocated
//! for a packet once buffers have grown to the size that the policy's caps allow.

use core::slice::from_ref;
use std::collections::BTreeMap;

use plimsoll_control::Limits;
use plimsoll_nic::{
    Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId, Refusal, Transmit, Verdict, Waits,
};
use plimsoll_policy::{
    Checked, Classifier, Fields, LimitId, NodeId, Peers, Placement, Program, TenantId, UNLIMITED,
};
use plimsoll_scenario::{EngineCost, Host, Lateness, TransmitCompletions, TransmitRing};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};
use prefetch_index::prefetch_index;

use crate::bounds::DelayBounds;
use crate::chance::Chance;
use crate::control::Vm;
use crate::meter::Holdings;
use crate::packet::Packet;
use crate::threads::Threads;

mod guests;
mod idle;
mod policy;
#[cfg(test)]
mod tests;

use guests::Guests;
use idle::Idle;
use policy::{Update, ids_of};

/// Transmits polled at once, as in the daemon.
const BATCH: usize = 64;

/// The longest lateness that a limit makes up for. The engine is polled at whole nanoseconds, and a frame ends in between:
/// without this a link of 10 Gb/s loses 0.07 % of its rate, and so does the guarantee of each class.
const ONE_TICK: Span = Span::ns(1);

/// The longest lateness that a limit makes up for where the engine's thread needs time for its work, or waits for a bus: the
/// daemon's `CATCH_UP`.
const LATE: Span = Span::millis(5);

/// The engine of one host, its tenants' rings and the packets in them.
#[derive(Debug)]
pub(crate) struct HostNic {
    /// One for each thread.
    engines: Vec<EngineThread>,
    /// How threads share the link, where there are several.
    threads: Option<Box<Threads>>,
    classifier: Classifier,
    /// Packets by the address in their descriptors.
    held: Vec<Held>,
    free: Vec<u32>,
    out: Vec<Transmit>,
    /// The policy's tenants by the scenario's.
    tenants: Vec<Option<TenantId>>,
    guests: Guests,
    /// Flow queues of flows that have ended, which still have packets, with their tenants.
    closing: Vec<(QueueId, u32)>,
    transmit: TransmitRing,
    /// Packets whose completion their senders still have to see.
    completed: Vec<Packet>,
    /// Flow queues for flows that found no queue of their own, by thread, class and limits.
    shared: BTreeMap<(usize, NodeId, Vec<u32>), QueueId>,
    /// By flow queue. Those of a thread follow those of the thread before it.
    queues: Vec<Queue>,
    /// Reads from the host in addition to one for each pull.
    dma: u64,
    /// The limits to receivers elsewhere.
    peers: Peers,
    /// The number of each pair's limits, by the tenant here and its peer there.
    known_peers: BTreeMap<(u32, Vm), u32>,
    /// Changes of the policy that the next doorbell write carries in front of its doorbells.
    changes: Vec<Update>,
    /// The flow queue of the packet before, in the present batch.
    before: Option<QueueId>,
    flow_changes: u64,
    pub(crate) bounds: DelayBounds,
    /// The packets that it holds, by workload, where they are counted.
    pub(crate) holdings: Option<Box<Holdings>>,
}

/// One thread's engine, with flow queues that are numbered from zero.
#[derive(Debug)]
struct EngineThread {
    nic: Nic,
    doorbells: DoorbellQueue,
    waits: Waits,
    cpu: Cpu,
    /// How it waits, where sleeps end late.
    idle: Option<Box<Idle>>,
}

/// The engine's thread.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    cost: EngineCost,
    /// Descriptors that were posted, and whose CPU time is not charged yet.
    posted: u64,
    /// When it has finished all its work.
    busy: Nanos,
    spent: Span,
}

/// The state of a flow queue.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    class: NodeId,
    /// The address of the packet that was posted last.
    last: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Held {
    packet: Packet,
    tenant: u32,
    /// The likely address of the next packet in its queue, which is prefetched ahead of its turn.
    next: u32,
    /// Frames that have left, of a segment that is cut.
    cut: u16,
    /// Whether it has left, and waits until the packets before it are completed.
    done: bool,
    /// Whether its class kept to the rate of its delay bound when the packet came.
    conforms: bool,
}

// Two cache lines, which are prefetched.
const _: () = assert!(size_of::<Held>() == 128);

/// Why a packet did not get into the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refused {
    /// The engine refused it, for this reason.
    Engine(&'static str),
    /// The tenant's ring or the engine has no room, and the queue of its device is full.
    GuestQueue,
}

impl HostNic {
    /// The NIC of a checked policy, for this number of flows and this number of pairs with receivers elsewhere. The sleeps of its
    /// threads end late as `wake` says, by this seed.
    pub(crate) fn new(
        checked: &Checked,
        tenants: &[String],
        (flows, peers): (u32, u32),
        host: &Host,
        (wake, seed): (Lateness, u64),
    ) -> Self {
        let program = &mut checked.program.clone();
        let peers = program.add_peers(peers, Bytes::ZERO);
        let takes_time = host.cpu != EngineCost::default();
        let never_stalls = !takes_time && wake.is_none() && host.pcie.is_none() && host.packet_rate.is_none();
        let stated = &checked.config.engine;
        // One shared queue for each class, in case there are more flows than queues.
        let spare = u32::try_from(program.nodes.len()).unwrap_or(u32::MAX);
        let queues = stated.queues.min(flows.saturating_add(spare)).max(1);
        let descriptors = stated.descriptors.min(queues.saturating_mul(u32::from(stated.ring)));
        let catch_up = if takes_time || !wake.is_none() || host.pcie.is_some() { LATE } else { ONE_TICK };
        let config = Config { queues, ring: stated.ring, descriptors, pull: Bytes::ZERO, catch_up };
        let threads = stated.threads.max(1) as usize;
        let threads = (threads > 1).then(|| Threads::new(program, threads));
        let threads = threads.transpose().expect("the checker refuses what several threads do not keep");
        let of_threads = threads.as_ref().map_or(&*program, Threads::program);
        let cpu = Cpu { cost: host.cpu, ..Cpu::default() };
        let engine = |thread: u32| EngineThread {
            nic: Nic::new(of_threads, &config),
            doorbells: DoorbellQueue::with_capacity(4 * BATCH),
            waits: Waits::new(queues),
            cpu,
            idle: (!wake.is_none() && !stated.busy_poll).then(|| {
                Box::new(Idle::new(wake, Chance::of(seed, &format!("wake {} {thread}", host.name))))
            }),
        };
        let engines: Vec<_> = (0..stated.threads.max(1)).map(engine).collect();
        Self {
            queues: vec![Queue::default(); queues as usize * engines.len()],
            engines,
            classifier: Classifier::new(program),
            held: Vec::new(),
            free: Vec::new(),
            // A thread that needs time for a packet sends them one at a time, and a bus carries one at a time.
            out: Vec::with_capacity(if takes_time || host.pcie.is_some() { 1 } else { BATCH }),
            tenants: ids_of(program, tenants),
            guests: Guests::new(tenants.len()),
            closing: Vec::new(),
            transmit: host.transmit,
            completed: Vec::new(),
            shared: BTreeMap::new(),
            dma: 0,
            peers,
            known_peers: BTreeMap::new(),
            changes: Vec::new(),
            before: None,
            flow_changes: 0,
            // The bounds hold for a link that never stalls, where only the policy limits packets.
            bounds: if never_stalls && peers.count() == 0 && threads.is_none() {
                DelayBounds::new(program)
            } else {
                DelayBounds::default()
            },
            holdings: None,
            threads: threads.map(Box::new),
        }
    }

    fn program(&self) -> &Program {
        self.engines[0].nic.program()
    }

    /// The thread that serves a tenant's port: as live, they take turns.
    fn thread_of(&self, tenant: u32) -> usize {
        match self.engines.len() {
            1 => 0,
            threads => self.tenants[tenant as usize].unwrap_or_default().0 as usize % threads,
        }
    }

    /// The thread of a flow queue, and its number there.
    #[inline]
    fn at(&self, queue: QueueId) -> (usize, QueueId) {
        if self.threads.is_none() {
            return (0, queue);
        }
        let each = (self.queues.len() / self.engines.len()) as u32;
        ((queue.0 / each) as usize, QueueId(queue.0 % each))
    }

    /// Opens a flow queue on a thread.
    fn open_on(&mut self, thread: usize, placement: &Placement) -> Option<QueueId> {
        let QueueId(queue) = self.engines[thread].nic.open_queue(placement).ok()?;
        Some(QueueId((self.queues.len() / self.engines.len() * thread) as u32 + queue))
    }

    /// Opens a flow queue for a flow with these fields; `to` is the tenant elsewhere to which it goes, if it goes to one.
    pub(crate) fn open(&mut self, mut fields: Fields, tenant: u32, to: Option<Vm>) -> Option<QueueId> {
        fields.tenant = self.tenants[tenant as usize];
        let mut placement = self.classifier.classify(self.program(), &fields);
        let peer = to.and_then(|to| self.peer(tenant, to));
        placement.limits.extend(peer.into_iter().flatten());
        let thread = self.thread_of(tenant);
        let own = self.open_on(thread, &placement);
        let queue = own.or_else(|| self.open_shared(thread, &placement))?;
        self.queues[queue.0 as usize].class = placement.class;
        Some(queue)
    }

    /// Closes the flow queue of a tenant's flow that has ended, unless other flows have it, too: at once, or when the packets
    /// that it still has are gone.
    pub(crate) fn close(&mut self, queue: QueueId, tenant: u32) {
        if self.shared.values().all(|shared| *shared != queue) && !self.is_closed(queue, tenant) {
            self.closing.push((queue, tenant));
        }
    }

    /// Closes a flow queue that has no packets, in the engine or in the tenant's device.
    fn is_closed(&mut self, queue: QueueId, tenant: u32) -> bool {
        let (thread, on_thread) = self.at(queue);
        !self.guests.has_packets_for(tenant, queue) && self.engines[thread].nic.close_queue(on_thread)
    }

    /// The limits of a tenant's packets to a peer; `None` if there is no room for another pair.
    fn peer(&mut self, tenant: u32, to: Vm) -> Option<[LimitId; 2]> {
        let next = self.known_peers.len() as u32;
        let known = self.known_peers.get(&(tenant, to)).copied();
        let peer = known.or((next < self.peers.count()).then_some(next))?;
        self.known_peers.insert((tenant, to), peer);
        Some(self.peers.limits(peer))
    }

    /// Sets what a tenant may send to a peer; without limits, everything. In force from the next doorbell on.
    pub(crate) fn obey(&mut self, tenant: u32, to: Vm, limits: Option<Limits>) {
        let Some([bits, packets]) = self.peer(tenant, to) else { return };
        let by_packets = limits.and_then(|limits| limits.packets);
        let by_packets = by_packets.and_then(|packets| BitRate::new(packets.get().saturating_mul(8)));
        let thread = self.thread_of(tenant);
        let doorbells = &mut self.engines[thread].doorbells;
        doorbells.set_rate(bits, limits.map_or(UNLIMITED, |limits| limits.bits));
        doorbells.set_rate(packets, by_packets.unwrap_or(UNLIMITED));
    }

    /// How often the limits of receivers elsewhere held a tenant's packets, by receiver.
    pub(crate) fn pressed(&self, tenant: u32) -> impl Iterator<Item = (&Vm, u64)> {
        let its = self.known_peers.iter().filter(move |((from, _), _)| *from == tenant);
        let engine = &self.engines[self.thread_of(tenant)].nic;
        let parked = move |limit: LimitId| engine.limit_counters(limit).parked;
        its.map(move |((_, to), &peer)| (to, self.peers.limits(peer).map(parked).iter().sum()))
            .filter(|&(_, times)| times > 0)
    }

    /// How many of a tenant's packets had to wait in its device because its ring was not read.
    pub(crate) fn held_back(&self, tenant: u32) -> u64 {
        self.guests.held_back(tenant)
    }

    fn open_shared(&mut self, thread: usize, placement: &Placement) -> Option<QueueId> {
        let key = (thread, placement.class, placement.limits.iter().map(|limit| limit.0).collect());
        if let Some(&queue) = self.shared.get(&key) {
            return Some(queue);
        }
        let queue = self.open_on(thread, placement)?;
        self.shared.insert(key, queue);
        Some(queue)
    }

    /// Takes a tenant's packet, to be scheduled from the next [`HostNic::ring`] on.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        tenant: u32,
        queue: QueueId,
        packet: &Packet,
        now: Nanos,
    ) -> Result<(), Refused> {
        if self.guests.is_waiting(tenant) || !self.takes(tenant) {
            return self.guests.wait(tenant, queue, *packet);
        }
        self.post(tenant, queue, packet, now).map_err(|why| Refused::Engine(why.name()))
    }

    /// Descriptors that a tenant may still have; none while packets wait for one.
    pub(crate) fn room(&self, tenant: u32) -> u32 {
        let Some(guest) = self.guests.get(tenant).filter(|_| !self.guests.is_waiting(tenant)) else {
            return 0; // that of packets which are for no tenant has none
        };
        let id = self.tenants[tenant as usize].unwrap_or_default();
        let free = self.engines[self.thread_of(tenant)].nic.tenant_room(id);
        free.min(self.transmit.ring.saturating_sub(guest.used))
    }

    /// Whether a tenant's next packet is read: its ring and the engine have room.
    #[inline]
    fn takes(&self, tenant: u32) -> bool {
        let id = self.tenants[tenant as usize].unwrap_or_default();
        let used = self.guests.get(tenant).map_or(0, |guest| guest.used);
        used < self.transmit.ring && self.engines[self.thread_of(tenant)].nic.tenant_room(id) > 0
    }

    fn post(&mut self, tenant: u32, queue: QueueId, packet: &Packet, now: Nanos) -> Result<(), Refusal> {
        let address = self.free.last().copied().unwrap_or(self.held.len() as u32);
        let (segment, header) = packet.cut_as();
        let (addr, len) = (address.into(), packet.len);
        let ecn = packet.ecn();
        let descriptor = Descriptor { addr, len, segment, header, ecn, ..Descriptor::default() };
        let (thread, on_thread) = self.at(queue);
        let engine = &mut self.engines[thread];
        // A packet that is refused has been read and classified all the same.
        engine.cpu.posted += 1;
        engine.nic.post(on_thread, descriptor)?;
        if let Some(threads) = &mut self.threads {
            threads.handle_work(self.engines.iter_mut().map(|engine| &mut engine.nic), now);
        }
        if let Some(holdings) = &mut self.holdings {
            holdings.change(packet, true, now);
        }
        let at = &mut self.queues[queue.0 as usize];
        let before = core::mem::replace(&mut at.last, address);
        if let Some(before) = self.held.get_mut(before as usize) {
            before.next = address;
        }
        let frames = packet.frames();
        let bytes = packet.len + (frames - 1) * u32::from(header);
        let conforms = self.bounds.arrives(at.class, bytes, frames, now);
        let held = Held { packet: *packet, tenant, next: address, cut: 0, done: false, conforms };
        if self.free.pop().is_some() {
            self.held[address as usize] = held;
        } else {
            self.held.push(held);
        }
        let guest = self.guests.of(tenant);
        match self.transmit.completions {
            TransmitCompletions::Early => {}
            TransmitCompletions::OutOfOrder => guest.used += 1,
            TransmitCompletions::InOrder => {
                guest.used += 1;
                guest.ring.push_back(address);
            }
        }
        self.flow_changes += u64::from(self.before.is_some_and(|before| before != queue));
        self.before = Some(queue);
        if !self.changes.is_empty() {
            self.announce_changes();
        }
        self.engines[thread].doorbells.bell(on_thread);
        Ok(())
    }

    /// Completes the packet at this address. Where completions keep their order, it waits for the packets before it.
    #[inline]
    fn complete(&mut self, address: u32) {
        match self.transmit.completions {
            TransmitCompletions::Early => self.free.push(address),
            TransmitCompletions::OutOfOrder => self.give_back(address),
            TransmitCompletions::InOrder => {
                let tenant = self.held[address as usize].tenant;
                self.held[address as usize].done = true;
                while let Some(&first) = self.guests.of(tenant).ring.front()
                    && self.held[first as usize].done
                {
                    self.guests.of(tenant).ring.pop_front();
                    self.give_back(first);
                }
            }
        }
        self.guests.ease(self.held[address as usize].tenant);
    }

    fn give_back(&mut self, address: u32) {
        let Held { packet, tenant, .. } = self.held[address as usize];
        self.guests.of(tenant).used -= 1;
        self.completed.push(packet);
        self.free.push(address);
    }

    /// Rings the doorbells of the packets that were offered.
    #[inline]
    pub(crate) fn ring(&mut self, now: Nanos) {
        for engine in self.engines.iter_mut().filter(|engine| !engine.is_away(now)) {
            let EngineThread { nic, doorbells, cpu, .. } = engine;
            doorbells.flush(|words| nic.ring(words, now));
            let posted = core::mem::take(&mut cpu.posted);
            cpu.work(posted, cpu.cost.process, now);
        }
        self.before = None;
    }

    /// Sends the next batch at `now`, each packet through `leave`, which returns when the link has sent it; also those that the
    /// engine drops, which `leave` counts. `false` when no packet leaves now.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        mut leave: impl FnMut(&Packet, &Transmit, Span, &Nic) -> Nanos,
    ) -> bool {
        let mut some = false;
        for thread in 0..self.engines.len() {
            // With one thread the caller has just asked.
            if self.threads.is_none() || !self.engines[thread].is_away(now) {
                some |= self.poll_thread(thread, now, &mut leave);
            }
        }
        if !some
            && let Some(threads) = &mut self.threads
            && threads.poll_timeout().is_some_and(|turn| turn <= now)
        {
            let mut engines: Vec<&mut Nic> = self.engines.iter_mut().map(|engine| &mut engine.nic).collect();
            return threads.end_turn(&mut engines, now);
        }
        some
    }

    #[inline]
    fn poll_thread(
        &mut self,
        thread: usize,
        now: Nanos,
        leave: &mut impl FnMut(&Packet, &Transmit, Span, &Nic) -> Nanos,
    ) -> bool {
        let mut out = core::mem::take(&mut self.out);
        let engine = &mut self.engines[thread];
        engine.nic.poll_transmit(now, &mut out);
        let some = !out.is_empty();
        for transmit in out.drain(..) {
            let address = transmit.addr as u32;
            let held = &mut self.held[address as usize];
            let (conforms, next) = (held.conforms, held.next);
            let mut packet = held.packet;
            if transmit.segment > 0 {
                held.cut += transmit.frames as u16;
                self.dma += u64::from(transmit.frames); // each frame's header is read apart from its payload
                packet = packet.cut(transmit.offset);
            }
            // It was last used when it came, a whole queue ago.
            if let Some(next) = self.held.get(next as usize) {
                prefetch_index(from_ref(&next.packet.flow), 0);
                prefetch_index(from_ref(&next.tenant), 0);
            }
            if transmit.verdict == Verdict::Mark {
                packet.ce = true;
            }
            let engine = &mut self.engines[thread];
            let waited = engine.waits.of(&transmit, now);
            let end = leave(&packet, &transmit, waited, &engine.nic);
            let outcome = match transmit.verdict {
                Verdict::Drop => Outcome::Dropped,
                Verdict::Pass | Verdict::Mark => Outcome::Sent,
            };
            if outcome == Outcome::Sent {
                self.bounds.leaves(&transmit, conforms, end);
            }
            self.engines[thread].nic.complete(&transmit, outcome);
            if transmit.last {
                if let Some(holdings) = &mut self.holdings {
                    holdings.change(&packet, false, now);
                }
                self.complete(address);
            }
            let cpu = &mut self.engines[thread].cpu;
            cpu.work(1, cpu.cost.pull, now);
        }
        self.out = out;
        some
    }

    /// Packets whose buffers guests still have to get back when the daemon ends.
    pub(crate) fn abandoned(&self) -> Vec<Packet> {
        let mut free = vec![false; self.held.len()];
        self.free.iter().for_each(|&address| free[address as usize] = true);
        let held = self.held.iter().zip(free).filter(|(_, free)| !free).map(|(held, _)| held.packet);
        held.chain(self.guests.packets().copied()).chain(self.completed.iter().copied()).collect()
    }

    /// Takes completions, and reads from the tenants that had to wait. Calls `refused` for each packet that the engine refuses.
    #[inline]
    pub(crate) fn free_completed(&mut self, now: Nanos, mut refused: impl FnMut(Packet, Refusal)) {
        for engine in &mut self.engines {
            while engine.nic.poll_completion().is_some() {}
        }
        if self.guests.any_may_read() {
            self.read_on(now, &mut refused);
        }
        if !self.closing.is_empty() {
            let mut closing = core::mem::take(&mut self.closing);
            closing.retain(|&(queue, tenant)| !self.is_closed(queue, tenant));
            self.closing = closing;
        }
    }

    fn read_on(&mut self, now: Nanos, refused: &mut dyn FnMut(Packet, Refusal)) {
        let mut turns = self.guests.turns();
        while let Some(tenant) = self.guests.next(&mut turns) {
            if self.engines.iter().all(|engine| engine.nic.room() == 0) {
                return;
            }
            while self.takes(tenant)
                && let Some((queue, packet)) = self.guests.pop(tenant)
            {
                if let Err(why) = self.post(tenant, queue, &packet, now) {
                    refused(packet, why);
                }
            }
            if !self.guests.is_waiting(tenant) || self.engines[self.thread_of(tenant)].nic.room() > 0 {
                self.guests.close(tenant);
            }
        }
    }

    /// Moves out the packets completed since the last call, where guests wait for completions.
    pub(crate) fn move_completed(&mut self, to: &mut Vec<Packet>) {
        to.append(&mut self.completed);
    }

    /// Makes all tenants share the descriptors; they are read in turn.
    pub(crate) fn share_descriptors(&mut self) {
        self.guests.share_descriptors();
    }

    /// Whether guests wait for completions.
    pub(crate) fn completes_late(&self) -> bool {
        self.transmit.completions != TransmitCompletions::Early
    }

    /// Something happens at the host, which may end what its threads do without work.
    #[inline]
    pub(crate) fn rouse(&mut self, now: Nanos) {
        for EngineThread { cpu, idle, .. } in &mut self.engines {
            if let Some(idle) = idle {
                cpu.spent += idle.rouse(cpu.posted > 0, now);
            }
        }
    }

    /// Threads without work sleep, or spin if something is due soon.
    #[inline]
    pub(crate) fn rest(&mut self, now: Nanos) {
        for EngineThread { nic, cpu, idle, .. } in &mut self.engines {
            if let Some(idle) = idle.as_mut().filter(|_| cpu.posted == 0) {
                idle.rest(now.max(cpu.busy), nic.poll_timeout(), cpu.spent);
            }
        }
    }

    /// The next time at which it has to be polled.
    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        let turn = self.threads.as_ref().and_then(|threads| threads.poll_timeout());
        let turn =
            turn.and_then(|turn| Some(turn.max(self.engines.iter().filter_map(EngineThread::back).min()?)));
        self.engines.iter().filter_map(EngineThread::next).chain(turn).min()
    }

    /// Its counters of doorbells, and of the engine's work.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 7] {
        let sum = |count: fn(&EngineThread) -> u64| self.engines.iter().map(count).sum::<u64>();
        let pulls = sum(|engine| engine.nic.stats().pulls);
        [
            ("doorbell_writes", sum(|engine| engine.doorbells.writes().batches)),
            ("doorbell_lines", sum(|engine| engine.doorbells.writes().lines)),
            ("doorbell_queue_writes", sum(|engine| engine.doorbells.writes().per_queue)),
            ("flow_changes", self.flow_changes),
            ("pulls", pulls),
            ("pairs", sum(|engine| engine.nic.stats().pairs)),
            ("dma_reads", pulls + self.dma),
        ]
    }

    /// Whether all its threads have work left.
    #[inline]
    pub(crate) fn is_busy(&self, now: Nanos) -> bool {
        self.engines.iter().all(|engine| engine.is_away(now))
    }

    /// The CPU time of its threads so far; `None` where work takes no time.
    pub(crate) fn cpu(&self) -> Option<Span> {
        let spent = self.engines.iter().map(|engine| engine.cpu.spent).fold(Span::ZERO, |sum, one| sum + one);
        let EngineThread { cpu, idle, .. } = &self.engines[0];
        (cpu.cost != EngineCost::default() || idle.is_some()).then_some(spent)
    }

    /// All packets in the engine and the guests' devices, each with its number of frames.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (&Packet, u32)> {
        let mut free = vec![false; self.held.len()];
        self.free.iter().for_each(|&address| free[address as usize] = true);
        let here = |(held, free): &(&Held, bool)| !free && !held.done;
        let held = self.held.iter().zip(free).filter(here);
        let held = held.map(|(held, _)| (&held.packet, held.packet.frames() - u32::from(held.cut)));
        held.chain(self.guests.packets().map(|packet| (packet, packet.frames())))
    }
}

impl EngineThread {
    /// Whether it works or sleeps now.
    #[inline]
    fn is_away(&self, now: Nanos) -> bool {
        self.cpu.busy > now || self.idle.as_ref().is_some_and(|idle| idle.sleeps_until().is_some())
    }

    /// When it has finished its work and its sleep; never if it sleeps until a packet comes.
    #[inline]
    fn back(&self) -> Option<Nanos> {
        let sleeps = self.idle.as_ref().and_then(|idle| idle.sleeps_until());
        sleeps.unwrap_or(Some(self.cpu.busy))
    }

    /// When it has something to do next.
    #[inline]
    fn next(&self) -> Option<Nanos> {
        let Self { nic, cpu, idle, .. } = self;
        if let Some(wakes) = idle.as_ref().and_then(|idle| idle.sleeps_until()) {
            return wakes;
        }
        let more = (cpu.posted > 0).then_some(cpu.busy);
        nic.poll_timeout().map(|next| next.max(cpu.busy)).into_iter().chain(more).min()
    }
}

impl Cpu {
    /// Adds `count` pieces of work of this cost.
    #[inline]
    fn work(&mut self, count: u64, cost: Span, now: Nanos) {
        if cost > Span::ZERO && count > 0 {
            self.busy = self.busy.max(now) + cost.times(count);
            self.spent += cost.times(count);
        }
    }
}
