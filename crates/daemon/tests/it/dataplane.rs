//! The engine's loop between memory ports: each frame that enters leaves or is counted; no tenant is harmed by a neighbour.

use std::collections::HashMap;

use crate::support::{World, drain, number, policy, udp};
use plimsoll_daemon::{Filter, RateError, Stats};
use plimsoll_ports::{DropReason, MemoryConfig, MemoryPort, PcapConfig, PcapPort, Port, Sending};
use plimsoll_slo::Pulse;
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_wire::VnetHeader;

const TWO: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants:
  shop: {port: memory}
  batch: {port: memory}
";

const STEP: Span = Span::micros(10);
const OUTSIDE: u8 = 99;

#[test]
fn a_frame_goes_from_its_tenant_to_the_wire_unchanged() {
    let mut world = World::new(TWO, false);
    let frame = udp(1, OUTSIDE, 1_000, 7, 200);
    world.send(0, &frame);
    assert_eq!(world.run(Span::micros(50), STEP), [frame]);
    assert_eq!(world.engine.held(), 0);
}

/// A rate that changes between two frames holds for the second, and no frame is lost; a class without a rate is refused.
#[test]
fn a_rate_changes_at_the_next_decision() {
    let mut world = World::new(
        "
uplink: {port: memory, rate: 1Gbps}
tenants:
  shop: {port: memory}
  batch: {port: memory}
policy: {root: {rate_share: {shop: 10Mbps, batch: 10Mbps}}}
",
        false,
    );
    (0..100).for_each(|n| _ = world.send(0, &udp(1, OUTSIDE, 1_000, n, 1_250)));
    // 1,250 B take a millisecond at 10 Mb/s, and 100 µs at 100 Mb/s.
    let before = world.run(Span::millis(10), STEP).len();
    let rated = world.engine.set_rate("shop", BitRate::mbps(100), world.now).expect("it has a rate");
    assert_eq!((rated.before.as_str(), rated.rate.as_str()), ("10Mbps", "100Mbps"));
    shows_the_rate(&mut world, 100);
    let after = world.run(Span::millis(4), STEP).len();
    assert!((10..=12).contains(&before) && (39..=42).contains(&after), "{before} and {after}");
    assert_eq!(before + after + world.run(Span::millis(20), STEP).len(), 100);
    let again = world.engine.set_rate("shop", BitRate::mbps(20), world.now).expect("it has a rate");
    assert_eq!(again.before, "100Mbps", "what was in effect, not what the file says");
    shows_the_rate(&mut world, 20);
    let refused = |class: &str, world: &mut World| world.engine.set_rate(class, BitRate::mbps(1), world.now);
    assert_eq!(refused("root", &mut world), Err(RateError::NoRate("root".into())));
    assert_eq!(refused("shoe", &mut world), Err(RateError::NoClass("shoe".into())));
}

/// A `queue` of a class is chosen by a frame's header: the first queue goes first, and the class has one rate.
#[test]
fn queues_of_a_class_go_by_priority_at_the_classs_rate() {
    let mut world = World::new(
        "
uplink: {port: memory, rate: 1Gbps}
tenants:
  shop:
    port: memory
    queues: {voice: {match: {src_port: 5060}}, rest: {}}
    among: priority
  batch: {port: memory}
policy: {root: {rate_share: {shop: 10Mbps, batch: 10Mbps}}}
",
        false,
    );
    (0..40).for_each(|n| _ = world.send(0, &udp(1, OUTSIDE, 1_000, n, 1_250)));
    // 1,250 B take a millisecond at 10 Mb/s.
    let first = world.run(Span::millis(5), STEP);
    assert!(first.iter().all(|frame| number(frame).0 == 1_000));
    (0..10).for_each(|n| _ = world.send(0, &udp(1, OUTSIDE, 5_060, n, 1_250)));
    let next = world.run(Span::millis(10), STEP);
    assert!(next.iter().all(|frame| number(frame).0 == 5_060), "voice came later and goes first");
    let last = world.run(Span::millis(40), STEP);
    assert_eq!(first.len() + next.len() + last.len(), 50);
    assert!((9..=11).contains(&next.len()), "{} in ten milliseconds: not the class's rate", next.len());
}

