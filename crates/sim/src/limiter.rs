//! Rate limiters of the systems that Plimsoll is compared with.
//!
//! Why: the engine is compared with what operators have without it, and with SENIC's hardware.
//! From: SENIC's baselines (§2.2, §7.2) and its prototype in hardware (§6.2); FairNIC's default egress (§3.1.1);
//! what Loom's shaping queue replaces (Loom, Figure 6).
//! Not here: Plimsoll's own engine (`crate::host_nic`). These are models of timing for comparison: nothing live uses them.
//! Invariant: packets of a tenant leave in the order in which they came, each once.

mod buckets;
mod fetch;
mod htb;
mod lock;
mod node_shaping;
mod turns;

use plimsoll_scenario::{Lateness, System, SystemKind, Tenant};
use plimsoll_units::{BitRate, Nanos, Span};

use crate::chance::Chance;
use crate::packet::Packet;
use buckets::Buckets;
use fetch::ClassFetch;
use htb::Htb;
use lock::LockedHtb;
use node_shaping::NodeShaping;
use turns::Turns;

/// The limiter of one host.
#[derive(Debug)]
pub(crate) enum Limiter {
    /// Linux's HTB behind its lock.
    Htb(Box<LockedHtb>),
    /// Token buckets in parallel.
    Buckets(Buckets),
    /// SENIC's hardware.
    Fetch(Box<ClassFetch>),
    /// Queues that take turns.
    Turns(Turns),
    /// A node that shapes by pointers to itself.
    NodeShaping(NodeShaping),
}

/// Packets of a tenant that may wait: Linux's `txqueuelen`.
const QUEUE: usize = 1_000;

impl Limiter {
    /// The limiter of a system without an engine.
    pub(crate) fn new(
        system: &System,
        tenants: &[Tenant],
        (line, mtu): (BitRate, u32),
        wake: Lateness,
        chance: Chance,
    ) -> Self {
        let rate = |tenant: &Tenant| tenant.max.unwrap_or(line).min(line);
        let rates: Vec<BitRate> = tenants.iter().map(rate).collect();
        let model = system.model;
        match system.kind {
            SystemKind::Ptb => Self::Buckets(Buckets::for_each(&rates)),
            SystemKind::Hwrl => {
                let count = model.limiters as usize;
                Self::Buckets(match model.reassign {
                    Some(every) => Buckets::for_the_busiest(&rates, count, every),
                    None => Buckets::shared(&rates, count),
                })
            }
            SystemKind::ClassFetch => {
                Self::Fetch(Box::new(ClassFetch::new(model.fetch, &rates, mtu, chance)))
            }
            SystemKind::RoundRobin => Self::Turns(Turns::new(tenants.len())),
            SystemKind::NodeShaping => {
                Self::NodeShaping(NodeShaping::new(tenants.iter().map(|tenant| tenant.max)))
            }
            _ => Self::Htb(Box::new(LockedHtb::new(
                Htb::new(tenants, line, mtu),
                model,
                wake,
                tenants.len(),
                chance,
            ))),
        }
    }

    /// Takes a tenant's packet; `false` when there is no room for it.
    pub(crate) fn offer(&mut self, tenant: u32, packet: Packet, now: Nanos) -> bool {
        match self {
            Self::Htb(htb) => htb.offer(tenant, packet, now),
            Self::Buckets(buckets) => buckets.offer(tenant, packet, now),
            Self::Fetch(fetch) => fetch.offer(tenant, packet, now),
            Self::Turns(turns) => turns.offer(tenant, packet),
            Self::NodeShaping(node) => node.offer(tenant, packet, now),
        }
    }

    /// The next packet that leaves now, for a link that is free from `free` on.
    pub(crate) fn dequeue(&mut self, now: Nanos, free: Nanos) -> Option<Packet> {
        match self {
            Self::Htb(htb) => htb.dequeue(now),
            Self::Buckets(buckets) => buckets.dequeue(now),
            Self::Fetch(fetch) => fetch.dequeue(now, free),
            Self::Turns(turns) => turns.dequeue(now, free),
            Self::NodeShaping(node) => node.dequeue(now, free),
        }
    }

    /// The next time at which a packet may leave, once none leaves now.
    pub(crate) fn next(&self, now: Nanos) -> Option<Nanos> {
        match self {
            Self::Htb(htb) => htb.next(now),
            Self::Buckets(buckets) => buckets.next(),
            Self::Fetch(fetch) => fetch.next(),
            Self::Turns(turns) => turns.next(now),
            Self::NodeShaping(node) => node.next(),
        }
    }

    /// All packets that it holds.
    pub(crate) fn holds(&self) -> Box<dyn Iterator<Item = &Packet> + '_> {
        match self {
            Self::Htb(htb) => Box::new(htb.holds()),
            Self::Buckets(buckets) => Box::new(buckets.holds()),
            Self::Fetch(fetch) => Box::new(fetch.holds()),
            Self::Turns(turns) => Box::new(turns.holds()),
            Self::NodeShaping(node) => Box::new(node.holds()),
        }
    }

    /// The CPU time that it took, where the model has one.
    pub(crate) fn cpu(&self) -> Option<Span> {
        match self {
            Self::Htb(htb) => htb.cpu(),
            Self::Buckets(_) | Self::Fetch(_) | Self::Turns(_) | Self::NodeShaping(_) => None,
        }
    }

    /// Its counters, by name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Fetch(fetch) => fetch.counters().to_vec(),
            Self::Htb(_) | Self::Buckets(_) | Self::Turns(_) | Self::NodeShaping(_) => Vec::new(),
        }
    }
}
