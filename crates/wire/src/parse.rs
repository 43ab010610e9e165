//! Parses headers, from Ethernet to the transport's ports.
//!
//! Why: classification and segmentation need a frame's fields and the offsets of its headers.
//! From: IEEE 802.3 and 802.1Q, RFC 791, RFC 8200, RFC 9293, RFC 768, RFC 9260.
//! Not here: tunnels (the contents of VXLAN or GRE are payload), and reassembly.
//! Invariant: the offsets in [`Parsed`] are in order and inside the frame: l3 ≤ l4 ≤ payload ≤ end ≤ length.
//!
//! Why no library: each malformation needs a counted reason of its own, segmentation needs the offsets of headers, and
//! the available libraries support neither stacked tags nor SCTP.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array, be16};
use crate::front::Front;
use crate::reason::FrameError;

/// The parsed headers of a frame; offsets count from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Destination address of the frame.
    pub dst_mac: Mac,
    /// Source address of the frame.
    pub src_mac: Mac,
    /// Identifier in the outermost VLAN tag; 0 without a tag (or with one that only carries a priority).
    pub vlan: u16,
    /// EtherType behind the tags; a length (below 0x600) for an 802.3 frame.
    pub ethertype: u16,
    /// Offset of the network header.
    pub l3: u16,
    /// The IP packet, if it is one.
    pub ip: Option<Ip>,
}

/// The parsed headers of an IP packet; offsets count from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Protocol behind the extension headers.
    pub protocol: u8,
    /// Upper six bits of the traffic class.
    pub dscp: u8,
    /// Lower two bits of the traffic class.
    pub ecn: u8,
    /// Whether the packet is whole.
    pub fragment: Fragment,
    /// Source and destination port, for TCP, UDP and SCTP; none in fragments after the first.
    pub ports: Option<(u16, u16)>,
    /// Offset of the transport header, or of whatever follows the IP headers.
    pub l4: u16,
    /// Offset of the transport's payload; `l4` when the transport is unknown or the packet a fragment.
    pub payload: u16,
    /// Offset of the packet's end; the frame may have padding behind it.
    pub end: u32,
    /// Offset of the destination address that the transport's checksum covers: with a routing header it is not the
    /// IP header's. None where it is not known.
    pub final_dst: Option<u16>,
}

/// The part of an IP packet that a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// The whole packet.
    Whole,
    /// The first fragment, with the transport header. Also an IPv6 packet with a fragment header and all its data.
    First,
    /// A fragment after the first.
    Later,
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// Numbers of the transport protocols whose ports are parsed.
pub mod protocol {
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// Parses a frame without preamble and check sequence.
///
/// A frame that is not IP parses without addresses. Padding behind an IP packet is allowed. Reads at most two tags and
/// eight extension headers, so its time is bounded; about 15 ns for TCP over IPv4.
///
/// # Errors
/// The first malformation found, a reason to count and drop the frame.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed, FrameError> {
    parse_front(Front::whole(frame))
}

/// Like [`parse`], for a frame whose headers may be all that is at hand. Where they are not, it may be called malformed, as a frame
/// that ends there is: only a success tells about the whole frame.
///
/// # Errors
/// The first malformation found.
pub fn parse_front(front: Front<'_>) -> Result<Parsed, FrameError> {
    let frame = front.bytes();
    let (Some(dst_mac), Some(src_mac), Some(mut ethertype)) =
        (array(frame, 0), array(frame, 6), be16(frame, 12))
    else {
        return Err(FrameError::TooShort);
    };
    let mut l3 = ETHERNET;
    let mut vlan = 0;
    while is_tag(ethertype) {
        let (Some(control), Some(inner)) = (be16(frame, l3), be16(frame, l3 + 2)) else {
            return Err(FrameError::TagCut);
        };
        match l3 {
            ETHERNET => vlan = control & 0x0fff,
            ONE_TAG => {}
            _ => return Err(FrameError::TooManyTags),
        }
        ethertype = inner;
        l3 += 4;
    }
    let ip = match ethertype {
        IPV4 => Some(parse_v4(front, l3)?),
        IPV6 => Some(parse_v6(front, l3)?),
        _ => None,
    };
    Ok(Parsed { dst_mac: Mac(dst_mac), src_mac: Mac(src_mac), vlan, ethertype, l3: place(l3), ip })
}

impl Parsed {
    /// Source and destination address, for IP.
    #[inline]
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.ip.as_ref().map(|ip| (ip.src, ip.dst))
    }

    /// IP protocol number.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> Option<u8> {
        self.ip.as_ref().map(|ip| ip.protocol)
    }

    /// Source and destination port, for TCP, UDP and SCTP.
    #[inline]
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        self.ip.as_ref().and_then(|ip| ip.ports)
    }

    /// DSCP; 0 for a frame that is not IP.
    #[inline]
    #[must_use]
    pub fn dscp(&self) -> u8 {
        self.ip.as_ref().map_or(0, |ip| ip.dscp)
    }
}

