//! Frames whose payload waits in the client's memory until they leave.
//!
//! Why: the scheduler needs a frame's headers only, and a payload that waits where it is is copied once, when its turn has come.
//! From: SENIC §4.1 (late pull), Loom §4.3 (the scheduler sees descriptors).
//! Not here: which frames wait in this way (the daemon), and the rings (`rings`).
//! Invariant: a slot belongs to one frame, until that frame completes; nothing that a client writes is used as a slot's number.

use plimsoll_vnic::Region;

use super::VnicPort;
use crate::mapped::{Part, SenderBytes};
use crate::posted::Ticket;

/// The frames that wait in this way.
#[derive(Debug, Default)]
pub(super) struct Late {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The client's own, which its completion bears.
    cookie: u32,
    parts: Vec<Part>,
}

impl Late {
    /// A slot for a frame with this cookie, whose parts are then added.
    fn begin(&mut self, cookie: u32) -> (u32, &mut Vec<Part>) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[number as usize];
        slot.cookie = cookie;
        (number, &mut slot.parts)
    }

    /// Frees a slot; answers the client's cookie. Nothing for a slot that is free.
    pub(super) fn end(&mut self, number: u32) -> Option<u32> {
        let slot = self.slots.get_mut(number as usize).filter(|slot| !slot.parts.is_empty())?;
        slot.parts.clear();
        self.free.push(number);
        Some(slot.cookie)
    }

    fn parts(&self, number: u32) -> Option<&[Part]> {
        self.slots.get(number as usize).map(|slot| slot.parts.as_slice()).filter(|parts| !parts.is_empty())
    }
}

impl VnicPort {
    /// Copies the first bytes of the frame taken last, without those that are longer than the frame.
    #[inline]
    pub fn peek(&self, front: &mut [u8]) {
        read(&self.region, &self.pieces, front);
    }

    /// Leaves the bytes of the frame taken last, which has this ticket, where they are until it completes, but for the first ones:
    /// [`VnicPort::kept`]. Returns the ticket that it completes with.
    ///
    /// Panics when the frame has no more bytes than those.
    pub fn leave(&mut self, mut first: usize, ticket: Ticket) -> Ticket {
        let (slot, parts) = self.late.begin(ticket.cookie());
        for &(at, len) in &self.pieces {
            let count = first.min(len);
            first -= count;
            if let Some((place, found)) = self.view.guest((at + count) as u64, len - count)
                && found > 0
            {
                parts.push((place, found));
            }
        }
        assert!(!parts.is_empty(), "bytes behind the first ones, in the region");
        ticket.late_at(slot)
    }

    /// The bytes of a frame that [`VnicPort::leave`] left where they are.
    #[must_use]
    #[inline]
    pub fn kept(&self, ticket: Ticket) -> Option<SenderBytes<'_>> {
        let here = ticket.is_late() && ticket.session == self.session;
        let parts = self.late.parts(ticket.cookie()).filter(|_| here)?;
        Some(SenderBytes::new(&self.view, parts))
    }
}

/// Copies the first bytes of a frame in several pieces.
#[inline]
pub(super) fn read(region: &Region, pieces: &[(usize, usize)], into: &mut [u8]) {
    let mut rest = into;
    for &(at, len) in pieces {
        let (piece, others) = rest.split_at_mut(len.min(rest.len()));
        region.read(at, piece);
        if others.is_empty() {
            return;
        }
        rest = others;
    }
}
