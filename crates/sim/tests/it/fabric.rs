//! Fabrics: equal ways, links that are not plain, and outer headers.

use crate::support::{assert_holds, first_run, load, outcome, scenario};
use plimsoll_scenario::{Form, Run};
use plimsoll_sim::{Options, run};
use plimsoll_units::Span;

/// A fat tree of 16 hosts carries what its hosts send where all ways are used.
#[test]
fn a_fat_tree_has_the_capacity_of_its_hosts() {
    let scenario = load("examples/fat-tree.yaml", Form::Virtual);
    let outcome = outcome(&scenario, 2);
    assert_holds(&scenario, &outcome);
}

/// Switches and links between hosts `a` and `b`, with two ways of two links each, one of which has links of this delay.
fn fork(delay: &str) -> String {
    format!(
        "switches: [s, up, down, t]
links:
  a: {{between: [a, s], rate: 10Gbps}}
  b: {{between: [t, b], rate: 10Gbps}}
  u1: {{between: [s, up], rate: 10Gbps}}
  u2: {{between: [up, t], rate: 10Gbps}}
  d1: {{between: [s, down], rate: 10Gbps, delay: {delay}}}
  d2: {{between: [down, t], rate: 10Gbps, delay: {delay}}}
"
    )
}

/// Runs of two hosts, each behind a switch of its own, with two ways of two links between them: one of 10 us, one of 400 us.
fn two_ways(workload: &str) -> Vec<Run> {
    let links = fork("200us");
    let text = format!(
        "
name: ways
rate: 10Gbps
duration: 200ms
systems: [plimsoll, sprayed: {{kind: plimsoll, load_balancing: spray}}]
hosts: {{a: {{transmit: {{completions: out_of_order}}}}, b: {{}}}}
{links}tenants: {{x: {{host: a, max: 1Gbps}}, y: {{host: b}}}}
workloads:
  w: {{tenant: x, to: y, {workload}}}
"
    );
    outcome(&scenario(&text), 1).results.runs
}

/// Without a loss TCP sends a segment again only if others have overtaken it.
#[test]
fn no_packet_overtakes_another_of_its_flow_under_ecmp() {
    let runs = two_ways("kind: bulk, flows: 4");
    let lost = |run: &Run| run.drops.values().flat_map(|reasons| reasons.values()).sum::<u64>();
    assert_eq!(lost(&runs[0]), 0, "{:?}", runs[0].drops);
    let again = |run: &Run| run.workloads["w"].retransmits.expect("counted");
    assert_eq!(again(&runs[0]), 0);
    assert!(again(&runs[1]) > lost(&runs[1]) + 100, "{} {}", again(&runs[1]), lost(&runs[1]));
}

/// Flows of one address each take a way of their own, and the same one in each run of the same seed.
#[test]
fn flows_differ_in_their_ways_and_seeds_in_theirs() {
    let links = fork("1ms");
    let slow = |seed: u64| {
        let text = format!(
            "
name: ways
rate: 10Gbps
duration: 100ms
seed: {seed}
systems: [plimsoll]
hosts: [a, b]
{links}repeat: {{c: 20}}
tenants: {{x: {{host: a}}, y: {{host: b}}}}
workloads:
  p<c>: {{tenant: x, to: y, kind: probe, rate: 1000}}
"
        );
        let run = first_run(&text);
        // A round trip is long one way, both ways, or neither way.
        let long = |name: String| run.workloads[&name].samples[0].latency.as_u64() / 2_000_000;
        (1..=20).map(|n| long(format!("p{n}"))).collect::<Vec<_>>()
    };
    let (one, two) = (slow(1), slow(2));
    assert_eq!(one, slow(1));
    assert_ne!(one, two);
    let count = |of: u64| one.iter().chain(&two).filter(|&&long| long == of).count();
    // 40 round trips: 10, 20 and 10 expected; directions are chosen apart.
    assert!(count(0) >= 3 && count(1) >= 10 && count(2) >= 3, "{one:?} {two:?}");
}

