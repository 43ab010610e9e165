//! However a frame is pulled, what leaves is what an independent implementation would have built.
//!
//! Frames, and each expected segment, are built by `etherparse`, which knows nothing of segmentation: it makes one
//! packet with the segment's payload, identifier, sequence number and flags, and its own lengths and checksums.

use etherparse::{
    DoubleVlanHeader, EtherType, IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4Options,
    Ipv6Extensions, Ipv6Header, Ipv6RawExtHeader, PacketBuilder, PacketBuilderStep, SingleVlanHeader,
    TcpHeader, TcpOptions, VlanHeader, VlanId, VlanPcp,
};
use plimsoll_wire::{FlowKey, Offload, Parsed, VnetHeader, parse, segment, split, supersegment};
use proptest::collection::vec;
use proptest::prelude::*;

/// What a frame is made of.
#[derive(Clone, Debug)]
struct Recipe {
    tags: Vec<u16>,
    v6: bool,
    tcp: bool,
    /// Words of IPv4 or TCP options, units of IPv6 destination options.
    ip_options: usize,
    tcp_options: usize,
    traffic_class: u8,
    ports: (u16, u16),
    id: u16,
    sequence: u32,
    cwr: bool,
    psh: bool,
    fin: bool,
}

impl Recipe {
    fn build(&self, payload: &[u8]) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let tag = |id: &u16| SingleVlanHeader {
            pcp: VlanPcp::try_new(3).unwrap(),
            drop_eligible_indicator: false,
            vlan_id: VlanId::try_new(*id).unwrap(),
            ether_type: EtherType(0),
        };
        let ip = match self.tags.as_slice() {
            [] => link.ip(self.ip()),
            [one] => link.vlan(VlanHeader::Single(tag(one))).ip(self.ip()),
            [outer, inner, ..] => {
                let tags = DoubleVlanHeader { outer: tag(outer), inner: tag(inner) };
                link.vlan(VlanHeader::Double(tags)).ip(self.ip())
            }
        };
        let mut frame = Vec::new();
        if self.tcp {
            write(ip.tcp_header(self.tcp_header()), &mut frame, payload)
        } else {
            ip.udp(self.ports.0, self.ports.1).write(&mut frame, payload).unwrap();
        }
        frame
    }

    fn ip(&self) -> IpHeaders {
        let protocol = if self.tcp { IpNumber::TCP } else { IpNumber::UDP };
        if self.v6 {
            let header = Ipv6Header {
                traffic_class: self.traffic_class,
                hop_limit: 64,
                next_header: protocol,
                source: [0x20; 16],
                destination: [0x31; 16],
                ..Ipv6Header::default()
            };
            let mut extensions = Ipv6Extensions::default();
            if self.ip_options > 0 {
                let options = vec![0; 6 + 8 * (self.ip_options - 1)];
                extensions.hop_by_hop_options = Some(Ipv6RawExtHeader::new_raw(protocol, &options).unwrap());
                extensions.destination_options = extensions.hop_by_hop_options.clone();
            }
            IpHeaders::Ipv6(header, extensions)
        } else {
            let mut options = Ipv4Options::new();
            if self.ip_options > 0 {
                options = vec![1; self.ip_options * 4].as_slice().try_into().unwrap();
            }
            let header = Ipv4Header {
                dscp: (self.traffic_class >> 2).try_into().unwrap(),
                ecn: (self.traffic_class & 3).try_into().unwrap(),
                identification: self.id,
                dont_fragment: true,
                fragment_offset: IpFragOffset::ZERO,
                time_to_live: 64,
                protocol,
                source: [10, 0, 0, 1],
                destination: [203, 0, 113, 9],
                options,
                ..Ipv4Header::default()
            };
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        }
    }

    fn tcp_header(&self) -> TcpHeader {
        let mut header = TcpHeader::new(self.ports.0, self.ports.1, self.sequence, 512);
        header.ack = true;
        header.acknowledgment_number = 77;
        (header.cwr, header.psh, header.fin) = (self.cwr, self.psh, self.fin);
        header.options = TcpOptions::try_from_slice(&vec![1; self.tcp_options * 4]).unwrap();
        header
    }

    /// What a segment should have been built from.
    fn of_segment(&self, offset: usize, index: usize, last: bool) -> Recipe {
        Recipe {
            id: self.id.wrapping_add(index as u16),
            sequence: self.sequence.wrapping_add(offset as u32),
            cwr: self.cwr && offset == 0,
            psh: self.psh && last,
            fin: self.fin && last,
            ..self.clone()
        }
    }

    /// What Linux would write before such a frame.
    fn vnet(&self, parsed: &Parsed, gso_size: u16) -> VnetHeader {
        let ip = parsed.ip.unwrap();
        let gso_type = match (self.tcp, self.v6) {
            (true, false) => VnetHeader::GSO_TCPV4,
            (true, true) => VnetHeader::GSO_TCPV6,
            (false, _) => VnetHeader::GSO_UDP_L4,
        };
        VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: gso_type | if self.cwr && self.tcp { VnetHeader::GSO_ECN } else { 0 },
            hdr_len: ip.payload,
            gso_size,
            csum_start: ip.l4,
            csum_offset: if self.tcp { 16 } else { 6 },
        }
    }
}

