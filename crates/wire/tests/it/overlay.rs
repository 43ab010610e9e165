//! What goes into a tunnel comes out of it, whatever it is; and an independent implementation finds all its headers right.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use plimsoll_wire::overlay::{
    Addresses, Checks, Format, Inner, MOST_IN_OPTION, Path, Ports, TOO_BIG_MOST, Tunnelled, Vni, source_port,
    too_big,
};
use plimsoll_wire::{Ecn, EncapsulationError, Mac, VnetHeader, parse, segment};
use proptest::collection::vec;
use proptest::prelude::*;

pub fn paths() -> impl Strategy<Value = Path> {
    let addresses = prop_oneof![
        (any::<[u8; 4]>(), any::<[u8; 4]>())
            .prop_map(|(src, dst)| Addresses::V4 { src: src.into(), dst: dst.into() }),
        (any::<[u8; 16]>(), any::<[u8; 16]>())
            .prop_map(|(src, dst)| Addresses::V6 { src: src.into(), dst: dst.into() }),
    ];
    let format = prop_oneof![Just(Format::Vxlan), Just(Format::Geneve)];
    (format, any::<[u8; 6]>(), any::<[u8; 6]>(), addresses, 0..64_u8, any::<bool>()).prop_map(
        |(format, src_mac, dst_mac, addresses, dscp, v6_checksum)| Path {
            format,
            src_mac: Mac(src_mac),
            dst_mac: Mac(dst_mac),
            addresses,
            dscp,
            mtu: 9_000,
            v6_checksum,
            capable: false,
            ports: Ports::default(),
        },
    )
}

/// Lengths, checksums and fields of the outer headers, by `etherparse`; the UDP payload.
fn outer<'p>(path: &Path, packet: &'p [u8], flow_hash: u64, ecn: Ecn) -> &'p [u8] {
    let sliced = SlicedPacket::from_ethernet(packet).expect("headers are sound");
    let Some(TransportSlice::Udp(udp)) = &sliced.transport else { panic!("not UDP") };
    assert_eq!(
        (udp.source_port(), udp.destination_port()),
        (source_port(flow_hash), path.ports.of(path.format))
    );
    let header = udp.to_header();
    match (sliced.net.as_ref().expect("IP"), path.addresses) {
        (NetSlice::Ipv4(ip), Addresses::V4 { src, dst }) => {
            let ip = ip.header();
            assert_eq!((ip.source_addr(), ip.destination_addr()), (src, dst));
            assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
            assert!(ip.dont_fragment() && !ip.more_fragments());
            assert_eq!((ip.ttl(), ip.dcp().value(), ip.ecn().value()), (64, path.dscp, ecn.bits()));
            assert_eq!(usize::from(ip.total_len()), packet.len() - 14);
            assert_eq!(udp.checksum(), 0);
        }
        (NetSlice::Ipv6(ip), Addresses::V6 { src, dst }) => {
            let ip = ip.header();
            assert_eq!((ip.source_addr(), ip.destination_addr()), (src, dst));
            assert_eq!((ip.hop_limit(), ip.traffic_class()), (64, path.dscp << 2 | ecn.bits()));
            assert_eq!(usize::from(ip.payload_length()), packet.len() - 54);
            let right = header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), udp.payload()).unwrap();
            assert_eq!(udp.checksum(), if path.v6_checksum { right } else { 0 });
        }
        _ => panic!("another family"),
    }
    udp.payload()
}

/// Reads a packet back: network, frame, feedback.
fn back(packet: &mut [u8]) -> (u32, Vec<u8>, Option<Vec<u8>>) {
    let parsed = parse(packet).expect("it parses");
    let tunnelled = Tunnelled::read(packet, &parsed).expect("it is sound").expect("it is for the overlay");
    let checks = Checks { v6_without: true, ..Checks::default() };
    tunnelled.deliver(packet, checks).expect("its sums are right");
    let feedback = tunnelled.feedback().map(|at| packet[at].to_vec());
    (tunnelled.vni.get(), packet[tunnelled.frame().expect("a frame")].to_vec(), feedback)
}

