//! A NIC's receive ring and the CPU behind it.
//!
//! Why: a host that takes packets more slowly than the link brings them loses some here, whatever the sender's policy is.
//! From: PicNIC §2 (stations 4 and 5): a ring of descriptors, emptied by a CPU that fetches a packet and then processes
//! it; in the order of arrival, or by `nic`'s ingress, the code that also runs live. FairNIC §4.1: cores for each tenant.
//! Not here: a packet's way after that (`world`), and which tenant is next (`nic`).
//! Invariant: at most `ring` packets wait in the NIC; the CPU, or each core, does one piece of work at a time.

mod cache;
mod fair;
mod partition;
mod unit;

use std::collections::{BTreeMap, VecDeque};

use plimsoll_nic::{Ingress, Station};
use plimsoll_scenario::ReceiveRing;
use plimsoll_units::{Nanos, Span};

use crate::agenda::SourceId;
use crate::chance::Chance;
use crate::flow::Flow;
use crate::hosted::{Ended, Hosted, To, Turn};
use crate::packet::Packet;
use crate::units::{NO_UNIT, Units};
pub(crate) use cache::Lines;
use fair::Fair;
pub(crate) use partition::Behind;
use partition::Partition;
pub(crate) use unit::Unit;

/// A host's way in.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) source: SourceId,
    spec: ReceiveRing,
    cpu: Service,
    /// The coprocessors that its tenants' programs call.
    units: Option<Box<Units>>,
}

/// The drop reason when a tenant's queue is full.
pub(crate) const QUEUE_FULL: &str = "ingress_full";
/// That when more came than the tenant may receive.
const OVER_MAX: &str = "ingress_over_max";

/// Says whether a packet that has been fetched may come in.
type Admits<'a> = &'a mut dyn FnMut(&Packet) -> bool;

/// What programs need to know of the rest of their host.
pub(crate) struct Beside<'a> {
    pub(crate) flows: &'a [Flow],
    /// Descriptors that a tenant may still have.
    pub(crate) room: &'a dyn Fn(u32) -> u32,
}

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
    /// A coprocessor has answered its program's call, which took this long; the packet is with the program again.
    Answered(Span),
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

