//! Grants: bundles ask the limits that they are behind, and are granted bytes.
//!
//! Why: a limit divides its rate by the policy restricted to the bundles behind it, whatever the main tree does meanwhile. So a
//! bundle is granted bytes, which it uses when it leaves, and asks for more while it is in the main tree.
//! From: Loom §4.2.2, where a packet waits in the shaping queue before it is in the tree; here both go on at once
//! (docs/decisions, 15).
//! Not here: how much a limit grants when (`limit`), nodes that a `max` closes (`tree::gate`).
//! Invariant: a bundle stands in a limit's tree exactly while it asks; the limit is on the wheel exactly while a bundle asks,
//! except between a grant that let a bundle into the main tree and the next pick.

use plimsoll_policy::LimitId;
use plimsoll_units::Nanos;

use super::Nic;
use crate::bundle::{Asks, Place};
use crate::ids::{BundleId, GateId};
use crate::order::ranked::Head;
use crate::order::{Entrant, Fate};
use crate::tree::Pick;

impl Nic {
    /// Whether the bundle neither has nor asks for a grant, and each of its limits would grant it any pull now: then it leaves as if
    /// it had no limits, but for what it pays.
    #[inline(always)]
    pub(super) fn is_calm(&self, id: BundleId, now: Nanos) -> bool {
        let bundle = &self.bundles[id];
        bundle.gate == GateId::NONE
            && self.holds[bundle.holds.range()]
                .iter()
                .all(|hold| hold.is_idle() && self.limits[hold.limit].is_calm(now))
    }

    /// Whether a limit does not let the bundle's head, which is charged `len`, leave now. Gates are asked by `keep_back`.
    #[inline]
    pub(super) fn is_held(&self, id: BundleId, len: u32, now: Nanos) -> bool {
        self.holds[self.bundles[id].holds.range()].iter().any(|hold| {
            let limit = &self.limits[hold.limit];
            limit.gate == GateId::NONE && !limit.has(limit.lacks(len, hold.granted), now)
        })
    }

    /// Asks each limit that cannot grant at once what the bundle may ask for. If the bundle `claims`, as its head was picked in
    /// vain, the other limits grant what the head lacks now, so that it is not picked in vain there as well. Returns whether a
    /// limit holds the head.
    ///
    /// [`Nic::is_held`] asks less and changes nothing: a head that no limit holds is about to leave, and asks for more once it has.
    #[inline]
    pub(crate) fn ask_around(&mut self, id: BundleId, claims: bool, now: Nanos) -> bool {
        let len = self.head_charge(id);
        let mut held = false;
        for at in self.bundles[id].holds.range() {
            let hold = &mut self.holds[at];
            let limit = &mut self.limits[hold.limit];
            if limit.gate != GateId::NONE {
                continue; // it is asked, and paid, where the packet leaves
            }
            let lacks = limit.lacks(len, hold.granted);
            // A head that lacks something asks for that alone.
            let asked = if lacks > 0 {
                lacks
            } else if limit.root.is_some() && hold.asks == Asks::No {
                limit.asked(len, hold.granted, self.bundles[id].follows(&self.host))
            } else {
                0
            };
            let had = hold.asks;
            if had != Asks::No {
                hold.asks = Asks::More; // perhaps only since a head came that is shorter
            }
            if asked == 0 {
                continue;
            }
            let due = limit.due_for(asked);
            if limit.gives(due, now) {
                if claims && lacks > 0 {
                    limit.grant(lacks, &mut hold.granted, now);
                }
                continue;
            }
            if lacks > 0 {
                (hold.asks, held) = (Asks::Needs, true);
                if had != Asks::Needs {
                    limit.park();
                }
            } else {
                hold.asks = Asks::More;
            }
            if had == Asks::No {
                self.ask(id, at, asked, due, now);
            }
        }
        held
    }

    #[inline]
    fn ask(&mut self, id: BundleId, at: usize, asked: u32, due: Nanos, now: Nanos) {
        let hold = &self.holds[at];
        let (index, seat) = (hold.limit, hold.seat());
        if let Some(seat) = seat {
            let entrant = self.entrant(id);
            // A bundle that has sent since it was idle keeps its rank.
            self.forest.activate(seat, &entrant, !self.bundles[id].fresh, now);
        }
        if self.limits[index].ask(asked) {
            self.wheel.set(index.0, due, now);
        }
    }

    /// The bundle's head waits for limits that it has asked.
    #[inline]
    pub(super) fn wait(&mut self, id: BundleId, now: Nanos) {
        let bundle = &mut self.bundles[id];
        bundle.place = Place::Waits;
        bundle.waits_since = now;
    }

