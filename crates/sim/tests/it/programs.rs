//! Tenants' programs in virtual time: what they decide is done, and what their instructions take is their tenant's time.

use std::path::Path;

use plimsoll_scenario::{Form, ModuleFile, Run, Scenario, Status, json, judge};
use plimsoll_sim::{Options, run};
use proptest::prelude::*;

use crate::support::modules::{DROP, ENDLESS, MULTIPLY, REFLECT, RESIZE, compiled, count_down, each, with};
use crate::support::{assert_holds, outcome, scenario};

/// Two hosts on a switch; the tenant `bad` of host `a` has the program `p.wasm`, and what `more` says of it.
fn world(hosts: &str, more: &str, workloads: &str) -> String {
    format!(
        "{{name: programs, rate: 10Gbps, duration: 200ms, systems: [{{plimsoll: {{control: off}}}}],
        hosts: {{{hosts}}}, switches: [switch],
        links: {{wire: {{between: [a, switch], rate: 10Gbps}}, far: {{between: [b, switch], rate: 10Gbps}}}},
        tenants: {{
            bad: {{host: a, program: {{module: p.wasm{more}}}}}, calm: {{host: a}}, attacker: {{host: b}}, far: {{host: b}}}},
        workloads: {{{workloads}}}}}"
    )
}

const HOSTS: &str = "a: {}, b: {}";
const FLOOD: &str = "flood: {tenant: attacker, to: bad, kind: udp, size: 1000B, rate: 100kpps}";

fn ran(text: &str, program: &str) -> Run {
    outcome(&with(scenario(text), &[("p.wasm", program)]), 1).results.runs.remove(0)
}

fn dropped(run: &Run, tenant: &str, why: &str) -> u64 {
    run.drops.get(tenant).and_then(|drops| drops.get(why)).copied().unwrap_or_default()
}

fn delivered(run: &Run, workload: &str) -> u64 {
    run.workloads[workload].delivered.iter().sum()
}

#[test]
fn what_a_program_drops_is_counted_and_does_not_arrive() {
    let run = ran(&world(HOSTS, "", FLOOD), &each("ingress", DROP));
    assert_eq!(run.counters["program_packets"], 20_000);
    assert_eq!(dropped(&run, "attacker", "program_dropped"), 20_000);
    assert_eq!(delivered(&run, "flood"), 0);
}

#[test]
fn what_a_program_passes_arrives_as_it_was() {
    let workloads = format!("{FLOOD}, bulk: {{tenant: far, to: bad, kind: bulk}}");
    let run = ran(&world(HOSTS, "", &workloads), &each("ingress", "nop"));
    // The last packet arrives after the end.
    assert_eq!(delivered(&run, "flood"), 19_999 * 1_042);
    assert!(delivered(&run, "bulk") > 50_000_000, "{}", delivered(&run, "bulk"));
    assert_eq!((run.workloads["bulk"].changed, run.workloads["flood"].changed), (Some(0), Some(0)));
    assert!(run.drops.values().flatten().all(|(why, _)| !why.starts_with("program")), "{:?}", run.drops);
}

#[test]
fn a_packet_that_a_program_resizes_is_scheduled_and_arrives_with_that_size() {
    let out = "out: {tenant: bad, to: far, kind: udp, size: 1000B, rate: 100kpps}";
    let run = ran(&world(HOSTS, "", out), &each("egress", RESIZE));
    let bytes: u64 = run.workloads["out"].bytes.iter().sum();
    assert_eq!((run.workloads["out"].packets, bytes), (20_000, 20_000 * 256));
    assert_eq!(delivered(&run, "out"), 19_999 * 256, "the last one arrives after the end");
}

