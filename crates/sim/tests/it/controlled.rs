//! Receivers that hold their senders back: faults of hosts and messages, strangers, floods and marks.

use crate::support::{first_run, mean_latency, outcome, scenario};
use plimsoll_scenario::Run;
use plimsoll_units::Span;

/// Two hosts under control send to a third, in a run with faults and in one without.
fn faulty(faults: &str, workloads: &str) -> (Run, Run) {
    faulty_with("", faults, workloads)
}

fn faulty_with(control: &str, faults: &str, workloads: &str) -> (Run, Run) {
    let head = format!(
        "
systems: [plimsoll, well: {{kind: plimsoll, faults: false}}]
control: {{epoch: 500us, feedback: 100us{control}}}
faults: {{{faults}}}"
    );
    let tenants = "{x: {host: a}, y: {host: b}, u: {host: c, max: 4Gbps}, v: {host: c}}";
    let workloads = format!(
        "
  xu: {{tenant: x, kind: udp, to: u, rate: 5Gbps, size: 1458B, buffer: 208KiB}}
  yu: {{tenant: y, kind: udp, to: u, rate: 5Gbps, size: 1458B, buffer: 208KiB}}
{workloads}"
    );
    let mut runs = controlled(&head, tenants, &workloads);
    let well = runs.remove(1);
    (runs.remove(0), well)
}

/// Runs of 100 ms in a world of two hosts, a and b, and a third one, c, that receives from both.
fn controlled(head: &str, tenants: &str, workloads: &str) -> Vec<Run> {
    let text = format!(
        "
name: controlled
rate: 10Gbps
duration: 100ms
{head}
hosts:
  a: {{transmit: {{ring: 256, completions: out_of_order}}}}
  b: {{transmit: {{ring: 256, completions: out_of_order}}}}
  c: {{receive: {{ring: 1024, drain: 100ns, cost: 400ns, slots: 256}}}}
switches: [switch]
links:
  la: {{between: [a, switch], rate: 10Gbps}}
  lb: {{between: [b, switch], rate: 10Gbps}}
  lc: {{between: [switch, c], rate: 10Gbps}}
tenants: {tenants}
workloads: {workloads}
measure: {{window: 1ms}}
"
    );
    outcome(&scenario(&text), 1).results.runs
}

fn gbps(run: &Run, workload: &str, from: usize, to: usize) -> f64 {
    let bytes: u64 = run.workloads[workload].delivered.iter().skip(from).take(to - from).sum();
    bytes as f64 * 8.0 / (to - from) as f64 / 1e6
}

#[test]
fn a_daemon_that_ends_loses_what_it_holds_and_comes_back_with_nothing() {
    let (run, well) = faulty("restart: [{host: c, at: 40ms, gap: 10ms}, {host: a, at: 60ms, gap: 10ms}]", "");
    for (workload, out) in [("xu", 40..50), ("yu", 40..50), ("xu", 60..70)] {
        let inside = gbps(&run, workload, out.start + 1, out.end - 1);
        assert!(inside < 0.01, "{workload} in {out:?}: {inside}");
    }
    assert!(run.drops["x"]["daemon_down"] > 1_000 && !well.drops["x"].contains_key("daemon_down"));
    for run in [&run, &well] {
        let (x, y) = (gbps(run, "xu", 85, 100), gbps(run, "yu", 85, 100));
        assert!((1.8..=2.2).contains(&x) && (1.8..=2.2).contains(&y), "half of u's 4 Gb/s each: {x}, {y}");
    }
}

#[test]
fn who_stops_reading_loses_its_own() {
    let (run, well) = faulty(
        "stalled: [{tenant: u, from: 40ms, to: 60ms}]",
        "  ping: {tenant: x, kind: probe, to: v, rate: 20000}",
    );
    let (stalled, after) = (gbps(&run, "xu", 41, 60), gbps(&run, "xu", 70, 100));
    // Beside v, which answers, u has four fourteenths of the line.
    assert!(stalled < 0.01 && (1.4..1.5).contains(&after), "{stalled} and {after}");
    assert!(run.drops["x"]["guest_full"] > 1_000 && run.drops["y"]["guest_full"] > 1_000);
    let mean = |run: &Run| mean_latency(run, "ping");
    assert!(mean(&run) < 1.05 * mean(&well), "{} and {}", mean(&run), mean(&well));
}

