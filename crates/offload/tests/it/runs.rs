//! What becomes of packets.

use plimsoll_offload::{Decided, Limits, Packet, Start, UnitCall, Verdict, Way};
use plimsoll_units::Nanos;

use crate::support::{ALL, ingress, load, packets, program, text};

/// For each packet of the batch, with `$at` at it.
fn each(body: &str) -> String {
    ingress(&format!(
        "(local.set $at (i32.add (local.get $batch) (i32.const 16)))
         (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $n) (i32.load offset=8 (local.get $batch))))
            {body}
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (local.set $at (i32.add (local.get $at) (i32.const 32)))
            (br $next)))
         {ALL}"
    ))
}

#[test]
fn each_packet_has_its_verdict() {
    // The verdict is the packet's first byte, the port 7.
    let text = each(
        "(i32.store8 offset=16 (local.get $at) (i32.load8_u (i32.load (local.get $at))))
         (i32.store8 offset=17 (local.get $at) (i32.const 7))",
    );
    let mut program = program(&text, &Limits::default());
    let batch = packets(&mut program, 5);
    let before = program.free();
    let ran = program.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs").clone();
    let verdicts: Vec<_> = ran.packets.iter().map(|packet| packet.verdict).collect();
    let call = UnitCall { operation: 7, offset: 0, argument: 0 };
    assert_eq!(verdicts, [Verdict::Pass, Verdict::Drop, Verdict::Redirect(7), Verdict::Unit(call)]);
    assert_eq!((ran.malformed, program.free()), (1, before + 2), "the fifth has none that there is");
    assert!(program.fuel().is_some_and(|fuel| (10..1_000).contains(&fuel)), "{:?}", program.fuel());
    assert_eq!(program.packet(&ran.packets[2]), [2; 60]);
}

#[test]
fn a_packet_may_move_and_grow_in_its_buffer() {
    let grown = "(i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 100)))
                 (i32.store offset=4 (local.get $at) (i32.const 1948))";
    let mut within = program(&each(grown), &Limits::default());
    let batch = packets(&mut within, 1);
    let ran = within.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs");
    let slot = batch[0].slot;
    assert_eq!(ran.packets, [Decided { slot, at: 100, len: 1_948, verdict: Verdict::Pass, added: false }]);

    let mut beyond = program(&each(&grown.replace("1948", "1949")), &Limits::default());
    let batch = packets(&mut beyond, 1);
    let ran = beyond.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs");
    assert_eq!((ran.packets.len(), ran.malformed), (0, 1));
    assert_eq!(beyond.free(), 512);
}

#[test]
fn a_direction_that_a_program_does_not_look_at_passes() {
    let mut program =
        program(&each("(i32.store8 offset=16 (local.get $at) (i32.const 1))"), &Limits::default());
    assert!(program.looks_at(Way::Ingress) && !program.looks_at(Way::Egress));
    let batch = packets(&mut program, 3);
    let ran = program.run(Way::Egress, &batch, Nanos::ZERO).expect("it passes");
    assert!(ran.packets.iter().all(|packet| packet.verdict == Verdict::Pass) && ran.packets.len() == 3);
}

#[test]
fn a_program_adds_as_many_packets_as_it_may() {
    let limits = Limits { amplification: 3, ..Limits::default() };
    // Each place that is free gets a packet of 64 bytes.
    let adds = |more: &str| {
        ingress(&format!(
            "(local.set $n (i32.load offset=8 (local.get $batch)))
             (block $done (loop $next
                (br_if $done (i32.ge_u (local.get $n) (i32.load offset=12 (local.get $batch))))
                (local.set $at (i32.add (i32.add (local.get $batch) (i32.const 16)) (i32.mul (i32.const 32) (local.get $n))))
                (i32.store offset=4 (local.get $at) (i32.const 64))
                (i32.store8 offset=16 (local.get $at) (i32.const 0))
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br $next)))
             (i32.add (local.get $n) (i32.const {more}))"
        ))
    };
    let mut fair = program(&adds("0"), &limits);
    let batch = packets(&mut fair, 2);
    let ran = fair.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs").clone();
    assert_eq!(ran.packets.iter().filter(|packet| packet.added).count(), 4);
    assert_eq!(fair.free(), 512 - 6);
    ran.packets.iter().for_each(|packet| fair.give(packet.slot));

    let mut greedy = program(&adds("1"), &limits);
    let batch = packets(&mut greedy, 2);
    let told = greedy.run(Way::Ingress, &batch, Nanos::ZERO).expect_err("too many").to_string();
    assert_eq!(told, "it returned 7 packets, and may return 2 to 6");
    assert_eq!(greedy.free(), 512, "the batch is lost");

    let mut full = program(&adds("0"), &Limits { buffers: 3, ..limits });
    let batch = packets(&mut full, 2);
    let ran = full.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs");
    assert_eq!(ran.packets.len(), 3, "its pool has no more");
}

#[test]
fn a_batch_has_at_most_64_packets() {
    let mut program = program(&each(""), &Limits { amplification: 1_000, ..Limits::default() });
    let batch = packets(&mut program, 70);
    assert_eq!(program.run(Way::Ingress, &batch, Nanos::ZERO).expect("it runs").packets.len(), 64);
}

#[test]
fn the_last_buffer_lies_in_memory_whatever_the_limits_are() {
    for (buffer, buffers) in [(16, 3_967), (2_048, 512), (64, 1), (1, 63_424)] {
        let mut program = program(&each(""), &Limits { buffer, buffers, ..Limits::default() });
        let slots: Vec<_> = std::iter::from_fn(|| program.take()).collect();
        assert_eq!(slots.len(), buffers as usize);
        slots.iter().for_each(|slot| program.bytes_mut(*slot).fill(1));
    }
}

#[test]
fn init_is_called_once_and_may_decline_and_tick_tells_the_time() {
    let counts = "(global $n (mut i32) (i32.const 0)) (global $t (mut i64) (i64.const 0))
        (func (export \"init\") (result i32) (global.set $n (i32.add (global.get $n) (i32.const 1))) (i32.const 0))
        (func (export \"tick\") (param i64) (global.set $t (local.get 0)))
        (func (export \"egress\") (param $b i32) (result i32)
            (i32.store8 offset=17 (i32.add (local.get $b) (i32.const 16)) (i32.add (global.get $n) (i32.wrap_i64 (global.get $t))))
            (i32.store8 offset=16 (i32.add (local.get $b) (i32.const 16)) (i32.const 2))
            (i32.const 1))";
    let mut program = program(&text(counts), &Limits::default());
    program.tick(Nanos::new(40)).expect("it ticks");
    let slot = program.take().expect("a buffer");
    let ran = program.run(Way::Egress, &[Packet::new(slot, 60, 1)], Nanos::new(41)).expect("it runs");
    assert_eq!(ran.packets[0].verdict, Verdict::Redirect(41));

    let declines = text(
        "(func (export \"init\") (result i32) (i32.const 5)) (func (export \"egress\") (param i32) (result i32) (i32.const 0))",
    );
    let declined = plimsoll_offload::Program::new(&load(&declines, &Limits::default()));
    assert_eq!(declined.err(), Some(Start::Declined(5)));
}
