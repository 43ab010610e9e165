//! Sizes of the engine.
//!
//! Why: memory is fixed by configuration; these numbers fix it.
//! Not here: what a policy adds (`footprint`).

use plimsoll_units::{Bytes, Span};

/// Sizes of the engine; they decide its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Flow queues that may be open at once.
    pub queues: u32,
    /// Descriptors that a flow queue holds at most; rounded up to a power of two, at most 16,384.
    pub ring: u16,
    /// Descriptors that the host holds at most.
    pub descriptors: u32,
    /// Most bytes, overhead included, that one pull takes; at least one frame.
    pub pull: Bytes,
    /// How far the link's pace may lag behind a late caller and be made up: zero in virtual time.
    pub catch_up: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { queues: 1_024, ring: 256, descriptors: 65_536, pull: Bytes::ZERO, catch_up: Span::ZERO }
    }
}

impl Config {
    /// These sizes without flow queues: for a policy that will take over those of another.
    pub(crate) fn without_queues(&self) -> Self {
        Self { queues: 0, ..self.clone() }
    }
}
