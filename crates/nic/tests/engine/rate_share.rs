//! Strict rates: SENIC's schedules to the nanosecond, and how far service strays from the fluid model.
//!
//! From: SENIC (NSDI 2014), Figure 4 and §4; its system time divided by the oversubscription, not multiplied.
//! The link is 8 Gb/s, so that a byte takes a nanosecond.

use plimsoll_policy::{Form, NodeId, NodeKind, check_str};
use plimsoll_units::BitRate;
use proptest::prelude::*;

use crate::kit::{FRAME, MS, Plan, ROOT, World, assert_near, mbps};

const LINK_MBPS: u64 = 8_000;
const FORMS: [Form; 2] = [Form::Exact, Form::Grouped];

/// Classes of these rates, in thousandths of the link.
fn flat(form: Form, thousandths: &[u64]) -> (Plan, Vec<NodeId>) {
    let mut plan = Plan::new(mbps(LINK_MBPS), NodeKind::RateShare(form));
    let classes = thousandths.iter().map(|&rate| plan.paced(ROOT, mbps(LINK_MBPS * rate / 1_000))).collect();
    (plan, classes)
}

fn starts(world: &World, class: NodeId) -> Vec<u64> {
    world.sent.iter().filter(|sent| sent.pull.class == class).map(|sent| sent.at).collect()
}

/// The class of each packet, in order.
fn order(world: &World) -> Vec<NodeId> {
    world.sent.iter().map(|sent| sent.pull.class).collect()
}

/// SENIC Figure 4: C1 sends at 0, C2 at 1500, C1 at 3750; after 7,500 byte times all over again, idle for 40 %.
#[test]
fn figure_4_to_the_nanosecond() {
    let (plan, classes) = flat(Form::Exact, &[400, 200]);
    let mut world = World::with(&plan.program);
    classes.iter().for_each(|&class| _ = world.greedy(class, &[], 1_500));
    world.run(749_999);
    let every = |first: u64, step: usize| (first..750_000).step_by(step).collect::<Vec<_>>();
    assert_eq!(starts(&world, classes[0]), every(0, 3_750));
    assert_eq!(starts(&world, classes[1]), every(1_500, 7_500));
}

/// 0.9 and 0.6 of the link share it three to two; when 0.5 joins, it is served after two packets, and over the next
/// 150,000 bytes they get nine, six and five parts.
#[test]
fn who_joins_an_oversubscribed_link_gets_its_part_at_once() {
    for form in FORMS {
        let (plan, classes) = flat(form, &[900, 600, 500]);
        let mut world = World::with(&plan.program);
        classes[..2].iter().for_each(|&class| _ = world.greedy(class, &[], 1_500));
        world.run(149_999);
        let before: Vec<u64> = classes.iter().map(|&class| world.bytes(class, 0, 150_000)).collect();
        let near = before.iter().zip([90_000_u64, 60_000, 0]).all(|(&got, due)| got.abs_diff(due) <= FRAME);
        assert!(near && (form == Form::Grouped || before == [90_000, 60_000, 0]), "{form:?}: {before:?}");
        world.now = 150_000;
        world.greedy(classes[2], &[], 1_500);
        world.run(299_999);
        let after: Vec<u64> = classes.iter().map(|&class| world.bytes(class, 150_000, 300_000)).collect();
        let first = order(&world)[100..].iter().position(|&class| class == classes[2]);
        if form == Form::Exact {
            assert_eq!((after, first), (vec![67_500, 45_000, 37_500], Some(2)));
        } else {
            let near =
                after.iter().zip([67_500_u64, 45_000, 37_500]).all(|(&got, due)| got.abs_diff(due) <= FRAME);
            assert!(near && first.is_some_and(|first| first <= 4), "{after:?}, first after {first:?}");
        }
    }
}

/// Over any hundred packets each class has its share, within a packet.
#[test]
fn any_hundred_packets_are_shared_by_rate() {
    let (plan, classes) = flat(Form::Exact, &[900, 600, 500]);
    let mut world = World::with(&plan.program);
    classes.iter().for_each(|&class| _ = world.greedy(class, &[], 1_500));
    world.run(3 * MS);
    for window in order(&world).windows(100) {
        for (&class, share) in classes.iter().zip([45, 30, 25]) {
            let count = window.iter().filter(|&&sent| sent == class).count();
            assert!(count.abs_diff(share) <= 1, "{class:?} sent {count} of 100, not {share}");
        }
    }
}

