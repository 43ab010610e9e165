//! Changes to a directory, decided on its state.
//!
//! Why: two commands at once must not undo each other, and a wrong change must not reach a host.
//! From: optimistic transactions: each relies on the values that it was decided on.
//! Not here: making them (`directory`), checking the policies that follow (`compose`).
//! Invariant: a transaction changes nothing whose value its decision has not seen.

use std::collections::BTreeMap;

use plimsoll_policy::MacAddr;

use crate::directory::{Change, Transaction};
use crate::object::{
    FleetObject, HostObject, KEPT_VERSIONS, PolicyObject, TenantObject, VERSION, Value, Version, named,
};
use crate::state::{FLEET, Seen, State};

/// Why a change is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self(why)
    }
}

/// A transaction in the making.
pub(crate) struct Edit<'a> {
    state: &'a State,
    made: Transaction,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(state: &'a State) -> Self {
        Self { state, made: Transaction::default() }
    }

    /// The change holds only as long as this key has the value that was read.
    pub(crate) fn rely(mut self, key: &str) -> Self {
        let value = self.state.value(key).map(<[u8]>::to_vec);
        self.made.conditions.push((key.to_owned(), value));
        self
    }

    pub(crate) fn put(self, key: &str, object: &impl Value) -> Self {
        self.set(key, Some(object.write()))
    }

    pub(crate) fn remove(self, key: &str) -> Self {
        self.set(key, None)
    }

    fn set(self, key: &str, value: Option<Vec<u8>>) -> Self {
        let mut edit = self.rely(key);
        edit.made.changes.push(Change { key: key.to_owned(), value });
        edit
    }

    pub(crate) fn made(self) -> Transaction {
        self.made
    }
}

/// Makes the fleet.
///
/// # Errors
/// [`Refusal`]: there is one, or the object is wrong.
pub fn init(state: &State, fleet: &FleetObject) -> Result<Transaction, Refusal> {
    if state.value(FLEET).is_some() {
        return Err(Refusal("there is a fleet already; `--update` changes its settings".to_owned()));
    }
    fleet.sound()?;
    Ok(Edit::new(state).put(FLEET, fleet).made())
}

/// Changes the fleet's settings.
///
/// # Errors
/// [`Refusal`]: the object is wrong, or a network that tenants are in would go.
pub fn update(state: &State, fleet: &FleetObject) -> Result<Transaction, Refusal> {
    fleet.sound()?;
    let lost = state.tenants.iter().find(|(_, tenant)| !fleet.networks.contains_key(&tenant.network));
    if let Some((name, tenant)) = lost {
        return Err(Refusal(format!(
            "tenant `{name}` is in network `{}`, which the fleet would not have",
            tenant.network
        )));
    }
    Ok(Edit::new(state).put(FLEET, fleet).made())
}

/// Adds a host, or changes what is known of it.
///
/// # Errors
/// [`Refusal`].
pub fn join(state: &State, name: &str, host: &HostObject) -> Result<Transaction, Refusal> {
    named(name, "host")?;
    host.sound()?;
    the_fleet(state)?;
    let other = state.hosts.iter().find(|(other, object)| *other != name && object.address == host.address);
    if let Some((other, _)) = other {
        return Err(Refusal(format!(
            "host `{other}` has the address {} already; give each its own",
            host.address
        )));
    }
    Ok(Edit::new(state).rely(FLEET).put(&format!("hosts/{name}"), host).made())
}

/// Takes a host out of the fleet. Its tenants must have left.
///
/// # Errors
/// [`Refusal`].
pub fn forget_host(state: &State, name: &str) -> Result<Transaction, Refusal> {
    let key = format!("hosts/{name}");
    if state.value(&key).is_none() {
        return Err(unknown("host", name, state.hosts.keys()));
    }
    let tenants: Vec<&str> = state.tenants_of(name).map(|(tenant, _)| tenant.as_str()).collect();
    if !tenants.is_empty() {
        let list = tenants.join(", ");
        return Err(Refusal(format!(
            "host `{name}` has tenants: {list}; `plimsoll fleet move` or `remove` them first"
        )));
    }
    let mut edit = Edit::new(state).remove(&key);
    if state.freed.contains_key(name) {
        edit = edit.remove(&format!("freed/{name}"));
    }
    Ok(edit.made())
}

/// Adds a tenant, or changes it.
///
/// # Errors
/// [`Refusal`].
pub fn add(state: &State, name: &str, tenant: &TenantObject, replace: bool) -> Result<Transaction, Refusal> {
    named(name, "tenant")?;
    tenant.sound()?;
    let fleet = the_fleet(state)?;
    if !fleet.networks.contains_key(&tenant.network) {
        return Err(unknown("network", &tenant.network, fleet.networks.keys()));
    }
    let key = format!("tenants/{name}");
    if state.value(&key).is_some() && !replace {
        return Err(Refusal(format!("there is a tenant `{name}` already; `--replace` changes it")));
    }
    let macs = |tenant: &TenantObject| {
        tenant.mac.iter().filter_map(|mac| mac.parse().ok()).collect::<Vec<MacAddr>>()
    };
    let own = macs(tenant);
    let beside =
        state.tenants.iter().filter(|(other, object)| *other != name && object.network == tenant.network);
    for (other, object) in beside {
        if let Some(mac) = macs(object).into_iter().find(|mac| own.contains(mac)) {
            return Err(Refusal(format!(
                "tenant `{other}` has the hardware address {mac} already; give each its own"
            )));
        }
    }
    let mut edit = Edit::new(state).rely(FLEET);
    if let Some(host) = &tenant.host {
        known_host(state, host)?;
        edit = edit.rely(&format!("hosts/{host}"));
    }
    Ok(edit.put(&key, tenant).made())
}

