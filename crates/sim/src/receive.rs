//! A NIC's receive ring and the CPU behind it.
//!
//! Why: a host that takes packets more slowly than the link brings them loses some here, whatever the sender's policy is.
//! From: PicNIC §2 (stations 4 and 5): a ring of descriptors, emptied by a CPU that fetches a packet and then processes
//! it; in the order of arrival, or by `nic`'s ingress, the code that also runs live. FairNIC §4.1: cores for each tenant.
//! Not here: a packet's way after that (`world`), and which tenant is next (`nic`).
//! Invariant: at most `ring` packets wait in the NIC; the CPU, or each core, does one piece of work at a time.

mod cache;
mod partition;
mod unit;

use std::collections::{BTreeMap, VecDeque};

use plimsoll_nic::{Arrival, Drain, Ingress, NotQueued, Station, Verdict};
use plimsoll_scenario::ReceiveRing;
use plimsoll_units::{Nanos, Span};

use crate::agenda::SourceId;
use crate::chance::Chance;
use crate::packet::Packet;
use crate::round::{Round, Step};
pub(crate) use cache::Lines;
pub(crate) use partition::Behind;
use partition::Partition;
pub(crate) use unit::Unit;

/// A host's way in.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) source: SourceId,
    spec: ReceiveRing,
    cpu: Service,
}

/// The drop reason when a tenant's queue is full.
pub(crate) const QUEUE_FULL: &str = "ingress_full";
/// That when more came than the tenant may receive.
const OVER_MAX: &str = "ingress_over_max";

/// Says whether a packet that has been fetched may come in.
type Admits<'a> = &'a mut dyn FnMut(&Packet) -> bool;

/// How the CPU serves packets.
#[derive(Debug)]
enum Service {
    Shared(Box<Shared>),
    Fair(Box<Fair>),
    Partition(Box<Partition>),
}

/// The fate of a packet on the way in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Processed, after a wait for the CPU; `in_nic` is the part of the wait in the NIC, and `called` the time of its call of
    /// a coprocessor.
    Delivered {
        waited: Span,
        in_nic: Span,
        called: Option<Span>,
    },
    Dropped(&'static str),
}

/// One queue for all tenants: each packet is fetched and processed before the next.
#[derive(Debug)]
struct Shared {
    work: Takes,
    held: VecDeque<Done>,
    busy: Nanos,
    /// CPU time of tenants' packets that were processed.
    spent_on: BTreeMap<u32, Span>,
}

/// A packet of [`Shared`].
#[derive(Debug)]
struct Done {
    /// When the CPU has processed it.
    at: Nanos,
    /// How long it waits for the CPU, and the part of that in the NIC.
    waits: [Span; 2],
    packet: Packet,
    tenant: u32,
    cost: Span,
}

/// A queue for each tenant behind the ring.
#[derive(Debug)]
struct Fair {
    work: Takes,
    /// Packets in the NIC.
    ring: VecDeque<Came>,
    ingress: Ingress,
    drain: Drain,
    /// Packets that wait in `ingress`, by address.
    fetched: Vec<(Packet, Nanos)>,
    free: Vec<u32>,
    /// The CPU's present piece of work, and its end.
    doing: Option<(Nanos, CpuWork)>,
    idle_since: Nanos,
    /// The progress of the round, if the CPU works by rounds.
    round: Round,
}

/// A packet in the NIC.
#[derive(Clone, Copy, Debug)]
struct Came {
    at: Nanos,
    tenant: u32,
    packet: Packet,
}

#[derive(Clone, Copy, Debug)]
enum CpuWork {
    Fetch {
        cost: Span,
    },
    /// All other work of the engine.
    Rest,
    /// A packet that has waited for too long.
    Drop(Packet),
    Process {
        tenant: u32,
        packet: Packet,
        waited: Span,
        in_nic: Span,
        cost: Span,
    },
}

/// The time that work takes, and the sum of it so far.
#[derive(Debug)]
struct Takes {
    chance: Option<Chance>,
    spent: Span,
    worked: Worked,
}

/// The time that a CPU worked, by window.
#[derive(Clone, Debug)]
pub(crate) struct Worked {
    window: u64,
    end: Nanos,
    pub(crate) spans: Vec<Span>,
}

impl Worked {
    pub(crate) fn new(window: Span, end: Nanos) -> Self {
        Self { window: window.as_u64().max(1), end, spans: Vec::new() }
    }

    /// Counts work between two moments.
    fn note(&mut self, from: Nanos, to: Nanos) {
        let (mut from, to) = (from.as_u64(), to.min(self.end).as_u64());
        while from < to {
            let index = from / self.window;
            let until = ((index + 1) * self.window).min(to);
            if self.spans.len() <= index as usize {
                self.spans.resize(index as usize + 1, Span::ZERO);
            }
            self.spans[index as usize] += Span::ns(until - from);
            from = until;
        }
    }

