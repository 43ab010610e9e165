//! Cases with results that can be computed by hand.

use crate::support::{assert_holds, first_run as run, mean_latency, outcome, scenario};
use plimsoll_scenario::Run;
use plimsoll_units::Span;

fn bytes(run: &Run, workload: &str) -> u64 {
    run.workloads[workload].bytes.iter().sum()
}

#[test]
fn three_to_one_is_exact_to_the_frame() {
    let run = run("
name: shares
rate: 10Gbps
duration: 100ms
systems: [plimsoll]
tenants: {gold: {weight: 3}, bronze: {}}
workloads:
  g: {tenant: gold, kind: udp, rate: flood, size: 1458B}
  b: {tenant: bronze, kind: udp, rate: flood, size: 1458B}
");
    let (gold, bronze) = (bytes(&run, "g"), bytes(&run, "b"));
    assert!(gold.abs_diff(3 * bronze) <= 3 * 1_500, "{gold} {bronze}");
    // 1,500 B at 10 Gb/s are 1,200 ns. The first frame arrives after that and 5 us, the last one before 100 ms.
    let frames = (100_000_000 - 5_000 - 1) / 1_200;
    assert_eq!(gold + bronze, frames * 1_500);
}

#[test]
fn a_lone_packet_takes_its_serialisation_and_the_delays() {
    let run = run("
name: alone
rate: 1Gbps
duration: 1s
systems: [plimsoll]
tenants: {a: {}}
workloads:
  ping: {tenant: a, kind: probe, size: 83B, rate: 100}
");
    // 125 B at 1 Gb/s are 1,000 ns, then 5 us there and 5 us back.
    let samples = &run.workloads["ping"].samples;
    assert!(samples.len() > 50);
    assert!(samples.iter().all(|sample| sample.latency == Span::ns(11_000)), "{samples:?}");
}

#[test]
fn poisson_arrivals_wait_as_in_m_d_1() {
    for (system, rate) in [("plimsoll", 70_000), ("fifo", 70_000), ("plimsoll", 40_000)] {
        let run = run(&format!(
            "
name: queue
rate: 1Gbps
duration: 10s
systems: [{system}]
tenants: {{a: {{}}}}
workloads:
  ping: {{tenant: a, kind: probe, size: 1208B, rate: {rate}}}
"
        ));
        // 1,250 B at 1 Gb/s are 10 us; with load r a packet waits r / (2 (1 - r)) services in the mean.
        let mean = mean_latency(&run, "ping");
        let load = f64::from(rate) * 10e-6;
        let expected = load / (2.0 * (1.0 - load)) * 10e-6;
        let wait = mean - 10e-6 - 10e-6;
        assert!((wait / expected - 1.0).abs() < 0.02, "{system} {rate}: {wait} for {expected}");
        assert!(run.drops.values().all(std::collections::BTreeMap::is_empty));
    }
}

#[test]
fn what_a_flood_loses_is_counted_with_its_reason() {
    let run = run("
name: flood
rate: 1Gbps
duration: 200ms
systems: [fifo]
tenants: {a: {}}
workloads:
  flood: {tenant: a, kind: udp, rate: 2Gbps, size: 1458B}
");
    // 2 Gb/s of 1,500 B are 6 us each: 33,334 in 200 ms. Half of them leave, and 1,000 wait at the end.
    let (sent, lost) = (33_334, run.drops["a"]["queue full"]);
    assert!((sent / 2 - 1_000_u64).abs_diff(lost) <= 2, "{lost} lost");
}

#[test]
fn a_class_within_its_guarantee_meets_its_bound() {
    let outcome = outcome(
        &scenario(
            "
name: bounds
rate: 1Gbps
duration: 500ms
systems: [plimsoll]
tenants: {quiet: {min: 100Mbps}, loud: {}}
workloads:
  steady: {tenant: quiet, kind: udp, rate: 90Mbps, size: 1458B}
  flood:  {tenant: loud, kind: udp, rate: flood, size: 1458B}
",
        ),
        1,
    );
    assert_eq!(outcome.broken().count(), 0);
    let quiet = outcome.bounds[0].bounds.iter().find(|bound| bound.class.ends_with("quiet")).expect("judged");
    assert!(quiet.judged > 3_000 && quiet.worst > Span::ZERO && quiet.worst <= quiet.bound, "{quiet:?}");
}

#[test]
fn htb_keeps_to_rates_ceilings_and_weights() {
    let shares = |tenants: &str| {
        let run = run(&format!(
            "
name: htb
rate: 100Mbps
duration: 4s
systems: [htb]
tenants: {{{tenants}}}
workloads:
  a: {{tenant: x, kind: udp, rate: flood, size: 1458B}}
  b: {{tenant: y, kind: udp, rate: flood, size: 1458B}}
"
        ));
        // Mb/s, from bytes in 4 s.
        ["a", "b"].map(|workload| bytes(&run, workload) as f64 * 2.0 / 1e6)
    };
    let near = |found: [f64; 2], expected: [f64; 2]| {
        assert!((0..2).all(|n| (found[n] / expected[n] - 1.0).abs() < 0.01), "{found:?} for {expected:?}");
    };
    near(shares("x: {min: 30Mbps, max: 40Mbps}, y: {}"), [40.0, 60.0]);
    near(shares("x: {min: 80Mbps}, y: {min: 20Mbps}"), [80.0, 20.0]);
    near(shares("x: {weight: 3}, y: {}"), [75.0, 25.0]);
}

#[test]
fn udp_in_turns_sends_its_part_of_the_time_and_at_its_rate() {
    let run = run("
name: turns
rate: 1Gbps
duration: 20s
systems: [plimsoll]
tenants: {t: {}}
workloads:
  gusts: {tenant: t, kind: udp, rate: 8Mbps, size: 958B, on: 10ms, off: 30ms}
measure: {window: 1ms}
");
    // 1,000 B on the wire at 8 Mb/s are one a millisecond, a quarter of the time: 5,000 in 20 s, give or take some 9 %.
    let windows = &run.workloads["gusts"].bytes;
    let sent = windows.iter().sum::<u64>() / 1_000;
    assert!((4_000..6_000).contains(&sent), "{sent}");
    assert!(windows.iter().all(|&bytes| bytes <= 2_000), "never faster than its rate");
    let quiet = windows.iter().filter(|&&bytes| bytes == 0).count();
    assert!(quiet > 13_000, "{quiet} ms of 20,000 were quiet");
}

/// One connection that asks for 1 kB, in a closed loop or at a rate.
fn asking(rate: &str) -> Run {
    run(&format!(
        "
name: asking
jitter: 0s
rate: 1Gbps
duration: 1s
systems: [plimsoll]
tenants: {{t: {{}}}}
workloads:
  ask: {{tenant: t, kind: request_response, request: 200B, response: 1kB{rate}}}
"
    ))
}

#[test]
fn a_closed_loop_asks_when_it_is_answered_and_an_open_one_when_it_is_time() {
    let closed = asking("");
    let samples = &closed.workloads["ask"].samples;
    let usual = samples[100].latency;
    assert!(samples[100..].iter().all(|sample| sample.latency == usual), "no other traffic");
    assert!(samples[100..].windows(2).all(|pair| pair[1].at - pair[0].at == usual), "one after the other");

    // At a tenth of the closed loop's rate most requests find the connection free.
    let tenth = samples.len() / 10;
    let open = asking(&format!(", rate: {tenth}"));
    let mut latencies: Vec<Span> =
        open.workloads["ask"].samples.iter().map(|sample| sample.latency).collect();
    latencies.sort_unstable();
    assert!(latencies.len().abs_diff(tenth) < 5 * tenth.isqrt(), "{} of {tenth}", latencies.len());
    assert_eq!(latencies[latencies.len() / 2], usual);

    // At twice the rate requests wait ever longer for the connection, and the wait counts.
    let busy = asking(&format!(", rate: {}", 2 * samples.len()));
    let worst = busy.workloads["ask"].samples.iter().map(|sample| sample.latency).max();
    assert!(worst > Some(Span::millis(300)), "{worst:?}");
}

/// Half of the link is enough for b, and a thousandth is not: its packets wait, and no bound promises that they do not.
#[test]
fn no_packet_is_judged_by_the_bounds_of_shares_that_have_changed() {
    let text = "
name: reweighed
rate: 1Gbps
duration: 200ms
systems: [plimsoll]
tenants: {a: {}, b: {}}
policy: {root: {wfq: {a: 1, b: 1}}}
workloads:
  wa: {tenant: a, kind: udp, rate: flood}
  wb: {tenant: b, kind: udp, rate: 300Mbps}
timeline:
  - {at: 100ms, weights: {a: 1000}}
expect:
  - plimsoll.b.throughput[10ms..100ms] ~ 300Mbps +- 1%
  - plimsoll.b.throughput[150ms..200ms] <= 10Mbps
";
    let scenario = scenario(text);
    let outcome = outcome(&scenario, 1);
    assert_holds(&scenario, &outcome);
    assert_eq!(outcome.broken().count(), 0);
}
