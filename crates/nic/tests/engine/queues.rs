//! Several queues in one class: which of them goes first, and what that does not change.
//!
//! From: SENIC (NSDI 2014) §5.2: a class has several rings, served round robin or by strict priority, and one rate.
//! The link is 8 Gb/s, so that a byte takes a nanosecond.

use plimsoll_nic::{Config, Descriptor, QueueId};
use plimsoll_policy::{Fields, NodeId, Program, TenantId, check_str};
use plimsoll_units::BitRate;
use proptest::prelude::*;

use crate::kit::{MS, World, assert_near};

/// DSCP of the packets for each of the three queues: `ef`, `af41`, and none that a queue asks for.
const DSCP: [u8; 3] = [46, 34, 0];

/// Two tenants with strict rates; the first divides itself as `queues` says.
fn policy(form: &str, queues: &str) -> Program {
    let text = format!(
        "
uplink: {{port: memory, rate: 8Gbps, mtu: 1482}}
tenants:
  shop:  {{port: memory{queues}}}
  batch: {{port: memory}}
policy:
  root:  {{priority: [rates, rest]}}
  rates: {{form: {form}, rate_share: {{shop: 3Gbps, batch: 1Gbps}}}}
  rest:  {{}}
"
    );
    check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false))).program
}

fn three(among: &str) -> String {
    let queues = "queues: {voice: {match: {dscp: ef}}, video: {match: {dscp: af41}}, rest: {}}";
    format!(", {queues}, among: {among}")
}

