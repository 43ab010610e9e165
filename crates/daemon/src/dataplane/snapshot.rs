//! The engine's counters, copied between two batches.
//!
//! Why: showing counters must not hold up the thread that counts.
//! From: one copy on request; `stats` adds names.
//! Not here: JSON, Prometheus, terminals.
//! Invariant: taking one costs time in proportion to classes, limits and ports, never to packets.

use std::sync::Arc;

use hdrhistogram::Histogram;
use plimsoll_nic::{ClassCounters, EngineStats, IngressCounters, LimitCounters, PcieWrites};
use plimsoll_policy::{Program, TenantId};
use plimsoll_ports::{Counters, Level, PairCounters, Port};
use plimsoll_slo::Parts;
use plimsoll_units::{BitRate, Nanos};

use super::drops::Tally;
use super::fleet::FleetNow;
use super::heavy::FlowsNow;
use super::hosted::ProgramNow;
use super::install::add_class;
use super::lane::Lane;
use super::leasing::LeasesNow;
use super::standby::StandbyNow;
use super::{Dataplane, Part};

/// All counters at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Nanos,
    /// The policy in force.
    pub program: Arc<Program>,
    /// How many reloads there have been, modulo 65,536.
    pub generation: u16,
    /// Classes, by [`plimsoll_policy::NodeId`]; inner nodes count nothing themselves.
    pub nodes: Vec<NodeNow>,
    /// Limits, by [`plimsoll_policy::LimitId`].
    pub limits: Vec<LimitCounters>,
    /// Tenants' ports.
    pub lanes: Vec<PortNow>,
    /// The uplink.
    pub uplink: PortNow,
    /// Its two ports, where it has a standby.
    pub standby: Option<StandbyNow>,
    /// The NIC engine's own counters.
    pub engine: EngineStats,
    /// Doorbells, as they would have crossed a bus.
    pub writes: PcieWrites,
    /// Rounds of the loop.
    pub turns: u64,
    /// Departures noted.
    pub departures: u64,
    /// Other hosts.
    pub fleet: Option<FleetNow>,
    /// Flows that are counted, if any are.
    pub flows: Option<FlowsNow>,
    /// How several threads share the link.
    pub leases: Option<LeasesNow>,
    /// Tenants that have moved from one thread to another, so many times.
    pub migrations: u64,
}

/// One node's counters, and its rate.
#[derive(Clone, Debug)]
pub struct NodeNow {
    /// Its rate in effect, below a `rate_share`: the file's, or one that an operator has set since.
    pub rate: Option<BitRate>,
    /// Frames and bytes.
    pub counters: ClassCounters,
    /// Nanoseconds from doorbell to port; for an inner node, only those of classes that no longer exist.
    pub delays: Option<Histogram<u64>>,
}

/// One port's counters.
#[derive(Clone, Debug)]
pub struct PortNow {
    /// The tenant's name; `uplink` for the uplink.
    pub name: String,
    /// Its lane; of several threads, its number.
    pub lane: Option<u32>,
    /// The thread that serves it, where there are several.
    pub thread: Option<u32>,
    /// The tenant in the policy; none for the uplink, and for one that a reload has removed.
    pub tenant: Option<TenantId>,
    /// The port's own name; none while it is lost.
    pub port: Option<String>,
    /// What its interface lacks of its configuration, and why.
    pub lacks: Option<String>,
    /// Of the uplink: whether its device is known to be down, or was when a frame was last to be sent.
    pub down: bool,
    /// The frames and bytes that it carried.
    pub counters: Counters,
    /// The port's capability level; none while it is lost.
    pub level: Option<Level>,
    /// Of a virtual machine's port, frames by pair of rings.
    pub pairs: Vec<PairCounters>,
    /// Losses and other events.
    pub tally: Tally,
    /// Flows that have a queue of their own.
    pub flows: u32,
    /// Buffers that hold a frame.
    pub buffers: u32,
    /// Descriptors in the engine.
    pub held: u32,
    /// Frames from the uplink for it; for the uplink, frames that were not for one tenant.
    pub ingress: IngressCounters,
    /// How many of these frames wait.
    pub waiting: u32,
    /// What a tenant's program has done, if it has one.
    pub program: Option<ProgramNow>,
    /// A tenant's delays, part by part.
    pub parts: Option<Box<Parts>>,
}

