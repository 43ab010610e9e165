//! Joins consecutive segments of a TCP connection: receive offload, the inverse of [`segment`](crate::segment()).
//!
//! Why: a tenant that takes 64 KiB at once is given 45 packets for the price of one.
//! From: Linux's `tcp_gro_receive`: what may differ between two segments of one buffer.
//! Not here: which frames are offered, and when what is joined is delivered (the daemon).
//! Invariant: the segments that are cut from a joined frame, and their checksums, are the frames that were joined, byte by byte.
//! What is not surely so is not joined.

use crate::bytes::{array, be16, be32, put};
use crate::checksum::{add, ones_complement_sum};
use crate::ecn::v4_header_verifies;
use crate::parse::{Fragment, Ip, Parsed, protocol};
use crate::vnet::VnetHeader;

/// A frame that further segments may be joined to, and a buffer for it; without room by default.
#[derive(Debug, Default)]
pub struct Joined {
    buffer: Box<[u8]>,
    len: usize,
    joined: Option<Segments>,
}

/// What is known of the segments in the buffer.
#[derive(Clone, Copy, Debug)]
struct Segments {
    places: Places,
    /// Payload bytes of each but the last.
    size: usize,
    /// How many they are.
    count: u16,
    /// The last one has the flags of the last of a frame, or is shorter.
    ended: bool,
}

/// Where the headers of the segments lie.
#[derive(Clone, Copy, Debug)]
struct Places {
    l3: usize,
    l4: usize,
    payload: usize,
    v4: bool,
}

impl Joined {
    /// Empty, with room for frames of `room` bytes.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { buffer: vec![0; room].into_boxed_slice(), len: 0, joined: None }
    }

    /// Whether it holds no frame.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no more segments can follow.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.joined.is_none_or(|joined| joined.ended)
    }

    /// Takes a frame to which others may be joined, if it is such a one. What was held is lost.
    pub fn begin(&mut self, frame: &[u8], parsed: &Parsed) -> bool {
        self.clear();
        let Some(segments) = Segments::first(frame, parsed) else { return false };
        let Some(room) = self.buffer.get_mut(..frame.len()) else { return false };
        room.copy_from_slice(frame);
        (self.len, self.joined) = (frame.len(), Some(segments));
        true
    }

    /// Joins the frame, if it follows what is held.
    pub fn join(&mut self, frame: &[u8]) -> bool {
        let Some(segments) = &mut self.joined else { return false };
        let held = self.buffer.get(..self.len).unwrap_or_default();
        let Some(payload) = segments.following(held, frame) else { return false };
        let end = self.len + payload.len();
        if end - segments.places.l3 > usize::from(u16::MAX) {
            return false;
        }
        let Some(room) = self.buffer.get_mut(self.len..end) else { return false };
        room.copy_from_slice(payload);
        self.len = end;
        segments.add(&mut self.buffer, frame);
        true
    }

    /// The frame, and the header that asks for its segmentation: none for a single frame, which is as it came. To be followed by
    /// [`Joined::clear`].
    pub fn finish(&mut self) -> (&mut [u8], Option<VnetHeader>) {
        let frame = self.buffer.get_mut(..self.len).unwrap_or_default();
        let vnet = self.joined.filter(|joined| joined.count > 1).and_then(|joined| joined.finish(frame));
        (frame, vnet)
    }

    /// Empties it.
    pub fn clear(&mut self) {
        (self.len, self.joined) = (0, None);
    }
}

impl Segments {
    /// The first segment: TCP with payload and an acknowledgement, directly behind an IP header without options, whole, with right
    /// checksums.
    fn first(frame: &[u8], parsed: &Parsed) -> Option<Self> {
        let ip = parsed.ip.as_ref().filter(|ip| is_plain(ip, parsed.l3.into()))?;
        let places = Places {
            l3: parsed.l3.into(),
            l4: ip.l4.into(),
            payload: ip.payload.into(),
            v4: ip.src.is_ipv4(),
        };
        let size = frame.len().checked_sub(places.payload).filter(|&size| size >= LEAST)?;
        let [flags] = array(frame, places.l4 + FLAGS)?;
        let joins = ip.end as usize == frame.len() && flags & (SYN | RST | URG | ACK) == ACK;
        if !joins || flags & (FIN | PSH) != 0 || !places.verify(frame) {
            return None;
        }
        Some(Self { places, size, count: 1, ended: false })
    }