/// A flow queue for packets of a tenant with a DSCP, wherever the policy puts them.
fn open(world: &mut World, tenant: u32, dscp: u8) -> QueueId {
    let fields = Fields {
        tenant: Some(TenantId(tenant)),
        addresses: Some(([10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
        dscp,
        ..Fields::default()
    };
    let placement = world.nic.program().classify(&fields);
    world.nic.open_queue(&placement).expect("a flow queue is left")
}

fn class_named(program: &Program, name: &str) -> NodeId {
    let found = program.nodes.iter().position(|node| node.name == name);
    NodeId(u32::try_from(found.expect("a class of that name")).expect("few"))
}

/// All that is posted at the start, in frames of 1,500 bytes.
fn fill(world: &mut World, queues: &[QueueId], frames: usize) {
    for &queue in queues {
        for _ in 0..frames {
            world.post(queue, Descriptor { len: 1_500, ..Descriptor::default() }).expect("the ring has room");
        }
        world.bell(queue);
    }
}

#[test]
fn queues_of_a_class_take_turns_unless_told_otherwise() {
    let program = policy("exact", &three("drr"));
    let mut world = World::with(&program);
    let queues = DSCP.map(|dscp| open(&mut world, 0, dscp));
    fill(&mut world, &queues, 100);
    world.run(MS);
    let class = |name: &str| world.rate(class_named(&program, name), 0, MS);
    for name in ["rates/shop/voice", "rates/shop/video", "rates/shop/rest"] {
        assert_near("a third of 3 Gb/s", class(name), 1_000.0, 2.0);
    }
    let turns: Vec<QueueId> = world.sent.iter().map(|sent| sent.pull.queue).collect();
    assert!(
        turns.windows(3).all(|three| three[0] != three[1] && three[1] != three[2] && three[0] != three[2])
    );
    let unstated = policy("exact", &three("drr").replace(", among: drr", ""));
    assert_eq!(unstated, program, "turns are the default");
}

/// Voice takes all that its class may have; the class gets no more for it, nor does its neighbour get less.
#[test]
fn the_first_queue_starves_the_others_of_its_class_and_no_other() {
    let program = policy("exact", &three("priority"));
    let mut world = World::with(&program);
    let rate = |world: &World, name: &str, from, until| world.rate(class_named(&program, name), from, until);
    let [voice, video, rest] = DSCP.map(|dscp| open(&mut world, 0, dscp));
    let batch = open(&mut world, 1, 46);
    fill(&mut world, &[voice, video, rest, batch], 200);
    world.run(800_000); // 200 frames at 3 Gb/s
    assert_near("all of it", rate(&world, "rates/shop/voice", 0, 800_000), 3_000.0, 0.6);
    assert_near("its own", rate(&world, "rates/batch", 0, 800_000), 1_000.0, 2.0);
    world.run(1_600_000);
    assert_near("the next", rate(&world, "rates/shop/video", 800_000, 1_600_000), 3_000.0, 0.6);
    assert_near("still its own", rate(&world, "rates/batch", 800_000, 1_600_000), 1_000.0, 2.0);
    assert_eq!(rate(&world, "rates/shop/rest", 0, 1_600_000), 0.0);
    fill(&mut world, &[voice], 1);
    world.run(1_608_000);
    let last: Vec<QueueId> = world.sent.iter().rev().map(|sent| sent.pull.queue).collect();
    assert!(last[..4].contains(&voice), "the first queue goes next, also when it comes late: {last:?}");
}

/// A rate belongs to the class: set at run time it holds for all of its queues together.
#[test]
fn a_class_with_queues_has_one_rate_to_change() {
    let program = policy("exact", &three("priority"));
    let (shop, voice) = (class_named(&program, "rates/shop"), class_named(&program, "rates/shop/voice"));
    let mut world = World::with(&program);
    let queues = DSCP.map(|dscp| open(&mut world, 0, dscp));
    fill(&mut world, &queues, 200);
    world.notes(|doorbells| doorbells.set_class_rate(shop, BitRate::gbps(6)));
    world.run(400_000);
    assert_near("twice as much", world.rate(voice, 0, 400_000), 6_000.0, 0.6);
    let bad = world.nic.stats().bad_doorbells;
    world.notes(|doorbells| doorbells.set_class_rate(voice, BitRate::gbps(1)));
    assert_eq!(world.nic.stats().bad_doorbells, bad + 1, "a queue has no rate of its own");
}

/// One posting: nanoseconds since the one before, which of four flow queues, and how many frames.
fn arrivals() -> impl Strategy<Value = Vec<(u64, usize, usize)>> {
    proptest::collection::vec((0_u64..9_000, 0_usize..4, 1_usize..6), 1..120)
}

/// The three queues of `shop` and the one of `batch`, fed with the same.
fn run(program: &Program, arrivals: &[(u64, usize, usize)]) -> World {
    let mut world = World::new(program, &Config { queues: 4, ring: 1 << 10, ..Config::default() });
    let shop = DSCP.map(|dscp| open(&mut world, 0, dscp));
    let queues = [shop[0], shop[1], shop[2], open(&mut world, 1, 0)];
    for &(gap, chosen, frames) in arrivals {
        world.run(world.now + gap);
        fill(&mut world, &queues[chosen..=chosen], frames);
        world.poll();
    }
    world.drain();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Nothing of a queue leaves while one before it in the class has a packet.
    #[test]
    fn priority_is_strict_within_a_class(arrivals in arrivals(), grouped: bool) {
        let form = if grouped { "grouped" } else { "exact" };
        let world = run(&policy(form, &three("priority")), &arrivals);
        // Flow queues were opened in the order of the queues, the neighbour's last.
        for lower in world.sent.iter().filter(|sent| (1..3).contains(&sent.pull.queue.0)) {
            let before = |sent: &&crate::kit::Departure| {
                sent.pull.queue < lower.pull.queue && sent.at > lower.at && sent.pull.arrived.as_u64() < lower.at
            };
            let passed_over = world.sent.iter().find(before);
            prop_assert!(passed_over.is_none(), "{lower:?} left before {passed_over:?}");
        }
    }

    /// One rate and one start: the class sends at the same moments as if it had a single queue, and so does its neighbour.
    #[test]
    fn queues_change_nothing_outside_their_class(arrivals in arrivals(), grouped: bool, turns: bool) {
        let form = if grouped { "grouped" } else { "exact" };
        let divided = run(&policy(form, &three(if turns { "drr" } else { "priority" })), &arrivals);
        let whole = run(&policy(form, ""), &arrivals);
        let moments = |world: &World| world.sent.iter().map(|sent| (sent.at, sent.pull.queue.0 == 3)).collect::<Vec<_>>();
        prop_assert_eq!(moments(&divided), moments(&whole));
    }
}