/// Three senders with these keys under control, into one receiver of 9 Gb/s: what each one gets, in Gb/s.
fn shares(keys: [&str; 3]) -> [f64; 3] {
    let [one, two, three] = keys;
    let text = format!(
        "
name: weights
rate: 20Gbps
duration: 200ms
systems: [plimsoll]
control: {{epoch: 500us}}
hosts:
  a: {{transmit: {{completions: out_of_order}}}}
  b: {{transmit: {{completions: out_of_order}}}}
  c: {{transmit: {{completions: out_of_order}}}}
  sink: {{receive: {{ring: 1024, cost: 200ns}}}}
switches: [s]
links:
  la: {{between: [a, s], rate: 20Gbps}}
  lb: {{between: [b, s], rate: 20Gbps}}
  lc: {{between: [c, s], rate: 20Gbps}}
  ls: {{between: [s, sink], rate: 20Gbps}}
tenants:
  one: {{host: a, {one}}}
  two: {{host: b, {two}}}
  three: {{host: c, {three}}}
  files: {{host: sink, max: 9Gbps}}
workloads:
  w1: {{tenant: one, to: files, kind: udp, rate: 15Gbps, size: 1458B, buffer: 208KiB}}
  w2: {{tenant: two, to: files, kind: udp, rate: 15Gbps, size: 1458B, buffer: 208KiB}}
  w3: {{tenant: three, to: files, kind: udp, rate: 15Gbps, size: 1458B, buffer: 208KiB}}
measure: {{window: 10ms}}
"
    );
    let run = first_run(&text);
    ["w1", "w2", "w3"].map(|name| {
        let late: u64 = run.workloads[name].delivered.iter().skip(10).take(10).sum();
        late as f64 * 8.0 / 0.1 / 1e9
    })
}

#[test]
fn senders_share_a_receiver_by_the_weights_that_they_state_and_else_by_their_maxima() {
    let near = |got: [f64; 3], want: [f64; 3]| {
        assert!(got.iter().zip(want).all(|(got, want)| (got / want - 1.0).abs() < 0.06), "{got:?} {want:?}");
    };
    near(shares(["weight: 1", "weight: 2", "weight: 3"]), [1.5, 3.0, 4.5]);
    near(
        shares(["weight: 3, max: 5Gbps", "weight: 2, max: 10Gbps", "weight: 1, max: 15Gbps"]),
        [4.5, 3.0, 1.5],
    );
    near(shares(["weight: 1", "weight: 1", "weight: 1"]), [3.0, 3.0, 3.0]);
}

/// `files` has a `max` and no weight, so the fleet's rule by `max` needs one of each sender.
#[test]
fn senders_without_weights_share_by_their_maxima() {
    let got = shares(["max: 5Gbps", "max: 10Gbps", "max: 15Gbps"]);
    let want = [1.5, 3.0, 4.5];
    assert!(got.iter().zip(want).all(|(got, want)| (got / want - 1.0).abs() < 0.06), "{got:?}");
}

/// One tenant's datagrams from a host with a bus, on each system that shapes in software or in the NIC.
#[test]
fn a_bus_delays_and_bounds_what_other_systems_send() {
    let text = |bus: &str, rate: &str| {
        format!(
            "
name: bus
rate: 10Gbps
duration: 100ms
wake: 1us
systems: [htb, sq, ptb, hwrl, locked: {{kind: htb, lock: 100ns}}]
hosts: {{a: {{{bus}}}, b: {{nic: fifo}}}}
links: {{l: {{between: [a, b], rate: 10Gbps}}}}
tenants: {{x: {{host: a, max: 8Gbps}}, y: {{host: b}}}}
workloads:
  w: {{tenant: x, to: y, kind: udp, rate: {rate}, size: 1458B}}
  ask: {{tenant: x, to: y, kind: probe, size: 83B, rate: 500}}
measure: {{from: 10ms}}
"
        )
    };
    let runs = |bus, rate| outcome(&scenario(&text(bus, rate)), 1).results.runs;
    let sent = |run: &Run| run.workloads["w"].bytes.iter().sum::<u64>() as f64 * 8.0 / 0.1 / 1e9;
    let wide = "pcie: {rate: 63Gbps, latency: 900ns}";
    let least = |run: &Run| run.workloads["ask"].samples.iter().map(|sample| sample.latency.as_u64()).min();
    // The lock's times are random.
    for (plain, bus) in runs("", "10Mbps").iter().zip(&runs(wide, "10Mbps")).take(4) {
        // 151 B in one TLP at 63 Gb/s are 20 ns, and the read takes 900 ns.
        let more = least(bus).zip(least(plain)).map(|(bus, plain)| bus.abs_diff(plain + 919));
        assert!(more.is_some_and(|off| off <= 2), "{}: {more:?}", bus.system);
    }
    for run in runs(wide, "9Gbps") {
        assert!((7.8..8.2).contains(&sent(&run)), "{}: {} Gb/s of a `max` of 8", run.system, sent(&run));
    }
    // Four reads of 256 B each 2 us are 4.1 Gb/s.
    for run in runs("pcie: {rate: 63Gbps, latency: 2us, outstanding: 4, overhead: 0B}", "9Gbps") {
        assert!((3.7..4.2).contains(&sent(&run)), "{}: {} Gb/s over the bus", run.system, sent(&run));
    }
}

