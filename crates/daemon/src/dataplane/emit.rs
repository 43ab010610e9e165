//! Sends one pull of a frame through a port, with checksums and segmentation as that port needs.
//!
//! Why: a TAP takes 64 KiB without checksums, a wire takes one MTU with them.
//! From: virtio-net offloads (`wire`), asked of each port through its capabilities.
//! Not here: which port (`mac_table`), and when (`nic`).
//! Invariant: the tenant's frame is copied at most once, and not at all when the port takes it as it is.

use core::convert::Infallible;

use plimsoll_ports::{DropReason, Frame, Port, Sending, Trouble};
use plimsoll_wire::{Offload, OffloadKind, SegmentError, Split, VnetHeader, finish_segment, split_front};

/// A part of a frame: where its payload begins behind the header, and how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: u32,
    /// Payload bytes, or the whole frame's when it is not cut.
    pub(crate) payload: u32,
    /// Frames that were sent of it, each of which has read its payload.
    pub(crate) sent: u32,
}

/// The result of sending a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emitted {
    Sent,
    Full,
    Refused(DropReason),
    Inconsistent,
    /// Its sender has not left it where it was.
    TakenBack,
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
    /// A part of which nothing has been sent.
    pub(crate) const fn at(offset: u32, payload: u32) -> Self {
        Self { offset, payload, sent: 0 }
    }

    /// The part that is the whole frame.
    pub(crate) fn whole(len: u32, offload: &Offload) -> Self {
        Self::at(0, len - u32::from(offload.header))
    }

    /// The packets that it makes on a wire.
    pub(crate) fn packets(&self, offload: &Offload) -> u32 {
        match u32::from(offload.segment) {
            0 => 1,
            segment => self.payload.div_ceil(segment).max(1),
        }
    }

    /// Bytes of the frame that it makes on a wire, if it is not cut further.
    pub(crate) fn len(&self, offload: &Offload) -> usize {
        usize::from(offload.header) + self.payload as usize
    }

    /// Its first segment, or all of it where it is not cut.
    pub(crate) fn first(&self, offload: &Offload) -> Self {
        let segment = u32::from(offload.segment);
        Self::at(self.offset, if segment == 0 { self.payload } else { self.payload.min(segment) })
    }

    /// Removes a piece of it, if that was sent.
    pub(crate) fn left(&mut self, piece: Self, emitted: Emitted) {
        if emitted == Emitted::Sent {
            self.skip(piece.payload);
            self.sent += 1;
        }
    }

    /// Counts the frame that was sent of it, if it was.
    fn sent_by(&mut self, emitted: Result<Emitted, Trouble>) -> Result<Emitted, Trouble> {
        self.sent += u32::from(emitted == Ok(Emitted::Sent));
        emitted
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
    frame: &Frame<'_>,
    offload: &Offload,
    part: &mut Part,
    scratch: &mut [u8],
) -> Result<Emitted, Trouble> {
    if offload.kind == OffloadKind::Plain {
        return part.sent_by(send(port, (0, frame), None, scratch));
    }
    let able = port.capabilities();
    let several = offload.segment > 0 && part.payload > u32::from(offload.segment);
    if !several && able.takes_partial_checksum
        || several && able.takes_segmentation && allowed(&able, offload, frame)
    {
        return part.sent_by(hand_over(port, frame, offload, *part, scratch));
    }
    if able.takes_partial_checksum {
        // Each segment is a header of its own, and a payload that goes from where it lies to where it is read.
        return segments(offload, part, |piece| hand_over(port, frame, offload, piece, scratch));
    }
    segments(offload, part, |piece| finish(port, frame, offload, piece, scratch))
}

/// Sends the part piece by piece, until all of it has left or a piece does not leave. `send` sends what comes first of it and removes
/// that; `E` is what can be wrong with a piece beside what [`Emitted`] says.
pub(crate) fn cut<E>(
    part: &mut Part,
    mut send: impl FnMut(&mut Part) -> Result<Result<Emitted, E>, Trouble>,
) -> Result<Result<Emitted, E>, Trouble> {
    loop {
        let sent = send(part)?;
        if part.payload == 0 || !matches!(sent, Ok(Emitted::Sent)) {
            return Ok(sent);
        }
    }
}

/// Sends the part segment by segment, and removes from it what has left.
pub(crate) fn segments(
    offload: &Offload,
    part: &mut Part,
    mut send: impl FnMut(Part) -> Result<Emitted, Trouble>,
) -> Result<Emitted, Trouble> {
    let Ok(emitted) = cut(part, |part| {
        let piece = part.first(offload);
        let sent = send(piece)?;
        part.left(piece, sent);
        Ok(Ok::<_, Infallible>(sent))
    })?;
    Ok(emitted)
}

