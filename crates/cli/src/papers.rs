//! `plimsoll papers`: repeats the papers' experiments and shows the papers' figures beside the measured ones.
//!
//! Why: one command shows in one table which of the papers' results the engine repeats and which it does not.
//! From: the scenario files of `examples/papers/`, run in virtual time; `paper:` in each names its experiment.
//! Not here: reading the files (`scenario`), running them (`sim`), the live forms (`live`).
//! Invariant: an experiment passes when every expectation and delay bound holds with every seed; exit code 1 when one
//! does not, with the command that shows it again.

mod collect;
mod files;
mod live;
mod page;
mod shown;
mod table;

use std::path::Path;
use std::time::Instant;

use plimsoll_scenario::{Figure, Form, Number, Paper, Scenario};
use plimsoll_sim::{Options, Outcome, SimError};
use serde_json::{Value, json};

use crate::args::Papers;
use crate::failure::{Failure, print, print_json};
use crate::{lab, sim};
use files::Experiment;

/// Default number of seeds with which an experiment must hold.
const SEEDS: u32 = 5;

/// The result of an experiment.
#[derive(Clone, Debug)]
struct Finding {
    paper: Paper,
    /// The name of its file in `examples/papers/`.
    file: String,
    figures: Vec<(Number, Option<Figure>)>,
    /// Failed expectations and bounds, each with the command that repeats it.
    failures: Vec<String>,
    /// Whether several seeds gave one result, as chance has no part in the experiment.
    alike: bool,
}

impl Finding {
    fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// The verdict, `passed` or `failed` in the words of the table, and what a reader must know beside it.
    fn verdict(&self, passed: &str, failed: &str) -> String {
        let word = if self.passed() { passed } else { failed };
        let differs = if self.paper.differs.is_empty() { "" } else { ", differs" };
        let alike = if self.alike { ", seeds alike" } else { "" };
        format!("{word}{differs}{alike}")
    }
}

/// Runs the experiments that were asked for, and shows the results.
pub(crate) fn papers(args: &Papers) -> Result<(), Failure> {
    if let Some(folder) = &args.unpack {
        return files::unpack(folder);
    }
    if args.live {
        return live::live(args);
    }
    if args.write.is_some() && !args.only.is_empty() {
        let why = "without `--live` the whole page is written: leave out `--only`, or add `--live`";
        return Err(Failure::Wrong(why.to_owned()));
    }
    let form = Form::new(true, args.short);
    let experiments = files::experiments(args.folder.as_deref(), form, &args.only)?;
    let seeds = args.seeds.unwrap_or(if args.seed.is_some() { 1 } else { SEEDS });
    let options = Options { seed: args.seed, seeds, threads: args.threads, ..Options::default() };
    let begun = Instant::now();
    let (findings, hops) = run(args, &experiments, &options);
    if let Some(file) = &args.write {
        page::write(file, &findings, seeds)?;
    }
    if args.json {
        print_json(&findings.iter().map(machine).collect::<Vec<Value>>())?;
    } else {
        let (width, colour) = lab::terminal();
        print(&table::table(&findings, width, colour))?;
        print(&summary(&findings, seeds, hops, begun.elapsed().as_secs_f64()))?;
    }
    if findings.iter().all(Finding::passed) {
        return Ok(());
    }
    findings.iter().flat_map(|finding| &finding.failures).for_each(|failure| eprintln!("{failure}"));
    Err(Failure::Said)
}

/// Runs all experiments at once, on all cores; returns the results, and the number of packets times links passed.
fn run(args: &Papers, experiments: &[Experiment], options: &Options) -> (Vec<Finding>, u64) {
    let points = || experiments.iter().flat_map(|one| one.points.iter().map(move |point| (one, point)));
    let scenarios: Vec<&Scenario> = points().map(|(_, point)| &point.scenario).collect();
    let ids: Vec<&str> = points().map(|(one, _)| one.paper.id.as_str()).collect();
    let bar = sim::Live::new();
    let mut outcomes =
        plimsoll_sim::run_each(&scenarios, options, &|progress| bar.show(ids[progress.scenario], &progress))
            .into_iter();
    bar.end();
    let mut hops = 0;
    let findings = experiments.iter().map(|experiment| {
        let own: Vec<_> = outcomes.by_ref().take(experiment.points.len()).collect();
        hops += own.iter().flatten().map(|outcome| outcome.hops).sum::<u64>();
        finding(args, experiment, &own, options)
    });
    (findings.collect(), hops)
}

fn finding(
    args: &Papers,
    experiment: &Experiment,
    outcomes: &[Result<Outcome, SimError>],
    options: &Options,
) -> Finding {
    let mut failures = Vec::new();
    let alike = options.seeds > 1 && outcomes.iter().flatten().all(|outcome| outcome.results.are_alike());
    // All points of a sweep have the same numbers.
    let mut values = vec![Vec::new(); experiment.paper.numbers.len()];
    for (point, outcome) in experiment.points.iter().zip(outcomes) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                failures.push(format!("{}: {}: {error}", experiment.paper.id, experiment.file));
                continue;
            }
        };
        let shown = |seed: u64| {
            if args.folder.is_some() {
                let settings: Vec<_> = point.settings.iter().collect();
                return sim::command(Path::new(&experiment.file), args.short, &[], &settings, seed);
            }
            let short = if args.short { " --short" } else { "" };
            format!("plimsoll papers --only {}{short} --seed {seed}", experiment.paper.id)
        };
        failures.extend(sim::unmet(point, outcome, options).into_iter().map(|(what, seed, _)| {
            format!("{}: {}: {what}; replay: {}", experiment.paper.id, experiment.file, shown(seed))
        }));
        let numbers = point.scenario.paper.iter().flat_map(|paper| &paper.numbers);
        for (values, number) in values.iter_mut().zip(numbers).filter(|(_, n)| n.is_at(&point.settings)) {
            values.extend(number.values(&point.scenario, &outcome.results));
        }
    }
    let numbers = experiment.paper.numbers.iter().cloned();
    let figures = numbers.zip(values).map(|(number, values)| (number.clone(), number.figure(&values)));
    let (paper, file) = (experiment.paper.clone(), experiment.file.clone());
    Finding { figures: figures.collect(), paper, file, failures, alike }
}

fn machine(finding: &Finding) -> Value {
    let Finding { paper, file, figures, failures, alike } = finding;
    let figures = figures.iter().map(|(number, ours)| {
        let at: serde_json::Map<String, Value> =
            number.at.iter().map(|(path, value)| (path.clone(), value.as_str().into())).collect();
        json!({ "of": number.of, "at": at, "paper": number.paper, "expression": number.ours(), "ours": ours })
    });
    json!({
        "id": paper.id, "figure": paper.figure, "shows": paper.shows, "file": file,
        "numbers": figures.collect::<Vec<Value>>(), "differs": paper.differs,
        "passed": failures.is_empty(), "failures": failures, "seeds_alike": alike,
    })
}

/// The line below the table: `14 experiments, 13 pass; 5 seeds, 213 s, 5.1M packet-hops/s`.
fn summary(findings: &[Finding], seeds: u32, hops: u64, seconds: f64) -> String {
    let passed = findings.iter().filter(|finding| finding.passed()).count();
    let speed = crate::show::count((hops as f64 / seconds.max(1e-3)) as u64);
    let plural = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    format!(
        "\n{}, {passed} pass; {}, {seconds:.0} s, {speed} packet-hops/s\n",
        plural(findings.len(), "experiment"),
        plural(seeds as usize, "seed"),
    )
}
