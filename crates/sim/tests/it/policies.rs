//! Policies that change while traffic goes on.

use crate::support::{outcome, scenario};
use plimsoll_scenario::Run;
use plimsoll_sim::{Options, run};

/// Two tenants on a link of 1 Gb/s, equal until 50 ms; then `a` goes first, and a limit holds part of it.
fn text(change: &str) -> String {
    format!(
        "
name: changes
rate: 1Gbps
duration: 100ms
systems:
  - plimsoll
  - first: {{kind: plimsoll, policy: {{root: {{priority: [a, b]}}}}}}
tenants: {{a: {{}}, b: {{}}}}
policy: {{root: {{wfq: {{a: 1, b: 1}}}}}}
workloads:
  wa: {{tenant: a, kind: udp, rate: 800Mbps, size: 1458B, flows: 3}}
  wb: {{tenant: b, kind: bulk, flows: 2}}
timeline: [{change}]
measure: {{window: 5ms}}
"
    )
}

fn megabits(run: &Run, name: &str, windows: core::ops::Range<usize>) -> f64 {
    let millis = 5.0 * windows.len() as f64;
    run.workloads[name].bytes[windows].iter().sum::<u64>() as f64 * 8.0 / millis / 1e3
}

#[test]
fn a_policy_that_comes_into_force_divides_the_link_from_then_on() {
    let results = outcome(&scenario(&text("{at: 50ms, policy: first}")), 1).results;
    let [changed, first] = &results.runs[..] else { panic!("two systems") };
    assert!((470.0..510.0).contains(&megabits(changed, "wa", 4..10)), "equal before");
    // What had waited has left by then.
    let (after, always) = (megabits(changed, "wa", 15..20), megabits(first, "wa", 15..20));
    assert!(
        (780.0..810.0).contains(&after) && (after - always).abs() < 5.0,
        "{after} after, {always} always"
    );
    assert!(megabits(changed, "wb", 15..20) > 100.0, "the rest is left to b");
}

#[test]
fn a_policy_that_is_put_in_force_again_changes_nothing() {
    let plain = outcome(&scenario(&text("{at: 99ms, policy: plimsoll}")), 1).results;
    let again =
        outcome(&scenario(&text("{at: 40ms, policy: plimsoll}, {at: 60ms, policy: plimsoll}")), 1).results;
    let sent = |run: &Run| run.workloads["wa"].bytes[..19].to_vec();
    let (plain, again) = (sent(&plain.runs[0]), sent(&again.runs[0]));
    let most = plain.iter().zip(&again).map(|(plain, again)| plain.abs_diff(*again)).max();
    assert!(most <= Some(2 * 1_500), "windows differ by {most:?} bytes");
}

#[test]
fn policies_change_neither_beside_control_nor_beside_restarts() {
    let text = "{name: t, rate: 1Gbps, duration: 100ms, systems: [plimsoll, o: {kind: plimsoll}], control: {}, \
                hosts: {a: {}, b: {}}, switches: [s], links: {l: {between: [a, s], rate: 1Gbps}, m: {between: [b, s], rate: 1Gbps}}, \
                tenants: {x: {host: a, max: 1Gbps}, y: {host: b, max: 1Gbps}}, \
                workloads: {w: {tenant: x, to: y, kind: bulk}}, timeline: [{at: 10ms, policy: o}]}";
    let refusal = run(&scenario(text), &Options::default(), &|_| {}).expect_err("control");
    assert!(refusal.to_string().contains("which a change of the policy does not keep"), "{refusal}");
    let faults = "faults: {restart: [{host: a, at: 5ms, gap: 1ms}]}";
    let refusal = run(&scenario(&text.replace("control: {}", faults)), &Options::default(), &|_| {})
        .expect_err("a restart");
    assert!(refusal.to_string().contains("begins with the policy that the file has"), "{refusal}");
}
