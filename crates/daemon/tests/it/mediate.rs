//! Mediated ECN: the engine takes the part of a tenant's TCP that does not use it, and changes nothing else.

use crate::fleet::{self, Fleet};
use crate::support::{World, drain, policy};
use plimsoll_daemon::{AskedBy, HeavyReport, ThisCore};
use plimsoll_slo::Pulse;
use plimsoll_units::{BitRate, Span};
use plimsoll_wire::{Ecn, TcpFlags, TcpSegment, VnetHeader, ones_complement_sum, parse};

const STEP: Span = Span::micros(10);
const NONE: TcpFlags = TcpFlags::NONE;
const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const ECE: TcpFlags = TcpFlags::ECE;
const CWR: TcpFlags = TcpFlags::CWR;

fn file(rest: &str) -> String {
    format!(
        "
uplink: {{port: memory, rate: 10Gbps}}
tenants:
  shop: {{port: memory, {rest}}}
  plain: {{port: memory}}
"
    )
}

/// Bits of the flags' byte.
fn byte(flags: TcpFlags) -> u8 {
    let all = [(TcpFlags::FIN, 1), (SYN, 2), (TcpFlags::RST, 4), (ACK, 16), (ECE, 64), (CWR, 128)];
    all.into_iter().filter(|(flag, _)| flags.has(*flag)).map(|(_, bit)| bit).sum()
}

/// A TCP segment over IPv4 with right checksums, from MAC and address `from` to `to`.
fn tcp(
    from: u8,
    to: u8,
    [sequence, acknowledged]: [u32; 2],
    flags: TcpFlags,
    ecn: Ecn,
    payload: usize,
) -> Vec<u8> {
    let mut frame = vec![0; 54 + payload];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame[12..16].copy_from_slice(&[8, 0, 0x45, ecn.bits()]);
    frame[16..18].copy_from_slice(&u16::try_from(40 + payload).expect("fits").to_be_bytes());
    (frame[22], frame[23]) = (64, 6);
    frame[26..30].copy_from_slice(&[10, 0, 0, from]);
    frame[30..34].copy_from_slice(&[10, 0, 0, to]);
    let ports = |host: u8| 1_000 + u16::from(host);
    frame[34..36].copy_from_slice(&ports(from).to_be_bytes());
    frame[36..38].copy_from_slice(&ports(to).to_be_bytes());
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&acknowledged.to_be_bytes());
    (frame[46], frame[47], frame[48]) = (0x50, byte(flags), 0xff);
    let header = !ones_complement_sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    let checksum = !ones_complement_sum(&covered(&frame));
    frame[50..52].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// What the checksum of such a segment covers.
fn covered(frame: &[u8]) -> Vec<u8> {
    let len = u16::try_from(frame.len() - 34).expect("fits").to_be_bytes();
    [&frame[26..34], &[0, 6], &len, &frame[34..]].concat()
}

/// Flags and ECN field; the checksums must be right.
fn seen(frame: &[u8]) -> (TcpFlags, Ecn) {
    assert_eq!(ones_complement_sum(&frame[14..34]), 0xffff, "the header's checksum");
    assert_eq!(ones_complement_sum(&covered(frame)), 0xffff, "the segment's checksum");
    let segment = TcpSegment::of(frame, &parse(frame).expect("headers")).expect("TCP");
    (segment.flags, Ecn::of(frame).expect("IP"))
}

