//! Two hosts whose uplinks take a datagram of many segments: what arrives, and what is counted, is what comes one by one.

use crate::fleet::file;
use crate::support::{World, path, policy};
use plimsoll_daemon::Stats;
use plimsoll_ports::{FRAME_ROOM, MemoryPort, Sending};
use plimsoll_units::Span;
use plimsoll_wire::overlay::{Inner, Pieces, Tunnelled, Vni};
use plimsoll_wire::{Ecn, Mac, VnetHeader, finish_checksum, ones_complement_sum, parse, segment};

const STEP: Span = Span::micros(50);
/// Tenants by the last byte of their addresses.
const SHOP: u8 = 1;
const FAR: u8 = 11;
const QUIET: u8 = 12;
/// Payload of a segment: fits the overlay over IPv6, sealed or with feedback.
const SIZE: u16 = 1_200;

type Wire = Vec<(Vec<u8>, VnetHeader)>;

/// What the fabric does with a datagram of many packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fabric {
    /// Hands it over whole, as between two namespaces.
    Whole,
    /// Cuts it, as a device does.
    Cuts,
}

struct Pair {
    a: World,
    b: World,
    fabric: Fabric,
    /// Packets on the wire, from a.
    seen: Wire,
}

impl Pair {
    /// `cutting`: the uplinks take datagrams that are to be cut.
    fn new(v6: bool, rest: &str, cutting: bool, fabric: Fabric, segmentation: bool) -> Self {
        let start = |host: &str| {
            let text = file(host, "geneve", v6, rest).replace(", max: 20Mbps", "");
            World::started(&policy(&text), segmentation, cutting, [1_000, 7])
        };
        let mut pair = Self { a: start("a"), b: start("b"), fabric, seen: Vec::new() };
        pair.run(Span::millis(80));
        pair.seen.clear();
        pair
    }

    fn run(&mut self, span: Span) {
        for _ in 0..span.as_u64() / STEP.as_u64() {
            let (from_a, from_b) = (turn(&mut self.a), turn(&mut self.b));
            self.seen.extend(from_a.iter().cloned());
            self.carry(from_a, true);
            self.carry(from_b, false);
        }
    }

    fn carry(&mut self, packets: Wire, to_b: bool) {
        let wire = if to_b { &mut self.b.wire } else { &mut self.a.wire };
        for (frame, vnet) in packets {
            let cut = self.fabric == Fabric::Cuts || vnet == VnetHeader::default();
            let packets = if cut { cut_up(frame, &vnet) } else { vec![(frame, vnet)] };
            for (packet, vnet) in packets {
                assert_eq!(wire.send(&packet, Some(&vnet)).expect("there"), Sending::Sent);
            }
        }
    }
}

fn turn(world: &mut World) -> Wire {
    world.engine.turn(world.now);
    world.now += STEP;
    receive(&mut world.wire)
}

/// All that waits at a port, with its headers.
fn receive(port: &mut MemoryPort) -> Wire {
    let mut buffer = vec![0; FRAME_ROOM];
    let mut frames = Vec::new();
    while let Ok(Some(received)) = port.receive(&mut buffer) {
        frames.push((buffer[..received.len].to_vec(), received.vnet.unwrap_or_default()));
    }
    frames
}

/// The finished packets that a frame from a port makes on a wire.
fn cut_up(mut frame: Vec<u8>, vnet: &VnetHeader) -> Wire {
    let parsed = parse(&frame).expect("sound");
    if let Some(mut pieces) = Pieces::of(&frame, &parsed, vnet).expect("sound") {
        let mut out = Vec::new();
        while let Some((place, vnet)) = pieces.next(&mut frame) {
            let mut packet = frame[place].to_vec();
            let start = usize::from(vnet.csum_start);
            assert!(finish_checksum(&mut packet, start, start + usize::from(vnet.csum_offset)));
            out.push((packet, VnetHeader::default()));
        }
        return out;
    }
    let offload = vnet.offload(&frame, &parsed).expect("sound");
    let all = frame.len() - usize::from(offload.header);
    let step = if offload.segment > 0 { usize::from(offload.segment) } else { all };
    let cut = |at: usize| {
        let mut out = vec![0; FRAME_ROOM];
        let len = segment(&frame, &offload, at as u32, step.min(all - at) as u32, &mut out).expect("sound");
        (out[..len].to_vec(), VnetHeader::default())
    };
    (0..all).step_by(step).map(cut).collect()
}

