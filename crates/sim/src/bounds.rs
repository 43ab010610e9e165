//! The policy's delay bounds, held against every packet that meets their assumptions.
//!
//! Why: `plimsoll check` promises; a run that breaks the promise must say so by itself.
//! From: network calculus. A class served at `rate` with some lag, first in first out, whose arrivals since it was last
//! empty stay below one frame plus `rate` (half of it in any other order), waits no longer than its bound (`plimsoll_policy::ASSUMPTIONS`).
//! Not here: the bounds themselves (`policy`), and those of a policy that has been changed: from then on no packet is judged.
//! Invariant: a packet is judged exactly if its class has kept to its rate since it was last empty, until the packet came, or in
//! an order other than first in first out until it has left, and no limit has made the class wait since then.

use plimsoll_nic::Transmit;
use plimsoll_policy::{NodeId, Program, bounds};
use plimsoll_units::{BitRate, NS_PER_SEC, Nanos, Span};

/// The delay bounds of one engine's classes.
#[derive(Debug, Default)]
pub(crate) struct DelayBounds {
    classes: Vec<Option<Class>>,
    overhead: u32,
    burst: u64,
    /// Whether shares have changed since the bounds were worked out.
    changed: bool,
}

#[derive(Clone, Debug)]
struct Class {
    name: String,
    bound: Span,
    rate: BitRate,
    waiting: u32,
    /// When it last stopped being empty.
    since: Nanos,
    /// Bytes that have come since then.
    bytes: u64,
    limited: bool,
    /// Whether it has exceeded its rate since then.
    exceeded: bool,
    /// Whether packets that come later cannot leave before.
    in_order: bool,
    judged: u64,
    worst: Span,
}

/// A class's delay bound, and the delays of the packets that were judged by it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DelayBound {
    /// The host.
    pub host: String,
    /// The class.
    pub class: String,
    /// The bound, as `plimsoll check` prints it.
    pub bound: Span,
    /// The longest delay of the packets that were judged.
    pub worst: Span,
    /// Packets that met the bound's assumptions.
    pub judged: u64,
}

impl DelayBound {
    /// Whether the bound held.
    #[must_use]
    pub fn kept(&self) -> bool {
        self.worst <= self.bound
    }
}

impl DelayBounds {
    pub(crate) fn new(program: &Program) -> Self {
        let mut classes = vec![None; program.nodes.len()];
        for bound in bounds(program) {
            let (Some(delay), Some(rate)) = (bound.delay, bound.delay_up_to) else { continue };
            classes[bound.class.0 as usize] = Some(Class {
                name: bound.name,
                bound: delay,
                rate,
                waiting: 0,
                since: Nanos::ZERO,
                bytes: 0,
                limited: false,
                exceeded: false,
                in_order: bound.guaranteed == Some(rate),
                judged: 0,
                worst: Span::ZERO,
            });
        }
        let overhead = u32::try_from(program.overhead.as_u64()).unwrap_or(u32::MAX);
        let burst = (program.max_frame + program.overhead).as_u64();
        Self { classes, overhead, burst, changed: false }
    }

    /// Takes note that a weight or a rate has changed: the bounds hold for shares as they were.
    pub(crate) fn shares_changed(&mut self) {
        self.changed = true;
    }

    /// Counts a packet that comes, or a segment of several frames with all their bytes, and says whether the bound holds for
    /// it.
    #[inline]
    pub(crate) fn arrives(&mut self, class: NodeId, len: u32, frames: u32, now: Nanos) -> bool {
        let Some(Some(class)) = self.classes.get_mut(class.0 as usize) else { return false };
        if class.waiting == 0 {
            (class.since, class.bytes, class.limited, class.exceeded) = (now, 0, false, false);
        }
        class.waiting += 1;
        class.bytes += u64::from(len) + u64::from(frames) * u64::from(self.overhead);
        let earned = u128::from(class.rate.get()) * u128::from(now.since(class.since).as_u64());
        let conforms =
            u128::from(class.bytes.saturating_sub(self.burst)) * u128::from(8 * NS_PER_SEC) <= earned;
        class.exceeded |= !conforms;
        conforms
    }

    /// Judges a packet that has left, with its last bit on the link at `end`.
    #[inline]
    pub(crate) fn leaves(&mut self, transmit: &Transmit, conforms: bool, end: Nanos) {
        let Some(Some(class)) = self.classes.get_mut(transmit.class.0 as usize) else { return };
        class.limited |= transmit.limited > Span::ZERO;
        if !transmit.last {
            return; // the segment's last frame is what the bound is for
        }
        class.waiting -= 1;
        let kept_to_its_rate = conforms && (class.in_order || !class.exceeded);
        if kept_to_its_rate && !class.limited && !self.changed {
            class.judged += 1;
            class.worst = class.worst.max(end.since(transmit.arrived));
        }
    }

    /// The bound of each class on this host of which packets were judged.
    pub(crate) fn report(&self, host: &str) -> Vec<DelayBound> {
        let judged = self.classes.iter().flatten().filter(|class| class.judged > 0);
        let outcome = |class: &Class| DelayBound {
            host: host.to_owned(),
            class: class.name.clone(),
            bound: class.bound,
            worst: class.worst,
            judged: class.judged,
        };
        judged.map(outcome).collect()
    }
}
