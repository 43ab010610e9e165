//! The uplink's second port: it takes over, and gives back.

use plimsoll_daemon::{ActivePort, Change, Filter, Place, StandbyChange, Stats, Whose, explain};
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Mac;
use plimsoll_wire::overlay::{Inner, Vni};

use crate::support::{World, path, policy, udp};

const STEP: Span = Span::micros(10);
const OUTSIDE: u8 = 99;
const TENANTS: &str = "tenants: {shop: {port: memory}, batch: {port: memory}}";

fn text(standby: &str) -> String {
    format!("{{uplink: {{port: {{af_packet: eth0}}, rate: 1Gbps{standby}}}, {TENANTS}}}")
}

/// A port for the uplink that stages a few frames, as a packet socket does, and its far end.
fn port(name: &str, slots: usize) -> (Port, MemoryPort) {
    let config = MemoryConfig { slots, staged: 4, ..MemoryConfig::default() };
    let (port, end) = MemoryPort::pair(name, config).expect("memory");
    (Port::Memory(port), end)
}

/// A world whose uplink has two ports: its own wire is the first one's far end; the second one's is answered.
fn two(hold_off: Span) -> (World, MemoryPort) {
    let mut world = World::new(&text(", standby: {af_packet: eth1}"), false);
    let (second, end) = port("second", 256);
    world.engine.set_standby(Place::First, Some(second), hold_off, Nanos::ZERO);
    (world, end)
}

fn drain(end: &mut MemoryPort) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; FRAME_ROOM];
    let mut frames = Vec::new();
    while let Ok(Some(got)) = end.receive(&mut buffer) {
        frames.push(buffer[..got.len].to_vec());
    }
    frames
}

/// Frames without the announcements among them, and the addresses that were announced.
fn sorted(frames: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (rarp, frames): (Vec<_>, Vec<_>) =
        frames.into_iter().partition(|frame| frame[12..14] == [0x80, 0x35]);
    let mut macs: Vec<u8> = rarp.iter().map(|frame| frame[11]).collect();
    macs.sort_unstable();
    (frames, macs)
}

/// The frames of tenant `shop`.
fn of_shop(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.retain(|frame| frame[11] == 1);
    frames
}

fn active(world: &mut World) -> (Place, u64) {
    let now = world.engine.snapshot(world.now).standby.expect("two ports");
    (now.active, now.switches)
}

#[test]
fn the_second_port_takes_over_without_a_loss_and_the_addresses_are_announced() {
    let (mut world, mut second) = two(Span::secs(5));
    let frames: Vec<_> = (0..20).map(|n| udp(1, OUTSIDE, 1, n, 300)).collect();
    for (number, frame) in frames.iter().enumerate() {
        if number == 10 {
            assert_eq!(of_shop(world.run(Span::micros(100), STEP)), frames[..10]);
            world.wire.cut(true);
        }
        world.send(0, frame);
        world.send(1, &udp(2, OUTSIDE, 1, 0, 300));
        world.engine.turn(world.now);
    }
    assert!(world.run(Span::millis(2), STEP).is_empty(), "nothing more by the first one");
    let (came, macs) = sorted(drain(&mut second));
    assert_eq!(of_shop(came), frames[10..]);
    assert_eq!(macs, [1, 2], "both tenants' addresses, once");
    world.run(Span::secs(2), Span::millis(10));
    assert_eq!(sorted(drain(&mut second)), (vec![], vec![1, 1, 2, 2]), "and twice more");
    assert_eq!(active(&mut world), (Place::Second, 1));
    assert!(world.losses("shop").is_empty() && world.losses("batch").is_empty());
    let uplink = world.engine.snapshot(world.now).uplink;
    // 40 frames of tenants, and six announcements: each is counted once, whichever port it took.
    assert_eq!((uplink.counters.tx_packets, uplink.down), (46, false));
    assert_eq!(uplink.tally.events().collect::<Vec<_>>(), [("uplink_switched", 1), ("address_announced", 6)]);
    let told = world.engine.take_told();
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("memory second/a, its standby, carries all frames now"), "{told:?}");
}

