//! Writes of a vNIC's client into shared memory: taken, refused or left, in a bounded number of steps.
#![no_main]

mod sizes;

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use plimsoll_ports::{Frame, Sending, Took, VnicConfig, VnicPort, VnicRequest};
use plimsoll_vnic::layout::{MAX_FRAME, header};
use plimsoll_vnic::message::{FlowSpec, Message};
use plimsoll_vnic::socket::{connect_to, read_welcome, send_message};
use plimsoll_vnic::{Layout, Region, Status};
use sizes::SIZES;

// The input is a list of writes, each of a place (modulo the region) and a value; a place of all ones is a batch of the
// daemon's.
fuzz_target!(|data: &[u8]| {
    let (mut port, _socket, region) = connect();
    let mut bytes = vec![0; MAX_FRAME];
    let mut waiting = Vec::new();
    for &[p0, p1, v0, v1, v2, v3] in data.as_chunks::<6>().0 {
        let place = u16::from_le_bytes([p0, p1]);
        let value = [v0, v1, v2, v3];
        if place == u16::MAX {
            batch(&mut port, &mut bytes, &mut waiting, v0);
            continue;
        }
        // Words are where it matters; the header is the daemon's, its flags excepted.
        let at = header::CLIENT_WAITS + usize::from(place) % (region.len() - header::CLIENT_WAITS - 4);
        region.write(at & !3, &value);
    }
    batch(&mut port, &mut bytes, &mut waiting, 0);
});

fn batch(port: &mut VnicPort, bytes: &mut [u8], waiting: &mut Vec<plimsoll_ports::Ticket>, keep: u8) {
    port.begin().expect("the client is there");
    let most = SIZES.flow_queues * SIZES.ring + 1;
    for took in 0..=most {
        assert!(took < most, "more than the rings hold");
        match port.take(3) {
            Took::Frame(taken) => {
                assert!((1..=MAX_FRAME).contains(&taken.len));
                assert!(taken.core.is_some_and(|core| u32::from(core) < SIZES.doorbell_queues));
                let first = taken.len.min(128);
                if taken.len > first && keep & 2 != 0 {
                    port.peek(&mut bytes[..first]);
                    waiting.push(port.leave(first, taken.ticket));
                } else {
                    port.copy(&mut bytes[..taken.len]);
                    waiting.push(taken.ticket);
                }
            }
            Took::Refused => {}
            Took::Nothing => break,
        }
    }
    assert!(port.in_flight() <= SIZES.completions);
    assert_eq!(port.in_flight() as usize, waiting.len());
    let before = port.counters().tx_packets;
    let sent = send_late(port, bytes, waiting).unwrap_or(Sending::Full);
    assert_eq!(port.counters().tx_packets - before, u64::from(sent == Sending::Sent));
    if keep % 2 == 0 {
        // The last first: any order is right.
        for ticket in waiting.drain(..).rev() {
            port.complete(ticket, Status::Sent);
        }
        assert_eq!(port.in_flight(), 0);
    }
    let before = port.counters().tx_packets;
    let sent = port.send(&bytes[..60], None).expect("the client is there");
    assert_eq!(port.counters().tx_packets - before, u64::from(sent == Sending::Sent));
    port.flush().expect("no trouble");
    port.rest();
}

/// Reads all payloads that wait, and sends the last one to a client of its own, as between two tenants.
fn send_late(port: &mut VnicPort, bytes: &mut [u8], waiting: &[plimsoll_ports::Ticket]) -> Option<Sending> {
    let mut last = None;
    for &ticket in waiting {
        let Some(rest) = port.kept(ticket) else { continue };
        let frame = Frame::late(&[2; 128], rest);
        assert!((129..=MAX_FRAME).contains(&frame.len()));
        assert!(frame.copy(&mut bytes[..frame.len()]), "the region cannot be cut off");
        last = Some(frame.len());
    }
    let len = last?;
    Some(port.send_gathered(&bytes[..len], &Frame::whole(&[]), None).expect("the client is there"))
}

/// A port whose client has all its flow queues open.
fn connect() -> (VnicPort, OwnedFd, Region) {
    let path = std::env::temp_dir().join(format!("plimsoll-fuzz-{}.sock", std::process::id()));
    let config = VnicConfig { sizes: SIZES, ..VnicConfig::new(&path) };
    let mut port = VnicPort::open(&config).expect("a port");
    let socket = connect_to(&path).expect("connected");
    send_message(&socket, Message::hello(), &[]).expect("sent");
    port.rest();
    assert_eq!(port.request(), None);
    let (answer, mut descriptors) = read_welcome(&socket).expect("an answer");
    let Some(Message::Welcome(len)) = answer else { panic!("{answer:?}") };
    let memory = descriptors.swap_remove(0);
    let region = Region::map(&memory, len as usize).expect("mapped");
    Layout::read_header(&region).expect("a header");
    for target in 1..SIZES.flow_queues {
        send_message(&socket, Message::Open(FlowSpec::default()), &[]).expect("sent");
        port.rest();
        assert!(matches!(port.request(), Some(VnicRequest::Open(_))));
        port.map(target);
    }
    assert_eq!(region.word32(header::VERSION).load(Ordering::Relaxed), 1);
    (port, socket, region)
}
