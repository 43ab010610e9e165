//! A whole scenario: every system with every seed, each run on its own.
//!
//! Why: runs share no state, so all cores work on them, and the results do not depend on the number of cores.
//! Not here: threads (`batch`), building a world (`build`) and running it (`world`).
//! Invariant: results stand in the order of seeds, then of systems in the file; no value in them comes from a real clock.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll_scenario::{Kind, Results, Run, Scenario, System, Workload};
use plimsoll_units::{Nanos, Span};
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::bounds::DelayBound;
use crate::build;
use crate::error::SimError;
use crate::host_nic::HostNic;
use crate::hosted::Hosted;
use crate::limiter::Limiter;
use crate::press::Press;
use crate::trace::Trace;
use crate::traffic::GRACE;
use crate::world::{Carrier, Node, Way, World};

/// How to simulate a scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Names of the systems to run; empty means all.
    pub systems: Vec<String>,
    /// The first seed, in place of the scenario's.
    pub seed: Option<u64>,
    /// The number of seeds, counting up from the first; zero counts as 1. The results call each a pair.
    pub seeds: u32,
    /// Threads to run on; without, one for each core.
    pub threads: Option<NonZeroUsize>,
    /// The trace to write, packet by packet.
    pub trace: Option<Trace>,
    /// Whether connections and links are sampled over time: [`Run::series`].
    pub series: bool,
}

/// The outcome of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The measurements.
    pub results: Results,
    /// By run: the policies' delay bounds, against every packet that met their assumptions.
    pub bounds: Vec<RunBounds>,
    /// Events of all runs.
    pub events: u64,
    /// Links crossed by packets, summed over all packets.
    pub hops: u64,
}

/// The delay bounds of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunBounds {
    /// The system.
    pub system: String,
    /// The run's seed.
    pub seed: u64,
    /// The bound of each class of which packets were judged.
    pub bounds: Vec<DelayBound>,
}

/// The progress of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Index of the scenario.
    pub scenario: usize,
    /// Index of the run among all runs.
    pub run: usize,
    /// The number of all runs.
    pub runs: usize,
    /// The system's name.
    pub system: String,
    /// The seed.
    pub seed: u64,
    /// The virtual time in the run.
    pub now: Nanos,
    /// The length of the run.
    pub length: Span,
    /// Events so far in this run.
    pub events: u64,
}

