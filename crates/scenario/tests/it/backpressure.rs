//! Backpressure in scenarios: what is refused, what each host's policy says, and what is measured.

use std::path::Path;

use plimsoll_scenario::{
    Excess, Form, PressModel, Results, Run, Scenario, Slots, Status, Wiring, WorkloadResult, judge, report,
    summarise, table,
};
use plimsoll_units::Span;

/// Clients on `c1` and `c2`, a server on `s`, and a gateway on `mid`.
fn scenario(rest: &str) -> Result<Scenario, String> {
    let text = format!(
        "name: t
rate: 10Gbps
duration: 1s
hosts: {{c1: {{}}, c2: {{}}, s: {{}}, mid: {{receive: {{cost: 1.8us}}}}}}
switches: [x]
links:
  l1: {{between: [c1, x], rate: 10Gbps}}
  l2: {{between: [c2, x], rate: 10Gbps}}
  l3: {{between: [s, x], rate: 10Gbps}}
  l4: {{between: [mid, x], rate: 10Gbps}}
{rest}"
    );
    Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full).map_err(|errors| errors.render(false))
}

const TENANTS: &str = "tenants:
  a: {host: c1, tcp_ecn: 1}
  b: {host: c2, ecn: untouched}
  srv: {host: s, tcp_ecn: 0}
  gateway: {host: mid, forwards: true}
  other: {host: mid}
";

const WORKLOADS: &str = "workloads:
  w: {tenant: a, to: srv, kind: bulk, through: gateway, reverse: true}
";

fn read(systems: &str, rest: &str) -> Scenario {
    let text = format!("systems: {systems}\n{TENANTS}{WORKLOADS}{rest}");
    scenario(&text).unwrap_or_else(|shown| panic!("{shown}"))
}

#[test]
fn gateways_and_tenants_settings_are_read() {
    let read = read("[plimsoll]", "");
    assert_eq!(read.workloads[0].through.as_deref(), Some("gateway"));
    assert_eq!(read.workloads[0].kind, plimsoll_scenario::Kind::Bulk { flows: 1, reverse: true });
    let settings: Vec<_> = read.tenants.iter().map(|tenant| (tenant.forwards, tenant.tcp_ecn)).collect();
    assert_eq!(settings, [(false, Some(1)), (false, None), (false, Some(0)), (true, None), (false, None)]);
    let policy = read.policy_file(&read.systems[0], &Wiring::default());
    assert!(policy.contains("ecn: untouched"), "{policy}");
    assert!(!policy.contains("forwards") && !policy.contains("tcp_ecn"), "{policy}");
}

#[test]
fn nonsense_is_refused() {
    let workload =
        |through: &str| format!("workloads: {{w: {{tenant: a, to: srv, kind: bulk, through: {through}}}}}\n");
    let twice = TENANTS.replace("{host: mid, forwards: true}", "{host: [mid, s], forwards: true}");
    for (tenants, rest, wrong) in [
        (TENANTS, workload("other"), "`other`, which forwards nothing"),
        (TENANTS, workload("srv"), "`srv`, which is one of its ends"),
        (TENANTS, workload("gatway"), "there is no tenant `gatway`"),
        (&twice, workload("gateway"), "`gateway`, which lives on several hosts"),
        (TENANTS, "backpressure: off\n".to_owned(), "only a system switches `backpressure` off"),
        (TENANTS, "backpressure_model: {buckets: 1000}\n".to_owned(), "`buckets` is 1000"),
        (TENANTS, "backpressure_model: {slots: 3}\n".to_owned(), "there is no number of slots `3`"),
        (
            TENANTS,
            "workloads: {w: {tenant: a, kind: udp, rate: 1Mbps, reverse: true}}\n".to_owned(),
            "has no key `reverse`",
        ),
        (&TENANTS.replace("tcp_ecn: 0", "tcp_ecn: 3"), String::new(), "there is no setting of `tcp_ecn` `3`"),
        (TENANTS, "expect: [plimsoll.c1.load <= 1]\n".to_owned(), "there is no host with `receive` `c1`"),
        (TENANTS, "expect: [plimsoll.load <= 1]\n".to_owned(), "a load belongs to a host"),
        (TENANTS, "expect: [plimsoll.a.top_share <= 1]\n".to_owned(), "measured for a system"),
    ] {
        let rest = if rest.contains("workloads") { rest } else { format!("{WORKLOADS}{rest}") };
        let text = format!("systems: [plimsoll]\n{tenants}{rest}");
        let shown = scenario(&text).expect_err(wrong);
        assert!(shown.contains(wrong), "{wrong}:\n{shown}");
    }
}

