//! Live: the real `plimsoll run` between tenants and world, where its binary has been built.

use crate::support::{TRIES, alone, binary};
use plimsoll_lab::{LabError, Options, Progress};
use plimsoll_scenario::{Form, Results, Run, Scenario};
use plimsoll_units::Span;
use std::path::{Path, PathBuf};

fn load(text: &str) -> Scenario {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("tiny.yaml");
    std::fs::write(&file, text).expect("write the scenario");
    Scenario::load(&file, Form::Full).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn lab(text: &str, binary: PathBuf, progress: &mut dyn FnMut(Progress)) -> Result<Results, LabError> {
    plimsoll_lab::run(&load(text), &Options { binary: Some(binary), ..Options::default() }, progress)
}

/// Bits a second after the first second.
fn settled(run: &Run, workload: &str) -> f64 {
    let windows = &run.workloads[workload].bytes;
    let late = &windows[windows.len().min(20)..];
    late.iter().sum::<u64>() as f64 * 8.0 / (late.len().max(1) as f64 * 0.05)
}

const WORLD: &str = "
name: tiny
about: One flow beside eight, and a quiet tenant's probes.
rate: 20Mbps
duration: 4s
measure: {window: 50ms}
systems: [fifo, plimsoll, qpf]
tenants:
  quiet: {}
  one:   {}
  eight: {}
policy:
  root: {wfq: {quiet: 1, one: 1, eight: 1}}
workloads:
  ping:  {tenant: quiet, kind: probe, size: 64B, rate: 100}
  few:   {tenant: one, kind: bulk, flows: 1}
  many:  {tenant: eight, kind: bulk, flows: 8}
";

fn median(run: &Run, workload: &str) -> u64 {
    let mut all: Vec<u64> = run.workloads[workload].samples.iter().map(|s| s.latency.as_u64()).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(u64::MAX)
}

#[test]
fn a_policy_divides_by_tenants_and_a_queue_per_flow_by_flows() {
    let _alone = alone();
    let Some(binary) = binary() else { return };
    let results = lab(WORLD, binary, &mut |_| {}).expect("the lab runs");
    let run = |name: &str| results.runs.iter().find(|run| run.system == name).expect("it ran");
    let (fifo, plimsoll, qpf) = (run("fifo"), run("plimsoll"), run("qpf"));
    let ratio = |run: &Run| settled(run, "many") / settled(run, "few");
    assert!((0.7..1.4).contains(&ratio(plimsoll)), "one flow gets as much as eight: {}", ratio(plimsoll));
    assert!(ratio(qpf) > 3.0, "eight queues get more turns than one: {}", ratio(qpf));
    let all = settled(plimsoll, "many") + settled(plimsoll, "few");
    assert!((15e6..20.5e6).contains(&all), "{all} b/s on a link of 20 Mb/s");
    let (ours, theirs) = (median(plimsoll, "ping"), median(fifo, "ping"));
    assert!(ours * 3 < theirs, "quiet waits {ours} ns, and {theirs} ns in one queue");
}

const TURNS: &str = "
name: turns
about: Two flows, shared evenly and three to one in turn.
rate: 20Mbps
duration: 1s
pairs: 2
one_world: true
measure: {window: 50ms, from: 300ms, cpu: true}
systems:
  - even: {kind: plimsoll}
  - uneven: {kind: plimsoll, policy: {root: {wfq: {one: 3, other: 1}}}}
tenants: {one: {}, other: {}}
workloads:
  a: {tenant: one, kind: bulk, flows: 4}
  b: {tenant: other, kind: bulk, flows: 4}
";

#[test]
fn systems_take_turns_in_one_world_and_each_turn_is_its_own_run() {
    let _alone = alone();
    let Some(binary) = binary() else { return };
    // A machine that stalls as turns change may spoil one try.
    let divided = (0..TRIES).any(|_| takes_turns(&binary));
    assert!(divided, "two flows share evenly, and three to one, in turn");
}

/// Runs the turns. Returns whether the flows divided the link as each system's policy says.
fn takes_turns(binary: &Path) -> bool {
    let mut built = Vec::new();
    let progress = &mut |told| {
        if let Progress::System { name, .. } = told {
            built.push(name);
        }
    };
    let results = lab(TURNS, binary.to_owned(), progress).expect("the lab runs");
    assert_eq!(built, ["even", "uneven", "uneven", "even"], "there and back again");
    let turns: Vec<_> = results.runs.iter().map(|run| (run.system.as_str(), run.pair)).collect();
    assert_eq!(turns, [("even", 0), ("uneven", 0), ("uneven", 1), ("even", 1)]);
    let mut divided = true;
    for run in &results.runs {
        let late = |name: &str| run.workloads[name].bytes[6..].iter().sum::<u64>() as f64;
        let ratio = late("a") / late("b");
        let asked = if run.system == "even" { 0.6..1.7 } else { 2.2..4.0 };
        eprintln!("{} of pair {}: {ratio}", run.system, run.pair);
        divided &= asked.contains(&ratio);
        assert!(run.cpu.is_some_and(|cpu| cpu > Span::ZERO), "{:?}", run.cpu);
        let (bytes, packets) = (run.workloads["a"].bytes.iter().sum::<u64>(), run.workloads["a"].packets);
        assert!(bytes / 1_514 <= packets && packets < bytes / 60, "{packets} packets, {bytes} bytes");
    }
    divided
}

const CHANGES: &str = "
name: changes
about: Two floods share evenly, and three to one from the middle of the run on.
rate: 20Mbps
duration: 3s
measure: {window: 50ms}
systems:
  - plimsoll
  - uneven: {kind: plimsoll, policy: {root: {wfq: {one: 3, other: 1}}}}
tenants: {one: {}, other: {}}
workloads:
  a: {tenant: one, kind: udp, rate: 20Mbps, size: 1400B}
  b: {tenant: other, kind: udp, rate: 20Mbps, size: 1400B}
timeline: [{at: 1500ms, policy: uneven}]
";

#[test]
fn a_timeline_puts_another_policy_in_force_under_traffic() {
    let _alone = alone();
    let Some(binary) = binary() else { return };
    let changes = || {
        let options = Options {
            binary: Some(binary.clone()),
            systems: vec!["plimsoll".to_owned()],
            ..Options::default()
        };
        let results = plimsoll_lab::run(&load(CHANGES), &options, &mut |_| {}).expect("the lab runs");
        let sent = |name: &str, windows: std::ops::Range<usize>| {
            results.runs[0].workloads[name].bytes[windows].iter().sum::<u64>() as f64
        };
        let [before, after] = [10..28, 36..60].map(|windows| sent("a", windows.clone()) / sent("b", windows));
        eprintln!("{before} before, {after} after");
        (0.9..1.1).contains(&before) && (2.7..3.3).contains(&after)
    };
    // A machine that stalls may spoil one try.
    assert!((0..TRIES).any(|_| changes()), "even before the change, and three to one after it");
}

#[test]
fn what_a_reload_cannot_change_is_said_before_anything_is_measured() {
    let _alone = alone();
    let Some(binary) = binary() else { return };
    let busy =
        TURNS.replace("- even: {kind: plimsoll}", "- even: {kind: plimsoll, engine: {busy_poll: true}}");
    match lab(&busy, binary, &mut |_| panic!("nothing was measured")) {
        Err(LabError::Scenario(why)) => {
            assert!(why.contains("cannot be put in force by a reload"), "{why}");
            assert!(why.contains("`engine.busy_poll` has changed, which takes a restart"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_engine_killed_in_mid_run_is_reported_and_nothing_is_left() {
    let _alone = alone();
    let Some(binary) = binary() else { return };
    let mut killed = false;
    let kill = &mut |progress| {
        if matches!(progress, Progress::Tick { .. }) && !killed {
            killed = kill_children("plimsoll");
        }
    };
    let error =
        lab(&WORLD.replace("[fifo, plimsoll, qpf]", "[plimsoll]"), binary, kill).expect_err("it was killed");
    assert!(matches!(error, LabError::Engine { .. }), "{error}");
    assert!(children().is_empty(), "no child is left");
}

fn children() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Kills this process's children of that name; true when there was one.
fn kill_children(name: &str) -> bool {
    let named =
        |id: &i32| std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim() == name);
    let found: Vec<i32> = children().into_iter().filter(named).collect();
    for id in &found {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*id), nix::sys::signal::Signal::SIGKILL);
    }
    !found.is_empty()
}
