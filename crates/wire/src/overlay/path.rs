//! Encapsulation: writes the outer headers from this host to another in front of a frame.
//!
//! Why: the frame lies finished in its buffer, so only headers need to be written.
//! From: RFC 7348 §5 and RFC 8926 §3 (headers, source port), RFC 6864 (identifier 0 when it is not to be fragmented),
//! RFC 6438 (flow label), RFC 6936 (UDP checksum over IPv6), RFC 6040 §4.1 (ECN).
//! Not here: choosing the other host, and finding the next hop's Ethernet address.
//! Invariant: a packet is no longer than its path's MTU, and its checksums verify.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Family, Format, HAS_VNI, Ports, SEALED_HEAD, SEALED_TAG, TUNNEL, UDP, Vni, geneve};
use crate::bytes::put;
use crate::checksum::{add, nonzero, ones_complement_sum};
use crate::ecn::Ecn;
use crate::parse::{ETHERNET, IPV4, IPV6, Mac, protocol};
use crate::reason::EncapsulationError;

/// The properties that all packets from this host to another host have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The tunnel format.
    pub format: Format,
    /// This host's Ethernet address.
    pub src_mac: Mac,
    /// The next hop's Ethernet address.
    pub dst_mac: Mac,
    /// Both hosts' addresses.
    pub addresses: Addresses,
    /// The outer DSCP, below 64. Never the tenant's own, which would let it choose its place in the fabric.
    pub dscp: u8,
    /// The longest IP packet that the underlay carries.
    pub mtu: u16,
    /// Whether UDP over IPv6 has a checksum. It must have one (RFC 8200 §8.1) unless both hosts and all devices between
    /// them follow RFC 6936 §4 and 5. UDP over IPv4 has none here: the inner packet has its own (RFC 7348 §5).
    pub v6_checksum: bool,
    /// Whether all packets are sent as ECN-capable, also when the frame inside is not. For hosts with a control loop of
    /// their own that reacts to the fabric's marks and removes them again ([`Checks::heeded`](super::Checks)).
    pub capable: bool,
    /// The UDP ports on which both hosts listen.
    pub ports: Ports,
}

/// Both hosts' addresses in the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Over IPv4.
    V4 {
        /// Address of this host.
        src: Ipv4Addr,
        /// Address of the other host.
        dst: Ipv4Addr,
    },
    /// Over IPv6.
    V6 {
        /// Address of this host.
        src: Ipv6Addr,
        /// Address of the other host.
        dst: Ipv6Addr,
    },
}

/// The tunnel fields of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Inner<'m> {
    /// The tenant's network.
    pub vni: Vni,
    /// A hash of the inner flow, equal for all its frames, so that the fabric sends them along one route.
    pub flow_hash: u64,
    /// Sealed feedback for the other host: 1 to [`MOST_IN_OPTION`](super::MOST_IN_OPTION) bytes, with Geneve.
    pub feedback: Option<&'m [u8]>,
}

/// The UDP source port of a flow, by which the fabric spreads flows over routes: 49152 to 65535 (RFC 7348 §5).
#[must_use]
pub const fn source_port(flow_hash: u64) -> u16 {
    49_152 + (mixed(flow_hash) >> 50) as u16
}

/// Mixes a hash so that every bit counts, also when a caller's hashes have few bits.
const fn mixed(flow_hash: u64) -> u64 {
    (flow_hash ^ flow_hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Addresses {
    /// The pair of addresses; none when one is IPv4 and the other IPv6.
    #[must_use]
    pub const fn new(src: IpAddr, dst: IpAddr) -> Option<Addresses> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Addresses::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Addresses::V6 { src, dst }),
            _ => None,
        }
    }

    /// The IP version of both addresses.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self {
            Addresses::V4 { .. } => Family::V4,
            Addresses::V6 { .. } => Family::V6,
        }
    }
}

