//! The engine and the reference send the same packets at the same moments.

use plimsoll_nic::QueueId;
use plimsoll_policy::{LimitId, NodeId};
use plimsoll_units::Nanos;
use proptest::prelude::*;

use crate::cases::{Case, Event, cases};
use crate::kit::{World, mbps, placement};
use crate::reference::{Reference, Sent};

/// Both of them, fed with the same.
struct Pair {
    world: World,
    reference: Reference,
    compared: usize,
}

impl Pair {
    fn new(case: &Case) -> Self {
        let program = case.program();
        let mut world = World::new(&program, &case.config());
        let mut reference = Reference::new(&program, case.pull);
        for flow in &case.flows {
            let (class, limits) = (case.class_of(flow), case.limits_of(&program, flow));
            world.open(class, &limits);
            reference.open(&placement(&program, class, &limits));
        }
        Self { world, reference, compared: 0 }
    }

    fn apply(&mut self, case: &Case, event: &Event) {
        let (world, reference) = (&mut self.world, &mut self.reference);
        match *event {
            Event::Post { flow, count, len, large, tag } => {
                let queue = (flow % case.flows.len()) as u32;
                let descriptor = Case::descriptor(len, large, tag);
                for _ in 0..count {
                    if let Ok(addr) = world.post(QueueId(queue), descriptor) {
                        reference.post(queue, addr, descriptor);
                    }
                }
                world.bell(QueueId(queue));
                reference.ring(queue, world.now);
            }
            Event::Weight { node, weight } => {
                let node = NodeId((node % case.seeds.len()) as u32);
                world.notes(|doorbells| doorbells.set_weight(node, weight));
                reference.set_weight(node, weight);
            }
            Event::Rate { limit, mbps: rate } => {
                let limits = world.nic.program().limits.len();
                if limits > 0 {
                    let limit = LimitId((limit % limits) as u32);
                    world.notes(|doorbells| doorbells.set_rate(limit, mbps(rate)));
                    reference.set_rate(limit, mbps(rate), world.now);
                }
            }
            Event::ClassRate { node, mbps: rate } => {
                let node = NodeId((node % case.seeds.len()) as u32);
                world.notes(|doorbells| doorbells.set_class_rate(node, mbps(rate)));
                reference.set_class_rate(node, mbps(rate), world.now);
            }
            Event::Install { .. } => {}
        }
    }

    fn poll(&mut self) -> Result<(), TestCaseError> {
        self.world.poll();
        let now = self.world.now;
        let expected = self.reference.poll(now);
        let found: Vec<Sent> = self.world.sent[self.compared..].iter().map(|sent| of(&sent.pull)).collect();
        prop_assert_eq!(&found, &expected, "at {}", now);
        self.compared = self.world.sent.len();
        let (wakes, next) = (self.world.nic.poll_timeout().map(Nanos::as_u64), self.reference.next());
        prop_assert_eq!(wakes.is_some(), next.is_some(), "at {}", now);
        prop_assert!(
            wakes <= next,
            "at {now}: it asks to be polled at {wakes:?}, but {next:?} is when it can send"
        );
        Ok(())
    }

    /// Polls whenever either has something to do, until `until`.
    fn run(&mut self, until: u64) -> Result<(), TestCaseError> {
        while let Some(due) = self.world.nic.poll_timeout().map(Nanos::as_u64).filter(|&due| due < until) {
            self.world.now = self.world.now.max(due);
            self.poll()?;
        }
        self.world.now = until;
        Ok(())
    }
}

fn of(pull: &plimsoll_nic::Transmit) -> Sent {
    Sent {
        queue: pull.queue.0,
        addr: pull.addr,
        offset: pull.offset,
        len: pull.len,
        last: pull.last,
        arrived: pull.arrived.as_u64(),
        head: pull.head.as_u64(),
        limited: pull.limited.as_u64(),
        limited_by: pull.limited_by,
    }
}

fn same_departures(case: &Case) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(case);
    for (gap, event) in &case.events {
        pair.run(pair.world.now + gap)?;
        pair.apply(case, event);
        pair.poll()?;
    }
    pair.run(u64::MAX >> 2)?;
    prop_assert_eq!(pair.world.nic.stats().held, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_500))]

    /// Packet by packet, for random policies, flows and timings.
    #[test]
    fn the_engine_does_what_the_reference_does(case in cases(14, 60, false)) {
        same_departures(&case)?;
    }

    /// With weights and rates that change in line.
    #[test]
    fn also_when_weights_and_rates_change_in_line(case in cases(10, 60, true)) {
        same_departures(&case)?;
    }
}
