//! What the tables of several threads tell each other.
//!
//! Why: each thread has a table of its own, and an address must have the same owner in all of them.
//! From: the rules of one table. A claim that two threads make at the same time is the earlier one's, in each table.
//! Not here: how news reach other threads (`crossing`).
//! Invariant: news about an address are told when its owner begins to use it, and again while it does, far more often than
//! [`IDLE`]; what does not fit among the news is told with the owner's next frame.

use std::collections::VecDeque;

use plimsoll_units::{Nanos, Span};

use super::{Entry, IDLE, Mac, MacTable, Owner, key};

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
    },
    /// The owner's port is gone.
    Forgot {
        /// The tenant.
        owner: Owner,
    },
}

/// Most addresses in use that wait to be told.
const MOST: usize = 256;

/// How often it is told that an address is in use.
const AGAIN: Span = Span::ns(IDLE.as_u64() / 5);

/// Notes that other threads are to be told of the owner's use of an address, unless they were a while ago.
#[inline]
pub(super) fn tell(news: &mut Option<VecDeque<News>>, mac: Mac, entry: &mut Entry, now: Nanos) {
    let Some(news) = news else { return };
    if entry.pinned || entry.told.is_some_and(|told| now.since(told) < AGAIN) || news.len() >= MOST {
        return;
    }
    entry.told = Some(now);
    news.push_back(News::Uses { mac, owner: entry.owner, since: entry.since });
}

/// Notes that other threads are to be told of an interface's addresses.
pub(super) fn tell_pinned(news: &mut Option<VecDeque<News>>, keys: &[u64], owner: Owner) {
    let mac = |key: &u64| {
        let [_, _, mac @ ..] = key.to_be_bytes();
        mac
    };
    let Some(news) = news else { return };
    news.push_back(News::Pinned { owner, macs: keys.iter().map(mac).collect() });
}

impl MacTable {
    /// Keeps news for other threads from now on.
    pub(crate) fn tell_others(&mut self) {
        self.news.get_or_insert_with(|| VecDeque::with_capacity(MOST));
    }

    /// The oldest news.
    pub(crate) fn next_news(&mut self) -> Option<News> {
        self.news.as_mut()?.pop_front()
    }

    /// Whether there are news.
    pub(crate) fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.is_empty())
    }

    /// Hears from another thread that `owner` has used an address `since` then. Of two tenants that began at the same moment,
    /// `first` chooses whether the one that is told of goes first. Answers the tenant that has lost the address.
    pub(crate) fn hear_of(
        &mut self,
        (mac, owner, since): (Mac, Owner, Nanos),
        first: impl FnOnce(Owner) -> bool,
        now: Nanos,
    ) -> Option<Owner> {
        let mut lost = None;
        if let Some(entry) = self.entries.get_mut(&key(mac)) {
            if entry.owner == owner {
                entry.seen = now;
                return None;
            }
            let of_tenants = owner != Owner::Uplink && entry.owner != Owner::Uplink && !entry.pinned;
            let earlier = of_tenants && (since < entry.since || since == entry.since && first(entry.owner));
            if !entry.yields_to(owner, now) && !earlier {
                // The other thread is told of this owner once more.
                entry.told = None;
                return None;
            }
            let before = entry.owner;
            self.note_change(before);
            self.entries.remove(&key(mac));
            self.disown(before);
            lost = Some(before);
        }
        self.latest = None;
        if self.make_room(mac, owner) {
            self.note_change(owner);
            let entry = Entry { owner, seen: now, since, told: Some(now), pinned: false };
            self.entries.insert(key(mac), entry);
        }
        lost
    }

    /// Hears from another thread that these are the addresses of the owner's interface.
    pub(crate) fn hear_pinned(&mut self, macs: &[Mac], owner: Owner) {
        let news = self.news.take();
        self.pin_all(macs, owner);
        self.news = news;
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
                News::Pinned { owner, macs } => to.hear_pinned(&macs, owner),
                News::Forgot { owner } => to.hear_forgot(owner),
            }
        }
    }

    #[test]
    fn an_address_that_is_told_of_is_not_another_tenants() {
        let (mut here, mut there) = (table(), table());
        assert_eq!(here.learn(MAC, Owner::Lane(1), at(1)), Learned::Own);
        tell_all(&mut here, &mut there, at(1));
        assert_eq!(there.owner(MAC), Some(Owner::Lane(1)));
        assert_eq!(there.learn(MAC, Owner::Lane(0), at(2)), Learned::Foreign);
        assert!(!there.has_news(), "what was heard is not told on");
        // It is in use all the time, on the other thread.
        for second in 2..2_000 {
            here.learn(MAC, Owner::Lane(1), at(second));
            tell_all(&mut here, &mut there, at(second));
            assert_eq!(there.learn(MAC, Owner::Lane(0), at(second)), Learned::Foreign);
        }
    }

    #[test]
    fn of_two_claims_at_once_the_earlier_one_holds_on_both_threads() {
        let (mut here, mut there) = (table(), table());
        here.learn(MAC, Owner::Lane(1), at(1));
        there.learn(MAC, Owner::Lane(0), at(2));
        tell_all(&mut here, &mut there, at(3));
        tell_all(&mut there, &mut here, at(3));
        assert_eq!((here.owner(MAC), there.owner(MAC)), (Some(Owner::Lane(1)), Some(Owner::Lane(1))));
    }

    #[test]
    fn the_uplink_gets_its_address_back_on_all_threads_and_an_interface_keeps_its_own() {
        let (mut here, mut there) = (table(), table());
        here.learn(MAC, Owner::Lane(1), at(1));
        tell_all(&mut here, &mut there, at(1));
        there.learn(MAC, Owner::Uplink, at(2));
        tell_all(&mut there, &mut here, at(2));
        assert_eq!(here.owner(MAC), Some(Owner::Uplink));
        assert_eq!(here.learn(MAC, Owner::Lane(1), at(3)), Learned::Foreign);
        here.pin(MAC, Owner::Lane(2));
        tell_all(&mut here, &mut there, at(4));
        assert_eq!(there.owner(MAC), Some(Owner::Lane(2)));
        assert_eq!(there.learn(MAC, Owner::Uplink, at(5)), Learned::Foreign);
        here.forget(Owner::Lane(2));
        tell_all(&mut here, &mut there, at(6));
        assert_eq!(there.owner(MAC), Some(Owner::Lane(2)), "it waits for its port");
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
                table.learn([2, 0, 0, 0, 0, mac], owner, now);
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
                        if table.owner(mac).is_some_and(|owner| match owner {
                            Owner::Lane(lane) => lanes.contains(&lane),
                            Owner::Uplink => true,
                        }) {
                            let owner = table.owner(mac).expect("it was just there");
                            table.learn(mac, owner, now);
                        }
                    }
                }
            }
            tell_all(&mut here, &mut there, now);
            tell_all(&mut there, &mut here, now);
            for mac in (0..3).map(|mac| [2, 0, 0, 0, 0, mac]) {
                prop_assert_eq!(here.owner(mac), there.owner(mac));
            }
        }
    }
}
