//! The engine, driven in virtual time, and what arrives at it.
//!
//! Not here: promises (`examples`).
//! Invariant: the engine is polled exactly when it asks for it, and each packet is completed at once.

use std::collections::HashMap;

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId};
use plimsoll_policy::{Placement, check_str};
use plimsoll_units::Nanos;
use proptest::prelude::*;

/// The engine with a policy, driven in virtual time.
pub struct Engine {
    nic: Nic,
    doorbells: DoorbellQueue,
    /// One flow queue for each class that was asked for.
    queues: HashMap<usize, QueueId>,
    posted: u64,
}

impl Engine {
    pub fn new(policy: &str) -> Self {
        let program =
            check_str("test.yaml", policy).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        let config = Config { queues: 256, ..Config::default() };
        let nic = Nic::new(&program.program, &config);
        Self { nic, doorbells: DoorbellQueue::default(), queues: HashMap::new(), posted: 0 }
    }

    /// A new flow queue of the class `name`.
    pub fn open(&mut self, name: &str) -> QueueId {
        let program = self.nic.program();
        let class = program.find(name).expect("the policy names it");
        let limits = program.path(class).filter_map(|id| program.node(id).max).collect();
        self.nic.open_queue(&Placement { class, limits }).expect("a flow queue is left")
    }

    /// The only flow queue of the class `cN`.
    pub fn queue_of(&mut self, class: usize) -> QueueId {
        if let Some(&queue) = self.queues.get(&class) {
            return queue;
        }
        let queue = self.open(&format!("c{class}"));
        self.queues.insert(class, queue);
        queue
    }

    /// Posts a packet, with its slack in microseconds or 0, and rings. Returns the number of its arrival.
    pub fn send(&mut self, queue: QueueId, len: u32, micros: u32, now: u64) -> u64 {
        let descriptor = Descriptor { addr: self.posted, len, tag: micros, ..Descriptor::default() };
        self.nic.post(queue, descriptor).expect("the queue has room");
        self.doorbells.bell(queue);
        let nic = &mut self.nic;
        self.doorbells.flush(|words| nic.ring(words, Nanos::new(now)));
        self.posted += 1;
        self.posted - 1
    }

    /// Lets the engine send until before `until`, from `now` on, and calls `sent` with the moment and the arrival's number.
    pub fn run(&mut self, now: u64, until: u64, mut sent: impl FnMut(u64, u64)) {
        let mut now = now;
        let mut batch = Vec::with_capacity(1);
        while now < until {
            self.nic.poll_transmit(Nanos::new(now), &mut batch);
            if let Some(pull) = batch.pop() {
                sent(now, pull.addr);
                self.nic.complete(&pull, Outcome::Sent);
                while self.nic.poll_completion().is_some() {}
                continue;
            }
            let Some(due) = self.nic.poll_timeout() else { return };
            now = due.as_u64().max(now + 1);
        }
    }
}

/// A packet that arrives some time after the one before.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub after: u64,
    pub class: usize,
    pub len: u32,
    /// Slack in microseconds.
    pub micros: u32,
}

/// Arrivals at some load: all at once, more than a link of 10 Gb/s carries, or with pauses.
pub fn arrivals(classes: usize) -> impl Strategy<Value = Vec<Arrival>> {
    prop::sample::select(vec![0_u64, 1_000, 3_000, 50_000]).prop_flat_map(move |pause| {
        let after = prop_oneof![2 => Just(0), 3 => 0..=pause, 1 => 0..=3 * pause];
        let len = prop_oneof![Just(1_500_u32), Just(60), 60_u32..=1_500];
        let arrival = (after, 0..classes, len, 1_u32..60);
        let arrival = arrival.prop_map(|(after, class, len, micros)| Arrival { after, class, len, micros });
        prop::collection::vec(arrival, 1..250)
    })
}
