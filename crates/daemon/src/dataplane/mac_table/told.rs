//! What the tables of several threads tell each other.
//!
//! Why: each thread has a table of its own, and an address must have the same owner in all of them.
//! From: the rules of one table. A claim that two threads make at the same time is the earlier one's, in each table.
//! Not here: how news reach other threads (`crossing`).
//! Invariant: news about an address are told when its owner begins to use it, and again while it does, far more often than
//! [`IDLE`]; what does not fit among the news is told with the owner's next frame. An interface's addresses are told when they have
//! changed. They are in one network, as an overlay has one thread. At most [`MOST`] uses wait, and two news more for each tenant.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use plimsoll_units::{Nanos, Span};

use super::{Entry, IDLE, Key, Mac, MacTable, NO_NETWORK, Owner};

/// News of one table for the others. Owners are lanes of the thread that tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The owner uses an address.
    Uses {
        /// The address.
        mac: Mac,
        /// The sender.
        owner: Owner,
        /// Since when the owner has had it.
        since: Nanos,
    },
    /// These are the addresses of the owner's interface.
    Pinned {
        /// The tenant.
        owner: Owner,
        /// All of them.
        macs: Vec<Mac>,
        /// Since when the owner has had them: zero, but for the first address that it sent from where its interface tells none.
        since: Nanos,
    },
    /// The owner's port is gone.
    Forgot {
        /// The tenant.
        owner: Owner,
    },
}

impl News {
    fn owner(&self) -> Owner {
        match *self {
            Self::Uses { owner, .. } | Self::Pinned { owner, .. } | Self::Forgot { owner } => owner,
        }
    }

    /// What another thread spends on it, in looks at one address: the others walk over the table.
    pub(crate) fn cost(&self) -> usize {
        if matches!(self, Self::Uses { .. }) { 1 } else { 16 }
    }
}

/// News that wait to be told, and what was told of interfaces.
#[derive(Debug)]
pub(super) struct Outbox {
    waiting: VecDeque<News>,
    /// Each owner's addresses as they were told last, in order, and since when it has had them.
    pinned: HashMap<Owner, (Vec<Key>, Nanos), RandomState>,
}

/// Most addresses in use that wait to be told.
const MOST: usize = 256;

/// How often it is told that an address is in use.
const AGAIN: Span = Span::ns(IDLE.as_u64() / 5);

/// Notes that other threads are to be told of the owner's use of an address, unless they were a while ago.
#[inline]
pub(super) fn tell(news: &mut Option<Outbox>, key: Key, entry: &mut Entry, now: Nanos) {
    let Some(Outbox { waiting, .. }) = news else { return };
    if entry.pinned || entry.told.is_some_and(|told| now.since(told) < AGAIN) || waiting.len() >= MOST {
        return;
    }
    entry.told = Some(now);
    waiting.push_back(News::Uses { mac: key.mac(), owner: entry.owner, since: entry.since });
}

impl Outbox {
    /// Tells of an interface's addresses, unless that was the last that was told of them.
    fn tell_pinned(&mut self, keys: Vec<Key>, owner: Owner, since: Nanos) {
        if self.pinned.get(&owner).is_some_and(|told| *told == (keys.clone(), since)) {
            return;
        }
        let macs = keys.iter().map(|key| key.mac()).collect();
        self.waiting.retain(|news| news.owner() != owner || !matches!(news, News::Pinned { .. }));
        self.waiting.push_back(News::Pinned { owner, macs, since });
        self.pinned.insert(owner, (keys, since));
    }

    /// Tells that the owner's port is gone, and no longer what it used before.
    pub(super) fn tell_forgot(&mut self, owner: Owner) {
        self.waiting.retain(|news| news.owner() != owner || matches!(news, News::Pinned { .. }));
        self.waiting.push_back(News::Forgot { owner });
    }

    /// Tells nothing that waits of an owner that is gone.
    pub(super) fn release(&mut self, owner: Owner) {
        self.waiting.retain(|news| news.owner() != owner);
        self.pinned.remove(&owner);
    }
}

impl Entry {
    /// Whether another tenant gets the address, because it is heard that it has had it for longer: all but what an interface says.
    /// Of two tenants that began at the same moment, `first` chooses.
    fn is_later_than(&self, since: Nanos, first: impl FnOnce(Owner) -> bool) -> bool {
        let contested = !self.pinned || self.since > Nanos::ZERO;
        contested && (since < self.since || since == self.since && first(self.owner))
    }
}

