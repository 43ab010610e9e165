//! The interface that the daemon has made in a container.
//!
//! Why: a runtime is told its hardware address, and CHECK looks whether it is still there.
//! From: `ip -json address` in the container's network namespace.
//! Not here: making it.
//! Invariant: nothing is changed.

use std::path::PathBuf;

use plimsoll_ports::netns::{Netns, NetnsRef};
use serde::Deserialize;

use super::answer::{Code, Refusal};
use super::config::Call;

/// An interface, as `ip` shows it.
#[derive(Debug, Deserialize)]
pub(super) struct Device {
    #[serde(rename = "address")]
    pub mac: String,
    pub mtu: u32,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Debug, Deserialize)]
struct Address {
    local: Option<String>,
    prefixlen: Option<u8>,
}

/// The container's interface.
pub(super) fn find(call: &Call) -> Result<Device, Refusal> {
    let missing = |why: String| {
        Refusal::new(Code::Missing, format!("`{}` is not in {}", call.interface, call.netns)).details(why)
    };
    let netns = Netns::open(&NetnsRef::Path(PathBuf::from(&call.netns)));
    let netns = netns.map_err(|error| Refusal::new(Code::Environment, error.to_string()))?;
    let done = netns.command("ip").args(["-json", "address", "show", "dev", &call.interface]).output();
    let done =
        done.map_err(|error| Refusal::new(Code::Io, format!("cannot run `ip` of iproute2: {error}")))?;
    if !done.status.success() {
        return Err(missing(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    let devices: Vec<Device> = serde_json::from_slice(&done.stdout)
        .map_err(|error| Refusal::new(Code::Io, format!("`ip -json address` is not understood: {error}")))?;
    devices.into_iter().next().ok_or_else(|| missing("`ip` shows none".to_owned()))
}

impl Device {
    /// Checks that it is up and has these addresses.
    pub(super) fn has(&self, addresses: Vec<String>) -> Result<(), Refusal> {
        if !self.flags.iter().any(|flag| flag == "UP") {
            let refusal = Refusal::new(Code::Missing, "the container's interface is down");
            return Err(refusal.details("its owner has set it down: `ip link set up` in the container"));
        }
        let own = |wanted: &str| {
            self.addr_info.iter().any(|own| {
                own.local
                    .as_ref()
                    .zip(own.prefixlen)
                    .is_some_and(|(local, len)| format!("{local}/{len}") == wanted)
            })
        };
        match addresses.iter().find(|wanted| !own(wanted)) {
            Some(missing) => {
                let message = format!("the container's interface has not the address {missing}");
                Err(Refusal::new(Code::Missing, message).details("`plimsoll reload` sets it again"))
            }
            None => Ok(()),
        }
    }
}
