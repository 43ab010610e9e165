//! Grants: what bundles ask of the limits that they are behind, and get.
//!
//! Why: a limit divides its rate by the policy restricted to those behind it, whatever the main tree does meanwhile. So a bundle
//! is granted bytes, which it uses when it leaves, and asks for more while it is in the main tree.
//! From: Loom §4.2.2, where a packet waits in the shaping queue before it is in the tree; here both go on at once
//! (docs/decisions, 15).
//! Not here: how much a limit grants when (`limit`), nodes that a `max` closes (`tree::gate`).
//! Invariant: a bundle stands in a limit's tree exactly while it asks; the limit is on the wheel exactly while a bundle asks, but
//! for the time between a grant that let one into the main tree and the next pick.

use plimsoll_policy::LimitId;
use plimsoll_units::Nanos;

use super::Nic;
use crate::bundle::{Asks, Hold, Place};
use crate::order::ranked::Head;
use crate::order::{Entrant, Settlement};
use crate::tree::{NONE, Pick};

impl Nic {
    /// Asks each limit that does not have at once what the bundle may ask for. Answers whether one of them holds its head.
    #[inline]
    pub(crate) fn ask_around(&mut self, id: u32, now: Nanos) -> bool {
        let len = self.head_charge(id);
        let mut held = false;
        for index in 0..self.bundles[id as usize].holds.len() {
            let bundle = &self.bundles[id as usize];
            let hold = &bundle.holds[index];
            let limit = &self.limits[hold.limit as usize];
            if limit.gate != NONE {
                continue; // it is asked, and paid, where the packet leaves
            }
            let lacks = limit.lacks(len, hold.granted);
            if lacks > 0 {
                // A head that lacks something asks for that alone.
                if !limit.has(lacks, now) {
                    held = true;
                    self.need(id, index, lacks, now);
                }
            } else if limit.root.is_some() && hold.asks == Asks::No {
                let asked = limit.asked(len, hold.granted, bundle.follows(&self.host));
                if !limit.has(asked, now) {
                    self.ask(id, index, asked, now);
                    self.bundles[id as usize].holds[index].asks = Asks::More;
                }
            }
        }
        held
    }

    /// The head can't leave without what it lacks at this limit.
    #[inline]
    fn need(&mut self, id: u32, index: usize, lacks: u32, now: Nanos) {
        let asks = core::mem::replace(&mut self.bundles[id as usize].holds[index].asks, Asks::Needs);
        if asks == Asks::No {
            self.ask(id, index, lacks, now);
        }
        if asks != Asks::Needs {
            let limit = self.bundles[id as usize].holds[index].limit;
            self.limits[limit as usize].park();
        }
    }

    #[inline]
    fn ask(&mut self, id: u32, index: usize, asked: u32, now: Nanos) {
        let bundle = &self.bundles[id as usize];
        let (hold, fresh) = (bundle.holds[index], bundle.fresh);
        if let Some(seat) = hold.seat() {
            let entrant = self.entrant(id);
            // A bundle that has sent since it was idle keeps its rank.
            self.forest.activate(seat, &entrant, !fresh, now);
        }
        let limit = &mut self.limits[hold.limit as usize];
        if limit.ask(asked) {
            self.wheel.set(hold.limit, limit.due(), now);
        }
    }

    /// The bundle's head waits for limits that it has asked.
    #[inline]
    pub(super) fn wait(&mut self, id: u32, now: Nanos) {
        let bundle = &mut self.bundles[id as usize];
        bundle.place = Place::Waits;
        bundle.waits_since = now;
    }

    /// A bundle that has become idle asks for nothing, and gives back what it was granted.
    pub(super) fn withdraw(&mut self, id: u32, now: Nanos) {
        let entrant = Entrant { bundle: id, flows: 0, head: Head::default() };
        for hold in &mut self.bundles[id as usize].holds {
            let limit = &mut self.limits[hold.limit as usize];
            let left = hold.asks != Asks::No;
            if let Some(seat) = hold.asking_seat() {
                let outcome = Settlement { entrant: &entrant, len: 0, remains: false, idle: true };
                self.forest.settle(seat, outcome);
            }
            hold.asks = Asks::No;
            limit.waiting -= u32::from(left);
            let returned = limit.take_back(&mut hold.granted, now);
            if left && limit.waiting == 0 {
                self.wheel.remove(hold.limit);
            } else if returned && limit.waiting > 0 {
                self.wheel.set(hold.limit, limit.due(), now);
            }
        }
    }

    /// Grants the request of the bundle that the limit's tree picks. If it is larger than was expected, the choice is made again
    /// when it is due.
    pub(super) fn release(&mut self, limit: u32, now: Nanos) {
        if self.limits[limit as usize].rests {
            return; // it is armed after the pick
        }
        let alone = self.limits[limit as usize].only;
        let pick = if alone == NONE {
            self.limits[limit as usize].root.and_then(|root| self.forest.pick(root, now))
        } else {
            None
        };
        let id = pick.map_or(alone, |pick| pick.child.name()); // only bundles are behind limits
        if id != NONE {
            self.grant(id, limit, pick, now);
        }
    }

    fn grant(&mut self, id: u32, limit: u32, pick: Option<Pick>, now: Nanos) {
        let len = self.head_charge(id);
        let follow = pick.is_some() && self.bundles[id as usize].follows(&self.host);
        let bundle = &mut self.bundles[id as usize];
        let asks = |hold: &&mut Hold| hold.limit == limit && hold.asks != Asks::No;
        let Some(hold) = bundle.holds.iter_mut().find(asks) else { return };
        let state = &mut self.limits[limit as usize];
        let asked = state.asked(len, hold.granted, follow);
        if !state.grant(asked, &mut hold.granted, now) {
            return self.wheel.set(limit, state.due(), now);
        }
        let remains = state.asked(len, hold.granted, follow) > 0;
        let needed = core::mem::replace(&mut hold.asks, if remains { Asks::More } else { Asks::No });
        state.waiting -= u32::from(!remains);
        if let Some(pick) = pick {
            let (entrant, len) = (self.entrant(id), self.limits[limit as usize].in_bytes(asked, len));
            self.forest.settle(pick.seat, Settlement { entrant: &entrant, len, remains, idle: false });
        }
        let bundle = &mut self.bundles[id as usize];
        if needed == Asks::Needs && bundle.place == Place::Waits {
            bundle.note_wait(LimitId(limit), now.since(bundle.waits_since));
            if self.go_on(id, now) {
                self.limits[limit as usize].rests = true;
                return self.resting.push(limit);
            }
        }
        self.arm(limit);
    }

    /// A bundle that was idle, or waited and was granted something, enters the main tree, unless a limit holds its head. Answers
    /// whether it did.
    pub(crate) fn go_on(&mut self, id: u32, now: Nanos) -> bool {
        if self.ask_around(id, now) {
            self.wait(id, now);
            return false;
        }
        for hold in &mut self.bundles[id as usize].holds {
            if hold.asks == Asks::Needs {
                hold.asks = Asks::More; // a more urgent head is shorter
            }
        }
        self.enter_tree(id, now);
        true
    }

    /// Puts the limit on the wheel for as long as somebody asks.
    pub(super) fn arm(&mut self, limit: u32) {
        let state = &mut self.limits[limit as usize];
        state.rests = false;
        if state.waiting > 0 {
            self.wheel.set(limit, state.due(), self.now);
        }
    }
}
