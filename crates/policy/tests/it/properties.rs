//! Properties of every text and every legal policy.
#![cfg(feature = "testing")]

use plimsoll_policy::testing::{fields, policies};
use plimsoll_policy::{
    Classifier, Match, NodeId, Prefix, bounds, check_str, diff, explain, report, svg, tree_text,
};
use proptest::prelude::*;

const EXAMPLE: &str = include_str!("../../../../examples/wan-limits.yaml");

/// A condition as text: small values that overlap often, and such that add up to everything.
fn condition() -> impl Strategy<Value = String> {
    let of = |key: &'static str, values: &'static [&'static str]| {
        proptest::sample::subsequence(values, 1..=2)
            .prop_map(move |some| format!("{key}: [{}]", some.join(", ")))
    };
    prop_oneof![
        of("tenant", &["a", "b"]),
        of("protocol", &["tcp", "udp", "sctp", "icmp"]),
        of("dst_port", &["0-79", "80", "81-65535", "70-90"]),
        of("dst_port", &["0-80", "81-65535", "443"]),
        of("src", &["0.0.0.0/1", "128.0.0.0/1", "10.0.0.0/8"]),
        of("dst", &["10.0.0.0/31", "10.0.0.2/31", "10.0.0.0/30", "\"2001:db8::/32\""]),
        of("dscp", &["0", "ef"]),
        of("vlan", &["0", "7"]),
        of("user", &["0", "1"]),
    ]
}

/// One packet for each way in which [`condition`]s can tell packets apart.
fn universe() -> Vec<plimsoll_policy::Fields> {
    let v4 = |src: [u8; 4], dst| Some((src.into(), std::net::Ipv4Addr::from(dst).into()));
    let v6 = |dst: &str| Some(("2001:db8::1".parse().unwrap(), dst.parse().unwrap()));
    let mut addresses = vec![None, v6("2001:db8::2"), v6("2002::2")];
    for src in [[10, 0, 0, 9], [11, 0, 0, 1], [200, 0, 0, 1]] {
        addresses.extend([[10, 0, 0, 0], [10, 0, 0, 2], [192, 0, 2, 1]].map(|dst| v4(src, dst)));
    }
    let mut packets = Vec::new();
    for addresses in addresses {
        let ip = addresses.is_some();
        for protocol in if ip { vec![Some(6), Some(17), Some(132), Some(1), Some(47)] } else { vec![None] } {
            let ported = protocol.is_some_and(|protocol| [6, 17, 132].contains(&protocol));
            let ports: &[u16] = if ported { &[69, 75, 80, 85, 91, 443] } else { &[] };
            for port in ports.iter().copied().map(Some).chain([None]) {
                for dscp in if ip { vec![0, 46, 1] } else { vec![0] } {
                    for (tenant, vlan, user) in
                        triples(&[0, 1], &[0, 7, 8], &[None, Some(0), Some(1), Some(2)])
                    {
                        packets.push(plimsoll_policy::Fields {
                            tenant: Some(plimsoll_policy::TenantId(tenant)),
                            addresses,
                            protocol,
                            ports: port.map(|port| (9, port)),
                            dscp,
                            vlan,
                            metadata: plimsoll_policy::Metadata { user, ..Default::default() },
                        });
                    }
                }
            }
        }
    }
    packets
}

fn triples<A: Copy, B: Copy, C: Copy>(a: &[A], b: &[B], c: &[C]) -> Vec<(A, B, C)> {
    let pairs = a.iter().flat_map(|&a| b.iter().map(move |&b| (a, b)));
    pairs.flat_map(|(a, b)| c.iter().map(move |&c| (a, b, c))).collect()
}

/// Classes `c0`, `c1`, ... with these matches, and one for what is left of the tenants' packets.
fn classes_file(matches: &[String], tenants: &[&str]) -> String {
    let names: Vec<String> = (0..matches.len()).map(|index| format!("c{index}, ")).collect();
    let class = |(index, text): (usize, &String)| format!("  c{index}: {{match: {{{text}}}}}\n");
    format!(
        "uplink: {{port: memory, rate: 1Gbps}}\ntenants:\n{}policy:\n  root: {{wfq: [{}others]}}\n{}  others: \
         {{match: {{tenant: [{}]}}}}\n",
        tenants
            .iter()
            .map(|name| format!("  {name}: {{port: {{vnic: /run/{name}.sock}}}}\n"))
            .collect::<String>(),
        names.concat(),
        matches.iter().enumerate().map(class).collect::<String>(),
        tenants.join(", "),
    )
}

