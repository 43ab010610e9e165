//! Heavy hitters: which flows send most packets, out of many, with every packet counted.
//!
//! Why: one flow can fill a core. Backpressure has to name it within a millisecond, and must name no other.
//! From: MIMIC §IV (hash buckets, flow table, pre-filter, ping-pong tables); `queues` counts in memory what the paper
//! counts in SRAM and DRAM, for the same reason: the buckets stay in the processor's cache.
//! Not here: hashing, the choice among the reported flows, and what is done to them.
//! Invariant: packets and bytes seen = those in the buckets + those in the flow table + those forgotten.

mod buckets;
mod flows;

use buckets::{Buckets, Place};
use flows::Flows;
use plimsoll_units::{Nanos, Span};

/// Sizes and times of a [`HeavyHitters`]. All memory is taken when it is made.
#[derive(Clone, Debug)]
pub struct HeavyConfig {
    /// Hash buckets, a power of two from 2.
    pub buckets: usize,
    /// Packets after which a slot moves to the flow table.
    pub counter_cap: u32,
    /// Flows that the flow table holds, a power of two and at least [`WAYS`](Self::WAYS).
    pub flows: usize,
    /// Flows that each of the two report tables holds.
    pub reports: usize,
    /// Packets in the window from which a flow is heavy.
    pub threshold: u64,
    /// Packets in one update from which a flow is heavy at once, as soon as it has four times as many in the window. The
    /// threshold alone takes a fast flow some tens of milliseconds.
    pub surge: u64,
    /// How often each bucket is emptied into the flow table.
    pub update: Span,
    /// The length of a generation. A flow's count covers the running generation and the one before.
    pub window: Span,
}

impl HeavyConfig {
    /// Places in which the flow table looks for a flow.
    pub const WAYS: usize = 8;
    /// A surge is ten times the rate of a heavy flow, in an update of a millisecond; but no fewer packets than these.
    const SURGE_PART: u64 = 100;
    const LEAST_SURGE: u64 = 64;

    /// Sizes as by default, for flows that are heavy from `rate` packets a second on. `at_once`: a flow that sends much more is
    /// found within milliseconds, so that it can be slowed down; one that is only listed may take its time.
    ///
    /// ```
    /// let config = plimsoll_queues::HeavyConfig::from_rate(10_000, true);
    /// assert_eq!((config.threshold, config.surge), (20_000, 100), "in two seconds, and in a millisecond");
    /// ```
    #[must_use]
    pub fn from_rate(rate: u64, at_once: bool) -> Self {
        let config = Self::default();
        // A count covers one window at least.
        let threshold =
            u128::from(rate) * u128::from(config.window.as_u64()) / u128::from(plimsoll_units::NS_PER_SEC);
        let threshold = u64::try_from(threshold).unwrap_or(u64::MAX).max(1);
        let surge = (rate / Self::SURGE_PART).max(Self::LEAST_SURGE);
        Self { threshold, surge: if at_once { surge } else { u64::MAX }, ..config }
    }
}

impl Default for HeavyConfig {
    /// MIMIC's sizes: 32,768 buckets of 4 slots, emptied each millisecond, counts over 2 s, no surges.
    fn default() -> Self {
        Self {
            buckets: 32 << 10,
            counter_cap: 1_000,
            flows: 256 << 10,
            reports: 1_024,
            threshold: 10_000,
            surge: u64::MAX,
            update: Span::millis(1),
            window: Span::secs(2),
        }
    }
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        *self = self.plus(other);
    }

    fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

/// A flow that passed the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heavy<K> {
    /// The flow.
    pub key: K,
    /// What it sent in the running generation and the one before.
    pub sent: Tally,
}

/// What a [`HeavyHitters`] did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeavyCounters {
    /// All that was counted.
    pub seen: Tally,
    /// Slots that a flow without a slot took from another (MI-M2).
    pub bucket_overflows: u64,
    /// Slots that reached the counter's cap (MI-M3).
    pub counter_overflows: u64,
    /// Slots that the periodic update emptied (MI-M4).
    pub periodic_updates: u64,
    /// What flows had sent that left the flow table because they were idle for a generation.
    pub expired: Tally,
    /// What the flow table had no place for.
    pub unlisted: Tally,
    /// Reports that did not fit into the report table. The flow is reported at its next update.
    pub reports_full: u64,
}

