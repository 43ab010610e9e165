//! Gateways, and backpressure on the flows that overload them.

use plimsoll_scenario::{Form, Run, Scenario};
use plimsoll_sim::Options;

/// Clients on `one` and `many`, servers on `far`, and a gateway on `mid` whose core takes 1.2 us for a packet. A round trip
/// takes 0.77 ms.
fn runs(rest: &str) -> Vec<Run> {
    let text = format!(
        "name: gateway
rate: 10Gbps
hosts:
  one:  {{transmit: {{completions: out_of_order}}}}
  many: {{}}
  far:  {{}}
  mid:  {{receive: {{ring: 4096, slots: 4096, cost: 1200ns}}}}
switches: [switch]
links:
  l1: {{between: [one, switch], rate: 10Gbps, delay: 95us}}
  l2: {{between: [many, switch], rate: 10Gbps, delay: 95us}}
  l3: {{between: [far, switch], rate: 10Gbps, delay: 95us}}
  l4: {{between: [mid, switch], rate: 10Gbps, delay: 95us}}
engine: {{ring: 1024}}
{rest}"
    );
    let scenario = Scenario::parse(&text, "gateway.yaml", "".as_ref(), Form::Full);
    let scenario = scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let outcome = plimsoll_sim::run(&scenario, &Options::default(), &|_| {}).expect("it runs");
    outcome.results.runs
}

fn tenants(heavy: &str, gateway: &str) -> String {
    format!(
        "tenants: {{heavy: {{host: one, max: 2Gbps{heavy}}}, mice: {{host: many}}, server: {{host: far}}, \
         gateway: {{host: mid, forwards: true{gateway}}}}}"
    )
}

/// Mb/s that arrived between two moments in milliseconds, in windows of 50 ms.
fn mbps(run: &Run, workload: &str, from: usize, to: usize) -> f64 {
    let windows = &run.workloads[workload].delivered[from / 50..to / 50];
    windows.iter().sum::<u64>() as f64 * 8.0 / ((to - from) as f64 / 1e3) / 1e6
}

#[test]
fn packets_pass_the_gateway_both_ways_and_take_its_time() {
    let text = format!(
        "duration: 500ms\nsystems: [plimsoll, fifo]\n{}\nworkloads:\n  \
         ask: {{tenant: heavy, kind: probe, rate: 1000, to: server, through: gateway}}\n  \
         direct: {{tenant: heavy, kind: probe, rate: 1000, to: server}}",
        tenants("", "")
    );
    for run in runs(&text) {
        let ask = &run.workloads["ask"];
        let mean = |name: &str| {
            let samples = &run.workloads[name].samples;
            samples.iter().map(|sample| sample.latency.as_secs_f64()).sum::<f64>() / samples.len() as f64
        };
        assert!(ask.samples.len() > 400 && ask.errors == 0, "{}", run.system);
        // Twice two more links of 95 us, and twice 1.2 us.
        let longer = (mean("ask") - mean("direct")) * 1e6;
        assert!((382.0..384.0).contains(&longer), "{}: {longer} us", run.system);
        // Each probe and its answer.
        let worked: f64 = run.loads["mid"].iter().map(|worked| worked.as_secs_f64()).sum();
        let expected = 2.0 * ask.samples.len() as f64 * 1.2e-6;
        assert!((worked - expected).abs() < 20e-6, "{}: {worked} for {expected}", run.system);
        assert_eq!(ask.packets, ask.samples.len() as u64, "{}: it crosses its uplink once", run.system);
    }
}

#[test]
fn with_reverse_the_server_sends() {
    let text = format!(
        "duration: 300ms\nsystems: [plimsoll]\n{}\nworkloads:\n  \
         down: {{tenant: heavy, kind: bulk, reverse: true, to: server, through: gateway}}",
        tenants("", "")
    );
    let run = runs(&text).remove(0);
    let rate = mbps(&run, "down", 200, 300);
    assert!(rate > 2_200.0, "the client's `max` does not hold the server: {rate}");
}

const WATCHED: &str =
    "backpressure: {tenants: [gateway], watch: {tenant: gateway}, threshold: 10%, release: 5%, rate: 850Mbps";

