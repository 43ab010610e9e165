//! The heavy hitters of the last second, with what each has sent.
//!
//! Why: a report names a flow once in a while; an operator, and the choice of flows, ask which ones are heavy now.
//! From: MIMIC §IV-D: a flow is reported again once it is counted again.
//! Not here: counting (`queues`), and what is done about a flow (`press`).
//! Invariant: in the order of flows, each once; at most [`MOST`], of which each was reported within [`QUIET`].

use hashbrown::HashTable;
use plimsoll_control::backpressure::FlowSource;
use plimsoll_queues::{Heavy, Tally};
use plimsoll_units::{Nanos, Span};

use super::{Counted, HashedFlow};

/// Most flows listed, and most reports read at once.
pub(in super::super) const MOST: usize = 256;

/// A flow that has not been reported for this long is heavy no more: it is reported each time that it is counted.
const QUIET: Span = Span::secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) of: HashedFlow,
    pub(super) sent: Tally,
    pub(super) since: Nanos,
    last: Nanos,
    /// The number of the look that last reported it.
    look: u64,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The flow was not listed before.
    New,
    /// It was.
    Known,
    /// It was, and this look has reported it before.
    Again,
    /// There is no room for it; it is reported again later.
    NoRoom,
}

#[derive(Debug)]
pub(super) struct List {
    /// In places that stay; those of flows that were forgotten are `free`.
    listed: Vec<Listed>,
    free: Vec<u32>,
    /// The places, by the flow's hash: a search among sorted flows, which compares seven of them, took longer than all else.
    by_hash: HashTable<u32>,
    /// The places, in the order of flows.
    in_order: Vec<u32>,
    /// How many flows come for their tenant.
    inward: usize,
    look: u64,
    /// Until then no flow becomes quiet.
    none_quiet_before: Nanos,
    /// A flow may be listed that is not to stay.
    pub(super) recheck: bool,
}

impl List {
    /// Bytes that [`List::new`] allocates, about.
    pub(super) const BYTES: usize = MOST * (size_of::<Listed>() + 2 * size_of::<u32>())
        + (MOST * 8 / 7).next_power_of_two() * (size_of::<u32>() + 1);

