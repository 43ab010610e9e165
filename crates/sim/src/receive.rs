//! A NIC's receive ring and the CPU behind it.
//!
//! Why: a host that takes packets slower than the link brings them loses them here, whatever the sender's policy.
//! From: PicNIC §2 (stations 4 and 5): a ring of descriptors, emptied by a CPU that fetches a packet and then processes
//! it; in the order of arrival, or by `nic`'s ingress, the same as live.
//! Not here: what is done with a packet then (`world`), and who is next (`nic`).
//! Invariant: at most `ring` packets wait in the NIC; the CPU does one thing after the other, each for its time.

use std::collections::VecDeque;

use plimsoll_nic::{Arrival, Drain, Ingress, Station};
use plimsoll_scenario::ReceiveRing;
use plimsoll_units::Nanos;

use crate::agenda::SourceId;
use crate::packet::Packet;

/// A host's way in.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) source: SourceId,
    spec: ReceiveRing,
    cpu: Cpu,
}

/// How the CPU goes about it.
#[derive(Debug)]
enum Cpu {
    Shared(Shared),
    Fair(Box<Fair>),
}

/// What has become of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Delivered,
    Dropped(&'static str),
}

/// One queue: each packet is fetched and processed before the next.
#[derive(Debug, Default)]
struct Shared {
    /// Packets by the moment at which the CPU is through with them.
    held: VecDeque<(Nanos, Packet)>,
    busy: Nanos,
}

/// A queue for each tenant behind the ring.
#[derive(Debug)]
struct Fair {
    /// What the NIC holds, with the moment of arrival and the tenant.
    ring: VecDeque<(Nanos, u32, Packet)>,
    ingress: Ingress,
    drain: Drain,
    /// What waits in `ingress`, by address.
    fetched: Vec<Packet>,
    free: Vec<u32>,
    /// What the CPU is at, and until when.
    doing: Option<(Nanos, Work)>,
    idle_since: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Fetch,
    Process { tenant: u32, packet: Packet },
}

impl Receive {
    /// Everything in the order of arrival.
    pub(crate) fn shared(spec: ReceiveRing, source: SourceId) -> Self {
        Self { source, spec, cpu: Cpu::Shared(Shared::default()) }
    }

    /// A queue for each tenant, of these weights.
    pub(crate) fn fair(spec: ReceiveRing, source: SourceId, weights: &[u32]) -> Self {
        let stations: Vec<Station> =
            weights.iter().map(|&weight| Station { weight, slots: spec.slots }).collect();
        let fair = Fair {
            ring: VecDeque::new(),
            ingress: Ingress::new(&stations),
            drain: Drain::new(spec.drain_share),
            fetched: Vec::new(),
            free: Vec::new(),
            doing: None,
            idle_since: Nanos::ZERO,
        };
        Self { source, spec, cpu: Cpu::Fair(Box::new(fair)) }
    }

    /// Takes a packet for a tenant; false when the ring is full.
    pub(crate) fn offer(&mut self, packet: Packet, tenant: u32, now: Nanos) -> bool {
        match &mut self.cpu {
            Cpu::Shared(cpu) => cpu.offer(&self.spec, packet, now),
            Cpu::Fair(cpu) => cpu.offer(&self.spec, packet, tenant, now),
        }
    }

    /// When the CPU is through with what it is at.
    pub(crate) fn next(&self) -> Option<Nanos> {
        match &self.cpu {
            Cpu::Shared(cpu) => cpu.held.front().map(|&(at, _)| at),
            Cpu::Fair(cpu) => cpu.doing.map(|(at, _)| at),
        }
    }

    /// It is: a packet that has come to the end of its way, if that was it.
    pub(crate) fn finish(&mut self, now: Nanos) -> Option<(Packet, Fate)> {
        match &mut self.cpu {
            Cpu::Shared(cpu) => cpu.held.pop_front().map(|(_, packet)| (packet, Fate::Delivered)),
            Cpu::Fair(cpu) => cpu.finish(&self.spec, now),
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
            Cpu::Shared(cpu) => cpu.held.iter().map(|(_, packet)| packet).collect(),
            Cpu::Fair(cpu) => cpu.holds(),
        }
    }
}

impl Shared {
    fn offer(&mut self, spec: &ReceiveRing, packet: Packet, now: Nanos) -> bool {
        if self.held.len() >= spec.ring as usize {
            return false;
        }
        self.busy = self.busy.max(now) + spec.drain + spec.cost;
        self.held.push_back((self.busy, packet));
        true
    }
}

impl Fair {
    fn offer(&mut self, spec: &ReceiveRing, packet: Packet, tenant: u32, now: Nanos) -> bool {
        if self.ring.len() >= spec.ring as usize {
            return false;
        }
        self.ring.push_back((now, tenant, packet));
        if self.doing.is_none() {
            self.drain.processed(now.since(self.idle_since));
            self.begin(spec, now);
        }
        true
    }

    fn finish(&mut self, spec: &ReceiveRing, now: Nanos) -> Option<(Packet, Fate)> {
        let (_, work) = self.doing.take()?;
        let done = match work {
            Work::Fetch => {
                self.drain.fetched(spec.drain);
                self.fetch()
            }
            Work::Process { tenant, packet } => {
                self.drain.processed(spec.cost);
                self.ingress.charge(tenant, spec.cost, now);
                Some((packet, Fate::Delivered))
            }
        };
        self.begin(spec, now);
        done
    }

    /// Fetching comes first, as far as its share goes, so that the NIC's ring is never what drops.
    fn begin(&mut self, spec: &ReceiveRing, now: Nanos) {
        let next = self.ingress.next();
        self.doing = match next {
            Some(tenant) if self.ring.is_empty() || !self.drain.may() => {
                let arrival = self.ingress.take(tenant, now).expect("who is next has something");
                let slot = u32::try_from(arrival.addr).expect("an index of `fetched`");
                self.free.push(slot);
                let packet = self.fetched[slot as usize];
                Some((now + spec.cost, Work::Process { tenant, packet }))
            }
            _ if self.ring.is_empty() => None,
            _ => Some((now + spec.drain, Work::Fetch)),
        };
        self.idle_since = now;
    }

    /// The ring's oldest packet goes to its tenant's queue.
    fn fetch(&mut self) -> Option<(Packet, Fate)> {
        let (at, tenant, packet) = self.ring.pop_front()?;
        let slot = self.free.last().copied().unwrap_or(self.fetched.len() as u32);
        let arrival = Arrival { addr: slot.into(), len: packet.len, at };
        if self.ingress.offer(tenant, arrival).is_err() {
            return Some((packet, Fate::Dropped("ingress_full")));
        }
        match self.free.pop() {
            Some(slot) => self.fetched[slot as usize] = packet,
            None => self.fetched.push(packet),
        }
        None
    }

    fn holds(&self) -> Vec<&Packet> {
        let waiting =
            |tenant| self.ingress.waiting(tenant).map(|arrival| &self.fetched[arrival.addr as usize]);
        let processed = self.doing.iter().filter_map(|(_, work)| match work {
            Work::Process { packet, .. } => Some(packet),
            Work::Fetch => None,
        });
        let fetched = (0..self.ingress.tenants()).flat_map(waiting);
        self.ring.iter().map(|(_, _, packet)| packet).chain(fetched).chain(processed).collect()
    }
}
