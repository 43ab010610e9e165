//! Rewritten TCP segments are what an independent implementation would have built with those fields.

use etherparse::{IpFragOffset, Ipv4Header, PacketBuilder, TcpHeader, TcpOptionElement};
use plimsoll_wire::{
    Ecn, Offload, OffloadKind, TcpFlags, TcpSegment, VnetHeader, finish_checksum, parse, segment,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// What a segment is made of.
#[derive(Clone, Debug)]
struct Recipe {
    v6: bool,
    tags: u8,
    /// Words of IPv4 options.
    ip_options: usize,
    sequence: u32,
    window: u16,
    /// CWR, ECE, SYN, ACK, FIN and PSH.
    flags: [bool; 6],
    scale: Option<u8>,
    payload: Vec<u8>,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let shape = (any::<bool>(), 0..=2_u8, 0..=10_usize, prop::option::of(any::<u8>()));
    let fields = (any::<u32>(), any::<u16>(), any::<[bool; 6]>(), vec(any::<u8>(), 0..100));
    (shape, fields).prop_map(|((v6, tags, ip_options, scale), (sequence, window, flags, payload))| Recipe {
        v6,
        tags,
        ip_options,
        sequence,
        window,
        flags,
        scale,
        payload,
    })
}

impl Recipe {
    fn build(&self) -> Vec<u8> {
        let mut tcp = TcpHeader::new(1_000, 80, self.sequence, self.window);
        tcp.acknowledgment_number = 77;
        [tcp.cwr, tcp.ece, tcp.syn, tcp.ack, tcp.fin, tcp.psh] = self.flags;
        let options = [TcpOptionElement::Noop, TcpOptionElement::WindowScale(self.scale.unwrap_or(0))];
        if self.scale.is_some() {
            tcp.set_options(&options).unwrap();
        }
        let mut packet = Vec::new();
        if self.v6 {
            PacketBuilder::ipv6([1; 16], [2; 16], 64)
                .tcp_header(tcp)
                .write(&mut packet, &self.payload)
                .unwrap();
        } else {
            let mut ip =
                Ipv4Header { source: [10, 0, 0, 1], destination: [10, 0, 0, 2], ..Default::default() };
            ip.time_to_live = 64;
            ip.fragment_offset = IpFragOffset::ZERO;
            ip.options = vec![1; self.ip_options * 4].as_slice().try_into().unwrap();
            let ip = etherparse::IpHeaders::Ipv4(ip, etherparse::Ipv4Extensions::default());
            PacketBuilder::ip(ip).tcp_header(tcp).write(&mut packet, &self.payload).unwrap();
        }
        let mut frame = vec![2; 12];
        (0..self.tags).for_each(|tag| frame.extend([0x81, 0, 0, tag + 1]));
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(packet);
        frame
    }
}

/// The offload of a frame whose checksum is left to us, its field holding the pseudo-header's sum.
fn unfinished(frame: &mut [u8]) -> Offload {
    let parsed = parse(frame).unwrap();
    let ip = parsed.ip.unwrap();
    let field = usize::from(ip.l4) + 16;
    frame[field..field + 2].fill(0);
    // The sum of all that the checksum covers, less the part behind the pseudo-header, is the pseudo-header's.
    let whole = !full_checksum(frame);
    let covered = plimsoll_wire::ones_complement_sum(&frame[usize::from(ip.l4)..]);
    let pseudo = (u32::from(whole) + u32::from(!covered)) % 0xffff;
    frame[field..field + 2].copy_from_slice(&(pseudo as u16).to_be_bytes());
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        csum_start: ip.l4,
        csum_offset: 16,
        ..VnetHeader::default()
    };
    vnet.offload(frame, &parsed).unwrap()
}

/// The checksum that the segment should have, by the independent implementation.
fn full_checksum(frame: &[u8]) -> u16 {
    let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
    let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else { panic!("TCP") };
    match packet.net.unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap()
        }
        etherparse::NetSlice::Ipv6(ip) => {
            tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap()
        }
        _ => panic!("IP"),
    }
}

