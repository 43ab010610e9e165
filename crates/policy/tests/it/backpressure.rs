//! `backpressure`: what the keys mean, how `check` shows them, and what a reload says of them.

use plimsoll_policy::{
    Checked, Ecn, Law, Mediate, Press, PressMode, PressRate, Watch, check_str, diff, report, tree_text,
};
use plimsoll_units::{BitRate, Bytes, Span};

/// A policy with two tenants, the second of which opts out, and these keys of `backpressure`.
fn check(keys: &str) -> Checked {
    let text = format!(
        "uplink: {{port: memory, rate: 10Gbps}}\ntenants:\n  gateway: {{port: memory}}\n  shop: {{port: memory, ecn: \
         untouched}}\nbackpressure: {{{keys}}}\n"
    );
    check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

fn press(keys: &str) -> Press {
    check(keys).config.backpressure.expect("stated").press.expect("watched")
}

#[test]
fn what_is_watched_is_enough() {
    let found = press("watch: engine");
    let expected = Press {
        watch: Watch::Engine,
        cores: None,
        threshold: "80%".parse().expect("a part"),
        release: "70%".parse().expect("a part"),
        poll: Span::millis(1),
        part: "10%".parse().expect("a part"),
        mode: PressMode::Meter,
        rate: PressRate::Auto { least: BitRate::mbps(100) },
        lifetime: Span::secs(3),
        burst: Bytes::kib(128),
        flows: 256,
    };
    assert_eq!(found, expected);
    assert_eq!(check("heavy: 5kpps").config.backpressure.expect("stated").press, None);
}

#[test]
fn without_a_release_overload_ends_at_seven_eighths_of_the_threshold_and_70_percent_at_most() {
    let ends = |threshold: &str| press(&format!("watch: engine, threshold: {threshold}")).release.per_mille();
    assert_eq!(["100%", "90%", "80%", "60%", "0.3%"].map(ends), [700, 700, 700, 525, 2]);
}

#[test]
fn each_key_is_what_it_says() {
    let found = press(
        "watch: {cgroup: /gateway.slice}, cores: 1.5, threshold: 0.9, release: 62.5%, poll: 5ms, part: 20%, mode: drop, \
         rate: auto, least: 50Mbps, lifetime: 200ms, burst: 1MB, flows: 8",
    );
    assert_eq!(found.watch, Watch::Cgroup("/gateway.slice".into()));
    assert_eq!(found.cores, Some(1_500));
    assert_eq!([found.threshold, found.release, found.part].map(|part| part.per_mille()), [900, 625, 200]);
    assert_eq!((found.poll, found.lifetime), (Span::millis(5), Span::millis(200)));
    assert_eq!((found.mode, found.rate), (PressMode::Drop, PressRate::Auto { least: BitRate::mbps(50) }));
    assert_eq!((found.burst, found.flows), (Bytes::new(1_000_000), 8));

    assert_eq!(press("watch: engine, rate: 850Mbps").rate, PressRate::Fixed(BitRate::mbps(850)));
    assert_eq!(press("watch: {tenant: shop}").watch, Watch::Tenant("shop".to_owned()));
    assert_eq!(press("watch: {pids: [12, 7, 12]}").watch, Watch::Pids(vec![7, 12]), "each once, in order");
    assert_eq!(press("watch: {pids: 7}").watch, Watch::Pids(vec![7]));
    for (name, mode) in PressMode::ALL {
        assert_eq!(press(&format!("watch: engine, mode: {name}")).mode, mode);
        assert_eq!(mode.to_string(), name);
    }
    let tenants = check("watch: engine").config.tenants;
    assert_eq!(tenants.iter().map(|tenant| tenant.ecn).collect::<Vec<_>>(), [Ecn::Allowed, Ecn::Untouched]);
}

#[test]
fn a_cgroup_stays_below_the_root_and_threads_have_numbers() {
    let legal = ["{cgroup: /}", "{cgroup: /a/b.scope}", "{pids: [1, 4194304]}", "engine"];
    legal.iter().for_each(|watch| drop(press(&format!("watch: {watch}"))));
    let wrong = [
        "{cgroup: a}",
        "{cgroup: \"\"}",
        "{cgroup: /..}",
        "{cgroup: /a/../../b}",
        "{cgroup: \"/a\\0b\"}",
        "{pids: [0]}",
        "{pids: [-1]}",
        "{pids: [4194305]}",
        "{pids: []}",
        "{pids: {}}",
        "{tenant: gateway, pids: 1}",
        "{}",
        "[]",
        "tenant",
    ];
    for watch in wrong {
        let text = format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{gateway: {{port: memory}}}}, backpressure: {{watch: {watch}}}}}"
        );
        let errors = check_str("p.yaml", &text).expect_err(watch);
        assert!(errors.problems().iter().all(|problem| !problem.help.is_empty()), "{watch}: {errors:?}");
    }
}

