//! Golden packets, written out byte by byte from the RFCs' layouts, and malformed variants of them.

use super::*;
use crate::ecn::Ecn;
use crate::parse::{Mac, parse};
use crate::reason::{DecapsulationError, EncapsulationError, TooBigError};

const SRC_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const VNI: u32 = 0x00ab_cdef;
/// A flow hash whose source port is 0xc274 and whose flow label is 0x09d3c.
const HASH: u64 = 0x1234;

fn v4(format: Format) -> Path {
    Path {
        format,
        src_mac: Mac(SRC_MAC),
        dst_mac: Mac(DST_MAC),
        addresses: Addresses::V4 { src: [192, 0, 2, 1].into(), dst: [192, 0, 2, 2].into() },
        dscp: 46,
        mtu: 1_500,
        v6_checksum: true,
        capable: false,
        ports: Ports::default(),
    }
}

fn v6(format: Format) -> Path {
    let host = |n| [0x2001, 0xdb8, 0, 0, 0, 0, 0, n].into();
    Path { addresses: Addresses::V6 { src: host(1), dst: host(2) }, ..v4(format) }
}

/// A frame that is not IP.
fn not_ip() -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 8, 6][..], b"who?"].concat()
}

/// An IPv4 packet of `len` bytes with this ECN field, DF set, from 10.0.0.1 to 10.0.0.2.
fn packet(len: u16, ecn: Ecn) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 8, 0];
    frame.extend([0x45, ecn.bits(), high, low, 0, 7, 0x40, 0, 64, 200, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let checksum = !crate::ones_complement_sum(&frame[14..]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.resize(14 + usize::from(len), 0x5a);
    frame
}

fn inner(feedback: Option<&[u8]>) -> Inner<'_> {
    Inner { vni: Vni::new(VNI).unwrap(), flow_hash: HASH, feedback }
}

fn wrapped(path: &Path, frame: &[u8], feedback: Option<&[u8]>) -> Vec<u8> {
    let mut out = vec![0xee; 2_000];
    let len = path.encapsulate_into(frame, &mut out, &inner(feedback)).unwrap();
    out.truncate(len);
    out
}

fn read(packet: &[u8]) -> Result<Tunnelled, DecapsulationError> {
    Tunnelled::read(packet, &parse(packet).unwrap()).map(|tunnelled| tunnelled.expect("for the overlay"))
}

fn with(mut packet: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    packet[at] = byte;
    packet
}

#[test]
fn vxlan_over_ipv4_is_what_the_rfc_draws() {
    let mut golden = [DST_MAC, SRC_MAC].concat();
    golden.extend([0x08, 0x00]);
    golden.extend([0x45, 0xb8, 0, 0x36, 0, 0, 0x40, 0, 64, 17, 0xb5, 0xfb, 192, 0, 2, 1, 192, 0, 2, 2]);
    golden.extend([0xc2, 0x74, 0x12, 0xb5, 0, 0x22, 0, 0]);
    golden.extend([0x08, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
    golden.extend(not_ip());
    assert_eq!(wrapped(&v4(Format::Vxlan), &not_ip(), None), golden);
}

#[test]
fn geneve_over_ipv6_has_a_checksum_and_a_flow_label() {
    let mut golden = [DST_MAC, SRC_MAC].concat();
    golden.extend([0x86, 0xdd, 0x6b, 0x80, 0x9d, 0x3c, 0, 0x22, 17, 64]);
    for host in [1, 2] {
        golden.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    golden.extend([0xc2, 0x74, 0x17, 0xc1, 0, 0x22, 0xd7, 0x15]);
    golden.extend([0, 0, 0x65, 0x58, 0xab, 0xcd, 0xef, 0]);
    golden.extend(not_ip());
    assert_eq!(wrapped(&v6(Format::Geneve), &not_ip(), None), golden);
    let without = Path { v6_checksum: false, ..v6(Format::Geneve) };
    golden[60..62].fill(0);
    assert_eq!(wrapped(&without, &not_ip(), None), golden);
}

#[test]
fn feedback_is_an_option_that_may_be_skipped() {
    let packet = wrapped(&v4(Format::Geneve), &not_ip(), Some(b"feedback!"));
    // Four words of options: one of four bytes and three words, the message's length first.
    assert_eq!(packet[16..18], [0, 0x46], "total length");
    assert_eq!(packet[24..26], [0xb5, 0xeb], "header checksum");
    assert_eq!(packet[42..50], [4, 0, 0x65, 0x58, 0xab, 0xcd, 0xef, 0]);
    assert_eq!(packet[50..54], [0xff, 0x50, 0x01, 3]);
    assert_eq!(packet[54..66], *b"\x09feedback!\0\0");
    assert_eq!(packet[66..], not_ip());
    let tunnelled = read(&packet).unwrap();
    assert_eq!(packet[tunnelled.feedback().unwrap()], *b"feedback!");
    assert_eq!(packet[tunnelled.frame().unwrap()], not_ip());
}

#[test]
fn an_option_holds_123_bytes_of_feedback_and_vxlan_none() {
    let (path, mut out) = (v4(Format::Geneve), [0; 2_000]);
    let most = wrapped(&path, &not_ip(), Some(&[7; MOST_IN_OPTION]));
    assert_eq!(most[read(&most).unwrap().feedback().unwrap()], [7; 123]);
    for (path, message) in [(path, &[7; 124][..]), (path, &[]), (v4(Format::Vxlan), &[7; 60])] {
        let refused = path.encapsulate_into(&not_ip(), &mut out, &inner(Some(message)));
        assert_eq!(refused, Err(EncapsulationError::Feedback));
    }
}

#[test]
fn feedback_alone_is_a_control_message_without_a_frame() {
    let mut out = [0; 2_000];
    let message = [0x5a; 1_282];
    for path in [v4(Format::Vxlan), v6(Format::Geneve)] {
        let len = path.feedback_frame(&message, HASH, &mut out).unwrap();
        let header = path.head_room(None);
        assert_eq!(len, header + 1_282);
        assert_eq!(out[header - 8..header], [0, 0x80, 0x88, 0xb5, 0, 0, 0, 0]);
        let tunnelled = read(&out[..len]).unwrap();
        assert_eq!((tunnelled.frame(), tunnelled.feedback()), (None, Some(header..len)));
        assert!(tunnelled.deliver(&mut out[..len], Checks::default()).is_ok());
    }
    let path = v4(Format::Geneve);
    assert_eq!(path.feedback_frame(&[], 0, &mut out), Err(EncapsulationError::Feedback));
    assert_eq!(path.feedback_frame(&[0; 1_465], 0, &mut out), Err(EncapsulationError::TooLong));
    assert_eq!(path.feedback_frame(&message, 0, &mut out[..1_300]), Err(EncapsulationError::NoRoom));
}

#[test]
fn a_sealed_frame_says_so_and_lies_between_its_head_and_its_tag() {
    let sealed: Vec<u8> = (0..SEALED_HEAD as u8 + 60 + SEALED_TAG as u8).collect();
    for (path, feedback) in [(v4(Format::Geneve), None), (v6(Format::Geneve), Some(&b"feedback!"[..]))] {
        let room = path.head_room(feedback.map(<[u8]>::len));
        let mut buffer = [vec![0xee; room], sealed.clone()].concat();
        let start = path.encapsulate_sealed(&mut buffer, room, &inner(feedback), Ecn::Ect0).unwrap();
        assert_eq!(start, 0);
        let tunnel = path.head_room(None) - 8;
        assert_eq!(buffer[tunnel + 2..tunnel + 4], PROTOCOL_SEALED.to_be_bytes());
        let tunnelled = read(&buffer).unwrap();
        assert_eq!((tunnelled.sealed(), tunnelled.hello()), (Some(room..buffer.len()), None));
        assert_eq!(tunnelled.frame(), Some(room + SEALED_HEAD..buffer.len() - SEALED_TAG));
        assert_eq!(tunnelled.feedback().map(|place| &buffer[place]), feedback);
        // Over IPv6 the checksum is right as sent; opening the frame breaks it, but the seal has proved more.
        let udp = tunnel - 8;
        let sum = &buffer[udp + 6..udp + 8];
        assert_eq!(sum == [0, 0], matches!(path.addresses, Addresses::V4 { .. }));
        buffer[room + 20] ^= 1;
        let crossing = tunnelled.deliver(&mut buffer, Checks::default()).unwrap();
        assert_eq!(crossing.outer, Ecn::Ect0);
        let short = |len: usize| {
            let bytes = (len as u16 + 8 + 8 + 16 * u16::from(feedback.is_some())).to_be_bytes();
            let packet = with(with(buffer.clone(), udp + 4, bytes[0]), udp + 5, bytes[1]);
            read(&packet).map(|tunnelled| tunnelled.frame().unwrap().len())
        };
        assert_eq!(short(SEALED_HEAD + 14 + SEALED_TAG), Ok(14));
        assert_eq!(short(SEALED_HEAD + 13 + SEALED_TAG), Err(DecapsulationError::InnerCut));
    }
    let (vxlan, mut buffer) = (v4(Format::Vxlan), [0; 200]);
    let refused = vxlan.encapsulate_sealed(&mut buffer, 100, &inner(None), Ecn::NotEct);
    assert_eq!((refused, buffer), (Err(EncapsulationError::FrameCut), [0; 200]), "it could not say so");
}

#[test]
fn a_hello_is_a_control_message_of_its_own() {
    for path in [v4(Format::Vxlan), v6(Format::Geneve)] {
        let mut out = [0; 200];
        let len = path.hello_frame(b"hello", &mut out).unwrap();
        let tunnelled = read(&out[..len]).unwrap();
        assert_eq!(tunnelled.hello().map(|place| &out[place]), Some(&b"hello"[..]));
        assert_eq!((tunnelled.frame(), tunnelled.sealed(), tunnelled.feedback()), (None, None, None));
        assert_eq!(tunnelled.vni.get(), 0);
    }
}

#[test]
fn options_of_others_are_skipped_unless_they_are_critical() {
    let options = |bytes: &[u8]| {
        let mut packet = wrapped(&v4(Format::Geneve), &not_ip(), None);
        packet.splice(50..50, bytes.iter().copied());
        packet[42] = (bytes.len() / 4) as u8;
        let len = bytes.len() as u8;
        (packet[17], packet[39]) = (packet[17] + len, packet[39] + len);
        read(&packet).map(|tunnelled| (tunnelled.feedback().map(|at| packet[at].to_vec()), tunnelled.frame()))
    };
    let ours = [0xff, 0x50, 1, 1, 2, 8, 9, 0];
    assert_eq!(options(&ours), Ok((Some(vec![8, 9]), Some(58..76))));
    assert_eq!(options(&[1, 2, 0x7f, 0]), Ok((None, Some(54..72))));
    assert_eq!(options(&[&[1, 2, 0x7f, 0xe1, 0, 0, 0, 0][..], &ours].concat()).unwrap().0, Some(vec![8, 9]));
    assert_eq!(options(&[1, 2, 0x80, 0]), Err(DecapsulationError::CriticalOption));
    assert_eq!(
        options(&[&ours[..], &[0xff, 0x50, 0x81, 0]].concat()),
        Err(DecapsulationError::CriticalOption)
    );
    assert_eq!(options(&[1, 2, 3, 1]), Err(DecapsulationError::OptionBeyondEnd));
    assert_eq!(options(&[0xff, 0x50, 1, 0]), Err(DecapsulationError::BadFeedback), "no length");
    assert_eq!(options(&[0xff, 0x50, 1, 1, 4, 8, 9, 0]), Err(DecapsulationError::BadFeedback), "beyond");
    assert_eq!(options(&[0xff, 0x50, 1, 1, 0, 8, 9, 0]), Err(DecapsulationError::BadFeedback), "empty");
}

#[test]
fn all_63_words_of_options_are_read() {
    let bytes: Vec<u8> = [1, 2, 3, 0].repeat(63);
    let kinds: Vec<_> = Options::new(&bytes).map(|option| option.map(|option| option.kind)).collect();
    assert_eq!(kinds, [Ok(3); 63]);
    assert_eq!(Options::new(&bytes[..5]).last(), Some(Err(DecapsulationError::OptionBeyondEnd)));
}

#[test]
fn each_malformed_tunnel_has_its_reason() {
    let vxlan = wrapped(&v4(Format::Vxlan), &not_ip(), None);
    let geneve = wrapped(&v4(Format::Geneve), &not_ip(), None);
    let short = |packet: &[u8], udp_len| read(&with(packet.to_vec(), 39, udp_len));
    assert_eq!(read(&with(vxlan.clone(), 42, 0xf7)), Err(DecapsulationError::NoVni));
    assert_eq!(short(&vxlan, 8), Err(DecapsulationError::HeaderCut));
    assert_eq!(short(&vxlan, 15), Err(DecapsulationError::HeaderCut));
    assert_eq!(short(&vxlan, 29), Err(DecapsulationError::InnerCut));
    assert!(short(&vxlan, 30).is_ok());
    assert_eq!(read(&with(geneve.clone(), 42, 0x40)), Err(DecapsulationError::BadVersion));
    assert_eq!(read(&with(geneve.clone(), 42, 0x3f)), Err(DecapsulationError::HeaderCut));
    assert_eq!(read(&with(geneve.clone(), 45, 0x59)), Err(DecapsulationError::UnknownProtocol));
    assert_eq!(read(&with(geneve.clone(), 43, 0x80)), Err(DecapsulationError::UnknownControl));
    assert_eq!(short(&geneve, 15), Err(DecapsulationError::HeaderCut));
    assert_eq!(read(&with(geneve.clone(), 20, 0x20)), Err(DecapsulationError::OuterFragment));
    assert_eq!(Tunnelled::read(&geneve[..20], &parse(&geneve).unwrap()), Err(DecapsulationError::HeaderCut));
}

#[test]
fn reserved_bits_say_nothing() {
    let vxlan = wrapped(&v4(Format::Vxlan), &not_ip(), None);
    let strange = with(with(with(vxlan, 42, 0xff), 43, 0xff), 49, 0xff);
    assert_eq!(read(&strange).unwrap().vni.get(), VNI);
    let geneve = wrapped(&v4(Format::Geneve), &not_ip(), None);
    let strange = with(with(geneve, 43, 0x7f), 49, 0xff);
    assert_eq!(read(&strange).unwrap().vni.get(), VNI);
}

#[test]
fn other_packets_are_not_for_the_overlay() {
    let vxlan = wrapped(&v4(Format::Vxlan), &not_ip(), None);
    for packet in [with(vxlan.clone(), 36, 0x13), with(vxlan, 23, 132), not_ip(), packet(60, Ecn::Ce)] {
        assert_eq!(Tunnelled::read(&packet, &parse(&packet).unwrap()), Ok(None));
    }
}

#[test]
fn wrong_sums_are_found_when_a_frame_is_delivered() {
    let deliver = |mut packet: Vec<u8>, checks| {
        let tunnelled = read(&packet).unwrap();
        tunnelled.deliver(&mut packet, checks).map(|crossing| crossing.alarm)
    };
    let (strict, verified) = (Checks::default(), Checks { verified: true, ..Checks::default() });
    let v4 = wrapped(&v4(Format::Vxlan), &not_ip(), None);
    assert_eq!(deliver(v4.clone(), strict), Ok(None));
    assert_eq!(deliver(with(v4.clone(), 22, 9), strict), Err(DecapsulationError::HeaderChecksum));
    assert_eq!(deliver(with(v4.clone(), 22, 9), verified), Ok(None));
    assert_eq!(deliver(with(v4, 41, 1), strict), Err(DecapsulationError::UdpChecksum), "sent, and wrong");
    let sum = wrapped(&v6(Format::Vxlan), &not_ip(), None);
    assert_eq!(deliver(sum.clone(), strict), Ok(None));
    assert_eq!(deliver(with(sum.clone(), 79, 9), strict), Err(DecapsulationError::UdpChecksum));
    assert_eq!(deliver(with(sum, 38, 1), strict), Err(DecapsulationError::UdpChecksum), "another address");
    let none = wrapped(&Path { v6_checksum: false, ..v6(Format::Vxlan) }, &not_ip(), None);
    for checks in [strict, verified] {
        assert_eq!(deliver(none.clone(), checks), Err(DecapsulationError::NoUdpChecksum));
    }
    assert_eq!(deliver(none, Checks { v6_without: true, ..strict }), Ok(None));
}

#[test]
fn what_is_left_of_an_mtu_is_what_fits_exactly() {
    // 1500 less 20 or 40, 8, 8 and the inner Ethernet header of 14.
    for (format, family, feedback, left) in [
        (Format::Vxlan, Family::V4, 0, 1_450),
        (Format::Vxlan, Family::V6, 0, 1_430),
        (Format::Geneve, Family::V4, 0, 1_450),
        (Format::Geneve, Family::V6, 0, 1_430),
        (Format::Geneve, Family::V4, 60, 1_382),  // one limit: 4 and 64
        (Format::Geneve, Family::V4, 112, 1_330), // three: 4 and 116
        (Format::Geneve, Family::V6, 123, 1_302), // the longest: 4 and 124
    ] {
        assert_eq!(format.inner_mtu(family, 1_500, feedback), left, "{format:?} {family:?} {feedback}");
        let path = if family == Family::V4 { v4(format) } else { v6(format) };
        assert_eq!(path.inner_mtu(feedback), left);
        let message = [7; MOST_IN_OPTION];
        let feedback = (feedback > 0).then(|| &message[..feedback]);
        let fits = wrapped(&path, &packet(left, Ecn::NotEct), feedback);
        assert_eq!(fits.len(), 1_514);
        let (long, mut out) = (packet(left + 1, Ecn::NotEct), [0; 2_000]);
        let refused = path.encapsulate_into(&long, &mut out, &inner(feedback));
        assert_eq!(refused, Err(EncapsulationError::TooLong));
    }
    assert_eq!(Format::Vxlan.inner_mtu(Family::V6, 60, 0), 0);
    assert_eq!(Format::Geneve.inner_mtu(Family::V4, 9_000, usize::MAX), 9_000 - 50 - 128);
}

#[test]
fn a_frame_without_room_before_it_is_refused_and_left_alone() {
    let (path, mut buffer) = (v4(Format::Vxlan), vec![0xee; 100]);
    for (start, expected) in [
        (49, EncapsulationError::NoRoom),
        (101, EncapsulationError::NoRoom),
        (100, EncapsulationError::FrameCut),
        (87, EncapsulationError::FrameCut),
    ] {
        assert_eq!(path.encapsulate(&mut buffer, start, &inner(None)), Err(expected), "{start}");
    }
    assert_eq!(buffer, [0xee; 100]);
    assert_eq!(path.encapsulate(&mut buffer, 60, &inner(None)), Ok(10));
    assert_eq!((buffer[9], buffer[60]), (0xee, 0xee));
}

#[test]
fn source_ports_are_the_dynamic_ones_and_use_all_of_them() {
    let mut seen = vec![0_u8; 65_536];
    (0..200_000_u64).for_each(|hash| seen[usize::from(source_port(hash))] = 1);
    assert_eq!(seen.iter().map(|&port| usize::from(port)).sum::<usize>(), 16_384);
    assert!(seen[..49_152].iter().all(|&port| port == 0));
    // Flow hashes may differ in a few bits only, wherever these are.
    for shift in [0, 16, 32, 48] {
        let ports: std::collections::BTreeSet<u16> = (0..256).map(|n: u64| source_port(n << shift)).collect();
        assert!(ports.len() > 240, "{shift}: {} ports", ports.len());
    }
}

/// RFC 6040, Figure 4, as printed: rows are inner headers, columns outer ones.
#[test]
fn decapsulation_is_figure_4() {
    let order = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce];
    let figure = [
        ["Not-ECT", "Not-ECT!!!", "Not-ECT!!!", "drop!!!"],
        ["ECT(0)", "ECT(0)", "ECT(1)", "CE"],
        ["ECT(1)", "ECT(1)!", "ECT(1)", "CE"],
        ["CE", "CE", "CE!!!", "CE"],
    ];
    let name = |ecn| ["Not-ECT", "ECT(1)", "ECT(0)", "CE"][usize::from(Ecn::bits(ecn))];
    for (inner, row) in order.into_iter().zip(figure) {
        for (outer, expected) in order.into_iter().zip(row) {
            let found = Crossing::of(inner, outer).map_or("drop!!!".to_string(), |crossing| {
                let alarm = match crossing.alarm {
                    None => "",
                    Some(Alarm::Unused) => "!",
                    Some(Alarm::Dangerous) => "!!!",
                };
                format!("{}{alarm}", name(crossing.delivered))
            });
            assert_eq!(found, expected, "inner {inner:?}, outer {outer:?}");
        }
    }
}

#[test]
fn a_mark_of_the_fabric_arrives_and_is_known_as_the_fabrics() {
    for path in [v4(Format::Vxlan), v6(Format::Geneve)] {
        for ecn in Ecn::ALL {
            let mut arrived = wrapped(&path, &packet(100, ecn), None);
            assert_eq!(Ecn::of(&arrived), Some(ecn), "normal mode copies");
            let tunnelled = read(&arrived).unwrap();
            let crossing = tunnelled.deliver(&mut arrived, Checks::default()).unwrap();
            assert_eq!((crossing.delivered, crossing.alarm), (ecn, None));
            assert_eq!((crossing.marked_by_fabric(), crossing.marked_before()), (false, ecn == Ecn::Ce));
            assert_eq!(arrived[tunnelled.frame().unwrap()], packet(100, ecn));
        }
        let mut marked = wrapped(&path, &packet(100, Ecn::Ect0), None);
        assert!(Ecn::Ce.write(&mut marked));
        let tunnelled = read(&marked).unwrap();
        let crossing = tunnelled.deliver(&mut marked, Checks::default()).unwrap();
        assert!(crossing.marked_by_fabric() && !crossing.marked_before());
        assert_eq!(marked[tunnelled.frame().unwrap()], packet(100, Ecn::Ce), "with the right checksum");

        for frame in [packet(100, Ecn::NotEct), not_ip()] {
            let mut lost = wrapped(&path, &frame, None);
            assert!(Ecn::Ce.write(&mut lost));
            let tunnelled = read(&lost).unwrap();
            assert_eq!(tunnelled.ecn, Ecn::Ce, "known before it is dropped");
            assert_eq!(tunnelled.deliver(&mut lost, Checks::default()), Err(DecapsulationError::MarkLost));
        }
    }
}

/// Between hosts that react to marks themselves every packet can carry one, and no tenant sees a field that it did not
/// set.
#[test]
fn marks_that_are_heeded_reach_hosts_and_not_tenants_that_know_none() {
    let heeded = Checks { heeded: true, ..Checks::default() };
    for frame in [packet(100, Ecn::NotEct), not_ip()] {
        let path = Path { capable: true, ..v4(Format::Geneve) };
        for mark in [false, true] {
            let mut arrived = wrapped(&path, &frame, None);
            assert_eq!(Ecn::of(&arrived), Some(Ecn::Ect0));
            assert!(!mark || Ecn::Ce.write(&mut arrived));
            let tunnelled = read(&arrived).unwrap();
            assert_eq!(tunnelled.ecn == Ecn::Ce, mark);
            let crossing = tunnelled.deliver(&mut arrived, heeded).unwrap();
            assert_eq!((crossing.marked_by_fabric(), crossing.alarm), (mark, None));
            assert_eq!(arrived[tunnelled.frame().unwrap()], frame);
        }
    }
    for inner in [Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        for outer in Ecn::ALL {
            assert_eq!(
                Some(Crossing::heeded(inner, outer)),
                Crossing::of(inner, outer),
                "an ECN-capable tenant gets the mark"
            );
        }
    }
    let capable = Path { capable: true, ..v4(Format::Geneve) };
    let mut before = wrapped(&capable, &packet(100, Ecn::Ce), None);
    assert_eq!(
        Ecn::of(&before),
        Some(Ecn::Ect0),
        "a tenant's own mark does not hide its packets from the fabric"
    );
    let crossing = read(&before).unwrap().deliver(&mut before, heeded).unwrap();
    assert_eq!((crossing.delivered, crossing.alarm), (Ecn::Ce, None));
}

#[test]
fn the_sender_over_ipv4_learns_the_mtu() {
    let (long, mut out) = (packet(1_500, Ecn::Ect0), [0; TOO_BIG_MOST]);
    let len = too_big(&long, 1_450, &mut out).unwrap();
    let answer = &out[..len];
    assert_eq!(len, 14 + 576);
    assert_eq!(answer[..14], [2, 0, 0, 0, 0, 0xa, 2, 0, 0, 0, 0, 0xb, 8, 0]);
    assert_eq!(crate::ones_complement_sum(&answer[14..34]), 0xffff);
    assert_eq!(answer[26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
    assert_eq!(crate::ones_complement_sum(&answer[34..]), 0xffff);
    assert_eq!(answer[34..36], [3, 4]);
    assert_eq!(answer[38..42], [0, 0, 0x05, 0xaa]);
    assert_eq!(answer[42..], long[14..][..548]);
    assert_eq!(too_big(answer, 500, &mut [0; TOO_BIG_MOST]), Err(TooBigError::IsError));
}

#[test]
fn the_sender_over_ipv6_learns_the_mtu_in_its_vlan() {
    let mut long = vec![2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 0x81, 0, 0, 5, 0x86, 0xdd];
    long.extend([0x60, 0, 0, 0, 0x05, 0xdc, 200, 64]);
    for host in [1, 2] {
        long.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    long.resize(18 + 40 + 1_500, 0x5a);
    let mut out = [0; TOO_BIG_MOST];
    let len = too_big(&long, 1_430, &mut out).unwrap();
    let answer = &out[..len];
    assert_eq!(len, 18 + 1_280);
    assert_eq!(answer[12..18], long[12..18]);
    assert_eq!((&answer[26..42], &answer[42..58]), (&long[42..58], &long[26..42]));
    assert_eq!((answer[24], &answer[58..60], &answer[62..66]), (58, &[2, 0][..], &[0, 0, 0x05, 0x96][..]));
    assert_eq!(answer[66..], long[18..][..1_232]);
    assert_eq!(too_big(&long, 1_279, &mut out), Err(TooBigError::BelowMinimum));
    let group = with(long, 42, 0xff);
    assert_eq!(too_big(&group, 1_430, &mut out), Err(TooBigError::Address));
}

#[test]
fn no_other_sender_is_told() {
    let long = || packet(1_500, Ecn::NotEct);
    let told = |frame: Vec<u8>| too_big(&frame, 1_450, &mut [0; TOO_BIG_MOST]);
    assert_eq!(told(with(long(), 20, 0)), Err(TooBigError::MayFragment));
    assert_eq!(told(with(long(), 21, 9)), Err(TooBigError::LaterFragment));
    assert_eq!(told(with(long(), 0, 1)), Err(TooBigError::Address), "to a group");
    assert_eq!(told(with(long(), 30, 224)), Err(TooBigError::Address));
    assert_eq!(told(with(long(), 26, 127)), Err(TooBigError::Address), "from this host");
    for (kind, expected) in [(3, Some(TooBigError::IsError)), (11, Some(TooBigError::IsError)), (8, None)] {
        assert_eq!(told(with(with(long(), 23, 1), 34, kind)).err(), expected, "ICMP type {kind}");
    }
    assert_eq!(told(with(packet(20, Ecn::NotEct), 23, 1)), Err(TooBigError::IsError), "cut off");
    assert_eq!(told(not_ip()), Err(TooBigError::NotIp));
    assert_eq!(told(long()[..100].to_vec()), Err(TooBigError::NotIp));
    assert_eq!(too_big(&long(), 1_450, &mut [0; 589]), Err(TooBigError::NoRoom));
}
