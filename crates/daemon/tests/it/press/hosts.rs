//! Several hosts: one is told by another, and marks of the fabric are kept apart.

use super::*;

/// The overload of host a's tenant slows the flow down at host b, where it comes from.
#[test]
fn another_host_is_told_and_holds_the_flow_until_it_is_told_no_more() {
    let rest = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps}\n";
    let watch = "backpressure: {tenants: [shop], heavy: 1kpps, watch: engine, rate: 2Mbps, burst: 64kB, lifetime: 200ms}\n";
    let mut fleet = Fleet::of([file("a", "geneve", false, rest) + watch, file("b", "geneve", false, rest)]);
    let mut core = Stated(Span::ZERO);
    let heavy = udp(11, 1, HEAVY, 0, 1_000);
    let calm = udp(12, 1, MOUSE, 0, 1_000);
    let mut run = |fleet: &mut Fleet, span: Span, busy: u64| {
        let (mut came, end) = ([0, 0], fleet.a.now + span);
        while fleet.a.now < end {
            if fleet.a.now.as_u64().is_multiple_of(500_000) {
                fleet.b.send(0, &heavy);
            }
            if fleet.a.now.as_u64().is_multiple_of(2_000_000) {
                fleet.b.send(1, &calm);
            }
            fleet.exchange_on(&mut core);
            core.0 += Span::ns(fleet::STEP.as_u64() * busy / 100);
            for frame in drain(&mut fleet.a.tenants[0]) {
                came[usize::from(crate::support::number(&frame).0 == MOUSE)] += 1;
            }
        }
        came
    };
    let [before, _] = run(&mut fleet, Span::millis(2_500), 20);
    assert!(before > 4_500, "{before} of 5,000 come while nothing is overloaded");
    let [_, _] = run(&mut fleet, Span::millis(300), 95);
    // 16 Mb/s are sent, 2 Mb/s pass.
    let [held, mice] = run(&mut fleet, Span::millis(1_000), 95);
    assert!((200..320).contains(&held), "{held}");
    assert!(mice >= 498, "{mice} of 500 packets of another tenant's flow");
    // Its own operator sees it, and who asked.
    let asked = fleet.b.engine.asked(fleet.b.now);
    let [one] = &asked[..] else { panic!("{asked:?}") };
    let by = AskedBy::Host { to: "shop".to_owned(), host: "a".to_owned() };
    assert_eq!((one.of.as_str(), &one.by, one.rate), ("far", &by, BitRate::mbps(2)));
    let told = |filter: &str| {
        let filter = filter.parse().expect("a filter");
        plimsoll_daemon::slowed_down(&filter, None, &asked, fleet.b.now)
    };
    assert_eq!(
        told("tenant=far udp"),
        ["udp 10.0.0.11:8 > 10.0.0.1:80: to 2Mbps for 1s, as host a asks for its tenant shop"]
    );
    assert!(told("src_port=9").is_empty() && told("tenant=quiet").is_empty());
    let watched = fleet.b.engine.watch(fleet.b.now, Pulse::default());
    let far = watched.lanes.iter().find(|lane| lane.name == "far").expect("a tenant");
    assert!(far.pressed.get("shop at a (backpressure)").is_some_and(|times| *times > 2_000), "{far:?}");
    assert!(far.parts.as_ref().is_some_and(|parts| parts.shaped > parts.waited), "{far:?}");
    let lost =
        |world: &mut World, of: &str| world.losses(of).into_iter().find(|(why, _)| *why == "flow_over_rate");
    assert!(lost(&mut fleet.b, "far").is_some_and(|(_, lost)| lost > 1_500));
    assert_eq!(lost(&mut fleet.a, "uplink"), None, "nothing is dropped where it arrives");
    assert_eq!(lost(&mut fleet.b, "quiet"), None);

    // The gateway's daemon is killed: it says nothing any more. Nothing stays slowed down.
    let at = fleet.b.now + Span::millis(300);
    while fleet.b.now < at {
        fleet.b.run(fleet::STEP, fleet::STEP);
    }
    fleet.b.received();
    let mut sent = 0;
    for _ in 0..20 {
        fleet.b.send(0, &heavy);
        sent += fleet.b.run(Span::millis(1), fleet::STEP).len();
    }
    assert!(sent >= 20, "{sent}");
}

