//! Compares two frames' headers without parsing them.
//!
//! Why: guests send trains of small frames of one flow; the parsed headers of the first hold for the others.
//! From: packet trains (Jain and Routhier, IEEE JSAC 1986).
//! Not here: the use of such trains (the daemon).
//! Invariant: for two frames that are alike, [`crate::parse`] gives equal results, and so does
//! [`crate::VnetHeader::offload`].

use crate::front::Front;
use crate::parse::{IPV4, IPV6, protocol};

/// Whether `frame` surely parses like `first`; false when it may not.
///
/// True only for two whole packets of the same length, flow and traffic class, to one host rather than a group, with TCP
/// or UDP directly behind an IP header without options. Their identifiers, hop counts, sequence numbers, flags,
/// checksums and payloads may differ.
///
/// ```
/// let mut first = [0_u8; 60];
/// first[12..15].copy_from_slice(&[8, 0, 0x45]);
/// (first[17], first[23], first[39]) = (46, 17, 26); // UDP, and both lengths
/// let (mut second, mut other) = (first, first);
/// second[59] = 7; // payload
/// other[35] = 9; // source port
/// assert!(plimsoll_wire::alike(&first, &second));
/// assert!(!plimsoll_wire::alike(&first, &other));
/// ```
#[inline]
#[must_use]
pub fn alike(first: &[u8], frame: &[u8]) -> bool {
    if first.len() != frame.len() {
        return false;
    }
    let (Some(a), Some(b)) = (first.first_chunk(), frame.first_chunk()) else { return false };
    match alike_hosts(a, b) {
        Some((protocol::UDP, l4)) => a.get(l4 + 4..l4 + 6) == b.get(l4 + 4..l4 + 6), // its length
        Some((protocol::TCP, l4)) => first.get(l4 + 12) == frame.get(l4 + 12),       // its header's
        _ => false,
    }
}

/// What of a frame is compared with later frames, copied out of it.
///
/// ```
/// let mut first = [0_u8; 60];
/// first[12..15].copy_from_slice(&[8, 0, 0x45]);
/// (first[17], first[23], first[39]) = (46, 17, 26); // UDP, and both lengths
/// let copy = plimsoll_wire::HeaderCopy::of(&first);
/// let (mut second, mut other) = (first, first);
/// second[59] = 7; // payload
/// other[35] = 9; // source port
/// assert!(copy.is_alike(&second) && !copy.is_alike(&other));
/// assert_ne!(plimsoll_wire::flow_tag(&first), plimsoll_wire::flow_tag(&other));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HeaderCopy {
    len: u32,
    bytes: [u8; COPIED],
}

impl HeaderCopy {
    /// A copy of nothing, to which no frame is alike.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; COPIED] };

    /// A copy of the frame's headers.
    #[inline]
    #[must_use]
    pub fn of(frame: &[u8]) -> Self {
        Self::of_front(Front::whole(frame))
    }

    /// Like [`HeaderCopy::of`], for a frame whose headers are at hand.
    #[inline]
    #[must_use]
    pub fn of_front(front: Front<'_>) -> Self {
        let frame = front.bytes();
        let mut bytes = [0; COPIED];
        match frame.first_chunk() {
            Some(head) => bytes = *head,
            None => bytes.iter_mut().zip(frame).for_each(|(to, from)| *to = *from),
        }
        Self { len: shortened(front.len()), bytes }
    }

    /// Whether `frame` is [`alike`] to the frame whose copy this is.
    #[inline]
    #[must_use]
    pub fn is_alike(&self, frame: &[u8]) -> bool {
        self.is_alike_front(Front::whole(frame))
    }

    /// Like [`HeaderCopy::is_alike`], for a frame whose headers are at hand.
    #[inline]
    #[must_use]
    pub fn is_alike_front(&self, front: Front<'_>) -> bool {
        let frame = front.bytes();
        let copied = (self.len as usize).min(COPIED);
        let heads = self.bytes.get(..copied).zip(frame.get(..copied));
        self.len == shortened(front.len()) && heads.is_some_and(|(own, other)| alike(own, other))
    }
}