#[test]
fn what_a_program_adds_within_its_limit_is_sent() {
    let out = "out: {tenant: bad, to: far, kind: udp, size: 500B, rate: 100kpps}";
    let run = ran(&world(HOSTS, ", amplification: 3", out), MULTIPLY);
    assert_eq!((run.workloads["out"].packets, dropped(&run, "bad", "program_no_room")), (3 * 20_000, 0));
    let tcp = "out: {tenant: bad, to: far, kind: bulk}";
    let run = ran(&world(HOSTS, ", amplification: 2", tcp), MULTIPLY);
    assert!(dropped(&run, "bad", "program_not_modelled") > 1_000, "{:?}", run.drops);
    assert!(delivered(&run, "out") > 10_000_000, "the segments themselves pass");
}

#[test]
fn a_program_answers_in_its_tenants_place() {
    let probe = "ping: {tenant: far, to: bad, kind: probe, rate: 10000}";
    let run = ran(&world(HOSTS, "", probe), &each("ingress", REFLECT));
    let ping = &run.workloads["ping"];
    assert_eq!(ping.errors, 0);
    assert_eq!(run.counters["program_packets"], ping.samples.len() as u64);
    assert_eq!(run.counters["program_faults"], 0);
}

#[test]
fn what_a_program_sends_in_anothers_name_is_lost() {
    let run = ran(
        &world(HOSTS, "", FLOOD),
        &each("ingress", "(i32.store16 offset=16 (local.get $packet) (i32.const 2))"),
    );
    assert_eq!(dropped(&run, "attacker", "foreign_source"), 20_000);
    let port = "(i32.store16 offset=16 (local.get $packet) (i32.const 0x0702))";
    let run = ran(&world(HOSTS, "", FLOOD), &each("ingress", port));
    assert_eq!(dropped(&run, "attacker", "program_no_port"), 20_000);
    let address = "(i32.store offset=26 (local.get $frame) (i32.const 7))";
    let run = ran(&world(HOSTS, "", FLOOD), &each("ingress", address));
    assert_eq!(dropped(&run, "attacker", "program_not_modelled"), 20_000);
}

/// A packet costs what its instructions cost: a core at 1 GHz with two cycles for each runs 500 million a second.
#[test]
fn a_program_gets_as_many_packets_as_its_instructions_allow() {
    let hosts = "a: {programs: {frequency: 1GHz, cycles_per_instruction: 2}}, b: {}";
    let run =
        ran(&world(hosts, "", &FLOOD.replace("100kpps", "1Mpps")), &each("ingress", &count_down(1_000)));
    let packets = run.counters["program_packets"] as f64;
    let each = run.counters["program_instructions"] as f64 / packets;
    assert!((6_000.0..6_100.0).contains(&each), "{each} instructions a packet");
    let rate = packets / 0.2;
    let expected = 500e6 / each;
    assert!((rate / expected - 1.0).abs() < 0.02, "{rate} packets a second, and {expected} were expected");
    let passed = delivered(&run, "flood") as f64 / 1_042.0;
    assert!((passed / packets - 1.0).abs() < 0.02, "{passed} of {packets} arrive");
    assert!(dropped(&run, "attacker", "ingress_full") > 100_000, "{:?}", run.drops);
}

const BESIDE: &str = "flood: {tenant: attacker, to: bad, kind: udp, size: 64B, rate: 1Mpps},
    bulk: {tenant: far, to: calm, kind: udp, size: 1400B, rate: 4Gbps},
    ping: {tenant: far, to: calm, kind: probe, rate: 5000}";
const SLOW: &str = "a: {receive: {drain: 50ns, cost: 500ns}}, b: {}";

/// The neighbour's throughput, and the 99th percentile of its round trips in nanoseconds.
fn neighbour(run: &Run) -> (f64, f64) {
    let mut times: Vec<u64> =
        run.workloads["ping"].samples.iter().map(|ping| ping.latency.as_u64()).collect();
    times.sort_unstable();
    (delivered(run, "bulk") as f64, times[times.len() * 99 / 100] as f64)
}

