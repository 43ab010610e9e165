//! Live: a lab that is asked to end, in a process of its own because signals reach a whole process.

use crate::itself::{is_again, run_again};
use crate::support;
use plimsoll_lab::{LabError, Options, Progress};
use plimsoll_scenario::{Form, Scenario};
use std::time::{Duration, Instant};

const LONG: &str = "
name: long
about: It runs for a minute unless it is stopped.
rate: 10Mbps
duration: 60s
systems: [fifo]
tenants: {one: {}}
workloads:
  bulk:  {tenant: one, kind: bulk, flows: 2}
  cache: {tenant: one, kind: memcached, key: 10B, value: 100B, connections: 1, rate: 10}
";

#[test]
fn a_signal_ends_the_lab_at_once_and_takes_its_processes_along() {
    if is_again(ITSELF) {
        return end_at_the_first_tick();
    }
    let _alone = support::alone();
    if !support::may_run() {
        return;
    }
    run_again("signals::a_signal_ends_the_lab_at_once_and_takes_its_processes_along", ITSELF);
}

/// Set for the process that is told to end.
const ITSELF: &str = "PLIMSOLL_LAB_TEST_SIGNALS";

fn end_at_the_first_tick() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("long.yaml");
    std::fs::write(&file, LONG).expect("write the scenario");
    let scenario = Scenario::load(&file, Form::Full).unwrap_or_else(|errors| panic!("{errors:?}"));
    let begun = Instant::now();
    let raise = |progress| {
        if matches!(progress, Progress::Tick { .. }) {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).expect("tell ourselves to end");
        }
    };
    let mut raise = raise;
    let error =
        plimsoll_lab::run(&scenario, &Options::default(), &mut raise).expect_err("it was told to end");
    assert!(matches!(error, LabError::Interrupted), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "it ended at once");
    let tasks = std::fs::read_dir("/proc/self/task").expect("our threads").flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        assert_eq!(children.trim(), "", "no child is left");
    }
}
