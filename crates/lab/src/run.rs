//! Runs a whole lab: every system, each in a fresh world or all in turns in one world, on the scenario's timeline.
//!
//! Why: systems are compared in one invocation and repeated in turn, so that changes of the machine's speed affect all.
//! From: the usual rule for live comparisons: interleaved runs, medians.
//! Not here: building a world (`world`), expectations (`scenario`).
//! Invariant: when `run` returns, all namespaces and processes are gone, also after a panic, an error or a signal.

use crate::clock::Clock;
use crate::error::LabError;
use crate::load;
use crate::meter;
use crate::netns;
use crate::refuse;
use crate::timeline::Timeline;
use crate::tools;
use crate::traffic::{self, Job, Live, Side};
use crate::turns::{Frames, Turns};
use crate::world::{self, Drops, Setup, World};
use crate::{Options, Progress, privileges};
use plimsoll_scenario::{Kind, Results, Run, Scenario, System, SystemKind, WorkloadResult};
use plimsoll_slo::SloReport;
use plimsoll_units::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between when every thread is in its namespace and when the first workload may start.
const LEAD: Duration = Duration::from_millis(100);
/// Time between reports of progress.
const TICK: Duration = Duration::from_millis(250);
/// Longest wait for sinks to be bound and sources to be in their namespaces.
const READY: Duration = Duration::from_secs(10);

/// Runs every system of the scenario and returns the measurements.
///
/// The work happens on a separate thread in private namespaces; `progress` is called on the caller's thread.
/// Needs the right to make namespaces: see [`crate::ensure_privileges`].
pub fn run(
    scenario: &Scenario,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Results, LabError> {
    let stop = Stop::new()?;
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let lab = scope.spawn(|| {
            privileges::enter_private_world()?;
            Lab { scenario, options, stop: &stop.flag, tell }.run_all()
        });
        for event in told {
            progress(event);
        }
        lab.join()
            .unwrap_or_else(|_| Err(LabError::Scenario("the lab panicked; its world is gone".to_owned())))
    })
}

/// A flag that SIGINT and SIGTERM set while this value lives.
struct Stop {
    flag: Arc<AtomicBool>,
    hooks: Vec<signal_hook::SigId>,
}

impl Stop {
    fn new() -> Result<Self, LabError> {
        let flag = Arc::new(AtomicBool::new(false));
        let hook = |signal| {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(|e| LabError::io("watch for signals", e))
        };
        let hooks = vec![hook(signal_hook::consts::SIGINT)?, hook(signal_hook::consts::SIGTERM)?];
        Ok(Self { flag, hooks })
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        for hook in self.hooks.drain(..) {
            signal_hook::low_level::unregister(hook);
        }
    }
}

/// The lab while it runs, on its own thread.
struct Lab<'a> {
    scenario: &'a Scenario,
    options: &'a Options,
    stop: &'a AtomicBool,
    tell: Sender<Progress>,
}

