//! Programs that would harm their host, or their tenant's neighbours.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll_offload::{Fault, Limits, Metering, Module, Program, Runtime, Start, Way};
use plimsoll_units::Nanos;
use proptest::prelude::*;

use crate::support::{ALL, binary, ingress, load, packets, program, text};

#[test]
fn an_endless_loop_ends_with_its_fuel_and_the_next_batch_runs() {
    // It loops while the first packet's first byte is 1.
    let text =
        ingress(&format!("(loop $l (br_if $l (i32.load8_u (i32.load offset=16 (local.get $batch))))) {ALL}"));
    let mut program = program(&text, &Limits { fuel: 10_000, ..Limits::default() });
    let batch = packets(&mut program, 2);
    program.bytes_mut(batch[0].slot)[0] = 1;
    let fault = program.run(Way::Ingress, &batch, Nanos::ZERO).expect_err("it has no end");
    assert!(matches!(&fault, Fault::OverBudget(_)), "{fault}");
    assert!(fault.to_string().contains("in function `ingress`"), "{fault}");
    assert_eq!(program.free(), 512, "its packets are lost");
    let batch = packets(&mut program, 2);
    program.bytes_mut(batch[0].slot)[0] = 0;
    assert_eq!(program.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs").packets.len(), 2);
}

#[test]
fn an_endless_loop_ends_with_its_epochs() {
    let runtime = Runtime::new(Metering::Epochs).expect("this machine");
    let text = ingress(&format!("(loop $l (br $l)) {ALL}"));
    let module = runtime.load(&binary(&text), &Limits::default()).expect("it is right");
    let mut program = Program::new(&module).expect("it starts");
    let batch = packets(&mut program, 1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !ended.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(20) {
                runtime.advance();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let fault = program.run(Way::Ingress, &batch, Nanos::ZERO).expect_err("it has no end");
        ended.store(true, Ordering::Relaxed);
        assert!(matches!(fault, Fault::OverBudget(_)), "{fault}");
    });
    let endless = "(func (export \"init\") (result i32) (loop $l (br $l)) (i32.const 0))";
    let text =
        crate::support::ingress(ALL).replacen("(func $ingress", &format!("{endless} (func $ingress"), 1);
    let started = Program::new(&load(&text, &Limits::default()));
    assert!(matches!(started.err(), Some(Start::Init(Fault::OverBudget(_)))));
}

#[test]
fn what_webassembly_forbids_is_told_with_its_place() {
    for (body, what) in [
        ("(unreachable)", "unreachable"),
        ("(drop (i32.div_u (i32.const 1) (local.get $n)))", "divide by zero"),
        ("(i32.store8 (i32.const -1) (i32.const 0))", "out of bounds"),
        ("(drop (call $ingress (local.get $batch)))", "stack"),
    ] {
        let mut program =
            program(&ingress(&format!("{body} {ALL}")), &Limits { fuel: 100_000_000, ..Limits::default() });
        for _ in 0..3 {
            let batch = packets(&mut program, 2);
            let told = program.run(Way::Ingress, &batch, Nanos::ZERO).expect_err("a trap").to_string();
            assert!(told.contains(what) && told.contains("in function `ingress` (at byte 0x"), "{told}");
            assert_eq!(program.free(), 512);
        }
    }
}

#[test]
fn memory_grows_as_far_as_it_may() {
    // Grows by a page until that fails, then answers how often it worked as the port of a redirection.
    let grows = text(
        "(func (export \"ingress\") (param $b i32) (result i32) (local $n i32)
            (block $full (loop $more
                (br_if $full (i32.eq (memory.grow (i32.const 1)) (i32.const -1)))
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br $more)))
            (i32.store8 offset=16 (i32.add (local.get $b) (i32.const 16)) (i32.const 2))
            (i32.store8 offset=17 (i32.add (local.get $b) (i32.const 16)) (local.get $n))
            (i32.const 2))",
    );
    let mut program = program(&grows, &Limits { memory: 2 << 20, ..Limits::default() });
    let batch = packets(&mut program, 2);
    let ran = program.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs");
    // One page of its own and 17 of its pool, of 32.
    assert_eq!(ran.packets[0].verdict, plimsoll_offload::Verdict::Redirect(14));
    assert_eq!(program.bytes(batch[1].slot)[..60], [1; 60], "its packets are where they were");
}

/// The address of the first buffer: behind the program's page, and a batch.
const FIRST: u32 = 65_536 + 2_112;

/// Copies its first packet, the script, over the places of the batch, and answers the number at the end of that packet's buffer.
static SCRIPTED: LazyLock<Module> = LazyLock::new(|| {
    let text = ingress(
        "(local.set $n (i32.load offset=2044 (i32.load offset=24 (local.get $batch))))
         (memory.copy
            (i32.add (local.get $batch) (i32.const 16))
            (i32.load offset=16 (local.get $batch))
            (i32.load offset=20 (local.get $batch)))
         (local.get $n)",
    );
    load(&text, &Limits { amplification: 2, buffers: 64, ..Limits::default() })
});

proptest! {
    /// Whatever a program writes in place of its batch, each buffer is in the answer once or free again.
    #[test]
    fn whatever_it_writes_each_buffer_leaves_once(
        count in 1_u8..20,
        answered in 0_u32..80,
        noise in proptest::collection::vec(any::<u8>(), 0..2_000),
        entries in proptest::collection::vec((0_u32..64, 0_u32..2_100, 0_u32..2_100, 0_u8..4), 0..40),
        like in any::<bool>(),
    ) {
        let limits = SCRIPTED.limits();
        let mut program = Program::new(&SCRIPTED).expect("it starts");
        let mut batch = packets(&mut program, count);
        // Entries that name buffers of the pool, perhaps another place's.
        let named = |&(buffer, at, len, verdict): &(u32, u32, u32, u8)| {
            let mut entry = [0; 32];
            entry[..4].copy_from_slice(&(FIRST + buffer * 2_048 + at).to_le_bytes());
            entry[4..8].copy_from_slice(&len.to_le_bytes());
            entry[16] = verdict;
            entry
        };
        let script = if like { entries.iter().flat_map(named).collect() } else { noise };
        program.bytes_mut(batch[0].slot)[..script.len()].copy_from_slice(&script);
        program.bytes_mut(batch[0].slot)[2_044..].copy_from_slice(&answered.to_le_bytes());
        batch[0].len = script.len() as u32;
        let mut kept: Vec<_> = match program.run(Way::Ingress, &batch, Nanos::ZERO) {
            Ok(ran) => {
                for packet in &ran.packets {
                    prop_assert!(packet.at + packet.len <= limits.buffer);
                }
                let stays = |packet: &&plimsoll_offload::Decided| packet.verdict != plimsoll_offload::Verdict::Drop;
                ran.packets.iter().filter(stays).map(|packet| packet.slot).collect()
            }
            Err(_) => Vec::new(),
        };
        prop_assert_eq!(program.free() + kept.len(), 64);
        kept.extend(std::iter::from_fn(|| program.take()));
        kept.sort();
        kept.dedup();
        prop_assert_eq!(kept.len(), 64);
    }
}
