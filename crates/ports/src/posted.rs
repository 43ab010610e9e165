//! Frames that lie in memory shared with their sender: taken, copied, and completed when they have left.
//!
//! Why: a client on shared memory and a virtual machine hold their descriptors the same way, and the engine drives both
//! by the same calls.
//! From: PicNIC §5.4.3 (a descriptor is the sender's again when its packet has left), Loom §4.3.
//! Not here: the rings themselves (`shared_memory`, `vhost_user`).
//! Invariant: a ticket completes one frame, of the rings that it came from and no later ones.

use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_wire::VnetHeader;

/// A frame that was posted; [`crate::Port::copy`] brings its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The flow queue behind the client's, as [`crate::VnicPort::map`] was told; none for what is to be classified.
    pub target: Option<u32>,
    /// Bytes of the frame.
    pub len: usize,
    /// Checksum and segmentation left to us.
    pub vnet: VnetHeader,
    /// Slack or deadline in microseconds, 0 for the class's own.
    pub tag: u32,
    /// For its completion.
    pub ticket: Ticket,
}

/// What completes a frame, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) session: u32,
    pub(crate) cookie: u32,
    pub(crate) queue: u16,
    pub(crate) descriptors: u16,
}

impl Ticket {
    /// That of a frame that followed this one in the same rings, from what [`Ticket::cookie`] said of it.
    #[must_use]
    #[inline]
    pub fn following(self, cookie: u32) -> Self {
        Self { cookie, ..self }
    }

    /// What tells it from others of its rings.
    #[must_use]
    #[inline]
    pub fn cookie(self) -> u32 {
        self.cookie
    }
}

/// What a look at the rings found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// A frame.
    Frame(Taken),
    /// Descriptors that make no sense: completed as such, and counted.
    Refused,
    /// Nothing that may be taken now.
    Nothing,
}

/// A number that tells the tickets of these rings from those of all others.
pub(crate) fn new_session() -> u32 {
    static SESSIONS: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only that each is another one matters.
    SESSIONS.fetch_add(1, Ordering::Relaxed)
}