impl MacTable {
    /// Keeps news for other threads from now on.
    pub(crate) fn tell_others(&mut self) {
        self.news.get_or_insert_with(|| Outbox {
            waiting: VecDeque::with_capacity(MOST),
            pinned: HashMap::default(),
        });
    }

    /// The oldest news.
    pub(crate) fn next_news(&mut self) -> Option<News> {
        self.news.as_mut()?.waiting.pop_front()
    }

    /// Whether there are news.
    pub(crate) fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.waiting.is_empty())
    }

    /// Notes that other threads are to be told of an interface's addresses.
    pub(super) fn tell_pinned(&mut self, mut keys: Vec<Key>, owner: Owner) {
        let Some(news) = &mut self.news else { return };
        keys.sort_unstable();
        let own = keys.iter().filter_map(|key| self.entries.get(key)).filter(|entry| entry.owner == owner);
        let since = own.map(|entry| entry.since).max();
        news.tell_pinned(keys, owner, since.unwrap_or(Nanos::ZERO));
    }

    /// Hears from another thread that `owner` has used an address `since` then. Of two tenants that began at the same moment,
    /// `first` chooses whether the one that is told of goes first. Answers the tenant that has lost the address.
    pub(crate) fn hear_of(
        &mut self,
        (mac, owner, since): (Mac, Owner, Nanos),
        first: impl FnOnce(Owner) -> bool,
        now: Nanos,
    ) -> Option<Owner> {
        let (key, mut lost) = (Key::new(NO_NETWORK, mac), None);
        if let Some(entry) = self.entries.get_mut(&key) {
            if entry.owner == owner {
                entry.seen = now;
                return None;
            }
            let earlier = entry.owner != Owner::Uplink && entry.is_later_than(since, first);
            if !entry.yields_to(owner, now) && !earlier {
                // The other thread is told of this owner once more.
                entry.told = None;
                return None;
            }
            lost = Some(entry.owner);
            self.take_from_owner(key);
        }
        self.latest = None;
        if self.make_room(key, owner) {
            self.note_change(owner);
            let entry = Entry { owner, seen: now, since, told: Some(now), pinned: false };
            self.entries.insert(key, entry);
        }
        lost
    }

    /// Hears from another thread that these are the addresses of the owner's interface, and since when. The first address that a tenant
    /// sends from is the earlier one's, and an interface's goes before it. Answers such first addresses that a tenant has lost: `owner`
    /// or another one.
    pub(crate) fn hear_pinned(
        &mut self,
        (macs, owner, since): (&[Mac], Owner, Nanos),
        first: impl Fn(Owner) -> bool,
    ) -> Vec<(Mac, Owner)> {
        let (mut lost, mut keeps) = (Vec::new(), Vec::new());
        for &mac in macs {
            let key = Key::new(NO_NETWORK, mac);
            let Some(entry) = self.entries.get(&key).filter(|entry| entry.owner != owner) else {
                continue;
            };
            let interface = since == Nanos::ZERO && !entry.pinned;
            if interface || entry.is_later_than(since, &first) {
                lost.extend(entry.pinned.then_some((mac, entry.owner)));
                self.take_from_owner(key);
            } else if since > Nanos::ZERO {
                lost.push((mac, owner));
                keeps.push(mac);
            }
        }
        let news = self.news.take();
        let gets: Vec<Mac> = macs.iter().copied().filter(|mac| !keeps.contains(mac)).collect();
        self.pin_since(NO_NETWORK, &gets, owner, since);
        self.news = news;
        lost
    }

    /// The owner of an address has it no longer.
    fn take_from_owner(&mut self, key: Key) {
        let Some(entry) = self.entries.remove(&key) else { return };
        self.note_change(entry.owner);
        if !entry.pinned {
            self.disown(entry.owner);
        }
    }

    /// Hears from another thread that the owner's port is gone.
    pub(crate) fn hear_forgot(&mut self, owner: Owner) {
        let news = self.news.take();
        self.forget(owner);
        self.news = news;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Learned;
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 9];

    fn at(secs: u64) -> Nanos {
        Nanos::ZERO + Span::secs(secs)
    }

    fn table() -> MacTable {
        let mut table = MacTable::new(3);
        table.tell_others();
        table
    }

    /// Tells `to` all that `from` has learned. Lanes have the same numbers in both.
    fn tell_all(from: &mut MacTable, to: &mut MacTable, now: Nanos) {
        while let Some(news) = from.next_news() {
            match news {
                News::Uses { mac, owner, since } => {
                    let first = |other: Owner| match (owner, other) {
                        (Owner::Lane(told), Owner::Lane(known)) => told < known,
                        _ => false,
                    };
                    to.hear_of((mac, owner, since), first, now);
                }
                News::Pinned { owner, macs, since } => {
                    let first = |other: Owner| match (owner, other) {
                        (Owner::Lane(told), Owner::Lane(known)) => told < known,
                        _ => false,
                    };
                    to.hear_pinned((&macs, owner, since), first);
                }
                News::Forgot { owner } => to.hear_forgot(owner),
            }
        }
    }

    #[test]
    fn an_address_that_is_told_of_is_not_another_tenants() {
        let (mut here, mut there) = (table(), table());
        assert_eq!(here.learn(NO_NETWORK, MAC, Owner::Lane(1), at(1)), Learned::Own);
        tell_all(&mut here, &mut there, at(1));
        assert_eq!(there.owner(NO_NETWORK, MAC), Some(Owner::Lane(1)));
        assert_eq!(there.learn(NO_NETWORK, MAC, Owner::Lane(0), at(2)), Learned::Foreign);
        assert!(!there.has_news(), "what was heard is not told on");
        // It is in use all the time, on the other thread.
        for second in 2..2_000 {
            here.learn(NO_NETWORK, MAC, Owner::Lane(1), at(second));
            tell_all(&mut here, &mut there, at(second));
            assert_eq!(there.learn(NO_NETWORK, MAC, Owner::Lane(0), at(second)), Learned::Foreign);
        }
    }

    #[test]
    fn of_two_claims_at_once_the_earlier_one_holds_on_both_threads() {
        let (mut here, mut there) = (table(), table());
        here.learn(NO_NETWORK, MAC, Owner::Lane(1), at(1));
        there.learn(NO_NETWORK, MAC, Owner::Lane(0), at(2));
        tell_all(&mut here, &mut there, at(3));
        tell_all(&mut there, &mut here, at(3));
        assert_eq!(
            (here.owner(NO_NETWORK, MAC), there.owner(NO_NETWORK, MAC)),
            (Some(Owner::Lane(1)), Some(Owner::Lane(1)))
        );
    }

    #[test]
    fn the_uplink_gets_its_address_back_on_all_threads_and_an_interface_keeps_its_own() {
        let (mut here, mut there) = (table(), table());
        here.learn(NO_NETWORK, MAC, Owner::Lane(1), at(1));
        tell_all(&mut here, &mut there, at(1));
        there.learn(NO_NETWORK, MAC, Owner::Uplink, at(2));
        tell_all(&mut there, &mut here, at(2));
        assert_eq!(here.owner(NO_NETWORK, MAC), Some(Owner::Uplink));
        assert_eq!(here.learn(NO_NETWORK, MAC, Owner::Lane(1), at(3)), Learned::Foreign);
        here.pin(NO_NETWORK, MAC, Owner::Lane(2));
        tell_all(&mut here, &mut there, at(4));
        assert_eq!(there.owner(NO_NETWORK, MAC), Some(Owner::Lane(2)));
        assert_eq!(there.learn(NO_NETWORK, MAC, Owner::Uplink, at(5)), Learned::Foreign);
        here.forget(Owner::Lane(2));
        tell_all(&mut here, &mut there, at(6));
        assert_eq!(there.owner(NO_NETWORK, MAC), Some(Owner::Lane(2)), "it waits for its port");
    }

    #[test]
    fn of_two_first_addresses_the_earlier_one_holds_on_both_threads_and_an_interfaces_goes_before() {
        let (one, two, interface) = (Owner::Lane(1), Owner::Lane(2), Owner::Lane(3));
        for (at_one, at_two, wins) in [(at(1), at(2), one), (at(2), at(1), two), (at(1), at(1), one)] {
            let (mut here, mut there) = (table(), table());
            here.pin_first(NO_NETWORK, MAC, one, at_one);
            there.pin_first(NO_NETWORK, MAC, two, at_two);
            tell_all(&mut here, &mut there, at(3));
            tell_all(&mut there, &mut here, at(3));
            assert_eq!((here.owner(NO_NETWORK, MAC), there.owner(NO_NETWORK, MAC)), (Some(wins), Some(wins)));
            there.pin(NO_NETWORK, MAC, interface);
            assert_eq!(there.owner(NO_NETWORK, MAC), Some(wins), "with one thread it stays, too");
        }
        let (mut here, mut there) = (table(), table());
        here.pin_first(NO_NETWORK, MAC, one, at(1));
        there.pin(NO_NETWORK, MAC, interface);
        tell_all(&mut here, &mut there, at(3));
        tell_all(&mut there, &mut here, at(3));
        assert_eq!(
            (here.owner(NO_NETWORK, MAC), there.owner(NO_NETWORK, MAC)),
            (Some(interface), Some(interface))
        );
    }

    #[test]
    fn a_first_address_that_another_one_used_before_is_that_ones() {
        for (used, owner, wins) in [
            (at(1), Owner::Lane(0), Owner::Lane(0)),
            (at(3), Owner::Lane(0), Owner::Lane(1)),
            (at(1), Owner::Uplink, Owner::Uplink),
            (at(3), Owner::Uplink, Owner::Lane(1)),
        ] {
            let (mut here, mut there) = (table(), table());
            there.learn(NO_NETWORK, MAC, owner, used);
            here.pin_first(NO_NETWORK, MAC, Owner::Lane(1), at(2));
            tell_all(&mut here, &mut there, at(4));
            tell_all(&mut there, &mut here, at(4));
            assert_eq!(
                (here.owner(NO_NETWORK, MAC), there.owner(NO_NETWORK, MAC)),
                (Some(wins), Some(wins)),
                "{owner:?}, {used:?}"
            );
        }
    }

    #[test]
    fn what_waits_to_be_told_of_a_tenant_that_is_gone_is_not_told_of_the_next_one_in_its_lane() {
        let mut table = table();
        table.learn(NO_NETWORK, MAC, Owner::Lane(1), at(1));
        table.pin(NO_NETWORK, [2, 0, 0, 0, 0, 1], Owner::Lane(1));
        table.forget(Owner::Lane(1));
        table.release(Owner::Lane(1));
        assert!(!table.has_news());
    }

    #[test]
    fn an_interfaces_addresses_are_told_once_and_when_they_change() {
        let mut table = table();
        let other = [2, 0, 0, 0, 0, 1];
        for _ in 0..3 {
            table.pin_all(NO_NETWORK, &[MAC, other], Owner::Lane(1));
        }
        let told = |macs: &[Mac]| {
            let (owner, macs) = (Owner::Lane(1), macs.to_vec());
            Some(News::Pinned { owner, macs, since: Nanos::ZERO })
        };
        assert_eq!((table.next_news(), table.next_news()), (told(&[other, MAC]), None));
        table.pin_all(NO_NETWORK, &[other, MAC], Owner::Lane(1));
        assert!(!table.has_news(), "they are the same");
        table.pin(NO_NETWORK, other, Owner::Lane(1));
        table.pin(NO_NETWORK, MAC, Owner::Lane(1));
        assert_eq!((table.next_news(), table.next_news()), (told(&[MAC]), None), "only what holds now");
    }

    proptest! {
        /// Whatever tenants claim on two threads, and whenever they are told of it: once all is told, both tables agree.
        #[test]
        fn tables_agree_once_all_is_told(
            claims in proptest::collection::vec((0_u32..4, 0_u8..3, any::<bool>(), any::<bool>()), 1..60),
        ) {
            // Lanes 0 and 1 are on the first thread, and 2 and 3 on the second.
            let (mut here, mut there) = (table(), table());
            let mut now = at(1);
            for (lane, mac, outside, told) in claims {
                now += Span::millis(1);
                let owner = if outside { Owner::Uplink } else { Owner::Lane(lane) };
                let table = if lane < 2 { &mut here } else { &mut there };
                table.learn(NO_NETWORK, [2, 0, 0, 0, 0, mac], owner, now);
                if told {
                    tell_all(&mut here, &mut there, now);
                    tell_all(&mut there, &mut here, now);
                }
            }
            // An owner that was overruled sends on, and so do those that overruled it.
            for _ in 0..3 {
                now += Span::secs(2);
                tell_all(&mut here, &mut there, now);
                tell_all(&mut there, &mut here, now);
                for mac in (0..3).map(|mac| [2, 0, 0, 0, 0, mac]) {
                    for (table, lanes) in [(&mut here, 0..2), (&mut there, 2..4)] {
                        if table.owner(NO_NETWORK, mac).is_some_and(|owner| match owner {
                            Owner::Lane(lane) => lanes.contains(&lane),
                            Owner::Uplink => true,
                        }) {
                            let owner = table.owner(NO_NETWORK, mac).expect("it was just there");
                            table.learn(NO_NETWORK, mac, owner, now);
                        }
                    }
                }
            }
            tell_all(&mut here, &mut there, now);
            tell_all(&mut there, &mut here, now);
            for mac in (0..3).map(|mac| [2, 0, 0, 0, 0, mac]) {
                prop_assert_eq!(here.owner(NO_NETWORK, mac), there.owner(NO_NETWORK, mac));
            }
        }
    }
}