fn held(heavy: &str, gateway: &str, mode: &str, rest: &str) -> Run {
    let text = format!(
        "duration: 1s\nsystems: [plimsoll]\n{}\n{WATCHED}, mode: {mode}}}\nworkloads:\n  \
         big: {{tenant: heavy, kind: bulk, to: server, through: gateway{rest}",
        tenants(heavy, gateway)
    );
    runs(&text).remove(0)
}

/// One mark in 2,000 packets is one reduction: the response function then gives 850 Mb/s to either algorithm.
#[test]
fn a_mark_lowers_the_window_once() {
    for congestion in ["cubic", "newreno"] {
        let rest = format!(", congestion: {congestion}}}\nbackpressure_model: {{interval: 2000}}");
        let run = held(", tcp_ecn: 1", "", "mark", &rest);
        let rate = mbps(&run, "big", 400, 1_000);
        assert!((780.0..900.0).contains(&rate), "{congestion}: {rate}");
        let big = &run.workloads["big"];
        assert_eq!((big.retransmits, big.metered), (Some(0), Some(0)), "{congestion}");
    }
}

#[test]
fn flows_without_ecn_and_of_tenants_that_opted_out_are_metered() {
    let opted_out = [(", tcp_ecn: 1", ", ecn: untouched"), (", tcp_ecn: 1, ecn: untouched", "")];
    for (heavy, gateway) in [("", ""), (", tcp_ecn: 0", "")].into_iter().chain(opted_out) {
        let run = held(heavy, gateway, "mark", "}");
        let (big, rate) = (&run.workloads["big"], mbps(&run, "big", 800, 1_000));
        assert_eq!(big.marks, Some(0), "{heavy}{gateway}");
        assert!(big.metered > Some(1_000) && (830.0..870.0).contains(&rate), "{heavy}{gateway}: {rate}");
        assert!(run.counters["notices"] >= 1);
    }
}

#[test]
fn both_ways_at_once_mark_and_meter() {
    let run = held(", tcp_ecn: 1", "", "mark_and_meter", "}");
    let (big, rate) = (&run.workloads["big"], mbps(&run, "big", 500, 1_000));
    assert!(big.marks > Some(3) && big.metered > Some(0), "{:?}", (big.marks, big.metered));
    assert!((750.0..870.0).contains(&rate), "{rate}");
}

/// A window counts payload, and the rate whole frames: 850 Mb/s of one are 889 Mb/s of the other.
#[test]
fn smaller_windows_hold_a_flow_that_uses_no_ecn_and_lose_nothing() {
    for rest in ["}", ", reverse: true}"] {
        let run = held(", tcp_ecn: 0", "", "window", rest);
        let (big, rate) = (&run.workloads["big"], mbps(&run, "big", 500, 1_000));
        assert!((830.0..895.0).contains(&rate), "{rest}: {rate}");
        assert_eq!((big.retransmits, big.metered, big.marks), (Some(0), Some(0), Some(0)), "{rest}");
        assert!(big.changed > Some(5_000) && run.counters["notices"] == 0, "{rest}: {:?}", big.changed);
        assert!(run.drops["heavy"].is_empty(), "{rest}: {:?}", run.drops);
    }
    // Of a tenant that opted out no window is changed, and datagrams have none.
    let kept = held(", ecn: untouched", "", "window", "}");
    assert!(kept.counters["notices"] > 0 && kept.workloads["big"].changed == Some(0));
    let run = held(
        "",
        "",
        "window",
        "}\n  dgram: {tenant: mice, kind: udp, rate: 2Gbps, to: server, through: gateway}",
    );
    assert!(run.workloads["dgram"].metered > Some(1_000) && run.workloads["dgram"].changed == Some(0));
}

/// A meter that drops loses what one that lets packets wait keeps.
#[test]
fn excess_is_dropped_where_the_experiment_says_so() {
    let waits = held("", "", "meter", "}");
    let drops = held("", "", "meter", "}\nbackpressure_model: {excess: drop}");
    let lost = |run: &Run| run.drops["heavy"].get("flow_over_rate").copied().unwrap_or(0);
    let metered = |run: &Run| run.workloads["big"].metered.unwrap_or(0);
    assert_eq!(lost(&drops), metered(&drops), "each packet that is beyond is lost");
    assert!(
        metered(&waits) > 10 * lost(&waits).max(1),
        "most wait: {} and {}",
        metered(&waits),
        lost(&waits)
    );
    // Dropping here, at the gateway, needs no notice.
    let here = held("", "", "drop", "}");
    assert!(lost(&here) > 100 && here.counters["notices"] == 0, "{:?}", here.drops);
}

