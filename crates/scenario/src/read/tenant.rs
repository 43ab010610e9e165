//! Reading `tenants`: their hosts, addresses and families.
//!
//! Why: a tenant has a vNIC, with an address of its own, on each of its hosts.
//! From: `docs/scenarios.md`, "tenants".
//! Not here: envelopes' rules, which are the policy's.
//! Invariant: no address is given twice, and a tenant's first does not depend on how many vNICs others have.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use plimsoll_document::{Tree, Value};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::keys::TENANT;
use crate::model::{Home, Scenario, Tenant};
use crate::sections::PolicySections;

/// Addresses of 10.200.1.0/24 that tenants get first, by their number; further ones lie in 10.200.128.0/17.
const FIRST_ADDRESSES: usize = 250;
const MOST_ADDRESSES: usize = FIRST_ADDRESSES + 10_000;

impl Reader {
    pub(super) fn tenants(&mut self, file: &Fields<'_>, scenario: &Scenario) -> Vec<Tenant> {
        let Some(tree) = file.get("tenants") else { return Vec::new() };
        let mut tenants = Vec::new();
        let mut next = FIRST_ADDRESSES;
        let mut further = || {
            next += 1;
            next - 1
        };
        for (n, (key, tree)) in self.entries(tree, "`tenants`").iter().enumerate() {
            self.name(key, "tenant");
            let fields = self.fields(tree, key.at, &format!("tenant `{}`", key.value), &TENANT);
            let hosts = self.homes(&fields, scenario);
            let first = if n < FIRST_ADDRESSES { n } else { further() };
            let rest = (1..hosts.len()).map(|_| further());
            let addresses: Vec<Ipv4Addr> = std::iter::once(first).chain(rest).map(address).collect();
            let homes = hosts.into_iter().zip(addresses).map(|(host, address)| Home { host, address });
            let core = fields.get("core").and_then(|tree| self.text(tree)).map(str::to_owned);
            let forwards = self.flag(&fields, "forwards", false);
            let tcp_ecn = fields.get("tcp_ecn").and_then(|tree| self.tcp_ecn(tree));
            let tenant = self.tenant(&key.value, homes.collect(), &scenario.policy);
            tenants.push(Tenant { core, forwards, tcp_ecn, ..tenant });
        }
        if tenants.is_empty() || further() > MOST_ADDRESSES {
            let problem = Problem::new(tree.at, format!("there are {} tenants", tenants.len()));
            self.problem(problem.label("out of range").help("name from 1 to 10000 tenants and vNICs"));
        }
        tenants
    }

    /// Linux's numbers.
    fn tcp_ecn(&mut self, tree: &Tree) -> Option<u8> {
        self.choice(tree, "setting of `tcp_ecn`", &[("0", 0), ("1", 1), ("2", 2)])
    }

    /// One host, or a list of them; the first of all without.
    fn homes(&mut self, fields: &Fields<'_>, scenario: &Scenario) -> Vec<String> {
        let known = || scenario.hosts.iter().map(|host| host.name.as_str());
        let Some(tree) = fields.get("host") else { return vec![scenario.hosts[0].name.clone()] };
        let items = if let Value::List(items) = &tree.value { items } else { std::slice::from_ref(tree) };
        let mut homes: Vec<String> = Vec::new();
        for item in items {
            let Some(name) = self.text(item) else { continue };
            if known().all(|host| host != name) {
                self.unknown(item.at, "there is no host", name, known());
            } else if homes.iter().any(|home| home == name) {
                let problem = Problem::new(item.at, format!("host `{name}` is named twice"));
                self.problem(problem.label("again").help("a tenant has one vNIC on a host"));
            }
            homes.push(name.to_owned());
        }
        if homes.is_empty() {
            homes.push(scenario.hosts[0].name.clone());
        }
        homes
    }

    /// The envelope comes from the policy's sections, which may lie in another file.
    fn tenant(&mut self, name: &str, homes: Vec<Home>, policy: &PolicySections) -> Tenant {
        let entries = policy.tenants.iter().find(|(tenant, _)| tenant == name).map(|(_, entries)| entries);
        let value =
            |key: &str| entries.and_then(|entries| entries.iter().find(|(k, _)| k == key)).map(|(_, v)| v);
        let mut rate = |key| value(key).and_then(|tree| self.parse(tree, "a rate such as `20Mbps`"));
        let (min, max) = (rate("min"), rate("max"));
        let stated: Option<u32> = value("weight").and_then(|tree| self.parse(tree, "a whole number"));
        let (weight, weighted) = (stated.unwrap_or(1), stated.is_some());
        let address = homes[0].address;
        let (name, family, core, forwards, tcp_ecn) = (name.to_owned(), None, None, false, None);
        Tenant { name, address, homes, min, max, weight, weighted, family, core, forwards, tcp_ecn }
    }

    /// Sets the family of tenants and workloads that `repeat` made from one key.
    pub(super) fn join_families(
        &mut self,
        file: &Fields<'_>,
        scenario: &mut Scenario,
        families: &BTreeMap<String, String>,
    ) {
        let family = |name: &String| families.get(name).cloned();
        scenario.tenants.iter_mut().for_each(|tenant| tenant.family = family(&tenant.name));
        scenario.workloads.iter_mut().for_each(|workload| workload.family = family(&workload.name));
        let tenants = scenario.tenants.iter().map(|tenant| (&tenant.name, &tenant.family, "tenants"));
        let workloads = scenario.workloads.iter().map(|w| (&w.name, &w.family, "workloads"));
        let all: Vec<_> = tenants.chain(workloads).collect();
        let taken = all.iter().find_map(|(_, family, key)| {
            let family = family.as_ref()?;
            let other = |(name, of, at): &(&String, &Option<String>, &str)| {
                *name == family || (of.as_ref() == Some(family) && at != key)
            };
            all.iter().any(other).then_some((family, key))
        });
        if let Some((family, key)) = taken {
            let at = file.get(key).map_or(file.at, |tree| tree.at);
            let problem = Problem::new(at, format!("`{family}` would be the name of all of them together"));
            let help =
                "name them otherwise: `worker<c>` makes the family `worker`, and another thing is called so";
            self.problem(problem.label("name taken").help(help));
        }
    }
}

/// The address of a tenant's vNIC.
fn address(n: usize) -> Ipv4Addr {
    let octet = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let n = n.min(MOST_ADDRESSES);
    match n.checked_sub(FIRST_ADDRESSES) {
        None => Ipv4Addr::new(10, 200, 1, octet(n + 1)),
        Some(n) => Ipv4Addr::new(10, 200, octet(128 + n / FIRST_ADDRESSES), octet(n % FIRST_ADDRESSES + 1)),
    }
}
