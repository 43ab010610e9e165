//! A host's policy file, composed from the directory.
//!
//! Why: tenants move between hosts while the operator's part of each host's file stays.
//! From: the host's template, the fleet's policy, the tenants placed here, and the map of all hosts.
//! Not here: writing the file, and asking the daemon to read it (`agent`).
//! Invariant: the same state gives the same text. Objects that contradict others are left out and named: of two that
//! contradict each other the second by name. So one wrong object does not take the policy from all hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use plimsoll_policy::{Checked, Errors, Files, Parse, Sources, Unread, check_files};
use serde_json::{Value as Json, json};

use crate::object::{FleetObject, HostObject, PolicyInUse, TenantObject, exact_rate};
use crate::state::State;

/// A host's policy file, and what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composed {
    /// The host.
    pub host: String,
    /// The file's text.
    pub text: String,
    /// Texts of tenants' own policies, by their paths beside the file.
    pub files: BTreeMap<String, String>,
    /// The fleet's policy that it has.
    pub policy: Option<PolicyInUse>,
    /// Objects that it is without.
    pub left_out: Vec<LeftOut>,
}

/// An object that a policy is composed without.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Its key.
    pub key: String,
    /// Why.
    pub why: String,
}

/// Why there is no policy for a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComposeError {
    /// There is no fleet.
    #[error("the directory has no fleet{}; `plimsoll fleet init` makes one", .0.as_ref().map_or_else(String::new, |why| format!(": {why}")))]
    NoFleet(Option<String>),
    /// The host is not in the fleet.
    #[error("the directory has no host `{host}`{}; `plimsoll fleet join {host}` adds it", .why.as_ref().map_or_else(String::new, |why| format!(": {why}")))]
    NoHost {
        /// The host.
        host: String,
        /// What is wrong with its value, if it has one.
        why: Option<String>,
    },
    /// Its policy is not in the directory.
    #[error("host `{host}` uses version {version} of policy `{policy}`, which the directory does not have")]
    NoPolicy {
        /// The host.
        host: String,
        /// The policy.
        policy: String,
        /// The version.
        version: u64,
    },
}

/// Composes a host's policy file.
///
/// # Errors
/// [`ComposeError`].
pub fn compose(state: &State, host: &str) -> Result<Composed, ComposeError> {
    compose_without(state, host, &BTreeMap::new())
}

/// [`compose`] without these tenants, each left out for a reason.
///
/// # Errors
/// [`ComposeError`].
pub fn compose_without(
    state: &State,
    host: &str,
    without: &BTreeMap<String, String>,
) -> Result<Composed, ComposeError> {
    let wrong = |key: &str| state.wrong.get(key).cloned();
    let fleet = state.fleet.as_ref().ok_or_else(|| ComposeError::NoFleet(wrong("fleet")))?;
    let own = state.hosts.get(host).ok_or_else(|| ComposeError::NoHost {
        host: host.to_owned(),
        why: wrong(&format!("hosts/{host}")),
    })?;
    let mut left_out = Vec::new();
    let hosts = hosts(state, host, own, &mut left_out);
    let tenants = tenants(state, fleet, &hosts, without, &mut left_out);
    let mut files = BTreeMap::new();
    let mut text = format!(
        "# Written by `plimsoll fleet agent` for host {host}. Do not change this file: change the fleet's directory.\n{}\n",
        own.template.trim_end()
    );
    if let Some(used) = &own.policy {
        let version = state.policies.get(&used.name).and_then(|policy| policy.versions.get(&used.version));
        let version = version.ok_or_else(|| ComposeError::NoPolicy {
            host: host.to_owned(),
            policy: used.name.clone(),
            version: used.version,
        })?;
        text.push_str(&format!("# Policy {used}.\n{}\n", version.text.trim_end()));
    }
    text.push_str("tenants:");
    let here: Vec<_> = tenants.iter().filter(|(_, tenant)| tenant.host.as_deref() == Some(host)).collect();
    text.push_str(if here.is_empty() { " {}\n" } else { "\n" });
    for (name, tenant) in here {
        text.push_str(&format!(
            "  {}: {}\n",
            Json::from(name.as_str()),
            entry(host, name, tenant, &mut files)
        ));
    }
    text.push_str("overlay:\n");
    for (key, value) in &fleet.overlay {
        text.push_str(&format!("  {key}: {value}\n"));
    }
    text.push_str(&format!("{}  host: {}\n  hosts:\n", networks(fleet), Json::from(host)));
    for (name, object) in &hosts {
        let entry = map_entry(name, object, &tenants, fleet);
        text.push_str(&format!("    {}: {entry}\n", Json::from(name.as_str())));
    }
    Ok(Composed { host: host.to_owned(), text, files, policy: own.policy.clone(), left_out })
}