#[test]
fn a_core_that_is_always_busy_is_not_watched() {
    let text = "{uplink: {port: memory, rate: 1Gbps}, tenants: {gateway: {port: memory}}, engine: {busy_poll: true}, \
                backpressure: {watch: engine}}";
    let errors = check_str("p.yaml", text).expect_err("no load can be told");
    let told = errors.problems().iter().filter(|problem| problem.message.contains("always busy"));
    assert_eq!(told.count(), 1, "{errors:?}");
    check_str("p.yaml", &text.replace("watch: engine", "watch: {tenant: gateway}")).expect("legal");
}

#[test]
fn a_fleet_that_can_be_told_raises_no_doubt() {
    let overlay = |feedback: &str| {
        format!(
            "overlay: {{kind: geneve, vni: 7, host: a, hosts: {{a: {{address: 192.0.2.1, tenants: {{gateway: \
             02:00:00:00:0a:01}}}}}}{feedback}}}"
        )
    };
    let doubts = |mode: &str, overlay: &str| -> Vec<Law> {
        let text = format!(
            "uplink: {{port: memory, rate: 10Gbps}}\ntenants: {{gateway: {{port: memory}}}}\nbackpressure: {{watch: engine, \
             mode: {mode}}}\n{overlay}\n"
        );
        let checked = check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        checked.warnings.iter().map(|problem| problem.rule).collect()
    };
    assert_eq!(doubts("meter", ""), [Law::SourceNotReached]);
    assert_eq!(doubts("meter", &overlay("")), [Law::SourceNotReached]);
    assert_eq!(doubts("meter", &overlay(", feedback: {key: /k}")), []);
    assert_eq!(doubts("mark_and_meter", ""), [Law::SourceNotReached]);
    assert_eq!(doubts("mark_and_meter", &overlay(", feedback: {key: /k}")), []);
    for mode in ["mark", "drop", "window"] {
        assert_eq!(doubts(mode, ""), [], "{mode} needs no other host");
    }
}

/// A flow out of a tenant, or for one whose flows are counted, is held to the rate whatever the tenant is promised.
#[test]
fn a_promise_above_the_rate_of_a_slowed_flow_is_doubted() {
    let doubts = |keys: &str| -> Vec<String> {
        let text = format!(
            "uplink: {{port: memory, rate: 10Gbps}}\ntenants:\n  gateway: {{port: memory, min: 1Gbps, ingress: {{min: \
             2Gbps}}}}\n  shop: {{port: memory, min: 500Mbps, ingress: {{min: 3Gbps}}}}\n  rest: {{port: \
             memory}}\nbackpressure: {{watch: engine, mode: drop, {keys}}}\n"
        );
        let checked = check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        let found = checked.warnings.iter().filter(|problem| problem.rule == Law::MinNotHeld);
        found.map(|problem| problem.message.clone()).collect()
    };
    let told = |rate: &str, promised: &str| {
        vec![format!("a flow that is slowed down is held to {rate}, below what is promised: {promised}")]
    };
    let all = "`gateway` 1Gbps, `gateway` 2Gbps on the way in, `shop` 500Mbps, `shop` 3Gbps on the way in";
    assert_eq!(doubts("rate: 400Mbps"), told("400Mbps", all));
    assert_eq!(doubts("least: 400Mbps"), told("400Mbps", all), "`auto` may go down to it");
    assert_eq!(
        doubts("rate: 1Gbps, tenants: [gateway]"),
        told("1Gbps", "`gateway` 2Gbps on the way in"),
        "what comes for others is not counted"
    );
    assert_eq!(doubts("rate: 3Gbps"), Vec::<String>::new());
    assert_eq!(
        doubts("lifetime: 3s"),
        Vec::<String>::new(),
        "the default's least is no decision of the operator's"
    );
}