/// Counts packets by flow and reports the flows that pass a threshold.
///
/// `SLOTS` is the number of flows that a bucket holds, 1 to 32; the paper's four are one cache line.
///
/// A flow is known by its 64-bit hash, which must be keyed: a sender who can choose hashes can hide behind another
/// flow. Two flows of one hash (about one pair in 10¹⁹) are counted as the one that came first.
///
/// ```
/// use plimsoll_queues::{HeavyConfig, HeavyHitters};
/// use plimsoll_units::Nanos;
///
/// let config = HeavyConfig { threshold: 100, ..HeavyConfig::default() };
/// let mut heavy: HeavyHitters<&str> = HeavyHitters::new(config, Nanos::ZERO);
/// for n in 0..1_000_u64 {
///     heavy.count(0x9e37_79b9_7f4a_7c15, &"elephant", 1_500);
///     heavy.count(n.wrapping_mul(0xbf58_476d_1ce4_e5b9), &"mouse", 64);
/// }
/// heavy.advance(Nanos::new(1_000_000));
/// let mut reported = Vec::new();
/// assert!(!heavy.read(8, &mut reported), "at most 8 flows are heavy");
/// assert_eq!(reported.len(), 1);
/// assert_eq!((reported[0].key, reported[0].sent.packets), ("elephant", 1_000));
/// ```
#[derive(Clone, Debug)]
pub struct HeavyHitters<K, const SLOTS: usize = 4> {
    buckets: Buckets<K, SLOTS>,
    flows: Flows<K>,
    reports: Reports,
    counters: HeavyCounters,
    counter_cap: u32,
    threshold: u64,
    surge: u64,
    sweep: Period,
    window: Period,
    /// When counting began.
    began: Nanos,
    /// All that had been counted when the running generation began, and the one before it.
    seen_at: [Tally; 2],
}

impl<K: Copy + Default, const SLOTS: usize> HeavyHitters<K, SLOTS> {
    /// Counts nothing yet.
    ///
    /// # Panics
    /// If `buckets` or `flows` is not a power of two, `buckets` is below 2 or `flows` below [`HeavyConfig::WAYS`], or
    /// `update` or `window` is zero.
    #[must_use]
    pub fn new(config: HeavyConfig, now: Nanos) -> Self {
        assert!(
            config.update > Span::ZERO && config.window > Span::ZERO,
            "an update and a window of some length"
        );
        Self {
            buckets: Buckets::new(config.buckets),
            flows: Flows::new(config.flows),
            reports: Reports::new(config.reports),
            counters: HeavyCounters::default(),
            counter_cap: config.counter_cap.max(1),
            threshold: config.threshold,
            surge: config.surge,
            sweep: Period { began: now, length: config.update },
            window: Period { began: now, length: config.window },
            began: now,
            seen_at: [Tally::default(); 2],
        }
    }

    /// Begins now, where the time was not known when it was made. Nothing may have been counted.
    pub fn begin(&mut self, now: Nanos) {
        (self.began, self.sweep.began, self.window.began) = (now, now, now);
    }

    /// Counts a packet of `bytes` of the flow `key`, whose keyed hash is `hash`. Constant time.
    #[inline]
    pub fn count(&mut self, hash: u64, key: &K, bytes: u32) {
        self.count_many(hash, key, 1, bytes);
    }

    /// Counts `packets` of `bytes` in all, as [`count`](Self::count) does.
    #[inline]
    pub fn count_many(&mut self, hash: u64, key: &K, packets: u16, bytes: u32) {
        self.counters.seen.add(Tally { packets: packets.into(), bytes: bytes.into() });
        if packets == 0 {
            return;
        }
        let slot = self.buckets.find(hash).unwrap_or_else(|least| self.take_slot(least, hash, key));
        if self.buckets.count(slot, packets, bytes, self.counter_cap) {
            self.counters.counter_overflows += 1;
            self.evict(slot);
        }
    }

