//! Heavy flows, and what slows them down.
//!
//! Why: a policy without backpressure pays one look at a part that is not there.
//! From: MIMIC.
//! Not here: counting (`heavy`), the decisions (`press`, `load`), mediated ECN (`mediate`).
//! Invariant: `heavy` is there exactly while some flow is counted.

use plimsoll_units::Nanos;

use super::heavy::HeavyFlows;
use super::load::{Near, Sampled};
use super::paced::Paced;

/// Everything by which flows are counted and slowed down.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// The flows that are counted, if any are.
    pub(crate) heavy: Option<Box<HeavyFlows>>,
    /// Frames that wait for the rates of flows that are slowed down.
    pub(crate) paced: Paced,
    /// Whether any tenant's connections are mediated.
    pub(crate) mediates: bool,
    /// When their meters are looked at next.
    pub(crate) mediated_at: Nanos,
    /// The CPU time of what the policy watches, where another thread measures it.
    pub(crate) sampled: Option<Sampled>,
    pub(crate) near: Near,
    /// What an operator is to be told of flows that are slowed down.
    pub(crate) told: Vec<String>,
}
