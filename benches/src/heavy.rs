//! Counting flows to find heavy hitters, beside the crate `heavykeeper` and DPDK's `rte_member` sketch.
//!
//! Why: every packet of a watched tenant is counted, so it must cost little; and a count that is wrong presses back the wrong
//! flow.
//! From: MIMIC §IV; HeavyKeeper (ATC '18), which both peers implement.
//! Not here: the counting itself (`plimsoll_queues`).
//! Invariant: all sides get the same keys in the same order, 40 bytes each as a flow has, and hash them themselves.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use anyhow::Result;
use heavykeeper::CuckooTopK;
use plimsoll_queues::{HeavyConfig, HeavyHitters};
use plimsoll_units::{Nanos, Span};

use crate::report::{Goal, Row};
use crate::scheduler::Effort;

/// A flow's key, as long as the daemon's.
pub type Key = [u64; 5];

/// Flows that each side is asked for.
pub const TOP: usize = 100;
/// Packets a millisecond: the rate at which the goals are stated (40 Mpps).
const IN_MS: u64 = 40_000;
const BATCH: usize = 32;

/// One side.
trait Counter {
    /// Counts these packets, in order.
    fn count(&mut self, keys: &[Key]);
    /// The heaviest flows with their counts, the first one with most packets.
    fn top(&mut self) -> Vec<(Key, u64)>;
}

struct Ours {
    heavy: HeavyHitters<Key>,
    hasher: foldhash::quality::RandomState,
    packets: u64,
}

impl Ours {
    fn new() -> Self {
        // No generation ends meanwhile, as none of the peers forgets.
        let config = HeavyConfig { threshold: 1_000, window: Span::secs(3_600), ..HeavyConfig::default() };
        Self { heavy: HeavyHitters::new(config, Nanos::ZERO), hasher: Default::default(), packets: 0 }
    }
}

impl Counter for Ours {
    fn count(&mut self, keys: &[Key]) {
        for batch in keys.chunks(BATCH) {
            let mut hashes = [0; BATCH];
            for (hash, key) in hashes.iter_mut().zip(batch) {
                *hash = self.hasher.hash_one(key);
                self.heavy.prefetch(*hash);
            }
            for (hash, key) in hashes.iter().zip(batch) {
                self.heavy.count(*hash, key, 1_000);
            }
            self.packets += batch.len() as u64;
            self.heavy.advance(Nanos::new(self.packets * 1_000_000 / IN_MS));
        }
    }

    fn top(&mut self) -> Vec<(Key, u64)> {
        // What was counted in the last milliseconds is still on its way to the list.
        self.heavy.advance(Nanos::new(self.packets * 1_000_000 / IN_MS) + Span::millis(2));
        let mut reported = Vec::new();
        while self.heavy.read(1_024, &mut reported) {}
        let mut newest: HashMap<Key, u64> = HashMap::new();
        for heavy in reported {
            let count = newest.entry(heavy.key).or_default();
            *count = heavy.sent.packets.max(*count);
        }
        let mut top: Vec<_> = newest.into_iter().collect();
        top.sort_by_key(|&(key, count)| (core::cmp::Reverse(count), key));
        top.truncate(TOP);
        top
    }
}

impl Counter for CuckooTopK<Key> {
    fn count(&mut self, keys: &[Key]) {
        keys.iter().for_each(|key| self.add(key, 1));
    }

    fn top(&mut self) -> Vec<(Key, u64)> {
        self.list().into_iter().map(|node| (node.item, node.count)).collect()
    }
}

#[cfg(feature = "dpdk")]
impl Counter for crate::dpdk::Sketch<'_> {
    fn count(&mut self, keys: &[Key]) {
        self.add(keys);
    }

    fn top(&mut self) -> Vec<(Key, u64)> {
        self.report()
    }
}