/// Every place that shows a rate shows the one in effect.
#[track_caller]
fn shows_the_rate(world: &mut World, mbps: u64) {
    let snapshot = world.engine.snapshot(world.now);
    let stats = Stats::from(&snapshot);
    let rates: Vec<Option<u64>> =
        stats.nodes.iter().map(|node| node.rate.map(|rate| rate / 1_000_000)).collect();
    assert_eq!(rates[..3], [None, Some(mbps), Some(10)], "the root, shop and batch");
    let page = plimsoll_daemon::prometheus_page(&stats);
    let line = format!("plimsoll_class_rate_bytes_per_second{{class=\"shop\"}} {}\n", mbps * 125_000);
    assert!(page.contains(&line), "{line} is missing in {page}");
    let filter: Filter = "class=shop".parse().expect("a filter");
    let class = plimsoll_daemon::placement(&snapshot, &filter).class;
    let ranks = world.engine.nic().ranks(class);
    let told = plimsoll_daemon::explain(&snapshot, &[], &filter, &ranks);
    assert_eq!(told.ranks[0].rate, Some(mbps * 1_000_000));
}

#[test]
fn the_wire_gets_no_more_than_its_rate() {
    let mut world = World::new(TWO, false);
    for n in 0..400 {
        world.send(0, &udp(1, OUTSIDE, 1_000, n, 1_250));
    }
    // 1,250 B at 1 Gb/s take 10 µs; a thread that lagged may make up 5 ms, which here none does.
    let out = world.run(Span::millis(1), STEP);
    assert!((95..=105).contains(&out.len()), "{}", out.len());
}

#[test]
fn frames_of_a_flow_keep_their_order() {
    let mut world = World::new(TWO, false);
    let mut out = Vec::new();
    for n in 0..1_000 {
        for flow in 0..4 {
            world.send(0, &udp(1, OUTSIDE, flow, n, 100));
        }
        out.extend(world.run(Span::micros(20), STEP));
    }
    out.extend(world.run(Span::millis(5), STEP));
    let mut next: HashMap<u16, u32> = HashMap::new();
    for (flow, number) in out.iter().map(|frame| number(frame)) {
        let expected = next.entry(flow).or_default();
        assert_eq!(number, *expected, "flow {flow}");
        *expected += 1;
    }
    assert!(next.values().all(|&count| count == 1_000), "{next:?}");
}

#[test]
fn a_malformed_frame_is_counted_and_harms_no_tenant() {
    let mut world = World::new(TWO, false);
    let mut bad = udp(1, OUTSIDE, 1, 1, 100);
    bad[16..18].copy_from_slice(&9_000_u16.to_be_bytes());
    world.send(0, &[1, 2, 3]);
    world.send(0, &bad);
    let good = udp(2, OUTSIDE, 1, 1, 100);
    world.send(1, &good);
    assert_eq!(world.run(Span::micros(50), STEP), [good]);
    assert_eq!(world.losses("shop"), [("too_short", 1), ("length_beyond_frame", 1)]);
    assert_eq!(world.losses("batch"), []);
}

#[test]
fn absurd_offload_fields_are_counted_and_harm_no_tenant() {
    let mut world = World::new(TWO, true);
    let frame = udp(1, OUTSIDE, 1, 1, 1_000);
    let absurd = [
        VnetHeader { gso_type: 77, ..VnetHeader::default() },
        VnetHeader { gso_type: VnetHeader::GSO_UDP_L4, gso_size: 0, ..VnetHeader::default() },
        VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            csum_start: 65_535,
            csum_offset: 65_535,
            ..VnetHeader::default()
        },
        VnetHeader { hdr_len: 60_000, ..VnetHeader::default() },
    ];
    for vnet in &absurd {
        assert_eq!(world.send_with(0, &frame, vnet), Sending::Sent);
    }
    let good = udp(2, OUTSIDE, 1, 1, 100);
    world.send(1, &good);
    assert_eq!(world.run(Span::micros(50), STEP), [good]);
    let lost: u64 = world.losses("shop").iter().map(|(_, count)| count).sum();
    assert_eq!(lost, 4, "{:?}", world.losses("shop"));
}

