//! Short queues: flows that fill a slow class, and what another flow's packets wait beside them.

use plimsoll_daemon::Stats;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Ecn;

use crate::support::{World, number, udp};

/// 1,500 B with preamble and gap take a millisecond.
const SLOW: &str = "{port: memory, rate: 12Mbps}";
const PROBE: u16 = 4_000;

/// What came out on the wire.
struct Out {
    /// Frames of the uploads.
    frames: Vec<Vec<u8>>,
    /// How long each probe was under way.
    waits: Vec<Span>,
    sent: usize,
}

/// For three seconds 16 flows of the first tenant send 1,600 packets a second, where the link carries 1,000, and a seventeenth
/// flow a small one each 50 ms.
fn overload(world: &mut World, ecn: Ecn) -> Out {
    let mut out = Out { frames: Vec::new(), waits: Vec::new(), sent: 0 };
    let mut probes: Vec<Nanos> = Vec::new();
    while world.now < Nanos::new(3_000_000_000) {
        let tick = world.now.as_u64() / 10_000_000;
        for flow in 0..16 {
            let mut frame = udp(1, 99, 100 + flow, tick as u32, 1_500);
            assert!(ecn.write(&mut frame), "an IP packet");
            world.send(0, &frame);
            out.sent += 1;
        }
        // At first all flows are new, and take turns.
        if tick > 0 && tick.is_multiple_of(5) {
            world.send(0, &udp(1, 99, PROBE, probes.len() as u32, 60));
            probes.push(world.now);
        }
        for _ in 0..100 {
            for frame in world.run(Span::micros(100), Span::micros(100)) {
                match number(&frame) {
                    (PROBE, n) => out.waits.push(world.now.since(probes[n as usize])),
                    _ => out.frames.push(frame),
                }
            }
        }
    }
    out
}

fn stats(world: &mut World) -> Stats {
    Stats::from(&world.engine.snapshot(world.now))
}

fn policy(flows: &str) -> String {
    format!("{{uplink: {SLOW}, engine: {{ring: 256}}, tenants: {{x: {{port: memory, flows: {flows}}}}}}}")
}

#[test]
fn a_flow_that_sends_little_does_not_wait_for_those_that_fill_the_link() {
    let mut world = World::new(&policy("fq"), false);
    let out = overload(&mut world, Ecn::NotEct);
    assert_eq!(out.waits.len(), 59);
    // A frame that is on the wire, and a step of the test.
    assert!(out.waits.iter().all(|&wait| wait <= Span::micros(1_200)), "{:?}", out.waits);
    assert!(out.frames.len() >= 2_900, "the link is busy: {} frames", out.frames.len());
    let dropped = world.losses("x").into_iter().find(|(why, _)| *why == "waited_too_long");
    let dropped = dropped.expect("unresponsive flows fill their queues").1;
    let shown = stats(&mut world);
    let class = shown.nodes.iter().find(|node| node.path == "x").expect("a class");
    assert_eq!((class.drops.get("waited_too_long"), class.marked), (Some(&dropped), 0));
    assert!(dropped > 300, "{dropped}");

    // Every frame has left, or was dropped for a reason, and every buffer is free again.
    let rest = world.run(Span::secs(5), Span::micros(500)).len();
    let lost: u64 = world.losses("x").iter().map(|(_, count)| count).sum();
    assert_eq!(out.frames.len() as u64 + rest as u64 + lost, out.sent as u64);
    assert_eq!(world.engine.held(), 0);
}

#[test]
fn by_arrival_the_same_flow_waits_for_all_of_them() {
    let mut world = World::new(&policy("fifo"), false);
    let out = overload(&mut world, Ecn::NotEct);
    assert!(out.waits.iter().any(|&wait| wait > Span::millis(500)), "{:?}", out.waits);
    assert!(world.losses("x").iter().all(|(why, _)| *why != "waited_too_long"));
}

#[test]
fn packets_that_may_be_marked_are_marked_on_the_wire() {
    let mut world = World::new(&policy("fq"), false);
    let out = overload(&mut world, Ecn::Ect0);
    let marked = out.frames.iter().filter(|frame| Ecn::of(frame) == Some(Ecn::Ce)).count() as u64;
    assert!(marked > 300, "{marked}");
    // Nothing else is changed, and the checksum follows.
    for frame in &out.frames {
        let (port, n) = number(frame);
        let mut sent = udp(1, 99, port, n, 1_500);
        assert!(Ecn::Ect0.write(&mut sent));
        let ecn = Ecn::of(frame).expect("an IP packet");
        assert!(ecn.write(&mut sent));
        assert_eq!(*frame, sent);
    }
    assert!(world.losses("x").iter().all(|(why, _)| *why != "waited_too_long"));
    let shown = stats(&mut world);
    assert_eq!(shown.nodes.iter().find(|node| node.path == "x").map(|node| node.marked), Some(marked));
}

#[test]
fn packets_of_a_tenant_that_opted_out_are_dropped_in_place_of_marks() {
    let policy = format!("{{uplink: {SLOW}, tenants: {{x: {{port: memory, flows: fq, ecn: untouched}}}}}}");
    let mut world = World::new(&policy, false);
    let out = overload(&mut world, Ecn::Ect0);
    assert!(out.frames.iter().all(|frame| Ecn::of(frame) == Some(Ecn::Ect0)));
    assert!(world.losses("x").iter().any(|&(why, count)| why == "waited_too_long" && count > 300));
}
