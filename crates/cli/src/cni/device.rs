//! The interface that the daemon has made in a container.
//!
//! Why: a runtime is told its hardware address, and CHECK looks whether it is still there.
//! From: `ip -json address` and `ip -json route` in the container's network namespace.
//! Not here: making it.
//! Invariant: nothing is changed.

use std::path::PathBuf;

use plimsoll_ports::netns::{Netns, NetnsRef};
use serde::Deserialize;
use serde::de::DeserializeOwned;

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
    let shown = ip(call, &["address", "show", "dev", &call.interface])?;
    let missing = |why: String| {
        Refusal::new(Code::Missing, format!("`{}` is not in {}", call.interface, call.netns)).details(why)
    };
    let devices: Vec<Device> = read(&shown.map_err(missing)?)?;
    devices.into_iter().next().ok_or_else(|| missing("`ip` shows none".to_owned()))
}

/// Checks that the container has these routes by its interface, each with its gateway where one is stated.
pub(super) fn has_routes(call: &Call, stated: &[(String, Option<String>)]) -> Result<(), Refusal> {
    for (family, is_of) in [("-4", false), ("-6", true)] {
        let mut stated = stated.iter().filter(|(to, _)| to.contains(':') == is_of).peekable();
        if stated.peek().is_none() {
            continue;
        }
        let shown = ip(call, &[family, "route", "show", "dev", &call.interface])?;
        let own: Vec<Route> = shown.map_or_else(|_| Ok(Vec::new()), |shown| read(&shown))?;
        let Some((to, gateway)) = stated.find(|(to, by)| !own.iter().any(|own| own.is(to, by.as_deref())))
        else {
            continue;
        };
        let by = gateway.as_ref().map_or_else(String::new, |gateway| format!(" via {gateway}"));
        let message = format!("the container has not the route to {to}{by}");
        return Err(Refusal::new(Code::Missing, message).details("`plimsoll reload` sets it again"));
    }
    Ok(())
}

/// What `ip` shows in the container's network namespace, as JSON, or why it fails.
fn ip(call: &Call, words: &[&str]) -> Result<Result<Vec<u8>, String>, Refusal> {
    let netns = Netns::open(&NetnsRef::Path(PathBuf::from(&call.netns)));
    let netns = netns.map_err(|error| Refusal::new(Code::Environment, error.to_string()))?;
    let done = netns.command("ip").arg("-json").args(words).output();
    let done =
        done.map_err(|error| Refusal::new(Code::Io, format!("cannot run `ip` of iproute2: {error}")))?;
    if done.status.success() {
        return Ok(Ok(done.stdout));
    }
    Ok(Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

fn read<T: DeserializeOwned>(shown: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(shown)
        .map_err(|error| Refusal::new(Code::Io, format!("`ip -json` is not understood: {error}")))
}

/// A route, as `ip` shows it.
#[derive(Debug, Deserialize)]
struct Route {
    dst: String,
    gateway: Option<String>,
}

impl Route {
    /// Whether it leads there, by this gateway where one is stated. `ip` leaves out the length of a single address.
    fn is(&self, to: &str, gateway: Option<&str>) -> bool {
        let single = if to.contains(':') { "/128" } else { "/32" };
        let to = if to.ends_with("/0") { "default" } else { to.strip_suffix(single).unwrap_or(to) };
        self.dst == to && gateway.is_none_or(|gateway| self.gateway.as_deref() == Some(gateway))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_found_as_ip_shows_it() {
        let route =
            |dst: &str, gateway: Option<&str>| Route { dst: dst.into(), gateway: gateway.map(str::to_owned) };
        assert!(route("default", Some("10.9.0.1")).is("0.0.0.0/0", Some("10.9.0.1")));
        assert!(route("default", Some("10.9.0.1")).is("::/0", None));
        assert!(!route("default", Some("10.9.0.1")).is("0.0.0.0/0", Some("10.9.0.2")));
        assert!(
            route("10.1.2.3", None).is("10.1.2.3/32", None) && route("fd00::1", None).is("fd00::1/128", None)
        );
        assert!(!route("10.1.0.0/16", None).is("10.2.0.0/16", None));
    }
}
