//! Tests of the heavy-hitter counters against MIMIC's figures, the theory of uniform hashing and exact counts.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// splitmix64: a hash with 64 good bits.
fn hash(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const MILLISECOND: Span = Span::millis(1);

fn counting<const SLOTS: usize>(config: HeavyConfig) -> HeavyHitters<u64, SLOTS> {
    HeavyHitters::new(config, Nanos::ZERO)
}

fn at(milliseconds: u64) -> Nanos {
    Nanos::ZERO + MILLISECOND.times(milliseconds)
}

/// The packets that found no slot, of one packet of each of `flows` flows: bucket overflows of `buckets` × `slots`.
fn overflows<const SLOTS: usize>(buckets: usize, flows: u64, seed: u64) -> u64 {
    let mut heavy = counting::<SLOTS>(HeavyConfig { buckets, ..HeavyConfig::default() });
    (0..flows).for_each(|flow| heavy.count(hash(flow ^ seed << 40), &flow, 64));
    heavy.counters().bucket_overflows
}

/// The expected number of flows without a slot, with a hash that spreads evenly: buckets hold Poisson numbers of flows.
fn expected(buckets: usize, slots: usize, flows: u64) -> f64 {
    let mean = flows as f64 / buckets as f64;
    let mut probability = (-mean).exp();
    let mut beyond = 0.0;
    for held in 0..200 {
        beyond += probability * (f64::from(held) - slots as f64).max(0.0);
        probability *= mean / f64::from(held + 1);
    }
    beyond * buckets as f64
}

/// MIMIC's Fig. 9 and `targets.md` G9: 40,000 flows in a millisecond.
#[test]
fn overflows_are_those_of_the_papers_table() {
    agrees_with_theory(32 << 10, 2, 14.0, overflows::<2>);
    agrees_with_theory(32 << 10, 4, 0.84, overflows::<4>);
    agrees_with_theory(16 << 10, 4, 6.4, overflows::<4>);
    agrees_with_theory(64 << 10, 4, 0.08, overflows::<4>);
    assert!(overflows::<8>(32 << 10, 40_000, 0) <= 3);
}

fn agrees_with_theory(buckets: usize, slots: usize, percent: f64, overflows: fn(usize, u64, u64) -> u64) {
    let expected = expected(buckets, slots, 40_000);
    assert!((expected / 400.0 - percent).abs() <= 0.05, "{buckets} x {slots}: theory {expected}");
    for seed in 0..5 {
        let found = overflows(buckets, 40_000, seed) as f64;
        assert!(
            (found - expected).abs() <= 3.0 * expected.sqrt(),
            "{buckets} x {slots}: {found}, {expected}"
        );
    }
}

/// MIMIC's Fig. 10 (MI-E4): overflows grow from 0.01 % to about 78 %, and slots fill.
#[test]
fn overflows_grow_with_the_flows_as_theory_says() {
    for flows in [10_000_u64, 40_000, 100_000, 200_000, 600_000] {
        let (found, expected) = (overflows::<4>(32 << 10, flows, 7) as f64, expected(32 << 10, 4, flows));
        assert!(
            (found - expected).abs() <= 3.0 * expected.sqrt() + 0.0005 * flows as f64,
            "{flows}: {found}, {expected}"
        );
    }
}

/// MIMIC's Fig. 11 (MI-E5): 40,000 packets of few flows, then of as many flows as packets.
#[test]
fn packets_of_few_flows_overflow_counters_and_of_many_flows_buckets() {
    for (flows, counters) in [(801_u64, 0), (39_957, 0), (10, 40)] {
        let mut heavy = counting::<4>(HeavyConfig::default());
        (0..40_000).for_each(|packet| heavy.count(hash(packet % flows), &(packet % flows), 64));
        let before = heavy.counters();
        assert_eq!(before.counter_overflows, counters, "{flows} flows");
        let used = heavy.slots_used() as u64;
        heavy.advance(at(1));
        assert_eq!(heavy.counters().periodic_updates, used, "{flows} flows");
        assert_eq!(heavy.slots_used(), 0);
    }
}

/// The widest bucket there is: one fills a batch of the update.
#[test]
fn buckets_of_32_slots_are_emptied() {
    let mut heavy = counting::<32>(HeavyConfig { buckets: 2, ..HeavyConfig::default() });
    (0..50).for_each(|flow| heavy.count(hash(flow), &flow, 64));
    let used = heavy.slots_used() as u64;
    heavy.advance(at(1));
    assert_eq!((heavy.counters().periodic_updates, heavy.slots_used()), (used, 0));
}

/// MI-M6: a flow is reported once it passes the threshold, again after it was read, and not twice in between.
#[test]
fn a_flow_is_reported_once_for_each_reading() {
    let mut heavy = counting::<4>(HeavyConfig { threshold: 100, ..HeavyConfig::default() });
    let mut reported = Vec::new();
    for millisecond in 1..=3 {
        (0..40).for_each(|_| heavy.count(hash(1), &1, 100));
        heavy.advance(at(millisecond));
        assert!(!heavy.read(8, &mut reported));
    }
    assert_eq!(reported, [Heavy { key: 1, sent: Tally { packets: 120, bytes: 12_000 } }]);
    (4..=9).for_each(|millisecond| {
        heavy.count(hash(1), &1, 100);
        heavy.advance(at(millisecond));
    });
    heavy.read(8, &mut reported);
    assert_eq!(reported.len(), 2, "one report for six updates");
    assert_eq!(reported[1].sent.packets, 126);
}

/// MI-M7: while one table is read, reports go to the other, and the query reads that one next.
#[test]
fn a_query_reads_both_tables_while_reports_arrive() {
    let mut heavy = counting::<4>(HeavyConfig { threshold: 1, reports: 4, ..HeavyConfig::default() });
    let send = |heavy: &mut HeavyHitters<u64>, flows: core::ops::Range<u64>, millisecond| {
        flows.for_each(|flow| heavy.count(hash(flow), &flow, 64));
        heavy.advance(at(millisecond));
    };
    send(&mut heavy, 0..6, 1);
    let mut reported = Vec::new();
    assert!(heavy.read(2, &mut reported), "six reports, two read");
    send(&mut heavy, 6..8, 2);
    assert_eq!(heavy.counters().reports_full, 1, "the table that is not read had one place left");
    while heavy.read(2, &mut reported) {}
    let mut flows: Vec<_> = reported.iter().map(|heavy| heavy.key).collect();
    flows.sort_unstable();
    assert_eq!(flows.len(), 7, "{flows:?}");
    flows.dedup();
    assert_eq!(flows.len(), 7, "none twice");
}

/// MI-M5: a count covers the running generation and the one before; what is older expires.
#[test]
fn counts_expire_after_two_generations() {
    let mut heavy =
        counting::<4>(HeavyConfig { threshold: 15, window: MILLISECOND.times(10), ..HeavyConfig::default() });
    let mut reported = Vec::new();
    for generation in 0..5 {
        (0..10).for_each(|_| heavy.count(hash(1), &1, 64));
        heavy.advance(at(generation * 10 + 9));
        heavy.read(1, &mut reported);
        assert_eq!(reported.len() as u64, generation.min(4), "generation {generation}");
        assert!(reported.iter().all(|heavy| heavy.sent.packets == 20));
        heavy.advance(at(generation * 10 + 10));
    }
    assert_eq!(heavy.counters().expired.packets, 30);
    heavy.advance(at(1_000));
    heavy.count(hash(1), &1, 64);
    heavy.advance(at(1_001));
    assert_eq!(heavy.counters().expired.packets, 50);
    assert_eq!(heavy.held().packets, 1);
}

/// An attacker with a flow for each packet neither hides a heavy flow nor is reported, though the table is full of them.
#[test]
fn a_flow_for_each_packet_hides_no_heavy_flow() {
    let config = HeavyConfig { flows: 1_024, threshold: 1_000, ..HeavyConfig::default() };
    let mut heavy = counting::<4>(config);
    let mut reported = Vec::new();
    for packet in 0..1_000_000_u64 {
        heavy.count(hash(packet + 1), &packet, 64);
        if packet % 100 == 0 {
            heavy.count(hash(0), &u64::MAX, 64);
        }
        if packet % 40_000 == 0 {
            heavy.advance(at(packet / 40_000));
            heavy.read(64, &mut reported);
        }
    }
    assert!(!reported.is_empty(), "the heavy flow is found");
    assert!(reported.iter().all(|heavy| heavy.key == u64::MAX), "no flow of the attacker is reported");
}

/// A fast flow is found in its fourth millisecond, long before the threshold; one that is fast for three is not, and neither
/// is one that sends as much slowly.
#[test]
fn a_surge_is_found_at_once() {
    let mut heavy = counting::<4>(HeavyConfig { surge: 100, ..HeavyConfig::default() });
    let mut found = Vec::new();
    for ms in 1..=40 {
        (0..166).for_each(|_| heavy.count(hash(1), &1, 1_500));
        (0..if ms <= 3 { 110 } else { 20 }).for_each(|_| heavy.count(hash(2), &2, 1_500));
        (0..90).for_each(|_| heavy.count(hash(3), &3, 1_500));
        heavy.advance(at(ms));
        let mut reported = Vec::new();
        heavy.read(8, &mut reported);
        found.extend(reported.iter().map(|heavy| (heavy.key, ms)));
    }
    assert_eq!(found.first(), Some(&(1, 3)), "three milliseconds of 166 packets are four surges");
    assert!(found.iter().all(|(flow, _)| *flow == 1), "{found:?}");
}

/// An attacker who knows the hash, and puts all flows into one bucket and one set of places, costs memory to none, and
/// a heavy flow of that bucket is still found.
#[test]
fn flows_that_collide_hide_no_heavy_flow_of_their_bucket() {
    let config = HeavyConfig { threshold: 1_000, ..HeavyConfig::default() };
    let mut heavy = counting::<4>(config);
    let mut reported = Vec::new();
    for packet in 0..400_000_u64 {
        // Bits between those that choose the bucket and those that choose the places.
        heavy.count((packet + 1) << 20, &packet, 64);
        if packet % 10 == 0 {
            heavy.count(0, &u64::MAX, 64);
        }
        if packet % 40_000 == 0 {
            heavy.advance(at(packet / 40_000));
            heavy.read(64, &mut reported);
        }
    }
    assert!(reported.iter().any(|heavy| heavy.key == u64::MAX), "the heavy flow is found");
    assert!(reported.iter().all(|heavy| heavy.key == u64::MAX), "no flow of the attacker is reported");
}

proptest! {
    /// The central promise: each packet and byte is in exactly one place, whatever the sizes, flows and times.
    #[test]
    fn no_packet_is_lost_to_the_count(
        buckets in 1..5_u32,
        cap in 1..20_u32,
        flows in 3..6_u32,
        threshold in 0..50_u64,
        steps in proptest::collection::vec((0..60_u64, 0..9_000_u32, 0..3_000_u64, any::<bool>()), 1..400),
    ) {
        let mut heavy = counting::<2>(HeavyConfig {
            buckets: 1 << buckets,
            counter_cap: cap,
            flows: 1 << flows,
            reports: 4,
            threshold,
            surge: threshold / 2,
            update: Span::micros(10),
            window: Span::micros(100),
        });
        let (mut now, mut seen, mut reported) = (Nanos::ZERO, Tally::default(), Vec::new());
        let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
        for (flow, bytes, wait, at_once) in steps {
            if at_once {
                heavy.count_at_once(hash(flow), &flow, Tally { packets: 1, bytes: bytes.into() });
            } else {
                heavy.count(hash(flow), &flow, bytes);
            }
            seen.add(Tally { packets: 1, bytes: bytes.into() });
            *exact.entry(flow).or_default() += 1;
            now += Span::ns(wait);
            heavy.advance(now);
            heavy.read(2, &mut reported);
            let counters = heavy.counters();
            prop_assert_eq!(counters.seen, seen);
            prop_assert_eq!(heavy.held().plus(counters.expired).plus(counters.unlisted), seen);
        }
        for heavy in reported {
            prop_assert!(heavy.sent.packets <= exact[&heavy.key], "no count is above the flow's own");
        }
    }

    /// With room for all flows the counts are exact, and the flows reported are those at or above the threshold.
    #[test]
    fn reports_exactly_the_flows_that_pass_the_threshold(
        packets in proptest::collection::vec(0..40_u64, 1..2_000),
        threshold in 1..100_u64,
    ) {
        let mut heavy = counting::<4>(HeavyConfig { threshold, flows: 4_096, ..HeavyConfig::default() });
        let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
        for flow in packets {
            heavy.count(hash(flow), &flow, 64);
            *exact.entry(flow).or_default() += 1;
        }
        heavy.advance(at(1));
        let mut reported = Vec::new();
        prop_assert!(!heavy.read(1_000, &mut reported));
        let reported: BTreeMap<u64, u64> = reported.iter().map(|heavy| (heavy.key, heavy.sent.packets)).collect();
        exact.retain(|_, packets| *packets >= threshold);
        prop_assert_eq!(reported, exact);
    }
}

#[test]
fn memory_is_known_before_it_is_taken() {
    for (buckets, flows, reports) in [(2, 8, 0), (128, 1_024, 7), (32 << 10, 256 << 10, 1_024)] {
        let config = HeavyConfig { buckets, flows, reports, ..HeavyConfig::default() };
        let said = HeavyHitters::<[u64; 5]>::bytes_of(&config);
        assert_eq!(HeavyHitters::<[u64; 5]>::new(config, Nanos::ZERO).bytes(), said);
    }
}