/// Simulates every chosen system with every seed. `progress` may be called from several threads.
///
/// # Errors
/// [`SimError`].
pub fn run(
    scenario: &Scenario,
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Outcome, SimError> {
    run_all(&[scenario], options, progress).map(|mut outcomes| outcomes.swap_remove(0))
}

/// Simulates many scenarios at once, such as the points of a sweep: one outcome for each. See [`run`].
///
/// # Errors
/// The first [`SimError`], in the order of the scenarios.
pub fn run_all(
    scenarios: &[&Scenario],
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Outcome>, SimError> {
    run_each(scenarios, options, progress).into_iter().collect()
}

/// Like [`run_all`], for independent scenarios: an error of one of them stands in its place.
pub fn run_each(
    scenarios: &[&Scenario],
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Vec<Result<Outcome, SimError>> {
    let batch = Batch::new(scenarios, options);
    let all: Vec<usize> = (0..batch.len()).collect();
    batch.outcomes(batch.run(&all, progress))
}

impl Outcome {
    pub(crate) fn add(&mut self, finished: Finished) {
        self.results.runs.push(finished.run);
        self.bounds.push(finished.bounds);
        self.events += finished.events;
        self.hops += finished.hops;
    }

    /// The delay bounds that did not hold: there should be none.
    pub fn broken(&self) -> impl Iterator<Item = (&RunBounds, &DelayBound)> {
        let all = self.bounds.iter().flat_map(|run| run.bounds.iter().map(move |bound| (run, bound)));
        all.filter(|(_, bound)| !bound.kept())
    }
}

/// One run: a system with a seed.
#[derive(Clone, Debug)]
pub(crate) struct Job<'a> {
    /// Index of the scenario.
    pub(crate) index: usize,
    pub(crate) scenario: &'a Scenario,
    pub(crate) system: &'a System,
    pub(crate) pair: u32,
    pub(crate) seed: u64,
    pub(crate) trace: Option<Trace>,
    /// Most samples of connections and links, where they are taken.
    pub(crate) series: Option<usize>,
}

/// The outcome of one run, which another process may have carried out. It is exact in binary formats; those for people
/// round times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finished {
    run: Run,
    bounds: RunBounds,
    events: u64,
    hops: u64,
}

impl Job<'_> {
    /// Runs until the end, or until `tell` ends it.
    pub(crate) fn run(&self, tell: &dyn Fn(Nanos, u64) -> ControlFlow<()>) -> Result<Finished, SimError> {
        let run = || {
            let mut world =
                build::world(self.scenario, self.system, self.seed, self.trace.as_ref(), self.series)?;
            let end = Nanos::ZERO + self.scenario.duration + GRACE;
            if world.run(end, &mut |now, events| tell(now, events)).is_break() {
                return Err(SimError::Stopped);
            }
            let written = world.tracer.take().map_or(Ok(()), |tracer| tracer.finish());
            let file = || self.trace.as_ref().map(|trace| trace.file.clone()).unwrap_or_default();
            written.map_err(|source| SimError::Trace { file: file(), source })?;
            Ok(self.finish(&mut world))
        };
        let panicked = |_| Err(SimError::Panicked { system: self.system.name.clone(), seed: self.seed });
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(panicked)
    }

    /// This run's trace, where several runs are traced: its file has the run's system and seed in its name.
    pub(crate) fn trace_of_its_own(&self, trace: &Trace) -> Trace {
        let stem = trace.file.file_stem().unwrap_or_default().to_string_lossy();
        let point = if self.index > 0 { format!("-{}", self.index) } else { String::new() };
        let name = format!("{stem}{point}-{}-{}", self.system.name, self.seed);
        let end = trace.file.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
        Trace { file: trace.file.with_file_name(name + &end), at: trace.at.clone() }
    }

    pub(crate) fn progress(&self, run: usize, runs: usize, now: Nanos, events: u64) -> Progress {
        let (system, length) = (self.system.name.clone(), self.scenario.duration + GRACE);
        Progress { scenario: self.index, run, runs, system, seed: self.seed, now, length, events }
    }

    fn finish(&self, world: &mut World) -> Finished {
        account(world);
        let sockets = sockets_by_workload(world);
        let (system, pair) = (self.system.name.clone(), self.pair);
        let mut run = Run { system: system.clone(), pair, ..Run::default() };
        for (index, workload) in self.scenario.workloads.iter().enumerate() {
            let mut app = core::mem::take(&mut world.apps[index]);
            let mut result = app.finish();
            let meter = &mut world.meters[index];
            (result.bytes, result.packets) = (meter.crossed.take(), meter.packets);
            result.delivered = meter.delivered.take();
            result.departures = core::mem::take(&mut meter.departures);
            result.waits = core::mem::take(&mut meter.waits);
            result.nic_waits = core::mem::take(&mut meter.nic_waits);
            result.calls = core::mem::take(&mut meter.calls);
            result.egress_waits = core::mem::take(&mut meter.egress_waits);
            result.retransmits = retransmits(world, index, &sockets[index]);
            result.resent = world.meters[index].resent.take();
            (result.ecn, result.echoed) = ecn(world, index, &sockets[index], workload);
            result.marks = Some(world.marked[index]);
            result.changed = Some(world.changed[index]);
            result.metered = Some(world.metered[index]);
            run.workloads.insert(workload.name.clone(), result);
            let tenant = run.drops.entry(workload.tenant.clone()).or_default();
            for (why, count) in &world.tallies[index].drops {
                *tenant.entry((*why).to_owned()).or_default() += count;
            }
        }
        self.held(world, &mut run);
        run.series = world.sampler.take().map(|sampler| sampler.finish());
        run.cpu = cpu(world);
        run.counters = counters(world);
        let receiving = world.nodes.iter().filter_map(|node| Some((&node.name, node.receive.as_ref()?)));
        run.loads = receiving.map(|(name, receive)| (name.clone(), receive.worked().to_vec())).collect();
        run.tops = presses(world).flat_map(|press| press.seen.tops.iter().copied()).collect();
        let watched = world.nodes.iter().filter_map(|node| Some((&node.name, node.watch.as_ref()?)));
        let alone = self.scenario.hosts.len() == 1;
        run.promises = watched
            .map(|(host, watch)| (if alone { String::new() } else { host.clone() }, watch.report()))
            .collect();
        let bounds = bounds(world);
        run.notes.extend(note(&bounds));
        run.notes.extend(idle_management(self.scenario, world));
        Finished {
            run,
            bounds: RunBounds { system, seed: self.seed, bounds },
            events: world.events,
            hops: world.hops,
        }
    }
}

