//! The engine's loop: tenants' ports in, the policy's order out.
//!
//! Why: one thread owns every port and the NIC engine, so that a packet meets no lock.
//! From: `docs/architecture.md`, "live".
//! Not here: waiting and clocks (`thread`), the order itself (`nic`), reload's preparation (`control`).
//! Invariant: each turn is bounded: so many frames read from each port, so many sent; every frame leaves, waits, or
//! is counted with its reason.

mod apart;
mod binding;
mod blame;
mod class_delays;
mod cpu;
mod depart;
mod drops;
mod emit;
mod fleet;
mod flows;
mod install;
mod inward;
mod lane;
mod mac_table;
mod outward;
mod parked;
mod pool;
mod posted;
mod queues;
mod rates;
mod rules;
mod setup;
mod snapshot;
mod sources;
mod verify;
mod watch;

use std::sync::Arc;

use plimsoll_nic::{Config, DoorbellQueue, Nic, Transmit, Waits};
use plimsoll_policy::{Classifier, Fields, Metadata, Program, Sources, TenantId};
use plimsoll_ports::{Port, PortError};
use plimsoll_record::{Recorded, Recorder};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Parsed;

use apart::Charged;
pub use apart::{Move, Whither};
pub use cpu::{Core, ThisCore};
pub use drops::{Event, Loss, Tally};
pub use fleet::{FleetMap, FleetNow, FleetSetup, HostNow, HostState, PairNow, ReceiverNow, Sent, own_mac};
pub use flows::{Flow, FlowTable, Lookup, Room, Slot};
pub use install::{Change, Installed};
pub(crate) use inward::COMMON;
pub use lane::{Lane, LaneSpec};
pub use mac_table::{Learned, Mac, MacTable, Owner};
pub use pool::{Buffer, Held, LARGE, Pool, SMALL};
use posted::status_of;
pub use rates::{RateError, Rated};
pub use setup::{engine_config, fleet_map, lane_spec};
pub use snapshot::{NodeNow, PortNow, Snapshot};
pub use verify::{Sampler, Step};

use crate::departures::DepartureLog;

/// Frames read from one port in a turn: enough to pay for the system calls around them, few enough that no port
/// keeps the others waiting for more than some tens of microseconds.
pub const BATCH: usize = 32;

/// Frames sent before the way in has its turn.
const DEPARTURES: usize = 64;

/// How often they may leave, and as many come in, before tenants are read again: as often as more have been read, so that a turn
/// leaves no backlog behind that only its own length makes.
const ROUNDS: usize = 32;

/// How soon frames are offered again to an uplink that had no room: some packets' time at 1 Gb/s.
const FULL_RETRY: Span = Span::micros(50);

/// How soon they are offered again to one that is down or gone: that takes people, so it need not be soon.
const DOWN_RETRY: Span = Span::millis(5);

/// A part of a turn, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From the turn before.
    Between,
    /// Receivers' decisions, and what is told to and heard from other hosts.
    Fleet,
    /// Tenants' ports: what they send is classified and posted.
    Read,
    /// Departures: scheduled, held to limits, wrapped and sent; one after the other with the way in.
    Depart,
    /// The uplink: what has come is unwrapped, classified and queued.
    Fetch,
    /// What waits is delivered, each tenant by its share.
    Deliver,
    /// Completions, flushes, and flows that have ended.
    Complete,
}

/// What one turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether anything moved: if so, another turn may find more at once.
    pub busy: bool,
    /// When something can next happen without new frames, for which a wake-up is to be in time.
    pub next: Option<Nanos>,
    /// The same of what may be as late as a wake-up is.
    pub lazily: Option<Nanos>,
    /// When to offer frames again that wait for the uplink, or in a port.
    pub retry: Option<Span>,
}

/// How an engine is made.
#[derive(Debug)]
pub struct Setup {
    /// The policy.
    pub program: Arc<Program>,
    /// Sizes of the NIC engine.
    pub config: Config,
    /// Where packets leave.
    pub uplink: Port,
    /// One for each tenant that has a port.
    pub lanes: Vec<LaneSpec>,
    /// Where departures are noted.
    pub log: Arc<DepartureLog>,
    /// Other hosts, whose tenants ours reach.
    pub fleet: Option<FleetSetup>,
}