    /// Counts what the flow `key` sent, which was added up elsewhere, in the flow table at once. It is not reported for it: the caller
    /// knows the flow, and asks [`sent`](Self::sent) for its count.
    pub fn count_at_once(&mut self, hash: u64, key: &K, sent: Tally) {
        self.counters.seen.add(sent);
        self.flows.add_somewhere(hash, key, sent);
    }

    /// Asks the processor to fetch the bucket of `hash`, which [`count`](Self::count) will need.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.buckets.prefetch(hash);
    }

    /// Empties the buckets that are due by `now` into the flow table and begins a new generation where one is due.
    ///
    /// Each bucket is emptied once in an update. Called often, each call empties a few; called once an update, all.
    pub fn advance(&mut self, now: Nanos) {
        if self.sweep.turns(now) > 0 {
            // Of several updates that are due at once the first empties the buckets, and the others find nothing.
            self.empty_buckets(self.buckets.len());
            self.buckets.begin_sweep();
        }
        let due = u128::from(now.since(self.sweep.began).as_u64()) * self.buckets.len() as u128;
        self.empty_buckets((due / u128::from(self.sweep.length.as_u64())) as usize);
        let generations = self.window.turns(now);
        self.flows.begin_generation(generations);
        let seen = self.counters.seen;
        match generations {
            0 => {}
            1 => self.seen_at = [seen, self.seen_at[0]],
            _ => self.seen_at = [seen; 2],
        }
    }

    /// All that was counted in the running generation and the one before, and how long that is.
    #[must_use]
    pub fn recent(&self, now: Nanos) -> (Tally, Span) {
        let Tally { packets, bytes } = self.seen_at[1];
        let seen =
            Tally { packets: self.counters.seen.packets - packets, bytes: self.counters.seen.bytes - bytes };
        let since = now.since(self.window.began) + self.window.length;
        (seen, since.min(now.since(self.began)))
    }

    /// Appends up to `max` reported flows to `out`, and says whether more are waiting.
    ///
    /// A query reads one report table to its end, then the other; what passes the threshold meanwhile goes to the table
    /// that is not being read (MI-M7). A flow that was read is reported again once it is counted again.
    pub fn read(&mut self, max: usize, out: &mut Vec<Heavy<K>>) -> bool {
        self.read_each(max, |_, heavy| out.push(heavy))
    }

    /// Reads as [`read`](Self::read) does, and calls `take` with the hash of each flow and its report.
    pub fn read_each(&mut self, max: usize, mut take: impl FnMut(u64, Heavy<K>)) -> bool {
        for _ in 0..max {
            let Some(report) = self.reports.take() else { break };
            // The place may belong to another flow by now, or the flow have gone quiet.
            if let Some(heavy) = self.flows.take_report(report.place, report.hash) {
                take(report.hash, heavy);
            }
        }
        !self.reports.is_empty()
    }

    /// What the flow of this hash sent in the running generation and the one before, whether it is heavy or not, as far as its count
    /// has been moved to the flow table; `None` where it has no place there.
    #[must_use]
    pub fn sent(&self, hash: u64) -> Option<Tally> {
        self.flows.sent(hash)
    }

    /// What was counted and moved.
    #[must_use]
    pub fn counters(&self) -> HeavyCounters {
        HeavyCounters { expired: self.flows.expired(), unlisted: self.flows.unlisted(), ..self.counters }
    }

    /// What the buckets and the flow table hold, idle flows included.
    #[must_use]
    pub fn held(&self) -> Tally {
        self.buckets.held().plus(self.flows.held())
    }

    /// The slots of the buckets that hold a flow.
    #[must_use]
    pub fn slots_used(&self) -> usize {
        self.buckets.used()
    }

    /// Bytes of the buckets and of the flow table (MI-C1).
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        (self.buckets.bytes(), self.flows.bytes() + self.reports.bytes())
    }

    /// Bytes that the buckets and the flow table would take; nothing is allocated.
    #[must_use]
    pub fn bytes_of(config: &HeavyConfig) -> (usize, usize) {
        let buckets = Buckets::<K, SLOTS>::bytes_of(config.buckets);
        (buckets, Flows::<K>::bytes_of(config.flows) + Reports::bytes_of(config.reports))
    }

    /// Gives a slot to a flow. A flow that holds it moves to the flow table.
    #[inline(never)]
    fn take_slot(&mut self, slot: Place, hash: u64, key: &K) -> Place {
        if self.buckets.is_used(slot) {
            self.counters.bucket_overflows += 1;
            self.evict(slot);
        }
        self.buckets.fill(slot, hash, key);
        slot
    }

    /// Moves a slot's count to the flow table, and reports the flow where that makes it heavy.
    #[inline(never)]
    fn evict(&mut self, slot: Place) {
        let (hash, sent) = (self.buckets.hash(slot), self.buckets.take(slot));
        let last = self.buckets.last(slot);
        if let Some(place) = self.flows.add(hash, self.buckets.key(slot), sent, last) {
            if place != last {
                self.buckets.set_last(slot, place);
            }
            let surge = if sent.packets >= self.surge { self.surge.saturating_mul(SURGES) } else { u64::MAX };
            self.report(place, hash, self.threshold.min(surge));
        }
    }

    fn report(&mut self, place: u32, hash: u64, threshold: u64) {
        if !self.flows.is_unreported(place, threshold) {
            return;
        }
        if self.reports.put(Report { place, hash }) {
            self.flows.mark_reported(place);
        } else {
            self.counters.reports_full += 1;
        }
    }

    /// Empties the buckets up to the one at `end`, from where this update stands.
    fn empty_buckets(&mut self, end: usize) {
        let mut due = [(0, 0); BATCH + 1];
        loop {
            let batch = self.buckets.next_due(end, &mut due);
            batch.iter().for_each(|&slot| self.flows.prefetch(self.buckets.last(slot)));
            self.counters.periodic_updates += batch.len() as u64;
            batch.iter().for_each(|&slot| self.evict(slot));
            if batch.is_empty() {
                return;
            }
        }
    }
}

