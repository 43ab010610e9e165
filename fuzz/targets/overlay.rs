//! Any bytes as a packet from the fabric: refused, or delivered as RFC 6040 says; and what was delivered can be sent on.
//!
//! Input: a byte of checks, 7 bytes of a path (format and family, MTU, hash, feedback's length), the packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::overlay::{
    Addresses, Checks, Format, Inner, Path, Ports, TOO_BIG_MOST, Tunnelled, too_big,
};
use plimsoll_wire::{Ecn, Mac, parse};

fuzz_target!(|data: &[u8]| {
    let Some((&[checks, kind, mtu_0, mtu_1, a, b, c, feedback], packet)) = data.split_first_chunk::<8>()
    else {
        return;
    };
    let checks = Checks { verified: checks & 1 != 0, v6_without: checks & 2 != 0, heeded: checks & 4 != 0 };
    let hash = u64::from_be_bytes([a, b, c, 0, 0, 0, 0, a]);

    let mut out = [0; TOO_BIG_MOST];
    if let Ok(len) = too_big(packet, u16::from_be_bytes([mtu_0, mtu_1]), &mut out) {
        let answer = parse(&out[..len]).expect("the answer is sound");
        let asked = parse(packet).expect("what was answered is sound");
        assert_eq!(answer.addresses().map(|(src, dst)| (dst, src)), asked.addresses());
        assert!(too_big(&out[..len], 1_400, &mut [0; TOO_BIG_MOST]).is_err(), "no answer is answered");
    }

    let Ok(parsed) = parse(packet) else { return };
    let Ok(Some(tunnelled)) = Tunnelled::read(packet, &parsed) else { return };
    let mut packet = packet.to_vec();
    let frame = tunnelled.frame().unwrap_or(0..0);
    let message = tunnelled.feedback().map(|place| packet[place].to_vec());
    let Ok(crossing) = tunnelled.deliver(&mut packet, checks) else { return };
    assert_eq!(crossing.outer, tunnelled.ecn);
    assert_eq!(Ecn::of(&packet[frame.clone()]).unwrap_or_default(), crossing.delivered);
    if frame.is_empty() {
        let hello = tunnelled.hello().is_some();
        assert!(hello || message.is_some_and(|message| !message.is_empty()), "a packet carries something");
        return;
    }

    let path = path(kind, u16::from_be_bytes([mtu_0, mtu_1]));
    let message = vec![feedback; feedback.into()];
    let feedback = (feedback > 0).then_some(&message[..]);
    let inner = Inner { vni: tunnelled.vni, flow_hash: hash, feedback };
    let mut out = vec![0; path.head_room(feedback.map(<[u8]>::len)) + frame.len()];
    let Ok(len) = path.encapsulate_into(&packet[frame.clone()], &mut out, &inner) else { return };
    assert!(len - 14 <= usize::from(path.mtu));
    let out = &mut out[..len];
    let again =
        Tunnelled::read(out, &parse(out).expect("it parses")).expect("it is sound").expect("it is ours");
    assert_eq!((again.vni, again.feedback().map(|at| &out[at])), (tunnelled.vni, feedback));
    let strict = Checks { v6_without: true, heeded: path.capable, ..Checks::default() };
    let crossed = again.deliver(out, strict).expect("its sums are right, and no switch marked it");
    assert_eq!((crossed.delivered, crossed.alarm), (crossing.delivered, None));
    assert_eq!(&out[again.frame().expect("a frame")], &packet[frame]);
});

fn path(kind: u8, mtu: u16) -> Path {
    let (v4, v6) = ([192, 0, 2, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
    Path {
        format: if kind & 1 == 0 { Format::Vxlan } else { Format::Geneve },
        src_mac: Mac([2; 6]),
        dst_mac: Mac([4; 6]),
        addresses: if kind & 2 == 0 {
            Addresses::V4 { src: v4.into(), dst: v4.into() }
        } else {
            Addresses::V6 { src: v6.into(), dst: v6.into() }
        },
        dscp: kind >> 4,
        mtu,
        v6_checksum: kind & 4 == 0,
        capable: kind & 8 != 0,
        ports: Ports::default(),
    }
}