/// What waits for a narrow bus waits in the engine, or in HTB's classes, and not in front of the bus.
#[test]
fn the_policy_divides_a_narrow_bus() {
    let text = "
name: narrow
rate: 40Gbps
duration: 100ms
systems: [plimsoll, htb]
hosts: {a: {pcie: {rate: 16Gbps}}, b: {}}
links: {l: {between: [a, b], rate: 40Gbps}}
tenants: {x: {host: a, weight: 1}, z: {host: a, weight: 3}, q: {host: a, weight: 1}, y: {host: b}}
workloads:
  u: {tenant: x, to: y, kind: udp, rate: 20Gbps, size: 1400B}
  v: {tenant: z, to: y, kind: udp, rate: 20Gbps, size: 1400B}
  p: {tenant: q, to: y, kind: probe, rate: 2000}
";
    for run in outcome(&scenario(text), 1).results.runs {
        let sent = |name: &str| run.workloads[name].bytes.iter().sum::<u64>() as f64;
        let (ratio, rate) = (sent("v") / sent("u"), (sent("u") + sent("v")) * 8.0 / 0.1 / 1e9);
        assert!((2.9..3.1).contains(&ratio), "{}: shares of 1 to {ratio}", run.system);
        assert!((14.2..14.6).contains(&rate), "{}: {rate} Gb/s", run.system);
        let most = run.workloads["p"].samples.iter().map(|sample| sample.latency).max();
        assert!(most < Some(Span::micros(30)), "{}: probes take {most:?}", run.system);
    }
}

#[test]
fn a_bus_before_hardware_with_a_bus_of_its_own_is_refused() {
    let text = "{name: t, rate: 1Gbps, duration: 100ms, systems: [class_fetch], hosts: {a: {pcie: {}}, b: {nic: fifo}}, \
                links: {l: {between: [a, b], rate: 1Gbps}}, tenants: {x: {host: a}, y: {host: b}}, \
                workloads: {w: {tenant: x, to: y, kind: bulk}}}";
    let refusal = run(&scenario(text), &Options::default(), &|_| {}).expect_err("two models of one bus");
    assert!(refusal.to_string().contains("host `a` has `pcie`, and system `class_fetch`"), "{refusal}");
}

#[test]
fn four_hundred_gigabits_of_ordinary_frames_run() {
    let text = "
name: fast
rate: 400Gbps
duration: 100ms
systems: [plimsoll]
hosts: {a: {}, b: {nic: fifo}}
links: {l: {between: [a, b], rate: 400Gbps}}
tenants: {x: {host: a, min: 100Gbps}, z: {host: a}, y: {host: b}}
workloads:
  w: {tenant: x, to: y, kind: udp, rate: 30Gbps, size: 1458B}
";
    let run = first_run(text);
    let sent = run.workloads["w"].bytes.iter().sum::<u64>() as f64 * 8.0 / 0.1 / 1e9;
    assert!((29.9..30.1).contains(&sent), "{sent}");
}

/// A bottleneck of 100 Mb/s with these keys: four flows, and a probe beside them. The round trip is 20 ms.
fn bottleneck(keys: &str, tcp: &str) -> Run {
    let text = format!(
        "
name: aqm
rate: 1Gbps
duration: 20s
systems: [fifo]
hosts: {{a: {{}}, b: {{}}}}
switches: [s, t]
links:
  a: {{between: [a, s], rate: 1Gbps}}
  m: {{from: s, to: t, rate: 100Mbps, delay: 10ms, queue: 1MB, {keys}}}
  n: {{from: t, to: s, rate: 100Mbps, delay: 10ms}}
  b: {{between: [t, b], rate: 1Gbps}}
tenants: {{x: {{host: a, {tcp}}}, y: {{host: b}}}}
workloads:
  w: {{tenant: x, to: y, kind: bulk, flows: 4}}
  ask: {{tenant: x, to: y, kind: probe, rate: 100}}
"
    );
    first_run(&text)
}

