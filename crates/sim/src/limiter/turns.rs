//! A NIC whose egress serves its tenants' queues in turn, a packet at a time.
//!
//! Why: with equal turns the tenant with the longest packets has most of the link, whatever its part of cores and bus.
//! From: FairNIC §3.1.1: the default between the cores of a SmartNIC and its link.
//! Not here: turns by bytes, which the engine has (`drr`).
//! Invariant: between two packets of a tenant that waits, every other tenant that waits sends one.

use std::collections::VecDeque;

use plimsoll_units::Nanos;

use super::QUEUE;
use crate::packet::Packet;

/// A queue for each tenant, and whose turn is next.
#[derive(Debug)]
pub(crate) struct Turns {
    queues: Vec<VecDeque<Packet>>,
    /// Tenants with packets, in the order of their turns.
    turns: VecDeque<u32>,
}

impl Turns {
    pub(super) fn new(tenants: usize) -> Self {
        let queue = || VecDeque::with_capacity(QUEUE);
        Self { queues: (0..tenants).map(|_| queue()).collect(), turns: VecDeque::with_capacity(tenants) }
    }

    pub(super) fn offer(&mut self, tenant: u32, packet: Packet) -> bool {
        let queue = &mut self.queues[tenant as usize];
        if queue.len() >= QUEUE {
            return false;
        }
        if queue.is_empty() {
            self.turns.push_back(tenant);
        }
        queue.push_back(packet);
        true
    }

    /// The packet of the tenant whose turn it is, for a link that is free from `free` on.
    pub(super) fn dequeue(&mut self, now: Nanos, free: Nanos) -> Option<Packet> {
        if free > now {
            return None;
        }
        let tenant = self.turns.pop_front()?;
        let queue = &mut self.queues[tenant as usize];
        let packet = queue.pop_front();
        if !queue.is_empty() {
            self.turns.push_back(tenant);
        }
        packet
    }

    /// When a packet may leave, apart from the link.
    pub(super) fn next(&self, now: Nanos) -> Option<Nanos> {
        (!self.turns.is_empty()).then_some(now)
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.queues.iter().flatten()
    }
}
