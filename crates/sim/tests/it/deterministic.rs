//! The same seed gives the same result.

use std::num::NonZeroUsize;

use crate::support::{first_run, load, outcome, scenario};
use plimsoll_scenario::{Form, Run, Scenario, Status, json, judge};
use plimsoll_sim::{Options, Outcome, run};

fn demo() -> Scenario {
    load("examples/noisy-neighbour.yaml", Form::VirtualShort)
}

fn text(scenario: &Scenario, seed: u64, threads: usize) -> String {
    let options =
        Options { seed: Some(seed), seeds: 2, threads: NonZeroUsize::new(threads), ..Options::default() };
    let results = run(scenario, &options, &|_| {}).expect("it runs").results;
    json(scenario, &results, &judge(scenario, &results)).to_string()
}

#[test]
fn threads_and_repetition_change_nothing_and_the_seed_does() {
    let scenario = demo();
    let first = text(&scenario, 1, 1);
    assert!(first == text(&scenario, 1, 4), "threads change nothing");
    assert!(first == text(&scenario, 1, 1), "nor does another run");
    assert!(first != text(&scenario, 7, 1), "but the seed does");
}

#[test]
fn a_further_workload_shifts_no_other_workloads_choices() {
    let with = |more: &str| {
        let text = format!(
            "{{name: t, rate: 10Gbps, duration: 200ms, systems: [plimsoll], tenants: {{a: {{}}, b: {{}}}}, workloads: \
             {{{more} ask: {{tenant: a, kind: request_response, rate: 2000, connections: 64, port: 7000}}}}}}"
        );
        first_run(&text).workloads["ask"].samples.iter().map(|sample| sample.at).collect::<Vec<_>>()
    };
    let mut alone = with("");
    let mut beside = with("ping: {tenant: b, kind: probe, rate: 5000},");
    alone.sort_unstable();
    beside.sort_unstable();
    assert!(alone.len() > 300);
    assert_eq!(alone, beside);
}

/// Pairs of hosts that nothing connects, with requests, bulk flows and promises.
fn pairs(count: usize) -> Scenario {
    scenario(&format!(
        "name: pairs\nrate: 1Gbps\nduration: 100ms\nsystems: [plimsoll, htb]\nrepeat: {{n: {count}}}\n\
         hosts:\n  s<n>: {{}}\n  r<n>: {{nic: fifo}}\n\
         links:\n  l<n>: {{between: [s<n>, r<n>], rate: 1Gbps, delay: 20us, queue: 100kB}}\n\
         tenants:\n  a<n>: {{host: s<n>, min: 300Mbps}}\n  b<n>: {{host: s<n>}}\n  z<n>: {{host: r<n>}}\n\
         workloads:\n  bulk<n>: {{tenant: a<n>, to: z<n>, kind: bulk, flows: 3}}\n  \
         ask<n>: {{tenant: b<n>, to: z<n>, kind: request_response, rate: 500}}\n"
    ))
}

/// Samples of all hosts are taken in one order, so that there are no islands with them.
#[test]
fn islands_change_nothing() {
    let all = |scenario: &Scenario, series: bool| {
        let options = Options { series, ..Options::default() };
        let outcome = run(scenario, &options, &|_| {}).expect("it runs");
        let told =
            |run: &Run| format!("{:?} {:?} {:?} {:?}", run.workloads, run.drops, run.counters, run.promises);
        (outcome.hops, outcome.results.runs.iter().map(told).collect::<Vec<_>>())
    };
    let scenario = pairs(20);
    assert!(all(&scenario, false) == all(&scenario, true));
    // A pair has the results that it has alone.
    let (alone, beside) = (outcome(&pairs(1), 1), outcome(&scenario, 1));
    let bulk = |outcome: &Outcome| {
        let of = |run: &Run| {
            run.workloads.iter().find(|(name, _)| name.starts_with("bulk")).map(|(_, w)| w.bytes.clone())
        };
        outcome.results.runs.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(bulk(&alone), bulk(&beside));
}

#[test]
fn the_noisy_neighbour_comes_out_as_it_does_live() {
    let scenario = demo();
    let outcome = outcome(&scenario, 2);
    for verdict in judge(&scenario, &outcome.results) {
        assert_ne!(verdict.status, Status::Failed, "{}: {}", verdict.expect, verdict.detail);
    }
    assert_eq!(outcome.broken().count(), 0);
}
