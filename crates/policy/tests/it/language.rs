//! The meaning of policy files: from text to the compiled program.

use plimsoll_policy::{Checked, Fields, FlowOrder, Law, NodeKind, Scope, check_str, check_with};
use plimsoll_units::{BitRate, Bytes, Span};

/// The operator's file and a tenant's.
const OPERATOR: &str = "
uplink: {port: {af_xdp: eth0}, rate: 10Gbps}
tenants:
  shop:  {port: {tap: {netns: shop, name: eth0}}, min: 2Gbps, max: 8Gbps, weight: 2, policy: shop.yaml}
  batch: {port: {tap: {netns: batch, name: eth0}}, min: 1Gbps, max: 10Gbps}
limits:
  wan: {match: {dst: 203.0.113.0/24}, rate: 500Mbps, burst: 64KiB}
policy:
  root:    {priority: [mgmt, tenants]}
  tenants: {wfq: {shop: 2, batch: 1}, via: [wan]}
  mgmt:    {match: {tenant: host}}
";
const SHOP: &str = "
limits:
  api: {match: {dst_port: 443}, rate: 1Gbps}
policy:
  root: {wfq: {web: 3, bulk: 1}}
  web:  {match: {dst_port: [80, 443]}, min: 500Mbps, via: [api]}
  bulk: {flows: drr}
";

fn check(files: &[(&str, &str)]) -> Checked {
    let mut load = |name: &str| {
        let found = files.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
    };
    check_with(files[0].0, &mut load).unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

fn example() -> Checked {
    check(&[("p.yaml", OPERATOR), ("shop.yaml", SHOP)])
}

#[test]
fn the_contract_example_compiles_to_the_tree_it_draws() {
    let program = example().program;
    let names: Vec<&str> = program.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "root",
            "mgmt",
            "tenants",
            "tenants/shop",
            "tenants/batch",
            "tenants/shop/web",
            "tenants/shop/bulk",
            "default"
        ]
    );
    assert_eq!(program.nodes[0].kind, NodeKind::Priority);
    assert_eq!(program.nodes[3].weight, 2);
    assert_eq!(program.nodes[6].kind, NodeKind::Class(FlowOrder::Drr));
    assert_eq!(program.nodes[2].min, Some(BitRate::gbps(3)), "what both tenants are promised");
    assert_eq!(program.nodes[3].min, Some(BitRate::gbps(2)), "the operator's word, not the tenant's");
    let tenants: Vec<&str> = program.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(tenants, ["shop", "batch", "host"]);
}

/// Whose descriptors the packets of an operator's class hold.
#[test]
fn a_class_has_the_sender_that_all_its_matches_name() {
    let text = "
uplink: {port: memory, rate: 10Gbps}
tenants: {a: {port: memory}, b: {port: memory}}
policy:
  root: {wfq: {a: 1, b: 1, one: 1, any: 1, both: 1}}
  one:  {match: {tenant: a, dst_port: 80}}
  both: {match: {tenant: [a, b], dst_port: 81}}
  any:  {match: {dst_port: 82}}
";
    let program = check(&[("p.yaml", text)]).program;
    let sender = |name: &str| {
        let node = program.nodes.iter().find(|node| node.name == name).expect("a class");
        node.sender.map(|tenant| program.tenants[tenant.0 as usize].name.as_str())
    };
    assert_eq!(["one", "both", "any"].map(sender), [Some("a"), None, None]);
}

#[test]
fn limits_come_in_the_order_in_which_a_packet_passes_them() {
    let program = example().program;
    let fields = Fields {
        tenant: Some(program.tenants[0].node).map(|_| plimsoll_policy::TenantId(0)),
        addresses: Some(("10.0.0.1".parse().unwrap(), "203.0.113.9".parse().unwrap())),
        protocol: Some(6),
        ports: Some((40_000, 443)),
        ..Fields::default()
    };
    let placement = program.classify(&fields);
    assert_eq!(program.node(placement.class).name, "tenants/shop/web");
    let limits: Vec<&str> =
        placement.limits.iter().map(|&limit| program.limit(limit).name.as_str()).collect();
    assert_eq!(limits, ["max(tenants/shop)", "wan", "tenants/shop/api"]);
    let wan = program.limits.iter().find(|limit| limit.name == "wan").unwrap();
    assert_eq!((wan.rate, wan.burst), (BitRate::mbps(500), Bytes::kib(64)));
    assert!(matches!(&wan.scope, Scope::Match { via, .. } if program.node(via[0]).name == "tenants"));
}