impl Path {
    /// Length of the headers before a frame, including an option with this many bytes of feedback.
    #[must_use]
    pub const fn head_room(&self, feedback: Option<usize>) -> usize {
        let option = match feedback {
            Some(len) => geneve::option_len(len),
            None => 0,
        };
        ETHERNET + self.addresses.family().header() + UDP + TUNNEL + option
    }

    /// The longest IP packet that tenants may send on this path with `feedback` bytes of feedback (0: none).
    #[must_use]
    pub const fn inner_mtu(&self, feedback: usize) -> u16 {
        self.format.inner_mtu(self.addresses.family(), self.mtu, feedback)
    }

    /// Writes the headers in front of the finished frame `buffer[start..]` and returns the offset at which they begin.
    /// About 20 ns over IPv4; over IPv6 also one pass over the packet for the checksum.
    ///
    /// # Errors
    /// [`EncapsulationError`]; nothing has been written then.
    pub fn encapsulate(
        &self,
        buffer: &mut [u8],
        start: usize,
        inner: &Inner<'_>,
    ) -> Result<usize, EncapsulationError> {
        let frame = buffer.get(start..).ok_or(EncapsulationError::NoRoom)?;
        let ecn = self.outer_ecn(frame);
        let begin = self.begin(frame.len(), start, inner)?;
        let packet = buffer.get_mut(begin..).ok_or(EncapsulationError::NoRoom)?;
        self.write(packet, inner, ecn).ok_or(EncapsulationError::NoRoom)?;
        Ok(begin)
    }

    /// Like [`Path::encapsulate`], for a sealed frame: `buffer[start..]` is its head, ciphertext and tag. `ecn` is the
    /// result of [`Path::outer_ecn`] for the frame before it was sealed.
    ///
    /// # Errors
    /// [`EncapsulationError`], also when the format is not Geneve; nothing has been written then.
    pub fn encapsulate_sealed(
        &self,
        buffer: &mut [u8],
        start: usize,
        inner: &Inner<'_>,
        ecn: Ecn,
    ) -> Result<usize, EncapsulationError> {
        let sealed = buffer.get(start..).ok_or(EncapsulationError::NoRoom)?.len();
        if self.format != Format::Geneve || sealed < SEALED_HEAD + ETHERNET + SEALED_TAG {
            return Err(EncapsulationError::FrameCut);
        }
        let begin = self.begin(sealed, start, inner)?;
        let packet = buffer.get_mut(begin..).ok_or(EncapsulationError::NoRoom)?;
        self.write_tunnel(packet, inner)
            .and_then(|()| geneve::set_sealed(packet.get_mut(self.head_room(None) - TUNNEL..)?))
            .and_then(|()| self.write_outer(packet, self.format, inner.flow_hash, ecn))
            .ok_or(EncapsulationError::NoRoom)?;
        Ok(begin)
    }

    /// The outer ECN field for this frame.
    #[must_use]
    pub fn outer_ecn(&self, frame: &[u8]) -> Ecn {
        match Ecn::of(frame).unwrap_or_default() {
            // An outer mark copied from the tenant's frame would hide a mark of the fabric.
            Ecn::NotEct | Ecn::Ce if self.capable => Ecn::Ect0,
            own => own,
        }
    }

    /// The offset of the headers of a frame at offset `start`, if there is room and the packet fits the path's MTU.
    fn begin(&self, frame: usize, start: usize, inner: &Inner<'_>) -> Result<usize, EncapsulationError> {
        let head = self.checked_head(inner.feedback)?;
        let begin = start.checked_sub(head).ok_or(EncapsulationError::NoRoom)?;
        self.check_len(head, frame)?;
        Ok(begin)
    }

    /// Copies `frame` into `out` behind its headers and returns the length of both.
    ///
    /// # Errors
    /// [`EncapsulationError`]; nothing has been written then.
    pub fn encapsulate_into(
        &self,
        frame: &[u8],
        out: &mut [u8],
        inner: &Inner<'_>,
    ) -> Result<usize, EncapsulationError> {
        let head = self.checked_head(inner.feedback)?;
        self.check_len(head, frame.len())?;
        let len = head + frame.len();
        let packet = out.get_mut(..len).ok_or(EncapsulationError::NoRoom)?;
        packet.get_mut(head..).ok_or(EncapsulationError::NoRoom)?.copy_from_slice(frame);
        self.encapsulate(packet, head, inner)?;
        Ok(len)
    }