#[test]
fn messages_that_are_lost_late_or_doubled_change_little() {
    let (run, well) = faulty("feedback: {loss: 30%, duplicate: 30%, reorder: 30%, late: 2ms}", "");
    for run in [&run, &well] {
        let both = gbps(run, "xu", 50, 100) + gbps(run, "yu", 50, 100);
        assert!((3.6..=4.2).contains(&both), "{both}");
    }
    // Once the limits have settled, hosts tell them rarely, and nothing is different.
    let delivered = |run: &Run| run.workloads["xu"].delivered.clone();
    assert_ne!(delivered(&run), delivered(&well), "something went wrong");
}

/// A daemon that comes back with a clock that was set back is not heard, as it could be a replay: limits lapse, and the
/// fallback holds.
#[test]
fn who_is_no_longer_heard_is_sent_the_fallback() {
    let faults = "clock: [{host: c, at: 10ms, back: 1h}], restart: [{host: c, at: 20ms, gap: 1ms}]";
    let (run, _) = faulty_with(", fallback: 500Mbps", faults, "");
    for workload in ["xu", "yu"] {
        let rate = gbps(&run, workload, 60, 100);
        assert!((0.49..=0.51).contains(&rate), "{workload}: {rate}");
    }
}

/// The host of y hears no limits: y is held to one sender's part on arrival, and x has its own part.
#[test]
fn who_hears_no_limit_is_held_to_one_senders_part() {
    let (run, _) = faulty("silent: [b]", "");
    let (x, y) = (gbps(&run, "xu", 50, 100), gbps(&run, "yu", 50, 100));
    assert!((1.8..=2.2).contains(&x) && (1.8..=2.2).contains(&y), "{x} and {y}");
    assert!(run.drops["y"]["stranger_over_limit"] > 1_000, "{:?}", run.drops);
    assert!(!run.drops["x"].contains_key("stranger_over_limit"));
}

/// Ten thousand made-up senders, and y, which has no limit, count as one sender together.
#[test]
fn made_up_senders_are_one_together() {
    let spoofed =
        "  lies: {tenant: y, kind: udp, to: u, rate: 2Gbps, size: 1458B, claims: 10000, start: 20ms}";
    let (run, _) = faulty("silent: [b]", spoofed);
    let [x, y, lies] = ["xu", "yu", "lies"].map(|workload| gbps(&run, workload, 60, 100));
    assert!((1.8..=2.2).contains(&x) && (1.8..=2.2).contains(&(y + lies)), "{x}, {y}, {lies}");
}

/// Two load balancers of weights 1 and 3 share the limit of both in that proportion.
#[test]
fn load_balancers_divide_what_one_sender_may_send() {
    let head = "
systems: [plimsoll]
control: {epoch: 500us, feedback: 100us, balancers: {lb1: 1, lb2: 3}}";
    let tenants = "{lb1: {host: a}, lb2: {host: b}, u: {host: c, max: 4Gbps}}";
    let workloads = "
  one: {tenant: lb1, kind: udp, to: u, rate: 6Gbps, size: 1458B, buffer: 208KiB}
  two: {tenant: lb2, kind: udp, to: u, rate: 6Gbps, size: 1458B, buffer: 208KiB}";
    let run = controlled(head, tenants, workloads).remove(0);
    let (one, two) = (gbps(&run, "one", 50, 100), gbps(&run, "two", 50, 100));
    assert!((0.9..=1.1).contains(&one) && (2.8..=3.2).contains(&two), "{one} and {two}");
}

/// A link between the switches is the bottleneck: with marks senders keep its queue short; without, it overflows.
#[test]
fn the_fabrics_marks_hold_senders_back() {
    let text = "
name: fabric
rate: 10Gbps
duration: 100ms
systems: [plimsoll, deaf: {kind: plimsoll, control: {ecn: false}}]
control: {epoch: 500us, feedback: 100us, ecn: true}
hosts:
  a: {transmit: {ring: 256, completions: out_of_order}}
  b: {transmit: {ring: 256, completions: out_of_order}}
  c: {receive: {ring: 1024, drain: 50ns, cost: 100ns, slots: 256}}
switches: [left, right]
links:
  la: {between: [a, left], rate: 10Gbps}
  lb: {between: [b, left], rate: 10Gbps}
  core: {between: [left, right], rate: 4Gbps, queue: 500kB, ecn: 60kB}
  lc: {between: [right, c], rate: 10Gbps}
tenants: {x: {host: a}, y: {host: b}, u: {host: c}, v: {host: c}}
workloads:
  xu: {tenant: x, kind: udp, to: u, rate: 6Gbps, size: 1458B, buffer: 208KiB}
  yv: {tenant: y, kind: udp, to: v, rate: 6Gbps, size: 1458B, buffer: 208KiB}
measure: {window: 1ms}
";
    let runs = outcome(&scenario(text), 1).results.runs;
    let both = |run: &Run| gbps(run, "xu", 50, 100) + gbps(run, "yv", 50, 100);
    assert!(both(&runs[0]) > 3.4, "the link is used: {}", both(&runs[0]));
    let lost = |run: &Run| run.drops.values().flat_map(|drops| drops.get("queue full")).sum::<u64>();
    assert!(10 * lost(&runs[0]) < lost(&runs[1]), "{} and {}", lost(&runs[0]), lost(&runs[1]));
}

