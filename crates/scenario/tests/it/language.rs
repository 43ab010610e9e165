//! The language of expectations: which hold, which fail, and that every text is answered.

use std::path::Path;

use plimsoll_document::Trial;
use plimsoll_policy::{Experiment, IngressOrder};
use plimsoll_scenario::{
    Form, Kind, Lateness, Results, Run, SCENARIO, Sample, Scenario, Status, Turns, Verdict, Wiring,
    WorkloadResult, judge, schema,
};
use plimsoll_units::{Nanos, Span};
use proptest::prelude::*;

/// Two systems, two tenants, 2 seconds in windows of 500 ms.
fn scenario(expect: &str) -> Result<Scenario, String> {
    let quoted = expect.replace('\'', "''");
    let text = format!(
        "name: t\nrate: 8Mbps\nduration: 2s\nsystems: [fifo, plimsoll]\ntenants: {{a: {{}}, b: {{}}}}\n\
         workloads:\n  ask: {{tenant: a, kind: probe}}\n  bulk: {{tenant: b, kind: bulk}}\n\
         measure: {{window: 500ms, cpu: true}}\nexpect: ['{quoted}']\n"
    );
    Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full).map_err(|errors| errors.render(false))
}

/// In system `fifo` b sends 100, 200, 300 and 400 kB in its windows, in `plimsoll` always 250 kB. Latencies of a are
/// 1 to 100 ms in `fifo`, a tenth of it in `plimsoll`; pair 1 has the double of pair 0, pair 2 the triple.
fn results(pairs: u32) -> Results {
    let mut results = Results::default();
    for pair in 0..pairs {
        for (system, bytes, unit) in
            [("fifo", [100_000, 200_000, 300_000, 400_000], 1_000), ("plimsoll", [250_000; 4], 100)]
        {
            let sample = |n: u64| Sample {
                at: Nanos::ZERO + Span::millis(20 * (n - 1)),
                latency: Span::micros(n * unit * u64::from(pair + 1)),
            };
            let ask =
                WorkloadResult { samples: (1..=100).map(sample).collect(), errors: 3, ..Default::default() };
            let bulk = WorkloadResult { bytes: bytes.to_vec(), packets: 700, ..Default::default() };
            let mut run =
                Run { system: system.to_owned(), pair, cpu: Some(Span::millis(500)), ..Run::default() };
            run.workloads.extend([("ask".to_owned(), ask), ("bulk".to_owned(), bulk)]);
            run.drops.insert("b".to_owned(), [("flow_full".to_owned(), 7), ("other".to_owned(), 2)].into());
            results.runs.push(run);
        }
    }
    results
}

fn verdict(expect: &str, pairs: u32) -> Verdict {
    let scenario = scenario(expect).unwrap_or_else(|shown| panic!("{expect}\n{shown}"));
    judge(&scenario, &results(pairs)).remove(0)
}

#[test]
fn what_one_seed_of_several_fails_has_failed_with_that_seeds_values() {
    let judged = |expect: &str| {
        let scenario = scenario(expect).unwrap_or_else(|shown| panic!("{expect}\n{shown}"));
        (plimsoll_scenario::judge_seeds(&scenario, &results(3), 7).remove(0), scenario)
    };
    // The medians are 50, 100 and 150 ms: of the three that of the middle one.
    let (verdict, scenario) = judged("fifo.a.p50 <= 120ms");
    assert_eq!(judge(&scenario, &results(3))[0].status, Status::Passed, "the median of the seeds holds");
    assert_eq!((verdict.status, verdict.seed), (Status::Failed, Some(9)));
    assert_eq!(verdict.detail, "150ms <= 120ms with seed 9; 1 of 3 fail");
    let machine = plimsoll_scenario::json(&scenario, &results(3), &[verdict]);
    assert_eq!((&machine["passed"], &machine["expectations"][0]["seed"]), (&false.into(), &9.into()));

    let (verdict, _) = judged("fifo.a.p50 <= 160ms");
    assert_eq!((verdict.status, verdict.seed), (Status::Passed, None));
    assert_eq!(verdict.detail, "100ms <= 160ms", "what every seed meets shows its medians");
    let (verdict, _) = judged("fifo.a.p50 <= 60ms");
    assert_eq!(verdict.detail, "100ms <= 60.0ms with seed 8; 2 of 3 fail");
}