fn bits([cwr, ece, syn, ack, fin, psh]: [bool; 6]) -> TcpFlags {
    let all = [
        (cwr, TcpFlags::CWR),
        (ece, TcpFlags::ECE),
        (syn, TcpFlags::SYN),
        (ack, TcpFlags::ACK),
        (fin, TcpFlags::FIN),
        (psh, TcpFlags::NONE),
    ];
    all.into_iter().filter(|(set, _)| *set).fold(TcpFlags::NONE, |flags, (_, flag)| flags | flag)
}

fn read(frame: &[u8]) -> TcpSegment {
    TcpSegment::of(frame, &parse(frame).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// ECE, CWR and the window changed: byte for byte the packet that would have been built, checksum included.
    #[test]
    fn a_rewritten_segment_is_the_one_that_would_have_been_built(
        recipe in recipes(), cwr: bool, ece: bool, window: u16,
    ) {
        let mut frame = recipe.build();
        let mut segment = read(&frame);
        let marks = TcpFlags::CWR | TcpFlags::ECE;
        let wanted = bits([cwr, ece, false, false, false, false]);
        let flags = segment.flags.without(marks) | wanted;
        prop_assert!(segment.set_flags(&mut frame, flags, &Offload::PLAIN));
        prop_assert!(segment.set_window(&mut frame, window, &Offload::PLAIN));
        let mut expected = Recipe { window, ..recipe };
        (expected.flags[0], expected.flags[1]) = (cwr, ece);
        prop_assert_eq!(frame, expected.build());
    }

    /// Reads what the segment was built from.
    #[test]
    fn reading_finds_what_was_built(recipe in recipes()) {
        let frame = recipe.build();
        let segment = read(&frame);
        let marks = [TcpFlags::CWR, TcpFlags::ECE, TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN];
        prop_assert_eq!(marks.map(|flag| segment.flags.has(flag)), [0, 1, 2, 3, 4].map(|at: usize| recipe.flags[at]));
        prop_assert_eq!((segment.sequence, segment.acknowledged, segment.window), (recipe.sequence, 77, recipe.window));
        prop_assert_eq!(segment.payload as usize, recipe.payload.len());
        prop_assert_eq!(segment.window_scale(&frame), recipe.scale.map(|scale| scale.min(14)));
        let controls = u32::from(recipe.flags[2]) + u32::from(recipe.flags[4]);
        let end = recipe.sequence.wrapping_add(recipe.payload.len() as u32).wrapping_add(controls);
        prop_assert_eq!(segment.end(), end);
    }

    /// A checksum that is left to us is completed over the rewritten header.
    #[test]
    fn an_unfinished_checksum_is_finished_over_the_new_header(recipe in recipes(), window: u16) {
        let mut frame = recipe.build();
        let offload = unfinished(&mut frame);
        prop_assert_eq!(offload.kind, OffloadKind::Checksum);
        let mut segment = read(&frame);
        let flags = segment.flags | TcpFlags::ECE;
        prop_assert!(segment.set_flags(&mut frame, flags, &offload));
        prop_assert!(segment.set_window(&mut frame, window, &offload));
        prop_assert!(finish_checksum(&mut frame, offload.start.into(), offload.field.into()));
        let field = usize::from(offload.field);
        let written = u16::from_be_bytes([frame[field], frame[field + 1]]);
        let right = full_checksum(&frame);
        prop_assert!(written == right || (written, right) == (0xffff, 0), "{written:#06x} {right:#06x}");
    }

    /// A wrong checksum stays wrong by as much, so that the receiver still finds the fault.
    #[test]
    fn a_wrong_checksum_stays_wrong(recipe in recipes(), off in 1..0xffff_u16) {
        let mut frame = recipe.build();
        let field = usize::from(parse(&frame).unwrap().ip.unwrap().l4) + 16;
        let wrong = u16::from_be_bytes([frame[field], frame[field + 1]]).wrapping_add(off);
        prop_assume!(!(wrong == 0xffff && off == 0xffff));
        frame[field..field + 2].copy_from_slice(&wrong.to_be_bytes());
        let was_right = checks(&frame);
        let mut segment = read(&frame);
        let flags = segment.flags | TcpFlags::ECE | TcpFlags::CWR;
        prop_assert!(segment.set_flags(&mut frame, flags, &Offload::PLAIN));
        prop_assert_eq!(checks(&frame), was_right);
    }

    /// CWR on a frame that is cut is on its first segment only, and each segment's checksum is right.
    #[test]
    fn a_cwr_that_is_added_to_a_long_frame_is_on_its_first_segment(
        v6: bool, len in 3_000..9_000_usize, size in 500..1_400_u16,
    ) {
        let recipe = Recipe {
            v6, tags: 0, ip_options: 0, sequence: 5, window: 9, scale: None,
            flags: [false, false, false, true, false, true], payload: vec![7; len],
        };
        let mut frame = recipe.build();
        let ip = parse(&frame).unwrap().ip.unwrap();
        let vnet = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: if v6 { VnetHeader::GSO_TCPV6 } else { VnetHeader::GSO_TCPV4 },
            hdr_len: ip.payload, gso_size: size, csum_start: ip.l4, csum_offset: 16,
        };
        let offload = vnet.offload(&frame, &parse(&frame).unwrap()).unwrap();
        let mut header = read(&frame);
        let flags = header.flags | TcpFlags::CWR | TcpFlags::ECE;
        prop_assert!(header.set_flags(&mut frame, flags, &offload));
        prop_assert!(Ecn::Ce.write(&mut frame));
        let mut out = vec![0; 2_000];
        for (index, start) in (0..len).step_by(size.into()).enumerate() {
            let part = usize::from(size).min(len - start);
            let made = segment(&frame, &offload, start as u32, part as u32, &mut out).unwrap();
            let cut = read(&out[..made]);
            prop_assert_eq!(cut.flags.has(TcpFlags::CWR), index == 0);
            prop_assert!(cut.flags.has(TcpFlags::ECE), "each acknowledges, so each echoes");
            prop_assert!(checks(&out[..made]));
        }
    }

    /// Nothing but one whole TCP packet is read as a segment.
    #[test]
    fn fragments_and_other_protocols_are_no_segments(recipe in recipes(), protocol: u8, fragment in 1..0x2000_u16) {
        let recipe = Recipe { v6: false, tags: 0, ..recipe };
        let mut other = recipe.build();
        other[23] = protocol;
        let segment = parse(&other).ok().and_then(|parsed| TcpSegment::of(&other, &parsed));
        prop_assert_eq!(segment.is_some(), protocol == 6);
        let mut cut = recipe.build();
        cut[20..22].copy_from_slice(&fragment.to_be_bytes());
        prop_assert!(parse(&cut).ok().and_then(|parsed| TcpSegment::of(&cut, &parsed)).is_none());
        cut[20..22].copy_from_slice(&0x2000_u16.to_be_bytes());
        prop_assert!(parse(&cut).ok().and_then(|parsed| TcpSegment::of(&cut, &parsed)).is_none());
    }

    /// Options of any bytes end the search.
    #[test]
    fn any_options_are_searched_to_an_end(options in vec(any::<u8>(), 40)) {
        let mut frame = Recipe {
            v6: false, tags: 0, ip_options: 0, sequence: 0, window: 0, scale: None, flags: [false; 6],
            payload: options,
        }.build();
        frame[46] = 0xf0;
        let scale = read(&frame).window_scale(&frame);
        prop_assert!(scale.is_none_or(|scale| scale <= 14));
    }
}

fn checks(frame: &[u8]) -> bool {
    let field = usize::from(parse(frame).unwrap().ip.unwrap().l4) + 16;
    let written = u16::from_be_bytes([frame[field], frame[field + 1]]);
    let right = full_checksum(frame);
    written == right
        || [written, right].map(|sum| sum.wrapping_add(1)) == [0, 1]
        || [written, right].map(|sum| sum.wrapping_add(1)) == [1, 0]
}
