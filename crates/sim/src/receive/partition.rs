//! A SmartNIC's cores, each of one tenant, between the buffers that hold received packets, a coprocessor and a cache.
//!
//! Why: FairNIC gives each tenant cores of its own; tenants still meet in a shared buffer pool, and in a shared unit.
//! From: FairNIC §3.1.2 and §4.2.1 (pools), §4.1 (cores), §3.4 (units).
//! Not here: the pools of tenants (`nic`'s ingress, as live), the limiter (`plimsoll-smartnic`), what programs do: a
//! packet takes `cost` of a core, the time that it waits for lines of its program's memory, and that of its call.
//! Invariant: a core holds at most one packet, of its tenant; a core that waits for the unit does nothing else.

use std::collections::{BTreeSet, VecDeque};

use plimsoll_nic::{Arrival, Ingress, Station};
use plimsoll_scenario::ReceiveRing;
use plimsoll_units::{Nanos, Span};

use super::cache::Lines;
use super::unit::Unit;
use super::{Came, Fate, Takes};
use crate::packet::Packet;

/// The cores, and what waits for them.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(super) work: Takes,
    pools: Pools,
    cores: Vec<Core>,
    /// By tenant: its cores that have nothing to do.
    free: Vec<Vec<u32>>,
    /// Cores that process a packet, by the moment at which they have done so.
    due: BTreeSet<(Nanos, u32)>,
    unit: Option<Unit>,
    cache: Option<Lines>,
    /// By tenant: the time for which its cores held packets.
    spent_on: Vec<Span>,
}

/// What the cores of all tenants share.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    pub(crate) unit: Option<Unit>,
    pub(crate) cache: Option<Lines>,
}

/// The buffers of received packets.
#[derive(Debug)]
enum Pools {
    /// One for all tenants, served in the order of arrival: its oldest packet holds up the others.
    Shared(VecDeque<Came>),
    /// One for each tenant.
    Own(Box<Own>),
}

/// A buffer pool for each tenant.
#[derive(Debug)]
struct Own {
    ingress: Ingress,
    /// Packets that wait in `ingress`, by address.
    held: Vec<Packet>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Core {
    tenant: u32,
    job: Option<Job>,
}

/// A packet on a core.
#[derive(Debug)]
struct Job {
    packet: Packet,
    waited: Span,
    begun: Nanos,
    /// When it called the unit.
    called: Option<Nanos>,
}

impl Partition {
    /// Cores by tenant, as many as `cores` says; the last tenant stands for packets that are for none.
    pub(super) fn new(cores: &[u32], pools: Option<&[Station]>, behind: Behind, work: Takes) -> Self {
        let Behind { unit, cache } = behind;
        let owners = (0..).zip(cores).flat_map(|(tenant, &count)| (0..count).map(move |_| tenant));
        let cores_of: Vec<Core> = owners.map(|tenant| Core { tenant, job: None }).collect();
        let mut free = vec![Vec::new(); cores.len()];
        for (index, core) in (0..).zip(&cores_of) {
            free[core.tenant as usize].push(index);
        }
        Self {
            work,
            pools: pools
                .map_or(Pools::Shared(VecDeque::new()), |stations| Pools::Own(Box::new(Own::new(stations)))),
            free,
            cores: cores_of,
            due: BTreeSet::new(),
            unit,
            cache,
            spent_on: vec![Span::ZERO; cores.len()],
        }
    }

    /// Takes a packet into its pool; `false` when the pool is full.
    pub(super) fn offer(&mut self, spec: &ReceiveRing, came: Came) -> bool {
        let taken = match &mut self.pools {
            Pools::Shared(pool) if pool.len() >= spec.ring as usize => false,
            Pools::Shared(pool) => {
                pool.push_back(came);
                true
            }
            Pools::Own(own) => own.offer(came),
        };
        self.begin(spec, came.tenant, came.at);
        taken
    }

    /// When a core or the unit is done next.
    pub(super) fn next(&self) -> Option<Nanos> {
        let unit = self.unit.as_ref().and_then(Unit::next);
        self.due.first().map(|(at, _)| *at).into_iter().chain(unit).min()
    }

