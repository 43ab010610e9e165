//! Each thread's parts: of the link, of nodes' weights and minima, and of limits.
//!
//! Why: a node with members on several threads stands in several engines, and none of them sees all of it.
//! Not here: rates (`coordinator`), and what an engine does with a part (`nic`).
//! Invariant: the parts of the link, and of a limit's rate, burst and credit, add up to the whole at most.

use plimsoll_policy::{LimitId, NodeId, NodeKind, Program, Scope};
use plimsoll_units::{BitRate, Bytes};

use super::fill::scaled;
use super::lease::{Lease, LimitLease, NodeLease};
use super::tree::Tree;

/// The parts of all threads.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    threads: usize,
    /// For each node of the policy, its row; [`NONE`] for one whose members are on one thread, or of which nothing is divided.
    row_of: Vec<u32>,
    /// Whether a node, or one above it, has a row.
    has_rows: Vec<bool>,
    /// Bits per second by row and thread.
    rates: Vec<u64>,
    /// Whether a member that contributed to `rates` is held back.
    held: Vec<bool>,
    /// Members by row and thread.
    present: Vec<u32>,
    /// Members by limit and thread.
    behind: Vec<u32>,
    /// Nodes whose rows are not zero.
    touched: Vec<u32>,
    /// Bits per second of the link, by thread.
    links: Vec<u64>,
    leased: Vec<Leased>,
}

/// The lease of one thread.
#[derive(Clone, Debug)]
struct Leased {
    link: BitRate,
    nodes: Vec<NodeLease>,
    limits: Vec<LimitLease>,
}

const NONE: u32 = u32::MAX;

/// What a thread without demand keeps, as a part of the whole: of the link and of a limit, so that its first packets do not wait
/// for a lease.
const RESERVE: u64 = 4_096;

/// What a thread without demand keeps of a node's weight or `min`: it costs others nothing until a packet comes.
const STANDBY: u64 = 8;

/// The weight of a whole limit.
const WHOLE_LIMIT: u64 = 1 << 18;

impl Parts {
    pub(super) fn new(program: &Program, spanning: &[bool], threads: usize) -> Self {
        let mut rows = 0;
        let row_of = program.nodes.iter().zip(spanning).map(|(node, &spans)| {
            let is_divided = spans && (node.min.is_some() || has_weight(program, node));
            let row = if is_divided { rows } else { NONE };
            rows += u32::from(is_divided);
            row
        });
        let row_of: Vec<u32> = row_of.collect();
        let mut has_rows: Vec<bool> = row_of.iter().map(|&row| row != NONE).collect();
        for (at, node) in program.nodes.iter().enumerate() {
            has_rows[at] |= node.parent.is_some_and(|parent| has_rows[parent.0 as usize]);
        }
        let across = program.limits.iter().filter(|limit| matches!(limit.scope, Scope::Match { .. })).count();
        let link = BitRate::new(program.link.get() / threads as u64).unwrap_or(program.link);
        // Not cloned: a clone has no spare capacity.
        let leased = || Leased {
            link,
            nodes: Vec::with_capacity(rows as usize * (1 + across)),
            limits: Vec::with_capacity(program.limits.len()),
        };
        Self {
            threads,
            rates: vec![0; rows as usize * threads],
            held: vec![false; rows as usize * threads],
            present: vec![0; rows as usize * threads],
            behind: vec![0; program.limits.len() * threads],
            touched: Vec::with_capacity(rows as usize),
            links: vec![0; threads],
            leased: (0..threads).map(|_| leased()).collect(),
            row_of,
            has_rows,
        }
    }

    /// A member joins: there may be parts now where there was one thread.
    pub(super) fn join(&mut self, tree: &Tree, class: u32, thread: usize, limits: &[LimitId]) {
        for at in tree.path(class) {
            if let Some(row) = self.row(at) {
                self.present[row + thread] += 1;
            }
        }
        for limit in limits {
            self.behind[limit.0 as usize * self.threads + thread] += 1;
        }
    }

