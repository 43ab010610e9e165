//! Ports that have no room for a while, and broadcasts: each frame leaves once, waits, or is counted.

use crate::support::{World, drain, udp};
use plimsoll_daemon::Stats;
use plimsoll_ports::{MemoryConfig, MemoryPort, Port, Sending};
use plimsoll_units::Span;
use plimsoll_wire::VnetHeader;

const STEP: Span = Span::micros(10);
const OUTSIDE: u8 = 99;

/// Frames that the wire of a [`World`] holds.
const SLOTS: u32 = 512;

const ONE: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants: {shop: {port: memory}}
";

#[test]
fn a_pull_of_several_segments_goes_on_where_the_uplink_stopped_it() {
    let mut world = World::new(ONE, true);
    // All places of the wire but one are taken.
    for number in 0..SLOTS - 1 {
        assert_eq!(world.send(0, &udp(1, OUTSIDE, 1, number, 100)), Sending::Sent);
    }
    while world.engine.turn(world.now).busy {
        world.now += STEP;
    }
    // Twelve segments of 500 B, of which a pull of one frame's length holds more than one.
    let mut large = udp(1, OUTSIDE, 2, 0, 42 + 12 * 500);
    large[42..].iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at / 500) as u8);
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: VnetHeader::GSO_UDP_L4,
        hdr_len: 42,
        gso_size: 500,
        csum_start: 34,
        csum_offset: 6,
    };
    assert_eq!(world.send_with(0, &large, &vnet), Sending::Sent);
    for _ in 0..20 {
        world.now += STEP;
        world.engine.turn(world.now);
    }
    let mut out = world.received();
    assert_eq!(out.len() as u32, SLOTS, "the wire was full with the first segment");
    out.extend(world.run(Span::millis(1), STEP));
    let segments: Vec<u8> = out[SLOTS as usize - 1..].iter().map(|frame| frame[42]).collect();
    assert_eq!(segments, (0..12).collect::<Vec<u8>>(), "each segment once, in order");
}

/// An engine whose uplink keeps up to 32 frames while the wire has no room, as sockets do.
fn keeping(slots: usize) -> World {
    let mut world = World::new(ONE, false);
    let (unused, _keep) = MemoryPort::pair("unused", MemoryConfig::default()).expect("memory");
    drop(std::mem::replace(&mut world.wire, unused));
    world.engine.turn(world.now);
    assert_eq!(world.engine.take_lost().len(), 1);
    let config = MemoryConfig { slots, staged: 32, ..MemoryConfig::default() };
    let (port, end) = MemoryPort::pair("uplink again", config).expect("memory");
    world.wire = end;
    assert!(world.engine.attach(None, Port::Memory(port), world.now).is_none());
    world
}

#[test]
fn frames_that_the_uplink_keeps_leave_without_others_behind_them() {
    let mut world = keeping(8);
    let frames: Vec<_> = (0..20).map(|number| udp(1, OUTSIDE, 1, number, 100)).collect();
    for frame in &frames {
        world.send(0, frame);
    }
    for _ in 0..10 {
        world.engine.turn(world.now);
        world.now += STEP;
    }
    assert_eq!(world.engine.held(), 0, "the uplink has taken all of them");
    assert!(world.engine.pending(), "but has no place for twelve");
    assert!(world.engine.turn(world.now).retry.is_some());
    let mut out = world.received();
    for _ in 0..3 {
        world.engine.turn(world.now);
        out.extend(world.received());
    }
    assert_eq!(out, frames);
    assert!(!world.engine.pending());
    assert_eq!(world.engine.turn(world.now).retry, None);
}

#[test]
fn frames_that_the_uplink_keeps_at_the_end_are_counted() {
    let mut world = keeping(8);
    for number in 0..20 {
        world.send(0, &udp(1, OUTSIDE, 1, number, 100));
    }
    for _ in 0..10 {
        world.engine.turn(world.now);
        world.now += STEP;
    }
    assert_eq!(world.engine.abandon(world.now), 12);
    assert_eq!(world.losses("uplink"), [("stopped", 12)]);
}

#[test]
fn an_uplink_that_is_gone_is_not_full_and_is_tried_again_at_leisure() {
    let mut world = World::new(ONE, false);
    let (unused, _keep) = MemoryPort::pair("unused", MemoryConfig::default()).expect("memory");
    drop(std::mem::replace(&mut world.wire, unused));
    for number in 0..20 {
        world.send(0, &udp(1, OUTSIDE, 1, number, 100));
        let turn = world.engine.turn(world.now);
        assert_eq!(turn.retry, Some(Span::millis(5)), "frame {number}");
        world.now += STEP;
    }
    assert_eq!(world.engine.held(), 20);
    assert_eq!(world.events("uplink"), [("port_lost", 1)]);
    // An uplink that is full is not away.
    let config = MemoryConfig { slots: 8, ..MemoryConfig::default() };
    let (port, end) = MemoryPort::pair("uplink again", config).expect("memory");
    world.wire = end;
    assert!(world.engine.attach(None, Port::Memory(port), world.now).is_none());
    world.now += Span::millis(1);
    assert_eq!(world.engine.turn(world.now).retry, Some(Span::micros(50)));
    assert_eq!(world.events("uplink"), [("uplink_full", 1), ("port_lost", 1), ("port_back", 1)]);
}

