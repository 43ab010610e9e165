//! A container of a CNI network as an attachment.
//!
//! Why: each call about a container finds the tenant that an earlier one has made.
//! From: CNI's parameters; `docs/policy.md`, "Tenants that come and go".
//! Not here: the files and their folder (`crate::attachment`), and addresses (`ipam`).
//! Invariant: network, container and interface give one attachment.

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_ports::netns::{Netns, NetnsRef};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::answer::{Code, Refusal};
use super::config::{Call, Network};
use super::ipam::Given;
use crate::attach::ends::Ends;
use crate::attachment::{self, CNI, note_in};

/// One interface of a container in one network.
#[derive(Debug)]
pub(super) struct Attachment {
    /// Its file and tenant. Its id is made from the network, the container and the interface.
    pub file: attachment::Attachment,
    network: String,
    container: String,
    interface: String,
    netns: String,
}

impl Attachment {
    pub(super) fn new(network: &Network, call: &Call) -> Self {
        let label = network.stated_name().or(call.pod.as_deref()).unwrap_or(&call.container);
        let bare = Self::of(network, &call.container, &call.interface);
        let file = attachment::Attachment::new(CNI, bare.file.id().to_owned(), label, network.keys(call));
        Self { netns: call.netns.clone(), file, ..bare }
    }

    /// The attachment of a container of which nothing else is known.
    pub(super) fn of(network: &Network, container: &str, interface: &str) -> Self {
        let file = attachment::Attachment::of(CNI, digest(&[&network.name, container, interface]));
        let (container, interface) = (container.to_owned(), interface.to_owned());
        Self { file, network: network.name.clone(), container, interface, netns: String::new() }
    }

    /// The text of its file, for an interface that the daemon makes with these addresses.
    pub(super) fn text(&self, mtu: Option<u16>, given: &Given) -> Result<String, Refusal> {
        let addresses: Vec<&str> = given.ips.iter().map(|ip| ip.address.as_str()).collect();
        let alone = |address: &&str| address.split('/').next().unwrap_or_default().to_owned();
        let alone: Vec<String> = addresses.iter().map(alone).collect();
        let mut interface = json!({});
        // A policy has no empty lists.
        for (key, list) in [("addresses", json!(addresses)), ("routes", json!(given.routes_in_policy()?))] {
            if list != json!([]) {
                interface[key] = list;
            }
        }
        if let Some(mtu) = mtu {
            interface["mtu"] = mtu.into();
        }
        let mut stated = json!({ "port": { "tap": { "netns": self.netns, "name": self.interface } } });
        if interface != json!({}) {
            stated["interface"] = interface;
        }
        // Without addresses of its own a tenant may send from any that no other states.
        if !alone.is_empty() {
            stated["addresses"] = alone.into();
        }
        Ok(self.with_notes(&stated))
    }

    /// The text of its file, for an interface that another plugin has made.
    pub(super) fn text_of_veth(&self, ends: &Ends) -> String {
        self.with_notes(&json!({ "port": { "af_packet": ends.host }, "addresses": ends.addresses }))
    }

    fn with_notes(&self, stated: &serde_json::Value) -> String {
        let notes = [
            (NETWORK, self.network.as_str()),
            (CONTAINER, &self.container),
            (INTERFACE, &self.interface),
            (NETNS, &self.netns),
        ];
        self.file.text(&notes, stated)
    }

    /// Gives the container's namespace a name of its own where it is known by a process alone: when the process has gone, another may
    /// have its number.
    pub(super) fn pin(&mut self) -> Result<(), Refusal> {
        let process = self.netns.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/net"));
        let Some(process) = process.filter(|process| process.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            return Ok(());
        };
        let pinned = Command::new("ip").args(["netns", "attach", &self.pinned(), process]).output();
        let failed =
            |why: &str| Refusal::new(Code::Io, format!("cannot name the namespace {}: {why}", self.netns));
        let pinned = pinned.map_err(|error| failed(&error.to_string()))?;
        if !pinned.status.success() {
            return Err(failed(String::from_utf8_lossy(&pinned.stderr).trim()));
        }
        self.netns = format!("/run/netns/{}", self.pinned());
        Ok(())
    }

    /// Takes that name away, if there is one.
    pub(super) fn unpin(&self) {
        if Path::new("/run/netns").join(self.pinned()).exists() {
            let _ = Command::new("ip").args(["netns", "del", &self.pinned()]).output();
        }
    }

    fn pinned(&self) -> String {
        format!("plimsoll-{}", &self.file.id()[..12])
    }
}

/// Whether a file is of this network.
pub(super) fn is_of(network: &Network, text: &str) -> bool {
    note_in(text, NETWORK) == Some(&network.name)
}

/// Whether a file's network namespace has gone, as after a restart of the machine.
pub(super) fn has_gone(text: &str) -> bool {
    let netns = note_in(text, NETNS).map(|netns| Netns::open(&NetnsRef::Path(PathBuf::from(netns))));
    netns.is_some_and(|netns| netns.is_err())
}

/// The container and the interface of a file.
pub(super) fn container_in(text: &str) -> Option<(&str, &str)> {
    Some((note_in(text, CONTAINER)?, note_in(text, INTERFACE)?))
}

const NETWORK: &str = "network";
const CONTAINER: &str = "container";
const INTERFACE: &str = "interface";
const NETNS: &str = "namespace";

/// A digest of words, of which nobody finds two alike: a container's id may be its owner's choice.
fn digest(words: &[&str]) -> String {
    let text = words.iter().flat_map(|word| word.bytes().chain([0])).collect::<Vec<u8>>();
    Sha256::digest(text)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(more: &str) -> Network {
        let text = format!(r#"{{"cniVersion": "1.1.0", "name": "lan"{more}}}"#);
        Network::read(&text).expect("a network")
    }

    #[test]
    fn an_attachment_is_the_same_at_each_call_and_no_other_is() {
        let lan = network("");
        let id = |container, interface| Attachment::of(&lan, container, interface).file.id().to_owned();
        assert_eq!(id("a", "eth0"), id("a", "eth0"));
        let others = [id("a", "eth0"), id("a", "eth1"), id("b", "eth0"), id("ae", "th0")];
        let distinct: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(distinct.len(), others.len(), "{others:?}");
    }

    #[test]
    fn a_containers_owner_states_an_envelope_and_nothing_else() {
        let refused =
            |more: &str| network(&format!(", {more}")).judge(&Call::default()).expect_err("refused").message;
        assert!(refused(r#""args": {"cni": {"plimsoll": {"policy": "/etc/shadow"}}}"#).contains("`policy`"));
        assert!(refused(r#""tenant": {"port": "memory"}"#).contains("states itself"));
        assert!(
            network(r#", "args": {"cni": {"plimsoll": {"name": "shop", "max": "1Gbps"}}}"#).stated_name()
                == Some("shop")
        );
    }
}