    /// Takes back work that was counted ahead of time.
    fn cut(&mut self, now: Nanos) {
        let (index, within) = (now.as_u64() / self.window, now.as_u64() % self.window);
        self.spans.truncate(index as usize + 1);
        if let Some(last) = self.spans.get_mut(index as usize) {
            *last = (*last).min(Span::ns(within));
        }
    }
}

impl Takes {
    fn new(vary: bool, chance: Chance, worked: Worked) -> Self {
        Self { chance: vary.then_some(chance), spent: Span::ZERO, worked }
    }

    /// The remaining time of a piece of work. Pieces of `mean` follow each other without a pause; the first began `passed` ago.
    fn rest_of(&mut self, mean: Span, passed: Span) -> Span {
        let left = Span::ns(mean.as_u64() - passed.as_u64() % mean.as_u64().max(1));
        // An exponential distribution has no memory.
        if self.chance.is_some() { self.time(mean) } else { self.time(left) }
    }

    fn time(&mut self, mean: Span) -> Span {
        let time = match &mut self.chance {
            Some(chance) if mean > Span::ZERO => chance.exponential(mean),
            _ => mean,
        };
        self.spent += time;
        time
    }
}

impl Receive {
    /// A way in that serves all packets in the order of arrival.
    pub(crate) fn shared(spec: ReceiveRing, source: SourceId, chance: Chance, worked: Worked) -> Self {
        let work = Takes::new(spec.vary, chance, worked);
        let shared = Shared { work, held: VecDeque::new(), busy: Nanos::ZERO, spent_on: BTreeMap::new() };
        Self { source, spec, cpu: Service::Shared(Box::new(shared)) }
    }

    /// A way in with a queue for each tenant.
    pub(crate) fn fair(
        spec: ReceiveRing,
        source: SourceId,
        stations: &[Station],
        chance: Chance,
        worked: Worked,
    ) -> Self {
        let fair = Fair {
            work: Takes::new(spec.vary, chance, worked),
            ring: VecDeque::new(),
            ingress: Ingress::new(stations),
            drain: Drain::new(spec.drain_share),
            fetched: Vec::new(),
            free: Vec::new(),
            doing: None,
            idle_since: Nanos::ZERO,
            round: Round::default(),
        };
        Self { source, spec, cpu: Service::Fair(Box::new(fair)) }
    }

    /// A way in on a SmartNIC, with cores for each tenant and, if `pools` are stated, a buffer pool for each.
    pub(crate) fn partition(
        spec: ReceiveRing,
        source: SourceId,
        cores: &[u32],
        pools: Option<&[Station]>,
        behind: Behind,
        (chance, worked): (Chance, Worked),
    ) -> Self {
        let work = Takes::new(spec.vary, chance, worked);
        Self { source, spec, cpu: Service::Partition(Box::new(Partition::new(cores, pools, behind, work))) }
    }

    /// Takes a packet for a tenant; `false` when the ring is full. Where the file says so, a packet that finds many others is
    /// marked.
    pub(crate) fn offer(&mut self, mut packet: Packet, tenant: u32, now: Nanos) -> bool {
        packet.ce |= packet.ect && self.spec.ecn.is_some_and(|most| self.waiting() >= most as usize);
        match &mut self.cpu {
            Service::Shared(cpu) => cpu.offer(&self.spec, packet, tenant, now),
            Service::Fair(cpu) => cpu.offer(&self.spec, Came { at: now, tenant, packet }),
            Service::Partition(cpu) => cpu.offer(&self.spec, Came { at: now, tenant, packet }),
        }
    }

    /// Packets that wait for the CPU, in the NIC or in tenants' queues.
    fn waiting(&self) -> usize {
        match &self.cpu {
            Service::Shared(cpu) => cpu.held.len(),
            Service::Fair(cpu) => cpu.ring.len() + cpu.fetched.len() - cpu.free.len(),
            Service::Partition(cpu) => cpu.holds().len(),
        }
    }

    /// When the CPU has finished its present piece of work.
    pub(crate) fn next(&self) -> Option<Nanos> {
        match &self.cpu {
            Service::Shared(cpu) => cpu.held.front().map(|done| done.at),
            Service::Fair(cpu) => cpu.doing.map(|(at, _)| at).or_else(|| cpu.ingress.due()),
            Service::Partition(cpu) => cpu.next(),
        }
    }

    /// Finishes the CPU's present piece of work, and returns the packet that was processed or dropped, if one was. `admits` says
    /// whether a packet that has been fetched may come in.
    pub(crate) fn finish(&mut self, now: Nanos, admits: Admits<'_>) -> Option<(Packet, Fate)> {
        match &mut self.cpu {
            Service::Shared(cpu) => cpu.finish(),
            Service::Fair(cpu) => cpu.finish(&self.spec, now, admits),
            Service::Partition(cpu) => cpu.finish(&self.spec, now),
        }
    }