/// TCP or UDP over either, with a virtio-net header that has it cut.
pub fn large(v6: bool, tcp: bool, ecn: u8, payload: &[u8], size: u16) -> ([u8; 10], Vec<u8>) {
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip =
        if v6 { link.ipv6([0x20; 16], [0x21; 16], 64) } else { link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64) };
    let mut frame = Vec::new();
    let (gso_type, csum_offset) = match (tcp, v6) {
        (true, false) => (VnetHeader::GSO_TCPV4, 16),
        (true, true) => (VnetHeader::GSO_TCPV6, 16),
        (false, _) => (VnetHeader::GSO_UDP_L4, 6),
    };
    if tcp {
        ip.tcp(1, 2, 3, 4).write(&mut frame, payload).unwrap();
    } else {
        ip.udp(1, 2).write(&mut frame, payload).unwrap();
    }
    assert!(Ecn::from_bits(ecn).write(&mut frame));
    let l4 = parse(&frame).unwrap().ip.unwrap().l4;
    let header = VnetHeader { flags: 1, gso_type, hdr_len: l4, gso_size: size, csum_start: l4, csum_offset };
    let [header @ .., _, _] = header.to_bytes();
    (header, frame)
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(
        path in paths(), vni in 0..1_u32 << 24, flow_hash: u64,
        frame in vec(any::<u8>(), 14..2_000), feedback in vec(any::<u8>(), 0..=MOST_IN_OPTION),
        spare in 0..64_usize,
    ) {
        let feedback = (path.format == Format::Geneve && !feedback.is_empty()).then_some(&feedback[..]);
        let inner = Inner { vni: Vni::new(vni).unwrap(), flow_hash, feedback };
        let room = path.head_room(feedback.map(<[u8]>::len));
        let mut buffer = vec![0xee; spare + room];
        buffer.extend(&frame);
        let start = path.encapsulate(&mut buffer, spare + room, &inner).unwrap();
        prop_assert_eq!(start, spare);
        prop_assert!(buffer[..spare].iter().all(|&byte| byte == 0xee));
        outer(&path, &buffer[start..], flow_hash, Ecn::of(&frame).unwrap_or_default());

        let mut copied = vec![0; buffer.len()];
        let len = path.encapsulate_into(&frame, &mut copied, &inner).unwrap();
        prop_assert_eq!(&copied[..len], &buffer[start..]);

        let padded = [&buffer[start..], &[0xaa; 20]].concat();
        for mut packet in [copied[..len].to_vec(), padded] {
            prop_assert_eq!(back(&mut packet), (vni, frame.clone(), feedback.map(<[u8]>::to_vec)));
        }
    }

    /// A frame of 64 KiB is cut first: each segment has outer headers of its own, and is what it is without a tunnel.
    #[test]
    fn segments_are_encapsulated_one_by_one(
        mut path in paths(), v6: bool, tcp: bool, ecn in 0..4_u8, payload in vec(any::<u8>(), 1..8_000),
        size in 200..1_400_u16, flow_hash: u64,
    ) {
        path.mtu = 1_500;
        let (vnet, frame) = large(v6, tcp, ecn, &payload, size);
        let offload = VnetHeader::from_bytes(vnet).offload(&frame, &parse(&frame).unwrap()).unwrap();
        let inner = Inner { vni: Vni::new(7).unwrap(), flow_hash, feedback: None };
        let (room, header) = (path.head_room(None), usize::from(offload.header));
        let all = frame.len() - header;
        let step = if header == 0 { all } else { usize::from(size) };
        let mut joined = Vec::new();
        for at in (0..all).step_by(step) {
            let mut buffer = vec![0; room + 4_000];
            let take = step.min(all - at) as u32;
            let len = segment(&frame, &offload, at as u32, take, &mut buffer[room..]).unwrap();
            let finished = buffer[room..][..len].to_vec();
            let sent = path.encapsulate(&mut buffer[..room + len], room, &inner);
            if len - 14 > usize::from(path.inner_mtu(0)) {
                prop_assert_eq!(sent, Err(EncapsulationError::TooLong));
                return Ok(());
            }
            prop_assert_eq!(sent, Ok(0));
            let packet = &mut buffer[..room + len];
            let tunnel = outer(&path, packet, flow_hash, Ecn::from_bits(ecn));
            prop_assert_eq!(&tunnel[8..], &finished);
            let (_, delivered, _) = back(packet);
            prop_assert_eq!(&delivered, &finished);
            joined.extend_from_slice(&delivered[header..]);
        }
        if header > 0 {
            prop_assert_eq!(joined, payload);
        }
    }

    /// The answer is sound for an independent implementation, and goes back to the packet's sender.
    #[test]
    fn the_sender_of_a_frame_that_is_too_long_is_told(
        v6: bool, tcp: bool, payload in vec(any::<u8>(), 1_300..3_000), mtu in 1_280..9_000_u16,
    ) {
        let (_, mut frame) = large(v6, tcp, 0, &payload, 1_000);
        if !v6 {
            frame[20] |= 0x40;
        }
        let mut out = [0; TOO_BIG_MOST];
        let len = too_big(&frame, mtu, &mut out).unwrap();
        let answer = SlicedPacket::from_ethernet(&out[..len]).unwrap();
        let quote = match (answer.net.as_ref().unwrap(), answer.transport.as_ref().unwrap()) {
            (NetSlice::Ipv4(ip), TransportSlice::Icmpv4(icmp)) => {
                let ip = ip.header();
                prop_assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
                prop_assert_eq!(ip.destination_addr(), Ipv4Addr::new(10, 0, 0, 1));
                prop_assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
                prop_assert_eq!((icmp.type_u8(), icmp.code_u8(), icmp.bytes5to8()[2..].to_vec()), (3, 4, mtu.to_be_bytes().to_vec()));
                icmp.payload()
            }
            (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(icmp)) => {
                let ip = ip.header();
                prop_assert_eq!(ip.destination_addr(), Ipv6Addr::from([0x20; 16]));
                prop_assert!(icmp.is_checksum_valid(ip.source(), ip.destination()));
                prop_assert_eq!((icmp.type_u8(), icmp.code_u8()), (2, 0));
                prop_assert_eq!(icmp.bytes5to8(), u32::from(mtu).to_be_bytes());
                icmp.payload()
            }
            _ => panic!("no ICMP"),
        };
        prop_assert!(quote.len() >= 548);
        prop_assert_eq!(quote, &frame[14..][..quote.len()]);
    }
}