#[test]
fn a_limit_may_name_several_tenants_or_classes() {
    let policy = |matches: &str| {
        format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, policy: {{root: {{wfq: [voice, a, b, c]}}, voice: {{match: {{tenant: a, \
             dscp: ef}}}}}}, tenants: {{a: {{port: memory, user: 7}}, b: {{port: memory, user: 7}}, c: {{port: memory}}}}, \
             limits: {{both: {{match: {matches}, rate: 100Mbps}}}}}}"
        )
    };
    let held = |matches: &str| {
        let program = check(&[("p.yaml", &policy(matches))]).program;
        let limits = (0..3).map(|id| {
            let fields = Fields { tenant: Some(plimsoll_policy::TenantId(id)), ..Fields::default() };
            let placement = program.classify(&fields);
            assert_eq!(plimsoll_policy::Classifier::new(&program).classify(&program, &fields), placement);
            !placement.limits.is_empty()
        });
        limits.collect::<Vec<_>>()
    };
    assert_eq!(held("{tenant: [a, b]}"), [true, true, false]);
    assert_eq!(held("{tenant: [b, b]}"), [false, true, false], "written twice");
    assert_eq!(held("{class: [b, c]}"), [false, true, true]);
    assert_eq!(held("{tenant: [a, b], user: 7}"), [true, true, false], "stated of each");
    let explained = policy("{tenant: [a, b], dst_port: 443}");
    let program = check(&[("p.yaml", &explained)]).program;
    let voice = Fields {
        tenant: Some(plimsoll_policy::TenantId(0)),
        addresses: Some(("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())),
        protocol: Some(6),
        ports: Some((1, 443)),
        dscp: 46,
        ..Fields::default()
    };
    let placement = program.classify(&voice);
    assert_eq!(program.node(placement.class).name, "voice");
    assert_eq!(placement.limits.len(), 1, "also in a class outside of the tenant");
    let refused = plimsoll_policy::check_str("p.yaml", &policy("{tenant: [a, d]}")).expect_err("no `d`");
    assert!(refused.render(false).contains("`d`"), "{}", refused.render(false));
    let refused =
        plimsoll_policy::check_str("p.yaml", &policy("{tenant: [a, c], user: 7}")).expect_err("not c's");
    assert!(refused.render(false).contains("fills no `user`"), "{}", refused.render(false));
}

/// Two tenants behind 20 Mb/s get 10 each, whether the limit names their classes or them.
#[test]
fn a_limit_by_tenants_lowers_what_their_classes_are_promised() {
    let guaranteed = |matches: &str, more: &str| {
        let policy = format!(
            "{{uplink: {{port: memory, rate: 100Mbps}}, tenants: {{a: {{port: memory}}, b: {{port: memory}}, c: {{port: memory}}}}, \
             limits: {{shared: {{rate: 20Mbps, match: {matches}}}}}{more}}}"
        );
        let program = check(&[("p.yaml", &policy)]).program;
        let bounds = plimsoll_policy::bounds(&program);
        let rate = |name: &str| {
            let bound = bounds.iter().find(|bound| bound.name == name).unwrap_or_else(|| panic!("{name}"));
            bound.guaranteed.map_or(0, |rate| rate.get() / 100_000)
        };
        [rate("a"), rate("b"), rate("c")]
    };
    assert_eq!(guaranteed("{class: [a, b]}", "")[..2], [100, 100]);
    assert_eq!(guaranteed("{tenant: [a, b]}", ""), [100, 100, 333]);
    assert_eq!(guaranteed("{tenant: a}", ""), [200, 333, 333]);
    assert_eq!(
        guaranteed("{tenant: [a, b], protocol: tcp}", ""),
        [333, 333, 333],
        "other packets go past it"
    );
    // A class of all tenants' takes its part of the limit as well.
    let voice = ", policy: {root: {wfq: [a, b, c, voice]}, voice: {match: {dscp: ef}}}";
    assert_eq!(guaranteed("{tenant: [a, b]}", voice), [66, 66, 250]);
}

#[test]
fn a_limit_may_name_the_class_that_is_not_stated() {
    let policy = |class: &str| {
        format!(
            "{{uplink: {{port: memory, rate: 100Mbps}}, tenants: {{a: {{port: memory}}, b: {{port: memory}}}}, \
             limits: {{shared: {{rate: 20Mbps, match: {{class: [a, {class}]}}}}}}, \
             policy: {{root: {{wfq: [a, b, web]}}, web: {{match: {{dst_port: 80}}}}}}}}"
        )
    };
    let program = check(&[("p.yaml", &policy("default"))]).program;
    let default = program.find("default").expect("a class");
    assert_eq!(program.node(default).name, "default");
    let refused = plimsoll_policy::check_str("p.yaml", &policy("defaul")).expect_err("no class");
    assert!(refused.render(false).contains("there is no class `defaul`"), "{}", refused.render(false));
}

#[test]
fn a_key_that_belongs_below_says_where() {
    let policy = "{uplink: {port: memory, rate: 1Gbps}, tenants: {a: {port: {tap: {name: eth0}}, routes: [default via 10.0.0.1]}}}";
    let refused = plimsoll_policy::check_str("p.yaml", policy).expect_err("not there").render(false);
    assert!(refused.contains("`routes` is a key of `interface`"), "{refused}");
}

#[test]
fn an_interface_is_a_taps_and_its_parts_fit() {
    let refused = |port: &str, more: &str, interface: &str| {
        let policy = format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{a: {{port: {port}, {more} interface: {{{interface}}}}}}}}}"
        );
        plimsoll_policy::check_str("p.yaml", &policy)
            .map_err(|errors| errors.render(false))
            .err()
            .unwrap_or_default()
    };
    let tap = "{tap: {name: eth0}}";
    assert_eq!(
        refused(tap, "", "addresses: [10.0.0.5/24], routes: [default via 10.0.0.1, 10.9.0.0/16], mtu: 1500"),
        ""
    );
    assert_eq!(refused(tap, "addresses: 10.0.0.0/24,", "addresses: 10.0.0.5/24"), "");
    let bad = |port, more, interface, says: &str| {
        let said = refused(port, more, interface);
        assert!(said.contains(says), "{says}: {said}");
    };
    bad("memory", "", "mtu: 1400", "its port is no TAP");
    bad(tap, "", "mtu: 1501", "write 68 to 1500");
    bad(tap, "", "addresses: 'fd00::1/64', mtu: 1279", "write 1280 to 1500");
    bad(tap, "", "addresses: 10.0.0.5/24, routes: default via 10.0.1.1", "on a network with 10.0.1.1");
    bad(tap, "", "addresses: 10.0.0.5", "the length of its network");
    bad(tap, "addresses: 10.0.0.6,", "addresses: 10.0.0.5/24", "lack 10.0.0.5");
    bad(tap, "", "addresses: 10.9.0.0/24", "it is the address of the network itself");
    bad(tap, "", "addresses: 127.0.0.1/8", "it is a loopback address");
    bad(tap, "", "addresses: 224.0.0.1/8", "it is a multicast address");
    bad(tap, "", "addresses: 10.0.0.5/24, routes: default via 10.0.0.5", "is tenant `a`'s own address");
}

