//! Live: a heavy flow at a gateway, with Linux forwarding and Linux TCP, in the short forms of the examples and of MIMIC's
//! experiments. Table I and untouched flows are tested with a daemon alone, too (`cargo test -p plimsoll-cli --test live mediate`).

use crate::support::{TRIES, alone, binary, comes_out};
use plimsoll_lab::Options;
use plimsoll_scenario::{Form, Run, Scenario, Status};
use std::path::Path;

#[test]
fn a_heavy_hitter_is_slowed_down_in_each_way_and_mice_do_not_notice() {
    let Some(results) = comes_out("heavy-hitter.yaml") else { return };
    let run = |system: &str| results.runs.iter().find(|run| run.system == system).expect("it ran");
    let elephant = |system: &str| &run(system).workloads["elephant"];
    // Its own queue at its source may mark it too, where the machine is slow.
    assert!(elephant("without").marks < elephant("mark").marks, "{:?}", elephant("without").marks);
    assert_eq!(elephant("mark").ecn, Some([1, 1]), "the kernel's TCP uses ECN, as its setting says");
    assert!(elephant("meter").metered > Some(1_000), "{:?}", elephant("meter").metered);
    assert_eq!(run("without").counters.get("pressed"), None, "no flow is counted there");
    assert!(run("meter").counters["notices"] > 0, "{:?}", run("meter").counters);
}

#[test]
fn each_way_brings_the_kernels_tcp_to_its_rate() {
    comes_out("papers/mimic/e08-live.yaml");
}

/// Of the short form the first point alone, which takes ten seconds.
#[test]
fn marks_alone_bring_the_kernels_tcp_near_its_rate() {
    let Some(binary) = binary() else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/papers/mimic/e02-live.yaml");
    let points = Scenario::load_points(&file, Form::Short, &[]).unwrap_or_else(|errors| panic!("{errors:?}"));
    let scenario = &points[0].scenario;
    let options = Options { binary: Some(binary), ..Options::default() };
    let _alone = alone();
    let comes_out = || {
        let results = plimsoll_lab::run(scenario, &options, &mut |_| {}).expect("the lab runs");
        let verdicts = plimsoll_scenario::judge(scenario, &results);
        verdicts.iter().for_each(|verdict| eprintln!("{}: {}", verdict.expect, verdict.detail));
        assert_eq!(verdicts.len(), 4);
        let marked = ["cubic", "newreno"].map(|name| results.runs[0].workloads[name].marks);
        verdicts.iter().all(|verdict| verdict.status == Status::Passed)
            && marked.iter().all(|marks| *marks > Some(0))
    };
    assert!((0..TRIES).any(|_| comes_out()), "CUBIC and NewReno are within 40 % of 50 Mb/s by marks alone");
}

#[test]
fn two_levels_spare_the_flow_table() {
    comes_out("papers/mimic/e06-live.yaml");
}

#[test]
fn ecn_is_active_exactly_where_table_one_says() {
    let Some(results) = comes_out("papers/mimic/e11-live.yaml") else { return };
    let run = &results.runs[0];
    let told_of_marks = |name: &String| run.workloads[name].echoed.is_some_and(|echoed| echoed[0] > 0);
    let marked: Vec<&str> =
        run.workloads.keys().filter(|name| told_of_marks(name)).map(String::as_str).collect();
    // The client's setting comes first: 1, 2, or 3 for 0.
    let table = ["down1_1", "down1_2", "down2_1", "down2_2", "down3_1", "down3_2", "up1_1", "up1_2", "up1_3"];
    assert_eq!(marked, table);
    assert_eq!(run.workloads.len(), 18);
    assert!(run.counters["notices"] > 0, "{:?}", run.counters);
    for event in ["ecn_asked", "ecn_granted", "ecn_hidden", "ecn_unmarked", "ecn_echoed", "ecn_reported"] {
        assert!(run.events[event] > 0, "{event}: {:?}", run.events);
    }
}

const KILLED: &str = "
name: killed
about: The gateway's daemon is killed while it slows a flow down, and another one begins.
rate: 1Gbps
duration: 8s
measure: {window: 100ms}
systems: [plimsoll]
hosts: {one: {}, mid: {receive: {ring: 256, cost: 100us, slots: 256}}, two: {}}
switches: [switch]
links:
  l1: {between: [one, switch], rate: 1Gbps}
  l2: {between: [mid, switch], rate: 1Gbps}
  l3: {between: [two, switch], rate: 1Gbps}
tenants:
  heavy:   {host: one}
  gateway: {host: mid, forwards: true}
  server:  {host: two}
backpressure: {watch: {tenant: gateway}, heavy: 2kpps, rate: 30Mbps, poll: 10ms, lifetime: 500ms}
workloads:
  elephant: {tenant: heavy, to: server, through: gateway, kind: udp, size: 1200B, rate: 100Mbps}
faults:
  restart: [{host: mid, at: 3s, gap: 1s}]
";

/// Megabits a second that arrived in these windows of 100 ms.
fn arrived(run: &Run, windows: std::ops::Range<usize>) -> f64 {
    let all = &run.workloads["elephant"].delivered;
    let bytes: u64 = windows.clone().map(|window| all.get(window).copied().unwrap_or(0)).sum();
    bytes as f64 * 8.0 / (windows.len() as f64 * 1e5)
}

#[test]
fn after_a_gateways_daemon_is_killed_nothing_stays_slowed_down_and_the_next_one_finds_the_flow_anew() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("killed.yaml");
    std::fs::write(&file, KILLED).expect("write the scenario");
    let scenario = Scenario::load(&file, Form::Full).unwrap_or_else(|errors| panic!("{errors:?}"));
    let options = Options { binary: Some(binary), ..Options::default() };
    let _alone = alone();
    let comes_out = || {
        let results = plimsoll_lab::run(&scenario, &options, &mut |_| {}).expect("the lab runs");
        let run = &results.runs[0];
        let [held, away, again] = [20..29, 32..39, 65..79].map(|windows| arrived(run, windows));
        // The meter at the source has ended meanwhile: the flow is free until the next daemon has found it.
        let free = (40..55).map(|window| arrived(run, window..window + 1)).fold(0.0, f64::max);
        eprintln!(
            "held {held:.1}, without a daemon {away:.1}, then {free:.1}, held again {again:.1} Mb/s; {:?}",
            run.counters
        );
        // Both daemons found the flow.
        (15.0..45.0).contains(&held)
            && away < 1.0
            && free > 45.0
            && (15.0..45.0).contains(&again)
            && run.counters["pressed"] >= 2
            && run.counters["overloads"] >= 2
    };
    assert!((0..TRIES).any(|_| comes_out()), "a flow is held to 30 Mb/s by both daemons");
}
