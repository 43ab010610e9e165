//! All mistakes are reported in one go: none waits until another is mended.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_policy::{Errors, Law, check_with};
use proptest::prelude::*;

fn refused(files: &BTreeMap<String, String>) -> Errors {
    let mut load = |name: &str| files.get(name).cloned().ok_or_else(|| "no such file".to_owned());
    check_with("p.yaml", &mut load).expect_err("it has mistakes")
}

/// Parts of a policy with one mistake, independent of those beside it.
#[derive(Clone, Copy, Debug)]
struct Mistake {
    law: Law,
    /// A piece of the message.
    says: &'static str,
    /// Lines below `engine:`, `tenants:`, `limits:` and `policy:`, what `root` lists beside, keys of `backpressure`, and further
    /// files.
    engine: &'static str,
    tenants: &'static str,
    limits: &'static str,
    classes: &'static str,
    root: &'static [&'static str],
    backpressure: &'static str,
    files: &'static [(&'static str, &'static str)],
}

const NONE: Mistake = Mistake {
    law: Law::Syntax,
    says: "",
    engine: "",
    tenants: "",
    limits: "",
    classes: "",
    root: &[],
    backpressure: "",
    files: &[],
};

/// One for each rule that needs no file of its own, and some inside what another rule refuses.
const MISTAKES: &[Mistake] = &[
    Mistake {
        law: Law::Syntax,
        says: "unclosed bracket",
        tenants: "  t1: {port: memory, policy: syntax.yaml}\n",
        root: &["t1"],
        files: &[("syntax.yaml", "policy: {root: {wfq: [a")],
        ..NONE
    },
    Mistake {
        law: Law::File,
        says: "absent.yaml",
        tenants: "  t2: {port: memory, policy: absent.yaml}\n",
        root: &["t2"],
        ..NONE
    },
    Mistake {
        law: Law::UnknownKey,
        says: "no key `wieght`",
        tenants: "  t3: {port: memory, wieght: 2}\n",
        root: &["t3"],
        ..NONE
    },
    Mistake {
        law: Law::Zero,
        says: "`weight` of tenant `t4` is zero",
        tenants: "  t4: {port: memory, wieght: 0}\n",
        root: &["t4"],
        ..NONE
    },
    Mistake {
        law: Law::DuplicateKey,
        says: "`min` is there twice",
        tenants: "  t5: {port: memory, min: 1Mbps, min: 2Mbps}\n",
        root: &["t5"],
        ..NONE
    },
    Mistake {
        law: Law::BadValue,
        says: "`min` of `t6` is `lots`",
        tenants: "  t6: {port: memory, min: 1Mbps, min: lots}\n",
        root: &["t6"],
        ..NONE
    },
    Mistake {
        law: Law::UnknownName,
        says: "no limit `l7`",
        tenants: "  t7: {port: memory}\n  t7: {port: memory, via: l7}\n",
        root: &["t7"],
        ..NONE
    },
    Mistake {
        law: Law::MissingKey,
        says: "tenant `t8` has no `port`",
        tenants: "  t8: {weight: 1}\n",
        root: &["t8"],
        ..NONE
    },
    Mistake { law: Law::BadValue, says: "`mtu` is 20", engine: "", tenants: "", ..NONE },
    Mistake {
        law: Law::BadName,
        says: "`9c` is no name",
        classes: "  9c: {match: {dst_port: 9, vlan: 9}}\n",
        root: &["9c"],
        ..NONE
    },
    Mistake {
        law: Law::NeverMatches,
        says: "no packet matches class `10c`",
        classes: "  10c: {match: {protocol: icmp, dst_port: 10}}\n",
        root: &["10c"],
        ..NONE
    },
    Mistake {
        law: Law::NameClash,
        says: "`c11` is also a limit",
        limits: "  c11: {rate: 1Mbps}\n",
        classes: "  c11: {match: {vlan: 11}, via: c11}\n",
        root: &["c11"],
        ..NONE
    },
    Mistake {
        law: Law::UnknownName,
        says: "no class `nowhere`",
        classes: "  c12: {fifo: [nowhere, d12]}\n  d12: {match: {vlan: 12}}\n",
        root: &["c12"],
        ..NONE
    },
    Mistake {
        law: Law::UnknownName,
        says: "no tenant `nobody`",
        classes: "  c13: {match: {vlan: 13, tenant: nobody}}\n",
        root: &["c13"],
        ..NONE
    },
    Mistake {
        law: Law::Outside,
        says: "`plain` is not this file's to name",
        tenants: "  t14: {port: memory, policy: outside.yaml}\n",
        root: &["t14"],
        files: &[("outside.yaml", "policy: {root: {wfq: [plain]}}")],
        ..NONE
    },
    Mistake {
        law: Law::NoRoot,
        says: "`policy` has no `root`",
        tenants: "  t15: {port: memory, policy: rootless.yaml}\n",
        root: &["t15"],
        files: &[("rootless.yaml", "policy: {rot: {match: {vlan: 15}}}")],
        ..NONE
    },
    Mistake {
        law: Law::Zero,
        says: "`max` of `in16` is zero",
        tenants: "  t16: {port: memory, policy: rootless16.yaml}\n",
        root: &["t16"],
        files: &[("rootless16.yaml", "policy: {in16: {max: 0}}")],
        ..NONE
    },
    Mistake {
        law: Law::SecondParent,
        says: "`c17` has two scheduling parents",
        classes: "  c17: {match: {vlan: 17}}\n  d17: {fifo: [c17]}\n",
        root: &["c17", "d17"],
        ..NONE
    },
    Mistake {
        law: Law::SecondParent,
        says: "`c18` has two scheduling parents",
        classes: "  c18: {match: {vlan: 18}}\n  d18: {fifo: [c18]}\n",
        root: &["c18"],
        ..NONE
    },
    Mistake {
        law: Law::Cycle,
        says: "`c19`, which is below `d19`",
        classes: "  c19: {fifo: [d19]}\n  d19: {fifo: [c19]}\n",
        ..NONE
    },
    Mistake {
        law: Law::UnknownName,
        says: "no class `e20`",
        classes: "  c20: {fifo: [d20]}\n  d20: {fifo: [c20, e20]}\n",
        ..NONE
    },
    Mistake {
        law: Law::Orphan,
        says: "class `c21` hangs nowhere",
        classes: "  c21: {match: {vlan: 21}}\n",
        ..NONE
    },
    Mistake {
        law: Law::Meaningless,
        says: "`c22` has `slack`",
        classes: "  c22: {match: {vlan: 22}, flows: fifo, slack: 1ms}\n",
        ..NONE
    },
    Mistake {
        law: Law::UnknownName,
        says: "no limit `l23`",
        classes: "  c23: {match: {vlan: 23}, via: l23}\n",
        ..NONE
    },
    Mistake {
        law: Law::MinAboveMax,
        says: "`min` of `c24`",
        classes: "  c24: {match: {vlan: 24}, min: 2Mbps, max: 1Mbps}\n",
        ..NONE
    },
    Mistake {
        law: Law::BurstTooSmall,
        says: "burst of `c25`",
        classes: "  c25: {match: {vlan: 25}, max: 1Mbps, burst: 9B}\n",
        ..NONE
    },
    Mistake {
        law: Law::NeverMatches,
        says: "no packet reaches class `c26`",
        classes: "  c26: {match: {vlan: 1, dst_port: 26}}\n",
        ..NONE
    },
    Mistake {
        law: Law::MatchOnNode,
        says: "`c27` has children and a `match`",
        classes: "  c27: {match: {vlan: 27}, fifo: [d27]}\n  d27: {match: {vlan: 27}}\n",
        ..NONE
    },
    Mistake {
        law: Law::Orphan,
        says: "no class carries tenant `t28`",
        tenants: "  t28: {port: memory}\n",
        ..NONE
    },
    Mistake {
        law: Law::Zero,
        says: "`min` of `in29` is zero",
        tenants: "  t29: {port: memory, policy: in29.yaml}\n",
        files: &[("in29.yaml", "policy: {root: {wfq: [in29]}, in29: {min: 0}}")],
        ..NONE
    },
    Mistake {
        law: Law::NeverMatches,
        says: "no packet reaches class `t30/low`",
        tenants: "  t30: {port: memory, policy: in30.yaml}\n",
        classes: "  c30: {match: {tenant: t30}}\n",
        root: &["c30"],
        files: &[(
            "in30.yaml",
            "policy: {root: {wfq: [a, b, low]}, a: {match: {dst_port: 0-9}}, b: {match: {dst_port: 10-99}}, low: {match: {dst_port: 5-50}}}",
        )],
        ..NONE
    },
    Mistake {
        law: Law::UnusedLimit,
        says: "nothing sends through limit `in31`",
        classes: "  c31: {fifo: [d31], policy: in31.yaml}\n  d31: {match: {vlan: 31}}\n",
        root: &["c31"],
        files: &[("in31.yaml", "limits: {in31: {rate: 1Mbps}}\npolicy: {root: {}}")],
        ..NONE
    },
    Mistake {
        law: Law::WrongKind,
        says: "`plain` is a class, not a limit",
        classes: "  c32: {match: {vlan: 32}, via: plain}\n",
        root: &["c32"],
        ..NONE
    },
    Mistake {
        law: Law::Nesting,
        says: "limit `l33`",
        limits: "  l33: {rate: 1Mbps, via: m33}\n  m33: {rate: 2Mbps, match: {dst_port: 33}}\n",
        classes: "  c33: {match: {vlan: 33}, via: l33}\n",
        root: &["c33"],
        ..NONE
    },
    Mistake {
        law: Law::Zero,
        says: "`rate` of limit `l34` is zero",
        limits: "  l34: {rate: 0bps}\n",
        classes: "  c34: {match: {vlan: 34}, via: l34}\n",
        root: &["c34"],
        ..NONE
    },
    Mistake {
        law: Law::MinAboveLink,
        says: "`min` of `c35` is 11Gbps",
        classes: "  c35: {match: {vlan: 35}, min: 11Gbps}\n",
        root: &["c35"],
        ..NONE
    },
    Mistake {
        law: Law::MaxAboveLink,
        says: "`max` of `c36` is 12Gbps",
        classes: "  c36: {match: {vlan: 36}, max: 12Gbps}\n",
        root: &["c36"],
        ..NONE
    },
    Mistake {
        law: Law::UnusedLimit,
        says: "nothing sends through limit `l37`",
        limits: "  l37: {rate: 1Mbps}\n",
        ..NONE
    },
    Mistake {
        law: Law::PortClash,
        says: "have the same port: interface `p38`",
        tenants: "  t38: {port: {af_xdp: p38}}\n  u38: {port: {af_xdp: p38}}\n",
        root: &["t38", "u38"],
        ..NONE
    },
    Mistake {
        law: Law::TooManyDescriptors,
        says: "`descriptors`",
        tenants: "  t39: {port: memory, descriptors: 16777216}\n",
        root: &["t39"],
        ..NONE
    },
    Mistake {
        law: Law::TooDeep,
        says: "lies too deep",
        classes: "  a40: {fifo: [b40]}\n  b40: {fifo: [c40]}\n  c40: {fifo: [d40]}\n  d40: {match: {vlan: 40}}\n",
        root: &["a40"],
        ..NONE
    },
    Mistake {
        law: Law::TooCostly,
        says: "a packet of class",
        engine: ", line_rate_frame: 64B",
        classes: "  a41: {lstf: [b41]}\n  b41: {lstf: [c41], min: 1Mbps}\n  c41: {match: {vlan: 41}, max: 1Mbps}\n",
        root: &["a41"],
        ..NONE
    },
    Mistake {
        law: Law::TooLarge,
        says: "may be behind 33 limits",
        limits: "  l42-1: {rate: 1Mbps}\n  l42-2: {rate: 1Mbps}\n  l42-3: {rate: 1Mbps}\n  l42-4: {rate: 1Mbps}\n  l42-5: {rate: 1Mbps}\n  l42-6: {rate: 1Mbps}\n  l42-7: {rate: 1Mbps}\n  l42-8: {rate: 1Mbps}\n  l42-9: {rate: 1Mbps}\n  l42-10: {rate: 1Mbps}\n  l42-11: {rate: 1Mbps}\n  l42-12: {rate: 1Mbps}\n  l42-13: {rate: 1Mbps}\n  l42-14: {rate: 1Mbps}\n  l42-15: {rate: 1Mbps}\n  l42-16: {rate: 1Mbps}\n  l42-17: {rate: 1Mbps}\n  l42-18: {rate: 1Mbps}\n  l42-19: {rate: 1Mbps}\n  l42-20: {rate: 1Mbps}\n  l42-21: {rate: 1Mbps}\n  l42-22: {rate: 1Mbps}\n  l42-23: {rate: 1Mbps}\n  l42-24: {rate: 1Mbps}\n  l42-25: {rate: 1Mbps}\n  l42-26: {rate: 1Mbps}\n  l42-27: {rate: 1Mbps}\n  l42-28: {rate: 1Mbps}\n  l42-29: {rate: 1Mbps}\n  l42-30: {rate: 1Mbps}\n  l42-31: {rate: 1Mbps}\n  l42-32: {rate: 1Mbps}\n  l42-33: {rate: 1Mbps}\n",
        classes: "  c42: {match: {vlan: 42}, via: [l42-1, l42-2, l42-3, l42-4, l42-5, l42-6, l42-7, l42-8, l42-9, l42-10, l42-11, l42-12, l42-13, l42-14, l42-15, l42-16, l42-17, l42-18, l42-19, l42-20, l42-21, l42-22, l42-23, l42-24, l42-25, l42-26, l42-27, l42-28, l42-29, l42-30, l42-31, l42-32, l42-33]}\n",
        root: &["c42"],
        ..NONE
    },
    Mistake {
        law: Law::BadValue,
        says: "orders its children in two ways",
        classes: "  c43: {fifo: [d43], priority: [e43]}\n  d43: {match: {vlan: 43}}\n  e43: {match: {vlan: 43, dst_port: 43}}\n",
        root: &["c43"],
        ..NONE
    },
    Mistake {
        law: Law::Zero,
        says: "the weight of `d44` is zero",
        classes: "  c44: {priority: {d44: 0}}\n  d44: {match: {vlan: 44}}\n",
        root: &["c44"],
        ..NONE
    },
    Mistake {
        law: Law::Meaningless,
        says: "`policy` of tenant `t45` holds nowhere",
        tenants: "  t45: {port: memory, policy: in45.yaml}\n",
        classes: "  c45: {match: {tenant: t45}}\n",
        root: &["c45"],
        files: &[("in45.yaml", "policy: {root: {wfq: [in45]}, in45: {flows: drr, slack: 1ms}}")],
        ..NONE
    },
    Mistake {
        law: Law::BadValue,
        says: "this `via` names `l46` twice",
        limits: "  l46: {rate: 1Mbps}\n",
        classes: "  c46: {match: {vlan: 46}, via: [l46, l46]}\n",
        root: &["c46"],
        ..NONE
    },
    Mistake {
        law: Law::NeverBinds,
        says: "limit `l47` (2Mbps) holds nothing back",
        limits: "  l47: {rate: 2Mbps}\n  m47: {rate: 1Mbps}\n",
        classes: "  c47: {match: {vlan: 47}, via: [l47, m47]}\n",
        root: &["c47"],
        ..NONE
    },
    Mistake {
        law: Law::BurstTooLarge,
        says: "the burst of `c48` is 8MB, which takes 64s at its rate of 1Mbps",
        classes: "  c48: {match: {vlan: 48}, max: 1Mbps, burst: 8MB}\n",
        root: &["c48"],
        ..NONE
    },
    Mistake {
        law: Law::SourceNotReached,
        says: "`mode: meter` meters a flow at its source's host",
        backpressure: "watch: engine, mode: meter, ",
        ..NONE
    },
    Mistake { law: Law::BadValue, says: "`threshold` is `120%`", backpressure: "threshold: 120%, ", ..NONE },
];