    /// Writes a frame that carries only feedback, always as Geneve, and returns its length. `flow_hash` chooses its route.
    ///
    /// # Errors
    /// [`EncapsulationError`]; nothing has been written then.
    pub fn feedback_frame(
        &self,
        message: &[u8],
        flow_hash: u64,
        out: &mut [u8],
    ) -> Result<usize, EncapsulationError> {
        self.control_frame(geneve::PROTOCOL_FEEDBACK, message, flow_hash, out)
    }

    /// Writes a frame with a hello between hosts that seal, always as Geneve, and returns its length.
    ///
    /// # Errors
    /// [`EncapsulationError`]; nothing has been written then.
    pub fn hello_frame(&self, hello: &[u8], out: &mut [u8]) -> Result<usize, EncapsulationError> {
        self.control_frame(geneve::PROTOCOL_SEALED, hello, 0, out)
    }

    fn control_frame(
        &self,
        protocol: u16,
        message: &[u8],
        flow_hash: u64,
        out: &mut [u8],
    ) -> Result<usize, EncapsulationError> {
        if message.is_empty() {
            return Err(EncapsulationError::Feedback);
        }
        let head = self.head_room(None);
        let len = head + message.len();
        self.check_mtu(len)?;
        let packet = out.get_mut(..len).ok_or(EncapsulationError::NoRoom)?;
        let (header, place) = packet.split_at_mut_checked(head).ok_or(EncapsulationError::NoRoom)?;
        place.copy_from_slice(message);
        header
            .get_mut(head - TUNNEL..)
            .and_then(|header| geneve::write_control(header, protocol))
            .and_then(|()| self.write_outer(packet, Format::Geneve, flow_hash, Ecn::NotEct))
            .ok_or(EncapsulationError::NoRoom)?;
        Ok(len)
    }

    fn checked_head(&self, feedback: Option<&[u8]>) -> Result<usize, EncapsulationError> {
        match feedback {
            Some(message) if self.format == Format::Vxlan || !fits_option(message) => {
                Err(EncapsulationError::Feedback)
            }
            _ => Ok(self.head_room(feedback.map(<[u8]>::len))),
        }
    }

    const fn check_len(&self, head: usize, frame: usize) -> Result<(), EncapsulationError> {
        if frame < ETHERNET {
            return Err(EncapsulationError::FrameCut);
        }
        self.check_mtu(head.saturating_add(frame))
    }

    const fn check_mtu(&self, packet: usize) -> Result<(), EncapsulationError> {
        if packet - ETHERNET > self.mtu as usize { Err(EncapsulationError::TooLong) } else { Ok(()) }
    }

    fn write(&self, packet: &mut [u8], inner: &Inner<'_>, ecn: Ecn) -> Option<()> {
        self.write_tunnel(packet, inner)?;
        self.write_outer(packet, self.format, inner.flow_hash, ecn)
    }

    fn write_tunnel(&self, packet: &mut [u8], inner: &Inner<'_>) -> Option<()> {
        self.write_tunnel_head(packet.get_mut(self.head_room(None) - TUNNEL..)?, inner)
    }

    /// Writes VXLAN's or Geneve's header to the start of `tunnel`.
    pub(super) fn write_tunnel_head(&self, tunnel: &mut [u8], inner: &Inner<'_>) -> Option<()> {
        match self.format {
            Format::Vxlan => {
                put(tunnel, 0, [HAS_VNI, 0, 0, 0])?;
                put(tunnel, 4, inner.vni.word())
            }
            Format::Geneve => geneve::write(tunnel, inner.vni, inner.feedback),
        }
    }

