//! Tenants' programs in the engine: what they see, what becomes of it, and what they cannot do.

mod own_cores;

use plimsoll_daemon::{Change, Hosted, ProgramNow, Units, program_limits};
use plimsoll_offload::{Metering, Operation, Program, Runtime};
use plimsoll_policy::{Checked, Fails, StateKept, TenantProgram};
use plimsoll_units::Span;
use plimsoll_wire::VnetHeader;
use proptest::prelude::*;

use crate::support::{World, drain, number, policy, udp};

const POLICY: &str = "uplink: {port: memory, rate: 10Gbps}
tenants:
  a: {port: memory}
  b: {port: memory}
";

const STEP: Span = Span::micros(10);
const WHILE: Span = Span::millis(1);
/// The first bytes of the hosts' addresses: `a` is 1, `b` is 2, and 9 is somewhere else.
const A: u8 = 1;
const B: u8 = 2;
const ELSEWHERE: u8 = 9;

/// A module with this memory in front of its pool, and these functions.
pub(crate) fn module(fields: &str) -> Vec<u8> {
    let text = format!("(module (memory (export \"memory\") 1) (func (export \"plimsoll_abi_1\")) {fields})");
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// A function for packets that does this for each packet, at `$at`, whose bytes begin at `$data`.
pub(crate) fn each(name: &str, body: &str) -> String {
    format!(
        "(func (export \"{name}\") (param $batch i32) (result i32)
            (local $n i32) (local $at i32) (local $data i32) (local $x i64)
            (local.set $at (i32.add (local.get $batch) (i32.const 16)))
            (block $done (loop $next
                (br_if $done (i32.ge_u (local.get $n) (i32.load offset=8 (local.get $batch))))
                (local.set $data (i32.load (local.get $at)))
                {body}
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (local.set $at (i32.add (local.get $at) (i32.const 32)))
                (br $next)))
            (i32.load offset=8 (local.get $batch)))"
    )
}

/// The verdict is the last byte of the datagram's number, the port the byte before it.
const AS_TOLD: &str = "(i32.store8 offset=16 (local.get $at) (i32.load8_u offset=45 (local.get $data)))
    (i32.store8 offset=17 (local.get $at) (i32.load8_u offset=44 (local.get $data)))";

/// A coprocessor works on what is behind the headers: a compressed one would be for a group, and arrive in several places.
const PAYLOAD: &str = "(i32.store16 offset=18 (local.get $at) (i32.const 46))";

/// Swaps the hardware addresses.
const SWAP: &str = "(local.set $x (i64.load16_u offset=4 (local.get $data)))
    (local.set $x (i64.or (i64.shl (local.get $x) (i64.const 32)) (i64.load32_u (local.get $data))))
    (memory.copy (local.get $data) (i32.add (local.get $data) (i32.const 6)) (i32.const 6))
    (i64.store32 offset=6 (local.get $data) (local.get $x))
    (i64.store16 offset=10 (local.get $data) (i64.shr_u (local.get $x) (i64.const 32)))";

pub(crate) fn stated() -> TenantProgram {
    TenantProgram::of("test.wasm".into())
}

/// A program for tenant `a` that has been started, on the core that it states.
fn hosted(checked: &Checked, module: &[u8], stated: &TenantProgram) -> Box<Hosted> {
    hosted_of(checked, "a", module, stated)
}

/// A program for a tenant that has been started, on the core that it states.
pub(crate) fn hosted_of(
    checked: &Checked,
    tenant: &str,
    module: &[u8],
    stated: &TenantProgram,
) -> Box<Hosted> {
    let runtime = Runtime::new(Metering::Fuel).expect("this machine");
    let limits = program_limits(checked, tenant, stated);
    let compiled = runtime.load(module, &limits).unwrap_or_else(|error| panic!("{error}"));
    let program = Program::new(&compiled).unwrap_or_else(|error| panic!("{error}"));
    Box::new(match stated.core {
        Some(core) => Hosted::on_core(core, program, (tenant, stated), None)
            .expect("a thread on a core of this process"),
        None => Hosted::new(program, (tenant, stated), None),
    })
}

/// Puts another program in place of the one that tenant `a` has.
fn install(world: &mut World, checked: &Checked, program: Option<Box<Hosted>>) {
    let programs = vec![("a".to_owned(), program)];
    let change = Change { programs, ..Change::between(checked, checked) };
    world.engine.install(change, world.now);
}