impl Job<'_> {
    /// Adds up the packets of each workload that all engines held.
    fn held(&self, world: &mut World, run: &mut Run) {
        let nics = world.nodes.iter_mut().filter_map(|node| match &mut node.carrier {
            Carrier::Nic { nic, .. } => nic.holdings.as_mut(),
            Carrier::Plain | Carrier::Limiter { .. } => None,
        });
        for holdings in nics {
            for (workload, held) in self.scenario.workloads.iter().zip(holdings.finish()) {
                let Some(result) = run.workloads.get_mut(&workload.name) else { continue };
                result.held.resize(result.held.len().max(held.len()), 0);
                result.held.iter_mut().zip(held).for_each(|(sum, held)| *sum += held);
            }
        }
    }
}

/// Asserts that every packet is delivered, dropped for a counted reason, or under way.
fn account(world: &World) {
    for (tally, under_way) in world.tallies.iter().zip(world.under_way()) {
        let known = tally.delivered + tally.drops.values().sum::<u64>() + under_way;
        assert_eq!(tally.sent, known, "a packet is delivered, dropped for a reason, or under way");
    }
}

fn bounds(world: &World) -> Vec<DelayBound> {
    host_nics(world).flat_map(|(node, nic)| nic.bounds.report(&node.name)).collect()
}

/// The counters of all host NICs, buses and limiters, added up.
fn counters(world: &World) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    let buses = world.links.iter().filter(|end| end.kind == Way::Bus);
    let buses = buses.map(|end| ("bus_reads", end.link.parts()));
    let limited = limiters(world).flat_map(Limiter::counters);
    let receiving = world.nodes.iter().filter(|node| node.receive.is_some());
    let lossy = receiving.map(|node| ("nic_drop_seconds", node.drop_seconds.count()));
    let nics = host_nics(world).flat_map(|(_, nic)| nic.counters());
    let pressed = presses(world).flat_map(Press::totals);
    let programs = world.nodes.iter().filter_map(|node| node.receive.as_ref());
    let programs = programs.flat_map(|receive| receive.programs()).flat_map(Hosted::counters);
    for (name, count) in nics.chain(buses).chain(limited).chain(lossy).chain(pressed).chain(programs) {
        *counters.entry(name).or_default() += count;
    }
    counters
}

fn presses(world: &World) -> impl Iterator<Item = &Press> {
    world.nodes.iter().filter_map(|node| node.press.as_deref())
}

/// Packets that a workload's connections sent again; nothing where it has no connection.
fn retransmits(world: &World, workload: usize, sockets: &[usize]) -> Option<u64> {
    let own = sockets.iter().map(|&socket| world.connections[socket].tcp.sender().stats().resent);
    let retired = Some(world.retired[workload]).filter(|retired| retired.connections > 0);
    own.chain(retired.map(|retired| retired.resent)).reduce(|sum, one| sum + one)
}