/// A newcomer waits for at most two packets of each class that was active before it.
#[test]
fn a_newcomer_waits_for_two_packets_of_each_active_class() {
    for form in FORMS {
        for active in 1..=12 {
            for at in [1, 40_000, 99_999, 123_457] {
                let rates: Vec<u64> = (0..=active).map(|n| 300 + 70 * (n % 7)).collect();
                let (plan, classes) = flat(form, &rates);
                let mut world = World::with(&plan.program);
                classes[1..].iter().for_each(|&class| _ = world.greedy(class, &[], 1_500));
                world.run(at);
                let sent = world.sent.len();
                world.greedy(classes[0], &[], 1_500);
                world.run(at + MS);
                let waited = order(&world)[sent..].iter().position(|&class| class == classes[0]);
                let each = if form == Form::Exact { 2 } else { 4 };
                let most = each * usize::try_from(active).expect("few");
                assert!(waited.is_some_and(|waited| waited <= most), "{form:?}, {active} active: {waited:?}");
            }
        }
    }
}

/// The second level shares what the first gives it: 0.4 with 0.3 and 0.2 below it.
fn two_levels(form: Form) -> (Plan, NodeId, [NodeId; 2], NodeId) {
    let mut plan = Plan::new(mbps(LINK_MBPS), NodeKind::RateShare(form));
    let upper = plan.node(ROOT, NodeKind::RateShare(form), 1);
    plan.rate(upper, mbps(3_200));
    let lower = [2_400, 1_600].map(|rate| plan.paced(upper, mbps(rate)));
    let other = plan.paced(ROOT, mbps(4_800));
    (plan, upper, lower, other)
}

#[test]
fn two_levels_share_the_upper_rate_by_the_lower_ones() {
    for form in FORMS {
        for crowded in [false, true] {
            let (plan, _, [a, b], other) = two_levels(form);
            let mut world = World::with(&plan.program);
            if crowded {
                world.greedy(other, &[], 1_500);
            }
            world.greedy(b, &[], 1_500);
            world.run(10 * MS);
            assert_near("0.2 alone", world.rate(b, MS, 10 * MS), 1_600.0, 0.2);
            world.greedy(a, &[], 1_500);
            world.run(30 * MS);
            assert_near("0.24", world.rate(a, 11 * MS, 30 * MS), 1_920.0, 0.2);
            assert_near("0.16", world.rate(b, 11 * MS, 30 * MS), 1_280.0, 0.2);
            never_above(&world, |class| class == a || class == b, mbps(3_200), 1, form);
        }
    }
}

/// Asserts that in any window no more leaves than the rate, `frames`, and what the link may have been late by; grouped, a frame
/// more.
#[track_caller]
fn never_above(world: &World, of: impl Fn(NodeId) -> bool, rate: BitRate, frames: u64, form: Form) {
    let late = FRAME * rate.get() / (LINK_MBPS * 1_000_000) + 1;
    let frames = frames + u64::from(form == Form::Grouped);
    let sent: Vec<_> = world.sent.iter().filter(|sent| of(sent.pull.class)).collect();
    // Bytes sent less those earned, and its least value so far: their distance is the worst window's excess.
    let (mut bytes, mut least, mut most) = (0_i128, i128::MAX, 0);
    for one in sent {
        let earned = i128::from(rate.get()) * i128::from(one.at) / 8_000_000_000;
        least = least.min(bytes - earned);
        bytes += i128::from(one.charge);
        most = most.max(bytes - earned - least);
    }
    let allowed = i128::from(frames * FRAME + late);
    assert!(most <= allowed, "{form:?}: {most} B above the rate, allowed {allowed}");
}

#[test]
fn three_levels_are_strict_too() {
    let (mut plan, upper, ..) = two_levels(Form::Exact);
    let deep = plan.node(upper, NodeKind::RateShare(Form::Exact), 1);
    plan.rate(deep, mbps(1_000));
    let [x, y] = [800, 400].map(|rate| plan.paced(deep, mbps(rate)));
    let mut world = World::with(&plan.program);
    [x, y].into_iter().for_each(|class| _ = world.greedy(class, &[], 1_500));
    world.run(30 * MS);
    assert_near("two thirds of 1,000", world.rate(x, MS, 30 * MS), 666.67, 0.3);
    assert_near("a third", world.rate(y, MS, 30 * MS), 333.33, 0.6);
}