/// An engine between memory ports that knows where everyone is, in which tenant `a` has this program.
fn world_of(text: &str, fields: &str, stated: &TenantProgram) -> (World, Checked) {
    let checked = policy(text);
    let mut world = World::between(&checked, true, true);
    world.send(0, &udp(A, ELSEWHERE, 1, 0, 60));
    world.send(1, &udp(B, ELSEWHERE, 1, 0, 60));
    world.wire.send(&udp(ELSEWHERE, B, 1, 0, 60), None).expect("sent");
    assert_eq!(world.run(WHILE, STEP).len(), 2);
    let program = hosted(&checked, &module(fields), stated);
    install(&mut world, &checked, Some(program));
    drain(&mut world.tenants[1]);
    (world, checked)
}

fn world(fields: &str) -> World {
    world_of(POLICY, fields, &stated()).0
}

fn now(world: &mut World) -> ProgramNow {
    let snapshot = world.engine.snapshot(world.now);
    snapshot
        .lanes
        .iter()
        .find(|lane| lane.name == "a")
        .and_then(|lane| lane.program)
        .expect("it has a program")
}

fn arrive(world: &mut World, frame: &[u8]) {
    world.wire.send(frame, None).expect("sent");
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|frame| number(frame).1).collect()
}

#[test]
fn each_packet_for_its_tenant_has_the_verdict_that_it_says() {
    let mut world = world(&each("ingress", AS_TOLD));
    // Passed, dropped, to the tenant's own port, to one that it does not have, with a verdict that there is not; and passed again.
    for told in [0, 1, 0x0102, 0x0702, 9, 0x1_0000] {
        arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60));
    }
    assert!(world.run(WHILE, STEP).is_empty());
    assert_eq!(numbers(&drain(&mut world.tenants[0])), [0, 0x0102, 0x1_0000]);
    let lost = [("program_dropped", 1), ("program_malformed", 1), ("program_no_port", 1)];
    assert_eq!(world.losses("a"), lost);
    let ProgramNow { calls, packets, direct, redirected, faults, .. } = now(&mut world);
    assert_eq!((calls, packets, direct, redirected, faults), (1, 6, 6, 1, 0));
}

#[test]
fn what_a_program_sends_is_checked_as_its_tenants() {
    let mut world = world(&each(
        "ingress",
        &format!("{AS_TOLD} (if (i32.eqz (i32.load8_u offset=43 (local.get $data))) (then {SWAP}))"),
    ));
    // To the network: with swapped addresses it is the tenant's own, otherwise it bears another's.
    arrive(&mut world, &udp(ELSEWHERE, A, 1, 2, 60));
    arrive(&mut world, &udp(ELSEWHERE, A, 1, 0x1_0002, 60));
    let out = world.run(WHILE, STEP);
    assert_eq!(numbers(&out), [2]);
    assert_eq!((out[0][5], out[0][11]), (ELSEWHERE, A));
    assert_eq!(world.losses("a"), [("foreign_source", 1)]);
}

#[test]
fn what_its_tenant_sends_passes_it_too_and_so_does_what_neighbours_send() {
    let mut world = world(&(each("ingress", AS_TOLD) + &each("egress", AS_TOLD)));
    for told in [0, 1, 0x0102] {
        world.send(0, &udp(A, ELSEWHERE, 1, told, 60));
        world.send(0, &udp(A, B, 1, told, 300));
        world.send(1, &udp(B, A, 1, 0x1_0000 + told, 60));
    }
    assert_eq!(numbers(&world.run(WHILE, STEP)), [0]);
    assert_eq!(numbers(&drain(&mut world.tenants[1])), [0]);
    // Those that it has sent back, and the neighbour's.
    let mut came = numbers(&drain(&mut world.tenants[0]));
    came.sort_unstable();
    assert_eq!(came, [0x0102, 0x0102, 0x1_0000, 0x1_0102]);
    assert_eq!(world.losses("a"), [("program_dropped", 3)]);
    assert!(world.losses("b").is_empty());
}

/// A TCP segment of 3,000 bytes of payload that is to be cut, without its checksum.
fn segment(from: u8, to: u8) -> (Vec<u8>, VnetHeader) {
    let mut frame = udp(from, to, 5_000, 0, 54 + 3_000);
    frame[23] = 6;
    frame[46] = 5 << 4;
    frame[47] = 0x10;
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: VnetHeader::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1_000,
        csum_start: 34,
        csum_offset: 16,
    };
    (frame, vnet)
}

