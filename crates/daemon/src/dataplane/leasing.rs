//! Leases, live: when a thread reports, who computes, and when the result is in force.
//!
//! Why: the engines of several threads send what one policy says, and no thread waits for another.
//! From: `plimsoll_control::leases`. The thread whose turn comes first after an epoch computes: it tries the coordinator's lock, and
//! goes on without it if another thread computes already.
//! Not here: what a lease is (`plimsoll_control::leases`), and what an engine does with it (`leased`).
//! Invariants: a thread never waits for the lock; one without traffic reports that once, and then needs no wake-up.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use plimsoll_control::leases::{
    Coordinator, Exactness, Exchange, Membership, Report, Reporter, Settings, Taken,
};
use plimsoll_nic::ClassBytes;
use plimsoll_policy::{Program, Unsupported};
use plimsoll_units::{Bytes, Nanos, Span};

use super::Dataplane;

/// What the threads of a policy share: the coordinator, and the way of reports and leases.
#[derive(Debug)]
pub struct LeaseRoom {
    exchange: Exchange,
    desk: Mutex<Desk>,
    /// The program for each thread's engine, and the policy's own.
    program: Arc<Program>,
    stated: Arc<Program>,
    threads: usize,
    epochs: AtomicU64,
    /// [`Exactness`], in parts.
    shares: AtomicU32,
    excess: AtomicU64,
    latecomers: AtomicU64,
}

/// What one thread at a time may touch.
#[derive(Debug)]
struct Desk {
    coordinator: Coordinator,
    /// When the next epoch ends.
    due: Nanos,
}

/// How threads share the link, for counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasesNow {
    /// Threads.
    pub threads: usize,
    /// Epochs that were computed since the policy came into force.
    pub epochs: u64,
    /// How exactly the link was shared.
    pub exactness: Exactness,
    /// Groups of flow queues for which there was no room in the leases.
    pub unleased: u64,
}

impl LeaseRoom {
    /// Room for the leases of a policy.
    ///
    /// # Errors
    /// What the policy states that several threads do not keep.
    pub fn new(program: &Program, threads: usize) -> Result<Self, Unsupported> {
        let members = (4 * program.nodes.len() + 64 * threads + 1_024).min(MOST_MEMBERS);
        let settings = Settings { threads, members, epoch: program.lease() };
        let mut coordinator = Coordinator::new(program, settings)?;
        coordinator.handle_epoch(Nanos::ZERO);
        let exchange = Exchange::new(&coordinator);
        exchange.publish(&coordinator);
        Ok(Self {
            exchange,
            program: Arc::new(coordinator.program().clone()),
            stated: Arc::new(program.clone()),
            desk: Mutex::new(Desk { coordinator, due: Nanos::ZERO }),
            threads,
            epochs: AtomicU64::new(0),
            shares: AtomicU32::new(0),
            excess: AtomicU64::new(0),
            latecomers: AtomicU64::new(0),
        })
    }

    /// The program for each thread's engine.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The policy as it is stated.
    #[must_use]
    pub fn stated(&self) -> &Arc<Program> {
        &self.stated
    }

    /// How threads share the link.
    #[must_use]
    pub fn now(&self) -> LeasesNow {
        let shares = self.shares.load(Ordering::Relaxed);
        let excess = Bytes::new(self.excess.load(Ordering::Relaxed));
        LeasesNow {
            threads: self.threads,
            epochs: self.epochs.load(Ordering::Relaxed),
            exactness: Exactness { shares, excess },
            unleased: self.latecomers.load(Ordering::Relaxed),
        }
    }

    /// Runs `work` with the coordinator, unless another thread has it.
    fn try_desk<T>(&self, work: impl FnOnce(&mut Desk) -> T) -> Option<T> {
        match self.desk.try_lock() {
            Ok(mut desk) => Some(work(&mut desk)),
            // A thread that panicked ends the daemon; until then leases stay as they are.
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => None,
        }
    }

