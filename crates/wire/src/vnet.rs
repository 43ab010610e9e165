//! The virtio-net header: the offloads that a frame asks for.
//!
//! Why: a TAP with `IFF_VNET_HDR` and a vhost-user port hand over frames of 64 KiB without checksums.
//! From: virtio 1.2, section 5.1.6 (little endian, ten bytes, twelve with the number of buffers).
//! Not here: cutting the frame into segments (`segment`).
//! Invariant: an [`Offload`] changes only lengths, identifiers, sequence numbers, flags and checksums of its frame, never
//! a field by which the frame was classified.

use crate::bytes::array;
use crate::front::Front;
use crate::parse::{Fragment, Ip, Parsed, protocol};
use crate::reason::VnetError;

/// A virtio-net header, laid out as in C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VnetHeader {
    /// [`Self::NEEDS_CSUM`] and [`Self::DATA_VALID`]; other bits are ignored.
    pub flags: u8,
    /// One of the `GSO_` values, perhaps with [`Self::GSO_ECN`].
    pub gso_type: u8,
    /// A hint at the length of the headers; only checked against the frame.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Offset of the first byte that the checksum covers; it covers all bytes up to the frame's end.
    pub csum_start: u16,
    /// Offset of the checksum, counted from `csum_start`.
    pub csum_offset: u16,
}

/// The work that a frame needs before it can leave on a wire without offloads.
///
/// `header` and `segment` belong into the frame's descriptor; keep the rest with the frame's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The kind of work.
    pub kind: OffloadKind,
    /// Header bytes repeated before each segment; 0 when the frame is not to be segmented.
    pub header: u16,
    /// Payload bytes of each segment but the last; 0 when the frame is not to be segmented.
    pub segment: u16,
    /// Offset of the network header.
    pub l3: u16,
    /// Offset of the first byte that the checksum covers: the transport header.
    pub start: u16,
    /// Offset of the checksum.
    pub field: u16,
    /// Offset of the destination address that a segment's checksum covers.
    pub final_dst: u16,
}

/// Kinds of offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OffloadKind {
    /// No work: the frame is complete.
    #[default]
    Plain,
    /// Complete the checksum.
    Checksum,
    /// Segment TCP over IPv4.
    Tso4,
    /// Segment TCP over IPv6.
    Tso6,
    /// Cut UDP over IPv4 into datagrams.
    Uso4,
    /// Cut UDP over IPv6 into datagrams.
    Uso6,
}

impl VnetHeader {
    /// Length of the header without the number of buffers.
    pub const LEN: usize = 10;
    /// Length with the number of buffers (`VIRTIO_NET_F_MRG_RXBUF`, or virtio 1.0 and later).
    pub const LEN_WITH_BUFFERS: usize = 12;

    /// Flag: the checksum must still be completed.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: the checksum has been verified.
    pub const DATA_VALID: u8 = 2;

    /// Segmentation type: none.
    pub const GSO_NONE: u8 = 0;
    /// Segmentation type: TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// Segmentation type: TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// Segmentation type: UDP datagrams over IPv4 or IPv6 (USO).
    pub const GSO_UDP_L4: u8 = 5;
    /// Added to a TCP type: only the first segment carries CWR.
    pub const GSO_ECN: u8 = 0x80;

    /// Splits `bytes`, as read from a device, into a header of ten bytes and the frame.
    ///
    /// # Errors
    /// [`VnetError::Short`] when there are fewer than ten bytes.
    pub fn read(bytes: &[u8]) -> Result<(VnetHeader, &[u8]), VnetError> {
        Self::read_len(bytes, Self::LEN)
    }

    /// Splits `bytes`, as read from a device, into a header of `len` bytes and the frame. Header bytes after the first ten
    /// are ignored; a `len` below ten counts as ten.
    ///
    /// # Errors
    /// [`VnetError::Short`] when there are fewer than `len` bytes.
    pub fn read_len(bytes: &[u8], len: usize) -> Result<(VnetHeader, &[u8]), VnetError> {
        let (Some(header), Some(frame)) = (array(bytes, 0), bytes.get(len.max(Self::LEN)..)) else {
            return Err(VnetError::Short);
        };
        Ok((Self::from_bytes(header), frame))
    }