/// The one frame that came.
fn one(mut frames: Vec<Vec<u8>>) -> Vec<u8> {
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

/// A tenant sends a frame; what came to the wire.
fn out(world: &mut World, tenant: usize, frame: &[u8]) -> Vec<u8> {
    world.send(tenant, frame);
    one(world.run(Span::micros(50), STEP))
}

/// The wire brings a frame; what came to the tenant.
fn bring(world: &mut World, tenant: usize, frame: &[u8]) -> Vec<u8> {
    world.wire.send(frame, None).expect("the engine's end is there");
    world.run(Span::micros(50), STEP);
    one(drain(&mut world.tenants[tenant]))
}

/// The first tenant's connection to the wire, for which its host asked and which the server granted.
fn opened(rest: &str) -> World {
    let mut world = World::new(&file(rest), false);
    let syn = out(&mut world, 0, &tcp(1, 99, [7, 0], SYN, Ecn::NotEct, 0));
    assert_eq!(seen(&syn), (SYN | ECE | CWR, Ecn::NotEct));
    let grant = bring(&mut world, 0, &tcp(99, 1, [500, 8], SYN | ACK | ECE, Ecn::NotEct, 0));
    assert_eq!(grant, tcp(99, 1, [500, 8], SYN | ACK, Ecn::NotEct, 0), "as if the server had not granted it");
    world
}

fn event(world: &mut World, name: &str) -> u64 {
    world.events("shop").into_iter().find(|(event, _)| *event == name).map_or(0, |(_, count)| count)
}

#[test]
fn a_mark_is_echoed_in_the_tenants_place_until_the_sender_has_heard() {
    let mut world = opened("ecn: mediated");
    let ack = tcp(1, 99, [8, 501], ACK, Ecn::NotEct, 0);
    assert_eq!(out(&mut world, 0, &ack), ack);
    let data = |flags, ecn| tcp(99, 1, [501, 8], ACK | flags, ecn, 100);
    assert_eq!(bring(&mut world, 0, &data(NONE, Ecn::Ect0)), data(NONE, Ecn::Ect0));
    assert_eq!(bring(&mut world, 0, &data(NONE, Ecn::Ce)), data(NONE, Ecn::Ect0), "the mark is taken away");
    assert_eq!(seen(&out(&mut world, 0, &ack)), (ACK | ECE, Ecn::NotEct));
    let heard = data(CWR, Ecn::Ect0);
    assert_eq!(bring(&mut world, 0, &heard), heard);
    assert_eq!(out(&mut world, 0, &ack), ack);
    let counts =
        ["ecn_asked", "ecn_hidden", "ecn_unmarked", "ecn_echoed"].map(|name| event(&mut world, name));
    assert_eq!(counts, [1; 4]);
    assert!(world.engine.asked(world.now).is_empty(), "no mark was reported on the tenant's own flow");
}

#[test]
fn no_other_tenant_and_no_other_packet_is_changed() {
    let mut world = World::new(&file("ecn: mediated"), false);
    let syn = |from| tcp(from, 99, [7, 0], SYN, Ecn::NotEct, 0);
    for ecn in ["", "ecn: allowed", "ecn: untouched"] {
        let mut world = World::new(&file(ecn), false);
        for tenant in [0, 1] {
            assert_eq!(out(&mut world, tenant, &syn(tenant as u8 + 1)), syn(tenant as u8 + 1));
        }
    }
    assert_eq!(out(&mut world, 1, &syn(2)), syn(2), "the plain tenant");
    // IPsec, a fragment and UDP of the mediated one.
    let odd = |protocol: u8, fragment: [u8; 2]| {
        let mut frame = syn(1);
        frame[23] = protocol;
        frame[20..22].copy_from_slice(&fragment);
        frame[24..26].fill(0);
        let header = !ones_complement_sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        frame
    };
    for frame in [odd(50, [0; 2]), odd(51, [0; 2]), odd(6, [0x20, 0]), odd(6, [0, 3]), odd(132, [0; 2])] {
        assert_eq!(out(&mut world, 0, &frame), frame);
    }
    // Two ends that use ECN themselves: not a bit is changed, marks and echoes included.
    let asks = tcp(1, 99, [70, 0], SYN | ECE | CWR, Ecn::NotEct, 0);
    assert_eq!(out(&mut world, 0, &asks), asks);
    let grant = tcp(99, 1, [5, 71], SYN | ACK | ECE, Ecn::NotEct, 0);
    assert_eq!(bring(&mut world, 0, &grant), grant);
    for (flags, ecn) in [(ACK, Ecn::Ce), (ACK | ECE, Ecn::Ect0), (ACK | CWR, Ecn::Ect1), (ACK | ECE, Ecn::Ce)]
    {
        let frame = tcp(99, 1, [6, 71], flags, ecn, 300);
        assert_eq!(bring(&mut world, 0, &frame), frame);
        let back = tcp(1, 99, [71, 6], flags, Ecn::Ect0, 300);
        assert_eq!(out(&mut world, 0, &back), back);
    }
}

#[test]
fn a_reported_mark_holds_the_flow_to_the_stated_rate() {
    let mut world = opened("ecn: {mediate: {rate: 24Mbps, burst: 64kB, lifetime: 200ms}}");
    let data = |number: u32| tcp(1, 99, [8 + number * 246, 501], ACK, Ecn::Ect0, 246);
    let send = |world: &mut World, span: Span| {
        let (mut number, mut came, end) = (0, 0, world.now + span);
        while world.now < end {
            world.send(0, &data(number));
            number += 1;
            came += world.run(STEP, STEP).len();
        }
        came
    };
    assert_eq!(send(&mut world, Span::millis(20)), 2_000, "240 Mb/s");
    bring(&mut world, 0, &tcp(99, 1, [501, 8], ACK | ECE, Ecn::NotEct, 0));
    let asked = world.engine.asked(world.now);
    let [one] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((one.of.as_str(), &one.by, one.rate), ("shop", &AskedBy::Receiver, BitRate::mbps(24)));
    assert_eq!(one.flow.ports(), Some((1_001, 1_099)));
    let report = HeavyReport::new(None, &asked, one.since + Span::millis(150)).expect("something is held");
    assert!((report.held[0].age - 0.15).abs() < 1e-9, "{report:?}");
    assert_eq!(report.held[0].receiver_of.as_deref(), Some("shop"));
    let told =
        plimsoll_daemon::slowed_down(&"tenant=shop".parse().expect("a filter"), None, &asked, world.now);
    assert_eq!(
        told,
        ["tcp 10.0.0.1:1001 > 10.0.0.99:1099: to 24Mbps for 0s, as its receiver reports marks (ECN)"]
    );
    assert_eq!(world.engine.take_told().len(), 1);
    // The burst and 24 Mb/s: 10 packets a millisecond.
    let held = send(&mut world, Span::millis(100));
    assert!((1_000..1_500).contains(&held), "{held}");
    let watched = world.engine.watch(world.now, Pulse::default());
    let shop = watched.lanes.iter().find(|lane| lane.name == "shop").expect("a tenant");
    let by: Vec<&str> = shop.pressed.keys().map(String::as_str).collect();
    assert_eq!(by, ["a receiver that reports marks (ECN)"], "whom `slo` blames");
    let other = tcp(1, 98, [1, 1], ACK, Ecn::NotEct, 0);
    world.send(0, &other);
    assert!(world.run(Span::micros(20), STEP).contains(&other), "another flow of the tenant does not wait");
    world.run(Span::millis(300), Span::micros(100));
    assert_eq!(send(&mut world, Span::millis(5)), 500, "its lifetime is over");
    world.run(Span::secs(1), Span::millis(1));
    let told = world.engine.take_told();
    let [gone] = &told[..] else { panic!("{told:?}") };
    assert!(gone.contains("tcp 10.0.0.1:1001 > 10.0.0.99:1099 of tenant shop is let go"), "{gone}");
    assert!(world.losses("shop").iter().all(|(why, _)| *why == "flow_over_rate"));
    assert_eq!([event(&mut world, "ecn_reported"), event(&mut world, "ecn_answered")], [1, 0]);
}

#[test]
fn a_mark_that_is_reported_on_a_flow_without_ecn_is_answered_once() {
    let mut world = opened("ecn: mediated");
    let data = |sequence, flags| tcp(1, 99, [sequence, 501], ACK | flags, Ecn::NotEct, 100);
    assert_eq!(out(&mut world, 0, &data(8, NONE)), data(8, NONE));
    bring(&mut world, 0, &tcp(99, 1, [501, 8], ACK | ECE, Ecn::NotEct, 0));
    assert_eq!(out(&mut world, 0, &data(108, NONE)), data(108, CWR));
    assert_eq!(out(&mut world, 0, &data(208, NONE)), data(208, NONE));
}

/// A device completes checksums and cuts segments after the rewriting.
#[test]
fn unfinished_and_long_segments_leave_with_right_checksums() {
    let mut world = World::new(&file("ecn: mediated"), true);
    let offload = |frame: &mut Vec<u8>, gso_size: u16| {
        let len = u16::try_from(frame.len() - 34).expect("fits").to_be_bytes();
        let sum = ones_complement_sum(&[&frame[26..34], &[0, 6], &len[..]].concat());
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
        VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: if gso_size > 0 { VnetHeader::GSO_TCPV4 } else { VnetHeader::GSO_NONE },
            hdr_len: 54,
            gso_size,
            csum_start: 34,
            csum_offset: 16,
        }
    };
    let mut syn = tcp(1, 99, [7, 0], SYN, Ecn::NotEct, 0);
    let vnet = offload(&mut syn, 0);
    world.send_with(0, &syn, &vnet);
    let syn = one(world.run(Span::micros(50), STEP));
    assert_eq!(seen(&syn).0, SYN | ECE | CWR);
    bring(&mut world, 0, &tcp(99, 1, [500, 8], SYN | ACK | ECE, Ecn::NotEct, 0));
    world.send(0, &tcp(1, 99, [8, 501], ACK, Ecn::NotEct, 0));
    world.run(Span::micros(50), STEP);
    // A mark and a reported mark: each segment echoes, the first alone has CWR.
    bring(&mut world, 0, &tcp(99, 1, [501, 8], ACK | ECE, Ecn::Ce, 100));
    let mut long = tcp(1, 99, [8, 501], ACK, Ecn::NotEct, 5_000);
    let vnet = offload(&mut long, 1_400);
    world.send_with(0, &long, &vnet);
    let segments = world.run(Span::millis(1), STEP);
    let flags: Vec<TcpFlags> = segments.iter().map(|frame| seen(frame).0).collect();
    assert_eq!(flags, [ACK | ECE | CWR, ACK | ECE, ACK | ECE, ACK | ECE]);
}

