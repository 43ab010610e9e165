//! The objects of a directory, as versioned JSON under a key each.
//!
//! Why: commands and agents of several hosts, perhaps of several versions, read what others wrote.
//! From: `docs/fleet.md`, "What the directory holds".
//! Not here: how objects are stored (`directory`), and what they say together (`state`, `compose`).
//! Invariant: [`Value::read`] never panics; a value with an unknown key or of a newer version is an error that names its key.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use plimsoll_policy::{HostAddress, MacAddr};
use plimsoll_units::{BitRate, Span};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the objects' form that this crate writes, and the latest that it reads.
pub const VERSION: u32 = 1;

/// The longest value: etcd takes requests of 1.5 MiB.
const LONGEST: usize = 1 << 20;
/// The longest name of a host, tenant, network or policy.
const LONGEST_NAME: usize = 63;
/// Versions of a policy that are kept.
pub(crate) const KEPT_VERSIONS: usize = 20;

/// Why a value is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct BadValue {
    /// Its key, below the fleet's own.
    pub key: String,
    /// What is wrong with it.
    pub why: String,
}

/// The fleet itself, under the key `fleet`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetObject {
    /// [`VERSION`].
    pub v: u32,
    /// The tenants' networks by name, each with its number (VNI).
    pub networks: BTreeMap<String, u32>,
    /// The keys of every host's `overlay` but `vni`, `host` and `hosts`.
    pub overlay: BTreeMap<String, serde_json::Value>,
    /// How long a host's lease holds after it was last renewed.
    pub lease: Span,
    /// How long a host's lease must have ended before its tenants may be placed elsewhere; none: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_after: Option<Span>,
}

/// A host, under `hosts/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostObject {
    /// [`VERSION`].
    pub v: u32,
    /// Its address on the underlay.
    pub address: IpAddr,
    /// The rate of its uplink.
    #[serde(with = "exact")]
    pub rate: BitRate,
    /// The operator's part of its policy file: a text with `uplink`, `api`, `engine` and the like.
    pub template: String,
    /// The fleet's policy that it uses; none: tenants share by their envelopes and weights, or as the template says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyInUse>,
    /// Further keys of the host in `overlay.hosts`, such as `mac`, `channel` and `fallback`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, serde_json::Value>,
}

/// A policy at one of its versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyInUse {
    /// Its name.
    pub name: String,
    /// The version.
    pub version: u64,
}

/// A tenant, under `tenants/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantObject {
    /// [`VERSION`].
    pub v: u32,
    /// The network that it is in.
    pub network: String,
    /// The host that it is placed at; none: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its hardware addresses; the first is its interface's.
    pub mac: Vec<String>,
    /// Its IP addresses, each with the length of its network, which a TAP gets and which it is held to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// What it gets at least.
    #[serde(default, with = "exact::option", skip_serializing_if = "Option::is_none")]
    pub min: Option<BitRate>,
    /// What it gets at most.
    #[serde(default, with = "exact::option", skip_serializing_if = "Option::is_none")]
    pub max: Option<BitRate>,
    /// Its share beside others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its port as in a policy file. `{host}` and `{tenant}` in its texts stand for the names.
    pub port: serde_json::Value,
    /// The text of a policy of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Further keys of the tenant in a policy file, such as `delay`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, serde_json::Value>,
}

/// A policy with its history, under `policies/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyObject {
    /// [`VERSION`].
    pub v: u32,
    /// Its versions by number.
    pub versions: BTreeMap<u64, Version>,
}

/// A version of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// When it was put, in seconds since 1970.
    pub at: u64,
    /// Keys of a host's policy file, such as `policy` and `limits`.
    pub text: String,
}

/// What a host's agent says of its host, under `alive/NAME`, for as long as its lease holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alive {
    /// [`VERSION`].
    pub v: u32,
    /// The policy in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<PolicyInUse>,
    /// The keys of `overlay` in force that all hosts share.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overlay: BTreeMap<String, serde_json::Value>,
    /// Why what the directory wants is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the daemon says of its health, where that is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Seconds for which promises were judged under the policy in force.
    #[serde(default)]
    pub judged: u64,
    /// Tenants whose promise was broken meanwhile, with the cause.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub broken: BTreeMap<String, String>,
}

/// A policy's way to the hosts, under `rollouts/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutObject {
    /// [`VERSION`].
    pub v: u32,
    /// The version that hosts get.
    pub to: u64,
    /// The versions that hosts had before; none: no version of this policy.
    pub from: BTreeMap<String, Option<PolicyInUse>>,
    /// The hosts that get it first.
    pub canaries: Vec<String>,
    /// How long promises must hold there before the other hosts get it.
    pub bake: Span,
    /// When it began, in seconds since 1970.
    pub at: u64,
    /// How far it is.
    pub state: RolloutState,
    /// Why it was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How far a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// At its canaries.
    Canary,
    /// At all hosts.
    Done,
    /// At no host any more.
    RolledBack,
}

/// An object that is read from, and written to, a value.
pub trait Value: Serialize + DeserializeOwned {
    /// Its version, as written.
    fn version(&self) -> u32;

    /// What its form alone does not rule out.
    ///
    /// # Errors
    /// What is wrong.
    fn sound(&self) -> Result<(), String>;

