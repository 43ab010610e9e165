//! A NIC's receive ring and the CPU behind it.
//!
//! Why: a host that takes packets slower than the link brings them loses them here, whatever the sender's policy.
//! From: a ring of descriptors served in order, with the same CPU time for each packet (PicNIC §2's bottleneck).
//! Not here: what is done with a packet then (`world`).
//! Invariant: at most `ring` packets are held; packets are taken in their order, `cost` apart at least.

use std::collections::VecDeque;

use plimsoll_scenario::ReceiveRing;
use plimsoll_units::Nanos;

use crate::agenda::SourceId;
use crate::packet::Packet;

/// A host's receive ring.
#[derive(Debug)]
pub(crate) struct Receive {
    spec: ReceiveRing,
    pub(crate) source: SourceId,
    /// Packets by the moment at which the CPU is through with them.
    held: VecDeque<(Nanos, Packet)>,
    busy: Nanos,
}

impl Receive {
    pub(crate) fn new(spec: ReceiveRing, source: SourceId) -> Self {
        Self { spec, source, held: VecDeque::new(), busy: Nanos::ZERO }
    }

    /// Takes a packet; false when the ring is full.
    pub(crate) fn offer(&mut self, packet: Packet, now: Nanos) -> bool {
        if self.held.len() >= self.spec.ring as usize {
            return false;
        }
        self.busy = self.busy.max(now) + self.spec.cost;
        self.held.push_back((self.busy, packet));
        true
    }

    /// When the CPU is through with the next packet.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.held.front().map(|&(at, _)| at)
    }

    /// That packet.
    pub(crate) fn take(&mut self) -> Option<Packet> {
        self.held.pop_front().map(|(_, packet)| packet)
    }

    /// All that it holds.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.held.iter().map(|(_, packet)| packet)
    }
}
