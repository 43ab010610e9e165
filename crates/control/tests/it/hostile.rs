//! What tenants can do to the choice of flows: hide among others, hop, flood with flows, and have an innocent flow pressed.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_control::backpressure::{Backpressure, Order, Settings, Target, Work};
use plimsoll_queues::{HeavyConfig, HeavyHitters};
use plimsoll_units::{BitRate, Nanos, Span};

/// splitmix64: a keyed hash of a flow's number, and this file's random numbers.
fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Counters and decisions as the daemon joins them, with a core of 600 packets a millisecond.
struct Gateway {
    hitters: HeavyHitters<u64>,
    backpressure: Backpressure<u64>,
    ms: u64,
    /// Packets of this millisecond.
    came: u64,
    /// All flows that were ever reported, with the most that was counted of them, and those ever pressed.
    reported: BTreeMap<u64, u64>,
    pressed: BTreeSet<u64>,
    most: usize,
}

const CORE: u64 = 600;
/// `heavy: 10kpps`: as many in two seconds, or 100 a millisecond.
const HEAVY: u64 = 10_000;

impl Gateway {
    fn new(settings: Settings) -> Self {
        let config = HeavyConfig { threshold: 2 * HEAVY, surge: HEAVY / 100, ..HeavyConfig::default() };
        Self {
            hitters: HeavyHitters::new(config, Nanos::ZERO),
            backpressure: Backpressure::new(settings, Nanos::ZERO),
            ms: 0,
            came: 0,
            reported: BTreeMap::new(),
            pressed: BTreeSet::new(),
            most: 0,
        }
    }

    fn send(&mut self, flow: u64, packets: u64) {
        (0..packets).for_each(|_| self.hitters.count(mix(flow ^ SEED), &flow, 1_250));
        self.came += packets;
    }

    /// What a flow sends in a millisecond that wants to send this: a pressed one keeps to its target.
    fn allowed(&self, flow: u64, wants: u64) -> u64 {
        let pressed = self.backpressure.pressed().find(|pressed| pressed.key == flow);
        pressed.map_or(wants, |pressed| wants.min(pressed.target.get() / 10_000_000))
    }

    fn end_millisecond(&mut self) {
        self.ms += 1;
        let now = Nanos::ZERO + Span::millis(self.ms);
        self.hitters.advance(now);
        let mut reported = Vec::new();
        self.hitters.read(256, &mut reported);
        for heavy in &reported {
            let most = self.reported.entry(heavy.key).or_default();
            *most = heavy.sent.packets.max(*most);
        }
        let busy = Span::ns((self.came * 1_000_000 / CORE).min(1_000_000));
        let work = Work { busy, over: Span::millis(1), packets: self.came.min(CORE) };
        self.came = 0;
        let orders = self.backpressure.poll(work, &reported, |_| None, now);
        self.pressed.extend(orders.iter().filter_map(|order| match order {
            Order::Start(pressed) => Some(pressed.key),
            _ => None,
        }));
        self.most = self.most.max(self.backpressure.pressed().len());
    }
}

/// The daemon draws it at its start.
const SEED: u64 = 0x5eed;
const ELEPHANT: u64 = u64::MAX;

fn settings() -> Settings {
    Settings { target: Target::Auto(BitRate::mbps(10)), ..Settings::default() }
}

/// Three bursts a millisecond of 16,384 innocent flows: most of 5 to 84 packets at once, and one in a hundred of 500 in five
/// milliseconds, which is ten times the rate of a heavy hitter for as long. Adds the flows to those that were seen, or `bold`.
fn mice(gateway: &mut Gateway, left: &mut BTreeMap<u64, u64>, [seen, bold]: [&mut BTreeSet<u64>; 2]) {
    let started = mix(gateway.ms);
    for n in 0..3 {
        let random = mix(started ^ n);
        let flow = random >> 32 & 0x3fff;
        let burst = if random.is_multiple_of(100) { 500 } else { 5 + random % 80 };
        left.insert(flow, burst);
        seen.insert(flow);
        if burst == 500 {
            bold.insert(flow);
        }
    }
    let flows: Vec<u64> = left.keys().copied().collect();
    for flow in flows {
        let packets = left.get_mut(&flow).map_or(0, |left| {
            let now = (*left).min(100);
            *left -= now;
            now
        });
        gateway.send(flow, gateway.allowed(flow, packets));
    }
    left.retain(|_, left| *left > 0);
}