/// Does everything that can be done with what came from the fabric.
fn handle(mut packet: Vec<u8>, checks: Checks) {
    let mut out = [0; TOO_BIG_MOST];
    if let Ok(len) = too_big(&packet, 1_400, &mut out) {
        assert!(parse(&out[..len]).is_ok());
    }
    let ecn = Ecn::of(&packet);
    let Ok(parsed) = parse(&packet) else { return };
    assert_eq!(ecn.map(Ecn::bits), parsed.ip.map(|ip| ip.ecn));
    let Ok(Some(tunnelled)) = Tunnelled::read(&packet, &parsed) else { return };
    let (frame, feedback) = (tunnelled.frame().unwrap_or(0..0), tunnelled.feedback().unwrap_or(0..0));
    assert!(frame.end <= packet.len() && feedback.end <= packet.len());
    assert!(frame.is_empty() || feedback.end <= frame.start);
    let before = packet.clone();
    let delivered = tunnelled.deliver(&mut packet, checks);
    assert_eq!(packet[..frame.start], before[..frame.start]);
    match delivered {
        Ok(crossing) => assert_eq!(Ecn::of(&packet[frame]).unwrap_or_default(), crossing.delivered),
        Err(_) => assert_eq!(packet, before),
    }
    // Also when it is not the packet that was read.
    for len in [0, 20, before.len() / 2] {
        let _ = tunnelled.deliver(&mut before[..len].to_vec(), checks);
        let _ = Tunnelled::read(&before[..len], &parsed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn random_bytes_never_panic(packet in vec(any::<u8>(), 0..300), verified: bool, v6_without: bool, heeded: bool) {
        handle(packet, Checks { verified, v6_without, heeded });
    }

    /// A few bytes of a good packet changed, the end cut off.
    #[test]
    fn mutated_packets_never_panic(
        path in paths(), v6: bool, ecn in 0..4_u8, feedback in 1..=MOST_IN_OPTION, alone: bool, verified: bool,
        changes in vec((0..240_usize, any::<u8>()), 0..6), cut in prop_oneof![2 => Just(0_usize), 1 => 0..200_usize],
    ) {
        let (_, frame) = large(v6, true, ecn, &[7; 40], 8);
        let message = vec![9; feedback];
        let mut out = vec![0; 500];
        let feedback = (path.format == Format::Geneve).then_some(&message[..]);
        let inner = Inner { vni: Vni::new(7).unwrap(), flow_hash: 3, feedback };
        let len = if alone {
            path.feedback_frame(&message, 3, &mut out).unwrap()
        } else {
            path.encapsulate_into(&frame, &mut out, &inner).unwrap()
        };
        out.truncate(len);
        for (at, byte) in changes {
            if let Some(place) = out.get_mut(at) {
                *place = byte;
            }
        }
        out.truncate(len.saturating_sub(cut));
        handle(out, Checks { verified, v6_without: true, heeded: false });
    }

    /// No room, no frame, no packet: refused, never a panic.
    #[test]
    fn any_place_and_any_room_is_answered(
        path in paths(), mtu: u16, room in 0..2_000_usize, start in 0..2_100_usize, feedback in 0..200_usize,
    ) {
        let path = Path { mtu, ..path };
        let (message, mut buffer) = (vec![1; feedback], vec![0; room]);
        for feedback in [None, Some(&message[..])] {
            let inner = Inner { vni: Vni::new(0).unwrap(), flow_hash: 0, feedback };
            if let Ok(at) = path.encapsulate(&mut buffer, start, &inner) {
                prop_assert!(room - at - 14 <= usize::from(mtu));
            }
            let _ = path.encapsulate_into(&vec![0; start], &mut buffer, &inner);
        }
        let _ = path.feedback_frame(&message, 0, &mut buffer);
    }
}
