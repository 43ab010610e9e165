//! Receivers that tell senders what they may send, and what goes wrong in a run.
//!
//! Why: both are between hosts, and know all of them.
//! From: `docs/scenarios.md`, "control" and "faults".
//! Not here: the laws (`plimsoll-control`), and what a fault does (`fault`).
//! Invariant: weights and envelopes are the policies'.

use std::collections::BTreeSet;

use plimsoll_control::Envelope;
use plimsoll_policy::weight_of;
use plimsoll_scenario::{Control, ControlLevel, Home, Host};
use plimsoll_units::{BitRate, Nanos, Span};

use super::{Builder, lives_on};
use crate::chance::Chance;
use crate::control;
use crate::fault::Deed;
use crate::world::Source;

impl Builder<'_> {
    /// Whether receivers control their senders in this system.
    pub(super) fn controlled(&self) -> bool {
        self.steering().is_some() && self.system.control != ControlLevel::Off && self.system.kind.on_engine()
    }

    /// How they do.
    fn steering(&self) -> Option<Control> {
        self.system.steering.clone().or_else(|| self.scenario.control.clone())
    }

    /// How many pairs of a tenant here and one elsewhere there are.
    pub(super) fn pairs_from(&self, node: u32) -> u32 {
        let ways = self.world.flows.iter().flat_map(|flow| [flow.way(false), flow.way(true)]);
        let away = ways.filter(|(from, to)| from.node == node && to.node != node && to.tenant.is_some());
        let pairs: BTreeSet<_> =
            away.filter_map(|(from, to)| Some((from.tenant?, to.tenant?, to.node))).collect();
        pairs.len() as u32
    }

    /// Control epochs for each host with tenants. They do not begin together: hosts know nothing of each other's.
    pub(super) fn control(&mut self) {
        let Some(spec) = self.steering() else { return };
        let source = self.source(Source::Feedback);
        self.world.encapsulated = spec.ecn;
        let balancers = self.balancers(&spec);
        let mut control = Box::new(control::Control::new(spec, self.topology.nodes.len(), source));
        if !balancers.is_empty() {
            control.balance(balancers);
        }
        if self.system.faults {
            control.disturb(self.scenario.faults.feedback, Chance::of(self.seed, "feedback"));
        }
        let silent = |host: &Host| self.system.faults && self.scenario.faults.silent.contains(&host.name);
        for (node, host) in (0..).zip(&self.scenario.hosts) {
            if !self.has_engine(host) || silent(host) {
                continue;
            }
            let into = self.topology.links.iter().filter(|edge| edge.to == node && edge.from != node);
            let line = into.filter_map(|edge| edge.spec.rate).max().unwrap_or(self.scenario.rate);
            let tenants = (0..).zip(&self.scenario.tenants).filter(|(_, tenant)| lives_on(tenant, host));
            let vms: Vec<_> = tenants
                .map(|(index, tenant)| {
                    let slo = self.promised.get(&(node, index));
                    let own = |of: fn(&plimsoll_policy::Envelope) -> Option<BitRate>| {
                        slo.and_then(|slo| of(&slo.ingress))
                    };
                    let min = own(|envelope| envelope.min).or(tenant.min);
                    let max = own(|envelope| envelope.max).or(tenant.max).unwrap_or(line);
                    (index, Envelope { min, max }, slo.and_then(|slo| slo.threshold))
                })
                .collect();
            let source = self.source(Source::Epoch(node));
            control.add(node, source, line, self.system.control, &vms);
        }
        self.world.control = Some(control);
        self.world.weights = self.sender_weights();
    }

    /// Load balancers' vNICs, each with its tenant's weight.
    fn balancers(&self, spec: &Control) -> Vec<(control::Vm, u32)> {
        let mut members = Vec::new();
        for (name, weight) in &spec.balancers {
            let tenants = (0..).zip(&self.scenario.tenants);
            for (index, tenant) in tenants.filter(|(_, tenant)| tenant.name == *name) {
                let node = |home: &Home| self.topology.node(&home.host).expect("every host is a node");
                let vms = tenant.homes.iter().map(|home| control::Vm { tenant: index, node: node(home) });
                members.extend(vms.map(|vm| (vm, *weight)));
            }
        }
        members
    }

    /// What goes wrong, and what takes over then.
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
        let mut deeds = Vec::new();
        for restart in &faults.restarts {
            let node = node(&restart.host);
            deeds.push((at(restart.at), Deed::Down(node)));
            deeds.push((at(restart.at + restart.gap), Deed::Up(node)));
        }
        for clock in &faults.clocks {
            let ahead = if clock.back { -nanos(clock.step) } else { nanos(clock.step) };
            deeds.push((at(clock.at), Deed::Clock(node(&clock.host), ahead)));
        }
        for stall in &faults.stalls {
            deeds.push((at(stall.from), Deed::Stall(tenant(&stall.tenant))));
            deeds.push((at(stall.to), Deed::Resume(tenant(&stall.tenant))));
        }
        deeds.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
        self.world.faults.deeds = deeds;
    }

    /// How often a host's daemon ends.
    pub(super) fn restarts(&self, host: &Host) -> usize {
        let restarts = self.scenario.faults.restarts.iter().filter(|restart| restart.host == host.name);
        if self.system.faults { restarts.count() } else { 0 }
    }

    /// As a tenant's `max` to the greatest of them; all alike unless every one has a `max`.
    pub(super) fn sender_weights(&self) -> Vec<u32> {
        let maxima: Option<Vec<BitRate>> = self.scenario.tenants.iter().map(|tenant| tenant.max).collect();
        let Some(maxima) = maxima else { return vec![1_000; self.scenario.tenants.len()] };
        let greatest = maxima.iter().copied().max();
        maxima.iter().filter_map(|&max| Some(weight_of(max, greatest?))).collect()
    }
}
