//! Tenants' interfaces: only TAPs are the daemon's to set, and what is set must work together.
//!
//! Why: the kernel would refuse a route without a next hop on its network, at a start or a reload.
//! From: `docs/policy.md`, "A tenant's interface".
//! Not here: reading them (`read`), and setting them (`daemon`).
//! Invariant: a tenant with an `interface` has a TAP.

use crate::config::Port;
use crate::interface::Interface;
use crate::law::{Law, Problem, Problems};
use crate::read::syntax::TenantEntry;

/// A tenant's stated interface, without places.
pub(super) fn stated(tenant: &TenantEntry) -> Interface {
    let entry = &tenant.interface;
    Interface {
        addresses: entry.addresses.iter().map(|one| one.value).collect(),
        routes: entry.routes.iter().map(|one| one.value).collect(),
        mtu: entry.mtu.and_then(|mtu| u16::try_from(mtu.value).ok()),
        persist: entry.persist,
    }
}

pub(super) fn judge(tenants: &[TenantEntry], most: u16, problems: &mut Problems) {
    for tenant in tenants {
        let Some(at) = tenant.interface.at else { continue };
        let name = &tenant.name.value;
        let entry = &tenant.interface;
        if tenant.port.as_ref().is_some_and(|port| !matches!(port.value, Port::Tap { .. })) {
            let message = format!("tenant `{name}` has an `interface`, and its port is no TAP");
            let problem = Problem::error(Law::BadValue, at, message).label("not the daemon's to set");
            problems
                .push(problem.help("take `interface` out: the owner of the other end sets its addresses"));
        }
        let least = if entry.addresses.iter().any(|one| one.value.addr.is_ipv6()) { 1_280 } else { 68 };
        if let Some(mtu) = entry.mtu.filter(|mtu| mtu.value > u32::from(most) || mtu.value < least) {
            let message = format!("the `mtu` of tenant `{name}`'s interface is {}", mtu.value);
            let problem = Problem::error(Law::BadValue, mtu.at, message).label("this MTU");
            problems.push(problem.help(format!("write {least} to {most}, which reaches other hosts")));
        }
        let bound = super::addresses::stated(tenant);
        for one in entry.addresses.iter().filter(|_| bound.binds_ips()) {
            if !bound.ips.iter().any(|stated| stated.contains(one.value.addr)) {
                let message = format!(
                    "`addresses` of tenant `{name}` lack {}, which its interface gets",
                    one.value.addr
                );
                let problem =
                    Problem::error(Law::BadValue, one.at, message).label("its packets would be dropped");
                problems.push(problem.help(format!("add {} to the tenant's `addresses`", one.value.addr)));
            }
        }
        for one in &entry.addresses {
            let Some(why) = one.value.unusable() else { continue };
            let message = format!(
                "tenant `{name}`'s interface cannot have the address {}: it is {why}",
                one.value.addr
            );
            let problem = Problem::error(Law::BadValue, one.at, message).label("no address of one host");
            problems
                .push(problem.help("write the address that the tenant itself has, such as `10.0.0.5/24`"));
        }
        for route in &entry.routes {
            let Some(via) = route.value.via else { continue };
            if entry.addresses.iter().any(|one| one.value.addr == via) {
                let message = format!("the gateway {via} is tenant `{name}`'s own address");
                let problem = Problem::error(Law::BadValue, route.at, message).label("leads to itself");
                problems.push(problem.help("write the address of the router on that network"));
            }
            if !entry.addresses.iter().any(|one| one.value.holds(via)) {
                let message = format!("no address of tenant `{name}`'s interface is on a network with {via}");
                let problem = Problem::error(Law::BadValue, route.at, message).label("cannot be reached");
                problems.push(problem.help("add an address of that network to `addresses` of `interface`"));
            }
        }
    }
}
