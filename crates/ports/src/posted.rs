//! Posted frames, which lie in memory shared with their sender: taken, copied, and completed when they have left.
//!
//! Why: clients on shared memory and virtual machines both keep a frame until it completes, and the engine drives both by
//! the same calls.
//! From: PicNIC §5.4.3 (a descriptor returns to the sender when its packet has left), Loom §4.3.
//! Not here: the rings themselves (`shared_memory`, `vhost_user`).
//! Invariant: a ticket completes one frame, and only in the rings that it came from, not in later ones.

use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_wire::VnetHeader;
use plimsoll_wire::doorbell::PacketMetadata;

/// A posted frame that was taken; [`crate::Port::copy`] copies its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The engine's flow queue for the frame, as given to [`crate::VnicPort::map`]; none for a frame to be classified.
    pub target: Option<u32>,
    /// Length of the frame in bytes.
    pub len: usize,
    /// Checksum and segmentation that the sender has left to be done.
    pub vnet: VnetHeader,
    /// Slack or deadline in microseconds; 0 for that of the class.
    pub tag: u32,
    /// What the sender says of the frame beside its headers; unchecked.
    pub metadata: PacketMetadata,
    /// The doorbell queue that announced the frame, one for each core of the sender; none where there is one for all.
    pub core: Option<u16>,
    /// The frame's ticket, for its completion.
    pub ticket: Ticket,
}

/// Identifies a taken frame for its completion; frames may complete in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) session: u32,
    pub(crate) cookie: u32,
    /// Ring and number of descriptors. One word, as a word that is read soon after its halves were written makes the processor wait.
    place: u32,
}

impl Ticket {
    #[inline]
    pub(crate) fn new(session: u32, cookie: u32, queue: u16, descriptors: u16) -> Self {
        Self { session, cookie, place: u32::from(descriptors) << 16 | u32::from(queue) }
    }

    #[inline]
    pub(crate) fn queue(self) -> u16 {
        self.place as u16
    }

    #[inline]
    pub(crate) fn descriptors(self) -> u16 {
        (self.place >> 16) as u16 & !LATE
    }

    /// The ticket of the same frame, whose bytes wait with its sender; from now on its cookie is the number of their place.
    pub(crate) fn late_at(self, slot: u32) -> Self {
        Self { cookie: slot, place: self.place | u32::from(LATE) << 16, ..self }
    }

    /// Whether [`Ticket::late_at`] made it.
    #[inline]
    pub(crate) fn is_late(self) -> bool {
        self.place >> 16 & u32::from(LATE) != 0
    }

    /// The ticket of a frame that followed this one in the same rings, from its [`Ticket::cookie`].
    #[must_use]
    #[inline]
    pub fn following(self, cookie: u32) -> Self {
        Self { cookie, ..self }
    }

    /// Whether the ticket is of rings that ran before this session; see [`crate::Port::offer_again`].
    #[must_use]
    #[inline]
    pub fn is_before(self, session: u32) -> bool {
        self.session.wrapping_sub(session).cast_signed() < 0
    }

    /// Whether the ticket is that of a frame that followed the one with this ticket; see [`Ticket::following`].
    #[must_use]
    #[inline]
    pub fn follows(self, first: Self) -> bool {
        self == first.following(self.cookie)
    }

    /// The part of the ticket that differs between frames of the same rings.
    #[must_use]
    #[inline]
    pub fn cookie(self) -> u32 {
        self.cookie
    }
}

/// In the number of descriptors, which is far smaller.
const LATE: u16 = 1 << 15;

/// The result of taking a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// A frame.
    Frame(Taken),
    /// Invalid descriptors; they have been completed as such and counted.
    Refused,
    /// There is no frame that may be taken now.
    Nothing,
}

/// A new number that tells tickets of one set of rings from those of all others.
pub(crate) fn new_session() -> u32 {
    static SESSIONS: AtomicU32 = AtomicU32::new(0);
    // Relaxed: it only matters that the numbers differ.
    SESSIONS.fetch_add(1, Ordering::Relaxed)
}