/// A frame's length; no frame is longer than 4 GiB.
#[inline]
fn shortened(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Bytes that are copied: those that are compared, and behind them the length of TCP's header over IPv6.
const COPIED: usize = 68;

/// A number that is the same for frames that are [`alike`], and differs for most flows. It is not keyed: who chooses headers can make
/// flows with the same number.
#[inline]
#[must_use]
pub fn flow_tag(frame: &[u8]) -> u32 {
    let Some(head) = frame.first_chunk::<LOOKED_AT>() else { return 0 };
    let word = |at: usize| {
        head.get(at..at + 4).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
    };
    // The lower halves of both IP addresses, and both ports, behind an IP header without options.
    let [src, dst, ports] = if [head[12], head[13]] == IPV4.to_be_bytes() {
        [26, 30, 34].map(word)
    } else {
        [34, 50, 54].map(word)
    };
    let addresses = u64::from(src) << 32 | u64::from(dst);
    // A folded product: each bit of it depends on most bits of both factors.
    let product = u128::from(addresses ^ SPREAD) * u128::from(u64::from(ports) ^ SPREAD.rotate_left(32));
    let folded = product as u64 ^ (product >> 64) as u64;
    (folded ^ folded >> 32) as u32
}

/// An odd number with its bits spread (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes that are compared at most: Ethernet, IPv6 and the part of UDP up to its length. Shorter frames are not alike.
const LOOKED_AT: usize = 60;

/// The transport protocol and the offset of its header, if the two frames agree up to and including the ports.
#[inline]
fn alike_hosts(a: &[u8; LOOKED_AT], b: &[u8; LOOKED_AT]) -> Option<(u8, usize)> {
    // Ethernet addresses, EtherType, and the IP header's first four bytes: version, length and traffic class.
    if a[..18] != b[..18] || a[0] & GROUP != 0 {
        return None;
    }
    let whole = |header: &[u8; LOOKED_AT]| u16::from_be_bytes([header[20], header[21]]) & FRAGMENT == 0;
    match u16::from_be_bytes([a[12], a[13]]) {
        IPV4 => {
            let alike = a[14] == 0x45 && whole(a) && whole(b) && a[23] == b[23] && a[26..38] == b[26..38];
            alike.then_some((a[23], 34))
        }
        IPV6 => (a[18..21] == b[18..21] && a[22..58] == b[22..58]).then_some((a[20], 54)),
        _ => None,
    }
}

const GROUP: u8 = 1;
/// "More fragments", and the offset.
const FRAGMENT: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{VnetHeader, parse};

    /// A frame of one flow, over either IP.
    fn flow(six: bool, tcp: bool, len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        let (kind, l4) = if six { ([0x86, 0xdd], 54) } else { ([8, 0], 34) };
        frame[12..14].copy_from_slice(&kind);
        let number = if tcp { protocol::TCP } else { protocol::UDP };
        let rest = |from: usize| u16::try_from(len - from).expect("short").to_be_bytes();
        if six {
            frame[14] = 0x60;
            frame[18..20].copy_from_slice(&rest(54));
            (frame[20], frame[21]) = (number, 64);
        } else {
            (frame[14], frame[22], frame[23]) = (0x45, 64, number);
            frame[16..18].copy_from_slice(&rest(14));
        }
        if tcp {
            frame[l4 + 12] = 0x50;
        } else {
            frame[l4 + 4..l4 + 6].copy_from_slice(&rest(l4));
        }
        frame
    }

    #[test]
    fn what_tells_flows_apart_is_not_alike_and_the_rest_is() {
        for (six, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
            let first = flow(six, tcp, 90);
            assert!(parse(&first).is_ok_and(|parsed| parsed.ports().is_some()));
            let changed: Vec<usize> = (0..90)
                .filter(|&at| {
                    let mut frame = first.clone();
                    frame[at] ^= 1;
                    alike(&first, &frame)
                })
                .collect();
            let l4 = if six { 54 } else { 34 };
            let free: Vec<usize> = match (six, tcp) {
                (false, false) => [18, 19, 22, 24, 25].into_iter().chain(40..90).collect(),
                (false, true) => [18, 19, 22, 24, 25].into_iter().chain(38..46).chain(47..90).collect(),
                (true, false) => [21].into_iter().chain(60..90).collect(),
                (true, true) => [21].into_iter().chain(58..66).chain(67..90).collect(),
            };
            assert_eq!(changed, free, "IPv6 {six}, TCP {tcp}, from {l4}");
        }
    }

    /// Neighbouring addresses or ports, as a flood or a row of clients has them, in a table of 1,024 places.
    #[test]
    fn tags_of_flows_that_differ_little_spread() {
        for (six, at) in [
            (false, 29),
            (false, 28),
            (false, 33),
            (false, 35),
            (false, 37),
            (true, 37),
            (true, 53),
            (true, 55),
        ] {
            let mut taken = [0_u8; 1_024];
            for n in 0..=255 {
                let mut frame = flow(six, false, 60);
                frame[at] = n;
                let tag = flow_tag(&frame);
                taken[tag as usize % 1_024] += 1;
                taken[(tag >> 22) as usize] += 1;
            }
            assert!(taken.iter().all(|count| *count < 10), "byte {at}, IPv6 {six}: {:?}", taken.iter().max());
        }
    }

    #[test]
    fn fragments_groups_options_and_other_lengths_are_not_alike() {
        let first = flow(false, false, 60);
        assert!(alike(&first, &first));
        assert!(!alike(&first, &flow(false, false, 61)));
        for (at, byte) in [(20, 0x20), (21, 1), (0, 1), (14, 0x46), (23, 1), (13, 6)] {
            let mut other = first.clone();
            other[at] = byte;
            assert!(!alike(&other, &other), "byte {at}");
        }
        assert!(!alike(&first[..59], &first[..59]));
    }

    proptest! {
        /// Frames with any bytes changed: if they are alike, they parse alike.
        #[test]
        fn frames_that_are_alike_parse_alike(
            (six, tcp) in any::<(bool, bool)>(),
            len in 60_usize..120,
            both in prop::collection::vec((0_usize..120, any::<u8>()), 0..4),
            one in prop::collection::vec((0_usize..120, any::<u8>()), 0..4),
            vnet in any::<[u8; 10]>(),
        ) {
            let mut first = flow(six, tcp, len.max(75));
            let set = |frame: &mut Vec<u8>, (at, byte): (usize, u8)| {
                if let Some(place) = frame.get_mut(at) { *place = byte }
            };
            both.into_iter().for_each(|change| set(&mut first, change));
            let mut second = first.clone();
            one.into_iter().for_each(|change| set(&mut second, change));
            prop_assert_eq!(HeaderCopy::of(&first).is_alike(&second), alike(&first, &second));
            if alike(&first, &second) {
                let (a, b) = (parse(&first), parse(&second));
                prop_assert_eq!(a, b);
                prop_assert_eq!(flow_tag(&first), flow_tag(&second));
                let (mut vnet, _) = VnetHeader::read(&vnet).expect("ten bytes");
                vnet.gso_type = VnetHeader::GSO_NONE;
                if let (Ok(a), Ok(b)) = (a, b) {
                    prop_assert_eq!(vnet.offload(&first, &a), vnet.offload(&second, &b));
                }
            }
        }
    }
}
