//! The agents by which receivers control senders, and the faults of a run.
//!
//! Why: both concern several hosts, and need all of them.
//! From: `docs/scenarios.md`, "control" and "faults".
//! Not here: the laws (`plimsoll-control`), and a fault at work (`fault`).
//! Invariant: weights and envelopes are those of the policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_control::agent::LocalVm;
use plimsoll_control::{Envelope, HostId, Member, Membership, Sender};
use plimsoll_policy::{relative_weight, sender_weights};
use plimsoll_scenario::{Control, ControlLevel, Host, Tenant};
use plimsoll_units::{BitRate, Nanos, Span};

use super::{Builder, lives_on};
use crate::chance::Chance;
use crate::control::{Agents, NETWORK, Plan, Vm};
use crate::fault::FaultStep;
use crate::flow::Flow;
use crate::world::Source;

/// The hosts of a scenario that exchange messages.
struct Fleet {
    nodes: Vec<u32>,
    /// Their VMs, by node.
    vms: Vec<Vm>,
    /// Each tenant's weight and kind as a sender.
    senders: Vec<Sender>,
    /// The host that divides among load balancers: the host of the first of them.
    distributor: Option<HostId>,
}

impl Fleet {
    /// The fleet as the host `own` sees it.
    fn members(&self, own: u32) -> Membership {
        let hosts: Vec<HostId> =
            self.nodes.iter().filter(|&&node| node != own).map(|&node| HostId(node)).collect();
        let member = |vm: &Vm| {
            let host = hosts.iter().position(|host| host.0 == vm.node)?;
            let sender = self.senders[vm.tenant as usize];
            Some(Member { name: String::new(), vnic: vm.vnic(), host, sender })
        };
        let vms = self.vms.iter().filter_map(member).collect();
        let senders = (0..).zip(&self.senders).map(|(tenant, &sender)| {
            let lives_here = self.vms.contains(&Vm { tenant, node: own });
            (NETWORK, if lives_here { sender } else { Sender::default() })
        });
        let senders = senders.collect();
        Membership::new(HostId(own), hosts, vms, senders, self.distributor)
    }
}

