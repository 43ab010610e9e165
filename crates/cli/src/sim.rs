//! `plimsoll sim`.
//!
//! Why: a policy is designed before there is traffic, for rates that a test machine may not carry.
//! From: the crates `scenario` (reading, judging, reports) and `sim` (running).
//! Not here: either of those.
//! Invariant: exit code 1 exactly when a run failed, an expectation failed with any seed, or a delay
//! bound did not hold; each failure names the command that replays it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use plimsoll_scenario::{Form, Point, Results, Status, Verdict};
use plimsoll_sim::{DelayBound, Options, Outcome, Progress, RunBounds, Study, Trace};

use crate::args::{Format, Sim};
use crate::failure::Failure;
use crate::{lab, replay};

/// Simulates a scenario, or every point of its sweep, reports, and judges.
pub(crate) fn sim(args: &Sim) -> Result<(), Failure> {
    let file = match (&args.replay, &args.file) {
        (Some(recorded), policy) => return replay::replay(args, recorded, policy.as_deref()),
        (None, Some(file)) => file,
        (None, None) => {
            return Err(Failure::Wrong(
                "this command needs a scenario file, such as `plimsoll sim scenario.yaml`".to_owned(),
            ));
        }
    };
    let points = lab::load(file, Form::new(true, args.short), &args.system, &args.set)?;
    lab::writable(&args.out)?;
    if let Some(folder) = &args.series {
        lab::probed(folder).map_err(|error| Failure::Wrong(no_traces(folder, &error)))?;
    }
    let options = Options {
        systems: args.system.clone(),
        seed: args.seed,
        seeds: args.seeds,
        threads: args.threads,
        trace: args.trace.clone().map(|file| Trace { file, at: args.trace_at.clone() }),
        series: args.series.is_some(),
    };
    let study = Study::new(points, options.clone())?;
    let bar = Live::new();
    let outcomes = study.run(&|progress| bar.show("", &progress));
    bar.end();
    let outcomes = outcomes?;
    let shown = show(args, study.points(), &outcomes).and_then(|()| series(args, &outcomes));
    let mut complaints = Vec::new();
    for (point, outcome) in study.points().iter().zip(&outcomes) {
        complaints.extend(unmet(point, outcome, &options).into_iter().map(|(what, seed, system)| {
            format!("{what}; replay: {}", replay_command(args, file, point, seed, system.as_deref()))
        }));
    }
    if complaints.is_empty() {
        return shown;
    }
    complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
    match shown {
        Ok(()) | Err(Failure::PipeClosed) => Err(Failure::Said),
        wrong => wrong,
    }
}

/// Writes the traces of flows and links; those of each point of a sweep into a folder of its own.
fn series(args: &Sim, outcomes: &[Outcome]) -> Result<(), Failure> {
    let Some(folder) = &args.series else { return Ok(()) };
    for (number, outcome) in (1..).zip(outcomes) {
        let folder = if outcomes.len() > 1 { folder.join(format!("{number}")) } else { folder.clone() };
        let written =
            plimsoll_scenario::series_files(&outcome.results, &folder, args.format == Format::Parquet);
        written.map_err(|error| Failure::Failed(no_traces(&folder, &error)))?;
    }
    Ok(())
}

fn no_traces(folder: &Path, error: &io::Error) -> String {
    let place = folder.display();
    format!(
        "traces cannot be written into the folder `{place}`: {error}; name another folder with `--series`"
    )
}

/// Judges the results of all seeds, prints them, and writes the report.
fn show(args: &Sim, points: &[Point], outcomes: &[Outcome]) -> Result<(), Failure> {
    let verdicts: Vec<Vec<Verdict>> =
        points.iter().zip(outcomes).map(|(point, outcome)| plimsoll_sim::verdicts(point, outcome)).collect();
    match (points, outcomes) {
        ([point], [outcome]) if point.settings.is_empty() => {
            lab::show(&point.scenario, &outcome.results, &verdicts[0], (&args.out, args.format), args.json)
        }
        _ => {
            let results: Vec<&Results> = outcomes.iter().map(|one| &one.results).collect();
            lab::show_sweep(points, &results, &verdicts, (&args.out, args.format), args.json)
        }
    }
}

/// A failed expectation or bound: the message, the seed, and the system if it concerns only one.
pub(crate) type Unmet = (String, u64, Option<String>);