fn holds(expect: &str) {
    let verdict = verdict(expect, 1);
    assert_eq!(verdict.status, Status::Passed, "{expect}: {}", verdict.detail);
}

fn fails(expect: &str) {
    let verdict = verdict(expect, 1);
    assert_eq!(verdict.status, Status::Failed, "{expect}: {}", verdict.detail);
}

#[test]
fn figures_are_those_that_one_works_out_by_hand() {
    // 1 MB in 2 s is 4 Mb/s.
    holds("fifo.b.throughput ~ 4Mbps +- 0.001%");
    holds("fifo.bulk.throughput[0s..1s] ~ 2.4Mbps +- 0.001%");
    // Half of the second window and half of the third: 250 kB in 500 ms.
    holds("fifo.b.throughput[750ms..1250ms] ~ 4Mbps +- 0.001%");
    holds("fifo.throughput ~ line / 2 +- 0.001%");
    holds("fifo.a.p50 ~ 50ms +- 0.001%");
    holds("fifo.a.p99 ~ 99ms +- 0.001%");
    holds("fifo.a.p99.9 ~ 100ms +- 0.001%");
    holds("fifo.ask.latency_max ~ 100ms +- 0.001%");
    holds("fifo.ask.latency_mean ~ 50.5ms +- 0.001%");
    holds("fifo.ask.p90[1s..2s] ~ 95ms +- 0.001%");
    holds("fifo.ask.requests ~ 50 +- 0.001%");
    holds("fifo.ask.samples >= 100");
    holds("fifo.b.drops <= 9");
    fails("fifo.b.drops <= 8");
    holds("fifo.a.drops <= 0");
    holds("fifo.ask.errors <= 3");
    holds("fifo.bulk.packets >= 700");
    holds("fifo.cpu ~ 25% +- 0.001%");
}

#[test]
fn series_are_reduced() {
    holds("max(fifo.b.throughput per 500ms) ~ 6.4Mbps +- 0.001%");
    holds("min(fifo.b.throughput per 500ms) ~ 1.6Mbps +- 0.001%");
    holds("median(fifo.b.throughput per 1s) ~ 4Mbps +- 0.001%");
    // |1.6-4|, |3.2-4|, |4.8-4|, |6.4-4| = 2.4, 0.8, 0.8, 2.4.
    holds("median(fm(fifo.b.throughput per 500ms, plimsoll.b.throughput per 500ms)) ~ 1.6Mbps +- 0.001%");
    holds("p90(abs(fifo.b.throughput per 500ms - 4Mbps)) ~ 2.4Mbps +- 0.001%");
    holds("fraction(fifo.b.throughput per 500ms >= 4.5Mbps) ~ 50% +- 0.001%");
    holds("fraction(fifo.a.p90 per 500ms >= 2.5 * plimsoll.a.p90 per 500ms) >= 100%");
    holds("jain(fifo.b.throughput, plimsoll.b.throughput) ~ 1 +- 0.001%");
    holds("sum(1, 2, 3) ~ 6 +- 0.001%");
    holds("mean(1, 2, 6) ~ 3 +- 0.001%");
}

#[test]
fn arithmetic_follows_school() {
    holds("1 + 2 * 3 ~ 7 +- 0.001%");
    holds("(1 + 2) * 3 ~ 9 +- 0.001%");
    holds("-2 + 5 - 1 ~ 2 +- 0.001%");
    holds("8 / 2 / 2 ~ 2 +- 0.001%");
    holds("10% * line ~ 800kbps +- 0.001%");
    holds("fifo.a.p50 / plimsoll.a.p50 ~ 10 +- 0.001%");
    holds("5Mbps !~ 4Mbps +- 20%");
    fails("5Mbps !~ 4Mbps ± 30%");
    holds("5ms ~ 6ms +- 1ms");
    fails("5ms ~ 6ms +- 0.9ms");
    fails("2 < 2");
    holds("3 > 2");
}

