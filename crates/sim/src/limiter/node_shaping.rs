//! A PIFO tree that shapes at its nodes, in place of one global shaping queue.
//!
//! Why: it shows what goes wrong where a limited packet and a free one share a node: the limit delays the wrong packet.
//! From: Sivaraman et al., "Programmable packet scheduling at line rate" (SIGCOMM 2016), as Loom describes it (Figure 6):
//! the node ranks all of its packets when they arrive, and a packet's limit only says when a pointer to the node enters its
//! parent.
//! Not here: Loom's own answer, which the engine has.
//! Invariant: there are as many pointers as packets; a pointer takes the best packet of its moment, whosever limit made it.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos};

use super::QUEUE;
use crate::packet::Packet;

/// One node for all tenants of a host; a tenant goes before those that the scenario names later.
#[derive(Debug)]
pub(crate) struct NodeShaping {
    /// By tenant: its waiting packets, and the pace of its pointers, if it has a `max`.
    tenants: Vec<(VecDeque<Packet>, Option<Pace>)>,
    /// The moments at which the node's pointers enter the root.
    pointers: BinaryHeap<Reverse<Nanos>>,
}

impl NodeShaping {
    pub(super) fn new(maxima: impl Iterator<Item = Option<BitRate>>) -> Self {
        let tenant = |max: Option<BitRate>| (VecDeque::with_capacity(QUEUE), max.map(Pace::new));
        Self { tenants: maxima.map(tenant).collect(), pointers: BinaryHeap::new() }
    }

    pub(super) fn offer(&mut self, tenant: u32, packet: Packet, now: Nanos) -> bool {
        let (queue, pace) = &mut self.tenants[tenant as usize];
        if queue.len() >= QUEUE {
            return false;
        }
        let moment = pace.as_mut().map_or(now, |pace| {
            let moment = pace.earned().max(now);
            pace.catch_up(moment);
            pace.charge(Bytes::new(packet.len.into()));
            moment
        });
        self.pointers.push(Reverse(moment));
        queue.push_back(packet);
        true
    }

    /// The best packet, for a link that is free from `free` on, if a pointer has entered the root.
    pub(super) fn dequeue(&mut self, now: Nanos, free: Nanos) -> Option<Packet> {
        if free > now || self.next()? > now {
            return None;
        }
        self.pointers.pop();
        self.tenants.iter_mut().find_map(|(queue, _)| queue.pop_front())
    }

    /// When a packet may leave, apart from the link.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.pointers.peek().map(|Reverse(moment)| *moment)
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.tenants.iter().flat_map(|(queue, _)| queue)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_units::Span;

    use super::*;
    use crate::packet::Body;

    /// Golden vector G8: D1 is free, D2 arrives later, ranks better and is limited to a moment `T`.
    #[test]
    fn the_limit_delays_the_packet_that_has_none() {
        let limited = BitRate::mbps(120); // 1,500 B in 100 us
        let mut node = NodeShaping::new([Some(limited), None].into_iter());
        let at = |us| Nanos::ZERO + Span::micros(us);
        let body = Body::Datagram { number: 0, offset: 0, size: 1_458, last: true };
        let packet = |flow| Packet::new((flow, false), false, 1_500, body);
        assert!(node.offer(0, packet(0), at(0)), "uses what the limit allows at once");
        assert_eq!(node.dequeue(at(0), at(0)).map(|packet| packet.flow), Some(0));
        assert!(node.offer(1, packet(1), at(1)) && node.offer(0, packet(2), at(2)));
        assert_eq!(
            node.dequeue(at(2), at(2)).map(|packet| packet.flow),
            Some(2),
            "the limited packet leaves at once"
        );
        assert!(node.dequeue(at(99), at(2)).is_none());
        assert_eq!(node.next(), Some(at(100)));
        assert_eq!(
            node.dequeue(at(100), at(100)).map(|packet| packet.flow),
            Some(1),
            "and the free one waits"
        );
        assert_eq!(node.holds().count(), 0);
    }
}