/// Another tenant of the sender's host copies a victim's headers, and sends as fast as it can. Only its own flow is held, in the
/// modes that hold a flow at its source and in the one that drops.
#[test]
fn a_tenant_of_another_host_that_copies_a_victims_headers_has_a_flow_of_its_own() {
    for mode in ["meter", "drop"] {
        let rest = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps}\n";
        let watch = format!(
            "backpressure: {{tenants: [shop], heavy: 1kpps, watch: engine, rate: 2Mbps, burst: 64kB, mode: {mode}}}\n"
        );
        let mut fleet =
            Fleet::of([file("a", "geneve", false, rest) + &watch, file("b", "geneve", false, rest)]);
        let mut core = Stated(Span::ZERO);
        let calm = udp(11, 1, HEAVY, 0, 1_000);
        let mut copied = calm.clone();
        copied[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 12]);
        let mut came = [0; 2];
        for turn in 0..100_000_u64 {
            if turn == 60_000 {
                came = [0; 2]; // it is known as a heavy hitter, and what waited has left
            }
            if turn.is_multiple_of(10) {
                fleet.b.send(1, &copied);
            }
            if turn.is_multiple_of(200) {
                fleet.b.send(0, &calm);
            }
            fleet.exchange_on(&mut core);
            core.0 += Span::ns(fleet::STEP.as_u64() * 95 / 100);
            for frame in drain(&mut fleet.a.tenants[0]) {
                came[usize::from(frame[11] == 12)] += 1;
            }
        }
        // 16 Mb/s are sent for two seconds, 2 Mb/s pass.
        let [of_calm, of_heavy] = came;
        assert!((400..1_000).contains(&of_heavy), "{mode}: {of_heavy} of 4,000");
        assert!(of_calm >= 198, "{mode}: {of_calm} of 200");
        let now = fleet.a.engine.heavy(fleet.a.now).expect("counted");
        let from: Vec<_> = now.flows.iter().map(|flow| flow.from.as_deref()).collect();
        assert_eq!(from, [Some("quiet@b")], "{mode}");
        let asked = fleet.b.engine.asked(fleet.b.now);
        let held: Vec<&str> = asked.iter().map(|asked| asked.of.as_str()).collect();
        assert_eq!(held, if mode == "meter" { vec!["quiet"] } else { vec![] });
        assert_eq!(fleet.b.losses("far"), [], "{mode}: the flow with the same headers loses nothing");
    }
}

/// A tenant that writes another tenant's hardware address into its frames as well takes nothing from the rate of that one's flow:
/// such frames are dropped before they are charged.
#[test]
fn a_forged_hardware_address_does_not_use_up_a_victims_rate() {
    let rest = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps}\n";
    let watch = "backpressure: {tenants: [shop], heavy: 1kpps, watch: engine, rate: 2Mbps, burst: 64kB}\n";
    let mut fleet = Fleet::of([file("a", "geneve", false, rest) + watch, file("b", "geneve", false, rest)]);
    let mut core = Stated(Span::ZERO);
    let heavy = udp(11, 1, HEAVY, 0, 1_000);
    let mut run = |fleet: &mut Fleet, forged: bool| {
        let mut came = 0;
        for turn in 0..20_000_u64 {
            if turn.is_multiple_of(10) {
                fleet.b.send(0, &heavy);
            }
            if forged && turn.is_multiple_of(2) {
                fleet.b.send(1, &heavy);
            }
            fleet.exchange_on(&mut core);
            core.0 += Span::ns(fleet::STEP.as_u64() * 95 / 100);
            came += drain(&mut fleet.a.tenants[0]).len();
        }
        came
    };
    for _ in 0..3 {
        run(&mut fleet, false); // until it is known as a heavy hitter, and what waited has left
    }
    let alone = run(&mut fleet, false);
    let beside = run(&mut fleet, true);
    assert!(
        (200..320).contains(&alone) && beside + 10 >= alone,
        "{alone} alone, {beside} beside forged ones"
    );
    assert!(fleet.b.losses("quiet").contains(&("foreign_source", 10_000)), "{:?}", fleet.b.losses("quiet"));
}

