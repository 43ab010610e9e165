//! `plimsoll lab`.
//!
//! Why: a policy is believed when real traffic obeys it.
//! From: the crates `scenario` (what to run, how to show it) and `lab` (how it is run).
//! Not here: either of those.
//! Invariant: exit code 1 exactly when something could not be run or an expectation failed.

use std::io::IsTerminal;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_lab::{Options, Progress};
use plimsoll_scenario::{Form, Point, Results, Scenario, Status, Verdict};

use crate::args::{Format, Lab};
use crate::failure::{Failure, print, print_json};
use crate::show::rate;

/// Runs a scenario, reports, and judges.
pub(crate) fn lab(args: &Lab) -> Result<(), Failure> {
    let form = Form::new(false, args.short);
    let scenario = load(&args.file, form, &args.system, &[])?.swap_remove(0).scenario;
    if !scenario.live {
        let file = args.file.display();
        let why = format!(
            "{file}: `live: false` says that this is for virtual time alone; try `plimsoll sim {file}`"
        );
        return Err(Failure::Wrong(why));
    }
    // Before anything starts a thread: the kernel lets only single-threaded processes into a user namespace.
    plimsoll_lab::ensure_privileges().map_err(|error| Failure::Failed(error.to_string()))?;

    let options = Options { systems: args.system.clone(), pairs: args.pairs, ..Options::default() };
    let bar = Live::new();
    let results = plimsoll_lab::run(&scenario, &options, &mut |progress| bar.show(progress));
    bar.end();
    let results = results.map_err(|error| Failure::Failed(error.to_string()))?;
    let verdicts = plimsoll_scenario::judge(&scenario, &results);
    show(&scenario, &results, &verdicts, (&args.out, args.format), args.json)?;
    let failed = verdicts.iter().any(|verdict| verdict.status == Status::Failed);
    if failed { Err(Failure::Said) } else { Ok(()) }
}

/// Reads a scenario, which has to have these systems: every point of its sweep, and at least one.
pub(crate) fn load(
    file: &Path,
    form: Form,
    systems: &[String],
    settings: &[(String, String)],
) -> Result<Vec<Point>, Failure> {
    let points = Scenario::load_points(file, form, settings);
    let points = points.map_err(|errors| Failure::Scenario(Box::new(errors)))?;
    let scenario = &points[0].scenario;
    let unknown = systems.iter().find(|name| !scenario.systems.iter().any(|system| system.name == **name));
    if let Some(name) = unknown {
        let known: Vec<&str> = scenario.systems.iter().map(|system| system.name.as_str()).collect();
        return Err(Failure::Wrong(format!(
            "there is no system `{name}`; the scenario has {}",
            known.join(", ")
        )));
    }
    Ok(points)
}

/// Writes the report, and prints the results as JSON or as a table.
pub(crate) fn show(
    scenario: &Scenario,
    results: &Results,
    verdicts: &[Verdict],
    (out, format): (&Path, Format),
    json: bool,
) -> Result<(), Failure> {
    let written = plimsoll_scenario::report(scenario, results, verdicts, out);
    let written = written.map_err(|error| Failure::Failed(error.to_string()))?;
    if format == Format::Parquet {
        let parquet = plimsoll_scenario::parquet_report(scenario, results, out);
        parquet.map_err(|error| Failure::Failed(error.to_string()))?;
    }
    if json {
        return print_json(&plimsoll_scenario::json(scenario, results, verdicts));
    }
    let (width, colour) = terminal();
    let summaries = plimsoll_scenario::summarise(scenario, results);
    print(&plimsoll_scenario::table(scenario, results, &summaries, verdicts, width, colour))?;
    print(&format!("\nreport: {}\n", written.html.display()))
}

/// Columns of standard output, and whether it takes colour.
pub(crate) fn terminal() -> (u16, bool) {
    let shown = std::io::stdout().is_terminal();
    let width = crossterm::terminal::size().ok().filter(|_| shown).map_or(120, |(columns, _)| columns);
    (width, shown && std::env::var_os("NO_COLOR").is_none())
}

/// The bar that moves while the lab runs; nothing where standard error is no terminal.
struct Live {
    bar: ProgressBar,
}

impl Live {
    fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("[{elapsed_precise}] {pos}/{len} {prefix:<12} {msg}")
        {
            bar.set_style(style);
        }
        Self { bar }
    }

    fn show(&self, progress: Progress) {
        match progress {
            Progress::System { index, total, name, pair } => {
                self.bar.set_length(total as u64);
                self.bar.set_position(index as u64 + 1);
                self.bar.set_prefix(name);
                self.bar.set_message(format!("building, repetition {}", pair + 1));
            }
            Progress::Tick { elapsed, rates } => {
                let shown: Vec<String> =
                    rates.iter().map(|(name, bits)| format!("{name} {}", rate(*bits))).collect();
                self.bar.set_message(format!("{} s  {}", elapsed.as_secs(), shown.join("  ")));
            }
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