impl Lab<'_> {
    fn run_all(&self) -> Result<Results, LabError> {
        refuse::other_worlds(self.scenario)?;
        let (systems, notes) = refuse::systems(self.scenario, &self.options.systems);
        let mut results = Results { notes, ..Results::default() };
        let pairs = self.options.pairs.unwrap_or(self.scenario.pairs).max(1);
        if self.scenario.one_world {
            return self.take_turns(&systems, pairs, results.notes);
        }
        let total = systems.len() * pairs as usize;
        let mut unavailable: Vec<&str> = Vec::new();
        let turns = (0..pairs).flat_map(|pair| systems.iter().map(move |system| (pair, *system)));
        for (index, (pair, system)) in turns.enumerate() {
            if unavailable.contains(&system.name.as_str()) {
                continue;
            }
            let _ = self.tell.send(Progress::System { index, total, name: system.name.clone(), pair });
            match self.run_one(system, pair) {
                Ok(run) => results.runs.push(run),
                Err(error) if may_be_missing(system, &error) => {
                    unavailable.push(&system.name);
                    results.notes.push(format!("{}: not available here: {error}", system.name));
                }
                Err(error) => return Err(error),
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(LabError::Interrupted);
            }
        }
        Ok(results)
    }

    /// Runs one system: builds its world, drives the timeline, and measures.
    fn run_one(&self, system: &System, pair: u32) -> Result<Run, LabError> {
        let setup = self.setup(&format!("{}-{pair}", system.name))?;
        let mut world = World::build(self.scenario, system, &setup)?;
        let timeline = Timeline::new(self.scenario, system, &setup);
        timeline.try_out(&mut world, system)?;
        world.begin()?;
        let jobs = self.jobs(pair, &setup.scratch)?;
        let lives: Vec<Live> = jobs.iter().map(|_| Live::default()).collect();
        let clock = Clock::default();
        let scene = Scene { jobs: &jobs, lives: &lives, clock: &clock };
        // The workloads' ends are this process's threads.
        let ends = || world::cpu(std::process::id());
        let before = ends();
        let mut plan = Plan::Timeline(timeline);
        let Driven { mut workloads, loads, .. } = self.drive(scene, &mut world, &mut plan)?;
        let ends_cpu = ends().zip(before).map(|(now, before)| now.saturating_sub(before));
        let measured = clock.now().saturating_sub(self.scenario.measure.from.as_u64());
        let mut tally = world.tally(Duration::from_nanos(measured))?;
        tally.notes.extend(not_judged(measured, &tally.promises));
        if world::presses(self.scenario) {
            attribute(&tally.pressing.metered, &jobs, &mut workloads);
        }
        let mut run = Run {
            system: system.name.clone(),
            pair,
            promises: tally.promises,
            drops: tally.drops,
            cpu: tally.cpu.map(span),
            ends_cpu: ends_cpu.map(span),
            notes: tally.notes,
            counters: tally.pressing.counters,
            events: tally.pressing.events,
            tops: tally.pressing.tops,
            loads,
            ..Run::default()
        };
        if system.kind == SystemKind::Fifo {
            run.drops = losses_at_ends(&jobs, &lives, &workloads, &world.retransmissions()?);
        }
        run.workloads = workloads;
        run.notes.extend(world.take_down()?);
        Ok(run)
    }

    /// Runs all systems, in turns, in one world.
    fn take_turns(
        &self,
        systems: &[&System],
        pairs: u32,
        mut notes: Vec<String>,
    ) -> Result<Results, LabError> {
        let Some(first) = systems.first() else { return Ok(Results { notes, ..Results::default() }) };
        let setup = self.setup("turns")?;
        let turns = Turns::new(self.scenario, systems, pairs, &setup);
        let whole = turns.whole();
        let lab = Lab { scenario: &whole, options: self.options, stop: self.stop, tell: self.tell.clone() };
        // The files of the world have no single system's name.
        let mut all = System::clone(first);
        "turns".clone_into(&mut all.name);
        let mut world = World::build(&whole, &all, &setup)?;
        // A policy that a reload cannot install is refused before anything is measured.
        systems.iter().rev().try_for_each(|system| world.hand_over(self.scenario, system, &setup))?;
        let jobs = lab.jobs(0, &setup.scratch)?;
        let lives: Vec<Live> = jobs.iter().map(|_| Live::default()).collect();
        let clock = Clock::default();
        let scene = Scene { jobs: &jobs, lives: &lives, clock: &clock };
        let mut plan = Plan::Turns(turns);
        let Driven { workloads, frames, .. } = lab.drive(scene, &mut world, &mut plan)?;
        notes.extend(world.take_down()?);
        let Plan::Turns(turns) = plan else { return Ok(Results { notes, ..Results::default() }) };
        let (runs, late) = turns.runs(workloads, &frames);
        notes.extend(late);
        Ok(Results { runs, notes })
    }

    /// The binary, and a new directory for the run of this name.
    fn setup(&self, name: &str) -> Result<Setup, LabError> {
        let scratch = Path::new("/run/plimsoll-lab").join(name);
        std::fs::create_dir_all(&scratch).map_err(|e| LabError::io("make a directory for the run", e))?;
        Ok(Setup { binary: self.binary(), scratch })
    }

    fn binary(&self) -> PathBuf {
        let named =
            self.options.binary.clone().or_else(|| std::env::var_os("PLIMSOLL_BIN").map(PathBuf::from));
        named.or_else(|| std::env::current_exe().ok()).unwrap_or_else(|| PathBuf::from("plimsoll"))
    }

    fn jobs(&self, pair: u32, scratch: &Path) -> Result<Vec<Job>, LabError> {
        let scenario = self.scenario;
        let job = |(index, workload)| {
            let (tenant, peer) = world::places(scenario, workload)?;
            let reversed = matches!(workload.kind, Kind::Bulk { reverse: true, .. });
            let (tenant, peer) = if reversed { (peer, tenant) } else { (tenant, peer) };
            Ok(Job {
                workload: workload.clone(),
                tenant,
                peer,
                mtu: world::tenant_mtu(scenario),
                duration: scenario.duration,
                window: scenario.measure.window,
                moments: scenario.measure.gaps,
                seed: scenario.seed ^ ((index as u64 + 1) << 32) ^ u64::from(pair),
                scratch: scratch.to_owned(),
            })
        };
        scenario.workloads.iter().enumerate().map(job).collect()
    }

    /// Starts both sides of every workload, reports progress until the end, and collects the results.
    fn drive(&self, scene: Scene<'_>, world: &mut World, plan: &mut Plan<'_>) -> Result<Driven, LabError> {
        let Scene { jobs, lives, clock } = scene;
        let shared = Shared::default();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _halt = HaltOnPanic(&shared, &over);
            let (ready, readiness) = channel();
            // The namespaces in which workloads' frames arrive: the world's, or that of a tenant on another host.
            let mut places: BTreeSet<&str> = jobs.iter().map(|job| job.peer.netns.as_str()).collect();
            let pressed = world::presses(self.scenario);
            if pressed {
                // Answers may be marked too.
                places.extend(jobs.iter().map(|job| job.tenant.netns.as_str()));
            }
            let count = |place| {
                let (shared, over, bound) = (&shared, &over, ready.clone());
                let bound = move || bound.send(()).unwrap_or_default();
                let count = move || shared.keep(meter::count(place, jobs, lives, clock, over, &bound));
                (place, scope.spawn(count))
            };
            let meters: Vec<_> = places.into_iter().map(count).collect();
            let side = |(job, live)| Side { job, clock, stop: &shared.halt, live };
            let busy = world.receivers().into_iter().map(|(host, socket)| {
                let (window, over) = (self.scenario.measure.window, &over);
                (host, scope.spawn(move || load::watch(&socket, window, clock, over)))
            });
            let busy: Vec<_> = busy.collect();
            let mut threads = Vec::new();
            for side in jobs.iter().zip(lives).map(side) {
                let (shared, ready) = (&shared, ready.clone());
                let ready = move || ready.send(()).unwrap_or_default();
                let serve = move || shared.keep(serve(&side, &ready));
                threads.push((side.job, scope.spawn(serve)));
            }
            if shared.halt_on_error(wait_until_ready(&readiness, jobs.len() + meters.len(), &shared)) {
                for side in jobs.iter().zip(lives).map(side) {
                    let (shared, ready) = (&shared, ready.clone());
                    let ready = move || ready.send(()).unwrap_or_default();
                    threads.push((side.job, scope.spawn(move || shared.keep(send(&side, &ready)))));
                }
                shared.halt_on_error(wait_until_ready(&readiness, jobs.len(), &shared));
                let tools = jobs.iter().map(|job| tools::lead(&job.workload.kind)).max().unwrap_or_default();
                clock.start_in(tools + LEAD);
                shared.halt_on_error(self.watch(scene, &shared, world, plan));
            }
            let (mut results, mut frames) = (BTreeMap::new(), Frames::new());
            for (job, thread) in threads {
                let name = &job.workload.name;
                let part = thread.join().map_err(|_| LabError::workload(name, "its thread panicked"));
                traffic::merge(results.entry(name.clone()).or_default(), shared.keep(part));
            }
            over.store(true, Ordering::Relaxed);
            let loads = busy.into_iter().filter_map(|(host, load)| Some((host, load.join().ok()?)));
            let loads: Loads = loads.collect();
            for (place, meter) in meters {
                let counted =
                    meter.join().map_err(|_| LabError::Scenario("the uplink's meter panicked".to_owned()));
                for (job, counted) in jobs.iter().zip(shared.keep(counted)) {
                    let result: &mut WorkloadResult = results.entry(job.workload.name.clone()).or_default();
                    if pressed {
                        *result.marks.get_or_insert(0) += counted.marks;
                    }
                    if job.peer.netns != place {
                        continue;
                    }
                    if place != world::WORLD {
                        result.delivered.clone_from(&counted.bytes);
                    }
                    (result.bytes, result.packets) = (counted.bytes, counted.packets);
                    result.departures = counted.departures;
                    frames.insert(job.workload.name.clone(), counted.frames);
                }
            }
            let driven = Driven { workloads: results, frames, loads };
            shared.error.lock().ok().and_then(|mut error| error.take()).map_or(Ok(driven), Err)
        })
    }

    /// Reports progress until the run's time is over, the user stops it, or something fails.
    fn watch(
        &self,
        scene: Scene<'_>,
        shared: &Shared,
        world: &mut World,
        plan: &mut Plan<'_>,
    ) -> Result<(), LabError> {
        let Scene { jobs, lives, clock } = scene;
        let end = self.scenario.duration.as_u64();
        std::thread::sleep(clock.until(0));
        let (mut counted, mut told) = (carried(jobs, lives), clock.now());
        while (clock.now() < end || plan.is_under_way()) && !shared.halt.load(Ordering::Relaxed) {
            let next = plan.due().unwrap_or(end).min(world.next_fault().unwrap_or(end));
            std::thread::sleep(TICK.min(clock.until(next.min(end))));
            if self.stop.load(Ordering::Relaxed) {
                return Err(LabError::Interrupted);
            }
            world.check()?;
            world.inject_faults(clock.now())?;
            if let Some(begun) = plan.take(world, clock)? {
                self.tell.send(begun).map_err(|_| LabError::Interrupted)?;
            }
            let (carried, now) = (carried(jobs, lives), clock.now());
            let seconds = Duration::from_nanos(now - told).as_secs_f64().max(1e-3);
            let rate = |(tenant, bytes): (&String, &u64)| {
                let before = counted.get(tenant).unwrap_or(&0);
                (tenant.clone(), bytes.saturating_sub(*before) as f64 * 8.0 / seconds)
            };
            let rates = carried.iter().map(rate).collect();
            (counted, told) = (carried, now);
            // Fails only when the receiver is gone: the caller has panicked.
            let tick = Progress::Tick { elapsed: Duration::from_nanos(now), rates };
            self.tell.send(tick).map_err(|_| LabError::Interrupted)?;
        }
        Ok(())
    }
}

