//! Attachments: the file of each container's tenant, in a folder that the policy includes.
//!
//! Why: the file is all that is kept of an attachment, so nothing can disagree with it, and a daemon that starts finds it.
//! From: `docs/policy.md`, "Tenants that come and go".
//! Not here: what becomes of the file (the daemon), and addresses (`ipam`).
//! Invariant: one call at a time changes the folder; a file is there whole or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_ports::netns::{Netns, NetnsRef};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::answer::{Code, Refusal};
use super::config::{Call, Network};
use super::ipam::Given;
use crate::attach::ends::Ends;

/// One interface of a container in one network.
#[derive(Debug)]
pub(super) struct Attachment {
    /// Made from the network, the container and the interface: the same for each call about them.
    id: String,
    network: String,
    container: String,
    interface: String,
    netns: String,
    tenant: String,
    /// Keys of the tenant that are not the plugin's.
    keys: Map<String, Value>,
}

impl Attachment {
    pub(super) fn new(network: &Network, call: &Call) -> Self {
        let label = network.stated_name().or(call.pod.as_deref()).unwrap_or(&call.container);
        let bare = Self::of(network, &call.container, &call.interface);
        let tenant = format!("{}-{}", word(label), &bare.id[..SUFFIX_LEN]);
        Self { netns: call.netns.clone(), tenant, keys: network.keys(call), ..bare }
    }

    /// The attachment of a container of which nothing else is known.
    pub(super) fn of(network: &Network, container: &str, interface: &str) -> Self {
        let id = digest(&[&network.name, container, interface]);
        let (container, interface) = (container.to_owned(), interface.to_owned());
        let (netns, tenant, keys) = (String::new(), String::new(), Map::new());
        Self { id, network: network.name.clone(), container, interface, netns, tenant, keys }
    }

    /// The text of its file, for an interface that the daemon makes with these addresses. A flow mapping of YAML is JSON.
    pub(super) fn file(&self, mtu: Option<u16>, given: &Given) -> Result<String, Refusal> {
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
        Ok(self.text(&stated))
    }

    /// The text of its file, for an interface that another plugin has made.
    pub(super) fn file_of_veth(&self, ends: &Ends) -> String {
        self.text(&json!({ "port": { "af_packet": ends.host }, "addresses": ends.addresses }))
    }

    fn text(&self, stated: &Value) -> String {
        let stated = stated.as_object().into_iter().flatten();
        let lines = self.keys.iter().chain(stated).map(|(key, value)| format!("    {key}: {value}\n"));
        let Self { network, container, interface, netns, tenant, .. } = self;
        format!(
            "# Written by plimsoll-cni. It goes with the container.\n{NETWORK}{network}\n# container: {container}\n\
             # interface: {interface}\n{NETNS}{netns}\ntenants:\n  {tenant}:\n{}",
            lines.collect::<String>()
        )
    }

    fn name(&self) -> String {
        format!("{PREFIX}{}{SUFFIX}", self.id)
    }

    /// Whether a tenant of this name is this attachment's.
    pub(super) fn is_tenant(&self, name: &str) -> bool {
        name.strip_suffix(&self.id[..SUFFIX_LEN]).is_some_and(|label| label.ends_with('-'))
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
        format!("plimsoll-{}", &self.id[..12])
    }
}

/// The folder of the tenants' files, locked.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Open while this call may change the folder.
    _lock: File,
}

impl Folder {
    /// Waits until no other call changes the folder.
    pub(super) fn lock(path: &Path) -> Result<Self, Refusal> {
        let open = || -> io::Result<File> {
            let lock = File::options().create(true).truncate(false).write(true).open(path.join(".lock"))?;
            lock.lock()?;
            Ok(lock)
        };
        let failed = |error: io::Error| {
            let message = format!("cannot use the folder of tenants {}: {error}", path.display());
            let details = "make it, and name it by `include` in plimsoll's policy and by `tenants` in this network's configuration";
            Refusal::new(Code::Io, message).details(details)
        };
        Ok(Self { path: path.to_owned(), _lock: open().map_err(failed)? })
    }

    pub(super) fn write(&self, attachment: &Attachment, text: &str) -> Result<(), Refusal> {
        // Hidden, so that no policy includes it before it is whole.
        let beside = self.path.join(format!(".{}", attachment.name()));
        let file = self.path.join(attachment.name());
        let write = || {
            let mut new = File::create(&beside)?;
            new.write_all(text.as_bytes())?;
            // Before it has its name: after a power cut a file without its content would keep the daemon from starting.
            new.sync_all()?;
            fs::rename(&beside, &file)
        };
        write().map_err(|error| self.failed("write", &attachment.name(), &error))
    }

