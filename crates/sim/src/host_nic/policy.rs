//! Changes of a host's policy while it is in force.
//!
//! Why: a scenario's `timeline:` changes rates and weights, or puts another policy in force, as an operator does live.
//! From: a change goes in front of the next doorbell, in the same write; another policy is installed as a reload is.
//! Not here: what the engine does with them (`nic`), and when they happen (`world`).
//! Invariant: packets that wait stay, in the order of their flows.

use std::collections::BTreeMap;

use plimsoll_nic::QueueId;
use plimsoll_policy::{Checked, Classifier, Fields, LimitId, NodeId, Placement, Program, TenantId};
use plimsoll_scenario::{Change, Setting};
use plimsoll_units::{BitRate, Nanos};

use super::HostNic;
use crate::bounds::DelayBounds;

/// A change of the policy that doorbell words carry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Update {
    Limit(LimitId, BitRate),
    Weight(NodeId, u32),
    Rate(NodeId, BitRate),
}

/// The policy's tenants by the scenario's.
pub(super) fn ids_of(program: &Program, tenants: &[String]) -> Vec<Option<TenantId>> {
    let ids = (0..).map(TenantId).zip(&program.tenants).map(|(id, tenant)| (&tenant.name, id));
    let ids: BTreeMap<_, _> = ids.collect();
    tenants.iter().map(|name| ids.get(name).copied()).collect()
}

impl HostNic {
    /// Whether the policy has the limit or class that a change names.
    pub(crate) fn knows(&self, change: &Change) -> bool {
        self.update(change).is_some()
    }

    /// Puts another policy in force, as a reload does: packets that wait stay, in the order of their flows. `flows` has a flow of
    /// each flow queue, with its tenant. From then on no packet is held against a delay bound.
    #[cold]
    pub(crate) fn install(
        &mut self,
        checked: &Checked,
        tenants: &[String],
        flows: &BTreeMap<QueueId, (u32, Fields)>,
        now: Nanos,
    ) {
        let program = &checked.program;
        self.tenants = ids_of(program, tenants);
        self.classifier = Classifier::new(program);
        self.changes.clear();
        self.bounds = DelayBounds::default();
        let (classifier, ids) = (&self.classifier, &self.tenants);
        let place = |&(tenant, fields): &(u32, Fields)| {
            classifier.classify(program, &Fields { tenant: ids[tenant as usize], ..fields })
        };
        let placed: BTreeMap<QueueId, Placement> =
            flows.iter().map(|(&queue, flow)| (queue, place(flow))).collect();
        let nowhere = Placement { class: program.default_class, limits: Vec::new() };
        // There is one thread: several do not take changes.
        let of = |queue: QueueId| placed.get(&queue).unwrap_or(&nowhere);
        self.engines[0].nic.install(program, &mut |queue| of(queue).clone(), now);
        for (queue, placement) in &placed {
            self.queues[queue.0 as usize].class = placement.class;
        }
        let key = |queue: QueueId| {
            let Placement { class, limits } = of(queue);
            (0, *class, limits.iter().map(|limit| limit.0).collect())
        };
        let shared = core::mem::take(&mut self.shared);
        self.shared = shared.into_values().map(|queue| (key(queue), queue)).collect();
    }

    /// Changes the policy from the next doorbell on: the change goes in front of it, in the same write (Loom §4.3.2).
    pub(crate) fn change(&mut self, change: &Change) {
        if matches!(change.setting, Setting::Weight(_) | Setting::Rate(_)) {
            self.bounds.shares_changed();
        }
        self.changes.extend(self.update(change));
    }

    fn update(&self, change: &Change) -> Option<Update> {
        let program = self.program();
        let limit = || (0..).map(LimitId).zip(&program.limits).find(|(_, limit)| limit.name == change.name);
        let node = || program.find(&change.name);
        Some(match change.setting {
            Setting::Limit(rate) => Update::Limit(limit()?.0, rate),
            Setting::Weight(weight) => Update::Weight(node()?, weight),
            Setting::Rate(rate) => Update::Rate(node().filter(|&id| program.node(id).rate.is_some())?, rate),
            Setting::Policy => return None,
        })
    }

    #[cold]
    pub(super) fn announce_changes(&mut self) {
        // There is one thread: several do not take changes.
        let doorbells = &mut self.engines[0].doorbells;
        for update in self.changes.drain(..) {
            match update {
                Update::Limit(limit, rate) => doorbells.set_rate(limit, rate),
                Update::Weight(node, weight) => doorbells.set_weight(node, weight),
                Update::Rate(node, rate) => doorbells.set_class_rate(node, rate),
            }
        }
    }
}