#[test]
fn medians_over_the_pairs_are_compared() {
    // 50, 100 and 150 ms.
    let verdict = verdict("fifo.a.p50 ~ 100ms +- 0.001%", 3);
    assert_eq!(verdict.status, Status::Passed, "{}", verdict.detail);
    assert_eq!(verdict.left, Some(0.1));
}

#[test]
fn what_was_not_measured_fails_and_says_so() {
    let scenario = scenario("plimsoll.ask.p99 <= 5s").expect("reads");
    let mut results = results(1);
    for run in &mut results.runs {
        run.workloads.clear();
    }
    let verdict = judge(&scenario, &results).remove(0);
    assert_eq!(verdict.status, Status::Failed);
    assert!(verdict.detail.contains("nothing was measured"), "{}", verdict.detail);
}

#[test]
fn what_was_never_answered_has_no_latency_and_a_measure_of_its_own() {
    // 100 answers of 1 to 100 ms, and 300 requests that were due after 1 s of 2 s and have none.
    let met = |expectation: &str| {
        let scenario = scenario(expectation).expect("reads");
        let mut results = results(1);
        let ask = results.runs[0].workloads.get_mut("ask").expect("there");
        ask.unanswered = vec![Nanos::ZERO + Span::secs(1); 300];
        let verdict = judge(&scenario, &results).remove(0);
        assert_eq!(verdict.status, Status::Passed, "{}", verdict.detail);
    };
    met("fifo.ask.latency_max ~ 100ms +- 0.001%");
    met("fifo.ask.unanswered ~ 0.75 +- 0.001%");
    let (scenario, mut results) =
        (scenario("fifo.ask.p99 >= 1000 * plimsoll.ask.p99").expect("reads"), results(1));
    let ask = results.runs.iter_mut().find(|run| run.system == "fifo").expect("ran");
    let ask = ask.workloads.get_mut("ask").expect("there");
    ask.unanswered = ask.samples.drain(..).map(|sample| sample.at).collect();
    let verdict = judge(&scenario, &results).remove(0);
    assert_eq!(verdict.status, Status::Passed, "{}", verdict.detail);
    assert!(verdict.detail.starts_with("never >= "), "{}", verdict.detail);
}

#[test]
fn the_short_form_comes_earlier_and_leaves_out_what_it_does_not_run() {
    let text = "
name: t
rate: 8Mbps
duration: 8s
pairs: 5
systems: [fifo, plimsoll]
tenants: {a: {}}
workloads: {w: {tenant: a, kind: bulk, start: 2s, stop: 6s}}
measure: {from: 4s}
expect:
  - plimsoll.a.throughput[2s..4s] >= 1Mbps
  - plimsoll.a.throughput >= fifo.a.throughput
short: {time: 0.25, systems: [plimsoll]}
";
    let short = Scenario::parse(text, "t.yaml", Path::new(""), Form::Short).expect("reads");
    assert_eq!((short.duration, short.pairs, short.systems.len()), (Span::secs(2), 1, 1));
    assert_eq!((short.workloads[0].start, short.workloads[0].stop), (Span::millis(500), Span::millis(1_500)));
    assert_eq!((short.measure.from, short.measure.to), (Span::secs(1), Span::secs(2)));
    assert_eq!(short.expect.len(), 1);
    // 500 ms .. 1 s is the second window of 500 ms: 200 kB, that is 3.2 Mb/s.
    let bytes = WorkloadResult { bytes: vec![0, 200_000, 0, 0], ..Default::default() };
    let mut short = short;
    short.measure.window = Span::millis(500);
    let run =
        Run { system: "plimsoll".into(), workloads: [("w".to_owned(), bytes)].into(), ..Run::default() };
    let verdict = judge(&short, &Results { runs: vec![run], notes: vec![] }).remove(0);
    assert_eq!(verdict.left, Some(3_200_000.0));
}

fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "fifo.a.p99",
            "plimsoll.b.throughput",
            "per",
            "50ms",
            "500ms",
            "[0s..1s]",
            "[",
            "]",
            "..",
            "(",
            ")",
            "max(",
            "median(",
            "fm(",
            "fraction(",
            "jain(",
            ",",
            "+",
            "-",
            "*",
            "/",
            "<=",
            ">=",
            "~",
            "!~",
            "+-",
            "±",
            "8%",
            "line",
            "2.5",
            "5Mbps",
            "1e9",
            "p99.9",
            "fifo.a.p99.9",
            "fifo..a",
            ".",
            "é",
            "=",
            "'",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,6}",
    ];
    prop::collection::vec(word, 0..24).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Any text is answered, and what is accepted can be judged.
    #[test]
    fn any_expectation_is_answered(text in prop_oneof![words(), any::<String>()]) {
        if let Ok(scenario) = scenario(&text) {
            for verdict in judge(&scenario, &results(2)) {
                prop_assert!(!verdict.detail.is_empty());
            }
        }
    }

    /// Any file is answered.
    #[test]
    fn any_file_is_answered(text in any::<String>()) {
        let _ = Scenario::parse(&text, "t.yaml", Path::new(""), Form::Short);
    }

    /// A good file with a piece cut out, doubled or swapped is answered, too.
    #[test]
    fn a_damaged_file_is_answered(from in 0_usize..3_000, len in 0_usize..200, put in "[ -~\n]{0,12}") {
        let good = include_str!("../../../../examples/papers/loom/e06-destination-limit.yaml");
        let boundary = |mut at: usize| { at = at.min(good.len()); while !good.is_char_boundary(at) { at -= 1; } at };
        let (from, to) = (boundary(from), boundary(from + len));
        let text = format!("{}{put}{}", &good[..from], &good[to..]);
        if let Err(errors) = Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full) {
            prop_assert!(!errors.problems().is_empty());
            let _ = errors.render(false);
        }
    }

    /// Deep nesting is refused and not followed to the end of the stack.
    #[test]
    fn deep_nesting_is_refused(depth in 50_usize..5_000) {
        for opening in ["(", "-", "max(", "fraction("] {
            let text = opening.repeat(depth) + "1 <= 2";
            prop_assert!(scenario(&text).is_err());
        }
    }
}

#[test]
fn udp_takes_turns_when_it_is_told_how_long() {
    let kind = |rest: &str| {
        let text = format!(
            "name: t\nrate: 10Mbps\nduration: 1s\nsystems: [fifo]\ntenants: {{a: {{}}}}\n\
             workloads: {{w: {{tenant: a, kind: udp, rate: 1Mbps{rest}}}}}\n"
        );
        let scenario = Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full);
        scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false))).workloads[0].kind.clone()
    };
    let turns = |kind| match kind {
        Kind::Udp { turns, .. } => turns,
        other => panic!("{other:?}"),
    };
    assert_eq!(turns(kind("")), None);
    let half = Span::millis(500);
    assert_eq!(turns(kind(", on: 20ms")), Some(Turns { on: Span::millis(20), off: half }));
    assert_eq!(turns(kind(", off: 2ms")), Some(Turns { on: half, off: Span::millis(2) }));
}

/// In system `fifo` b sends 100, 200, 300 and 400 kB in windows of 500 ms: 1.6, 3.2, 4.8 and 6.4 Mb/s.
#[test]
fn settled_is_the_end_of_the_last_window_in_which_it_does_not_hold() {
    for (expect, seconds) in [
        ("settled(fifo.b.throughput per 500ms >= 4Mbps) <= 1s", 1.0),
        ("settled(fifo.b.throughput per 500ms >= 1Mbps) <= 0s", 0.0),
        ("settled(fifo.b.throughput per 500ms <= 4Mbps) >= 2s", 2.0),
        ("settled(fifo.b.throughput[0.5s..2s] per 500ms ~ 5.6Mbps +- 15%) <= 500ms", 0.5),
    ] {
        let verdict = verdict(expect, 1);
        assert_eq!((verdict.status, verdict.left), (Status::Passed, Some(seconds)), "{expect}");
    }
    let shown = scenario("settled(fifo.b.throughput >= 4Mbps) <= 1s").expect_err("one value");
    assert!(shown.contains("`settled` needs a series"), "{shown}");
}

#[test]
fn what_is_not_measured_is_not_expected() {
    for (expect, key) in [("fifo.b.held <= 5", "held: true"), ("fifo.b.ingress_p99 <= 5us", "ingress: true")]
    {
        let shown = scenario(expect).expect_err("not measured");
        assert!(shown.contains(key), "{shown}");
    }
}

