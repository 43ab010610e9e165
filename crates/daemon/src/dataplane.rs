//! The engine's loop: reads tenants' ports, and sends in the policy's order.
//!
//! Why: one thread owns every port and the NIC engine, so that a packet meets no lock.
//! From: `docs/architecture.md`, "live".
//! Not here: waiting and clocks (`thread`), the order itself (`nic`), a reload's preparation (`control`).
//! Invariant: a turn reads at most [`BATCH`] frames of a port that must be read and sends a bounded number; every frame
//! leaves, waits, or is counted with its reason.

mod apart;
mod backpressure;
mod binding;
mod blame;
mod class_delays;
mod cpu;
mod crossing;
mod depart;
mod drops;
mod due;
mod emit;
mod fleet;
mod flow_cache;
mod flows;
mod heavy;
mod hosted;
mod install;
mod inward;
mod lane;
mod leased;
mod leasing;
mod load;
mod mac_table;
mod mediate;
mod merge;
mod migrate;
mod naps;
mod outward;
mod paced;
mod parked;
mod policy;
mod pool;
mod posted;
mod press;
mod probe;
mod queues;
mod rates;
mod round_trips;
mod rules;
mod scheduler;
mod setup;
mod several;
mod short;
mod snapshot;
mod sources;
mod standby;
mod tenants;
mod units;
mod verify;
mod watch;

use std::fmt;
use std::sync::Arc;

use plimsoll_nic::{Config, Nic};
use plimsoll_policy::{Fields, Grain, Metadata, Program, Sources, TenantId};
use plimsoll_ports::{Port, PortError};
use plimsoll_record::Recorder;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Parsed;
use serde::{Deserialize, Serialize};

use apart::Charged;
pub use apart::{Move, Whither};
pub use cpu::{Core, ThisCore};
pub use crossing::{Crossing, Seat};
pub use drops::{Event, Loss, Tally};
pub use fleet::{
    AskedBy, AskedNow, FleetMap, FleetNow, FleetSetup, HostNow, HostState, PairNow, ReceiverNow, Sent,
    own_mac,
};
pub use flows::{Flow, FlowSlots, FlowTable, Lookup, Slot};
pub use heavy::{Counting, FlowsNow, HeavyFlow, HeavyFlows, HeavyNow, PressedNow, WatchedNow};
pub(crate) use hosted::RESERVED;
pub use hosted::{Hosted, ProgramNow};
pub use install::{Change, Installed};
pub(crate) use inward::COMMON;
pub use lane::{Lane, LaneSpec};
pub use leasing::{LeaseRoom, LeasesNow, Leasing};
#[cfg(test)]
pub(crate) use load::Newest;
pub use load::Sampled;
pub use mac_table::{Learned, Mac, MacTable, Owner};
pub use mediate::{Guest, Mediating};
pub(crate) use merge::add_watched;
pub use migrate::Migration;
pub(crate) use naps::ALONE;
pub use plimsoll_control::backpressure::Means;
pub use pool::{Buffer, Held, LARGE, Pool, SMALL};
use posted::status_of;
pub(crate) use press::method;
pub use rates::{RateError, Rated};
pub use setup::{engine_config, fleet_map, lane_spec};
pub(crate) use several::thread_of;
pub use several::{SeveralError, several};
pub use snapshot::{NodeNow, PortNow, Snapshot};
pub use standby::{OnePort, Place, StandbyChange, StandbyNow};
pub use units::{UnitWeights, Units};
pub use verify::{Sampler, Step};

use crate::departures::DepartureLog;

/// Frames read from one port in a turn: enough to pay for the system calls around them, few enough that no port
/// keeps the others waiting for more than some tens of microseconds.
pub const BATCH: usize = 32;

/// Most frames sent before the way in has its turn.
const DEPARTURES: usize = 64;