#[test]
fn a_large_segment_leaves_as_whole_frames_with_right_lengths() {
    let mut world = World::new(TWO, true);
    let frame = udp(1, OUTSIDE, 5, 1, 42 + 3_000);
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: VnetHeader::GSO_UDP_L4,
        hdr_len: 42,
        gso_size: 1_000,
        csum_start: 34,
        csum_offset: 6,
    };
    world.send_with(0, &frame, &vnet);
    let out = world.run(Span::millis(1), STEP);
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [1_042; 3]);
    for segment in &out {
        assert_eq!(segment[38..40], 1_008_u16.to_be_bytes());
        assert_ne!(segment[40..42], [0, 0], "the checksum is made");
    }
    let payload: Vec<u8> = out.iter().flat_map(|segment| segment[42..].to_vec()).collect();
    assert_eq!(payload, frame[42..]);
}

#[test]
fn flows_beyond_the_table_share_a_queue_and_are_counted() {
    let text = TWO.replace("tenants:", "engine: {queues: 64}\ntenants:");
    let mut world = World::new(&text, false);
    let mut out = Vec::new();
    for flow in 0..200 {
        world.send(0, &udp(1, OUTSIDE, flow, 0, 100));
        out.extend(world.run(Span::micros(10), STEP));
    }
    let good = udp(2, OUTSIDE, 1, 1, 100);
    world.send(1, &good);
    out.extend(world.run(Span::millis(1), STEP));
    assert_eq!(out.len(), 201, "nothing is lost for want of a flow queue");
    let events = world.events("shop");
    assert!(events.iter().any(|&(name, count)| name == "flow_table_full" && count >= 100), "{events:?}");
    assert_eq!(world.events("batch"), [], "the neighbour's part of the table is its own");
}

#[test]
fn a_tenant_at_its_cap_waits_and_its_neighbour_does_not() {
    let text = "
uplink: {port: memory, rate: 10Mbps}
engine: {ring: 64}
tenants:
  shop: {port: memory}
  batch: {port: memory, descriptors: 64}
";
    let mut world = World::new(text, false);
    let sent = (0..400).filter(|n| world.send(1, &udp(2, OUTSIDE, *n, 0, 1_000)) == Sending::Sent).count();
    assert_eq!(sent, 400, "the memory port holds 512");
    world.run(Span::millis(2), STEP);
    assert!(world.engine.held() <= 64);
    assert!(world.events("batch").iter().any(|&(name, _)| name == "tenant_at_cap"));
    // The neighbour's frame shares the wire with the backlog at once: 800 µs a frame, a few frames' time.
    let start = world.now;
    world.send(0, &udp(1, OUTSIDE, 1, 42, 1_000));
    let mut waited = None;
    for _ in 0..1_000 {
        let found = world.run(STEP, STEP).iter().any(|frame| frame[9..12] == [0, 0, 1]);
        if found {
            waited = Some(world.now.since(start));
            break;
        }
    }
    assert!(waited.is_some_and(|waited| waited < Span::millis(3)), "{waited:?}");
    assert_eq!(world.losses("batch"), [], "what is not read is not lost");
}