#[test]
fn waits_holdings_and_answers_are_counted_by_window() {
    let text = "name: t\nrate: 8Mbps\nduration: 2s\nsystems: [plimsoll]\ntenants: {a: {}}\n\
                workloads: {ask: {tenant: a, kind: probe}}\n\
                measure: {window: 500ms, held: true, ingress: true}\n\
                expect: [plimsoll.a.held ~ 3 +- 1%, 'plimsoll.a.held[0s..500ms] <= 0', \
                'plimsoll.a.ingress_mean[1s..2s] ~ 20us +- 1%', plimsoll.a.ingress_p99 ~ 30us +- 1%, \
                'plimsoll.ask.answered[1s..2s] ~ 2 +- 1%', 'plimsoll.ask.requests[1s..2s] <= 1', \
                plimsoll.nic_drops ~ 4 +- 1%]\n";
    let scenario = Scenario::parse(text, "t.yaml", Path::new(""), Form::Full);
    let scenario = scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let at = |ms, us| Sample { at: Nanos::ZERO + Span::millis(ms), latency: Span::micros(us) };
    // Four packets, there for half of the time, then eight.
    let held = vec![0, 2_000_000_000, 4_000_000_000, 0];
    let ask = WorkloadResult {
        held,
        waits: vec![at(100, 5), at(1_100, 10), at(1_200, 30)],
        samples: vec![at(900, 200_000), at(1_100, 100)],
        ..WorkloadResult::default()
    };
    let mut run = Run { system: "plimsoll".to_owned(), ..Run::default() };
    run.workloads.insert("ask".to_owned(), ask);
    run.drops.insert("a".to_owned(), [("rx_ring_full".to_owned(), 4), ("other".to_owned(), 2)].into());
    for verdict in judge(&scenario, &Results { runs: vec![run], ..Results::default() }) {
        assert_eq!(verdict.status, Status::Passed, "{}: {}", verdict.expect, verdict.detail);
    }
}

#[test]
fn a_tenants_program_lies_beside_the_scenario_and_only_the_systems_that_state_it_have_it() {
    let text = "name: t\nrate: 8Mbps\nduration: 2s\n\
                systems: [plimsoll, with: {kind: plimsoll, tenants: {x: {program: {module: sub/x.wasm, memory: 4MiB}}}}]\n\
                hosts: {a: {}, b: {}}\ntenants: {x: {host: a}, y: {host: b}}\n\
                workloads: {ask: {tenant: x, to: y, kind: probe}}\n";
    let scenario = Scenario::parse(text, "t.yaml", Path::new("/scenes"), Form::Full);
    let scenario = scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let program = |system: usize| {
        let wiring = Wiring { uplink: "memory".to_owned(), ..Wiring::default() };
        let text = scenario.policy_file_of(&scenario.hosts[0], &scenario.systems[system], &wiring);
        let checked = plimsoll_policy::check_str("p.yaml", &text);
        let checked = checked.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        checked.config.tenants[0].program.as_ref().map(|program| program.module.display().to_string())
    };
    assert_eq!((program(0), program(1)), (None, Some("/scenes/sub/x.wasm".to_owned())));
}

