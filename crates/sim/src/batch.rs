//! The runs of some scenarios, one by one: here, or in parts on other processes and machines.
//!
//! Why: a sweep of a thousand points takes hours on one machine, and its runs share nothing.
//! From: scoped threads that take the next run from one counter.
//! Not here: one run (`run`), and how parts reach other machines.
//! Invariant: the outcomes are the same, whatever part ran where.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_scenario::{Scenario, System};

use crate::error::SimError;
use crate::run::{Finished, Job, Options, Outcome, Progress};

/// Samples of connections and links that all runs together keep, as long as there are fewer than 256 runs.
const MOST_SAMPLES: usize = 1 << 20;

/// Every run of some scenarios, in the order of the scenarios, then of seeds, then of systems.
///
/// ```
/// use plimsoll_scenario::{Form, Scenario};
/// use plimsoll_sim::{Batch, Options};
///
/// let text = "{name: two, rate: 100Mbps, duration: 100ms, systems: [fifo, plimsoll], tenants: {a: {}}, \
///     workloads: {w: {tenant: a, kind: bulk}}}";
/// let scenario = Scenario::parse(text, "two.yaml", "".as_ref(), Form::Full).expect("a scenario");
/// let batch = Batch::new(&[&scenario], &Options { seeds: 2, ..Options::default() });
/// assert_eq!(batch.len(), 4);
/// // Two machines could carry out a part each.
/// let mut finished = batch.run(&[0, 1], &|_| {});
/// finished.extend(batch.run(&[2, 3], &|_| {}));
/// let outcomes = batch.outcomes(finished);
/// assert_eq!(outcomes[0].as_ref().expect("it ran").results.runs.len(), 4);
/// ```
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    jobs: Vec<Job<'a>>,
    scenarios: usize,
    threads: Option<NonZeroUsize>,
    stop: Arc<AtomicBool>,
}

impl<'a> Batch<'a> {
    /// The runs of these scenarios: each chosen system with each seed.
    #[must_use]
    pub fn new(scenarios: &[&'a Scenario], options: &Options) -> Self {
        let mut jobs = Vec::new();
        for (index, &scenario) in scenarios.iter().enumerate() {
            let chosen =
                |system: &&System| options.systems.is_empty() || options.systems.contains(&system.name);
            let first = options.seed.unwrap_or(scenario.seed);
            for (pair, seed) in (0..options.seeds.max(1)).map(|pair| (pair, first.wrapping_add(pair.into())))
            {
                jobs.extend(scenario.systems.iter().filter(chosen).map(|system| Job {
                    index,
                    scenario,
                    system,
                    pair,
                    seed,
                    trace: None,
                    series: None,
                }));
            }
        }
        if let Some(trace) = &options.trace {
            let alone = jobs.len() == 1;
            jobs.iter_mut().for_each(|job| {
                job.trace = Some(if alone { trace.clone() } else { job.trace_of_its_own(trace) })
            });
        }
        let most = MOST_SAMPLES / jobs.len().max(1);
        let most = options.series.then_some(most.clamp(MOST_SAMPLES >> 8, MOST_SAMPLES >> 2));
        jobs.iter_mut().for_each(|job| job.series = most);
        Self { jobs, scenarios: scenarios.len(), threads: options.threads, stop: Arc::default() }
    }

    /// Lets a flag end all runs within a moment once another thread sets it: with [`SimError::Stopped`].
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// The number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is no run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Carries out the runs with these numbers, each below [`Batch::len`]; the results are in the order of `which`. The
    /// longest begin first, so that no thread ends long before the others. `progress` may be called from several threads.
    ///
    /// # Panics
    /// If there is no run of some number.
    pub fn run(
        &self,
        which: &[usize],
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Vec<Result<Finished, SimError>> {
        let jobs: Vec<&Job<'_>> = which.iter().map(|&number| &self.jobs[number]).collect();
        let found: Vec<Mutex<Option<Result<Finished, SimError>>>> =
            jobs.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_key(|&index| {
            std::cmp::Reverse(jobs[index].scenario.rate.bytes_in(jobs[index].scenario.duration))
        });
        let stop = || self.stop.load(Ordering::Relaxed);
        let take_turns = || {
            loop {
                let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let job = jobs[index];
                let done = job.run(&|now, events| {
                    progress(job.progress(which[index], self.jobs.len(), now, events));
                    if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                *found[index].lock().expect("no run panics with the lock") = Some(done);
                if stop() {
                    return;
                }
            }
        };
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = self.threads.map_or_else(cores, NonZeroUsize::get).min(jobs.len());
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(take_turns))));
        // Only a stop leaves a run to be taken.
        let taken =
            |slot: Mutex<Option<_>>| slot.into_inner().ok().flatten().unwrap_or(Err(SimError::Stopped));
        found.into_iter().map(taken).collect()
    }

    /// The outcome of each scenario, from what [`Batch::run`] gave for all runs, in their order. The first error of a
    /// scenario stands in its place.
    #[must_use]
    pub fn outcomes(&self, finished: Vec<Result<Finished, SimError>>) -> Vec<Result<Outcome, SimError>> {
        let mut outcomes: Vec<_> = (0..self.scenarios).map(|_| Ok(Outcome::default())).collect();
        for (job, finished) in self.jobs.iter().zip(finished) {
            match (&mut outcomes[job.index], finished) {
                (Ok(outcome), Ok(finished)) => outcome.add(finished),
                (Ok(_), Err(error)) => outcomes[job.index] = Err(error),
                (Err(_), _) => {} // the first error stays
            }
        }
        outcomes
    }
}
