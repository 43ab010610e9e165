//! Reload under load: nothing is lost, nothing is reordered, counters go on.

use std::collections::HashMap;

use crate::support::{World, number, policy, udp};
use plimsoll_daemon::{Stats, Whose};
use plimsoll_ports::Sending;
use plimsoll_units::Span;
use plimsoll_wire::VnetHeader;

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
    let last: Vec<_> = (1..4).map(|n| udp(3, 99, 1, n, 300)).collect();
    for frame in &last {
        world.send(2, frame);
    }
    world.engine.turn(world.now);
    assert!(world.engine.held() > 0, "under load");
    let change = world.change(&after, &before);
    let installed = world.engine.install(change, world.now);
    assert_eq!(installed.closed.len(), 1);
    drop(installed);
    assert!(world.tenants[2].send(&last[0], None).is_err(), "the engine's end is closed");
    assert_eq!(world.run(Span::millis(1), STEP), last);
    assert_eq!(world.engine.held(), 0);
    assert_eq!(world.engine.nic().open_queues(), 0, "its flow queue is closed as soon as it is empty");
}

/// Flows of a tenant that have a queue of their own.
fn flows(world: &mut World, name: &str) -> u32 {
    let snapshot = world.engine.snapshot(world.now);
    snapshot.lanes.iter().filter(|lane| lane.name == name).map(|lane| lane.flows).sum()
}

/// How often a flow of this tenant found no queue of its own.
fn without_queue(world: &mut World, name: &str) -> u64 {
    let events = world.events(name);
    events.iter().find(|(name, _)| *name == "flow_table_full").map_or(0, |&(_, count)| count)
}

/// Every tenant sends in `flows` new flows, slowly enough that no frame waits for long.
fn new_flows(world: &mut World, tenants: usize, flows: std::ops::Range<u16>) {
    for flow in flows {
        for tenant in 0..tenants {
            world.send(tenant, &udp(u8::try_from(tenant).expect("few") + 1, 99, flow, 0, 300));
        }
        world.run(Span::micros(100), STEP);
    }
}

const WIDE: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants:
  shop: {port: memory}
  batch: {port: memory}
limits:
  web: {rate: 1Gbps, burst: 3000B}
policy:
  root: {priority: [a, b, c, rest], via: [web]}
  a: {match: {src_port: 101}}
  b: {match: {src_port: 102}}
  c: {match: {src_port: 103}}
  rest: {wfq: {shop: 1, batch: 1}}
";

const NARROW: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants:
  shop: {port: memory}
  batch: {port: memory}
";

#[test]
fn what_was_pulled_before_a_reload_leaves_under_the_new_policy() {
    let (wide, narrow) = (policy(WIDE), policy(NARROW));
    assert!(wide.program.nodes.len() > narrow.program.nodes.len() + 1);
    let mut world = World::new(WIDE, false);
    let mut sent = 0;
    // The wire is not drained: 512 frames fill it, and the next pull stays unsent.
    for n in 0..130 {
        for flow in 0..8 {
            sent += usize::from(world.send(1, &udp(2, 99, flow, n, 300)) == Sending::Sent);
        }
        world.engine.turn(world.now);
        world.now += STEP;
    }
    assert!(world.events("uplink").iter().any(|&(name, _)| name == "uplink_full"));
    let change = world.change(&wide, &narrow);
    world.engine.install(change, world.now);
    assert_eq!(world.run(Span::millis(5), STEP).len(), sent);
    let departures = world.log.last(usize::MAX);
    let after: Vec<_> = departures.iter().filter(|departure| departure.passage.generation == 1).collect();
    assert!(!after.is_empty());
    for departure in after {
        assert!((departure.passage.class.0 as usize) < narrow.program.nodes.len(), "{departure:?}");
        assert_eq!(departure.passage.limited_by, None, "the limit is gone");
    }
}

/// 64 flow queues for tenants of these names.
fn small(tenants: &[&str]) -> String {
    let ports: Vec<String> = tenants.iter().map(|name| format!("  {name}: {{port: memory}}\n")).collect();
    format!("uplink: {{port: memory, rate: 1Gbps}}\nengine: {{queues: 64}}\ntenants:\n{}", ports.concat())
}

#[test]
fn removed_tenants_give_their_flow_queues_back() {
    let (two, three) = (small(&["shop", "batch"]), small(&["shop", "batch", "guest"]));
    let (without, with) = (policy(&two), policy(&three));
    let mut world = World::new(&two, false);
    for round in 0..16_u32 {
        let change = world.change(&without, &with);
        world.engine.install(change, world.now);
        let guest = world.tenants.len() - 1;
        for flow in 0..10 {
            world.send(guest, &udp(3, 99, flow, round, 300));
        }
        // Half of the time it is still busy when it goes.
        world.run(if round % 2 == 0 { Span::millis(1) } else { STEP }, STEP);
        let change = world.change(&with, &without);
        world.engine.install(change, world.now);
        world.run(Span::millis(1), STEP);
    }
    assert_eq!(world.engine.nic().open_queues(), 0);
    // Eight flows have room in any bucket of the table, however its hash is seeded.
    new_flows(&mut world, 2, 0..8);
    assert_eq!((flows(&mut world, "shop"), flows(&mut world, "batch")), (8, 8));
    assert!(world.losses("shop").is_empty() && world.losses("batch").is_empty());
}