/// Ports, flows and the NIC engine, driven by [`Engine::turn`].
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_daemon::{DepartureLog, Engine, Setup, engine_config, lane_spec};
/// use plimsoll_ports::{MemoryConfig, MemoryPort, Port};
/// use plimsoll_units::Nanos;
///
/// let text = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}";
/// let checked = plimsoll_policy::check_str("demo.yaml", text)?;
/// let (uplink, mut wire) = MemoryPort::pair("uplink", MemoryConfig::default())?;
/// let (port, mut shop) = MemoryPort::pair("shop", MemoryConfig::default())?;
/// let uplink = Port::Memory(uplink);
/// let mut engine = Engine::new(Setup {
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
pub struct Engine {
    pub(crate) nic: Recorded,
    pub(crate) program: Arc<Program>,
    pub(crate) classifier: Classifier,
    pub(crate) generation: u16,
    pub(crate) lanes: Vec<Option<Box<Lane>>>,
    pub(crate) uplink: Uplink,
    pub(crate) macs: MacTable,
    pub(crate) bindings: binding::Bindings,
    /// Frames that each flow queue holds.
    pub(crate) queues: Vec<u32>,
    pub(crate) waits: Waits,
    pub(crate) doorbells: DoorbellQueue,
    pub(crate) out: Vec<Transmit>,
    pub(crate) sent: usize,
    pub(crate) scratch: Vec<u8>,
    pub(crate) landing: Vec<u8>,
    pub(crate) inward: inward::Inward,
    pub(crate) fleet: Option<Box<fleet::Fleet>>,
    pub(crate) log: Arc<DepartureLog>,
    pub(crate) delays: class_delays::ClassDelays,
    pub(crate) carried: install::Carried,
    /// How long copies into and out of tenants' memory take.
    pub(crate) copying: apart::Copying,
    pub(crate) lost: Vec<Lost>,
    pub(crate) turns: u64,
    pub(crate) copies: depart::Copies,
    /// Descriptors that one flow queue holds.
    pub(crate) window: u32,
    first: usize,
    reading: bool,
    /// Which packets that clients classified are classified again.
    pub(crate) sampler: Sampler,
    /// What clients have brought upon themselves, to be told: lanes.
    pub(crate) steps: Vec<(usize, Step)>,
    /// When a client that is not served now is served again.
    pub(crate) wake_at: Option<Nanos>,
    /// When held requests of a client are let in again, the first of them.
    release_at: Option<Nanos>,
    /// A client's rings are looked at in the next turn as well: nothing else would tell of what it writes.
    attentive: bool,
}

/// Where packets leave.
#[derive(Debug)]
pub(crate) struct Uplink {
    pub(crate) port: Option<Port>,
    pub(crate) past: plimsoll_ports::Counters,
    pub(crate) ready: bool,
    pub(crate) blocked: bool,
    /// Whether the port, or the last there was, cuts segments itself.
    pub(crate) segments: bool,
    /// Payload bytes of the pull that waits which have left already.
    pub(crate) resume: u32,
    /// Not zero while it is for all other hosts and has left to some; each link knows how much (`fleet`).
    pub(crate) flooded: usize,
    pub(crate) down: bool,
    pub(crate) tally: Tally,
    /// Frames that the port could not take and that count for their senders.
    pub(crate) blamed: lane::Blamed,
    pub(crate) senders: blame::Senders,
}

impl Uplink {
    /// Whether it is down or gone, rather than full.
    fn is_away(&self) -> bool {
        self.down || self.port.is_none()
    }
}

/// A port that has disappeared.
#[derive(Debug)]
pub struct Lost {
    /// Which tenant's; the uplink when absent.
    pub lane: Option<u32>,
    /// That tenant's name.
    pub name: Option<String>,
    /// What is left of it, to be closed elsewhere.
    pub port: Box<Port>,
}

