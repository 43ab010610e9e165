//! Properties that hold for every policy, every flow and every timing.

use std::collections::BTreeMap;

use plimsoll_nic::{Config, Descriptor, QueueId};
use plimsoll_policy::{Codel, Form, LimitId, NodeId, Program};
use plimsoll_units::{BitRate, Nanos, Span};
use proptest::prelude::*;

use crate::cases::{Case, Event, Flow, cases};
use crate::kit::{Departure, MS, World, mbps, placement};

/// A case on its way through the engine.
struct Run {
    case: Case,
    world: World,
    /// Addresses by queue, in the order of posting.
    posted: BTreeMap<u32, Vec<u64>>,
    wire_free: u128,
}

impl Run {
    fn new(case: &Case, config: &Config) -> Self {
        let program = case.program();
        let mut world = World::new(&program, config);
        for flow in &case.flows {
            world.open(case.class_of(flow), &case.limits_of(&program, flow));
        }
        Self { case: case.clone(), world, posted: BTreeMap::new(), wire_free: 0 }
    }

    fn apply(&mut self, event: &Event) {
        let flows = self.case.flows.len();
        match *event {
            Event::Post { flow, count, len, large, tag } => {
                let queue = QueueId((flow % flows) as u32);
                for _ in 0..count {
                    if let Ok(addr) = self.world.post(queue, Case::descriptor(len, large, tag)) {
                        self.posted.entry(queue.0).or_default().push(addr);
                    }
                }
                self.world.bell(queue);
            }
            Event::Weight { node, weight } => {
                let node = NodeId((node % self.case.seeds.len()) as u32);
                self.world.notes(|doorbells| doorbells.set_weight(node, weight));
            }
            Event::Rate { limit, mbps: rate } => {
                let limits = self.world.nic.program().limits.len();
                if limits > 0 {
                    let limit = LimitId((limit % limits) as u32);
                    self.world.notes(|doorbells| doorbells.set_rate(limit, mbps(rate)));
                }
            }
            Event::ClassRate { node, mbps: rate } => {
                let node = NodeId((node % self.case.seeds.len()) as u32);
                if self.world.nic.program().node(node).rate.is_some() {
                    self.world.notes(|doorbells| doorbells.set_class_rate(node, mbps(rate)));
                }
            }
            Event::Install { seed } => self.install(seed),
        }
    }

    /// Another tree, with the same limits.
    fn install(&mut self, seed: u64) {
        self.case = self.case.variant(seed);
        let (case, program) = (&self.case, self.case.program());
        let mut place = |queue: QueueId| {
            let flow: &Flow = &case.flows[queue.0 as usize];
            placement(&program, case.class_of(flow), &case.limits_of(&program, flow))
        };
        self.world.nic.install(&program, &mut place, Nanos::new(self.world.now));
    }

    fn poll(&mut self) -> Result<(), TestCaseError> {
        let before = self.world.sent.len();
        self.world.poll();
        let link = u128::from(self.world.nic.program().link.get());
        for sent in &self.world.sent[before..] {
            let start = u128::from(sent.at) * link;
            prop_assert!(start + link > self.wire_free, "at {}: the link was busy", sent.at);
            self.wire_free = self.wire_free.max(start) + u128::from(sent.charge) * 8_000_000_000;
        }
        let free = self.wire_free <= u128::from(self.world.now) * link;
        if free && self.world.sent.len() == before {
            self.no_free_bundle_waits()?;
        }
        Ok(())
    }