/// A tenant's TCP frame of this payload, to be cut, and its virtio-net header.
fn stream(from: u8, to: u8, sequence: u32, payload: usize) -> (Vec<u8>, VnetHeader) {
    let mut frame = vec![0; 54];
    frame.extend((0..payload).map(|at| (at / 3) as u8));
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 2]);
    frame[16..18].copy_from_slice(&u16::try_from(40 + payload).expect("fits").to_be_bytes());
    frame[18..24].copy_from_slice(&[0, 7, 0x40, 0, 64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, to]);
    frame[34..38].copy_from_slice(&[3, 232, 0, 80]);
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[46..50].copy_from_slice(&[0x50, 0x18, 0xff, 0]);
    let header = !ones_complement_sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    let vnet = VnetHeader {
        flags: 1,
        gso_type: VnetHeader::GSO_TCPV4,
        hdr_len: 54,
        gso_size: SIZE,
        csum_start: 34,
        csum_offset: 16,
    };
    (frame, vnet)
}

/// Frames and bytes of classes, of the ways between hosts, and on the way in.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    classes: Vec<(u64, u64)>,
    there: (u64, u64),
    arrived: (u64, u64, u64),
    losses: Vec<(&'static str, u64)>,
    /// Flows that are counted, at each host.
    flows: Vec<String>,
}

impl Counted {
    fn of(pair: &mut Pair) -> Self {
        let here = pair.a.engine.snapshot(pair.a.now);
        let there = pair.b.engine.snapshot(pair.b.now);
        let classes = here.nodes.iter().map(|node| &node.counters);
        let lane = &there.lanes[0].ingress;
        let flows = [&mut pair.a, &mut pair.b].map(|world| {
            let flows = world.engine.heavy(world.now).map_or_else(Vec::new, |now| now.flows);
            flows.into_iter().map(|flow| format!("{} {}: {:?}", flow.tenant, flow.inward, flow.sent))
        });
        Self {
            flows: flows.into_iter().flatten().collect(),
            classes: classes.map(|class| (class.packets, class.bytes)).collect(),
            there: (
                here.fleet.as_ref().expect("a fleet").hosts[0].sent,
                there.fleet.as_ref().expect("a fleet").hosts[0].received,
            ),
            arrived: (lane.packets, lane.bytes, lane.served),
            losses: pair.b.losses("uplink"),
        }
    }
}

/// `shop` sends three long frames and a short one to `far`: what is delivered, and what is counted.
fn converse(pair: &mut Pair) -> (Wire, Counted) {
    let mut sequence = 1;
    let mut delivered = Vec::new();
    for payload in [50_000, 20_000, 2_401, 500] {
        let (frame, vnet) = stream(SHOP, FAR, sequence, payload);
        for (packet, vnet) in if pair.a.tenants[0].capabilities().takes_segmentation {
            vec![(frame, vnet)]
        } else {
            cut_up(frame, &vnet)
        } {
            pair.a.send_with(0, &packet, &vnet);
        }
        sequence += payload as u32;
        for _ in 0..20 {
            pair.run(STEP);
            delivered.extend(receive(&mut pair.b.tenants[0]));
        }
    }
    // What is counted of flows is shown a moment later.
    pair.run(Span::millis(60));
    (delivered, Counted::of(pair))
}

const SEALED: &str = "  sealed: true\n  key: /not/read\n";
const COUNTED: &str = "backpressure: {heavy: 1pps}\n";
const FEEDBACK: &str = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 1Gbps, ecn: true}\n";

