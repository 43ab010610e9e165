//! A SmartNIC's cores, each of one tenant, between the buffers that hold received packets, a coprocessor and a cache.
//!
//! Why: FairNIC gives each tenant cores of its own; tenants still meet in a shared buffer pool, and in a shared unit.
//! From: FairNIC §3.1.2 and §4.2.1 (pools), §4.1 (cores), §3.4 (units).
//! Not here: the pools of tenants (`nic`'s ingress, as live), the limiter (`plimsoll-smartnic`), what programs do (`hosted`): a
//! packet takes `cost` of a core, the time that it waits for lines of its program's memory, the time of its program's instructions, and
//! that of its call of the unit.
//! Invariant: a core has at most one packet from the network, of its tenant; a core that waits for the unit does nothing else.

use std::collections::{BTreeSet, VecDeque};

use plimsoll_nic::{Arrival, Ingress, Station};
use plimsoll_scenario::ReceiveRing;
use plimsoll_units::{Nanos, Span};

use super::cache::Lines;
use super::unit::Unit;
use super::{Beside, Came, Fate, Takes};
use crate::hosted::{Hosted, Turn, Waits};
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
    /// Tenants' programs, by tenant; empty without any. All cores of a tenant run one.
    programs: Vec<Option<Box<Hosted>>>,
    /// By tenant: packets that its programs' turns are going to send.
    sending: Vec<u32>,
    /// The turn that has just ended, until its packets are where they go: before that, its core begins nothing, and the descriptors that
    /// they are to use are taken.
    ended: Option<Over>,
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

/// A turn that has ended.
#[derive(Debug)]
struct Over {
    core: u32,
    sends: u32,
    /// None once it was taken.
    turn: Option<Turn>,
}

/// What a core does.
#[derive(Debug)]
struct Job {
    work: CoreWork,
    begun: Nanos,
    /// When it called the unit.
    called: Option<Nanos>,
}