/// A note when promises are judged for much less than the measured time: a daemon keeps a minute by the second and an hour
/// by the minute, and windows that began before measuring are not judged.
fn not_judged(measured: u64, promises: &BTreeMap<String, SloReport>) -> Option<String> {
    let measured = Duration::from_nanos(measured).as_secs_f64();
    let judged = promises.values().map(|report| report.span).min_by(f64::total_cmp)?;
    let little = judged == 0.0 || measured > 60.0 && judged < 0.9 * measured;
    little.then(|| {
        format!(
            "of {measured:.1} s that were measured, promises are judged in the last {judged:.0} s: an engine remembers a \
             minute by the second, and an hour by the minute"
        )
    })
}

/// What changes while a run goes on.
enum Plan<'a> {
    /// All systems take turns.
    Turns(Turns<'a>),
    /// One system's policies change.
    Timeline(Timeline<'a>),
}

impl Plan<'_> {
    /// Whether the run goes on beyond the scenario's duration.
    fn is_under_way(&self) -> bool {
        matches!(self, Self::Turns(turns) if !turns.over())
    }

    /// Time of the next step, from the start of the run.
    fn due(&self) -> Option<u64> {
        match self {
            Self::Turns(turns) => Some(turns.due()),
            Self::Timeline(timeline) => timeline.due(),
        }
    }

    /// Takes the steps that are due; returns the turn that began with them, if one did.
    fn take(&mut self, world: &mut World, clock: &Clock) -> Result<Option<Progress>, LabError> {
        match self {
            Self::Turns(turns) => turns.take(world, clock),
            Self::Timeline(timeline) => timeline.take(world, clock.now()).map(|()| None),
        }
    }
}

