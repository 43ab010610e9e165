//! Reports of heavy hitters from one poll to the next, and the rates that they show.
//!
//! Why: a report has a flow's count over seconds; how fast it sends now is the difference between two reports.
//! From: MIMIC §IV-C and §IV-D: a flow over the threshold is reported whenever its count is updated.
//! Not here: the counters (`queues`), and the choice.
//! Invariant: between polls at most `capacity` flows are known, each key once; no answer depends on a hash.
//!
//! A flow is found by its hash: hundreds of flows are looked up several times in each poll, and a search among sorted keys compares
//! seven of them for each.

use core::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use plimsoll_queues::{Heavy, Tally};
use plimsoll_units::{NS_PER_SEC, Nanos, Span};

use super::choice::{choose_like_top, is_chosen, order};
use crate::{PerMille, WHOLE};

/// What was counted in a length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gauge {
    packets: u64,
    bytes: u64,
    over: Span,
}

impl Gauge {
    pub(super) fn new(packets: u64, bytes: u64, over: Span) -> Self {
        Self { packets, bytes, over }
    }

    pub(super) fn over(&self) -> Span {
        self.over
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn add(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.over += other.over;
    }

    /// `None` if no time has passed.
    pub(super) fn rate(&self) -> Option<Rate> {
        let over = u128::from(self.over.as_u64());
        let second = |count: u64, unit: u128| {
            let rate = (u128::from(count) * unit * u128::from(NS_PER_SEC)).checked_div(over)?;
            Some(u64::try_from(rate).unwrap_or(u64::MAX))
        };
        Some(Rate { bits: second(self.bytes, 8)?, packets: second(self.packets, 1)? })
    }
}

/// Bits and packets per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) bits: u64,
    pub(super) packets: u64,
}

/// The newest report of a flow.
#[derive(Clone, Copy, Debug)]
struct Known<K> {
    key: K,
    hash: u64,
    sent: Tally,
    /// When that was; `None` while its first report is read.
    at: Option<Nanos>,
    /// What the newest poll that reported it reported; becomes `sent`.
    newest: Tally,
    /// The number of that poll, and of the last one in which the flow was pressed.
    reported_in: u64,
    pressed_in: u64,
    /// What the flow sent since its report before; `None` for its first one, and where a generation ended in between.
    new: Option<Gauge>,
    /// Packets in the running window, and in the one before.
    recent: [u64; 2],
}

#[derive(Clone, Debug)]
pub(super) struct Reports<K> {
    capacity: usize,
    /// In no order.
    known: Vec<Known<K>>,
    /// Where each flow is in `known`, by its hash.
    places: HashTable<u32>,
    hasher: FixedState,
    /// The number of the newest poll.
    poll: u64,
}

impl<K> Reports<K> {
    /// Bytes of the tables for this number of flows, about.
    pub(super) const fn bytes_of(capacity: usize) -> usize {
        let known = 2 * capacity;
        known * size_of::<Known<K>>() + (known * 8 / 7).next_power_of_two() * (size_of::<u32>() + 1)
    }
}

impl<K: Copy + Eq + Hash + Ord> Reports<K> {
    pub(super) fn new(capacity: usize) -> Self {
        // While a poll is handled, flows of the one before may be known beside as many new ones.
        let most = 2 * capacity;
        assert!(u32::try_from(most).is_ok(), "places are numbered in 32 bits");
        Self {
            capacity,
            known: Vec::with_capacity(most),
            places: HashTable::with_capacity(most),
            hasher: FixedState::default(),
            poll: 0,
        }
    }

    /// Handles the reports of one poll; those beyond the capacity are left out, and their number is returned. A flow that was
    /// not reported for `keep` is forgotten. Of several reports of one flow the highest counts. `all` are the packets of all flows
    /// in the running window and the one before: a new flow with more than these did not send them just now.
    pub(super) fn take(&mut self, reported: &[Heavy<K>], keep: Span, all: u64, now: Nanos) -> usize {
        let taken = &reported[..reported.len().min(self.capacity)];
        self.poll += 1;
        for heavy in taken {
            self.read(heavy);
        }
        let mut place = 0;
        while let Some(known) = self.known.get_mut(place) {
            if known.reported_in == self.poll {
                known.take(all, now);
            } else if known.at.is_some_and(|at| now.since(at) < keep) {
                known.new = None;
            } else {
                self.forget(place);
                continue;
            }
            place += 1;
        }
        if self.known.len() > self.capacity {
            self.forget_most();
        }
        reported.len() - taken.len()
    }

