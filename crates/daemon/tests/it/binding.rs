//! A tenant sends from its own addresses and claims no others, so that none gets a neighbour's traffic.

use std::net::IpAddr;

use crate::support::{World, drain, policy, udp};
use plimsoll_daemon::{Stats, explain, prometheus_page};
use plimsoll_units::Span;
use plimsoll_wire::Mac;
use plimsoll_wire::neighbour::{LONGEST, ask, tell};

const STEP: Span = Span::micros(10);
const OUTSIDE: u8 = 99;

/// Two tenants with addresses, and one that states none.
const BOUND: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants:
  shop: {port: memory, addresses: [10.0.0.1, 2001:db8::1, 02:00:00:00:00:01]}
  batch: {port: memory, addresses: [10.0.0.2, 2001:db8::2, 02:00:00:00:00:02]}
  guest: {port: memory}
";

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// "I have this address", as an answer to 10.0.0.1 or 2001:db8::1.
fn claims(address: &str, at: u8) -> Vec<u8> {
    let asker = if ip(address).is_ipv4() { "10.0.0.1" } else { "2001:db8::1" };
    let mut frame = [0; LONGEST];
    let len = tell((ip(address), mac(at)), (ip(asker), mac(1)), &mut frame).expect("one family");
    frame[..len].to_vec()
}

/// "Who has this address?", asked from another address.
fn asks(from: &str, at: u8, of: &str) -> Vec<u8> {
    let mut frame = [0; LONGEST];
    let len = ask((ip(from), mac(at)), ip(of), &mut frame).expect("one family");
    frame[..len].to_vec()
}

/// Sends a frame; answers the tenant's losses from it.
fn lost(world: &mut World, tenant: usize, frame: &[u8]) -> Vec<(&'static str, u64)> {
    const NAMES: [&str; 3] = ["shop", "batch", "guest"];
    let before = world.losses(NAMES[tenant]);
    world.send(tenant, frame);
    world.run(Span::micros(100), STEP);
    let after = world.losses(NAMES[tenant]);
    let count = |reason| before.iter().find(|(name, _)| *name == reason).map_or(0, |(_, count)| *count);
    after
        .into_iter()
        .map(|(name, now)| (name, now - count(name)))
        .filter(|&(name, more)| more > 0 && !matches!(name, "unknown_destination" | "receiver_full"))
        .collect()
}

/// A datagram from an address to the outside.
fn sends(at: u8, from: u8) -> Vec<u8> {
    let mut frame = udp(from, OUTSIDE, 7, 0, 100);
    frame[11] = at;
    frame
}

#[test]
fn a_neighbours_address_cannot_be_claimed_and_each_attempt_is_counted() {
    let mut world = World::new(BOUND, false);
    for (frame, reason) in [
        (claims("10.0.0.2", 1), "spoofed_arp"),
        (asks("10.0.0.2", 1, "10.0.0.2"), "spoofed_arp"),
        (claims("10.0.0.77", 1), "spoofed_arp"),
        (claims("2001:db8::2", 1), "spoofed_neighbour"),
        (asks("2001:db8::2", 1, "2001:db8::9"), "spoofed_neighbour"),
        (claims("10.0.0.1", 2), "spoofed_mac"),
        (sends(1, 2), "spoofed_address"),
        (sends(2, 1), "spoofed_mac"),
    ] {
        assert_eq!(lost(&mut world, 0, &frame), [(reason, 1)], "{frame:02x?}");
        assert!(drain(&mut world.tenants[1]).is_empty(), "{reason} went on");
    }
    says_why(&mut world, "spoofed_arp", 3);
    for frame in [
        claims("10.0.0.1", 1),
        asks("10.0.0.1", 1, "10.0.0.2"),
        sends(1, 1),
        asks("2001:db8::1", 1, "2001:db8::2"),
    ] {
        assert_eq!(lost(&mut world, 0, &frame), [], "{frame:02x?}");
    }
    // The neighbour may send it.
    drain(&mut world.tenants[0]);
    assert_eq!(lost(&mut world, 1, &claims("10.0.0.2", 2)), []);
    assert_eq!(drain(&mut world.tenants[0]), [claims("10.0.0.2", 2)]);
}

/// Statistics, metrics and `explain` show the same reason.
#[track_caller]
fn says_why(world: &mut World, reason: &str, count: u64) {
    let snapshot = world.engine.snapshot(world.now);
    let stats = Stats::from(&snapshot);
    assert_eq!(stats.tenants["shop"].drops.get(reason), Some(&count));
    let line = format!("plimsoll_port_drops_total{{port=\"shop\",reason=\"{reason}\"}} {count}\n");
    assert!(prometheus_page(&stats).contains(&line), "{line}");
    for (filter, shown) in [("tenant=shop", Some(&count)), ("", Some(&count)), ("tenant=batch", None)] {
        let told = explain(&snapshot, &[], &filter.parse().expect("a filter"), &[]);
        assert_eq!(told.turned_away.get(reason), shown, "{filter}");
    }
}

#[test]
fn who_states_nothing_cannot_take_what_others_state() {
    let mut world = World::new(BOUND, false);
    for (frame, reason) in [
        (claims("10.0.0.2", 3), "spoofed_arp"),
        (claims("2001:db8::2", 3), "spoofed_neighbour"),
        (claims("fe80::ff:fe00:2", 3), "spoofed_neighbour"),
        (sends(3, 2), "spoofed_address"),
        (claims("10.0.0.3", 2), "spoofed_mac"),
    ] {
        assert_eq!(lost(&mut world, 2, &frame), [(reason, 1)], "{frame:02x?}");
    }
    // It may use several addresses of its own, which are learned.
    for frame in
        [claims("10.0.0.3", 3), claims("10.0.0.4", 4), claims("2001:db8::3", 3), sends(4, 3), sends(5, 5)]
    {
        assert_eq!(lost(&mut world, 2, &frame), [], "{frame:02x?}");
    }
}

