//! Several engine threads of one host, in virtual time: when they report, and when their leases are in force.
//!
//! Why: `engine: {threads: N}` must give the shares of one engine, and a simulation can check that for any number of threads.
//! From: the daemon's `leasing`, with the turns of busy threads at equal distances.
//! Not here: what a lease is (`plimsoll_control::leases`), and engines (`host_nic`).
//! Invariant: a thread hears of the others by its lease and by what they could not use, no earlier than live; threads without
//! packets need no event.

use plimsoll_control::leases::{Coordinator, Exchange, Lease, Membership, Report, Reporter, Settings, Taken};
use plimsoll_nic::{ClassBytes, Nic};
use plimsoll_policy::{Program, Unsupported};
use plimsoll_units::{Bytes, Nanos, Span};

/// How long the turn of a busy thread takes, after which it evens out the link and takes a lease: as live, with batches of 64.
const TURN: Span = Span::micros(10);

/// The leases of a host's threads.
#[derive(Debug)]
pub(crate) struct Threads {
    coordinator: Coordinator,
    exchange: Exchange,
    sides: Vec<Side>,
    /// What the link carries in an epoch.
    most: Bytes,
    /// When the threads' turns end; none while none has anything to send.
    turn: Option<Nanos>,
    /// When the epoch ends.
    renewal: Nanos,
}

/// One thread's side.
#[derive(Debug)]
struct Side {
    taken: Taken,
    rows: Vec<ClassBytes>,
    changed: Vec<usize>,
    reporter: Reporter,
}

impl Threads {
    /// The leases of a policy.
    ///
    /// # Errors
    /// What the policy states that several threads do not keep.
    pub(crate) fn new(program: &Program, threads: usize) -> Result<Self, Unsupported> {
        let members = 4 * program.nodes.len() + 64 * threads + 1_024;
        let settings = Settings { threads, members, epoch: program.lease() };
        let mut coordinator = Coordinator::new(program, settings)?;
        coordinator.handle_epoch(Nanos::ZERO);
        let exchange = Exchange::new(&coordinator);
        exchange.publish(&coordinator);
        let side = || Side {
            taken: exchange.taken(),
            rows: Vec::new(),
            changed: Vec::new(),
            reporter: Reporter::default(),
        };
        Ok(Self {
            sides: (0..threads).map(|_| side()).collect(),
            most: program.link.bytes_in(program.lease()),
            turn: None,
            renewal: Nanos::ZERO,
            coordinator,
            exchange,
        })
    }

    /// The program for each thread's engine.
    pub(crate) fn program(&self) -> &Program {
        self.coordinator.program()
    }

    /// When [`Threads::end_turn`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.turn
    }

    /// A thread has something to send. After a rest, threads take the last lease first.
    pub(crate) fn handle_work<'a>(&mut self, engines: impl Iterator<Item = &'a mut Nic>, now: Nanos) {
        if self.turn.is_some() {
            return;
        }
        self.turn = Some(now + TURN);
        self.take(engines, now);
    }

    /// The threads' turns are over: they even out the link, take their leases, and report once in an epoch. Answers whether an engine
    /// may send more.
    pub(crate) fn end_turn(&mut self, engines: &mut [&mut Nic], now: Nanos) -> bool {
        if self.turn.is_none_or(|turn| now < turn) {
            return false;
        }
        self.even_out(engines, now);
        self.take(engines.iter_mut().map(|engine| &mut **engine), now);
        let mut works = true;
        if now >= self.renewal {
            self.renewal = now + self.coordinator.settings().epoch;
            works = self.renew(engines, now);
        }
        self.turn = works.then_some(now + TURN);
        true
    }

    /// What one thread could not use, another one may.
    fn even_out(&mut self, engines: &mut [&mut Nic], now: Nanos) {
        for engine in engines.iter_mut().filter(|engine| engine.lacks_credit(now) == Bytes::ZERO) {
            self.exchange.give(engine.take_unused(now), self.most);
        }
        for (engine, side) in engines.iter_mut().zip(&mut self.sides) {
            let lacks = engine.lacks_credit(now);
            if lacks > Bytes::ZERO {
                let borrowed = self.exchange.borrow(&mut side.taken, lacks);
                if borrowed > Bytes::ZERO {
                    engine.borrow_credit(borrowed, now);
                }
            }
        }
    }

    fn take<'a>(&mut self, engines: impl Iterator<Item = &'a mut Nic>, now: Nanos) {
        for ((thread, side), engine) in self.sides.iter_mut().enumerate().zip(engines) {
            if let Some(lease) = self.exchange.take(thread, &mut side.taken) {
                put_in_force(engine, &lease, now);
            }
        }
    }

    /// Threads report, and the next leases are computed; threads take them after their next turn. Answers whether any has something
    /// to send.
    fn renew(&mut self, engines: &mut [&mut Nic], now: Nanos) -> bool {
        let mut works = false;
        for ((thread, side), engine) in self.sides.iter_mut().enumerate().zip(engines) {
            let Side { rows, changed, reporter, .. } = side;
            changed.clear();
            engine.report_changes(rows, |row| changed.push(row));
            let (coordinator, exchange) = (&mut self.coordinator, &self.exchange);
            let join = |number| {
                let joined = engine.member(number).and_then(|placed| coordinator.join(&placed, thread).ok());
                Some(joined.map_or(Membership::None, Membership::Member))
            };
            let row = |&number: &usize| {
                let ClassBytes { left, waiting } = rows[number];
                (number, Report { left, waiting })
            };
            let changed = changed.iter().map(row);
            works |=
                reporter.report(rows.len(), changed, join, |id, report| exchange.report(thread, id, report));
            works |= engine.stats().held > 0;
        }
        self.exchange.collect(&mut self.coordinator);
        self.coordinator.handle_epoch(now);
        self.exchange.publish(&self.coordinator);
        self.exchange.forget_spare();
        works
    }
}

/// Puts a lease in force.
fn put_in_force(engine: &mut Nic, lease: &Lease<'_>, now: Nanos) {
    engine.lease_link(lease.link, now);
    for node in lease.nodes {
        engine.lease_weight(node.node, node.behind, node.weight);
        if let Some(min) = node.min {
            engine.lease_min(node.node, min, now);
        }
    }
    for limit in lease.limits {
        engine.lease_limit(limit.limit, limit.rate, limit.burst, limit.credit, now);
    }
}
