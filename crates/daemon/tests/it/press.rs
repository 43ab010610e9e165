//! Backpressure: while something is overloaded, the heavy flow is marked, dropped or slowed down at its source, and no other.

mod hosts;
mod near;
mod told;
mod windows;

use crate::fleet::{self, Fleet, file};
use crate::support::{Stated, World, drain, udp};
use plimsoll_daemon::{AskedBy, HeavyFlow, Means, Stats};
use plimsoll_slo::Pulse;
use plimsoll_units::{BitRate, Span};
use plimsoll_wire::Ecn;

const STEP: Span = Span::micros(10);

fn gateway(rest: &str) -> String {
    format!(
        "
uplink: {{port: memory, rate: 10Gbps}}
tenants:
  gateway: {{port: memory}}
  shop: {{port: memory}}
backpressure: {{tenants: [gateway], heavy: 1kpps, watch: engine, rate: 24Mbps, burst: 64kB, {rest}}}
"
    )
}

/// The same datagram with an ECN field.
fn with_ecn(mut frame: Vec<u8>, ecn: Ecn) -> Vec<u8> {
    assert!(ecn.write(&mut frame));
    frame
}

/// The frames of `flows`, each every `STEP`, with the core busy for this part of the time. What came to the gateway, and
/// what came to the wire.
fn traffic(
    world: &mut World,
    span: Span,
    busy: u64,
    core: &mut Stated,
    flows: &[(Option<usize>, Vec<u8>)],
) -> [Vec<Vec<u8>>; 2] {
    let end = world.now + span;
    let mut out = [Vec::new(), Vec::new()];
    while world.now < end {
        for (from, frame) in flows {
            match from {
                Some(tenant) => _ = world.send(*tenant, frame),
                None => _ = world.wire.send(frame, None),
            }
        }
        let now = world.now;
        world.engine.turn_on(core, &|_| now);
        out[0].extend(drain(&mut world.tenants[0]));
        out[1].extend(world.received());
        world.now += STEP;
        core.0 += Span::ns(STEP.as_u64() * busy / 100);
    }
    out
}

fn count(frames: &[Vec<u8>], port: u16) -> usize {
    frames.iter().filter(|frame| crate::support::number(frame).0 == port).count()
}

fn pressed(world: &mut World) -> Vec<(u16, bool, Means)> {
    let now = world.engine.heavy(world.now).expect("flows are counted");
    let pressed =
        |flow: &HeavyFlow| Some((flow.flow.ports().expect("UDP").0, flow.inward, flow.pressed?.means));
    now.flows.iter().filter_map(pressed).collect()
}

/// The gateway, its tenants' addresses heard.
fn world(rest: &str) -> World {
    let mut world = World::new(&gateway(rest), false);
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.send(1, &udp(2, 99, 2, 0, 60));
    world.run(Span::millis(1), STEP);
    world
}

const HEAVY: u16 = 8;
const MOUSE: u16 = 9;

fn flows(ecn: Ecn) -> [(Option<usize>, Vec<u8>); 1] {
    [(None, with_ecn(udp(98, 1, HEAVY, 0, 300), ecn))]
}