/// Surges that make a flow heavy, so that a single burst of a short transfer does not.
const SURGES: u64 = 4;

/// The most slots that are emptied together, so that the memory of one is fetched while others are emptied.
const BATCH: usize = 32;

/// A length of time that repeats.
#[derive(Clone, Copy, Debug)]
struct Period {
    began: Nanos,
    length: Span,
}

impl Period {
    /// How many periods have ended by `now`; the running one begins where the last ended.
    fn turns(&mut self, now: Nanos) -> u64 {
        let turns = now.since(self.began).as_u64() / self.length.as_u64();
        self.began += self.length.times(turns);
        turns
    }
}

/// A flow that passed the threshold: its place in the flow table, and its hash, as the place may change hands.
#[derive(Clone, Copy, Debug)]
struct Report {
    place: u32,
    hash: u64,
}

/// The ping-pong tables (MI-M7): one is written while the other is read.
#[derive(Clone, Debug)]
struct Reports {
    tables: [Vec<Report>; 2],
    /// The table that a query reads; without a query both are written.
    reading: Option<usize>,
    capacity: usize,
}

impl Reports {
    fn new(capacity: usize) -> Self {
        Self { tables: [Vec::with_capacity(capacity), Vec::with_capacity(capacity)], reading: None, capacity }
    }

    fn bytes(&self) -> usize {
        Self::bytes_of(self.capacity)
    }

    fn bytes_of(capacity: usize) -> usize {
        2 * capacity * size_of::<Report>()
    }

    fn is_empty(&self) -> bool {
        self.tables.iter().all(Vec::is_empty)
    }

    /// Writes to the table that is not being read, and without a query to the emptier one. False if that table is full.
    fn put(&mut self, report: Report) -> bool {
        let emptier = usize::from(self.tables[1].len() < self.tables[0].len());
        let table = &mut self.tables[self.reading.map_or(emptier, |reading| 1 - reading)];
        let fits = table.len() < self.capacity;
        if fits {
            table.push(report);
        }
        fits
    }

    /// The next report of the query; `None` ends it.
    fn take(&mut self) -> Option<Report> {
        let first = self.reading.unwrap_or(0);
        for table in first..2 {
            self.reading = Some(table);
            if let Some(report) = self.tables[table].pop() {
                self.reading = self.reading.filter(|_| !self.is_empty());
                return Some(report);
            }
        }
        self.reading = None;
        None
    }
}

#[cfg(test)]
mod tests;