#[test]
fn what_arrives_and_what_is_counted_is_what_comes_one_by_one() {
    for (v6, rest) in
        [(false, ""), (true, ""), (false, SEALED), (true, SEALED), (false, FEEDBACK), (false, COUNTED)]
    {
        let (frames, expected) = converse(&mut Pair::new(v6, rest, false, Fabric::Whole, true));
        let expected_frames: Wire =
            frames.into_iter().flat_map(|(frame, vnet)| cut_up(frame, &vnet)).collect();
        assert_eq!(expected.flows.len(), if rest == COUNTED { 2 } else { 0 }, "{expected:?}");
        // 50,000 bytes of payload make 42 segments.
        assert_eq!(expected_frames.len(), 42 + 17 + 3 + 1, "{rest}");
        for fabric in [Fabric::Whole, Fabric::Cuts] {
            let mut pair = Pair::new(v6, rest, true, fabric, true);
            let (delivered, counted) = converse(&mut pair);
            let what = format!("over IPv6: {v6}, {rest}, {fabric:?}");
            if rest != FEEDBACK {
                assert_eq!(counted, expected, "{what}");
                assert_eq!(pair.seen.len(), 4, "a datagram for each pull: {what}");
            }
            let whole = delivered.iter().map(|(frame, _)| frame.len()).max();
            // What a device has cut is joined by the frames of a quantum; limits of a pair cut pulls short.
            let least = if fabric == Fabric::Cuts || rest == FEEDBACK { 9_600 } else { 49_000 };
            assert!(whole > Some(least), "{what}: {whole:?}");
            assert!(delivered.len() <= 14 || rest == FEEDBACK, "{what}: {}", delivered.len());
            let frames: Wire = delivered.into_iter().flat_map(|(frame, vnet)| cut_up(frame, &vnet)).collect();
            assert_eq!(frames, expected_frames, "{what}");
        }
        // A tenant whose port takes no segments gets them one by one.
        let (delivered, counted) = converse(&mut Pair::new(v6, rest, true, Fabric::Whole, false));
        assert_eq!(delivered, expected_frames, "{rest}");
        assert!(counted.losses.is_empty(), "{counted:?}");
    }
}

/// Each packet on the wire carries the sum of many: no header is wrong, whoever reads it.
#[test]
fn a_datagram_is_cut_into_packets_of_the_underlays_mtu() {
    for (v6, rest) in [(false, ""), (true, SEALED)] {
        let mut pair = Pair::new(v6, rest, true, Fabric::Whole, true);
        converse(&mut pair);
        let mut packets = 0;
        for (frame, vnet) in core::mem::take(&mut pair.seen) {
            for (packet, _) in cut_up(frame, &vnet) {
                let outer = parse(&packet).expect("sound");
                let tunnelled = Tunnelled::read(&packet, &outer).expect("sound").expect("for the overlay");
                assert_eq!((tunnelled.ecn, tunnelled.vni.get()), (Ecn::Ect0, 7));
                assert_eq!(tunnelled.sealed().is_some(), !rest.is_empty());
                assert!(packet.len() <= 1_514);
                packets += 1;
            }
        }
        assert_eq!(packets, 63);
    }
}

