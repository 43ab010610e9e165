//! A NIC's receive ring and the CPU behind it.
//!
//! Why: a host that takes packets slower than the link brings them loses them here, whatever the sender's policy.
//! From: PicNIC §2 (stations 4 and 5): a ring of descriptors, emptied by a CPU that fetches a packet and then processes
//! it; in the order of arrival, or by `nic`'s ingress, the same as live.
//! Not here: what is done with a packet then (`world`), and who is next (`nic`).
//! Invariant: at most `ring` packets wait in the NIC; the CPU does one thing after the other, each for its time.

use std::collections::VecDeque;

use plimsoll_nic::{Arrival, Drain, Ingress, NotQueued, Station};
use plimsoll_scenario::ReceiveRing;
use plimsoll_units::{Nanos, Span};

use crate::agenda::SourceId;
use crate::chance::Chance;
use crate::packet::Packet;
use crate::round::{Round, Step};

/// A host's way in.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) source: SourceId,
    spec: ReceiveRing,
    cpu: Cpu,
}

/// Why a packet is lost whose tenant's queue is full.
pub(crate) const QUEUE_FULL: &str = "ingress_full";

/// Whether a packet may come in.
type Admits<'a> = &'a mut dyn FnMut(&Packet) -> bool;

/// How the CPU goes about it.
#[derive(Debug)]
enum Cpu {
    Shared(Box<Shared>),
    Fair(Box<Fair>),
}

/// What has become of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Processed, after this wait for the CPU, of which so much in the NIC.
    Delivered {
        waited: Span,
        in_nic: Span,
    },
    Dropped(&'static str),
}

/// One queue: each packet is fetched and processed before the next.
#[derive(Debug)]
struct Shared {
    work: Takes,
    /// Packets by the moment at which the CPU is through with them, with how long each waits for it.
    held: VecDeque<(Nanos, [Span; 2], Packet)>,
    busy: Nanos,
}

/// A queue for each tenant behind the ring.
#[derive(Debug)]
struct Fair {
    work: Takes,
    /// What the NIC holds.
    ring: VecDeque<Came>,
    ingress: Ingress,
    drain: Drain,
    /// What waits in `ingress`, by address.
    fetched: Vec<(Packet, Nanos)>,
    free: Vec<u32>,
    /// What the CPU is at, and until when.
    doing: Option<(Nanos, Work)>,
    idle_since: Nanos,
    /// Where it is in its round, where it works by rounds.
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
enum Work {
    Fetch {
        cost: Span,
    },
    /// All else that the engine looks after.
    Rest,
    Process {
        tenant: u32,
        packet: Packet,
        waited: Span,
        in_nic: Span,
        cost: Span,
    },
}

/// How long things take, and have taken.
#[derive(Debug)]
struct Takes {
    chance: Option<Chance>,
    spent: Span,
}

impl Takes {
    fn new(vary: bool, chance: Chance) -> Self {
        Self { chance: vary.then_some(chance), spent: Span::ZERO }
    }

    /// What is left of something that takes so long and is done again and again, after such a span of it.
    fn rest_of(&mut self, mean: Span, passed: Span) -> Span {
        let left = Span::ns(mean.as_u64() - passed.as_u64() % mean.as_u64().max(1));
        // What is exponentially distributed has no memory.
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
    /// Everything in the order of arrival.
    pub(crate) fn shared(spec: ReceiveRing, source: SourceId, chance: Chance) -> Self {
        let work = Takes::new(spec.vary, chance);
        let shared = Shared { work, held: VecDeque::new(), busy: Nanos::ZERO };
        Self { source, spec, cpu: Cpu::Shared(Box::new(shared)) }
    }

    /// A queue for each tenant.
    pub(crate) fn fair(spec: ReceiveRing, source: SourceId, stations: &[Station], chance: Chance) -> Self {
        let fair = Fair {
            work: Takes::new(spec.vary, chance),
            ring: VecDeque::new(),
            ingress: Ingress::new(stations),
            drain: Drain::new(spec.drain_share),
            fetched: Vec::new(),
            free: Vec::new(),
            doing: None,
            idle_since: Nanos::ZERO,
            round: Round::default(),
        };
        Self { source, spec, cpu: Cpu::Fair(Box::new(fair)) }
    }

    /// Takes a packet for a tenant; false when the ring is full.
    pub(crate) fn offer(&mut self, packet: Packet, tenant: u32, now: Nanos) -> bool {
        match &mut self.cpu {
            Cpu::Shared(cpu) => cpu.offer(&self.spec, packet, now),
            Cpu::Fair(cpu) => cpu.offer(&self.spec, Came { at: now, tenant, packet }),
        }
    }

    /// When the CPU is through with what it is at.
    pub(crate) fn next(&self) -> Option<Nanos> {
        match &self.cpu {
            Cpu::Shared(cpu) => cpu.held.front().map(|&(at, ..)| at),
            Cpu::Fair(cpu) => cpu.doing.map(|(at, _)| at),
        }
    }

    /// It is: a packet that has come to the end of its way, if that was it. `admits` says whether one that has been fetched may
    /// come in.
    pub(crate) fn finish(&mut self, now: Nanos, admits: Admits<'_>) -> Option<(Packet, Fate)> {
        match &mut self.cpu {
            Cpu::Shared(cpu) => cpu
                .held
                .pop_front()
                .map(|(_, [waited, in_nic], packet)| (packet, Fate::Delivered { waited, in_nic })),
            Cpu::Fair(cpu) => cpu.finish(&self.spec, now, admits),
        }
    }

    /// What its CPU has worked.
    pub(crate) fn spent(&self) -> Span {
        match &self.cpu {
            Cpu::Shared(cpu) => cpu.work.spent,
            Cpu::Fair(cpu) => cpu.work.spent,
        }
    }

    /// What a tenant's packets, so many of which were delivered, have taken: as charged, or on average.
    pub(crate) fn cpu_of(&self, tenant: u32, delivered: u64) -> Span {
        match &self.cpu {
            Cpu::Shared(_) => (self.spec.drain + self.spec.cost).times(delivered),
            Cpu::Fair(cpu) => cpu.ingress.seen(tenant).cpu,
        }
    }

    /// The tenants' queues, where each has one.
    pub(crate) fn ingress(&mut self) -> Option<&mut Ingress> {
        match &mut self.cpu {
            Cpu::Shared(_) => None,
            Cpu::Fair(cpu) => Some(&mut cpu.ingress),
        }
    }

    /// All that it holds.
    pub(crate) fn holds(&self) -> Vec<&Packet> {
        match &self.cpu {
            Cpu::Shared(cpu) => cpu.held.iter().map(|(.., packet)| packet).collect(),
            Cpu::Fair(cpu) => cpu.holds(),
        }
    }
}

impl Shared {
    fn offer(&mut self, spec: &ReceiveRing, packet: Packet, now: Nanos) -> bool {
        if self.held.len() >= spec.ring as usize {
            return false;
        }
        let begun = self.busy.max(now);
        let fetched = begun + self.work.time(spec.drain);
        self.busy = fetched + self.work.time(spec.cost);
        self.held.push_back((self.busy, [fetched.since(now), begun.since(now)], packet));
        true
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
            let idle = now.since(self.idle_since);
            self.drain.processed(idle);
            if spec.round > Span::ZERO {
                let cost = self.work.rest_of(spec.round, idle);
                self.doing = Some((now + cost, Work::Rest));
            } else {
                self.begin(spec, now);
            }
        }
        true
    }