/// Conditions on metadata, with values that [`metadata`] often has.
fn metadata_match() -> impl Strategy<Value = String> {
    let fields = ["priority", "cgroup", "user", "app", "core"];
    let one = (proptest::sample::select(fields.to_vec()), 0..3);
    proptest::collection::btree_map(
        one.clone().prop_map(|(field, _)| field),
        one.prop_map(|(_, value)| value),
        1..3,
    )
    .prop_map(|fields| {
        fields.iter().map(|(field, value)| format!("{field}: {value}")).collect::<Vec<_>>().join(", ")
    })
}

/// Metadata that a client may send.
fn metadata() -> impl Strategy<Value = plimsoll_policy::Metadata> {
    use proptest::option::of;
    (of(0..3_u32), of(0..3_u64), of(0..3_u32), of(0..3_u32), of(0..3_u16)).prop_map(
        |(priority, cgroup, user, app, core)| plimsoll_policy::Metadata { priority, cgroup, user, app, core },
    )
}

/// Two clients, the user of one of which is stated, and a TAP whose control group and user are.
fn hostile_file(matches: &[String], limit: &str) -> String {
    let classes =
        (0..).zip(matches).map(|(index, text): (usize, _)| format!("  c{index}: {{match: {{{text}}}}}\n"));
    let names: String = (0..matches.len()).map(|index| format!("c{index}, ")).collect();
    format!(
        "uplink: {{port: memory, rate: 1Gbps}}\ntenants:\n  a: {{port: {{vnic: /run/a.sock}}}}\n  \
         b: {{port: {{vnic: /run/b.sock}}, user: 1}}\n  c: {{port: {{tap: {{name: c0}}}}, cgroup: 2, user: 1}}\n\
         limits: {{cap: {{match: {{{limit}}}, rate: 10Mbps}}}}\npolicy:\n  root: {{wfq: [{names}a, b, c], via: cap}}\n{}",
        classes.collect::<String>()
    )
}

/// Small matches that overlap often.
fn matches() -> impl Strategy<Value = Match> {
    let prefix = (0_u8..4, 30_u8..=32)
        .prop_map(|(last, len)| -> Prefix { format!("10.0.0.{last}/{len}").parse().expect("a prefix") });
    let ports = (1_u16..6, 0_u16..3).prop_map(|(from, more)| (from, from + more));
    let two = |most: usize| 0..=most;
    (
        proptest::collection::vec(prefix.clone(), two(2)),
        proptest::collection::vec(prefix, two(2)),
        proptest::collection::vec(prop_oneof![Just(6_u8), Just(17), Just(1)], two(2)),
        proptest::collection::vec(ports, two(2)),
        proptest::option::of((0_u32..2).prop_map(plimsoll_policy::TenantId)),
    )
        .prop_map(|(src, dst, protocol, dst_port, tenant)| Match {
            src,
            dst,
            protocol,
            dst_port,
            tenant: Vec::from_iter(tenant),
            ..Match::default()
        })
}

