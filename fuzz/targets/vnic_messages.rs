//! Messages of a vNIC's clients, in packets of any length and with descriptors of any kind: answered, or the connection is closed.
#![no_main]

mod sizes;

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libfuzzer_sys::fuzz_target;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use plimsoll_ports::{VnicConfig, VnicPort, VnicRequest};
use plimsoll_vnic::message::{LEN, Message};
use plimsoll_vnic::socket::{Incoming, connect_to, read_message, read_welcome, send_message};
use plimsoll_vnic::{OpenRefusal, Rule, Scope};
use sizes::SIZES;

// A list of packets: a byte for its sender and for what comes along, one for its kind, one for its length, and that
// number of bytes behind the kind. The first to speak has the vNIC.
fuzz_target!(|data: &[u8]| {
    let path = std::env::temp_dir().join(format!("plimsoll-fuzz-n{}.sock", std::process::id()));
    let config = VnicConfig { sizes: SIZES, ..VnicConfig::new(&path) };
    let mut port = VnicPort::open(&config).expect("a port");
    let mut clients: [Option<OwnedFd>; 3] = Default::default();
    let null = File::open("/dev/null").expect("there");
    let mut rest = data;
    let mut target = 0;
    while let [how, kind, len, bytes @ ..] = rest {
        let (piece, others) = bytes.split_at(usize::from(*len).min(bytes.len()));
        rest = others;
        let client = &mut clients[usize::from(how % 3)];
        if how & 0x80 != 0 {
            *client = None;
            continue;
        }
        // While no client is let in, there is no room for another.
        if client.is_none() {
            *client = connect_to(&path).ok();
        }
        if let Some(socket) = client {
            let along = [null.as_raw_fd(), socket.as_raw_fd(), 0];
            say(socket, &packet(*kind, piece), &along[..usize::from(how >> 2 & 3)]);
        }
        answer(&mut port, &mut target);
        for socket in clients.iter().flatten() {
            while let Incoming::Message(_) = read_message(socket) {}
        }
        if port.begin().is_err() {
            break;
        }
    }
    // After any messages, the next client is served: by this port, or by the next one in its place.
    drop(clients);
    let begun = std::time::Instant::now();
    loop {
        assert!(begun.elapsed().as_secs() < 5, "no client is let in");
        answer(&mut port, &mut target);
        if port.probe().is_err() {
            drop(port);
            port = VnicPort::open(&config).expect("a port");
        }
        let Ok(socket) = connect_to(&path) else { continue };
        if send_message(&socket, Message::hello(), &[]).is_err() {
            continue;
        }
        answer(&mut port, &mut target);
        if let Ok((Some(Message::Welcome(_)), descriptors)) = read_welcome(&socket) {
            assert_eq!(descriptors.len(), 3);
            return;
        }
    }
});

/// Answers requests, a few messages after each look at the sockets, each with one call.
fn answer(port: &mut VnicPort, target: &mut u32) {
    for _ in 0..4 {
        port.rest();
        for _ in 0..8 {
            match port.request() {
                None => break,
                Some(VnicRequest::Open(_)) if *target % 5 == 4 => port.refuse(OpenRefusal::Forced),
                Some(VnicRequest::Open(_)) => port.map(*target),
                Some(VnicRequest::Ask(spec)) => {
                    let (flow, scope) = (Scope::EXACT.of(&spec), Scope::EXACT);
                    port.tell_rule(&Rule { flow, scope, queue: 0, generation: 0, asked: true });
                }
                Some(VnicRequest::Close(_) | VnicRequest::Refused) => {}
            }
            *target += 1;
        }
    }
}

/// A packet of this kind: as long as a message, or, for one kind in eight, just these bytes.
fn packet(kind: u8, piece: &[u8]) -> Vec<u8> {
    if kind & 7 == 7 {
        return piece.to_vec();
    }
    let mut bytes = vec![kind & 15, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(piece);
    bytes.resize(LEN, 0);
    bytes
}

/// The daemon hears a client no more once its connection is closed.
fn say(socket: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None);
}