#[test]
fn a_sub_policy_may_be_one_class() {
    let operator =
        "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory, policy: shop.yaml}}}";
    let program = check(&[("p.yaml", operator), ("shop.yaml", "policy: {root: {flows: drr}}")]).program;
    let fields = Fields { tenant: Some(plimsoll_policy::TenantId(0)), ..Fields::default() };
    let class = program.classify(&fields).class;
    assert_eq!(program.node(class).name, "shop");
    assert_eq!(program.node(class).kind, NodeKind::Class(FlowOrder::Drr));
}

#[test]
fn a_node_is_found_by_its_path_or_by_an_end_that_no_other_has() {
    let program = example().program;
    let find = |name: &str| program.find(name).map(|id| program.node(id).name.as_str());
    assert_eq!(find("tenants/shop/web"), Some("tenants/shop/web"));
    assert_eq!(find("shop/web"), Some("tenants/shop/web"));
    assert_eq!(find("mgmt"), Some("mgmt"));
    assert_eq!(find("hop"), None, "part of a name");
    let program = check(&[("p.yaml", &QUEUES.replace("c0: {match: {core: 0}}", "rest: {}"))]).program;
    assert_eq!(program.find("rest"), None, "two end so");
    assert!(program.find("bulk/rest").is_some());
}

/// A class's own queues, in a tenant and in a class with a match.
const QUEUES: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants:
  shop:  {port: memory, queues: {voice: {match: {dscp: ef}}, rest: {flows: drr}}, among: priority}
  batch: {port: {vnic: /run/plimsoll/batch.sock}}
policy:
  root:  {rate_share: {shop: 4Gbps, batch: 2Gbps, bulk: 1Gbps}}
  bulk:  {match: {tenant: batch, dst_port: 873}, queues: {c0: {match: {core: 0}}, c1: {match: {core: 1}}}}
";

