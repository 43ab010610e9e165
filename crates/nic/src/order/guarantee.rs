//! Guarantees: children with a `min` are served first, as far as it reaches.
//!
//! Why: an envelope's floor holds whatever weights and priorities say.
//! From: virtual clocks served by earliest deadline; the rest of the node's service goes by its own order.
//! Not here: whether the sum of the minima fits (the policy's check).
//! Invariant: a child's clock lies at most a packet behind the moment at which it last became active.

use plimsoll_queues::{Pace, RankQueue};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use crate::ids::{SlotId, Table};

/// The minima of a node's children.
#[derive(Clone, Debug)]
pub(crate) struct Guarantee {
    clocks: Table<SlotId, Option<Clock>>,
    /// Active children whose clock says "not yet", by that moment.
    later: RankQueue,
    /// Active children that may be served under their guarantee, by deadline.
    due: RankQueue,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    pace: Pace,
    /// The time of a largest packet at this rate: how far a deadline lies behind its start.
    slack: Span,
}

impl Guarantee {
    /// `None` when no child has a minimum.
    pub(crate) fn new(minima: &[Option<BitRate>], largest: u64) -> Option<Self> {
        minima.iter().any(Option::is_some).then(|| Self {
            clocks: minima.iter().map(|min| min.map(|rate| Clock::new(rate, largest))).collect(),
            later: RankQueue::new(minima.len()),
            due: RankQueue::new(minima.len()),
        })
    }

    /// Gives a child that has a minimum another one. What it has used beyond it is earned at the new one.
    pub(crate) fn set_min(&mut self, slot: SlotId, min: BitRate, largest: u64, now: Nanos) {
        if let Some(clock) = &mut self.clocks[slot] {
            clock.pace.change_rate(min, now);
            clock.slack = min.wire_time(Bytes::new(largest));
            if self.later.rank(slot.0).is_some() {
                self.later.set(slot.0, clock.pace.earned().as_u64());
            }
        }
    }

    /// A child becomes active. If it is `returning`, from a limit for instance, it keeps up to one packet of what it is owed;
    /// after being idle it is owed nothing.
    #[inline]
    pub(crate) fn insert(&mut self, slot: SlotId, returning: bool, now: Nanos) {
        if let Some(clock) = &mut self.clocks[slot] {
            clock.pace.catch_up(if returning { now - clock.slack } else { now });
            self.later.set(slot.0, clock.pace.earned().as_u64());
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: SlotId) {
        self.later.remove(slot.0);
        self.due.remove(slot.0);
    }

    /// The child with a due guarantee and the earliest deadline.
    #[inline]
    pub(crate) fn pick(&mut self, now: Nanos) -> Option<SlotId> {
        while let Some((start, slot)) = self.later.first() {
            if start > now.as_u64() {
                break;
            }
            self.later.remove(slot);
            let slack = self.clocks[SlotId(slot)].map_or(Span::ZERO, |clock| clock.slack);
            self.due.set(slot, start.saturating_add(slack.as_u64()));
        }
        self.due.first().map(|(_, slot)| SlotId(slot))
    }

    /// A child was served under its guarantee.
    #[inline]
    pub(crate) fn charge(&mut self, slot: SlotId, len: u64) {
        if let Some(clock) = &mut self.clocks[slot] {
            clock.pace.charge(Bytes::new(len));
            self.due.remove(slot.0);
            self.later.set(slot.0, clock.pace.earned().as_u64());
        }
    }
}

impl Clock {
    fn new(rate: BitRate, largest: u64) -> Self {
        Self { pace: Pace::new(rate), slack: rate.wire_time(Bytes::new(largest)) }
    }
}
