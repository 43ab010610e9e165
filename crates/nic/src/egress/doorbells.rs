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

impl Nic {
    /// A batch of doorbell words arrives. Words that make no sense are counted and change nothing.
    #[inline]
    pub fn ring(&mut self, doorbells: &[u16], now: Nanos) {
        self.now = now;
        if self.outgrows_cache() {
            self.prefetch_rung(doorbells);
        }
        let mut words = doorbells;
        while let Some((&word, rest)) = words.split_first() {
            words = rest;
            if word == ESCAPE {
                let (note, used) = doorbell::read_extension(rest);
                words = rest.get(used..).unwrap_or(&[]);
                self.heed(note, now);
            } else {
                self.admit(QueueId(word.into()), now);
            }
        }
    }

    fn prefetch_rung(&self, doorbells: &[u16]) {
        let mut words = doorbells;
        while let Some((&word, rest)) = words.split_first() {
            words = rest;
            let mut queue = u32::from(word);
            if word == ESCAPE {
                let (note, used) = doorbell::read_extension(rest);
                words = rest.get(used..).unwrap_or(&[]);
                queue = if let Note::NewDescriptors(QueueId(queue)) = note { queue } else { continue };
            }
            let home = self.host.home_of(RecordId(queue));
            if let Some(class) = home.as_class() {
                self.forest.prefetch_seat(class);
            } else if let Some(bundle) = home.as_bundle() {
                self.bundles.prefetch(bundle);
            }
        }
    }

    /// An entry with extension words.
    fn heed(&mut self, note: Note, now: Nanos) {
        match note {
            Note::NewDescriptors(queue) => self.admit(queue, now),
            Note::Tag(queue, tag) if self.host.is_open(queue) => self.host.set_tag(queue, tag),
            Note::Weight(node, weight) if self.forest.knows(node) && weight > 0 => {
                self.set_weight(node, weight)
            }
            Note::Rate(limit, rate) if self.limits.has(limit) => self.set_rate(limit, rate, now),
            Note::ClassRate(node, rate) if self.has_rate(node) => self.set_class_rate(node, rate, now),
            _ => self.stats.bad_doorbells += 1,
        }
    }

    /// New descriptors of a flow queue: the queue joins its bundle, the bundle its tree.
    #[inline]
    fn admit(&mut self, queue: QueueId, now: Nanos) {
        match self.host.take_new(queue, now, &mut self.arrivals) {
            Some((id, home)) => self.join(home, id, now),
            None => self.stats.bad_doorbells += u64::from(!self.host.is_open(queue)),
        }
    }

    fn set_rate(&mut self, limit: LimitId, rate: BitRate, now: Nanos) {
        self.program.limits[limit.0 as usize].rate = rate;
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