/// The policy with these mistakes, as files.
fn files(mistakes: &[Mistake]) -> BTreeMap<String, String> {
    let each = |part: fn(&Mistake) -> &'static str| mistakes.iter().map(part).collect::<String>();
    let root: Vec<&str> = mistakes.iter().flat_map(|mistake| mistake.root).copied().collect();
    let limits = each(|mistake| mistake.limits);
    let limits = if limits.is_empty() { String::new() } else { format!("limits:\n{limits}") };
    let mtu = if mistakes.iter().any(|mistake| mistake.says == "`mtu` is 20") { ", mtu: 20" } else { "" };
    let text = format!(
        "uplink: {{port: memory, rate: 10Gbps{mtu}}}\nengine: {{max_depth: 4, descriptors: 65536{}}}\ntenants:\n  \
         shop: {{port: memory}}\n{}{limits}backpressure: {{{}}}\npolicy:\n  root: {{wfq: [plain, shop, {}]}}\n  plain: {{match: {{vlan: 1}}}}\n{}",
        each(|mistake| mistake.engine),
        each(|mistake| mistake.tenants),
        each(|mistake| mistake.backpressure),
        root.join(", "),
        each(|mistake| mistake.classes),
    );
    let mut files = BTreeMap::from([("p.yaml".to_owned(), text)]);
    for (name, text) in mistakes.iter().flat_map(|mistake| mistake.files) {
        files.insert((*name).to_owned(), (*text).to_owned());
    }
    files
}

