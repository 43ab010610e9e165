//! The engine's benches: beside `rte_sched`, throttled, behind one limit, under Figure 1, and by policy.
//!
//! Why: throttled flows separate the designs, so every figure has a throttled form.
//! From: Loom §2.1 and §7; `rte_sched`'s own layout.
//! Not here: how a run goes (`engine`, `dpdk`).
//! Invariant: the sides of a row take turns, round by round, in one process and on one core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use plimsoll_policy::{Codel, FlowOrder, Form, Placement};
use plimsoll_record::{CHUNK, End, Limits, Recorder, Sink};
use plimsoll_units::Bytes;

use crate::engine::{Engine, Refill, inside, spread};
use crate::hold::{Moved, QUEUES_PER_TENANT};
use crate::policies;
use crate::report::{Goal, Row};

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of which the median counts.
    pub rounds: u32,
    /// Packets of each side in a round.
    pub packets: u64,
}

/// Packets a second beside `rte_sched`, for 64, 1,024 and 4,096 tenants of four queues.
pub fn beside_rte_sched(effort: Effort) -> Result<Vec<Row>> {
    #[cfg(feature = "dpdk")]
    let mut dpdk = crate::dpdk::start()?;
    let mut rows = Vec::new();
    for (tenants, goal) in [(64, 1.2), (1_024, 1.2), (4_096, 2.0)] {
        let program = policies::equal_tenants(tenants);
        let places = spread(&program, QUEUES_PER_TENANT);
        let mut ours = Engine::new(&program, &places, inside(places.len()), Refill::Random)?;
        #[cfg(feature = "dpdk")]
        let mut peer = dpdk.sched(tenants, inside(places.len()))?;
        let (mut peers, mut us) = (Vec::new(), Vec::new());
        ours.run(effort.packets / 4);
        for _ in 0..effort.rounds {
            #[cfg(feature = "dpdk")]
            peers.push(honest(peer.run(effort.packets)).rate());
            us.push(honest(ours.run(effort.packets)).rate());
        }
        let name = format!("{tenants} tenants, 4 queues each");
        let row =
            Row::new(name, "DPDK rte_sched", "packets/s").figures(&peers, &us).goal(Goal::RatioAtLeast(goal));
        let (pairs, _) = ours.pairs();
        rows.push(row.note(format!("{pairs:.2} pairs a packet")));
        peers.clear();
    }
    Ok(rows)
}

/// The cost of a packet with every tenant at its `max`, and how it grows with the number of limits.
pub fn throttled(effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (queues, title) in [(1, "limited flows"), (QUEUES_PER_TENANT, "limited tenants, 4 queues each")] {
        let sizes = [64, 1_024, 4_096, 10_000];
        let mut engines = Vec::new();
        for tenants in sizes {
            let program = policies::throttled_tenants(tenants);
            let places = spread(&program, queues);
            engines.push(backlogged(&program, &places)?);
        }
        let costs = take_turns(&mut engines, effort);
        for (index, tenants) in sizes.into_iter().enumerate() {
            let row = Row::new(format!("{tenants} {title}"), "ours at 64", "ns/packet");
            let row = row.figures(&costs[0], &costs[index]).note(throttled_note(&engines[index]));
            rows.push(if tenants == 10_000 && queues == 1 { row.goal(Goal::RatioAtMost(2.0)) } else { row });
        }
    }
    Ok(rows)
}

/// The cost of a packet for 10 and for 10,000 flow queues behind one limit that binds.
pub fn one_limit(effort: Effort) -> Result<Vec<Row>> {
    let program = policies::one_limit();
    let mut engines =
        vec![backlogged(&program, &spread(&program, 10))?, backlogged(&program, &spread(&program, 10_000))?];
    let costs = take_turns(&mut engines, effort);
    let row = Row::new("10,000 flow queues behind one limit", "ours with 10", "ns/packet");
    Ok(vec![row.figures(&costs[0], &costs[1]).goal(Goal::RatioAtMost(2.0)).note(throttled_note(&engines[1]))])
}

