//! Interfaces, addresses and routes of one namespace.
//!
//! Why: ports configure their TAPs, and the lab builds topologies, without running `ip`.
//! From: route netlink, through the `nlink` crate.
//! Not here: traffic control and packets. `nlink`'s types stay inside this file and its parent, so
//! that the library can be changed.
//! Invariant: every call names the interface and the namespace in its error.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nlink::netlink::link::VethLink;
use nlink::netlink::route::{Ipv4Route, Ipv6Route};
use nlink::{Connection, Route};
use serde::{Deserialize, Serialize};

use super::{Netns, owner};
use crate::error::{PortError, check_interface_name};

/// An address with the length of its network's prefix, such as `10.0.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The address.
    pub addr: IpAddr,
    /// Leading bits that name the network.
    pub prefix: u8,
}

impl FromStr for Cidr {
    type Err = ParseCidrError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseCidrError(text.to_owned());
        let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(whole), str::parse).map_err(|_| wrong())?;
        if prefix > whole { Err(wrong()) } else { Ok(Self { addr, prefix }) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

/// The error for a text that is not an address with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address with a prefix; write it like 10.0.0.1/24 or fd00::1/64")]
pub struct ParseCidrError(String);

/// The properties of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// The interface's name.
    pub name: String,
    /// The interface's number in its namespace.
    pub index: u32,
    /// Largest packet that the interface carries.
    pub mtu: u32,
    /// Whether the interface is set up.
    pub up: bool,
    /// The interface's MAC address, if it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// The interface's alias, which holds the mark for the sweep.
    pub alias: Option<String>,
    /// By how many queues frames arrive, where the driver tells and that was asked.
    pub queues: Option<u32>,
}

/// The interfaces of a [`Netns`]; each call is one netlink exchange inside it.
#[derive(Clone, Copy, Debug)]
pub struct Links<'a> {
    netns: &'a Netns,
}

impl<'a> Links<'a> {
    pub(super) fn new(netns: &'a Netns) -> Self {
        Self { netns }
    }

    /// Makes a veth pair: `name` here and `peer` in `peer_netns`. Both are marked for the sweep.
    ///
    /// # Errors
    /// When a name is taken or not allowed, or the kernel refuses.
    pub fn add_veth(&self, name: &str, peer_netns: &Netns, peer: &str) -> Result<(), PortError> {
        check_interface_name(name)?;
        check_interface_name(peer)?;
        let what = format!("add veth pair `{name}` to `{peer}` of {}", peer_netns.place());
        let pair = VethLink::new(name, peer).peer_netns_fd(peer_netns);
        self.ask(&what, name, async |kernel: &Connection<Route>| kernel.add_link(pair).await)?;
        self.mark(name)?;
        peer_netns.links().mark(peer)
    }

    /// Adds an address; an IPv6 address is usable at once, without duplicate detection.
    ///
    /// # Errors
    /// When the interface does not exist or has the address already.
    pub fn add_address(&self, name: &str, address: Cidr) -> Result<(), PortError> {
        let what = format!("add address {address} to `{name}`");
        let added = self.ask(&what, name, async |kernel: &Connection<Route>| match address.addr {
            IpAddr::V4(_) => kernel.add_address_by_name(name, address.addr, address.prefix).await,
            IpAddr::V6(addr) => {
                use nlink::netlink::addr::Ipv6Address;
                kernel.add_address(Ipv6Address::new(name, addr, address.prefix).nodad()).await
            }
        });
        match added {
            // The kernel refuses it as it refuses a process without privileges.
            Err(PortError::Permission { .. } | PortError::System { .. })
                if address.addr.is_ipv6() && !self.has_ipv6(name) =>
            {
                let (name, place) = (name.to_owned(), self.netns.place().to_owned());
                Err(PortError::NoIpv6 { what, name, place })
            }
            added => added,
        }
    }

    /// Whether the interface may have IPv6 addresses.
    fn has_ipv6(&self, name: &str) -> bool {
        let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        let read = self.netns.run(|| std::fs::read_to_string(path));
        read.is_ok_and(|read| read.is_ok_and(|text| text.trim() == "0"))
    }

