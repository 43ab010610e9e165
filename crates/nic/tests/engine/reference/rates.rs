//! Nodes whose children have rates: SENIC §4.1, `V += elapsed / max(1, phi)`; behind a limit `V += served / phi`.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_policy::{NodeId, NodeKind, Program};
use plimsoll_units::Bytes;

use super::tree::Node;

/// The state of a node with rates beyond V and starts.
#[derive(Clone, Default)]
pub(super) struct Paced {
    /// Whether V goes with real time, when it was last looked at, and its fraction in 2^-32.
    pub(super) real: bool,
    pub(super) at: u64,
    pub(super) fraction: u128,
    pub(super) drain: u64,
    pub(super) patience: u64,
    pub(super) largest: u64,
    /// Children that are active, those of them that have been eligible since they were charged, and their rates.
    pub(super) members: BTreeSet<usize>,
    pub(super) due: BTreeSet<usize>,
    pub(super) rates: BTreeMap<usize, u64>,
    pub(super) rests: BTreeMap<usize, u128>,
    /// The moment until which no child is eligible.
    pub(super) asleep: Option<u64>,
}

impl Node {
    fn phi(&self) -> u64 {
        self.paced.members.iter().map(|child| self.paced.rates[child]).sum()
    }

    fn start(&self, child: usize) -> u64 {
        self.starts.get(&child).copied().unwrap_or(0)
    }

    /// A byte takes 8 / rate, kept in 2^-30 ns and rounded up.
    fn fine(&self, child: usize, len: u64) -> u128 {
        u128::from(len) * (8_000_000_000_u128 << 30).div_ceil(self.paced.rates[&child].into())
    }

    fn pass(&mut self, bits: u128) {
        let fine = (bits << 32) / u128::from(self.phi()) + self.paced.fraction;
        self.v += (fine >> 32) as u64;
        self.paced.fraction = fine & 0xffff_ffff;
    }

    fn ripen(&mut self) {
        let come = self.paced.members.iter().copied().filter(|&child| self.start(child) <= self.v);
        let come: Vec<usize> = come.collect();
        self.paced.due.extend(come);
    }

    fn finish(&self, child: usize) -> u64 {
        self.start(child) + (self.fine(child, self.paced.largest) >> 30) as u64
    }

    /// V comes to the present, but no further than a few frames beyond the first that should have been through.
    pub(super) fn advance(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.paced.at);
        if !self.paced.real || elapsed == 0 {
            return;
        }
        let before = self.v;
        self.paced.at = now;
        if self.phi() <= self.paced.drain {
            self.v += elapsed;
        } else {
            self.pass(u128::from(elapsed) * u128::from(self.paced.drain));
        }
        self.ripen();
        if let Some(first) = self.paced.due.iter().map(|&child| self.finish(child)).min() {
            self.v = self.v.min(first + self.paced.patience).max(before);
        }
    }

    pub(super) fn wakes_at(&self) -> u64 {
        let later = self.paced.members.difference(&self.paced.due);
        let Some(first) = later.map(|&child| self.start(child)).min() else { return self.paced.at };
        let gap = first - self.v;
        if self.phi() <= self.paced.drain {
            return self.paced.at + gap;
        }
        let fine = (u128::from(gap) << 32) - self.paced.fraction;
        self.paced.at + (fine * u128::from(self.phi())).div_ceil(u128::from(self.paced.drain) << 32) as u64
    }

    pub(super) fn join(&mut self, child: usize, since: u64, now: u64) {
        self.advance(now);
        let waited = now - since;
        let passed = match self.phi() {
            phi if phi > self.paced.drain => {
                (u128::from(waited) * u128::from(self.paced.drain) / u128::from(phi)) as u64
            }
            _ => waited,
        };
        let floor = if self.paced.real { self.v.saturating_sub(passed) } else { self.v };
        if self.start(child) < floor {
            self.starts.insert(child, floor);
            self.paced.rests.insert(child, 0);
        }
        self.paced.members.insert(child);
        self.place(child);
    }

    fn place(&mut self, child: usize) {
        self.paced.due.remove(&child);
        if self.start(child) <= self.v {
            self.paced.due.insert(child);
        }
    }

    pub(super) fn pick(&mut self, slots: &[usize], now: u64) -> usize {
        self.advance(now);
        if self.paced.due.is_empty() {
            assert!(!self.paced.real, "an active node has an eligible child");
            let first = self.paced.members.iter().map(|&child| self.start(child)).min();
            self.v = self.v.max(first.expect("an active child"));
            self.ripen();
        }
        let slot = |child: usize| slots.iter().position(|&other| other == child);
        let due = self.paced.due.iter().copied();
        due.min_by_key(|&child| (self.finish(child), slot(child))).expect("a child is eligible")
    }

    pub(super) fn serve(&mut self, child: usize, charged: u64, stays: bool) {
        if charged > 0 {
            let fine = self.fine(child, charged) + self.paced.rests.get(&child).copied().unwrap_or(0);
            *self.starts.entry(child).or_insert(0) += (fine >> 30) as u64;
            self.paced.rests.insert(child, fine & ((1 << 30) - 1));
            if !self.paced.real {
                self.pass(u128::from(charged) * 8_000_000_000);
                self.ripen();
            }
        }
        if stays {
            return self.place(child);
        }
        self.paced.members.remove(&child);
        self.paced.due.remove(&child);
    }

    pub(super) fn set_rate(&mut self, child: usize, rate: u64, now: u64) {
        self.advance(now);
        let before = self.paced.rates.insert(child, rate).expect("it has one");
        let start = self.start(child);
        let due = self.paced.due.contains(&child);
        if start > self.v && !due {
            let owed = u128::from(start - self.v) * u128::from(before);
            self.starts.insert(child, self.v + owed.div_ceil(rate.into()) as u64);
        }
        self.paced.rests.insert(child, 0);
        if self.paced.members.contains(&child) && !due {
            self.place(child);
        }
    }
}

impl Paced {
    /// Rates hold in real time in the main tree, unless an order above looks at packets.
    pub(super) fn new(program: &Program, id: usize, main: bool, largest: u64) -> Self {
        let node = &program.nodes[id];
        if !matches!(node.kind, NodeKind::RateShare(_)) {
            return Self::default();
        }
        let id = NodeId(id as u32);
        let by_packets = |above: NodeId| {
            matches!(program.node(above).kind, NodeKind::Fifo | NodeKind::Lstf | NodeKind::Edf)
        };
        let rate = |&child: &NodeId| (child.0 as usize, program.node(child).rate.expect("stated").get());
        let drain = program.drain(id);
        Self {
            real: main && !program.path(id).any(by_packets),
            drain: drain.get(),
            patience: 3 * drain.wire_time(Bytes::new(largest)).as_u64(),
            largest,
            rates: node.children.iter().map(rate).collect(),
            ..Self::default()
        }
    }
}
