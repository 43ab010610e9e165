//! The addresses that a tenant's frames may bear.
//!
//! Why: the operator knows each tenant's addresses, and a sender may write any address into a frame.
//! From: port security of Neutron and OVN (`allowed_address_pairs`), SAVI (RFC 7039).
//! Not here: reading them (`read`), frames (`wire::binding`, `daemon`).
//! Invariant: a tenant that states no IP address is held to no list of its own.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::program::Prefix;

/// A tenant's `addresses` and `binding`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// Its IP addresses and networks.
    pub ips: Vec<Prefix>,
    /// Hardware addresses that it has beside its port's.
    pub macs: Vec<MacAddr>,
    /// How it is held to them.
    pub binding: Binding,
}

/// How a tenant is held to its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// It sends from them and claims them, and nothing else.
    #[default]
    Strict,
    /// It sends packets of others as well, and advertises itself as a router, but claims no other addresses.
    Router,
    /// It may use any address.
    Off,
}

impl Addresses {
    /// Whether only its own hardware addresses pass.
    #[must_use]
    pub fn binds_macs(&self) -> bool {
        let states = !self.ips.is_empty() || !self.macs.is_empty();
        match self.binding {
            Binding::Strict => states,
            Binding::Router => true,
            Binding::Off => false,
        }
    }

    /// Whether only its own IP addresses may be claimed by ARP and neighbour discovery.
    #[must_use]
    pub fn binds_ips(&self) -> bool {
        !self.ips.is_empty() && self.binding != Binding::Off
    }

    /// All that is stated, IP addresses first.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let ips = self.ips.iter().map(ToString::to_string);
        ips.chain(self.macs.iter().map(ToString::to_string)).collect()
    }

    /// The word that `check` prints for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.binding {
            Binding::Strict if self.ips.is_empty() => "unbound",
            binding => binding.word(),
        }
    }
}

impl Binding {
    /// The word in a policy file.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Router => "router",
            Self::Off => "off",
        }
    }
}

impl FromStr for Binding {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Strict, Self::Router, Self::Off].into_iter().find(|one| one.word() == text).ok_or(())
    }
}

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl FromStr for MacAddr {
    type Err = MacAddrError;

    /// Reads `02:00:00:00:0a:01`: one interface's address, no group's.
    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let mut parts = text.trim().split(':').map(|part| {
            let two = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            two.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        });
        let mut mac = [0; 6];
        for byte in &mut mac {
            *byte = parts.next().flatten().ok_or(MacAddrError)?;
        }
        if parts.next().is_some() || mac[0] & 1 == 1 || mac == [0; 6] {
            Err(MacAddrError)
        } else {
            Ok(Self(mac))
        }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Serialize for MacAddr {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A text that is no interface's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an interface's address such as `02:00:00:00:0a:01`")]
pub struct MacAddrError;

/// One of a tenant's `addresses`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatedAddress {
    Ip(Prefix),
    Mac(MacAddr),
}

impl FromStr for StatedAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mac = text.parse().map(Self::Mac);
        mac.or_else(|_| text.parse().map(Self::Ip)).map_err(|_| ())
    }
}

impl fmt::Display for StatedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(prefix) => prefix.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
        }
    }
}
