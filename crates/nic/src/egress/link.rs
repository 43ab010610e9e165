//! The uplink's own pace.
//!
//! Why: a pull takes its time on the link, so that the order of what follows is decided when it can leave, not before.
//! Not here: limits (`limit`).
//! Invariant: what a late caller makes up for is at most `catch_up`; a pause earns nothing.

use plimsoll_queues::Pace;
use plimsoll_units::{Bytes, Nanos, Span};

/// The uplink's own pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) pace: Pace,
    /// How far the pace may lag behind the present and be made up.
    pub(crate) catch_up: Span,
    /// When the tree was last left empty.
    pub(crate) emptied: Nanos,
    /// The length of pauses that earned nothing, until it is taken by `take_unused`.
    pub(crate) unused: Span,
}

impl Link {
    /// A pull of `len` takes its time on the link from now on.
    #[inline]
    pub(super) fn charge(&mut self, len: u32, now: Nanos) {
        self.pace.catch_up(now - self.catch_up);
        self.pace.charge(Bytes::new(len.into()));
    }

    /// Packets come after a pause: what a late caller had to make up before is not lost, but the pause itself earns
    /// nothing.
    pub(super) fn resume(&mut self, now: Nanos) {
        let forgotten = now.since(self.emptied) > self.catch_up;
        let lag = if forgotten { Span::ZERO } else { self.emptied.since(self.pace.earned()) };
        self.unused += (now - lag).since(self.pace.earned());
        self.pace.catch_up(now - lag);
    }
}
