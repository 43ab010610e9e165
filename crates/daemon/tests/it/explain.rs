//! Explain: the parts of a delay are right, and so are the classes that were served meanwhile.

use crate::support::{World, udp};
use plimsoll_daemon::{Explanation, explain, placement};
use plimsoll_units::Span;

const STEP: Span = Span::micros(10);

fn ask(world: &mut World, filter: &str) -> Explanation {
    let filter = filter.parse().expect("a filter");
    let snapshot = world.engine.snapshot(world.now);
    let ranks = world.engine.nic().ranks(placement(&snapshot, &filter).class);
    explain(&snapshot, &world.log.last(usize::MAX), &filter, &ranks)
}

#[test]
fn time_behind_a_neighbour_is_put_at_the_node_where_their_ways_part() {
    let text = "
uplink: {port: memory, rate: 10Mbps}
tenants:
  shop: {port: memory}
  batch: {port: memory}
policy:
  root: {priority: [batch, shop]}
";
    let mut world = World::new(text, false);
    // 1,250 B at 10 Mb/s: a millisecond each.
    for n in 0..10 {
        world.send(1, &udp(2, 99, 1, n, 1_250));
    }
    world.send(0, &udp(1, 99, 7, 0, 1_250));
    world.run(Span::millis(20), STEP);
    let answer = ask(&mut world, "tenant=shop");
    assert_eq!((answer.matched, answer.class.as_str()), (1, "shop"));
    assert_eq!(answer.ranks.iter().map(|rank| rank.node.as_str()).collect::<Vec<_>>(), ["root"]);
    let time = answer.time.expect("it departed");
    assert!((9_900.0..10_100.0).contains(&time.total), "{time:?}");
    let root = time.nodes.iter().find(|node| node.node == "root").expect("they part at the root");
    assert!(root.time > 0.85 * time.total, "{time:?}");
    let served = &root.served[0];
    assert_eq!((served.tenant.as_str(), served.class.as_str()), ("batch", "batch"));
    // The first packet left at the moment when the second came.
    assert!((9..=10).contains(&served.packets), "{served:?}");
    // A filter need not name the tenant: then the packets that matched tell it.
    let all = ask(&mut world, "");
    assert_eq!((all.matched, all.class.as_str()), (11, "batch, shop"));
    assert!(all.ranks.is_empty() && all.limits.is_empty());
    assert!(ask(&mut world, "dst_port=4").class.contains("tenant=shop"));
}

#[test]
fn where_all_tenants_packets_go_the_same_way_nobody_need_be_named() {
    let text = "
uplink: {port: memory, rate: 10Mbps}
tenants: {shop: {port: memory}, batch: {port: memory}}
policy:
  root: {priority: [voice, shop, batch]}
  voice: {match: {dscp: 46}, max: 1Mbps}
limits:
  shops: {match: {tenant: shop}, rate: 5Mbps}
";
    let mut world = World::new(text, false);
    let voice = ask(&mut world, "dscp=46");
    let names: Vec<&str> = voice.limits.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        (voice.class.as_str(), names.as_slice(), voice.ranks.len()),
        ("voice", &["max(voice)"][..], 1)
    );
    let shops = ask(&mut world, "dscp=46 tenant=shop");
    assert_eq!(shops.limits.len(), 2, "one is the shop's alone: {shops:?}");
    assert!(ask(&mut world, "dscp=10").class.contains("tenant=shop"));
}

#[test]
fn time_behind_the_own_flow_and_at_a_limit_are_told_apart() {
    let text = "
uplink: {port: memory, rate: 1Gbps}
tenants: {shop: {port: memory}, batch: {port: memory}}
limits:
  slow: {match: {dst_port: 80}, rate: 10Mbps, burst: 1518B}
policy:
  root: {wfq: {shop: 1, batch: 1}, via: [slow]}
";
    let mut world = World::new(text, false);
    for n in 0..5 {
        world.send(0, &udp(1, 99, 7, n, 1_250));
    }
    world.run(Span::millis(20), STEP);
    let answer = ask(&mut world, "tenant=shop udp dst_port=80");
    assert_eq!(answer.limits, [("slow".to_owned(), 10_000_000)]);
    let time = answer.time.expect("they departed");
    let limited: f64 = time.limits.iter().map(|limit| limit.time).sum();
    assert_eq!(time.limits[0].limit, "slow");
    assert!(time.own_flow > 1_000.0 && limited > 500.0, "{time:?}");
    let parts = time.own_flow + limited + time.rest + time.nodes.iter().map(|node| node.time).sum::<f64>();
    assert!((parts - time.total).abs() < 1.0, "{time:?}");
}

#[test]
fn what_does_not_match_is_not_explained() {
    let mut world =
        World::new("{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}", false);
    world.send(0, &udp(1, 99, 7, 0, 100));
    world.run(Span::millis(1), STEP);
    let answer = ask(&mut world, "tenant=shop tcp");
    assert_eq!((answer.matched, answer.logged), (0, 1));
    assert!(answer.time.is_none());
}
