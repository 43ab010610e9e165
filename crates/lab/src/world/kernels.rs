//! Settings of the tenants' kernels: ECN, forwarding, and routes that lead through a gateway.
//!
//! Why: a gateway is a tenant whose kernel forwards, and each end of a connection has an ECN setting of its own.
//! From: `docs/scenarios.md`, "Tenants and policy" and "Backpressure on heavy flows"; ip-sysctl (Linux's documentation).
//! Not here: addresses and neighbours (`world`, `fleet`).
//! Invariant: all packets between two tenants take one way, whatever workload they are of.

use super::{Member, TENANT_DEVICE};
use crate::error::LabError;
use plimsoll_scenario::{Scenario, Workload};
use std::collections::BTreeMap;

/// Sets ECN in the tenants' namespaces, as far as the file states it.
pub(super) fn ecn(scenario: &Scenario, tenants: &[Member]) -> Result<(), LabError> {
    for (tenant, member) in scenario.tenants.iter().zip(tenants) {
        if let Some(value) = tenant.tcp_ecn {
            member.netns.set("net/ipv4/tcp_ecn", &value.to_string())?;
        }
    }
    Ok(())
}

/// Lets gateways forward, and leads workloads' packets through them, both ways.
pub(super) fn ways(scenario: &Scenario, tenants: &[Member]) -> Result<(), LabError> {
    let find = |name: &str| tenants.iter().find(|member| member.name == name);
    for (_, gateway) in scenario.tenants.iter().zip(tenants).filter(|(tenant, _)| tenant.forwards) {
        gateway.netns.set("net/ipv4/ip_forward", "1")?;
        // Both neighbours of a gateway are behind one device; it must not tell them to do without it.
        for of in ["all", TENANT_DEVICE] {
            gateway.netns.set(&format!("net/ipv4/conf/{of}/send_redirects"), "0")?;
        }
    }
    for workload in &scenario.workloads {
        let Some(gateway) = workload.through.as_deref().and_then(find) else { continue };
        let ends = [find(&workload.tenant), find(&workload.to)];
        let [Some(one), Some(other)] = ends else { continue };
        for (from, to) in [(one, other), (other, one)] {
            let (to, by) = (to.address, gateway.address);
            from.netns.ip(&[format!("route replace {to}/32 via {by} dev {TENANT_DEVICE} onlink")])?;
        }
    }
    Ok(())
}

/// Two workloads of which one goes through a gateway, and the other between the same tenants another way.
pub(crate) fn divided(scenario: &Scenario) -> Option<(&Workload, &Workload)> {
    let mut ways: BTreeMap<[&str; 2], &Workload> = BTreeMap::new();
    for workload in &scenario.workloads {
        let mut ends = [workload.tenant.as_str(), workload.to.as_str()];
        ends.sort_unstable();
        let known = *ways.entry(ends).or_insert(workload);
        if known.through != workload.through {
            return Some((known, workload));
        }
    }
    None
}