/// Takes a tenant out of the fleet.
///
/// # Errors
/// [`Refusal`].
pub fn remove(state: &State, name: &str) -> Result<Transaction, Refusal> {
    let key = format!("tenants/{name}");
    match state.value(&key) {
        Some(_) => Ok(Edit::new(state).remove(&key).made()),
        None => Err(unknown("tenant", name, state.tenants.keys())),
    }
}

/// Places a tenant at another host; none: nowhere. Without `force` not from a host that may still serve it, unseen.
///
/// # Errors
/// [`Refusal`].
pub fn move_tenant(state: &State, name: &str, to: Option<&str>, force: bool) -> Result<Transaction, Refusal> {
    let tenant = state.tenants.get(name).ok_or_else(|| unknown("tenant", name, state.tenants.keys()))?;
    let mut edit = Edit::new(state);
    if let Some(to) = to {
        known_host(state, to)?;
        edit = edit.rely(&format!("hosts/{to}"));
    }
    let from = tenant.host.as_deref().filter(|from| Some(*from) != to);
    if let Some(from) =
        from.filter(|from| !force && state.seen(from) == Seen::Silent && state.hosts.contains_key(*from))
    {
        let after = match state.fleet.as_ref().and_then(|fleet| fleet.free_after) {
            Some(after) => format!("its tenants can be moved when its lease has been over for {after}"),
            None => "its tenants stay its own".to_owned(),
        };
        return Err(Refusal(format!(
            "host `{from}`, where `{name}` is, is silent: {after}; `--force` moves them now, though the host may still serve them"
        )));
    }
    let moved = TenantObject { host: to.map(str::to_owned), ..tenant.clone() };
    Ok(edit.put(&format!("tenants/{name}"), &moved).made())
}

/// Puts a version of a policy; returns its number as well. No host uses it yet.
///
/// # Errors
/// [`Refusal`].
pub fn put_policy(state: &State, name: &str, text: &str, at: u64) -> Result<(Transaction, u64), Refusal> {
    named(name, "policy")?;
    the_fleet(state)?;
    let key = format!("policies/{name}");
    let mut policy = match (state.policies.get(name), state.value(&key)) {
        (Some(policy), _) => policy.clone(),
        (None, None) => PolicyObject { v: VERSION, versions: BTreeMap::new() },
        (None, Some(_)) => {
            let why = state.wrong.get(&key).cloned().unwrap_or_default();
            return Err(Refusal(format!("{key} is wrong: {why}")));
        }
    };
    if let Some((number, last)) = policy.versions.last_key_value()
        && last.text == text
    {
        return Err(Refusal(format!("policy `{name}` has this text already: it is its version {number}")));
    }
    let number = policy.versions.last_key_value().map_or(1, |(last, _)| last.saturating_add(1));
    policy.versions.insert(number, Version { at, text: text.to_owned() });
    let in_use = state.hosts.values().filter_map(|host| host.policy.as_ref());
    // A rollback, whatever policy it is of, gives these back.
    let before = state.rollouts.values().flat_map(|rollout| rollout.from.values().flatten());
    let used: Vec<u64> =
        in_use.chain(before).filter(|used| used.name == name).map(|used| used.version).collect();
    while policy.versions.len() > KEPT_VERSIONS {
        let Some(oldest) = policy.versions.keys().find(|version| !used.contains(version)).copied() else {
            break;
        };
        policy.versions.remove(&oldest);
    }
    policy.sound()?;
    Ok((Edit::new(state).rely(FLEET).put(&key, &policy).made(), number))
}

pub(crate) fn the_fleet(state: &State) -> Result<&FleetObject, Refusal> {
    state.fleet.as_ref().ok_or_else(|| match state.wrong.get(FLEET) {
        Some(why) => Refusal(format!("the directory's fleet is wrong: {why}")),
        None => Refusal("the directory has no fleet; `plimsoll fleet init` makes one".to_owned()),
    })
}

fn known_host(state: &State, host: &str) -> Result<(), Refusal> {
    if state.hosts.contains_key(host) { Ok(()) } else { Err(unknown("host", host, state.hosts.keys())) }
}

pub(crate) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> Refusal {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let help = match plimsoll_document::nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("there is no {what} yet"),
        None => format!("there are {}", known.join(", ")),
    };
    Refusal(format!("there is no {what} `{name}`; {help}"))
}
