//! What threads and the coordinator tell each other, without a lock.
//!
//! Why: a report or a lease must not make a thread wait for another one.
//! From: double buffering with a sequence number; every word is an atomic of its own, so that a late reader reads old or new
//! numbers, and nothing else.
//! Not here: what the numbers mean (`coordinator`), and who calls when (`daemon`).
//! Invariant: a thread takes a lease whole, or not at all: of one that is written while it is read, it takes the next.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use plimsoll_policy::{LimitId, NodeId};
use plimsoll_units::{BitRate, Bytes, Span};

use super::{Coordinator, Lease, LimitLease, MemberId, NodeLease, Report};

/// The shared memory of several threads and their coordinator.
#[derive(Debug)]
pub struct Exchange {
    reports: Vec<Cell>,
    /// For each thread, the members that have reported since they were collected, by bit.
    desks: Vec<Desk>,
    spare: Line,
    epoch: Span,
    /// The link, and the most nodes and limits of a lease.
    most: (BitRate, usize, usize),
}

/// A member's report.
#[derive(Debug, Default)]
struct Cell {
    left: AtomicU64,
    waiting: AtomicU64,
}

/// What belongs to one thread, in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Desk {
    /// Members with a new report, by bit.
    reported: Vec<AtomicU64>,
    /// Leases that were published; the last one is in bank `published % 2`.
    published: AtomicU64,
    banks: [Bank; 2],
}

#[derive(Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Debug)]
struct Bank {
    link: AtomicU64,
    nodes: AtomicUsize,
    limits: AtomicUsize,
    /// Three words for each node, and four for each limit.
    words: Vec<AtomicU64>,
}

/// A thread's copy of its lease, and room for the next one.
#[derive(Clone, Debug)]
pub struct Taken {
    seen: u64,
    /// Bytes that the thread may still borrow during this lease.
    may_borrow: u64,
    link: BitRate,
    nodes: Vec<NodeLease>,
    limits: Vec<LimitLease>,
}

const NODE_WORDS: usize = 3;
const LIMIT_WORDS: usize = 4;

/// Marks a weight that holds for the link, behind no limit.
const NO_LIMIT: u64 = u32::MAX as u64;

impl Exchange {
    /// Room for the leases of this coordinator: for its members, and for the leases of all of its nodes and limits.
    #[must_use]
    pub fn new(coordinator: &Coordinator) -> Self {
        let words =
            coordinator.most_node_leases() * NODE_WORDS + coordinator.most_limit_leases() * LIMIT_WORDS;
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let bank = || Bank {
            link: AtomicU64::new(0),
            nodes: AtomicUsize::new(0),
            limits: AtomicUsize::new(0),
            words: zeros(words),
        };
        let members = coordinator.settings().members;
        let desk = || Desk {
            reported: zeros(members.div_ceil(64)),
            published: AtomicU64::new(0),
            banks: [bank(), bank()],
        };
        Self {
            reports: (0..members).map(|_| Cell::default()).collect(),
            desks: (0..coordinator.settings().threads).map(|_| desk()).collect(),
            spare: Line(AtomicU64::new(0)),
            epoch: coordinator.settings().epoch,
            most: (
                coordinator.program().link,
                coordinator.most_node_leases(),
                coordinator.most_limit_leases(),
            ),
        }
    }

    /// A thread reports one of its members.
    pub fn report(&self, thread: usize, member: MemberId, report: Report) {
        let Some(cell) = self.reports.get(member.0 as usize) else { return };
        cell.left.store(report.left, Ordering::Relaxed);
        cell.waiting.store(report.waiting, Ordering::Relaxed);
        // Release: pairs with the Acquire of `collect`, which then reads these numbers or later ones.
        self.desks[thread].reported[member.0 as usize / 64].fetch_or(1 << (member.0 % 64), Ordering::Release);
    }

    /// Hands the reports that have come to the coordinator.
    pub fn collect(&self, coordinator: &mut Coordinator) {
        for desk in &self.desks {
            for (word, reported) in (0_u32..).zip(&desk.reported) {
                if reported.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let mut bits = reported.swap(0, Ordering::Acquire);
                while bits != 0 {
                    let id = word * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    let cell = &self.reports[id as usize];
                    let (left, waiting) =
                        (cell.left.load(Ordering::Relaxed), cell.waiting.load(Ordering::Relaxed));
                    coordinator.handle_report(MemberId(id), Report { left, waiting });
                }
            }
        }
    }

    /// Publishes the coordinator's leases. Only one thread may do so at a time.
    pub fn publish(&self, coordinator: &Coordinator) {
        for (thread, desk) in self.desks.iter().enumerate() {
            let next = desk.published.load(Ordering::Relaxed) + 1;
            // A reader of the bank that is written now finds out afterwards, by `published`; the fence pairs with the one in
            // `take`: whoever reads a word that is written below also sees that the bank is no longer the last one.
            core::sync::atomic::fence(Ordering::Release);
            desk.banks[(next % 2) as usize].write(coordinator.lease(thread));
            desk.published.store(next, Ordering::Release);
        }
    }