    /// Reads a header from its ten bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> VnetHeader {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = bytes;
        VnetHeader {
            flags,
            gso_type,
            hdr_len: u16::from_le_bytes([a, b]),
            gso_size: u16::from_le_bytes([c, d]),
            csum_start: u16::from_le_bytes([e, f]),
            csum_offset: u16::from_le_bytes([g, h]),
        }
    }

    /// The header in twelve bytes: the first [`Self::LEN`], then the number of buffers, which is one.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN_WITH_BUFFERS] {
        let [a, b] = self.hdr_len.to_le_bytes();
        let [c, d] = self.gso_size.to_le_bytes();
        let [e, f] = self.csum_start.to_le_bytes();
        let [g, h] = self.csum_offset.to_le_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h, 1, 0]
    }

    /// Checks the header against its frame and returns the work that the frame needs.
    ///
    /// A frame that would become a single segment is not segmented at all.
    ///
    /// # Errors
    /// The first wrong field, a reason to count and drop the frame.
    #[inline]
    pub fn offload(&self, frame: &[u8], parsed: &Parsed) -> Result<Offload, VnetError> {
        self.offload_front(Front::whole(frame), parsed)
    }

    /// Like [`VnetHeader::offload`], for a frame whose headers, as parsed, are at hand.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn offload_front(&self, frame: Front<'_>, parsed: &Parsed) -> Result<Offload, VnetError> {
        if usize::from(self.hdr_len) > frame.len() {
            return Err(VnetError::HeaderBeyondFrame);
        }
        match self.gso_type {
            Self::GSO_NONE => self.checksum_only(frame, parsed),
            Self::GSO_TCPV4 | TCPV4_ECN => self.segmented(frame, parsed, OffloadKind::Tso4),
            Self::GSO_TCPV6 | TCPV6_ECN => self.segmented(frame, parsed, OffloadKind::Tso6),
            Self::GSO_UDP_L4 if parsed.addresses().is_some_and(|(src, _)| src.is_ipv4()) => {
                self.segmented(frame, parsed, OffloadKind::Uso4)
            }
            Self::GSO_UDP_L4 => self.segmented(frame, parsed, OffloadKind::Uso6),
            _ => Err(VnetError::UnknownGso),
        }
    }

    const fn needs_checksum(&self) -> bool {
        self.flags & Self::NEEDS_CSUM != 0
    }

    fn checksum_only(&self, frame: Front<'_>, parsed: &Parsed) -> Result<Offload, VnetError> {
        if !self.needs_checksum() {
            return Ok(Offload::PLAIN);
        }
        let field = u32::from(self.csum_start) + u32::from(self.csum_offset);
        let inside = field as usize + 2 <= frame.len();
        let allowed = match &parsed.ip {
            Some(ip) if ip.fragment != Fragment::Whole => return Err(VnetError::Fragment),
            Some(ip) => self.at_own_checksum(ip) || self.csum_start >= ip.payload,
            None => self.csum_start >= parsed.l3,
        };
        let (true, true, Ok(field)) = (inside, allowed, u16::try_from(field)) else {
            return Err(VnetError::ChecksumPlace);
        };
        Ok(Offload {
            kind: OffloadKind::Checksum,
            l3: parsed.l3,
            start: self.csum_start,
            field,
            ..Offload::PLAIN
        })
    }

    /// Whether the checksum is that of the packet's own transport. Any other must lie in the payload (a tunnel's inner
    /// packet): elsewhere it could overwrite an address after the packet was classified.
    fn at_own_checksum(&self, ip: &Ip) -> bool {
        let offset = match ip.protocol {
            protocol::TCP => TCP_CHECKSUM,
            protocol::UDP => UDP_CHECKSUM,
            _ => return false,
        };
        self.csum_start == ip.l4 && self.csum_offset == offset
    }

    fn segmented(&self, frame: Front<'_>, parsed: &Parsed, kind: OffloadKind) -> Result<Offload, VnetError> {
        let Some(ip) = parsed.ip.filter(|ip| kind.fits(ip)) else {
            return Err(VnetError::WrongProtocol);
        };
        if ip.fragment != Fragment::Whole {
            return Err(VnetError::Fragment);
        }
        if self.needs_checksum() && !self.at_own_checksum(&ip) {
            return Err(VnetError::ChecksumPlace);
        }
        let header = usize::from(ip.payload);
        let payload = frame.len().saturating_sub(header);
        self.check_lengths(frame, &ip, payload)?;
        let Some(final_dst) = ip.final_dst else { return Err(VnetError::RoutingHeader) };

        let field = ip.l4 + if kind.is_tcp() { TCP_CHECKSUM } else { UDP_CHECKSUM };
        let whole = Offload { kind, header: 0, segment: 0, l3: parsed.l3, start: ip.l4, field, final_dst };
        if payload > usize::from(self.gso_size) {
            Ok(Offload { header: ip.payload, segment: self.gso_size, ..whole })
        } else if self.needs_checksum() {
            Ok(Offload { kind: OffloadKind::Checksum, final_dst: 0, ..whole })
        } else {
            Ok(Offload::PLAIN)
        }
    }

    fn check_lengths(&self, frame: Front<'_>, ip: &Ip, payload: usize) -> Result<(), VnetError> {
        let l4 = usize::from(ip.l4);
        let segment = usize::from(self.gso_size);
        if ip.end as usize != frame.len() {
            return Err(VnetError::LengthMismatch);
        }
        if ip.protocol == protocol::TCP {
            let flags = frame.array(l4 + TCP_FLAGS).map_or(0, |[flags]: [u8; 1]| flags);
            if flags & (SYN | RST) != 0 {
                return Err(VnetError::ControlSegment);
            }
            return if segment < TCP_MIN_SEGMENT { Err(VnetError::TinySegment) } else { Ok(()) };
        }
        let udp_len = frame.array(l4 + 4).map_or(0, u16::from_be_bytes);
        if usize::from(udp_len) != frame.len() - l4 {
            return Err(VnetError::LengthMismatch);
        }
        if segment == 0 {
            return Err(VnetError::TinySegment);
        }
        if payload.div_ceil(segment) > UDP_MAX_SEGMENTS { Err(VnetError::TooManySegments) } else { Ok(()) }
    }
}