    /// The link is idle: a flow queue with something to send waits for a limit, or for a rate of its own.
    fn no_free_bundle_waits(&self) -> Result<(), TestCaseError> {
        let mut completed: BTreeMap<u32, usize> = BTreeMap::new();
        for (queue, _) in &self.world.completed {
            *completed.entry(queue.0).or_default() += 1;
        }
        let mut waits = false;
        for (queue, posted) in &self.posted {
            let backlogged = posted.len() > completed.get(queue).copied().unwrap_or(0);
            waits |= backlogged;
            let flow = &self.case.flows[*queue as usize];
            let program = self.world.nic.program();
            let class = self.case.class_of(flow);
            let limits = placement(program, class, &self.case.limits_of(program, flow)).limits;
            let paced = program.path(class).any(|id| program.node(id).rate.is_some());
            prop_assert!(
                !backlogged || !limits.is_empty() || paced,
                "at {}: queue {queue} waits for nothing",
                self.world.now
            );
        }
        let wakes = self.world.nic.poll_timeout().map(Nanos::as_u64);
        prop_assert_eq!(wakes.is_some(), waits);
        prop_assert!(wakes.is_none_or(|at| at > self.world.now));
        Ok(())
    }

    fn run(&mut self, until: u64) -> Result<(), TestCaseError> {
        while let Some(due) = self.world.nic.poll_timeout().map(Nanos::as_u64).filter(|&due| due < until) {
            self.world.now = self.world.now.max(due);
            self.poll()?;
        }
        self.world.now = until;
        Ok(())
    }

    fn whole(case: &Case) -> Result<Self, TestCaseError> {
        Self::whole_with(case, &case.config())
    }

    fn whole_with(case: &Case, config: &Config) -> Result<Self, TestCaseError> {
        let mut run = Self::new(case, config);
        for (gap, event) in &case.events {
            run.run(run.world.now + gap)?;
            run.apply(event);
            run.poll()?;
        }
        run.run(u64::MAX >> 2)?;
        Ok(run)
    }

    fn all_completed_in_order(&self) -> Result<(), TestCaseError> {
        let mut completed: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (queue, addr) in &self.world.completed {
            completed.entry(queue.0).or_default().push(*addr);
        }
        prop_assert_eq!(&completed, &self.posted);
        let mut last: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for sent in &self.world.sent {
            let place = (sent.pull.addr, sent.pull.offset);
            let before = last.insert(sent.pull.queue.0, place);
            prop_assert!(before.is_none_or(|before| before < place), "{before:?}, then {place:?}");
        }
        Ok(())
    }

    fn everything_left_once_and_in_order(&self) -> Result<(), TestCaseError> {
        self.all_completed_in_order()?;
        let mut next: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for sent in &self.world.sent {
            let pull = &sent.pull;
            let (addr, offset) = next.get(&pull.queue.0).copied().unwrap_or((pull.addr, 0));
            prop_assert_eq!((pull.addr, pull.offset), (addr, offset));
            let list = &self.posted[&pull.queue.0];
            let at = list.iter().position(|&addr| addr == pull.addr).expect("it was posted");
            let after = list.get(at + 1).copied().unwrap_or(0);
            let payload = pull.len - u32::from(pull.header);
            next.insert(pull.queue.0, if pull.last { (after, 0) } else { (pull.addr, offset + payload) });
        }
        Ok(())
    }

    fn the_books_balance(&self) -> Result<(), TestCaseError> {
        let stats = self.world.nic.stats();
        prop_assert_eq!((stats.held, stats.bad_doorbells), (0, 0));
        prop_assert!(stats.most_pairs <= 3, "{stats:?}");
        let dropped: u64 = self.world.nic.all_class_counters().iter().map(|counters| counters.dropped).sum();
        prop_assert!(stats.pairs <= 3 * (stats.pulls + dropped), "{stats:?}");
        prop_assert_eq!(stats.pulls, self.world.sent.len() as u64);
        for node in 0..self.world.nic.program().nodes.len() {
            let counters = self.world.nic.class_counters(NodeId(node as u32));
            prop_assert_eq!((counters.backlog_packets, counters.backlog_bytes), (0, 0));
        }
        for limit in 0..self.world.nic.program().limits.len() {
            prop_assert_eq!(self.world.nic.limit_counters(LimitId(limit as u32)).waiting, 0);
        }
        Ok(())
    }
}