/// Sums a TCP segment over IPv4 with its pseudo header: all ones if its checksum is right.
fn sum(frame: &[u8]) -> u32 {
    let tcp = &frame[34..];
    let words = frame[26..34].chunks(2).chain(tcp.chunks(2));
    let sum = words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum::<u32>();
    let sum = sum + 6 + tcp.len() as u32;
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn a_program_sees_packets_as_they_are_on_a_wire() {
    // Drops packets of more than 1,060 bytes.
    let short = "(if (i32.gt_u (i32.load offset=4 (local.get $at)) (i32.const 1060)) (then (i32.store8 offset=16 (local.get $at) (i32.const 1))))";
    let mut world = world(&(each("ingress", short) + &each("egress", short)));
    let (frame, vnet) = segment(A, B);
    world.send_with(0, &frame, &vnet);
    let (frame, vnet) = segment(B, A);
    world.send_with(1, &frame, &vnet);
    world.run(WHILE, STEP);
    for tenant in [0, 1] {
        let packets = drain(&mut world.tenants[tenant]);
        assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [1_054; 3], "to {tenant}");
        assert!(packets.iter().all(|packet| sum(packet) == 0xffff), "to {tenant}");
    }
    // One that is longer than its buffers.
    arrive(&mut world, &udp(ELSEWHERE, A, 1, 0, 2_049));
    world.run(WHILE, STEP);
    assert_eq!(world.losses("uplink"), [("program_too_long", 1)]);
}

#[test]
fn added_packets_are_held_to_their_tenants_limit() {
    // Copies each packet into the places that are free.
    let add = "(func (export \"egress\") (param $batch i32) (result i32) (local $n i32) (local $at i32) (local $first i32)
        (local.set $first (i32.add (local.get $batch) (i32.const 16)))
        (local.set $n (i32.load offset=8 (local.get $batch)))
        (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $n) (i32.load offset=12 (local.get $batch))))
            (local.set $at (i32.add (local.get $first) (i32.mul (i32.const 32) (local.get $n))))
            (memory.copy (i32.load (local.get $at)) (i32.load (local.get $first)) (i32.load offset=4 (local.get $first)))
            (i32.store offset=4 (local.get $at) (i32.load offset=4 (local.get $first)))
            (i32.store8 offset=16 (local.get $at) (i32.const 0))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br $next)))
        (local.get $n))";
    let text = POLICY.replace("a: {port: memory}", "a: {port: memory, max: 8Mbps}");
    let (mut world, _) = world_of(&text, add, &TenantProgram { amplification: 4, ..stated() });
    for told in 0..10 {
        world.send(0, &udp(A, ELSEWHERE, 1, told, 1_000));
    }
    // 8 Mb/s are a packet of 1,000 bytes in a millisecond.
    let out = world.run(Span::millis(20), STEP);
    assert!((18..=24).contains(&out.len()), "{}", out.len());
    let rest = world.run(Span::millis(40), STEP);
    assert_eq!(out.len() + rest.len(), 40);
    assert_eq!(now(&mut world).added, 30);
    assert!(world.losses("a").is_empty());
}

#[test]
fn a_program_that_traps_loses_its_own_packets_and_the_next_call_runs() {
    let mut world =
        world(&each("ingress", "(if (i32.load8_u offset=45 (local.get $data)) (then (unreachable)))"));
    for told in [1, 0] {
        arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60));
        arrive(&mut world, &udp(ELSEWHERE, B, 1, told, 60));
        world.run(WHILE, STEP);
    }
    assert_eq!(numbers(&drain(&mut world.tenants[0])), [0]);
    assert_eq!(numbers(&drain(&mut world.tenants[1])), [1, 0]);
    assert_eq!(world.losses("a"), [("program_fault", 1)]);
    assert_eq!((now(&mut world).faults, now(&mut world).halted), (1, false));
    let told = world.engine.take_told();
    assert!(
        told.len() == 1
            && told[0].contains("tenant a: its program has failed")
            && told[0].contains("unreachable"),
        "{told:?}"
    );
}