#[test]
fn tenants_of_one_host_are_mediated_each_for_itself() {
    let both = file("ecn: mediated").replace("plain: {port: memory}", "plain: {port: memory, ecn: mediated}");
    for (text, forged) in [(both, true), (file("ecn: mediated"), false)] {
        let mut world = World::new(&text, false);
        // Addresses are heard first.
        world.send(0, &tcp(1, 99, [1, 1], ACK, Ecn::NotEct, 0));
        world.send(1, &tcp(2, 99, [1, 1], ACK, Ecn::NotEct, 0));
        world.run(Span::micros(50), STEP);
        let pass = |world: &mut World, from: usize, frame: &[u8]| {
            world.send(from, frame);
            world.run(Span::micros(50), STEP);
            one(drain(&mut world.tenants[1 - from]))
        };
        // The client has tcp_ecn=2 and is mediated; the server is not willing, and is mediated or not.
        let syn = pass(&mut world, 0, &tcp(1, 2, [7, 0], SYN, Ecn::NotEct, 0));
        assert_eq!(seen(&syn).0, SYN | ECE | CWR);
        let refusal = tcp(2, 1, [500, 8], SYN | ACK, Ecn::NotEct, 0);
        assert_eq!(pass(&mut world, 1, &refusal), refusal, "what is forged is hidden from the client");
        let granted = world.events("plain").iter().any(|(event, _)| *event == "ecn_granted");
        assert_eq!(granted, forged);
        let data = tcp(1, 2, [8, 501], ACK, Ecn::NotEct, 100);
        assert_eq!(pass(&mut world, 0, &data), data);
    }
}