#[test]
fn queues_divide_a_class_and_keep_its_place() {
    let program = check(&[("p.yaml", QUEUES)]).program;
    let find = |name: &str| program.nodes.iter().find(|node| node.name == name).expect(name);
    let kinds = ["shop", "bulk", "shop/rest"].map(|name| find(name).kind);
    assert_eq!(kinds, [NodeKind::Priority, NodeKind::Drr, NodeKind::Class(FlowOrder::Drr)]);
    assert_eq!(find("shop").rate, Some(BitRate::gbps(4)));
    assert_eq!(find("shop/voice").rate, None, "the class has the rate");
    let class = |tenant: u32, dscp: u8, port: u16, core: u16| {
        let fields = Fields {
            tenant: Some(plimsoll_policy::TenantId(tenant)),
            addresses: Some(("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())),
            dscp,
            ports: Some((40_000, port)),
            metadata: plimsoll_policy::Metadata { core: Some(core), ..Default::default() },
            ..Fields::default()
        };
        program.node(program.classify(&fields).class).name.clone()
    };
    assert_eq!(class(0, 46, 80, 0), "shop/voice");
    assert_eq!(class(0, 0, 873, 0), "shop/rest", "the match of `bulk` takes only the packets of `batch`");
    assert_eq!(class(1, 46, 873, 1), "bulk/c1", "a queue takes its part of what its class takes");
    assert_eq!(class(1, 46, 873, 7), "bulk/default", "what no queue takes has one of its own, the last");
    assert_eq!(class(1, 46, 80, 1), "batch");
}

/// One file in seventy places; a million classes take fourteen times as long (docs/policy.md).
#[test]
fn a_policy_may_have_as_many_classes_as_the_engine_has_flow_queues() {
    let list = |count: usize, word: &str| (0..count).map(|n| format!("{word}{n}")).collect::<Vec<_>>();
    let classes = list(1_000, "c");
    let rates = classes.iter().map(|class| format!("{class}: 10kbps")).collect::<Vec<_>>().join(", ");
    let matches = (0..)
        .zip(&classes)
        .map(|(n, class)| format!("  {class}: {{match: {{dst: 10.0.{}.{}}}}}\n", n >> 8, n & 255));
    let many = format!("policy:\n  root: {{rate_share: {{{rates}}}}}\n{}", matches.collect::<String>());
    let host = |queues: u32| {
        let tenants = list(70, "t")
            .iter()
            .map(|t| format!("  {t}: {{port: memory, policy: many.yaml}}\n"))
            .collect::<String>();
        format!("uplink: {{port: memory, rate: 10Gbps}}\nengine: {{queues: {queues}}}\ntenants:\n{tenants}")
    };
    let verdict = |queues: u32| {
        let files = [("p.yaml", host(queues)), ("many.yaml", many.clone())];
        let mut load =
            |name: &str| Ok(files.iter().find(|(known, _)| *known == name).expect("known").1.clone());
        check_with("p.yaml", &mut load)
    };
    let program = verdict(100_000).unwrap_or_else(|errors| panic!("{}", errors.render(false))).program;
    assert_eq!(program.nodes.len(), 2 + 70 * 1_002, "with a default class in each place, and one of all");
    let errors = verdict(16_384).expect_err("more than 65,536 classes");
    assert!(errors.problems().iter().any(|problem| problem.rule == plimsoll_policy::Law::TooLarge));
}

#[test]
fn a_minimum_below_a_strict_rate_must_fit_it() {
    let refused = |a: &str, b: &str| {
        let text = format!(
            "{{uplink: {{port: memory, rate: 10Gbps}}, tenants: {{a: {{port: memory{a}}}, b: {{port: memory{b}}}}}, \
             policy: {{root: {{rate_share: {{both: 1Gbps}}}}, both: {{wfq: [a, b]}}}}}}"
        );
        let errors = plimsoll_policy::check_str("p.yaml", &text).err()?;
        Some(errors.problems().iter().map(|problem| problem.rule).collect::<Vec<_>>())
    };
    use plimsoll_policy::Law;
    assert_eq!(refused(", min: 500Mbps", ", min: 500Mbps"), None);
    assert_eq!(refused(", min: 1500Mbps", ""), Some(vec![Law::MinAboveMax]), "one of them");
    assert_eq!(refused(", min: 500Mbps", ", min: 600Mbps"), Some(vec![Law::MinAboveMax]), "both together");
}

#[test]
fn a_leaf_may_cap_the_descriptors_of_its_flows() {
    let file = |web: &str, root: &str| {
        format!(
            "uplink: {{port: memory, rate: 10Gbps}}\ntenants: {{shop: {{port: memory, descriptors: 4096}}}}\npolicy:\n  \
             root: {{priority: [web, rest]{root}}}\n  web: {{match: {{tenant: shop, dst_port: 80}}, {web}}}\n  rest: {{}}\n"
        )
    };
    let check = |text: &str| plimsoll_policy::check_str("p.yaml", text);
    let program = check(&file("descriptors: 256", "")).expect("legal").program;
    let caps: Vec<_> = program.nodes.iter().map(|node| (node.name.as_str(), node.descriptors)).collect();
    assert_eq!(caps, [("root", None), ("web", Some(256)), ("rest", None)]);
    let queues = file("descriptors: 256, queues: {a: {match: {dscp: ef}}, b: {}}", "");
    let program = check(&queues).expect("legal").program;
    assert_eq!(program.nodes[1].descriptors, Some(256), "the queues hold them together");
    let refused = |text: String| check(&text).expect_err("refused").render(false);
    let told = refused(file("", ", descriptors: 256"));
    assert!(told.contains("`root` has children and `descriptors`"), "{told}");
    let told = refused(file("descriptors: 0", ""));
    assert!(told.contains("`descriptors` of class `web` is zero"), "{told}");
    let told = refused(file("descriptors: 256, policy: web.yaml", ""));
    assert!(told.contains("`web` has `descriptors` and a `policy` file"), "{told}");
}

#[test]
fn mistakes_in_queues_are_told() {
    let refused = |from: &str, to: &str, law: plimsoll_policy::Law| {
        let text = QUEUES.replacen(from, to, 1);
        assert_ne!(text, QUEUES, "{from}");
        let errors = plimsoll_policy::check_str("p.yaml", &text).expect_err(to);
        assert!(errors.problems().iter().any(|problem| problem.rule == law), "{}", errors.render(false));
    };
    use plimsoll_policy::Law;
    refused("among: priority", "among: wfq", Law::BadValue);
    refused("queues: {voice: {match: {dscp: ef}}, rest: {flows: drr}}, ", "", Law::Meaningless);
    refused("queues: {voice: {match: {dscp: ef}}, rest: {flows: drr}}", "queues: {}", Law::BadValue);
    refused("rest: {flows: drr}", "rest: {max: 1Gbps}", Law::UnknownKey);
    refused("rest: {flows: drr}", "rest: {}, more: {}", Law::NeverMatches);
    refused("rest: {flows: drr}", "root: {flows: drr}", Law::BadName);
    refused("{match: {core: 1}}", "{match: {tenant: shop}}", Law::NeverMatches);
    refused("among: priority", "flows: drr", Law::Meaningless);
    refused("among: priority", "policy: p.yaml", Law::Meaningless);
    refused("  root:  {", "  root:  {queues: {a: {}}, ", Law::Meaningless);
}

/// The descriptors of the host and of each of `tenants` tenants that state none.
fn caps(engine: &str, tenants: usize) -> (u32, Vec<u32>) {
    let tenants: String = (0..tenants).map(|index| format!("  t{index}: {{port: memory}}\n")).collect();
    let text = format!(
        "uplink: {{port: memory, rate: 10Gbps}}\n{engine}tenants:\n  big: {{port: memory, descriptors: 1000}}\n{tenants}"
    );
    let checked = plimsoll_policy::check_str("p.yaml", &text)
        .unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let caps = checked.program.tenants.iter().map(|tenant| tenant.descriptors).collect();
    (checked.config.engine.descriptors, caps)
}

#[test]
fn tenants_that_state_no_descriptors_divide_what_the_others_leave() {
    assert_eq!(caps("engine: {descriptors: 4000}\n", 3), (4_000, vec![1_000, 1_000, 1_000, 1_000]));
    assert_eq!(caps("", 2), (65_536, vec![1_000, 32_268, 32_268]));
}

#[test]
fn many_tenants_raise_the_hosts_default_and_never_exceed_it() {
    for tenants in [1, 31, 2_000, 2_100, 4_000] {
        let (host, caps) = caps("", tenants);
        let sum: u32 = caps.iter().sum();
        assert!(sum <= host, "{tenants} tenants may have {sum} of {host}");
        assert!(caps.iter().all(|cap| *cap >= 32), "{tenants} tenants: {:?}", caps.iter().min());
    }
}

#[test]
fn four_thousand_tenants_share_without_a_policy() {
    let tenants: String = (0..4_096)
        .map(|index| format!("  t{index}: {{port: memory, max: 100Mbps, weight: {}}}\n", index % 7 + 1))
        .collect();
    let text = format!(
        "uplink: {{port: memory, rate: 100Gbps}}\nengine: {{line_rate_frame: 4000B}}\ntenants:\n{tenants}"
    );
    let checked = check(&[("p.yaml", text.as_str())]);
    let bounds = plimsoll_policy::bounds(&checked.program);
    assert_eq!(bounds.len(), 4_097);
    let fields = Fields { tenant: Some(plimsoll_policy::TenantId(4_000)), ..Fields::default() };
    let placement = plimsoll_policy::Classifier::new(&checked.program).classify(&checked.program, &fields);
    assert_eq!(checked.program.node(placement.class).name, "t4000");
}

/// A tenant's link must not show the tenant what only the operator may read.
#[test]
fn a_symbolic_link_out_of_the_policys_directory_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("etc/tenants")).expect("made");
    std::fs::write(at("secret"), "root: secret\n").expect("written");
    std::os::unix::fs::symlink(at("secret"), at("etc/tenants/escape.yaml")).expect("linked");
    std::fs::write(at("etc/tenants/plain.yaml"), "policy: {root: {flows: drr}}\n").expect("written");
    std::os::unix::fs::symlink("plain.yaml", at("etc/tenants/inside.yaml")).expect("linked");
    let policy = |file: &str| {
        let text = format!(
            "uplink: {{port: memory, rate: 1Gbps}}\ntenants: {{a: {{port: memory, policy: tenants/{file}.yaml}}}}\n"
        );
        std::fs::write(at("etc/host.yaml"), text).expect("written");
        plimsoll_policy::load(&at("etc/host.yaml").display().to_string())
    };
    assert!(policy("plain").is_ok() && policy("inside").is_ok());
    let refused = policy("escape").expect_err("leads outside").render(false);
    assert!(refused.contains("symbolic link") && !refused.contains("secret\n"), "{refused}");
}