#[test]
fn a_program_that_never_ends_is_halted_and_fails_as_its_operator_says() {
    let endless = "(if (i32.load8_u offset=45 (local.get $data)) (then (loop $for_ever (br $for_ever))))";
    for (fails, passed, lost) in [(Fails::Closed, vec![], 2), (Fails::Open, vec![1, 0], 0)] {
        let program = TenantProgram { fails, ..stated() };
        let both = each("ingress", endless) + &each("egress", "");
        let (mut world, checked) = world_of(POLICY, &both, &program);
        for _ in 0..4 {
            arrive(&mut world, &udp(ELSEWHERE, A, 1, 1, 60));
            world.run(WHILE, STEP);
        }
        assert_eq!(world.losses("a"), [("program_over_time", 4)]);
        assert!(now(&mut world).halted);
        arrive(&mut world, &udp(ELSEWHERE, A, 1, 1, 60));
        world.run(WHILE, STEP);
        arrive(&mut world, &udp(ELSEWHERE, A, 1, 0, 60));
        world.send(0, &udp(A, ELSEWHERE, 1, 5, 60));
        let out = world.run(WHILE, STEP);
        assert_eq!(numbers(&out).len(), usize::from(fails == Fails::Open), "{fails:?}");
        assert_eq!(numbers(&drain(&mut world.tenants[0])), passed, "{fails:?}");
        // What comes for it is counted where it came from, and what its tenant sends is its own.
        let of = |losses: Vec<(&str, u64)>| {
            losses.iter().filter(|(why, _)| *why == "program_halted").map(|(_, n)| n).sum::<u64>()
        };
        assert_eq!(
            (of(world.losses("uplink")), of(world.losses("a"))),
            (lost, u64::from(lost > 0)),
            "{fails:?}"
        );
        let told = world.engine.take_told().join("\n");
        assert!(told.contains("its program is HALTED, as 4 calls took too long"), "{told}");
        // A reload with another one starts anew.
        let program = hosted(&checked, &module(&each("ingress", "")), &program);
        install(&mut world, &checked, Some(program));
        arrive(&mut world, &udp(ELSEWHERE, A, 1, 7, 60));
        world.run(WHILE, STEP);
        assert_eq!(numbers(&drain(&mut world.tenants[0])), [7]);
    }
}

