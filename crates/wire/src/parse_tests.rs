//! Golden frames, written out byte by byte, and malformed variants of them.

use super::*;

/// A TCP segment of 4 bytes from 10.0.0.1:8080 to 10.0.0.2:443, DSCP 46, ECT(0).
pub(super) fn tcp_v4() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    frame.extend([0x45, 0xba, 0, 44, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x1f, 0x90, 0x01, 0xbb, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(*b"load");
    frame
}

/// IPv6 from 2001:db8::1 to 2001:db8::2 with the given next header and what follows.
fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    frame.extend([0x6b, 0xa0, 0, 0, 0, u8::try_from(rest.len()).unwrap(), next, 64]);
    for host in [1, 2] {
        frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    frame.extend(rest);
    frame
}

/// A UDP datagram from port 53 to port 5353 with two bytes.
const UDP: [u8; 10] = [0, 53, 0x14, 0xe9, 0, 10, 0, 0, 0xca, 0xfe];

fn tagged(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    [&frame[..12], tags.concat().as_slice(), &frame[12..]].concat()
}

fn with(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[at] = byte;
    frame
}

#[test]
fn a_tcp_segment_shows_its_fields_and_places() {
    let parsed = parse(&tcp_v4()).unwrap();
    assert_eq!(parsed.dst_mac.to_string(), "02:00:00:00:00:02");
    assert_eq!((parsed.vlan, parsed.ethertype, parsed.l3), (0, 0x0800, 14));
    let ip = parsed.ip.unwrap();
    assert_eq!((ip.src.to_string(), ip.dst.to_string()), ("10.0.0.1".into(), "10.0.0.2".into()));
    assert_eq!((ip.protocol, ip.ports, ip.dscp, ip.ecn), (6, Some((8080, 443)), 46, 2));
    assert_eq!((ip.l4, ip.payload, ip.end, ip.fragment), (34, 54, 58, Fragment::Whole));
}

#[test]
fn padding_is_no_part_of_the_packet() {
    let mut frame = tcp_v4();
    frame.resize(60, 0xaa);
    assert_eq!(parse(&frame).unwrap().ip.unwrap().end, 58);
}

#[test]
fn the_outer_tag_is_the_vlan_and_a_third_tag_is_refused() {
    let one = parse(&tagged(&tcp_v4(), &[[0x81, 0, 0x60, 5]])).unwrap();
    assert_eq!((one.vlan, one.l3, one.ports()), (5, 18, Some((8080, 443))));
    let two = [[0x88, 0xa8, 0x0f, 0xff], [0x81, 0, 0, 5]];
    let stacked = parse(&tagged(&tcp_v4(), &two)).unwrap();
    assert_eq!((stacked.vlan, stacked.l3, stacked.ports()), (4095, 22, Some((8080, 443))));
    let three = tagged(&tcp_v4(), &[two[0], two[1], two[1]]);
    assert_eq!(parse(&three), Err(FrameError::TooManyTags));
    assert_eq!(parse(&three[..17]), Err(FrameError::TagCut));
}

#[test]
fn what_is_not_ip_parses_without_addresses() {
    let arp = with(tcp_v4(), 13, 6);
    let parsed = parse(&arp).unwrap();
    assert_eq!((parsed.ethertype, parsed.ip, parsed.protocol(), parsed.dscp()), (0x0806, None, None, 0));
    assert!(parse(&arp[..14]).is_ok());
    assert_eq!(parse(&arp[..13]), Err(FrameError::TooShort));
}

#[test]
fn each_malformed_ipv4_header_has_its_reason() {
    let frame = tcp_v4();
    assert_eq!(parse(&frame[..33]), Err(FrameError::IpCut));
    assert_eq!(parse(&with(frame.clone(), 14, 0x65)), Err(FrameError::BadVersion));
    assert_eq!(parse(&with(frame.clone(), 14, 0x44)), Err(FrameError::BadHeaderLength));
    assert_eq!(parse(&with(frame.clone(), 17, 19)), Err(FrameError::BadHeaderLength));
    assert_eq!(parse(&with(frame.clone(), 17, 45)), Err(FrameError::LengthBeyondFrame));
    assert_eq!(parse(&with(frame.clone(), 17, 39)), Err(FrameError::TransportCut));
    assert_eq!(parse(&with(frame.clone(), 46, 0x40)), Err(FrameError::BadTransportHeader));
    assert_eq!(parse(&with(frame, 46, 0x70)), Err(FrameError::BadTransportHeader));
}

#[test]
fn ports_lie_behind_ipv4_options() {
    let mut frame = with(with(tcp_v4(), 14, 0x46), 17, 48);
    frame.splice(34..34, [1, 1, 1, 0]);
    let ip = parse(&frame).unwrap().ip.unwrap();
    assert_eq!((ip.ports, ip.l4, ip.payload), (Some((8080, 443)), 38, 58));
}

#[test]
fn only_the_first_fragment_has_ports() {
    let first = parse(&with(tcp_v4(), 20, 0x20)).unwrap().ip.unwrap();
    assert_eq!((first.fragment, first.ports, first.payload), (Fragment::First, Some((8080, 443)), 34));
    let later = parse(&with(tcp_v4(), 21, 1)).unwrap().ip.unwrap();
    assert_eq!((later.fragment, later.ports, later.payload), (Fragment::Later, None, 34));
}

#[test]
fn udp_over_ipv6_shows_its_fields_and_places() {
    let ip = parse(&v6(17, &UDP)).unwrap().ip.unwrap();
    assert_eq!((ip.src.to_string(), ip.dst.to_string()), ("2001:db8::1".into(), "2001:db8::2".into()));
    // The traffic class 0xba straddles the first two bytes.
    assert_eq!((ip.ports, ip.dscp, ip.ecn), (Some((53, 5353)), 46, 2));
    assert_eq!((ip.l4, ip.payload, ip.end, ip.final_dst), (54, 62, 64, Some(38)));
}

#[test]
fn a_udp_length_outside_its_packet_is_refused() {
    let frame = v6(17, &UDP);
    assert_eq!(parse(&with(frame.clone(), 59, 7)), Err(FrameError::BadTransportLength));
    assert_eq!(parse(&with(frame.clone(), 59, 11)), Err(FrameError::BadTransportLength));
    assert_eq!(parse(&with(frame.clone(), 19, 9)), Err(FrameError::BadTransportLength));
    assert_eq!(parse(&with(frame, 19, 7)), Err(FrameError::TransportCut));
}

#[test]
fn extension_headers_are_followed_but_not_for_ever() {
    let chained = |count: usize| {
        let mut rest = Vec::new();
        for index in 0..count {
            rest.extend([if index + 1 == count { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
        }
        rest.extend(UDP);
        v6(if count == 0 { 17 } else { 0 }, &rest)
    };
    for count in 0..=8 {
        let ip = parse(&chained(count)).unwrap().ip.unwrap();
        assert_eq!((ip.protocol, ip.ports, ip.l4), (17, Some((53, 5353)), 54 + 8 * count as u16));
    }
    assert_eq!(parse(&chained(9)), Err(FrameError::TooManyExtensions));
    assert_eq!(parse(&v6(0, &[17, 1, 1, 4, 0, 0, 0, 0])), Err(FrameError::ExtensionCut));
    assert_eq!(parse(&v6(0, &[17, 0, 1])), Err(FrameError::ExtensionCut));
}

#[test]
fn ipv6_fragments_after_the_first_have_no_ports() {
    let fragment = |offset: u8, flags: u8| {
        parse(&v6(44, &[&[17, 0, offset, flags, 0, 0, 0, 9], &UDP[..]].concat())).unwrap().ip.unwrap()
    };
    assert_eq!((fragment(0, 1).ports, fragment(0, 1).fragment), (Some((53, 5353)), Fragment::First));
    assert_eq!((fragment(0, 8).ports, fragment(0, 8).fragment), (None, Fragment::Later));
    // Data of a later fragment that happens to look like an extension header is not followed.
    let data = parse(&v6(44, &[0, 0, 1, 0, 0, 0, 0, 9, 0, 9, 9, 9])).unwrap().ip.unwrap();
    assert_eq!((data.protocol, data.l4), (0, 62));
}

#[test]
fn a_routing_header_says_where_the_final_address_lies() {
    let route = |kind: u8, left: u8| {
        let header = [&[17, 2, kind, left, 0, 0, 0, 0][..], &[9; 16], &UDP].concat();
        parse(&v6(43, &header)).unwrap().ip.unwrap()
    };
    assert_eq!(route(4, 1).final_dst, Some(62));
    assert_eq!(route(4, 0).final_dst, Some(38));
    assert_eq!(route(3, 1).final_dst, None);
    assert_eq!(route(4, 1).dst.to_string(), "2001:db8::2");
}

#[test]
fn sctp_has_ports_and_icmp_has_none() {
    let sctp = v6(132, &[0, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let ip = parse(&sctp).unwrap().ip.unwrap();
    assert_eq!((ip.ports, ip.payload), (Some((7, 8)), 66));
    assert_eq!(parse(&v6(132, &[0, 7, 0, 8])), Err(FrameError::TransportCut));
    let icmp = parse(&v6(58, &[128, 0, 0, 0])).unwrap().ip.unwrap();
    assert_eq!((icmp.ports, icmp.protocol, icmp.payload), (None, 58, 54));
}

#[test]
fn group_addresses_are_told_from_single_ones() {
    assert!(Mac([0xff; 6]).is_group());
    assert!(Mac([1, 0, 0x5e, 0, 0, 1]).is_group());
    assert!(!Mac([2, 0, 0, 0, 0, 1]).is_group());
    assert_eq!(Mac::pair(&tcp_v4()), Some((Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]))));
    assert_eq!(Mac::pair(&[0; 11]), None);
}