/// Whether a device that cuts segments cuts this one.
fn allowed(able: &plimsoll_ports::Capabilities, offload: &Offload, frame: &Frame<'_>) -> bool {
    match offload.kind {
        OffloadKind::Uso4 | OffloadKind::Uso6 => able.udp_segmentation,
        _ => able.cwr_segmentation || !has_cwr(frame.front().bytes(), offload),
    }
}

/// Whether a TCP segment says that the congestion window was reduced.
fn has_cwr(front: &[u8], offload: &Offload) -> bool {
    const FLAGS: usize = 13;
    const CWR: u8 = 0x80;
    front.get(usize::from(offload.start) + FLAGS).is_some_and(|flags| flags & CWR != 0)
}

/// Sends the first `header` bytes of the scratch buffer and the payload behind them: without another copy where the port takes it so, or
/// where it is a frame in one piece.
#[inline]
fn send(
    port: &mut Port,
    (header, payload): (usize, &Frame<'_>),
    vnet: Option<&VnetHeader>,
    scratch: &mut [u8],
) -> Result<Emitted, Trouble> {
    if let (0, Some(whole)) = (header, payload.bytes()) {
        return Ok(port.send(whole, vnet)?.into());
    }
    if port.gathers() {
        let sending = port.send_gathered(&scratch[..header], payload, vnet)?;
        return Ok(if payload.is_intact() { sending.into() } else { Emitted::TakenBack });
    }
    let len = header + payload.len();
    if port.places() {
        return place(port, len, vnet, |room| {
            room[..header].copy_from_slice(&scratch[..header]);
            Ok(payload.copy(&mut room[header..]))
        });
    }
    let Some(room) = scratch.get_mut(header..len) else { return Ok(Emitted::Inconsistent) };
    if !payload.copy(room) {
        return Ok(Emitted::TakenBack);
    }
    Ok(port.send(&scratch[..len], vnet)?.into())
}

/// Sends through a device that finishes frames itself. A part that is the whole frame is not copied.
fn hand_over(
    port: &mut Port,
    frame: &Frame<'_>,
    offload: &Offload,
    part: Part,
    scratch: &mut [u8],
) -> Result<Emitted, Trouble> {
    match split_front(frame.front(), offload, part.offset, part.payload, scratch) {
        Ok(Split { header, payload, vnet }) => {
            send(port, (header, &frame.part(payload)), Some(&vnet), scratch)
        }
        Err(error) => Ok(error.into()),
    }
}

/// Sends one frame through a device that takes finished frames only: it is made here.
fn finish(
    port: &mut Port,
    frame: &Frame<'_>,
    offload: &Offload,
    part: Part,
    scratch: &mut [u8],
) -> Result<Emitted, Trouble> {
    let len = part.len(offload);
    let Some(room) = scratch.get_mut(..len) else { return Ok(Emitted::Inconsistent) };
    let make = |room: &mut [u8]| write(frame, offload, part, room);
    if port.places() { place(port, len, None, make) } else { emitted(make(room), || port.send(room, None)) }
}

/// Sends a frame that is made where the port sends it from.
fn place(
    port: &mut Port,
    len: usize,
    vnet: Option<&VnetHeader>,
    make: impl FnOnce(&mut [u8]) -> Result<bool, SegmentError>,
) -> Result<Emitted, Trouble> {
    let mut made = Ok(true);
    let sending = port.place(len, vnet, |room| {
        made = make(room);
        made == Ok(true)
    })?;
    emitted(made, || Ok(sending))
}

/// The result of a frame that was written, or not, and then sent.
fn emitted(
    made: Result<bool, SegmentError>,
    send: impl FnOnce() -> Result<Sending, Trouble>,
) -> Result<Emitted, Trouble> {
    Ok(match made {
        Ok(true) => send()?.into(),
        Ok(false) => Emitted::TakenBack,
        Err(error) => error.into(),
    })
}

/// Writes a part as a wire takes it, the whole frame or one finished segment, which fills the room. False when its sender has not left its
/// payload where it was.
pub(crate) fn write(
    frame: &Frame<'_>,
    offload: &Offload,
    part: Part,
    room: &mut [u8],
) -> Result<bool, SegmentError> {
    if offload.kind == OffloadKind::Plain {
        return if room.len() == frame.len() { Ok(frame.copy(room)) } else { Err(SegmentError::NoRoom) };
    }
    let split = split_front(frame.front(), offload, part.offset, part.payload, room)?;
    let behind = room.get_mut(split.header..).filter(|behind| behind.len() == split.payload.len());
    if !frame.part(split.payload).copy(behind.ok_or(SegmentError::NoRoom)?) {
        return Ok(false);
    }
    finish_segment(room, offload)?;
    Ok(true)
}
