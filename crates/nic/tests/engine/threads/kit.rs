//! Engines of several threads in virtual time, with leases that arrive late.
//!
//! Not here: what must hold of them (`threads`).
//! Invariant: an engine hears of the others by its lease only.

use plimsoll_control::leases::{Coordinator, Lease, MemberId, Report, Settings};
use plimsoll_nic::{Config, Descriptor, Nic, QueueId};
use plimsoll_policy::{LimitId, NodeId, Program};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use crate::kit::{World, placement};

/// What a flow sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sends {
    Greedy,
    /// Frames evenly at this rate.
    Paced(BitRate),
    Nothing,
}

struct Flow {
    thread: usize,
    class: NodeId,
    member: MemberId,
    limits: Vec<LimitId>,
    queue: QueueId,
    len: u32,
    sends: Sends,
    /// When the next paced frame is due.
    due: u64,
    left: u64,
}

pub struct Threads {
    pub coordinator: Coordinator,
    pub worlds: Vec<World>,
    flows: Vec<Flow>,
    /// How many departures of each world have been counted.
    counted: Vec<usize>,
    now: u64,
    /// Bytes that engines could not use since leases were renewed.
    spare: u64,
    /// Bytes of these that each engine may still use.
    may_borrow: Vec<u64>,
}

/// How long an engine's turn takes.
const TURN: u64 = 10_000;

pub const EPOCH: u64 = 100_000;

/// How long after the reports a lease is in force.
const DELAY: u64 = 10_000;

/// Descriptors that a greedy flow keeps in its queue.
const DEPTH: u64 = 64;

impl Threads {
    pub fn new(program: &Program, threads: usize) -> Self {
        let settings = Settings { threads, members: 64, epoch: Span::ns(EPOCH) };
        let coordinator = Coordinator::new(program, settings).expect("a policy for several threads");
        let config = Config { catch_up: Span::ns(1), ..Config::default() };
        let worlds = (0..threads).map(|_| World::new(coordinator.program(), &config)).collect();
        Self {
            coordinator,
            worlds,
            flows: Vec::new(),
            counted: vec![0; threads],
            now: 0,
            spare: 0,
            may_borrow: vec![0; threads],
        }
    }

    pub fn add(&mut self, thread: usize, class: NodeId, limits: &[LimitId], len: u32, sends: Sends) -> usize {
        let placed = placement(self.coordinator.program(), class, limits);
        let member = self.coordinator.join(&placed, thread).expect("there is room for a member");
        let queue = self.worlds[thread].open(class, limits);
        self.flows.push(Flow {
            thread,
            class,
            member,
            limits: placed.limits,
            queue,
            len,
            sends: Sends::Nothing,
            due: 0,
            left: 0,
        });
        let flow = self.flows.len() - 1;
        self.change(flow, sends);
        flow
    }

    /// From now on the flow sends something else. What waits in its queue still leaves.
    pub fn change(&mut self, flow: usize, sends: Sends) {
        let Flow { thread, queue, len, .. } = self.flows[flow];
        let world = &mut self.worlds[thread];
        world.stop(queue);
        if sends == Sends::Greedy {
            world.refill(queue, Descriptor { len, ..Descriptor::default() }, DEPTH);
        }
        (self.flows[flow].sends, self.flows[flow].due) = (sends, self.now);
    }

    pub fn run(&mut self, until: u64) {
        if self.now == 0 {
            self.renew(0);
            self.take(0);
        }
        while self.now < until {
            let renewed = self.now / EPOCH * EPOCH + EPOCH;
            self.go_on(renewed);
            self.renew(renewed);
            self.go_on(renewed + DELAY);
            self.take(renewed + DELAY);
        }
    }

    /// Runs each engine until then; after each turn engines give away what they could not use.
    fn go_on(&mut self, until: u64) {
        while self.now < until {
            let next = (self.now / TURN * TURN + TURN).min(until);
            self.turn(next);
            self.even_out();
        }
    }

    fn even_out(&mut self) {
        let now = Nanos::new(self.now);
        for world in &mut self.worlds {
            self.spare += world.nic.take_unused(now).as_u64();
        }
        for (world, may) in self.worlds.iter_mut().zip(&mut self.may_borrow) {
            loop {
                let borrowed = world.nic.lacks_credit(now).as_u64().min(self.spare).min(*may);
                if borrowed == 0 {
                    break;
                }
                (self.spare, *may) = (self.spare - borrowed, *may - borrowed);
                world.nic.borrow_credit(Bytes::new(borrowed), now);
                world.poll();
            }
        }
    }

