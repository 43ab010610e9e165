//! No bytes whatsoever stop the engine, and refusals are the only other outcome.

use etherparse::PacketBuilder;
use plimsoll_wire::{
    Mac, Offload, OffloadKind, VnetHeader, finish_checksum, parse, segment, split, supersegment,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Does everything that can be done with what a tenant sent.
fn handle(vnet: [u8; 10], frame: &[u8], offset: u32, len: u32) {
    let _ = Mac::pair(frame);
    let Ok(parsed) = parse(frame) else { return };
    if let Some(ip) = &parsed.ip {
        let places = [parsed.l3.into(), ip.l4.into(), ip.payload.into(), ip.end, frame.len() as u32];
        assert!(places.is_sorted(), "{places:?}");
        assert!(ip.final_dst.is_none_or(|at| u32::from(at) + 4 <= u32::from(ip.l4)));
    }
    let Ok(offload) = VnetHeader::from_bytes(vnet).offload(frame, &parsed) else { return };
    let mut out = vec![0; frame.len()];
    let whole = frame.len() as u32 - u32::from(offload.header);
    for (offset, len) in [(offset, len), (0, whole), (0, whole.min(offload.segment.into())), (whole - 1, 1)] {
        let _ = segment(frame, &offload, offset, len, &mut out);
        let _ = supersegment(frame, &offload, offset, len, &mut out);
        let _ = split(frame, &offload, offset, len, &mut out);
    }
    // What was accepted can be sent, whole.
    assert!(supersegment(frame, &offload, 0, whole, &mut out).is_ok());
}

/// A good frame with a good header of each kind.
fn good() -> impl Strategy<Value = ([u8; 10], Vec<u8>)> {
    let payload = 0..3_000_usize;
    (any::<bool>(), any::<bool>(), any::<bool>(), payload, 8..2_000_u16).prop_map(
        |(tag, v6, tcp, payload, size)| {
            let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let (src, dst) = ([0x20; 16], [0x21; 16]);
            let ip = match (tag, v6) {
                (false, false) => link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
                (false, true) => link.ipv6(src, dst, 64),
                (true, false) => {
                    link.single_vlan(7.try_into().unwrap()).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
                }
                (true, true) => link.single_vlan(7.try_into().unwrap()).ipv6(src, dst, 64),
            };
            let mut frame = Vec::new();
            let payload = vec![7; payload];
            if tcp {
                ip.tcp(1, 2, 3, 4).write(&mut frame, &payload).unwrap();
            } else {
                ip.udp(1, 2).write(&mut frame, &payload).unwrap();
            }
            let gso_type = match (tcp, v6) {
                (true, false) => 1,
                (true, true) => 4,
                (false, _) => 5,
            };
            let l4 = parse(&frame).unwrap().ip.unwrap().l4;
            let csum_offset = if tcp { 16 } else { 6 };
            let header =
                VnetHeader { flags: 1, gso_type, hdr_len: l4, gso_size: size, csum_start: l4, csum_offset };
            let [header @ .., _, _] = header.to_bytes();
            (header, frame)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn random_bytes_never_panic(vnet: [u8; 10], frame in vec(any::<u8>(), 0..300), offset: u32, len: u32) {
        handle(vnet, &frame, offset, len);
    }

    /// A few bytes of a good frame and of its header changed, the end cut off.
    #[test]
    fn mutated_frames_never_panic(
        (mut vnet, mut frame) in good(),
        changes in vec((0..100_usize, any::<u8>()), 0..6),
        cut in prop_oneof![2 => Just(0_usize), 1 => 0..200_usize],
        offset in 0..4_000_u32, len in 0..4_000_u32,
    ) {
        for (at, byte) in changes {
            match (vnet.get_mut(at), frame.get_mut(at.wrapping_sub(10))) {
                (Some(place), _) | (_, Some(place)) => *place = byte,
                _ => {}
            }
        }
        frame.truncate(frame.len().saturating_sub(cut));
        handle(vnet, &frame, offset, len);
    }

    /// Even with an offload that is another frame's.
    #[test]
    fn foreign_offloads_never_panic(
        (_, frame) in good(),
        kind in prop::sample::select(vec![
            OffloadKind::Plain, OffloadKind::Checksum, OffloadKind::Tso4, OffloadKind::Tso6, OffloadKind::Uso4,
            OffloadKind::Uso6,
        ]),
        places in prop::array::uniform6(prop_oneof![4 => 0..120_u16, 1 => any::<u16>()]),
        offset in 0..4_000_u32, len in 0..4_000_u32, room in 0..4_000_usize,
    ) {
        let [header, size, l3, start, field, final_dst] = places;
        let offload = Offload { kind, header, segment: size, l3, start, field, final_dst };
        let mut out = vec![0; room];
        let _ = segment(&frame, &offload, offset, len, &mut out);
        let _ = supersegment(&frame, &offload, offset, len, &mut out);
        let _ = finish_checksum(&mut out, start.into(), field.into());
    }
}
