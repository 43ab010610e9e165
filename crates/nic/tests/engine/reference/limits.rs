//! Limits: what bundles ask for, what limits grant, and when.

use std::collections::BTreeSet;

use plimsoll_units::{BitRate, Bytes};

use super::clock::Clock;
use super::{Bundle, Place, Reference};

pub(super) struct Limit {
    pub(super) clock: Clock,
    pub(super) burst: u64,
    /// The amount that the next choice is expected to ask for: the least request since the last choice, or else its own.
    pub(super) expected: u64,
    /// The node that it closes, if it is a `max`.
    pub(super) top: Option<usize>,
    /// While its node is closed: when that opens.
    pub(super) opens: Option<u64>,
    /// Bundles below whose heads were picked too early since they sent last, and the longest of those heads.
    pub(super) kept: BTreeSet<usize>,
    pub(super) longest: u64,
    /// The times from when until when its node was closed.
    pub(super) spans: Vec<(u64, u64)>,
}

impl Reference {
    /// Whether the limit has a tree that decides.
    fn is_shared(&self, limit: usize) -> bool {
        !self.is_gate(limit)
            && self.bundles.iter().filter(|bundle| bundle.limits.contains(&limit)).count() > 1
    }

    /// The part of a grant beyond one pull.
    fn beyond(&self, limit: usize, granted: u64) -> u64 {
        granted.saturating_sub(self.pull_at(limit))
    }

    /// The longest pull behind a limit: half the burst, or a frame.
    fn pull_at(&self, limit: usize) -> u64 {
        let frame = self.program.max_frame.as_u64() + self.program.overhead.as_u64();
        self.largest.min(self.limits[limit].burst / 2).max(frame)
    }

    /// The sum of what all bundles have beyond a pull.
    pub(super) fn ahead(&self, limit: usize) -> u64 {
        let own = |bundle: &Bundle| {
            let index = bundle.limits.iter().position(|&other| other == limit);
            index.map_or(0, |index| self.beyond(limit, bundle.granted.get(&index).copied().unwrap_or(0)))
        };
        self.bundles.iter().map(own).sum()
    }

    pub(super) fn granted(&self, bundle: usize, index: usize) -> u64 {
        self.bundles[bundle].granted.get(&index).copied().unwrap_or(0)
    }

    pub(super) fn lacks(&self, bundle: usize, index: usize) -> u64 {
        self.head_charge(bundle).saturating_sub(self.granted(bundle, index))
    }

    /// The amount that the bundle may ask the limit for.
    fn asked(&self, bundle: usize, index: usize) -> u64 {
        let (limit, len) = (self.bundles[bundle].limits[index], self.head_charge(bundle));
        let granted = self.granted(bundle, index);
        let more = granted + len;
        let beyond = self.beyond(limit, more) - self.beyond(limit, granted);
        match () {
            () if granted < len => len - granted,
            () if !self.is_shared(limit) || !self.follows(bundle) => 0,
            () if beyond == 0 => len,
            () if more > 2 * self.pull_at(limit) => 0,
            () if self.ahead(limit) + beyond + self.pull_at(limit) > self.limits[limit].burst => 0,
            () => len,
        }
    }

    /// Whether `len` bytes may leave without asking.
    fn has(&self, limit: usize, len: u64, now: u64) -> bool {
        len == 0 || !self.is_waited_for(limit) && self.due_for(limit, len) <= now
    }

    pub(super) fn is_held(&self, bundle: usize, now: u64) -> bool {
        let limits = self.bundles[bundle].limits.iter().enumerate();
        let mut open = limits.filter(|&(_, &limit)| !self.is_gate(limit));
        open.any(|(index, &limit)| !self.has(limit, self.lacks(bundle, index), now))
    }