    fn turn(&mut self, until: u64) {
        for thread in 0..self.worlds.len() {
            while let Some((due, flow)) = self.next_paced(thread, until) {
                let world = &mut self.worlds[thread];
                world.run(due);
                let flow = &mut self.flows[flow];
                // A full queue drops the frame.
                let sent = world.post(flow.queue, Descriptor { len: flow.len, ..Descriptor::default() });
                if sent.is_ok() {
                    world.bell(flow.queue);
                }
                let Sends::Paced(rate) = flow.sends else { unreachable!("only these are due") };
                flow.due += rate.wire_time(Bytes::new(flow.len.into())).as_u64();
            }
            self.worlds[thread].run(until);
        }
        self.now = until;
    }

    fn next_paced(&self, thread: usize, until: u64) -> Option<(u64, usize)> {
        let paced =
            |flow: &Flow| flow.thread == thread && matches!(flow.sends, Sends::Paced(_)) && flow.due < until;
        let all = self.flows.iter().enumerate().filter(|(_, flow)| paced(flow));
        all.map(|(index, flow)| (flow.due, index)).min()
    }

    /// Threads report, and the coordinator computes leases.
    fn renew(&mut self, now: u64) {
        for (thread, world) in self.worlds.iter().enumerate() {
            for sent in &world.sent[self.counted[thread]..] {
                let own = |flow: &&mut Flow| flow.thread == thread && flow.queue == sent.pull.queue;
                let flow = self.flows.iter_mut().find(own).expect("a flow sent it");
                flow.left += sent.charge;
            }
            self.counted[thread] = world.sent.len();
            let classes = world.nic.all_class_counters();
            for flow in self.flows.iter().filter(|flow| flow.thread == thread) {
                let waiting = classes[flow.class.0 as usize].backlog_bytes;
                self.coordinator.handle_report(flow.member, Report { left: flow.left, waiting });
            }
        }
        self.coordinator.handle_epoch(Nanos::new(now));
        self.spare = 0;
    }

    /// Each engine takes its lease.
    fn take(&mut self, now: u64) {
        for (thread, world) in self.worlds.iter_mut().enumerate() {
            let lease = self.coordinator.lease(thread);
            take(&mut world.nic, lease, Nanos::new(now));
            self.may_borrow[thread] = lease.link.bytes_in(Span::ns(EPOCH)).as_u64() / 2;
            world.poll();
        }
    }

    /// The most bytes that left through a limit, on all threads, beyond its burst and its rate, over any time.
    pub fn excess(&self, limit: LimitId) -> u64 {
        let stated = self.coordinator.program().limit(limit);
        let held = |thread: usize, queue: QueueId| {
            let own = |flow: &&Flow| flow.thread == thread && flow.queue == queue;
            self.flows.iter().find(own).is_some_and(|flow| flow.limits.contains(&limit))
        };
        let mut sent: Vec<(u64, u64)> = Vec::new();
        for (thread, world) in self.worlds.iter().enumerate() {
            let through = world.sent.iter().filter(|sent| held(thread, sent.pull.queue));
            sent.extend(through.map(|sent| (sent.at, sent.charge)));
        }
        sent.sort_unstable();
        // In bits and nanoseconds, so that nothing is rounded.
        let (rate, scale) = (u128::from(stated.rate.get()), 8_000_000_000_u128);
        let (mut level, mut most, mut at) = (0_u128, 0_u128, 0);
        for (now, charge) in sent {
            level = level.saturating_sub(rate * u128::from(now - at)) + u128::from(charge) * scale;
            (most, at) = (most.max(level), now);
        }
        (most / scale).saturating_sub(stated.burst.as_u64().into()) as u64
    }

    pub fn rate(&self, class: NodeId, from: u64, until: u64) -> f64 {
        self.worlds.iter().map(|world| world.rate(class, from, until)).sum()
    }
}

/// Puts a lease in force.
fn take(nic: &mut Nic, lease: Lease<'_>, now: Nanos) {
    nic.lease_link(lease.link, now);
    for node in lease.nodes {
        nic.lease_weight(node.node, node.behind, node.weight);
        if let Some(min) = node.min {
            nic.lease_min(node.node, min, now);
        }
    }
    for limit in lease.limits {
        nic.lease_limit(limit.limit, limit.rate, limit.burst, limit.credit, now);
    }
}
