//! Heavy hitters: each is listed for its tenant and its way, and no other flow is.

use crate::support::{World, policy, udp};
use plimsoll_daemon::{HeavyFlow, HeavyFlows, HeavyReport};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::VnetHeader;

const GATEWAY: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants:
  gateway: {port: memory}
  shop: {port: memory}
backpressure: {tenants: [gateway], heavy: 1kpps}
";

/// A hundred frames a millisecond of each flow in `flows`, for `span`: from a tenant, or from the wire (`None`).
fn traffic(world: &mut World, span: Span, flows: &[(Option<usize>, Vec<u8>)]) {
    let end = world.now + span;
    while world.now < end {
        for (from, frame) in flows {
            match from {
                Some(tenant) => _ = world.send(*tenant, frame),
                None => _ = world.wire.send(frame, None),
            }
        }
        world.run(Span::micros(10), Span::micros(10));
        world.tenants.iter_mut().for_each(|tenant| _ = crate::support::drain(tenant));
    }
}

/// The tenant, the way and the source port of each flow, with its packets.
fn listed(world: &mut World) -> Vec<(String, bool, u16, u64)> {
    let now = world.engine.heavy(world.now).expect("flows are counted");
    let ports = |flow: &HeavyFlow| flow.flow.ports().expect("UDP").0;
    now.flows.iter().map(|flow| (flow.tenant.clone(), flow.inward, ports(flow), flow.sent.packets)).collect()
}

#[test]
fn heavy_flows_are_listed_for_their_tenant_both_ways() {
    let mut world = World::new(GATEWAY, false);
    // The tenants are heard first, so that frames from the wire find them.
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.send(1, &udp(2, 99, 2, 0, 60));
    world.run(Span::millis(1), Span::micros(10));
    let flows = [
        (Some(0), udp(1, 99, 7, 0, 300)),
        (None, udp(98, 1, 8, 0, 300)),
        (Some(1), udp(2, 99, 9, 0, 300)),
        (None, udp(98, 2, 10, 0, 300)),
    ];
    traffic(&mut world, Span::millis(50), &flows);
    let mouse = [(Some(0), udp(1, 99, 11, 0, 300))];
    traffic(&mut world, Span::micros(100), &mouse);
    world.run(Span::millis(110), Span::millis(1));

    let gateway = "gateway".to_owned();
    assert_eq!(listed(&mut world), [(gateway.clone(), false, 7, 5_000), (gateway, true, 8, 5_000)]);
    let now = world.engine.heavy(world.now).expect("counted");
    let report = HeavyReport::new(Some(&now), &[], world.now).expect("counted");
    let [first, _] = &report.flows[..] else { panic!("{report:?}") };
    assert_eq!(
        (first.src.map(|src| src.to_string()), first.dst_port),
        (Some("10.0.0.1".to_owned()), Some(80))
    );
    // 10,011 packets of the gateway were counted: two heavy flows, a mouse, and its first frame.
    assert_eq!(report.counted, [10_011, 0]);
    assert!((first.part - 5_000.0 / 10_011.0).abs() < 1e-9, "{first:?}");
    assert!((first.bits / first.packets - 2_400.0).abs() < 1e-6, "{first:?}");
}

#[test]
fn a_flow_that_has_ended_is_listed_no_more() {
    let mut world = World::new(GATEWAY, false);
    traffic(&mut world, Span::millis(50), &[(Some(0), udp(1, 99, 7, 0, 300))]);
    world.run(Span::millis(900), Span::millis(1));
    assert_eq!(listed(&mut world).len(), 1);
    world.run(Span::millis(300), Span::millis(1));
    assert!(listed(&mut world).is_empty());
}

#[test]
fn a_segment_counts_as_the_frames_that_leave() {
    let mut world = World::new(GATEWAY, true);
    // 40 KB of UDP in segments of 1,000 bytes: 40 frames.
    let vnet = VnetHeader {
        gso_type: VnetHeader::GSO_UDP_L4,
        hdr_len: 42,
        gso_size: 1_000,
        csum_start: 34,
        csum_offset: 6,
        flags: VnetHeader::NEEDS_CSUM,
    };
    for _ in 0..100 {
        world.send_with(0, &udp(1, 99, 7, 0, 40_042), &vnet);
        world.run(Span::millis(1), Span::micros(100));
    }
    world.run(Span::millis(20), Span::millis(1));
    assert_eq!(listed(&mut world), [("gateway".to_owned(), false, 7, 4_000)]);
}

