//! Any text as a rank program: an error that lies in the text, or the same ranks interpreted and as WebAssembly, within the cost.
//!
//! Input: the text up to the first zero byte; then, from that byte on, packets: a byte for whether one arrives, 8 bytes for each field.
#![no_main]

#[path = "../../crates/rank/tests/rank/node.rs"]
#[allow(dead_code)]
mod node;

use libfuzzer_sys::fuzz_target;
use node::{Code, Node};
use plimsoll_rank::{Field, Packet, Program};

/// Packets of one input, so that a run is short.
const PACKETS: usize = 64;

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let Ok(text) = str::from_utf8(&data[..end]) else { return };
    let program = match Program::parse(text) {
        Ok(program) => program,
        Err(error) => {
            assert!((1..=text.split('\n').count()).contains(&error.line), "{error}");
            assert!((1..=error.source_line.chars().count() + 2).contains(&error.column), "{error}");
            return;
        }
    };
    let code = Code::of(text, program);
    let mut node = Node::new(&code);
    // Fields of the largest value come in any case.
    let largest = vec![u8::MAX; 1 + Packet::BYTES];
    for bytes in data[end..].chunks_exact(largest.len()).take(PACKETS).chain([&largest[..]]) {
        let packet = packet(&bytes[1..]);
        if bytes[0] % 2 == 1 {
            let _ = node.enqueue(&packet);
        } else {
            node.dequeue(&packet)
        }
    }
});

fn packet(bytes: &[u8]) -> Packet {
    let values = bytes.as_chunks().0.iter().map(|&value| u64::from_le_bytes(value));
    Field::ALL
        .into_iter()
        .zip(values)
        .fold(Packet::default(), |packet, (field, value)| packet.with(field, value))
}
