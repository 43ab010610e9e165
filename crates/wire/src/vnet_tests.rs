//! Offloads that a tenant may ask for, and those that are refused.

use super::*;
use crate::parse::parse;

/// TCP or UDP over IPv4 with `payload` bytes, from 10.0.0.1 to 10.0.0.2.
fn frame(protocol: u8, payload: usize) -> Vec<u8> {
    let transport = if protocol == 6 { 20 } else { 8 };
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    let [high, low] = u16::try_from(20 + transport + payload).unwrap().to_be_bytes();
    frame.extend([0x45, 0, high, low, 0, 7, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    if protocol == 6 {
        frame.extend([0x1f, 0x90, 0x01, 0xbb, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    } else {
        let [high, low] = u16::try_from(8 + payload).unwrap().to_be_bytes();
        frame.extend([0, 53, 0x14, 0xe9, high, low, 0, 0]);
    }
    frame.resize(frame.len() + payload, 0x5a);
    frame
}

fn ask(header: &VnetHeader, frame: &[u8]) -> Result<Offload, VnetError> {
    header.offload(frame, &parse(frame).unwrap())
}

/// The header that Linux writes before a TCP frame of several segments.
const TSO: VnetHeader =
    VnetHeader { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 1448, csum_start: 34, csum_offset: 16 };
const USO: VnetHeader =
    VnetHeader { flags: 1, gso_type: 5, hdr_len: 42, gso_size: 1400, csum_start: 34, csum_offset: 6 };
const CHECKSUM: VnetHeader =
    VnetHeader { flags: 1, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 34, csum_offset: 16 };

#[test]
fn the_bytes_are_those_of_the_specification() {
    let bytes = [1, 0x81, 54, 0, 0xa8, 0x05, 34, 0, 16, 0, 1, 0];
    let (header, rest) = VnetHeader::read_len(&bytes, 12).unwrap();
    assert_eq!(header, VnetHeader { gso_type: 0x81, ..TSO });
    assert_eq!(header.to_bytes(), bytes);
    assert!(rest.is_empty());
    assert_eq!(VnetHeader::read_len(&bytes[..11], 12), Err(VnetError::Short));
    assert_eq!(VnetHeader::read(&bytes).unwrap().1, [1, 0]);
}

#[test]
fn a_large_tcp_frame_is_cut_behind_its_header() {
    let offload = ask(&TSO, &frame(6, 4_000)).unwrap();
    assert_eq!((offload.kind, offload.header, offload.segment), (OffloadKind::Tso4, 54, 1_448));
    assert_eq!((offload.l3, offload.start, offload.field), (14, 34, 50));
}

#[test]
fn one_segment_is_not_segmented() {
    let offload = ask(&TSO, &frame(6, 1_448)).unwrap();
    assert_eq!((offload.kind, offload.header, offload.segment), (OffloadKind::Checksum, 0, 0));
    assert_eq!(ask(&CHECKSUM, &frame(6, 1_448)), Ok(offload), "as if no segmentation had been asked for");
    let complete = VnetHeader { flags: 0, ..TSO };
    assert_eq!(ask(&complete, &frame(6, 1_448)), Ok(Offload::PLAIN));
}

#[test]
fn a_datagram_burst_is_cut_up_to_128_times() {
    let offload = ask(&USO, &frame(17, 2_801)).unwrap();
    assert_eq!((offload.kind, offload.header, offload.segment), (OffloadKind::Uso4, 42, 1_400));
    let tiny = VnetHeader { gso_size: 2, ..USO };
    assert!(ask(&tiny, &frame(17, 256)).is_ok());
    assert_eq!(ask(&tiny, &frame(17, 257)), Err(VnetError::TooManySegments));
    assert_eq!(ask(&VnetHeader { gso_size: 0, ..USO }, &frame(17, 9)), Err(VnetError::TinySegment));
}

#[test]
fn without_flags_a_frame_is_complete() {
    assert_eq!(ask(&VnetHeader::default(), &frame(6, 10)), Ok(Offload::PLAIN));
    let valid = VnetHeader { flags: VnetHeader::DATA_VALID, ..VnetHeader::default() };
    assert_eq!(ask(&valid, &frame(6, 10)), Ok(Offload::PLAIN));
}

#[test]
fn absurd_segmentation_is_refused() {
    let tcp = frame(6, 4_000);
    let refused = |header: VnetHeader| ask(&header, &tcp).unwrap_err();
    for gso_type in [2, 3, 0x21, 0x41, 0x80, 0x85, 0xff] {
        assert_eq!(refused(VnetHeader { gso_type, ..TSO }), VnetError::UnknownGso, "{gso_type:#x}");
    }
    for gso_type in [4, 5, 0x84] {
        assert_eq!(refused(VnetHeader { gso_type, ..TSO }), VnetError::WrongProtocol, "{gso_type:#x}");
    }
    assert_eq!(refused(VnetHeader { gso_size: 7, ..TSO }), VnetError::TinySegment);
    assert_eq!(refused(VnetHeader { hdr_len: 4_055, ..TSO }), VnetError::HeaderBeyondFrame);
    assert_eq!(refused(VnetHeader { csum_start: 35, ..TSO }), VnetError::ChecksumPlace);
    assert_eq!(refused(VnetHeader { csum_offset: 6, ..TSO }), VnetError::ChecksumPlace);
}

#[test]
fn segmentation_of_what_cannot_be_segmented_is_refused() {
    let change = |at: usize, byte: u8| {
        let mut frame = frame(6, 4_000);
        frame[at] = byte;
        ask(&TSO, &frame).unwrap_err()
    };
    assert_eq!(change(47, 0x02), VnetError::ControlSegment);
    assert_eq!(change(47, 0x14), VnetError::ControlSegment);
    assert_eq!(change(20, 0x20), VnetError::Fragment);
    assert_eq!(change(17, 0), VnetError::LengthMismatch);
    let mut padded = frame(6, 4_000);
    padded.push(0);
    assert_eq!(ask(&TSO, &padded), Err(VnetError::LengthMismatch));
    let mut udp = frame(17, 4_000);
    udp[39] -= 1;
    assert_eq!(ask(&USO, &udp), Err(VnetError::LengthMismatch));
    let arp = [&[0; 12][..], &[8, 6], &[0; 46]].concat();
    assert_eq!(ask(&TSO, &arp), Err(VnetError::WrongProtocol));
}

#[test]
fn a_checksum_may_lie_at_its_own_place_or_in_the_payload_only() {
    let tcp = frame(6, 100);
    let at = |csum_start, csum_offset| ask(&VnetHeader { csum_start, csum_offset, ..CHECKSUM }, &tcp);
    assert_eq!(at(34, 16).map(|offload| (offload.start, offload.field)), Ok((34, 50)));
    assert!(at(54, 0).is_ok());
    assert!(at(137, 15).is_ok());
    // Behind the end, in the ports, in the source address, in the destination MAC, and far away.
    for (start, offset) in [(137, 16), (34, 0), (26, 0), (0, 0), (14, 12), (20, 30), (65_535, 65_535)] {
        assert_eq!(at(start, offset), Err(VnetError::ChecksumPlace), "{start} + {offset}");
    }
}

#[test]
fn a_fragment_has_no_checksum_to_complete() {
    let mut first = frame(6, 100);
    first[20] = 0x20;
    assert_eq!(ask(&CHECKSUM, &first), Err(VnetError::Fragment));
}
