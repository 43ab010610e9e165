//! Messages of a front end, in pieces of any length and with descriptors of any kind: obeyed, or the connection is closed.
#![no_main]

#[path = "../../crates/ports/tests/it/support/guest.rs"]
#[allow(dead_code)]
mod guest;

use std::os::fd::AsRawFd;

use guest::{Guest, VERSION_1};
use libfuzzer_sys::fuzz_target;
use plimsoll_ports::{Took, VhostUser, VhostUserConfig};

const SIZE: u16 = 8;

// A list of pieces: a byte for the descriptors that come along, one for the length, and that number of bytes.
fuzz_target!(|data: &[u8]| {
    let path = std::env::temp_dir().join(format!("plimsoll-fuzz-m{}.sock", std::process::id()));
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    let guest = Guest::connect(&path, SIZE);
    guest.post(0, &[1; 60]);
    let mut rest = data;
    while let [kind, len, bytes @ ..] = rest {
        let (piece, others) = bytes.split_at(usize::from(*len).min(bytes.len()));
        rest = others;
        let (memory, bell) = (guest.file.as_raw_fd(), guest.kicks[0].as_raw_fd());
        let descriptors: &[i32] = match kind % 5 {
            0 => &[],
            1 => &[memory],
            2 => &[bell],
            3 => &[memory, memory],
            // Not its own socket: a port that holds that end as well would never see it closed.
            _ => &[0],
        };
        // Nothing would carry the descriptors.
        if !piece.is_empty() {
            guest.send(piece, descriptors);
        }
        port.probe().expect("always there");
        if let Took::Frame(taken) = port.take() {
            port.copy(&mut vec![0; taken.len]);
            port.complete(taken.ticket);
        }
        let _ = port.send(&[1; 60], None);
        port.flush().expect("always there");
    }
    drop(guest);
    (0..200).for_each(|_| port.probe().expect("always there"));
    assert!(!port.is_connected());
    // After any messages, the next guest is served.
    let guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    guest.post(0, &[1; 60]);
    assert!(matches!(port.take(), Took::Frame(_)));
});