#[test]
fn what_the_first_port_has_taken_and_not_sent_leaves_by_the_second() {
    let mut world = World::new(&text(""), false);
    let (unused, _keep) = port("unused", 2);
    let (first, first_end) = port("first", 4);
    drop(std::mem::replace(&mut world.wire, first_end));
    world.engine.turn(world.now);
    assert_eq!(world.engine.take_lost()[0].whose, Whose::Uplink);
    assert!(world.engine.attach_of(&Whose::Standby, unused, world.now).is_some(), "there is no standby");
    assert!(world.engine.attach_of(&Whose::Uplink, first, world.now).is_none());
    let (second, mut second_end) = port("second", 256);
    world.engine.set_standby(Place::First, Some(second), Span::secs(5), world.now);
    // Four in the ring, which arrive; four staged; two wait in the engine.
    let frames: Vec<_> = (0..10).map(|n| udp(1, OUTSIDE, 1, n, 300)).collect();
    for frame in &frames {
        world.send(0, frame);
    }
    for _ in 0..20 {
        world.engine.turn(world.now);
        world.now += STEP;
    }
    world.wire.cut(true);
    for _ in 0..20 {
        world.engine.turn(world.now);
        world.now += STEP;
    }
    assert_eq!(world.received(), frames[..4]);
    assert_eq!(sorted(drain(&mut second_end)).0, frames[4..], "in their order");
    assert!(world.losses("shop").is_empty());
    let uplink = world.engine.snapshot(world.now).uplink;
    let announced =
        uplink.tally.events().find(|(name, _)| *name == "address_announced").map_or(0, |(_, n)| n);
    assert_eq!(uplink.counters.tx_packets, 10 + announced, "each was counted as sent once");
}

#[test]
fn the_first_port_takes_back_once_it_has_been_well_for_a_while() {
    let (mut world, mut second) = two(Span::secs(5));
    let mut number = 0;
    let mut sends_by_first = |world: &mut World, second: &mut MemoryPort| {
        number += 1;
        let frame = udp(1, OUTSIDE, 1, number, 300);
        world.send(0, &frame);
        let first = sorted(world.run(Span::millis(1), STEP)).0;
        let second = sorted(drain(second)).0;
        assert_eq!(first.len() + second.len(), 1);
        first == [frame]
    };
    assert!(sends_by_first(&mut world, &mut second));
    world.wire.cut(true);
    assert!(!sends_by_first(&mut world, &mut second));
    // It flaps: well for 3 s, away for a moment, well again.
    for (cut, span) in [(false, 3), (true, 1), (false, 4)] {
        world.wire.cut(cut);
        world.run(Span::secs(span), Span::millis(10));
        assert!(!sends_by_first(&mut world, &mut second), "not well for five seconds yet");
    }
    world.run(Span::secs(2), Span::millis(10));
    assert!(sends_by_first(&mut world, &mut second));
    assert_eq!(active(&mut world), (Place::First, 2));
}

#[test]
fn two_ports_that_flap_switch_ten_times_a_second_at_most() {
    let (mut world, second) = two(Span::ZERO);
    for turn in 0..1_000 {
        world.wire.cut(turn % 2 == 0);
        second.cut(turn % 2 == 1);
        world.run(Span::millis(1), Span::millis(1));
    }
    let (_, switches) = active(&mut world);
    assert!((5..=11).contains(&switches), "{switches} in a second");
}

#[test]
fn frames_that_come_by_the_idle_port_are_dropped_and_counted() {
    let (mut world, mut second) = two(Span::secs(5));
    world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
    world.run(Span::micros(100), STEP);
    let inward = udp(OUTSIDE, 1, 1, 0, 100);
    for end in [&mut world.wire, &mut second] {
        end.send(&inward, None).expect("taken");
    }
    world.run(Span::millis(1), STEP);
    assert_eq!(drain(&mut world.tenants[0]), std::slice::from_ref(&inward), "once");
    let losses =
        |world: &mut World| world.engine.snapshot(world.now).uplink.tally.losses().collect::<Vec<_>>();
    assert_eq!(losses(&mut world), [("inactive_port", 1)]);
    world.wire.cut(true);
    world.run(Span::millis(1), STEP);
    second.send(&inward, None).expect("taken");
    world.run(Span::millis(1), STEP);
    assert_eq!(drain(&mut world.tenants[0]), [inward], "by the other one now");
    assert_eq!(losses(&mut world), [("inactive_port", 1)]);
}

