//! Whether a tenant's frame bears and claims only addresses that are the tenant's.
//!
//! Why: who says by ARP or neighbour discovery that it has another's address gets the other's traffic; who sends from it
//! answers in its name.
//! From: RFC 826 and RFC 5227 (ARP), RFC 4861 and RFC 4862 (neighbour discovery), RFC 6105 (RA guard), RFC 6980 (no
//! fragments of it), RFC 7039 (SAVI); frames that hide from such filters: CVE-2021-27853, -27854 and -27861.
//! Not here: which addresses are whose (`policy`, `daemon`), what comes from behind the uplink.
//! Invariant: no bytes make [`verify`] panic, it allocates nothing, and its time is bounded; what it lets pass names no
//! hardware or IP address as the sender's that [`Addresses`] does not own, unless the tenant forwards.
//!
//! ```
//! use std::net::IpAddr;
//! use plimsoll_wire::binding::{Addresses, verify};
//! use plimsoll_wire::{BindingError, Mac, neighbour, parse};
//!
//! struct Shop;
//! impl Addresses for Shop {
//!     fn has_mac(&self, mac: Mac) -> bool { mac == Mac([2, 0, 0, 0, 0, 1]) }
//!     fn owns(&self, ip: IpAddr) -> bool { ip == IpAddr::from([10, 0, 0, 1]) }
//!     fn is_anothers(&self, ip: IpAddr) -> bool { ip == IpAddr::from([10, 0, 0, 2]) }
//!     fn forwards(&self) -> bool { false }
//! }
//!
//! let (mac, asker) = (Mac([2, 0, 0, 0, 0, 1]), ([10, 0, 0, 9].into(), Mac([2, 0, 0, 0, 0, 9])));
//! let mut says = |ip: [u8; 4]| {
//!     let mut frame = [0; neighbour::LONGEST];
//!     let len = neighbour::tell((ip.into(), mac), asker, &mut frame).expect("both are IPv4");
//!     verify(&frame[..len], &parse(&frame[..len]).unwrap(), &Shop)
//! };
//! assert_eq!(says([10, 0, 0, 1]), Ok(()));
//! assert_eq!(says([10, 0, 0, 2]), Err(BindingError::Arp));
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array, be16};
use crate::parse::{Fragment, IPV4, IPV6, Ip, Mac, Parsed, protocol};
use crate::reason::BindingError;

/// What is known of a tenant's addresses.
pub trait Addresses {
    /// Whether the tenant's port has this hardware address.
    fn has_mac(&self, mac: Mac) -> bool;
    /// Whether the tenant may send from this address and say that it has it.
    fn owns(&self, ip: IpAddr) -> bool;
    /// Whether this address is another tenant's, and not this one's: probes for it would keep the other from using it.
    fn is_anothers(&self, ip: IpAddr) -> bool;
    /// Whether the tenant is a router: it sends packets of others, and advertises itself.
    fn forwards(&self) -> bool;
}

/// Whether a frame from a tenant's port bears only addresses of the tenant: in its Ethernet header, its IP header, ARP
/// and neighbour discovery, behind VLAN tags and IPv6 extension headers.
///
/// `parsed` must be what [`crate::parse`] answered for `frame`. Beside the tenant's own addresses it lets pass what a
/// host sends before it has one: DHCP and IGMP from 0.0.0.0, ARP probes, duplicate address detection, router
/// solicitations and MLD from `::`.
///
/// # Errors
/// The first claim that is not the tenant's.
pub fn verify(frame: &[u8], parsed: &Parsed, tenant: &impl Addresses) -> Result<(), BindingError> {
    if !tenant.has_mac(parsed.src_mac) {
        return Err(BindingError::SourceMac);
    }
    match (&parsed.ip, parsed.ethertype) {
        (Some(ip), _) => verify_ip(frame, ip, tenant),
        (None, ARP | REVERSE_ARP) => verify_arp(frame.get(parsed.l3.into()..).unwrap_or_default(), tenant),
        (None, length) if length < FIRST_ETHERTYPE => verify_length(frame, parsed.l3),
        _ => Ok(()),
    }
}

/// Whether what [`verify`] says of an IP packet depends on its hardware and IP source address alone: then it holds for
/// every such packet with the same two.
#[inline]
#[must_use]
pub fn only_source_counts(ip: &Ip) -> bool {
    ip.protocol != ICMP6 && !ip.src.is_unspecified()
}

fn verify_ip(frame: &[u8], ip: &Ip, tenant: &impl Addresses) -> Result<(), BindingError> {
    let message = match ip.src {
        IpAddr::V6(_) if ip.protocol == ICMP6 && ip.fragment != Fragment::Later => {
            frame.get(ip.l4.into()..ip.end as usize).unwrap_or_default()
        }
        _ => return verify_source(ip, None, tenant),
    };
    let kind = message.first().copied();
    let discovers = kind.is_some_and(|kind| (ROUTER_SOLICITATION..=REDIRECT).contains(&kind));
    match ip.fragment {
        // The first fragment may be so short that it shows no type.
        Fragment::First if discovers || kind.is_none() => Err(BindingError::NeighbourFragment),
        _ if discovers => verify_discovery(message, ip.src, tenant),
        _ => verify_source(ip, kind, tenant),
    }
}

