//! `plimsoll lab`.
//!
//! Why: a policy must be shown to work with real traffic.
//! From: the crates `scenario` (reading, judging, reports) and `lab` (running).
//! Not here: either of those.
//! Invariant: exit code 1 exactly when a run or an expectation failed.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_lab::{Options, Progress};
use plimsoll_scenario::{FileKind, Form, Point, Report, Results, Scenario, Status, Verdict};

use crate::args::{Format, Lab};
use crate::check;
use crate::failure::{Failure, print, print_json};
use crate::show::rate;

/// Runs a scenario, reports, and judges.
pub(crate) fn lab(args: &Lab) -> Result<(), Failure> {
    let form = Form::new(false, args.short);
    let points = load(&args.file, form, &args.system, &args.set)?;
    if !points[0].scenario.live {
        let file = args.file.display();
        let why =
            format!("{file} says `live: false`: it runs in virtual time only; try `plimsoll sim {file}`");
        return Err(Failure::Wrong(why));
    }
    for point in &points {
        check::hold(point.scenario.check_policies())?;
    }
    writable(&args.out)?;
    // Before anything starts a thread: the kernel lets only single-threaded processes into a user namespace.
    plimsoll_lab::ensure_privileges().map_err(|error| Failure::Failed(error.to_string()))?;

    let options = Options { systems: args.system.clone(), pairs: args.pairs, ..Options::default() };
    let bar = Live::new();
    let run = |(index, point): (usize, &Point)| {
        let place = place(point, index, points.len());
        plimsoll_lab::run(&point.scenario, &options, &mut |told| bar.show(&place, told))
    };
    let results: Result<Vec<Results>, _> = points.iter().enumerate().map(run).collect();
    bar.end();
    let results = results.map_err(|error| Failure::Failed(error.to_string()))?;
    let judged =
        points.iter().zip(&results).map(|(point, found)| plimsoll_scenario::judge(&point.scenario, found));
    let judged: Vec<Vec<Verdict>> = judged.collect();
    match (points.as_slice(), results.as_slice()) {
        ([point], [found]) if point.settings.is_empty() => {
            show(&point.scenario, found, &judged[0], (&args.out, args.format), args.json)?;
        }
        _ => {
            let results: Vec<&Results> = results.iter().collect();
            let shown = show_sweep(&points, &results, &judged, (&args.out, args.format), args.json);
            points.iter().zip(&judged).for_each(|(point, verdicts)| complain(point, verdicts));
            shown?;
        }
    }
    let failed = judged.iter().flatten().any(|verdict| verdict.status == Status::Failed);
    if failed { Err(Failure::Said) } else { Ok(()) }
}

/// Prints the expectations that failed at a point of a sweep.
fn complain(point: &Point, verdicts: &[Verdict]) {
    for verdict in verdicts.iter().filter(|verdict| verdict.status == Status::Failed) {
        eprintln!("failed at {}: `{}` ({})", settings(point), verdict.expect, verdict.detail);
    }
}

/// The settings of a point of a sweep, such as `repeat.c=4`; empty without a sweep.
pub(crate) fn settings(point: &Point) -> String {
    let settings = point.settings.iter().map(|(path, value)| format!("{path}={value}"));
    settings.collect::<Vec<_>>().join(", ")
}

/// The number and settings of a point of a sweep: `2/5, repeat.c=4: `.
pub(crate) fn place(point: &Point, index: usize, points: usize) -> String {
    if point.settings.is_empty() {
        return String::new();
    }
    format!("{}/{points}, {}: ", index + 1, settings(point))
}

/// Prints one table for all points, or JSON, and writes the report.
pub(crate) fn show_sweep(
    points: &[Point],
    results: &[&Results],
    judged: &[Vec<Verdict>],
    (out, format): (&Path, Format),
    json: bool,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for ((point, results), verdicts) in points.iter().zip(results).zip(judged) {
        rows.extend(plimsoll_scenario::rows(point, results, verdicts));
    }
    let (name, about) = (&points[0].scenario.name, &points[0].scenario.about);
    let written = plimsoll_scenario::sweep_report(name, about, &rows, out).and_then(|written| {
        let more = (format == Format::Parquet).then(|| plimsoll_scenario::parquet_sweep(&rows, out));
        more.transpose().map(|_| written)
    });
    if json {
        print_json(&plimsoll_scenario::sweep_json(points, results, judged))?;
    } else {
        let table = plimsoll_scenario::sweep_table(&rows, terminal().0);
        print(&format!("{name}: {} points\n{table}\n", points.len()))?;
    }
    tell(written, out, json)
}