/// What the threads of a run measured.
struct Driven {
    workloads: BTreeMap<String, WorkloadResult>,
    frames: Frames,
    loads: Loads,
}

/// The time that each host's CPU for received packets worked, in windows.
type Loads = BTreeMap<String, Vec<Span>>;

/// Notes how many packets of a workload a meter held up or dropped, from the counts of the tenants that send.
fn attribute(
    metered: &BTreeMap<String, u64>,
    jobs: &[Job],
    workloads: &mut BTreeMap<String, WorkloadResult>,
) {
    for job in jobs {
        let sender = &job.tenant.netns;
        let beside = jobs.iter().filter(|other| other.tenant.netns == *sender).count();
        let Some(count) = metered.get(sender).and_then(|count| of_one(*count, beside)) else { continue };
        workloads.entry(job.workload.name.clone()).or_default().metered = Some(count);
    }
}

/// What one of a sender's workloads has of its count. Of several it is not known, unless none has any.
fn of_one(count: u64, workloads: usize) -> Option<u64> {
    (workloads == 1 || count == 0).then_some(count)
}

/// A run's jobs, their live counters, and the run's clock.
#[derive(Clone, Copy)]
struct Scene<'a> {
    jobs: &'a [Job],
    lives: &'a [Live],
    clock: &'a Clock,
}

/// State shared by the threads of a run: the first failure ends them all.
#[derive(Default)]
struct Shared {
    halt: AtomicBool,
    error: Mutex<Option<LabError>>,
}