/// Most rounds of departures and arrivals before tenants are read again: one for each [`DEPARTURES`] frames read, so that
/// a turn sends as many frames as it reads.
const ROUNDS: usize = 32;

/// How soon frames are offered again to an uplink that had no room: some packets' time at 1 Gb/s.
const FULL_RETRY: Span = Span::micros(50);

/// How soon frames are offered again to an uplink that is down or gone: people have to repair it, so it need not be soon.
const DOWN_RETRY: Span = Span::millis(5);

/// The parts of a turn, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Time since the turn before.
    Between,
    /// Control between hosts: receivers' decisions and feedback.
    Fleet,
    /// Tenants' ports: their frames are classified and posted.
    Read,
    /// Departures: frames are scheduled, held to limits, wrapped and sent. Alternates with the way in.
    Depart,
    /// The uplink: frames are fetched, unwrapped, classified and queued.
    Fetch,
    /// Queued frames are delivered, each tenant's by its share.
    Deliver,
    /// Completions, flushes, and flows that have ended.
    Complete,
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether anything moved: if so, another turn may find more at once.
    pub busy: bool,
    /// Frames that were read from tenants, and fetched or delivered from the uplink.
    pub moved: usize,
    /// When the next event is due without new frames; the wake-up must be in time for it.
    pub next: Option<Nanos>,
    /// Like `next`, but for events that may be as late as a wake-up is.
    pub lazily: Option<Nanos>,
    /// How soon to offer frames again that wait for the uplink, or in a port.
    pub retry: Option<Span>,
    /// Whether packets wait, and all of them for their tenants' `max`.
    pub limited: bool,
    /// Whether frames have moved of a tenant that was not held to its `max` in the last second.
    pub unlimited: bool,
}

/// The parts that an engine is made from.
#[derive(Debug)]
pub struct Setup {
    /// The policy.
    pub program: Arc<Program>,
    /// Sizes of the NIC engine.
    pub config: Config,
    /// The uplink's port.
    pub uplink: Port,
    /// A lane for each tenant.
    pub lanes: Vec<LaneSpec>,
    /// The departure log.
    pub log: Arc<DepartureLog>,
    /// The fleet, if this host is in one.
    pub fleet: Option<FleetSetup>,
}

/// Ports, flows and the NIC engine, driven by [`Dataplane::turn`].
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_daemon::{DepartureLog, Dataplane, Setup, engine_config, lane_spec};
/// use plimsoll_ports::{MemoryConfig, MemoryPort, Port};
/// use plimsoll_units::Nanos;
///
/// let text = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}";
/// let checked = plimsoll_policy::check_str("demo.yaml", text)?;
/// let (uplink, mut wire) = MemoryPort::pair("uplink", MemoryConfig::default())?;
/// let (port, mut shop) = MemoryPort::pair("shop", MemoryConfig::default())?;
/// let uplink = Port::Memory(uplink);
/// let mut engine = Dataplane::new(Setup {
///     program: Arc::new(checked.program.clone()),
///     config: engine_config(&checked, &uplink),
///     uplink,
///     lanes: vec![lane_spec(&checked, "shop", Some(Port::Memory(port)))],
///     log: Arc::new(DepartureLog::default()),
///     fleet: None,
/// });
///
/// shop.send(&[2; 60], None).expect("the engine's end is there");
/// engine.turn(Nanos::ZERO);
/// let mut frame = [0; 2_048];
/// let received = wire.receive(&mut frame).expect("the engine's end is there");
/// assert_eq!(received.map(|received| received.len), Some(60));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Dataplane {
    pub(crate) policy: policy::InForce,
    pub(crate) scheduler: scheduler::Scheduler,
    pub(crate) tenants: tenants::Tenants,
    pub(crate) uplink: Uplink,
    pub(crate) macs: MacTable,
    pub(crate) inward: inward::Inward,
    /// Other hosts, where this one is in a fleet.
    pub(crate) fleet: Option<Box<fleet::Fleet>>,
    pub(crate) backpressure: backpressure::Backpressure,
    pub(crate) threads: Threads,
    pub(crate) verifying: verify::Verifying,
    pub(crate) accounts: Accounts,
    pub(crate) due: due::Due,
    pub(crate) buffers: Buffers,
    /// How long copies into and out of tenants' memory take.
    pub(crate) copying: apart::Copying,
    pub(crate) copies: depart::Copies,
    /// Coprocessors for tenants' programs, where the policy has weights at some.
    pub(crate) units: Option<Box<Units>>,
}