fn write(step: PacketBuilderStep<TcpHeader>, frame: &mut Vec<u8>, payload: &[u8]) {
    step.write(frame, payload).unwrap();
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let shape = (vec(1..4_095_u16, 0..=2), any::<bool>(), any::<bool>(), 0..=3_usize, 0..=10_usize);
    let fields = (any::<u8>(), any::<(u16, u16)>(), any::<u16>(), any::<u32>());
    (shape, fields, any::<(bool, bool, bool)>()).prop_map(|(shape, fields, (cwr, psh, fin))| {
        let (tags, v6, tcp, ip_options, tcp_options) = shape;
        let (traffic_class, ports, id, sequence) = fields;
        Recipe { tags, v6, tcp, ip_options, tcp_options, traffic_class, ports, id, sequence, cwr, psh, fin }
    })
}

/// Payloads from one byte to nearly what an IP packet can hold, that do not repeat within a segment.
fn payloads() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![4 => 1..8_000_usize, 1 => 8_000..65_300_usize];
    (len, any::<u32>()).prop_map(|(len, seed)| {
        (0..len as u32).map(|n| (n.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    })
}

/// A frame with the offload that a TAP would give it.
fn offloaded(recipe: &Recipe, payload: &[u8], size: u16) -> (Vec<u8>, Offload) {
    // USO stops at 128 datagrams.
    let least = if recipe.tcp { 8 } else { payload.len().div_ceil(128) as u16 };
    let frame = recipe.build(payload);
    let parsed = parse(&frame).unwrap();
    let offload = recipe.vnet(&parsed, size.max(least)).offload(&frame, &parsed).unwrap();
    (frame, offload)
}

/// Starts and lengths of pulls of `step` bytes.
fn pulls(payload: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..payload).step_by(step).map(move |start| (start, step.min(payload - start)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Parsing finds what the frame was built from.
    #[test]
    fn parsing_finds_what_was_built(recipe in recipes(), payload in vec(any::<u8>(), 0..200), padding in 0..9_usize) {
        let mut frame = recipe.build(&payload);
        frame.resize(frame.len() + padding, 0);
        let parsed = parse(&frame).unwrap();
        prop_assert_eq!(parsed.vlan, recipe.tags.first().copied().unwrap_or(0));
        prop_assert_eq!(parsed.ports(), Some(recipe.ports));
        prop_assert_eq!(parsed.dscp(), recipe.traffic_class >> 2);
        prop_assert_eq!(parsed.protocol(), Some(if recipe.tcp { 6 } else { 17 }));
        prop_assert_eq!(parsed.addresses().unwrap().0.is_ipv6(), recipe.v6);
        let ip = parsed.ip.unwrap();
        prop_assert_eq!(ip.ecn, recipe.traffic_class & 3);
        prop_assert_eq!(&frame[ip.payload.into()..ip.end as usize], &payload[..]);
    }

    /// Each segment is, byte for byte, the packet that would have been built for its part of the payload.
    #[test]
    fn segments_are_what_would_have_been_built(recipe in recipes(), payload in payloads(), size in 1..9_000_u16) {
        let (frame, offload) = offloaded(&recipe, &payload, size);
        let key = FlowKey::of(&parse(&frame).unwrap());
        let mut out = vec![0; 70_000];
        if offload.segment == 0 {
            let len = segment(&frame, &offload, 0, frame.len() as u32, &mut out).unwrap();
            prop_assert_eq!(out[..len].len(), frame.len());
            return Ok(());
        }
        for (index, (start, len)) in pulls(payload.len(), offload.segment.into()).enumerate() {
            let written = segment(&frame, &offload, start as u32, len as u32, &mut out).unwrap();
            let last = start + len == payload.len();
            let expected = recipe.of_segment(start, index, last).build(&payload[start..start + len]);
            prop_assert!(out[..written] == expected, "segment {} of {:?}", index, offload);
            prop_assert_eq!(FlowKey::of(&parse(&out[..written]).unwrap()), key);
        }
    }

    /// A device that takes offloads makes the same segments of a few large pulls as we make of many small ones.
    #[test]
    fn supersegments_become_the_same_segments(
        recipe in recipes(), payload in payloads(), size in 1..9_000_u16, together in 1..9_usize,
    ) {
        let (frame, offload) = offloaded(&recipe, &payload, size);
        prop_assume!(offload.segment > 0);
        let (mut large, mut headers, mut out) = (vec![0; 70_000], vec![0; 1_000], vec![0; 70_000]);
        let mut index = 0;
        for (start, len) in pulls(payload.len(), usize::from(offload.segment) * together) {
            let (written, vnet) = supersegment(&frame, &offload, start as u32, len as u32, &mut large).unwrap();
            let split = split(&frame, &offload, start as u32, len as u32, &mut headers).unwrap();
            prop_assert_eq!([&headers[..split.header], &frame[split.payload]].concat(), &large[..written]);
            prop_assert_eq!(split.vnet, vnet);

            let parsed = parse(&large[..written]).unwrap();
            let inner = vnet.offload(&large[..written], &parsed).unwrap();
            let (step, header) = match inner.segment {
                0 => (written, 0),
                segment => (segment.into(), usize::from(inner.header)),
            };
            for (part, part_len) in pulls(written - header, step) {
                let made = segment(&large[..written], &inner, part as u32, part_len as u32, &mut out).unwrap();
                let at = start + part;
                let piece = &payload[at..(at + usize::from(offload.segment)).min(payload.len())];
                let last = at + piece.len() == payload.len();
                let expected = recipe.of_segment(at, index, last).build(piece);
                prop_assert!(equal_but_for_zero_checksum(&out[..made], &expected, &inner), "segment {}", index);
                index += 1;
            }
        }
    }

    /// A checksum that a tenant left to us verifies afterwards, by the independent implementation.
    #[test]
    fn unfinished_checksums_are_finished(recipe in recipes(), payload in vec(any::<u8>(), 0..3_000)) {
        let expected = recipe.build(&payload);
        let parsed = parse(&expected).unwrap();
        let vnet = VnetHeader { gso_type: VnetHeader::GSO_NONE, ..recipe.vnet(&parsed, 0) };
        let offload = vnet.offload(&expected, &parsed).unwrap();
        let mut frame = expected.clone();
        let field = usize::from(offload.field);
        frame[field..field + 2].copy_from_slice(&pseudo_header_sum(&parsed).to_be_bytes());
        let mut out = vec![0; frame.len()];
        segment(&frame, &offload, 0, frame.len() as u32, &mut out).unwrap();
        prop_assert!(equal_but_for_zero_checksum(&out, &expected, &offload));
    }
}

/// TCP may write a checksum of zero as 0 or as 0xffff.
fn equal_but_for_zero_checksum(made: &[u8], expected: &[u8], offload: &Offload) -> bool {
    let field = usize::from(offload.field);
    let mut made = made.to_vec();
    if made[field..field + 2] == [0xff, 0xff] && expected[field..field + 2] == [0, 0] {
        made[field..field + 2].fill(0);
    }
    made == expected
}

/// 16 bits at a time, as the RFCs write it down.
fn pseudo_header_sum(parsed: &Parsed) -> u16 {
    let ip = parsed.ip.unwrap();
    let octets = |addr| match addr {
        core::net::IpAddr::V4(addr) => addr.octets().to_vec(),
        core::net::IpAddr::V6(addr) => addr.octets().to_vec(),
    };
    let addresses = [octets(ip.src), octets(ip.dst)].concat();
    let words = addresses.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = words.sum::<u32>() + u32::from(ip.protocol) + ip.end - u32::from(ip.l4);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
