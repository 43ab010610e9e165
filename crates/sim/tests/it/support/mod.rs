//! Scenarios from their text, run in virtual time.

pub mod modules;

use std::num::NonZeroUsize;
use std::path::Path;

use plimsoll_scenario::{Form, Run, Scenario, Status, judge};
use plimsoll_sim::{Options, Outcome, run};

pub fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "test.yaml", Path::new(""), Form::Full)
        .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

pub fn outcome(scenario: &Scenario, threads: usize) -> Outcome {
    let options = Options { threads: NonZeroUsize::new(threads), seeds: 1, ..Options::default() };
    run(scenario, &options, &|_| {}).unwrap_or_else(|error| panic!("{error}"))
}

/// The first run of a scenario.
pub fn first_run(text: &str) -> Run {
    outcome(&scenario(text), 1).results.runs.remove(0)
}

/// Loads a scenario file of this repository.
pub fn load(file: &str, form: Form) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    Scenario::load(&path, form).unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

/// Asserts that all expectations of a scenario hold in this outcome.
pub fn assert_holds(scenario: &Scenario, outcome: &Outcome) {
    for verdict in judge(scenario, &outcome.results) {
        assert_eq!(verdict.status, Status::Passed, "{}: {}", verdict.expect, verdict.detail);
    }
}

/// The mean of a workload's latencies, in seconds.
pub fn mean_latency(run: &Run, workload: &str) -> f64 {
    let samples = &run.workloads[workload].samples;
    samples.iter().map(|sample| sample.latency.as_secs_f64()).sum::<f64>() / samples.len() as f64
}