#[test]
fn a_port_that_disappears_is_replaced_and_asked_for_under_its_own_name() {
    let (mut world, mut second) = two(Span::secs(5));
    let (unused, _keep) = MemoryPort::pair("unused", MemoryConfig::default()).expect("memory");
    drop(std::mem::replace(&mut world.wire, unused));
    let frame = udp(1, OUTSIDE, 1, 0, 100);
    world.send(0, &frame);
    world.run(Span::millis(1), STEP);
    assert_eq!(sorted(drain(&mut second)).0, [frame]);
    let lost: Vec<_> = world.engine.take_lost().into_iter().map(|lost| lost.whose).collect();
    assert_eq!((lost, world.engine.lacking()), (vec![Whose::Uplink], vec![Whose::Uplink]));
    let stats = Stats::from(&world.engine.snapshot(world.now)).standby.expect("two ports");
    assert_eq!((stats.active.as_str(), stats.port.name, stats.port.up), ("standby", None, false));
    assert!(stats.standby.up);

    let (first, end) = port("first again", 256);
    world.wire = end;
    assert!(world.engine.attach_of(&Whose::Uplink, first, world.now).is_none());
    assert!(world.engine.lacking().is_empty());
    world.run(Span::secs(6), Span::millis(10));
    assert_eq!(active(&mut world), (Place::First, 2));
    // The idle one disappears as well, and comes back.
    drop(second);
    world.run(Span::millis(1), STEP);
    assert_eq!(world.engine.lacking(), [Whose::Standby]);
    assert_eq!(world.engine.take_lost()[0].whose, Whose::Standby);
    let (again, _second) = port("second again", 256);
    assert!(world.engine.attach_of(&Whose::Standby, again, world.now).is_none());
    assert!(world.engine.lacking().is_empty());
    assert_eq!(active(&mut world), (Place::First, 2));
}

#[test]
fn with_both_down_packets_wait_for_the_one_that_is_back_first() {
    let (mut world, mut second) = two(Span::secs(5));
    world.wire.cut(true);
    second.cut(true);
    let frames: Vec<_> = (0..10).map(|n| udp(1, OUTSIDE, 1, n, 100)).collect();
    for frame in &frames {
        world.send(0, frame);
    }
    assert!(world.run(Span::secs(1), Span::millis(1)).is_empty() && drain(&mut second).is_empty());
    assert!(world.engine.snapshot(world.now).uplink.down);
    second.cut(false);
    world.run(Span::millis(5), STEP);
    assert_eq!(sorted(drain(&mut second)).0, frames);
    assert!(world.losses("shop").is_empty());
}

#[test]
fn a_port_that_was_away_and_is_well_stays_active_without_traffic() {
    let (mut world, second) = two(Span::secs(5));
    world.wire.cut(true);
    second.cut(true);
    world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
    world.run(Span::millis(5), STEP);
    world.wire.cut(false);
    assert_eq!(world.run(Span::millis(10), STEP).len(), 1);
    second.cut(false);
    world.run(Span::secs(1), Span::millis(10));
    assert_eq!(active(&mut world), (Place::First, 0));
}

