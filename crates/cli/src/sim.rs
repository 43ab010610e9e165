//! `plimsoll sim`.
//!
//! Why: a policy is designed before there is traffic, at rates that no spare machine carries.
//! From: the crates `scenario` (what to run, how to show it) and `sim` (how it is run).
//! Not here: either of those.
//! Invariant: exit code 1 exactly when something could not be run, an expectation failed with any seed, or a delay
//! bound did not hold; each failure names the command that replays it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use plimsoll_scenario::{Results, Scenario, Status, Verdict};
use plimsoll_sim::{Options, Outcome, Progress, SimError};

use crate::args::Sim;
use crate::failure::Failure;
use crate::lab;

/// Simulates a scenario, reports, and judges.
pub(crate) fn sim(args: &Sim) -> Result<(), Failure> {
    let scenario = lab::load(&args.file, args.short, &args.system)?;
    let options =
        Options { systems: args.system.clone(), seed: args.seed, seeds: args.seeds, threads: args.threads };
    let bar = Live::new();
    let outcome = plimsoll_sim::run(&scenario, &options, &|progress| bar.show(&progress));
    bar.end();
    let outcome = outcome.map_err(|error| match error {
        SimError::Panicked { .. } => Failure::Failed(error.to_string()),
        wrong => Failure::Wrong(wrong.to_string()),
    })?;
    let verdicts = plimsoll_scenario::judge(&scenario, &outcome.results);
    lab::show(&scenario, &outcome.results, &verdicts, &args.out, args.json)?;
    let first = args.seed.unwrap_or(scenario.seed);
    let mut complaints = broken_bounds(args, &outcome);
    for (pair, seed) in (0..args.seeds).map(|pair| (pair, first.wrapping_add(pair.into()))) {
        let failed = judge_pair(&scenario, &outcome.results, pair);
        if !failed.is_empty() {
            let lines: Vec<String> = failed.iter().map(|verdict| format!("`{}`", verdict.expect)).collect();
            complaints.push(format!("failed: {}; replay: {}", lines.join(", "), replay(args, seed, None)));
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
    Err(Failure::Said)
}

/// What one seed's runs did not fulfil.
fn judge_pair(scenario: &Scenario, results: &Results, pair: u32) -> Vec<Verdict> {
    let mut own = results.clone();
    own.runs.retain(|run| run.pair == pair);
    own.runs.iter_mut().for_each(|run| run.pair = 0);
    let mut verdicts = plimsoll_scenario::judge(scenario, &own);
    verdicts.retain(|verdict| verdict.status == Status::Failed);
    verdicts
}

fn broken_bounds(args: &Sim, outcome: &Outcome) -> Vec<String> {
    let complaint = |(kept, promise): (&plimsoll_sim::Kept, &plimsoll_sim::Promise)| {
        format!(
            "a delay bound did not hold: class `{}` on `{}` waited {} where {} were promised; replay: {}",
            promise.class,
            promise.host,
            promise.worst,
            promise.bound,
            replay(args, kept.seed, Some(&kept.system))
        )
    };
    outcome.broken().map(complaint).collect()
}

/// The one command that shows a failure again.
fn replay(args: &Sim, seed: u64, system: Option<&str>) -> String {
    let short = if args.short { " --short" } else { "" };
    let own = args.system.iter().map(String::as_str);
    let systems: String = system
        .map_or_else(|| own.collect(), |one| vec![one])
        .iter()
        .map(|name| format!(" --system {name}"))
        .collect();
    format!("plimsoll sim {}{short}{systems} --seed {seed}", args.file.display())
}

/// The bar that moves while runs go on; nothing where standard error is no terminal.
struct Live {
    bar: ProgressBar,
    begun: Instant,
    runs: Mutex<BTreeMap<usize, (u64, u64)>>,
}

/// Steps of the bar for one run.
const STEPS: u64 = 1_000;

impl Live {
    fn new() -> Self {
        let bar = ProgressBar::new(0);
        let template = "[{elapsed_precise}] {wide_bar} {percent} %  {msg}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now(), runs: Mutex::new(BTreeMap::new()) }
    }

    fn show(&self, progress: &Progress) {
        let Ok(mut runs) = self.runs.lock() else { return };
        let (now, length) = (progress.now.as_u64(), progress.length.as_u64().max(1));
        runs.insert(progress.run, (now * STEPS / length, progress.events));
        let (done, events) = runs.values().fold((0, 0), |(done, events), one| (done + one.0, events + one.1));
        let per_second = events as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_length(progress.runs as u64 * STEPS);
        self.bar.set_position(done);
        self.bar.set_message(format!(
            "{} at {:.2} s, {} events/s",
            progress.system,
            now as f64 / 1e9,
            HumanCount(per_second as u64)
        ));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