/// SENIC has a control loop modulate leaf rates for more than two levels (§4.2). Nested nodes need none: at four levels,
/// whichever classes are active, each gets its rate, or its share of what the level above gets (docs/decisions, 5).
#[test]
fn four_levels_hold_their_rates_whichever_are_active() {
    for form in FORMS {
        // Rates at the levels: 4,000 and 2,000; 3,000 and 2,000; 2,000 and 2,000; 1,500 and 500.
        for (active, expected) in [
            (&[0, 1, 2, 3, 4][..], &[900.0, 300.0, 1_200.0, 1_600.0, 2_000.0][..]),
            (&[0, 1, 2], &[1_125.0, 375.0, 1_500.0]),
            (&[0, 1, 3], &[1_500.0, 500.0, 2_000.0]),
            (&[0, 4], &[1_500.0, 2_000.0]),
            (&[1], &[500.0]),
        ] {
            let mut plan = Plan::new(mbps(LINK_MBPS), NodeKind::RateShare(form));
            let inner = |plan: &mut Plan, parent, rate| {
                let node = plan.node(parent, NodeKind::RateShare(form), 1);
                plan.rate(node, mbps(rate));
                node
            };
            let upper = inner(&mut plan, ROOT, 4_000);
            let middle = inner(&mut plan, upper, 3_000);
            let lower = inner(&mut plan, middle, 2_000);
            let leaves = [(lower, 1_500), (lower, 500), (middle, 2_000), (upper, 2_000), (ROOT, 2_000)];
            let leaves = leaves.map(|(parent, rate)| plan.paced(parent, mbps(rate)));
            let mut world = World::with(&plan.program);
            active.iter().for_each(|&leaf: &usize| _ = world.greedy(leaves[leaf], &[], 1_500));
            world.run(60 * MS);
            for (&leaf, &expected) in active.iter().zip(expected) {
                let rate = world.rate(leaves[leaf], 2 * MS, 60 * MS);
                assert_near(&format!("{form:?}, leaf {leaf} of {active:?}"), rate, expected, 0.5);
            }
        }
    }
}

/// While the node sleeps, the other classes have the link; nothing of the link is lost.
#[test]
fn a_node_that_waits_for_its_rates_leaves_the_link_to_others() {
    for kind in [NodeKind::Wfq, NodeKind::Drr, NodeKind::Priority] {
        for form in FORMS {
            let mut plan = Plan::new(mbps(LINK_MBPS), kind);
            let paced = plan.node(ROOT, NodeKind::RateShare(form), 1);
            let a = plan.paced(paced, mbps(1_000));
            let bulk = plan.class(ROOT, 1);
            let mut world = World::with(&plan.program);
            world.greedy(a, &[], 1_500);
            world.greedy(bulk, &[], 1_500);
            world.run(20 * MS);
            assert_near("its rate", world.rate(a, MS, 20 * MS), 1_000.0, 0.2);
            assert_near("the rest", world.rate(bulk, MS, 20 * MS), 7_000.0, 0.2);
        }
    }
}

/// Where a node gets less than the link, its children share that by rate, and a newcomer is not kept waiting.
#[test]
fn a_node_that_gets_less_than_it_could_shares_that() {
    for form in FORMS {
        let mut plan = Plan::new(mbps(LINK_MBPS), NodeKind::Wfq);
        let paced = plan.node(ROOT, NodeKind::RateShare(form), 1);
        let [a, b, late] = [3_000, 1_500, 1_500].map(|rate| plan.paced(paced, mbps(rate)));
        let bulk = plan.class(ROOT, 3);
        let mut world = World::with(&plan.program);
        [a, b, bulk].into_iter().for_each(|class| _ = world.greedy(class, &[], 1_500));
        world.run(20 * MS);
        assert_near("two thirds of 2,000", world.rate(a, MS, 20 * MS), 1_333.3, 1.0);
        assert_near("a third of 2,000", world.rate(b, MS, 20 * MS), 666.7, 1.0);
        world.greedy(late, &[], 1_500);
        world.run(40 * MS);
        assert_near("half of 2,000", world.rate(a, 21 * MS, 40 * MS), 1_000.0, 1.0);
        assert_near("a quarter", world.rate(late, 20 * MS, 40 * MS), 500.0, 2.0);
    }
}

