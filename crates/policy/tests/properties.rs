//! What holds for every text and every legal policy.
#![cfg(feature = "testing")]

use plimsoll_policy::testing::{fields, policies};
use plimsoll_policy::{
    Classifier, Match, NodeId, Prefix, bounds, check_str, diff, explain, report, svg, tree_text,
};
use proptest::prelude::*;

const EXAMPLE: &str = include_str!("../../../examples/wan-limits.yaml");

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
            tenant,
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

    /// So is any text that looks almost like a policy.
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

    /// What two matches have in common is what both take; what one covers it takes.
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