#[test]
fn a_reload_begins_and_ends_mediation() {
    let (plain, mediated) = (policy(&file("")), policy(&file("ecn: mediated")));
    let mut world = World::new(&file(""), false);
    let syn = |sequence| tcp(1, 99, [sequence, 0], SYN, Ecn::NotEct, 0);
    assert_eq!(out(&mut world, 0, &syn(1)), syn(1));
    let change = world.change(&plain, &mediated);
    assert!(world.engine.install(change, world.now).guests.is_empty());
    assert_eq!(seen(&out(&mut world, 0, &syn(2))).0, SYN | ECE | CWR);
    let other = policy(&file("ecn: {mediate: {rate: 24Mbps}}"));
    let change = world.change(&mediated, &other);
    assert!(world.engine.install(change, world.now).guests.is_empty(), "the tables stay");
    assert_eq!(
        bring(&mut world, 0, &tcp(99, 1, [5, 3], SYN | ACK | ECE, Ecn::NotEct, 0))[47],
        0x12,
        "and what they know"
    );
    bring(&mut world, 0, &tcp(99, 1, [6, 3], ACK | ECE, Ecn::NotEct, 0));
    assert_eq!(world.engine.asked(world.now)[0].rate, BitRate::mbps(24));
    // The server uses ECN as this host has asked for it, and goes on: its marks are echoed until the connection is over.
    let ack = |sequence, flags| tcp(1, 99, [sequence, 6], ACK | flags, Ecn::NotEct, 0);
    assert_eq!(out(&mut world, 0, &ack(3, NONE)), ack(3, NONE));
    let change = world.change(&other, &plain);
    assert_eq!(world.engine.install(change, world.now).guests.len(), 0);
    assert!(world.engine.asked(world.now).is_empty(), "no flow is metered any more");
    let data = |ecn| tcp(99, 1, [6, 3], ACK | ECE, ecn, 100);
    assert_eq!(bring(&mut world, 0, &data(Ecn::Ce)), data(Ecn::Ect0));
    assert_eq!(out(&mut world, 0, &ack(3, NONE)), ack(3, ECE));
    assert!(world.engine.asked(world.now).is_empty());
    let counts = ["ecn_asked", "ecn_hidden", "ecn_unmarked"].map(|name| event(&mut world, name));
    assert_eq!(counts, [1; 3]);
    // A new connection on the same ports is not mediated, and the tables go with the next reload.
    assert_eq!(out(&mut world, 0, &syn(4)), syn(4));
    assert_eq!(bring(&mut world, 0, &data(Ecn::Ce)), data(Ecn::Ce));
    world.now += Span::secs(5);
    let change = world.change(&plain, &plain);
    assert_eq!(world.engine.install(change, world.now).guests.len(), 1);
    let counts = ["ecn_asked", "ecn_hidden", "ecn_unmarked"].map(|name| event(&mut world, name));
    assert_eq!(counts, [1; 3], "counters go on");
}

