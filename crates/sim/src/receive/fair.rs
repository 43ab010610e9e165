//! A queue for each tenant behind a receive ring, served so that each has its share of the CPU.
//!
//! Why: a tenant that gets much, or whose program is slow, takes time from itself only.
//! From: PicNIC §5.2; the daemon's `dataplane/inward` and `dataplane/hosted`.
//! Not here: who is next (`nic`'s ingress), what a program does (`hosted`).
//! Invariant: the CPU does one piece of work at a time, and the time of a program's turn is its tenant's.

use std::collections::VecDeque;

use plimsoll_nic::{Arrival, Drain, Ingress, NotQueued, Station, Verdict};
use plimsoll_offload::Pace;
use plimsoll_scenario::ReceiveRing;
use plimsoll_units::{Nanos, Span};

use super::{Admits, Beside, Came, Fate, OVER_MAX, QUEUE_FULL, Takes};
use crate::hosted::{Hosted, Turn, Waits};
use crate::packet::Packet;
use crate::round::{Round, Step};

/// A queue for each tenant behind the ring.
#[derive(Debug)]
pub(super) struct Fair {
    pub(super) work: Takes,
    /// Packets in the NIC.
    ring: VecDeque<Came>,
    pub(super) ingress: Ingress,
    drain: Drain,
    /// Packets that wait in `ingress`, by address.
    fetched: Vec<(Packet, Nanos)>,
    free: Vec<u32>,
    /// The CPU's present piece of work, and its end.
    doing: Option<(Nanos, CpuWork)>,
    idle_since: Nanos,
    /// The progress of the round, if the CPU works by rounds.
    round: Round,
    /// Tenants' programs, by tenant; empty without any.
    programs: Vec<Option<Box<Hosted>>>,
    /// The tenant whose program has just ended a turn: until its packets are where they go, the CPU begins nothing.
    ended: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CpuWork {
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
    /// A turn of a tenant's program, with the packets that it takes.
    Turn {
        tenant: u32,
        cost: Span,
    },
}

impl Fair {
    pub(super) fn new(spec: &ReceiveRing, stations: &[Station], work: Takes) -> Self {
        Self {
            work,
            ring: VecDeque::new(),
            ingress: Ingress::new(stations),
            drain: Drain::new(spec.drain_share),
            fetched: Vec::new(),
            free: Vec::new(),
            doing: None,
            idle_since: Nanos::ZERO,
            round: Round::default(),
            programs: Vec::new(),
            ended: None,
        }
    }

    /// Takes a packet into the NIC; `false` when the ring is full.
    pub(super) fn offer(&mut self, spec: &ReceiveRing, came: Came, beside: &Beside<'_>) -> bool {
        if self.ring.len() >= spec.ring as usize {
            return false;
        }
        let now = came.at;
        self.ring.push_back(came);
        self.wake(spec, now, beside);
        true
    }

    /// Begins to work after the CPU had nothing to do.
    fn resume(&mut self, spec: &ReceiveRing, now: Nanos, beside: &Beside<'_>) {
        let idle = now.since(self.idle_since);
        self.drain.processed(idle);
        if spec.round > Span::ZERO {
            let cost = self.work.rest_of(spec.round, idle);
            self.work.worked.note(now, now + cost);
            self.doing = Some((now + cost, CpuWork::Rest));
        } else {
            self.begin(spec, now, beside);
        }
    }

    /// Ends the present piece of work, and begins the next one.
    pub(super) fn finish(
        &mut self,
        spec: &ReceiveRing,
        now: Nanos,
        admits: Admits<'_>,
        beside: &Beside<'_>,
    ) -> Option<(Packet, Fate)> {
        let Some((_, work)) = self.doing.take() else {
            // A tenant that has had its maximum may have its next packet, or a program ticks.
            self.resume(spec, now, beside);
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
            CpuWork::Turn { tenant, cost } => {
                self.drain.processed(cost);
                self.ingress.charge(tenant, cost, now);
                self.round.end_quantum();
                self.ended = Some(tenant);
                return None;
            }
            CpuWork::Drop(packet) => Some((packet, Fate::Dropped(OVER_MAX))),
            CpuWork::Rest => {
                self.round = Round::default();
                None
            }
        };
        self.begin(spec, now, beside);
        done
    }

