//! Traffic: the sources and sinks of a scenario's workloads, on real sockets inside the namespaces.
//!
//! Why: isolation must be shown with Linux's own TCP, with its windows, losses and retransmissions.
//! From: Loom §7 (throughput per 50 ms window), and open-loop latency counted from when a request was due, so that
//!       the waits of a stalled system are counted (no coordinated omission).
//! Not here: throughput on the uplink (`meter`), the topology (`world`), real tools (`tools`).
//! Invariant: every source and sink ends within `GRACE` after its workload's end, or at once when told to stop.

mod bulk;
mod events;
mod probe;
mod rounds;
mod rpc;
pub(crate) mod socket;
mod udp;

pub(crate) use events::Events;
pub(crate) use probe::ask_datagrams;
use rpc::Exchange;
pub(crate) use rpc::{Protocol, ask};
pub(crate) use socket::SOURCE_PORTS;

use crate::clock::Clock;
use crate::error::LabError;
use crate::netns;
use plimsoll_ports::TcpInfo;
use plimsoll_scenario::{Kind, Role, Sample, Workload, WorkloadResult};
use plimsoll_units::{Nanos, Span};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time after a workload's end for which late answers are awaited.
pub const GRACE: Duration = Duration::from_millis(500);

/// The namespace and address of one side of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the network namespace.
    pub netns: String,
    /// The side's address there.
    pub address: Ipv4Addr,
}

/// A workload with its two places: all that a source and a sink need.
#[derive(Clone, Debug)]
pub struct Job {
    /// The workload in the scenario.
    pub workload: Workload,
    /// The tenant's side; where a bulk workload is reversed, its peer's, which sends then.
    pub tenant: Place,
    /// The other side, beyond the uplink.
    pub peer: Place,
    /// Largest IP packet.
    pub mtu: u32,
    /// Length of the run.
    pub duration: Span,
    /// Length of a throughput window.
    pub window: Span,
    /// Whether the time of each frame is kept.
    pub moments: bool,
    /// Seed of this workload's random choices.
    pub seed: u64,
    /// Directory for tools' logs.
    pub scratch: PathBuf,
}

impl Job {
    /// The place of the side that listens, and of the side that connects.
    pub fn server_and_client(&self) -> (&Place, &Place) {
        match self.role() {
            Role::Client => (&self.peer, &self.tenant),
            Role::Server => (&self.tenant, &self.peer),
        }
    }

    /// The role of the tenant's side.
    pub fn role(&self) -> Role {
        match self.workload.kind {
            Kind::RequestResponse { role, .. } | Kind::Memcached { role, .. } => role,
            Kind::Bulk { reverse: true, .. } => Role::Server,
            _ => Role::Client,
        }
    }
}

/// One side of a running workload.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The side's job.
    pub job: &'a Job,
    /// The run's clock.
    pub clock: &'a Clock,
    /// Set when the run must end early.
    pub stop: &'a AtomicBool,
    /// The workload's live counters.
    pub live: &'a Live,
}

/// Counters of a workload that other threads may read at any time.
#[derive(Debug, Default)]
pub struct Live {
    /// Bytes of frames that crossed the uplink so far.
    pub bytes: AtomicU64,
    /// Datagrams sent so far (UDP and probes).
    pub datagrams: AtomicU64,
}