    pub(super) fn new() -> Self {
        Self {
            listed: Vec::with_capacity(MOST),
            free: Vec::with_capacity(MOST),
            by_hash: HashTable::with_capacity(MOST),
            in_order: Vec::with_capacity(MOST),
            inward: 0,
            look: 0,
            none_quiet_before: Nanos::ZERO,
            recheck: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.in_order.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Listed> {
        self.in_order.iter().map(|place| &self.listed[*place as usize])
    }

    /// Begins another look: each flow may be reported in it.
    pub(super) fn begin_look(&mut self) {
        self.look += 1;
    }

    /// Takes a report.
    pub(super) fn take(&mut self, &Heavy { key, sent }: &Heavy<HashedFlow>, now: Nanos) -> Taken {
        if let Some(place) = self.place(&key) {
            let listed = &mut self.listed[place as usize];
            let again = listed.look == self.look;
            (listed.sent, listed.last, listed.look) = (sent, now, self.look);
            return if again { Taken::Again } else { Taken::Known };
        }
        if self.len() >= MOST {
            return Taken::NoRoom;
        }
        self.insert(Listed { of: key, sent, since: now, last: now, look: self.look });
        Taken::New
    }

    fn insert(&mut self, new: Listed) {
        let place = self.free.pop().unwrap_or(self.listed.len() as u32);
        match self.listed.get_mut(place as usize) {
            Some(free) => *free = new,
            None => self.listed.push(new),
        }
        let listed = &self.listed;
        self.by_hash.insert_unique(new.of.hash, place, |place| listed[*place as usize].of.hash);
        self.inward += usize::from(new.of.of.inward);
        let at = self.first_from(&new.of.of);
        self.in_order.insert(at, place);
    }

    /// Forgets flows that are heavy no more, and, where a `recheck` is due, those for which `stays` is false; calls `gone` for each.
    pub(super) fn forget(
        &mut self,
        now: Nanos,
        stays: impl Fn(&Counted) -> bool,
        mut gone: impl FnMut(&Counted),
    ) {
        if now < self.none_quiet_before && !self.recheck {
            return;
        }
        self.recheck = false;
        let Self { listed, free, by_hash, in_order, inward, .. } = self;
        let mut oldest = now;
        in_order.retain(|place| {
            let Listed { of: HashedFlow { hash, of }, last, .. } = &listed[*place as usize];
            if now.since(*last) < QUIET && stays(of) {
                oldest = oldest.min(*last);
                return true;
            }
            if let Ok(entry) = by_hash.find_entry(*hash, |at| at == place) {
                entry.remove();
            }
            free.push(*place);
            *inward -= usize::from(of.inward);
            gone(of);
            false
        });
        self.none_quiet_before = oldest + QUIET;
    }

    pub(super) fn get(&self, flow: &HashedFlow) -> Option<&Listed> {
        self.place(flow).map(|place| &self.listed[place as usize])
    }

    /// Whether a tenant forwards this flow, which it sends: at least three quarters of it come for the tenant from one place. A few
    /// packets that copy its headers, which anyone can send, do not count as that.
    pub(super) fn is_forwarded(&self, flow: &HashedFlow) -> bool {
        if flow.of.inward || self.inward == 0 {
            return false;
        }
        let Some(sent) = self.get(flow).map(|listed| listed.sent.packets) else { return false };
        let unsaid = |of: Counted| Counted { from: FlowSource::Here, untouched: false, sibling: 0, ..of };
        let least = Counted { inward: true, ..unsaid(flow.of) };
        let from = self.in_order[self.first_from(&least)..].iter().map(|place| &self.listed[*place as usize]);
        let same = from.take_while(|listed| unsaid(listed.of.of) == least);
        same.map(|listed| listed.sent.packets).max().is_some_and(|came| came >= sent - sent / 4)
    }

    fn place(&self, flow: &HashedFlow) -> Option<u32> {
        self.by_hash.find(flow.hash, |place| self.listed[*place as usize].of == *flow).copied()
    }

    /// Where in the order the first flow is that does not come before this one.
    fn first_from(&self, flow: &Counted) -> usize {
        self.in_order.partition_point(|place| self.listed[*place as usize].of.of < *flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_control::HostId;
    use plimsoll_control::backpressure::SenderMac;

    const ELSEWHERE: FlowSource = FlowSource::Elsewhere(SenderMac([0; 6]));

    fn heavy(tenant: u32, inward: bool, from: FlowSource, packets: u64) -> Heavy<HashedFlow> {
        let key = Counted { tenant, inward, from, ..Counted::default() }.with_hash();
        Heavy { key, sent: Tally { packets, bytes: 100 * packets } }
    }

    #[test]
    fn what_comes_and_goes_under_one_name_is_forwarded() {
        let mut list = List::new();
        let out = heavy(3, false, FlowSource::Here, 1_000);
        let now = Nanos::ZERO;
        let others = [heavy(2, true, FlowSource::Here, 1_000), heavy(4, true, ELSEWHERE, 1_000)];
        for listed in [out].iter().chain(&others) {
            list.begin_look();
            assert_eq!([list.take(listed, now), list.take(listed, now)], [Taken::New, Taken::Again]);
            list.begin_look();
            assert_eq!(list.take(listed, now), Taken::Known);
        }
        assert!(!list.is_forwarded(&out.key), "other tenants'");
        let come = |packets| heavy(3, true, FlowSource::Host(HostId(7), SenderMac::default()), packets);
        list.take(&come(749), now);
        list.take(&heavy(3, true, ELSEWHERE, 700), now);
        assert!(!list.is_forwarded(&out.key), "packets that copy its headers do not hide it");
        list.take(&come(750), now);
        assert!(list.is_forwarded(&out.key) && !list.is_forwarded(&come(0).key));
        assert_eq!(list.get(&come(0).key).map(|listed| listed.of), Some(come(0).key));
    }

    #[test]
    fn a_quiet_flow_is_forgotten() {
        let mut list = List::new();
        let forget = |list: &mut List, ns, stays: fn(&Counted) -> bool| {
            let mut gone: Vec<u32> = Vec::new();
            list.forget(Nanos::new(ns), stays, |flow| gone.push(flow.tenant));
            gone
        };
        let none: [u32; 0] = [];
        let quiet = QUIET.as_u64();
        list.take(&heavy(1, true, FlowSource::Here, 1), Nanos::ZERO);
        list.take(&heavy(2, true, FlowSource::Here, 1), Nanos::new(1));
        assert_eq!(forget(&mut list, quiet - 1, |_| true), none);
        list.take(&heavy(3, true, FlowSource::Here, 1), Nanos::new(quiet - 1));
        assert_eq!((forget(&mut list, quiet, |_| true), list.len()), (vec![1], 2));
        assert_eq!((forget(&mut list, quiet + 1, |_| true), list.len()), (vec![2], 1));
        list.take(&heavy(4, true, FlowSource::Here, 1), Nanos::new(quiet + 1));
        assert_eq!(forget(&mut list, quiet + 1, |flow| flow.tenant != 3), none, "not rechecked");
        list.recheck = true;
        assert_eq!((forget(&mut list, quiet + 1, |flow| flow.tenant != 3), list.len()), (vec![3], 1));
    }

    #[test]
    fn a_full_list_takes_no_more_and_keeps_its_order() {
        let mut list = List::new();
        let take =
            |list: &mut List, tenant| list.take(&heavy(tenant, true, FlowSource::Here, 1), Nanos::ZERO);
        for n in 0..MOST as u32 {
            assert_eq!(take(&mut list, n * 7 % MOST as u32), Taken::New);
        }
        assert_eq!(take(&mut list, 999), Taken::NoRoom);
        list.recheck = true;
        list.forget(Nanos::ZERO, |flow| flow.tenant % 2 == 0, |_| {});
        assert_eq!([take(&mut list, 999), take(&mut list, 7)], [Taken::New; 2], "in places that became free");
        let tenants: Vec<_> = list.iter().map(|listed| listed.of.of.tenant).collect();
        assert!(tenants.is_sorted() && tenants.len() == MOST / 2 + 2, "{tenants:?}");
        assert!(list.iter().all(|listed| list.get(&listed.of).is_some()));
    }
}
