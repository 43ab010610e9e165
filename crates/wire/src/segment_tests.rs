//! Pulls of golden frames, with figures that can be checked by hand.

use super::*;
use crate::parse::parse;

/// TCP over IPv4: sequence number 1,000, identifier 7, flags CWR ACK PSH FIN, payload 0, 1, 2, ...
fn tcp(payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    let [high, low] = u16::try_from(40 + payload).unwrap().to_be_bytes();
    frame.extend([0x45, 0, high, low, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x1f, 0x90, 0x01, 0xbb, 0, 0, 0x03, 0xe8, 0, 0, 0, 2, 0x50, 0x99, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|n| n as u8));
    frame
}

fn tso(frame: &[u8], gso_size: u16) -> Offload {
    let header =
        VnetHeader { flags: 1, gso_type: 0x81, hdr_len: 54, gso_size, csum_start: 34, csum_offset: 16 };
    header.offload(frame, &parse(frame).unwrap()).unwrap()
}

#[test]
fn three_segments_count_up_and_share_out_the_flags() {
    let frame = tcp(2_500);
    let offload = tso(&frame, 1_000);
    let mut out = [0; 1_514];
    for (offset, payload, id, sequence, flags) in
        [(0, 1_000, 7, 1_000, 0x90), (1_000, 1_000, 8, 2_000, 0x10), (2_000, 500, 9, 3_000, 0x19)]
    {
        let len = segment(&frame, &offload, offset, payload, &mut out).unwrap();
        let made = &out[..len];
        assert_eq!(len as u32, 54 + payload);
        assert_eq!(be16(made, 16), Some(40 + payload as u16), "total length");
        assert_eq!(be16(made, 18), Some(id), "identifier");
        assert_eq!(be32(made, 38), Some(sequence), "sequence number");
        assert_eq!(made[47], flags, "flags");
        assert_eq!(ones_complement_sum(&made[14..34]), 0xffff, "header checksum");
        assert_eq!(&made[54..], &frame[54 + offset as usize..][..payload as usize]);
    }
}

#[test]
fn two_segments_in_one_pull_still_ask_for_segmentation() {
    let frame = tcp(2_500);
    let mut out = [0; 4_096];
    let (len, vnet) = supersegment(&frame, &tso(&frame, 1_000), 0, 2_000, &mut out).unwrap();
    assert_eq!((len, vnet.gso_type, vnet.gso_size, vnet.hdr_len), (2_054, 0x81, 1_000, 54));
    assert_eq!((vnet.flags, vnet.csum_start, vnet.csum_offset), (1, 34, 16));
    // The pseudo-header: 0a00 + 0001 + 0a00 + 0002 + protocol 6 + length 2,020.
    assert_eq!(be16(&out, 50), Some(0x0a00 + 1 + 0x0a00 + 2 + 6 + 2_020));

    let (len, vnet) = supersegment(&frame, &tso(&frame, 1_000), 2_000, 500, &mut out).unwrap();
    assert_eq!((len, vnet.gso_type, vnet.gso_size, vnet.flags), (554, 0, 0, 1));
}

#[test]
fn the_payload_need_not_be_copied() {
    let frame = tcp(2_500);
    let mut headers = [0; 54];
    let split = split(&frame, &tso(&frame, 1_000), 1_000, 1_500, &mut headers).unwrap();
    assert_eq!((split.header, split.payload), (54, 1_054..2_554));
    // CWR went with the first segment, so this part does not ask for it.
    assert_eq!(split.vnet.gso_type, VnetHeader::GSO_TCPV4);
}

#[test]
fn a_whole_frame_goes_as_it_is() {
    let frame = tcp(10);
    let mut out = [0; 64];
    assert_eq!(segment(&frame, &Offload::PLAIN, 0, 64, &mut out), Ok(64));
    assert_eq!(out[..], frame[..]);
    let split = split(&frame, &Offload::PLAIN, 0, 64, &mut []).unwrap();
    assert_eq!(split, Split { header: 0, payload: 0..64, vnet: VnetHeader::default() });
}

#[test]
fn an_unfinished_checksum_is_finished_or_asked_for() {
    let mut frame = tcp(10);
    frame[50..52].copy_from_slice(&(0x1409_u16 + 30).to_be_bytes());
    let offload = tso(&frame, 1_000);
    let mut out = [0; 64];
    let (len, vnet) = supersegment(&frame, &offload, 0, 64, &mut out).unwrap();
    assert_eq!((&out[..len], vnet.flags, vnet.csum_start, vnet.csum_offset), (&frame[..], 1, 34, 16));
    assert_eq!(segment(&frame, &offload, 0, 64, &mut out), Ok(64));
    let pseudo = 0x1409 + 30;
    assert_eq!(add(&[ones_complement_sum(&out[34..]), pseudo]), 0xffff);
}

#[test]
fn pulls_outside_the_frame_or_the_buffer_are_refused() {
    let frame = tcp(2_500);
    let offload = tso(&frame, 1_000);
    let mut out = [0; 1_514];
    for (offset, len) in [(0, 0), (2_000, 501), (2_500, 1), (u32::MAX, u32::MAX)] {
        assert_eq!(segment(&frame, &offload, offset, len, &mut out), Err(SegmentError::OutOfRange));
    }
    assert_eq!(segment(&frame, &offload, 0, 1_000, &mut out[..1_053]), Err(SegmentError::NoRoom));
    assert_eq!(segment(&frame, &offload, 0, 1_000, &mut out[..53]), Err(SegmentError::NoRoom));
    assert_eq!(segment(&frame, &Offload::PLAIN, 0, 100, &mut out), Err(SegmentError::OutOfRange));
    let mixed = Offload { kind: OffloadKind::Plain, ..offload };
    assert_eq!(segment(&frame, &mixed, 0, 1_000, &mut out), Err(SegmentError::Inconsistent));
    let far = Offload { start: 60_000, ..offload };
    assert_eq!(segment(&frame, &far, 0, 1_000, &mut out), Err(SegmentError::Inconsistent));
}
