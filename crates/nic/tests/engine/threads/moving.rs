//! Tenants move between threads, and none of their packets overtakes another.
//!
//! Not here: when a tenant moves (`plimsoll_control::leases::Spread`).

use std::collections::VecDeque;

use plimsoll_control::leases::{Move, Spread};
use plimsoll_nic::{Descriptor, QueueId};
use plimsoll_policy::{NodeId, NodeKind};
use plimsoll_units::{Nanos, Span};
use proptest::prelude::*;

use crate::kit::{Plan, ROOT, World, mbps};

/// How often threads are compared.
const PERIOD: Span = Span::millis(10);

/// A tenant: a class with one flow, and its port.
struct Tenant {
    class: NodeId,
    queues: Vec<QueueId>,
    /// The numbers of frames that its sender has written, and that no thread has read.
    port: VecDeque<u64>,
    written: u64,
    /// Frames that each thread's engine holds.
    held: Vec<usize>,
    moving: Option<Move>,
}

/// Engines, with the tenants that move between them.
struct Moving {
    worlds: Vec<World>,
    counted: Vec<usize>,
    tenants: Vec<Tenant>,
    spread: Spread,
    moves: usize,
    /// What left: moment, tenant, number.
    left: Vec<(u64, usize, u64)>,
}

impl Moving {
    fn new(tenants: usize, threads: usize) -> Self {
        let mut plan = Plan::new(mbps(60), NodeKind::Wfq);
        let classes: Vec<NodeId> = (0..tenants).map(|_| plan.class(ROOT, 1)).collect();
        let mut worlds: Vec<World> = (0..threads).map(|_| World::with(&plan.program)).collect();
        let tenant = |class| Tenant {
            class,
            queues: worlds.iter_mut().map(|world| world.open(class, &[])).collect(),
            port: VecDeque::new(),
            written: 0,
            held: vec![0; threads],
            moving: None,
        };
        let tenants: Vec<Tenant> = classes.into_iter().map(tenant).collect();
        let spread = Spread::new((0..tenants.len()).map(|tenant| tenant % threads), threads, PERIOD);
        Self { counted: vec![0; threads], worlds, tenants, spread, moves: 0, left: Vec::new() }
    }

    /// A thread reads the ports of its tenants, as far as their queues have room.
    fn read(&mut self) {
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            let Some(thread) = self.spread.reader(index) else { continue };
            let world = &mut self.worlds[thread];
            while let Some(&number) = tenant.port.front() {
                world.posted = number;
                if world
                    .post(tenant.queues[thread], Descriptor { len: 1_000, ..Descriptor::default() })
                    .is_err()
                {
                    break;
                }
                world.bell(tenant.queues[thread]);
                (_, tenant.held[thread]) = (tenant.port.pop_front(), tenant.held[thread] + 1);
            }
        }
    }

    fn run(&mut self, until: u64) {
        for (thread, world) in self.worlds.iter_mut().enumerate() {
            world.run(until);
            for sent in &world.sent[self.counted[thread]..] {
                let own = |tenant: &Tenant| tenant.class == sent.pull.class;
                let index = self.tenants.iter().position(own).expect("a tenant sent it");
                self.tenants[index].held[thread] -= 1;
                self.left.push((sent.at, index, sent.pull.addr));
            }
            self.counted[thread] = world.sent.len();
        }
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            if tenant.moving.is_some_and(|going| tenant.held[going.from] == 0) {
                tenant.moving = None;
                self.spread.handle_drained(index);
            }
        }
        if let Some(going) = self.spread.handle_period(Nanos::new(until)) {
            (self.tenants[going.tenant].moving, self.moves) = (Some(going), self.moves + 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_packet_overtakes_another_of_its_tenant(
        threads in 2_usize..5,
        bursts in proptest::collection::vec(proptest::collection::vec(0_u64..40, 6), 60..120),
    ) {
        let (mut moving, mut until) = (Moving::new(6, threads), 0);
        for (n, burst) in (1_u64..).zip(&bursts) {
            for (index, &frames) in burst.iter().enumerate() {
                let tenant = &mut moving.tenants[index];
                tenant.port.extend(tenant.written..tenant.written + frames);
                tenant.written += frames;
                moving.spread.handle_work(index, 1_000 * frames);
            }
            moving.read();
            // Some bursts are still on their way when threads are compared.
            until += PERIOD.as_u64() / 40 * (1 + n % 41);
            moving.run(until);
        }
        while moving.tenants.iter().any(|tenant| !tenant.port.is_empty() || tenant.held.iter().any(|&held| held > 0)) {
            moving.read();
            until += PERIOD.as_u64();
            moving.run(until);
        }
        moving.left.sort_by_key(|&(at, ..)| at);
        for (index, tenant) in moving.tenants.iter().enumerate() {
            let own = moving.left.iter().filter(|left| left.1 == index).map(|left| left.2);
            prop_assert!(own.eq(0..tenant.written), "tenant {index}, after {} moves", moving.moves);
        }
    }
}

/// The property above means something only while tenants move.
#[test]
fn tenants_of_unequal_work_move() {
    let mut moving = Moving::new(6, 2);
    for n in 1..40 {
        let busy = if n < 20 { [0, 2, 4] } else { [1, 2, 3] };
        for index in 0..6 {
            let frames = if busy.contains(&index) { 100 } else { 0 };
            let tenant = &mut moving.tenants[index];
            tenant.port.extend(tenant.written..tenant.written + frames);
            tenant.written += frames;
            moving.spread.handle_work(index, 1_000 * frames);
        }
        moving.read();
        moving.run(n * PERIOD.as_u64());
    }
    assert!(moving.moves >= 2, "{} moves", moving.moves);
}
