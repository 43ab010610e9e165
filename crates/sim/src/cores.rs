//! A tenant's core: each answer and each packet that the tenant sends takes time there.
//!
//! Why: beyond some load a server is as fast as its core, and the CPU time of a packet decides how much is left for answers.
//! From: SENIC §7.2, where each tenant has one hyperthread; work is done in the order in which it comes.
//! Not here: the engine's thread (`host_nic`), the kernel's lock (`limiter`).
//! Invariant: a core does one piece of work at a time, and all that it takes on; it refuses only datagrams, while it is
//! behind by [`AHEAD`].

use std::collections::VecDeque;

use plimsoll_scenario::CoreCost;
use plimsoll_units::{Nanos, Span};

use crate::agenda::SourceId;
use crate::packet::{Body, Packet};

/// A core, and what it has to do.
#[derive(Debug)]
pub(crate) struct Core {
    cost: CoreCost,
    pub(crate) source: SourceId,
    /// Work by the moment at which it is done.
    work: VecDeque<(Nanos, Work)>,
    busy: Nanos,
}

/// A piece of work that takes time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// A packet is sent.
    Send(Packet),
    /// An end point writes an answer: the socket, and its bytes.
    Answer(u32, u64),
}

/// Pieces of work that may wait for a core before a datagram is refused.
const AHEAD: usize = 64;

impl Core {
    pub(crate) fn new(cost: CoreCost, source: SourceId) -> Self {
        Self { cost, source, work: VecDeque::new(), busy: Nanos::ZERO }
    }

    /// Takes work on; `false` for a datagram that the core has no time for.
    pub(crate) fn take(&mut self, work: Work, now: Nanos) -> bool {
        let cost = match &work {
            Work::Send(packet)
                if matches!(packet.body, Body::Datagram { .. }) && self.work.len() >= AHEAD =>
            {
                return false;
            }
            Work::Send(_) => self.cost.send,
            Work::Answer(..) => self.cost.answer,
        };
        self.busy = self.busy.max(now) + cost;
        self.work.push_back((self.busy, work));
        true
    }

    /// When the next piece of work is done.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.work.front().map(|(at, _)| *at)
    }

    /// The next piece of work that is done by `now`.
    pub(crate) fn done(&mut self, now: Nanos) -> Option<Work> {
        let (at, _) = self.work.front()?;
        if *at > now { None } else { self.work.pop_front().map(|(_, work)| work) }
    }

    /// Packets that it has not sent yet.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.work.iter().filter_map(|(_, work)| match work {
            Work::Send(packet) => Some(packet),
            Work::Answer(..) => None,
        })
    }

    /// Adds to the cost of sending a packet.
    pub(crate) fn burden(&mut self, cost: Span) {
        self.cost.send += cost;
    }
}