/// A tenant's file is shown to its operator, on a terminal.
#[test]
fn no_file_has_a_message_that_a_terminal_obeys() {
    for text in [
        "policy: {root: {wfq: [\"\\e]0;owned\\a\\e[31m\\u009b2J\\u202ered\", b]}}\n",
        "policy: {root: {wfq: [\u{1b}[31mred, b]}}\n",
        "policy: {root: {wfq: [b]}, b: {max: 1Gbps, min: 2Gbps}} # \u{9b}2J \u{202e}\r\n",
        "\"\\e[2J\": 1\n",
    ] {
        let mut load = |name: &str| match name {
            "host.yaml" => {
                Ok("{uplink: {port: memory, rate: 1Gbps}, tenants: {a: {port: memory, policy: a.yaml}}}"
                    .to_owned())
            }
            _ => Ok(text.to_owned()),
        };
        let errors = plimsoll_policy::check_with("host.yaml", &mut load).expect_err("it is wrong");
        let shown = errors.render(false);
        let obeyed = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(shown.contains("a.yaml") && !shown.contains(obeyed), "{shown:?}");
    }
}

/// One tenant's match is compared with nearly as many others of its own as may be compared.
#[test]
fn a_tenants_long_matches_leave_others_theirs() {
    let host = "{uplink: {port: memory, rate: 1Gbps}, tenants: {a: {port: memory, policy: a.yaml}, b: {port: memory, \
                policy: b.yaml}}}";
    // The addresses of a file are compared with those of the file that names it.
    let text = |count: u32, rest: &str| {
        let list: Vec<String> = (0..count).map(|n| format!("10.{}.{}.0/24", n >> 8, n & 255)).collect();
        format!(
            "policy: {{root: {{fifo: [x, y]}}, x: {{match: {{src: [{}]}}{rest}}}, y: {{}}}}\n",
            list.join(", ")
        )
    };
    let files = [
        ("host.yaml", host.to_owned()),
        ("a.yaml", text(8_150, ", policy: of_a.yaml")),
        ("of_a.yaml", text(8_150, "")),
        ("b.yaml", text(1_000, ", policy: of_b.yaml")),
        ("of_b.yaml", text(1_000, "")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    check(&files);
}

/// A tenant can replace its file with another thing at any moment.
#[test]
fn a_file_that_is_exchanged_while_it_is_read_does_not_block_and_shows_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("etc")).expect("made");
    std::fs::write(at("secret"), "root: secret\n").expect("written");
    std::fs::write(at("plain"), "policy: {root: {flows: drr}}\n").expect("written");
    std::os::unix::fs::symlink(at("secret"), at("link")).expect("linked");
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status();
    assert!(made.is_ok_and(|made| made.success()));
    let text = "uplink: {port: memory, rate: 1Gbps}\ntenants: {a: {port: memory, policy: a.yaml}}\n";
    std::fs::write(at("etc/host.yaml"), text).expect("written");
    let put = |what: &str| {
        std::fs::hard_link(at(what), at("next")).expect("linked");
        std::fs::rename(at("next"), at("etc/a.yaml")).expect("moved");
    };
    put("plain");
    let (host, (tell, told)) = (at("etc/host.yaml").display().to_string(), std::sync::mpsc::channel());
    let reads = std::thread::spawn(move || {
        let read = |_| plimsoll_policy::load(&host).map_err(|errors| errors.render(false));
        tell.send((0..3_000).map(read).collect::<Vec<_>>())
    });
    let begun = std::time::Instant::now();
    while !reads.is_finished() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it waits for a writer of the pipe");
        ["pipe", "plain", "link", "plain"].into_iter().for_each(put);
    }
    let read = told.recv().expect("all are read");
    assert!(read.iter().any(Result::is_ok), "{:?}", read[0]);
    let shown =
        read.iter().filter_map(|read| read.as_ref().err()).find(|error| error.contains("root: secret"));
    assert_eq!(shown, None);
}

