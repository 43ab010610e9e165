//! Sends one pull of a frame through a port, with checksums and segmentation as that port needs.
//!
//! Why: a TAP takes 64 KiB without checksums, a wire takes one MTU with them.
//! From: virtio-net offloads (`wire`), asked of each port through its capabilities.
//! Not here: which port (`mac_table`), and when (`nic`).
//! Invariant: the tenant's frame is copied at most once, and not at all when the port takes it as it is.

use plimsoll_ports::{DropReason, Port, Sending, Trouble};
use plimsoll_wire::{Offload, OffloadKind, SegmentError, segment, split, supersegment};

/// A part of a frame: where its payload begins behind the header, and how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: u32,
    /// Payload bytes, or the whole frame's when it is not cut.
    pub(crate) payload: u32,
}

/// The result of sending a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emitted {
    Sent,
    Full,
    Refused(DropReason),
    Inconsistent,
}

impl From<Sending> for Emitted {
    fn from(sending: Sending) -> Self {
        match sending {
            Sending::Sent => Self::Sent,
            Sending::Full => Self::Full,
            Sending::Refused(why) => Self::Refused(why),
        }
    }
}

impl From<SegmentError> for Emitted {
    fn from(_: SegmentError) -> Self {
        Self::Inconsistent
    }
}

impl Part {
    /// The part that is the whole frame.
    pub(crate) fn whole(frame: &[u8], offload: &Offload) -> Self {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        Self { offset: 0, payload: len - u32::from(offload.header) }
    }

    /// The packets that it makes on a wire.
    pub(crate) fn packets(&self, offload: &Offload) -> u32 {
        match u32::from(offload.segment) {
            0 => 1,
            segment => self.payload.div_ceil(segment).max(1),
        }
    }

    /// Removes the bytes that have left.
    pub(crate) fn skip(&mut self, payload: u32) {
        self.offset += payload;
        self.payload -= payload;
    }
}

/// Sends the part through the port, and removes from it what has left: where a port has no room in the middle of
/// many segments, the part says where to go on.
pub(crate) fn emit(
    port: &mut Port,
    frame: &[u8],
    offload: &Offload,
    part: &mut Part,
    scratch: &mut [u8],
) -> Result<Emitted, Trouble> {
    let able = port.capabilities();
    let several = offload.segment > 0 && part.payload > u32::from(offload.segment);
    let by_device = if several {
        able.takes_segmentation && allowed(&able, offload)
    } else {
        able.takes_partial_checksum
    };
    match offload.kind {
        OffloadKind::Plain => Ok(port.send(frame, None)?.into()),
        _ if by_device => hand_over(port, frame, offload, *part, scratch),
        _ => finish(port, frame, offload, part, scratch),
    }
}

fn allowed(able: &plimsoll_ports::Capabilities, offload: &Offload) -> bool {
    able.udp_segmentation || !matches!(offload.kind, OffloadKind::Uso4 | OffloadKind::Uso6)
}

/// Sends through a device that finishes frames itself. A part that is the whole frame is not copied.
fn hand_over(
    port: &mut Port,
    frame: &[u8],
    offload: &Offload,
    part: Part,
    scratch: &mut [u8],
) -> Result<Emitted, Trouble> {
    let whole = part.offset == 0 && part.payload as usize + usize::from(offload.header) == frame.len();
    if whole && !offload.kind.is_segmented() {
        return match split(frame, offload, 0, part.payload, scratch) {
            Ok(split) => Ok(port.send(frame, Some(&split.vnet))?.into()),
            Err(error) => Ok(error.into()),
        };
    }
    match supersegment(frame, offload, part.offset, part.payload, scratch) {
        Ok((len, vnet)) => Ok(port.send(&scratch[..len], Some(&vnet))?.into()),
        Err(error) => Ok(error.into()),
    }
}

/// Sends through a device that takes finished frames only: each is made here.
fn finish(
    port: &mut Port,
    frame: &[u8],
    offload: &Offload,
    part: &mut Part,
    scratch: &mut [u8],
) -> Result<Emitted, Trouble> {
    let step = if offload.segment > 0 { u32::from(offload.segment) } else { part.payload.max(1) };
    loop {
        let payload = step.min(part.payload);
        let len = match segment(frame, offload, part.offset, payload, scratch) {
            Ok(len) => len,
            Err(error) => return Ok(error.into()),
        };
        let emitted = Emitted::from(port.send(&scratch[..len], None)?);
        if emitted != Emitted::Sent {
            return Ok(emitted);
        }
        part.skip(payload);
        if part.payload == 0 {
            return Ok(emitted);
        }
    }
}