    /// Takes note of the next core that is done, or whose call is answered; returns the packet that it has processed.
    pub(super) fn finish(&mut self, spec: &ReceiveRing, now: Nanos) -> Option<(Packet, Fate)> {
        if let Some(unit) = self.unit.as_mut().filter(|unit| unit.next().is_some_and(|at| at <= now)) {
            let core = unit.finish(now)?;
            return Some(self.deliver(spec, core, now));
        }
        let (at, core) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        let tenant = self.cores[core as usize].tenant;
        if self.unit.as_mut().is_some_and(|unit| unit.call(tenant, core, now)) {
            let job = self.cores[core as usize].job.as_mut().expect("a core that is due has a packet");
            job.called = Some(now);
            return None;
        }
        Some(self.deliver(spec, core, now))
    }

    /// Ends a core's packet, and begins the next one.
    fn deliver(&mut self, spec: &ReceiveRing, core: u32, now: Nanos) -> (Packet, Fate) {
        let Core { tenant, job } = &mut self.cores[core as usize];
        let (tenant, job) = (*tenant, job.take().expect("a core that is done has a packet"));
        self.spent_on[tenant as usize] += now.since(job.begun);
        self.work.worked.note(job.begun, now);
        self.free[tenant as usize].push(core);
        self.begin(spec, tenant, now);
        let called = job.called.map(|at| now.since(at));
        (job.packet, Fate::Delivered { waited: job.waited, in_nic: job.waited, called })
    }

    /// Gives waiting packets to free cores, after something has changed for this tenant.
    fn begin(&mut self, spec: &ReceiveRing, tenant: u32, now: Nanos) {
        while let Some((core, came)) = self.pools.take(&mut self.free, tenant, now) {
            let waits = self.cache.as_mut().map_or(Span::ZERO, |cache| cache.process(came.tenant));
            self.work.spent += waits;
            let end = now + self.work.time(spec.cost) + waits;
            let waited = now.since(came.at);
            self.cores[core as usize].job =
                Some(Job { packet: came.packet, waited, begun: now, called: None });
            self.due.insert((end, core));
        }
    }

    /// The time for which a tenant's cores held packets.
    pub(super) fn spent_on(&self, tenant: u32) -> Span {
        self.spent_on.get(tenant as usize).copied().unwrap_or_default()
    }

    /// All packets that it holds.
    pub(super) fn holds(&self) -> Vec<&Packet> {
        let on_cores = self.cores.iter().filter_map(|core| Some(&core.job.as_ref()?.packet));
        match &self.pools {
            Pools::Shared(pool) => pool.iter().map(|came| &came.packet).chain(on_cores).collect(),
            Pools::Own(own) => own.holds().chain(on_cores).collect(),
        }
    }
}

impl Pools {
    /// Takes the next packet that a free core may process, and the core. Without shared buffers only `tenant`'s are
    /// asked.
    fn take(&mut self, free: &mut [Vec<u32>], tenant: u32, now: Nanos) -> Option<(u32, Came)> {
        match self {
            Self::Shared(pool) => {
                let core = free[pool.front()?.tenant as usize].pop()?;
                pool.pop_front().map(|came| (core, came))
            }
            Self::Own(own) => {
                let cores = &mut free[tenant as usize];
                cores.last()?;
                let came = own.take(tenant, now)?;
                cores.pop().map(|core| (core, came))
            }
        }
    }
}

impl Own {
    fn new(stations: &[Station]) -> Self {
        // A pool drops what does not fit, and holds nothing to a rate.
        let pools: Vec<Station> = stations.iter().map(|of| Station { ceiling: None, ..*of }).collect();
        Self { ingress: Ingress::new(&pools), held: Vec::new(), free: Vec::new() }
    }

    fn offer(&mut self, Came { at, tenant, packet }: Came) -> bool {
        let slot = self.free.last().copied().unwrap_or(self.held.len() as u32);
        let arrival = Arrival { addr: slot.into(), len: packet.len, at, ecn: packet.ecn() };
        if self.ingress.offer(tenant, arrival).is_err() {
            return false;
        }
        match self.free.pop() {
            Some(slot) => self.held[slot as usize] = packet,
            None => self.held.push(packet),
        }
        true
    }

    fn take(&mut self, tenant: u32, now: Nanos) -> Option<Came> {
        let (arrival, _) = self.ingress.take(tenant, now)?;
        let slot = u32::try_from(arrival.addr).expect("an index of `held`");
        self.free.push(slot);
        Some(Came { at: arrival.at, tenant, packet: self.held[slot as usize] })
    }

    fn holds(&self) -> impl Iterator<Item = &Packet> {
        let waiting = |tenant| self.ingress.waiting(tenant).map(|arrival| &self.held[arrival.addr as usize]);
        (0..self.ingress.tenants()).flat_map(waiting)
    }
}
