//! What is joined is cut again into the frames that it was joined from, and nothing else is joined.

use plimsoll_wire::{
    Joined, TransportChecksum, VnetHeader, finish_checksum, ones_complement_sum, parse, segment,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::overlay::large;

/// The segments of a frame.
fn segments((vnet, frame): ([u8; 10], Vec<u8>)) -> Vec<Vec<u8>> {
    let offload = VnetHeader::from_bytes(vnet).offload(&frame, &parse(&frame).unwrap()).unwrap();
    let (header, step) = (usize::from(offload.header), usize::from(offload.segment));
    let all = frame.len() - header;
    let mut out = vec![0; 70_000];
    let cut = |at: usize| {
        let take = step.min(all - at);
        let len = segment(&frame, &offload, at as u32, take as u32, &mut out).unwrap();
        out[..len].to_vec()
    };
    if step == 0 { vec![frame.clone()] } else { (0..all).step_by(step).map(cut).collect() }
}

/// Offers frames as the daemon does; what is delivered, each with its header.
fn deliver(frames: &[Vec<u8>], room: usize) -> Vec<(Vec<u8>, Option<VnetHeader>)> {
    let mut joined = Joined::new(room);
    let mut out = Vec::new();
    let finish = |joined: &mut Joined, out: &mut Vec<_>| {
        if !joined.is_empty() {
            let (frame, vnet) = joined.finish();
            out.push((frame.to_vec(), vnet));
            joined.clear();
        }
    };
    for frame in frames {
        if joined.join(frame) {
            continue;
        }
        finish(&mut joined, &mut out);
        if !parse(frame).is_ok_and(|parsed| joined.begin(frame, &parsed)) {
            out.push((frame.clone(), None));
        }
    }
    finish(&mut joined, &mut out);
    out
}

/// The frames that were delivered, cut again.
fn cut_again(delivered: Vec<(Vec<u8>, Option<VnetHeader>)>) -> Vec<Vec<u8>> {
    let cut = |(frame, vnet): (Vec<u8>, Option<VnetHeader>)| match vnet {
        Some(vnet) => {
            assert_eq!(TransportChecksum::of(&frame), Some(TransportChecksum::Unfinished));
            assert_eq!(usize::from(vnet.hdr_len), usize::from(parse(&frame).unwrap().ip.unwrap().payload));
            segments((vnet.to_bytes()[..10].try_into().unwrap(), frame))
        }
        None => vec![frame],
    };
    delivered.into_iter().flat_map(cut).collect()
}

/// TCP with an acknowledgement, and these further flags.
fn stream(v6: bool, flags: u8, payload: &[u8], size: u16) -> ([u8; 10], Vec<u8>) {
    let (vnet, mut frame) = large(v6, true, 2, payload, size);
    let l4 = usize::from(parse(&frame).unwrap().ip.unwrap().l4);
    frame[l4 + 13] = 0x10 | flags;
    (vnet, frame)
}

/// Writes the right checksum into TCP over IPv4.
fn complete(frame: &mut [u8]) {
    let len = (frame.len() - 34) as u16;
    let pseudo = [&frame[26..34], &[0, 6][..], &len.to_be_bytes()].concat();
    frame[50..52].copy_from_slice(&ones_complement_sum(&pseudo).to_be_bytes());
    assert!(finish_checksum(frame, 34, 50));
}

proptest! {
    #[test]
    fn joining_is_the_inverse_of_cutting(
        v6: bool, flags in prop_oneof![Just(0), Just(8), Just(1), Just(0x80), Just(0x89), Just(0x40)],
        payload in vec(any::<u8>(), 2_000..60_000), size in 100..1_400_u16,
    ) {
        let frames = segments(stream(v6, flags, &payload, size));
        let delivered = deliver(&frames, 65_600);
        prop_assert_eq!(delivered.len(), 1);
        let vnet = delivered[0].1.expect("it is to be cut");
        prop_assert_eq!(vnet.gso_size, size);
        prop_assert_eq!(vnet.gso_type & VnetHeader::GSO_ECN != 0, flags & 0x80 != 0);
        prop_assert_eq!(cut_again(delivered), frames);
    }

    /// Two connections, frames lost, repeated, out of order and changed on the way: whatever is joined can be taken apart again.
    #[test]
    fn what_is_joined_is_what_came(
        v6: bool, payload in vec(any::<u8>(), 2_000..20_000), size in 300..1_400_u16,
        orders in vec((any::<prop::sample::Index>(), 0..4_u8), 0..6),
        changes in vec((any::<prop::sample::Index>(), 0..90_usize, any::<u8>()), 0..6),
        room in 1_000..65_600_usize,
    ) {
        let mut frames = segments(stream(v6, 8, &payload, size));
        for (at, what) in orders {
            let at = at.index(frames.len());
            match what {
                0 if frames.len() > 2 => _ = frames.remove(at),
                1 => frames.insert(at, frames[at].clone()),
                2 => frames.swap(at, 0),
                _ => {
                    let mut other = frames[at].clone();
                    let l4 = usize::from(parse(&other).unwrap().ip.unwrap().l4);
                    // Another port, and the checksum that goes with it.
                    other[l4 + 1] = other[l4 + 1].wrapping_add(1);
                    let sum = u16::from_be_bytes([other[l4 + 16], other[l4 + 17]]).wrapping_sub(1);
                    other[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
                    frames.insert(at, other);
                }
            }
        }
        for (frame, at, byte) in changes {
            let frame = frame.index(frames.len());
            if let Some(place) = frames[frame].get_mut(at) { *place = byte }
        }
        prop_assert_eq!(cut_again(deliver(&frames, room)), frames);
    }
}

#[test]
fn what_says_something_of_its_own_is_delivered_alone() {
    // Acknowledgements without payload, SYN, RST and URG; a request that ends with PSH.
    for (flags, payload, begins) in
        [(0, 600, true), (0, 0, false), (2, 600, false), (4, 600, false), (0x20, 600, false), (8, 600, false)]
    {
        let (_, mut frame) = stream(false, flags, &vec![7; payload], 1_000);
        complete(&mut frame);
        assert_eq!(TransportChecksum::of(&frame), Some(TransportChecksum::Right));
        let begun = Joined::new(65_600).begin(&frame, &parse(&frame).unwrap());
        assert_eq!(begun, begins, "{flags:#x}, {payload} bytes");
    }
    let frames = segments(stream(false, 0, &[7; 2_000], 1_000));
    let mut wrong = frames.clone();
    wrong[1][60] ^= 1;
    assert_eq!(deliver(&wrong, 65_600).len(), 2, "a checksum that is wrong");
    for (at, what) in [(15, "ECN"), (39, "sequence"), (46, "options"), (48, "window"), (47, "flags")] {
        let mut changed = frames.clone();
        changed[1][at] ^= 0x40;
        complete(&mut changed[1]);
        changed[1][24..26].fill(0);
        let sum = !ones_complement_sum(&changed[1][14..34]);
        changed[1][24..26].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(deliver(&changed, 65_600).len(), 2, "another {what}");
    }
    assert_eq!(deliver(&frames, 1_200).len(), 2, "there is no room");
}
