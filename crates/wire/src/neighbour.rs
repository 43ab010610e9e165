//! Address resolution: requests and replies of ARP and of IPv6 neighbour discovery.
//!
//! Why: an overlay's outer frames need the next hop's hardware address, on any kind of uplink port, also where the kernel
//! does not have the host's address.
//! From: RFC 826 (ARP), RFC 4861 §4.3, §4.4 and §7.2 (neighbour discovery), RFC 5227 (an address probe asks for nothing).
//! Not here: the neighbour table and when to ask again (`daemon`), routers, duplicate address detection.
//! Invariant: [`hear`] reads back the frames that [`ask`] and [`tell`] write; no bytes make it panic; nothing allocates.
//!
//! ```
//! use plimsoll_wire::neighbour::{Heard, LONGEST, ask, hear, tell};
//! use plimsoll_wire::{Mac, parse};
//!
//! let (here, there) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
//! let (from, of) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
//! let mut frame = [0; LONGEST];
//! let len = ask((from, here), of, &mut frame).expect("both are IPv4");
//! let heard = hear(&frame[..len], &parse(&frame[..len]).unwrap());
//! assert_eq!(heard, Some(Heard::Asks { of, by: (from, here) }));
//! let len = tell((of, there), (from, here), &mut frame).expect("both are IPv4");
//! assert_eq!(hear(&frame[..len], &parse(&frame[..len]).unwrap()), Some(Heard::Tells { of, mac: there }));
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array, be16, put};
use crate::checksum::{add, ones_complement_sum};
use crate::parse::{ETHERNET, Fragment, IPV6, Mac, Parsed};

/// A request or reply of address resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A host asks for the hardware address of an IP address, and gives its own addresses.
    Asks {
        /// The IP address asked for.
        of: IpAddr,
        /// The asking host's addresses.
        by: (IpAddr, Mac),
    },
    /// A host gives the hardware address of its IP address.
    Tells {
        /// The IP address.
        of: IpAddr,
        /// The hardware address of the host that has it.
        mac: Mac,
    },
}

/// Length of the longest frame that [`ask`] and [`tell`] write.
pub const LONGEST: usize = ETHERNET + 40 + NDP;

/// Reads a request or reply; none for any other frame, and for a probe for the sender's own address.
#[must_use]
pub fn hear(frame: &[u8], parsed: &Parsed) -> Option<Heard> {
    if parsed.ethertype == ARP { hear_arp(frame.get(parsed.l3.into()..)?) } else { hear_ndp(frame, parsed) }
}

/// Writes a request for the hardware address of `of` and returns the frame's length. None when one address is IPv4 and
/// the other IPv6, or `out` is too short; [`LONGEST`] bytes are always enough.
pub fn ask((ip, mac): (IpAddr, Mac), of: IpAddr, out: &mut [u8]) -> Option<usize> {
    match (ip, of) {
        (IpAddr::V4(ip), IpAddr::V4(of)) => write_arp(REQUEST, (ip, mac), (of, Mac([0xff; 6])), out),
        (IpAddr::V6(ip), IpAddr::V6(of)) => {
            let [.., a, b, c] = of.octets();
            // RFC 4291 §2.7.1: the solicited-node group, which the owner of the address has joined.
            let group =
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
            let to = (group, Mac([0x33, 0x33, 0xff, a, b, c]));
            write_ndp(SOLICITATION, (ip, mac), to, of, out)
        }
        _ => None,
    }
}

/// Writes a reply to `to` that the address `ip` is at `mac`, and returns the frame's length. None as for [`ask`].
pub fn tell((ip, mac): (IpAddr, Mac), to: (IpAddr, Mac), out: &mut [u8]) -> Option<usize> {
    match (ip, to.0) {
        (IpAddr::V4(ip), IpAddr::V4(asker)) => write_arp(REPLY, (ip, mac), (asker, to.1), out),
        (IpAddr::V6(ip), IpAddr::V6(asker)) => write_ndp(ADVERTISEMENT, (ip, mac), (asker, to.1), ip, out),
        _ => None,
    }
}