/// A filter that leaves the destination open must not say that no limit holds.
#[test]
fn explain_names_limits_that_the_filter_leaves_open() {
    let text = "
uplink: {port: memory, rate: 1Gbps}
tenants: {a: {port: memory}, b: {port: memory}}
limits:
  far: {match: {dst: 10.9.0.10}, rate: 10Mbps}
  b-only: {match: {tenant: b}, rate: 10Mbps}
policy:
  root: {wfq: {a: 1, b: 1}, via: [far, b-only]}
";
    let program = plimsoll_policy::check_str("explain.yaml", text).expect("a legal policy").program;
    let explain = |filter: &str| {
        let filter = plimsoll_policy::Filter::parse(&program, filter).expect("a filter");
        plimsoll_policy::explain(&program, &filter).to_string()
    };
    assert!(explain("tenant=a protocol=tcp").contains("perhaps far at 10Mbps, if dst=10.9.0.10"));
    assert!(!explain("tenant=a protocol=tcp").contains("perhaps b-only"));
    assert!(!explain("tenant=a dst=10.9.0.11").contains("perhaps"));
    assert!(explain("tenant=a dst=10.9.0.10").contains("limits far at 10Mbps"));
}

/// Rules hold no condition that the operator's words decide: what explains a packet must compare with these words.
#[test]
fn explain_counts_what_the_operator_states_of_a_tenant() {
    let text = "
uplink: {port: memory, rate: 10Gbps}
tenants:
  shop:    {port: {vnic: /run/shop.sock}, cgroup: 7}
  reports: {port: {tap: {netns: reports, name: eth0}}, user: 1000, cgroup: 8}
  mail:    {port: {tap: {netns: mail, name: eth0}}, user: 1000, cgroup: 8}
policy:
  root:    {wfq: {gold: 3, shop: 1, reports: 1, mail: 1, backups: 1}}
  gold:    {match: {tenant: shop, app: 1, cgroup: 7}}
  backups: {match: {user: 1000, protocol: tcp, dst_port: 873}}
";
    let program = plimsoll_policy::check_str("stated.yaml", text).expect("a legal policy").program;
    let explain = |filter: &str| {
        let filter = plimsoll_policy::Filter::parse(&program, filter).map_err(|error| error.to_string())?;
        Ok::<_, String>(plimsoll_policy::explain(&program, &filter))
    };
    for filter in ["tenant=shop app=1", "tenant=shop app=1 cgroup=7"] {
        assert_eq!(explain(filter).expect("a packet").class, "gold", "{filter}");
    }
    assert_eq!(
        explain("tenant=shop app=1 cgroup=5").expect_err("no such packet"),
        "`tenant=shop app=1 cgroup=5`: the `cgroup` of tenant `shop` is 7, so it sends no such packet"
    );
    let mail = explain("tenant=mail user=5 protocol=tcp dst_port=873").expect_err("no such packet");
    assert!(mail.contains("the `user` of tenant `mail` is 1000"), "{mail}");
    // Its client may say any user.
    assert_eq!(explain("tenant=shop user=5").expect("a packet").class, "shop");
    // No packet of a TAP names a core.
    assert_eq!(
        explain("tenant=mail core=1").err().as_deref(),
        Some(
            "`tenant=mail core=1`: the port of tenant `mail` fills no `core`; a `vnic` port fills it, from what its client says"
        )
    );
    assert_eq!(explain("app=1").expect("shop's").class, "gold");
    let mistakes = explain("tenant=nosuch core=x port=80").expect_err("three mistakes");
    let mistakes: Vec<&str> = mistakes.lines().collect();
    assert_eq!(
        mistakes[0],
        "`tenant=nosuch`: there is no tenant `nosuch`; the tenants are shop, reports, mail"
    );
    assert_eq!(mistakes[1], "`core=x`: write a whole number from 0 to 65535");
    assert!(
        mistakes.len() == 3 && mistakes[2].starts_with("`port=80`: there is no key `port`"),
        "{mistakes:?}"
    );
    let rsync = explain("user=1000 protocol=tcp dst_port=873").expect("packets of three tenants");
    assert_eq!(rsync.class, "depends on the tenant: shop for shop; backups for reports, mail");
    let text = rsync.to_string();
    assert!(text.ends_with("name the tenant to see its limits and its rate\n"), "{text}");
    let rsync = explain("user=1000 cgroup=8 protocol=tcp dst_port=873").expect("packets of two tenants");
    assert_eq!(rsync.class, "backups");
    let rule = rsync.rule.expect("one for each of them");
    assert!(rule.contains("tenant=reports") && rule.contains("; rule 3 of "), "{rule}");
    assert_eq!(explain("user=5 cgroup=7").expect("shop's").class, "shop");
    let none = explain("user=5 cgroup=8").expect_err("shop has control group 7, the others have user 1000");
    assert!(none.contains("each tenant has another `cgroup` or `user`"), "{none}");
    let class = explain("class=gold").expect_err("of a daemon only");
    assert!(class.contains("only a running daemon") && class.contains("without `--policy`"), "{class}");
    let key = explain("tennant=shop").expect_err("no such key");
    assert!(key.contains("did you mean `tenant`? The keys are tenant, src"), "{key}");
    let key = explain("qqqqqqqqqq=1").expect_err("no such key");
    assert!(key.contains("there is no key `qqqqqqqqqq`; the keys are tenant, src"), "{key}");
}

