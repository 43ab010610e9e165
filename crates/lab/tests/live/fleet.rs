//! Live: several hosts, a real `plimsoll run` for each, where its binary has been built.

use crate::support::{TRIES, alone, binary, may_run};
use plimsoll_lab::{LabError, Options};
use plimsoll_scenario::{Form, Run, Scenario};

fn load(text: &str) -> Scenario {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("tiny.yaml");
    std::fs::write(&file, text).expect("write the scenario");
    Scenario::load(&file, Form::Full).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// Megabits a second of what arrived in the last two seconds.
fn arrived(run: &Run, workload: &str) -> f64 {
    let windows = &run.workloads[workload].delivered;
    let late = &windows[windows.len().saturating_sub(20)..];
    late.iter().sum::<u64>() as f64 * 8.0 / (late.len().max(1) as f64 * 1e5)
}

const FLOOD: &str = "
name: tiny
about: A flood for a tenant that may have little, and its neighbour's TCP.
rate: 100Mbps
duration: 4s
measure: {window: 100ms}
systems: [plimsoll, uncontrolled: {kind: plimsoll, control: off}, htb]
control: {epoch: 10ms, feedback: 1ms, threshold: 10ms}
hosts: {h1: {}, h2: {}, h3: {receive: {ring: 256, drain: 1us, cost: 1us, slots: 256}}}
switches: [switch]
links:
  l1: {between: [h1, switch], rate: 100Mbps}
  l2: {between: [h2, switch], rate: 100Mbps}
  l3: {between: [switch, h3], rate: 100Mbps}
tenants:
  loud:  {host: h1}
  calm:  {host: h2}
  small: {host: h3, max: 20Mbps}
  other: {host: h3}
workloads:
  flood: {tenant: loud, to: small, kind: udp, size: 1000B, rate: 90Mbps}
  bulk:  {tenant: calm, to: other, kind: bulk, flows: 2}
";

#[test]
fn a_receivers_maximum_holds_across_hosts_and_its_neighbour_gets_the_rest() {
    let Some(binary) = binary() else { return };
    let _alone = alone();
    let options = Options { binary: Some(binary), ..Options::default() };
    // A machine that stalls may spoil one try.
    let held = (0..TRIES).any(|_| holds(&options));
    assert!(held, "a maximum holds, and its neighbour has the rest");
}

/// Runs the flood. Returns whether its neighbour got its rate.
fn holds(options: &Options) -> bool {
    let results = plimsoll_lab::run(&load(FLOOD), options, &mut |_| {}).expect("the lab runs");
    let run = |name: &str| results.runs.iter().find(|run| run.system == name).expect("it ran");
    let (with, without) = (run("plimsoll"), run("uncontrolled"));
    let seen = [with, without].map(|run| (arrived(run, "flood"), arrived(run, "bulk")));
    eprintln!("flood and bulk with control {:?}, without {:?}", seen[0], seen[1]);
    let lost: u64 = with.drops["loud"].values().sum();
    assert!(lost > 10_000, "the flood is dropped where it begins: {:?}", with.drops);
    let late: u64 = without.drops.values().filter_map(|drops| drops.get("ingress_over_max")).sum();
    assert!(late > 10_000, "and without control where it ends, behind the link: {:?}", without.drops);
    assert!(
        results.notes.iter().any(|note| note.starts_with("htb: on several hosts")),
        "{:?}",
        results.notes
    );
    // Without control its maximum holds on arrival.
    seen.iter().all(|(flood, _)| (14.0..23.0).contains(flood))
        && seen[0].1 > 50.0
        && seen[0].1 > 2.0 * seen[1].1
}

#[test]
fn what_cannot_be_built_of_several_hosts_is_refused_with_a_way_out() {
    if !may_run() {
        return;
    }
    let said = |text: String| {
        let options = Options { binary: Some("/bin/true".into()), ..Options::default() };
        match plimsoll_lab::run(&load(&text), &options, &mut |_| {}) {
            Err(LabError::Scenario(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let lossy = FLOOD.replace("l1: {", "l1: {loss: 1%, ");
    assert!(said(lossy).contains("link `l1` leads one way, loses or marks packets"));
    let two = FLOOD.replace("  l3: {", "  l4: {between: [h1, switch], rate: 1Gbps}\n  l3: {");
    assert!(said(two).contains("host `h1` has 2 links"));
}
