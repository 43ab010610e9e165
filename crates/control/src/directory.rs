//! The directory: which host serves a tenant's address.
//!
//! Why: an overlay's sender must know the other host before it can wrap a frame, and feedback must reach the right host.
//! From: RFC 7348 §4.1's mapping of inner addresses to tunnel endpoints, stated instead of learned from traffic, which a
//! tenant could lie about.
//! Not here: how the map comes about (an operator's file, the fleet's directory), and the next hop's hardware address.
//! Invariant: one address of a network is at one host, and one host has one underlay address.
//!
//! ```
//! use plimsoll_control::directory::{Directory, InnerAddr, Peer, StaticDirectory};
//! use plimsoll_control::HostId;
//!
//! let mut directory = StaticDirectory::default();
//! let peer = Peer { host: HostId(2), underlay: [192, 0, 2, 2].into() };
//! directory.insert(7, InnerAddr::Mac([2, 0, 0, 0, 0, 0xb]), peer)?;
//! assert_eq!(directory.peer(7, InnerAddr::Mac([2, 0, 0, 0, 0, 0xb])), Some(peer));
//! assert_eq!(directory.peer(8, InnerAddr::Mac([2, 0, 0, 0, 0, 0xb])), None);
//! # Ok::<(), plimsoll_control::directory::DirectoryError>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use foldhash::fast::FixedState;

use crate::HostId;

/// A host as the overlay reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The host's number.
    pub host: HostId,
    /// The address to which its packets go.
    pub underlay: IpAddr,
}

/// A tenant's address in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InnerAddr {
    /// An Ethernet address.
    Mac([u8; 6]),
    /// An IP address: for answers to neighbour discovery in a tenant's place.
    Ip(IpAddr),
}

/// The overlay's look-ups. They happen for each frame, so answers come from memory.
pub trait Directory {
    /// The host of this address of network `network` (a VNI).
    fn peer(&self, network: u32, addr: InnerAddr) -> Option<Peer>;

    /// A host's underlay address, to which feedback is sent.
    fn underlay(&self, host: HostId) -> Option<IpAddr>;

    /// The hosts with any address of this network, each once, in the order of their numbers: they get its broadcasts.
    fn peers_of(&self, network: u32) -> impl Iterator<Item = Peer> + '_;
}

/// A directory that an operator states.
#[derive(Clone, Debug, Default)]
pub struct StaticDirectory {
    // Only the operator inserts: what tenants look up fills no bucket, so the hash needs no secret.
    hosts: HashMap<(u32, InnerAddr), HostId, FixedState>,
    underlays: BTreeMap<HostId, IpAddr>,
    networks: BTreeSet<(u32, HostId)>,
}

/// Why an entry cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The network's number has more than 24 bits.
    #[error("network {network}: a VNI is less than 16777216; choose a smaller number")]
    Network {
        /// Its number.
        network: u32,
    },
    /// A group's address, or the null address.
    #[error("network {network}: {addr} names no single interface; give the address of one")]
    NotOne {
        /// Its number.
        network: u32,
        /// The address.
        addr: InnerAddr,
    },
    /// The address is elsewhere already.
    #[error("network {network}: {addr} is at host {} and at host {}; remove one of the entries", first.0, second.0)]
    Twice {
        /// Its number.
        network: u32,
        /// The address.
        addr: InnerAddr,
        /// The host that has it.
        first: HostId,
        /// The host that was to have it.
        second: HostId,
    },
    /// The host has another underlay address.
    #[error("host {} has the underlay addresses {first} and {second}; give it the same one everywhere", host.0)]
    Moved {
        /// The host.
        host: HostId,
        /// The address that it has.
        first: IpAddr,
        /// The address that it was to have.
        second: IpAddr,
    },
    /// Two hosts would have one underlay address.
    #[error("hosts {} and {} both have the underlay address {underlay}; give each its own", first.0, second.0)]
    Shared {
        /// The host that has it.
        first: HostId,
        /// The host that was to have it.
        second: HostId,
        /// The address.
        underlay: IpAddr,
    },
}

impl StaticDirectory {
    /// Says that `peer` serves `addr` of `network`. Saying so twice is fine.
    ///
    /// # Errors
    /// [`DirectoryError`]; nothing has changed then.
    pub fn insert(&mut self, network: u32, addr: InnerAddr, peer: Peer) -> Result<(), DirectoryError> {
        if network >= 1 << 24 {
            return Err(DirectoryError::Network { network });
        }
        if !addr.is_one() {
            return Err(DirectoryError::NotOne { network, addr });
        }
        if let Some(&first) = self.hosts.get(&(network, addr)).filter(|&&first| first != peer.host) {
            return Err(DirectoryError::Twice { network, addr, first, second: peer.host });
        }
        self.check_underlay(peer)?;
        self.underlays.insert(peer.host, peer.underlay);
        self.hosts.insert((network, addr), peer.host);
        self.networks.insert((network, peer.host));
        Ok(())
    }

    fn check_underlay(&self, Peer { host, underlay }: Peer) -> Result<(), DirectoryError> {
        match self.underlays.get(&host) {
            Some(&first) if first != underlay => {
                return Err(DirectoryError::Moved { host, first, second: underlay });
            }
            Some(_) => return Ok(()),
            None => {}
        }
        match self.underlays.iter().find(|&(_, &other)| other == underlay) {
            Some((&first, _)) => Err(DirectoryError::Shared { first, second: host, underlay }),
            None => Ok(()),
        }
    }