/// No flow sends more than the link carries, so none would be slowed down.
#[test]
fn a_rate_of_slowed_flows_above_the_link_is_doubted() {
    let doubts = |link: &str, keys: &str| -> Vec<String> {
        let text = format!(
            "uplink: {{port: memory, rate: {link}}}\ntenants: {{gateway: {{port: memory}}}}\nbackpressure: {{watch: engine, mode: \
             drop{keys}}}\n"
        );
        let checked = check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        assert!(checked.warnings.iter().all(|problem| problem.rule == Law::MaxAboveLink));
        checked.warnings.iter().map(|problem| problem.message.clone()).collect()
    };
    assert_eq!(
        doubts("1Gbps", ", least: 2Gbps"),
        ["`least` of `backpressure` is 2Gbps, above the link's 1Gbps"]
    );
    assert_eq!(
        doubts("1Gbps", ", rate: 2Gbps"),
        ["`rate` of `backpressure` is 2Gbps, above the link's 1Gbps"]
    );
    assert_eq!(
        doubts("50Mbps", ""),
        ["`least` of `backpressure` is 100Mbps, as none is stated, above the link's 50Mbps"]
    );
    for keys in ["", ", least: 1Gbps", ", rate: 1Gbps"] {
        assert_eq!(doubts("1Gbps", keys), Vec::<String>::new(), "{keys}");
    }
}

#[test]
fn check_shows_what_is_watched_and_what_is_done() {
    let shown = |keys: &str| {
        let text = tree_text(&check(keys));
        let from = text.find("Heavy hitters").expect("shown");
        let end = text[from..].find("\n\n").map_or(text.len(), |end| from + end);
        text[from..end].to_owned()
    };
    assert_eq!(shown("heavy: 5kpps"), "Heavy hitters: flows of gateway, shop with 5kpps or more, both ways");
    assert_eq!(
        shown("tenants: [gateway], watch: {tenant: gateway}, rate: 850Mbps, cores: 0.5"),
        "Heavy hitters: flows of gateway with 10kpps or more, both ways\n\
         Backpressure: the CPU time of deliveries to `gateway` is watched every 1ms; overload begins at 80% of 0.5 cores and \
         ends below 70%\n  it slows down flows with more than 10% of all heavy hitters' packets, 256 at most, each to 850Mbps\n  \
         by a meter with a burst of 131.072kB, which expires 3s after its last refresh, at the source's host\n  \
         ECN bits and TCP flags are never changed for shop"
    );
    for (mode, instead) in [
        ("mark", ", and flows metered instead, for shop"),
        ("mark_and_meter", ", and flows metered alone, for shop"),
        ("window", ", and flows metered instead, for shop"),
        ("drop", " for shop"),
    ] {
        let text = shown(&format!("watch: engine, mode: {mode}"));
        assert!(
            text.ends_with(&format!("  ECN bits and TCP flags are never changed{instead}")),
            "{mode}: {text}"
        );
    }
    let text = shown("watch: {cgroup: /gw.slice}, mode: mark");
    assert!(
        text.contains(
            "cgroup /gw.slice is watched every 1ms; overload begins at 80% of its `cpu.max` (a core without"
        ),
        "{text}"
    );
    assert!(text.contains("each to what brings the load below 70%, 100Mbps at least"), "{text}");
    let json = serde_json::to_value(report(&check("watch: {pids: [5]}"))).expect("JSON");
    assert_eq!(json["backpressure"]["press"]["watch"]["pids"][0], 5);
    assert_eq!(json["backpressure"]["press"]["threshold"], "80%");
    assert_eq!(json["tenants"][1]["ecn"], "untouched");
}