/// Counts packets, and writes how many they were into each one's last byte. Its state is the number.
fn counts(step: u32, restores: &str) -> String {
    let count = "(i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const STEP)))
        (i32.store8 offset=45 (local.get $data) (i32.load (i32.const 8)))";
    let state = "(func (export \"state_save\") (result i64) (i64.const 0x800000004))
        (func (export \"state_room\") (param i32) (result i32) (i32.const 8))
        (func (export \"state_restore\") (param i32) (result i32) RESTORES)";
    each("ingress", &count.replace("STEP", &step.to_string())) + &state.replace("RESTORES", restores)
}

#[test]
fn a_reload_keeps_what_waits_and_the_state_where_it_is_to_be_kept() {
    for (state, restores, seen, kept) in [
        (StateKept::Keep, "(i32.const 0)", [3, 13, 23], Some(true)),
        (StateKept::Drop, "(i32.const 0)", [3, 10, 20], None),
        (StateKept::Keep, "(i32.const 5)", [3, 13, 23], Some(false)),
    ] {
        let program = TenantProgram { state, ..stated() };
        let (mut world, checked) = world_of(POLICY, &counts(1, "(i32.const 0)"), &program);
        (0..3).for_each(|told| arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60)));
        world.run(WHILE, STEP);
        assert_eq!(numbers(&drain(&mut world.tenants[0])).last(), Some(&seen[0]));
        // These wait in the pool of the first program, as no turn has let it run.
        world.send(1, &udp(B, A, 1, 0, 60));
        world.send(1, &udp(B, A, 2, 0, 60));
        let next = hosted(&checked, &module(&counts(10, restores)), &program);
        install(&mut world, &checked, Some(next));
        assert_eq!(now(&mut world).kept_state, kept);
        world.run(WHILE, STEP);
        assert_eq!(numbers(&drain(&mut world.tenants[0])), seen[1..], "{state:?} {restores}");
        assert!(world.losses("a").is_empty() && world.losses("b").is_empty());
        let told = world.engine.take_told().join("\n");
        assert_eq!(told.contains("`state_restore` returned 5"), kept == Some(false), "{told}");
    }
}

#[test]
fn the_time_of_a_migration_is_its_tenants() {
    let program = TenantProgram { state: StateKept::Keep, ..stated() };
    let (mut world, checked) = world_of(POLICY, &counts(1, "(i32.const 0)"), &program);
    let cpu = |world: &mut World| {
        let snapshot = world.engine.snapshot(world.now);
        snapshot.lanes.iter().find(|lane| lane.name == "a").expect("it is there").ingress.cpu
    };
    let before = cpu(&mut world);
    // It takes too long, and ends for that: what it took is charged all the same.
    let fill = "(memory.fill (i32.const 64) (i32.const 0) (i32.const 60000))".repeat(20);
    let next = hosted(&checked, &module(&counts(1, &format!("{fill} (i32.const 0)"))), &program);
    install(&mut world, &checked, Some(next));
    let took = cpu(&mut world) - before;
    assert!(took > Span::micros(5), "{took:?} for 1.2 MB");
}

#[test]
fn without_its_program_a_tenants_packets_pass() {
    let (mut world, checked) =
        world_of(POLICY, &(each("ingress", AS_TOLD) + &each("egress", AS_TOLD)), &stated());
    install(&mut world, &checked, None);
    arrive(&mut world, &udp(ELSEWHERE, A, 1, 1, 60));
    world.send(0, &udp(A, ELSEWHERE, 1, 1, 60));
    assert_eq!(numbers(&world.run(WHILE, STEP)), [1]);
    assert_eq!(numbers(&drain(&mut world.tenants[0])), [1]);
    assert!(world.losses("a").is_empty());
}

#[test]
fn frames_that_wait_for_the_program_of_a_tenant_that_is_taken_out_are_counted() {
    let text = POLICY.replace("a: {port: memory}", "a: {port: memory, max: 1Mbps, descriptors: 4}");
    let (mut world, checked) = world_of(&text, &each("egress", ""), &stated());
    for told in 0..100 {
        world.send(0, &udp(A, ELSEWHERE, 1, told, 1_000));
    }
    let mut out = world.run(WHILE, STEP).len();
    // It has no descriptor left; frames wait for the program, and the rest is not read.
    let waits = |world: &mut World| world.engine.snapshot(world.now).lanes[0].buffers;
    assert!((20..100).contains(&waits(&mut world)), "{}", waits(&mut world));
    let new = policy("uplink: {port: memory, rate: 10Gbps}\ntenants:\n  b: {port: memory}\n");
    let change = world.change(&checked, &new);
    world.engine.install(change, world.now);
    let snapshot = world.engine.snapshot(world.now);
    let lane = snapshot.lanes.iter().find(|lane| lane.name == "a").expect("frames of it are in the engine");
    let (read, lost) = (lane.counters.rx_packets as usize - 1, lane.tally.losses().collect::<Vec<_>>());
    out += world.run(Span::millis(100), STEP).len();
    assert!(
        matches!(lost[..], [("stopped", lost)] if lost as usize == read - out && lost >= 20),
        "{lost:?} of {read}, {out} left"
    );
    assert!(!world.engine.pending());
}

#[test]
fn a_flood_for_a_program_leaves_its_tenant_buffers_for_what_it_sends() {
    let mut world = world(&(each("ingress", "") + &each("egress", "")));
    // More than the pool holds, from a neighbour, in one turn.
    for round in 0..3 {
        for told in 0..200 {
            world.send(1, &udp(B, A, 1, told, 60));
            arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60));
        }
        world.send(0, &udp(A, ELSEWHERE, 1, round, 60));
        assert_eq!(numbers(&world.run(WHILE, STEP)), [round]);
    }
    let lost = |losses: Vec<(&str, u64)>| losses.iter().map(|(_, count)| *count as usize).sum::<usize>();
    let came = drain(&mut world.tenants[0]).len();
    assert_eq!(
        came + lost(world.losses("b")) + lost(world.losses("uplink")) + lost(world.losses("a")),
        1_200
    );
    assert!(came >= 400, "{came}");
}

#[test]
fn a_program_ticks_while_the_engine_runs() {
    let ticks = "(func (export \"tick\") (param i64) (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1))))";
    let told = each("ingress", "(i32.store8 offset=45 (local.get $data) (i32.load (i32.const 8)))");
    let mut world = world(&(told + ticks));
    world.run(Span::millis(1_000), Span::millis(1));
    arrive(&mut world, &udp(ELSEWHERE, A, 1, 0, 60));
    world.run(WHILE, STEP);
    let seen = numbers(&drain(&mut world.tenants[0]))[0];
    assert!((9..=11).contains(&seen), "{seen}");
}

