//! Coprocessors that tenants' programs call, in virtual time, against what can be worked out by hand.

use plimsoll_scenario::{Run, Status, judge};
use plimsoll_sim::{Options, run};

use crate::support::modules::{call, each, with};
use crate::support::{assert_holds, outcome, scenario};

const DEFLATE: u8 = 0;
const INFLATE: u8 = 1;
const SEAL: u8 = 2;
const MATCH: u8 = 4;

/// Three hosts; the tenants `a` and `b` of host `card` have programs that call the unit for each packet, `a` with the module `a.wasm`.
fn world(card: &str, units: [&str; 2], workloads: &str, expect: &str) -> String {
    let [a, b] = units;
    format!(
        "
name: units
rate: 100Gbps
duration: 100ms
systems: [{{plimsoll: {{control: off}}}}, {{open: {{kind: plimsoll, control: off, limiter: false}}}}]
hosts: {{card: {{{card}}}, one: {{nic: fifo}}, two: {{nic: fifo}}}}
switches: [switch]
links:
  c: {{between: [card, switch], rate: 100Gbps}}
  o: {{between: [one, switch], rate: 50Gbps}}
  t: {{between: [two, switch], rate: 50Gbps}}
tenants:
  a:   {{host: card, program: {{module: a.wasm, units: {{{a}}}}}}}
  b:   {{host: card, program: {{module: b.wasm, units: {{{b}}}}}}}
  one: {{host: one}}
  two: {{host: two}}
workloads: {{{workloads}}}
measure: {{window: 1ms, from: 10ms, ingress: true}}
expect:
{expect}"
    )
}

/// Expects what the text says, where the programs do these operations.
fn holds(text: &str, operations: [u8; 2]) {
    let [a, b] = operations.map(|operation| each("ingress", &call(operation)));
    let scenario = with(scenario(text), &[("a.wasm", &a), ("b.wasm", &b)]);
    assert_holds(&scenario, &outcome(&scenario, 2));
}

fn first(text: &str, modules: &[(&str, &str)]) -> Run {
    outcome(&with(scenario(text), modules), 1).results.runs.remove(0)
}

fn dropped(run: &Run, tenant: &str, why: &str) -> u64 {
    run.drops.get(tenant).and_then(|drops| drops.get(why)).copied().unwrap_or_default()
}

/// AES at 8 Gb/s: 1,042 bytes and an argument of 28 take 1,070 ns, so it serves 934,579 packets a second.
const AES: &str = "programs: {units: {aes: {rate: 8Gbps}}}";

#[test]
fn tenants_share_a_saturated_unit_by_weight() {
    let flood = "wa: {tenant: one, to: a, kind: udp, size: 1000B, rate: 1Mpps},
        wb: {tenant: two, to: b, kind: udp, size: 1000B, rate: 1Mpps}";
    // A packet of 1,042 bytes arrives with a tag of 16.
    let expect = "  - plimsoll.wb.goodput ~ 3 * plimsoll.wa.goodput +- 5%
  - plimsoll.wa.goodput + plimsoll.wb.goodput ~ 934.6 * 1058 * 8 * 1kbps +- 1%
  - open.wa.goodput ~ open.wb.goodput +- 5%
";
    holds(&world(AES, ["aes: 1", "aes: 3"], flood, expect), [SEAL; 2]);
}

#[test]
fn requests_of_other_lengths_change_no_share() {
    let flood = "wa: {tenant: one, to: a, kind: udp, size: 1400B, rate: 1Mpps},
        wb: {tenant: two, to: b, kind: udp, size: 200B, rate: 4Mpps}";
    // In bytes of packets and arguments, and 256 for each request: 1,726 and 526. What arrives has 1,458 bytes and 258.
    let expect = "  - plimsoll.wa.goodput * 1726 / 1458 ~ plimsoll.wb.goodput * 526 / 258 +- 5%
";
    holds(&world(AES, ["aes: 1", "aes: 1"], flood, expect), [SEAL; 2]);
}