/// A tenant opts out: its peer's host leaves alone what comes next, also on connections that it knows.
#[test]
fn a_reload_that_opts_out_holds_for_the_peer_as_well() {
    let text = |ecn| {
        file("ecn: mediated")
            .replace("plain: {port: memory}", &format!("plain: {{port: memory, ecn: {ecn}}}"))
    };
    let [allowed, untouched] = ["allowed", "untouched"].map(text);
    let mut world = World::new(&allowed, false);
    world.send(1, &tcp(2, 99, [1, 1], ACK, Ecn::NotEct, 0)); // its address is known from now on
    world.run(Span::millis(1), STEP);
    let syn = |sequence| tcp(1, 2, [sequence, 0], SYN, Ecn::NotEct, 0);
    let pass = |world: &mut World, frame: &[u8]| {
        world.send(0, frame);
        world.run(Span::micros(50), STEP);
        one(drain(&mut world.tenants[1]))
    };
    assert_eq!(seen(&pass(&mut world, &syn(1))).0, SYN | ECE | CWR);
    let [allowed, untouched] = [allowed, untouched].map(|text| policy(&text));
    let change = world.change(&allowed, &untouched);
    world.engine.install(change, world.now);
    assert_eq!(pass(&mut world, &syn(2)), syn(2));
    let change = world.change(&untouched, &allowed);
    world.engine.install(change, world.now);
    assert_eq!(seen(&pass(&mut world, &syn(3))).0, SYN | ECE | CWR);
}

/// Another tenant, in the name of the server of a mediated tenant's connection.
fn forged(mut frame: Vec<u8>, ports: [u16; 2]) -> Vec<u8> {
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    with_ports(frame, ports)
}