    /// Asks each limit that cannot give at once what the bundle may ask for. If it `claims`, other limits grant what its head
    /// lacks. Returns whether a limit holds the head.
    pub(super) fn ask_around(&mut self, bundle: usize, claims: bool, now: u64) -> bool {
        let mut held = false;
        for index in 0..self.bundles[bundle].limits.len() {
            let limit = self.bundles[bundle].limits[index];
            if self.is_gate(limit) {
                continue;
            }
            let lacks = self.lacks(bundle, index);
            if claims && lacks > 0 && self.has(limit, lacks, now) {
                self.pay(limit, lacks, now);
                *self.bundles[bundle].granted.entry(index).or_default() += lacks;
                continue;
            }
            held |= !self.has(limit, self.lacks(bundle, index), now);
            let asked = self.asked(bundle, index);
            if self.bundles[bundle].asks.contains_key(&index) || self.has(limit, asked, now) {
                continue;
            }
            let first = !self.is_waited_for(limit);
            let expected = &mut self.limits[limit].expected;
            *expected = if first { asked } else { asked.min(*expected) };
            self.bundles[bundle].asks.insert(index, false);
            let keeps_place = !self.bundles[bundle].fresh;
            self.activate(1 + limit, bundle, keeps_place, now);
        }
        held
    }

    /// A bundle that has become idle asks for nothing, and gives back what it was granted.
    pub(super) fn withdraw(&mut self, bundle: usize, now: u64) {
        for index in 0..self.bundles[bundle].limits.len() {
            let limit = self.bundles[bundle].limits[index];
            if self.bundles[bundle].asks.remove(&index).is_some() {
                self.settle(1 + limit, bundle, 0, true, true);
            }
            if self.granted(bundle, index) > 0 {
                self.catch_up(limit, now);
                let granted = self.bundles[bundle].granted.remove(&index).expect("it is above zero");
                self.limits[limit].clock.refund(granted);
            }
        }
    }

    pub(super) fn is_waited_for(&self, limit: usize) -> bool {
        !self.trees[1 + limit].inside.is_empty()
    }

    /// When the next choice is made.
    pub(super) fn due(&self, limit: usize) -> u64 {
        self.due_for(limit, self.limits[limit].expected)
    }

    fn time(&self, limit: usize, len: u64) -> u64 {
        let rate = u64::try_from(self.limits[limit].clock.rate).expect("a rate");
        BitRate::new(rate).expect("above zero").wire_time(Bytes::new(len)).as_u64()
    }

    /// When `len` bytes may pass: the limit may then owe what the burst allows beyond them.
    fn due_for(&self, limit: usize, len: u64) -> u64 {
        let Limit { clock, burst, .. } = &self.limits[limit];
        let owed = (self.time(limit, *burst) - 1).saturating_sub(self.time(limit, len));
        clock.earned().saturating_sub(owed)
    }

    /// The credit is the burst at most, less what bundles have beyond a pull.
    pub(super) fn catch_up(&mut self, limit: usize, now: u64) {
        let ahead = self.ahead(limit);
        let ahead = if ahead == 0 { 0 } else { self.time(limit, ahead) };
        self.limits[limit].clock.not_before(now + ahead);
    }

    pub(super) fn pay(&mut self, limit: usize, len: u64, now: u64) {
        self.catch_up(limit, now);
        self.limits[limit].clock.charge(len);
    }

    /// Grants the tree's choice what it asks for. If that is not earned yet, it is what the limit expects next. Returns whether
    /// the bundle entered the main tree.
    pub(super) fn release(&mut self, limit: usize, now: u64) -> bool {
        let bundle = self.pick(1 + limit, now).expect("a bundle asks");
        let index = self.bundles[bundle].limits.iter().position(|&other| other == limit).expect("it asks");
        let asked = self.asked(bundle, index);
        if asked > 0 {
            self.limits[limit].expected = asked;
            if self.due(limit) > now {
                return false;
            }
            self.pay(limit, asked, now);
            *self.bundles[bundle].granted.entry(index).or_default() += asked;
        }
        let remains = self.asked(bundle, index) > 0;
        let needed = self.bundles[bundle].asks.insert(index, false).expect("it asks");
        if !remains {
            self.bundles[bundle].asks.remove(&index);
        }
        self.settle(1 + limit, bundle, asked, !remains, false);
        if !needed || self.bundles[bundle].place != Place::Waits {
            return false;
        }
        let state = &mut self.bundles[bundle];
        state.waits.push((limit, now - state.waits_since));
        self.go_on(bundle, now)
    }
}
