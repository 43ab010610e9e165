//! Several engine threads on a host give what one gives.

use plimsoll_scenario::{Form, Scenario, Status, json, judge};
use plimsoll_sim::{Options, run};

use crate::support::{first_run, load, outcome};

#[test]
fn threads_share_the_link_as_one_engine_does_in_each_window() {
    let scenario = load("examples/threads.yaml", Form::Virtual);
    let outcome = outcome(&scenario, 2);
    for verdict in judge(&scenario, &outcome.results) {
        assert_ne!(verdict.status, Status::Failed, "{}: {}", verdict.expect, verdict.detail);
    }
}

#[test]
fn the_same_seed_gives_the_same_packets_with_threads() {
    let scenario = load("examples/threads.yaml", Form::VirtualShort);
    let text = |scenario: &Scenario| {
        let results = run(scenario, &Options::default(), &|_| {}).expect("it runs").results;
        json(scenario, &results, &judge(scenario, &results)).to_string()
    };
    assert!(text(&scenario) == text(&scenario));
}

/// A scenario of one run, with this much in `engine` and these tenants and workloads.
fn scenario(engine: &str, tenants: &str, workloads: &str) -> String {
    format!(
        "{{name: t, rate: 1Gbps, duration: 200ms, systems: [plimsoll], engine: {{{engine}}}, tenants: {{{tenants}}}, \
         workloads: {{{workloads}}}, measure: {{from: 50ms, window: 10ms}}}}"
    )
}

/// TCP on one thread beside datagrams on the other: a workload may wait for its acknowledgements, and a thread may rest.
#[test]
fn tcp_on_one_thread_gets_its_share_beside_datagrams_on_another() {
    let text = |threads: u32| {
        scenario(
            &format!("threads: {threads}"),
            "a: {weight: 3}, b: {}",
            "up: {tenant: a, kind: bulk, flows: 4}, flood: {tenant: b, kind: udp, rate: line}",
        )
    };
    let sent = |threads: u32| first_run(&text(threads)).workloads["up"].bytes[5..].iter().sum::<u64>();
    let (one, two) = (sent(1), sent(2));
    assert!(two.abs_diff(one) * 50 <= one, "{two} beside {one} bytes");
}
