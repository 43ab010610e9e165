//! Reload under load: nothing is lost, nothing is reordered, counters go on.

mod support;

use std::collections::HashMap;

use plimsoll_daemon::Stats;
use plimsoll_ports::Sending;
use plimsoll_units::Span;
use support::{World, drain, number, policy, udp};

const BEFORE: &str = "
uplink: {port: memory, rate: 200Mbps}
tenants:
  shop: {port: memory}
  batch: {port: memory}
policy:
  root: {wfq: {shop: 1, batch: 1}}
";

const AFTER: &str = "
uplink: {port: memory, rate: 200Mbps}
tenants:
  shop: {port: memory, max: 150Mbps}
  batch: {port: memory}
  guest: {port: memory}
limits:
  slow: {match: {dst_port: 80}, rate: 180Mbps}
policy:
  root: {priority: [urgent, rest]}
  urgent: {match: {src_port: 3}, via: [slow]}
  rest: {wfq: {shop: 3, batch: 1, guest: 1}, via: [slow]}
";

const STEP: Span = Span::micros(10);

#[test]
fn a_reload_under_load_loses_and_reorders_nothing() {
    let (before, after) = (policy(BEFORE), policy(AFTER));
    let mut world = World::new(BEFORE, false);
    let mut sent: HashMap<(usize, u16), u32> = HashMap::new();
    let mut out = Vec::new();
    for round in 0..400_u32 {
        for tenant in 0..2 {
            let flow = u16::try_from(round % 5).expect("small");
            let number = sent.entry((tenant, flow)).or_default();
            let frame = udp(u8::try_from(tenant).expect("small") + 1, 99, flow, *number, 300);
            if world.send(tenant, &frame) == Sending::Sent {
                *number += 1;
            }
        }
        match round {
            100 | 300 => {
                let change = world.change(&before, &after);
                let installed = world.engine.install(change, world.now);
                assert!(installed.kept > 0, "packets were waiting: this is under load");
            }
            200 => {
                let change = world.change(&after, &before);
                let installed = world.engine.install(change, world.now);
                assert_eq!(installed.closed.len(), 1, "the guest's port");
            }
            _ => {}
        }
        out.extend(world.run(STEP, STEP));
    }
    out.extend(world.run(Span::millis(30), STEP));
    let mut next: HashMap<(usize, u16), u32> = HashMap::new();
    for frame in &out {
        let (flow, number) = number(frame);
        let expected = next.entry((usize::from(frame[11]) - 1, flow)).or_default();
        assert_eq!(number, *expected, "tenant {}, flow {flow}", frame[11]);
        *expected += 1;
    }
    assert_eq!(next, sent);
    assert!(world.losses("shop").is_empty() && world.losses("batch").is_empty());
}

#[test]
fn a_new_tenants_port_works_and_a_removed_one_is_closed() {
    let (before, after) = (policy(BEFORE), policy(AFTER));
    let mut world = World::new(BEFORE, false);
    let change = world.change(&before, &after);
    world.engine.install(change, world.now);
    let frame = udp(3, 99, 1, 0, 300);
    world.send(2, &frame);
    assert_eq!(world.run(Span::millis(1), STEP), [frame]);

    // Its last frames still leave after it is gone.
    let last = udp(3, 99, 1, 1, 300);
    world.send(2, &last);
    world.engine.turn(world.now);
    let change = world.change(&after, &before);
    let installed = world.engine.install(change, world.now);
    assert_eq!(installed.closed.len(), 1);
    assert!(world.run(Span::millis(1), STEP).len() <= 1);
    assert_eq!(world.engine.held(), 0);
    assert!(world.tenants[2].send(&last, None).is_ok() || drain(&mut world.tenants[2]).is_empty());
}

#[test]
fn counters_go_on_under_the_same_names() {
    let (before, after) = (policy(BEFORE), policy(AFTER));
    let mut world = World::new(BEFORE, false);
    let send = |world: &mut World, n| {
        world.send(0, &udp(1, 99, 1, n, 300));
        world.run(Span::micros(100), STEP);
    };
    (0..10).for_each(|n| send(&mut world, n));
    let shop = |world: &mut World| {
        let stats = Stats::from(&world.engine.snapshot(world.now));
        let node = stats.nodes.iter().find(|node| node.path.ends_with("shop")).expect("shop").clone();
        (node.packets, node.delay.map_or(0, |delay| delay.count), stats.nodes[0].packets)
    };
    let counted = shop(&mut world);
    assert_eq!((counted.0, counted.1), (10, 10));
    for (old, new) in [(&before, &before), (&before, &after)] {
        let change = world.change(old, new);
        world.engine.install(change, world.now);
    }
    let again = policy(BEFORE);
    let change = world.change(&after, &again);
    world.engine.install(change, world.now);
    (10..15).for_each(|n| send(&mut world, n));
    let now = shop(&mut world);
    assert_eq!(now.0, 15, "the class counts on");
}
