//! One of several engines under one policy: reports of its classes, and leases.
//!
//! Why: each thread has an engine of its own, and together they send what the policy says.
//! Not here: what a lease is (`plimsoll_control::leases`), and what the NIC engine does with it (`plimsoll_nic`).
//! Invariant: an engine that takes no lease has the whole link.

use plimsoll_control::leases::{Exchange, Lease, Taken};
use plimsoll_nic::ClassBytes;
use plimsoll_units::{BitRate, Bytes, Nanos};

use super::Dataplane;

impl Dataplane {
    /// Puts a lease in force.
    pub fn take_lease(&mut self, lease: &Lease<'_>, now: Nanos) {
        let nic = self.scheduler.nic.leased();
        nic.lease_link(lease.link, now);
        for node in lease.nodes {
            nic.lease_weight(node.node, node.behind, node.weight);
            if let Some(min) = node.min {
                nic.lease_min(node.node, min, now);
            }
        }
        for limit in lease.limits {
            nic.lease_limit(limit.limit, limit.rate, limit.burst, limit.credit, now);
        }
    }

    /// The engine's rate of the link.
    #[must_use]
    pub fn link_rate(&self) -> BitRate {
        self.scheduler.nic.link_rate()
    }

    /// Gives other threads what this one's link could not use, or takes what they could not use. To be called after a turn.
    pub fn even_out(&mut self, exchange: &Exchange, taken: &mut Taken, most: Bytes, now: Nanos) {
        let nic = self.scheduler.nic.leased();
        let lacks = nic.lacks_credit(now);
        if lacks > Bytes::ZERO {
            let borrowed = exchange.borrow(taken, lacks);
            if borrowed > Bytes::ZERO {
                nic.borrow_credit(borrowed, now);
            }
        } else {
            exchange.give(nic.take_unused(now), most);
        }
    }

    /// Adds each class's bytes that have left and that wait to `into`, by node.
    pub fn report_classes(&self, into: &mut [ClassBytes]) {
        self.scheduler.nic.report_classes(into);
    }
}