/// A rate changed by doorbell is in force at the next decision; nothing is lost, and a debt is paid at the new rate.
#[test]
fn a_rate_changes_between_two_packets() {
    for form in FORMS {
        let (plan, classes) = flat(form, &[100, 1]);
        let mut world = World::with(&plan.program);
        classes.iter().for_each(|&class| _ = world.greedy(class, &[], 1_500));
        world.run(10_000);
        assert_eq!(world.sent.len(), 2, "{form:?}: the second of 800 Mb/s is due after 15 us");
        let (first, second) = (classes[0], classes[1]);
        world.notes(|doorbells| doorbells.set_class_rate(first, mbps(4_000)));
        world.run(5 * MS);
        let starts = starts(&world, first);
        let next = starts[1];
        // Of 15,000 ns owed at 800 Mb/s 5,000 are left: at 4 Gb/s 1,000.
        assert!((10_999..=11_001).contains(&next), "{form:?}: {next}");
        assert!(starts[2..].windows(2).all(|pair| pair[1] - pair[0] == 3_000), "{form:?}");
        assert_near("the new rate", world.rate(first, MS, 5 * MS), 4_000.0, 0.2);
        world.notes(|doorbells| doorbells.set_class_rate(second, mbps(6_000)));
        world.run(15 * MS);
        assert_near("0.4", world.rate(first, 6 * MS, 15 * MS), 3_200.0, 0.2);
        assert_near("0.6", world.rate(second, 6 * MS, 15 * MS), 4_800.0, 0.2);
    }
}

#[test]
fn the_rate_of_an_upper_level_changes_what_is_below() {
    let (plan, upper, [a, b], _) = two_levels(Form::Exact);
    let mut world = World::with(&plan.program);
    [a, b].into_iter().for_each(|class| _ = world.greedy(class, &[], 1_500));
    world.run(5 * MS);
    world.notes(|doorbells| doorbells.set_class_rate(upper, mbps(1_000)));
    world.run(20 * MS);
    assert_near("three fifths", world.rate(a, 6 * MS, 20 * MS), 600.0, 0.7);
    assert_near("two fifths", world.rate(b, 6 * MS, 20 * MS), 400.0, 0.7);
    let bad = world.nic.stats().bad_doorbells;
    world.notes(|doorbells| doorbells.set_class_rate(ROOT, mbps(1)));
    assert_eq!(world.nic.stats().bad_doorbells, bad + 1, "the root has no rate to change");
}

/// From one bit a second to more than any link: nothing breaks, and a class with a sane rate keeps it.
#[test]
fn extreme_rates_do_not_break_the_engine() {
    for form in FORMS {
        for rate in [1, u64::MAX] {
            let (plan, classes) = flat(form, &[100, 100, 100]);
            let mut world = World::with(&plan.program);
            classes.iter().for_each(|&class| _ = world.greedy(class, &[], 1_500));
            world.run(MS);
            let extreme = BitRate::new(rate).expect("above zero");
            world.notes(|doorbells| classes[..2].iter().for_each(|&c| doorbells.set_class_rate(c, extreme)));
            world.run(3 * MS);
            world
                .notes(|doorbells| classes[..2].iter().for_each(|&c| doorbells.set_class_rate(c, mbps(800))));
            world.run(40 * MS);
            assert_near("back at its rate", world.rate(classes[2], 20 * MS, 40 * MS), 800.0, 1.0);
            assert_near("back at its rate", world.rate(classes[0], 20 * MS, 40 * MS), 800.0, 1.0);
        }
    }
}

/// From the policy file to the wire.
#[test]
fn rates_from_a_policy_file() {
    let text = "
uplink: {port: memory, rate: 8Gbps}
tenants:
  a: {port: memory}
  b: {port: memory}
policy:
  root:  {priority: [paced, bulk]}
  paced: {rate_share: {a: 400Mbps, b: 200Mbps}}
  bulk:  {}
";
    let program = check_str("p.yaml", text).expect("a legal policy").program;
    let class = |name: &str| {
        let found = program.nodes.iter().position(|node| node.name == name);
        NodeId(u32::try_from(found.expect("a class of that name")).expect("few"))
    };
    let classes = ["paced/a", "paced/b", "bulk"].map(class);
    let mut world = World::with(&program);
    classes.into_iter().for_each(|class| _ = world.greedy(class, &[], 1_500));
    world.run(30 * MS);
    for (class, rate) in classes.into_iter().zip([400.0, 200.0, 7_400.0]) {
        assert_near("as the file says", world.rate(class, MS, 30 * MS), rate, 0.6);
    }
}

/// Between two moments at which a class joins, the fluid model serves a class at one speed.
struct Piece {
    from: f64,
    /// Bytes served before.
    served: f64,
    /// Bytes per nanosecond.
    speed: f64,
}

