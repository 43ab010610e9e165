//! Segmentation: each pull of a large frame takes a part of its payload, with headers of its own.
//!
//! Why: a tenant hands over 64 KiB at once, and the policy decides for each MTU of it.
//! From: TCP and UDP segmentation in NICs: RFC 9293 (sequence, flags), RFC 3168 (CWR on the first segment
//! only), RFC 791 (identifiers count up), RFC 768 and 8200 (lengths, pseudo-headers).
//! Not here: when to pull and how much (`nic`).
//! Invariant: the payloads of a frame's pulls, joined, are the frame's payload; every segment is a valid packet.

use core::ops::Range;

use crate::bytes::{array, be16, be32, put};
use crate::checksum::{add, finish_checksum, nonzero, ones_complement_sum};
use crate::front::Front;
use crate::reason::SegmentError;
use crate::vnet::{Offload, OffloadKind, VnetHeader};

/// A pull in two pieces, header and payload, so that the payload need not be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Length of the new header at the start of the caller's buffer; 0 when the frame is sent unchanged.
    pub header: usize,
    /// The bytes of the tenant's frame that follow the header.
    pub payload: Range<usize>,
    /// The offloads that are left to the device.
    pub vnet: VnetHeader,
}

/// Writes one finished frame to `out` and returns its length: the headers, with correct lengths, identifier, sequence
/// number, flags and checksums, and `payload_len` bytes of payload from `payload_offset`.
///
/// A frame that is not to be segmented (`offload.header` is 0) is one pull: offset 0, and its whole length as
/// `payload_len`. For an engine's `Transmit` that is always `segment(frame, offload, t.offset, t.len - t.header, out)`.
/// One copy and one pass for the checksum: about 90 ns for 1500 B.
///
/// # Errors
/// See [`SegmentError`]; `out` may then be partly written.
pub fn segment(
    frame: &[u8],
    offload: &Offload,
    payload_offset: u32,
    payload_len: u32,
    out: &mut [u8],
) -> Result<usize, SegmentError> {
    let split = split(frame, offload, payload_offset, payload_len, out)?;
    let len = append(frame, &split, out)?;
    let Some(segment) = out.get_mut(..len) else { return Err(SegmentError::NoRoom) };
    finish_segment(segment, offload)?;
    Ok(len)
}

/// Completes the checksum of a frame that [`split_front`] and the payload behind its headers make.
///
/// # Errors
/// [`SegmentError::Inconsistent`] when the frame has no room for it.
pub fn finish_segment(segment: &mut [u8], offload: &Offload) -> Result<(), SegmentError> {
    match offload.kind {
        OffloadKind::Plain => {}
        OffloadKind::Checksum => {
            if !finish_checksum(segment, offload.start.into(), offload.field.into()) {
                return Err(SegmentError::Inconsistent);
            }
        }
        _ => complete(segment, offload).ok_or(SegmentError::Inconsistent)?,
    }
    Ok(())
}

/// Writes a frame for an uplink with offloads: the uplink completes its checksum and, if the frame holds more than one
/// segment, segments it. Returns the frame's length and the virtio-net header that asks for this.
///
/// The arguments are those of [`segment`]; `payload_len` may cover any number of segments.
///
/// # Errors
/// See [`SegmentError`]; `out` may then be partly written.
pub fn supersegment(
    frame: &[u8],
    offload: &Offload,
    payload_offset: u32,
    payload_len: u32,
    out: &mut [u8],
) -> Result<(usize, VnetHeader), SegmentError> {
    let split = split(frame, offload, payload_offset, payload_len, out)?;
    Ok((append(frame, &split, out)?, split.vnet))
}

/// Like [`supersegment`] without copying the payload: writes the headers (`offload.header` bytes) to `out` and returns
/// which bytes of the frame follow them.
///
/// # Errors
/// See [`SegmentError`]; `out` may then be partly written.
pub fn split(
    frame: &[u8],
    offload: &Offload,
    payload_offset: u32,
    payload_len: u32,
    out: &mut [u8],
) -> Result<Split, SegmentError> {
    split_front(Front::whole(frame), offload, payload_offset, payload_len, out)
}

/// Like [`split`], for a frame whose headers are at hand.
///
/// # Errors
/// See [`SegmentError`]; `out` may then be partly written.
pub fn split_front(
    frame: Front<'_>,
    offload: &Offload,
    payload_offset: u32,
    payload_len: u32,
    out: &mut [u8],
) -> Result<Split, SegmentError> {
    let header_len = usize::from(offload.header);
    if offload.kind.is_segmented() != (header_len > 0) {
        return Err(SegmentError::Inconsistent);
    }
    let payload = payload_range(frame, header_len, payload_offset, payload_len)?;
    if header_len == 0 {
        return Ok(Split { header: 0, vnet: offload.vnet(payload.len(), false), payload });
    }
    let (Some(original), Some(header)) = (frame.bytes().get(..header_len), out.get_mut(..header_len)) else {
        return Err(SegmentError::NoRoom);
    };
    header.copy_from_slice(original);
    let part = Part {
        offset: payload_offset,
        index: payload_offset.checked_div(offload.segment.into()).unwrap_or(0),
        len: payload.len(),
        last: payload.end == frame.len(),
    };
    fix_network(header, offload, &part)?;
    let cwr = fix_transport(header, offload, &part).ok_or(SegmentError::Inconsistent)?;
    Ok(Split { header: header_len, vnet: offload.vnet(payload.len(), cwr), payload })
}