    /// Reads one report of a poll.
    fn read(&mut self, &Heavy { key, sent }: &Heavy<K>) {
        let hash = self.hasher.hash_one(key);
        let (known, poll) = (&mut self.known, self.poll);
        let is_same = |place: &u32| {
            let known = &known[*place as usize];
            known.hash == hash && known.key == key
        };
        match self.places.find(hash, is_same) {
            Some(&place) => {
                let known = &mut known[place as usize];
                if known.reported_in != poll || known.newest.packets < sent.packets {
                    known.newest = sent;
                }
                known.reported_in = poll;
            }
            None => {
                // Within twice the capacity, which fits.
                let place = known.len() as u32;
                known.push(Known::first(key, hash, sent, poll));
                self.places.insert_unique(hash, place, |place| known[*place as usize].hash);
            }
        }
    }

    /// Forgets the flow at a place; the last one takes that.
    fn forget(&mut self, place: usize) {
        let last = self.known.len() - 1;
        if let Ok(entry) = self.places.find_entry(self.known[place].hash, |at| *at as usize == place) {
            entry.remove();
        }
        if let Some(moved) = self.places.find_mut(self.known[last].hash, |at| *at as usize == last) {
            *moved = place as u32;
        }
        self.known.swap_remove(place);
    }

    /// Forgets silent flows, those with the highest keys, until as many are known as may be.
    #[cold]
    fn forget_most(&mut self) {
        let poll = self.poll;
        self.known.select_nth_unstable_by(self.capacity, |a, b| {
            let is_silent = |known: &Known<K>| known.reported_in != poll;
            is_silent(a).cmp(&is_silent(b)).then_with(|| a.key.cmp(&b.key))
        });
        self.known.truncate(self.capacity);
        self.places.clear();
        for (place, known) in (0..).zip(&self.known) {
            self.places.insert_unique(known.hash, place, |place| self.known[*place as usize].hash);
        }
    }

    /// Notes that a flow is pressed in the newest poll. Answers whether this poll reported it, and what it sent between its two
    /// newest reports then.
    pub(super) fn note_pressed(&mut self, key: &K) -> (bool, Option<Gauge>) {
        let Some(place) = self.find(key) else { return (false, None) };
        let known = &mut self.known[place];
        known.pressed_in = self.poll;
        (known.reported_in == self.poll, known.new)
    }

    /// Ends a window.
    pub(super) fn end_window(&mut self) {
        self.known.iter_mut().for_each(|known| known.recent = [0, known.recent[0]]);
    }

    /// The flows of the newest poll, in no order, with what counts for the choice.
    fn reported(&self) -> impl Iterator<Item = (&Known<K>, u64)> {
        let recent = self.has_recent();
        let reported = self.known.iter().filter(|known| known.reported_in == self.poll);
        reported.map(move |known| (known, known.weight(recent)))
    }

    /// What counts for the choice, of all flows of the newest poll.
    pub(super) fn weight(&self) -> u64 {
        self.reported().map(|(_, packets)| packets).fold(0, u64::saturating_add)
    }

    /// Writes down the flows that [`choose`](super::choose) chooses among those of the newest poll, but for pressed ones. Their
    /// packets are those that count for the choice.
    pub(super) fn choose(&self, over: PerMille, chosen: &mut Vec<Heavy<K>>) {
        let all = self.reported().map(|(_, packets)| u128::from(packets)).sum();
        chosen.clear();
        let new = self
            .reported()
            .filter(|&(known, packets)| is_chosen(packets, over, all) && known.pressed_in != self.poll);
        chosen.extend(new.map(|(known, packets)| known.weighed(packets)));
        order(chosen);
    }

