//! Reading the engine's counters.
//!
//! Why: operators, reports and tests ask how much each class, limit and tenant was given.
//! Not here: the shapes in which counters are shown (`stats`), and counting itself (`egress`, `host`, `account`).
//! Invariant: reading changes nothing.

use plimsoll_policy::{LimitId, NodeId, TenantId};

use crate::bundle::{Asks, Done};
use crate::egress::Nic;
use crate::ids::{BundleId, GateId, Table};
use crate::stats::{ClassCounters, EngineStats, LimitCounters, NodeRank, TenantCounters};

impl Nic {
    /// Counters of a class since the policy was installed. Linear in flow queues: for all classes at once there
    /// is [`Nic::all_class_counters`].
    #[must_use]
    pub fn class_counters(&self, class: NodeId) -> ClassCounters {
        self.all_class_counters().get(class.0 as usize).copied().unwrap_or_default()
    }

    /// Counters of each node's own flow queues since the policy was installed, by [`NodeId`].
    #[must_use]
    pub fn all_class_counters(&self) -> Vec<ClassCounters> {
        let refused = |&refused| ClassCounters { refused, ..ClassCounters::default() };
        let mut classes: Vec<ClassCounters> = self.refused.iter().map(refused).collect();
        for (class, done) in classes.iter_mut().zip(self.sums.iter()) {
            (class.packets, class.bytes) = (done.packets, done.bytes);
        }
        for (home, packets, bytes) in self.host.counted() {
            let class = &mut classes[self.class_at(home).0 as usize];
            class.packets += u64::from(packets);
            class.bytes += u64::from(bytes);
        }
        for bundle in self.bundles.iter() {
            let class = &mut classes[bundle.class.0 as usize];
            class.packets += bundle.done.packets;
            class.bytes += bundle.done.bytes;
            let signals = bundle.signals();
            class.marked += signals.marked;
            class.dropped += signals.dropped;
        }
        for (home, packets, bytes) in self.host.backlogs() {
            let class = &mut classes[self.class_at(home).0 as usize];
            class.backlog_packets += packets;
            class.backlog_bytes += bytes;
        }
        classes
    }

    /// Counters of a limit since the policy was installed. Linear in flow queues: for all limits at once there is
    /// [`Nic::all_limit_counters`].
    #[must_use]
    pub fn limit_counters(&self, limit: LimitId) -> LimitCounters {
        self.all_limit_counters().get(limit.0 as usize).copied().unwrap_or_default()
    }

    /// Counters of each limit since the policy was installed, by [`LimitId`]. Linear in flow queues.
    #[must_use]
    pub fn all_limit_counters(&self) -> Vec<LimitCounters> {
        let mut limits = vec![LimitCounters::default(); self.limits.len()];
        let mut sums: Table<BundleId, Done> = self.bundles.iter().map(|bundle| bundle.done).collect();
        for (home, packets, bytes) in self.host.counted() {
            if let Some(bundle) = home.as_bundle() {
                sums[bundle].add((packets, bytes));
            }
        }
        for (bundle, done) in self.bundles.iter().zip(sums.iter()) {
            for hold in &self.holds[bundle.holds.range()] {
                let limit = &mut limits[hold.limit.0 as usize];
                limit.waiting += u32::from(hold.asks == Asks::Needs);
                limit.packets += done.packets;
                limit.bytes += done.bytes;
            }
        }
        for (counters, limit) in limits.iter_mut().zip(self.limits.iter()) {
            let (held, times) =
                if limit.gate == GateId::NONE { (false, 0) } else { self.forest.held_by(limit.gate) };
            counters.waiting += u32::from(held);
            counters.parked = limit.parked() + times;
            counters.released = counters.parked - u64::from(counters.waiting);
        }
        limits
    }

    /// Counters of a tenant.
    #[must_use]
    pub fn tenant_counters(&self, tenant: TenantId) -> TenantCounters {
        TenantCounters { held: self.accounts.held(tenant), refused: self.accounts.refused(tenant) }
    }

    /// Counters of the whole engine.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            held: self.accounts.host_held(),
            pairs: self.stats.pairs + self.stats.pulls,
            ..self.stats
        }
    }

    /// The rank that a packet of the class would get now at each node, from the class to the root.
    #[must_use]
    pub fn ranks(&self, class: NodeId) -> Vec<NodeRank> {
        if !self.forest.knows(class) {
            return Vec::new();
        }
        let path: Vec<NodeId> = self.program.path(class).collect();
        path.windows(2)
            .zip(self.forest.ranks(class))
            .map(|(pair, rank)| NodeRank { child: pair[0], node: pair[1], rank })
            .collect()
    }

    /// Whether the policy has a class with `flows: fq`: only then does it matter whether packets may be marked.
    #[inline]
    #[must_use]
    pub fn keeps_queues_short(&self) -> bool {
        self.host.keeps_flows()
    }

    /// How many flow queues are open.
    #[must_use]
    pub fn open_queues(&self) -> usize {
        self.host.open_count()
    }
}