impl Shared {
    /// The value; or, after a failure, an empty one: the failure is kept, and all threads are told to stop.
    fn keep<T: Default>(&self, result: Result<T, LabError>) -> T {
        result.unwrap_or_else(|error| {
            self.halt.store(true, Ordering::Relaxed);
            if let Ok(mut first) = self.error.lock() {
                first.get_or_insert(error);
            }
            T::default()
        })
    }

    /// Like `keep`, but returns whether there was no failure.
    fn halt_on_error(&self, result: Result<(), LabError>) -> bool {
        self.keep(result.map(|()| true))
    }
}

/// Ends the other threads when the lab's own thread panics, so that the panic shows at once.
struct HaltOnPanic<'a>(&'a Shared, &'a AtomicBool);

impl Drop for HaltOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.halt.store(true, Ordering::Relaxed);
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

fn wait_until_ready(readiness: &Receiver<()>, count: usize, shared: &Shared) -> Result<(), LabError> {
    let deadline = Instant::now() + READY;
    let mut ready = 0;
    while ready < count && !shared.halt.load(Ordering::Relaxed) {
        match readiness.recv_timeout(TICK) {
            Ok(()) => ready += 1,
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => return Err(LabError::Scenario("not all workloads were ready in time".to_owned())),
        }
    }
    Ok(())
}

/// Runs the listening side of a workload: a real tool or the lab's own.
fn serve(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    if tools::drives(&side.job.workload.kind) {
        tools::serve(side, ready)
    } else {
        traffic::serve(side, ready)
    }
}

/// Runs the connecting side of a workload: a real tool or the lab's own. It is ready once it has entered its namespace.
fn send(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    netns::enter(&side.job.server_and_client().1.netns)?;
    ready();
    if tools::drives(&side.job.workload.kind) { tools::send(side) } else { traffic::send(side) }
}

/// Bytes of each tenant that have crossed the uplink so far.
fn carried(jobs: &[Job], lives: &[Live]) -> BTreeMap<String, u64> {
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    for (job, live) in jobs.iter().zip(lives) {
        *bytes.entry(job.workload.tenant.clone()).or_default() += live.bytes.load(Ordering::Relaxed);
    }
    bytes
}

fn span(time: Duration) -> Span {
    Span::ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Whether the error says that the kernel lacks a queueing discipline such as HTB, which is a note and not a failure.
fn may_be_missing(system: &System, error: &LabError) -> bool {
    !system.kind.on_engine() && matches!(error, LabError::Tool { command, .. } if command.starts_with("tc "))
}

/// Losses as seen by senders and receivers, since one shared queue does not know the tenants of dropped packets.
fn losses_at_ends(
    jobs: &[Job],
    lives: &[Live],
    results: &BTreeMap<String, WorkloadResult>,
    retransmitted: &BTreeMap<String, u64>,
) -> Drops {
    let mut drops = Drops::new();
    for (tenant, count) in retransmitted {
        drops.entry(tenant.clone()).or_default().insert("tcp segments sent again".to_owned(), *count);
    }
    for (job, live) in jobs.iter().zip(lives) {
        let sent = live.datagrams.load(Ordering::Relaxed);
        let arrived = results.get(&job.workload.name).map_or(0, |result| result.packets);
        if sent > 0 {
            let reasons = drops.entry(job.workload.tenant.clone()).or_default();
            *reasons.entry("datagrams lost".to_owned()).or_default() += sent.saturating_sub(arrived);
        }
    }
    for reasons in drops.values_mut() {
        reasons.retain(|_, count| *count > 0);
    }
    drops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_judged_of_a_long_run_is_said() {
        let judged = |span| BTreeMap::from([(String::new(), SloReport { span, ..SloReport::default() })]);
        let said = |seconds: u64, span| not_judged(seconds * 1_000_000_000, &judged(span)).is_some();
        assert_eq!((said(5, 4.0), said(60, 58.0), said(1, 0.0)), (false, false, true));
        assert_eq!((said(7_200, 3_600.0), said(3_600, 3_540.0)), (true, false));
        assert_eq!(not_judged(1, &BTreeMap::new()), None, "of the kernel's own nothing is asked");
    }

    #[test]
    fn a_senders_count_is_a_workloads_where_it_has_one_or_the_count_is_zero() {
        assert_eq!(
            [of_one(7, 1), of_one(0, 1), of_one(0, 3), of_one(7, 2)],
            [Some(7), Some(0), Some(0), None]
        );
    }
}
