//! What is kept of Docker's networks and their endpoints.
//!
//! Why: Docker tells of each once, and neither its restart nor the plugin's may lose it.
//! From: a file for each, by Docker's own ids.
//! Not here: containers that have joined, which are files of the policy (`attachment`).
//! Invariant: a record is there whole or not at all.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::attachment::keys::{self, OWNERS};
use crate::attachment::{Kind, SUFFIX_LEN, Trouble, write_whole};
use crate::failure::Failure;
use crate::reader;

/// A network of Docker's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Network {
    /// At most one of each family.
    pub gateways: Vec<String>,
    pub mtu: Option<u16>,
    /// Keys of each container's tenant.
    pub keys: Map<String, Value>,
}

/// A container's place in a network.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Endpoint {
    pub network: String,
    pub mac: String,
    pub addresses: Vec<String>,
    /// What the tenant's name starts with.
    pub name: String,
    /// Keys of the tenant, before those of the network.
    pub keys: Map<String, Value>,
}

/// Whether this is an id of Docker's: it becomes a part of names of files and interfaces.
pub(super) fn is_id(text: &str) -> bool {
    keys::is_word(text, "", 64) && text.len() >= SUFFIX_LEN
}

/// The begin of options that are keys of a tenant.
const OPTION: &str = "plimsoll.";
/// The option by which Docker's own drivers take the MTU.
const MTU: &str = "com.docker.network.driver.mtu";

impl Network {
    /// Reads the options of `docker network create -o`.
    pub(super) fn read(options: &Map<String, Value>) -> Result<Self, Trouble> {
        let known = |key: &String| key.starts_with(OPTION) || key.starts_with("com.docker.");
        if let Some(unknown) = options.keys().find(|key| !known(key)) {
            return Err(wrong(format!("plimsoll knows no option `{unknown}`")));
        }
        let mtu = options.get(MTU).map(|mtu| match mtu.as_str().and_then(|mtu| mtu.parse().ok()) {
            // The least that IPv4 asks of a link (RFC 791).
            Some(mtu) if mtu >= 68 => Ok(mtu),
            _ => Err(wrong(format!("`{MTU}` is {mtu}, which is no MTU"))),
        });
        let keys = tenant_keys(options)?;
        keys::judge(&keys, &OWNERS)?;
        Ok(Self { gateways: Vec::new(), mtu: mtu.transpose()?, keys })
    }
}

impl Endpoint {
    /// Reads the options of `docker run --network name=...,driver-opt=...`.
    pub(super) fn read(
        network: &str,
        mac: Option<&str>,
        addresses: Vec<String>,
        options: &Map<String, Value>,
        id: &str,
    ) -> Result<Self, Trouble> {
        let mut keys = tenant_keys(options)?;
        let name = match keys.remove("name") {
            Some(Value::Object(_)) => return Err(wrong(format!("`{OPTION}name` is one name"))),
            Some(Value::String(name)) => Some(name),
            name => name.map(|name| name.to_string()),
        };
        keys::judge(&keys, &OWNERS)?;
        let mac = mac.map_or_else(|| mac_of(id), str::to_owned);
        let name = name.unwrap_or_else(|| "docker".to_owned());
        Ok(Self { network: network.to_owned(), mac, addresses, name, keys })
    }
}

/// The options that are keys of a tenant; `ingress.max` is `max` in `ingress`. Docker hands over its own among them.
fn tenant_keys(options: &Map<String, Value>) -> Result<Map<String, Value>, Trouble> {
    let mut keys = Map::new();
    for (key, value) in options.iter().filter_map(|(key, value)| Some((key.strip_prefix(OPTION)?, value))) {
        let Value::String(text) = value else {
            return Err(wrong(format!("the option `{OPTION}{key}` is no text")));
        };
        let value = keys::value(&with_units(text));
        match key.split_once('.') {
            Some((outer, inner)) => match keys.entry(outer).or_insert_with(|| Value::Object(Map::new())) {
                Value::Object(map) => drop(map.insert(inner.to_owned(), value)),
                _ => {
                    return Err(wrong(format!(
                        "the options have both `{OPTION}{outer}` and `{OPTION}{key}`"
                    )));
                }
            },
            None => drop(keys.insert(key.to_owned(), value)),
        }
    }
    Ok(keys)
}