/// Losses of the only tenant and of the uplink, for both ways in which a port may lose frames.
fn lost(world: &mut World) -> [Vec<(String, u64)>; 2] {
    let Stats { tenants, uplink, .. } = Stats::from(&world.engine.snapshot(world.now));
    [&tenants["shop"], &uplink]
        .map(|port| port.drops.clone().into_iter().chain(port.undelivered.clone()).collect())
}

#[test]
fn a_frame_that_the_uplink_does_not_take_is_its_senders_loss_once() {
    let mut world = World::new(&ONE.replace("10Gbps", "10Gbps, mtu: 9000"), true);
    // A slot of the wire has room for 2,048 bytes.
    for len in [3_000, 100, 4_000] {
        assert_eq!(world.send(0, &udp(1, OUTSIDE, 1, 0, len)), Sending::Sent);
    }
    assert_eq!(world.run(Span::micros(100), STEP).len(), 1);
    assert_eq!(lost(&mut world), [vec![("oversize".to_owned(), 2)], vec![]]);
}

#[test]
fn frames_that_disappear_with_the_uplink_are_their_senders_losses_once() {
    let mut world = keeping(8);
    for round in 1..3 {
        for number in 0..20 {
            world.send(0, &udp(1, OUTSIDE, 1, number, 100));
        }
        for _ in 0..10 {
            world.engine.turn(world.now);
            world.now += STEP;
        }
        assert!(world.engine.pending(), "eight are on the wire, twelve wait for it");
        let config = MemoryConfig { slots: 8, staged: 32, ..MemoryConfig::default() };
        let (port, end) = MemoryPort::pair("uplink again", config).expect("memory");
        drop(std::mem::replace(&mut world.wire, end));
        world.engine.turn(world.now);
        assert_eq!(lost(&mut world), [vec![("gone".to_owned(), 12 * round)], vec![]]);
        assert!(world.engine.attach(None, Port::Memory(port), world.now).is_none());
    }
}

#[test]
fn a_flood_of_broadcasts_is_bounded_and_counted() {
    let names: Vec<_> = (0..40).map(|n| format!("t{n}: {{port: memory}}")).collect();
    let text = format!("{{uplink: {{port: memory, rate: 100Gbps}}, tenants: {{{}}}}}", names.join(", "));
    let mut world = World::new(&text, false);
    world.engine.turn(world.now);
    let mut shout = udp(1, OUTSIDE, 1, 0, 60);
    shout[..6].copy_from_slice(&[0xff; 6]);
    for _ in 0..32 {
        world.send(0, &shout);
    }
    // The link's pace lets one frame leave at first, and all others later.
    world.engine.turn(world.now);
    world.now += Span::micros(100);
    world.engine.turn(world.now);
    assert_eq!(world.received().len(), 32, "the wire gets all of them");
    // 128 copies in a turn, and the rest of the last frame that began within them: 39, and four times 39.
    let copies: Vec<_> = world.tenants.iter_mut().map(|tenant| drain(tenant).len()).collect();
    assert_eq!(copies[0], 0);
    assert!(copies[1..].iter().all(|&count| count == 5), "{copies:?}");
    assert_eq!(world.losses("t0"), [("flood_limit", 27)]);

    // The wire's broadcasts have a budget of their own, and each turn has a new one.
    for _ in 0..10 {
        world.wire.send(&shout, None).expect("there");
    }
    world.engine.turn(world.now);
    let copies: Vec<_> = world.tenants.iter_mut().map(|tenant| drain(tenant).len()).collect();
    assert!(copies.iter().all(|&count| count == 4), "{copies:?}");
    assert_eq!(world.losses("uplink"), [("flood_limit", 6)]);
}

#[test]
fn a_tenants_own_address_waits_for_its_port() {
    let mut world = World::new(
        "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}, batch: {port: memory}}}",
        false,
    );
    let own = MemoryConfig { mac: Some([2, 0, 0, 0, 0, 1]), ..MemoryConfig::default() };
    for round in 0..2 {
        // The port goes, and comes back as a TAP does: with its interface's address.
        let (unused, _keep) = MemoryPort::pair("unused", MemoryConfig::default()).expect("memory");
        drop(std::mem::replace(&mut world.tenants[0], unused));
        world.run(STEP, STEP);
        assert_eq!(world.engine.take_lost().len(), 1);
        if round == 1 {
            world.now += Span::secs(1_000);
            world.send(1, &udp(1, OUTSIDE, 1, 0, 100));
            world.run(STEP, STEP);
            assert_eq!(world.losses("batch"), [("foreign_source", 1)]);
        }
        let (port, end) = MemoryPort::pair("shop again", own).expect("memory");
        world.tenants[0] = end;
        assert!(world.engine.attach(Some(0), Port::Memory(port), world.now).is_none());
    }
    let answer = udp(OUTSIDE, 1, 80, 0, 100);
    world.wire.send(&answer, None).expect("there");
    world.run(Span::micros(50), STEP);
    assert_eq!(drain(&mut world.tenants[0]), [answer], "known before it has sent anything");
    assert!(drain(&mut world.tenants[1]).is_empty());
}
