//! The headers that a packet would have on a wire.
//!
//! Why: a capture and a tenant's program want bytes, and the simulator keeps fields.
//! From: headers through `etherparse`; TCP's numbers through `said`.
//! Not here: payload: it is the datagram's number, and then zeros.
//! Invariant: the same packet behind the same packets has the same bytes.

use std::io;

use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, TcpHeader, TcpOptionElement, UdpHeader,
};
use plimsoll_units::Nanos;

use crate::flow::Flow;
use crate::packet::{Body, Packet};
use crate::said::{Header, Said, WINDOW_SCALE};
use crate::tcp::{self, Ecn};

/// The first bytes of each hardware address: locally administered, as in the lab.
const CARD: [u8; 2] = [0x02, 0x77];

/// Payload: all zeros.
pub(crate) static NOTHING: [u8; 65_536] = [0; 65_536];

/// Adds a packet's headers. `said` is what its end said before, at the place where the packet is seen.
pub(crate) fn write_headers(
    to: &mut Vec<u8>,
    flow: &Flow,
    packet: &Packet,
    said: &mut Said,
) -> io::Result<()> {
    let (from, peer) = flow.way(packet.back);
    let card = |address: std::net::Ipv4Addr| {
        let [a, b, c, d] = address.octets();
        [CARD[0], CARD[1], a, b, c, d]
    };
    let ethernet = Ethernet2Header {
        source: card(from.address),
        destination: card(peer.address),
        ether_type: EtherType::IPV4,
    };
    ethernet.write(to)?;
    let protocol = if matches!(packet.body, Body::Tcp(_)) { IpNumber::TCP } else { IpNumber::UDP };
    let payload = u16::try_from(packet.len.saturating_sub(34)).unwrap_or(u16::MAX);
    let addresses = (from.address.octets(), peer.address.octets());
    let mut ip =
        Ipv4Header::new(payload, 64, protocol, addresses.0, addresses.1).map_err(io::Error::other)?;
    ip.dscp = from.dscp.try_into().unwrap_or_default();
    ip.dont_fragment = matches!(packet.body, Body::Tcp(_));
    match packet.body {
        Body::Datagram { number, offset, size, last } => {
            ip.identification = number as u16;
            ip.more_fragments = !last;
            ip.fragment_offset = IpFragOffset::try_new(offset / 8).unwrap_or_default();
            finish_ip(&mut ip, packet, if packet.ect { Ecn::Ect0 } else { Ecn::NotEct });
            ip.write(to)?;
            if offset == 0 {
                let (source_port, destination_port) = (from.port, peer.port);
                // A checksum of 0 is none, which IPv4 allows.
                let length = size.saturating_add(8);
                UdpHeader { source_port, destination_port, length, checksum: 0 }.write(to)?;
                to.extend_from_slice(&number.to_be_bytes()[..usize::from(size.min(8))]);
            }
        }
        Body::Tcp(body) => {
            finish_ip(&mut ip, packet, body.segment.map_or(Ecn::NotEct, |segment| segment.ecn));
            ip.write(to)?;
            let mut header = tcp_header(&body, (from.port, peer.port), said)?;
            let data = usize::try_from(body.len()).unwrap_or(0).min(NOTHING.len() - 128);
            header.checksum = header
                .calc_checksum_ipv4_raw(addresses.0, addresses.1, &NOTHING[..data])
                .map_err(io::Error::other)?;
            header.write(to)?;
        }
    }
    Ok(())
}

fn finish_ip(ip: &mut Ipv4Header, packet: &Packet, ecn: Ecn) {
    use etherparse::IpEcn;
    let ecn = if packet.ce { Ecn::Ce } else { ecn };
    ip.ecn = match ecn {
        Ecn::NotEct => IpEcn::ZERO,
        Ecn::Ect1 => IpEcn::ONE,
        Ecn::Ect0 => IpEcn::TWO,
        Ecn::Ce => IpEcn::THREE,
    };
    ip.header_checksum = ip.calc_header_checksum();
}

fn tcp_header(
    packet: &tcp::Packet,
    (source, destination): (u16, u16),
    said: &mut Said,
) -> io::Result<TcpHeader> {
    let Header { syn, ack, psh, cwr, ece, sequence, acknowledged, window } = said.header(packet);
    let mut header = TcpHeader::new(source, destination, sequence, window);
    (header.syn, header.ack, header.psh) = (syn, ack, psh);
    (header.cwr, header.ece) = (cwr, ece);
    header.acknowledgment_number = acknowledged;
    let millis = |at: Nanos| (at.as_u64() / 1_000_000) as u32;
    let sent = packet.segment.map_or(0, |segment| millis(segment.sent));
    let echo = packet.ack.map_or(0, |ack| millis(ack.echo));
    let mut options = Vec::with_capacity(8);
    if syn {
        let mss = packet.segment.map_or(1_448, |segment| segment.mss);
        options.extend([
            TcpOptionElement::MaximumSegmentSize(mss.saturating_add(12)),
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(sent, echo),
            TcpOptionElement::Noop,
            TcpOptionElement::WindowScale(WINDOW_SCALE),
        ]);
    } else {
        options.extend([
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(sent, echo),
        ]);
    }
    if let Some(ack) = packet.ack {
        let edge = |offset: u64| (offset as u32).wrapping_add(1);
        let mut blocks = ack.blocks().map(|block| (edge(block.start), edge(block.end)));
        if let Some(first) = blocks.next() {
            let rest = [blocks.next(), blocks.next(), None];
            options.extend([TcpOptionElement::Noop, TcpOptionElement::Noop]);
            options.push(TcpOptionElement::SelectiveAcknowledgement(first, rest));
        }
    }
    header.set_options(&options).map_err(io::Error::other)?;
    Ok(header)
}