type Hosts<'a> = BTreeMap<&'a String, &'a HostObject>;
type Tenants<'a> = BTreeMap<&'a String, &'a TenantObject>;

/// The hosts of the map: each has an underlay address of its own, of this host's family.
fn hosts<'a>(state: &'a State, host: &str, own: &HostObject, left_out: &mut Vec<LeftOut>) -> Hosts<'a> {
    let mut taken: BTreeSet<IpAddr> = [own.address].into();
    let mut hosts = Hosts::new();
    for (name, object) in &state.hosts {
        let why = if name == host {
            None
        } else if object.address.is_ipv4() != own.address.is_ipv4() {
            Some(format!("its address {} is of the other family than {}", object.address, own.address))
        } else if !taken.insert(object.address) {
            Some(format!("its address {} is another host's, too", object.address))
        } else {
            None
        };
        match why {
            None => _ = hosts.insert(name, object),
            Some(why) => left_out.push(LeftOut { key: format!("hosts/{name}"), why }),
        }
    }
    hosts
}

/// The tenants that are placed at one of these hosts; each hardware address is one tenant's.
fn tenants<'a>(
    state: &'a State,
    fleet: &FleetObject,
    hosts: &Hosts<'a>,
    without: &BTreeMap<String, String>,
    left_out: &mut Vec<LeftOut>,
) -> Tenants<'a> {
    let mut taken: BTreeMap<(&str, String), &String> = BTreeMap::new();
    let mut tenants = Tenants::new();
    for (name, tenant) in &state.tenants {
        let Some(host) = &tenant.host else { continue };
        let macs = tenant.mac.iter().map(|mac| (tenant.network.as_str(), mac.to_ascii_lowercase()));
        let macs: BTreeSet<_> = macs.collect();
        let why = if let Some(why) = without.get(name) {
            Some(why.clone())
        } else if !hosts.contains_key(host) {
            Some(format!("it is placed at host `{host}`, which the fleet does not have"))
        } else if !fleet.networks.contains_key(&tenant.network) {
            Some(format!("its network `{}` is none of the fleet's", tenant.network))
        } else {
            let other = macs.iter().find_map(|mac| taken.get(mac).map(|other| (&mac.1, other)));
            other.map(|(mac, other)| format!("its hardware address {mac} is tenant `{other}`'s"))
        };
        match why {
            Some(why) => left_out.push(LeftOut { key: format!("tenants/{name}"), why }),
            None => {
                taken.extend(macs.into_iter().map(|mac| (mac, name)));
                tenants.insert(name, tenant);
            }
        }
    }
    tenants
}

/// The fleet's networks: by their names, where there is more than one.
fn networks(fleet: &FleetObject) -> String {
    match fleet.networks.len() {
        0 | 1 => format!("  vni: {}\n", fleet.networks.values().next().copied().unwrap_or(0)),
        _ => format!("  networks: {}\n", json!(fleet.networks)),
    }
}

