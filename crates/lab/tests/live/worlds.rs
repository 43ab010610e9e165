//! Live: tiny worlds of a few seconds on real namespaces and TCP; relations only, with wide margins.

use crate::support::{self, alone};
use plimsoll_lab::{LabError, Options, Progress};
use plimsoll_scenario::{Form, Results, Run, Scenario};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Whether live worlds can be made here; prints why not.
fn may_run() -> bool {
    if !support::may_run() {
        return false;
    }
    let possible = plimsoll_lab::ensure_privileges();
    if let Err(error) = &possible {
        support::skip(&error.to_string());
    }
    possible.is_ok()
}

fn load(text: &str) -> Scenario {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("tiny.yaml");
    fs::write(&file, text).expect("write the scenario");
    Scenario::load(&file, Form::Full).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn lab(text: &str, options: &Options) -> Result<Results, LabError> {
    plimsoll_lab::run(&load(text), options, &mut |_| {})
}

fn bits(run: &Run, workload: &str, seconds: f64) -> f64 {
    run.workloads[workload].bytes.iter().sum::<u64>() as f64 * 8.0 / seconds
}

fn median(run: &Run, workload: &str) -> f64 {
    let mut all: Vec<u64> = run.workloads[workload].samples.iter().map(|s| s.latency.as_u64()).collect();
    all.sort_unstable();
    all.get(all.len() / 2).map_or(f64::INFINITY, |ns| *ns as f64)
}

/// What these labs could leave behind: their devices, namespaces and directories, and children of this process.
/// Other programs' namespaces come and go beside us.
fn traces() -> BTreeSet<String> {
    const OURS: [&str; 10] =
        ["world", "switch", "quiet", "greedy", "one", "two", "uplink", "out", "bridge", "plimsoll-lab"];
    let names = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
    };
    let ours = |path: &String| OURS.iter().any(|name| path.ends_with(&format!("/{name}")));
    let mut found: BTreeSet<String> =
        ["/sys/class/net", "/run/netns", "/run"].into_iter().flat_map(names).filter(ours).collect();
    for task in names("/proc/self/task") {
        let children = fs::read_to_string(format!("{task}/children")).unwrap_or_default();
        found.extend(children.split_whitespace().map(|id| format!("child {id}")));
    }
    found
}

const KERNEL: &str = "
name: tiny
about: A quiet tenant beside a greedy one.
rate: 20Mbps
duration: 2s
systems: [fifo, htb]
tenants:
  quiet:  {min: 10Mbps}
  greedy: {min: 1Mbps, max: 15Mbps}
workloads:
  ask:   {tenant: quiet, kind: request_response, request: 200B, response: 200B, connections: 2, rate: 100}
  ping:  {tenant: quiet, kind: probe, size: 64B, rate: 100}
  bulk:  {tenant: greedy, kind: bulk, flows: 8}
  flood: {tenant: greedy, kind: udp, size: 200B, rate: 10Mbps, start: 500ms}
";

#[test]
fn the_kernels_queues_carry_tcp_and_htb_isolates_better_than_one_queue() {
    let _alone = alone();
    if !may_run() {
        return;
    }
    let before = traces();
    let mut ticks = 0;
    let count = &mut |progress| ticks += u32::from(matches!(progress, Progress::Tick { .. }));
    let results = plimsoll_lab::run(&load(KERNEL), &Options::default(), count).expect("the lab runs");
    assert_eq!(results.runs.len(), 2, "{:?}", results.notes);
    let (fifo, htb) = (&results.runs[0], &results.runs[1]);
    for run in [fifo, htb] {
        let all: f64 = run.workloads.keys().map(|name| bits(run, name, 2.0)).sum();
        assert!((5e6..21.5e6).contains(&all), "{}: {all} b/s on a link of 20 Mb/s", run.system);
        assert!(run.workloads["ask"].samples.len() > 20, "{}: requests were answered", run.system);
    }
    assert!(bits(htb, "bulk", 2.0) + bits(htb, "flood", 2.0) < 16.5e6, "greedy stays below its max");
    assert!(median(htb, "ping") * 2.0 < median(fifo, "ping"), "a class of one's own waits less");
    assert!(fifo.drops["greedy"].values().sum::<u64>() > 0, "one full queue loses packets");
    assert!(ticks >= 8, "progress is told");
    assert_eq!(traces(), before, "nothing is left behind");
}