    /// Reads a value.
    ///
    /// # Errors
    /// [`BadValue`].
    fn read(key: &str, value: &[u8]) -> Result<Self, BadValue> {
        let read = || {
            if value.len() > LONGEST {
                return Err(format!("it holds {} bytes, and {LONGEST} are the most", value.len()));
            }
            // A newer form may have keys that this one does not know: say so, and not which key it is.
            let Header { v } = serde_json::from_slice(value).map_err(|error| error.to_string())?;
            if v == 0 || v > VERSION {
                return Err(format!(
                    "it is of version {v}, and this plimsoll reads version {VERSION}; upgrade it"
                ));
            }
            let object: Self = serde_json::from_slice(value).map_err(|error| error.to_string())?;
            object.sound()?;
            Ok(object)
        };
        read().map_err(|why| BadValue { key: key.to_owned(), why })
    }

    /// Its value.
    fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("every object has a form in JSON")
    }
}

#[derive(Deserialize)]
struct Header {
    v: u32,
}

impl Value for FleetObject {
    fn version(&self) -> u32 {
        self.v
    }

    fn sound(&self) -> Result<(), String> {
        for (name, vni) in &self.networks {
            named(name, "network")?;
            if *vni >= 1 << 24 {
                return Err(format!("network `{name}` has the number {vni}; it must be below 2^24"));
            }
            let twin = self.networks.iter().find(|(other, number)| *number == vni && *other < name);
            if let Some((other, _)) = twin {
                return Err(format!("networks `{other}` and `{name}` have the same number {vni}"));
            }
        }
        if self.networks.is_empty() {
            return Err("it has no network".to_owned());
        }
        if let Some(key) =
            ["vni", "networks", "host", "hosts"].into_iter().find(|key| self.overlay.contains_key(*key))
        {
            return Err(format!(
                "`overlay` states `{key}`, which each host's policy gets from the directory"
            ));
        }
        keys(&self.overlay)?;
        if self.lease < Span::secs(1) || self.lease > Span::secs(3_600) {
            return Err(format!("`lease` is {}; it must be from 1s to 1h", self.lease));
        }
        Ok(())
    }
}

impl Value for HostObject {
    fn version(&self) -> u32 {
        self.v
    }

    fn sound(&self) -> Result<(), String> {
        self.policy.iter().try_for_each(|used| named(&used.name, "policy"))?;
        if let Some(key) = ["address", "tenants"].into_iter().find(|key| self.more.contains_key(*key)) {
            return Err(format!("`more` states `{key}`"));
        }
        keys(&self.more)
    }
}

impl Value for TenantObject {
    fn version(&self) -> u32 {
        self.v
    }

    fn sound(&self) -> Result<(), String> {
        named(&self.network, "network")?;
        self.host.iter().try_for_each(|host| named(host, "host"))?;
        if self.mac.is_empty() || self.mac.len() > 64 || self.addresses.len() > 64 {
            return Err("it needs a hardware address, and may have 64, and 64 IP addresses".to_owned());
        }
        for mac in &self.mac {
            mac.parse::<MacAddr>().map_err(|_| format!("`{mac}` is no hardware address"))?;
        }
        for address in &self.addresses {
            address.parse::<HostAddress>().map_err(|why| format!("`{address}`: {why}"))?;
        }
        if let Some(key) = TAKEN.into_iter().find(|key| self.more.contains_key(*key)) {
            return Err(format!("`more` states `{key}`, which has a field of its own"));
        }
        keys(&self.more)
    }
}

/// Keys of a tenant in a policy file that are fields here.
const TAKEN: [&str; 6] = ["port", "min", "max", "weight", "addresses", "policy"];

impl Value for PolicyObject {
    fn version(&self) -> u32 {
        self.v
    }

    fn sound(&self) -> Result<(), String> {
        if self.versions.is_empty() || self.versions.len() > KEPT_VERSIONS {
            return Err(format!(
                "it has {} versions, and may have 1 to {KEPT_VERSIONS}",
                self.versions.len()
            ));
        }
        Ok(())
    }
}

impl Value for Alive {
    fn version(&self) -> u32 {
        self.v
    }

    fn sound(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Value for RolloutObject {
    fn version(&self) -> u32 {
        self.v
    }

    fn sound(&self) -> Result<(), String> {
        self.from.keys().chain(&self.canaries).try_for_each(|host| named(host, "host"))
    }
}

/// Whether a name may be part of a key, a file's name and a policy.
pub(crate) fn named(name: &str, what: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= LONGEST_NAME && name.chars().all(plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(LONGEST_NAME).flat_map(char::escape_debug).collect();
    Err(format!(
        "`{shown}` is no name of a {what}: it begins with a letter or digit, and has letters, digits, `-`, `_` and `.`, \
         {LONGEST_NAME} at most"
    ))
}

/// Whether all keys are those of a policy file by their form, so that none of them can end its line.
fn keys(of: &BTreeMap<String, serde_json::Value>) -> Result<(), String> {
    let plain = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    match of.keys().find(|key| !plain(key)) {
        Some(key) => Err(format!("`{}` is no key of a policy file", key.escape_debug())),
        None => Ok(()),
    }
}

impl fmt::Display for PolicyInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// Rates as they read best where that is exact, else in bits per second.
mod exact {
    use plimsoll_units::BitRate;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn text(rate: BitRate) -> String {
        let short = rate.to_string();
        if short.parse() == Ok(rate) { short } else { format!("{}bps", rate.get()) }
    }

    pub(super) fn serialize<S: Serializer>(rate: &BitRate, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text(*rate))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BitRate, D::Error> {
        BitRate::deserialize(from)
    }

    pub(super) mod option {
        use super::*;

        pub(in super::super) fn serialize<S: Serializer>(
            rate: &Option<BitRate>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match rate {
                Some(rate) => to.serialize_str(&text(*rate)),
                None => to.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<BitRate>, D::Error> {
            Option::deserialize(from)
        }
    }
}

/// A rate as a policy file states it, without rounding.
pub(crate) fn exact_rate(rate: BitRate) -> String {
    exact::text(rate)
}