fn with_ports(mut frame: Vec<u8>, [from, to]: [u16; 2]) -> Vec<u8> {
    frame[34..36].copy_from_slice(&from.to_be_bytes());
    frame[36..38].copy_from_slice(&to.to_be_bytes());
    frame[50..52].fill(0);
    let checksum = !ones_complement_sum(&covered(&frame));
    frame[50..52].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// A tenant that does not see a connection reports no mark on it, and takes no meter from those that do.
#[test]
fn forged_reports_of_a_mark_meter_nothing() {
    const OWN: u32 = 0x7000_0000;
    const PEER: u32 = 0x1000_0000;
    let mut world = World::new(&file("ecn: mediated"), false);
    out(&mut world, 0, &tcp(1, 99, [OWN, 0], SYN, Ecn::NotEct, 0));
    bring(&mut world, 0, &tcp(99, 1, [PEER, OWN + 1], SYN | ACK | ECE, Ecn::NotEct, 0));
    let data = tcp(1, 99, [OWN + 1, PEER + 1], ACK, Ecn::NotEct, 100);
    out(&mut world, 0, &data);
    // One on the connection, and 400 to ports that are not used, with and without a reset as the tenant's answer.
    let echo = |numbers| tcp(99, 1, numbers, ACK | ECE, Ecn::Ce, 0);
    let one_forged = forged(echo([1, 1]), [1_099, 1_001]);
    assert_eq!(out_to_neighbour(&mut world, &one_forged), one_forged);
    for port in 2_000..2_400 {
        let frame = forged(echo([1, 1]), [80, port]);
        assert_eq!(out_to_neighbour(&mut world, &frame), frame);
        if port % 2 == 0 {
            out(&mut world, 0, &with_ports(tcp(1, 99, [1, 0], TcpFlags::RST, Ecn::NotEct, 0), [port, 80]));
            assert_eq!(out_to_neighbour(&mut world, &frame), frame);
        }
    }
    assert!(world.engine.asked(world.now).is_empty());
    assert_eq!(["ecn_reported", "ecn_unmetered", "ecn_unmarked"].map(|name| event(&mut world, name)), [0; 3]);
    assert_eq!(out(&mut world, 0, &data), data, "neither an echo nor CWR");
    // What the server itself reports holds the flow.
    bring(&mut world, 0, &tcp(99, 1, [PEER + 1, OWN + 101], ACK | ECE, Ecn::NotEct, 0));
    assert_eq!(world.engine.asked(world.now).len(), 1);
}

/// The second tenant sends a frame to the first; what came there.
fn out_to_neighbour(world: &mut World, frame: &[u8]) -> Vec<u8> {
    world.send(1, frame);
    world.run(Span::micros(50), STEP);
    one(drain(&mut world.tenants[0]))
}

/// One peer with many connections takes a part of the meters, and leaves the rest to others.
#[test]
fn a_peers_reports_leave_meters_to_other_peers() {
    let mut world = World::new(&file("ecn: mediated"), false);
    let report = |world: &mut World, peer: u8, port: u16| {
        out(world, 0, &with_ports(tcp(1, peer, [1_000, 1], ACK, Ecn::NotEct, 100), [port, 80]));
        bring(world, 0, &with_ports(tcp(peer, 1, [1, 1_100], ACK | ECE, Ecn::NotEct, 0), [80, port]));
    };
    (0..100).for_each(|port| report(&mut world, 99, 2_000 + port));
    assert_eq!((world.engine.asked(world.now).len(), event(&mut world, "ecn_unmetered")), (64, 36));
    (0..10).for_each(|port| report(&mut world, 98, 2_000 + port));
    assert_eq!((world.engine.asked(world.now).len(), event(&mut world, "ecn_unmetered")), (74, 36));
}

/// Two hosts, each with a daemon that sees one end. The client (tcp_ecn 2) is at host a, the server (1 or 2) at host b.
#[test]
fn the_host_of_each_end_does_its_part_over_the_overlay() {
    let rest = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps}\n";
    let hosts = ["a", "b"].map(|host| {
        let text = fleet::file(host, "geneve", false, rest);
        let mediated = text.replace("shop: {port: memory}", "shop: {port: memory, ecn: mediated}");
        mediated.replace(
            "far: {port: memory, max: 20Mbps}",
            "far: {port: memory, ecn: {mediate: {rate: 20Mbps}}}",
        )
    });
    let mut fleet = Fleet::of(hosts);
    let until = fleet.a.now + Span::millis(20);
    while fleet.a.now < until {
        fleet.exchange_on(&mut ThisCore);
    }
    let pass = |fleet: &mut Fleet, to_b: bool, frame: &[u8]| {
        _ = if to_b { fleet.a.send(0, frame) } else { fleet.b.send(0, frame) };
        for _ in 0..20 {
            fleet.exchange_on(&mut ThisCore);
        }
        one(drain(&mut if to_b { &mut fleet.b } else { &mut fleet.a }.tenants[0]))
    };
    // Host a asks in the client's place; the server grants; host a hides that from the client.
    let syn = pass(&mut fleet, true, &tcp(1, 11, [7, 0], SYN, Ecn::NotEct, 0));
    assert_eq!(seen(&syn).0, SYN | ECE | CWR);
    let grant = pass(&mut fleet, false, &tcp(11, 1, [500, 8], SYN | ACK | ECE, Ecn::NotEct, 0));
    assert_eq!(seen(&grant).0, SYN | ACK);
    let ack = tcp(1, 11, [8, 501], ACK, Ecn::NotEct, 0);
    assert_eq!(pass(&mut fleet, true, &ack), ack);
    // The server's data is marked on the way: host a echoes, and host b meters the server's flow and changes nothing.
    let data = |ecn| tcp(11, 1, [501, 8], ACK, ecn, 100);
    assert_eq!(pass(&mut fleet, false, &data(Ecn::Ce)), data(Ecn::Ect0));
    assert_eq!(
        seen(&pass(&mut fleet, true, &ack)),
        (ACK | ECE, Ecn::NotEct),
        "the server's own TCP slows down"
    );
    let asked = fleet.b.engine.asked(fleet.b.now);
    let [held] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((held.of.as_str(), &held.by, held.rate), ("far", &AskedBy::Receiver, BitRate::mbps(20)));
    assert!(fleet.a.engine.asked(fleet.a.now).is_empty());
    let heard = tcp(11, 1, [601, 8], ACK | CWR, Ecn::Ect0, 100);
    assert_eq!(pass(&mut fleet, false, &heard), heard);
    assert_eq!(pass(&mut fleet, true, &ack), ack);
}