const EVERY_KIND: &str = "
name: kinds
about: Every kind of workload at once.
rate: 50Mbps
duration: 3s
systems: [fifo]
tenants:
  one: {}
  two: {}
destinations: [near, far]
workloads:
  asked:    {tenant: one, to: far, kind: request_response, role: server, request: 100B, response: 4KiB, connections: 2}
  pulse:    {tenant: one, to: near, kind: on_off, flows: 2, on: 100ms, off: 100ms}
  spark:    {tenant: two, to: far, kind: shuffle, flows: 4, block: 20KiB, pause: 10ms}
  paced:    {tenant: two, to: near, kind: udp, size: 500B, rate: 200pps, flows: 3}
  iperf:    {tenant: one, to: far, kind: iperf3, flows: 2, start: 500ms, stop: 2500ms}
  cache:    {tenant: two, to: far, kind: memcached, role: server, key: 20B, value: 1KiB, connections: 2, rate: 50}
  remote:   {tenant: two, to: near, kind: memcached, role: client, key: 20B, value: 100B, connections: 1}
  sock:     {tenant: one, to: near, kind: sockperf, size: 64B, rate: 100}
";

#[test]
fn every_kind_of_workload_gives_its_measurements() {
    let _alone = alone();
    if !may_run() {
        return;
    }
    let before = traces();
    let results = lab(EVERY_KIND, &Options::default()).expect("the lab runs");
    let run = &results.runs[0];
    for (name, result) in &run.workloads {
        assert!(result.bytes.iter().sum::<u64>() > 1_000, "{name}: {result:?}");
        assert!(result.packets > 0, "{name} counts packets");
    }
    for name in ["asked", "spark", "cache", "remote", "sock"] {
        assert!(run.workloads[name].samples.len() > 5, "{name}: answers");
    }
    assert!(run.workloads["paced"].packets <= 620, "600 datagrams were due in 3 s");
    assert_eq!(traces(), before, "nothing is left behind");
}

/// A stand-in for the daemon's binary, which runs `script`.
fn stand_in(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("plimsoll");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("write the stand-in");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
    path
}

#[test]
fn an_engine_that_dies_at_once_is_reported_with_its_last_words() {
    let _alone = alone();
    if !may_run() {
        return;
    }
    let before = traces();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let binary = stand_in(folder.path(), "echo 'no such thing as a free lunch' >&2; exit 3");
    let text = KERNEL.replace("[fifo, htb]", "[plimsoll]");
    let error = lab(&text, &Options { binary: Some(binary), ..Options::default() }).expect_err("it died");
    let words = error.to_string();
    assert!(words.contains("free lunch") && words.contains("plimsoll"), "{words}");
    assert_eq!(traces(), before, "nothing is left behind");
}

#[test]
fn a_missing_binary_is_named() {
    let _alone = alone();
    if !may_run() {
        return;
    }
    let text = KERNEL.replace("[fifo, htb]", "[plimsoll]");
    let options = Options { binary: Some("/nowhere/plimsoll".into()), ..Options::default() };
    let error = lab(&text, &options).expect_err("there is none");
    assert!(error.to_string().contains("/nowhere/plimsoll"), "{error}");
}

#[test]
fn a_panic_in_the_callers_progress_leaves_nothing_behind() {
    let _alone = alone();
    if !may_run() {
        return;
    }
    let before = traces();
    let scenario = load(&KERNEL.replace("[fifo, htb]", "[fifo]"));
    let panicked = std::panic::catch_unwind(|| {
        plimsoll_lab::run(&scenario, &Options::default(), &mut |progress| {
            assert!(!matches!(progress, Progress::Tick { .. }), "a caller's mistake");
        })
    });
    assert!(panicked.is_err());
    assert_eq!(traces(), before, "nothing is left behind");
}