impl Offload {
    /// The offload of a complete frame.
    pub const PLAIN: Offload =
        Offload { kind: OffloadKind::Plain, header: 0, segment: 0, l3: 0, start: 0, field: 0, final_dst: 0 };

    /// The virtio-net header that asks a device for this work, for a frame with `payload` bytes behind [`Self::header`].
    pub(crate) fn vnet(&self, payload: usize, cwr: bool) -> VnetHeader {
        if self.kind == OffloadKind::Plain {
            return VnetHeader::default();
        }
        let checksum = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            csum_start: self.start,
            csum_offset: self.field.saturating_sub(self.start),
            ..VnetHeader::default()
        };
        if self.kind == OffloadKind::Checksum || payload <= usize::from(self.segment) {
            return checksum;
        }
        let ecn = if cwr { VnetHeader::GSO_ECN } else { 0 };
        let gso_type = match self.kind {
            OffloadKind::Tso4 => VnetHeader::GSO_TCPV4 | ecn,
            OffloadKind::Tso6 => VnetHeader::GSO_TCPV6 | ecn,
            _ => VnetHeader::GSO_UDP_L4,
        };
        VnetHeader { gso_type, hdr_len: self.header, gso_size: self.segment, ..checksum }
    }
}

impl OffloadKind {
    /// Whether this kind cuts frames into segments.
    #[must_use]
    pub const fn is_segmented(self) -> bool {
        !matches!(self, OffloadKind::Plain | OffloadKind::Checksum)
    }

    /// Whether this kind segments TCP.
    pub(crate) const fn is_tcp(self) -> bool {
        matches!(self, OffloadKind::Tso4 | OffloadKind::Tso6)
    }

    /// Whether this kind is for IPv4.
    pub(crate) const fn is_v4(self) -> bool {
        matches!(self, OffloadKind::Tso4 | OffloadKind::Uso4)
    }

    fn fits(self, ip: &Ip) -> bool {
        let transport = if self.is_tcp() { protocol::TCP } else { protocol::UDP };
        ip.protocol == transport && ip.src.is_ipv4() == self.is_v4()
    }
}

const TCPV4_ECN: u8 = VnetHeader::GSO_TCPV4 | VnetHeader::GSO_ECN;
const TCPV6_ECN: u8 = VnetHeader::GSO_TCPV6 | VnetHeader::GSO_ECN;
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
const TCP_FLAGS: usize = 13;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
/// TCP's smallest useful segment, 48 bytes, less the longest options (40).
const TCP_MIN_SEGMENT: usize = 8;
/// Most datagrams of one frame, as for a socket in Linux.
const UDP_MAX_SEGMENTS: usize = 128;

#[cfg(test)]
#[path = "vnet_tests.rs"]
mod tests;