#[test]
fn overflow_queues_that_come_to_share_a_place_are_closed_again() {
    let one = small(&["shop", "batch"]);
    let split = format!(
        "{one}policy:\n  root: {{wfq: {{shop: 1, batch: 1, odd: 1}}}}\n  odd: {{match: {{src_port: 1000-1999}}}}\n"
    );
    let (together, apart) = (policy(&one), policy(&split));
    let mut world = World::new(&split, false);
    for round in 0..20 {
        // More flows than the table takes, in two classes, all at once: their last ones share two queues.
        for flow in (0..80).chain(1_000..1_080) {
            world.send(0, &udp(1, 99, flow, round, 300));
        }
        world.run(Span::micros(100), STEP);
        for (old, new) in [(&apart, &together), (&together, &apart)] {
            assert!(world.engine.held() > 100, "under load");
            let change = world.change(old, new);
            world.engine.install(change, world.now);
        }
        world.run(Span::millis(2), STEP);
        assert_eq!(world.engine.held(), 0);
    }
    assert!(without_queue(&mut world, "shop") > 0);
    world.now += Span::secs(60);
    world.run(Span::millis(5), STEP);
    assert_eq!(world.engine.nic().open_queues(), 0, "idle ones are closed");
    assert!(world.losses("shop").is_empty());
}

#[test]
fn a_reload_deals_the_flow_queues_out_anew() {
    let names = ["shop", "batch", "c", "d", "e", "f"];
    let (few, many) = (small(&names[..2]), small(&names));
    let (before, after) = (policy(&few), policy(&many));
    let mut world = World::new(&few, false);
    new_flows(&mut world, 2, 0..100);
    let change = world.change(&before, &after);
    world.engine.install(change, world.now);
    new_flows(&mut world, 6, 100..200);
    for name in names {
        let flows = flows(&mut world, name);
        // 64 queues less one for each tenant's overflow, for six.
        assert!((7..=9).contains(&flows), "{name}: {flows}");
        assert_eq!(world.losses(name), [], "{name} has an overflow queue at least");
    }
    assert!(world.engine.nic().open_queues() <= 64);
    let change = world.change(&after, &before);
    world.engine.install(change, world.now);
    new_flows(&mut world, 2, 200..300);
    for name in ["shop", "batch"] {
        assert!((20..=30).contains(&flows(&mut world, name)), "their parts are large again");
    }
}

#[test]
fn one_tenants_overflow_takes_no_queue_of_its_neighbours() {
    let classes = (0..16).map(|n| format!("  c{n}: {{match: {{tenant: shop, src_port: {n}00-{n}99}}}}\n"));
    let names: Vec<String> = (0..16).map(|n| format!("c{n}")).collect();
    let root = format!("policy:\n  root: {{priority: [{}, rest]}}\n", names.join(", "));
    let rest = "  rest: {wfq: {shop: 1, batch: 1}}\n";
    let text = format!("{}{root}{}{rest}", small(&["shop", "batch"]), classes.collect::<String>());
    let mut world = World::new(&text, false);
    // Nothing leaves meanwhile: every flow and every class needs a queue at once.
    for n in 0..400 {
        world.send(0, &udp(1, 99, n * 4, 0, 300));
    }
    for _ in 0..14 {
        world.engine.turn(world.now);
    }
    assert!(world.engine.nic().open_queues() <= 32);
    new_flows(&mut world, 2, 5_000..5_008);
    assert_eq!(flows(&mut world, "batch"), 8);
    assert_eq!(world.losses("batch"), []);
}

#[test]
fn a_faster_link_pulls_more_at_once() {
    let slow = "{uplink: {port: memory, rate: 5Mbps}, tenants: {shop: {port: memory}}}";
    let (before, after) = (policy(slow), policy(&slow.replace("5Mbps", "10Gbps")));
    let mut world = World::with_cutting_uplink(slow);
    let frame = udp(1, 99, 5, 1, 42 + 6_000);
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: VnetHeader::GSO_UDP_L4,
        hdr_len: 42,
        gso_size: 1_000,
        csum_start: 34,
        csum_offset: 6,
    };
    world.send_with(0, &frame, &vnet);
    assert_eq!(
        world.run(Span::millis(20), STEP).len(),
        6,
        "a wake-up grain carries less than a frame: one segment at once"
    );
    let change = world.change(&before, &after);
    world.engine.install(change, world.now);
    world.send_with(0, &frame, &vnet);
    assert_eq!(world.run(Span::millis(1), STEP).len(), 1, "a wake-up grain carries it whole");
}

#[test]
fn a_lost_port_has_its_tenants_name() {
    let mut world = World::new(BEFORE, false);
    drop(world.tenants.remove(1));
    world.run(Span::micros(50), STEP);
    let lost = world.engine.take_lost();
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].lane, &lost[0].whose), (Some(1), &Whose::Tenant("batch".to_owned())));
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