/// Writes a broadcast that says that `mac` is at its sender, for switches to learn, and returns the frame's length; hosts
/// ignore it. None when `out` is too short; [`LONGEST`] bytes are always enough.
///
/// It is the RARP request that QEMU sends after a virtual machine has moved: it names no IP address, so none need be known.
pub fn announce(mac: Mac, out: &mut [u8]) -> Option<usize> {
    write_ethernet(Mac([0xff; 6]), mac, RARP, out)?;
    let arp = out.get_mut(ETHERNET..SHORTEST)?;
    arp.fill(0);
    put(arp, 0, ARP_KINDS)?;
    put(arp, 6, ASK_OWN.to_be_bytes())?;
    put(arp, 8, mac.0)?;
    put(arp, 18, mac.0)?;
    Some(SHORTEST)
}

fn hear_arp(arp: &[u8]) -> Option<Heard> {
    let kinds: [u8; 6] = array(arp, 0)?;
    let (mac, ip) = (Mac(array(arp, 8)?), Ipv4Addr::from(array::<4>(arp, 14)?));
    let of = Ipv4Addr::from(array::<4>(arp, 24)?);
    if kinds != ARP_KINDS || ip.is_unspecified() || mac.is_group() {
        return None;
    }
    match be16(arp, 6)? {
        REQUEST => Some(Heard::Asks { of: of.into(), by: (ip.into(), mac) }),
        REPLY => Some(Heard::Tells { of: ip.into(), mac }),
        _ => None,
    }
}

fn write_arp(kind: u16, (ip, mac): (Ipv4Addr, Mac), to: (Ipv4Addr, Mac), out: &mut [u8]) -> Option<usize> {
    write_ethernet(to.1, mac, ARP, out)?;
    let arp = out.get_mut(ETHERNET..)?;
    put(arp, 0, ARP_KINDS)?;
    put(arp, 6, kind.to_be_bytes())?;
    put(arp, 8, mac.0)?;
    put(arp, 14, ip.octets())?;
    put(arp, 18, if kind == REQUEST { [0; 6] } else { to.1.0 })?;
    put(arp, 24, to.0.octets())?;
    Some(ETHERNET + 28)
}

/// Reads a neighbour discovery message that is not fragmented and comes from this link, as its hop limit of 255 shows
/// (RFC 4861 §7.1).
fn hear_ndp(frame: &[u8], parsed: &Parsed) -> Option<Heard> {
    let ip = parsed.ip.filter(|ip| ip.protocol == ICMP && ip.fragment == Fragment::Whole)?;
    let IpAddr::V6(src) = ip.src else { return None };
    let [hops] = array(frame, usize::from(parsed.l3) + 7)?;
    let message = frame.get(ip.l4.into()..ip.end as usize)?;
    let [kind, code] = array(message, 0)?;
    if hops != 255 || code != 0 || src.is_unspecified() || src.is_multicast() {
        return None;
    }
    if !matches!(kind, SOLICITATION | ADVERTISEMENT)
        || sum(frame.get(parsed.l3.into()..)?, message)? != 0xffff
    {
        return None;
    }
    let of = IpAddr::from(Ipv6Addr::from(array::<16>(message, 8)?));
    if kind == SOLICITATION {
        return Some(Heard::Asks { of, by: (src.into(), address(message, SOURCE)?) });
    }
    Some(Heard::Tells { of, mac: address(message, TARGET)? })
}

/// The hardware address in the first option of this kind.
fn address(message: &[u8], kind: u8) -> Option<Mac> {
    let mut at = 24;
    loop {
        let [found, words] = array(message, at)?;
        if found == kind && words == 1 {
            return Some(Mac(array(message, at + 2)?)).filter(|mac| !mac.is_group());
        }
        // An option without length would never end.
        at += 8 * usize::from(Some(words).filter(|&words| words > 0)?);
    }
}

fn write_ndp(
    kind: u8,
    (ip, mac): (Ipv6Addr, Mac),
    to: (Ipv6Addr, Mac),
    of: Ipv6Addr,
    out: &mut [u8],
) -> Option<usize> {
    write_ethernet(to.1, mac, IPV6, out)?;
    let packet = out.get_mut(ETHERNET..ETHERNET + 40 + NDP)?;
    put(packet, 0, [0x60, 0, 0, 0, 0, NDP as u8, ICMP, 255])?;
    put(packet, 8, ip.octets())?;
    put(packet, 24, to.0.octets())?;
    let (option, flags) = if kind == SOLICITATION { (SOURCE, 0) } else { (TARGET, SOLICITED | OVERRIDE) };
    put(packet, 40, [kind, 0, 0, 0, flags, 0, 0, 0])?;
    put(packet, 48, of.octets())?;
    put(packet, 64, [option, 1])?;
    put(packet, 66, mac.0)?;
    let checksum = !sum(packet, packet.get(40..)?)?;
    put(packet, 42, checksum.to_be_bytes())?;
    Some(ETHERNET + 40 + NDP)
}

