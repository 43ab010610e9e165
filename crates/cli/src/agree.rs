//! `plimsoll agree`: the same scenarios on Linux and in virtual time, figure beside figure.
//!
//! Why: results of the simulator can be trusted as far as they agree with what real TCP, real queues and real timers do.
//! From: the crates `lab` and `sim`, which run one form of each file; medians over repetitions and over seeds.
//! Not here: running either, the figures (`scenario`).
//! Invariant: every figure that either side has is compared, but for percentiles of requests that neither side answers; exit code 1
//! when one is further apart than its bound.

use std::path::{Path, PathBuf};

use comfy_table::CellAlignment::{Left, Right};
use plimsoll_scenario::{Form, Scenario, Summary, summarise};
use serde::Serialize;

use crate::args::Agree;
use crate::failure::{Failure, print, print_json};
use crate::{check, lab, show, sim};

/// Throughputs may differ by this factor: 10 %.
const THROUGHPUT: f64 = 1.1;
/// The 99th percentiles of latencies may differ by this factor.
const LATENCY: f64 = 2.0;
/// Throughputs below this part of the link are not compared: a tenant of which some segments arrive has no rate.
const NEGLIGIBLE: f64 = 0.01;

/// One figure of both worlds.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    scenario: String,
    system: String,
    figure: String,
    unit: &'static str,
    linux: f64,
    sim: f64,
    /// The factor by which they may differ.
    bound: f64,
}

/// Runs every scenario in both worlds, and shows the figures of both.
pub(crate) fn agree(args: &Agree) -> Result<(), Failure> {
    let scenarios = load(&args.files)?;
    // Before anything starts a thread: the kernel lets only single-threaded processes into a user namespace.
    plimsoll_lab::ensure_privileges().map_err(|error| Failure::Failed(error.to_string()))?;
    let mut figures = Vec::new();
    for (live, simulated) in &scenarios {
        let (linux, sim) = (on_linux(live, args)?, in_virtual_time(simulated, args)?);
        for (linux, sim) in linux.iter().zip(&sim).filter(|(linux, _)| linux.runs > 0) {
            compare(live, linux, sim, &mut figures);
        }
    }
    if let Some(file) = &args.write {
        write(file, &figures, args.seeds)?;
    }
    if args.json {
        print_json(&figures)?;
    } else {
        print(&text(&figures))?;
    }
    if !figures.is_empty() && figures.iter().all(Figure::agrees) { Ok(()) } else { Err(Failure::Said) }
}

/// The live form of each scenario, and its form in virtual time.
fn load(files: &[PathBuf]) -> Result<Vec<(Scenario, Scenario)>, Failure> {
    let one = |file: &PathBuf| {
        let read = |in_virtual_time| {
            let mut points = lab::load(file, Form::new(in_virtual_time, false), &[], &[])?;
            if points.len() > 1 {
                return Err(Failure::Wrong(format!(
                    "{} has a `sweep`, which `agree` does not run",
                    file.display()
                )));
            }
            Ok(points.swap_remove(0).scenario)
        };
        let (live, simulated) = (read(false)?, read(true)?);
        check::hold(live.check_policies())?;
        Ok((live, simulated))
    };
    files.iter().map(one).collect()
}

fn on_linux(scenario: &Scenario, args: &Agree) -> Result<Vec<Summary>, Failure> {
    let options = plimsoll_lab::Options { pairs: args.pairs, ..plimsoll_lab::Options::default() };
    let bar = lab::Live::new();
    let found =
        plimsoll_lab::run(scenario, &options, &mut |told| bar.show(&format!("{}: ", scenario.name), told));
    bar.end();
    Ok(summarise(scenario, &found.map_err(|error| Failure::Failed(error.to_string()))?))
}