#[test]
fn an_endless_loop_is_halted_and_its_neighbour_hardly_feels_it() {
    let text = world(SLOW, "", BESIDE);
    let without = text.replace("program: {module: p.wasm}", "weight: 1");
    let without = neighbour(&ran(&without, "(module)"));
    let run = ran(&text, &each("ingress", ENDLESS));
    let with = neighbour(&run);
    assert_eq!((run.counters["program_overruns"], run.counters["programs_halted"]), (4, 1));
    assert!(dropped(&run, "attacker", "program_over_time") >= 4);
    assert!(dropped(&run, "attacker", "program_halted") > 10_000, "{:?}", run.drops);
    assert!((with.0 / without.0 - 1.0).abs() < 0.02, "{with:?} beside it, and {without:?} without");
    assert!(with.1 < 1.2 * without.1, "{with:?} beside it, and {without:?} without");

    let run = ran(&world(SLOW, ", fails: open", BESIDE), &each("ingress", ENDLESS));
    assert_eq!(dropped(&run, "attacker", "program_halted"), 0);
    assert!(delivered(&run, "flood") > 10_000_000, "what it would see passes without it");
}

/// A program that is slow, but not too slow, has its tenant's share of the core and no more.
#[test]
fn a_slow_program_delays_its_own_tenant_only() {
    let text = world(SLOW, "", BESIDE);
    let without = neighbour(&ran(&text.replace("program: {module: p.wasm}", "weight: 1"), "(module)"));
    let run = ran(&text, &each("ingress", &count_down(10_000)));
    let with = neighbour(&run);
    assert_eq!(run.counters["program_overruns"], 0);
    assert!((with.0 / without.0 - 1.0).abs() < 0.02, "{with:?} beside it, and {without:?} without");
    // A call takes as much as 50 us; others wait for one at a time.
    assert!(with.1 < without.1 + 2.0 * 60_000.0, "{with:?} beside it, and {without:?} without");
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let text = world(SLOW, "", &format!("{BESIDE}, tcp: {{tenant: far, to: bad, kind: bulk, flows: 3}}"));
    let report = |threads: usize, seed| {
        let scenario: Scenario = with(scenario(&text), &[("p.wasm", &each("ingress", &count_down(300)))]);
        let options =
            Options { threads: std::num::NonZeroUsize::new(threads), seed: Some(seed), ..Options::default() };
        let results = run(&scenario, &options, &|_| {}).expect("it runs").results;
        json(&scenario, &results, &judge(&scenario, &results)).to_string()
    };
    let first = report(1, 1);
    assert!(first == report(2, 1), "the machine changes nothing");
    assert!(first != report(1, 2), "the seed does");
}

#[test]
fn a_module_that_a_daemon_would_refuse_is_refused() {
    let text = world(HOSTS, "", FLOOD);
    let refused =
        |scenario: &Scenario| run(scenario, &Options::default(), &|_| {}).expect_err("refused").to_string();
    assert!(refused(&scenario(&text)).contains("p.wasm was not read"));
    let import = r#"(module (import "env" "clock" (func)) (memory (export "memory") 1))"#;
    let said = refused(&with(scenario(&text), &[("p.wasm", import)]));
    assert!(said.contains("tenant `bad`: program p.wasm:") && said.contains("byte"), "{said}");
    let said = refused(&with(
        scenario(&world(HOSTS, ", cpu: {cores: [3]}", FLOOD)),
        &[("p.wasm", &each("ingress", DROP))],
    ));
    assert!(said.contains("a core of its own"), "{said}");
}