#[test]
fn a_policys_own_mistakes_show() {
    let read = read("[plimsoll]", "backpressure: {tenants: [gatway], watch: {tenant: gateway}}\n");
    let wrong = read.check_policies();
    assert_eq!(wrong.len(), 1);
    assert!(wrong[0].1.render(false).contains("the file has no tenant `gatway`"));
}

/// What is watched on another host leaves a host with the counting of flows alone.
#[test]
fn each_host_gets_what_concerns_it() {
    let on = |read: &Scenario, host: &str| {
        let host = read.hosts.iter().find(|known| known.name == host).expect("a host");
        read.policy_file_of(host, &read.systems[0], &Wiring::default())
    };
    let all = read("[plimsoll]", "backpressure: {watch: {tenant: gateway}, mode: mark, heavy: 5kpps}\n");
    assert!(on(&all, "mid").contains("watch: {tenant: gateway}"), "{}", on(&all, "mid"));
    let elsewhere = on(&all, "c1");
    assert!(elsewhere.contains("heavy: 5kpps") && !elsewhere.contains("watch"), "{elsewhere}");
    assert!(!elsewhere.contains("mode"), "{elsewhere}");

    let one = read("[plimsoll]", "backpressure: {tenants: [gateway, a], watch: {tenant: gateway}}\n");
    assert!(on(&one, "mid").contains("tenants: [gateway]"), "{}", on(&one, "mid"));
    assert!(on(&one, "c1").contains("tenants: [a]"), "{}", on(&one, "c1"));
    assert!(!on(&one, "s").contains("backpressure"), "{}", on(&one, "s"));
}

#[test]
fn a_system_changes_keys_or_switches_it_off() {
    let systems = "[plimsoll, {drops: {kind: plimsoll, backpressure: {mode: drop}}}, \
                   {without: {kind: plimsoll, backpressure: off}}]";
    let read = read(systems, "backpressure: {watch: {tenant: gateway}, rate: 850Mbps}\n");
    let mid = read.hosts.last().expect("a host");
    let texts: Vec<_> =
        read.systems.iter().map(|system| read.policy_file_of(mid, system, &Wiring::default())).collect();
    assert!(texts[0].contains("rate: 850Mbps") && !texts[0].contains("mode"), "{}", texts[0]);
    assert!(texts[1].contains("rate: 850Mbps") && texts[1].contains("mode: drop"), "{}", texts[1]);
    assert!(!texts[2].contains("backpressure"), "{}", texts[2]);
}

#[test]
fn models_have_defaults_and_systems_have_their_own() {
    let systems = "[plimsoll, {loose: {kind: plimsoll, backpressure_model: {interval: 5000, excess: drop}}}]";
    let read = read(systems, "backpressure_model: {buckets: 16384, slots: 8, counter_cap: 1}\n");
    let model = PressModel {
        buckets: Some(16_384),
        slots: Slots::Eight,
        counter_cap: Some(1),
        ..PressModel::default()
    };
    assert_eq!((read.press_model, read.systems[0].press_model), (model, None));
    let loose = PressModel { interval: Some(5_000), excess: Excess::Drop, ..PressModel::default() };
    assert_eq!(read.systems[1].press_model, Some(loose));
}