/// The cost of a packet by the order among a class's flow queues, `flows` of the policy. No packet waits for as long as CoDel's
/// target, so that nothing is marked or lost.
pub fn flow_orders(effort: Effort) -> Result<Vec<Row>> {
    let orders = [("fifo", FlowOrder::Fifo), ("drr", FlowOrder::Drr), ("fq", FlowOrder::Fq(Codel::DEFAULT))];
    let mut rows = Vec::new();
    for (tenants, each) in [(64, 4), (64, 64), (1_024, 4)] {
        let make = |order| {
            let program = policies::ordered_tenants(tenants, order);
            let places = spread(&program, each);
            Engine::new(&program, &places, inside(places.len()), Refill::Random)
        };
        let mut engines = orders.into_iter().map(|(_, order)| make(order)).collect::<Result<Vec<_>>>()?;
        let costs = take_turns(&mut engines, effort);
        for ((name, _), ours) in orders.iter().zip(&costs).skip(1) {
            let row = Row::new(
                format!("{tenants} tenants, {each} queues each, `flows: {name}`"),
                "`flows: fifo`",
                "ns/packet",
            );
            rows.push(row.figures(&costs[0], ours));
        }
    }
    Ok(rows)
}

/// The cost of recording on the engine's thread: chunks are thrown away as soon as they are full.
pub fn recorded(effort: Effort) -> Result<Vec<Row>> {
    let program = policies::equal_tenants(1_024);
    let places = spread(&program, QUEUES_PER_TENANT);
    let bin = Bin::default();
    let recorder = Recorder::new(Box::new(bin.clone()), Limits { bytes: Bytes::new(u64::MAX) });
    let make = |recorder| Engine::recorded(&program, &places, inside(places.len()), Refill::Random, recorder);
    let mut engines = vec![make(None)?, make(Some(recorder))?];
    let costs = take_turns(&mut engines, effort);
    let each = bin.bytes.load(Ordering::Relaxed) as f64 / engines[1].served() as f64;
    let row = Row::new("1,024 tenants, 4 queues each, recorded", "ours, not recorded", "ns/packet");
    Ok(vec![row.figures(&costs[0], &costs[1]).note(format!("{each:.1} B a packet"))])
}

/// Takes chunks like a disk that is never late.
#[derive(Clone, Debug, Default)]
struct Bin {
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
    bytes: Arc<AtomicU64>,
}

impl Sink for Bin {
    fn empty(&mut self) -> Option<Vec<u8>> {
        let spare = self.spare.lock().ok()?.pop();
        Some(spare.unwrap_or_else(|| Vec::with_capacity(CHUNK)))
    }

    fn full(&mut self, mut chunk: Vec<u8>) {
        self.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        chunk.clear();
        if let Ok(mut spare) = self.spare.lock() {
            spare.push(chunk);
        }
    }

    fn last(&mut self, chunk: Vec<u8>, _: End) {
        self.full(chunk);
    }
}

/// The cost of a packet with ever more classes below one `rate_share`, each with packets at all times.
pub fn classes(effort: Effort) -> Result<Vec<Row>> {
    const SIZES: [u32; 6] = [10, 100, 1_000, 10_000, 100_000, 1_000_000];
    const RING: u16 = 4;
    /// Packets that the link carries between two calls of the engine, and half as many: with fewer it would be idle.
    const ENOUGH: u32 = 48;
    let mut rows = Vec::new();
    // With rates that add up to twice the link, no class waits for its rate. With 70 %, every class does, either with
    // packets in store, or with one packet, so that the class comes and goes with it.
    for (title, percent, each) in [
        ("classes that share the link", 200, 2),
        ("throttled classes", policies::THROTTLED_PERCENT, 2),
        ("throttled classes that come and go", policies::THROTTLED_PERCENT, 1),
    ] {
        let mut engines = Vec::new();
        for classes in SIZES {
            let program = policies::paced_classes(Form::Grouped, classes, percent);
            let from = std::time::Instant::now();
            let places = spread(&program, 1);
            let each = if each > 1 { each.max((ENOUGH / classes).min(RING.into())) } else { each };
            let mut engine = Engine::with_ring(&program, &places, classes * each, Refill::Same, RING)?;
            let built = from.elapsed();
            engine.run(u64::from(classes) * 3); // until every class has left its first place in the order
            engines.push((engine, built));
        }
        let mut costs = vec![Vec::new(); engines.len()];
        for _ in 0..effort.rounds {
            for ((engine, _), costs) in engines.iter_mut().zip(&mut costs) {
                costs.push(honest(engine.run(effort.packets)).cost());
            }
        }
        let thousand = SIZES.iter().position(|&classes| classes == 1_000).unwrap_or_default();
        for (index, classes) in SIZES.into_iter().enumerate() {
            let (engine, built) = &engines[index];
            let row = Row::new(format!("{classes} {title}"), "ours with 1000", "ns/packet");
            let note =
                format!("{:.1} % of the link, built in {:.2} s", engine.used_percent(), built.as_secs_f64());
            let row = row.figures(&costs[thousand], &costs[index]).note(note);
            rows.push(match classes {
                100_000 => row.goal(Goal::RatioAtMost(2.0)),
                1_000_000 => row.goal(Goal::RatioAtMost(1.8)),
                _ => row,
            });
        }
    }
    Ok(rows)
}

