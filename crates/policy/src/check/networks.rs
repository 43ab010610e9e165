//! The overlay's networks: which one each tenant of the fleet is in.
//!
//! Why: tenants of different networks may have the same addresses, so an address means nothing without its network.
//! From: RFC 7348 §4: a VNI bounds the scope of inner addresses.
//! Not here: which host has a tenant (`overlay`), addresses that a tenant states (`addresses`).
//! Invariant: a tenant of the map is in one network, and a VNI is one network's.

use std::collections::HashMap;

use plimsoll_document::{Mark, nearest};

use crate::config::Network;
use crate::law::{Law, Problem, Problems};
use crate::read::syntax::{FleetTenantEntry, OverlayEntry};

impl OverlayEntry {
    /// The VNI of a tenant's network; none for one that names no network of the file.
    pub(super) fn network_of(&self, tenant: &FleetTenantEntry) -> Option<u32> {
        let Some(name) = &tenant.network else { return self.vni };
        self.networks.iter().find(|network| network.name.value == name.value)?.vni
    }

    /// The VNIs of this host's tenants, by their names.
    pub(super) fn own_networks(&self) -> HashMap<&str, u32> {
        let own = self
            .hosts
            .iter()
            .find(|host| Some(&host.name.value) == self.host.as_ref().map(|name| &name.value));
        let tenants = own.into_iter().flat_map(|host| &host.tenants);
        tenants.filter_map(|tenant| Some((tenant.name.value.as_str(), self.network_of(tenant)?))).collect()
    }

    /// The networks as the daemon takes them.
    pub(super) fn networks(&self) -> Vec<Network> {
        let stated = self.networks.iter();
        stated
            .filter_map(|network| Some(Network { name: network.name.value.clone(), vni: network.vni? }))
            .collect()
    }
}

/// Reports two networks of one VNI, and tenants whose network is not known.
pub(super) fn judge(entry: &OverlayEntry, problems: &mut Problems) {
    let mut vnis: HashMap<u32, Mark> = HashMap::new();
    for network in &entry.networks {
        if let Some(vni) = network.vni
            && let Some(before) = vnis.insert(vni, network.name.at)
        {
            let message = format!("two networks have the VNI {vni}");
            let problem = Problem::error(Law::NameClash, network.name.at, message).label("again here");
            problems.push(problem.also(before, "first here").help("give each its own"));
        }
    }
    let tenants = || entry.hosts.iter().flat_map(|host| &host.tenants);
    tenants().for_each(|tenant| known(entry, tenant, problems));
    if entry.has_vni {
        return;
    }
    if entry.networks.is_empty() {
        let problem = Problem::error(Law::MissingKey, entry.at, "`overlay` has no `vni`".to_owned());
        problems
            .push(problem.label("`vni` is missing").help("add `vni: 7`, or `networks: {blue: 7, red: 8}`"));
    } else if let Some(tenant) = tenants().find(|tenant| tenant.network.is_none()) {
        let message = format!("tenant `{}` is in no network", tenant.name.value);
        let problem =
            Problem::error(Law::MissingKey, tenant.name.at, message).label("names none of `networks`");
        let help = format!(
            "write `{}: {{mac: ..., network: {}}}`, or add `vni` to `overlay`: the network of tenants that name none",
            tenant.name.value, entry.networks[0].name.value
        );
        problems.push(problem.help(help));
    }
}

/// Reports a network that the file does not have.
fn known(entry: &OverlayEntry, tenant: &FleetTenantEntry, problems: &mut Problems) {
    let Some(name) = &tenant.network else { return };
    let mut names = entry.networks.iter().map(|network| network.name.value.as_str());
    if names.clone().any(|known| known == name.value) {
        return;
    }
    let first = names.clone().next();
    let (message, help) = match (first, nearest(&name.value, &mut names)) {
        (None, _) => (
            format!(
                "tenant `{}` is in network `{}`, and `overlay` has no `networks`",
                tenant.name.value, name.value
            ),
            format!("add `networks: {{{}: 8}}` to `overlay`, at all hosts", name.value),
        ),
        (_, Some(near)) => (format!("`networks` has no `{}`", name.value), format!("did you mean `{near}`?")),
        (_, None) => (
            format!("`networks` has no `{}`", name.value),
            "name one of `networks`, or add it to them, at all hosts".to_owned(),
        ),
    };
    problems
        .push(Problem::error(Law::UnknownName, name.at, message).label("not among the networks").help(help));
}
