//! Reports of heavy hitters from one poll to the next, and the rates that they show.
//!
//! Why: a report has a flow's count over seconds; how fast it sends now is the difference between two reports.
//! From: MIMIC §IV-C and §IV-D: a flow over the threshold is reported whenever its count is updated.
//! Not here: the counters (`queues`), and the choice.
//! Invariant: at most `capacity` flows are known; each key once, in order.

use plimsoll_queues::{Heavy, Tally};
use plimsoll_units::{NS_PER_SEC, Nanos, Span};

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
    sent: Tally,
    at: Nanos,
    /// What the flow sent since its report before; `None` for its first one, and where a generation ended in between.
    new: Option<Gauge>,
    /// Packets in the running window, and in the one before.
    recent: [u64; 2],
}

#[derive(Clone, Debug)]
pub(super) struct Reports<K> {
    capacity: usize,
    known: Vec<Known<K>>,
    before: Vec<Known<K>>,
    /// The flows of the newest poll, in order.
    current: Vec<Heavy<K>>,
}

impl<K> Reports<K> {
    /// Bytes of the tables for this number of flows.
    pub(super) const fn bytes_of(capacity: usize) -> usize {
        capacity * (2 * size_of::<Known<K>>() + size_of::<Heavy<K>>())
    }
}

impl<K: Copy + Ord> Reports<K> {
    pub(super) fn new(capacity: usize) -> Self {
        let [known, before] = [(); 2].map(|()| Vec::with_capacity(capacity));
        Self { capacity, known, before, current: Vec::with_capacity(capacity) }
    }

    /// Handles the reports of one poll; those beyond the capacity are left out, and their number is returned. A flow that was
    /// not reported for `keep` is forgotten. Of several reports of one flow the highest counts. `all` are the packets of all flows
    /// in the running window and the one before: a new flow with more than these did not send them just now.
    pub(super) fn take(&mut self, reported: &[Heavy<K>], keep: Span, all: u64, now: Nanos) -> usize {
        let taken = &reported[..reported.len().min(self.capacity)];
        self.current.clear();
        self.current.extend(taken);
        self.current.sort_unstable_by_key(|heavy| (heavy.key, core::cmp::Reverse(heavy.sent.packets)));
        self.current.dedup_by_key(|heavy| heavy.key);
        core::mem::swap(&mut self.known, &mut self.before);
        self.known.clear();
        for heavy in &self.current {
            let before = find(&self.before, &heavy.key).map(|at| &self.before[at]);
            let new = before.and_then(|before| before.until(&heavy.sent, now));
            let recent = match (before, new) {
                (Some(before), Some(new)) => [before.recent[0].saturating_add(new.packets), before.recent[1]],
                (Some(before), None) => before.recent,
                (None, _) => [if heavy.sent.packets <= all { heavy.sent.packets } else { 0 }, 0],
            };
            self.known.push(Known { key: heavy.key, sent: heavy.sent, at: now, new, recent });
        }
        let silent = |known: &&Known<K>| {
            let reported = self.current.binary_search_by_key(&known.key, |heavy| heavy.key).is_ok();
            !reported && now.since(known.at) < keep
        };
        let room = self.capacity - self.known.len();
        self.known
            .extend(self.before.iter().filter(silent).take(room).map(|known| Known { new: None, ..*known }));
        self.known.sort_unstable_by_key(|known| known.key);
        reported.len() - taken.len()
    }

    /// The flows that the newest poll reported, by key.
    pub(super) fn current(&self) -> &[Heavy<K>] {
        &self.current
    }

    /// Ends a window.
    pub(super) fn end_window(&mut self) {
        self.known.iter_mut().for_each(|known| known.recent = [0, known.recent[0]]);
    }

