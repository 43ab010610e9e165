//! The fleet as its directory says it, from key-values.
//!
//! Why: commands and agents decide on objects, and the directory has bytes.
//! From: watches: a state takes changes key by key.
//! Not here: where the bytes come from (`directory`).
//! Invariant: the state follows from the key-values alone, in whatever order they came; wrong values are in `wrong` alone.

use std::collections::BTreeMap;

use crate::directory::{Change, Keys, News};
use crate::object::{
    Alive, BadValue, FleetObject, HostObject, PolicyObject, RolloutObject, TenantObject, Value, named,
};

/// The key of the fleet's own object.
pub(crate) const FLEET: &str = "fleet";

/// What a directory says, object by object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    keys: Keys,
    /// The fleet; none: it has not been initialised, or its value is wrong.
    pub fleet: Option<FleetObject>,
    /// Its hosts.
    pub hosts: BTreeMap<String, HostObject>,
    /// Its tenants.
    pub tenants: BTreeMap<String, TenantObject>,
    /// Its policies.
    pub policies: BTreeMap<String, PolicyObject>,
    /// Policies on their way to hosts.
    pub rollouts: BTreeMap<String, RolloutObject>,
    /// Hosts whose leases hold.
    pub alive: BTreeMap<String, Alive>,
    /// Hosts whose leases ended so long ago that their tenants may be placed elsewhere.
    pub freed: BTreeMap<String, Empty>,
    /// Values that are wrong, by key.
    pub wrong: BTreeMap<String, String>,
}

/// An object whose key says it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Empty {
    /// Its version.
    pub v: u32,
}

impl Value for Empty {
    fn version(&self) -> u32 {
        self.v
    }

    fn sound(&self) -> Result<(), String> {
        Ok(())
    }
}

/// How a host is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// Its lease holds.
    Alive,
    /// Its lease has ended, or never began.
    Silent,
    /// Its lease ended so long ago that its tenants may be placed elsewhere.
    Freed,
}

impl State {
    /// The state of these key-values.
    #[must_use]
    pub fn new(keys: &Keys) -> Self {
        let mut state = Self::default();
        for (key, value) in keys {
            state.set(key, Some(value));
        }
        state
    }

    /// Takes what a directory tells.
    pub fn hear(&mut self, news: &News) {
        match news {
            News::Changes(changes) => {
                changes.iter().for_each(|Change { key, value }| self.set(key, value.as_deref()))
            }
            News::All(keys) => *self = Self::new(keys),
        }
    }

    /// The bytes under a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key).map(Vec::as_slice)
    }

    /// All key-values.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How a host is seen.
    #[must_use]
    pub fn seen(&self, host: &str) -> Seen {
        match (self.alive.contains_key(host), self.freed.contains_key(host)) {
            (true, _) => Seen::Alive,
            (false, true) => Seen::Freed,
            (false, false) => Seen::Silent,
        }
    }

    /// The tenants placed at a host, by name.
    pub fn tenants_of<'a>(&'a self, host: &'a str) -> impl Iterator<Item = (&'a String, &'a TenantObject)> {
        self.tenants.iter().filter(move |(_, tenant)| tenant.host.as_deref() == Some(host))
    }

    fn set(&mut self, key: &str, value: Option<&[u8]>) {
        match value {
            Some(value) => _ = self.keys.insert(key.to_owned(), value.to_owned()),
            None => _ = self.keys.remove(key),
        }
        self.wrong.remove(key);
        let set = match key.split_once('/') {
            None if key == FLEET => {
                let read = value.map(|value| FleetObject::read(key, value)).transpose();
                read.map(|fleet| self.fleet = fleet).inspect_err(|_| self.fleet = None)
            }
            Some(("hosts", name)) => take(&mut self.hosts, key, name, value),
            Some(("tenants", name)) => take(&mut self.tenants, key, name, value),
            Some(("policies", name)) => take(&mut self.policies, key, name, value),
            Some(("rollouts", name)) => take(&mut self.rollouts, key, name, value),
            Some(("alive", name)) => take(&mut self.alive, key, name, value),
            Some(("freed", name)) => take(&mut self.freed, key, name, value),
            _ if value.is_some() => {
                Err(BadValue { key: key.to_owned(), why: "a fleet's directory has no such key".to_owned() })
            }
            _ => Ok(()),
        };
        if let Err(BadValue { key, why }) = set {
            self.wrong.insert(key, why);
        }
    }
}

/// Puts an object in its place, or takes it out.
fn take<T: Value>(
    of: &mut BTreeMap<String, T>,
    key: &str,
    name: &str,
    value: Option<&[u8]>,
) -> Result<(), BadValue> {
    of.remove(name);
    let Some(value) = value else { return Ok(()) };
    named(name, "host, tenant or policy").map_err(|why| BadValue { key: key.to_owned(), why })?;
    of.insert(name.to_owned(), T::read(key, value)?);
    Ok(())
}