#[derive(Debug)]
enum CoreWork {
    /// Processes a packet, which waited this long.
    Packet(Packet, Span),
    /// Runs its tenant's program.
    Turn(Turn),
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
            programs: Vec::new(),
            sending: vec![0; cores.len()],
            ended: None,
        }
    }

    /// Takes a packet into its pool; `false` when the pool is full.
    pub(super) fn offer(&mut self, spec: &ReceiveRing, came: Came, beside: &Beside<'_>) -> bool {
        let taken = match &mut self.pools {
            Pools::Shared(pool) if pool.len() >= spec.ring as usize => false,
            Pools::Shared(pool) => {
                pool.push_back(came);
                true
            }
            Pools::Own(own) => own.offer(came),
        };
        self.begin(spec, came.tenant, came.at, beside);
        taken
    }

    /// When a core or the unit is done next.
    pub(super) fn next(&self) -> Option<Nanos> {
        let unit = self.unit.as_ref().and_then(Unit::next);
        // A tenant whose cores are all at work ticks when one is done.
        let ticking = self.programs.iter().zip(&self.free).filter(|(_, free)| !free.is_empty());
        let ticks = ticking.filter_map(|(hosted, _)| hosted.as_ref()?.ticks_at());
        self.due.first().map(|(at, _)| *at).into_iter().chain(unit).chain(ticks).min()
    }

    /// Takes note of the next core that is done, or whose call is answered; returns the packet that it has processed.
    pub(super) fn finish(
        &mut self,
        spec: &ReceiveRing,
        now: Nanos,
        beside: &Beside<'_>,
    ) -> Option<(Packet, Fate)> {
        if let Some(unit) = self.unit.as_mut().filter(|unit| unit.next().is_some_and(|at| at <= now)) {
            let core = unit.finish(now)?;
            return self.deliver(spec, core, now, beside);
        }
        let Some((_, core)) = self.due.first().copied().filter(|(at, _)| *at <= now) else {
            self.wake(spec, now, beside); // a program ticks
            return None;
        };
        self.due.pop_first();
        let Core { tenant, job } = &mut self.cores[core as usize];
        let job = job.as_mut().expect("a core that is due has work");
        let may_call = !matches!(&job.work, CoreWork::Turn(turn) if !turn.has_come());
        if may_call && self.unit.as_mut().is_some_and(|unit| unit.call(*tenant, core, now)) {
            job.called = Some(now);
            return None;
        }
        self.deliver(spec, core, now, beside)
    }

    /// Ends what a core does. It begins its next packet, but for a turn of a program, whose packets go where they go before.
    fn deliver(
        &mut self,
        spec: &ReceiveRing,
        core: u32,
        now: Nanos,
        beside: &Beside<'_>,
    ) -> Option<(Packet, Fate)> {
        let Core { tenant, job } = &mut self.cores[core as usize];
        let (tenant, job) = (*tenant, job.take().expect("a core that is done had work"));
        self.spent_on[tenant as usize] += now.since(job.begun);
        self.work.worked.note(job.begun, now);
        let called = job.called.map(|at| now.since(at));
        match job.work {
            CoreWork::Packet(packet, waited) => {
                self.free[tenant as usize].push(core);
                self.begin(spec, tenant, now, beside);
                Some((packet, Fate::Delivered { waited, in_nic: waited, called }))
            }
            CoreWork::Turn(turn) => {
                let (sends, turn) = (turn.sends(), Some(Turn { called, ..turn }));
                self.ended = Some(Over { core, sends, turn });
                None
            }
        }
    }

    /// Gives waiting packets to free cores, after something has changed for this tenant.
    pub(super) fn begin(&mut self, spec: &ReceiveRing, tenant: u32, now: Nanos, beside: &Beside<'_>) {
        while let Some((core, came)) = self.pools.take(&mut self.free, tenant, now) {
            let stalls = self.cache.as_mut().map_or(Span::ZERO, |cache| cache.process(came.tenant));
            self.work.spent += stalls;
            let (cost, waited) = (self.work.time(spec.cost) + stalls, now.since(came.at));
            let waits = Waits { waited, in_nic: waited };
            match self.turn(came.tenant, &[(came.packet, waits)], now, beside) {
                Some((took, turn)) => self.set(core, CoreWork::Turn(turn), now, cost + took),
                None => self.set(core, CoreWork::Packet(came.packet, waited), now, cost),
            }
        }
        // What a tenant sends waits for the cores that packets from the network leave free.
        while let Some(core) = self.core_for_work(tenant, now, beside) {
            let Some((took, turn)) = self.turn(tenant, &[], now, beside) else { return };
            self.set(core, CoreWork::Turn(turn), now, took);
        }
    }

    /// A free core of a tenant, if its program has work beside packets from the network.
    fn core_for_work(&mut self, tenant: u32, now: Nanos, beside: &Beside<'_>) -> Option<u32> {
        let room = self.room(tenant, beside);
        let hosted = self.programs.get(tenant as usize)?.as_ref()?;
        if hosted.has_work(room, now) { self.free[tenant as usize].pop() } else { None }
    }

    fn set(&mut self, core: u32, work: CoreWork, now: Nanos, takes: Span) {
        self.cores[core as usize].job = Some(Job { work, begun: now, called: None });
        self.due.insert((now + takes, core));
    }

    /// Runs a tenant's program with these packets from the network. Returns how long its instructions take; `None` without a program.
    fn turn(
        &mut self,
        tenant: u32,
        incoming: &[(Packet, Waits)],
        now: Nanos,
        beside: &Beside<'_>,
    ) -> Option<(Span, Turn)> {
        let room = self.room(tenant, beside);
        let hosted = self.programs.get_mut(tenant as usize)?.as_mut()?;
        let took = hosted.turn(incoming, room, beside.flows, now);
        let turn = hosted.end_turn();
        self.work.spent += took;
        self.sending[tenant as usize] += turn.sends();
        Some((took, turn))
    }

    /// Descriptors that a tenant's program may use, beside those that its turns at work are going to use.
    fn room(&self, tenant: u32, beside: &Beside<'_>) -> u32 {
        (beside.room)(tenant).saturating_sub(self.sending[tenant as usize])
    }

    /// Gives a tenant a program.
    pub(super) fn host(&mut self, tenant: u32, hosted: Box<Hosted>) {
        self.programs.resize_with(self.free.len(), || None);
        self.programs[tenant as usize] = Some(hosted);
    }

    pub(super) fn programs(&self) -> &[Option<Box<Hosted>>] {
        &self.programs
    }

    pub(super) fn program(&mut self, tenant: u32) -> Option<&mut Hosted> {
        self.programs.get_mut(tenant as usize)?.as_deref_mut()
    }

    /// Puts a packet from another tenant of this host where a program finds it.
    pub(super) fn offer_inside(
        &mut self,
        spec: &ReceiveRing,
        came: Came,
        beside: &Beside<'_>,
    ) -> Result<(), &'static str> {
        if self.offer(spec, came, beside) { Ok(()) } else { Err(super::QUEUE_FULL) }
    }

    /// Lets programs run that have work.
    pub(super) fn wake(&mut self, spec: &ReceiveRing, now: Nanos, beside: &Beside<'_>) {
        for tenant in 0..self.programs.len() as u32 {
            self.begin(spec, tenant, now, beside);
        }
    }

    /// What became of the packets of the turn that has just ended.
    pub(super) fn take_turn(&mut self) -> Option<Turn> {
        self.ended.as_mut()?.turn.take()
    }

    /// Goes on once the packets of a turn are where they go.
    pub(super) fn begin_next(&mut self, spec: &ReceiveRing, now: Nanos, beside: &Beside<'_>) {
        let Some(Over { core, sends, .. }) = self.ended.take() else { return };
        let tenant = self.cores[core as usize].tenant;
        self.sending[tenant as usize] -= sends;
        self.free[tenant as usize].push(core);
        self.begin(spec, tenant, now, beside);
    }

    /// The time for which a tenant's cores held packets.
    pub(super) fn spent_on(&self, tenant: u32) -> Span {
        self.spent_on.get(tenant as usize).copied().unwrap_or_default()
    }

    /// Packets whose senders get their buffers back once a turn ends.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = &Packet> {
        let jobs = self.cores.iter().filter_map(|core| core.job.as_ref());
        jobs.filter_map(|job| match &job.work {
            CoreWork::Turn(turn) => Some(&turn.freed),
            CoreWork::Packet(..) => None,
        })
        .flatten()
    }

    /// All packets that it holds.
    pub(super) fn holds(&self) -> Vec<&Packet> {
        let jobs = self.cores.iter().filter_map(|core| core.job.as_ref());
        let mut held: Vec<&Packet> = Vec::new();
        for job in jobs {
            match &job.work {
                CoreWork::Packet(packet, _) => held.push(packet),
                CoreWork::Turn(turn) => held.extend(turn.holds()),
            }
        }
        held.extend(self.programs.iter().flatten().flat_map(|hosted| hosted.holds()));
        match &self.pools {
            Pools::Shared(pool) => held.extend(pool.iter().map(|came| &came.packet)),
            Pools::Own(own) => held.extend(own.holds()),
        }
        held
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