#[test]
fn the_heavy_flow_is_dropped_to_its_rate_and_no_other_and_only_while_the_overload_lasts() {
    let mut world = world("mode: drop");
    let mut core = Stated(Span::ZERO);
    let heavy = flows(Ecn::NotEct);
    let [calm, _] = traffic(&mut world, Span::millis(100), 50, &mut core, &heavy);
    assert_eq!(count(&calm, HEAVY), 10_000, "no overload, nothing is dropped");
    assert_eq!(pressed(&mut world), []);

    let both = [heavy[0].clone(), (None, udp(98, 1, MOUSE, 0, 60))];
    let [busy, _] = traffic(&mut world, Span::millis(100), 95, &mut core, &both[..1]);
    // 240 Mb/s come, and the overload is found in 2 ms. Then a burst and 24 Mb/s pass: 10 packets a millisecond.
    let passed = count(&busy, HEAVY);
    assert!((1_000..1_800).contains(&passed), "{passed}");
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)]);
    let [mouse, _] = traffic(&mut world, Span::millis(1), 95, &mut core, &both);
    assert_eq!(count(&mouse, MOUSE), 100);
    assert_eq!(
        world.losses("uplink"),
        [("flow_over_rate", 10_100 - count(&busy, HEAVY) as u64 - count(&mouse, HEAVY) as u64)]
    );
    let told = world.engine.take_told();
    let [begins, start, top] = &told[..] else { panic!("{told:?}") };
    assert!(
        begins.ends_with("engine is overloaded") && start.contains("is slowed down to 24Mbps"),
        "{told:?}"
    );
    assert_eq!(
        top,
        "backpressure: udp 10.0.0.98:8 > 10.0.0.1:80 to tenant gateway has 100.0 % of heavy hitters' packets"
    );
    let page = plimsoll_daemon::prometheus_page(&Stats::from(&world.engine.snapshot(world.now)));
    for line in [
        "backpressure_overloaded 1",
        "backpressure_flows 1",
        "backpressure_overloads_total 1",
        "backpressure_top_ratio 1",
        "heavy_flows 1",
    ] {
        assert!(page.contains(&format!("\nplimsoll_{line}\n")), "{line} in {page}");
    }

    // The flow pauses, and with it the overload ends: after its lifetime the flow is as before.
    traffic(&mut world, Span::millis(3_200), 10, &mut core, &both[1..]);
    assert_eq!(pressed(&mut world), []);
    let told = world.engine.take_told();
    let [ends, gone] = &told[..] else { panic!("{told:?}") };
    assert!(ends.ends_with("engine is no longer overloaded"), "{told:?}");
    let age = gone.strip_prefix(
        "backpressure: udp 10.0.0.98:8 > 10.0.0.1:80 to tenant gateway is let go; it was slowed down for ",
    );
    let age: f64 = age.and_then(|rest| rest.strip_suffix('s')?.parse().ok()).expect("how long");
    assert!((3.0..3.2).contains(&age), "{told:?}");
    let [calm, _] = traffic(&mut world, Span::millis(10), 10, &mut core, &heavy);
    assert_eq!(count(&calm, HEAVY), 1_000);
}

/// At any moment, and after the flow was let go: a flow that is slowed down is counted apart from all others.
#[test]
fn each_packet_of_a_flow_that_is_slowed_down_is_counted() {
    for mode in ["mode: drop", "mode: mark"] {
        let mut world = world(mode);
        let mut core = Stated(Span::ZERO);
        let heavy = flows(Ecn::Ect0);
        let seen = |world: &mut World| {
            let shown = world.engine.heavy(world.now).expect("flows are counted");
            let totals = world.engine.snapshot(world.now).flows.expect("flows are counted");
            assert_eq!(shown.counters.seen, totals.counters.seen);
            (totals.counters.seen.packets, shown.flows.first().map(|flow| flow.sent.packets))
        };
        let (before, _) = seen(&mut world);
        let mut sent = 0;
        for steps in [2_000, 37, 1, 990, 3_000] {
            traffic(&mut world, STEP.times(steps), 95, &mut core, &heavy);
            sent += steps;
            let totals = world.engine.snapshot(world.now).flows.expect("flows are counted");
            assert_eq!((totals.counters.seen.packets - before, totals.pressed), (sent, 1), "{mode}");
        }
        traffic(&mut world, Span::millis(2), 0, &mut core, &[]);
        assert_eq!(seen(&mut world), (before + sent, Some(sent)), "{mode}: in all, and of the flow");
        traffic(&mut world, Span::millis(3_200), 0, &mut core, &[]);
        assert_eq!((pressed(&mut world), seen(&mut world).0), (vec![], before + sent), "{mode}");
        traffic(&mut world, Span::millis(10), 0, &mut core, &heavy);
        assert_eq!(seen(&mut world).0, before + sent + 1_000, "{mode}");
    }
}

