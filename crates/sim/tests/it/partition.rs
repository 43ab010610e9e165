//! A SmartNIC's cores, its coprocessor and its cache, against what can be worked out by hand.

use crate::support::{assert_holds, outcome, scenario};

/// Runs a scenario of one source and one SmartNIC, with this partition and these workloads, and asserts what it expects.
fn holds(receive: &str, partition: &str, workloads: &str, expect: &str) {
    let text = format!(
        "
name: smartnic
rate: 25Gbps
duration: 100ms
systems:
  - plimsoll
  - open: {{kind: plimsoll, ingress: shared, limiter: false, stripes: false}}
hosts:
  source: {{nic: fifo}}
  nic: {{receive: {receive}, partition: {partition}}}
links:
  l: {{between: [source, nic], rate: 25Gbps}}
tenants: {{from: {{host: source}}, a: {{host: nic}}, b: {{host: nic, weight: 3}}}}
workloads:
{workloads}
measure: {{window: 1ms, from: 10ms, ingress: true}}
expect:
{expect}"
    );
    let scenario = scenario(&text);
    assert_holds(&scenario, &outcome(&scenario, 1));
}

#[test]
fn a_core_for_each_of_many_and_a_pool_for_each_tenant() {
    holds(
        "{cost: 1us, ring: 64, slots: 64}",
        "{cores: {a: 4, b: 1}}",
        "  wa: {tenant: from, to: a, kind: udp, rate: 5Mpps, size: 58B}
  wb: {tenant: from, to: b, kind: udp, rate: 5Mpps, size: 58B}",
        // 100 bytes in 1 us are 0.8 Gb/s of a core. In one pool the core of b decides for both.
        "  - plimsoll.wa.goodput ~ 3.2Gbps +- 0.2%
  - plimsoll.wb.goodput ~ 0.8Gbps +- 0.2%
  - open.wa.goodput ~ 0.8Gbps +- 2%
  - open.wb.goodput ~ 0.8Gbps +- 0.2%
  - plimsoll.nic.load ~ 5 +- 0.1%
",
    );
}

#[test]
fn a_call_takes_as_long_as_its_bytes_and_waits_for_those_before_it() {
    holds(
        "{cost: 100ns}",
        // 1,000 bytes at 8 Gb/s take 1 us, and a request 500 ns more.
        "{cores: {a: 4, b: 1}, coprocessor: {time: 500ns, rate: 8Gbps, calls: {a: 1000B}}}",
        "  one: {tenant: from, to: a, kind: udp, rate: 100kpps, size: 58B, stop: 50ms}
  all: {tenant: from, to: a, kind: udp, rate: 5Mpps, size: 58B, start: 50ms}
  no:  {tenant: from, to: b, kind: udp, rate: 100kpps, size: 58B}",
        "  - plimsoll.one.call_p0[10ms..50ms] ~ 1.5us +- 0.1%
  - plimsoll.one.call_p100[10ms..50ms] ~ 1.5us +- 0.1%
  - open.all.call_p50[60ms..100ms] ~ 5.9us +- 0.1%
  - plimsoll.all.call_p50[60ms..100ms] ~ 5.9us +- 0.1%
  - plimsoll.no.ingress_p100[60ms..100ms] <= 0us
",
    );
}

#[test]
fn the_limiter_divides_a_unit_by_weight_and_splits_what_is_too_long() {
    holds(
        "{cost: 100ns}",
        "{cores: {a: 8, b: 8}, coprocessor: {rate: 80Gbps, calls: {a: 64KiB, b: 1KiB}, quantum: 8KiB, longest: 2}}",
        "  wa: {tenant: from, to: a, kind: udp, rate: 10Mpps, size: 58B}
  wb: {tenant: from, to: b, kind: udp, rate: 10Mpps, size: 58B}",
        // A packet of 100 bytes stands for 1 KiB, and for 64 KiB: b's weight is 3.
        "  - 3 * 64 * plimsoll.wa.goodput ~ plimsoll.wb.goodput +- 5%
  - plimsoll.wb.goodput ~ 0.75 * 80Gbps * 100 / 1024 +- 2%
  - 64 * open.wa.goodput >= 10 * open.wb.goodput
",
    );
}

#[test]
fn each_line_that_is_not_in_the_cache_takes_a_miss() {
    holds(
        "{cost: 100ns}",
        // 20 lines of a memory twice as large as the cache are always misses, 1.2 us; one of 64 KiB is in the cache soon.
        "{cores: {a: 8, b: 2}, cache: {programs: {a: {memory: 8MiB, lines: 20, access: in_turn}, b: {memory: 64KiB, lines: 20}}}}",
        "  wa: {tenant: from, to: a, kind: udp, rate: 8Mpps, size: 58B}
  wb: {tenant: from, to: b, kind: udp, rate: 4Mpps, size: 58B}",
        // 100 bytes in 1.3 us on each of eight cores.
        "  - plimsoll.wa.goodput ~ 8 * 800 / 1300 * 1Gbps +- 0.2%
  - plimsoll.wb.goodput ~ 3.2Gbps +- 0.2%
",
    );
}

#[test]
fn programs_with_more_cores_than_colours_are_refused() {
    let text = "
name: colours
rate: 25Gbps
duration: 100ms
systems: [plimsoll]
hosts:
  source: {nic: fifo}
  nic: {receive: {cost: 1us}, partition: {cores: {a: 17}, cache: {programs: {a: {memory: 1MiB}}}}}
links:
  l: {between: [source, nic], rate: 25Gbps}
tenants: {from: {host: source}, a: {host: nic}}
workloads:
  w: {tenant: from, to: a, kind: udp, rate: 1Gbps}
";
    let ran = plimsoll_sim::run(&scenario(text), &plimsoll_sim::Options::default(), &|_| {});
    let refused = ran.expect_err("17 cores and 16 colours").to_string();
    assert!(refused.contains("the cache has too few colours left for the cores of tenant `a`"), "{refused}");
}