/// `icmp6` is the type, where the packet is ICMPv6 and shows it.
fn verify_source(ip: &Ip, icmp6: Option<u8>, tenant: &impl Addresses) -> Result<(), BindingError> {
    let may = if ip.src.is_unspecified() {
        match ip.src {
            IpAddr::V4(_) => asks_for_address(ip) || ip.protocol == IGMP,
            IpAddr::V6(_) => matches!(icmp6, Some(MLD_REPORT | MLD_DONE | MLD2_REPORT)),
        }
    } else {
        tenant.forwards() || tenant.owns(ip.src)
    };
    if may { Ok(()) } else { Err(BindingError::SourceAddress) }
}

/// A DHCP client that has no address yet.
fn asks_for_address(ip: &Ip) -> bool {
    ip.protocol == protocol::UDP && ip.ports == Some((DHCP_CLIENT, DHCP_SERVER))
}

/// Whatever the operation is: receivers learn from the sender's fields of each.
fn verify_arp(arp: &[u8], tenant: &impl Addresses) -> Result<(), BindingError> {
    let (Some(kinds), Some(operation), Some(mac), Some(sender), Some(target)) = (
        array::<6>(arp, 0),
        be16(arp, 6),
        array(arp, 8),
        array::<4>(arp, 14).map(Ipv4Addr::from),
        array::<4>(arp, 24).map(Ipv4Addr::from),
    ) else {
        return Err(BindingError::Arp);
    };
    // Linux takes IEEE 802's number for Ethernet's.
    let known = matches!(kinds, [0, 1 | 6, 8, 0, 6, 4]);
    let own = if sender.is_unspecified() {
        matches!(operation, ARP_REQUEST | REVERSE_REQUEST) && !tenant.is_anothers(target.into())
    } else {
        tenant.owns(sender.into())
    };
    if known && own && tenant.has_mac(Mac(mac)) { Ok(()) } else { Err(BindingError::Arp) }
}

/// Neighbour discovery in one piece.
fn verify_discovery(message: &[u8], src: IpAddr, tenant: &impl Addresses) -> Result<(), BindingError> {
    let [kind] = array(message, 0).ok_or(BindingError::Neighbour)?;
    if kind == REDIRECT || kind == ROUTER_ADVERTISEMENT && !tenant.forwards() {
        return Err(BindingError::Router);
    }
    let own_source = tenant.owns(src);
    let target = || array::<16>(message, 8).map(|target| IpAddr::from(Ipv6Addr::from(target)));
    let (own, options) = match kind {
        ROUTER_SOLICITATION => (own_source || src.is_unspecified(), 8),
        ROUTER_ADVERTISEMENT => (own_source, 16),
        // Without a source it asks whether anybody has the address that the sender is about to take.
        SOLICITATION if src.is_unspecified() => {
            (target().is_some_and(|target| !tenant.is_anothers(target)), 24)
        }
        SOLICITATION => (own_source && target().is_some(), 24),
        _ => (own_source && target().is_some_and(|target| tenant.owns(target)), 24),
    };
    if own && own_link_addresses(message, options, tenant) { Ok(()) } else { Err(BindingError::Neighbour) }
}

/// Whether all link-layer addresses in a message's options are the tenant's. False where options are cut off, empty, or
/// more than any honest host sends.
fn own_link_addresses(message: &[u8], mut at: usize, tenant: &impl Addresses) -> bool {
    for _ in 0..=MOST_OPTIONS {
        if at == message.len() {
            return true;
        }
        let Some([kind, words]) = array(message, at) else { return false };
        let end = at + 8 * usize::from(words);
        let own = match kind {
            SOURCE_LINK_ADDRESS | TARGET_LINK_ADDRESS => {
                words == 1 && array(message, at + 2).is_some_and(|mac| tenant.has_mac(Mac(mac)))
            }
            _ => words > 0,
        };
        if !own || end > message.len() {
            return false;
        }
        at = end;
    }
    false
}

/// Some receivers take IP and ARP behind an 802.2 SNAP header for what it is behind an EtherType (RFC 1042).
fn verify_length(frame: &[u8], l3: u16) -> Result<(), BindingError> {
    let hidden = match array::<8>(frame, l3.into()) {
        Some([0xaa, 0xaa, _, 0, 0, 0 | 0xf8, a, b]) => {
            matches!(u16::from_be_bytes([a, b]), ARP | REVERSE_ARP | IPV4 | IPV6 | 0x8100 | 0x88a8 | 0x9100)
        }
        _ => false,
    };
    if hidden { Err(BindingError::Snap) } else { Ok(()) }
}

/// The hardware address from which an interface made this link-local address (RFC 4291, appendix A), if it looks so.
#[must_use]
pub fn link_local_owner(ip: IpAddr) -> Option<Mac> {
    let IpAddr::V6(ip) = ip else { return None };
    match ip.octets() {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => Some(Mac([a ^ 2, b, c, d, e, f])),
        _ => None,
    }
}

const ARP: u16 = 0x0806;
const REVERSE_ARP: u16 = 0x8035;
/// Below it the field is a length (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x600;
const ARP_REQUEST: u16 = 1;
/// Virtual machines announce themselves by it after a migration.
const REVERSE_REQUEST: u16 = 3;
const ICMP6: u8 = 58;
const IGMP: u8 = 2;
const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD2_REPORT: u8 = 143;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const REDIRECT: u8 = 137;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
/// A router that advertises every prefix, DNS server and route it has stays far below.
const MOST_OPTIONS: usize = 32;

#[cfg(test)]
#[path = "binding_tests.rs"]
mod tests;
