//! `check`'s estimate of a packet's cost, beside what the bench measured under the same policies.

use plimsoll_policy::{Program, check_str, cost};

#[path = "../../../../benches/src/policies.rs"]
#[expect(dead_code, reason = "the bench uses more of it")]
mod policies;

/// How far an estimate may be from what was measured, either way.
const FACTOR: f64 = 1.5;

/// Nanoseconds of a packet of the dearest class.
fn estimate(program: &Program) -> u64 {
    cost(program).iter().map(|cost| cost.packet.as_u64()).max().expect("a class")
}

/// The rows between the markers of `docs/performance.md`: a policy, its estimate, what was measured.
fn measured() -> Vec<(String, u64, f64)> {
    let page = include_str!("../../../../docs/performance.md");
    let (_, rest) = page.split_once("<!-- costs -->\n").expect("the table begins");
    let (table, _) = rest.split_once("<!-- end of costs -->").expect("the table ends");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].to_owned(), cells[1].parse().expect("an estimate"), cells[2].parse().expect("a time"))
    };
    table.lines().skip(2).map(row).collect()
}

#[test]
fn estimates_follow_what_the_bench_measures() {
    let measured = measured();
    let costed = policies::costed();
    let names =
        |known: &[(String, u64, f64)]| known.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&measured), costed.iter().map(|policy| policy.name).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (policy, (name, stated, measured)) in costed.iter().zip(&measured) {
        let estimate = estimate(&policy.program);
        let ratio = measured / estimate as f64;
        if estimate != *stated || !(1.0 / FACTOR..=FACTOR).contains(&ratio) {
            wrong.push(format!(
                "{name}: {estimate} ns; the page has {stated}, and measured {measured}, {ratio:.2} times"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Loom's Figure 1 at 100 Gb/s with frames of 1,000 bytes, 80 ns each: no engine of ours keeps up with that.
#[test]
fn figure_1_is_refused_where_the_bench_shows_it_too_slow() {
    let file = |frame: &str| {
        format!(
            "uplink: {{port: memory, rate: 100Gbps}}\nengine: {{line_rate_frame: {frame}}}\n\
             tenants: {{vm1: {{port: memory, via: [d1, d2, d3]}}, vm2: {{port: memory}}, vm3: {{port: memory}}}}\n\
             limits:\n  d1: {{match: {{dst: 10.0.1.0/24}}, rate: 25Gbps}}\n  d2: {{match: {{dst: 10.0.2.0/24}}, rate: 25Gbps}}\n  \
             d3: {{match: {{dst: 10.0.3.0/24}}, rate: 25Gbps}}\n\
             policy:\n  root: {{priority: [management, tenants]}}\n  management: {{match: {{tenant: host}}, max: 500Mbps}}\n  \
             tenants: {{wfq: {{vm1: 1, vm2: 2, vm3: 4}}}}\n"
        )
    };
    let refused = check_str("p.yaml", &file("1000B")).expect_err("too costly").render(false);
    assert!(refused.contains("rule `too-costly`"), "{refused}");
    check_str("p.yaml", &file("4000B")).expect("frames that last longer than its packets cost");
}

#[test]
fn limits_that_exclude_each_other_cost_as_one() {
    let file = |b: &str| {
        let text = format!(
            "{{uplink: {{port: memory, rate: 10Gbps}}, tenants: {{t: {{port: memory, via: [a, b]}}}}, limits: {{a: {{match: {{dst: \
             10.0.1.0/24}}, rate: 1Gbps}}, b: {{match: {{dst: {b}}}, rate: 1Gbps}}}}}}"
        );
        estimate(
            &check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false))).program,
        )
    };
    assert!(file("10.0.2.0/24") < file("10.0.0.0/16"), "no packet goes to both networks");
}