#[test]
fn a_full_uplink_loses_nothing() {
    let text = "
uplink: {port: memory, rate: 10Gbps}
tenants: {shop: {port: memory}}
";
    let mut world = World::new(text, false);
    let mut got = Vec::new();
    let mut sent = 0;
    // The wire's end is drained only now and then: its 512 slots fill up.
    for round in 0..40 {
        while sent < 5_000 && world.send(0, &udp(1, OUTSIDE, sent as u16 % 32, sent, 100)) == Sending::Sent {
            sent += 1;
        }
        for _ in 0..100 {
            world.engine.turn(world.now);
            world.now += STEP;
        }
        if round % 2 == 1 {
            got.extend(world.received());
        }
    }
    got.extend(world.received());
    assert_eq!((got.len(), sent), (5_000, 5_000));
    assert!(world.events("uplink").iter().any(|&(name, _)| name == "uplink_full"));
    assert_eq!(world.losses("shop"), []);
}

#[test]
fn tenants_reach_each_other_and_the_wire_reaches_them() {
    let mut world = World::new(TWO, false);
    // Both tenants send once, so that their addresses are known.
    world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
    world.send(1, &udp(2, OUTSIDE, 1, 0, 100));
    assert_eq!(world.run(Span::micros(50), STEP).len(), 2);
    let across = udp(1, 2, 1, 1, 100);
    world.send(0, &across);
    assert_eq!(world.run(Span::micros(50), STEP), Vec::<Vec<u8>>::new(), "it does not leave the host");
    assert_eq!(drain(&mut world.tenants[1]), [across]);
    let back = udp(OUTSIDE, 1, 80, 2, 100);
    world.wire.send(&back, None).expect("there");
    world.run(Span::micros(50), STEP);
    assert_eq!(drain(&mut world.tenants[0]), [back]);
}

#[test]
fn a_broadcast_reaches_all_tenants_and_an_unknown_address_none() {
    let mut world = World::new(TWO, false);
    let mut arp = udp(1, OUTSIDE, 1, 0, 60);
    arp[..6].copy_from_slice(&[0xff; 6]);
    world.send(0, &arp);
    assert_eq!(world.run(Span::micros(50), STEP), [arp.clone()]);
    assert_eq!(drain(&mut world.tenants[1]), [arp.clone()]);
    assert!(drain(&mut world.tenants[0]).is_empty(), "its sender does not get it back");
    world.wire.send(&udp(OUTSIDE, 77, 1, 0, 60), None).expect("there");
    world.run(Span::micros(50), STEP);
    assert_eq!(world.losses("uplink"), [("unknown_destination", 1)]);
}

/// A core that takes 10 us to fetch a frame and 40 to deliver it: 200 frames in 10 ms, half of them each tenant's,
/// however many came for either. In one queue frames are delivered in the order in which they came.
#[test]
fn an_experiments_core_is_as_slow_as_it_says_and_its_time_is_charged() {
    let run = |ingress: &str| {
        let engine = format!(
            "engine: {{experiment: {{drain: 10us, cost: 40us, drain_share: 999, slots: 512, ingress: {ingress}}}}}"
        );
        let mut world = World::new(&format!("{TWO}{engine}"), false);
        world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
        world.send(1, &udp(2, OUTSIDE, 1, 0, 100));
        world.run(Span::micros(50), STEP);
        let mut delivered = [0; 2];
        for _ in 0..10 {
            // Four for the first to each for the second, 50,000 a second.
            for number in 0..50 {
                let to = if number % 5 == 0 { 2 } else { 1 };
                world.wire.send(&udp(OUTSIDE, to, 80, number, 100), None).expect("there");
            }
            world.run(Span::millis(1), STEP);
            for (count, tenant) in delivered.iter_mut().zip(&mut world.tenants) {
                *count += drain(tenant).len() as u64;
            }
        }
        let stats = Stats::from(&world.engine.snapshot(world.now));
        (delivered, stats)
    };
    let ([shop, batch], stats) = run("fair");
    // Fetching goes first, for all but a thousandth of the time: 500 frames are 5 ms, and the rest are 125 deliveries. The
    // second has no more than 100 frames to be delivered.
    assert!((120..=130).contains(&(shop + batch)), "{shop} and {batch}");
    assert!(shop.abs_diff(batch) <= 2, "{shop} and {batch}");
    let cpu = stats.tenants["batch"].ingress.cpu;
    assert!((cpu - batch as f64 * 40e-6).abs() < 100e-6, "{cpu} s for {batch} frames");
    let ([shop, batch], stats) = run("shared");
    assert!((195..=205).contains(&(shop + batch)), "{shop} and {batch}");
    assert!(shop.abs_diff(4 * batch) <= 8, "{shop} and {batch}");
    assert_eq!(stats.tenants["batch"].ingress.served, 0, "it has no queue of its own");
}

