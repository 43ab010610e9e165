//! Segments that travel in one datagram arrive as they do one by one, whoever cuts it: a device, a kernel or the receiving host.

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use plimsoll_wire::overlay::{
    Checks, Format, Inner, MOST_PIECES, Path, Pieces, SEALED_HEAD, SEALED_TAG, Tunnelled, Vni,
};
use plimsoll_wire::{EncapsulationError, VnetError, VnetHeader, finish_checksum, parse, segment};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::overlay::{large, paths};

/// A tenant's frame, cut and wrapped one by one, and in one datagram.
struct Sent {
    one_by_one: Vec<Vec<u8>>,
    together: Vec<u8>,
    vnet: VnetHeader,
}

/// Both; `None` where its segments are too long, or are not several.
fn send(path: &Path, (vnet, frame): ([u8; 10], Vec<u8>), flow_hash: u64) -> Option<Sent> {
    let offload = VnetHeader::from_bytes(vnet).offload(&frame, &parse(&frame).unwrap()).unwrap();
    let (header, step) = (usize::from(offload.header), usize::from(offload.segment));
    if step == 0 {
        return None;
    }
    let inner = Inner { vni: Vni::new(7).unwrap(), flow_hash, feedback: None };
    let layout = path.piece_layout(header + step, false);
    let room = path.head_room(None);
    let payload = (frame.len() - header).min(layout.map_or(usize::MAX, |layout| layout.most * step));
    let (mut one_by_one, mut pieces) = (Vec::new(), Vec::new());
    for at in (0..payload).step_by(step) {
        let take = step.min(payload - at);
        let mut buffer = vec![0; room + header + take];
        let len = segment(&frame, &offload, at as u32, take as u32, &mut buffer[room..]).unwrap();
        assert_eq!(len, header + take);
        let mut piece = vec![0; 8];
        piece.extend(&buffer[room..]);
        path.begin_piece(&mut piece, &inner, false).unwrap();
        match path.encapsulate(&mut buffer, room, &inner) {
            Ok(start) => one_by_one.push(buffer[start..].to_vec()),
            Err(why) => {
                assert_eq!((Err(why), why), (layout.map(drop), EncapsulationError::TooLong));
                return None;
            }
        }
        pieces.push(piece);
    }
    let layout = layout.expect("each of them fits");
    let less = step - (payload - (pieces.len() - 1) * step);
    let mut together = [vec![0; layout.outer], pieces.concat()].concat();
    assert_eq!(together.len(), layout.len(pieces.len(), less));
    let ecn = path.outer_ecn(&one_by_one[0][room..]);
    path.finish_pieces(&mut together, flow_hash, ecn).unwrap();
    (pieces.len() > 1).then(|| Sent { one_by_one, together, vnet: layout.vnet() })
}

/// What a kernel makes of a datagram that is to be cut (`__udp_gso_segment`, `inet_gso_segment`), by `etherparse`.
fn kernel_cuts(frame: &[u8], vnet: &VnetHeader) -> Vec<Vec<u8>> {
    assert_eq!((vnet.flags, vnet.gso_type, vnet.csum_offset), (1, VnetHeader::GSO_UDP_L4, 6));
    let headers = PacketHeaders::from_ethernet_slice(frame).expect("sound");
    let payload = headers.payload.slice();
    assert_eq!(usize::from(vnet.csum_start), frame.len() - payload.len() - 8);
    assert!(payload.len() <= usize::from(vnet.gso_size) * MOST_PIECES);
    let cut = |(id, piece): (u16, &[u8])| {
        let (mut net, mut transport) = (headers.net.clone().unwrap(), headers.transport.clone().unwrap());
        let TransportHeader::Udp(udp) = &mut transport else { panic!("not UDP") };
        udp.length = 8 + piece.len() as u16;
        match &mut net {
            NetHeaders::Ipv4(ip, _) => {
                ip.total_len = 28 + piece.len() as u16;
                ip.identification += id;
                ip.header_checksum = ip.calc_header_checksum();
                udp.checksum = udp.calc_checksum_ipv4(ip, piece).unwrap();
            }
            NetHeaders::Ipv6(ip, _) => {
                ip.payload_length = udp.length;
                udp.checksum = udp.calc_checksum_ipv6(ip, piece).unwrap();
            }
            NetHeaders::Arp(_) => panic!("not IP"),
        }
        let mut out = frame[..14].to_vec();
        match net {
            NetHeaders::Ipv4(ip, _) => ip.write(&mut out).unwrap(),
            NetHeaders::Ipv6(ip, _) => ip.write(&mut out).unwrap(),
            NetHeaders::Arp(_) => {}
        }
        transport.write(&mut out).unwrap();
        out.extend(piece);
        out
    };
    (0..).zip(payload.chunks(vnet.gso_size.into())).map(cut).collect()
}