fn packet() -> impl Strategy<Value = plimsoll_policy::Fields> {
    let protocol = prop_oneof![Just(6_u8), Just(17), Just(1)];
    (0_u8..4, 0_u8..4, protocol, 1_u16..9, 0_u32..2).prop_map(|(src, dst, protocol, port, tenant)| {
        plimsoll_policy::Fields {
            tenant: Some(plimsoll_policy::TenantId(tenant)),
            addresses: Some(([10, 0, 0, src].into(), [10, 0, 0, dst].into())),
            protocol: Some(protocol),
            ports: (protocol != 1).then_some((1, port)),
            ..plimsoll_policy::Fields::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any text is answered.
    #[test]
    fn no_text_makes_it_panic(text in "(?s).{0,400}") {
        let _ = check_str("any.yaml", &text).map_err(|errors| errors.render(false));
    }

    /// Any text that looks almost like a policy is answered.
    #[test]
    fn no_damaged_policy_makes_it_panic(at in 0_usize..EXAMPLE.len(), len in 0_usize..40, with in "[a-z:{}\\[\\], \\n0-9\"*&-]{0,12}") {
        let start = (0..=at).rev().find(|&at| EXAMPLE.is_char_boundary(at)).unwrap_or(0);
        let end = (at + len).min(EXAMPLE.len());
        let end = (start..=end).rev().find(|&at| EXAMPLE.is_char_boundary(at)).unwrap_or(start);
        let text = format!("{}{with}{}", &EXAMPLE[..start], &EXAMPLE[end..]);
        let _ = check_str("damaged.yaml", &text).map_err(|errors| errors.render(false));
    }

    /// A compiled program keeps its promises about its own form, and all that can be shown of it can be shown.
    #[test]
    fn every_legal_policy_compiles_to_a_sound_program(policy in policies()) {
        let checked = policy.check();
        let program = &checked.program;
        for (index, node) in program.nodes.iter().enumerate() {
            prop_assert!(node.parent.is_none_or(|parent| (parent.0 as usize) < index), "parents come first");
            prop_assert_eq!(node.parent.is_none(), index == 0);
            for child in &node.children {
                prop_assert_eq!(program.node(*child).parent, Some(NodeId(index as u32)));
            }
        }
        prop_assert!(program.rules.iter().all(|rule| program.node(rule.class).children.is_empty()));
        let caps: u64 = program.tenants.iter().map(|tenant| u64::from(tenant.descriptors)).sum();
        prop_assert!(caps <= u64::from(checked.config.engine.descriptors), "the tenants' caps fit the host's");
        prop_assert!(diff(&checked, &checked).is_empty());
        prop_assert!(svg(&checked).ends_with("</svg>\n"));
        prop_assert!(tree_text(&checked).contains("guaranteed"));
        prop_assert!(serde_json::to_string(&report(&checked)).is_ok());
    }

    /// All classes together are never guaranteed more than the link carries.
    #[test]
    fn guarantees_fit_the_link(policy in policies()) {
        let program = policy.check().program;
        let sum: u64 = bounds(&program).iter().filter_map(|bound| bound.guaranteed).map(|rate| rate.get()).sum();
        prop_assert!(sum <= program.link.get(), "{sum} of {}", program.link);
    }

    /// The index answers as the plain search does.
    #[test]
    fn the_classifier_agrees_with_the_program(
        (policy, packets) in policies().prop_flat_map(|policy| {
            let tenants = u32::try_from(policy.files.len()).unwrap_or(1) - 1;
            (Just(policy), proptest::collection::vec(fields(tenants), 1..20))
        })
    ) {
        let program = policy.check().program;
        let classifier = Classifier::new(&program);
        for packet in packets {
            let placement = program.classify(&packet);
            prop_assert_eq!(&classifier.classify(&program, &packet), &placement);
            let explanation = explain(&program, &plimsoll_policy::Filter { fields: packet });
            prop_assert_eq!(explanation.placement, placement);
        }
    }

    /// A class is refused exactly if every packet that it asks for goes to an earlier one: compared with looking at
    /// every packet of a small world.
    #[test]
    fn what_never_fires_is_refused_and_nothing_else(
        conditions in proptest::collection::vec(proptest::collection::vec(condition(), 1..=3), 2..9)
    ) {
        let matches: Vec<String> = conditions.iter().map(|conditions| {
            let mut each = std::collections::BTreeMap::new();
            for condition in conditions {
                each.insert(condition.split(':').next(), condition.as_str());
            }
            if each.contains_key(&Some("user")) {
                // What a client says counts only in matches that name its tenant.
                each.entry(Some("tenant")).or_insert("tenant: [a, b]");
            }
            each.into_values().collect::<Vec<_>>().join(", ")
        }).collect();
        // Each match alone, as the language reads it; some no packet can meet.
        let alone: Vec<Option<Vec<Match>>> = matches.iter().map(|text| {
            let checked = check_str("one.yaml", &classes_file(std::slice::from_ref(text), &["a", "b", "c"])).ok()?;
            let class = checked.program.nodes.iter().position(|node| node.name == "c0")?;
            let own = checked.program.rules.iter().filter(|rule| rule.class.0 as usize == class);
            Some(own.map(|rule| rule.matches.clone()).collect())
        }).collect();
        let mut left = universe();
        let mut dead = Vec::new();
        for (index, own) in alone.iter().enumerate() {
            let before = left.len();
            let holds = |packet: &plimsoll_policy::Fields| own.iter().flatten().any(|one| one.holds(packet));
            left.retain(|packet| !holds(packet));
            if before == left.len() {
                dead.push(format!("c{index}"));
            }
        }
        let refused: Vec<String> = match check_str("all.yaml", &classes_file(&matches, &["a", "b"])) {
            Ok(_) => Vec::new(),
            Err(errors) => {
                let classes = errors.problems().iter().filter_map(|problem| {
                    Some(problem.message.split_once("class `")?.1.split_once('`')?.0.to_owned())
                });
                classes.filter(|name| name.starts_with('c')).collect()
            }
        };
        prop_assert_eq!(refused, dead, "{:#?}", matches);
    }

    /// Whatever a client says of its packets, they stay where they are without it, or go to a class whose match names their
    /// tenant. What the operator states of a tenant holds, whatever its client says.
    #[test]
    fn no_metadata_leads_out_of_the_tenants_own_classes(
        wanted in proptest::collection::vec((proptest::sample::subsequence(vec!["a", "b", "c"], 0..=2), metadata_match()), 1..7),
        limit in (proptest::option::of(proptest::sample::select(vec!["a", "b", "c"])), metadata_match()),
        said in proptest::collection::vec(metadata(), 30),
    ) {
        let entry = |(tenants, fields): &(Vec<&str>, String)| match tenants.as_slice() {
            [] => fields.clone(),
            some => format!("tenant: [{}], {fields}", some.join(", ")),
        };
        let limit = entry(&(limit.0.into_iter().collect(), limit.1));
        // A class that no packet can reach is refused: it is left out, as its author would.
        let mut classes = Vec::new();
        let mut program = None;
        for class in &wanted {
            classes.push(class);
            match check_str("p.yaml", &hostile_file(&classes.iter().map(|one| entry(one)).collect::<Vec<_>>(), &limit)) {
                Ok(checked) => program = Some(checked.program),
                Err(_) => drop(classes.pop()),
            }
        }
        let Some(program) = program else { return Ok(()) };
        for (number, name) in (0..).zip(["a", "b", "c"]) {
            let place = |metadata| {
                let tenant = Some(plimsoll_policy::TenantId(number));
                program.classify(&plimsoll_policy::Fields { tenant, metadata, ..Default::default() })
            };
            let plain = place(plimsoll_policy::Metadata::default());
            for &metadata in &said {
                let found = place(metadata);
                let class = &program.node(found.class).name;
                let own = class.strip_prefix('c').and_then(|index| index.parse::<usize>().ok());
                let named = own.is_some_and(|index| classes[index].0.contains(&name));
                prop_assert!(found.class == plain.class || named, "{name} reaches {class} by {metadata:?}");
                prop_assert!(found == plain || name != "c", "the port of c says nothing: {metadata:?}");
                let other_user = plimsoll_policy::Metadata { user: Some(9), ..metadata };
                prop_assert!(name != "b" || place(other_user) == found, "the user of b is stated");
            }
        }
    }

    /// Two matches have the packets in common that both take, and a match takes the packets of a match that it covers.
    #[test]
    fn sets_of_packets_behave_as_sets(a in matches(), b in matches(), packets in proptest::collection::vec(packet(), 40)) {
        let both = a.and(&b);
        for packet in packets {
            let expected = a.holds(&packet) && b.holds(&packet);
            prop_assert_eq!(both.as_ref().is_some_and(|both| both.holds(&packet)), expected);
            prop_assert!(!(a.covers(&b) && b.holds(&packet) && !a.holds(&packet)));
        }
    }
}
