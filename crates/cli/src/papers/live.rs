//! `plimsoll papers --live`: the experiments that one machine can run, on real namespaces and Linux TCP.
//!
//! Why: simulation shows the engine's decisions; only a live run shows the effects of a kernel, a TAP and a clock.
//! From: the live form of the experiments' files, some in a file of its own (`-live.yaml`); `expect:` is the criterion.
//! Not here: building a world (`lab`), writing the page (`page`).
//! Invariant: an experiment passes when every expectation holds at every point; systems that cannot run are skipped, with
//! a note.

use std::fmt::Write as _;

use comfy_table::CellAlignment::Left;
use comfy_table::ContentArrangement;
use plimsoll_lab::Options;
use plimsoll_scenario::{Form, Results};
use serde_json::json;

use super::files::{self, Experiment};
use super::page;
use super::shown::{COLUMNS, Shown};
use crate::args::Papers;
use crate::failure::{Failure, print, print_json};
use crate::{lab, show};

/// Runs the live forms that were asked for, and shows the results.
pub(super) fn live(args: &Papers) -> Result<(), Failure> {
    let form = Form::new(false, args.short);
    let mut experiments = files::experiments(args.folder.as_deref(), form, &args.only)?;
    experiments.retain(|one| one.points[0].scenario.live);
    if experiments.is_empty() {
        let asked = args.only.join("`, `");
        return Err(Failure::Wrong(format!("`{asked}` runs in virtual time only; leave out `--live`")));
    }
    // Before anything starts a thread: the kernel lets only single-threaded processes into a user namespace.
    plimsoll_lab::ensure_privileges().map_err(|error| Failure::Failed(error.to_string()))?;
    let bar = lab::Live::new();
    let all: Result<Vec<Shown<'_>>, Failure> = experiments.iter().map(|one| run(one, &bar)).collect();
    bar.end();
    let all = all?;
    if let Some(file) = &args.write {
        page::write_live(file, &all)?;
    }
    if args.json {
        print_json(&all.iter().map(machine).collect::<Vec<_>>())?;
    } else {
        print(&table(&all))?;
    }
    if all.iter().all(Shown::passed) { Ok(()) } else { Err(Failure::Said) }
}

fn run<'a>(experiment: &'a Experiment, bar: &lab::Live) -> Result<Shown<'a>, Failure> {
    let points = &experiment.points;
    let mut loads = vec![load()];
    let mut verdicts = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let place = format!("{} {}", experiment.paper.id, lab::place(point, index, points.len()));
        let found =
            plimsoll_lab::run(&point.scenario, &Options::default(), &mut |told| bar.show(&place, told));
        let found: Results =
            found.map_err(|error| Failure::Failed(format!("{}: {error}", experiment.file)))?;
        verdicts.push(plimsoll_scenario::judge(&point.scenario, &found));
        loads.push(load());
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (least, most) =
        (loads.iter().copied().fold(f64::MAX, f64::min), loads.iter().copied().fold(0.0, f64::max));
    let pairs = points.iter().map(|point| point.scenario.pairs);
    let pairs = match (pairs.clone().min().unwrap_or(1), pairs.max().unwrap_or(1)) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    };
    let machine = format!("{cores} cores, load {least:.0} to {most:.0}, medians of {pairs}");
    Ok(Shown { experiment, verdicts, machine })
}

/// The load average over the last minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn table(all: &[Shown<'_>]) -> String {
    let mut table = show::table(&COLUMNS, &[Left; 5]);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(lab::terminal().0);
    for row in all.iter().flat_map(Shown::rows) {
        table.add_row(row.map(|cell| cell.replace('`', "").replace("**", "")));
    }
    let mut text = String::new();
    for line in table.to_string().lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn machine(shown: &Shown<'_>) -> serde_json::Value {
    let points = shown.experiment.points.iter().zip(&shown.verdicts).map(|(point, verdicts)| {
        let verdicts = verdicts.iter().map(|one| {
            json!({ "expect": one.expect, "status": format!("{:?}", one.status).to_lowercase(),
                    "left": one.left, "right": one.right, "detail": one.detail })
        });
        json!({ "at": lab::settings(point), "expectations": verdicts.collect::<Vec<_>>() })
    });
    json!({ "id": shown.experiment.paper.id, "file": shown.experiment.file, "machine": shown.machine,
            "passed": shown.passed(), "points": points.collect::<Vec<_>>() })
}