/// What [`Pieces`] makes of it, with checksums completed.
fn cut_here(mut frame: Vec<u8>, vnet: &VnetHeader) -> Vec<Vec<u8>> {
    let mut pieces = Pieces::of(&frame, &parse(&frame).unwrap(), vnet).unwrap().expect("it has several");
    let mut out = Vec::new();
    while let Some((place, vnet)) = pieces.next(&mut frame) {
        let mut packet = frame[place].to_vec();
        assert_eq!((vnet.flags, vnet.gso_type), (1, 0));
        let (start, field) = (usize::from(vnet.csum_start), usize::from(vnet.csum_offset));
        assert!(finish_checksum(&mut packet, start, start + field));
        out.push(packet);
        assert_eq!(pieces.more(), pieces.clone().next(&mut frame.clone()).is_some());
    }
    out
}

/// A packet without what may differ: the outer identifier and checksums.
fn alike(mut packet: Vec<u8>) -> Vec<u8> {
    let v4 = packet[12..14] == [8, 0];
    let udp = if v4 { 34 } else { 54 };
    if v4 {
        packet[18..20].fill(0);
        packet[24..26].fill(0);
    }
    packet[udp + 6..udp + 8].fill(0);
    packet
}

proptest! {
    #[test]
    fn whoever_cuts_it_the_packets_are_those_of_one_by_one(
        mut path in paths(), v6: bool, tcp: bool, ecn in 0..4_u8, payload in vec(any::<u8>(), 1..40_000),
        size in 300..1_400_u16, flow_hash: u64,
    ) {
        path.mtu = 1_500;
        let Some(Sent { one_by_one, together, vnet }) = send(&path, large(v6, tcp, ecn, &payload, size), flow_hash)
        else { return Ok(()) };
        let cut = kernel_cuts(&together, &vnet);
        prop_assert_eq!(&cut, &cut_here(together, &vnet));
        prop_assert_eq!(cut.len(), one_by_one.len());
        for (mut cut, before) in cut.into_iter().zip(one_by_one) {
            let tunnelled = Tunnelled::read(&cut, &parse(&cut).unwrap()).unwrap().expect("ours");
            prop_assert!(tunnelled.deliver(&mut cut, Checks::default()).is_ok(), "its checksums are right");
            prop_assert_eq!(alike(cut), alike(before));
        }
    }

    /// Whatever a datagram says of itself: taken apart, or refused; each piece is what a kernel would have made.
    #[test]
    fn hostile_datagrams_are_cut_as_a_kernel_cuts_them(
        path in paths(), body in vec(any::<u8>(), 2..3_000), size in 1..4_000_u16, changes in vec((0..120_usize, any::<u8>()), 0..3),
    ) {
        let outer = path.piece_layout(100, false).unwrap().outer;
        let mut frame = [vec![0; outer], body].concat();
        path.finish_pieces(&mut frame, 1, plimsoll_wire::Ecn::NotEct).unwrap();
        let vnet = VnetHeader { gso_size: size, ..path.piece_layout(100, false).unwrap().vnet() };
        let changed = !changes.is_empty();
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) { *place = byte }
        }
        let Ok(parsed) = parse(&frame) else { return Ok(()) };
        let payload = frame.len() - outer;
        match Pieces::of(&frame, &parsed, &vnet) {
            Ok(Some(mut pieces)) if changed => {
                let mut made = 0;
                while let Some((place, _)) = pieces.next(&mut frame) {
                    prop_assert!(parse(&frame[place]).is_ok());
                    made += 1;
                }
                prop_assert!((2..=MOST_PIECES).contains(&made));
            }
            Ok(Some(_)) => prop_assert_eq!(kernel_cuts(&frame, &vnet), cut_here(frame, &vnet)),
            Ok(None) => prop_assert!(changed || payload <= size.into()),
            Err(why) => prop_assert!(changed || why == VnetError::TooManySegments, "{why:?}"),
        }
    }
}

#[test]
fn a_sealed_piece_has_room_for_its_seal() {
    let path = Path {
        format: Format::Geneve,
        src_mac: plimsoll_wire::Mac([2; 6]),
        dst_mac: plimsoll_wire::Mac([4; 6]),
        addresses: plimsoll_wire::overlay::Addresses::V4 {
            src: [192, 0, 2, 1].into(),
            dst: [192, 0, 2, 2].into(),
        },
        dscp: 0,
        mtu: 1_500,
        v6_checksum: true,
        capable: false,
        ports: plimsoll_wire::overlay::Ports::default(),
    };
    let layout = path.piece_layout(1_436, true).unwrap();
    assert_eq!((layout.outer, layout.head, layout.tail), (42, 8 + SEALED_HEAD, SEALED_TAG));
    // 20 + 8 + 8 + 12 + 1,436 + 16 bytes of IP packet: the underlay's last byte.
    assert_eq!((layout.piece, layout.most), (1_472, 44));
    assert_eq!(layout.len(2, 1_000), 42 + 1_472 + 472);
    assert_eq!(path.piece_layout(1_437, true), Err(EncapsulationError::TooLong));
    let vxlan = Path { format: Format::Vxlan, ..path };
    assert_eq!(vxlan.piece_layout(1_000, true), Err(EncapsulationError::FrameCut));
}