    /// Adds a route to `destination`, over the gateway `via` or directly over `dev`.
    ///
    /// # Errors
    /// When the gateway cannot be reached, or neither is given.
    pub fn add_route(
        &self,
        destination: Cidr,
        via: Option<IpAddr>,
        dev: Option<&str>,
    ) -> Result<(), PortError> {
        self.route(destination, via, dev, false)
    }

    /// Like [`Links::add_route`], in place of a route to `destination` that there is.
    ///
    /// # Errors
    /// As for [`Links::add_route`].
    pub fn replace_route(
        &self,
        destination: Cidr,
        via: Option<IpAddr>,
        dev: Option<&str>,
    ) -> Result<(), PortError> {
        self.route(destination, via, dev, true)
    }

    fn route(
        &self,
        destination: Cidr,
        via: Option<IpAddr>,
        dev: Option<&str>,
        replace: bool,
    ) -> Result<(), PortError> {
        let what = format!("add route to {destination}");
        let refused = |problem: &str| PortError::Config { what: what.clone(), problem: problem.to_owned() };
        if via.is_none() && dev.is_none() {
            return Err(refused("neither a gateway nor an interface was given; give one"));
        }
        match (destination.addr, via) {
            (IpAddr::V4(to), None | Some(IpAddr::V4(_))) => {
                let mut route = Ipv4Route::from_addr(to, destination.prefix);
                if let Some(IpAddr::V4(gateway)) = via {
                    route = route.gateway(gateway);
                }
                if let Some(dev) = dev {
                    route = route.dev(dev);
                }
                self.ask(&what, dev.unwrap_or(""), async |kernel: &Connection<Route>| {
                    if replace { kernel.replace_route(route).await } else { kernel.add_route(route).await }
                })
            }
            (IpAddr::V6(to), None | Some(IpAddr::V6(_))) => {
                let mut route = Ipv6Route::from_addr(to, destination.prefix);
                if let Some(IpAddr::V6(gateway)) = via {
                    route = route.gateway(gateway);
                }
                if let Some(dev) = dev {
                    route = route.dev(dev);
                }
                self.ask(&what, dev.unwrap_or(""), async |kernel: &Connection<Route>| {
                    if replace { kernel.replace_route(route).await } else { kernel.add_route(route).await }
                })
            }
            _ => Err(refused("the destination and the gateway are of different IP versions")),
        }
    }