/// Packets a second under Loom's Figure 1 with 10,000 flows.
pub fn figure1(effort: Effort) -> Result<Vec<Row>> {
    const FLOWS: u32 = 10_000;
    let program = policies::figure1();
    let places = policies::flows(&program, FLOWS);
    let mut ours = Engine::new(&program, &places, 2 * FLOWS, Refill::Random)?;
    ours.run(effort.packets / 4);
    let rates: Vec<f64> = (0..effort.rounds).map(|_| honest(ours.run(effort.packets)).rate()).collect();
    // 100 Gb/s of 1500 B frames: 8.3 million a second.
    let wire = [policies::LINK.get() as f64 / 8.0 / f64::from(crate::hold::FRAME)];
    let (pairs, most) = ours.pairs();
    let row = Row::new("Figure 1 of Loom, 10,000 flows", "100 Gb/s of 1500 B", "packets/s");
    let note = format!("{pairs:.2} pairs a packet, at most {most}");
    Ok(vec![row.figures(&wire, &rates).goal(Goal::AtLeast(12e6)).note(note)])
}

/// Time of a packet under each of [`policies::costed`], beside the estimate of `plimsoll check`: the least of the rounds, as other
/// work on the machine only adds to it.
pub fn costs(effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for policy in policies::costed() {
        let program = &policy.program;
        let places = policies::flows(program, policy.flows);
        let mut engine = if policy.binds {
            backlogged(program, &places)?
        } else {
            Engine::new(program, &places, policy.inside, Refill::Random)?
        };
        engine.run(effort.packets / 4);
        let rounds = (0..effort.rounds).map(|_| honest(engine.run(effort.packets)).cost());
        let least = rounds.fold(f64::INFINITY, f64::min);
        let row = Row::new(policy.name, "the estimate of `check`", "ns/packet");
        rows.push(row.figures(&[estimate(program)], &[least]).goal(Goal::RatioWithin(1.5)));
    }
    Ok(rows)
}

/// Nanoseconds of a packet of the most expensive class, as `plimsoll check` estimates them.
fn estimate(program: &plimsoll_policy::Program) -> f64 {
    plimsoll_policy::cost(program).iter().map(|cost| cost.packet.as_u64()).max().unwrap_or(0) as f64
}

/// An engine whose every flow queue always has packets.
fn backlogged(program: &plimsoll_policy::Program, places: &[Placement]) -> Result<Engine> {
    let queues = u32::try_from(places.len())?;
    let each = (1_024 / queues).clamp(4, 32);
    Engine::new(program, places, queues * each, Refill::Same)
}

/// Nanoseconds for each packet, round by round, the engines taking turns.
fn take_turns(engines: &mut [Engine], effort: Effort) -> Vec<Vec<f64>> {
    let mut costs = vec![Vec::new(); engines.len()];
    for engine in &mut *engines {
        engine.run(effort.packets / 4); // past the bursts
    }
    for _ in 0..effort.rounds {
        for (engine, costs) in engines.iter_mut().zip(&mut costs) {
            costs.push(honest(engine.run(effort.packets)).cost());
        }
    }
    costs
}

/// The note of a throttled row: without limits that hold, it would measure something else.
fn throttled_note(engine: &Engine) -> String {
    let (pairs, most) = engine.pairs();
    format!("{:.1} % of the link, {pairs:.2} pairs a packet, at most {most}", engine.used_percent())
}

/// A run that lost more than one packet in a thousand measures refusals.
fn honest(moved: Moved) -> Moved {
    assert!(
        moved.lost * 1_000 <= moved.packets,
        "{} of {} found their queue full",
        moved.lost,
        moved.packets
    );
    moved
}
