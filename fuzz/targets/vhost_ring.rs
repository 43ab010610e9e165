//! Writes of a guest into its memory: taken, refused or left, in a bounded number of steps.
#![no_main]

#[path = "../../crates/ports/tests/it/support/guest.rs"]
#[allow(dead_code)]
mod guest;

use guest::{BUFFERS, EVENT_IDX, Guest, INDIRECT, MEMORY, MERGEABLE, VERSION_1};
use libfuzzer_sys::fuzz_target;
use plimsoll_ports::{CompletionOrder, Frame, Sending, Ticket, Took, VhostUser, VhostUserConfig};

/// Descriptors of a ring: few, so that it wraps soon.
const SIZE: u16 = 8;

// The first byte says what was agreed on. The rest is a list of writes, each of a place and a value: places below 0x8000
// are words of the rings, those above words of buffers; a place of all ones is a batch of the daemon's.
fuzz_target!(|data: &[u8]| {
    let Some((&agreed, writes)) = data.split_first() else { return };
    let path = std::env::temp_dir().join(format!("plimsoll-fuzz-{}.sock", std::process::id()));
    let completions = if agreed & 8 == 0 { CompletionOrder::OutOfOrder } else { CompletionOrder::InOrder };
    let config = VhostUserConfig { completions, ..VhostUserConfig::new(&path) };
    let mut port = VhostUser::open(&config).expect("a port");
    let bits = [INDIRECT, MERGEABLE, EVENT_IDX].into_iter().zip(0..);
    let features =
        bits.filter(|&(_, bit)| agreed >> bit & 1 == 1).fold(VERSION_1, |all, (feature, _)| all | feature);
    let guest = Guest::start(&mut port, &path, SIZE, features);
    let mut bytes = vec![0; 70_000];
    let mut waiting = Vec::new();
    for &[p0, p1, v0, v1, v2, v3] in writes.as_chunks::<6>().0 {
        let place = usize::from(u16::from_le_bytes([p0, p1]));
        if place == usize::from(u16::MAX) {
            batch(&mut port, &mut bytes, &mut waiting, v0, v1);
            continue;
        }
        let at = if place < 0x8000 { place * 4 } else { BUFFERS + (place - 0x8000) * 4 };
        guest.region.write(at.min(MEMORY - 4), &[v0, v1, v2, v3]);
    }
    batch(&mut port, &mut bytes, &mut waiting, 0, 0);
});

fn batch(
    port: &mut VhostUser,
    bytes: &mut [u8],
    waiting: &mut Vec<(Ticket, Option<usize>)>,
    keep: u8,
    size: u8,
) {
    port.begin().expect("always there");
    let most = usize::from(SIZE) * 2;
    for took in 0..=most {
        assert!(took < most, "more than the ring holds");
        match port.take() {
            Took::Frame(taken) => {
                let late = keep & 2 != 0 && port.keeps();
                if late {
                    let front = taken.len.min(128);
                    port.peek(&mut bytes[..front]);
                    port.leave(front, taken.ticket);
                } else {
                    port.copy(&mut bytes[..taken.len]);
                }
                waiting.push((taken.ticket, late.then_some(taken.len)));
            }
            Took::Refused => {}
            Took::Nothing => break,
        }
    }
    assert!(port.in_flight() <= SIZE.into());
    assert_eq!(port.in_flight() as usize, waiting.len());
    // What was left with the guest is as long as it was, whatever the guest has written meanwhile.
    for &(ticket, len) in waiting.iter() {
        let kept = port.kept(ticket);
        assert_eq!(kept.is_some(), len.is_some());
        if let Some((kept, len)) = kept.zip(len) {
            let frame = Frame::late(&[0; 128][..len.min(128)], kept);
            assert!(frame.len() == len && frame.copy(&mut bytes[..len]));
            assert_eq!(frame.part(100..len).len(), len.saturating_sub(100));
        }
    }
    if keep & 4 != 0 && waiting.iter().any(|(_, late)| late.is_some()) {
        port.offer_again();
        assert!(waiting.drain(..).all(|(ticket, _)| port.kept(ticket).is_none() && !port.complete(ticket)));
        assert_eq!(port.in_flight(), 0);
    }
    if keep % 2 == 0 {
        // The last first: any order is right.
        waiting.drain(..).rev().for_each(|(ticket, _)| {
            port.complete(ticket);
        });
        assert_eq!(port.in_flight(), 0);
    }
    let before = port.counters().tx_packets;
    let sent = port.send(&bytes[..60 + usize::from(size) * 40], None).expect("the guest is there");
    assert_eq!(port.counters().tx_packets - before, u64::from(sent == Sending::Sent));
    port.flush().expect("always there");
    port.rest();
}
