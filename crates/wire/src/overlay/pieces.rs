//! Several packets to one host in one datagram, which a device or a kernel cuts into pieces: UDP segmentation offload (USO).
//!
//! Why: a packet for each segment costs a buffer, a walk through the kernel and a system call's share; one datagram of 64 KiB costs
//! them once, and is cut by the device, late in the kernel, or by the host that receives it.
//! From: Linux's `UDP_SEGMENT` and virtio's `VIRTIO_NET_HDR_GSO_UDP_L4`: pieces are of one length, the last may be shorter, and each
//! gets the Ethernet, IP and UDP headers of the whole, with lengths, identifiers and checksums of its own.
//! Not here: which segments go together (the daemon), cutting a tenant's own datagrams (`segment`).
//! Invariant: a datagram that [`Path::finish_pieces`] completes is cut into the packets that [`Path::encapsulate`] writes, but that
//! identifiers count up over IPv4, and each has a UDP checksum. [`Pieces`] cuts as the kernel does, in place.

use core::ops::Range;

use super::{Family, Format, Inner, Path, SEALED_HEAD, SEALED_TAG, TUNNEL, UDP, geneve};
use crate::bytes::put;
use crate::checksum::{add, ones_complement_sum};
use crate::ecn::Ecn;
use crate::front::Front;
use crate::parse::{ETHERNET, Parsed, protocol};
use crate::reason::{EncapsulationError, VnetError};
use crate::segment::split_front;
use crate::vnet::{Offload, OffloadKind, VnetHeader};

/// The lengths of a datagram's parts.
///
/// ```text
/// | outer | head | frame | tail | head | frame | tail | head | frame | tail |
///          `------ piece ------'                       (may be shorter)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceLayout {
    /// Ethernet, IP and UDP headers, in front of the first piece.
    pub outer: usize,
    /// Bytes of a piece before its frame: the tunnel's header, and a seal's head.
    pub head: usize,
    /// Bytes of a piece behind its frame: a seal's tag.
    pub tail: usize,
    /// Length of each piece but the last.
    pub piece: usize,
    /// Most pieces of that length.
    pub most: usize,
}

impl Path {
    /// The layout of a datagram for frames of `frame` bytes, sealed or not, without feedback.
    ///
    /// # Errors
    /// [`EncapsulationError`] where such a frame does not fit the path's MTU, or VXLAN was to carry a sealed one.
    pub fn piece_layout(&self, frame: usize, sealed: bool) -> Result<PieceLayout, EncapsulationError> {
        if frame < ETHERNET || sealed && self.format != Format::Geneve {
            return Err(EncapsulationError::FrameCut);
        }
        let (seal, tail) = if sealed { (SEALED_HEAD, SEALED_TAG) } else { (0, 0) };
        let family = self.addresses.family();
        let outer = ETHERNET + family.header() + UDP;
        let head = TUNNEL + seal;
        let piece = head.saturating_add(frame).saturating_add(tail);
        if outer - ETHERNET + piece > usize::from(self.mtu) {
            return Err(EncapsulationError::TooLong);
        }
        // IPv4's length counts its header, IPv6's does not.
        let longest = match family {
            Family::V4 => usize::from(u16::MAX) - family.header() - UDP,
            Family::V6 => usize::from(u16::MAX) - UDP,
        };
        let most = (longest.min(LONGEST) / piece).min(MOST_PIECES);
        Ok(PieceLayout { outer, head, tail, piece, most })
    }

    /// Writes the tunnel's header at the start of a piece. The frame, or the sealed frame with its head and tag, is the rest of it.
    ///
    /// # Errors
    /// [`EncapsulationError::NoRoom`] when the piece is shorter than the header.
    pub fn begin_piece(
        &self,
        piece: &mut [u8],
        inner: &Inner<'_>,
        sealed: bool,
    ) -> Result<(), EncapsulationError> {
        let inner = Inner { feedback: None, ..*inner };
        self.write_tunnel_head(piece, &inner)
            .and_then(|()| if sealed { geneve::set_sealed(piece) } else { Some(()) })
            .ok_or(EncapsulationError::NoRoom)
    }

    /// Writes the outer headers in front of the pieces that `packet` holds behind them. The UDP checksum is left to be completed, as
    /// [`PieceLayout::vnet`] says.
    ///
    /// # Errors
    /// [`EncapsulationError::NoRoom`] when `packet` is shorter than the headers, or longer than an IP packet can be.
    pub fn finish_pieces(
        &self,
        packet: &mut [u8],
        flow_hash: u64,
        ecn: Ecn,
    ) -> Result<(), EncapsulationError> {
        self.write_outer_but_sum(packet, self.format, flow_hash, ecn)
            .and_then(|()| {
                let ip = packet.get_mut(ETHERNET..)?;
                let (header, width) = match self.addresses.family() {
                    Family::V4 => (20, 12..20),
                    Family::V6 => (40, 8..40),
                };
                let len = u16::try_from(ip.len().checked_sub(header)?).ok()?;
                let addresses = ones_complement_sum(ip.get(width)?);
                put(ip, header + 6, add(&[addresses, protocol::UDP.into(), len]).to_be_bytes())
            })
            .ok_or(EncapsulationError::NoRoom)
    }
}