#[test]
fn explain_says_that_no_port_fills_a_field() {
    let text = "
uplink: {port: memory, rate: 10Gbps}
tenants: {mail: {port: {tap: {netns: mail, name: eth0}}}}
";
    let program = plimsoll_policy::check_str("tap.yaml", text).expect("a legal policy").program;
    let refused = |filter: &str| {
        plimsoll_policy::Filter::parse(&program, filter).expect_err("no such packet").to_string()
    };
    assert_eq!(
        refused("tenant=mail cgroup=9"),
        "`tenant=mail cgroup=9`: the port of tenant `mail` fills no `cgroup`; a `vnic` port fills it, from what its client says, or the tenant's own key"
    );
    assert_eq!(
        refused("app=1"),
        "`app=1`: no port of this policy fills `app`; a `vnic` port fills it, from what its client says"
    );
}

/// A port with a mistake may have been a vNIC: only its own error is told.
#[test]
fn a_port_that_cannot_be_read_has_no_second_error() {
    let text = "
uplink: {port: memory, rate: 10Gbps}
tenants: {shop: {port: {vnick: /run/shop.sock}}}
policy:
  root: {wfq: {gold: 3, shop: 1}}
  gold: {match: {tenant: shop, app: 1}}
";
    let error = plimsoll_policy::check_str("port.yaml", text).expect_err("no such kind of port");
    assert_eq!(error.to_string(), "port.yaml: 1 error");
}

#[test]
fn odd_files_are_refused_in_words_that_an_operator_understands() {
    let deep = format!("uplink: {}1{}", "{a: ".repeat(200), "}".repeat(200));
    let bomb: String = ('b'..='h')
        .zip('a'..)
        .map(|(name, of)| format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 9].join(", ")))
        .collect();
    for (text, said) in [
        (deep.as_str(), "nested deeper than 24 levels"),
        (&"[".repeat(5_000), "nested deeper than 24 levels"),
        (&format!("a: &a [x, x]\n{bomb}"), "more values than a file may have"),
        ("uplink: 1\n---\nuplink: 2\n", "a second document begins here"),
    ] {
        let errors = plimsoll_policy::check_str("odd.yaml", text).expect_err("odd");
        assert!(errors.problems()[0].message.contains(said), "{}", errors.problems()[0].message);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.yaml").to_string_lossy().into_owned();
    std::fs::write(&file, b"uplink: 1\n\xff").expect("written");
    let errors = plimsoll_policy::load(&file).expect_err("no text");
    assert!(errors.problems()[0].message.contains("byte 11 of it, in line 2"), "{}", errors.render(false));
    std::fs::write(&file, "uplink: {port: memory, rate: 1Gbps}\ntenants: {a: {port: memory, policy: sub}}\n")
        .expect("written");
    std::fs::create_dir(folder.path().join("sub")).expect("made");
    let errors = plimsoll_policy::load(&file).expect_err("a directory");
    assert!(errors.problems()[0].message.contains("no regular file"), "{}", errors.render(false));
}

#[test]
fn a_core_that_this_machine_has_not_raises_a_doubt() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.yaml").to_string_lossy().into_owned();
    let warnings = |cpu: u32| {
        let text = format!(
            "uplink: {{port: memory, rate: 1Gbps}}\nengine: {{cpu: {cpu}}}\ntenants: {{a: {{port: memory}}}}\n"
        );
        std::fs::write(&file, text).expect("written");
        plimsoll_policy::load(&file).expect("a doubt is no mistake").warning_records()
    };
    let told = warnings(9_999_999);
    assert_eq!((told.len(), told[0].line, told[0].column), (1, 2, 15), "{told:?}");
    assert!(told[0].message.contains("`cpu` is 9999999, but this machine's cores are "), "{told:?}");
    assert!(warnings(0).is_empty(), "every machine has a first core");
}