    fn located(&self, host: HostId) -> Option<Peer> {
        self.underlay(host).map(|underlay| Peer { host, underlay })
    }
}

impl Directory for StaticDirectory {
    fn peer(&self, network: u32, addr: InnerAddr) -> Option<Peer> {
        self.located(*self.hosts.get(&(network, addr))?)
    }

    fn underlay(&self, host: HostId) -> Option<IpAddr> {
        self.underlays.get(&host).copied()
    }

    fn peers_of(&self, network: u32) -> impl Iterator<Item = Peer> + '_ {
        let hosts = self.networks.range((network, HostId(0))..=(network, HostId(u32::MAX)));
        hosts.filter_map(|&(_, host)| self.located(host))
    }
}

impl InnerAddr {
    fn is_one(&self) -> bool {
        match self {
            Self::Mac(mac) => mac[0] & 1 == 0 && *mac != [0; 6],
            Self::Ip(IpAddr::V4(ip)) => !(ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified()),
            Self::Ip(IpAddr::V6(ip)) => !(ip.is_multicast() || ip.is_unspecified()),
        }
    }
}

impl fmt::Display for InnerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mac(n: u8) -> InnerAddr {
        InnerAddr::Mac([2, 0, 0, 0, 0, n])
    }

    fn peer(n: u8) -> Peer {
        Peer { host: HostId(n.into()), underlay: [192, 0, 2, n].into() }
    }

    #[test]
    fn one_address_in_two_networks_is_two_tenants() {
        let mut directory = StaticDirectory::default();
        directory.insert(7, mac(1), peer(1)).unwrap();
        directory.insert(8, mac(1), peer(2)).unwrap();
        directory.insert(7, InnerAddr::Ip([10, 0, 0, 1].into()), peer(1)).unwrap();
        assert_eq!(directory.peer(7, mac(1)), Some(peer(1)));
        assert_eq!(directory.peer(8, mac(1)), Some(peer(2)));
        assert_eq!(directory.peer(7, InnerAddr::Ip([10, 0, 0, 1].into())), Some(peer(1)));
        assert_eq!(directory.peer(8, InnerAddr::Ip([10, 0, 0, 1].into())), None);
        assert_eq!(directory.underlay(HostId(2)), Some([192, 0, 2, 2].into()));
        assert_eq!(directory.underlay(HostId(3)), None);
    }

    #[test]
    fn broadcasts_reach_each_host_of_a_network_once() {
        let mut directory = StaticDirectory::default();
        for (network, n, host) in [(7, 1, 9), (7, 2, 3), (7, 3, 9), (8, 4, 5), (6, 5, 1)] {
            directory.insert(network, mac(n), peer(host)).unwrap();
        }
        assert_eq!(directory.peers_of(7).collect::<Vec<_>>(), [peer(3), peer(9)]);
        assert_eq!(directory.peers_of(9).count(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_way_out() {
        let mut directory = StaticDirectory::default();
        directory.insert(7, mac(1), peer(1)).unwrap();
        directory.insert(7, mac(1), peer(1)).expect("the same again");
        let error = directory.insert(7, mac(1), peer(2)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "network 7: 02:00:00:00:00:01 is at host 1 and at host 2; remove one of the entries"
        );
        let moved = Peer { underlay: [192, 0, 2, 9].into(), ..peer(1) };
        assert!(matches!(directory.insert(7, mac(2), moved), Err(DirectoryError::Moved { .. })));
        let shared = Peer { host: HostId(2), ..peer(1) };
        assert!(matches!(directory.insert(7, mac(2), shared), Err(DirectoryError::Shared { .. })));
        let network = 1 << 24;
        assert_eq!(directory.insert(network, mac(1), peer(1)), Err(DirectoryError::Network { network }));
        let groups =
            [InnerAddr::Mac([0xff; 6]), InnerAddr::Mac([0; 6]), InnerAddr::Ip([224, 0, 0, 1].into())];
        for addr in groups {
            assert_eq!(
                directory.insert(7, addr, peer(1)),
                Err(DirectoryError::NotOne { network: 7, addr }),
                "{addr}"
            );
        }
        assert_eq!(directory.peer(7, mac(2)), None, "nothing was half taken");
        assert_eq!(directory.underlay(HostId(2)), None);
    }

    proptest! {
        /// Whatever was said, in whatever order: the first word counts, and nothing else is known.
        #[test]
        fn it_answers_as_a_list_would(
            said in proptest::collection::vec((0_u32..3, 1_u8..6, 1_u8..5), 0..40), network in 0_u32..3, n in 1_u8..6,
        ) {
            let mut directory = StaticDirectory::default();
            for &(network, n, host) in &said {
                let _ = directory.insert(network, mac(n), peer(host));
            }
            let first = said.iter().find(|&&(net, addr, _)| (net, addr) == (network, n));
            prop_assert_eq!(directory.peer(network, mac(n)), first.map(|&(_, _, host)| peer(host)));
            let there: BTreeSet<HostId> =
                (1..6).filter_map(|n| directory.peer(network, mac(n))).map(|peer| peer.host).collect();
            prop_assert!(directory.peers_of(network).map(|peer| peer.host).eq(there));
        }
    }
}
