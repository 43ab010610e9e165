//! Everything for a machine: `plimsoll lab FILE --json`.
//!
//! Why: a pipeline decides by expectations and keeps the measures.
//! From: `docs/scenarios.md`, "JSON".
//! Not here: pictures.
//! Invariant: rates are in bits a second, times in seconds, and their names say so.

use std::collections::BTreeMap;

use plimsoll_units::Span;
use serde_json::{Map, Value, json as object};

use crate::measure::Measures;
use crate::promises::{promises, run_json as promises_json};
use crate::summary::summarise;
use crate::window::Window;
use crate::{Point, Results, Run, Scenario, Status, Verdict};

/// Setting, figures of each system, throughput of each workload in each window, drops, and every expectation.
#[must_use]
pub fn json(scenario: &Scenario, results: &Results, verdicts: &[Verdict]) -> Value {
    let measures = Measures::new(scenario, results);
    let failed = verdicts.iter().any(|verdict| verdict.status == Status::Failed);
    object!({
        "scenario": scenario.name,
        "about": scenario.about,
        "short": scenario.short,
        "rate_bps": scenario.rate.get(),
        "duration_seconds": scenario.duration.as_secs_f64(),
        "window_seconds": scenario.measure.window.as_secs_f64(),
        "from_seconds": scenario.measure.from.as_secs_f64(),
        "to_seconds": scenario.measure.to.as_secs_f64(),
        "seed": scenario.seed,
        "jitter_ns": scenario.jitter.as_u64(),
        "passed": !failed,
        "expectations": verdicts,
        "systems": summarise(scenario, results),
        "promises": promises(scenario, results),
        "runs": results.runs.iter().map(|run| run_json(scenario, &measures, run)).collect::<Vec<_>>(),
        "notes": results.notes,
    })
}

/// The results of every point of a sweep, each with its settings.
#[must_use]
pub fn sweep_json(points: &[Point], results: &[&Results], judged: &[Vec<Verdict>]) -> Value {
    let point = |((point, results), verdicts): ((&Point, &&Results), &Vec<Verdict>)| {
        object!({
            "settings": point.settings.iter().cloned().collect::<BTreeMap<String, String>>(),
            "results": json(&point.scenario, results, verdicts),
        })
    };
    points.iter().zip(results).zip(judged).map(point).collect()
}

fn run_json<'a>(scenario: &'a Scenario, measures: &Measures<'a>, run: &'a Run) -> Value {
    let workloads: Map<String, Value> = scenario
        .workloads
        .iter()
        .filter_map(|workload| run.workloads.get(&workload.name).map(|found| (workload, found)))
        .map(|(workload, found)| {
            let parts = Window::new(Span::ZERO, scenario.duration).parts(scenario.measure.window);
            let rates: Vec<u64> = parts
                .map(|part| measures.throughput(run, Some(&workload.name), part).round() as u64)
                .collect();
            let value = object!({
                "tenant": workload.tenant,
                "throughput_bps": rates,
                "packets": found.packets,
                "answers": found.samples.len(),
                "unanswered": found.unanswered.len(),
                "errors": found.errors,
                "flows": found.flows.len(),
                "unfinished_flows": found.flows.iter().filter(|flow| flow.took.is_none()).count(),
            });
            (workload.name.clone(), value)
        })
        .collect();
    object!({
        "system": run.system,
        "pair": run.pair,
        "cpu_seconds": run.cpu.map(Span::as_secs_f64),
        "workloads": workloads,
        "drops": run.drops,
        "promises": promises_json(&run.promises),
        "notes": run.notes,
    })
}
