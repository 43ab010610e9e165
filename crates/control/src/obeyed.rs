//! What other hosts' VMs allow this host's, for as long as they go on saying so.
//!
//! Why: a limit whose receiver has fallen silent must not hold a sender for ever, nor may silence set it free to flood.
//! From: PicNIC §5.3 (limits of VM pairs, by weight), with the soft state of every protocol that outlives its messages.
//! Not here: what enforces a limit (`nic`), what a message looks like (`feedback`).
//! Invariant: a limit is obeyed until [`Obeyed::new`]'s lapse after it was last heard; at most so many are held, and the
//! one heard longest ago makes room; constant time but for that.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;
use plimsoll_units::{BitRate, Nanos, PacketRate, Span};

use crate::{Limits, WHOLE};

/// Limits that were heard, by the receiver that they are of.
#[derive(Clone, Debug)]
pub struct Obeyed<K> {
    limits: HashMap<K, Heard, FixedState>,
    most: usize,
    lapse: Span,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    limits: Limits,
    at: Nanos,
}

/// What is kept of a limit beside whose it is, with its byte in the table.
pub(crate) const HEARD_BYTES: usize = size_of::<Heard>() + 1;

impl<K: Copy + Eq + Hash + Ord> Obeyed<K> {
    /// For at most `most` receivers, whose limits lapse so long after they were last heard.
    #[must_use]
    pub fn new(most: usize, lapse: Span) -> Self {
        Self { limits: HashMap::with_capacity_and_hasher(most, FixedState::default()), most, lapse }
    }

    /// Limits lapse so long after they were last heard from now on.
    pub fn set_lapse(&mut self, lapse: Span) {
        self.lapse = lapse;
    }

    /// A receiver allows this from now on.
    pub fn hear(&mut self, receiver: K, limits: Limits, now: Nanos) {
        if self.limits.len() >= self.most && !self.limits.contains_key(&receiver) {
            let oldest = self.limits.iter().min_by_key(|&(&key, heard)| (heard.at, key)).map(|(&key, _)| key);
            oldest.map(|key| self.limits.remove(&key));
        }
        self.limits.insert(receiver, Heard { limits, at: now });
    }

    /// What it allows a sender of this weight, an ordinary one's being a thousand; none if nothing holds now.
    #[must_use]
    pub fn limits(&self, receiver: K, weight: u32, now: Nanos) -> Option<Limits> {
        let heard = self.limits.get(&receiver).filter(|heard| now.since(heard.at) < self.lapse)?;
        Some(heard.limits.of_weight(weight))
    }

    /// Forgets what has lapsed, telling of each.
    pub fn expire(&mut self, now: Nanos, mut lapsed: impl FnMut(K)) {
        let lapse = self.lapse;
        let mut gone: Vec<K> = Vec::new();
        self.limits.retain(|&key, heard| {
            let holds = now.since(heard.at) < lapse;
            if !holds {
                gone.push(key);
            }
            holds
        });
        gone.sort_unstable();
        gone.into_iter().for_each(&mut lapsed);
    }

    /// How many are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }
}

impl Limits {
    /// A sender's own part, of which it always has something: a bit and a packet a second.
    #[must_use]
    pub fn of_weight(self, weight: u32) -> Self {
        self.part(weight, WHOLE)
    }

    /// `weight` of `all` of it, and always something.
    #[must_use]
    pub fn part(self, weight: u32, all: u64) -> Self {
        let part = |rate: u64| {
            let part = u128::from(rate) * u128::from(weight) / u128::from(all.max(1));
            u64::try_from(part).unwrap_or(u64::MAX).max(1)
        };
        Self {
            bits: BitRate::new(part(self.bits.get())).expect("at least one"),
            packets: self.packets.and_then(|packets| PacketRate::new(part(packets.get()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gbps(rate: u64) -> Limits {
        Limits { bits: BitRate::gbps(rate), packets: None }
    }

    #[test]
    fn a_limit_lapses_unless_it_is_heard_again() {
        let mut obeyed = Obeyed::new(4, Span::millis(10));
        let at = |ms| Nanos::ZERO + Span::millis(ms);
        obeyed.hear(7, gbps(2), at(0));
        assert_eq!(obeyed.limits(7, 500, at(9)), Some(gbps(1)), "by weight");
        obeyed.hear(7, gbps(3), at(9));
        assert_eq!(obeyed.limits(7, 1_000, at(18)), Some(gbps(3)));
        assert_eq!(obeyed.limits(7, 1_000, at(19)), None);
        let mut gone = Vec::new();
        obeyed.expire(at(19), |key| gone.push(key));
        assert_eq!((gone, obeyed.len()), (vec![7], 0));
    }

    #[test]
    fn the_one_heard_longest_ago_makes_room() {
        let mut obeyed = Obeyed::new(2, Span::secs(1));
        for key in 0..3 {
            obeyed.hear(key, gbps(1), Nanos::new(key));
        }
        let now = Nanos::new(5);
        assert_eq!(obeyed.limits(0, 1_000, now), None);
        assert!(obeyed.limits(1, 1_000, now).is_some() && obeyed.limits(2, 1_000, now).is_some());
    }

    #[test]
    fn the_lightest_sender_has_something() {
        let least = Limits { bits: BitRate::gbps(1), packets: PacketRate::new(1) }.of_weight(0);
        assert_eq!((least.bits.get(), least.packets.map(PacketRate::get)), (1, Some(1)));
    }
}