/// Classes below `all`, each with a limit of its own name.
fn named(classes: [&str; 2]) -> String {
    let [a, b] = classes;
    format!(
        "uplink: {{port: memory, rate: 200Mbps}}\ntenants: {{shop: {{port: memory}}, batch: {{port: memory}}}}\n\
         limits: {{to-{a}: {{rate: 190Mbps}}, wan: {{rate: 195Mbps}}}}\n\
         policy:\n  root: {{priority: [all, batch], via: [wan]}}\n  all: {{wfq: {{{a}: 1, {b}: 1}}, via: [to-{a}]}}\n  \
         {a}: {{match: {{tenant: shop, src_port: 1}}}}\n  {b}: {{match: {{tenant: shop}}}}\n"
    )
}

#[test]
fn counters_go_on_over_any_number_of_reloads() {
    let (first, other) = (named(["a", "b"]), named(["c", "d"]));
    let mut world = World::new(&first, false);
    let counted = |world: &mut World| {
        let stats = Stats::from(&world.engine.snapshot(world.now));
        let node = |name: &str| {
            let node = stats.nodes.iter().find(|node| node.path == name)?;
            Some((node.packets, node.delay.as_ref().map_or(0, |delay| delay.count)))
        };
        (
            ["root", "all", "all/a", "all/c"].map(node),
            ["wan", "to-a", "to-c"].map(|name| stats.limits.get(name).map(|limit| limit.packets)),
        )
    };
    let send = |world: &mut World| {
        for n in 0..10 {
            world.send(0, &udp(1, 99, 1, n, 300));
            world.run(Span::micros(100), STEP);
        }
    };
    send(&mut world);
    let all = |packets| Some((packets, packets));
    assert_eq!(counted(&mut world), ([all(10), all(10), all(10), None], [Some(10), Some(10), None]));
    let mut now = policy(&first);
    let mut reload = |world: &mut World, text: &str| {
        let next = policy(text);
        let change = world.change(&now, &next);
        world.engine.install(change, world.now);
        now = next;
    };
    for round in 1..5 {
        for _ in 0..round {
            reload(&mut world, &other);
        }
        let sent = 20 * round - 10;
        assert_eq!(
            counted(&mut world),
            ([all(sent), all(sent), None, all(0)], [Some(sent), None, Some(0)]),
            "what a name that is gone has counted is the node's above it"
        );
        send(&mut world);
        assert_eq!(counted(&mut world).0[3], all(10));
        for _ in 0..round {
            reload(&mut world, &first);
        }
        let sent = sent + 10;
        assert_eq!(
            counted(&mut world),
            ([all(sent), all(sent), all(0), None], [Some(sent), Some(0), None]),
            "a name that comes back begins anew, however many reloads it was away"
        );
        send(&mut world);
    }
    // Only its root is left.
    reload(&mut world, NARROW);
    assert_eq!(counted(&mut world).0, [all(90), None, None, None]);
}

#[test]
fn a_reload_may_raise_the_descriptors_for_tenants_that_come() {
    let text = |descriptors: u32, tenants: u32| {
        let tenants: String = (0..tenants).map(|n| format!("t{n}: {{port: memory}}, ")).collect();
        policy(&format!(
            "{{uplink: {{port: memory, rate: 1Mbps}}, engine: {{queues: 1024, descriptors: {descriptors}}}, \
             tenants: {{{tenants}}}}}"
        ))
    };
    let (before, after) = (text(64, 2), text(128, 4));
    let mut world = World::between(&before, false, false);
    let change = world.change(&before, &after);
    world.engine.install(change, world.now);
    // At 1 Mb/s hardly any frame leaves: each tenant fills its own part.
    for (tenant, from) in (0..4).zip(1..) {
        for number in 0..40 {
            world.send(tenant, &udp(from, 99, 1, number, 1_000));
        }
    }
    world.run(Span::millis(1), STEP);
    assert!(world.engine.held() >= 126, "four times 32, but for those on the wire: {}", world.engine.held());
    assert!(world.losses("t3").is_empty());
}

#[test]
fn a_tenant_that_is_alone_after_a_reload_may_have_as_many_flows_as_all_had() {
    let text = |tenants: u32| {
        let tenants: String = (0..tenants).map(|n| format!("t{n}: {{port: memory}}, ")).collect();
        policy(&format!(
            "{{uplink: {{port: memory, rate: 10Gbps}}, engine: {{queues: 4096}}, tenants: {{{tenants}}}}}"
        ))
    };
    let (before, after) = (text(16), text(1));
    let mut world = World::between(&before, false, false);
    world.send(0, &udp(1, 99, 9_999, 0, 100));
    let change = world.change(&before, &after);
    world.engine.install(change, world.now);
    for flow in 0..3_000 {
        world.send(0, &udp(1, 99, flow, 0, 100));
        world.run(STEP, STEP);
    }
    let snapshot = world.engine.snapshot(world.now);
    assert!(snapshot.lanes[0].flows > 2_900, "{} flows have a queue of their own", snapshot.lanes[0].flows);
}