#[test]
fn one_of_several_packets_is_marked_and_the_rest_of_the_frame_stays() {
    let mut world = world("mode: mark");
    let mut core = Stated(Span::ZERO);
    let heavy = flows(Ecn::Ect0);
    let [frames, _] = traffic(&mut world, Span::millis(60), 95, &mut core, &heavy);
    assert_eq!(frames.len(), 6_000, "nothing is lost");
    let marked: Vec<_> = frames.iter().filter(|frame| Ecn::of(frame) == Some(Ecn::Ce)).collect();
    assert!(marked.len() > 100, "{} packets were marked", marked.len());
    let expected = with_ecn(heavy[0].1.clone(), Ecn::Ce);
    assert!(marked.iter().all(|frame| **frame == expected));
    assert!(frames.iter().all(|frame| *frame == expected || *frame == heavy[0].1));
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Marked)]);
    let marks = world.events("uplink").into_iter().find(|(name, _)| *name == "flow_marked");
    assert_eq!(marks, Some(("flow_marked", marked.len() as u64)));
}

#[test]
fn a_flow_that_ignores_marks_is_metered_and_marked_no_more() {
    let mut world = world("mode: mark");
    let mut core = Stated(Span::ZERO);
    let heavy = flows(Ecn::Ect0);
    for _ in 0..100 {
        traffic(&mut world, Span::millis(10), 95, &mut core, &heavy);
        if pressed(&mut world) == [(HEAVY, true, Means::Dropped)] {
            break;
        }
    }
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)]);
    let [frames, _] = traffic(&mut world, Span::millis(50), 95, &mut core, &heavy);
    let marked = frames.iter().filter(|frame| Ecn::of(frame) == Some(Ecn::Ce)).count();
    assert_eq!((marked, frames.len() > 400), (0, true), "{} frames", frames.len());
}

#[test]
fn a_flow_that_cannot_be_marked_or_may_not_be_is_metered() {
    let mut unmarkable = world("mode: mark");
    let mut core = Stated(Span::ZERO);
    let heavy = flows(Ecn::NotEct);
    let [frames, _] = traffic(&mut unmarkable, Span::millis(200), 95, &mut core, &heavy);
    assert!(frames.iter().all(|frame| *frame == heavy[0].1));
    assert_eq!(pressed(&mut unmarkable), [(HEAVY, true, Means::Dropped)]);

    let text =
        gateway("mode: mark").replace("gateway: {port: memory}", "gateway: {port: memory, ecn: untouched}");
    let mut untouched = World::new(&text, false);
    untouched.send(0, &udp(1, 99, 1, 0, 60));
    untouched.run(Span::millis(1), STEP);
    let heavy = flows(Ecn::Ect0);
    let [frames, _] = traffic(&mut untouched, Span::millis(100), 95, &mut Stated(Span::ZERO), &heavy);
    assert!(frames.iter().all(|frame| *frame == heavy[0].1));
    assert_eq!(pressed(&mut untouched), [(HEAVY, true, Means::Dropped)]);
}