#[test]
fn what_waits_in_the_pool_of_a_program_is_kept_when_another_one_takes_over_or_none() {
    // A maximum lets frames wait at the station.
    let text = POLICY.replace("a: {port: memory}", "a: {port: memory, ingress: {max: 8Mbps}}");
    let old = policy(&text);
    for next in ["another", "none", "no tenant", "a turn"] {
        let (mut world, checked) = world_of(&text, &each("ingress", AS_TOLD), &stated());
        for told in 0..20 {
            arrive(&mut world, &udp(ELSEWHERE, A, 1, told << 16, 1_000));
        }
        world.run(WHILE, STEP);
        match next {
            "another" => {
                let program = hosted(&checked, &module(&each("ingress", "")), &stated());
                install(&mut world, &checked, Some(program));
            }
            "none" => install(&mut world, &checked, None),
            "no tenant" => {
                let new = policy("uplink: {port: memory, rate: 10Gbps}\ntenants:\n  b: {port: memory}\n");
                let change = world.change(&old, &new);
                world.engine.install(change, world.now);
            }
            _ => {}
        }
        world.run(Span::millis(100), STEP);
        let came = numbers(&drain(&mut world.tenants[0]));
        let lost: u64 = world.losses("uplink").iter().map(|(_, count)| count).sum();
        if next == "no tenant" {
            assert_eq!(came.len() as u64 + lost, 20, "{:?}", world.losses("uplink"));
        } else {
            assert_eq!(came, (0..20).map(|told| told << 16).collect::<Vec<_>>(), "{next}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet from the wire, from `a` or from `b`, with this in its verdict's byte and its port's, and this length.
    Packet { from: u8, verdict: u8, port: u8, len: u16 },
    /// Some turns.
    Turns(u8),
    /// Another program, of these, or none, on a core of its own or not.
    Install(u8, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let packet = (0_u8..3, 0_u8..8, 0_u8..3, 60_u16..1_500)
        .prop_map(|(from, verdict, port, len)| Step::Packet { from, verdict, port, len });
    prop_oneof![8 => packet, 2 => (1_u8..5).prop_map(Step::Turns), 1 => (0_u8..4, any::<bool>()).prop_map(|(which, own)| Step::Install(which, own))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever programs decide, and whenever they are replaced, each packet arrives somewhere or is counted once.
    #[test]
    fn each_packet_arrives_or_is_counted_once(
        steps in proptest::collection::vec(step(), 1..150),
        slow in any::<bool>(),
        own in any::<bool>(),
    ) {
        // Verdict 7 traps, and 6 never ends.
        let told = format!(
            "(if (i32.eq (i32.load8_u offset=45 (local.get $data)) (i32.const 7)) (then (unreachable)))
             (if (i32.eq (i32.load8_u offset=45 (local.get $data)) (i32.const 6)) (then (loop $l (br $l))))
             (if (i32.lt_u (i32.load8_u offset=17 (local.get $at)) (i32.const 128)) (then {AS_TOLD} {PAYLOAD}))"
        );
        let both = each("ingress", &told) + &each("egress", &told);
        let modules = [module(&both), module(&each("ingress", &told)), module(&each("egress", &told))];
        let limits = if slow { "a: {port: memory, max: 20Mbps, descriptors: 8}" } else { "a: {port: memory}" };
        let text = POLICY.replace("a: {port: memory}", limits);
        let on = |own: bool| TenantProgram { core: own.then(own_cores::core), ..stated() };
        let (mut world, checked) = world_of(&text, &both, &TenantProgram { fails: Fails::Open, ..on(own) });
        // Verdict 3 is for a coprocessor.
        with_units(&mut world, [1, 1, 0]);
        let (mut sent, mut came) = (0_u64, 0);
        for (number, step) in (0_u32..).zip(steps) {
            match step {
                Step::Packet { from, verdict, port, len } => {
                    let told = number << 16 | u32::from(port) << 8 | u32::from(verdict);
                    match from {
                        0 => arrive(&mut world, &udp(ELSEWHERE, A, 1, told, len.into())),
                        1 => drop(world.send(0, &udp(A, if port == 2 { B } else { ELSEWHERE }, 1, told, len.into()))),
                        _ => drop(world.send(1, &udp(B, A, 1, told, len.into()))),
                    }
                    sent += 1;
                }
                Step::Turns(count) => came += world.run(STEP.times(count.into()), STEP).len() as u64,
                Step::Install(which, own) => {
                    let program = modules.get(which as usize).map(|module| hosted(&checked, module, &on(own)));
                    install(&mut world, &checked, program);
                }
            }
            came += (0..2).map(|tenant| drain(&mut world.tenants[tenant]).len() as u64).sum::<u64>();
        }
        until(&mut world, |world, out| {
            came += out.len() as u64;
            !world.engine.pending()
        });
        came += world.run(Span::millis(200), STEP).len() as u64;
        came += (0..2).map(|tenant| drain(&mut world.tenants[tenant]).len() as u64).sum::<u64>();
        let lost: u64 = ["a", "b", "uplink"].iter().flat_map(|name| world.losses(name)).map(|(_, count)| count).sum();
        prop_assert!(!world.engine.pending());
        prop_assert_eq!(came + lost, sent, "{:?} {:?} {:?}", world.losses("a"), world.losses("b"), world.losses("uplink"));
    }
}

/// Sends each packet to this operation from byte 46 on, and passes those that come back, with the result in bytes 42 to 45.
pub(crate) fn through_unit(name: &str, operation: u8, argument: u32) -> String {
    let ask = format!(
        "(if (i32.lt_u (i32.load8_u offset=17 (local.get $at)) (i32.const 128))
            (then
                (i32.store8 offset=16 (local.get $at) (i32.const 3))
                (i32.store8 offset=17 (local.get $at) (i32.const {operation}))
                (i32.store16 offset=18 (local.get $at) (i32.const 46))
                (i32.store offset=20 (local.get $at) (i32.const {argument})))
            (else (i32.store offset=42 (local.get $data) (i32.load offset=20 (local.get $at)))))"
    );
    each(name, &ask)
}

/// Turns until something holds, which is told what came out on the wire, as units are threads.
fn until(world: &mut World, mut holds: impl FnMut(&mut World, Vec<Vec<u8>>) -> bool) {
    let begun = std::time::Instant::now();
    let mut out = Vec::new();
    while !holds(world, out) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "not in time");
        out = world.run(STEP, STEP);
    }
}

fn with_units(world: &mut World, weights: [u32; 3]) {
    let units = Units::start(1, true).expect("threads").remove(0);
    world.engine.set_units(Box::new(units), &[("a".to_owned(), weights)]);
}

#[test]
fn a_coprocessor_changes_a_packet_which_comes_back_to_its_program() {
    let mut world = world(&through_unit("ingress", Operation::Deflate.number(), 0));
    with_units(&mut world, [1, 0, 0]);
    let mut frame = udp(ELSEWHERE, A, 1, 0, 1_200);
    frame[46..].fill(7);
    arrive(&mut world, &frame);
    let mut came = Vec::new();
    until(&mut world, |world, _| {
        came.extend(drain(&mut world.tenants[0]));
        !came.is_empty()
    });
    assert_eq!((&came[0][..42], &came[0][42..46]), (&frame[..42], &[0; 4][..]));
    let mut back = came.remove(0);
    assert!(back.len() < 100, "{} bytes", back.len());
    assert_eq!(plimsoll_offload::Worker::default().serve(Operation::Inflate, &mut back, (46, 2_048), &[]), 0);
    assert_eq!(back[46..], frame[46..]);
    let ProgramNow { packets, to_units, .. } = now(&mut world);
    assert_eq!((packets, to_units), (2, 1));
    assert!(!world.engine.pending() && world.losses("a").is_empty());
}

#[test]
fn a_coprocessor_that_a_tenant_may_not_use_or_an_argument_elsewhere_loses_its_packet_only() {
    for (operation, argument) in [(0, 0), (2, 65_536 * 100), (4, 65_536 * 100), (9, 0)] {
        let mut world = world(&through_unit("egress", operation, argument));
        with_units(&mut world, [0, 1, 1]);
        world.send(0, &udp(A, ELSEWHERE, 1, 0, 100));
        assert!(world.run(WHILE, STEP).is_empty());
        assert_eq!(world.losses("a"), [("program_no_unit", 1)], "{operation}");
        assert!(!world.engine.pending());
    }
}

#[test]
fn what_is_at_a_coprocessor_while_its_program_is_taken_out_goes_on() {
    let (mut world, checked) =
        world_of(POLICY, &through_unit("egress", Operation::Match.number(), 8), &stated());
    with_units(&mut world, [0, 0, 1]);
    for told in 0..40 {
        world.send(0, &udp(A, ELSEWHERE, 1, told, 1_000));
    }
    let mut out = world.run(STEP, STEP);
    install(&mut world, &checked, None);
    until(&mut world, |world, left| {
        out.extend(left);
        !world.engine.pending()
    });
    out.extend(world.run(WHILE, STEP));
    assert_eq!(out.len(), 40);
    assert!(world.losses("a").is_empty() && world.losses("uplink").is_empty());
}

#[test]
fn a_tenant_that_is_taken_out_while_its_program_has_packets_leaves_no_work_behind() {
    let text = POLICY.replace("a: {port: memory}", "a: {port: memory, max: 1Mbps, descriptors: 4}");
    let (mut world, checked) = world_of(&text, &(each("ingress", "") + &each("egress", "")), &stated());
    (0..40).for_each(|told| _ = world.send(0, &udp(A, ELSEWHERE, 1, told, 1_000)));
    // One turn leaves packets for the program: it has no descriptor for what it would send.
    world.run(STEP, STEP);
    (0..40).for_each(|told| _ = world.send(1, &udp(B, A, 1, told, 1_000)));
    let new = policy("uplink: {port: memory, rate: 10Gbps}\ntenants:\n  b: {port: memory}\n");
    let change = world.change(&checked, &new);
    world.engine.install(change, world.now);
    // Would not end otherwise.
    world.run(Span::millis(100), STEP);
    assert!(!world.engine.pending());
}

#[test]
fn a_program_that_was_halted_is_not_called_again() {
    let endless = "(loop $for_ever (br $for_ever))";
    let text = POLICY.replace("a: {port: memory}", "a: {port: memory, ingress: {max: 8Mbps}}");
    let (mut world, _) = world_of(&text, &each("ingress", endless), &stated());
    for _ in 0..20 {
        (0..20).for_each(|told| arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 1_000)));
        world.run(Span::millis(5), STEP);
    }
    let ProgramNow { calls, overruns, halted, .. } = now(&mut world);
    assert_eq!((calls, overruns, halted), (4, 4, true));
    assert_eq!(world.engine.take_told().iter().filter(|line| line.contains("HALTED")).count(), 1);
}

