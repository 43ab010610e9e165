//! Runs in parts, as on several machines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_scenario::{Scenario, json, judge};
use plimsoll_sim::{Batch, Finished, Options, SimError, run};

use crate::support::scenario;

const TWO: &str = "{name: t, rate: 1Gbps, duration: 200ms, systems: [fifo, plimsoll], tenants: {a: {min: 300Mbps}, b: {}}, \
    workloads: {ask: {tenant: a, kind: request_response, rate: 2000}, fill: {tenant: b, kind: bulk, flows: 2}}, \
    measure: {egress: true, ingress: true, cpu: true, held: true}}";

fn text(scenario: &Scenario, outcome: &plimsoll_sim::Outcome) -> String {
    let results = &outcome.results;
    format!("{} {:?} {:?}", json(scenario, results, &judge(scenario, results)), results.runs, outcome.bounds)
}

/// What a run becomes on its way from another process.
fn sent(finished: &Finished) -> Finished {
    let packed = postcard::to_allocvec(finished).expect("plain data");
    postcard::from_bytes(&packed).expect("what was packed")
}

#[test]
fn parts_that_come_from_elsewhere_give_the_outcome_of_one_batch() {
    let scenario = scenario(TWO);
    let options = Options { seeds: 2, series: true, ..Options::default() };
    let whole = run(&scenario, &options, &|_| {}).expect("it runs");
    let mut parts: Vec<Option<Finished>> = vec![None; 4];
    for numbers in [[3, 0], [2, 1]] {
        let batch = Batch::new(&[&scenario], &options);
        for (number, finished) in numbers.into_iter().zip(batch.run(&numbers, &|_| {})) {
            parts[number] = Some(sent(&finished.expect("it runs")));
        }
    }
    let parts = parts.into_iter().map(|part| Ok(part.expect("all parts"))).collect();
    let together = Batch::new(&[&scenario], &options).outcomes(parts).remove(0).expect("it ran");
    assert!(text(&scenario, &whole) == text(&scenario, &together), "every number is the same");
}

#[test]
fn a_flag_stops_runs_that_are_under_way_and_those_that_wait() {
    let scenario = scenario(&TWO.replace("200ms", "1h"));
    let stop = Arc::new(AtomicBool::new(false));
    let options = Options { seeds: 2, threads: std::num::NonZeroUsize::new(1), ..Options::default() };
    let batch = Batch::new(&[&scenario], &options).stopped_by(Arc::clone(&stop));
    let finished = batch.run(&[0, 1, 2, 3], &|_| stop.store(true, Ordering::Relaxed));
    assert!(finished.iter().all(|one| matches!(one, Err(SimError::Stopped))), "an hour takes minutes");
}
