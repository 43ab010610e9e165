//! How a descriptor is cut into pulls, and what each pull is charged.
//!
//! Why: a large segment leaves in pieces of a few frames, so that it delays its neighbours by no more than that.
//! From: SENIC §5.2 (segmentation at scheduling time, one frame a turn).
//! Not here: which pull comes next (`host`), and rates (`limit`).
//! Invariant: the payloads of a descriptor's pulls add up to its payload, and no pull is empty.

use plimsoll_units::Bytes;

use super::Descriptor;
use super::rings::Slot;
use crate::refusal::Refusal;

/// How frames are cut and charged: a frame is charged less than 2^31 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) overhead: u32,
    pub(crate) max_frame: u32,
    /// Most bytes, as charged, of one pull; flow queues behind limits may have a lower bound.
    pub(crate) pull: u32,
}

/// One pull of a descriptor.
pub(super) struct Piece {
    pub(super) payload: u32,
    pub(super) len: u32,
    pub(super) frames: u32,
    /// Bytes on the wire, each segment's header included, overhead not.
    pub(super) bytes: u32,
    pub(super) charge: u32,
    pub(super) last: bool,
}

impl Cut {
    /// Most that one pull can be charged.
    pub(crate) fn largest(self) -> u64 {
        u64::from(self.pull.max(self.max_frame + self.overhead))
    }

    pub(super) fn accepts(self, descriptor: &Descriptor) -> Result<(), Refusal> {
        let Descriptor { len, segment, header, .. } = *descriptor;
        let header_and_segment = u32::from(header) + u32::from(segment);
        if len == 0 || (segment > 0 && (header == 0 || u32::from(header) >= len)) {
            return Err(Refusal::Malformed);
        }
        let frame = if segment == 0 { len } else { header_and_segment.min(len) };
        let too_long = frame > self.max_frame || len > MAX_DESCRIPTOR.as_u64() as u32;
        if too_long { Err(Refusal::Oversize) } else { Ok(()) }
    }

    /// A frame that leaves as it is.
    #[inline]
    pub(super) fn whole(self, slot: &Slot) -> Piece {
        let len = slot.len;
        Piece { payload: len, len, frames: 1, bytes: len, charge: len + self.overhead, last: true }
    }

    /// The pull of at most `pull` bytes, or of one frame, that begins at `offset`.
    #[inline]
    pub(super) fn piece(self, slot: &Slot, offset: u32, pull: u32) -> Piece {
        if slot.segment == 0 { self.whole(slot) } else { self.segments(slot, offset, pull) }
    }

    /// Not inlined: most descriptors are whole frames, and need none of the divisions.
    #[inline(never)]
    fn segments(self, slot: &Slot, offset: u32, pull: u32) -> Piece {
        let header = u32::from(slot.header);
        let segment = u32::from(slot.segment);
        if slot.len <= header + segment {
            return self.whole(slot);
        }
        let rest = slot.len - header - offset;
        let frame = header + segment + self.overhead;
        let payload = rest.min((pull / frame).max(1) * segment);
        let frames = payload.div_ceil(segment);
        let bytes = payload + frames * header;
        let charge = bytes + frames * self.overhead;
        Piece { payload, len: header + payload, frames, bytes, charge, last: payload == rest }
    }
}

/// Longest descriptor: 64 KiB of IP packet behind an Ethernet header with two VLAN tags.
pub const MAX_DESCRIPTOR: Bytes = Bytes::new(65_535 + 22);