    /// The payload of a frame that follows what is held.
    fn following<'f>(&self, held: &[u8], frame: &'f [u8]) -> Option<&'f [u8]> {
        let Places { l3, l4, payload, v4 } = self.places;
        let more = frame.get(payload..).filter(|more| !more.is_empty() && more.len() <= self.size)?;
        let same = |from: usize, to: usize| held.get(from..to) == frame.get(from..to);
        let network = if v4 {
            let id = be16(held, l3 + 4)?.wrapping_add(self.count);
            let len = usize::from(be16(frame, l3 + 2)?);
            same(0, l3 + 2)
                && len == frame.len() - l3
                && be16(frame, l3 + 4)? == id
                && same(l3 + 6, l3 + 10)
                && same(l3 + 12, l4)
        } else {
            let len = usize::from(be16(frame, l3 + 4)?);
            same(0, l3 + 4) && len == frame.len() - l4 && same(l3 + 6, l4)
        };
        // A first segment may have CWR, and the last one FIN and PSH; the flags lie between what is compared.
        let sent = u32::try_from(held.len() - payload).ok()?;
        let sequence = be32(held, l4 + 4)?.wrapping_add(sent);
        let ([before], [flags]) = (array(held, l4 + FLAGS)?, array(frame, l4 + FLAGS)?);
        let transport = same(l4, l4 + 4)
            && be32(frame, l4 + 4)? == sequence
            && same(l4 + 8, l4 + FLAGS)
            && flags & !(FIN | PSH) == before & !CWR
            && same(l4 + 14, l4 + 16)
            && same(l4 + 18, payload);
        (!self.ended && network && transport && self.places.verify(frame)).then_some(more)
    }

    /// Notes a frame whose payload has been joined.
    fn add(&mut self, buffer: &mut [u8], frame: &[u8]) {
        self.count = self.count.saturating_add(1);
        let at = self.places.l4 + FLAGS;
        let flags: u8 = array(frame, at).map_or(0, |[flags]: [u8; 1]| flags & (FIN | PSH));
        if let Some(own) = buffer.get_mut(at) {
            *own |= flags;
        }
        self.ended = flags != 0 || frame.len() - self.places.payload < self.size;
    }

    /// Writes the lengths and checksums of the whole.
    fn finish(&self, frame: &mut [u8]) -> Option<VnetHeader> {
        let Places { l3, l4, payload, v4 } = self.places;
        let len = u16::try_from(frame.len() - l3).ok()?;
        let own = u16::try_from(frame.len() - l4).ok()?;
        let addresses = if v4 {
            put(frame, l3 + 2, len.to_be_bytes())?;
            put(frame, l3 + 10, [0, 0])?;
            let sum = !ones_complement_sum(frame.get(l3..l4)?);
            put(frame, l3 + 10, sum.to_be_bytes())?;
            frame.get(l3 + 12..l3 + 20)?
        } else {
            put(frame, l3 + 4, own.to_be_bytes())?;
            frame.get(l3 + 8..l3 + 40)?
        };
        let pseudo = add(&[ones_complement_sum(addresses), protocol::TCP.into(), own]);
        put(frame, l4 + CHECKSUM, pseudo.to_be_bytes())?;
        let [flags] = array(frame, l4 + FLAGS)?;
        let kind = if v4 { VnetHeader::GSO_TCPV4 } else { VnetHeader::GSO_TCPV6 };
        let ecn = if flags & CWR != 0 { VnetHeader::GSO_ECN } else { 0 };
        Some(VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: kind | ecn,
            hdr_len: u16::try_from(payload).ok()?,
            gso_size: u16::try_from(self.size).ok()?,
            csum_start: u16::try_from(l4).ok()?,
            csum_offset: CHECKSUM as u16,
        })
    }
}

impl Places {
    /// Whether both checksums are right: what is joined gets new ones.
    fn verify(&self, frame: &[u8]) -> bool {
        let addresses = if self.v4 { self.l3 + 12..self.l3 + 20 } else { self.l3 + 8..self.l3 + 40 };
        let (Some(addresses), Some(covered)) = (frame.get(addresses), frame.get(self.l4..)) else {
            return false;
        };
        let sums = [
            ones_complement_sum(addresses),
            protocol::TCP.into(),
            // A packet that parses is no longer than 64 KiB.
            covered.len() as u16,
            ones_complement_sum(covered),
        ];
        add(&sums) == ALL_ONES && (!self.v4 || v4_header_verifies(frame, self.l3))
    }
}

/// Whether a whole TCP packet lies directly behind an IP header without options or extension headers.
fn is_plain(ip: &Ip, l3: usize) -> bool {
    let header = if ip.src.is_ipv4() { 20 } else { 40 };
    ip.protocol == protocol::TCP && ip.fragment == Fragment::Whole && usize::from(ip.l4) == l3 + header
}

/// Less payload makes no segment of a frame that is cut (`VnetHeader::offload`).
const LEAST: usize = 8;
const ALL_ONES: u16 = 0xffff;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;