/// The rate of false positives, as `docs/backpressure.md` states it: innocent flows that are taken for heavy hitters, and that
/// are pressed, of all; while an elephant overloads the core, while a flood does of which each packet is a flow of its own, and
/// while both do.
#[test]
fn hardly_an_innocent_flow_is_pressed() {
    for (name, elephant, flood) in [("an elephant", 450, 0), ("a flood of flows", 0, 500), ("both", 300, 300)]
    {
        let (mut gateway, mut left) = (Gateway::new(settings()), BTreeMap::new());
        let [mut seen, mut bold] = [BTreeSet::new(), BTreeSet::new()];
        let mut next = 1 << 40;
        for _ in 0..5_000 {
            mice(&mut gateway, &mut left, [&mut seen, &mut bold]);
            (0..flood).for_each(|n| gateway.send(next + n, 1));
            next += flood;
            gateway.send(ELEPHANT, gateway.allowed(ELEPHANT, elephant));
            gateway.end_millisecond();
        }
        let innocent = |flow: &&u64| seen.contains(flow);
        let reported = gateway.reported.keys().filter(innocent).count();
        let shy = gateway.reported.keys().filter(innocent).filter(|flow| !bold.contains(flow)).count();
        let pressed = gateway.pressed.iter().filter(innocent).count();
        println!(
            "{name}: of {} innocent flows, {} with a long burst, {reported} were heavy hitters for a moment, {shy} without a \
             long burst, and {pressed} were pressed",
            seen.len(),
            bold.len()
        );
        assert_eq!(gateway.pressed.contains(&ELEPHANT), elephant > 0, "{name}");
        assert_eq!(shy, 0, "{name}: only a flow that sends like a heavy hitter is taken for one");
        assert!(pressed * 400 <= seen.len(), "{name}: {pressed} of {}", seen.len());
        assert!(
            gateway.reported.keys().all(|flow| *flow < 1 << 40 || *flow == ELEPHANT),
            "none of the flood is heavy"
        );
        assert!(gateway.most <= Settings::default().flows);
    }
}

/// A heavy hitter that takes another 5-tuple each 50 ms, beside small flows and one that has sent steadily for long: it is found
/// anew each time, and the flows that it left are forgotten.
#[test]
fn a_flow_that_hops_is_found_each_time() {
    let mut gateway = Gateway::new(settings());
    let (mut over, hops, mut small) = (0, 200, 1 << 40);
    for hop in 0..hops {
        for _ in 0..50 {
            (0..200).for_each(|n| gateway.send(small + n, 1));
            small += 200;
            let steady = gateway.allowed(1, 100);
            gateway.send(1, steady);
            let sends = gateway.allowed(1_000 + hop, 450);
            over += u64::from(200 + steady + sends >= CORE * 4 / 5);
            gateway.send(1_000 + hop, sends);
            gateway.end_millisecond();
        }
    }
    let found = (0..hops).filter(|hop| gateway.pressed.contains(&(1_000 + hop))).count();
    let all = 50 * hops;
    println!("{found} of {hops} hops were pressed; the core was above its threshold in {over} of {all} ms");
    assert_eq!(found, hops as usize);
    assert!(gateway.most <= 64, "{} at once: each lapses 3 s after it was left", gateway.most);
    // Found within some five milliseconds of fifty.
    assert!(over <= 10 * hops, "{over} ms");
}

/// A hundred equal heavy hitters, none of which has a tenth of the packets: the core is below its threshold soon, and stays.
#[test]
fn a_hundred_heavy_hitters_are_pressed_together() {
    let mut gateway = Gateway::new(settings());
    let mut below = 0;
    for ms in 0..4_000 {
        let mut sent = 0;
        for flow in 0..100 {
            // 15 packets a millisecond each: heavy hitters once they have sent for two seconds.
            let sends = gateway.allowed(flow, 15);
            sent += sends;
            gateway.send(flow, sends);
        }
        gateway.end_millisecond();
        below += u64::from(ms >= 2_500 && sent < CORE * 4 / 5);
    }
    println!(
        "{} of 100 are pressed, {below} of the last 1,500 ms are below the threshold",
        gateway.pressed.len()
    );
    assert_eq!(gateway.pressed.len(), 100);
    assert!(below > 1_400, "{below}");
}
