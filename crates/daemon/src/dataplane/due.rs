//! What the next turn must be in time for, besides packets.
//!
//! Why: the thread sleeps; whatever waits for a time tells it here.
//! Not here: sleeping (`wait`, `thread`), packets' own times (`nic`).
//! Invariant: all but the last look at devices are noted anew in each turn.

use plimsoll_units::Nanos;

/// Times that the thread is to wake for, and reasons not to sleep.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// When a client that is not served now is served again.
    pub(crate) wake_at: Option<Nanos>,
    /// When the first client whose messages are held is read again.
    pub(crate) release_at: Option<Nanos>,
    /// Whether a client's rings must be looked at in the next turn as well, as it does not kick yet.
    pub(crate) attentive: bool,
    /// When ports were last asked whether their devices are still there.
    pub(crate) probed: Nanos,
}

impl Due {
    /// A turn begins: what is due is noted anew.
    pub(crate) fn begin(&mut self) {
        *self = Self { probed: self.probed, ..Self::default() };
    }
}
