//! How long a packet waited for its turn, without what limits made it wait.
//!
//! Why: a tenant's delay is promised without intended shaping; what a limit holds is as slow as the policy says.
//! From: PicNIC §4 ("for throttled flows, it also excludes any delay necessary for shaping").
//! Not here: the packet's tenant, and what it was promised.
//! Invariant: a packet behind others of its own flow that limits held waits for the limits, not for its turn.

use plimsoll_units::{Nanos, Span};

use crate::stats::Transmit;

/// Which flow queues limits have held since they were last empty.
///
/// ```
/// use plimsoll_nic::{Transmit, Waits};
/// use plimsoll_units::{Nanos, Span};
///
/// let micros = |n| Nanos::ZERO + Span::micros(n);
/// let mut waits = Waits::new(1);
/// let held = Transmit { arrived: micros(0), head: micros(0), limited: Span::micros(90), ..Transmit::default() };
/// assert_eq!(waits.of(&held, micros(100)), Span::micros(10));
/// let behind = Transmit { arrived: micros(1), head: micros(100), ..Transmit::default() };
/// assert_eq!(waits.of(&behind, micros(105)), Span::micros(5), "the rest it waited behind one that was held");
/// let later = Transmit { arrived: micros(200), head: micros(200), ..Transmit::default() };
/// assert_eq!(waits.of(&later, micros(230)), Span::micros(30));
/// ```
#[derive(Clone, Debug)]
pub struct Waits {
    shaped: Vec<bool>,
}

impl Waits {
    /// Keeps one mark for each of `queues` flow queues.
    #[must_use]
    pub fn new(queues: u32) -> Self {
        Self { shaped: vec![false; queues as usize] }
    }

    /// How long the packet of a pull that leaves now has waited for its turn. To be asked for each pull.
    #[inline]
    pub fn of(&mut self, transmit: &Transmit, now: Nanos) -> Span {
        let shaped = &mut self.shaped[transmit.queue.0 as usize];
        *shaped = transmit.limited > Span::ZERO || *shaped && transmit.head > transmit.arrived;
        let from = if *shaped { transmit.head } else { transmit.arrived };
        now.since(from) - transmit.limited
    }
}