#[test]
fn calls_take_as_long_as_alone_until_the_unit_is_saturated() {
    // 20 %, 50 % and 90 % of what it serves, and more than that.
    let steps = "low: {tenant: one, to: a, kind: udp, size: 1000B, rate: 187kpps, stop: 20ms},
        half: {tenant: one, to: a, kind: udp, size: 1000B, rate: 467kpps, start: 20ms, stop: 30ms},
        high: {tenant: one, to: a, kind: udp, size: 1000B, rate: 841kpps, start: 30ms, stop: 40ms},
        over: {tenant: one, to: a, kind: udp, size: 1000B, rate: 1100kpps, start: 40ms}";
    let expect = "  - plimsoll.low.call_p99 ~ 1070ns +- 1%
  - plimsoll.half.call_p99 ~ 1070ns +- 1%
  - plimsoll.high.call_p99 <= 1.2 * 1070ns
  - {that: \"plimsoll.over.call_p50[45ms..100ms] >= 60 * 1070ns\", because: 64 of its requests wait}
  - {that: \"plimsoll.over.goodput[45ms..100ms] ~ 934.6 * 1058 * 8 * 1kbps +- 1%\", because: the unit is never idle}
  - {that: \"plimsoll.high.goodput[31ms..39ms] ~ 841 * 1058 * 8 * 1kbps +- 1%\", because: nothing is lost}
";
    holds(&world(AES, ["aes: 1", "aes: 1"], steps, expect), [SEAL; 2]);
}

#[test]
fn more_engines_serve_more_calls() {
    let two = "programs: {units: {aes: {engines: 2, rate: 8Gbps}}}";
    let flood = "wa: {tenant: one, to: a, kind: udp, size: 1000B, rate: 3Mpps}";
    let expect = "  - plimsoll.wa.goodput ~ 2 * 934.6 * 1058 * 8 * 1kbps +- 1%
";
    holds(&world(two, ["aes: 1", "aes: 1"], flood, expect), [SEAL; 2]);
}

/// A tenant that floods the unit, and another one's pings: what they wait for it is one quantum, a small part of their way.
#[test]
fn a_flood_of_one_tenants_calls_hardly_moves_the_others_pings() {
    let fast = "programs: {units: {aes: {rate: 40Gbps}}}";
    let workloads = "ping: {tenant: one, to: a, kind: probe, size: 1000B, rate: 50000},
        flood: {tenant: two, to: b, kind: udp, size: 1400B, rate: 4Mpps, start: 30ms}";
    let expect = "  - plimsoll.ping.p99[35ms..55ms] <= 1.2 * plimsoll.ping.p99[10ms..25ms]
  - {that: \"plimsoll.ping.call_p99[35ms..55ms] <= 215ns + 3277ns + 300ns\", because: it waits for one quantum at most}
  - plimsoll.ping.errors <= 0
  - plimsoll.two.drops >= 1000
  - open.ping.p99[35ms..55ms] >= 1.2 * open.ping.p99[10ms..25ms]
";
    holds(&world(fast, ["aes: 1", "aes: 1"], workloads, expect), [SEAL; 2]);
}

#[test]
fn the_work_is_real() {
    let out = "out: {tenant: a, to: one, kind: udp, size: 1000B, rate: 100kpps}";
    let text = world("", ["deflate: 1", "deflate: 1"], out, "  - plimsoll.drops >= 0\n");
    let egress = each("egress", &call(DEFLATE));
    let run = first(&text, &[("a.wasm", &egress), ("b.wasm", &egress)]);
    let bytes: u64 = run.workloads["out"].bytes.iter().sum();
    assert_eq!(run.workloads["out"].packets, 10_000);
    assert!((60 * 10_000..100 * 10_000).contains(&bytes), "{bytes} bytes are left of 1,000 zeros each");
    assert_eq!(run.counters["program_to_units"], 10_000);

    // What is no compressed data comes back as it was, with a result that says so: this program drops it then.
    let failed = call(INFLATE).replacen(
        "(else",
        "(else (if (i32.eq (i32.load offset=20 (local.get $packet)) (i32.const -1))
            (then (i32.store8 offset=16 (local.get $packet) (i32.const 1))))",
        1,
    );
    let failed = each("egress", &failed);
    let run = first(&text, &[("a.wasm", &failed), ("b.wasm", &failed)]);
    assert_eq!(dropped(&run, "a", "program_dropped"), 10_000);
}

/// TCP passes a coprocessor that only reads: what comes back unchanged goes on as it was.
#[test]
fn segments_that_come_back_unchanged_go_on() {
    let text = world(
        "",
        ["regex: 1", "regex: 1"],
        "up: {tenant: one, to: a, kind: bulk}",
        "  - plimsoll.up.goodput >= 1Gbps\n",
    );
    // A search for `x`, whose header's checks find the packet as it was.
    let search = format!(
        "(i32.store (i32.const 8) (i32.const 1)) (i32.store8 (i32.const 12) (i32.const 120))
        (if (i32.lt_u (i32.load8_u offset=17 (local.get $packet)) (i32.const 128)) (then {}))",
        call(MATCH)
    );
    let search = each("ingress", &search);
    let scenario = with(scenario(&text), &[("a.wasm", &search), ("b.wasm", &search)]);
    let outcome = outcome(&scenario, 1);
    assert_holds(&scenario, &outcome);
    let run = &outcome.results.runs[0];
    assert!(run.counters["program_to_units"] > 5_000, "{:?}", run.counters);
    assert_eq!(run.workloads["up"].changed, Some(0));
}

#[test]
fn what_a_unit_does_not_take_is_lost_for_a_counted_reason() {
    let flood = "wa: {tenant: one, to: a, kind: udp, size: 1000B, rate: 1Mpps},
        wb: {tenant: two, to: b, kind: udp, size: 1000B, rate: 10kpps}";
    let text = world(AES, ["aes: 1", "deflate: 1"], flood, "  - plimsoll.drops >= 0\n");
    let seal = each("ingress", &call(SEAL));
    let run = first(&text, &[("a.wasm", &seal), ("b.wasm", &seal)]);
    assert!(dropped(&run, "one", "program_unit_full") > 1_000, "{:?}", run.drops);
    assert_eq!(dropped(&run, "two", "program_no_unit"), 1_000, "b may not use it");
    // The argument does not lie in the program's memory.
    let outside = call(SEAL).replace("(i32.const 8)))", "(i32.const -1)))");
    let outside = each("ingress", &outside);
    let run = first(&text, &[("a.wasm", &outside), ("b.wasm", &outside)]);
    assert_eq!(dropped(&run, "two", "program_no_unit"), 1_000);
    assert_eq!(run.counters["program_to_units"], 0);
}

/// Cores of a partition give waiting packets and those that come back to the program in turns.
#[test]
fn units_serve_the_cores_of_a_partition() {
    let card =
        "receive: {cost: 100ns}, partition: {cores: {a: 1, b: 1}}, programs: {units: {aes: {rate: 8Gbps}}}";
    let flood = "wa: {tenant: one, to: a, kind: udp, size: 1000B, rate: 2Mpps},
        wb: {tenant: two, to: b, kind: udp, size: 1000B, rate: 2Mpps}";
    let expect = "  - plimsoll.wb.goodput ~ 3 * plimsoll.wa.goodput +- 5%
  - plimsoll.wa.goodput + plimsoll.wb.goodput ~ 934.6 * 1058 * 8 * 1kbps +- 1%
";
    holds(&world(card, ["aes: 1", "aes: 3"], flood, expect), [SEAL; 2]);
}

/// A daemon that ends loses what its coprocessors have, and the next one begins with empty ones.
#[test]
fn a_restart_begins_with_empty_units() {
    let flood = "wa: {tenant: one, to: a, kind: udp, size: 1000B, rate: 2Mpps}";
    let text = world(
        AES,
        ["aes: 1", "aes: 1"],
        flood,
        "  - \"plimsoll.wa.goodput[40ms..100ms] ~ 934.6 * 1058 * 8 * 1kbps +- 1%\"\n",
    );
    let text =
        text.replacen("workloads:", "faults: {restart: [{host: card, at: 20ms, gap: 5ms}]}\nworkloads:", 1);
    let seal = each("ingress", &call(SEAL));
    let scenario = with(scenario(&text), &[("a.wasm", &seal), ("b.wasm", &seal)]);
    let outcome = outcome(&scenario, 1);
    assert_holds(&scenario, &outcome);
    assert!(dropped(&outcome.results.runs[0], "one", "daemon_down") > 64);
}

/// Whether an expectation fails where the limiter is off: the tests above can fail.
#[test]
fn without_a_limiter_a_flood_is_felt() {
    let fast = "programs: {units: {aes: {rate: 40Gbps}}}";
    let workloads = "ping: {tenant: one, to: a, kind: probe, size: 1000B, rate: 50000},
        flood: {tenant: two, to: b, kind: udp, size: 1400B, rate: 4Mpps, start: 30ms}";
    let expect = "  - open.ping.p99[35ms..55ms] <= 1.2 * open.ping.p99[10ms..25ms]\n";
    let seal = each("ingress", &call(SEAL));
    let scenario = with(
        scenario(&world(fast, ["aes: 1", "aes: 1"], workloads, expect)),
        &[("a.wasm", &seal), ("b.wasm", &seal)],
    );
    let results = run(&scenario, &Options::default(), &|_| {}).expect("it runs").results;
    assert_eq!(judge(&scenario, &results)[0].status, Status::Failed);
}
