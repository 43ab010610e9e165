//! The veth pair of an endpoint: one end is the tenant's port, the other one Docker moves into the container.
//!
//! Why: Docker names the container's namespace only once the driver has made the interface; and a veth outlives the daemon.
//! From: veth(4); names are of the endpoint's id, so each call finds them again.
//! Not here: addresses and routes inside the container, which Docker sets.
//! Invariant: the host's own stack hears nothing from the pair (`attach::take_over`).

use std::process::Command;

use serde::Deserialize;

use super::records::Endpoint;
use crate::attach::ends::Ends;
use crate::attach::{forget, take_over};
use crate::attachment::{Kind, SUFFIX_LEN, Trouble};

/// A veth pair, by its names. Linux has 15 letters for each.
#[derive(Debug)]
pub(super) struct Veth {
    /// The end on the host.
    pub host: String,
    /// The end for the container, until Docker has moved and renamed it.
    pub inside: String,
}

impl Veth {
    pub(super) fn of(id: &str) -> Self {
        let id = &id[..SUFFIX_LEN];
        Self { host: format!("plh{id}"), inside: format!("plc{id}") }
    }

    /// Makes the pair, in place of one that is there.
    pub(super) fn make(&self, endpoint: &Endpoint, mtu: Option<u16>) -> Result<(), Trouble> {
        self.remove()?;
        let mtu = mtu.map(|mtu| format!("mtu {mtu}"));
        let mtu = mtu.as_deref().unwrap_or_default();
        let Self { host, inside } = self;
        let made =
            format!("link add {host} {mtu} type veth peer name {inside} {mtu} address {}", endpoint.mac);
        ip(&made.split_whitespace().collect::<Vec<_>>())?;
        let ends = Ends {
            inside: inside.clone(),
            host: host.clone(),
            bridge: None,
            first: None,
            ipv6: true,
            bridge_address: None,
            addresses: Vec::new(),
        };
        take_over(&ends, &mut |_| {}).map_err(|failure| Trouble::new(Kind::Io, failure.words()))
    }

    /// Removes both ends, wherever the container's is.
    pub(super) fn remove(&self) -> Result<(), Trouble> {
        if !names()?.contains(&self.host) {
            return Ok(());
        }
        forget(&self.host);
        match ip(&["link", "del", &self.host]) {
            // It may have gone with the container's namespace meanwhile.
            Err(_) if !names()?.contains(&self.host) => Ok(()),
            done => done,
        }
    }
}

/// The interfaces of this network namespace.
pub(super) fn names() -> Result<Vec<String>, Trouble> {
    #[derive(Deserialize)]
    struct Link {
        ifname: String,
    }
    let shown = run(&["-json", "link", "show"])?;
    let links: Vec<Link> = serde_json::from_slice(&shown)
        .map_err(|error| Trouble::new(Kind::Io, format!("`ip -json link` is not understood: {error}")))?;
    Ok(links.into_iter().map(|link| link.ifname).collect())
}

fn ip(words: &[&str]) -> Result<(), Trouble> {
    run(words).map(drop)
}

fn run(words: &[&str]) -> Result<Vec<u8>, Trouble> {
    let failed = |why: &str| Trouble::new(Kind::Io, format!("`ip {}`: {why}", words.join(" ")));
    let done = Command::new("ip").args(words).output().map_err(|error| failed(&error.to_string()))?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    Err(failed(String::from_utf8_lossy(&done.stderr).trim()))
}