/// The median and the 95th percentile of the queue's delay in milliseconds, and the bottleneck's use.
fn queue(run: &Run) -> (f64, f64, f64) {
    let samples = &run.workloads["ask"].samples;
    let mut waits: Vec<f64> =
        samples.iter().skip(500).map(|sample| sample.latency.as_secs_f64() * 1e3 - 20.0).collect();
    waits.sort_by(f64::total_cmp);
    let windows = &run.workloads["w"].delivered;
    let late: u64 = windows.iter().skip(windows.len() / 4).sum();
    let used = late as f64 * 8.0 / (20.0 * 0.75) / 1e8;
    (waits[waits.len() / 2], waits[waits.len() * 95 / 100], used)
}

#[test]
fn queue_management_holds_its_target_with_four_flows() {
    let full = queue(&bottleneck("", "tcp_ecn: 2"));
    assert!(full.0 > 40.0, "a queue of 80 ms stands: {full:?}");
    let codel = queue(&bottleneck("aqm: codel", "tcp_ecn: 2"));
    assert!((1.0..8.0).contains(&codel.0) && codel.2 > 0.85, "CoDel's 5 ms: {codel:?}");
    let pie = queue(&bottleneck("aqm: pie", "tcp_ecn: 2"));
    assert!((8.0..22.0).contains(&pie.0) && pie.2 > 0.9, "PIE's 15 ms: {pie:?}");
    // 125 kB are 10 ms, and 375 kB are 30.
    let red = queue(&bottleneck("aqm: {red: {min: 125kB, max: 375kB, probability: 0.1%}}", "tcp_ecn: 2"));
    assert!((10.0..30.0).contains(&red.0) && red.2 > 0.95, "between RED's thresholds: {red:?}");
}

#[test]
fn a_run_says_where_queue_management_has_no_queue() {
    for (system, from, keeper) in [
        ("fifo", "a", None),
        ("plimsoll", "a", Some("engine")),
        ("htb", "a", Some("limiter")),
        ("plimsoll", "s", None),
    ] {
        let keys = |end: &str| if end == from { ", aqm: codel" } else { "" };
        let text = format!(
            "
name: idle
rate: 100Mbps
duration: 100ms
systems: [{system}]
live: false
hosts: [a, b]
switches: [s]
links:
  m: {{from: a, to: s, rate: 100Mbps{}}}
  n: {{from: s, to: b, rate: 100Mbps{}}}
  k: {{from: b, to: s, rate: 100Mbps}}
  l: {{from: s, to: a, rate: 100Mbps}}
tenants: {{x: {{host: a}}, y: {{host: b}}}}
workloads: {{w: {{tenant: x, to: y, kind: bulk}}}}
",
            keys("a"),
            keys("s")
        );
        let notes = first_run(&text).notes;
        let said = notes.iter().find(|note| note.contains("`aqm` of link"));
        match keeper {
            None => assert_eq!(said, None, "{system}, at {from}"),
            Some(keeper) => {
                let said = said.unwrap_or_else(|| panic!("{system}: {notes:?}"));
                assert!(said.contains("link `m`") && said.contains("`a`") && said.contains(keeper), "{said}");
            }
        }
    }
}

#[test]
fn capable_flows_are_marked_and_lose_nothing() {
    // RED's average of a slow start passes `max`, from where capable packets are dropped as well.
    let red = "aqm: {red: {min: 250kB, max: 750kB}}";
    for (aqm, part) in [("aqm: codel", 10), ("aqm: pie", 10), (red, 2)] {
        let (plain, capable) = (bottleneck(aqm, "tcp_ecn: 2"), bottleneck(aqm, "tcp_ecn: 1"));
        let early = |run: &Run| run.drops["x"].get("dropped early").copied().unwrap_or_default();
        assert!(early(&plain) > 20, "{aqm}: {:?}", plain.drops);
        assert!(early(&capable) * part < early(&plain), "{aqm}: {:?}", capable.drops);
        assert!(capable.workloads["w"].marks > Some(20) && plain.workloads["w"].marks == Some(0), "{aqm}");
    }
}