#[test]
fn a_reload_says_what_changes() {
    let changes = |old: &str, new: &str| diff(&check(old), &check(new)).to_string();
    assert_eq!(changes("watch: engine", "watch: engine, threshold: 80%"), "nothing changes\n");
    assert_eq!(
        changes(
            "watch: engine",
            "watch: {tenant: gateway}, threshold: 0.9, cores: 0.5, rate: 850Mbps, mode: drop"
        ),
        "~ backpressure: cores none -> 0.5\n~ backpressure: mode meter -> drop\n\
         ~ backpressure: rate auto, at least 100Mbps -> 850Mbps\n~ backpressure: threshold 80% -> 90%\n\
         ~ backpressure: watch engine -> {tenant: gateway}\n"
    );
    assert!(changes("", "watch: engine").contains("~ backpressure: watch none -> engine\n"));
    let opts_out = "{uplink: {port: memory, rate: 1Gbps}, tenants: {a: {port: memory, ecn: untouched}}}";
    let [old, new] = [opts_out.replace(", ecn: untouched", ""), opts_out.to_owned()]
        .map(|text| check_str("p.yaml", &text).expect("legal"));
    assert_eq!(diff(&old, &new).to_string(), "~ tenant a: ecn none -> untouched\n");
}

fn tenant(ecn: &str) -> Result<Checked, plimsoll_policy::Errors> {
    check_str(
        "p.yaml",
        &format!("{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{a: {{port: memory, ecn: {ecn}}}}}}}"),
    )
}

#[test]
fn a_tenant_can_be_mediated_with_a_meter_of_its_own() {
    let ecn = |text: &str| {
        tenant(text).unwrap_or_else(|errors| panic!("{}", errors.render(false))).config.tenants[0].ecn
    };
    let default = Mediate { rate: BitRate::mbps(850), lifetime: Span::secs(3), burst: Bytes::kib(128) };
    assert_eq!(ecn("mediated"), Ecn::Mediated(default));
    assert_eq!(
        ecn("{mediate: {rate: 50Mbps}}"),
        Ecn::Mediated(Mediate { rate: BitRate::mbps(50), ..default })
    );
    let stated = Mediate { rate: BitRate::mbps(850), lifetime: Span::millis(200), burst: Bytes::new(64_000) };
    assert_eq!(ecn("{mediate: {lifetime: 200ms, burst: 64kB}}"), Ecn::Mediated(stated));
    assert_eq!(["allowed", "untouched"].map(|text| ecn(text).mediate()), [None, None]);

    for wrong in [
        "{}",
        "[]",
        "{mediate: {rate: 0bps}}",
        "{mediate: {rate: fast}}",
        "{mediate: {lifetime: 50ms}}",
        "{mediate: {burst: 1500B}}",
        "{mediates: {}}",
        "{mediate: {rates: 1Mbps}}",
        "mediate",
        "0",
    ] {
        let errors = tenant(wrong).expect_err(wrong);
        assert!(errors.problems().iter().all(|problem| !problem.help.is_empty()), "{wrong}: {errors:?}");
    }
}

#[test]
fn check_and_a_reload_show_whose_connections_are_mediated() {
    let mediated = tenant("{mediate: {rate: 50Mbps}}").expect("legal");
    let text = tree_text(&mediated);
    assert!(
        text.contains(
            "\nECN of `a` is mediated: a flow whose receiver reports a mark gets a meter of 50Mbps with a burst of 131.072kB, \
             which expires 3s after the last report\n"
        ),
        "{text}"
    );
    let json = serde_json::to_value(report(&mediated)).expect("JSON");
    assert_eq!(json["tenants"][0]["ecn"]["mediate"]["rate"], "50Mbps");
    assert_eq!(
        diff(&tenant("allowed").expect("legal"), &mediated).to_string(),
        "~ tenant a: ecn none -> mediated (50Mbps, lifetime 3s, burst 131.072kB)\n"
    );
    let both = check("watch: engine, mode: mark_and_meter").config;
    let shown = tree_text(&check("watch: engine, mode: mark_and_meter"));
    assert!(both.backpressure.is_some() && shown.contains("by CE on one of several packets"), "{shown}");
}

#[test]
fn no_flow_is_held_below_a_megabit() {
    let refused = |keys: &str, ecn: &str| {
        let text = format!(
            "uplink: {{port: memory, rate: 10Gbps}}\ntenants: {{gateway: {{port: memory{ecn}}}}}\nbackpressure: {{{keys}}}\n"
        );
        check_str("p.yaml", &text).err().is_some_and(|errors| errors.render(false).contains("below 1Mbps"))
    };
    assert!(refused("watch: engine, rate: 999kbps", "") && refused("watch: engine, least: 1kbps", ""));
    assert!(refused("heavy: 1kpps", ", ecn: {mediate: {rate: 1kbps}}"));
    assert!(!refused("watch: engine, rate: 1Mbps", ""));
}
