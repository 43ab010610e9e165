//! Source address validation: a tenant's frame may use and claim only the tenant's own addresses.
//!
//! Why: a tenant that claims another's address by ARP or neighbour discovery receives the other's traffic; a tenant that
//! sends from it speaks in the other's name.
//! From: RFC 826 and RFC 5227 (ARP), RFC 4861 and RFC 4862 (neighbour discovery), RFC 6105 (RA guard), RFC 6980 (no
//! fragments in neighbour discovery), RFC 7039 (SAVI); frames that hide from such filters: CVE-2021-27853, -27854 and
//! -27861.
//! Not here: which tenant has which addresses (`policy`, `daemon`), frames from the uplink.
//! Invariant: no bytes make [`verify`] panic, it allocates nothing, and its time is bounded; a frame that it accepts
//! names no hardware or IP address as the sender's that [`Addresses`] does not own, unless the tenant forwards.
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

/// The addresses of one tenant.
pub trait Addresses {
    /// Whether the tenant's port has this hardware address.
    fn has_mac(&self, mac: Mac) -> bool;
    /// Whether the tenant may send from this address and claim it.
    fn owns(&self, ip: IpAddr) -> bool;
    /// Whether this address belongs to another tenant only: probes for it would keep that tenant from using it.
    fn is_anothers(&self, ip: IpAddr) -> bool;
    /// Whether the tenant is a router: it may send packets of other senders and advertise itself.
    fn forwards(&self) -> bool;
}

/// Checks that a frame from a tenant's port uses only the tenant's addresses: in the Ethernet and IP headers, in ARP and
/// in neighbour discovery, also behind VLAN tags and IPv6 extension headers.
///
/// `parsed` must be the result of [`crate::parse`] for `frame`. Packets that a host sends before it has an address are
/// accepted too: DHCP and IGMP from 0.0.0.0, ARP probes, duplicate address detection, router solicitations and MLD from
/// `::`.
///
/// # Errors
/// The first address that the tenant does not own.
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

/// Whether the result of [`verify`] for an IP packet depends only on its two source addresses, hardware and IP. If so,
/// the result holds for every such packet with these two addresses.
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
        // The first fragment may be too short to contain the message's type.
        Fragment::First if discovers || kind.is_none() => Err(BindingError::NeighbourFragment),
        _ if discovers => verify_discovery(message, ip.src, tenant),
        _ => verify_source(ip, kind, tenant),
    }
}

/// Checks an IP source address; `icmp6` is the message's type, if the packet is ICMPv6 and contains it.
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

/// Whether the packet comes from a DHCP client that has no address yet.
fn asks_for_address(ip: &Ip) -> bool {
    ip.protocol == protocol::UDP && ip.ports == Some((DHCP_CLIENT, DHCP_SERVER))
}

/// Checks the sender of an ARP packet of any operation, since receivers learn from the sender's fields of all of them.
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
    // Linux accepts the number of IEEE 802 (6) in place of Ethernet's (1).
    let known = matches!(kinds, [0, 1 | 6, 8, 0, 6, 4]);
    let own = if sender.is_unspecified() {
        matches!(operation, ARP_REQUEST | REVERSE_REQUEST) && !tenant.is_anothers(target.into())
    } else {
        tenant.owns(sender.into())
    };
    if known && own && tenant.has_mac(Mac(mac)) { Ok(()) } else { Err(BindingError::Arp) }
}

/// Checks a neighbour discovery message that is not fragmented.
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
        // Duplicate address detection: the sender asks whether the address that it is about to use is taken.
        SOLICITATION if src.is_unspecified() => {
            (target().is_some_and(|target| !tenant.is_anothers(target)), 24)
        }
        SOLICITATION => (own_source && target().is_some(), 24),
        _ => (own_source && target().is_some_and(|target| tenant.owns(target)), 24),
    };
    if own && own_link_addresses(message, options, tenant) { Ok(()) } else { Err(BindingError::Neighbour) }
}

/// Whether all link-layer addresses in a message's options are the tenant's. False when an option is cut off or has no
/// length, or there are more than [`MOST_OPTIONS`].
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

/// Refuses IP and ARP behind an 802.2 SNAP header, which some receivers read like IP and ARP behind an EtherType
/// (RFC 1042).
fn verify_length(frame: &[u8], l3: u16) -> Result<(), BindingError> {
    let hidden = match array::<8>(frame, l3.into()) {
        Some([0xaa, 0xaa, _, 0, 0, 0 | 0xf8, a, b]) => {
            matches!(u16::from_be_bytes([a, b]), ARP | REVERSE_ARP | IPV4 | IPV6 | 0x8100 | 0x88a8 | 0x9100)
        }
        _ => false,
    };
    if hidden { Err(BindingError::Snap) } else { Ok(()) }
}

/// The hardware address from which an interface derived this link-local address (RFC 4291, appendix A); none when the
/// address has not that form.
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
/// Smaller values of the EtherType field are a length (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x600;
const ARP_REQUEST: u16 = 1;
/// Operation of a reverse ARP request; hypervisors announce a virtual machine by it after a migration.
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
/// Most options of a message. A router that advertises all its prefixes, DNS servers and routes has far fewer.
const MOST_OPTIONS: usize = 32;

#[cfg(test)]
#[path = "binding_tests.rs"]
mod tests;