/// Datagrams over a link with these keys: the run, of 1 s at 10,000 a second.
fn over(keys: &str, seed: u64) -> Run {
    let text = format!(
        "
name: path
rate: 1Gbps
duration: 1s
seed: {seed}
systems: [plimsoll]
hosts: {{a: {{transmit: {{completions: out_of_order}}}}, b: {{}}}}
links:
  l: {{from: a, to: b, rate: 1Gbps, delay: 1ms, {keys}}}
  k: {{from: b, to: a, rate: 1Gbps, delay: 1ms}}
tenants: {{x: {{host: a}}, y: {{host: b}}}}
workloads:
  w: {{tenant: x, to: y, kind: udp, rate: 10kpps, size: 1000B}}
  ask: {{tenant: x, to: y, kind: probe, rate: 500}}
  t: {{tenant: x, to: y, kind: request_response, rate: 100, request: 100kB}}
"
    );
    first_run(&text)
}

#[test]
fn paths_lose_delay_and_reorder_by_their_statistics() {
    for seed in 1..=3 {
        let plain = over("jitter: 0s", seed);
        let ask = |run: &Run| {
            let all = &run.workloads["ask"].samples;
            let mean = all.iter().map(|sample| sample.latency.as_secs_f64()).sum::<f64>() / all.len() as f64;
            let most = all.iter().map(|sample| sample.latency.as_secs_f64()).fold(0.0, f64::max);
            (mean * 1e6, most * 1e6)
        };
        let jitter = over("jitter: 200us", seed);
        let ((mean, _), (late, most)) = (ask(&plain), ask(&jitter));
        // A mean of 100 us where packets are apart; a little more, as none overtakes another.
        assert!((95.0..175.0).contains(&(late - mean)) && most < mean + 230.0, "{mean} {late} {most}");
        let again = |run: &Run| run.workloads["t"].retransmits.expect("counted");
        let reordered = over("reorder: {part: 10%, late: 2ms}", seed);
        assert_eq!((again(&plain), again(&jitter)), (0, 0), "{:?}", plain.drops);
        // A tenth of the probes is late by 1 ms on average.
        let late = ask(&reordered).0 - mean;
        assert!((45.0..165.0).contains(&late) && again(&reordered) > 0, "{late} {}", again(&reordered));
        // A burst begins with 1 % and ends with 10 % at each packet: 9.1 % of 10,000 and more are lost.
        let burst = over("burst_loss: {enter: 1%, leave: 10%}", seed);
        let lost = burst.drops["x"]["lost on a link"] as f64;
        let sent = burst.workloads["w"].packets as f64 + lost;
        assert!((0.05..0.14).contains(&(lost / sent)), "{lost} of {sent}");
    }
}

/// 1,450 B of IP, an Ethernet header of 14 B and 50 B of Geneve fill 1,514 B on the wire.
#[test]
fn an_overlays_headers_take_their_part_of_every_link_and_limit() {
    let goodput = |overlay: &str, max: &str| {
        let text = format!(
            "
name: overlay
rate: 10Gbps
duration: 100ms
systems: [plimsoll]
{overlay}
hosts: {{a: {{transmit: {{completions: out_of_order}}}}, b: {{}}}}
switches: [s]
links:
  a: {{between: [a, s], rate: 10Gbps}}
  b: {{between: [s, b], rate: 10Gbps}}
tenants: {{x: {{host: a{max}}}, y: {{host: b}}}}
workloads:
  w: {{tenant: x, to: y, kind: bulk, flows: 4}}
measure: {{window: 10ms}}
"
        );
        let run = first_run(&text);
        assert!(!run.drops["x"].contains_key("queue full"), "more than its link carries: {:?}", run.drops);
        run.workloads["w"].delivered.iter().skip(5).take(5).sum::<u64>() as f64 * 8.0 / 0.05 / 1e9
    };
    let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 0.005, "{got} {want}");
    near(goodput("overlay: none", ""), 10.0);
    near(goodput("overlay: geneve", ""), 10.0 * 1464.0 / 1514.0);
    near(goodput("overlay: vxlan", ", max: 4Gbps"), 4.0 * 1464.0 / 1514.0);
}