/// A quantity with its unit as a policy writes it: `docker run` makes all letters of a `driver-opt` small.
fn with_units(text: &str) -> String {
    const UNITS: [&str; 9] = ["Mbps", "Gbps", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB"];
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let small = &text[number.len()..];
    // What has a large letter is as it was written, right or wrong.
    let unit = UNITS.iter().find(|unit| unit.to_ascii_lowercase() == small);
    match unit {
        Some(unit) if number.starts_with(|c: char| c.is_ascii_digit()) => format!("{number}{unit}"),
        _ => text.to_owned(),
    }
}

/// A hardware address of this endpoint alone, as far as 40 bits go: local, and of one interface.
fn mac_of(id: &str) -> String {
    let digest = Sha256::digest(id);
    let bytes: Vec<String> = [0x02].iter().chain(&digest[..5]).map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// Checks what can be checked of a tenant's keys without the policy that they become a part of, as a mistake shows earlier then.
pub(super) fn judge(keys: &Map<String, Value>) -> Result<(), Trouble> {
    let keys: String = keys.iter().map(|(key, value)| format!(", {key}: {value}")).collect();
    let policy = format!(
        "uplink: {{port: memory, rate: 100Gbps}}\nengine: {{line_rate_frame: 9000B}}\ntenants: {{container: {{port: memory{keys}}}}}\n"
    );
    let why = match reader::load_text("options", &policy) {
        Ok(_) => return Ok(()),
        Err(Failure::Policy(errors)) => errors
            .records()
            .into_iter()
            .map(|problem| format!("{}; {}", problem.message, problem.help))
            .collect::<Vec<_>>()
            .join("; "),
        Err(failure) => failure.words(),
    };
    Err(Trouble::new(Kind::Config, "the options are wrong").details(why))
}

fn wrong(message: String) -> Trouble {
    let keys: Vec<String> = OWNERS.iter().map(|key| format!("{OPTION}{key}")).collect();
    Trouble::new(Kind::Config, message).details(format!("the options are {}, {MTU}", keys.join(", ")))
}

/// The records, in a folder.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
}

const NETWORK: &str = "network-";
const ENDPOINT: &str = "endpoint-";
const END: &str = ".json";

impl Records {
    pub(super) fn open(folder: &Path) -> Result<Self, Trouble> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| failed("make", folder, &error))?;
        Ok(Self { folder: folder.to_owned() })
    }

    pub(super) fn network(&self, id: &str) -> Result<Option<Network>, Trouble> {
        self.read(&format!("{NETWORK}{id}{END}"))
    }

    pub(super) fn endpoint(&self, id: &str) -> Result<Option<Endpoint>, Trouble> {
        self.read(&format!("{ENDPOINT}{id}{END}"))
    }

    pub(super) fn keep_network(&self, id: &str, network: &Network) -> Result<(), Trouble> {
        self.write(&format!("{NETWORK}{id}{END}"), network)
    }

    pub(super) fn keep_endpoint(&self, id: &str, endpoint: &Endpoint) -> Result<(), Trouble> {
        self.write(&format!("{ENDPOINT}{id}{END}"), endpoint)
    }

    pub(super) fn forget_network(&self, id: &str) -> Result<(), Trouble> {
        self.remove(&format!("{NETWORK}{id}{END}"))
    }

    pub(super) fn forget_endpoint(&self, id: &str) -> Result<(), Trouble> {
        self.remove(&format!("{ENDPOINT}{id}{END}"))
    }

    /// All endpoints, by their ids. One that cannot be read is left out: its container's own calls tell why.
    pub(super) fn endpoints(&self) -> Vec<(String, Endpoint)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ids = names.filter_map(|name| Some(name.strip_prefix(ENDPOINT)?.strip_suffix(END)?.to_owned()));
        let ids = ids.filter(|id| is_id(id));
        let mut found: Vec<_> = ids.filter_map(|id| Some((id.clone(), self.endpoint(&id).ok()??))).collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Trouble> {
        let path = self.folder.join(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path, &error)),
        };
        let read = serde_json::from_slice(&text);
        read.map(Some).map_err(|error| failed("read", &path, &io::Error::other(error)))
    }

    fn write(&self, name: &str, record: &impl Serialize) -> Result<(), Trouble> {
        let text = serde_json::to_string(record).map_err(io::Error::other);
        let written = text.and_then(|text| write_whole(&self.folder, name, &text));
        written.map_err(|error| failed("write", &self.folder.join(name), &error))
    }

    fn remove(&self, name: &str) -> Result<(), Trouble> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed("remove", &self.folder.join(name), &error))
            }
            _ => Ok(()),
        }
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Trouble {
    Trouble::new(Kind::Io, format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoint(options: &Value) -> Result<Endpoint, Trouble> {
        Endpoint::read("n", None, Vec::new(), options.as_object().expect("a map"), "0123456789ab")
    }

    #[test]
    fn options_are_keys_of_a_tenant_whatever_docker_makes_of_their_letters() {
        let options = json!({ "plimsoll.max": "40mbps", "plimsoll.weight": "3", "plimsoll.name": "shop",
            "plimsoll.ingress.max": "1.5gbps", "plimsoll.burst": "64kib",
            "plimsoll.delay.p99": "100us", "com.docker.network.portmap": [] });
        let found = endpoint(&options).expect("fine");
        let keys = json!({ "max": "40Mbps", "weight": 3, "ingress": { "max": "1.5Gbps" }, "burst": "64KiB",
            "delay": { "p99": "100us" } });
        assert_eq!((Value::Object(found.keys), found.name.as_str()), (keys, "shop"));
        assert_eq!(with_units("10ms"), "10ms");
        assert_eq!(with_units("mb"), "mb");
    }

    #[test]
    fn what_an_owner_may_not_state_is_refused() {
        for options in [
            json!({ "plimsoll.policy": "/etc/shadow" }),
            json!({ "plimsoll.max": 5 }),
            json!({ "plimsoll.ingress": "1", "plimsoll.ingress.max": "1gbps" }),
        ] {
            assert!(endpoint(&options).is_err(), "{options}");
        }
        let network = |options: Value| Network::read(options.as_object().expect("a map"));
        assert!(
            network(json!({ "plimsol.max": "1Gbps" })).is_err_and(|why| why.message.contains("plimsol.max"))
        );
        assert!(network(json!({ "com.docker.network.driver.mtu": "large" })).is_err());
        assert_eq!(
            network(json!({ "com.docker.network.driver.mtu": "1400" })).map(|network| network.mtu),
            Ok(Some(1_400))
        );
    }

    #[test]
    fn a_hardware_address_is_local_and_of_one_endpoint() {
        let (a, b) = (mac_of("0123456789ab"), mac_of("0123456789ac"));
        assert!(a.starts_with("02:") && a.len() == 17 && a != b, "{a} {b}");
    }
}