fn in_virtual_time(scenario: &Scenario, args: &Agree) -> Result<Vec<Summary>, Failure> {
    let options = plimsoll_sim::Options { seeds: args.seeds, ..plimsoll_sim::Options::default() };
    let bar = sim::Live::new();
    let outcome = plimsoll_sim::run(scenario, &options, &|progress| bar.show(&scenario.name, &progress));
    bar.end();
    Ok(summarise(scenario, &outcome?.results))
}

/// Adds the figures that either has.
fn compare(scenario: &Scenario, linux: &Summary, sim: &Summary, figures: &mut Vec<Figure>) {
    let mut add = |figure: String, unit, values: [Option<f64>; 2], scale: f64, bound| {
        // What only one side has does not agree: its other figure is no number.
        let [linux_value, sim_value] = values.map(|value| value.unwrap_or(f64::NAN));
        if linux_value.is_nan() && sim_value.is_nan() {
            return;
        }
        figures.push(Figure {
            scenario: scenario.name.clone(),
            system: linux.system.clone(),
            figure,
            unit,
            linux: linux_value * scale,
            sim: sim_value * scale,
            bound,
        });
    };
    let least = scenario.rate.get() as f64 * NEGLIGIBLE;
    for (here, there) in linux.tenants.iter().zip(&sim.tenants) {
        let rates = [here.throughput_bps, there.throughput_bps];
        if rates.iter().flatten().any(|rate| *rate >= least) {
            add(format!("{} throughput", here.tenant), "Mb/s", rates, 1e-6, THROUGHPUT);
        }
    }
    for (here, there) in linux.latency.iter().zip(&sim.latency) {
        // Where more than one in a hundred has no answer on both sides, the 99th percentile of the others says how long the run was.
        if ![here, there].into_iter().all(|side| side.unanswered.is_some_and(|part| part > 0.01)) {
            add(format!("{} p99", here.workload), "ms", [here.p99, there.p99], 1e3, LATENCY);
        }
        let answers = [here.requests_per_second, there.requests_per_second];
        add(format!("{} answers", here.workload), "1/s", answers, 1.0, THROUGHPUT);
    }
}

impl Figure {
    /// The simulator's over Linux's; 1 where neither measured any.
    fn ratio(&self) -> f64 {
        if self.sim == 0.0 && self.linux == 0.0 { 1.0 } else { self.sim / self.linux }
    }

    fn agrees(&self) -> bool {
        (1.0 / self.bound..=self.bound).contains(&self.ratio())
    }

    fn cells(&self) -> [String; 7] {
        let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
        let unit = self.unit;
        [
            self.scenario.clone(),
            self.system.clone(),
            self.figure.clone(),
            format!("{} {unit}", number(self.linux)),
            format!("{} {unit}", number(self.sim)),
            format!("{:.2}", self.ratio()),
            if self.agrees() { "yes" } else { "NO" }.to_owned(),
        ]
    }
}

const COLUMNS: [&str; 7] = ["scenario", "system", "figure", "Linux", "sim", "ratio", "agrees"];

fn text(figures: &[Figure]) -> String {
    let mut table = show::table(&COLUMNS, &[Left, Left, Left, Right, Right, Right, Left]);
    table.add_rows(figures.iter().map(Figure::cells));
    let agreeing = figures.iter().filter(|figure| figure.agrees()).count();
    format!("{table}\n{}\n", verdict(agreeing, figures.len()))
}

fn verdict(agreeing: usize, all: usize) -> String {
    format!("{agreeing} of {all} figures agree: throughput and answers within 10 %, p99 within a factor of 2")
}

/// Lines between which a page holds the table.
const MARKS: [&str; 2] = ["<!-- agree: begin -->\n", "<!-- agree: end -->\n"];

