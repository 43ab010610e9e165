//! What is watched, which flows are chosen, and what they are held to.
//!
//! Why: a policy states some of it, and a flow's path the rest.
//! From: MIMIC §II, §III-A and §V-A; the defaults are ours.
//! Not here: what follows from it (`Backpressure`).
//! Invariant: none; a [`Trigger`](super::Trigger) makes sense of thresholds in the wrong order.

use plimsoll_policy::{Press, PressRate};
use plimsoll_units::{BitRate, Bytes, Span};

use super::Thresholds;
use crate::PerMille;

/// The rate to which a chosen flow is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This rate.
    Fixed(BitRate),
    /// The rate that brings the watched thing below its release threshold; at least this.
    Auto(BitRate),
}

/// A flow's way to its receiver, from which its marking interval follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The round-trip time.
    pub rtt: Span,
    /// A packet's size as rates count it.
    pub mss: Bytes,
}

/// What is watched, which flows are chosen, and what they are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// When the watched thing is overloaded.
    pub thresholds: Thresholds,
    /// Thousandths of a core that the watched thing may use.
    pub capacity: u32,
    /// A flow is chosen if it has more than this part of the packets of all reported flows.
    pub over: PerMille,
    /// The rate of a chosen flow.
    pub target: Target,
    /// The way of a flow for which the driver knows none.
    pub path: Path,
    /// How long a flow stays pressed after its last refresh.
    pub lifetime: Span,
    /// How often targets, marking intervals and refreshes are decided, and the shortest time over which a rate is measured.
    /// A flow that goes on as it is is refreshed each quarter of its lifetime only.
    pub window: Span,
    /// Flows that are pressed at once.
    pub flows: usize,
    /// Flows reported at once; further ones are ignored, and counted.
    pub reports: usize,
}

impl Default for Settings {
    /// One core, 80 % and 70 %, flows with more than a tenth of the packets, 850 Mb/s, 0.77 ms, 3 s, windows of 20 ms, 256 flows
    /// of 1,024 reports.
    fn default() -> Self {
        Self {
            thresholds: Thresholds::default(),
            capacity: 1_000,
            over: 100,
            target: Target::Fixed(BitRate::mbps(850)),
            path: Path { rtt: Span::micros(770), mss: Bytes::new(1_500) },
            lifetime: Span::secs(3),
            window: Span::millis(20),
            flows: 256,
            reports: 1_024,
        }
    }
}

impl Settings {
    /// What a policy states.
    #[must_use]
    pub fn of(stated: &Press) -> Self {
        Self {
            thresholds: Thresholds {
                on_at: stated.threshold.per_mille(),
                off_below: stated.release.per_mille(),
            },
            capacity: stated.cores.unwrap_or(1_000),
            over: stated.part.per_mille(),
            target: match stated.rate {
                PressRate::Fixed(rate) => Target::Fixed(rate),
                PressRate::Auto { least } => Target::Auto(least),
            },
            lifetime: stated.lifetime,
            flows: stated.flows as usize,
            ..Self::default()
        }
    }
}