/// Other threads under the same policy.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// The way to their data planes, where there are any.
    pub(crate) crossing: Option<Box<Crossing>>,
    /// This one's part of the policy, where there are others.
    pub(crate) leasing: Option<Box<leasing::Leasing>>,
    /// Tenants that have come from other threads.
    pub(crate) taken_over: u64,
}

/// What is noted for operators.
#[derive(Debug)]
pub(crate) struct Accounts {
    pub(crate) log: Arc<DepartureLog>,
    pub(crate) delays: class_delays::ClassDelays,
    /// Counters of tenants and classes that are gone.
    pub(crate) carried: install::Carried,
    /// Ports that have disappeared, for the control thread.
    pub(crate) lost: Vec<Lost>,
    pub(crate) turns: u64,
}

/// Memory for one frame or one batch at a time.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) scratch: Vec<u8>,
    pub(crate) landing: Vec<u8>,
    /// Empty between two batches.
    pub(crate) batch: Vec<posted::Copied>,
    /// The lanes of which frames have moved in this turn; some may be there several times.
    moved: Vec<usize>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            scratch: vec![0; LARGE],
            landing: vec![0; LARGE],
            batch: Vec::with_capacity(posted::POSTED),
            moved: Vec::with_capacity(posted::POSTED),
        }
    }
}

/// The uplink's port, and its state.
#[derive(Debug)]
pub(crate) struct Uplink {
    /// The active port, of two with `standby`.
    pub(crate) port: Option<Port>,
    pub(crate) standby: Option<Box<standby::Standby>>,
    /// What the log says of the carrier of the only port.
    alone: standby::carriers::Alone,
    pub(crate) past: plimsoll_ports::Counters,
    pub(crate) ready: bool,
    pub(crate) blocked: bool,
    /// Whether the port cuts segments itself; while it is lost, whether the last one did.
    pub(crate) segments: bool,
    /// Payload bytes of the waiting pull that have left already.
    pub(crate) resume: u32,
    /// Not zero while the waiting pull is for all other hosts and has left to some; each link counts how much (`fleet`).
    pub(crate) flooded: usize,
    pub(crate) down: bool,
    pub(crate) tally: Tally,
    /// Frames that the port could not take and that count for their senders.
    pub(crate) blamed: lane::Blamed,
    pub(crate) senders: blame::Senders,
}

impl Uplink {
    /// With this port as the only one; `whole` in a fleet, whose packets the port need not cut.
    fn new(port: Port, whole: bool) -> Self {
        Self {
            segments: fleet::cuts_segments(&port, whole),
            port: Some(port),
            standby: None,
            alone: standby::carriers::Alone::default(),
            past: plimsoll_ports::Counters::default(),
            ready: true,
            blocked: false,
            resume: 0,
            flooded: 0,
            down: false,
            tally: Tally::default(),
            blamed: lane::Blamed::default(),
            senders: blame::Senders::default(),
        }
    }

    /// Whether it is down or gone, rather than full.
    fn is_away(&self) -> bool {
        self.down || self.port.is_none()
    }
}

/// The owner of a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Whose {
    /// This tenant.
    Tenant(String),
    /// The uplink, for its `port`.
    Uplink,
    /// The uplink, for its `standby`.
    Standby,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(name) => write!(f, "tenant {name}"),
            Self::Uplink => f.write_str("the uplink"),
            Self::Standby => f.write_str("the standby uplink"),
        }
    }
}