#[test]
fn a_reload_counts_other_tenants_and_ends_the_counting() {
    let mut world = World::new(GATEWAY, false);
    let gateway = policy(GATEWAY);
    traffic(&mut world, Span::millis(30), &[(Some(0), udp(1, 99, 7, 0, 300))]);
    world.run(Span::millis(110), Span::millis(1));
    assert_eq!(listed(&mut world).len(), 1);

    let shop = policy(&GATEWAY.replace("[gateway]", "shop"));
    let change = world.change(&gateway, &shop);
    let installed = world.engine.install(change, world.now);
    assert!(installed.tables.is_none(), "the tables stay");
    traffic(
        &mut world,
        Span::millis(40),
        &[(Some(1), udp(2, 99, 9, 0, 300)), (Some(0), udp(1, 99, 7, 0, 300))],
    );
    world.run(Span::millis(110), Span::millis(1));
    assert_eq!(listed(&mut world), [("shop".to_owned(), false, 9, 4_000)]);

    let light = policy(&GATEWAY.replace("[gateway], heavy: 1kpps", "shop, heavy: 1pps"));
    let mut change = world.change(&shop, &light);
    change.heavy = change.counted.as_ref().map(|stated| Box::new(HeavyFlows::new(&stated.stated)));
    assert!(world.engine.install(change, world.now).tables.is_some(), "another threshold, other tables");
    assert!(listed(&mut world).is_empty());

    let none = policy(GATEWAY.split("backpressure").next().expect("text"));
    let change = world.change(&light, &none);
    assert!(world.engine.install(change, world.now).tables.is_some());
    assert_eq!(world.engine.heavy(Nanos::ZERO + Span::secs(1)), None);
}

/// Nine flows in turn, and frames of two lengths in each: more than are known of a tenant at a time.
#[test]
fn each_of_many_interleaved_flows_is_counted_exactly() {
    let mut world = World::new(GATEWAY, false);
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.run(Span::millis(1), Span::micros(10));
    for round in 0..2_000_u32 {
        // A flow that sends two frames in three rounds, and the others in each.
        let flows = (10..19).filter(|flow| *flow != 10 || round % 3 > 0);
        for flow in flows {
            let len = if (round / 7 + u32::from(flow)) % 2 == 0 { 60 } else { 300 };
            let _ = world.wire.send(&udp(98, 1, flow, 0, len), None);
        }
        world.run(Span::micros(10), Span::micros(10));
        assert_eq!(crate::support::drain(&mut world.tenants[0]).len(), 8 + usize::from(round % 3 > 0));
    }
    world.run(Span::millis(110), Span::millis(1));
    let mut counts: Vec<_> = listed(&mut world).iter().map(|(.., port, packets)| (*port, *packets)).collect();
    counts.sort_unstable();
    // The flow of the smaller count sends in 1,333 of the 2,000 rounds, which is not heavy.
    assert_eq!(counts, (11..19).map(|port| (port, 2_000)).collect::<Vec<_>>());
}

/// What a frame's headers decided is not known any more after a reload that decides otherwise.
#[test]
fn a_flow_that_is_known_is_looked_up_again_after_a_reload() {
    let none = GATEWAY.split("backpressure").next().expect("text");
    let mut world = World::new(none, false);
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.run(Span::millis(1), Span::micros(10));
    let flow = [(None, udp(98, 1, 8, 0, 300))];
    traffic(&mut world, Span::millis(5), &flow);
    assert_eq!(world.engine.heavy(world.now), None);

    let (before, after) = (policy(none), policy(GATEWAY));
    let mut change = world.change(&before, &after);
    change.heavy = change.counted.as_ref().map(|stated| Box::new(HeavyFlows::new(&stated.stated)));
    world.engine.install(change, world.now);
    traffic(&mut world, Span::millis(30), &flow);
    world.run(Span::millis(110), Span::millis(1));
    assert_eq!(listed(&mut world), [("gateway".to_owned(), true, 8, 3_000)]);
}
