//! Any bytes as a tenant's program: refused, or loaded and run on a batch, never a panic, and each buffer leaves once.
//!
//! Input: the module. Seeds are the programs of `examples/programs/`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use plimsoll_offload::{Limits, Metering, Packet, Program, Runtime, Verdict, Way, verify};
use plimsoll_units::Nanos;

/// A small pool and little fuel, so that a run is short.
const LIMITS: Limits = Limits {
    module: 8_192,
    memory: 4 << 20,
    table_entries: 64,
    buffers: 32,
    buffer: 2_048,
    amplification: 2,
    epochs: 1,
    fuel: 20_000,
};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new(Metering::Fuel).expect("this machine"));

fuzz_target!(|data: &[u8]| {
    if verify(data, &LIMITS).is_err() {
        return;
    }
    let module = RUNTIME.load(data, &LIMITS).expect("what was verified is compiled");
    let Ok(mut program) = Program::new(&module) else { return };
    for way in Way::ALL {
        let packets: Vec<_> = (0..8)
            .map(|number| {
                let slot = program.take().expect("a free buffer");
                program.bytes_mut(slot)[..60].fill(number);
                Packet::new(slot, 60, 0)
            })
            .collect();
        let mut kept = Vec::new();
        if let Ok(ran) = program.run(way, &packets, Nanos::ZERO) {
            for packet in &ran.packets {
                assert!(packet.at + packet.len <= LIMITS.buffer);
                kept.extend((packet.verdict != Verdict::Drop).then_some(packet.slot));
            }
        }
        assert_eq!(program.free() + kept.len(), LIMITS.buffers as usize);
        kept.into_iter().for_each(|slot| program.give(slot));
    }
});