/// A flow from a tenant of this host is slowed down where it is sent, so that it takes nothing from the uplink either.
#[test]
fn a_tenant_here_is_slowed_down_at_its_source() {
    let mut world = world("mode: meter");
    let mut core = Stated(Span::ZERO);
    let out = [(Some(0), udp(1, 99, HEAVY, 0, 300))];
    // It is found in a few milliseconds, and then has its burst, and 10 packets a millisecond.
    let [_, first] = traffic(&mut world, Span::millis(10), 95, &mut core, &out);
    let [_, rest] = traffic(&mut world, Span::millis(90), 95, &mut core, &out);
    let passed = count(&first, HEAVY) + count(&rest, HEAVY);
    assert!((500..800).contains(&count(&first, HEAVY)), "{} in the first 10 ms", count(&first, HEAVY));
    assert!((850..950).contains(&count(&rest, HEAVY)), "{} in the next 90 ms", count(&rest, HEAVY));
    assert_eq!(pressed(&mut world), [(HEAVY, false, Means::MeteredHere)]);
    // Half a megabyte waits at its source; what finds no room there is lost, and nothing else.
    let [_, late] = traffic(&mut world, Span::millis(300), 95, &mut core, &[]);
    let waited = count(&late, HEAVY);
    assert!((1_000..1_800).contains(&waited), "{waited}");
    assert_eq!(world.losses("gateway"), [("flow_over_rate", 10_000 - (passed + waited) as u64)]);

    // From a neighbour: counted for the gateway, which receives it.
    let near = [(Some(1), udp(2, 1, MOUSE, 0, 300))];
    let [gateway, _] = traffic(&mut world, Span::millis(100), 95, &mut core, &near);
    let [late, _] = traffic(&mut world, Span::millis(300), 95, &mut core, &[]);
    let (passed, waited) = (count(&gateway, MOUSE), count(&late, MOUSE));
    assert!((1_300..1_800).contains(&passed), "{passed}");
    assert_eq!(world.losses("shop"), [("flow_over_rate", 10_000 - (passed + waited) as u64)]);
}

/// MI-S1: a tenant that opted out sends to one that did not, on this host and from another.
#[test]
fn packets_of_an_untouched_sender_are_not_marked_for_another_tenant() {
    let text = gateway("mode: mark").replace("shop: {port: memory}", "shop: {port: memory, ecn: untouched}");
    let mut world = World::new(&text, false);
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.send(1, &udp(2, 99, 2, 0, 60));
    world.run(Span::millis(1), STEP);
    let local = [(Some(1), with_ecn(udp(2, 1, HEAVY, 0, 300), Ecn::Ect0))];
    let [frames, _] = traffic(&mut world, Span::millis(100), 95, &mut Stated(Span::ZERO), &local);
    assert!(frames.iter().all(|frame| Ecn::of(frame) == Some(Ecn::Ect0)) && frames.len() > 1_000);
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::MeteredHere)]);

    let rest = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps}\n";
    let watch = "backpressure: {tenants: [shop], heavy: 1kpps, watch: engine, mode: mark, rate: 2Mbps}\n";
    for untouched in [false, true] {
        let map = if untouched { "{mac: 02:00:00:00:00:0b, ecn: untouched}" } else { "02:00:00:00:00:0b" };
        let of = |host: &str| {
            file(host, "geneve", false, rest).replace("far: 02:00:00:00:00:0b", &format!("far: {map}"))
        };
        let mut fleet = Fleet::of([of("a") + watch, of("b")]);
        let mut core = Stated(Span::ZERO);
        let heavy = with_ecn(udp(11, 1, HEAVY, 0, 1_000), Ecn::Ect0);
        let (mut marked, mut came) = (0, 0);
        while fleet.a.now < plimsoll_units::Nanos::ZERO + Span::millis(2_500) {
            if fleet.a.now.as_u64().is_multiple_of(500_000) {
                fleet.b.send(0, &heavy);
            }
            fleet.exchange_on(&mut core);
            core.0 += Span::ns(fleet::STEP.as_u64() * 95 / 100);
            for frame in drain(&mut fleet.a.tenants[0]) {
                marked += usize::from(Ecn::of(&frame) == Some(Ecn::Ce));
                came += 1;
            }
        }
        assert_eq!((came > 1_000, marked > 0), (true, !untouched), "{marked} of {came}");
    }
}