#[test]
fn a_reload_adds_changes_and_removes_the_second_port() {
    let (alone, with) = (policy(&text("")), policy(&text(", standby: {af_packet: eth1}, hold_off: 1s")));
    let mut world = World::new(&text(""), false);
    let install = |world: &mut World, standby, old, new| {
        let change = Change { standby, ..Change::between(old, new) };
        world.engine.install(change, world.now).closed.len()
    };
    let put = |port| StandbyChange::Put(Box::new(port), Span::secs(1));
    let (second, mut end) = port("second", 256);
    assert_eq!(install(&mut world, put(second), &alone, &with), 0);
    world.wire.cut(true);
    world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
    world.run(Span::millis(1), STEP);
    assert_eq!((sorted(drain(&mut end)).0.len(), active(&mut world)), (1, (Place::Second, 1)));
    // Another policy with the same standby leaves it as it is.
    let same = Change::between(&with, &with);
    assert!(world.engine.install(same, world.now).closed.is_empty());
    assert_eq!(active(&mut world), (Place::Second, 1));
    // Another standby: the one before leaves, and the new one takes over, as the first is still away.
    let (third, mut third_end) = port("third", 256);
    assert_eq!(install(&mut world, put(third), &with, &with), 1, "the one before is closed");
    world.run(Span::secs(1), Span::millis(1));
    world.send(0, &udp(1, OUTSIDE, 1, 1, 100));
    world.run(Span::millis(1), STEP);
    assert_eq!(sorted(drain(&mut third_end)).0.len(), 1);
    // Without a standby the first port is the uplink again, and packets wait for it.
    assert_eq!(install(&mut world, StandbyChange::None, &with, &alone), 1);
    let last = udp(1, OUTSIDE, 1, 2, 100);
    world.send(0, &last);
    assert!(world.run(Span::millis(1), STEP).is_empty());
    world.wire.cut(false);
    assert_eq!(world.run(Span::millis(10), STEP), [last]);
    let snapshot = world.engine.snapshot(world.now);
    assert!(snapshot.standby.is_none());
    let announced =
        snapshot.uplink.tally.events().find(|(name, _)| *name == "address_announced").map_or(0, |(_, n)| n);
    assert_eq!(snapshot.uplink.counters.tx_packets, 3 + announced, "counters of closed ports go on");
}

#[test]
fn the_log_says_when_an_only_port_has_no_carrier_and_when_it_is_back() {
    let mut world = World::new(&text(""), false);
    let told = |world: &mut World, span| {
        world.run(span, Span::millis(10));
        world.engine.take_told()
    };
    assert!(told(&mut world, Span::secs(1)).is_empty());
    world.wire.cut(true);
    assert_eq!(
        told(&mut world, Span::millis(20)),
        ["the uplink's port memory uplink/a has no carrier: packets wait"]
    );
    // It flaps: a line at most in a second, and the last one holds.
    for turn in 0..9 {
        world.wire.cut(turn % 2 == 1);
        assert!(told(&mut world, Span::millis(20)).is_empty());
    }
    assert_eq!(told(&mut world, Span::secs(1)), ["the uplink's port memory uplink/a has a carrier again"]);
    assert!(told(&mut world, Span::secs(2)).is_empty(), "once");
}

