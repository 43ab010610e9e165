//! All expectations of each file of `examples/faults/`, of `examples/imix.yaml`, `examples/short-queues.yaml`, `examples/srpt.yaml`
//! and `examples/static-caps.yaml` hold with each of five seeds.

use std::path::Path;

use crate::support::load;

use plimsoll_scenario::{Form, Scenario, Status, judge_seeds};
use plimsoll_sim::{Options, run_each};

fn files() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/faults");
    let entries = std::fs::read_dir(folder).expect("examples/faults is there");
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().expect("plain names");
    let mut files: Vec<String> =
        entries.map(|entry| format!("examples/faults/{}", name(entry.expect("readable")))).collect();
    files.sort();
    files
}

/// Asserts that all expectations of these files hold.
fn hold(files: &[String]) {
    let scenarios: Vec<Scenario> = files.iter().map(|file| load(file, Form::Virtual)).collect();
    let all: Vec<&Scenario> = scenarios.iter().collect();
    let outcomes = run_each(&all, &Options { seeds: 5, ..Options::default() }, &|_| {});
    let mut wrong = String::new();
    for (scenario, outcome) in scenarios.iter().zip(outcomes) {
        let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
        for verdict in judge_seeds(scenario, &outcome.results, scenario.seed) {
            if verdict.status != Status::Passed {
                wrong += &format!("{}: {}: {}\n", scenario.name, verdict.expect, verdict.detail);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn whatever_goes_wrong_others_keep_their_throughput_and_their_delay() {
    let files = files();
    assert!(files.len() >= 8, "a file for each fault");
    hold(&files);
}

#[test]
fn caps_that_never_move_leave_an_incast_to_the_fabric() {
    hold(&["examples/static-caps.yaml".to_owned()]);
}

#[test]
fn neither_sizes_nor_floods_nor_slow_guests_decide_who_is_served() {
    hold(&["examples/imix.yaml".to_owned()]);
}

#[test]
fn a_ping_does_not_wait_for_its_own_tenants_uploads() {
    hold(&["examples/short-queues.yaml".to_owned()]);
}

#[test]
fn requests_go_before_uploads_by_a_rank_program() {
    hold(&["examples/srpt.yaml".to_owned()]);
}