/// Writes what looks random, from a seed, where its host reads it: verdict and port, and now and then another length or address.
fn random(seed: u32) -> String {
    format!(
        "(local.set $n (i32.mul (i32.xor (i32.rotl (i32.load offset=46 (local.get $frame)) (i32.const 8)) (i32.const {seed})) (i32.const 0x9e3779b1)))
        (local.set $n (i32.xor (local.get $n) (i32.shr_u (local.get $n) (i32.const 15))))
        (i32.store16 offset=16 (local.get $packet) (i32.and (local.get $n) (i32.const 0x0103)))
        (if (i32.eqz (i32.and (local.get $n) (i32.const 0x70000))) (then
            (i32.store offset=4 (local.get $packet) (i32.and (local.get $n) (i32.const 0x7ff)))))
        (if (i32.eqz (i32.and (local.get $n) (i32.const 0x380000))) (then {REFLECT}))
        (if (i32.eqz (i32.and (local.get $n) (i32.const 0x3c00000))) (then {RESIZE}))"
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever a program decides, each packet arrives, or is counted with a reason: the run itself asserts that.
    #[test]
    fn no_packet_is_lost_uncounted(
        seed in any::<u32>(),
        ingress in any::<bool>(),
        reverse in any::<bool>(),
        apart in any::<bool>(),
    ) {
        let way = if ingress { "ingress" } else { "egress" };
        let workloads = format!(
            "{FLOOD}, out: {{tenant: bad, to: far, kind: udp, size: 500B, rate: 50kpps}},
            inside: {{tenant: calm, to: bad, kind: probe, rate: 2000}}, tcp: {{tenant: bad, to: calm, kind: bulk}},
            away: {{tenant: bad, to: far, kind: bulk, reverse: {reverse}}}"
        );
        let cores = "a: {receive: {cost: 300ns}, partition: {cores: {bad: 2, calm: 1}}}, b: {}";
        let hosts = if apart { cores } else { HOSTS };
        let more = ", amplification: 2, units: {deflate: 2, aes: 1}";
        let text = world(hosts, more, &workloads).replace("200ms", "100ms");
        let run = ran(&text, &each(way, &random(seed)));
        prop_assert!(run.counters["program_packets"] > 100);
        prop_assert!(run.counters["program_to_units"] > 10);
    }
}

/// A daemon that ends loses what waits for a program, and the next one starts the program anew; guests get their buffers back.
#[test]
fn a_restart_starts_programs_anew() {
    let hosts = "a: {receive: {cost: 300ns}, transmit: {completions: in_order}}, b: {}";
    let more = ", state: drop}, descriptors: 64";
    let workloads = format!("{FLOOD}, up: {{tenant: bad, to: far, kind: bulk, flows: 4}}");
    let text = world(hosts, more, &workloads).replace("64}}", "64}");
    let text =
        text.replacen("workloads:", "faults: {restart: [{host: a, at: 100ms, gap: 5ms}]}, workloads:", 1);
    let looks_both_ways = each("egress", "nop").replace(
        "(func $each",
        "(func (export \"ingress\") (param $batch i32) (result i32) (i32.load offset=8 (local.get $batch))) (func $each",
    );
    let run = ran(&text.replace("200ms", "400ms"), &looks_both_ways);
    let after: u64 = run.workloads["up"].bytes[6..].iter().sum();
    assert!(after > 10_000_000, "{after} bytes after the restart");
    assert!(dropped(&run, "bad", "daemon_down") > 0, "{:?}", run.drops);
    assert!(run.counters["program_packets"] > 20_000, "{:?}", run.counters);
}

/// A tenant's cores begin no turn whose packets find no descriptor, also while those of a turn that ended are being sent.
#[test]
fn cores_of_one_tenant_send_no_more_than_it_has_descriptors_for() {
    let hosts = "a: {receive: {cost: 300ns}, partition: {cores: {bad: 3, calm: 1}}}, b: {}";
    let more = "}, descriptors: 16, max: 100Mbps";
    let out = "out: {tenant: bad, to: far, kind: bulk, flows: 16}, udp: {tenant: bad, to: far, kind: udp, size: 100B, rate: 50kpps}";
    let text = world(hosts, more, out).replace("100Mbps}}", "100Mbps}");
    let run = ran(&text, &each("egress", "nop"));
    assert!(run.workloads["out"].packets > 1_000, "{}", run.workloads["out"].packets);
    assert_eq!(dropped(&run, "bad", "program_no_room"), 0);
}

/// An instruction that fills memory is no cheaper than the loop that it stands for.
#[test]
fn filling_memory_takes_time() {
    let fill = "(memory.fill (i32.const 0) (i32.const 7) (i32.const 65536))";
    let run = ran(&world(HOSTS, "", FLOOD), &each("ingress", fill));
    let instructions = run.counters["program_instructions"] / run.counters["program_packets"];
    assert!(instructions > 65_536 / 64, "{instructions} instructions for 64 KiB");
}

/// A scenario of `examples/`, changed by `change`.
fn example(file: &str, change: impl FnOnce(&str) -> String) -> Scenario {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(file);
    let text = std::fs::read_to_string(&file).expect("the example");
    let folder = file.parent().expect("its folder");
    let read = Scenario::parse(&change(&text), &file.to_string_lossy(), folder, Form::Virtual);
    read.unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

/// The example of hostile programs, with the programs that it names, compiled from these sources.
fn hostile(change: impl FnOnce(&str) -> String) -> Scenario {
    with_hostile(example("programs/virtual.yaml", change))
}

/// An example with its modules, as `make` would compile them.
fn with_hostile(mut scenario: Scenario) -> Scenario {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/programs");
    for source in HOSTILE {
        let name = source.rsplit('/').next().unwrap_or(source);
        let path = root.join(format!("../../target/programs/{name}.wasm"));
        let file = ModuleFile { bytes: compiled(source).into(), ..ModuleFile::default() };
        scenario.modules.insert(path, file);
    }
    scenario
}

const HOSTILE: [&str; 7] = [
    "hostile/endless",
    "hostile/trap",
    "hostile/greedy",
    "hostile/many",
    "hostile/forger",
    "reflector",
    "resizer",
];

/// What the example expects holds, and does not on a core that is too slow for its programs.
#[test]
fn the_example_holds_and_can_fail() {
    let scenario = hostile(str::to_owned);
    assert_holds(&scenario, &outcome(&scenario, 2));
    // At 300 kHz a call that answers takes longer than a call may.
    let slow = hostile(|text| text.replace("frequency: 3GHz", "frequency: 300kHz"));
    let options = Options { systems: vec!["reflector".to_owned()], ..Options::default() };
    let results = run(&slow, &options, &|_| {}).unwrap_or_else(|error| panic!("{error}")).results;
    let verdicts = judge(&slow, &results);
    assert!(verdicts.iter().any(|verdict| verdict.status == Status::Failed), "{verdicts:?}");
}

/// 64 tenants' programs at once: a neighbour fares as without them.
#[test]
fn a_crowd_of_programs_costs_a_neighbour_nothing() {
    let scenario = with_hostile(example("programs/crowd.yaml", str::to_owned));
    assert_holds(&scenario, &outcome(&scenario, 1));
}

/// FN-E8: a switch and a store beside a thrasher and a compressor fare as alone on their cores; where all share a core they do not.
#[test]
fn programs_on_cores_of_their_own_fare_as_alone() {
    let file = "papers/fairnic/e08-cohabitation.yaml";
    let read = |change: &dyn Fn(&str) -> String| {
        let mut scenario = example(file, change);
        scenario.read_modules().unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        scenario
    };
    let mut apart = read(&str::to_owned);
    assert_holds(&apart, &outcome(&apart, 1));
    // Its modules are text; their sources make the same of it.
    for (path, module) in &mut apart.modules {
        let name = path.file_stem().and_then(|name| name.to_str()?.strip_prefix("e08-"));
        module.bytes = compiled(&format!("cohabitation/{}", name.expect("a program's name"))).into();
    }
    assert_holds(&apart, &outcome(&apart, 1));
    let together = read(&|text| {
        let (before, partition) = text.split_once("    partition:").expect("there is one");
        let (_, after) = partition.split_once("    programs:").expect("there are some");
        format!("{before}    programs:{after}")
    });
    let verdicts = judge(&together, &outcome(&together, 1).results);
    assert!(verdicts.iter().any(|verdict| verdict.status == Status::Failed), "{verdicts:?}");
}