/// The numbers of the sockets of each workload.
fn sockets_by_workload(world: &World) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new(); world.apps.len()];
    for (number, socket) in world.connections.iter().enumerate() {
        found[world.flows[socket.flow as usize].workload as usize].push(number);
    }
    found
}

/// Connections on which each end uses ECN, and packets of which it was told that they came marked: of the end that sends, or
/// that asks, and of the other one. Nothing where the workload has no connection.
fn ecn(
    world: &World,
    index: usize,
    sockets: &[usize],
    workload: &Workload,
) -> (Option<[u64; 2]>, Option<[u64; 2]>) {
    let server_sends = matches!(workload.kind, Kind::Bulk { reverse: true, .. });
    let retired = Some(world.retired[index]).filter(|retired| retired.connections > 0);
    let mut both = retired.map(|retired| (retired.ecn, retired.echoed));
    for &number in sockets {
        let socket = &world.connections[number];
        let end = usize::from((number & 1 == 1) != server_sends);
        let (uses, told) = both.get_or_insert(([0; 2], [0; 2]));
        uses[end] += u64::from(socket.tcp.sender().ecn());
        told[end] += socket.tcp.sender().stats().echoed;
    }
    both.unzip()
}

/// The CPU time of all engines' threads together, where their work takes time.
fn cpu(world: &World) -> Option<Span> {
    let nics = host_nics(world).filter_map(|(_, nic)| nic.cpu());
    nics.chain(limiters(world).filter_map(Limiter::cpu)).reduce(|sum, one| sum + one)
}

fn limiters(world: &World) -> impl Iterator<Item = &Limiter> {
    world.nodes.iter().filter_map(|node| node.carrier.limiter())
}

fn host_nics(world: &World) -> impl Iterator<Item = (&Node, &HostNic)> {
    world.nodes.iter().filter_map(|node| match &node.carrier {
        Carrier::Nic { nic, .. } => Some((node, &**nic)),
        Carrier::Plain | Carrier::Limiter { .. } => None,
    })
}

/// A note on the delay bounds, with the one that came nearest to being reached.
fn note(bounds: &[DelayBound]) -> Option<String> {
    let reached = |bound: &DelayBound| bound.worst.as_secs_f64() / bound.bound.as_secs_f64();
    let nearest = bounds.iter().max_by(|a, b| reached(a).total_cmp(&reached(b)))?;
    let (kept, count) = (bounds.iter().filter(|bound| bound.kept()).count(), bounds.len());
    let DelayBound { class, worst, bound, judged, .. } = nearest;
    Some(format!(
        "delay bounds hold for {kept} of {count} classes that kept to their guarantee; nearest `{class}`, which waited \
         {worst} of {bound} at most ({judged} packets)"
    ))
}

/// Notes on links whose queue management sees no queue: the host that sends on them keeps its packets itself, and sends no faster
/// than the link.
fn idle_management(scenario: &Scenario, world: &World) -> Vec<String> {
    let keeper = |host: &str| {
        let node = world.nodes.iter().find(|node| node.name == host)?;
        match &node.carrier {
            Carrier::Nic { .. } => Some("its engine"),
            Carrier::Limiter { .. } => Some("its limiter"),
            Carrier::Plain => None,
        }
    };
    let managed = scenario.links.iter().filter(|link| link.aqm.is_some());
    let ends = managed.flat_map(|link| [(link, Some(&link.from)), (link, link.both.then_some(&link.to))]);
    ends.filter_map(|(link, end)| {
        let (host, keeper) = (end?, keeper(end?)?);
        Some(format!(
            "`aqm` of link `{}` has no effect on what `{host}` sends: its packets wait in {keeper} and not in the link's queue",
            link.name
        ))
    })
    .collect()
}