/// The mistakes that are not reported.
fn untold(mistakes: &[Mistake], errors: &Errors) -> Vec<String> {
    let told = |mistake: &&Mistake| {
        errors
            .problems()
            .iter()
            .any(|problem| problem.rule == mistake.law && problem.message.contains(mistake.says))
    };
    mistakes
        .iter()
        .filter(|mistake| !told(mistake))
        .map(|m| format!("{}: {}", m.law.name(), m.says))
        .collect()
}

#[test]
fn one_of_every_mistake_is_told_in_one_run() {
    let errors = refused(&files(MISTAKES));
    assert_eq!(untold(MISTAKES, &errors), Vec::<String>::new(), "{}", errors.render(false));
    let told: BTreeSet<Law> = errors.problems().iter().map(|problem| problem.rule).collect();
    let missing: Vec<Law> = Law::ALL.into_iter().filter(|law| !told.contains(law)).collect();
    // A doubt about promises needs promises that hold; one about a slowed flow's rate needs `watch`, which another mistake has.
    assert_eq!(missing, [Law::DelayNotHeld, Law::MinNotBacked, Law::MinNotHeld]);
}

#[test]
fn each_mistake_alone_is_told() {
    for mistake in MISTAKES {
        let errors = refused_or_warned(&files(&[*mistake]));
        let told = errors.iter().any(|(law, message)| *law == mistake.law && message.contains(mistake.says));
        assert!(told, "{mistake:?}: {errors:#?}");
    }
}

fn refused_or_warned(files: &BTreeMap<String, String>) -> Vec<(Law, String)> {
    let mut load = |name: &str| files.get(name).cloned().ok_or_else(|| "no such file".to_owned());
    let problems = match check_with("p.yaml", &mut load) {
        Ok(checked) => checked.warnings,
        Err(errors) => errors.problems().to_vec(),
    };
    problems.into_iter().map(|problem| (problem.rule, problem.message)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever mistakes stand together, and in whatever order, every one is told.
    #[test]
    fn no_mistake_hides_another(mistakes in proptest::sample::subsequence(MISTAKES, 2..=MISTAKES.len()).prop_shuffle()) {
        let told = refused_or_warned(&files(&mistakes));
        for mistake in &mistakes {
            let found = told.iter().any(|(law, message)| *law == mistake.law && message.contains(mistake.says));
            prop_assert!(found, "{}: {} is not among {told:#?}", mistake.law.name(), mistake.says);
        }
    }
}
