//! Limits in a row: each is paid in full.
//!
//! Not here: random policies (`properties`), shares (`shares`).

use plimsoll_nic::Descriptor;
use plimsoll_policy::{FlowOrder, NodeKind};
use plimsoll_units::{Nanos, Span};

use crate::kit::{FRAME, MS, Plan, ROOT, World, mbps};

/// Class `e` always has small packets that may wait, and now and then an urgent large one. A small packet is granted what it
/// needs of the maximum of `e` and waits for `wan`, where `b` uses up the rate; there the large one takes its place.
#[test]
fn an_urgent_packet_pays_in_full_the_limit_that_granted_less_to_a_smaller_one() {
    let mut plan = Plan::new(mbps(1_000), NodeKind::Priority);
    let b = plan.class(ROOT, 1);
    let e = plan.node(ROOT, NodeKind::Class(FlowOrder::Edf(Span::millis(1_000))), 1);
    let max = mbps(1);
    plan.max(e, max, FRAME);
    let wan = plan.limit("wan", mbps(10), FRAME);
    let mut world = World::with(&plan.program);
    world.greedy_with(e, &[wan], Descriptor { len: 64, tag: 1_000_000, ..Descriptor::default() });
    let (urgent, above) = (world.open(e, &[wan]), world.open(b, &[wan]));
    for _ in 0..50 {
        (0..3).for_each(|_| _ = world.send(above, 1_500));
        world.run(world.now + MS);
        world.post(urgent, Descriptor { len: 1_500, tag: 1, ..Descriptor::default() }).expect("few wait");
        world.bell(urgent);
        world.run(world.now + 4 * MS);
    }
    // The burst, the rate, and one largest packet that was let go and waits for its turn on the link.
    let allowed = 2 * FRAME + max.bytes_in(Nanos::new(world.now) - Nanos::ZERO).as_u64();
    let sent = world.bytes(e, 0, world.now);
    assert!(sent <= allowed, "{sent} B in 250 ms, allowed {allowed}");
}

/// A gate that opens for the small packets of a higher class is not asked again and again for the large one of a lower class.
#[test]
fn a_packet_is_picked_in_vain_once_at_a_gate() {
    let mut plan = Plan::new(mbps(10_000), NodeKind::Priority);
    let n = plan.node(ROOT, NodeKind::Priority, 1);
    let (x, lo) = (plan.class(n, 1), plan.class(n, 1));
    plan.max(n, mbps(1_000), 2 * FRAME);
    let mut world = World::with(&plan.program);
    let small = world.open(x, &[]);
    world.greedy(lo, &[], 1_500);
    while world.now < 10 * MS {
        world.send(small, 64); // 731 Mb/s
        world.run(world.now + 700);
    }
    let (above, below) = (world.rate(x, MS, 10 * MS), world.rate(lo, MS, 10 * MS));
    assert!((730.0..732.0).contains(&above) && (268.0..272.0).contains(&below), "{above} and {below} Mb/s");
    assert!(world.nic.stats().most_pairs <= 3, "{:?}", world.nic.stats());
}

/// Each of eight limits is open when x's packet enters the tree, and used up by another class before its turn comes there.
#[test]
fn a_packet_is_picked_in_vain_at_one_limit_of_many() {
    let mut plan = Plan::new(mbps(10_000), NodeKind::Priority);
    let blocker = plan.class(ROOT, 1);
    let others: Vec<_> = (0..8).map(|_| plan.class(ROOT, 1)).collect();
    let x = plan.class(ROOT, 1);
    let limits: Vec<_> = (0..8).map(|n| plan.limit(&format!("l{n}"), mbps(10), 2 * FRAME)).collect();
    let mut world = World::with(&plan.program);
    let blocker = world.open(blocker, &[]);
    let others: Vec<_> =
        others.iter().zip(&limits).map(|(&class, &limit)| world.open(class, &[limit])).collect();
    world.greedy(x, &limits, 1_500);
    for round in 0..100 {
        (0..200).for_each(|_| _ = world.send(blocker, 1_500));
        (0..2).for_each(|_| _ = world.send(others[round % others.len()], 1_500));
        world.run(world.now + 1_300_000);
    }
    assert!(world.nic.stats().most_pairs <= 3, "{:?}", world.nic.stats());
}
