//! Segments of one pull that leave for one host in one datagram, where the uplink cuts it: UDP segmentation offload.
//!
//! Why: sent one by one, each segment costs the way through the kernel and the other host that 64 KiB cost together.
//! From: `wire::overlay`'s pieces; `docs/decisions/0022-segmentation-over-the-overlay.md`.
//! Not here: segments that leave one by one (`wrap`), a datagram that comes in (`joined`).
//! Invariant: the datagram is cut into the packets that would have left one by one, with equal frames in them; a segment that
//! feedback goes with leaves by itself.

use plimsoll_ports::{Frame, Port, Trouble};
use plimsoll_wire::overlay::PieceLayout;
use plimsoll_wire::{EncapsulationError, Offload};

use super::super::emit::{Emitted, Part, write};
use super::wrap::{Wrapped, Wrapping};

/// Segments that go together.
pub(super) struct Together {
    layout: PieceLayout,
    count: usize,
    /// Payload bytes of all of them.
    payload: u32,
}

/// Whether this uplink cuts segments itself: those of tenants' frames, or, `wrapped` for an overlay, datagrams that carry them.
pub(in super::super) fn cuts_segments(uplink: &Port, wrapped: bool) -> bool {
    let able = uplink.capabilities();
    able.takes_segmentation && (!wrapped || able.udp_segmentation)
}

impl Together {
    /// The segments at the head of the part that may go in one datagram; none where they are fewer than two, or the port cannot.
    pub(super) fn of(port: &Port, wrapping: &Wrapping<'_>, offload: &Offload, part: &Part) -> Option<Self> {
        let (step, header) = (u32::from(offload.segment), usize::from(offload.header));
        if step == 0 || part.payload <= step || !cuts_segments(port, true) {
            return None;
        }
        let whole = header + step as usize;
        let layout = wrapping.path.piece_layout(whole, wrapping.session.is_some()).ok()?;
        if wrapping.feedback_for(whole).is_some() {
            return None;
        }
        let (mut count, rest) = ((part.payload / step) as usize, part.payload % step);
        let mut payload = part.payload - rest;
        if count > layout.most {
            (count, payload) = (layout.most, layout.most as u32 * step);
        } else if rest > 0 && count < layout.most && wrapping.feedback_for(header + rest as usize).is_none() {
            (count, payload) = (count + 1, part.payload);
        }
        (count > 1).then_some(Self { layout, count, payload })
    }

    /// Sends them; removes from the part what has left.
    pub(super) fn send(
        &self,
        port: &mut Port,
        wrapping: &mut Wrapping<'_>,
        (frame, offload): (&Frame<'_>, &Offload),
        part: &mut Part,
        scratch: &mut [u8],
    ) -> Result<Wrapped, Trouble> {
        let step = u32::from(offload.segment);
        let less = self.count as u32 * step - self.payload;
        let len = self.layout.len(self.count, less as usize);
        let vnet = self.layout.vnet();
        let mut made = Ok(());
        let sending = if port.places() {
            port.place(len, Some(&vnet), |room| {
                made = self.write(wrapping, (frame, offload), part.offset, room);
                made.is_ok()
            })
        } else {
            match scratch.get_mut(..len) {
                Some(room) => made = self.write(wrapping, (frame, offload), part.offset, room),
                None => made = Err(Unmade::Wrap(EncapsulationError::NoRoom)),
            }
            match made {
                Ok(()) => port.send(&scratch[..len], Some(&vnet)),
                Err(why) => return Ok(why.into()),
            }
        }?;
        if let Err(why) = made {
            return Ok(why.into());
        }
        let sending = Emitted::from(sending);
        if sending == Emitted::Sent {
            part.skip(self.payload);
        }
        Ok(Ok(sending))
    }

    /// Writes the packet.
    fn write(
        &self,
        wrapping: &mut Wrapping<'_>,
        (frame, offload): (&Frame<'_>, &Offload),
        mut offset: u32,
        packet: &mut [u8],
    ) -> Result<(), Unmade> {
        let PieceLayout { outer, head, tail, piece, .. } = self.layout;
        let (step, end) = (u32::from(offload.segment), offset + self.payload);
        let mut ecn = None;
        let pieces = packet.get_mut(outer..).ok_or(Unmade::Wrap(EncapsulationError::NoRoom))?;
        for piece in pieces.chunks_mut(piece) {
            let frame_end = piece.len() - tail;
            let part = Part::at(offset, step.min(end - offset));
            if write(frame, offload, part, &mut piece[head..frame_end]) != Ok(true) {
                return Err(Unmade::Segment);
            }
            ecn = ecn.or_else(|| Some(wrapping.path.outer_ecn(&piece[head..frame_end])));
            wrapping.finish_piece(piece, self.layout)?;
            offset += step;
        }
        let flow_hash = wrapping.inner.flow_hash;
        wrapping.path.finish_pieces(packet, flow_hash, ecn.unwrap_or_default()).map_err(Unmade::Wrap)
    }
}

impl Wrapping<'_> {
    /// Writes the headers of a piece, in which a finished frame lies, and seals it where frames are sealed.
    fn finish_piece(&mut self, piece: &mut [u8], layout: PieceLayout) -> Result<(), Unmade> {
        let Self { path, inner, session, .. } = self;
        if let Some(session) = session {
            let from = layout.head - plimsoll_wire::overlay::SEALED_HEAD;
            if !session.seal(inner.vni.get(), &mut piece[from..]) {
                // It could not be sealed, so it must not leave.
                return Err(Unmade::Wrap(EncapsulationError::NoRoom));
            }
        }
        path.begin_piece(piece, inner, session.is_some()).map_err(Unmade::Wrap)
    }
}

/// Why a datagram could not be made.
#[derive(Clone, Copy)]
enum Unmade {
    Segment,
    Wrap(EncapsulationError),
}

impl From<Unmade> for Wrapped {
    fn from(why: Unmade) -> Self {
        match why {
            Unmade::Segment => Ok(Emitted::Inconsistent),
            Unmade::Wrap(why) => Err(why),
        }
    }
}
