//! The engine, driven in virtual time, and what arrives at it.
//!
//! Not here: promises (`examples`).
//! Invariant: the engine is polled exactly when it asks for it, and each packet is completed at once.

use core::ops::Range;
use std::collections::HashMap;

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId};
use plimsoll_policy::{Placement, Program, check_with};
use plimsoll_units::Nanos;
use proptest::prelude::*;

/// The engine with a policy, driven in virtual time.
pub struct Engine {
    nic: Nic,
    doorbells: DoorbellQueue,
    /// One flow queue for each class that was asked for.
    queues: HashMap<(usize, usize), QueueId>,
    posted: u64,
}

impl Engine {
    pub fn new(policy: &str) -> Self {
        Self::with(policy, "")
    }

    /// An engine with a policy that names a program of this text.
    pub fn with(policy: &str, text: &str) -> Self {
        let config = Config { queues: 256, ..Config::default() };
        let nic = Nic::new(&checked(policy, text), &config);
        Self { nic, doorbells: DoorbellQueue::default(), queues: HashMap::new(), posted: 0 }
    }

    /// Puts another policy in force; each flow queue stays in the class of the same name.
    pub fn reload(&mut self, policy: &str, text: &str, now: u64) {
        self.reload_with(policy, text, &[], now);
    }

    /// As [`Engine::reload`], with these flow queues in other classes.
    pub fn reload_with(&mut self, policy: &str, text: &str, moved: &[(QueueId, &str)], now: u64) {
        let next = checked(policy, text);
        let name_of = |class| self.nic.program().node(class).name.clone();
        let classes =
            self.queues.values().filter_map(|&queue| Some((queue, name_of(self.nic.class_of(queue)?))));
        let mut places: HashMap<QueueId, Placement> =
            classes.map(|(queue, name)| (queue, placement(&next, &name))).collect();
        places.extend(moved.iter().map(|&(queue, name)| (queue, placement(&next, name))));
        self.nic.install(&next, &mut |queue| places[&queue].clone(), Nanos::new(now));
    }

    /// Gives a class another weight by a doorbell.
    pub fn set_weight(&mut self, name: &str, weight: u32, now: u64) {
        let class = self.nic.program().find(name).expect("the policy names it");
        self.doorbells.set_weight(class, weight);
        let nic = &mut self.nic;
        self.doorbells.flush(|words| nic.ring(words, Nanos::new(now)));
    }

    /// A new flow queue of the class `name`.
    pub fn open(&mut self, name: &str) -> QueueId {
        let place = placement(self.nic.program(), name);
        self.nic.open_queue(&place).expect("a flow queue is left")
    }

    /// The first flow queue of the class `cN`.
    pub fn queue_of(&mut self, class: usize) -> QueueId {
        self.queue_of_flow(class, 0)
    }

    /// A flow queue of the class `cN`.
    pub fn queue_of_flow(&mut self, class: usize, flow: usize) -> QueueId {
        if let Some(&queue) = self.queues.get(&(class, flow)) {
            return queue;
        }
        let queue = self.open(&format!("c{class}"));
        self.queues.insert((class, flow), queue);
        queue
    }

    /// Posts packets of these lengths, and rings once. Returns the numbers of their arrivals.
    pub fn send_all(&mut self, queue: QueueId, lens: &[u32], now: u64) -> Range<u64> {
        let first = self.posted;
        for &len in lens {
            let descriptor = Descriptor { addr: self.posted, len, ..Descriptor::default() };
            self.nic.post(queue, descriptor).expect("the queue has room");
            self.posted += 1;
        }
        self.doorbells.bell(queue);
        let nic = &mut self.nic;
        self.doorbells.flush(|words| nic.ring(words, Nanos::new(now)));
        first..self.posted
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

/// A policy that may name a program, which has this text.
fn checked(policy: &str, text: &str) -> Program {
    let checked =
        check_with("test.yaml", &mut |name| Ok(if name == "test.yaml" { policy } else { text }.to_owned()));
    checked.unwrap_or_else(|errors| panic!("{}", errors.render(false))).program
}

fn placement(program: &Program, name: &str) -> Placement {
    let class = program.find(name).expect("the policy names it");
    Placement { class, limits: program.path(class).filter_map(|id| program.node(id).max).collect() }
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
