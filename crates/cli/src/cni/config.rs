//! What a call states: the network's configuration, and the container.
//!
//! Why: a mistake in either is refused before anything changes.
//! From: CNI 1.1, "Network configuration format" and "Parameters"; `docs/containers.md`, "CNI".
//! Not here: what a tenant may be, which the daemon checks.
//! Invariant: what the container's owner can state is what [`OWNERS`] lists; all else is the operator's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::answer::{Code, Refusal};
use crate::attachment::keys::{self, OWNERS, is_word, or_null};

/// The versions of CNI that this plugin speaks.
pub(super) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The begin of a pod's annotations that are keys of its tenant.
const ANNOTATION: &str = "plimsoll.io/";
/// What the plugin states itself.
const OURS: [&str; 3] = ["port", "addresses", "interface"];

/// A network's configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    #[serde(rename = "cniVersion")]
    pub version: String,
    pub name: String,
    /// The daemon's API.
    #[serde(default = "socket")]
    pub socket: PathBuf,
    /// The folder that the policy includes.
    #[serde(default = "tenants")]
    pub tenants: PathBuf,
    /// Keys of each tenant.
    #[serde(default, deserialize_with = "or_null")]
    tenant: Map<String, Value>,
    /// Those of [`OWNERS`] that a container's owner may state here.
    owners: Option<Vec<String>>,
    pub mtu: Option<u16>,
    #[serde(default, deserialize_with = "or_null")]
    pub ipam: Ipam,
    #[serde(default, deserialize_with = "or_null")]
    runtime_config: Runtime,
    #[serde(default, deserialize_with = "or_null")]
    args: Args,
    #[serde(default, rename = "cni.dev/valid-attachments", deserialize_with = "stated")]
    valid: Option<Vec<Valid>>,
    prev_result: Option<Value>,
}

/// A list that is there, as `null` if it is empty.
fn stated<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    or_null(from).map(Some)
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Ipam {
    #[serde(default, rename = "type")]
    pub kind: String,
}

#[derive(Debug, Default, Deserialize)]
struct Runtime {
    bandwidth: Option<Bandwidth>,
    #[serde(default, rename = "io.kubernetes.cri.pod-annotations", deserialize_with = "or_null")]
    annotations: BTreeMap<String, String>,
}

/// Bits per second; 0: no limit.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bandwidth {
    #[serde(default)]
    ingress_rate: u64,
    #[serde(default)]
    egress_rate: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Args {
    #[serde(default, deserialize_with = "or_null")]
    cni: CniArgs,
}

#[derive(Debug, Default, Deserialize)]
struct CniArgs {
    #[serde(default, deserialize_with = "or_null")]
    plimsoll: Map<String, Value>,
}

/// An attachment that the runtime knows.
#[derive(Debug, Deserialize)]
pub(super) struct Valid {
    #[serde(rename = "containerID")]
    pub container: String,
    #[serde(rename = "ifname")]
    pub interface: String,
}

fn socket() -> PathBuf {
    PathBuf::from("/run/plimsoll/api.sock")
}

fn tenants() -> PathBuf {
    PathBuf::from("/etc/plimsoll/tenants.d")
}

/// The version that a configuration states, for the answer to it.
pub(super) fn version_in(text: &str) -> String {
    let stated: Option<Value> = serde_json::from_str(text).ok();
    let stated = stated.as_ref().and_then(|stated| stated["cniVersion"].as_str());
    let known = stated.filter(|stated| VERSIONS.contains(stated));
    known.unwrap_or(VERSIONS[VERSIONS.len() - 1]).to_owned()
}

impl Network {
    pub(super) fn read(text: &str) -> Result<Self, Refusal> {
        let network: Self = serde_json::from_str(text)
            .map_err(|error| Refusal::new(Code::Decode, format!("the configuration is wrong: {error}")))?;
        if !VERSIONS.contains(&network.version.as_str()) {
            let message = format!("cniVersion {} is not known", network.version);
            return Err(
                Refusal::new(Code::Version, message).details(format!("known: {}", VERSIONS.join(", ")))
            );
        }
        if network.name.is_empty() || network.name.contains(char::is_control) {
            return Err(Refusal::new(Code::Config, "the network has no name"));
        }
        Ok(network)
    }

    /// Refuses keys that the operator or the container's owner may not state. What must be removed is removed whatever they state.
    pub(super) fn judge(&self, call: &Call) -> Result<(), Refusal> {
        if let Some(key) = self.tenant.keys().find(|key| OURS.contains(&key.as_str())) {
            let message = format!("`tenant` has `{key}`, which this plugin states itself");
            return Err(Refusal::new(Code::Config, message).details("leave it out"));
        }
        let allowed: Vec<&str> = match &self.owners {
            Some(owners) => owners.iter().map(String::as_str).filter(|key| OWNERS.contains(key)).collect(),
            None => OWNERS.to_vec(),
        };
        Ok(keys::judge(&self.owned(call), &allowed)?)
    }