/// In any window: at most `slack` bytes more than the rate carries.
fn within_rate(sent: &[&Departure], rate: BitRate, slack: u64) -> Result<(), TestCaseError> {
    for (n, first) in sent.iter().enumerate() {
        let mut bytes = 0;
        for last in &sent[n..] {
            bytes += last.charge;
            // One byte for the moment's rounding to a nanosecond.
            let allowed = slack + rate.bytes_in(Nanos::new(last.at) - Nanos::new(first.at)).as_u64() + 1;
            prop_assert!(bytes <= allowed, "{bytes} B in {}..={}, allowed {allowed}", first.at, last.at);
        }
    }
    Ok(())
}

fn stays_within_limits(case: &Case) -> Result<(), TestCaseError> {
    let run = Run::whole(case)?;
    let program = case.program();
    let frame = program.max_frame.as_u64() + program.overhead.as_u64();
    for (id, limit) in (0..).map(LimitId).zip(&program.limits) {
        let queues = behind(case, &program, id);
        let behind_it = |sent: &&Departure| queues.contains_key(&sent.pull.queue.0);
        let sent: Vec<&Departure> = run.world.sent.iter().filter(behind_it).collect();
        let bundles: std::collections::HashSet<_> = queues.values().collect();
        let burst = limit.burst.as_u64().max(frame);
        let largest = case.pull.min(burst / 2).max(frame);
        within_rate(&sent, limit.rate, burst + bundles.len() as u64 * largest)?;
    }
    Ok(())
}

