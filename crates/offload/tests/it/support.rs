//! Programs in WebAssembly's text.

use plimsoll_offload::{Limits, Metering, Module, Packet, Program, Runtime, Slot};

/// A module with the marker, a page of memory, and these further fields.
pub(crate) fn text(fields: &str) -> String {
    format!("(module (memory (export \"memory\") 1) (func (export \"plimsoll_abi_1\")) {fields})")
}

/// An `ingress` with this body; `$batch`, and `$n` that it may use.
pub(crate) fn ingress(body: &str) -> String {
    text(&format!(
        "(func $ingress (export \"ingress\") (param $batch i32) (result i32) (local $n i32) (local $at i32) {body})"
    ))
}

/// Answers as many packets as there are.
pub(crate) const ALL: &str = "(i32.load offset=8 (local.get $batch))";

pub(crate) fn binary(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn load(text: &str, limits: &Limits) -> Module {
    let runtime = Runtime::new(Metering::Fuel).expect("this machine");
    runtime.load(&binary(text), limits).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn program(text: &str, limits: &Limits) -> Program {
    Program::new(&load(text, limits)).unwrap_or_else(|error| panic!("{error}"))
}

/// Packets of 60 bytes with their number in each byte.
pub(crate) fn packets(program: &mut Program, count: u8) -> Vec<Packet> {
    let mut packet = |number| {
        let slot: Slot = program.take().expect("a free buffer");
        program.bytes_mut(slot)[..60].fill(number);
        Packet::new(slot, 60, Packet::NETWORK)
    };
    (0..count).map(&mut packet).collect()
}