/// More frames for one tenant than can be delivered: only that tenant loses frames.
#[test]
fn a_flood_on_the_way_in_costs_its_own_tenant() {
    let mut world = World::new(TWO, false);
    world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
    world.send(1, &udp(2, OUTSIDE, 1, 0, 100));
    world.run(Span::micros(50), STEP);
    // Every look at the clock is two microseconds later: a batch fetched, or a few frames delivered.
    let clock = std::cell::Cell::new(world.now);
    let tick = |_| {
        clock.set(clock.get() + Span::micros(2));
        clock.get()
    };
    let (mut flood, mut calm) = (0, 0);
    for round in 0..400 {
        for number in 0..192 {
            world.wire.send(&udp(OUTSIDE, 1, 80, number, 100), None).expect("there");
        }
        world.wire.send(&udp(OUTSIDE, 2, 80, round, 100), None).expect("there");
        world.engine.turn_by(&tick);
        flood += drain(&mut world.tenants[0]).len();
        calm += drain(&mut world.tenants[1]).len();
    }
    world.now = clock.get();
    world.run(Span::millis(1), STEP);
    calm += drain(&mut world.tenants[1]).len();
    let stats = Stats::from(&world.engine.snapshot(world.now));
    let (shop, batch) = (&stats.tenants["shop"].ingress, &stats.tenants["batch"].ingress);
    assert_eq!((calm, batch.dropped, batch.waiting), (400, 0, 0));
    assert!(flood > 10_000 && shop.dropped > 10_000, "{flood} delivered, {} lost", shop.dropped);
    assert_eq!(
        world.losses("uplink"),
        [("ingress_full", shop.dropped)],
        "counted once, where the frames came from"
    );
    assert!(shop.peak == 256 && batch.peak < 64 && batch.wait_max < shop.wait_max, "{shop:?} {batch:?}");
}

#[test]
fn a_spoofed_source_gets_no_other_tenants_frames() {
    let mut world = World::new(TWO, false);
    world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
    world.run(Span::micros(50), STEP);
    world.send(1, &udp(1, OUTSIDE, 1, 0, 100));
    assert!(world.run(Span::micros(50), STEP).is_empty(), "nor would a switch behind the uplink believe it");
    let answer = udp(OUTSIDE, 1, 80, 0, 100);
    world.wire.send(&answer, None).expect("there");
    world.run(Span::micros(50), STEP);
    assert_eq!(drain(&mut world.tenants[0]), [answer]);
    assert!(drain(&mut world.tenants[1]).is_empty());
    assert_eq!(world.losses("batch"), [("foreign_source", 1)]);
}

#[test]
fn who_speaks_before_the_gateway_loses_its_address_to_the_gateway() {
    let mut world = World::new(TWO, false);
    let (to_gateway, gateways) = (udp(1, OUTSIDE, 1, 0, 100), udp(OUTSIDE, 1, 80, 0, 100));
    world.send(0, &to_gateway);
    world.send(1, &udp(OUTSIDE, 9, 1, 0, 100));
    world.run(Span::micros(50), STEP);
    world.wire.send(&gateways, None).expect("there");
    world.run(Span::micros(50), STEP);
    assert_eq!(world.events("batch"), [("address_taken", 1)]);
    drain(&mut world.tenants[0]);
    drain(&mut world.tenants[1]);
    // Also at once, when the tenant's last source need not be looked up again.
    world.send(1, &udp(OUTSIDE, 9, 1, 1, 100));
    world.send(0, &to_gateway);
    assert_eq!(world.run(Span::micros(50), STEP), [to_gateway], "it goes to the gateway");
    assert!(drain(&mut world.tenants[1]).is_empty());
    assert_eq!(world.losses("batch"), [("foreign_source", 1)]);
}