    /// Computes the next leases, if an epoch is over and no other thread does.
    fn compute(&self, now: Nanos) {
        self.try_desk(|desk| {
            if now < desk.due {
                return;
            }
            desk.due = now + desk.coordinator.settings().epoch;
            self.exchange.collect(&mut desk.coordinator);
            desk.coordinator.handle_epoch(now);
            self.exchange.publish(&desk.coordinator);
            self.exchange.forget_spare();
            let Exactness { shares, excess } = desk.coordinator.exactness();
            self.shares.store(shares, Ordering::Relaxed);
            self.excess.store(excess.as_u64(), Ordering::Relaxed);
            self.epochs.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// Flow queues with packets, or classes, for which a thread reports in each epoch: looking at so many takes 5 us of it. With more, it reports
/// less often.
const QUEUES_IN_AN_EPOCH: usize = 2_048;

/// Most members of the leases, a few hundred bytes each.
const MOST_MEMBERS: usize = 65_536;

/// One thread's side of the leases.
#[derive(Debug)]
pub struct Leasing {
    room: Arc<LeaseRoom>,
    thread: usize,
    taken: Taken,
    /// Bytes by member, as the NIC engine numbers them.
    rows: Vec<ClassBytes>,
    /// Of these, the ones that may have changed since the report before.
    changed: Vec<usize>,
    /// How many flow queues and classes that report looked at.
    looked: usize,
    reporter: Reporter,
    /// How long an epoch lasts, and what the link carries in it.
    epoch: Span,
    most: Bytes,
    /// When the next report is due.
    renewal: Nanos,
    /// Whether nothing waits, and nothing has left since the last report.
    rests: bool,
}

impl Leasing {
    /// A thread's side, with everything allocated: to be made and dropped outside the engine's thread, as it may be the last that
    /// holds the room.
    #[must_use]
    pub fn new(room: Arc<LeaseRoom>, thread: usize) -> Self {
        let taken = room.exchange.taken();
        let epoch = room.stated.lease();
        let most = room.stated.link.bytes_in(epoch);
        // Each bundle has a row, and few classes more than one bundle; more rows are made when they are needed.
        let rows = 2 * room.stated.nodes.len() + 256;
        Self {
            room,
            thread,
            taken,
            rows: Vec::with_capacity(rows),
            changed: Vec::with_capacity(rows),
            looked: 0,
            reporter: Reporter::with_capacity(rows),
            epoch,
            most,
            renewal: Nanos::ZERO,
            rests: false,
        }
    }
}

impl Dataplane {
    /// Puts the leases of several threads in force here; the engine was made with [`LeaseRoom::program`]. Answers what is to be
    /// dropped outside the engine's thread.
    pub fn lease_from(&mut self, leasing: Box<Leasing>, now: Nanos) -> Option<Box<Leasing>> {
        self.policy.program = Arc::clone(leasing.room.stated());
        self.renew_leases(leasing, now)
    }

    /// Takes leases from here from now on: a rate has changed, and nothing else. Answers what is to be dropped outside the engine's
    /// thread.
    pub fn renew_leases(&mut self, mut leasing: Box<Leasing>, now: Nanos) -> Option<Box<Leasing>> {
        self.scheduler.nic.leased().report_members(&mut leasing.rows);
        leasing.reporter.begin(leasing.rows.iter().map(as_report));
        self.take_from(&mut leasing, now);
        self.threads.leasing.replace(leasing)
    }

    /// Whether there is a lease that this thread has not taken.
    pub(super) fn has_new_lease(&self) -> bool {
        let is_new = |leasing: &Leasing| leasing.room.exchange.has_new(leasing.thread, &leasing.taken);
        self.threads.leasing.as_deref().is_some_and(is_new)
    }

    /// The begin of a turn, which may follow a sleep: what leaves in it is to be what the last lease allows.
    pub(super) fn take_newest_lease(&mut self, now: Nanos) {
        if !self.has_new_lease() {
            return;
        }
        let Some(mut leasing) = self.threads.leasing.take() else { return };
        self.take_from(&mut leasing, now);
        self.threads.leasing = Some(leasing);
    }

    /// How threads share the link; none where there is one thread.
    #[must_use]
    pub fn leases(&self) -> Option<LeasesNow> {
        self.threads.leasing.as_ref().map(|leasing| leasing.room.now())
    }

    fn take_from(&mut self, leasing: &mut Leasing, now: Nanos) {
        if let Some(lease) = leasing.room.exchange.take(leasing.thread, &mut leasing.taken) {
            self.take_lease(&lease, now);
        }
    }

    /// The end of a turn: evens out the link, takes a new lease, and reports once in an epoch. Answers when the next turn is due for
    /// that. `moved`: whether the turn had any work.
    pub(super) fn renew(&mut self, moved: bool, now: Nanos) -> Option<Nanos> {
        let mut leasing = self.threads.leasing.take()?;
        if !self.uplink.blocked {
            let Leasing { room, taken, most, .. } = &mut *leasing;
            self.even_out(&room.exchange, taken, *most, now);
        }
        self.take_from(&mut leasing, now);
        let works = moved || self.scheduler.nic.stats().held > 0;
        leasing.rests &= !works;
        if !leasing.rests && now >= leasing.renewal {
            let epochs = 1 + leasing.looked / QUEUES_IN_AN_EPOCH;
            leasing.renewal = now + leasing.epoch.times(epochs as u64);
            leasing.rests = !self.report(&mut leasing) && !works;
            leasing.room.compute(now);
            self.take_from(&mut leasing, now);
        }
        let due = (!leasing.rests).then_some(leasing.renewal);
        self.threads.leasing = Some(leasing);
        due
    }

    /// Reports what has changed since the last report; answers whether anything has, or waits.
    fn report(&mut self, leasing: &mut Leasing) -> bool {
        let Leasing { room, thread, rows, changed, looked, reporter, .. } = leasing;
        changed.clear();
        *looked = self.scheduler.nic.leased().report_changes(rows, |row| changed.push(row));
        let join = |number| self.join_leases(room, number, *thread);
        let changed = changed.iter().map(|&number| (number, as_report(&rows[number])));
        reporter.report(rows.len(), changed, join, |id, report| room.exchange.report(*thread, id, report))
    }

    /// Makes a group of flow queues a member; `None`: another thread has the coordinator just now.
    #[cold]
    fn join_leases(&self, room: &LeaseRoom, number: usize, thread: usize) -> Option<Membership> {
        let Some(placement) = self.scheduler.nic.member(number) else { return Some(Membership::None) };
        room.try_desk(|desk| match desk.coordinator.join(&placement, thread) {
            Ok(id) => Membership::Member(id),
            Err(_) => {
                room.latecomers.fetch_add(1, Ordering::Relaxed);
                Membership::None
            }
        })
    }
}

fn as_report(&ClassBytes { left, waiting }: &ClassBytes) -> Report {
    Report { left, waiting }
}
