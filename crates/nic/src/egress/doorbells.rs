//! Doorbells: new descriptors, weights, rates and tags take effect.
//!
//! Why: a host changes what it asks for in line with its packets, without stopping the engine.
//! From: Loom §4.3.1 and §4.3.2.
//! Not here: the words (`doorbell`), and what a flow queue with packets does next (`egress`).
//! Invariant: words that make no sense are counted and change nothing.

use plimsoll_policy::{LimitId, NodeId, NodeKind};
use plimsoll_units::{BitRate, Nanos};
use plimsoll_wire::doorbell::ESCAPE;

use super::Nic;
use crate::doorbell::{self, Note};
use crate::ids::{GateId, QueueId, RecordId};
use crate::tree::Seat;

/// Flow queues that held no descriptors before these doorbells, in the order of the doorbells.
#[derive(Debug)]
struct Woken {
    records: [RecordId; WOKEN],
    count: usize,
    /// Whether their homes are brought into the cache until they join them.
    wide: bool,
}

const WOKEN: usize = 32;

impl Default for Woken {
    fn default() -> Self {
        Self { records: [RecordId::NONE; WOKEN], count: 0, wide: false }
    }
}

impl Nic {
    /// A batch of doorbell words arrives. Words that make no sense are counted and change nothing.
    #[inline]
    pub fn ring(&mut self, doorbells: &[u16], now: Nanos) {
        self.now = now;
        let mut woken = Woken { wide: self.outgrows_cache(), ..Woken::default() };
        let mut words = doorbells;
        while let Some((&word, rest)) = words.split_first() {
            words = rest;
            if word == ESCAPE {
                let (note, used) = doorbell::read_extension(rest);
                words = rest.get(used..).unwrap_or(&[]);
                self.heed(note, &mut woken, now);
            } else {
                self.admit(QueueId(word.into()), &mut woken, now);
            }
        }
        self.join_woken(&mut woken, now);
    }

    /// An entry with extension words.
    fn heed(&mut self, note: Note, woken: &mut Woken, now: Nanos) {
        if let Note::NewDescriptors(queue) = note {
            return self.admit(queue, woken, now);
        }
        self.join_woken(woken, now);
        match note {
            Note::Tag(queue, tag) if self.host.is_open(queue) => self.host.set_tag(queue, tag),
            Note::Weight(node, weight) if self.forest.knows(node) && weight > 0 => {
                self.set_weight(node, weight)
            }
            Note::Rate(limit, rate) if self.limits.has(limit) => self.set_rate(limit, rate, now),
            Note::ClassRate(node, rate) if self.has_rate(node) => self.set_class_rate(node, rate, now),
            _ => self.stats.bad_doorbells += 1,
        }
    }

    /// New descriptors of a flow queue. If it held none before, it joins its bundle, and the bundle its tree, at the end of the
    /// batch: whether it does cannot be predicted, so there is no branch.
    #[inline]
    fn admit(&mut self, queue: QueueId, woken: &mut Woken, now: Nanos) {
        let first = if self.ranks.is_empty() { None } else { self.host.first_new(queue) };
        match self.host.take_new(queue, now, &mut self.arrivals) {
            Some((record, wakes)) => {
                if let Some(first) = first {
                    self.rank_from(record, first, now);
                }
                woken.records[woken.count % WOKEN] = record;
                woken.count += usize::from(wakes);
                if woken.wide {
                    self.prefetch_home(record);
                }
                if woken.count == WOKEN {
                    self.join_woken(woken, now);
                }
            }
            None => self.stats.bad_doorbells += u64::from(!self.host.is_open(queue)),
        }
    }

    #[inline]
    fn prefetch_home(&self, record: RecordId) {
        let home = self.host.home_of(record);
        if let Some(bundle) = home.as_bundle() {
            self.bundles.prefetch(bundle);
        } else if let Some(class) = home.as_class() {
            self.forest.prefetch_seat(class);
        }
    }

    fn join_woken(&mut self, woken: &mut Woken, now: Nanos) {
        for &record in &woken.records[..woken.count] {
            let home = self.host.begin(record, now);
            self.join(home, record, now);
        }
        woken.count = 0;
    }

    fn set_rate(&mut self, limit: LimitId, rate: BitRate, now: Nanos) {
        self.program.limits[limit.0 as usize].rate = rate;
        self.ranks.set_rate(limit, rate);
        let state = &mut self.limits[limit];
        state.set_rate(rate, now);
        if state.gate != GateId::NONE {
            self.forest.reopen_at(state.gate, state.due());
            return self.set_alarms(now);
        }
        self.arm(limit);
    }

    fn set_weight(&mut self, node: NodeId, weight: u32) {
        self.program.nodes[node.0 as usize].weight = weight;
        self.ranks.set_weight(node, weight);
        let Some(parent) = self.program.node(node).parent else { return };
        let Seat { node: main, slot } = self.forest.seat(node);
        self.forest.set_weight(main, slot, weight);
        // Behind some limits the node may not stand yet, but its parent's order counts on its weight already.
        for &copy in self.layout.copies_of(parent) {
            self.forest.set_weight(copy, slot, weight);
        }
    }

    fn has_rate(&self, node: NodeId) -> bool {
        self.program.nodes.get(node.0 as usize).is_some_and(|node| node.rate.is_some())
    }

    /// Gives a child of a `rate_share` another rate, in force at the next decision. Nodes below that share the rate are told.
    fn set_class_rate(&mut self, node: NodeId, rate: BitRate, now: Nanos) {
        self.program.nodes[node.0 as usize].rate = Some(rate);
        let Some(parent) = self.program.node(node).parent else { return };
        let Seat { node: main, slot } = self.forest.seat(node);
        self.forest.set_rate(main, slot, rate, now);
        for &copy in self.layout.copies_of(parent) {
            self.forest.set_rate(copy, slot, rate, now);
        }
        if matches!(self.program.node(node).kind, NodeKind::Class(_)) {
            return self.set_alarms(now); // a class has no children
        }
        let below = |&(_, id): &(_, NodeId)| self.program.path(id).any(|above| above == node);
        let timers: Vec<_> = self.forest.timers().filter(below).collect();
        for (timer, id) in timers {
            self.forest.set_drain(timer, self.program.drain(id), now);
        }
        self.set_alarms(now);
    }
}
