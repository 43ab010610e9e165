//! Looking ahead: what will probably be picked next is brought into the cache, in steps, so that cache misses overlap.
//!
//! Why: a thousand flow queues do not fit a core's own caches, and each load that a packet's way depends on would be waited for.
//! From: software pipelining; the order of a row of children is known before they are picked.
//! Not here: limits that are due (`alarms`), and doorbells (`doorbells`).
//! Invariant: nothing here changes a decision; a wrong guess costs time only.

use super::Nic;
use crate::bundle::Bundle;
use crate::host::Host;
use crate::ids::{BundleId, RecordId, SlotId, Table, Tagged, TreeId};
use crate::tree::{Pick, Row, Seat};

/// The children that are expected to be picked after the latest, in a ring.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    node: TreeId,
    slots: [SlotId; PLACES],
    /// A child is a bundle until its front flow queue is known, then that one's record.
    leaves: [Tagged; PLACES],
    /// Picks so far: the latest pick is in this place, modulo their number.
    at: u32,
    /// How many are expected after it.
    known: u32,
    /// The latest pick where no row said what follows.
    latest: Tagged,
}

const PLACES: usize = 8;
/// How many picks ahead a bundle is fetched, then the record of its front flow queue, and then its head descriptor.
const BUNDLE: u32 = 5;
const RECORD: u32 = 3;
const HEAD: u32 = 1;

impl Default for Ahead {
    fn default() -> Self {
        let (slots, leaves) = ([SlotId::NONE; PLACES], [Tagged::NOTHING; PLACES]);
        Self { node: TreeId::NONE, slots, leaves, at: 0, known: 0, latest: Tagged::NOTHING }
    }
}

impl Ahead {
    /// The place of the child that is expected `picks` after the latest.
    #[inline]
    fn place(&self, picks: u32) -> usize {
        self.at.wrapping_add(picks) as usize % PLACES
    }

    /// Notes a pick. If it was not the expected one, nothing is known of those that follow.
    #[inline]
    fn note(&mut self, Seat { node, slot }: Seat) {
        self.at = self.at.wrapping_add(1);
        let place = self.place(0);
        if self.known > 0 && self.slots[place] == slot && self.node == node {
            self.known -= 1;
        } else {
            (self.node, self.slots[place], self.known) = (node, slot, 0);
        }
    }
}

impl Ahead {
    /// Notes a pick from a row, and brings what follows it there into the cache: of the nearer, more of its state. Returns whether
    /// enough is known to follow.
    #[inline(always)]
    pub(super) fn look_along(
        &mut self,
        seat: Seat,
        row: Row<'_>,
        bundles: &Table<BundleId, Bundle>,
        host: &Host,
    ) -> bool {
        self.note(seat);
        let mut last = self.slots[self.place(self.known)];
        // One more at each pick, and a second one until there are enough.
        for _ in 0..2 {
            if self.known == BUNDLE {
                break;
            }
            let (slot, child) = row.after(last);
            if slot == SlotId::NONE {
                break;
            }
            if let Some(bundle) = child.as_bundle() {
                bundles.prefetch(bundle);
            }
            self.known += 1;
            let place = self.place(self.known);
            (self.slots[place], self.leaves[place], last) = (slot, child, slot);
        }
        if self.known < RECORD {
            return false;
        }
        let leaf = &mut self.leaves[self.at.wrapping_add(RECORD) as usize % PLACES];
        if let Some(front) = leaf.as_bundle().and_then(|id| bundles[id].front()) {
            *leaf = Tagged::record(front);
            host.prefetch(front);
        }
        if let Some(record) = self.leaves[self.place(HEAD)].as_record() {
            host.prefetch_head(record);
        }
        true
    }
}

impl Nic {
    /// Brings what will probably be picked soon into the cache.
    #[inline]
    pub(super) fn look_ahead(&mut self, pick: &Pick) {
        if self.forest.foretells(pick.seat.node) {
            self.look_at_order(pick);
        } else {
            self.look_again(pick);
        }
    }

    /// Looks along what the order says will follow.
    #[inline(never)]
    fn look_at_order(&mut self, pick: &Pick) {
        let known = self
            .forest
            .row(pick.seat.node)
            .is_some_and(|row| self.ahead.look_along(pick.seat, row, &self.bundles, &self.host));
        if !known {
            self.look_elsewhere(pick);
        }
    }

    /// Where no row says what follows: looks along jump pointers, or, if a bundle is picked again, at its own flow queues.
    #[inline]
    fn look_elsewhere(&mut self, pick: &Pick) {
        if let Some(following) = self.forest.upcoming(pick.seat) {
            self.ahead.latest = pick.child;
            let [next, soon] = following.map(|child| {
                let child = child?;
                child.as_bundle().map_or(child.as_record(), |id| self.bundles[id].front())
            });
            self.fetch(next, soon);
        } else {
            self.look_again(pick);
        }
    }

    /// If a bundle is picked again, looks at its own flow queues.
    #[inline]
    fn look_again(&mut self, pick: &Pick) {
        let again = core::mem::replace(&mut self.ahead.latest, pick.child) == pick.child;
        if let (true, Some(id)) = (again, pick.child.as_bundle()) {
            self.look_into(id);
        }
    }

    /// Brings what follows in a bundle into the cache.
    #[inline(never)]
    fn look_into(&self, id: BundleId) {
        let [next, soon] = self.bundles[id].upcoming([2, 4]);
        self.fetch(next, soon);
    }

    fn fetch(&self, next: Option<RecordId>, soon: Option<RecordId>) {
        if let Some(record) = soon {
            self.host.prefetch(record);
        }
        if let Some(record) = next {
            self.host.prefetch_head(record);
        }
    }
}