    pub(super) fn lease(&self, thread: usize) -> Lease<'_> {
        let Leased { link, nodes, limits } = &self.leased[thread];
        Lease { link: *link, nodes, limits }
    }

    /// Nodes that may have members on several threads.
    pub(super) fn rows(&self) -> usize {
        self.present.len() / self.threads
    }

    fn row(&self, node: u32) -> Option<usize> {
        self.row_of.get(node as usize).filter(|&&row| row != NONE).map(|&row| row as usize * self.threads)
    }

    /// The next leases begin.
    pub(super) fn begin(&mut self) {
        self.links.fill(0);
        for leased in &mut self.leased {
            leased.nodes.clear();
            leased.limits.clear();
        }
    }

    /// A thread gets more of the link.
    pub(super) fn add_link(&mut self, thread: u32, rate: u64) {
        self.links[thread as usize] += rate;
    }

    /// Divides what is left of the link equally. A thread keeps a reserve, which the others give if nothing is left.
    pub(super) fn divide_link(&mut self, link: u64) {
        let threads = self.threads as u64;
        let reserve = (link / RESERVE).max(1);
        let used: u64 = self.links.iter().sum();
        let most = link - reserve * threads;
        let left = most.saturating_sub(used) / threads;
        for (leased, &part) in self.leased.iter_mut().zip(&self.links) {
            let part = if used > most { scaled(part, most, used) } else { part };
            leased.link = BitRate::new(part + left + reserve).expect("the reserve is above zero");
        }
    }

    /// Adds the rate of a member of a class to that class and the nodes above it.
    pub(super) fn add(&mut self, tree: &Tree, class: u32, thread: u32, rate: u64, is_held: bool) {
        if !self.has_rows[class as usize] {
            return;
        }
        for at in tree.path(class) {
            let Some(row) = self.row(at) else { continue };
            let at_rest = |(rate, held): (&u64, &bool)| *rate == 0 && !held;
            if self.rates[row..row + self.threads]
                .iter()
                .zip(&self.held[row..row + self.threads])
                .all(at_rest)
            {
                self.touched.push(at);
            }
            self.rates[row + thread as usize] += rate;
            self.held[row + thread as usize] |= is_held;
        }
    }

    /// Leases the nodes that have rates, and forgets the rates.
    pub(super) fn lease_nodes(&mut self, program: &Program, behind: Option<LimitId>) {
        for index in 0..self.touched.len() {
            self.lease_node(program, self.touched[index], behind);
        }
        self.forget();
    }

    /// Forgets the rates that were added.
    pub(super) fn forget(&mut self) {
        while let Some(node) = self.touched.pop() {
            if let Some(row) = self.row(node) {
                self.rates[row..row + self.threads].fill(0);
                self.held[row..row + self.threads].fill(false);
            }
        }
    }

    fn lease_node(&mut self, program: &Program, id: u32, behind: Option<LimitId>) {
        let Some(row) = self.row(id).filter(|_| id > 0) else { return };
        let node = &program.nodes[id as usize];
        let has_weight = has_weight(program, node);
        let min = node.min.filter(|_| behind.is_none());
        let (rates, present) = (&self.rates[row..row + self.threads], &self.present[row..row + self.threads]);
        let splits = present.iter().filter(|&&members| members > 0).count() > 1;
        if !has_weight && min.is_none() || !splits && behind.is_none() {
            return;
        }
        let behind_rate = behind.map(|limit| program.limit(limit).rate.get());
        let whole: u64 = rates.iter().sum();
        let held = &self.held[row..row + self.threads];
        for (thread, leased) in self.leased.iter_mut().enumerate().filter(|&(thread, _)| present[thread] > 0)
        {
            // A part that is not held back sends no more than it has: a larger weight lets it grow, and takes from nobody.
            let rate = if held[thread] { rates[thread] } else { 2 * rates[thread] };
            let idle = rate == 0 && !held[thread];
            let part = |of: u64| if idle { of / STANDBY } else { scaled(of, rate, whole) }.max(1);
            // Behind a limit by match each child divides by its rate: what holds a child there may be the link on all threads
            // together, of which this one sees too little.
            let weight = match behind_rate {
                Some(limit) => scaled(WHOLE_LIMIT, rate, limit).max(1),
                None => part(node.weight.into()),
            };
            leased.nodes.push(NodeLease {
                node: NodeId(id),
                behind,
                weight: u32::try_from(weight).unwrap_or(u32::MAX),
                min: min.and_then(|min| BitRate::new(part(min.get()).min(min.get()))),
            });
        }
    }

    /// Whether a limit has members on several threads.
    pub(super) fn spans_limit(&self, id: LimitId) -> bool {
        let from = id.0 as usize * self.threads;
        self.behind[from..from + self.threads].iter().filter(|&&members| members > 0).count() > 1
    }

    /// Divides a limit in proportion to the rates that pass it on each thread. What no member uses is divided equally.
    pub(super) fn lease_limit(&mut self, id: LimitId, rate: u64, burst: u64, credit: u64, passing: &[u64]) {
        let from = id.0 as usize * self.threads;
        let behind = &self.behind[from..from + self.threads];
        let threads = behind.iter().filter(|&&members| members > 0).count().max(1) as u64;
        let reserve = rate / RESERVE;
        let used: u64 = passing.iter().sum();
        let most = rate - reserve * threads;
        let left = most.saturating_sub(used) / threads;
        for (thread, leased) in self.leased.iter_mut().enumerate().filter(|&(thread, _)| behind[thread] > 0) {
            let part = if used > most { scaled(passing[thread], most, used) } else { passing[thread] };
            let part = part + left + reserve;
            let Some(part_rate) = BitRate::new(part) else { continue };
            leased.limits.push(LimitLease {
                limit: id,
                rate: part_rate,
                burst: Bytes::new(scaled(burst, part, rate)),
                credit: Bytes::new(scaled(credit, part, rate)),
            });
        }
    }
}

/// Whether a node shares with its siblings by weight.
fn has_weight(program: &Program, node: &plimsoll_policy::Node) -> bool {
    node.parent.is_some_and(|parent| matches!(program.node(parent).kind, NodeKind::Wfq | NodeKind::Drr))
}