#[test]
fn where_no_tenant_states_addresses_nothing_is_looked_at() {
    let text =
        "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}, batch: {port: memory}}}";
    let mut world = World::new(text, false);
    for frame in [claims("10.0.0.2", 1), sends(1, 2), claims("2001:db8::2", 1)] {
        assert_eq!(lost(&mut world, 0, &frame), []);
    }
}

#[test]
fn a_router_sends_for_others_and_one_that_is_off_is_held_to_nothing() {
    let text = BOUND.replace(
        "guest: {port: memory}",
        "guest: {port: memory, binding: router, addresses: [10.0.0.3, 02:00:00:00:00:03]}",
    );
    let mut world = World::new(&text, false);
    for from in [2, 3, 77] {
        assert_eq!(lost(&mut world, 2, &sends(3, from)), []);
    }
    assert_eq!(lost(&mut world, 2, &claims("10.0.0.2", 3)), [("spoofed_arp", 1)]);
    assert_eq!(lost(&mut world, 2, &claims("10.0.0.77", 3)), [("spoofed_arp", 1)]);
    assert_eq!(lost(&mut world, 2, &sends(4, 3)), [("spoofed_mac", 1)]);
    let text = BOUND.replace("guest: {port: memory}", "guest: {port: memory, binding: off}");
    let mut world = World::new(&text, false);
    for frame in [sends(3, 2), claims("10.0.0.2", 3), claims("10.0.0.77", 4)] {
        assert_eq!(lost(&mut world, 2, &frame), []);
    }
}

#[test]
fn a_reload_binds_and_unbinds_at_once() {
    let text = BOUND.replace(", addresses: [10.0.0.1, 2001:db8::1, 02:00:00:00:00:01]", "");
    let (loose, tight) = (policy(&text), policy(BOUND));
    let mut world = World::between(&loose, false, false);
    // An address that passed once may be refused later.
    assert_eq!(lost(&mut world, 0, &sends(7, 7)), []);
    let change = world.change(&loose, &tight);
    world.engine.install(change, world.now);
    assert_eq!(lost(&mut world, 0, &sends(7, 7)), [("spoofed_mac", 1)]);
    assert_eq!(lost(&mut world, 0, &sends(1, 7)), [("spoofed_address", 1)]);
    assert_eq!(lost(&mut world, 0, &sends(1, 1)), []);
    let change = world.change(&tight, &loose);
    world.engine.install(change, world.now);
    assert_eq!(lost(&mut world, 0, &sends(7, 7)), []);
    assert_eq!(lost(&mut world, 0, &sends(7, 2)), [("spoofed_address", 1)], "the neighbour's still");
}

#[test]
fn a_port_whose_address_is_not_known_has_the_first_that_it_sends_from() {
    let text = BOUND.replace(", 02:00:00:00:00:01]", "]");
    let checked = policy(&text);
    let mut world = World::between(&checked, false, false);
    assert_eq!(lost(&mut world, 0, &sends(2, 1)), [("spoofed_mac", 1)], "another's is not taken");
    assert_eq!(lost(&mut world, 0, &sends(8, 1)), []);
    assert_eq!(lost(&mut world, 0, &sends(1, 1)), [("spoofed_mac", 1)]);
    let change = world.change(&checked, &checked);
    world.engine.install(change, world.now);
    assert_eq!(lost(&mut world, 0, &sends(1, 1)), [("spoofed_mac", 1)], "a reload changes nothing of it");
    world.run(Span::secs(301), Span::secs(1));
    assert_eq!(
        lost(&mut world, 2, &sends(8, 3)),
        [("spoofed_mac", 1)],
        "no other tenant gets it while it is silent"
    );
    assert_eq!(lost(&mut world, 0, &sends(8, 1)), []);
}

/// A host of a fleet whose map gives the second address to this tenant.
fn fleet(second: &str) -> String {
    let of = |name: &str, first: u8| {
        let more = if name == second { ", 02:00:00:00:00:11" } else { "" };
        format!("{name}: [02:00:00:00:00:0{first}{more}]")
    };
    format!(
        "uplink: {{port: memory, rate: 1Gbps, mtu: 1600}}\ntenants: {{shop: {{port: memory}}, batch: {{port: memory}}}}\n\
         overlay: {{kind: geneve, vni: 7, host: a, hosts: {{a: {{address: 192.0.2.1, tenants: {{{}, {}}}}}}}}}\n",
        of("shop", 1),
        of("batch", 2),
    )
}

#[test]
fn every_address_of_the_map_is_its_tenants_and_moves_with_the_map() {
    let (before, after) = (policy(&fleet("shop")), policy(&fleet("batch")));
    let mut world = World::between(&before, false, false);
    let (from_shop, from_batch) = (udp(0x11, 2, 7, 0, 100), udp(0x11, 1, 7, 0, 100));
    assert_eq!(lost(&mut world, 1, &from_batch), [("foreign_source", 1)], "though it was first");
    assert_eq!(lost(&mut world, 0, &from_shop), []);
    let change = world.change(&before, &after);
    world.engine.install(change, world.now);
    assert_eq!(lost(&mut world, 0, &from_shop), [("foreign_source", 1)]);
    assert_eq!(lost(&mut world, 1, &from_batch), []);
}