    /// The CPU time so far.
    pub(crate) fn spent(&self) -> Span {
        match &self.cpu {
            Service::Shared(cpu) => cpu.work.spent,
            Service::Fair(cpu) => cpu.work.spent,
            Service::Partition(cpu) => cpu.work.spent,
        }
    }

    /// CPU time of a tenant's packets: as charged, or the mean time of each of those `delivered`.
    pub(crate) fn cpu_of(&self, tenant: u32, delivered: u64) -> Span {
        match &self.cpu {
            Service::Shared(_) => (self.spec.drain + self.spec.cost).times(delivered),
            Service::Fair(cpu) => cpu.ingress.seen(tenant).cpu,
            Service::Partition(cpu) => cpu.spent_on(tenant),
        }
    }

    /// CPU time of a tenant's packets so far.
    pub(crate) fn cpu_of_tenant(&self, tenant: u32) -> Span {
        match &self.cpu {
            Service::Shared(cpu) => cpu.spent_on.get(&tenant).copied().unwrap_or_default(),
            Service::Partition(cpu) => cpu.spent_on(tenant),
            Service::Fair(cpu) => cpu.ingress.seen(tenant).cpu,
        }
    }

    /// The time that the CPU worked, by window.
    pub(crate) fn worked(&self) -> &[Span] {
        &self.work().worked.spans
    }

    fn work(&self) -> &Takes {
        match &self.cpu {
            Service::Shared(cpu) => &cpu.work,
            Service::Fair(cpu) => &cpu.work,
            Service::Partition(cpu) => &cpu.work,
        }
    }

    /// Goes on with the account of another one, which ends now.
    pub(crate) fn go_on(&mut self, before: &Self, now: Nanos) {
        let mut worked = before.work().worked.clone();
        worked.cut(now);
        match &mut self.cpu {
            Service::Shared(cpu) => cpu.work.worked = worked,
            Service::Fair(cpu) => cpu.work.worked = worked,
            Service::Partition(cpu) => cpu.work.worked = worked,
        }
    }

    /// The tenants' queues, if each tenant has one.
    pub(crate) fn ingress(&mut self) -> Option<&mut Ingress> {
        match &mut self.cpu {
            Service::Shared(_) | Service::Partition(_) => None,
            Service::Fair(cpu) => Some(&mut cpu.ingress),
        }
    }

    /// All packets that it holds.
    pub(crate) fn holds(&self) -> Vec<&Packet> {
        match &self.cpu {
            Service::Shared(cpu) => cpu.held.iter().map(|done| &done.packet).collect(),
            Service::Fair(cpu) => cpu.holds(),
            Service::Partition(cpu) => cpu.holds(),
        }
    }
}

impl Shared {
    fn offer(&mut self, spec: &ReceiveRing, packet: Packet, tenant: u32, now: Nanos) -> bool {
        if self.held.len() >= spec.ring as usize {
            return false;
        }
        let begun = self.busy.max(now);
        let fetched = begun + self.work.time(spec.drain);
        self.busy = fetched + self.work.time(spec.cost);
        self.work.worked.note(begun, self.busy);
        let waits = [fetched.since(now), begun.since(now)];
        self.held.push_back(Done { at: self.busy, waits, packet, tenant, cost: self.busy.since(begun) });
        true
    }

    fn finish(&mut self) -> Option<(Packet, Fate)> {
        let Done { waits: [waited, in_nic], packet, tenant, cost, .. } = self.held.pop_front()?;
        *self.spent_on.entry(tenant).or_default() += cost;
        Some((packet, Fate::Delivered { waited, in_nic, called: None }))
    }
}

impl Fair {
    fn offer(&mut self, spec: &ReceiveRing, came: Came) -> bool {
        if self.ring.len() >= spec.ring as usize {
            return false;
        }
        let now = came.at;
        self.ring.push_back(came);
        if self.doing.is_none() {
            self.resume(spec, now);
        }
        true
    }

    /// Begins to work after the CPU had nothing to do.
    fn resume(&mut self, spec: &ReceiveRing, now: Nanos) {
        let idle = now.since(self.idle_since);
        self.drain.processed(idle);
        if spec.round > Span::ZERO {
            let cost = self.work.rest_of(spec.round, idle);
            self.work.worked.note(now, now + cost);
            self.doing = Some((now + cost, CpuWork::Rest));
        } else {
            self.begin(spec, now);
        }
    }