#[test]
fn a_port_that_disappears_takes_no_other_with_it_and_may_come_back() {
    let mut world = World::new(TWO, false);
    world.send(1, &udp(2, OUTSIDE, 1, 0, 100));
    world.run(Span::micros(50), STEP);
    let (unused, _keep) = MemoryPort::pair("unused", MemoryConfig::default()).expect("memory");
    drop(std::mem::replace(&mut world.tenants[0], unused));
    let good = udp(2, OUTSIDE, 1, 1, 100);
    world.send(1, &good);
    assert_eq!(world.run(Span::micros(50), STEP), [good]);
    let lost = world.engine.take_lost();
    assert_eq!(lost.iter().map(|lost| lost.lane).collect::<Vec<_>>(), [Some(0)]);
    assert_eq!(world.events("shop"), [("port_lost", 1)]);

    let (port, end) = MemoryPort::pair("shop again", MemoryConfig::default()).expect("memory");
    world.tenants[0] = end;
    assert!(world.engine.attach(Some(0), Port::Memory(port), world.now).is_none());
    let again = udp(1, OUTSIDE, 1, 2, 100);
    world.send(0, &again);
    assert_eq!(world.run(Span::micros(50), STEP), [again]);
}

#[test]
fn what_waits_for_a_lost_uplink_leaves_when_it_is_back() {
    let mut world = World::new(TWO, false);
    let (unused, _keep) = MemoryPort::pair("unused", MemoryConfig::default()).expect("memory");
    drop(std::mem::replace(&mut world.wire, unused));
    let frames: Vec<_> = (0..10).map(|n| udp(1, OUTSIDE, 1, n, 100)).collect();
    for frame in &frames {
        world.send(0, frame);
    }
    assert!(world.run(Span::millis(1), STEP).is_empty());
    assert_eq!(world.engine.take_lost().len(), 1);
    let (port, end) = MemoryPort::pair("uplink again", MemoryConfig::default()).expect("memory");
    world.wire = end;
    assert!(world.engine.attach(None, Port::Memory(port), world.now).is_none());
    assert_eq!(world.run(Span::millis(1), STEP), frames);
}

#[test]
fn a_full_disk_is_counted_and_the_engine_goes_on() {
    let mut world = World::new(TWO, false);
    let config = PcapConfig { write: Some("/dev/full".into()), ..PcapConfig::default() };
    let full = match PcapPort::open(&config) {
        Ok(port) => port,
        // A policy may also be refused at once, with a reason.
        Err(error) => return assert!(error.to_string().contains("/dev/full"), "{error}"),
    };
    let (unused, _keep) = MemoryPort::pair("unused", MemoryConfig::default()).expect("memory");
    drop(std::mem::replace(&mut world.wire, unused));
    world.run(Span::micros(50), STEP);
    assert_eq!(world.engine.take_lost().len(), 1);
    assert!(world.engine.attach(None, Port::Pcap(full), world.now).is_none());
    for n in 0..500 {
        world.send(0, &udp(1, OUTSIDE, 1, n, 1_000));
        world.send(1, &udp(2, OUTSIDE, 1, n, 1_000));
        world.run(Span::micros(30), STEP);
    }
    assert_eq!(world.engine.held(), 0, "nothing is stuck behind the full disk");
    let uplink = world.engine.snapshot(world.now).uplink;
    let lost = uplink.counters.tx_dropped(DropReason::FileFull);
    assert!(lost > 0, "{:?}", uplink.counters);
}