#[test]
fn only_the_heavy_flow_is_slowed_down_and_nothing_is_lost_at_the_core() {
    let text = format!(
        "duration: 400ms\nsystems: [plimsoll, {{without: {{kind: plimsoll, backpressure: off}}}}]\n{}\n\
         backpressure: {{tenants: [gateway], watch: {{tenant: gateway}}, rate: 850Mbps}}\nworkloads:\n  \
         small: {{tenant: mice, kind: udp, size: 1458B, rate: 6Gbps, claims: 1000, to: server, through: gateway}}\n  \
         big: {{tenant: heavy, kind: bulk, to: server, through: gateway, start: 100ms}}",
        tenants("", "")
    );
    let all = runs(&text);
    let (plimsoll, without) = (&all[0], &all[1]);
    assert!((5_950.0..6_050.0).contains(&mbps(plimsoll, "small", 200, 400)));
    assert!((830.0..870.0).contains(&mbps(plimsoll, "big", 200, 400)));
    assert!(plimsoll.drops["mice"].is_empty(), "{:?}", plimsoll.drops);
    assert_eq!(plimsoll.workloads["small"].metered, Some(0));
    assert!(mbps(without, "big", 200, 400) > 1_500.0);
    assert_eq!(plimsoll.tops, [1_000], "all heavy hitters' packets are the one flow's");
    assert!(without.tops.is_empty() && !without.counters.contains_key("overloads"));
    assert_eq!(plimsoll.counters["counted"], plimsoll.counters["tabled"]);
}

/// The meter at the source outlives the gateway's daemon by its lifetime.
#[test]
fn a_meter_ends_when_nobody_asks_for_it() {
    let text = format!(
        "duration: 1s\nsystems: [plimsoll]\n{}\n\
         backpressure: {{tenants: [gateway], watch: {{tenant: gateway}}, rate: 850Mbps, lifetime: 200ms}}\n\
         faults: {{restart: [{{host: mid, at: 400ms, gap: 100ms}}]}}\nworkloads:\n  \
         small: {{tenant: heavy, kind: udp, size: 1458B, rate: 2Gbps, stop: 400ms, to: server, through: gateway}}\n  \
         big: {{tenant: mice, kind: udp, size: 1458B, rate: 6300Mbps, to: server, through: gateway}}",
        tenants("", "")
    );
    let run = runs(&text).remove(0);
    // It is held longer than its first lifetime, as the overload would return. Without the other flow it brings none.
    let rate = mbps(&run, "big", 50, 400);
    assert!((840.0..860.0).contains(&rate), "{rate}");
    assert_eq!((run.counters["pressed"], run.counters["let_go"]), (1, 0), "of the daemon before its restart");
    let rate = mbps(&run, "big", 700, 1_000);
    assert!((6_200.0..6_400.0).contains(&rate), "{rate}");
    let all = runs(&text).remove(0);
    assert_eq!((all.counters, all.drops), (run.counters, run.drops), "one seed, one result");
}

/// Receivers hold all their senders back when their core is full; the packets of a flow that backpressure has just begun to slow
/// down do not count there, so the others lose nothing for them (targets 6.6). A request takes 2 ms to the flow's host.
#[test]
fn a_flow_that_was_just_pressed_does_not_hold_its_neighbours_back() {
    let text = format!(
        "duration: 300ms\nsystems: [plimsoll]\n{}\n\
         control: {{epoch: 500us, feedback: 2ms, threshold: 50us}}\n\
         backpressure: {{tenants: [gateway], watch: {{tenant: gateway}}, rate: 850Mbps}}\nworkloads:\n  \
         small: {{tenant: mice, kind: udp, size: 658B, rate: 2600Mbps, claims: 1000, to: server, through: gateway}}\n  \
         big: {{tenant: heavy, kind: udp, size: 658B, rate: 5Gbps, to: server, through: gateway, start: 100ms}}",
        tenants("", "").replace("max: 2Gbps", "max: 6Gbps")
    );
    let run = runs(&text).remove(0);
    assert!(run.drops["mice"].is_empty(), "{:?}", run.drops);
    assert!((2_590.0..2_610.0).contains(&mbps(&run, "small", 100, 150)));
    assert!((840.0..860.0).contains(&mbps(&run, "big", 150, 200)));
}