/// The sum of the pseudo-header and an ICMPv6 message of this packet.
fn sum(packet: &[u8], message: &[u8]) -> Option<u16> {
    let addresses = ones_complement_sum(packet.get(8..40)?);
    Some(add(&[addresses, message.len() as u16, ICMP.into(), ones_complement_sum(message)]))
}

fn write_ethernet(to: Mac, from: Mac, ethertype: u16, out: &mut [u8]) -> Option<()> {
    put(out, 0, to.0)?;
    put(out, 6, from.0)?;
    put(out, 12, ethertype.to_be_bytes())
}

const ARP: u16 = 0x0806;
/// Reverse ARP, and its request (RFC 903).
const RARP: u16 = 0x8035;
const ASK_OWN: u16 = 3;
/// Length of the shortest frame, without its check sequence.
const SHORTEST: usize = 60;
/// ARP's hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const ARP_KINDS: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const ICMP: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE: u8 = 1;
const TARGET: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Length of a solicitation or advertisement with one option.
const NDP: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use proptest::prelude::*;

    const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const THERE: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn heard(frame: &[u8]) -> Option<Heard> {
        hear(frame, &parse(frame).ok()?)
    }

    fn pair(v6: bool) -> [IpAddr; 2] {
        let text = if v6 { ["2001:db8::1", "2001:db8::abcd:2"] } else { ["192.0.2.1", "192.0.2.2"] };
        text.map(|text| text.parse().expect("an address"))
    }

    #[test]
    fn questions_and_answers_come_back_in_both_families() {
        for v6 in [false, true] {
            let ([from, of], mut out) = (pair(v6), [0; LONGEST]);
            let len = ask((from, HERE), of, &mut out).expect("one family");
            assert_eq!(heard(&out[..len]), Some(Heard::Asks { of, by: (from, HERE) }));
            let len = tell((of, THERE), (from, HERE), &mut out).expect("one family");
            assert_eq!(heard(&out[..len]), Some(Heard::Tells { of, mac: THERE }));
            assert_eq!(&out[..6], &HERE.0, "to the asking host");
        }
        assert_eq!(ask((pair(false)[0], HERE), pair(true)[0], &mut [0; LONGEST]), None);
    }

    #[test]
    fn an_announcement_says_the_address_to_switches_and_nothing_to_hosts() {
        let mut out = [0xee; LONGEST];
        assert_eq!(announce(HERE, &mut out), Some(60));
        let expected = [
            &[0xff; 6][..],
            &HERE.0,
            &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3],
            &HERE.0,
            &[0; 4],
            &HERE.0,
            &[0; 22],
        ];
        assert_eq!(out[..60], expected.concat());
        assert_eq!(heard(&out[..60]), None);
        assert_eq!(announce(HERE, &mut [0; 59]), None);
    }

    #[test]
    fn a_solicitation_is_what_the_kernel_sends() {
        let mut out = [0; LONGEST];
        let [from, of] = pair(true);
        ask((from, HERE), of, &mut out).expect("one family");
        assert_eq!(&out[..6], &[0x33, 0x33, 0xff, 0xcd, 0, 2]);
        assert_eq!(&out[38..54], &"ff02::1:ffcd:2".parse::<Ipv6Addr>().unwrap().octets());
    }

    #[test]
    fn probes_and_what_comes_from_afar_say_nothing() {
        let (mut out, [from, of]) = ([0; LONGEST], pair(false));
        let len = ask((Ipv4Addr::UNSPECIFIED.into(), HERE), of, &mut out).expect("one family");
        assert_eq!(heard(&out[..len]), None);
        let [_, of6] = pair(true);
        tell((of6, THERE), (pair(true)[0], HERE), &mut out).expect("one family");
        out[ETHERNET + 7] = 64;
        assert_eq!(heard(&out), None, "routed");
        out[ETHERNET + 7] = 255;
        assert!(heard(&out).is_some());
        out[LONGEST - 1] ^= 1;
        assert_eq!(heard(&out), None, "a wrong sum");
        let _ = from;
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..90, value: u8) {
            let _ = heard(&bytes);
            let (mut out, [from, of]) = ([0; LONGEST], pair(true));
            tell((of, THERE), (from, HERE), &mut out).expect("one family");
            out[at % LONGEST] = value;
            let _ = heard(&out);
        }
    }
}