/// A receiving host's times go to the model in virtual time, and to the real engine live.
#[test]
fn a_live_host_is_as_slow_as_the_file_says_and_one_in_virtual_time_is_not() {
    let text = "name: t\nrate: 8Mbps\nduration: 2s\n\
                systems: [plimsoll, worse: {kind: plimsoll, ingress: shared, accounting: false, limiter: false}]\n\
                hosts: {a: {receive: {ring: 64, drain: 10us, cost: 40us, drain_share: 50%}}, b: {}}\n\
                engine: {ring: 256}\ntenants: {x: {host: a}, y: {host: b}}\n\
                workloads: {ask: {tenant: x, to: y, kind: probe}}\n";
    let scenario = Scenario::parse(text, "t.yaml", Path::new(""), Form::Full);
    let scenario = scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let file = |host: usize, system: usize, live| {
        let wiring = Wiring { uplink: "memory".to_owned(), live, ..Wiring::default() };
        let text = scenario.policy_file_of(&scenario.hosts[host], &scenario.systems[system], &wiring);
        plimsoll_policy::check_str("p.yaml", &text)
            .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
    };
    let told = |host, system, live| file(host, system, live).config.engine.experiment;
    let worse_only = Experiment { accounting: false, limiter: false, ..Experiment::default() };
    let slow = Experiment {
        drain: Span::micros(10),
        cost: Span::micros(40),
        drain_share: 500,
        ring: Some(64),
        slots: Some(256),
        ..Experiment::default()
    };
    assert_eq!((told(0, 0, false), told(1, 0, true)), (None, None));
    assert_eq!(told(0, 0, true), Some(slow.clone()));
    let worse = Experiment { ingress: IngressOrder::Shared, accounting: false, limiter: false, ..slow };
    assert_eq!(told(0, 1, true), Some(worse));
    assert_eq!(told(1, 1, true), Some(worse_only.clone()));
    let alone = |system: usize, live| {
        let wiring = Wiring { uplink: "memory".to_owned(), live, ..Wiring::default() };
        let text = scenario.policy_file(&scenario.systems[system], &wiring);
        let checked = plimsoll_policy::check_str("p.yaml", &text);
        checked.unwrap_or_else(|errors| panic!("{}", errors.render(false))).config.engine.experiment
    };
    assert_eq!((alone(0, true), alone(1, false), alone(1, true)), (None, None, Some(worse_only)));
    assert_eq!(file(0, 0, true).config.engine.ring, 256);
}

#[test]
fn a_system_has_control_of_its_own_and_faults_name_what_exists() {
    let parse = |rest: &str| {
        let text = format!(
            "name: t\nrate: 8Mbps\nduration: 2s\ntenants: {{a: {{}}, b: {{}}}}\n\
             workloads: {{ask: {{tenant: a, kind: probe}}}}\n{rest}"
        );
        let scenario = Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full);
        scenario.map_err(|errors| errors.render(false))
    };
    let scenario = parse(
        "control: {epoch: 1ms, gain: 20%}\n\
         systems: [plimsoll, other: {kind: plimsoll, control: {level: bandwidth, epoch: 2ms}, faults: false}]\n\
         faults: {feedback: {loss: 10%}, silent: [host], restart: [{host: host, at: 1s, gap: 10ms}], \
         clock: [{host: host, at: 1s, back: 1h}], stalled: [{tenant: b, from: 1s, to: 1.5s}]}\n",
    )
    .unwrap_or_else(|shown| panic!("{shown}"));
    let [first, second] = scenario.systems.as_slice() else { panic!("two systems") };
    assert_eq!((first.steering.as_ref(), first.faults), (None, true));
    let own = second.steering.as_ref().expect("its own");
    assert_eq!((own.epoch, own.gain, second.faults), (Span::millis(2), 200, false));
    assert_eq!(scenario.faults.restarts[0].gap, Span::millis(10));
    assert!(scenario.faults.clocks[0].back);

    for (rest, said) in [
        ("faults: {silent: [nobody]}\n", "there is no host `nobody`"),
        ("faults: {stalled: [{tenant: c, from: 1s}]}\n", "there is no tenant `c`"),
        ("faults: {restart: [{host: host, at: 3s}]}\n", "the run ends at 2s"),
        ("control: {balancers: {c: 1}}\n", "there is no tenant `c`"),
        ("control: {patience: 1001}\n", "`patience` is 1001"),
    ] {
        let shown = parse(&format!("systems: [plimsoll]\n{rest}")).expect_err("wrong");
        assert!(shown.contains(said), "{shown}");
    }
}

