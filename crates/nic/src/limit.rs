//! Limits: when a packet may leave, enforced by waiting.
//!
//! Why: a limit cuts across the tree (by destination, by pair, by tenant), so it stands beside it.
//! From: Loom §4.2.2 (global shaping queue), with the policy's order behind each limit: one waiting bundle is chosen
//! for each slot, so that only the limit is on the wheel, never its flow queues (docs/decisions, 1).
//! Not here: who is chosen (`tree`), the wheel itself (`plimsoll_queues::Wheel`).
//! Invariant: charged bytes in any span <= burst + rate x span; a released bundle leaves no earlier than its slot,
//! and at most one packet of each bundle is released and not yet gone.

use plimsoll_policy as policy;
use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use crate::tree::NONE;

/// A limit's clock and who waits for it. What every packet needs fills the first cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Limit {
    pace: Pace,
    /// How far ahead of the present the clock may run: what the burst allows beyond one largest packet.
    slack: Span,
    /// Bundles that wait.
    pub(crate) waiting: u32,
    /// The bundle, while it is the only one; else `NONE`.
    pub(crate) only: u32,
    /// Times that a bundle had to wait.
    pub(crate) parked: u64,
    /// Root of the policy restricted to this limit's bundles; `None` while there is at most one bundle.
    pub(crate) root: Option<u32>,
    burst: Bytes,
    largest: u64,
}

impl Limit {
    pub(crate) fn new(limit: &policy::Limit, largest: u64) -> Self {
        let mut made = Self {
            pace: Pace::new(limit.rate),
            burst: limit.burst,
            largest,
            slack: Span::ZERO,
            root: None,
            only: NONE,
            waiting: 0,
            parked: 0,
        };
        made.set_slack();
        made
    }

    /// Takes over what the same limit owed under an earlier policy.
    pub(crate) fn inherit(&mut self, old: &Self, now: Nanos) {
        let rate = self.pace.rate();
        self.pace = old.pace;
        self.pace.change_rate(rate, now);
    }

    pub(crate) fn set_rate(&mut self, rate: BitRate, now: Nanos) {
        self.pace.change_rate(rate, now);
        self.set_slack();
    }

    /// Whether a packet may pass now, waiting ones first.
    #[inline]
    pub(crate) fn admits(&self, now: Nanos) -> bool {
        self.waiting == 0 && self.due() <= now
    }

    /// When the next packet may pass.
    #[inline]
    pub(crate) fn due(&self) -> Nanos {
        self.pace.earned() - self.slack
    }

    /// Charges a packet that passes now.
    #[inline]
    pub(crate) fn pay(&mut self, len: u32, now: Nanos) {
        self.pace.catch_up(now);
        self.pace.charge(Bytes::new(len.into()));
    }

    fn set_slack(&mut self) {
        let beyond_one = Bytes::new(self.burst.as_u64().saturating_sub(self.largest));
        // Rounded down, so that the burst is never exceeded.
        let span = self.pace.rate().wire_time(beyond_one);
        self.slack = if beyond_one == Bytes::ZERO { Span::ZERO } else { span - Span::ns(1) };
    }
}