    /// Writes down the flows of the newest poll with their packets in the running window and the one before, and says whether
    /// those are known. Otherwise, as long as no flow was reported twice, with all that was counted of them.
    pub(super) fn weigh(&self, out: &mut Vec<Heavy<K>>) -> bool {
        out.clear();
        out.extend(&self.current);
        let recent = self.has_recent();
        for heavy in out.iter_mut().filter(|_| recent) {
            heavy.sent.packets = find(&self.known, &heavy.key).map_or(0, |at| self.known[at].recent());
        }
        recent
    }

    /// Of the flows that were reported in the last window, the one with most packets, and its part of their packets in
    /// thousandths.
    pub(super) fn top(&self) -> Option<(K, PerMille)> {
        let recent = self.has_recent();
        let packets = |known: &Known<K>| if recent { known.recent() } else { known.sent.packets };
        let top = self.known.iter().max_by_key(|known| (packets(known), core::cmp::Reverse(known.key)))?;
        let all: u128 = self.known.iter().map(|known| u128::from(packets(known))).sum();
        let part = (u128::from(packets(top)) * u128::from(WHOLE)).checked_div(all).unwrap_or(0);
        // At most 1,000.
        Some((top.key, part as PerMille))
    }

    fn has_recent(&self) -> bool {
        self.known.iter().any(|known| known.new.is_some())
    }

    /// What a flow sent between its two newest reports, if the newest poll reported it.
    pub(super) fn gauge(&self, key: &K) -> Option<Gauge> {
        self.known[find(&self.known, key)?].new
    }

    /// Packets that all flows sent between their two newest reports.
    pub(super) fn packets(&self) -> u64 {
        self.known.iter().filter_map(|known| known.new).map(|new| new.packets).fold(0, u64::saturating_add)
    }
}

impl<K> Known<K> {
    fn recent(&self) -> u64 {
        self.recent[0].saturating_add(self.recent[1])
    }

    fn until(&self, sent: &Tally, now: Nanos) -> Option<Gauge> {
        Some(Gauge {
            packets: sent.packets.checked_sub(self.sent.packets)?,
            bytes: sent.bytes.checked_sub(self.sent.bytes)?,
            over: now.since(self.at),
        })
    }
}

fn find<K: Ord>(known: &[Known<K>], key: &K) -> Option<usize> {
    known.binary_search_by(|known| known.key.cmp(key)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A flow that is new counts with all that it sent, if that can be recent; what it sends after two windows counts no more.
    #[test]
    fn packets_of_the_last_two_windows_are_recent() {
        let (mut reports, mut weighed) = (Reports::new(4), Vec::new());
        reports.take(&[heavy(1, 400), heavy(2, 9_000)], Span::millis(5), 1_000, at(0));
        assert!(!reports.weigh(&mut weighed), "each flow was reported once");
        assert_eq!(weighed, [heavy(1, 400), heavy(2, 9_000)]);
        let recent = |reports: &Reports<u32>| {
            let mut weighed = Vec::new();
            assert!(reports.weigh(&mut weighed));
            weighed.iter().map(|heavy| heavy.sent.packets).collect::<Vec<_>>()
        };
        reports.take(&[heavy(1, 450), heavy(2, 9_010)], Span::millis(5), 1_000, at(1));
        assert_eq!((recent(&reports), reports.top()), (vec![450, 10], Some((1, 978))));
        reports.end_window();
        reports.take(&[heavy(1, 460), heavy(2, 9_020)], Span::millis(5), 1_000, at(2));
        assert_eq!(recent(&reports), [460, 20]);
        reports.end_window();
        reports.take(&[heavy(1, 461), heavy(2, 9_021)], Span::millis(5), 1_000, at(3));
        assert_eq!(recent(&reports), [11, 11]);
    }

    #[test]
    fn of_several_reports_of_a_flow_the_highest_counts() {
        let mut reports = Reports::new(4);
        reports.take(&[heavy(1, 5), heavy(1, 9), heavy(1, 7)], Span::ZERO, 0, at(0));
        assert_eq!(reports.current(), [heavy(1, 9)]);
    }
}