#[test]
fn the_log_says_when_the_idle_port_or_both_have_no_carrier_and_when_they_are_back() {
    let (mut world, second) = two(Span::secs(5));
    let told = |world: &mut World, span| {
        world.run(span, Span::millis(10));
        world.engine.take_told()
    };
    let second_wait = Span::millis(1_100);
    assert!(told(&mut world, second_wait).is_empty(), "both are well");
    second.cut(true);
    let idle_down = "the uplink's standby memory second/a has no carrier: if the uplink's port memory uplink/a fails, packets wait";
    assert_eq!(told(&mut world, Span::millis(20)), [idle_down]);
    assert!(told(&mut world, second_wait).is_empty(), "once");
    // It flaps: one line at most in a second, and the last one holds.
    for turn in 0..9 {
        second.cut(turn % 2 == 1);
        let lines = told(&mut world, Span::millis(20));
        assert_eq!(lines.len(), usize::from(turn == 0), "{lines:?}");
    }
    second.cut(true);
    assert_eq!(told(&mut world, second_wait), [idle_down]);

    world.wire.cut(true);
    let neither = "neither the uplink's port memory uplink/a nor the uplink's standby memory second/a has a carrier: packets wait";
    assert_eq!(told(&mut world, second_wait), [neither]);
    world.wire.cut(false);
    assert_eq!(told(&mut world, second_wait), ["the uplink's port memory uplink/a carries all frames again"]);
    second.cut(false);
    assert_eq!(told(&mut world, second_wait), ["the uplink's standby memory second/a has a carrier again"]);

    // The switch has a line of its own; then the first port is the idle one.
    world.wire.cut(true);
    let lines = told(&mut world, second_wait);
    assert!(lines.len() == 1 && lines[0].contains("its standby, carries all frames now"), "{lines:?}");
    world.wire.cut(false);
    assert_eq!(
        told(&mut world, second_wait),
        ["the uplink's port memory uplink/a has a carrier again; it takes back once it has had one for 5s"]
    );
    assert_eq!(
        told(&mut world, Span::secs(6)),
        ["the uplink's port memory uplink/a carries all frames again"]
    );
    // The standby is active and fails: the first port takes back at once, and the standby is down.
    world.wire.cut(true);
    told(&mut world, second_wait);
    second.cut(true);
    assert_eq!(told(&mut world, second_wait), [neither]);
    world.wire.cut(false);
    assert_eq!(
        told(&mut world, second_wait),
        ["the uplink's port memory uplink/a carries all frames again", idle_down]
    );
    assert_eq!(active(&mut world), (Place::First, 4));
}

#[test]
fn the_log_says_that_the_standby_is_down_from_the_start_but_not_of_one_that_has_disappeared() {
    let (mut world, second) = two(Span::secs(5));
    second.cut(true);
    world.run(Span::millis(1), STEP);
    assert_eq!(world.engine.take_told().len(), 1);
    let (mut world, second) = two(Span::secs(5));
    drop(second);
    world.run(Span::secs(2), Span::millis(10));
    assert_eq!(world.engine.take_lost().len(), 1, "which has a line of its own");
    assert_eq!(world.engine.take_told(), Vec::<String>::new());
}

#[test]
fn with_an_overlay_other_traffic_on_the_idle_port_is_no_loss_of_ours() {
    let text = crate::fleet::file("a", "geneve", false, "");
    let mut world = World::new(&text, false);
    let (idle, mut second) = port("second", 256);
    world.engine.set_standby(Place::First, Some(idle), Span::secs(5), Nanos::ZERO);
    // Of another program of the host: none of the overlay's ports, and no address resolution.
    second.send(&udp(77, 78, 1, 1, 100), None).expect("taken");
    let inner = Inner { vni: Vni::new(7).expect("small"), flow_hash: 1, feedback: None };
    let mut out = [0; 1_600];
    let path = path(2, 1, Mac([6; 6]));
    let len = path.encapsulate_into(&udp(11, 1, 1, 1, 100), &mut out, &inner).expect("it fits");
    second.send(&out[..len], None).expect("taken");
    world.run(Span::millis(1), STEP);
    assert_eq!(world.losses("uplink"), [("inactive_port", 1)], "the overlay's, which is lost");
    assert_eq!(world.events("uplink"), [("not_overlay", 1)]);
}

#[test]
fn explain_names_the_active_port() {
    let (mut world, _second) = two(Span::secs(5));
    let uplink = |world: &mut World| {
        let snapshot = world.engine.snapshot(world.now);
        explain(&snapshot, &[], &Filter::default(), &[]).uplink.expect("each daemon says so")
    };
    let port = |name: &str, place: &str, down| ActivePort {
        name: Some(name.to_owned()),
        place: place.to_owned(),
        down,
    };
    assert_eq!(uplink(&mut world), port("memory uplink/a", "port", false));
    world.wire.cut(true);
    world.run(Span::millis(1), STEP);
    assert_eq!(uplink(&mut world), port("memory second/a", "standby", false));
    let stats = Stats::from(&world.engine.snapshot(world.now));
    assert!(stats.standby.is_some_and(|both| both.stands_in()));
    let mut alone = World::new(&text(""), false);
    alone.wire.cut(true);
    assert_eq!(uplink(&mut alone), port("memory uplink/a", "port", true));
}