    /// Sets the interface up.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn set_up(&self, name: &str) -> Result<(), PortError> {
        self.ask(&format!("set `{name}` up"), name, async |kernel: &Connection<Route>| {
            kernel.set_link_up(name).await
        })
    }

    /// Sets the interface down.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn set_down(&self, name: &str) -> Result<(), PortError> {
        self.ask(&format!("set `{name}` down"), name, async |kernel: &Connection<Route>| {
            kernel.set_link_down(name).await
        })
    }

    /// Sets the largest packet that the interface carries.
    ///
    /// # Errors
    /// When it does not exist, or cannot carry packets of this size.
    pub fn set_mtu(&self, name: &str, mtu: u32) -> Result<(), PortError> {
        self.ask(&format!("set the MTU of `{name}` to {mtu}"), name, async |kernel: &Connection<Route>| {
            kernel.set_link_mtu(name, mtu).await
        })
    }

    /// Sets the interface's MAC address.
    ///
    /// # Errors
    /// When it does not exist, or the address is no unicast address.
    pub fn set_mac(&self, name: &str, mac: [u8; 6]) -> Result<(), PortError> {
        self.ask(&format!("set the MAC address of `{name}`"), name, async |kernel: &Connection<Route>| {
            kernel.set_link_address(name, mac).await
        })
    }

    /// Sets how many packets a segment may have that the interface takes to be cut later.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn set_most_segments(&self, name: &str, segments: u32) -> Result<(), PortError> {
        let what = format!("set how many packets `{name}` takes as one segment");
        self.ask(&what, name, async |kernel: &Connection<Route>| {
            let Some(link) = kernel.get_link_by_name(name).await? else { return Ok(()) };
            kernel.set_link_gso_max_segs_by_index(link.ifindex(), segments).await
        })
    }

    /// Sets how many packets the interface queues before it drops.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn set_txqueuelen(&self, name: &str, packets: u32) -> Result<(), PortError> {
        self.ask(&format!("set the queue length of `{name}`"), name, async |kernel: &Connection<Route>| {
            kernel.set_link_txqlen(name, packets).await
        })
    }

    /// Renames an interface that is down.
    ///
    /// # Errors
    /// When it does not exist, or the new name is taken.
    pub fn rename(&self, name: &str, new_name: &str) -> Result<(), PortError> {
        check_interface_name(new_name)?;
        self.ask(&format!("name an interface `{new_name}`"), new_name, async |kernel: &Connection<Route>| {
            kernel.set_link_name(name, new_name).await
        })
    }

    /// Moves an interface to another namespace, where it keeps its name.
    ///
    /// # Errors
    /// When it does not exist, or its name is taken there.
    pub fn move_to(&self, name: &str, netns: &Netns) -> Result<(), PortError> {
        let what = format!("move `{name}` to {}", netns.place());
        self.ask(&what, name, async |kernel: &Connection<Route>| kernel.set_link_netns_fd(name, netns).await)
    }

    /// Deletes the interface.
    ///
    /// # Errors
    /// When it does not exist, or may not be deleted.
    pub fn delete(&self, name: &str) -> Result<(), PortError> {
        self.ask(&format!("delete `{name}`"), name, async |kernel: &Connection<Route>| {
            kernel.del_link(name).await
        })
    }

    /// Deletes the interface if it exists, and returns whether it did.
    ///
    /// # Errors
    /// When it may not be deleted.
    pub fn delete_if_exists(&self, name: &str) -> Result<bool, PortError> {
        self.ask(&format!("delete `{name}`"), name, async |kernel: &Connection<Route>| {
            kernel.del_link_if_exists(name).await
        })
    }

    /// The properties of interface `name`.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn get(&self, name: &str) -> Result<LinkInfo, PortError> {
        let found = self.ask("list interfaces", name, async |kernel: &Connection<Route>| {
            Ok(kernel.get_link_by_name(name).await?.map(|link| info(&link)))
        })?;
        found.ok_or_else(|| PortError::NoInterface {
            name: name.to_owned(),
            place: self.netns.place().to_owned(),
        })
    }

    /// All interfaces.
    ///
    /// # Errors
    /// When the kernel cannot list them.
    pub fn list(&self) -> Result<Vec<LinkInfo>, PortError> {
        self.ask("list interfaces", "", async |kernel: &Connection<Route>| {
            Ok(kernel.get_links().await?.iter().map(info).collect())
        })
    }

    /// Marks the interface as made by this process, for the sweep.
    pub(crate) fn mark(&self, name: &str) -> Result<(), PortError> {
        self.ask(&format!("mark `{name}`"), name, async |kernel: &Connection<Route>| {
            kernel.set_link_alias(name, &owner::mark()).await
        })
    }

    /// Makes one netlink exchange, on a thread inside the namespace.
    fn ask<T: Send>(
        &self,
        what: &str,
        name: &str,
        request: impl AsyncFnOnce(&Connection<Route>) -> nlink::Result<T> + Send,
    ) -> Result<T, PortError> {
        let place = self.netns.place();
        let answer = self.netns.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let kernel = Connection::<Route>::new()?;
                request(&kernel).await
            })
        })?;
        answer.map_err(|error| {
            let name = name.to_owned();
            if error.is_already_exists() {
                PortError::NameTaken { what: what.to_owned(), name, place: place.to_owned() }
            } else if error.is_no_device() || error.is_not_found() {
                PortError::NoInterface { name, place: place.to_owned() }
            } else {
                PortError::netlink(what, place, &error)
            }
        })
    }
}

fn info(link: &nlink::netlink::messages::LinkMessage) -> LinkInfo {
    LinkInfo {
        name: link.name_or("").to_owned(),
        index: link.ifindex(),
        mtu: link.mtu().unwrap_or(0),
        up: link.is_up(),
        mac: link.address().and_then(|mac| mac.try_into().ok()),
        alias: link.alias().map(str::to_owned),
        queues: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_with_and_without_a_prefix() {
        assert_eq!("10.0.0.1/24".parse::<Cidr>().unwrap().to_string(), "10.0.0.1/24");
        assert_eq!("10.0.0.1".parse::<Cidr>().unwrap().prefix, 32);
        assert_eq!("fd00::1".parse::<Cidr>().unwrap().prefix, 128);
        for wrong in ["", "10.0.0.1/33", "10.0.0/8", "fd00::/129", "x/8", "10.0.0.1/"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
