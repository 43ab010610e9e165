//! Tenants' addresses: each can be one tenant's, and is stated by one.
//!
//! Why: an address that two tenants state protects neither from the other.
//! From: `docs/policy.md`, "A tenant's addresses".
//! Not here: what a port's own hardware address is (the daemon finds out).
//! Invariant: a hardware address is stated by one tenant of a network.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::addresses::MacAddr;
use crate::addresses::{Addresses, Binding, StatedAddress};
use crate::config::Port;
use crate::law::{Law, Problem, Problems};
use crate::program::Prefix;
use crate::read::syntax::TenantEntry;
use plimsoll_document::{Located, Mark};

/// Overlaps that are reported.
const MOST_TOLD: usize = 8;

/// `networks` are the tenants' networks, by their names: in different ones, addresses may be the same.
pub(super) fn judge(tenants: &[TenantEntry], networks: &HashMap<&str, u32>, problems: &mut Problems) {
    for tenant in tenants {
        each(tenant, problems);
    }
    let mut apart: BTreeMap<Option<u32>, Vec<&TenantEntry>> = BTreeMap::new();
    for tenant in tenants {
        apart.entry(networks.get(tenant.name.value.as_str()).copied()).or_default().push(tenant);
    }
    for tenants in apart.values() {
        one_mac_each(tenants, problems);
        shared(tenants, problems);
    }
}

/// A tenant's stated addresses, without places.
pub(super) fn stated(tenant: &TenantEntry) -> Addresses {
    let mut addresses = Addresses {
        binding: tenant.addresses.binding.map(value).unwrap_or_default(),
        ..Addresses::default()
    };
    for one in &tenant.addresses.list {
        match one.value {
            StatedAddress::Ip(prefix) => addresses.ips.push(prefix),
            StatedAddress::Mac(mac) => addresses.macs.push(mac),
        }
    }
    addresses
}

fn each(tenant: &TenantEntry, problems: &mut Problems) {
    let name = &tenant.name.value;
    for one in &tenant.addresses.list {
        let StatedAddress::Ip(prefix) = one.value else { continue };
        let whole = if prefix.addr.is_ipv4() { 32 } else { 128 };
        let ip = prefix.addr;
        let unspecified = prefix.len == whole && ip.is_unspecified();
        if unspecified || prefix.len > 0 && (ip.is_multicast() || ip.is_loopback()) || is_broadcast(ip) {
            let problem = Problem::error(Law::BadValue, one.at, format!("{prefix} is no host's address"));
            problems.push(problem.label("this address").help(format!("write an address that `{name}` has")));
        }
    }
    let strict = tenant.addresses.binding.filter(|binding| binding.value == Binding::Strict);
    if let (Some(strict), true) = (strict, stated(tenant).ips.is_empty()) {
        let message = format!("tenant `{name}` is to be held to its addresses and states none");
        let problem = Problem::error(Law::MissingKey, strict.at, message).label("to which?");
        problems.push(problem.help("add `addresses: [10.0.0.1, 2001:db8::1]`, or leave `binding` out"));
    }
}

fn is_broadcast(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

fn one_mac_each(tenants: &[&TenantEntry], problems: &mut Problems) {
    let mut known: HashMap<MacAddr, (&str, Mark)> = HashMap::new();
    for tenant in tenants {
        let name = tenant.name.value.as_str();
        let ports = tenant.port.as_ref().and_then(|port| match &port.value {
            Port::VhostUser { mac, .. } => mac.map(|mac| (mac, port.at)),
            _ => None,
        });
        let listed = tenant.addresses.list.iter().filter_map(|one| match one.value {
            StatedAddress::Mac(mac) => Some((mac, one.at)),
            StatedAddress::Ip(_) => None,
        });
        for (mac, at) in ports.into_iter().chain(listed) {
            let (owner, before) = *known.entry(mac).or_insert((name, at));
            if owner != name {
                let message = format!("`{owner}` and `{name}` both state the address {mac}");
                let problem = Problem::error(Law::NameClash, at, message).label("again here");
                problems.push(
                    problem.also(before, "first here").help("frames go to one port: give it to one of them"),
                );
            }
        }
    }
}

/// IP addresses of two tenants: found by sorting, as there may be many.
fn shared(tenants: &[&TenantEntry], problems: &mut Problems) {
    let ips = tenants.iter().flat_map(|tenant| {
        tenant.addresses.list.iter().filter_map(move |one| match one.value {
            StatedAddress::Ip(prefix) => Some((tenant.name.value.as_str(), Located::new(prefix, one.at))),
            StatedAddress::Mac(_) => None,
        })
    });
    let mut ips: Vec<(&str, Located<Prefix>)> = ips.collect();
    ips.sort_by_key(|(_, one)| (one.value.addr, one.value.len, one.at));
    // The networks around the one that is looked at, the widest first: two networks are apart or one holds the other.
    let mut around: Vec<(&str, Located<Prefix>)> = Vec::new();
    let mut told = 0;
    for (name, one) in ips {
        while around.last().is_some_and(|(_, outer)| !outer.value.contains(one.value.addr)) {
            around.pop();
        }
        if let Some((owner, outer)) = around.iter().rev().find(|(owner, _)| *owner != name)
            && told < MOST_TOLD
        {
            told += 1;
            let message = format!("{} is `{name}`'s and `{owner}`'s", one.value);
            let problem = Problem::warning(Law::NameClash, one.at, message).label("one of them");
            let help = "each may claim it and get the other's traffic: state it for one tenant, unless they share it on purpose";
            problems.push(problem.also(outer.at, format!("within {}", outer.value)).help(help));
        }
        around.push((name, one));
    }
}

fn value<T>(found: Located<T>) -> T {
    found.value
}