    /// A bundle that has become idle asks for nothing, and gives back what it was granted.
    pub(super) fn withdraw(&mut self, id: BundleId, now: Nanos) {
        let entrant = Entrant { bundle: id, flows: 0, head: Head::default() };
        for hold in &mut self.holds[self.bundles[id].holds.range()] {
            let left = hold.asks != Asks::No;
            if !left && hold.granted == 0 {
                continue;
            }
            let limit = &mut self.limits[hold.limit];
            if let Some(seat) = hold.asking_seat() {
                self.forest.settle(seat, &entrant, 0, Fate::Idle);
            }
            hold.asks = Asks::No;
            limit.waiting -= u32::from(left);
            let returned = limit.take_back(&mut hold.granted, now);
            if left && limit.waiting == 0 {
                self.wheel.remove(hold.limit.0);
            } else if returned && limit.waiting > 0 {
                self.wheel.set(hold.limit.0, limit.due(), now);
            }
        }
    }

    /// Grants the request of the bundle that the limit's tree picks. If it is larger than was expected, the choice is made again
    /// when it is due.
    pub(super) fn release(&mut self, limit: LimitId, now: Nanos) {
        if self.limits[limit].rests {
            return; // it is armed after the pick
        }
        let alone = self.limits[limit].only;
        let pick = if alone == BundleId::NONE {
            self.limits[limit].root.and_then(|root| self.forest.pick(root, now))
        } else {
            None
        };
        // Only bundles are behind limits.
        if let Some(id) =
            pick.map_or(Some(alone), |pick| pick.child.as_bundle()).filter(|&id| id != BundleId::NONE)
        {
            self.grant(id, limit, pick, now);
        }
    }

    fn grant(&mut self, id: BundleId, limit: LimitId, pick: Option<Pick>, now: Nanos) {
        let len = self.head_charge(id);
        let bundle = &mut self.bundles[id];
        let follow = pick.is_some() && bundle.follows(&self.host);
        let holds = &mut self.holds[bundle.holds.range()];
        let Some(hold) = holds.iter_mut().find(|hold| hold.limit == limit && hold.asks != Asks::No) else {
            return;
        };
        let state = &mut self.limits[limit];
        let asked = state.asked(len, hold.granted, follow);
        if !state.grant(asked, &mut hold.granted, now) {
            return self.wheel.set(limit.0, state.due(), now);
        }
        let remains = follow && state.asked(len, hold.granted, follow) > 0;
        let needed = core::mem::replace(&mut hold.asks, if remains { Asks::More } else { Asks::No });
        state.waiting -= u32::from(!remains);
        if let Some(pick) = pick {
            let (entrant, len) = (self.entrant(id), self.limits[limit].in_bytes(asked, len));
            self.forest.settle(pick.seat, &entrant, len, Fate::of(remains, false));
        }
        let bundle = &mut self.bundles[id];
        if needed == Asks::Needs && bundle.place == Place::Waits {
            bundle.note_wait(limit, now.since(bundle.waits_since));
            if self.proceed(id, now) {
                self.limits[limit].rests = true;
                return self.resting.push(limit);
            }
        }
        self.arm(limit);
    }

    /// A bundle has been granted what its head lacked at one limit.
    #[inline]
    fn proceed(&mut self, id: BundleId, now: Nanos) -> bool {
        let lone = self.bundles[id].holds.len() == 1;
        if lone {
            self.enter_tree(id, now);
        }
        lone || self.go_on(id, now)
    }

    /// A bundle that was idle, or waited and was granted something, enters the main tree, unless a limit holds its head. Returns
    /// whether it did.
    pub(crate) fn go_on(&mut self, id: BundleId, now: Nanos) -> bool {
        let claims = self.bundles[id].entries > 0;
        let held = self.ask_around(id, claims, now);
        if held {
            self.wait(id, now)
        } else {
            self.enter_tree(id, now)
        }
        !held
    }

    /// Limits that let a bundle into the main tree before the last pick choose again.
    #[cold]
    pub(super) fn arm_rested(&mut self) {
        while let Some(limit) = self.resting.pop() {
            self.arm(limit);
        }
    }

    /// Puts the limit on the wheel for as long as a bundle asks.
    pub(super) fn arm(&mut self, limit: LimitId) {
        let state = &mut self.limits[limit];
        state.rests = false;
        if state.waiting > 0 {
            self.wheel.set(limit.0, state.due(), self.now);
        }
    }
}