/// 500 ms of a second, all of it in the second half; 3 of 4 overloads' packets.
#[test]
fn loads_shares_and_counts_are_measured() {
    let expect = "measure: {window: 250ms}
expect:
  - plimsoll.mid.load ~ 50% +- 0.001%
  - max(plimsoll.mid.load per 500ms) ~ 100% +- 0.001%
  - settled(plimsoll.mid.load per 250ms >= 90%) <= 500ms
  - plimsoll.top_share ~ 75% +- 0.001%
  - plimsoll.w.retransmits ~ 7 +- 0.001%
  - plimsoll.a.marks + plimsoll.metered ~ 5 +- 0.001%
  - plimsoll.w.ecn + 100 * plimsoll.w.echoed ~ 601 +- 0.001%
  - plimsoll.overloads >= 2
";
    let read = read("[plimsoll]", expect);
    let work = [0, 0, 250, 250].map(Span::millis).to_vec();
    let w = WorkloadResult {
        retransmits: Some(7),
        marks: Some(3),
        metered: Some(2),
        // Of the end that sends, not of the other.
        ecn: Some([1, 2]),
        echoed: Some([6, 7]),
        ..WorkloadResult::default()
    };
    let run = Run {
        system: "plimsoll".to_owned(),
        loads: [("mid".to_owned(), work)].into(),
        tops: vec![500, 1_000],
        counters: [("overloads", 2)].into(),
        workloads: [("w".to_owned(), w)].into(),
        ..Run::default()
    };
    for verdict in judge(&read, &Results { runs: vec![run], notes: vec![] }) {
        assert_eq!(verdict.status, Status::Passed, "{}: {}", verdict.expect, verdict.detail);
    }
    // What was not counted is not zero.
    let run = Run { system: "plimsoll".to_owned(), ..Run::default() };
    let verdicts = judge(&read, &Results { runs: vec![run], notes: vec![] });
    assert!(verdicts.iter().all(|verdict| verdict.status == Status::Failed));
}

#[test]
fn what_goes_through_a_gateway_has_a_table_and_its_load_a_figure() {
    let read = read("[plimsoll, bare: {kind: plimsoll, backpressure: off}]", "measure: {window: 250ms}\n");
    let run = |system: &str, load: u64, metered| Run {
        system: system.to_owned(),
        loads: [("mid".to_owned(), vec![Span::millis(load); 4])].into(),
        workloads: [(
            "w".to_owned(),
            WorkloadResult { retransmits: Some(7), metered, ..WorkloadResult::default() },
        )]
        .into(),
        ..Run::default()
    };
    let results =
        Results { runs: vec![run("plimsoll", 100, Some(42)), run("bare", 250, None)], notes: vec![] };
    let summaries = summarise(&read, &results);
    let of = |system: usize| &summaries[system].through[0];
    assert_eq!((of(0).workload.as_str(), of(0).host.as_str()), ("w", "mid"));
    assert_eq!((of(0).retransmits, of(0).metered, of(1).metered), (Some(7.0), Some(42.0), None));
    assert!(of(0).load.is_some_and(|load| (load - 0.4).abs() < 1e-9), "{:?}", of(0));

    let shown = table(&read, &results, &summaries, &[], 120, false);
    let row = shown.lines().find(|line| line.contains("bare") && line.contains("100 %"));
    assert!(
        row.is_some_and(|row| row.matches(" - ").count() == 2),
        "marks and meters are not known: {shown}"
    );
    assert!(shown.contains("load of"), "{shown}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let written = report(&read, &results, &[], folder.path()).expect("written");
    let page = std::fs::read_to_string(&written.html).expect("the page");
    assert!(page.contains("through a gateway") && page.contains("<td>40 %</td>"), "{page}");
    assert!(written.files.iter().any(|file| file.ends_with("load.png")), "{:?}", written.files);
}