    fn finish(&mut self, spec: &ReceiveRing, now: Nanos, admits: Admits<'_>) -> Option<(Packet, Fate)> {
        let (_, work) = self.doing.take()?;
        let done = match work {
            Work::Fetch { cost } => {
                self.drain.fetched(cost);
                self.fetch(now, admits)
            }
            Work::Process { tenant, packet, waited, in_nic, cost } => {
                self.drain.processed(cost);
                self.ingress.charge(tenant, cost, now);
                Some((packet, Fate::Delivered { waited, in_nic }))
            }
            Work::Rest => {
                self.round = Round::default();
                None
            }
        };
        self.begin(spec, now);
        done
    }

    fn begin(&mut self, spec: &ReceiveRing, now: Nanos) {
        let step = if spec.round > Span::ZERO { self.in_rounds() } else { self.at_once() };
        self.doing = step.map(|step| self.take_on(step, spec, now));
        self.idle_since = now;
    }

    /// Fetching comes first, as far as its share goes, so that the NIC's ring is never what drops.
    fn at_once(&self) -> Option<Step> {
        match self.ingress.next() {
            Some(tenant) if self.ring.is_empty() || !self.drain.may() => Some(Step::Process(tenant)),
            _ if self.ring.is_empty() => None,
            _ => Some(Step::Fetch),
        }
    }

    /// The same batch by batch; rounds that find nothing pass without being counted.
    fn in_rounds(&mut self) -> Option<Step> {
        let ingress = &self.ingress;
        let waits = |tenant| ingress.waiting(tenant).len() > 0;
        let step = self.round.step(self.ring.len(), self.drain.may(), ingress.next(), waits);
        (step != Step::Rest || !self.round.found_nothing()).then_some(step)
    }

    fn take_on(&mut self, step: Step, spec: &ReceiveRing, now: Nanos) -> (Nanos, Work) {
        match step {
            Step::Fetch => {
                let cost = self.work.time(spec.drain);
                (now + cost, Work::Fetch { cost })
            }
            Step::Process(tenant) => {
                let arrival = self.ingress.take(tenant, now).expect("who is served has something");
                let slot = u32::try_from(arrival.addr).expect("an index of `fetched`");
                self.free.push(slot);
                let (packet, fetched) = self.fetched[slot as usize];
                let (waited, in_nic) = (now.since(arrival.at), fetched.since(arrival.at));
                let cost = self.work.time(spec.cost);
                (now + cost, Work::Process { tenant, packet, waited, in_nic, cost })
            }
            Step::Rest => (now + self.work.time(spec.round), Work::Rest),
        }
    }

    /// The ring's oldest packet goes to its tenant's queue.
    fn fetch(&mut self, now: Nanos, admits: Admits<'_>) -> Option<(Packet, Fate)> {
        let Came { at, tenant, packet } = self.ring.pop_front()?;
        if !admits(&packet) {
            return Some((packet, Fate::Dropped("stranger_over_limit")));
        }
        let slot = self.free.last().copied().unwrap_or(self.fetched.len() as u32);
        let arrival = Arrival { addr: slot.into(), len: packet.len, at };
        match self.ingress.offer(tenant, arrival) {
            Ok(()) => {}
            Err(NotQueued::Full) => return Some((packet, Fate::Dropped(QUEUE_FULL))),
            Err(NotQueued::OverMax) => return Some((packet, Fate::Dropped("ingress_over_max"))),
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
            Work::Process { packet, .. } => Some(packet),
            Work::Fetch { .. } | Work::Rest => None,
        });
        let fetched = (0..self.ingress.tenants()).flat_map(waiting);
        self.ring.iter().map(|came| &came.packet).chain(fetched).chain(processed).collect()
    }
}
