//! The ICMP error to a sender whose packet is longer than the overlay can carry.
//!
//! Why: tunnels do not fragment; a sender that is not told keeps sending packets that are dropped (a black hole).
//! From: RFC 792 and 1191 (IPv4: type 3, code 4, with the MTU), RFC 4443 §3.2 (IPv6: type 2), RFC 1122 §3.2.2 and RFC 4443
//! §2.4 (packets that get no answer), RFC 1812 §4.3.2.3 (how much is quoted). The tenants' network has no router that
//! could answer, so the error comes from the destination of the packet, as with Linux's bridged tunnels.
//! Not here: the rate of answers, which the caller must bound (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
//! Invariant: there is no answer to an ICMP error, nor to a sender or destination that is not a single host.

use core::net::IpAddr;

use crate::bytes::{array, be16, put};
use crate::checksum::{add, ones_complement_sum};
use crate::parse::{Fragment, Ip, Parsed, parse};
use crate::reason::TooBigError;

/// Longest answer: two VLAN tags, and IPv6's least MTU.
pub const TOO_BIG_MOST: usize = 14 + 8 + 1_280;

/// Writes to `out` a frame that tells the sender of `frame` the longest packet that gets through, `mtu`: "fragmentation
/// needed" or "packet too big", in the same VLAN. Returns the frame's length, at most [`TOO_BIG_MOST`].
///
/// `mtu` is the result of [`Path::inner_mtu`](super::Path::inner_mtu).
///
/// # Errors
/// [`TooBigError`] when the frame gets no answer; `out` may then be partly written.
pub fn too_big(frame: &[u8], mtu: u16, out: &mut [u8]) -> Result<usize, TooBigError> {
    let Ok(parsed) = parse(frame) else { return Err(TooBigError::NotIp) };
    let ip = parsed.ip.ok_or(TooBigError::NotIp)?;
    check_addresses(&parsed, &ip)?;
    if ip.fragment == Fragment::Later {
        return Err(TooBigError::LaterFragment);
    }
    if is_error(frame, &ip) {
        return Err(TooBigError::IsError);
    }
    let l3 = usize::from(parsed.l3);
    if ip.src.is_ipv4() {
        let fragmentation = be16(frame, l3 + 6).ok_or(TooBigError::NotIp)?;
        if fragmentation & DO_NOT_FRAGMENT == 0 {
            return Err(TooBigError::MayFragment);
        }
    } else if mtu < V6_LEAST_MTU {
        return Err(TooBigError::BelowMinimum);
    }
    let most = if ip.src.is_ipv4() { V4_MOST - 20 } else { V6_MOST - 40 } - ICMP;
    let quote = frame.get(l3..ip.end as usize).ok_or(TooBigError::NotIp)?;
    let quote = quote.get(..most).unwrap_or(quote);
    write(frame, &parsed, &ip, mtu, quote, out).ok_or(TooBigError::NoRoom)
}

fn check_addresses(parsed: &Parsed, ip: &Ip) -> Result<(), TooBigError> {
    let macs = parsed.dst_mac.is_group() || parsed.src_mac.is_group();
    let not_a_host = |addr: IpAddr| {
        addr.is_multicast()
            || addr.is_unspecified()
            || addr.is_loopback()
            || matches!(addr, IpAddr::V4(v4) if v4.is_broadcast())
    };
    if macs || not_a_host(ip.src) || not_a_host(ip.dst) { Err(TooBigError::Address) } else { Ok(()) }
}

/// Whether the packet is an ICMP error, or ICMP whose type is cut off and which may be one.
fn is_error(frame: &[u8], ip: &Ip) -> bool {
    let kind = array(frame, ip.l4.into()).filter(|_| u32::from(ip.l4) < ip.end);
    match (ip.protocol, kind) {
        (ICMP_V4, Some([kind])) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        // A redirect is no error, and is not to be answered either.
        (ICMP_V6, Some([kind])) => kind < 128 || kind == 137,
        (ICMP_V4 | ICMP_V6, None) => true,
        _ => false,
    }
}

fn write(frame: &[u8], parsed: &Parsed, ip: &Ip, mtu: u16, quote: &[u8], out: &mut [u8]) -> Option<usize> {
    let l3 = usize::from(parsed.l3);
    put(out, 0, parsed.src_mac.0)?;
    put(out, 6, parsed.dst_mac.0)?;
    out.get_mut(12..l3)?.copy_from_slice(frame.get(12..l3)?);
    let answer = out.get_mut(l3..)?;
    let header = match (ip.dst, ip.src) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = (20 + ICMP + quote.len()) as u16;
            // The class of control traffic (RFC 1812 §4.3.2.5). Not to be fragmented, so the identifier may be zero.
            put(answer, 0, [0x45, 0xc0])?;
            put(answer, 2, len.to_be_bytes())?;
            put(answer, 4, [0, 0, 0x40, 0, 64, ICMP_V4, 0, 0])?;
            put(answer, 12, from.octets())?;
            put(answer, 16, to.octets())?;
            let checksum = !ones_complement_sum(answer.get(..20)?);
            put(answer, 10, checksum.to_be_bytes())?;
            20
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            put(answer, 0, [0x60, 0, 0, 0])?;
            put(answer, 4, ((ICMP + quote.len()) as u16).to_be_bytes())?;
            put(answer, 6, [ICMP_V6, 64])?;
            put(answer, 8, from.octets())?;
            put(answer, 24, to.octets())?;
            40
        }
        _ => return None,
    };
    let len = header + ICMP + quote.len();
    let answer = answer.get_mut(..len)?;
    let kind = if header == 20 { [3, 4, 0, 0] } else { [2, 0, 0, 0] };
    put(answer, header, kind)?;
    // IPv6's MTU has 32 bits; IPv4's has 16, behind two unused bytes.
    put(answer, header + 4, u32::from(mtu).to_be_bytes())?;
    answer.get_mut(header + ICMP..)?.copy_from_slice(quote);
    let message = ones_complement_sum(answer.get(header..)?);
    let pseudo = if header == 20 {
        0
    } else {
        let addresses = ones_complement_sum(answer.get(8..40)?);
        add(&[addresses, (len - header) as u16, ICMP_V6.into()])
    };
    put(answer, header + 2, (!add(&[message, pseudo])).to_be_bytes())?;
    Some(l3 + len)
}

const ICMP: usize = 8;
const ICMP_V4: u8 = 1;
const ICMP_V6: u8 = 58;
const DO_NOT_FRAGMENT: u16 = 0x4000;
/// Longest answer over IPv4: every host can receive a packet of this length.
const V4_MOST: usize = 576;
/// Longest answer over IPv6: its minimum MTU.
const V6_MOST: usize = 1_280;
const V6_LEAST_MTU: u16 = 1_280;