#[test]
fn a_program_cannot_write_whose_address_is_whose() {
    // Writes the neighbour's source address into all that lies behind its first packet.
    let forge = "(local.set $x (i64.const 4096))
        (loop $l
            (memory.copy (i32.add (local.get $data) (i32.wrap_i64 (local.get $x))) (i32.const 64) (i32.const 6))
            (local.set $x (i64.add (local.get $x) (i64.const 1)))
            (br_if $l (i64.lt_u (local.get $x) (i64.const 60000))))";
    let data = "(data (i32.const 64) \"\\02\\00\\00\\00\\00\\02\")";
    let text = POLICY.replace("a: {port: memory}", "a: {port: memory, ingress: {max: 8Mbps}}");
    let (mut world, _) = world_of(&text, &(each("ingress", forge) + data), &stated());
    for round in 0..30 {
        (0..20).for_each(|told| arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 1_000)));
        world.run(Span::millis(100), Span::micros(100));
        world.send(1, &udp(B, ELSEWHERE, 1, round, 60));
        world.run(WHILE, STEP);
    }
    assert!(world.losses("b").is_empty() && world.events("b").is_empty(), "{:?}", world.events("b"));
}

#[test]
fn a_state_that_is_too_long_is_not_copied() {
    let state = "(func (export \"state_save\") (result i64) (i64.const 0x200000))
        (func (export \"state_room\") (param i32) (result i32) (i32.const 8))
        (func (export \"state_restore\") (param i32) (result i32) (i32.const 0))";
    let program = TenantProgram { state: StateKept::Keep, ..stated() };
    let fields = each("ingress", "") + state;
    let (mut world, checked) = world_of(POLICY, &fields, &program);
    let next = hosted(&checked, &module(&fields), &program);
    install(&mut world, &checked, Some(next));
    let told = world.engine.take_told().join("\n");
    assert!(told.contains("it has 2097152 bytes, and a state may have 1048576"), "{told}");
}