/// A port that has disappeared.
#[derive(Debug)]
pub struct Lost {
    /// Its tenant's lane; none for the uplink.
    pub lane: Option<u32>,
    /// Its owner.
    pub whose: Whose,
    /// The port, to be closed by another thread.
    pub port: Box<Port>,
}

impl Dataplane {
    /// Allocates everything that the configuration allows for.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let nodes = setup.program.nodes.len();
        let tenants = tenants::Tenants::new(setup.lanes);
        let lanes = &tenants.lanes;
        let whole = setup.fleet.is_some();
        let fleet = setup.fleet.map(|fleet| Box::new(fleet::Fleet::new(fleet, lanes, &setup.program)));
        let mut engine = Self {
            scheduler: scheduler::Scheduler::new(&setup.program, &setup.config, lanes.len()),
            uplink: Uplink::new(setup.uplink, whole),
            macs: MacTable::new(lanes.len() + 1),
            inward: inward::Inward::new(&setup.program, lanes),
            fleet,
            backpressure: backpressure::Backpressure::default(),
            threads: Threads::default(),
            verifying: verify::Verifying::default(),
            accounts: Accounts {
                log: setup.log,
                delays: class_delays::ClassDelays::new(nodes),
                carried: install::Carried::default(),
                lost: Vec::new(),
                turns: 0,
            },
            due: due::Due::default(),
            buffers: Buffers::default(),
            copying: apart::Copying::default(),
            copies: depart::Copies::default(),
            units: None,
            policy: policy::InForce::new(setup.program),
            tenants,
        };
        engine.share_queues();
        engine.pin_addresses();
        engine.set_halves();
        engine.note_mediated();
        engine
    }

    /// Records the NIC engine's inputs and decisions from now on. `sources` are the policy's files. To be called before any
    /// frame is sent.
    pub fn record(&mut self, recorder: Recorder, sources: &Sources) {
        self.scheduler.nic.record(recorder, sources);
    }

    /// One round: read, schedule, send, forward, free. `now` must not run backwards.
    pub fn turn(&mut self, now: Nanos) -> Turn {
        self.turn_by(&|_| now)
    }

    /// Like [`Dataplane::turn`], but reads the clock after each part of the round, so that times measured in a long round are
    /// right. The clock is told which part has ended; the last one ends with the turn.
    pub fn turn_by(&mut self, clock: &impl Fn(Part) -> Nanos) -> Turn {
        self.turn_on(&mut ThisCore, clock)
    }

    /// Like [`Dataplane::turn_by`], with the way in on the given core; an experiment's may be slower than this machine's.
    pub fn turn_on(&mut self, core: &mut impl Core, clock: &impl Fn(Part) -> Nanos) -> Turn {
        self.accounts.turns += 1;
        self.due.begin();
        let begun = clock(Part::Between);
        let tended = self.tend_fleet(begun);
        // A look at the clock costs as much as a packet's way through the tree.
        let now = if self.fleet.is_some() { clock(Part::Fleet) } else { begun };
        let probes = Some(self.probe_ports(now));
        let looks = self.tend_standby(now);
        let apart = self.tend_apart(now);
        let units = self.tend_units(now);
        let ticks = self.tend_programs(now);
        self.take_newest_lease(now);
        let released = self.release_paced(now) + self.come_across(now);
        let read = released + if self.tenants.reading { self.read_tenants(now, clock) } else { 0 };
        self.tell_others();
        // As many frames leave as were read, in rounds, so that the way in and the clock do not wait for all of them.
        let (mut busy, mut moved, mut ended) = (read > 0, read, Part::Read);
        for _ in 0..read.div_ceil(DEPARTURES).clamp(1, ROUNDS) {
            let begun = clock(std::mem::replace(&mut ended, Part::Deliver));
            let left = self.depart(begun);
            let came = self.take_in(core, begun, clock);
            (busy, moved) = (busy || came > 0 || left, moved + came);
            if !left {
                break;
            }
        }
        let now = clock(ended);
        self.free_completed(now);
        let kept = self.flush_lanes();
        let after = clock(Part::Complete);
        self.part_took(after.since(now), Charged::No, after);
        self.expire_flows(now);
        self.tend_flows(core, now);
        self.tend_mediated(now);
        self.fleet.iter_mut().for_each(|fleet| fleet.turned = now);
        let tells = self.finish_crossing(now);
        let renewal = self.renew(busy, now);
        let (next, limited) = self.next_due();
        let lazily =
            [tended, probes, looks, apart, core.free_at(), self.due.release_at, units, ticks, tells, renewal]
                .into_iter()
                .flatten()
                .min();
        let pause = if self.uplink.is_away() { DOWN_RETRY } else { FULL_RETRY };
        let retry = (self.uplink.blocked || kept).then_some(pause);
        let unlimited = self.have_moved_unlimited(limited, now) || released > 0;
        Turn { busy: busy || self.due.attentive, moved, next, lazily, retry, limited, unlimited }
    }

    /// How long the thread may sleep while packets wait for a rate.
    #[must_use]
    pub fn grain(&self) -> &Grain {
        &self.policy.grain
    }

    /// Whether the thread is to spin while packets pass.
    #[must_use]
    pub fn spins(&self) -> bool {
        self.policy.grain.spins
    }

    /// Stops reading tenants' ports; frames that are held still leave.
    pub fn stop_reading(&mut self) {
        self.tenants.reading = false;
    }

    /// Descriptors that have not completed.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.scheduler.nic.stats().held
    }

    /// Notes that the port behind `token` may have frames: a lane's, or the uplink when absent.
    pub fn ready(&mut self, token: Option<u32>) {
        match token {
            None => self.uplink_ready(),
            Some(lane) => {
                if let Some(lane) = self.tenants.lane(lane) {
                    lane.ready = true;
                }
            }
        }
    }

    /// Notes that every port may have frames, as after a change of ports.
    pub fn all_ready(&mut self) {
        self.uplink_ready();
        self.tenants.all().for_each(|lane| lane.ready = true);
    }

    /// Whether some port cannot be waited for.
    #[must_use]
    pub fn must_be_asked(&self) -> bool {
        self.ports().any(|(_, port)| port.must_be_asked())
    }

    /// Ports that have disappeared since the last call.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        core::mem::take(&mut self.accounts.lost)
    }

    /// Whether any port has disappeared since [`Dataplane::take_lost`].
    #[must_use]
    pub fn has_lost(&self) -> bool {
        !self.accounts.lost.is_empty()
    }

    /// Why ports lose frames, each reason once, with the port's owner.
    pub fn take_problems(&mut self) -> Vec<(Whose, PortError)> {
        let active = self.uplink.active();
        let uplink = self.uplink.port.as_mut().and_then(Port::take_problem).map(|problem| (active, problem));
        let idle = self.uplink.take_idle_problem();
        let lanes = self.tenants.all();
        let lanes = lanes.filter_map(|lane| {
            let problem = lane.port.as_mut()?.take_problem()?;
            Some((Whose::Tenant(lane.name.clone()), problem))
        });
        lanes.chain(uplink).chain(idle).collect()
    }

    /// Sets the sampler, which draws packets that are classified again after a client has classified them.
    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.verifying.sampler = sampler;
    }

    /// Counts the flows of these tenants from now on. `heavy` is made for them.
    pub fn count_flows(&mut self, counting: &Counting, mut heavy: Box<HeavyFlows>, now: Nanos) {
        heavy.begin(now);
        heavy.set_tenants(counting, &self.tenants.lanes);
        // What headers decide may be something else from now on.
        self.policy.changes += 1;
        self.count_known();
        self.inward.forget_flows();
        self.backpressure.heavy = Some(heavy);
    }

    /// The flows that are heavy hitters; `None` where no flow is counted.
    pub fn heavy(&mut self, now: Nanos) -> Option<HeavyNow> {
        // An engine at rest has not looked for a while.
        self.count_known();
        self.tend_unmeasured(now);
        let elsewhere = |network, from| self.fleet.as_ref()?.map.sender(network, from);
        self.backpressure.heavy.as_mut().map(|heavy| heavy.now(&self.tenants.lanes, elsewhere, now))
    }

    /// Has one in `one_in` of clients' packets classified again; 0: none.
    pub fn set_verify(&mut self, one_in: u32) {
        self.verifying.sampler.set(one_in);
    }

    /// Consequences of clients' wrong packets since the last call, with the tenants' names.
    pub fn take_steps(&mut self) -> Vec<(String, Step)> {
        let lanes = &self.tenants.lanes;
        let name = |lane: usize| lanes.get(lane)?.as_ref().map(|lane| lane.name.clone());
        self.verifying.steps.drain(..).filter_map(|(lane, step)| Some((name(lane)?, step))).collect()
    }

    /// The NIC engine, for questions.
    #[must_use]
    pub fn nic(&self) -> &Nic {
        &self.scheduler.nic
    }

    /// Every port, with its token, for waiting.
    pub fn ports(&self) -> impl Iterator<Item = (Option<u32>, &Port)> {
        let lanes = (0..)
            .zip(&self.tenants.lanes)
            .filter_map(|(index, lane)| Some((Some(index), lane.as_ref()?.port.as_ref()?)));
        lanes.chain(self.uplink.port.iter().chain(self.uplink.idle()).map(|port| (None, port)))
    }

    /// Frees the buffers of frames that have left, and queues frames that are parked behind them.
    pub(super) fn free_completed(&mut self, now: Nanos) {
        let mut unparked = false;
        while let Some(done) = self.scheduler.nic.poll_completion() {
            let (index, buffer) = Buffer::from_address(done.addr);
            let Some(lane) = self.tenants.lane(index) else {
                continue;
            };
            lane.conduct.touched = self.copying.part;
            let frames = lane.give_held(buffer, status_of(done.outcome));
            self.scheduler.completed(done.queue, frames);
            if !lane.parked.is_empty() {
                unparked |= self.unpark(index as usize, done.queue);
            }
        }
        if unparked {
            self.scheduler.ring(now);
        }
    }

    /// Notes that a tenant's port has disappeared, if it has, for the control thread.
    pub(crate) fn note_lost_lane(&mut self, index: usize, port: Option<Port>) {
        let Some(port) = port else { return };
        self.note_parted(index, &port);
        let lane = u32::try_from(index).ok();
        if let Some(lane) = lane {
            self.macs.forget(Owner::Lane(lane));
        }
        let name = self.tenants.lanes.get(index).and_then(Option::as_ref).map(|lane| lane.name.clone());
        self.note_lost(Whose::Tenant(name.unwrap_or_default()), lane, port);
    }

    /// Notes a port that has disappeared, for the control thread.
    pub(crate) fn note_lost(&mut self, whose: Whose, lane: Option<u32>, port: Port) {
        self.accounts.lost.push(Lost { lane, whose, port: Box::new(port) });
    }
}

/// The fields of a frame for classification: its headers, and its sender's metadata.
pub(crate) fn fields_of(parsed: &Parsed, tenant: Option<TenantId>, metadata: Metadata) -> Fields {
    Fields {
        tenant,
        addresses: parsed.addresses(),
        protocol: parsed.protocol(),
        ports: parsed.ports(),
        dscp: parsed.ip.map_or(0, |ip| ip.dscp),
        vlan: parsed.vlan,
        metadata,
    }
}