/// Below some rate no burst is both a frame and within a minute; two frames are never too much.
#[test]
fn a_slow_limit_may_hold_two_frames() {
    let burst = |burst: u32| {
        let text = format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{a: {{port: memory, max: 100bps, burst: {burst}B}}}}}}"
        );
        plimsoll_policy::check_str("p.yaml", &text).map_err(|errors| errors.problems()[0].rule)
    };
    assert!(burst(1_518).is_ok() && burst(3_036).is_ok());
    assert_eq!(burst(3_037).expect_err("too large"), plimsoll_policy::Law::BurstTooLarge);
}

#[test]
fn a_key_that_is_repeated_is_refused_wherever_it_stands() {
    for (again, what) in [
        ("engine: {ring: 64}\nengine: {ring: 64}\n", "`engine` is there twice in the policy file"),
        ("engine: {ring: 64, ring: 64}\n", "`ring` is there twice in `engine`"),
        ("engine: {experiment: {slots: 1, slots: 1}}\n", "`slots` is there twice in `experiment`"),
        ("limits: {l: {rate: 1Mbps}, l: {rate: 1Mbps}}\n", "`l` is there twice in `limits`"),
        ("policy: {root: {wfq: {c: 1, c: 1}}, c: {}}\n", "`c` is there twice in `wfq` of class `root`"),
        // Keys that are numbers stand beside it, and are none themselves.
        (
            "limits: {7: {rate: 1Mbps}, l: {rate: 1Mbps}, l: {rate: 1Mbps}}\n",
            "`l` is there twice in `limits`",
        ),
        ("limits: {1: {rate: 1Mbps}, 1: {rate: 1Mbps}}\n", "`1` is there twice in `limits`"),
    ] {
        let text =
            format!("uplink: {{port: memory, rate: 1Gbps}}\ntenants: {{a: {{port: memory}}}}\n{again}");
        let errors = check_str("p.yaml", &text).expect_err(again);
        let found = errors.problems().iter().find(|problem| problem.rule == Law::DuplicateKey).expect(again);
        assert!(found.message == what && found.also.len() == 1, "{found:?}");
    }
}

#[test]
fn two_spellings_of_a_number_are_two_keys() {
    let text = "uplink: {port: memory, rate: 1Gbps}\ntenants: {1: {port: memory}, 0x1: {port: memory}}\n";
    let shown = check_str("p.yaml", text).expect_err("no names").render(false);
    assert!(shown.contains("`1` is no name") && shown.contains("`0x1` is no name"), "{shown}");
}

#[test]
fn a_merge_is_refused() {
    let text = "uplink: {<<: {rate: 1Gbps, rate: 2Gbps}, port: memory}\n";
    let shown = check_str("p.yaml", text).expect_err("a merge").render(false);
    assert!(shown.contains("`<<` merges one map into another, which is not read here"), "{shown}");
    assert!(shown.contains("p.yaml:1:10"), "{shown}");
}

#[test]
fn a_file_that_is_no_map_has_one_error() {
    for (text, what) in [
        ("hello\n", "the policy file is a single value, not a map"),
        ("[hello]\n", "the policy file is a list, not a map"),
        ("", "the policy file has no `uplink`"),
    ] {
        let errors = check_str("p.yaml", text).expect_err("no policy");
        let messages: Vec<&str> = errors.problems().iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(messages, [what]);
    }
}

#[test]
fn a_standby_has_five_seconds_to_wait_unless_stated_and_is_shown() {
    let checked = |uplink: &str| {
        let text = format!(
            "{{uplink: {{port: {{af_packet: eth0}}, {uplink}}}, tenants: {{shop: {{port: memory}}}}}}"
        );
        check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)))
    };
    let alone = checked("rate: 1Gbps");
    let two = checked("rate: 1Gbps, standby: {af_xdp: eth1}");
    let slow = checked("rate: 1Gbps, standby: {af_xdp: eth1}, hold_off: 35s");
    assert_eq!((&alone.config.uplink.standby, two.config.uplink.hold_off), (&None, Span::secs(5)));
    assert_eq!(slow.config.uplink.hold_off, Span::secs(35));
    let at_once = checked("rate: 1Gbps, standby: {af_xdp: eth1}, hold_off: 0s");
    assert_eq!(at_once.config.uplink.hold_off, Span::ZERO);
    let shown = plimsoll_policy::tree_text(&at_once);
    assert!(shown.contains("{af_packet: eth0} takes back as soon as it has a carrier again"), "{shown}");
    let text = plimsoll_policy::tree_text(&two);
    assert!(text.contains("the standby {af_xdp: eth1} carries all frames at 1Gbps"), "{text}");
    assert!(text.contains("takes back once it has carried for 5s"), "{text}");
    assert!(!plimsoll_policy::tree_text(&alone).contains("standby"));
    let report = serde_json::to_value(plimsoll_policy::report(&slow)).expect("JSON");
    assert_eq!(report["standby"]["port"], "{af_xdp: eth1}");
    let changes = plimsoll_policy::diff(&alone, &two).to_string();
    assert!(changes.contains("uplink: standby none -> {af_xdp: eth1}"), "{changes}");
    let changes = plimsoll_policy::diff(&two, &slow).to_string();
    assert_eq!(changes.trim(), "~ uplink: hold_off 5s -> 35s");
}
