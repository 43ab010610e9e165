//! What the daemon sets on a tenant's interface.
//!
//! Why: a TAP that is made anew has lost its addresses and routes, and the tenant's operator would have to set them again.
//! From: `ip address`, `ip route`.
//! Not here: setting it (`daemon`), and the addresses that a tenant's frames may bear (`addresses`).
//! Invariant: each route's gateway is on a network of one of the addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::program::Prefix;

/// What the daemon sets on a tenant's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its addresses, with the lengths of their networks.
    pub addresses: Vec<HostAddress>,
    /// Its routes.
    pub routes: Vec<HostRoute>,
    /// Its largest packet, where that is less than `uplink.mtu` allows.
    pub mtu: Option<u16>,
    /// Whether the device stays when the daemon ends, with all that is set on it.
    pub persist: bool,
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The address.
    pub addr: IpAddr,
    /// Leading bits that name the network.
    pub len: u8,
}

/// A route over the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRoute {
    /// The destinations.
    pub to: Prefix,
    /// The next hop; none for destinations on the link itself.
    pub via: Option<IpAddr>,
}

/// A text that is no such address or route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of this form")]
pub struct InterfaceError;

impl Interface {
    /// Whether the daemon sets nothing but what it sets on each interface.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl HostAddress {
    /// The network that it is on.
    #[must_use]
    pub fn holds(&self, other: IpAddr) -> bool {
        Prefix { addr: self.addr, len: self.len }.contains(other)
    }

    /// Why no host may have the address, if none may.
    #[must_use]
    pub fn unusable(&self) -> Option<&'static str> {
        let Self { addr, len } = *self;
        let (bits, whole) = match addr {
            IpAddr::V4(addr) => (u128::from(addr.to_bits()), 32),
            IpAddr::V6(addr) => (addr.to_bits(), 128),
        };
        // A network of two addresses, or of one, has no address of its own (RFC 3021, RFC 6164).
        let hosts = u32::from(whole - len);
        let mask = if hosts < 2 { 0 } else { u128::MAX >> (128 - hosts) };
        if addr.is_unspecified() {
            Some("the unspecified address")
        } else if addr.is_loopback() {
            Some("a loopback address, which never leaves its host")
        } else if addr.is_multicast() {
            Some("a multicast address")
        } else if mask > 0 && bits & mask == 0 {
            Some("the address of the network itself")
        } else if addr == IpAddr::V4(Ipv4Addr::BROADCAST) || addr.is_ipv4() && mask > 0 && bits & mask == mask
        {
            Some("the network's broadcast address")
        } else {
            None
        }
    }
}

impl FromStr for HostAddress {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<Self, InterfaceError> {
        let (addr, len) = text.split_once('/').ok_or(InterfaceError)?;
        let addr: IpAddr = addr.parse().map_err(|_| InterfaceError)?;
        let len: u8 = len.parse().map_err(|_| InterfaceError)?;
        let most = if addr.is_ipv4() { 32 } else { 128 };
        if len == 0 || len > most { Err(InterfaceError) } else { Ok(Self { addr, len }) }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl FromStr for HostRoute {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<Self, InterfaceError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (to, via) = match words[..] {
            [to] => (to, None),
            [to, "via", via] => (to, Some(via.parse::<IpAddr>().map_err(|_| InterfaceError)?)),
            _ => return Err(InterfaceError),
        };
        let to = match (to, via) {
            ("default", Some(IpAddr::V4(_))) => "0.0.0.0/0",
            ("default", Some(IpAddr::V6(_))) => "::/0",
            (to, _) => to,
        };
        let to: Prefix = to.parse().map_err(|_| InterfaceError)?;
        let alike = via.is_none_or(|via| via.is_ipv4() == to.addr.is_ipv4());
        if alike { Ok(Self { to, via }) } else { Err(InterfaceError) }
    }
}

impl fmt::Display for HostRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.via {
            Some(via) => write!(f, "{} via {via}", self.to),
            None => write!(f, "{}", self.to),
        }
    }
}

impl Serialize for HostAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for HostRoute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_host_has_a_networks_own_address_or_one_of_many_hosts() {
        let why = |text: &str| text.parse::<HostAddress>().expect("an address").unusable();
        for good in [
            "10.9.0.1/24",
            "10.9.0.0/31",
            "10.9.0.1/31",
            "10.9.0.0/32",
            "10.9.0.255/16",
            "fd00::1/64",
            "fd00::/127",
        ] {
            assert_eq!(why(good), None, "{good}");
        }
        let told = [
            ("10.9.0.0/24", "network itself"),
            ("10.9.0.255/24", "broadcast"),
            ("255.255.255.255/32", "broadcast"),
            ("127.0.0.1/8", "loopback"),
            ("224.0.0.1/8", "multicast"),
            ("0.0.0.0/8", "unspecified"),
            ("::1/128", "loopback"),
            ("ff02::1/64", "multicast"),
            ("fd00::/64", "network itself"),
            ("0.0.0.1/1", "ok"),
        ];
        for (bad, says) in told {
            assert!(why(bad).unwrap_or("ok").contains(says), "{bad}: {:?}", why(bad));
        }
    }

    #[test]
    fn routes_are_written_as_ip_writes_them() {
        let read = |text: &str| text.parse::<HostRoute>().map(|route| route.to_string());
        assert_eq!(read("default via 10.0.0.1").as_deref(), Ok("0.0.0.0/0 via 10.0.0.1"));
        assert_eq!(read("default via fd00::1").as_deref(), Ok("::/0 via fd00::1"));
        assert_eq!(read("10.9.0.0/16").as_deref(), Ok("10.9.0.0/16"));
        for wrong in ["default", "10.9.0.0/16 via fd00::1", "10.9.0.0/16 10.0.0.1", "", "x via y"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!("10.0.0.1".parse::<HostAddress>().is_err(), "without the length of its network");
        assert!("10.0.0.1/33".parse::<HostAddress>().is_err() && "fd00::1/64".parse::<HostAddress>().is_ok());
    }
}