/// A packet in the NIC.
#[derive(Clone, Copy, Debug)]
struct Came {
    at: Nanos,
    tenant: u32,
    packet: Packet,
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
        Self { source, spec, cpu: Service::Shared(Box::new(shared)), units: None }
    }

    /// A way in with a queue for each tenant.
    pub(crate) fn fair(
        spec: ReceiveRing,
        source: SourceId,
        stations: &[Station],
        chance: Chance,
        worked: Worked,
    ) -> Self {
        let work = Takes::new(spec.vary, chance, worked);
        let fair = Fair::new(&spec, stations, work);
        Self { source, spec, cpu: Service::Fair(Box::new(fair)), units: None }
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
        let partition = Partition::new(cores, pools, behind, work);
        Self { source, spec, cpu: Service::Partition(Box::new(partition)), units: None }
    }

    /// Takes a packet for a tenant; `false` when the ring is full. Where the file says so, a packet that finds many others is
    /// marked.
    pub(crate) fn offer(&mut self, mut packet: Packet, tenant: u32, now: Nanos, beside: &Beside<'_>) -> bool {
        packet.ce |= packet.ect && self.spec.ecn.is_some_and(|most| self.waiting() >= most as usize);
        match &mut self.cpu {
            Service::Shared(cpu) => cpu.offer(&self.spec, packet, tenant, now),
            Service::Fair(cpu) => cpu.offer(&self.spec, Came { at: now, tenant, packet }, beside),
            Service::Partition(cpu) => cpu.offer(&self.spec, Came { at: now, tenant, packet }, beside),
        }
    }

    /// Packets that wait for the CPU, in the NIC or in tenants' queues.
    fn waiting(&self) -> usize {
        match &self.cpu {
            Service::Shared(cpu) => cpu.held.len(),
            Service::Fair(cpu) => cpu.waiting(),
            Service::Partition(cpu) => cpu.holds().len(),
        }
    }

    /// When the CPU has finished its present piece of work, or a coprocessor has.
    pub(crate) fn next(&self) -> Option<Nanos> {
        let cpu = match &self.cpu {
            Service::Shared(cpu) => cpu.held.front().map(|done| done.at),
            Service::Fair(cpu) => cpu.next(),
            Service::Partition(cpu) => cpu.next(),
        };
        cpu.into_iter().chain(self.units.as_ref().and_then(|units| units.next())).min()
    }

    /// Finishes the CPU's present piece of work, or a coprocessor's, and returns the packet that was processed, dropped or answered, if one
    /// was. `admits` says whether a packet that has been fetched may come in.
    pub(crate) fn finish(
        &mut self,
        now: Nanos,
        admits: Admits<'_>,
        beside: &Beside<'_>,
    ) -> Option<(Packet, Fate)> {
        if let Some(answer) = self.units.as_mut().and_then(|units| units.answer(now)) {
            let (packet, took) = (answer.call.packet, answer.took);
            if let Some(hosted) = self.program(answer.tenant) {
                hosted.come_back(answer);
                self.wake(now, beside);
            }
            return Some((packet, Fate::Answered(took)));
        }
        match &mut self.cpu {
            Service::Shared(cpu) => cpu.finish(),
            Service::Fair(cpu) => cpu.finish(&self.spec, now, admits, beside),
            Service::Partition(cpu) => cpu.finish(&self.spec, now, beside),
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

    /// Gives a tenant a program; not where all tenants share one queue.
    pub(crate) fn host(&mut self, tenant: u32, hosted: Box<Hosted>) {
        match &mut self.cpu {
            Service::Shared(_) => {}
            Service::Fair(cpu) => cpu.host(tenant, hosted),
            Service::Partition(cpu) => cpu.host(tenant, hosted),
        }
    }

    /// Gives its tenants' programs coprocessors.
    pub(crate) fn set_units(&mut self, units: Box<Units>) {
        self.units = Some(units);
    }

    /// A tenant's program.
    pub(crate) fn program(&mut self, tenant: u32) -> Option<&mut Hosted> {
        match &mut self.cpu {
            Service::Shared(_) => None,
            Service::Fair(cpu) => cpu.program(tenant),
            Service::Partition(cpu) => cpu.program(tenant),
        }
    }

    /// All programs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Hosted> {
        let all = match &self.cpu {
            Service::Shared(_) => &[],
            Service::Fair(cpu) => cpu.programs(),
            Service::Partition(cpu) => cpu.programs(),
        };
        all.iter().filter_map(|hosted| hosted.as_deref())
    }

    /// Puts a packet from another tenant of this host where its tenant's program finds it.
    pub(crate) fn offer_inside(
        &mut self,
        packet: Packet,
        tenant: u32,
        now: Nanos,
        beside: &Beside<'_>,
    ) -> Result<(), &'static str> {
        let came = Came { at: now, tenant, packet };
        match &mut self.cpu {
            Service::Shared(_) => Err(QUEUE_FULL),
            Service::Fair(cpu) => cpu.offer_inside(&self.spec, came, beside),
            Service::Partition(cpu) => cpu.offer_inside(&self.spec, came, beside),
        }
    }

    /// Lets programs run that have got work.
    pub(crate) fn wake(&mut self, now: Nanos, beside: &Beside<'_>) {
        match &mut self.cpu {
            Service::Shared(_) => {}
            Service::Fair(cpu) => cpu.wake(&self.spec, now, beside),
            Service::Partition(cpu) => cpu.wake(&self.spec, now, beside),
        }
    }

    /// What became of the packets of the turn of a program that has ended with the last piece of work: once they are where they go,
    /// the CPU is to go on: [`Receive::begin_next`]. Those that the program wants coprocessors to work on are there.
    pub(crate) fn take_turn(&mut self, now: Nanos) -> Option<Turn> {
        let mut turn = match &mut self.cpu {
            Service::Shared(_) => None,
            Service::Fair(cpu) => cpu.take_turn(),
            Service::Partition(cpu) => cpu.take_turn(),
        }?;
        for call in core::mem::take(&mut turn.calls) {
            let (packet, added, waits) = (call.packet, call.added, call.waits);
            let asked = self.units.as_mut().map(|units| units.ask(turn.tenant, call, now));
            match asked.unwrap_or(Err(NO_UNIT)) {
                Ok(()) => self.program(turn.tenant).into_iter().for_each(Hosted::is_served),
                Err(why) => turn.ended.push(Ended { packet, to: To::Nowhere(why), added, waits }),
            }
        }
        Some(turn)
    }

    /// Goes on behind a turn of a program.
    pub(crate) fn begin_next(&mut self, now: Nanos, beside: &Beside<'_>) {
        match &mut self.cpu {
            Service::Shared(_) => {}
            Service::Fair(cpu) => cpu.begin_next(&self.spec, now, beside),
            Service::Partition(cpu) => cpu.begin_next(&self.spec, now, beside),
        }
    }

    /// Packets that wait for programs, or are in one of their turns, whose senders do not have their buffers back yet.
    pub(crate) fn unsettled(&self) -> Vec<Packet> {
        let waiting = self.programs().flat_map(Hosted::unsettled).copied();
        match &self.cpu {
            Service::Shared(_) | Service::Fair(_) => waiting.collect(),
            Service::Partition(cpu) => waiting.chain(cpu.unsettled().copied()).collect(),
        }
    }

    /// All packets that it holds.
    pub(crate) fn holds(&self) -> Vec<&Packet> {
        let mut held: Vec<&Packet> = match &self.cpu {
            Service::Shared(cpu) => cpu.held.iter().map(|done| &done.packet).collect(),
            Service::Fair(cpu) => cpu.holds(),
            Service::Partition(cpu) => cpu.holds(),
        };
        held.extend(self.units.iter().flat_map(|units| units.holds()));
        held
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