/// An uplink that is full keeps a frame, which leaves later: each segment once and in order.
#[test]
fn what_finds_no_room_leaves_later() {
    let mut pair = Pair::new(false, "", true, Fabric::Whole, true);
    let (mut sent, mut seen) = (0, Vec::new());
    // The uplink's port holds 512 frames, and is not read meanwhile. Each of these makes two: 55 segments go in one datagram.
    for _ in 0..300 {
        let (frame, vnet) = stream(SHOP, FAR, 1 + sent * 65_000, 65_000);
        if pair.a.send_with(0, &frame, &vnet) == Sending::Sent {
            sent += 1;
        }
        for _ in 0..12 {
            pair.a.engine.turn(pair.a.now);
            pair.a.now += STEP;
        }
    }
    assert!(pair.a.events("uplink").iter().any(|(name, _)| *name == "uplink_full"));
    for _ in 0..2_000 {
        seen.extend(turn(&mut pair.a));
    }
    let inner = |packet: &[u8]| {
        let tunnelled =
            Tunnelled::read(packet, &parse(packet).expect("sound")).expect("sound").expect("ours");
        let frame = &packet[tunnelled.frame().expect("a frame")];
        (u32::from_be_bytes(frame[38..42].try_into().expect("four")), frame.len() as u32 - 54)
    };
    let mut next = 1;
    for (packet, _) in seen.into_iter().flat_map(|(frame, vnet)| cut_up(frame, &vnet)) {
        let (sequence, payload) = inner(&packet);
        assert_eq!(sequence, next, "each once and in order");
        next += payload;
    }
    assert_eq!(next, 1 + sent * 65_000, "all of {sent} frames");
}

/// Datagrams of a program on the fabric that says it is host a: whatever they hold, each piece fares as if it had come alone.
#[test]
fn hostile_datagrams_fare_as_their_pieces_would() {
    let to_b = path(1, 2, Mac([6; 6]));
    let inner = |vni: u32, to: u8, from: u8| {
        let (frame, _) = stream(from, to, 1, 900);
        let inner = Inner { vni: Vni::new(vni).expect("small"), flow_hash: 1, feedback: None };
        let mut piece = [vec![0; 8], frame].concat();
        to_b.begin_piece(&mut piece, &inner, false).expect("it fits");
        piece
    };
    let good = || inner(7, FAR, SHOP);
    let longer = [good(), vec![1, 2, 3]].concat();
    let mut other_key = good();
    other_key[2..4].copy_from_slice(&[0x88, 0xb6]);
    let mut version = good();
    version[0] |= 0x80;
    let datagrams: Vec<(Vec<Vec<u8>>, usize)> = vec![
        (vec![good(), good(), good()], good().len()),
        (vec![good(), inner(8, FAR, SHOP), good()], good().len()),
        (vec![good(), inner(7, QUIET, SHOP), inner(7, FAR, QUIET), inner(7, 77, SHOP)], good().len()),
        (vec![good(), other_key, version, good()], good().len()),
        (vec![longer, good()], good().len()),
        (vec![good(), good()], good().len() - 20),
        (vec![good(), good()], 9),
        (vec![good(), vec![0; 5]], good().len()),
    ];
    for (number, (pieces, size)) in datagrams.into_iter().enumerate() {
        for sealed in ["", SEALED] {
            let mut frame = [vec![0; 42], pieces.concat()].concat();
            to_b.finish_pieces(&mut frame, 1, Ecn::Ect0).expect("it fits");
            let vnet = VnetHeader {
                flags: 1,
                gso_type: VnetHeader::GSO_UDP_L4,
                hdr_len: 42,
                gso_size: size as u16,
                csum_start: 34,
                csum_offset: 6,
            };
            let outcome = |packets: Wire| {
                let mut pair = Pair::new(false, sealed, true, Fabric::Whole, false);
                for (packet, vnet) in packets {
                    assert_eq!(pair.b.wire.send(&packet, Some(&vnet)).expect("there"), Sending::Sent);
                }
                pair.run(Span::millis(1));
                let delivered = [receive(&mut pair.b.tenants[0]), receive(&mut pair.b.tenants[1])];
                (
                    delivered,
                    Counted::of(&mut pair),
                    Stats::from(&pair.b.engine.snapshot(pair.b.now)).uplink.events,
                )
            };
            let whole = outcome(vec![(frame.clone(), vnet)]);
            // More than a socket's datagrams make are refused as a whole.
            if size == 9 {
                assert_eq!(whole.1.losses.len(), 1, "{:?}", whole.1);
                continue;
            }
            let alone = outcome(cut_up(frame, &vnet));
            assert_eq!(whole, alone, "datagram {number}, {sealed}");
        }
    }
}
