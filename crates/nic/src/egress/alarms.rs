//! Alarms: what the wheel wakes up, and when.
//!
//! Why: limits, gates and nodes with rates wait on one wheel.
//! From: Loom §4.2.2 (one global shaping queue).
//! Not here: what a limit grants (`grants`), when a node can go on (`tree`).
//! Invariant: on the wheel a limit, or its gate, has the limit's number, and a node with rates the number of limits plus its
//! timer's.

use plimsoll_policy::LimitId;
use plimsoll_units::Nanos;
use prefetch_index::prefetch_index;

use super::Nic;
use crate::bundle::Bundle;
use crate::ids::{GateId, TimerId};
use crate::tree::Alarm;

/// Limits that are looked at ahead in one go.
const FETCHED: usize = 32;

impl Nic {
    /// Puts nodes that have just fallen asleep on the wheel, behind the limits, and takes off those that woke up.
    #[inline]
    pub(super) fn set_alarms(&mut self, now: Nanos) {
        if self.forest.has_alarms() {
            self.take_alarms(now);
        }
    }

    fn take_alarms(&mut self, now: Nanos) {
        while let Some((alarm, due)) = self.forest.next_alarm() {
            let id = match alarm {
                Alarm::Rates(timer) => self.limits.len() as u32 + timer.0,
                Alarm::Gate(limit) => limit.0,
            };
            match due {
                Some(due) => self.wheel.set(id, due, now),
                None => self.wheel.remove(id),
            }
        }
    }

    /// A node's rates, or its limit, let something go again.
    fn wake(&mut self, alarm: Alarm, now: Nanos) {
        let was_active = self.forest.is_active(self.layout.root);
        match alarm {
            Alarm::Rates(timer) => self.forest.wake(timer, now),
            Alarm::Gate(limit) => self.forest.open(self.limits[limit].gate, now),
        }
        if !was_active && self.forest.is_active(self.layout.root) {
            self.link.resume(now);
        }
        self.set_alarms(now);
    }

    /// Gates open, nodes wake up, and limits grant what they have earned, earliest first.
    #[inline]
    pub(super) fn release_due(&mut self, now: Nanos) {
        let mut fetched = 0;
        while let Some(due) = self.wheel.pop_due(now) {
            let limit = match due.checked_sub(self.limits.len() as u32) {
                Some(timer) => {
                    self.wake(Alarm::Rates(TimerId(timer)), now);
                    continue;
                }
                None => LimitId(due),
            };
            if self.limits[limit].gate != GateId::NONE {
                self.wake(Alarm::Gate(limit), now);
                continue;
            }
            if fetched == 0 && self.outgrows_cache() {
                fetched = FETCHED;
                self.prefetch_due(now);
            }
            fetched = fetched.saturating_sub(1);
            self.release(limit, now);
        }
    }

    /// Brings what the limits that are due next will release into the cache, in steps, so that misses overlap.
    fn prefetch_due(&self, now: Nanos) {
        let mut due = [LimitId(0); FETCHED];
        let mut size = 0;
        self.wheel.peek_due(now, FETCHED, |limit| {
            if (limit as usize) < self.limits.len() {
                due[size] = LimitId(limit);
                size += 1;
            }
        });
        let due = &due[..size];
        due.iter().for_each(|&limit| self.limits.prefetch(limit));
        let alone = || due.iter().filter_map(|&limit| self.bundles.get(self.limits[limit].only));
        alone().for_each(Bundle::prefetch);
        alone().for_each(|bundle| prefetch_index(&self.holds, bundle.holds.range().start));
        alone().for_each(|bundle| self.forest.prefetch(bundle.seat));
        let fronts = || alone().filter_map(Bundle::front);
        fronts().for_each(|queue| self.host.prefetch(queue));
        fronts().for_each(|queue| self.host.prefetch_head(queue));
        fronts().for_each(|queue| self.host.prefetch_second(queue));
    }
}