    fn finish(&mut self, spec: &ReceiveRing, now: Nanos, admits: Admits<'_>) -> Option<(Packet, Fate)> {
        let Some((_, work)) = self.doing.take() else {
            // A tenant that has had its maximum may have its next packet.
            self.resume(spec, now);
            return None;
        };
        let done = match work {
            CpuWork::Fetch { cost } => {
                self.drain.fetched(cost);
                self.fetch(now, admits)
            }
            CpuWork::Process { tenant, packet, waited, in_nic, cost } => {
                self.drain.processed(cost);
                self.ingress.charge(tenant, cost, now);
                Some((packet, Fate::Delivered { waited, in_nic, called: None }))
            }
            CpuWork::Drop(packet) => Some((packet, Fate::Dropped(OVER_MAX))),
            CpuWork::Rest => {
                self.round = Round::default();
                None
            }
        };
        self.begin(spec, now);
        done
    }

    fn begin(&mut self, spec: &ReceiveRing, now: Nanos) {
        let step = if spec.round > Span::ZERO { self.in_rounds(now) } else { self.at_once(now) };
        self.doing = step.map(|step| self.take_on(step, spec, now));
        if let Some((end, _)) = self.doing {
            self.work.worked.note(now, end);
        }
        self.idle_since = now;
    }

    /// The next step without rounds. Fetching comes first, as far as its share allows, so that packets are dropped in the tenants'
    /// queues and not in the NIC's ring.
    fn at_once(&mut self, now: Nanos) -> Option<Step> {
        match self.ingress.next(now) {
            Some(tenant) if self.ring.is_empty() || !self.drain.may() => Some(Step::Process(tenant)),
            _ if self.ring.is_empty() => None,
            _ => Some(Step::Fetch),
        }
    }

    /// The next step of a round; `None` after a round without packets.
    fn in_rounds(&mut self, now: Nanos) -> Option<Step> {
        let next = self.ingress.next(now);
        let is_ready = |tenant| self.ingress.is_ready(tenant);
        let step = self.round.step(self.ring.len(), self.drain.may(), next, is_ready);
        (step != Step::Rest || !self.round.found_nothing()).then_some(step)
    }

    fn take_on(&mut self, step: Step, spec: &ReceiveRing, now: Nanos) -> (Nanos, CpuWork) {
        match step {
            Step::Fetch => {
                let cost = self.work.time(spec.drain);
                (now + cost, CpuWork::Fetch { cost })
            }
            Step::Process(tenant) => {
                let taken = self.ingress.take(tenant, now);
                let (arrival, verdict) = taken.expect("the tenant to serve has a packet");
                let slot = u32::try_from(arrival.addr).expect("an index of `fetched`");
                self.free.push(slot);
                let (mut packet, fetched) = self.fetched[slot as usize];
                if verdict == Verdict::Drop {
                    return (now, CpuWork::Drop(packet));
                }
                packet.ce |= verdict == Verdict::Mark;
                let (waited, in_nic) = (now.since(arrival.at), fetched.since(arrival.at));
                let cost = self.work.time(spec.cost);
                (now + cost, CpuWork::Process { tenant, packet, waited, in_nic, cost })
            }
            Step::Rest => (now + self.work.time(spec.round), CpuWork::Rest),
        }
    }

    /// Moves the ring's oldest packet to its tenant's queue.
    fn fetch(&mut self, now: Nanos, admits: Admits<'_>) -> Option<(Packet, Fate)> {
        let Came { at, tenant, packet } = self.ring.pop_front()?;
        if !admits(&packet) {
            return Some((packet, Fate::Dropped("stranger_over_limit")));
        }
        let slot = self.free.last().copied().unwrap_or(self.fetched.len() as u32);
        let arrival = Arrival { addr: slot.into(), len: packet.len, at, ecn: packet.ecn() };
        match self.ingress.offer(tenant, arrival) {
            Ok(()) => {}
            Err(NotQueued::Full) => return Some((packet, Fate::Dropped(QUEUE_FULL))),
            Err(NotQueued::OverMax) => return Some((packet, Fate::Dropped(OVER_MAX))),
        }
        match self.free.pop() {
            Some(slot) => self.fetched[slot as usize] = (packet, now),
            None => self.fetched.push((packet, now)),
        }
        None
    }

    fn holds(&self) -> Vec<&Packet> {
        let waiting =
            |tenant| self.ingress.waiting(tenant).map(|arrival| &self.fetched[arrival.addr as usize].0);
        let processed = self.doing.iter().filter_map(|(_, work)| match work {
            CpuWork::Process { packet, .. } => Some(packet),
            CpuWork::Drop(packet) => Some(packet),
            CpuWork::Fetch { .. } | CpuWork::Rest => None,
        });
        let fetched = (0..self.ingress.tenants()).flat_map(waiting);
        self.ring.iter().map(|came| &came.packet).chain(fetched).chain(processed).collect()
    }
}