    /// Whether there is a lease that the thread has not taken.
    #[must_use]
    pub fn has_new(&self, thread: usize, taken: &Taken) -> bool {
        self.desks[thread].published.load(Ordering::Acquire) != taken.seen
    }

    /// Takes a thread's lease, if there is a new one.
    pub fn take<'a>(&self, thread: usize, taken: &'a mut Taken) -> Option<Lease<'a>> {
        let desk = &self.desks[thread];
        let published = desk.published.load(Ordering::Acquire);
        if published == taken.seen {
            return None;
        }
        desk.banks[(published % 2) as usize].read(taken);
        core::sync::atomic::fence(Ordering::Acquire);
        // The bank is written again once the next lease, in the other bank, is there.
        if desk.published.load(Ordering::Relaxed) != published {
            return None; // the next call takes that one
        }
        taken.seen = published;
        taken.may_borrow = taken.link.bytes_in(self.epoch).as_u64() / 2;
        Some(Lease { link: taken.link, nodes: &taken.nodes, limits: &taken.limits })
    }

    /// Room for a thread's lease.
    #[must_use]
    pub fn taken(&self) -> Taken {
        let (link, nodes, limits) = self.most;
        Taken {
            seen: 0,
            may_borrow: 0,
            link,
            nodes: Vec::with_capacity(nodes),
            limits: Vec::with_capacity(limits),
        }
    }

    /// A thread could not use this much of its link: another one may. What exceeds `most` is lost.
    pub fn give(&self, unused: Bytes, most: Bytes) {
        let spare = &self.spare.0;
        let room = most.as_u64().saturating_sub(spare.load(Ordering::Relaxed));
        let given = unused.as_u64().min(room);
        if given > 0 {
            spare.fetch_add(given, Ordering::Relaxed);
        }
    }

    /// A thread takes up to `wanted` of what others could not use, and in a lease no more than half of its own link: a thread
    /// that the policy gives little gets little of this.
    pub fn borrow(&self, taken: &mut Taken, wanted: Bytes) -> Bytes {
        let spare = &self.spare.0;
        let there = spare.load(Ordering::Relaxed);
        let takes = there.min(wanted.as_u64()).min(taken.may_borrow);
        // Another thread may have been faster: then there is nothing now, and the next turn asks again.
        let took = takes > 0
            && spare.compare_exchange(there, there - takes, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let takes = if took { takes } else { 0 };
        taken.may_borrow -= takes;
        Bytes::new(takes)
    }

    /// A lease has ended: what was not borrowed is lost.
    pub fn forget_spare(&self) {
        self.spare.0.store(0, Ordering::Relaxed);
    }
}

impl Bank {
    fn write(&self, lease: Lease<'_>) {
        self.link.store(lease.link.get(), Ordering::Relaxed);
        let mut words = self.words.iter();
        let mut put = |value: u64| {
            if let Some(word) = words.next() {
                word.store(value, Ordering::Relaxed);
            }
        };
        for node in lease.nodes {
            let behind = node.behind.map_or(NO_LIMIT, |limit| limit.0.into());
            put(u64::from(node.node.0) << 32 | behind);
            put(node.weight.into());
            put(node.min.map_or(0, BitRate::get));
        }
        for limit in lease.limits {
            put(limit.limit.0.into());
            put(limit.rate.get());
            put(limit.burst.as_u64());
            put(limit.credit.as_u64());
        }
        self.nodes.store(lease.nodes.len(), Ordering::Relaxed);
        self.limits.store(lease.limits.len(), Ordering::Relaxed);
    }

    fn read(&self, taken: &mut Taken) {
        taken.link = BitRate::new(self.link.load(Ordering::Relaxed)).unwrap_or(taken.link);
        taken.nodes.clear();
        taken.limits.clear();
        let mut words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut next = || words.next().unwrap_or(0);
        for _ in 0..self.nodes.load(Ordering::Relaxed).min(taken.nodes.capacity()) {
            let (whose, weight, min) = (next(), next(), next());
            let (node, behind) = (whose >> 32, whose & NO_LIMIT);
            taken.nodes.push(NodeLease {
                node: NodeId(node as u32),
                behind: (behind != NO_LIMIT).then_some(LimitId(behind as u32)),
                weight: weight as u32,
                min: BitRate::new(min),
            });
        }
        for _ in 0..self.limits.load(Ordering::Relaxed).min(taken.limits.capacity()) {
            let (limit, rate, burst, credit) = (next(), next(), next(), next());
            let Some(rate) = BitRate::new(rate) else { continue };
            let (burst, credit) = (Bytes::new(burst), Bytes::new(credit));
            taken.limits.push(LimitLease { limit: LimitId(limit as u32), rate, burst, credit });
        }
    }
}