/// A gateway forwards what comes for it. A flow is held where it comes, and not again where it leaves.
#[test]
fn what_a_gateway_forwards_is_not_held_again() {
    for watch in ["engine", "{tenant: gateway}"] {
        let text = gateway("mode: drop").replace("watch: engine", &format!("watch: {watch}"))
            + "engine: {experiment: {cost: 12us}}\n";
        let mut world = World::new(&text, false);
        world.send(0, &udp(1, 99, 1, 0, 60));
        world.run(Span::millis(1), STEP);
        let came = udp(98, 1, HEAVY, 0, 300);
        let onward = [&udp(1, 99, HEAVY, 0, 300)[..12], &came[12..]].concat();
        let mut core = Stated(Span::ZERO);
        for _ in 0..10_000 {
            let _ = world.wire.send(&came, None);
            for _ in drain(&mut world.tenants[0]) {
                world.send(0, &onward);
            }
            if watch == "engine" {
                let now = world.now;
                world.engine.turn_on(&mut core, &|_| now);
                world.now += STEP;
                core.0 += Span::ns(STEP.as_u64() * 95 / 100);
                world.received();
            } else {
                world.run(STEP, STEP);
            }
        }
        let now = world.engine.heavy(world.now).expect("flows are counted");
        let ways: Vec<bool> = now.flows.iter().map(|flow| flow.inward).collect();
        assert_eq!((ways.contains(&true), ways.contains(&false)), (true, true), "both ways are heavy");
        assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)], "{watch}");
    }
}

/// Marks and a meter at once: here where the flow comes from a tenant, marks alone where its source cannot be told.
#[test]
fn marks_and_a_meter_work_together_and_what_cannot_be_marked_is_metered() {
    let mut world = world("mode: mark_and_meter");
    let mut core = Stated(Span::ZERO);
    let out = |ecn| [(Some(0), with_ecn(udp(1, 99, HEAVY, 0, 300), ecn))];
    let [_, wire] = traffic(&mut world, Span::millis(100), 95, &mut core, &out(Ecn::Ect0));
    assert_eq!(pressed(&mut world), [(HEAVY, false, Means::MarkedAndMetered)]);
    // 240 Mb/s are sent; a burst and 24 Mb/s pass, 10 packets a millisecond, and some of them are marked.
    assert!((1_000..1_900).contains(&wire.len()), "{}", wire.len());
    let marked = wire.iter().filter(|frame| Ecn::of(frame) == Some(Ecn::Ce)).count();
    assert!(marked > 20, "{marked}");
    // Marks of frames that find no room to wait are lost with them, and not counted.
    let [_, late] = traffic(&mut world, Span::millis(400), 95, &mut core, &[]);
    let marked = marked + late.iter().filter(|frame| Ecn::of(frame) == Some(Ecn::Ce)).count();
    assert!(wire.len() + late.len() < 5_000 && !late.is_empty(), "some are lost");
    let counted = world.events("gateway").into_iter().find(|(name, _)| *name == "flow_marked");
    assert_eq!(counted, Some(("flow_marked", marked as u64)));

    let mut world = self::world("mode: mark_and_meter");
    let [_, wire] = traffic(&mut world, Span::millis(100), 95, &mut core, &out(Ecn::NotEct));
    assert!((1_000..1_900).contains(&wire.len()), "{}", wire.len());
    assert!(wire.iter().all(|frame| Ecn::of(frame) == Some(Ecn::NotEct)));

    let mut world = self::world("mode: mark_and_meter");
    let [frames, _] = traffic(&mut world, Span::millis(60), 95, &mut core, &flows(Ecn::Ect0));
    assert_eq!((frames.len(), pressed(&mut world)), (6_000, vec![(HEAVY, true, Means::Marked)]));
}

/// Neither fragments nor protocols that are not known are marked.
#[test]
fn fragments_and_unknown_protocols_are_metered_instead() {
    for (protocol, fragment) in [(50, [0, 0]), (17, [0x20, 0])] {
        let mut world = world("mode: mark");
        let mut core = Stated(Span::ZERO);
        let mut frame = with_ecn(udp(98, 1, HEAVY, 0, 300), Ecn::Ect0);
        frame[20..22].copy_from_slice(&fragment);
        frame[23] = protocol;
        let [frames, _] = traffic(&mut world, Span::millis(100), 95, &mut core, &[(None, frame.clone())]);
        assert!(frames.iter().all(|got| *got == frame), "protocol {protocol}");
        assert!(frames.len() < 9_000, "it is metered: {}", frames.len());
    }
}