    /// What the container's owner states: by `args`, by annotations of its pod, by CNI_ARGS.
    fn owned(&self, call: &Call) -> Map<String, Value> {
        let args = self.args.cni.plimsoll.clone().into_iter().filter(|(key, _)| key != "name");
        let annotations = self.runtime_config.annotations.iter();
        let annotations = annotations
            .filter_map(|(key, text)| Some((key.strip_prefix(ANNOTATION)?.to_owned(), keys::value(text))));
        let mut owned: Map<String, Value> = args.collect();
        keys::add(&mut owned, annotations.collect());
        keys::add(&mut owned, call.keys.clone());
        owned
    }

    /// The attachments that the runtime knows.
    pub(super) fn valid(&self) -> Result<&[Valid], Refusal> {
        self.valid.as_deref().ok_or_else(|| {
            Refusal::new(Code::Config, "the configuration has no `cni.dev/valid-attachments`")
                .details("GC removes what is not listed there, so the list must be there, if only as []")
        })
    }

    /// Whether the configuration is of this version of CNI, or a later one.
    pub(super) fn is_from(&self, version: [u32; 2]) -> bool {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        [parts.next().unwrap_or(0), parts.next().unwrap_or(0)] >= version
    }

    /// The keys of a tenant: the operator's for all, then what the container's owner asks for, then what the runtime does.
    pub(super) fn keys(&self, call: &Call) -> Map<String, Value> {
        let mut keys = self.tenant.clone();
        keys::add(&mut keys, self.owned(call));
        keys::add(&mut keys, self.given());
        keys
    }

    /// The `bandwidth` capability as keys of a tenant.
    fn given(&self) -> Map<String, Value> {
        let mut keys = Map::new();
        let Some(&Bandwidth { ingress_rate, egress_rate }) = self.runtime_config.bandwidth.as_ref() else {
            return keys;
        };
        if egress_rate > 0 {
            keys.insert("max".to_owned(), format!("{egress_rate}bps").into());
        }
        if ingress_rate > 0 {
            keys.insert("ingress".to_owned(), serde_json::json!({ "max": format!("{ingress_rate}bps") }));
        }
        keys
    }

    /// The name that the container's owner asks for.
    pub(super) fn stated_name(&self) -> Option<&str> {
        self.args.cni.plimsoll.get("name")?.as_str()
    }

    /// The result of the plugins before this one, if it is one of a chain.
    pub(super) fn previous(&self) -> Option<&Value> {
        self.prev_result.as_ref()
    }

    /// The routes that ADD answered with: where to, and by which gateway.
    pub(super) fn stated_routes(&self) -> Vec<(String, Option<String>)> {
        let routes = self.prev_result.as_ref().and_then(|result| result["routes"].as_array());
        let route = |route: &Value| {
            Some((route["dst"].as_str()?.to_owned(), route["gw"].as_str().map(str::to_owned)))
        };
        routes.into_iter().flatten().filter_map(route).collect()
    }

    /// The addresses that ADD answered with, as the runtime has kept them.
    pub(super) fn stated_addresses(&self) -> Vec<String> {
        let ips = self.prev_result.as_ref().and_then(|result| result["ips"].as_array());
        let address = |ip: &Value| Some(ip["address"].as_str()?.to_owned());
        ips.into_iter().flatten().filter_map(address).collect()
    }
}

/// The container of a call.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub container: String,
    /// Path of its network namespace; empty where it has gone.
    pub netns: String,
    /// The interface's name in the container.
    pub interface: String,
    /// What Kubernetes calls the container's pod.
    pub pod: Option<String>,
    /// Keys of its tenant by CNI_ARGS.
    keys: Map<String, Value>,
}

impl Call {
    /// Reads the environment.
    pub(super) fn read(needs_netns: bool) -> Result<Self, Refusal> {
        let stated = |name: &str| std::env::var(name).unwrap_or_default();
        let wrong = |name: &str, what: &str| Refusal::new(Code::Environment, format!("{name} {what}"));
        let (container, netns, interface) =
            (stated("CNI_CONTAINERID"), stated("CNI_NETNS"), stated("CNI_IFNAME"));
        if !is_word(&container, "_.-", 253) || !container.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(wrong("CNI_CONTAINERID", "is no container's id"));
        }
        // As the kernel: no slash and no space.
        if !is_word(&interface, "!#$%&'()*+,-.;<=>?@[]^_`{|}~", 15)
            || matches!(interface.as_str(), "." | "..")
        {
            return Err(wrong("CNI_IFNAME", "is no interface's name"));
        }
        if needs_netns && !netns.starts_with('/') || netns.contains(char::is_control) {
            return Err(wrong("CNI_NETNS", "is no path of a network namespace"));
        }
        let args = stated("CNI_ARGS");
        let args = args.split(';').filter_map(|arg| arg.split_once('='));
        let named = |wanted: &str| args.clone().find(|(key, _)| *key == wanted).map(|(_, value)| value);
        let pod = named("K8S_POD_NAMESPACE").zip(named("K8S_POD_NAME"));
        let own = args.clone().filter_map(|(key, value)| {
            Some((key.strip_prefix("PLIMSOLL_")?.to_ascii_lowercase(), keys::value(value)))
        });
        let keys: Map<String, Value> = own.collect();
        let pod = pod.map(|(namespace, name)| format!("{namespace}.{name}"));
        Ok(Self { container, netns, interface, pod, keys })
    }
}