/// A tenant's entry under `tenants`.
fn entry(host: &str, name: &str, tenant: &TenantObject, files: &mut BTreeMap<String, String>) -> Json {
    let mut entry: serde_json::Map<String, Json> = tenant.more.clone().into_iter().collect();
    let port = named(&tenant.port, host, name);
    if !tenant.addresses.is_empty() {
        let bare = |address: &String| address.split('/').next().unwrap_or_default().to_owned();
        entry.insert("addresses".into(), tenant.addresses.iter().map(bare).collect());
        if port.get("tap").is_some() {
            let interface = entry.entry("interface").or_insert_with(|| json!({}));
            if let Some(keys) = interface.as_object_mut() {
                keys.insert("addresses".into(), json!(tenant.addresses));
            }
        }
    }
    entry.insert("port".into(), port);
    for (key, rate) in [("min", tenant.min), ("max", tenant.max)] {
        entry.extend(rate.map(|rate| (key.to_owned(), exact_rate(rate).into())));
    }
    entry.extend(tenant.weight.map(|weight| ("weight".to_owned(), weight.into())));
    if let Some(text) = &tenant.policy {
        let path = format!("{}/{name}.yaml", folder(host));
        entry.insert("policy".into(), path.clone().into());
        files.insert(path, text.clone());
    }
    Json::Object(entry)
}

/// A host's entry in the map.
fn map_entry(host: &str, object: &HostObject, tenants: &Tenants<'_>, fleet: &FleetObject) -> Json {
    let mut entry: serde_json::Map<String, Json> = object.more.clone().into_iter().collect();
    entry.insert("address".into(), object.address.to_string().into());
    let here = tenants.iter().filter(|(_, tenant)| tenant.host.as_deref() == Some(host));
    let one = |tenant: &TenantObject| {
        let mut one = serde_json::Map::from_iter([("mac".to_owned(), json!(tenant.mac))]);
        if fleet.networks.len() > 1 {
            one.insert("network".to_owned(), tenant.network.as_str().into());
        }
        one.extend(tenant.weight.map(|weight| ("weight".to_owned(), weight.into())));
        one.extend(tenant.max.map(|max| ("max".to_owned(), exact_rate(max).into())));
        // What a tenant's own entry and the map must both say.
        let same = tenant.more.get("ecn").filter(|ecn| ecn.as_str() == Some("untouched"));
        one.extend(same.map(|ecn| ("ecn".to_owned(), ecn.clone())));
        Json::Object(one)
    };
    let here: serde_json::Map<String, Json> =
        here.map(|(name, tenant)| ((*name).clone(), one(tenant))).collect();
    entry.insert("tenants".into(), Json::Object(here));
    Json::Object(entry)
}

/// A port whose texts have the host's and the tenant's names.
fn named(port: &Json, host: &str, tenant: &str) -> Json {
    match port {
        Json::String(text) => text.replace("{host}", host).replace("{tenant}", tenant).into(),
        Json::Array(items) => items.iter().map(|item| named(item, host, tenant)).collect(),
        Json::Object(keys) => {
            Json::Object(keys.iter().map(|(key, value)| (key.clone(), named(value, host, tenant))).collect())
        }
        other => other.clone(),
    }
}

/// The folder of tenants' own policies, beside a host's policy file.
fn folder(host: &str) -> String {
    format!("tenants-of-{host}")
}

impl Composed {
    /// The folder of `files`, beside the policy file.
    #[must_use]
    pub fn folder(&self) -> String {
        folder(&self.host)
    }

    /// Checks the policy as `plimsoll check` does; tenants' own policies are read by `parse`.
    ///
    /// # Errors
    /// The policy's mistakes.
    pub fn check(&self, parse: &mut Parse<'_>) -> Result<Checked, Box<Errors>> {
        let name = format!("{}.yaml", self.host);
        check_files(&name, &mut Memory { composed: self, name: &name, parse }).map_err(Box::new)
    }
}

/// The files of a composed policy.
struct Memory<'a, 'p> {
    composed: &'a Composed,
    name: &'a str,
    parse: &'a mut Parse<'p>,
}

impl Files for Memory<'_, '_> {
    fn text(&mut self, name: &str) -> Result<String, String> {
        let text = if name == self.name { Some(&self.composed.text) } else { self.composed.files.get(name) };
        text.cloned().ok_or_else(|| "a fleet's policy names no files of a host".to_owned())
    }

    fn folder(&mut self, _: &str) -> Result<Vec<String>, String> {
        Err("a fleet's policy includes no folder of a host: its tenants come from the directory".to_owned())
    }

    fn tree(
        &mut self,
        sources: &Sources,
        file: plimsoll_policy::FileId,
    ) -> Result<plimsoll_document::Tree, Unread> {
        (self.parse)(sources, file)
    }
}