#[test]
fn a_stop_sends_what_is_held_and_counts_what_it_cannot() {
    let mut world =
        World::new("uplink: {port: memory, rate: 10Mbps}\ntenants: {shop: {port: memory}}\n", false);
    for n in 0..20 {
        world.send(0, &udp(1, OUTSIDE, 1, n, 1_000));
    }
    world.run(Span::micros(20), STEP);
    world.engine.stop_reading();
    world.send(0, &udp(1, OUTSIDE, 1, 99, 1_000));
    let sent = world.run(Span::millis(8), STEP).len();
    let lost = world.engine.abandon(world.now);
    assert!((8..=12).contains(&sent), "{sent}");
    assert_eq!(world.engine.held(), 0);
    assert_eq!(world.losses("shop"), [("stopped", lost)]);
}

/// Frames that may wait for the first tenant at once: more come than there is room for.
fn room_on_the_way_in(world: &mut World) -> u32 {
    world.send(0, &udp(1, OUTSIDE, 1, 0, 100));
    world.run(Span::micros(50), STEP);
    // Each look at the clock is so much later that fetching has used up its part of the time.
    let clock = std::cell::Cell::new(world.now);
    let tick = |_| {
        clock.set(clock.get() + Span::micros(2));
        clock.get()
    };
    for _ in 0..100 {
        for number in 0..256 {
            world.wire.send(&udp(OUTSIDE, 1, 80, number, 100), None).expect("there");
        }
        world.engine.turn_by(&tick);
        drain(&mut world.tenants[0]);
    }
    world.now = clock.get();
    world.run(Span::millis(1), STEP);
    drain(&mut world.tenants[0]);
    Stats::from(&world.engine.snapshot(world.now)).tenants["shop"].ingress.peak
}

#[test]
fn the_queue_on_the_way_in_follows_from_the_delay_target() {
    let file = |most: &str| {
        format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{shop: {{port: memory, min: 500Mbps, delay: {{p99: {most}}}}}, \
             batch: {{port: memory, min: 100Mbps}}}}}}"
        )
    };
    let (old, new) = (policy(&file("400us")), policy(&file("1600us")));
    // Half of 400 us, half a core, 500 ns a frame.
    assert_eq!((old.program.tenants[0].slo.slots, new.program.tenants[0].slo.slots), (200, 800));
    let mut world = World::between(&old, false, false);
    assert_eq!(room_on_the_way_in(&mut world), 200);
    let change = world.change(&old, &new);
    world.engine.install(change, world.now);
    assert_eq!(room_on_the_way_in(&mut world), 800, "a reload gives it more");
}

#[test]
fn a_tenants_delay_is_split_and_counted_against_its_target() {
    let text = "{uplink: {port: memory, rate: 10Mbps}, tenants: {shop: {port: memory, min: 5Mbps, delay: {p50: 4ms, p99: 10ms}}}}";
    let mut world = World::new(text, false);
    for n in 0..10 {
        world.send(0, &udp(1, OUTSIDE, 1, n, 1_250));
    }
    world.run(Span::millis(15), STEP);
    for n in 0..4 {
        world.wire.send(&udp(OUTSIDE, 1, 80, n, 100), None).expect("there");
    }
    world.run(Span::micros(50), STEP);
    let watched = world.engine.watch(world.now, Pulse::default());
    let parts = watched.lanes[0].parts.as_deref().expect("it sent");
    // A millisecond each: halves are 2 and 5 ms, so that seven and four took longer.
    assert_eq!((parts.egress.len(), parts.engine.len(), parts.nic.len()), (10, 4, 0));
    assert_eq!((parts.late[0].as_slice(), parts.late[1].as_slice()), (&[7, 4][..], &[0, 0][..]));
    assert_eq!(parts.sent_bytes, 12_500);
    assert!(world.engine.watch(world.now, Pulse::default()).lanes[0].parts.is_none(), "nothing since");
    let stats = Stats::from(&world.engine.snapshot(world.now));
    let delay = &stats.tenants["shop"].delay;
    assert_eq!(delay.egress.as_ref().map(|delay| delay.count), Some(10), "the total stays");
    assert!(delay.nic.is_none() && delay.engine.is_some());
}