/// Frames of a flow keep their order, and a reload or a stop lets all that waits go on.
#[test]
fn what_waits_for_its_rate_keeps_its_order_and_survives_a_reload_and_a_stop() {
    for stops in [false, true] {
        let mut world = world("mode: meter");
        let mut core = Stated(Span::ZERO);
        let out = [(Some(0), udp(1, 99, HEAVY, 0, 300))];
        traffic(&mut world, Span::millis(60), 95, &mut core, &out);
        traffic(&mut world, Span::millis(400), 95, &mut core, &[]);
        let lost = world.losses("gateway");
        for number in 1..=400 {
            world.send(0, &udp(1, 99, HEAVY, number, 300));
        }
        let at_once = traffic(&mut world, Span::millis(1), 95, &mut core, &[])[1].len();
        assert!((200..400).contains(&at_once), "{at_once} in a burst, the rest waits");
        if stops {
            world.engine.stop_reading();
        } else {
            let checked = crate::support::policy(&gateway("mode: meter"));
            let change = world.change(&checked, &checked);
            world.engine.install(change, world.now);
        }
        // After a reload they wait as before; a daemon that stops waits for no rate.
        let span = Span::millis(if stops { 1 } else { 60 });
        let [_, rest] = traffic(&mut world, span, 95, &mut core, &[]);
        assert_eq!(at_once + rest.len(), 400, "all that waited has gone on");
        let numbers: Vec<u32> = rest.iter().map(|frame| crate::support::number(frame).1).collect();
        assert!(numbers.is_sorted() && numbers.last() == Some(&400), "{numbers:?}");
        assert_eq!(world.losses("gateway"), lost);
    }
}

/// A flow out of one counted tenant and into another of the same host has two names, each with a rate of its own.
#[test]
fn a_flow_that_is_held_under_two_names_keeps_its_order() {
    let text = gateway("mode: meter").replace("tenants: [gateway]", "tenants: [gateway, shop]");
    let mut world = World::new(&text, false);
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.send(1, &udp(2, 99, 2, 0, 60));
    world.run(Span::millis(1), STEP);
    let mut core = Stated(Span::ZERO);
    let (mut number, mut came) = (0, Vec::new());
    // Bursts, so that one meter has something left when the other has not.
    for turn in 0..4_000_u32 {
        let frames = if turn % 400 < 200 { 2 } else { 0 };
        for _ in 0..frames {
            number += 1;
            world.send(1, &udp(2, 1, HEAVY, number, if number % 3 == 0 { 1_000 } else { 100 }));
        }
        if turn % 7 == 0 {
            // The sender's other flow with these headers goes elsewhere: only the meter of its own name counts it.
            world.send(1, &with_destination(udp(2, 1, HEAVY, 0, 1_000), 99));
        }
        came.extend(traffic(&mut world, STEP, 95, &mut core, &[]).into_iter().next().expect("the gateway's"));
    }
    let ways: Vec<bool> = pressed(&mut world).into_iter().map(|(_, inward, _)| inward).collect();
    assert!(ways.contains(&true) && ways.contains(&false), "pressed under both names: {ways:?}");
    let numbers: Vec<u32> = came.iter().map(|frame| crate::support::number(frame).1).collect();
    assert!(numbers.is_sorted(), "reordered: {numbers:?}");
    assert!(numbers.len() > 100, "{}", numbers.len());
}

/// The frame to another hardware address.
fn with_destination(mut frame: Vec<u8>, to: u8) -> Vec<u8> {
    frame[5] = to;
    frame
}