impl PieceLayout {
    /// The virtio-net header of a datagram of several pieces.
    #[must_use]
    pub const fn vnet(&self) -> VnetHeader {
        // The lengths fit, as a piece fits an MTU.
        VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: VnetHeader::GSO_UDP_L4,
            hdr_len: self.outer as u16,
            gso_size: self.piece as u16,
            csum_start: (self.outer - UDP) as u16,
            csum_offset: 6,
        }
    }

    /// Length of a packet of `pieces` pieces, of which the last carries a frame that is shorter by `less` bytes.
    #[must_use]
    pub const fn len(&self, pieces: usize, less: usize) -> usize {
        self.outer + self.piece * pieces - less
    }
}

/// A datagram that came whole, and is cut into the packets that its pieces make.
///
/// ```
/// use plimsoll_wire::overlay::Pieces;
/// use plimsoll_wire::{VnetHeader, parse};
///
/// let mut frame = [0_u8; 42 + 7];
/// frame[12..15].copy_from_slice(&[8, 0, 0x45]);
/// (frame[17], frame[23], frame[39]) = (35, 17, 15); // UDP, and both lengths
/// frame[42..].copy_from_slice(b"abcdefg");
/// let vnet = VnetHeader { flags: 1, gso_type: 5, gso_size: 3, csum_start: 34, csum_offset: 6, hdr_len: 42 };
/// let mut pieces = Pieces::of(&frame, &parse(&frame)?, &vnet)?.expect("it has three");
/// let mut payloads = Vec::new();
/// while let Some((place, _)) = pieces.next(&mut frame) {
///     payloads.push(frame[place][42..].to_vec());
/// }
/// assert_eq!(payloads, [b"abc".to_vec(), b"def".to_vec(), b"g".to_vec()]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The headers as they came: cutting overwrites them.
    headers: [u8; MOST_HEADERS],
    offload: Offload,
    /// Bytes of the frame that came.
    len: usize,
    /// Payload bytes that have been cut off.
    done: usize,
}

impl Pieces {
    /// The pieces of a frame with these headers; none where it is not to be cut.
    ///
    /// # Errors
    /// The first wrong field of the virtio-net header, a reason to count and drop the frame.
    pub fn of(frame: &[u8], outer: &Parsed, vnet: &VnetHeader) -> Result<Option<Pieces>, VnetError> {
        if vnet.gso_type != VnetHeader::GSO_UDP_L4 {
            return Ok(None);
        }
        let offload = vnet.offload(frame, outer)?;
        if !matches!(offload.kind, OffloadKind::Uso4 | OffloadKind::Uso6) {
            return Ok(None);
        }
        let mut headers = [0; MOST_HEADERS];
        let came = frame.get(..usize::from(offload.header)).ok_or(VnetError::HeaderBeyondFrame)?;
        headers.get_mut(..came.len()).ok_or(VnetError::HeaderBeyondFrame)?.copy_from_slice(came);
        Ok(Some(Pieces { headers, offload, len: frame.len(), done: 0 }))
    }

    /// Makes the next packet in the frame that [`Pieces::of`] was given: its place, and the virtio-net header that says that its
    /// checksum is to be completed. It overwrites only packets that were made before. None once all are made.
    ///
    /// To be called with that frame; with another one it makes packets of no sense, but does not panic.
    pub fn next(&mut self, frame: &mut [u8]) -> Option<(Range<usize>, VnetHeader)> {
        let header = usize::from(self.offload.header);
        let left = self.len.checked_sub(header + self.done).filter(|&left| left > 0)?;
        let payload = left.min(self.offload.segment.into());
        let whole = Front::new(self.headers.get(..header)?, self.len);
        let place = self.done..self.done + header + payload;
        let room = frame.get_mut(place.clone())?;
        // Both fit 32 bits, as the frame's length did.
        let split = split_front(whole, &self.offload, self.done as u32, payload as u32, room).ok()?;
        self.done += payload;
        Some((place, split.vnet))
    }

    /// Length of the headers in front of each piece.
    #[must_use]
    pub fn header(&self) -> usize {
        self.offload.header.into()
    }

    /// Whether there is another packet to be made.
    #[must_use]
    pub fn more(&self) -> bool {
        self.len > usize::from(self.offload.header) + self.done
    }
}

/// Longest headers of a datagram that is cut here: two tags, IPv6, and some extension headers.
const MOST_HEADERS: usize = 256;
/// Most pieces of a datagram, as for a socket in Linux (`UDP_MAX_SEGMENTS`).
pub const MOST_PIECES: usize = 128;
/// Most bytes of all pieces together, so that the packet fits what ports take, with its headers and tags.
const LONGEST: usize = 65_400;

/// How many of the longest frames one datagram holds on a path with this MTU.
#[must_use]
pub const fn pieces_of(mtu: u16) -> u32 {
    match LONGEST.checked_div((mtu as usize).saturating_sub(20 + UDP)) {
        Some(pieces) => pieces as u32,
        None => 1,
    }
}