/// MI-S1: what a tenant that opted out sends and gets stays as it is, also where the other end is mediated.
#[test]
fn nothing_is_changed_between_a_mediated_tenant_and_one_that_opted_out() {
    let asks = |from, to| tcp(from, to, [7, 0], SYN | ECE | CWR, Ecn::NotEct, 0);
    let plain = |from, to, flags| tcp(from, to, [70, 8], flags, Ecn::NotEct, 0);
    for (opted_out, changed) in [("ecn: untouched", false), ("ecn: allowed", true)] {
        // On one host.
        let text = file("ecn: mediated")
            .replace("plain: {port: memory}", &format!("plain: {{port: memory, {opted_out}}}"));
        let mut world = World::new(&text, false);
        for (tenant, own) in [(0, 1), (1, 2)] {
            world.send(tenant, &tcp(own, 99, [1, 1], ACK, Ecn::NotEct, 0)); // its address is known from now on
        }
        world.run(Span::millis(1), STEP);
        let pass = |world: &mut World, to: usize, frame: &[u8]| {
            world.send(1 - to, frame);
            world.run(Span::micros(50), STEP);
            one(drain(&mut world.tenants[to])) != frame
        };
        assert_eq!(pass(&mut world, 1, &plain(1, 2, SYN)), changed, "{opted_out}: the mediated one's SYN");
        assert!(!pass(&mut world, 0, &asks(2, 1)));
        assert_eq!(pass(&mut world, 1, &plain(1, 2, SYN | ACK)), changed, "{opted_out}: its SYN-ACK");
        // Elsewhere, as the map says.
        let rest = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps}\n";
        let map = format!("far: {{mac: 02:00:00:00:00:0b, {opted_out}}}");
        let hosts = ["a", "b"].map(|host| {
            let text = fleet::file(host, "geneve", false, rest).replace("far: 02:00:00:00:00:0b", &map);
            text.replace("shop: {port: memory}", "shop: {port: memory, ecn: mediated}")
        });
        let mut fleet = Fleet::of(hosts);
        let pass = |fleet: &mut Fleet, to_b: bool, frame: &[u8]| {
            _ = if to_b { fleet.a.send(0, frame) } else { fleet.b.send(0, frame) };
            (0..20).for_each(|_| fleet.exchange_on(&mut ThisCore));
            one(drain(&mut if to_b { &mut fleet.b } else { &mut fleet.a }.tenants[0])) != frame
        };
        assert_eq!(pass(&mut fleet, true, &plain(1, 11, SYN)), changed, "{opted_out}");
        assert!(!pass(&mut fleet, false, &asks(11, 1)));
        assert_eq!(pass(&mut fleet, true, &plain(1, 11, SYN | ACK)), changed, "{opted_out}");
    }
}