    /// Writes the Ethernet, IP and UDP headers of a packet that is complete behind them.
    fn write_outer(&self, packet: &mut [u8], format: Format, flow_hash: u64, ecn: Ecn) -> Option<()> {
        self.write_outer_but_sum(packet, format, flow_hash, ecn)?;
        match self.addresses {
            Addresses::V6 { .. } if self.v6_checksum => {
                let (ip, header) = (packet.get_mut(ETHERNET..)?, self.addresses.family().header());
                let checksum = nonzero(!v6_udp_sum(ip, header)?);
                put(ip, header + 6, checksum.to_be_bytes())
            }
            _ => Some(()),
        }
    }

    /// Writes these headers with a UDP checksum of zero.
    pub(super) fn write_outer_but_sum(
        &self,
        packet: &mut [u8],
        format: Format,
        flow_hash: u64,
        ecn: Ecn,
    ) -> Option<()> {
        put(packet, 0, self.dst_mac.0)?;
        put(packet, 6, self.src_mac.0)?;
        let class = self.dscp << 2 | ecn.bits();
        let (ethertype, ip) = packet.get_mut(12..)?.split_at_mut_checked(2)?;
        let len = u16::try_from(ip.len()).ok()?;
        match self.addresses {
            Addresses::V4 { src, dst } => {
                put(ethertype, 0, IPV4.to_be_bytes())?;
                write_v4(ip, class, len, src, dst)?;
            }
            Addresses::V6 { src, dst } => {
                put(ethertype, 0, IPV6.to_be_bytes())?;
                write_v6(ip, class, flow_hash, src, dst)?;
            }
        }
        let header = self.addresses.family().header();
        let len = len.checked_sub(header as u16)?;
        let udp = ip.get_mut(header..)?;
        put(udp, 0, source_port(flow_hash).to_be_bytes())?;
        put(udp, 2, self.ports.of(format).to_be_bytes())?;
        put(udp, 4, len.to_be_bytes())?;
        put(udp, 6, [0, 0])
    }
}

fn fits_option(message: &[u8]) -> bool {
    (1..=geneve::MOST_IN_OPTION).contains(&message.len())
}

/// Writes an IPv4 header with identifier 0 and "don't fragment" (RFC 6864 §4.1, RFC 7348 §4.3).
fn write_v4(ip: &mut [u8], class: u8, len: u16, src: Ipv4Addr, dst: Ipv4Addr) -> Option<()> {
    put(ip, 0, [0x45, class])?;
    put(ip, 2, len.to_be_bytes())?;
    put(ip, 4, [0, 0, DO_NOT_FRAGMENT, 0, HOPS, protocol::UDP, 0, 0])?;
    put(ip, 12, src.octets())?;
    put(ip, 16, dst.octets())?;
    let checksum = !ones_complement_sum(ip.get(..20)?);
    put(ip, 10, checksum.to_be_bytes())
}

fn write_v6(ip: &mut [u8], class: u8, flow_hash: u64, src: Ipv6Addr, dst: Ipv6Addr) -> Option<()> {
    let label = (mixed(flow_hash) >> 44) as u32;
    let len = u16::try_from(ip.len().checked_sub(40)?).ok()?;
    put(ip, 0, (6 << 28 | u32::from(class) << 20 | label).to_be_bytes())?;
    put(ip, 4, len.to_be_bytes())?;
    put(ip, 6, [protocol::UDP, HOPS])?;
    put(ip, 8, src.octets())?;
    put(ip, 24, dst.octets())
}

/// The checksum's sum over pseudo-header, header and payload of the UDP datagram at `ip[udp..]` of an IPv6 packet.
pub(super) fn v6_udp_sum(ip: &[u8], udp: usize) -> Option<u16> {
    let (addresses, datagram) = (ip.get(8..40)?, ip.get(udp..)?);
    // A datagram ends within 64 KiB.
    let pseudo = [ones_complement_sum(addresses), protocol::UDP.into(), datagram.len() as u16];
    Some(add(&[add(&pseudo), ones_complement_sum(datagram)]))
}

/// Time to live, or hop limit, of tunnel packets.
const HOPS: u8 = 64;
const DO_NOT_FRAGMENT: u8 = 0x40;