impl Dataplane {
    /// Copies all counters.
    pub fn snapshot(&mut self, now: Nanos) -> Snapshot {
        self.snapshot_by(&|_| now)
    }

    /// Like [`Dataplane::snapshot`], but reads the clock where a tenant's memory is touched.
    pub fn snapshot_by(&mut self, clock: &impl Fn(Part) -> Nanos) -> Snapshot {
        let now = clock(Part::Between);
        // An engine at rest has not looked for a while.
        self.count_known();
        self.tend_unmeasured(now);
        let mut pairs = self.all_pairs(clock);
        // Each of these calls walks over all flow queues or bundles, so each is made once for all names.
        let classes = self.scheduler.nic.all_class_counters();
        self.accounts.delays.settle();
        let delays = &self.accounts.delays;
        let nodes = (0..).zip(&self.scheduler.nic.program().nodes).zip(classes);
        let nodes = nodes.map(|((index, node), mut counters)| {
            if let Some(carried) = self.accounts.carried.classes.get(&node.name) {
                add_class(&mut counters, carried);
            }
            NodeNow { rate: node.rate, counters, delays: delays.get(index).cloned() }
        });
        let limits = self.scheduler.nic.all_limit_counters();
        let limits = self.policy.program.limits.iter().zip(limits).map(|(limit, mut counters)| {
            if let Some(carried) = self.accounts.carried.limits.get(&limit.name) {
                counters.packets += carried.packets;
                counters.bytes += carried.bytes;
                counters.parked += carried.parked;
                counters.released += carried.released;
            }
            counters
        });
        let (nodes, limits): (_, Vec<LimitCounters>) = (nodes.collect(), limits.collect());
        let fleet = self.fleet_now(&limits, now);
        let nic = &self.scheduler.nic;
        let held = |lane: &Lane| lane.tenant.map_or(0, |tenant| nic.tenant_counters(tenant).held);
        let inward = &self.inward;
        let common = inward.seen(None);
        let thread = self.threads.crossing.as_ref().map(|crossing| crossing.thread() as u32);
        let lanes = (0..).zip(&mut self.tenants.lanes);
        let lanes =
            lanes.filter_map(|(index, lane)| lane.as_mut().map(|lane| (index, lane))).map(|(index, lane)| {
                let (ingress, waiting) = inward.seen(Some(index));
                PortNow {
                    ingress,
                    waiting,
                    program: lane.program.as_ref().map(|hosted| hosted.now),
                    parts: Some(Box::new(lane.parts())),
                    name: lane.name.clone(),
                    lane: Some(if thread.is_some() { lane.seat.number } else { index }),
                    thread: thread.filter(|_| lane.seat.elsewhere.is_none()),
                    tenant: lane.tenant,
                    port: lane.port.as_ref().map(Port::name),
                    lacks: lane.port.as_ref().and_then(Port::lacks).map(str::to_owned),
                    down: false,
                    counters: lane.counters(),
                    level: lane.port.as_ref().map(Port::level),
                    pairs: core::mem::take(&mut pairs[index as usize]),
                    tally: lane.whole_tally(),
                    flows: lane.flows.len(),
                    buffers: u32::try_from(lane.pool.in_use()).unwrap_or(u32::MAX),
                    held: held(lane),
                }
            });
        Snapshot {
            at: now,
            program: Arc::clone(&self.policy.program),
            generation: self.policy.generation,
            nodes,
            limits,
            lanes: lanes.collect(),
            uplink: PortNow {
                name: "uplink".to_owned(),
                lane: None,
                thread: None,
                tenant: None,
                port: self.uplink.port.as_ref().map(Port::name),
                lacks: None,
                down: self.uplink.down || self.uplink.port.as_ref().is_some_and(Port::is_down),
                counters: self.uplink.counters(),
                level: None,
                pairs: Vec::new(),
                tally: self.uplink.tally.clone(),
                flows: 0,
                buffers: 0,
                held: 0,
                ingress: common.0,
                waiting: common.1,
                program: None,
                parts: None,
            },
            standby: self.uplink.standby_now(now),
            engine: self.scheduler.nic.stats(),
            writes: self.scheduler.doorbells.writes(),
            turns: self.accounts.turns,
            departures: self.accounts.log.written(),
            fleet,
            flows: self.backpressure.heavy.as_ref().map(|heavy| heavy.totals()),
            leases: self.leases(),
            migrations: self.threads.taken_over,
        }
    }
}