    /// Removes an attachment's file; false if there is none.
    pub(super) fn remove(&self, attachment: &Attachment) -> Result<bool, Refusal> {
        if let Ok(text) = fs::read_to_string(self.path.join(attachment.name()))
            && let Some(host) = veth_in(&text)
        {
            crate::attach::forget(host);
        }
        match fs::remove_file(self.path.join(attachment.name())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.failed("remove", &attachment.name(), &error)),
        }
    }

    /// The tenant of an attachment's file.
    pub(super) fn tenant(&self, attachment: &Attachment) -> Result<Option<String>, Refusal> {
        match fs::read_to_string(self.path.join(attachment.name())) {
            Ok(text) => Ok(tenant_in(&text).map(str::to_owned)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", &attachment.name(), &error)),
        }
    }

    /// Removes the files of containers whose network namespaces have gone, as after a restart of the machine: the daemon would not
    /// take in a new tenant beside one whose namespace is missing. Tenants that are `up` stay, whatever this process sees.
    pub(super) fn sweep(&self, up: &[String]) {
        let is_up = |text: &str| tenant_in(text).is_some_and(|tenant| up.iter().any(|name| name == tenant));
        let gone = |text: &str| {
            let netns = netns_in(text).map(|netns| Netns::open(&NetnsRef::Path(PathBuf::from(netns))));
            netns.is_some_and(|netns| netns.is_err()) && !is_up(text)
        };
        for (file, _) in self.files().into_iter().filter(|(_, text)| gone(text)) {
            let _ = fs::remove_file(self.path.join(file)); // the daemon's refusal tells what stays
        }
    }

    /// Removes the files of a network but those of `valid`; returns how many.
    pub(super) fn keep_only(&self, network: &str, valid: &[Attachment]) -> Result<usize, Refusal> {
        let of_network = |text: &str| text.lines().any(|line| line.strip_prefix(NETWORK) == Some(network));
        let is_valid = |file: &str| valid.iter().any(|attachment| attachment.name() == file);
        let rest = self.files().into_iter().filter(|(file, text)| of_network(text) && !is_valid(file));
        let rest: Vec<String> = rest.map(|(file, _)| file).collect();
        for file in &rest {
            fs::remove_file(self.path.join(file)).map_err(|error| self.failed("remove", file, &error))?;
        }
        Ok(rest.len())
    }

    /// The plugin's files, with their texts.
    fn files(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ours = names.filter(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        ours.filter_map(|name| Some((fs::read_to_string(self.path.join(&name)).ok()?, name)))
            .map(|(text, name)| (name, text))
            .collect()
    }

    fn failed(&self, what: &str, file: &str, error: &io::Error) -> Refusal {
        Refusal::new(Code::Io, format!("cannot {what} {}: {error}", self.path.join(file).display()))
    }
}

const PREFIX: &str = "cni-";
const SUFFIX: &str = plimsoll_policy::INCLUDED;
const NETWORK: &str = "# network: ";
const NETNS: &str = "# namespace: ";
/// Characters of a tenant's name that come from its container's; a tenant's name has 64 at most.
const LABEL: usize = 40;
/// Characters of a tenant's name that tell it from others.
const SUFFIX_LEN: usize = 12;

fn tenant_in(text: &str) -> Option<&str> {
    let line = text.lines().skip_while(|line| *line != "tenants:").nth(1)?;
    line.trim().strip_suffix(':')
}

fn netns_in(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix(NETNS))
}

fn veth_in(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(r#"{"af_packet":""#)?;
    rest.split_once('"').map(|(host, _)| host)
}

/// A name that a tenant's may begin with.
fn word(label: &str) -> String {
    let fine = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '-' };
    let word: String = label.chars().map(fine).take(LABEL).collect();
    if word.starts_with(|c: char| c.is_ascii_alphabetic()) { word } else { format!("c-{word}") }
}

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
        let id = |container, interface| Attachment::of(&lan, container, interface).name();
        assert_eq!(id("a", "eth0"), id("a", "eth0"));
        let others = [id("a", "eth0"), id("a", "eth1"), id("b", "eth0"), id("ae", "th0")];
        let distinct: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(distinct.len(), others.len(), "{others:?}");
    }

    #[test]
    fn what_a_file_says_is_found_again() {
        let text = "# network: lan\n# namespace: /run/netns/x\ntenants:\n  shop-1:\n    port: memory\n";
        assert_eq!((tenant_in(text), netns_in(text)), (Some("shop-1"), Some("/run/netns/x")));
        assert_eq!((tenant_in(""), netns_in("")), (None, None));
    }

    #[test]
    fn any_containers_name_makes_a_tenants() {
        for (label, expected) in
            [("shop", "shop"), ("4f2a", "c-4f2a"), ("ns.pod/1", "ns.pod-1"), ("", "c-"), ("ä", "c--")]
        {
            assert_eq!(word(label), expected);
        }
        assert!(word(&"x".repeat(300)).len() + 1 + SUFFIX_LEN <= 64);
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