impl Engine {
    /// Allocates everything that the configuration allows for.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let nodes = setup.program.nodes.len();
        let queues = vec![0; setup.config.queues as usize];
        let waits = Waits::new(setup.config.queues);
        let nic = Recorded::new(Nic::new(&setup.program, &setup.config));
        let window = u32::from(nic.slots());
        let lanes: Vec<_> = setup.lanes.into_iter().map(|spec| Some(Box::new(Lane::new(spec)))).collect();
        let inward = inward::Inward::new(&setup.program, &lanes);
        let whole = setup.fleet.is_some();
        let fleet = setup.fleet.map(|fleet| Box::new(fleet::Fleet::new(fleet, &lanes, &setup.program)));
        let mut engine = Self {
            nic,
            classifier: Classifier::new(&setup.program),
            generation: 0,
            macs: MacTable::new(lanes.len() + 1),
            bindings: binding::Bindings::default(),
            uplink: Uplink {
                // What goes through an overlay is cut here.
                segments: !whole && setup.uplink.capabilities().takes_segmentation,
                port: Some(setup.uplink),
                past: plimsoll_ports::Counters::default(),
                ready: true,
                blocked: false,
                resume: 0,
                flooded: 0,
                down: false,
                tally: Tally::default(),
                blamed: lane::Blamed::default(),
                senders: blame::Senders::default(),
            },
            queues,
            waits,
            doorbells: DoorbellQueue::with_capacity(4 * BATCH * lanes.len()),
            lanes,
            out: Vec::with_capacity(DEPARTURES),
            sent: 0,
            scratch: vec![0; LARGE],
            landing: vec![0; LARGE],
            inward,
            fleet,
            log: setup.log,
            delays: class_delays::ClassDelays::new(nodes),
            carried: install::Carried::default(),
            copying: apart::Copying::default(),
            lost: Vec::new(),
            turns: 0,
            copies: depart::Copies::default(),
            window,
            first: 0,
            reading: true,
            sampler: Sampler::new(verify::ONE_IN, verify::seed()),
            steps: Vec::new(),
            wake_at: None,
            release_at: None,
            attentive: false,
            program: setup.program,
        };
        engine.share_queues();
        engine.pin_addresses();
        engine.set_halves();
        engine
    }

    /// Records from now on all that the NIC engine is told and decides. `sources` are the policy's; nothing may have
    /// been sent yet.
    pub fn record(&mut self, recorder: Recorder, sources: &Sources) {
        self.nic.record(recorder, sources);
    }

    /// One round: read, schedule, send, forward, free. `now` must not run backwards.
    pub fn turn(&mut self, now: Nanos) -> Turn {
        self.turn_by(&|_| now)
    }

    /// [`Engine::turn`], asking for the time after each part of the round, so that what a long round measures is right. The
    /// clock is told which part has ended; the last one ends with the turn.
    pub fn turn_by(&mut self, clock: &impl Fn(Part) -> Nanos) -> Turn {
        self.turn_on(&mut ThisCore, clock)
    }

    /// [`Engine::turn_by`], with the way in on another core than this machine's: an experiment's.
    pub fn turn_on(&mut self, core: &mut impl Core, clock: &impl Fn(Part) -> Nanos) -> Turn {
        self.turns += 1;
        self.attentive = false;
        self.wake_at = None;
        self.release_at = None;
        let tended = self.tend_fleet(clock(Part::Between));
        let now = clock(Part::Fleet);
        let apart = self.tend_apart(now);
        let read = if self.reading { self.read_tenants(now, clock) } else { 0 };
        // As much leaves as has come, but neither the way in nor the clock waits for all of it.
        let (mut busy, mut ended) = (read > 0, Part::Read);
        for _ in 0..read.div_ceil(DEPARTURES).clamp(1, ROUNDS) {
            let begun = clock(std::mem::replace(&mut ended, Part::Deliver));
            let left = self.depart(begun);
            busy |= self.take_in(core, begun, clock) || left;
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
        self.fleet.iter_mut().for_each(|fleet| fleet.turned = now);
        let next = if self.uplink.blocked { None } else { self.nic.poll_timeout() };
        let next = [next, self.wake_at].into_iter().flatten().min();
        let lazily = [tended, apart, core.free_at(), self.release_at].into_iter().flatten().min();
        let pause = if self.uplink.is_away() { DOWN_RETRY } else { FULL_RETRY };
        let retry = (self.uplink.blocked || kept).then_some(pause);
        Turn { busy: busy || self.attentive, next, lazily, retry }
    }

    /// Stops reading tenants' ports: what is held still leaves.
    pub fn stop_reading(&mut self) {
        self.reading = false;
    }

    /// Descriptors that have not completed.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.nic.stats().held
    }

    /// The port behind `token` may have something: a lane, or the uplink when absent.
    pub fn ready(&mut self, token: Option<u32>) {
        match token {
            None => self.uplink.ready = true,
            Some(lane) => {
                if let Some(lane) = self.lanes.get_mut(lane as usize).and_then(Option::as_mut) {
                    lane.ready = true;
                }
            }
        }
    }

    /// Every port may have something: after ports have changed.
    pub fn all_ready(&mut self) {
        self.uplink.ready = true;
        self.lanes.iter_mut().flatten().for_each(|lane| lane.ready = true);
    }

    /// Whether some port cannot be waited for.
    #[must_use]
    pub fn must_be_asked(&self) -> bool {
        self.ports().any(|(_, port)| port.must_be_asked())
    }

    /// Ports that have disappeared since the last call.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        core::mem::take(&mut self.lost)
    }

    /// Whether any port has disappeared since [`Engine::take_lost`].
    #[must_use]
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Why ports are losing frames, told once each, with whose port it is; the uplink's when absent.
    pub fn take_problems(&mut self) -> Vec<(Option<String>, PortError)> {
        let uplink = self.uplink.port.as_mut().and_then(Port::take_problem).map(|problem| (None, problem));
        let lanes = self.lanes.iter_mut().flatten();
        let lanes = lanes.filter_map(|lane| {
            lane.port.as_mut().and_then(Port::take_problem).map(|problem| (Some(lane.name.clone()), problem))
        });
        lanes.chain(uplink).collect()
    }

    /// Which packets that clients classified are classified again, from now on.
    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.sampler = sampler;
    }

    /// The same, one in so many; 0: none.
    pub fn set_verify(&mut self, one_in: u32) {
        self.sampler.set(one_in);
    }

    /// What tenants' clients have brought upon themselves since the last call, with the tenants' names.
    pub fn take_steps(&mut self) -> Vec<(String, Step)> {
        let lanes = &self.lanes;
        let name = |lane: usize| lanes.get(lane)?.as_ref().map(|lane| lane.name.clone());
        self.steps.drain(..).filter_map(|(lane, step)| Some((name(lane)?, step))).collect()
    }

    /// The NIC engine, for questions.
    #[must_use]
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Each port that there is, with its token: for waiting.
    pub fn ports(&self) -> impl Iterator<Item = (Option<u32>, &Port)> {
        let lanes = (0..)
            .zip(&self.lanes)
            .filter_map(|(index, lane)| Some((Some(index), lane.as_ref()?.port.as_ref()?)));
        lanes.chain(self.uplink.port.iter().map(|port| (None, port)))
    }

    /// Frees the buffers of what has left, and lets what is parked behind it take its place.
    fn free_completed(&mut self, now: Nanos) {
        let mut unparked = false;
        while let Some(done) = self.nic.poll_completion() {
            let (index, buffer) = Buffer::from_address(done.addr);
            let Some(lane) = self.lanes.get_mut(index as usize).and_then(Option::as_mut) else { continue };
            lane.conduct.touched = self.copying.part;
            self.queues[done.queue.0 as usize] -= lane.give_held(buffer, status_of(done.outcome));
            if !lane.parked.is_empty() {
                unparked |= self.unpark(index as usize, done.queue);
            }
        }
        if unparked {
            let nic = &mut self.nic;
            self.doorbells.flush(|words| nic.ring(words, now));
        }
    }

    /// Notes a port that has disappeared, for the control thread.
    pub(crate) fn note_lost(&mut self, index: Option<usize>, port: Option<Port>) {
        if let Some(port) = port {
            if let Some(index) = index {
                self.note_parted(index, &port);
            }
            let lane = index.and_then(|index| u32::try_from(index).ok());
            if let Some(lane) = lane {
                self.macs.forget(Owner::Lane(lane));
            }
            let lost = index.and_then(|index| self.lanes.get(index)?.as_ref());
            let name = lost.map(|lane| lane.name.clone());
            self.lost.push(Lost { lane, name, port: Box::new(port) });
        }
    }
}

/// A frame's header, and what its sender says of it, as classification sees them.
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