    fn begin(&mut self, spec: &ReceiveRing, now: Nanos, beside: &Beside<'_>) {
        self.tend(now, beside);
        let step = if spec.round > Span::ZERO { self.in_rounds(now) } else { self.at_once(now) };
        self.doing = step.map(|step| self.take_on(step, spec, now, beside));
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

    fn take_on(
        &mut self,
        step: Step,
        spec: &ReceiveRing,
        now: Nanos,
        beside: &Beside<'_>,
    ) -> (Nanos, CpuWork) {
        match step {
            Step::Process(tenant) if self.program(tenant).is_some() => {
                let cost = self.turn(tenant, spec, now, beside);
                (now + cost, CpuWork::Turn { tenant, cost })
            }
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
        self.queue(Came { at, tenant, packet }, now).err().map(|why| (packet, Fate::Dropped(why)))
    }

    /// Puts a packet into its tenant's queue.
    fn queue(&mut self, Came { at, tenant, packet }: Came, now: Nanos) -> Result<(), &'static str> {
        let slot = self.free.last().copied().unwrap_or(self.fetched.len() as u32);
        let arrival = Arrival { addr: slot.into(), len: packet.len, at, ecn: packet.ecn() };
        self.ingress.offer(tenant, arrival).map_err(|why| match why {
            NotQueued::Full => QUEUE_FULL,
            NotQueued::OverMax => OVER_MAX,
        })?;
        match self.free.pop() {
            Some(slot) => self.fetched[slot as usize] = (packet, now),
            None => self.fetched.push((packet, now)),
        }
        Ok(())
    }

    pub(super) fn holds(&self) -> Vec<&Packet> {
        let waiting =
            |tenant| self.ingress.waiting(tenant).map(|arrival| &self.fetched[arrival.addr as usize].0);
        let processed = self.doing.iter().filter_map(|(_, work)| match work {
            CpuWork::Process { packet, .. } => Some(packet),
            CpuWork::Drop(packet) => Some(packet),
            CpuWork::Fetch { .. } | CpuWork::Turn { .. } | CpuWork::Rest => None,
        });
        let fetched = (0..self.ingress.tenants()).flat_map(waiting);
        let with_programs = self.programs.iter().flatten().flat_map(|hosted| hosted.holds());
        let waiting = self.ring.iter().map(|came| &came.packet).chain(fetched).chain(processed);
        waiting.chain(with_programs).collect()
    }

    /// Packets that wait, in the NIC or in tenants' queues.
    pub(super) fn waiting(&self) -> usize {
        self.ring.len() + self.fetched.len() - self.free.len()
    }

    /// When it has something to do next.
    pub(super) fn next(&self) -> Option<Nanos> {
        if let Some((at, _)) = self.doing {
            return Some(at);
        }
        let ticks = self.programs.iter().flatten().filter_map(|hosted| hosted.ticks_at());
        ticks.chain(self.ingress.due()).min()
    }

    /// Gives a tenant a program.
    pub(super) fn host(&mut self, tenant: u32, hosted: Box<Hosted>) {
        self.programs.resize_with(self.ingress.tenants() as usize, || None);
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
        self.queue(came, came.at)?;
        self.wake(spec, came.at, beside);
        Ok(())
    }

    /// Begins to work if there is something to do and the CPU does nothing.
    pub(super) fn wake(&mut self, spec: &ReceiveRing, now: Nanos, beside: &Beside<'_>) {
        if self.doing.is_none() && self.ended.is_none() {
            self.resume(spec, now, beside);
        }
    }

    /// What became of the packets of the turn that has just ended.
    pub(super) fn take_turn(&mut self) -> Option<Turn> {
        let hosted = self.program(self.ended?)?;
        Some(hosted.end_turn())
    }

    /// Goes on once the packets of a turn are where they go.
    pub(super) fn begin_next(&mut self, spec: &ReceiveRing, now: Nanos, beside: &Beside<'_>) {
        if self.ended.take().is_some() {
            self.begin(spec, now, beside);
        }
    }

    /// Lets programs have their turns that have work beside packets from the network.
    fn tend(&mut self, now: Nanos, beside: &Beside<'_>) {
        for (tenant, hosted) in (0..).zip(&self.programs) {
            let Some(hosted) = hosted else { continue };
            let has_work = hosted.has_work((beside.room)(tenant), now);
            self.ingress.set_work(tenant, has_work);
        }
    }

    /// Begins a turn of a tenant's program, with packets that wait for the tenant. Returns its CPU time.
    fn turn(&mut self, tenant: u32, spec: &ReceiveRing, now: Nanos, beside: &Beside<'_>) -> Span {
        let Some(Some(hosted)) = self.programs.get_mut(tenant as usize) else { return Span::ZERO };
        let mut taken = [(Arrival::NONE, Verdict::Pass); Pace::BATCH];
        let most = hosted.most_in().min(taken.len());
        let count = self.ingress.take_some(tenant, &mut taken[..most], now);
        let mut incoming = Vec::with_capacity(count);
        for (arrival, verdict) in &taken[..count] {
            let slot = u32::try_from(arrival.addr).expect("an index of `fetched`");
            self.free.push(slot);
            let (mut packet, fetched) = self.fetched[slot as usize];
            if *verdict == Verdict::Drop {
                hosted.lose(packet, OVER_MAX);
                continue;
            }
            packet.ce |= *verdict == Verdict::Mark;
            let waits = Waits { waited: now.since(arrival.at), in_nic: fetched.since(arrival.at) };
            incoming.push((packet, waits));
        }
        let mut cost = Span::ZERO;
        for _ in &incoming {
            cost += self.work.time(spec.cost);
        }
        let instructions = hosted.turn(&incoming, (beside.room)(tenant), beside.flows, now);
        self.work.spent += instructions;
        cost + instructions
    }
}