/// The cost of counting a packet, and the error of the counts.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    #[cfg(feature = "dpdk")]
    let mut dpdk = crate::dpdk::start()?;
    let mut rows = Vec::new();
    let packets = usize::try_from(effort.packets)?;
    for (flows, goal) in [(1_000, 10.0), (40_000, 15.0)] {
        let keys = uniform(flows, packets);
        let mut costs = [Vec::new(), Vec::new(), Vec::new()];
        let mut ours = Ours::new();
        let mut keeper = keeper();
        #[cfg(feature = "dpdk")]
        let mut sketch = dpdk.sketch()?;
        for _ in 0..effort.rounds {
            costs[0].push(cost(&mut ours, &keys));
            costs[1].push(cost(&mut keeper, &keys));
            #[cfg(feature = "dpdk")]
            costs[2].push(cost(&mut sketch, &keys));
        }
        for (peer, name) in [(1, "heavykeeper CuckooTopK"), (2, "DPDK rte_member sketch")] {
            let row = Row::new(format!("count a packet of {flows} flows"), name, "ns/packet");
            rows.push(row.figures(&costs[peer], &costs[0]).goal(Goal::AtMost(goal)));
        }
    }
    let (keys, exact) = zipf(packets);
    let mut ours = Ours::new();
    let mut keeper = keeper();
    ours.count(&keys);
    Counter::count(&mut keeper, &keys);
    let of_ours = error(&ours.top(), &exact);
    let name = format!("mean error of the top {TOP} flows' counts, Zipf 1.1");
    let mut row = |name: &str, peer: &str, other: (f64, f64)| {
        let note = format!("of the true top {TOP} ours lists {:.0} %, the peer {:.0} %", of_ours.1, other.1);
        rows.push(Row::new(name, peer, "%").figures(&[other.0], &[of_ours.0]).note(note));
    };
    row(&name, "heavykeeper CuckooTopK", error(&keeper.top(), &exact));
    #[cfg(feature = "dpdk")]
    {
        let mut sketch = dpdk.sketch()?;
        sketch.count(&keys);
        row(&name, "DPDK rte_member sketch", error(&sketch.top(), &exact));
    }
    Ok(rows)
}

/// Of about the memory that ours takes in the processor's cache.
fn keeper() -> CuckooTopK<Key> {
    CuckooTopK::with_seed(TOP, 32 << 10, 4, 0.9, 7)
}

/// Nanoseconds a packet.
fn cost(counter: &mut impl Counter, keys: &[Key]) -> f64 {
    let begun = Instant::now();
    counter.count(keys);
    begun.elapsed().as_nanos() as f64 / keys.len() as f64
}

/// The mean relative error of the counts in percent, and the part of the true top flows that is listed.
fn error(top: &[(Key, u64)], exact: &HashMap<Key, u64>) -> (f64, f64) {
    let mut truth: Vec<_> = exact.iter().collect();
    truth.sort_by_key(|&(key, count)| (core::cmp::Reverse(*count), *key));
    truth.truncate(TOP);
    let listed: HashMap<&Key, u64> = top.iter().map(|(key, count)| (key, *count)).collect();
    let errors = truth.iter().map(|&(key, &count)| {
        let found = listed.get(key).copied().unwrap_or(0);
        found.abs_diff(count) as f64 / count as f64
    });
    let found = truth.iter().filter(|(key, _)| listed.contains_key(key)).count();
    (100.0 * errors.sum::<f64>() / truth.len() as f64, 100.0 * found as f64 / truth.len() as f64)
}

/// A flow's key: addresses and ports that differ in few bits, as those of real flows do.
fn key(flow: u64) -> Key {
    [0x0a00_0001_0a00_0000 | flow >> 16, 0, 0, 0, (flow & 0xffff) << 48 | 0x0050_0006_0000_0005]
}

fn uniform(flows: u64, packets: usize) -> Vec<Key> {
    let mut random = Random(1);
    (0..packets).map(|_| key(random.next() % flows)).collect()
}

/// Packets of 40,000 flows, the n-th of which sends in proportion to 1 / n^1.1, and the true counts.
fn zipf(packets: usize) -> (Vec<Key>, HashMap<Key, u64>) {
    let mut sums = Vec::with_capacity(40_000);
    let mut sum = 0.0;
    for flow in 1..=40_000 {
        sum += f64::from(flow).powf(-1.1);
        sums.push(sum);
    }
    let (mut random, mut exact) = (Random(2), HashMap::with_hasher(RandomState::new()));
    let keys = (0..packets).map(|_| {
        let at = random.next() as f64 / u64::MAX as f64 * sum;
        key(sums.partition_point(|&below| below < at) as u64)
    });
    let keys: Vec<Key> = keys.collect();
    keys.iter().for_each(|key| *exact.entry(*key).or_default() += 1);
    (keys, exact)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
