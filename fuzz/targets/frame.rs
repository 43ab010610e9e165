//! Any bytes as a frame, cut up by any offload: refused or done, never a panic.
//!
//! Also the frame's source: a frame that passes as a tenant's own names no other tenant.
//!
//! Input: 13 bytes of an [`Offload`], 8 bytes of a pull (offset, length), the frame.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::binding::{self, Addresses};
use plimsoll_wire::neighbour::{Heard, hear};
use plimsoll_wire::{
    FlowKey, HeaderCopy, Mac, Offload, OffloadKind, TcpFlags, TcpPlace, TcpSegment, TransportChecksum, alike,
    finish_checksum, flow_tag, parse, segment, split, supersegment,
};

fuzz_target!(|data: &[u8]| {
    let Some((&head, frame)) = data.split_first_chunk::<21>() else { return };
    let [kind, numbers @ .., a, b, c, d, e, f, g, h] = head;
    let number = |at: usize| u16::from_le_bytes([numbers[2 * at], numbers[2 * at + 1]]);
    let offload = Offload {
        kind: KINDS[usize::from(kind) % KINDS.len()],
        header: number(0),
        segment: number(1),
        l3: number(2),
        start: number(3),
        field: number(4),
        final_dst: number(5),
    };
    let (offset, len) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));

    assert_eq!(Mac::pair(frame).is_some(), frame.len() >= 12);
    assert!(TransportChecksum::of(frame).is_none() || parse(frame).is_ok());
    if let Ok(parsed) = parse(frame) {
        let _ = FlowKey::of(&parsed);
        if let Some(place) = TcpPlace::of(&parsed)
            && let Some(segment) = place.read(frame)
        {
            assert_eq!(segment.syn, place.is_syn(frame));
            assert!(segment.len as usize <= frame.len(), "SYN and FIN are shorter than the headers");
        }
        if let Some(ip) = parsed.ip {
            let places = [u32::from(parsed.l3), ip.l4.into(), ip.payload.into(), ip.end, frame.len() as u32];
            assert!(places.is_sorted(), "headers are in order and inside the frame: {places:?}");
        }
        let tenant = Odd { forwards: kind & 1 == 1 };
        if binding::verify(frame, &parsed, &tenant).is_ok() {
            assert!(tenant.has_mac(parsed.src_mac));
            if let Some(Heard::Asks { by: (ip, mac), .. } | Heard::Tells { of: ip, mac }) =
                hear(frame, &parsed)
            {
                assert!(tenant.owns(ip) && tenant.has_mac(mac), "{ip} at {mac} is not its own");
            }
            let source = parsed.ip.filter(|ip| binding::only_source_counts(ip) && !tenant.forwards);
            assert!(source.is_none_or(|ip| tenant.owns(ip.src)));
        }
    }

    rewrite(frame, &offload, offset, len);

    // A copy of the frame with one byte changed.
    let mut other = frame.to_vec();
    let place = offset as usize % frame.len().max(1);
    other.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= len as u8);
    assert_eq!(HeaderCopy::of(frame).is_alike(&other), alike(frame, &other));
    if alike(frame, &other) {
        assert_eq!(parse(frame), parse(&other));
        assert_eq!(flow_tag(frame), flow_tag(&other));
        let place = |frame: &[u8]| parse(frame).ok().and_then(|parsed| TcpPlace::of(&parsed));
        assert_eq!(place(frame), place(&other));
    }

    let mut out = vec![0; usize::from(kind) * 64];
    if let Ok(len) = segment(frame, &offload, offset, len, &mut out) {
        assert!(len <= out.len());
    }
    if let Ok((len, _)) = supersegment(frame, &offload, offset, len, &mut out) {
        assert!(len <= out.len());
    }
    if let Ok(split) = split(frame, &offload, offset, len, &mut out) {
        assert!(split.header <= out.len() && split.payload.end <= frame.len());
    }
    let _ = finish_checksum(&mut out, offload.start.into(), offload.field.into());
});

/// Rewrites flags, window and ECN field: nothing else changes but checksums.
fn rewrite(frame: &[u8], offload: &Offload, flags: u32, window: u32) {
    let Ok(parsed) = parse(frame) else { return };
    let Some(mut segment) = TcpSegment::of(frame, &parsed) else { return };
    let ip = parsed.ip.expect("it is TCP");
    assert!(ip.protocol == 6 && segment.window_scale(frame).is_none_or(|shift| shift <= 14));
    let mut after = frame.to_vec();
    let marks = TcpFlags::ECE | TcpFlags::CWR;
    let wanted = if flags & 1 == 1 { segment.flags | marks } else { segment.flags.without(marks) };
    assert!(segment.set_flags(&mut after, wanted, offload));
    assert!(segment.set_window(&mut after, window as u16, offload));
    let read = parse(&after).ok().and_then(|parsed| TcpSegment::of(&after, &parsed));
    assert_eq!(read, Some(segment));
    let l4 = usize::from(ip.l4);
    let changed = (0..frame.len()).filter(|&at| frame[at] != after[at]);
    assert!(changed.into_iter().all(|at| (l4 + 12..l4 + 18).contains(&at)));
}

const KINDS: [OffloadKind; 6] = [
    OffloadKind::Plain,
    OffloadKind::Checksum,
    OffloadKind::Tso4,
    OffloadKind::Tso6,
    OffloadKind::Uso4,
    OffloadKind::Uso6,
];

/// A tenant that has all addresses with an odd end.
struct Odd {
    forwards: bool,
}

impl Addresses for Odd {
    fn has_mac(&self, Mac([.., last]): Mac) -> bool {
        last & 1 == 1
    }

    fn owns(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => u32::from(ip) & 1 == 1,
            IpAddr::V6(ip) => u128::from(ip) & 1 == 1,
        }
    }

    fn is_anothers(&self, ip: IpAddr) -> bool {
        !self.owns(ip)
    }

    fn forwards(&self) -> bool {
        self.forwards
    }
}