/// The failed expectations and bounds of one point.
pub(crate) fn unmet(point: &Point, outcome: &Outcome, options: &Options) -> Vec<Unmet> {
    let first = options.seed.unwrap_or(point.scenario.seed);
    let mut unmet: Vec<Unmet> = outcome.broken().map(broken).collect();
    for (pair, seed) in (0..options.seeds).map(|pair| (pair, first.wrapping_add(pair.into()))) {
        let mut failed = plimsoll_scenario::judge_pair(&point.scenario, &outcome.results, pair);
        failed.retain(|verdict| verdict.status == Status::Failed);
        if !failed.is_empty() {
            let line = |verdict: &Verdict| format!("`{}` ({})", verdict.expect, verdict.detail);
            let lines: Vec<String> = failed.iter().map(line).collect();
            unmet.push((format!("failed: {}", lines.join(", ")), seed, None));
        }
    }
    unmet
}

fn broken((run, judged): (&RunBounds, &DelayBound)) -> Unmet {
    let DelayBound { class, host, worst, bound, .. } = judged;
    let what = format!(
        "a delay bound did not hold: a packet of class `{class}` on `{host}` waited {worst}, but at most {bound} is promised"
    );
    (what, run.seed, Some(run.system.clone()))
}

/// The command that repeats a failure.
fn replay_command(args: &Sim, file: &Path, point: &Point, seed: u64, system: Option<&str>) -> String {
    let systems: Vec<&str> =
        system.map_or_else(|| args.system.iter().map(String::as_str).collect(), |one| vec![one]);
    let settings: Vec<&(String, String)> = args.set.iter().chain(&point.settings).collect();
    command(file, args.short, &systems, &settings, seed)
}

/// The command `plimsoll sim FILE ..`, quoted for a shell.
pub(crate) fn command(
    file: &Path,
    short: bool,
    systems: &[&str],
    settings: &[&(String, String)],
    seed: u64,
) -> String {
    let mut words = vec![format!("plimsoll sim {}", quoted(&file.to_string_lossy()))];
    words.extend(short.then(|| "--short".to_owned()));
    words.extend(systems.iter().map(|name| format!("--system {}", quoted(name))));
    words
        .extend(settings.iter().map(|(path, value)| format!("--set {}", quoted(&format!("{path}={value}")))));
    words.push(format!("--seed {seed}"));
    words.join(" ")
}

/// A word quoted for a POSIX shell, in single quotes if it has special characters.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._%-+,:/@=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The progress bar of running simulations; invisible where standard error is not a terminal.
pub(crate) struct Live {
    bar: ProgressBar,
    begun: Instant,
    runs: Mutex<BTreeMap<usize, (u64, u64)>>,
}

/// Steps of the bar for one run.
const STEPS: u64 = 1_000;

impl Live {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let template = "[{elapsed_precise}] {wide_bar} {percent} %  {msg}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now(), runs: Mutex::new(BTreeMap::new()) }
    }

    /// Shows progress; `what` is put before the system's name.
    pub(crate) fn show(&self, what: &str, progress: &Progress) {
        let Ok(mut runs) = self.runs.lock() else { return };
        let (now, length) = (progress.now.as_u64(), progress.length.as_u64().max(1));
        runs.insert(progress.run, (now * STEPS / length, progress.events));
        let (done, events) = runs.values().fold((0, 0), |(done, events), one| (done + one.0, events + one.1));
        let per_second = events as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_length(progress.runs as u64 * STEPS);
        self.bar.set_position(done);
        self.bar.set_message(format!(
            "{what}{}{} at {:.2} s, {} events/s",
            if what.is_empty() { "" } else { " " },
            progress.system,
            now as f64 / 1e9,
            HumanCount(per_second as u64)
        ));
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_the_replay_back_word_by_word() {
        let settings = [("repeat.<c>".to_owned(), "it's $HOME & 4".to_owned())];
        let settings: Vec<_> = settings.iter().collect();
        let shown = command(Path::new("my files/a(1).yaml"), true, &["<s>"], &settings, 3);
        let echoed = shown.replacen("plimsoll", "printf '%s\\n'", 1);
        let read = Command::new("sh").args(["-c", &echoed]).output().expect("a shell");
        let words = String::from_utf8(read.stdout).expect("text");
        let told = [
            "sim",
            "my files/a(1).yaml",
            "--short",
            "--system",
            "<s>",
            "--set",
            "repeat.<c>=it's $HOME & 4",
            "--seed",
            "3",
        ];
        assert_eq!(words.lines().collect::<Vec<_>>(), told, "{shown}");
    }
}