/// Prints the report's path below the table; fails when the report could not be written.
fn tell(written: io::Result<Report>, out: &Path, json: bool) -> Result<(), Failure> {
    match written {
        Ok(_) if json => Ok(()),
        Ok(report) => print(&format!("\nreport: {}\n", report.html.display())),
        Err(error) => Err(Failure::Failed(no_report(out, &error))),
    }
}

fn no_report(out: &Path, error: &io::Error) -> String {
    format!(
        "the report cannot be written into the folder `{}`: {error}; name another folder with `--out`",
        out.display()
    )
}

/// Makes the report's folder and checks that files can be made in it, before anything is run.
pub(crate) fn writable(out: &Path) -> Result<(), Failure> {
    probed(out).map_err(|error| Failure::Wrong(no_report(out, &error)))
}

/// Makes a folder and checks that files can be made in it.
pub(crate) fn probed(out: &Path) -> io::Result<()> {
    let probe = out.join(format!(".plimsoll-{}", std::process::id()));
    fs::create_dir_all(out).and_then(|()| fs::write(&probe, [])).and_then(|()| fs::remove_file(&probe))
}

/// Reads a scenario and returns all points of its sweep, at least one. Fails when it lacks one of these systems.
pub(crate) fn load(
    file: &Path,
    form: Form,
    systems: &[String],
    settings: &[(String, String)],
) -> Result<Vec<Point>, Failure> {
    check::want(file, FileKind::Scenario)?;
    let points = Scenario::load_points(file, form, settings);
    let points = points.map_err(|errors| Failure::Scenario(Box::new(errors)))?;
    points[0].scenario.has_systems(systems).map_err(Failure::Wrong)?;
    Ok(points)
}

/// Prints the results as JSON or as a table, and writes the report.
pub(crate) fn show(
    scenario: &Scenario,
    results: &Results,
    verdicts: &[Verdict],
    (out, format): (&Path, Format),
    json: bool,
) -> Result<(), Failure> {
    let written = plimsoll_scenario::report(scenario, results, verdicts, out).and_then(|written| {
        let more =
            (format == Format::Parquet).then(|| plimsoll_scenario::parquet_report(scenario, results, out));
        more.transpose().map(|_| written)
    });
    if json {
        print_json(&plimsoll_scenario::json(scenario, results, verdicts))?;
    } else {
        let (width, colour) = terminal();
        let summaries = plimsoll_scenario::summarise(scenario, results);
        print(&plimsoll_scenario::table(scenario, results, &summaries, verdicts, width, colour))?;
    }
    tell(written, out, json)
}

/// Width of standard output in columns, and whether it shows colours.
pub(crate) fn terminal() -> (u16, bool) {
    let shown = std::io::stdout().is_terminal();
    let width = crossterm::terminal::size().ok().filter(|_| shown).map_or(120, |(columns, _)| columns);
    (width, shown && std::env::var_os("NO_COLOR").is_none())
}

/// Most tenants whose rates are shown in a line.
const MOST_SHOWN: usize = 8;

/// The progress bar of a running lab; invisible where standard error is not a terminal.
pub(crate) struct Live {
    bar: ProgressBar,
}

impl Live {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("[{elapsed_precise}] {pos}/{len} {prefix:<12} {msg}")
        {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Shows progress; `place` is put before the system's name.
    pub(crate) fn show(&self, place: &str, progress: Progress) {
        match progress {
            Progress::System { index, total, name, pair } => {
                self.bar.set_length(total as u64);
                self.bar.set_position(index as u64 + 1);
                self.bar.set_prefix(format!("{place}{name}"));
                self.bar.set_message(format!("repetition {}", pair + 1));
            }
            Progress::Tick { elapsed, rates } => {
                let mut shown: Vec<String> =
                    rates.iter().map(|(name, bits)| format!("{name} {}", rate(*bits))).collect();
                if shown.len() > MOST_SHOWN {
                    shown = vec![format!("{} tenants {}", rates.len(), rate(rates.values().sum()))];
                }
                self.bar.set_message(format!("{} s  {}", elapsed.as_secs(), shown.join("  ")));
            }
        }
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