/// Writes the figures into the table in a page, which keeps those of other scenarios; `seeds` is the number of seeds.
fn write(file: &Path, figures: &[Figure], seeds: u32) -> Result<(), Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::Failed(format!("cannot write `{}`: {why}", file.display()));
    let page = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
    let [begin, end] = MARKS.map(|mark| page.find(mark));
    let (Some(begin), Some(end)) = (begin.map(|at| at + MARKS[0].len()), end) else {
        return Err(failed(&format!("it has no lines `{}` and `{}`", MARKS[0].trim(), MARKS[1].trim())));
    };
    let table = markdown(figures, page.get(begin..end).unwrap_or_default(), seeds);
    let new = page[..begin].to_owned() + &table + &page[end..];
    std::fs::write(file, new).map_err(|error| failed(&error))
}

fn markdown(figures: &[Figure], before: &str, seeds: u32) -> String {
    let row = |figure: &Figure| format!("| {} |", figure.cells().join(" | "));
    let scenario = |row: &str| row.split('|').nth(1).map(|name| name.trim().to_owned()).unwrap_or_default();
    let measured = |row: &&str| !figures.iter().any(|figure| figure.scenario == scenario(row));
    let kept = before.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
    let kept = kept.filter(|line| line.starts_with('|')).filter(measured).map(str::to_owned);
    let mut rows: Vec<String> = kept.chain(figures.iter().map(row)).collect();
    // Stable: the figures of a scenario stay in their order.
    rows.sort_by_key(|row| scenario(row));
    let agreeing = rows.iter().filter(|row| row.ends_with(" yes |")).count();
    format!(
        "Medians of as many repetitions on Linux as each file's `pairs` says, and of {seeds} seeds. {}.\n\n\
         | {} |\n| --- | --- | --- | --: | --: | --: | --- |\n{}\n",
        verdict(agreeing, rows.len()),
        COLUMNS.join(" | "),
        rows.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(linux: f64, sim: f64, bound: f64) -> Figure {
        let name = || "x".to_owned();
        Figure { scenario: name(), system: name(), figure: name(), unit: "ms", linux, sim, bound }
    }

    #[test]
    fn figures_agree_within_their_factor_both_ways() {
        for (linux, sim, bound, agrees) in [
            (10.0, 10.9, THROUGHPUT, true),
            (10.9, 10.0, THROUGHPUT, true),
            (10.0, 11.1, THROUGHPUT, false),
            (10.0, 9.0, THROUGHPUT, false),
            (1.0, 1.9, LATENCY, true),
            (1.0, 0.4, LATENCY, false),
            (0.0, 0.0, THROUGHPUT, true),
            (1.0, f64::NAN, LATENCY, false),
        ] {
            assert_eq!(figure(linux, sim, bound).agrees(), agrees, "{linux} and {sim}");
        }
    }

    #[test]
    fn a_page_keeps_what_is_around_the_table_and_other_scenarios() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("page.md");
        std::fs::write(&file, format!("before\n{}old\n{}after\n", MARKS[0], MARKS[1])).expect("written");
        write(&file, &[figure(1.0, 3.0, LATENCY)], 5).expect("written");
        let page = std::fs::read_to_string(&file).expect("there");
        assert!(page.starts_with("before\n") && page.ends_with("after\n") && !page.contains("old"), "{page}");
        assert!(page.contains("0 of 1 figures agree") && page.contains("| 3.00 | NO |"), "{page}");
        let other = Figure { scenario: "a".to_owned(), ..figure(1.0, 1.0, LATENCY) };
        write(&file, &[other, figure(1.0, 1.5, LATENCY)], 5).expect("written");
        let page = std::fs::read_to_string(&file).expect("there");
        assert!(page.contains("2 of 2 figures agree") && !page.contains("3.00"), "{page}");
        write(&file, &[figure(1.0, 4.0, LATENCY)], 5).expect("written");
        let page = std::fs::read_to_string(&file).expect("there");
        assert!(page.contains("1 of 2 figures agree") && page.contains("| a |"), "{page}");
        std::fs::write(&file, "no marks").expect("written");
        assert!(write(&file, &[], 5).is_err());
        assert_eq!(std::fs::read_to_string(&file).expect("there"), "no marks");
    }
}