/// The part of the frame's payload that a pull takes.
struct Part {
    offset: u32,
    /// Number of segments before it.
    index: u32,
    len: usize,
    last: bool,
}

fn payload_range(
    frame: Front<'_>,
    header: usize,
    offset: u32,
    len: u32,
) -> Result<Range<usize>, SegmentError> {
    let start = header.saturating_add(offset as usize);
    let end = start.saturating_add(len as usize);
    // A frame that is not segmented can only be pulled whole.
    let fits = if header > 0 { len > 0 && end <= frame.len() } else { offset == 0 && end == frame.len() };
    if fits { Ok(start..end) } else { Err(SegmentError::OutOfRange) }
}

/// Copies the payload behind the header and returns the length of both.
fn append(frame: &[u8], split: &Split, out: &mut [u8]) -> Result<usize, SegmentError> {
    let len = split.header + split.payload.len();
    let (Some(from), Some(to)) = (frame.get(split.payload.clone()), out.get_mut(split.header..len)) else {
        return Err(SegmentError::NoRoom);
    };
    to.copy_from_slice(from);
    Ok(len)
}

/// Sets the IPv4 total length, identifier and header checksum, or the IPv6 payload length.
fn fix_network(header: &mut [u8], offload: &Offload, part: &Part) -> Result<(), SegmentError> {
    let l3 = usize::from(offload.l3);
    let fixed = if offload.kind.is_v4() { 0 } else { IPV6_HEADER };
    let behind = header.len().checked_sub(l3 + fixed).ok_or(SegmentError::Inconsistent)?;
    let len = u16::try_from(behind + part.len).map_err(|_| SegmentError::TooLong)?;
    let done = if offload.kind.is_v4() {
        fix_v4(header, l3, len, part.index)
    } else {
        put(header, l3 + 4, len.to_be_bytes())
    };
    done.ok_or(SegmentError::Inconsistent)
}

fn fix_v4(header: &mut [u8], l3: usize, len: u16, index: u32) -> Option<()> {
    let [first] = array(header, l3)?;
    // Identifiers wrap around.
    let id = be16(header, l3 + 4)?.wrapping_add(index as u16);
    put(header, l3 + 2, len.to_be_bytes())?;
    put(header, l3 + 4, id.to_be_bytes())?;
    put(header, l3 + 10, [0, 0])?;
    let ip = header.get(l3..l3 + usize::from(first & 0x0f) * 4)?;
    let checksum = !ones_complement_sum(ip);
    put(header, l3 + 10, checksum.to_be_bytes())
}

/// Sets TCP's sequence number and flags, or UDP's length, and the pseudo-header's sum in place of the checksum. Returns
/// whether TCP's CWR is set.
fn fix_transport(header: &mut [u8], offload: &Offload, part: &Part) -> Option<bool> {
    let l4 = usize::from(offload.start);
    let len = header.len().checked_sub(l4)? + part.len;
    let mut cwr = false;
    if offload.kind.is_tcp() {
        let sequence = be32(header, l4 + 4)?.wrapping_add(part.offset);
        put(header, l4 + 4, sequence.to_be_bytes())?;
        let [flags] = array(header, l4 + 13)?;
        let first_only = if part.offset > 0 { CWR } else { 0 };
        let last_only = if part.last { 0 } else { FIN | PSH };
        let flags = flags & !(first_only | last_only);
        put(header, l4 + 13, [flags])?;
        cwr = flags & CWR != 0;
    } else {
        put(header, l4 + 4, u16::try_from(len).ok()?.to_be_bytes())?;
    }
    let pseudo = pseudo_header(header, offload, u16::try_from(len).ok()?)?;
    put(header, offload.field.into(), pseudo.to_be_bytes())?;
    Some(cwr)
}

/// The sum of the pseudo-header: addresses, protocol and length.
fn pseudo_header(header: &[u8], offload: &Offload, len: u16) -> Option<u16> {
    let l3 = usize::from(offload.l3);
    let (src, width) = if offload.kind.is_v4() { (l3 + 12, 4) } else { (l3 + 8, 16) };
    let dst = usize::from(offload.final_dst);
    let protocol = if offload.kind.is_tcp() { 6 } else { 17 };
    let src = ones_complement_sum(header.get(src..src + width)?);
    let dst = ones_complement_sum(header.get(dst..dst + width)?);
    Some(add(&[src, dst, protocol, len]))
}

/// Completes the transport's checksum over header and payload.
fn complete(segment: &mut [u8], offload: &Offload) -> Option<()> {
    let covered = segment.get(usize::from(offload.start)..)?;
    let checksum = !ones_complement_sum(covered);
    let checksum = if offload.kind.is_tcp() { checksum } else { nonzero(checksum) };
    put(segment, offload.field.into(), checksum.to_be_bytes())
}

const IPV6_HEADER: usize = 40;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