/// A neighbour copies the headers of a heavy flow from elsewhere, and the other way round: only the flow that is heavy is
/// pressed, and the other one loses nothing.
#[test]
fn a_flow_with_a_victims_headers_is_another_flow() {
    for local_is_heavy in [false, true] {
        let mut world = world("mode: drop");
        let mut core = Stated(Span::ZERO);
        // The same addresses, ports and protocol; the neighbour's frames have its own hardware address.
        let from_far = udp(98, 1, HEAVY, 0, 300);
        let mut mimic = from_far.clone();
        mimic[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        let (heavy, calm) = if local_is_heavy {
            ((Some(1), mimic), (None, from_far))
        } else {
            ((None, from_far), (Some(1), mimic))
        };
        let [mut of_heavy, mut of_calm] = [0; 2];
        for _ in 0..200 {
            let [came, _] = traffic(&mut world, STEP.times(99), 95, &mut core, std::slice::from_ref(&heavy));
            of_heavy += came.len();
            let [came, _] = traffic(&mut world, STEP, 95, &mut core, std::slice::from_ref(&calm));
            of_calm += came.len();
        }
        let pressed = pressed(&mut world);
        assert_eq!(pressed, [(HEAVY, true, Means::Dropped)], "one of the two, local: {local_is_heavy}");
        assert!(of_heavy < 5_000, "{of_heavy} of 19,800");
        let victim = if local_is_heavy { "uplink" } else { "shop" };
        assert_eq!(world.losses(victim), [], "the flow with the same headers loses nothing");
        assert!(of_calm >= 195, "{of_calm} of 200");
        let told = ["tenant=shop udp", "tenant=gateway udp"].map(|filter| explained(&mut world, filter));
        assert_eq!(told, [usize::from(local_is_heavy), usize::from(!local_is_heavy)]);
    }
}

/// How many flows `explain` says are slowed down.
fn explained(world: &mut World, filter: &str) -> usize {
    let now = world.engine.heavy(world.now).expect("counted");
    let filter = filter.parse().expect("a filter");
    plimsoll_daemon::slowed_down(&filter, Some(&now), &[], world.now).len()
}

/// The same from one tenant of the host to another: a third copies the headers of the victim's flow.
#[test]
fn a_sibling_with_a_victims_headers_has_a_flow_of_its_own() {
    let text = gateway("mode: drop")
        .replace("  shop: {port: memory}\n", "  shop: {port: memory}\n  evil: {port: memory}\n");
    let mut world = World::new(&text, false);
    for (lane, host) in [(0, 1), (1, 2), (2, 3)] {
        world.send(lane, &udp(host, 99, host.into(), 0, 60));
    }
    world.run(Span::millis(1), STEP);
    let mut core = Stated(Span::ZERO);
    let calm = udp(2, 1, HEAVY, 0, 300);
    let mut copied = calm.clone();
    copied[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    let [mut of_heavy, mut of_calm] = [0; 2];
    for _ in 0..200 {
        let came = traffic(&mut world, STEP.times(99), 95, &mut core, &[(Some(2), copied.clone())]);
        of_heavy += came[0].len();
        let came = traffic(&mut world, STEP, 95, &mut core, &[(Some(1), calm.clone())]);
        of_calm += came[0].len();
    }
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)], "one of the two");
    assert!(of_heavy < 5_000, "{of_heavy} of 19,800");
    assert_eq!(world.losses("shop"), [], "the flow with the same headers loses nothing");
    assert!(of_calm >= 195, "{of_calm} of 200");
    let now = world.engine.heavy(world.now).expect("counted");
    let inward = now.flows.iter().filter(|flow| flow.inward);
    assert_eq!(inward.map(|flow| flow.from.as_deref()).collect::<Vec<_>>(), [Some("evil")]);
    let told = ["tenant=evil udp", "tenant=shop udp", "udp"].map(|filter| explained(&mut world, filter));
    assert_eq!(told, [1, 0, 1]);
}