#[test]
fn a_tree_is_shown_as_it_is_read() {
    let mut world = World::new(
        "uplink: {port: memory, rate: 10Mbps}
tenants: {shop: {port: memory}, batch: {port: memory}}
policy: {root: {priority: [rates, rest]}, rates: {wfq: {shop: 2, batch: 1}}, rest: {}}",
        false,
    );
    world.run(STEP, STEP);
    let stats = Stats::from(&world.engine.snapshot(world.now));
    let paths: Vec<&str> = stats.nodes.iter().map(|node| node.path.as_str()).collect();
    assert_eq!(paths, ["root", "rates", "rates/shop", "rates/batch", "rest"]);
}

#[test]
fn delays_are_measured_from_doorbell_to_port() {
    let mut world =
        World::new("uplink: {port: memory, rate: 10Mbps}\ntenants: {shop: {port: memory}}\n", false);
    for n in 0..10 {
        world.send(0, &udp(1, OUTSIDE, 1, n, 1_250));
    }
    world.run(Span::millis(15), STEP);
    let snapshot = world.engine.snapshot(world.now);
    let stats = plimsoll_daemon::Stats::from(&snapshot);
    let root = &stats.nodes[0];
    let delay = root.delay.as_ref().expect("ten delays");
    // A millisecond each: the last waits for nine others.
    assert_eq!((root.packets, delay.count), (10, 10));
    assert!((8_900.0..9_300.0).contains(&delay.max), "{delay:?}");
    assert!((world.now.since(Nanos::ZERO)) >= Span::millis(15));
    drop(policy(TWO));
}

/// What the thread's naps follow from: whether packets wait for limits alone, and whether other tenants' frames have moved.
#[test]
fn a_turn_says_whether_only_tenants_move_frames_whose_packets_wait_for_their_maximum() {
    let mut world = World::new(
        "{uplink: {port: memory, rate: 10Gbps}, tenants: {slow: {port: memory, max: 10Mbps}, other: {port: memory}}}",
        false,
    );
    let turn = |world: &mut World| {
        world.now += STEP;
        world.engine.all_ready();
        let turn = world.engine.turn(world.now);
        (turn.limited, turn.unlimited)
    };
    assert_eq!(turn(&mut world), (false, false), "nothing waits");
    for n in 0..20 {
        world.send(0, &udp(1, OUTSIDE, 7, n, 1_000));
    }
    // A burst leaves at once, and the rest waits for its limit.
    turn(&mut world);
    assert_eq!(turn(&mut world), (true, false));
    world.send(0, &udp(1, OUTSIDE, 7, 20, 1_000));
    assert_eq!(turn(&mut world), (true, false), "its own frames wait behind");
    world.send(1, &udp(2, OUTSIDE, 7, 0, 1_000));
    assert_eq!(turn(&mut world), (true, true), "another tenant sends");
    assert_eq!(turn(&mut world), (true, false));
    for (to, unlimited) in [(1, false), (2, true)] {
        let sent = world.wire.send(&udp(OUTSIDE, to, 7, 0, 1_000), None);
        assert_eq!(sent, Ok(Sending::Sent));
        let came = (0..3).map(|_| turn(&mut world)).fold(false, |came, (_, unlimited)| came || unlimited);
        assert_eq!(came, unlimited, "a frame for tenant {to}");
    }
    // Its queue runs empty, and for a second its frames still count as held.
    world.now += Span::millis(500);
    while turn(&mut world).0 {}
    let reply = |world: &mut World| {
        assert_eq!(world.wire.send(&udp(OUTSIDE, 1, 7, 0, 1_000), None), Ok(Sending::Sent));
        (0..3).map(|_| turn(world)).fold(false, |came, (_, unlimited)| came || unlimited)
    };
    assert!(!reply(&mut world));
    world.now += Span::secs(1);
    assert!(reply(&mut world));
}