impl Side<'_> {
    /// Start of the workload, in nanoseconds of the run.
    pub fn start(&self) -> u64 {
        self.job.workload.start.as_u64()
    }

    /// End of the workload, in nanoseconds of the run.
    pub fn end(&self) -> u64 {
        self.job.workload.stop.as_u64()
    }

    /// Time at which missing answers are given up.
    pub fn last(&self) -> u64 {
        self.end() + u64::try_from(GRACE.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether `moment` is past or the run must end early.
    pub fn over(&self, moment: u64) -> bool {
        self.stop.load(Ordering::Relaxed) || self.clock.now() >= moment
    }

    /// Sleeps until `lead` before the workload's start. False when the run ended before.
    pub fn wait_until_before_start(&self, lead: Duration) -> bool {
        loop {
            let rest = self.clock.until(self.start()).saturating_sub(lead);
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            if rest.is_zero() {
                return true;
            }
            std::thread::sleep(rest.min(Duration::from_millis(50)));
        }
    }

    /// Counts a datagram that is sent.
    pub fn sent_datagram(&self) {
        self.live.datagrams.fetch_add(1, Ordering::Relaxed);
    }

    /// The error for a failure of this workload.
    pub fn failed(&self, what: &str, error: impl std::fmt::Display) -> LabError {
        LabError::workload(&self.job.workload.name, format!("{what}: {error}"))
    }
}

/// A measurement in progress.
#[derive(Debug, Default)]
pub struct Measured {
    result: WorkloadResult,
}

impl Measured {
    /// Counts an answer that arrived at `now` to a request that was due at `due`.
    pub fn answered(&mut self, due: u64, now: u64) {
        self.result.samples.push(Sample { at: Nanos::new(due), latency: Span::ns(now.saturating_sub(due)) });
    }

    /// Counts requests or probes that were due and never answered.
    pub fn unanswered(&mut self, due: impl Iterator<Item = u64>) {
        let before = self.result.unanswered.len();
        self.result.unanswered.extend(due.map(Nanos::new));
        self.result.errors += (self.result.unanswered.len() - before) as u64;
    }

    /// Notes the kernel's figures of a connection that ends, at one of its ends: how often it sent a segment again, whether it
    /// uses ECN, and of how many marks it was told.
    pub fn ends(&mut self, stream: &TcpStream, sends: bool) {
        // Fails only for what is no TCP socket.
        let Ok(info) = TcpInfo::of(stream) else { return };
        *self.result.retransmits.get_or_insert(0) += u64::from(info.retransmits);
        let end = usize::from(!sends);
        self.result.ecn.get_or_insert_default()[end] += u64::from(info.ecn);
        self.result.echoed.get_or_insert_default()[end] += u64::from(info.delivered_ce);
    }

    /// Counts failures.
    pub fn errors(&mut self, count: u64) {
        self.result.errors += count;
    }

    /// Ends the measurement.
    pub fn finish(self) -> WorkloadResult {
        self.result
    }
}

/// Runs the listening side: binds, calls `ready`, then serves until the end.
pub fn serve(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    let place = side.job.server_and_client().0;
    netns::enter(&place.netns)?;
    match &side.job.workload.kind {
        Kind::Bulk { reverse: true, .. } => bulk::sends_to_callers(side, ready),
        Kind::Bulk { .. } | Kind::OnOff { .. } => bulk::sink(side, ready),
        Kind::Udp { .. } => udp::sink(side, ready),
        Kind::Probe { .. } => probe::echo(side, ready),
        Kind::RequestResponse { request, response, .. } => {
            rpc::answer(side, Exchange::of(*request, *response), ready)
        }
        Kind::Shuffle { block, .. } => rpc::answer(side, rounds::exchange(*block), ready),
        tool => Err(side.failed("serve", format!("{} is a tool of its own", tool.name()))),
    }
}

/// Runs the connecting side, in the calling thread's namespace, from the workload's start to its end.
pub fn send(side: &Side<'_>) -> Result<WorkloadResult, LabError> {
    if !side.wait_until_before_start(Duration::ZERO) {
        return Ok(WorkloadResult::default());
    }
    match &side.job.workload.kind {
        Kind::Bulk { flows, reverse: true } => bulk::calls_and_reads(side, *flows),
        Kind::Bulk { flows, .. } => bulk::source(side, *flows, None),
        Kind::OnOff { flows, on, off } => bulk::source(side, *flows, Some((*on, *off))),
        Kind::Udp { size, pace, flows, turns, ect, .. } => {
            udp::source(side, *size, (*pace, *turns), *flows, *ect)
        }
        Kind::Probe { size, rate } => probe::source(side, *size, *rate),
        Kind::RequestResponse { request, response, connections, rate, .. } => {
            rpc::ask(side, &mut Exchange::of(*request, *response), *connections, *rate)
        }
        Kind::Shuffle { flows, block, pause } => rounds::source(side, *flows, *block, *pause),
        tool => Err(side.failed("send", format!("{} is a tool of its own", tool.name()))),
    }
}

/// Adds the measurements of one side to those of the other.
pub fn merge(into: &mut WorkloadResult, from: WorkloadResult) {
    into.samples.extend(from.samples);
    into.unanswered.extend(from.unanswered);
    into.errors += from.errors;
    into.retransmits = into.retransmits.into_iter().chain(from.retransmits).reduce(|one, other| one + other);
    into.ecn = of_both_ends(into.ecn, from.ecn);
    into.echoed = of_both_ends(into.echoed, from.echoed);
}

fn of_both_ends(one: Option<[u64; 2]>, other: Option<[u64; 2]>) -> Option<[u64; 2]> {
    one.into_iter().chain(other).reduce(|one, other| [one[0] + other[0], one[1] + other[1]])
}