    /// Writes down the flows that [`choose_like_top`] chooses among those of the newest poll that are not pressed.
    pub(super) fn choose_like_top(&self, chosen: &mut Vec<Heavy<K>>) {
        chosen.clear();
        let new = self.reported().filter(|(known, _)| known.pressed_in != self.poll);
        chosen.extend(new.map(|(known, packets)| known.weighed(packets)));
        choose_like_top(chosen);
    }

    /// Of the flows that were reported in the last window, the one with most packets, and its part of their packets in
    /// thousandths.
    pub(super) fn top(&self) -> Option<(K, PerMille)> {
        let recent = self.has_recent();
        let order = |a: &&Known<K>, b: &&Known<K>| {
            a.weight(recent).cmp(&b.weight(recent)).then_with(|| b.key.cmp(&a.key))
        };
        let top = self.known.iter().max_by(order)?;
        let all: u128 = self.known.iter().map(|known| u128::from(known.weight(recent))).sum();
        let part = (u128::from(top.weight(recent)) * u128::from(WHOLE)).checked_div(all).unwrap_or(0);
        // At most 1,000.
        Some((top.key, part as PerMille))
    }

    /// Whether the flows' packets in the running window and the one before are known, and count for the choice. Otherwise, as long as
    /// no flow was reported twice, all that was counted of them counts.
    pub(super) fn has_recent(&self) -> bool {
        self.known.iter().any(|known| known.new.is_some())
    }

    /// What a flow sent between its two newest reports, if the newest poll reported it.
    pub(super) fn gauge(&self, key: &K) -> Option<Gauge> {
        self.known[self.find(key)?].new
    }

    /// Packets that all flows sent between their two newest reports.
    pub(super) fn packets(&self) -> u64 {
        self.known.iter().filter_map(|known| known.new).map(|new| new.packets).fold(0, u64::saturating_add)
    }

    fn find(&self, key: &K) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        let is_same = |place: &u32| {
            let known = &self.known[*place as usize];
            known.hash == hash && known.key == *key
        };
        self.places.find(hash, is_same).map(|place| *place as usize)
    }
}

impl<K: Copy> Known<K> {
    /// A flow that was not known before.
    fn first(key: K, hash: u64, sent: Tally, poll: u64) -> Self {
        Self {
            key,
            hash,
            sent: Tally::default(),
            at: None,
            newest: sent,
            reported_in: poll,
            pressed_in: 0,
            new: None,
            recent: [0; 2],
        }
    }

    /// Takes what the newest poll reported.
    fn take(&mut self, all: u64, now: Nanos) {
        let sent = self.newest;
        match self.at.replace(now) {
            Some(before) => {
                self.new = gauge(self.sent, sent, now.since(before));
                let new = self.new.map_or(0, |new| new.packets);
                self.recent[0] = self.recent[0].saturating_add(new);
            }
            None => self.recent[0] = if sent.packets <= all { sent.packets } else { 0 },
        }
        self.sent = sent;
    }

    fn recent(&self) -> u64 {
        self.recent[0].saturating_add(self.recent[1])
    }

    /// What counts for the choice: the `recent` packets, or all.
    fn weight(&self, recent: bool) -> u64 {
        if recent { self.recent() } else { self.sent.packets }
    }

    fn weighed(&self, packets: u64) -> Heavy<K> {
        Heavy { key: self.key, sent: Tally { packets, ..self.sent } }
    }
}