/// Marks that backpressure set at the sending host, and marks that the fabric set on the way, are counted apart, and the
/// receiving host holds senders back for the fabric's only (targets §6.8).
#[test]
fn marks_of_backpressure_and_of_the_fabric_are_told_apart() {
    let rest = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps, ecn: true}\n";
    let watch = "backpressure: {tenants: [shop], heavy: 1kpps, watch: engine, rate: 2Mbps, mode: mark}\n\
                 engine: {flows: fifo}\n"; // `fq` would mark, too
    let run = |by_fabric: bool| {
        let mut fleet =
            Fleet::of([file("a", "geneve", false, rest) + watch, file("b", "geneve", false, rest)]);
        let mut core = Stated(Span::ZERO);
        let heavy = with_ecn(udp(1, 11, HEAVY, 0, 1_000), Ecn::Ect0);
        let mut marked = 0;
        for _ in 0..12_000 {
            fleet.a.send(0, &heavy);
            // Host a's core is overloaded where its own marks are looked at.
            core.0 += Span::ns(if by_fabric { 0 } else { fleet::STEP.as_u64() });
            let mut packets = fleet.a.run_on(&mut core, fleet::STEP, fleet::STEP);
            for packet in packets.iter_mut().filter(|_| by_fabric) {
                if packet.len() > 1_000 {
                    assert_eq!(Ecn::of(packet), Some(Ecn::Ect0), "nothing enters the fabric with a mark");
                    assert!(Ecn::Ce.write(packet));
                    marked += 1;
                }
            }
            packets.iter().for_each(|packet| _ = fleet.b.wire.send(packet, None).expect("there"));
            let back = fleet.b.run(fleet::STEP, fleet::STEP);
            back.iter().for_each(|packet| _ = fleet.a.wire.send(packet, None).expect("there"));
            drain(&mut fleet.b.tenants[0]);
        }
        let count = |world: &mut World, of: &str, name: &str| {
            world.events(of).into_iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| count)
        };
        let ours = count(&mut fleet.a, "shop", "flow_marked");
        let [fabric, inner] =
            ["fabric_marked", "inner_marked"].map(|name| count(&mut fleet.b, "uplink", name));
        let stats = Stats::from(&fleet.a.engine.snapshot(fleet.a.now));
        (ours, fabric, inner, marked, stats.fleet.expect("a fleet").pairs[0].rate)
    };
    let (ours, fabric, inner, _, rate) = run(false);
    assert!(ours > 100 && inner > 100, "{ours} marks, of which {inner} came");
    assert_eq!(fabric, 0, "the fabric marked nothing");
    assert!(rate >= 18_000_000, "{rate}: the receiver's max is 20 Mb/s, and no mark lowers it");
    let (ours, fabric, inner, marked, rate) = run(true);
    assert_eq!((ours, inner), (0, 0), "the fabric's marks are no marks of backpressure");
    assert!(fabric > 100 && fabric <= marked, "{fabric} of {marked}");
    assert!(rate < 18_000_000, "{rate}: the fabric's marks hold its senders back");
}

/// Where hosts react to the fabric's marks themselves, such a mark is not echoed for a tenant whose ECN this host mediates: the
/// sender's host would install a meter for it, as if backpressure had marked. A tenant that is not mediated gets the mark.
#[test]
fn the_fabrics_mark_is_not_echoed_for_a_mediated_tenant() {
    for (ecn, mediated) in [(", ecn: true", true), (", ecn: true", false), ("", true)] {
        let rest =
            format!("  feedback: {{key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps{ecn}}}\n");
        let mut a = file("a", "geneve", false, &rest);
        if mediated {
            a = a.replace("shop: {port: memory}", "shop: {port: memory, ecn: mediated}");
        }
        let mut fleet = Fleet::of([a, file("b", "geneve", false, &rest)]);
        let mut frame = with_ecn(udp(11, 1, HEAVY, 0, 200), Ecn::Ect0);
        (frame[23], frame[46], frame[47]) = (6, 0x50, 16);
        fleet.b.send(0, &frame);
        let mut packets = fleet.b.run(fleet::STEP.times(4), fleet::STEP);
        for packet in packets.iter_mut().filter(|packet| packet.len() > 200) {
            assert!(Ecn::Ce.write(packet));
        }
        packets.iter().for_each(|packet| _ = fleet.a.wire.send(packet, None).expect("there"));
        fleet.a.run(fleet::STEP.times(4), fleet::STEP);
        let came = drain(&mut fleet.a.tenants[0]);
        let [one] = &came[..] else { panic!("{} frames", came.len()) };
        // Without `ecn` no host reacts to the mark, so the tenant has to (RFC 6040).
        let kept = mediated && !ecn.is_empty();
        assert_eq!(Ecn::of(one), Some(if kept { Ecn::Ect0 } else { Ecn::Ce }), "{ecn}, mediated: {mediated}");
        assert!(fleet.a.events("uplink").contains(&("fabric_marked", 1)));
    }
}
