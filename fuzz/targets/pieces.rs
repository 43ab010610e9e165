//! Any bytes as a datagram that is still to be cut, and what its pieces hold, joined again.
//!
//! Input: 10 bytes of a virtio-net header, then the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::overlay::{MOST_PIECES, Pieces, Tunnelled};
use plimsoll_wire::{Joined, VnetHeader, parse, segment};

fuzz_target!(|data: &[u8]| {
    let Ok((vnet, frame)) = VnetHeader::read(data) else { return };
    let Ok(outer) = parse(frame) else { return };
    let mut frames = Vec::new();
    if let Ok(Some(mut pieces)) = Pieces::of(frame, &outer, &vnet) {
        let header = pieces.header();
        let (mut whole, mut payload, mut count) = (frame.to_vec(), Vec::new(), 0);
        while let Some((place, vnet)) = pieces.next(&mut whole) {
            let packet = &whole[place];
            let parsed = parse(packet).expect("a piece is a sound packet");
            assert_eq!(parsed.ip.map(|ip| ip.end as usize), Some(packet.len()));
            assert!(vnet.offload(packet, &parsed).is_ok(), "its checksum can be completed");
            payload.extend_from_slice(&packet[header..]);
            count += 1;
            if let Ok(Some(tunnelled)) = Tunnelled::read(packet, &parsed) {
                assert!(tunnelled.resized(packet.len()).is_none_or(|again| again == tunnelled));
                frames.extend(tunnelled.frame().map(|place| packet[place].to_vec()));
            }
        }
        assert!((2..=MOST_PIECES).contains(&count) && !pieces.more());
        assert_eq!(payload, &frame[header..], "the pieces' payloads, joined, are the datagram's");
    } else {
        // Frames by themselves, a length of two bytes before each.
        let mut rest = data;
        while let Some((&[a, b], behind)) = rest.split_first_chunk() {
            let (frame, behind) = behind.split_at(usize::from(u16::from_be_bytes([a, b])).min(behind.len()));
            frames.push(frame.to_vec());
            rest = behind;
        }
    }
    let mut joined = Joined::new(16_384);
    let mut held: Vec<Vec<u8>> = Vec::new();
    for frame in frames {
        if joined.join(&frame) {
            held.push(frame);
            continue;
        }
        check(&mut joined, &mut held);
        if parse(&frame).is_ok_and(|parsed| joined.begin(&frame, &parsed)) {
            held.push(frame);
        }
    }
    check(&mut joined, &mut held);
});

/// What is joined is cut into the frames that it was joined from, but for the two forms of a checksum of zero.
fn check(joined: &mut Joined, held: &mut Vec<Vec<u8>>) {
    let (frame, vnet) = joined.finish();
    match vnet {
        None => assert_eq!(frame, held.concat(), "nothing, or a frame as it came"),
        Some(vnet) => {
            let offload = vnet.offload(frame, &parse(frame).expect("sound")).expect("it can be cut");
            let (header, step) = (usize::from(offload.header), usize::from(offload.segment));
            let all = frame.len() - header;
            let mut out = vec![0; frame.len()];
            assert_eq!(all.div_ceil(step), held.len());
            for (at, came) in (0..all).step_by(step).zip(held.iter()) {
                let take = step.min(all - at) as u32;
                let len = segment(frame, &offload, at as u32, take, &mut out).expect("inside");
                assert_eq!(bare(&out[..len]), bare(came));
            }
        }
    }
    joined.clear();
    held.clear();
}

/// A frame of TCP without its checksums: zero has two forms, and both are right.
fn bare(frame: &[u8]) -> Vec<u8> {
    let ip = parse(frame).expect("sound").ip.expect("IP");
    let mut bare = frame.to_vec();
    let l4 = usize::from(ip.l4);
    bare[l4 + 16..l4 + 18].fill(0);
    if ip.src.is_ipv4() {
        bare[l4 - 10..l4 - 8].fill(0);
    }
    bare
}