fn fluid(classes: &[(u64, u64)], joins: &[(u64, usize)], class: usize) -> Vec<Piece> {
    let share = |n: usize| classes[n].0 as f64 / 1_000.0;
    let mut phi = 0.0;
    let mut pieces: Vec<Piece> = Vec::new();
    for &(at, joiner) in joins {
        let from = at as f64;
        phi += share(joiner);
        if joiner != class && pieces.is_empty() {
            continue;
        }
        let served = pieces.last().map_or(0.0, |last| last.served + last.speed * (from - last.from));
        pieces.push(Piece { from, served, speed: share(class) / f64::max(1.0, phi) });
    }
    pieces
}

/// Runs classes that join one after the other. Returns how late, at most, the last byte of a packet leaves after the fluid
/// model's, in nanoseconds; and how late beyond a packet of the link, in packets of the class at the least speed that the fluid
/// model gives it. The fluid model serves each active class at its rate, or at its part of the link if all rates exceed that.
fn worst_lag(form: Form, classes: &[(u64, u64)], until: u64) -> (f64, f64) {
    let rates: Vec<u64> = classes.iter().map(|&(rate, _)| rate).collect();
    let (plan, ids) = flat(form, &rates);
    let config = plimsoll_nic::Config { ring: 8, ..Default::default() };
    let mut world = World::new(&plan.program, &config);
    let mut joins: Vec<(u64, usize)> = classes.iter().enumerate().map(|(n, &(_, at))| (at, n)).collect();
    joins.sort_unstable();
    for &(at, n) in &joins {
        world.run(at);
        world.greedy(ids[n], &[], 1_500);
    }
    world.run(until);
    let (mut worst, mut packets) = (0_f64, 0_f64);
    for (n, &id) in ids.iter().enumerate() {
        let pieces = fluid(classes, &joins, n);
        for (packet, sent) in world.sent.iter().filter(|sent| sent.pull.class == id).enumerate() {
            let bytes = (packet + 1) as f64 * 1_500.0;
            let piece =
                pieces.iter().rev().find(|piece| piece.served < bytes).expect("each begins with nothing");
            let lag = (sent.at + 1_500) as f64 - (piece.from + (bytes - piece.served) / piece.speed);
            let slowest = pieces.last().map_or(piece.speed, |last| last.speed);
            worst = worst.max(lag);
            packets = packets.max((lag - 1_500.0) * slowest / 1_500.0);
        }
    }
    (worst, packets)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// In the exact form no packet ends later than the fluid model's by more than a largest packet takes on the link.
    #[test]
    fn the_exact_form_lags_by_a_packet_of_the_link(
        classes in proptest::collection::vec((5_u64..900, 0_u64..60_000), 1..14),
    ) {
        let (lag, _) = worst_lag(Form::Exact, &classes, 400_000);
        prop_assert!(lag <= 1_500.0 + 20.0, "{lag} ns after the fluid model");
    }

    /// In the grouped form a packet may end later by three packets of its class more, whatever the number of classes.
    #[test]
    fn the_grouped_form_lags_by_three_packets_of_its_class_more(
        classes in proptest::collection::vec((5_u64..900, 0_u64..60_000), 1..60),
    ) {
        let (_, packets) = worst_lag(Form::Grouped, &classes, 400_000);
        prop_assert!(packets <= 3.0, "{packets} packets after the fluid model, and one of the link");
    }

    /// No class ever exceeds its rate, in either form, whichever others come and go.
    #[test]
    fn no_rate_is_exceeded(
        classes in proptest::collection::vec((5_u64..900, 0_u64..60_000), 1..30), grouped: bool,
    ) {
        let form = FORMS[usize::from(grouped)];
        let rates: Vec<u64> = classes.iter().map(|&(rate, _)| rate).collect();
        let (plan, ids) = flat(form, &rates);
        let mut world = World::new(&plan.program, &plimsoll_nic::Config { ring: 8, ..Default::default() });
        let mut joins: Vec<(u64, usize)> = classes.iter().enumerate().map(|(n, &(_, at))| (at, n)).collect();
        joins.sort_unstable();
        for (at, n) in joins {
            world.run(at);
            world.greedy(ids[n], &[], 1_500);
        }
        world.run(400_000);
        for (&(rate, joined), &id) in classes.iter().zip(&ids) {
            for (packet, at) in starts(&world, id).into_iter().enumerate() {
                let (before, earned) = (packet as u64 * 1_500, (at - joined + 1) * rate / 1_000);
                prop_assert!(before <= earned + 1, "packet {packet} of {rate} at {at}, since {joined}");
            }
        }
    }
}
