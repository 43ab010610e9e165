//! Round trips of heavy hitters are measured in passing, from what both ends send anyway.

use crate::support::{Stated, World, drain, udp};
use plimsoll_daemon::{HeavyReport, slowed_down};
use plimsoll_units::{Nanos, Span};

const STEP: Span = Span::micros(10);
const GATEWAY: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants:
  gateway: {port: memory}
backpressure: {tenants: [gateway], heavy: 1kpps, watch: engine, rate: 24Mbps, mode: mark}
";

const SYN: u8 = 2;
const ACK: u8 = 16;

struct Tcp {
    flags: u8,
    seq: u32,
    acknowledged: u32,
    stamps: Option<(u32, u32)>,
    payload: usize,
}

/// A TCP segment over IPv4 between the ports 8 of `from` and 80 of `to`, or the other way, with ECT(0).
fn tcp(from: u8, to: u8, [src, dst]: [u16; 2], tcp: &Tcp) -> Vec<u8> {
    let options = if tcp.stamps.is_some() { 12 } else { 0 };
    let mut frame = udp(from, to, src, 0, 54 + options + tcp.payload);
    frame[15] = 2;
    frame[23] = 6;
    frame[34..].fill(0);
    frame[34..36].copy_from_slice(&src.to_be_bytes());
    frame[36..38].copy_from_slice(&dst.to_be_bytes());
    frame[38..42].copy_from_slice(&tcp.seq.to_be_bytes());
    frame[42..46].copy_from_slice(&tcp.acknowledged.to_be_bytes());
    frame[46] = ((20 + options) / 4 * 16) as u8;
    frame[47] = tcp.flags;
    if let Some((value, echo)) = tcp.stamps {
        frame[54..58].copy_from_slice(&[1, 1, 8, 10]);
        frame[58..62].copy_from_slice(&value.to_be_bytes());
        frame[62..66].copy_from_slice(&echo.to_be_bytes());
    }
    frame
}

fn world() -> World {
    let mut world = World::new(GATEWAY, false);
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.run(Span::millis(1), STEP);
    world
}

/// A turn with the core busy for 95 % of the time.
fn turn(world: &mut World, core: &mut Stated) {
    let now = world.now;
    world.engine.turn_on(core, &|_| now);
    drain(&mut world.tenants[0]);
    world.received();
    world.now += STEP;
    core.0 += Span::ns(STEP.as_u64() * 95 / 100);
}

fn round_trip(world: &mut World) -> Option<Span> {
    let now = world.engine.heavy(world.now).expect("flows are counted");
    now.flows.iter().find(|flow| flow.inward).expect("one is heavy").round_trip
}

/// The gateway answers after 200 us, and its sender goes on 500 us after that. Clocks tick each millisecond.
#[test]
fn timestamps_show_a_heavy_flows_round_trip() {
    let (mut world, mut core) = (world(), Stated(Span::ZERO));
    let tick = |at: Nanos| (at.as_u64() / 1_000_000) as u32;
    for n in 0..6_000_u32 {
        let now = world.now;
        let ago = |us| now.since(Nanos::ZERO + Span::micros(us));
        // What the sender has seen of the gateway's clock, and the other way.
        let echo = tick(Nanos::ZERO + ago(500)) + 7_000;
        let data =
            Tcp { flags: ACK, seq: n * 200, acknowledged: 1, stamps: Some((tick(now), echo)), payload: 200 };
        world.wire.send(&tcp(98, 1, [8, 80], &data), None).expect("there");
        let stamps = Some((tick(now) + 7_000, tick(Nanos::ZERO + ago(200))));
        let acknowledged = n.saturating_sub(19) * 200;
        let answer = Tcp { flags: ACK, seq: 1, acknowledged, stamps, payload: 0 };
        world.send(0, &tcp(1, 98, [80, 8], &answer));
        turn(&mut world, &mut core);
    }
    let measured = round_trip(&mut world).expect("it is measured");
    assert!(measured.as_u64().abs_diff(700_000) <= 2 * STEP.as_u64(), "{measured}");
    let now = world.engine.heavy(world.now).expect("counted");
    let told = slowed_down(&"tcp".parse().expect("a filter"), Some(&now), &[], world.now);
    assert!(
        told.iter()
            .any(|line| line.contains("; its round trip is 6") || line.contains("; its round trip is 7")),
        "{told:?}"
    );
    let report = HeavyReport::new(Some(&now), &[], world.now).expect("counted");
    assert!(report.flows.iter().all(|row| row.round_trip == Some(measured.as_secs_f64())), "{report:?}");
}

/// Without timestamps, and with answers that another way takes: the handshake is all that is seen.
#[test]
fn a_handshake_shows_a_round_trip_where_nothing_else_does() {
    let (mut world, mut core) = (world(), Stated(Span::ZERO));
    let wait = |world: &mut World, core: &mut Stated, us: u64| {
        (0..us / 10).for_each(|_| turn(world, core));
    };
    let bare = Tcp { flags: SYN, seq: 100, acknowledged: 0, stamps: None, payload: 0 };
    world.wire.send(&tcp(98, 1, [8, 80], &bare), None).expect("there");
    wait(&mut world, &mut core, 300);
    world.send(0, &tcp(1, 98, [80, 8], &Tcp { flags: SYN | ACK, seq: 500, acknowledged: 101, ..bare }));
    wait(&mut world, &mut core, 900);
    let data = |seq| Tcp { flags: ACK, seq, acknowledged: 501, payload: 200, ..bare };
    for n in 0..3_000 {
        world.wire.send(&tcp(98, 1, [8, 80], &data(101 + n * 200)), None).expect("there");
        turn(&mut world, &mut core);
    }
    let measured = round_trip(&mut world).expect("it is measured");
    assert!(measured.as_u64().abs_diff(1_200_000) <= 2 * STEP.as_u64(), "{measured}");
}

/// A flow of which neither is seen is marked by the round trip that is assumed, and none is shown.
#[test]
fn what_is_not_seen_is_not_guessed() {
    let (mut world, mut core) = (world(), Stated(Span::ZERO));
    for n in 0..3_000 {
        let data = Tcp { flags: ACK, seq: n * 200, acknowledged: 501, stamps: None, payload: 200 };
        world.wire.send(&tcp(98, 1, [8, 80], &data), None).expect("there");
        turn(&mut world, &mut core);
    }
    assert_eq!(round_trip(&mut world), None);
    let now = world.engine.heavy(world.now).expect("counted");
    assert!(now.flows.iter().any(|flow| flow.pressed.is_some()));
}