/// A flood of small packets for `c`, which has this promise, beside a little for `d` on the same host.
fn flooded(promise: &str) -> Run {
    let text = format!(
        "
name: flooded
rate: 20Gbps
duration: 150ms
systems: [plimsoll]
control: {{epoch: 500us, feedback: 100us, threshold: 10us}}
hosts:
  h1: {{transmit: {{ring: 256, completions: out_of_order}}}}
  h2: {{receive: {{ring: 1024, drain: 260ns, cost: 380ns, slots: 256}}}}
switches: [switch]
links:
  l1: {{between: [h1, switch], rate: 20Gbps}}
  l2: {{between: [h2, switch], rate: 20Gbps}}
tenants:
  a: {{host: h1, max: 12Gbps}}
  c: {{host: h2, max: 12Gbps{promise}}}
  d: {{host: h2, max: 12Gbps}}
workloads:
  ac: {{tenant: a, to: c, kind: udp, rate: 3Mpps, size: 58B, buffer: 208KiB}}
  ad: {{tenant: a, to: d, kind: probe, rate: 5000, size: 58B}}
measure: {{ingress: true, egress: true}}
"
    );
    first_run(&text)
}

/// Mean packets per millisecond that reach `c` in the 20 ms after the second epoch of a flood that begins `phase` microseconds
/// after the start of an epoch of half a millisecond.
fn early_goodput(phase: u64) -> f64 {
    let text = format!(
        "
name: phase
rate: 20Gbps
duration: 100ms
systems: [plimsoll]
control: {{epoch: 500us, feedback: 100us, threshold: 10us}}
hosts:
  h1: {{transmit: {{ring: 256, completions: out_of_order}}}}
  h2: {{receive: {{ring: 1024, drain: 260ns, cost: 380ns, slots: 64}}}}
links: {{wire: {{between: [h1, h2], rate: 20Gbps}}}}
tenants: {{a: {{host: h1, max: 12Gbps}}, c: {{host: h2, max: 12Gbps}}}}
workloads:
  ac: {{tenant: a, to: c, kind: udp, rate: 3Mpps, size: 58B, buffer: 208KiB, start: {}us}}
measure: {{window: 1ms}}
",
        10_000 + phase
    );
    let run = first_run(&text);
    run.workloads["ac"].delivered.iter().skip(12).take(20).sum::<u64>() as f64 / 100.0 / 20.0
}

/// PCCP starts from the rate that the CPU serves. In an epoch that is over soon after the flood begins, the CPU serves far fewer
/// packets than that rate makes in an epoch.
#[test]
fn a_flood_is_limited_alike_whenever_in_an_epoch_it_begins() {
    let first = early_goodput(0);
    for phase in [100, 250, 400, 450, 475, 490, 495, 499] {
        let goodput = early_goodput(phase);
        assert!(goodput > 0.9 * first, "after {phase} us: {goodput}, where {first} at an epoch's start");
    }
}

/// The mean wait of the packets that came in the last third of the run.
fn mean_wait(run: &Run) -> Span {
    let late: Vec<u64> = (run.workloads["ac"].waits.iter())
        .filter(|wait| wait.at.as_u64() > 100_000_000)
        .map(|wait| wait.latency.as_u64())
        .collect();
    Span::ns(late.iter().sum::<u64>() / late.len() as u64)
}

#[test]
fn a_delay_target_sets_what_control_keeps_to_and_the_parts_of_delay_are_measured() {
    let usual = mean_wait(&flooded(""));
    assert!(usual < Span::micros(15), "the scenario's threshold is 10 us: {usual}");
    // Ten elevenths of half of 220 us, and 500 frames on the way in.
    let run = flooded(", delay: {p50: 220us, p99: 1ms}");
    let promised = mean_wait(&run);
    assert!(promised > usual.times(2) && promised < Span::micros(120), "100 us: {promised}, {usual}");
    let found = &run.workloads["ac"];
    assert!(found.waits.len() == found.nic_waits.len() && found.egress_waits.len() > 10_000);
    assert!(found.waits.iter().zip(&found.nic_waits).all(|(whole, nic)| nic.latency <= whole.latency));
}