impl Builder<'_> {
    /// Whether receivers control their senders in this system.
    pub(super) fn controlled(&self) -> bool {
        self.steering().is_some() && self.system.control != ControlLevel::Off && self.system.kind.on_engine()
    }

    /// The settings of control: the system's own, or the scenario's.
    fn steering(&self) -> Option<Control> {
        self.system.steering.clone().or_else(|| self.scenario.control.clone())
    }

    /// The pairs of a tenant on a node and a VM elsewhere to which it sends.
    pub(super) fn pairs_from(&self, node: u32) -> Vec<(u32, Vm)> {
        let ways = self.world.flows.iter().flat_map(Flow::legs);
        let away = ways.filter(|(from, _)| from.node == node);
        let pairs: BTreeSet<_> =
            away.filter_map(|(from, to)| Some((from.tenant?, to.elsewhere(node)?))).collect();
        pairs.into_iter().collect()
    }

    /// Makes an agent for each host with tenants.
    pub(super) fn control(&mut self) {
        let Some(spec) = self.steering() else { return };
        let source = self.source(Source::Feedback);
        self.world.encapsulated = spec.ecn;
        let fleet = self.fleet(&spec);
        let mut control = Box::new(Agents::new(spec, self.topology.nodes.len(), source));
        if self.system.faults {
            control.disturb(self.scenario.faults.feedback, Chance::of(self.seed, "feedback"));
        }
        for &node in &fleet.nodes {
            let rate = self.line_to(node);
            let here = fleet.vms.iter().filter(|vm| vm.node == node);
            let plan = Plan {
                source: self.source(Source::Epoch(node)),
                rate,
                level: self.system.control,
                members: Arc::new(fleet.members(node)),
                vms: here.map(|&vm| self.local_vm(vm, rate)).collect(),
                pairs: self.pairs_from(node),
            };
            control.add(node, plan);
        }
        self.world.control = Some(control);
    }

    /// The hosts that exchange messages.
    fn fleet(&self, spec: &Control) -> Fleet {
        let silent = |host: &Host| self.system.faults && self.scenario.faults.silent.contains(&host.name);
        let hosts = (0..).zip(&self.scenario.hosts);
        let hosts = hosts.filter(|(_, host)| self.has_engine(host) && !silent(host));
        let mut fleet =
            Fleet { nodes: Vec::new(), vms: Vec::new(), senders: self.senders(spec), distributor: None };
        for (node, host) in hosts {
            let tenants = (0..).zip(&self.scenario.tenants).filter(|(_, tenant)| lives_on(tenant, host));
            fleet.vms.extend(tenants.map(|(tenant, _)| Vm { tenant, node }));
            fleet.nodes.push(node);
        }
        let balances = |vm: &&Vm| fleet.senders[vm.tenant as usize].balancer;
        fleet.distributor = fleet.vms.iter().find(balances).map(|vm| HostId(vm.node));
        fleet
    }

    /// Each tenant's weight and kind as a sender.
    fn senders(&self, spec: &Control) -> Vec<Sender> {
        let tenants = self.scenario.tenants.iter().zip(self.sender_weights());
        let sender = |(tenant, weight): (&Tenant, u32)| {
            let among = spec.balancers.iter().find(|(name, _)| *name == tenant.name);
            let among = among.map(|(_, weight)| weight.saturating_mul(Sender::ORDINARY));
            Sender { weight: among.unwrap_or(weight), balancer: among.is_some() }
        };
        tenants.map(sender).collect()
    }

    /// The rate of a host's line on the way in.
    fn line_to(&self, node: u32) -> BitRate {
        let into = self.topology.links.iter().filter(|edge| edge.to == node && edge.from != node);
        into.filter_map(|edge| edge.spec.rate).max().unwrap_or(self.scenario.rate)
    }

    /// A tenant on a host as a receiver.
    fn local_vm(&self, vm: Vm, line: BitRate) -> LocalVm {
        let stated = &self.scenario.tenants[vm.tenant as usize];
        let slo = self.promised.get(&(vm.node, vm.tenant));
        let own =
            |of: fn(&plimsoll_policy::Envelope) -> Option<BitRate>| slo.and_then(|slo| of(&slo.ingress));
        let min = own(|envelope| envelope.min).or(stated.min);
        let max = own(|envelope| envelope.max).or(stated.max).unwrap_or(line);
        LocalVm {
            vnic: vm.vnic(),
            envelope: Envelope { min, max },
            threshold: slo.and_then(|slo| slo.threshold),
            seed: vm.tenant.into(),
        }
    }

    /// Schedules the faults.
    pub(super) fn faults(&mut self) {
        if !self.system.faults {
            return;
        }
        let faults = &self.scenario.faults;
        let node = |name: &String| self.topology.node(name).expect("every host is a node");
        let tenant = |name: &String| {
            let place = self.scenario.tenants.iter().position(|tenant| tenant.name == *name);
            place.expect("checked when read") as u32
        };
        let at = |span: Span| Nanos::ZERO + span;
        let nanos = |span: Span| i64::try_from(span.as_u64()).unwrap_or(i64::MAX);
        let mut steps = Vec::new();
        for restart in &faults.restarts {
            let node = node(&restart.host);
            steps.push((at(restart.at), FaultStep::Down(node)));
            steps.push((at(restart.at + restart.gap), FaultStep::Up(node)));
        }
        for clock in &faults.clocks {
            let ahead = if clock.back { -nanos(clock.step) } else { nanos(clock.step) };
            steps.push((at(clock.at), FaultStep::Clock(node(&clock.host), ahead)));
        }
        for stall in &faults.stalls {
            steps.push((at(stall.from), FaultStep::Stall(tenant(&stall.tenant))));
            steps.push((at(stall.to), FaultStep::Resume(tenant(&stall.tenant))));
        }
        steps.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
        self.world.faults.steps = steps;
    }

    /// The number of times that a host's daemon ends.
    pub(super) fn restarts(&self, host: &Host) -> usize {
        let restarts = self.scenario.faults.restarts.iter().filter(|restart| restart.host == host.name);
        if self.system.faults { restarts.count() } else { 0 }
    }

    /// Each tenant's weight as a sender, as live from the fleet's map.
    fn sender_weights(&self) -> Vec<u32> {
        let stated: Vec<_> =
            self.scenario.tenants.iter().map(|tenant| (tenant.stated_weight(), tenant.max)).collect();
        let weights = sender_weights(&stated);
        let heaviest = weights.iter().copied().max().unwrap_or(1);
        weights.into_iter().map(|weight| relative_weight(weight, heaviest)).collect()
    }
}