/// What was sent between two reports; `None` where a generation ended in between.
fn gauge(before: Tally, after: Tally, over: Span) -> Option<Gauge> {
    let packets = after.packets.checked_sub(before.packets)?;
    let bytes = after.bytes.checked_sub(before.bytes)?;
    Some(Gauge { packets, bytes, over })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::backpressure::choose;
    use proptest::prelude::*;

    fn heavy(key: u32, packets: u64) -> Heavy<u32> {
        Heavy { key, sent: Tally { packets, bytes: packets * 1_250 } }
    }

    fn at(ms: u64) -> Nanos {
        Nanos::ZERO + Span::millis(ms)
    }

    #[test]
    fn rates_are_differences_of_reports() {
        let mut reports = Reports::new(2);
        assert_eq!(reports.take(&[heavy(2, 500), heavy(1, 900), heavy(3, 1)], Span::millis(5), 0, at(0)), 1);
        assert_eq!(reports.gauge(&1), None, "the first report");
        reports.take(&[heavy(1, 1_000)], Span::millis(5), 0, at(1));
        let rate = reports.gauge(&1).and_then(|new| new.rate());
        assert_eq!(rate, Some(Rate { bits: 1_000_000_000, packets: 100_000 }));
        assert_eq!((reports.gauge(&2), reports.packets()), (None, 100), "flow 2 is silent");
        reports.take(&[heavy(1, 100), heavy(2, 600)], Span::millis(5), 0, at(2));
        assert_eq!(reports.gauge(&1), None, "a generation ended");
        assert_eq!(
            reports.gauge(&2).and_then(|new| new.rate()).map(|rate| rate.packets),
            Some(50_000),
            "in 2 ms"
        );
        reports.take(&[], Span::millis(5), 0, at(7));
        reports.take(&[heavy(2, 700)], Span::millis(5), 0, at(8));
        assert_eq!(reports.gauge(&2), None, "forgotten");
    }

    /// The flows of the newest poll, by key, with what counts for the choice.
    fn weighed(reports: &Reports<u32>) -> Vec<(u32, u64)> {
        let mut weighed: Vec<_> = reports.reported().map(|(known, packets)| (known.key, packets)).collect();
        weighed.sort_unstable();
        weighed
    }

    /// A flow that is new counts with all that it sent, if that can be recent; what it sends after two windows counts no more.
    #[test]
    fn packets_of_the_last_two_windows_are_recent() {
        let mut reports = Reports::new(4);
        reports.take(&[heavy(1, 400), heavy(2, 9_000)], Span::millis(5), 1_000, at(0));
        assert!(!reports.has_recent(), "each flow was reported once");
        assert_eq!(weighed(&reports), [(1, 400), (2, 9_000)]);
        reports.take(&[heavy(1, 450), heavy(2, 9_010)], Span::millis(5), 1_000, at(1));
        assert_eq!((weighed(&reports), reports.top()), (vec![(1, 450), (2, 10)], Some((1, 978))));
        reports.end_window();
        reports.take(&[heavy(1, 460), heavy(2, 9_020)], Span::millis(5), 1_000, at(2));
        assert_eq!(weighed(&reports), [(1, 460), (2, 20)]);
        reports.end_window();
        reports.take(&[heavy(1, 461), heavy(2, 9_021)], Span::millis(5), 1_000, at(3));
        assert_eq!(weighed(&reports), [(1, 11), (2, 11)]);
    }

    #[test]
    fn of_several_reports_of_a_flow_the_highest_counts() {
        let mut reports = Reports::new(4);
        reports.take(&[heavy(1, 5), heavy(1, 9), heavy(1, 7)], Span::ZERO, 0, at(0));
        assert_eq!(weighed(&reports), [(1, 9)]);
        reports.take(&[heavy(1, 8), heavy(1, 12)], Span::ZERO, 0, at(1));
        assert_eq!(reports.gauge(&1).map(|new| new.packets), Some(3), "since the highest one before");
    }

    #[test]
    fn of_too_many_silent_flows_those_with_low_keys_stay_known() {
        let mut reports = Reports::new(4);
        reports.take(&[heavy(4, 1), heavy(2, 1), heavy(1, 1), heavy(3, 1)], Span::millis(5), 9, at(0));
        reports.take(&[heavy(9, 1), heavy(8, 1), heavy(3, 2)], Span::millis(5), 9, at(1));
        reports.take(&[1, 2, 8, 9].map(|key| heavy(key, 3)), Span::millis(5), 9, at(2));
        let new = [1, 2, 3, 4, 8, 9].map(|key| reports.gauge(&key).map(|new| new.packets));
        assert_eq!(
            new,
            [Some(2), None, None, None, Some(2), Some(2)],
            "flow 2 was forgotten, and 3 is silent"
        );
    }

    proptest! {
        /// Flows are those that a search through sorted reports finds, whatever comes: the choice, the top flow, and each rate.
        #[test]
        fn agrees_with_a_list_of_all(
            polls in proptest::collection::vec(
                (proptest::collection::vec((0_u32..12, 0_u64..40), 0..8), 1_u64..4, any::<bool>()), 1..40,
            ),
        ) {
            let (mut reports, mut listed, mut now) = (Reports::new(6), BTreeMap::new(), at(0));
            let keep = Span::millis(5);
            for (reported, ms, window_ends) in polls {
                now += Span::millis(ms);
                let reported: Vec<_> = reported.iter().map(|&(key, packets)| heavy(key, packets)).collect();
                let unread = reports.take(&reported, keep, 20, now);
                prop_assert_eq!(unread, reported.len().saturating_sub(6));
                let mut newest = BTreeMap::new();
                for heavy in &reported[..reported.len().min(6)] {
                    let sent = newest.entry(heavy.key).or_insert(heavy.sent);
                    if heavy.sent.packets > sent.packets { *sent = heavy.sent; }
                }
                let before = core::mem::take(&mut listed);
                for (&key, &sent) in &newest {
                    let known: Option<&(Tally, Nanos, Option<Gauge>, [u64; 2])> = before.get(&key);
                    let new = known.and_then(|known| gauge(known.0, sent, now.since(known.1)));
                    let added = new.map_or(0, |new| new.packets);
                    let first = [if sent.packets <= 20 { sent.packets } else { 0 }, 0];
                    let recent = known.map_or(first, |known| [known.3[0] + added, known.3[1]]);
                    listed.insert(key, (sent, now, new, recent));
                }
                for (&key, known) in &before {
                    if listed.len() < 6 && !newest.contains_key(&key) && now.since(known.1) < keep {
                        listed.insert(key, (known.0, known.1, None, known.3));
                    }
                }
                prop_assert_eq!(reports.known.len(), listed.len());
                prop_assert_eq!(reports.places.len(), listed.len());
                let recent = listed.values().any(|known| known.2.is_some());
                let weight = |key: u32| {
                    let known = &listed[&key];
                    if recent { known.3[0] + known.3[1] } else { known.0.packets }
                };
                for key in 0..12 {
                    prop_assert_eq!(reports.gauge(&key), listed.get(&key).and_then(|known| known.2));
                }
                let found: Vec<_> = newest.keys().map(|&key| (key, weight(key))).collect();
                prop_assert_eq!(weighed(&reports), found.clone());
                let top = listed.keys().max_by_key(|&&key| (weight(key), core::cmp::Reverse(key)));
                prop_assert_eq!(reports.top().map(|(key, _)| key), top.copied());
                prop_assert_eq!(reports.note_pressed(&3), (newest.contains_key(&3), reports.gauge(&3)));
                let mut all: Vec<_> = found.iter().map(|&(key, packets)| heavy(key, packets)).collect();
                let (mut expected, mut chosen) = (Vec::new(), Vec::new());
                choose(&all, 100, &mut expected);
                let keys = |flows: &[Heavy<u32>]| -> Vec<_> {
                    flows.iter().filter(|flow| flow.key != 3).map(|flow| (flow.key, flow.sent.packets)).collect()
                };
                reports.choose(100, &mut chosen);
                prop_assert_eq!(keys(&chosen), keys(&expected));
                prop_assert!(chosen.iter().all(|flow| flow.key != 3), "it is pressed");
                all.retain(|flow| flow.key != 3);
                choose_like_top(&mut all);
                reports.choose_like_top(&mut chosen);
                prop_assert_eq!(keys(&chosen), keys(&all));
                if window_ends {
                    reports.end_window();
                    listed.values_mut().for_each(|known| known.3 = [0, known.3[0]]);
                }
            }
        }
    }
}