#[test]
fn late_sleeps_are_one_time_or_quantiles_in_order() {
    let parse = |wake: &str| {
        let text = format!(
            "name: t\nrate: 8Mbps\nduration: 2s\nwake: {wake}\nsystems: [plimsoll, htb]\ntenants: {{a: {{}}}}\n\
             workloads: {{ask: {{tenant: a, kind: probe}}}}\n"
        );
        let scenario = Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full);
        scenario.map(|scenario| scenario.wake).map_err(|errors| errors.render(false))
    };
    assert_eq!(parse("3us"), Ok(Lateness::constant(Span::micros(3))));
    let quantiles = "{min: 5us, p50: 20us, p90: 30us, p99: 50us, p99_9: 200us, p99_99: 1ms, max: 7ms}";
    let lateness = parse(quantiles).expect("in order");
    assert_eq!(lateness.quantile(0.9), Span::micros(30));
    for (wake, said) in [
        ("1s", "`wake` is 1s"),
        (&quantiles.replace("30us", "10us"), "a quantile of `wake` is less than the one before it"),
        (&quantiles.replace("7ms", "700ms"), "`max` is 700ms"),
        (&quantiles.replace("min: 5us, ", ""), "`min` is missing"),
    ] {
        let shown = parse(wake).expect_err("wrong");
        assert!(shown.contains(said), "{shown}");
    }
}

#[test]
fn a_key_is_read_if_and_only_if_it_is_in_the_schema() {
    let (schema, trials) = (schema(), SCENARIO.trials());
    for Trial { key: (mapping, key), text, place } in &trials {
        let read = Scenario::parse(text, "t.yaml", Path::new(""), Form::Full);
        let errors = read.expect_err("a value that can stand nowhere");
        let refused = errors.problems().iter().any(|problem| place.contains(&(problem.at.offset as usize)));
        assert!(refused, "`{key}` of {mapping} is passed over:\n{text}{}", errors.render(false));
        let known: Vec<&str> = match *mapping {
            // The keys of another mapping, each of which may be there or not.
            "Virtual" => {
                let names = schema["properties"]["virtual"]["propertyNames"]["enum"].as_array();
                names.expect("names").iter().filter_map(|name| name.as_str()).collect()
            }
            name => {
                let object = if name == SCENARIO.name { &schema } else { &schema["$defs"][name] };
                let properties = object["properties"].as_object().expect("a mapping of the schema");
                properties.keys().map(String::as_str).collect()
            }
        };
        let tried = trials.iter().filter(|trial| trial.key.0 == *mapping);
        assert_eq!(tried.filter(|trial| !known.contains(&trial.key.1)).count(), 1, "{mapping}");
    }
    // Each mapping is tried, here or, if it is a policy's, with the policy's schema.
    let policy = plimsoll_policy::schema();
    for (name, object) in schema["$defs"].as_object().expect("definitions") {
        let tried = trials.iter().any(|trial| trial.key.0 == name);
        assert!(tried || object.get("properties").is_none() || policy["$defs"][name] == *object, "{name}");
    }
    assert_eq!(schema["$defs"]["Engine"], policy["$defs"]["Engine"], "an editor knows its keys here too");
}

#[test]
fn a_key_that_is_repeated_is_refused_wherever_it_stands() {
    for (again, what) in [
        ("mtu: 1500\nmtu: 1500\n", "`mtu` is there twice in the scenario"),
        ("measure: {cpu: true, cpu: true}\n", "`cpu` is there twice in `measure`"),
        ("virtual: {mtu: 1500, mtu: 1500}\n", "`mtu` is there twice in `virtual`"),
        ("virtual: {measure: {cpu: true, cpu: true}}\n", "`cpu` is there twice in `measure`"),
        ("destinations: {a: ~, a: ~}\n", "`a` is there twice in `destinations`"),
        ("destinations: {7: ~, a: ~, a: ~}\n", "`a` is there twice in `destinations`"),
        ("hosts: {h: {nic: fifo, nic: fifo}}\n", "`nic` is there twice in host `h`"),
        (
            "expect: [{that: plimsoll.a.throughput > 0bps, because: x, because: x}]\n",
            "`because` is there twice",
        ),
    ] {
        let text = format!(
            "name: t\nrate: 8Mbps\nduration: 2s\nsystems: [plimsoll]\ntenants: {{a: {{}}}}\n\
             workloads: {{w: {{tenant: a, kind: bulk}}}}\n{again}"
        );
        for form in [Form::Full, Form::Virtual] {
            let errors = Scenario::parse(&text, "t.yaml", Path::new(""), form).expect_err(again);
            let shown = errors.render(false);
            assert!(shown.contains(what) && shown.contains("first here"), "{shown}");
        }
    }
}