/// The limits that each flow queue passes: its bundle's placement.
fn behind(case: &Case, program: &Program, limit: LimitId) -> BTreeMap<u32, plimsoll_policy::Placement> {
    let placed =
        case.flows.iter().map(|flow| placement(program, case.class_of(flow), &case.limits_of(program, flow)));
    (0..).zip(placed).filter(|(_, placement)| placement.limits.contains(&limit)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Completion exactly once, order within a flow queue, no idle link, three pairs a pull at most, balanced counters; with
    /// weights and rates that change in line, and reloads.
    #[test]
    fn everything_leaves_once_in_order_without_idling(case in cases(14, 60, true), grouped: bool, seeds in proptest::collection::vec((0_usize..60, 0_u64..1_000), 0..4)) {
        let mut case = case;
        case.form = if grouped { Form::Grouped } else { Form::Exact };
        for (at, seed) in seeds {
            let at = at.min(case.events.len());
            case.events.insert(at, (1_000, Event::Install { seed }));
        }
        let run = Run::whole(&case)?;
        run.everything_left_once_and_in_order()?;
        run.the_books_balance()?;
    }

    /// With short queues: completion exactly once, no idle link, balanced counters; what is dropped takes no time.
    #[test]
    fn short_queues_lose_nothing_else(case in cases(14, 60, true), target in 1_u64..200, interval in 1_u64..2_000, seeds in proptest::collection::vec((0_usize..60, 0_u64..1_000), 0..3)) {
        let mut case = case;
        case.codel = Some(Codel { target: Span::micros(target), interval: Span::micros(interval) });
        for (at, seed) in seeds {
            let at = at.min(case.events.len());
            case.events.insert(at, (1_000, Event::Install { seed }));
        }
        let run = Run::whole(&case)?;
        run.all_completed_in_order()?;
        run.the_books_balance()?;
    }

    /// With short queues no limit is exceeded, whatever is dropped before it.
    #[test]
    fn short_queues_exceed_no_limit(case in cases(14, 60, false), target in 1_u64..200, interval in 1_u64..2_000) {
        let mut case = case;
        case.codel = Some(Codel { target: Span::micros(target), interval: Span::micros(interval) });
        stays_within_limits(&case)?;
    }

    /// Same inputs, same outputs, to the last bit.
    #[test]
    fn the_same_run_twice_is_the_same(case in cases(14, 40, true)) {
        let (one, two) = (Run::whole(&case)?, Run::whole(&case)?);
        prop_assert_eq!(one.world.sent, two.world.sent);
        prop_assert_eq!(one.world.completed, two.world.completed);
    }

    /// An engine with a record for every flow queue and one with a record for every descriptor send the same.
    #[test]
    fn scarce_records_change_nothing(case in cases(14, 60, true), descriptors in 16_u32..33) {
        let config = |queues| Config { queues, descriptors, ..case.config() };
        let (ample, scarce) = (Run::whole_with(&case, &config(descriptors))?, Run::whole_with(&case, &config(64))?);
        prop_assert_eq!(&ample.world.sent, &scarce.world.sent);
        prop_assert_eq!(&ample.world.completed, &scarce.world.completed);
        let counters = |run: &Run| run.world.nic.all_class_counters();
        prop_assert_eq!(counters(&ample), counters(&scarce));
    }

    /// Bytes behind each limit in any window <= burst + rate x window + one largest pull for each bundle; a pull is no
    /// longer than half the burst, or a frame.
    #[test]
    fn no_limit_is_exceeded(case in cases(14, 60, false)) {
        stays_within_limits(&case)?;
    }

    /// The bound of a limit holds across reloads, if the limit stays.
    #[test]
    fn no_limit_is_exceeded_over_reloads(case in cases(10, 50, false), seeds in proptest::collection::vec((0_usize..50, 0_u64..1_000), 1..4)) {
        let mut case = case;
        for (at, seed) in seeds {
            let at = at.min(case.events.len());
            case.events.insert(at, (1_000, Event::Install { seed }));
        }
        let run = Run::whole(&case)?;
        let program = case.program();
        let largest = case.pull.max(program.max_frame.as_u64() + program.overhead.as_u64());
        for n in 0..case.limits.len() {
            let (rate, burst) = case.limits[n];
            let queues: Vec<u32> = (0..).zip(&case.flows).filter(|(_, flow)| flow.limits >> n & 1 == 1).map(|(queue, _)| queue).collect();
            let sent: Vec<&Departure> = run.world.sent.iter().filter(|sent| queues.contains(&sent.pull.queue.0)).collect();
            // A bundle is a class with limits: never more of them than flow queues.
            let slack = burst.max(largest) + queues.len() as u64 * largest;
            within_rate(&sent, mbps(rate), slack)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// A backlogged class gets its minimum, but for a few packets; in every node of the tree.
    #[test]
    fn backlogged_classes_get_their_minimum(case in cases(14, 6, false), lens in proptest::collection::vec(200_u32..=1_500, 14)) {
        let mut case = case;
        for (_, burst) in case.seeds.iter_mut().filter_map(|seed| seed.max.as_mut()) {
            *burst += 30_000; // a slot that comes while others are on the wire must not be lost
        }
        let program = case.program();
        let mut world = World::new(&program, &case.config());
        let leaves = case.leaves();
        for (&leaf, &len) in leaves.iter().zip(lens.iter().cycle()) {
            for _ in 0..1 + leaf % 3 {
                world.greedy_with(NodeId(leaf as u32), &[], Descriptor { len, ..Descriptor::default() });
            }
        }
        let (from, until) = (2 * MS, 12 * MS);
        world.run(until);
        let largest = case.pull.max(program.max_frame.as_u64() + program.overhead.as_u64());
        for (id, node) in (0..).map(NodeId).zip(&program.nodes) {
            let Some(min) = node.min else { continue };
            let held = |at: NodeId| at != id && (program.node(at).max.is_some() || program.node(at).rate.is_some()) && program.path(at).any(|above| above == id);
            if (0..program.nodes.len() as u32).any(|at| held(NodeId(at))) {
                continue; // a limit below may keep it from using its minimum
            }
            // A rate is strict: it may be less than what the classes below it are promised.
            if program.path(id).any(|at| program.node(at).rate.is_some()) {
                continue;
            }
            let below: Vec<NodeId> = leaves.iter().map(|&leaf| NodeId(leaf as u32)).filter(|&leaf| program.path(leaf).any(|at| at == id)).collect();
            let bytes = world.bytes_of(from, until, |pull| below.contains(&pull.class));
            let promised = min.bytes_in(Nanos::new(until) - Nanos::new(from)).as_u64();
            let depth = program.path(id).count() as u64;
            prop_assert!(bytes + (2 + 2 * depth) * largest >= promised, "{id:?}: {bytes} of {promised}");
        }
    }
}