impl Mac {
    /// Destination and source address of a frame, for forwarding without parsing the rest; none when they are cut off.
    #[must_use]
    pub fn pair(frame: &[u8]) -> Option<(Mac, Mac)> {
        Some((Mac(array(frame, 0)?), Mac(array(frame, 6)?)))
    }

    /// Whether the address is a group's; broadcast is one.
    #[must_use]
    pub const fn is_group(self) -> bool {
        let Mac([first, ..]) = self;
        first & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mac([a, b, c, d, e, g]) = self;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The offset of a frame's IP header, behind two tags at most, and whether it is IPv4; none where the fixed header is cut
/// off or its version is not that of the EtherType.
#[must_use]
pub fn network_header(frame: &[u8]) -> Option<(usize, bool)> {
    let (mut at, mut ethertype) = (ETHERNET, be16(frame, 12)?);
    while is_tag(ethertype) && at <= ONE_TAG {
        ethertype = be16(frame, at + 2)?;
        at += 4;
    }
    let [first] = array(frame, at)?;
    let (version, len) = match ethertype {
        IPV4 => (4, 20),
        IPV6 => (6, IPV6_HEADER),
        _ => return None,
    };
    (first >> 4 == version && frame.len() >= at + len).then_some((at, ethertype == IPV4))
}

fn parse_v4(frame: Front<'_>, l3: usize) -> Result<Ip, FrameError> {
    let header: [u8; 20] = frame.array(l3).ok_or(FrameError::IpCut)?;
    let [first, tos, len_0, len_1, _, _, frag_0, frag_1, _, protocol, _, _, addresses @ ..] = header;
    if first >> 4 != 4 {
        return Err(FrameError::BadVersion);
    }
    let header_len = usize::from(first & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([len_0, len_1]));
    if header_len < header.len() || header_len > total {
        return Err(FrameError::BadHeaderLength);
    }
    let packet = frame.until(l3 + total).ok_or(FrameError::LengthBeyondFrame)?;

    let fragment = match u16::from_be_bytes([frag_0, frag_1]) & 0x3fff {
        0 => Fragment::Whole,
        MORE_FRAGMENTS_V4 => Fragment::First,
        _ => Fragment::Later,
    };
    let [a, b, c, d, e, f, g, h] = addresses;
    let l4 = l3 + header_len;
    let transport = parse_transport(packet, l4, protocol, fragment)?;
    Ok(Ip {
        src: Ipv4Addr::new(a, b, c, d).into(),
        dst: Ipv4Addr::new(e, f, g, h).into(),
        protocol,
        dscp: tos >> 2,
        ecn: tos & 3,
        fragment,
        ports: transport.ports,
        l4: place(l4),
        payload: place(transport.payload),
        end: end(packet),
        final_dst: Some(place(l3 + 16)),
    })
}

fn parse_v6(frame: Front<'_>, l3: usize) -> Result<Ip, FrameError> {
    let header: [u8; IPV6_HEADER] = frame.array(l3).ok_or(FrameError::IpCut)?;
    let [first, second, _, _, len_0, len_1, next, _, ..] = header;
    if first >> 4 != 6 {
        return Err(FrameError::BadVersion);
    }
    let len = usize::from(u16::from_be_bytes([len_0, len_1]));
    let packet = frame.until(l3 + IPV6_HEADER + len).ok_or(FrameError::LengthBeyondFrame)?;

    let chain = walk_extensions(packet, l3, next)?;
    let transport = parse_transport(packet, chain.l4, chain.protocol, chain.fragment)?;
    let class = (first << 4) | (second >> 4);
    let (src, dst): (Option<[u8; 16]>, Option<[u8; 16]>) = (array(&header, 8), array(&header, 24));
    let (Some(src), Some(dst)) = (src, dst) else { return Err(FrameError::IpCut) };
    Ok(Ip {
        src: Ipv6Addr::from(src).into(),
        dst: Ipv6Addr::from(dst).into(),
        protocol: chain.protocol,
        dscp: class >> 2,
        ecn: class & 3,
        fragment: chain.fragment,
        ports: transport.ports,
        l4: place(chain.l4),
        payload: place(transport.payload),
        end: end(packet),
        final_dst: chain.final_dst.map(place),
    })
}

/// The end of a chain of IPv6 extension headers.
struct Chain {
    protocol: u8,
    l4: usize,
    fragment: Fragment,
    final_dst: Option<usize>,
}

/// Follows at most [`MAX_EXTENSIONS`] headers; behind the fragment header of a later fragment there is only data.
fn walk_extensions(packet: Front<'_>, l3: usize, next: u8) -> Result<Chain, FrameError> {
    let l4 = l3 + IPV6_HEADER;
    let mut chain = Chain { protocol: next, l4, fragment: Fragment::Whole, final_dst: Some(l3 + 24) };
    for _ in 0..=MAX_EXTENSIONS {
        if !is_extension(chain.protocol) || chain.fragment == Fragment::Later {
            return Ok(chain);
        }
        let [next, len, kind, left, ..]: [u8; 8] = packet.array(chain.l4).ok_or(FrameError::ExtensionCut)?;
        let len = if chain.protocol == FRAGMENT { 8 } else { usize::from(len) * 8 + 8 };
        if packet.len() - chain.l4 < len {
            return Err(FrameError::ExtensionCut);
        }
        match chain.protocol {
            // `kind` and `left` are the offset in units of 8 bytes, two spare bits and "more".
            FRAGMENT if u16::from_be_bytes([kind, left]) & 0xfff8 == 0 => chain.fragment = Fragment::First,
            FRAGMENT => chain.fragment = Fragment::Later,
            ROUTING if left > 0 => chain.final_dst = last_of_route(kind, len, chain.l4),
            _ => {}
        }
        chain.protocol = next;
        chain.l4 += len;
    }
    Err(FrameError::TooManyExtensions)
}

/// Offset of the last address in a routing header with segments left: segment routing lists it first (RFC 8754), and
/// mobility has only one (RFC 6275).
fn last_of_route(kind: u8, len: usize, at: usize) -> Option<usize> {
    (matches!(kind, SEGMENT_ROUTING | MOBILITY_ROUTING) && len >= 24).then_some(at + 8)
}

/// The ports, and the offset of the payload.
struct Transport {
    ports: Option<(u16, u16)>,
    payload: usize,
}

fn parse_transport(
    packet: Front<'_>,
    l4: usize,
    protocol: u8,
    fragment: Fragment,
) -> Result<Transport, FrameError> {
    let has_ports = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
    if !has_ports || fragment == Fragment::Later {
        return Ok(Transport { ports: None, payload: l4 });
    }
    let header = packet.from(l4);
    let (Some(src), Some(dst)) = (be16(header.bytes(), 0), be16(header.bytes(), 2)) else {
        return Err(FrameError::TransportCut);
    };
    let len = match fragment {
        Fragment::Whole => transport_header(header, protocol)?,
        _ => 0,
    };
    Ok(Transport { ports: Some((src, dst)), payload: l4 + len })
}

/// Length of the transport header at the start of `bytes`, which end with the packet.
fn transport_header(bytes: Front<'_>, protocol: u8) -> Result<usize, FrameError> {
    match protocol {
        protocol::TCP => {
            let [.., offset, _, _, _, _, _, _, _]: [u8; 20] =
                bytes.array(0).ok_or(FrameError::TransportCut)?;
            let len = usize::from(offset >> 4) * 4;
            let fits = len >= 20 && len <= bytes.len();
            if fits { Ok(len) } else { Err(FrameError::BadTransportHeader) }
        }
        protocol::UDP => {
            let [_, _, _, _, len_0, len_1, _, _]: [u8; 8] = bytes.array(0).ok_or(FrameError::TransportCut)?;
            let len = usize::from(u16::from_be_bytes([len_0, len_1]));
            let fits = len >= 8 && len <= bytes.len();
            if fits { Ok(8) } else { Err(FrameError::BadTransportLength) }
        }
        _ if bytes.len() < 12 => Err(FrameError::TransportCut),
        _ => Ok(12),
    }
}

const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

const fn is_extension(protocol: u8) -> bool {
    matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}

/// An offset of a header as 16 bits: the longest possible chain of headers ends before 17 KiB.
fn place(at: usize) -> u16 {
    debug_assert!(at <= LONGEST_HEADERS, "header offset bound");
    at as u16
}

/// The offset of a packet's end as 32 bits: at most 64 KiB behind its IPv6 header.
fn end(packet: Front<'_>) -> u32 {
    packet.len() as u32
}

pub(crate) const ETHERNET: usize = 14;
const ONE_TAG: usize = ETHERNET + 4;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
const MORE_FRAGMENTS_V4: u16 = 0x2000;
pub(crate) const IPV6_HEADER: usize = 40;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const SEGMENT_ROUTING: u8 = 4;
const MOBILITY_ROUTING: u8 = 2;
/// RFC 8200 recommends at most five or six; a few more are harmless.
const MAX_EXTENSIONS: usize = 8;
/// Two tags, the IPv6 header, extension headers of 2 KiB each and the longest TCP header.
const LONGEST_HEADERS: usize = ETHERNET + 8 + IPV6_HEADER + MAX_EXTENSIONS * 2_048 + 60;

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
