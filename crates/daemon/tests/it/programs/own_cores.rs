//! Programs on cores of their own: nothing of what they decide is lost, and the engine does not wait for them.

use std::cell::RefCell;

use plimsoll_daemon::Part;
use plimsoll_offload::Pace;

use super::*;

/// A core that this process may use.
pub(super) fn core() -> u32 {
    let cores = core_affinity::get_core_ids().expect("the kernel tells");
    cores[cores.len() - 1].id as u32
}

fn own() -> TenantProgram {
    TenantProgram { core: Some(core()), ..stated() }
}

fn own_world(fields: &str) -> World {
    world_of(POLICY, fields, &own()).0
}

/// Turns until nothing is with the program any more; answers what came out on the wire, and at tenant `a`.
fn settle(world: &mut World) -> [Vec<u32>; 2] {
    let mut wire = numbers(&world.run(WHILE, STEP));
    let mut tenant = numbers(&drain(&mut world.tenants[0]));
    until(world, |world, out| {
        wire.extend(numbers(&out));
        tenant.extend(numbers(&drain(&mut world.tenants[0])));
        !world.engine.pending()
    });
    wire.extend(numbers(&world.run(WHILE, STEP)));
    tenant.extend(numbers(&drain(&mut world.tenants[0])));
    [wire, tenant]
}

#[test]
fn packets_of_both_directions_pass_a_program_on_its_own_core_in_their_order() {
    let mut world = own_world(&(each("ingress", AS_TOLD) + &each("egress", AS_TOLD)));
    let mut sent = Vec::new();
    for round in 0..20 {
        // Dropped, passed, to another port, malformed.
        for verdict in [1, 0, 0x0702, 9] {
            let told = round << 16 | verdict;
            arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60));
            world.send(0, &udp(A, ELSEWHERE, 1, told, 60));
            sent.extend((verdict == 0).then_some(told));
        }
    }
    let [wire, tenant] = settle(&mut world);
    assert_eq!((&wire, &tenant), (&sent, &sent));
    let lost = [("program_dropped", 40), ("program_malformed", 40), ("program_no_port", 40)];
    assert_eq!(world.losses("a"), lost);
    let seen = now(&mut world);
    assert_eq!((seen.packets, seen.redirected, seen.faults, seen.core), (160, 40, 0, Some(core())));
    assert!(seen.core_time > Span::ZERO, "its thread has worked");
}

#[test]
fn packets_that_a_program_adds_come_from_its_core_too() {
    // Returns each packet twice: the added one is the first one's copy.
    let twice = "(func (export \"ingress\") (param $batch i32) (result i32)
        (local $first i32) (local $added i32)
        (local.set $first (i32.add (local.get $batch) (i32.const 16)))
        (local.set $added (i32.add (local.get $batch) (i32.const 48)))
        (if (i32.lt_u (i32.load offset=12 (local.get $batch)) (i32.const 2)) (then (return (i32.const 1))))
        (memory.copy (i32.load (local.get $added)) (i32.load (local.get $first)) (i32.const 60))
        (i32.store offset=4 (local.get $added) (i32.const 60))
        (i32.store8 offset=16 (local.get $added) (i32.const 0))
        (i32.const 2))";
    let (mut world, _) = world_of(POLICY, twice, &TenantProgram { amplification: 2, ..own() });
    arrive(&mut world, &udp(ELSEWHERE, A, 1, 7, 60));
    assert_eq!(settle(&mut world)[1], [7, 7]);
    assert_eq!(now(&mut world).added, 1);
}

#[test]
fn a_packet_goes_from_its_core_to_a_coprocessor_and_back() {
    let (mut world, _) = world_of(POLICY, &through_unit("ingress", Operation::Match.number(), 8), &own());
    with_units(&mut world, [0, 0, 1]);
    (0..50).for_each(|told| arrive(&mut world, &udp(ELSEWHERE, A, 1, told << 16, 200)));
    assert_eq!(settle(&mut world)[1].len(), 50);
    let ProgramNow { packets, to_units, .. } = now(&mut world);
    assert_eq!((packets, to_units), (100, 50));
}

/// Works for a while on each packet.
fn slow(name: &str) -> String {
    let work = "(local.set $x (i64.const 2000))
        (loop $l
            (local.set $x (i64.sub (local.get $x) (i64.const 1)))
            (br_if $l (i64.ne (local.get $x) (i64.const 0))))";
    each(name, work)
}

#[test]
fn the_engine_goes_on_while_a_core_is_busy_and_what_it_cannot_take_is_its_tenants_loss() {
    let mut world = own_world(&slow("ingress"));
    let (mut sent, mut came, mut beside, mut rounds) = (0, 0, 0, 0);
    while world.losses("a").is_empty() {
        assert!(rounds < 1_000, "its pool is full one time");
        for told in 0..200 {
            arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60));
            sent += 1;
        }
        world.send(1, &udp(B, ELSEWHERE, 1, rounds, 60));
        let out = world.run(STEP, STEP);
        beside += out.len() as u32;
        // Else its port would be full, where this thread gets less of its core than the program of its own.
        came += drain(&mut world.tenants[0]).len() as u64;
        rounds += 1;
    }
    assert!(beside + 1 >= rounds, "the neighbour's packet leaves in each turn: {beside} of {rounds}");
    came += settle(&mut world)[1].len() as u64;
    let lost = world.losses("a");
    let [("program_busy", busy)] = lost[..] else { panic!("{lost:?}") };
    let at_uplink: u64 = world.losses("uplink").iter().map(|(_, count)| count).sum();
    assert_eq!(came + busy + at_uplink, sent);
    assert!(world.losses("b").is_empty());
}

/// The packets that its tenant gets in each turn that programs have in one turn of the engine.
fn by_program_turns(world: &mut World) -> Vec<usize> {
    let (tenant, came) = (RefCell::new(&mut world.tenants[0]), RefCell::new(Vec::new()));
    let now = world.now + STEP;
    world.engine.turn_by(&|part| {
        if part == Part::Deliver {
            came.borrow_mut().push(drain(&mut tenant.borrow_mut()).len());
        }
        now
    });
    world.now = now;
    came.into_inner()
}

#[test]
fn one_batch_of_a_core_is_taken_back_in_a_turn() {
    let mut world = own_world(&each("ingress", ""));
    for _ in 0..200 {
        (0..4 * Pace::BATCH as u32).for_each(|told| arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60)));
        world.run(STEP, STEP);
        drain(&mut world.tenants[0]);
        // By now the core is done with all batches that it was given.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let came = by_program_turns(&mut world);
        assert!(came.iter().all(|&packets| packets <= Pace::BATCH), "{came:?}");
        if came.iter().sum::<usize>() > Pace::BATCH {
            return;
        }
        settle(&mut world);
    }
    panic!("more than one batch was never done");
}

#[test]
fn a_program_on_its_own_core_that_never_ends_is_halted() {
    let endless =
        "(if (i32.eq (i32.load8_u offset=45 (local.get $data)) (i32.const 6)) (then (loop $l (br $l))))";
    for (fails, passes) in [(Fails::Closed, 0), (Fails::Open, 3)] {
        let (mut world, _) = world_of(POLICY, &each("ingress", endless), &TenantProgram { fails, ..own() });
        for overrun in 1..=4 {
            arrive(&mut world, &udp(ELSEWHERE, A, 1, 6, 60));
            settle(&mut world);
            assert_eq!(now(&mut world).overruns, overrun);
        }
        assert!(now(&mut world).halted);
        assert_eq!(world.engine.take_told().iter().filter(|line| line.contains("HALTED")).count(), 1);
        (0..3).for_each(|told| arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60)));
        assert_eq!(settle(&mut world)[1].len(), passes);
        let over = ("program_over_time", 4);
        let halted = ("program_halted", 3);
        // What passes no more has been refused before the program: for the port that it came from.
        assert_eq!(world.losses("a"), [over]);
        assert_eq!(world.losses("uplink"), if passes == 0 { vec![halted] } else { Vec::new() });
    }
}

#[test]
fn a_reload_moves_a_program_to_a_core_and_back_with_its_state_and_all_packets() {
    let keep = |core| TenantProgram { state: StateKept::Keep, core, ..stated() };
    let (here, there) = (keep(None), keep(Some(core())));
    for (before, after) in [(&here, &there), (&there, &here), (&there, &there)] {
        let (mut world, checked) = world_of(POLICY, &counts(1, "(i32.const 0)"), before);
        (0..3).for_each(|_| arrive(&mut world, &udp(ELSEWHERE, A, 1, 0, 60)));
        assert_eq!(settle(&mut world)[1], [1, 2, 3]);
        // Some of these are with the first program, or wait for it, when the second one comes.
        (0..100).for_each(|_| arrive(&mut world, &udp(ELSEWHERE, A, 1, 0, 60)));
        let mut came = numbers(&{
            world.run(STEP, STEP);
            drain(&mut world.tenants[0])
        });
        let next = hosted(&checked, &module(&counts(1, "(i32.const 0)")), after);
        install(&mut world, &checked, Some(next));
        (0..20).for_each(|_| arrive(&mut world, &udp(ELSEWHERE, A, 1, 0, 60)));
        came.extend(&settle(&mut world)[1]);
        until(&mut world, |world, _| now(world).kept_state.is_some());
        assert_eq!(came, (4..=123).collect::<Vec<_>>(), "the second one counts on, and none is out of order");
        let seen = now(&mut world);
        assert_eq!((seen.kept_state, seen.core), (Some(true), after.core));
        assert!(world.losses("a").is_empty() && world.losses("uplink").is_empty());
    }
}

#[test]
fn a_state_that_is_not_taken_over_on_a_core_is_told() {
    let keep = TenantProgram { state: StateKept::Keep, ..own() };
    let (mut world, checked) = world_of(POLICY, &counts(1, "(i32.const 0)"), &keep);
    let next = hosted(&checked, &module(&counts(1, "(i32.const 5)")), &keep);
    install(&mut world, &checked, Some(next));
    until(&mut world, |world, _| now(world).kept_state == Some(false));
    let told = world.engine.take_told().join("\n");
    assert!(told.contains("`state_restore` returned 5"), "{told}");
}

#[test]
fn what_a_core_has_while_its_program_is_taken_out_goes_on_in_its_order() {
    let (mut world, checked) = world_of(POLICY, &(slow("ingress") + &slow("egress")), &own());
    for told in 0..100 {
        arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60));
        world.send(0, &udp(A, ELSEWHERE, 1, told, 60));
    }
    let mut out = numbers(&world.run(STEP, STEP));
    let mut came = numbers(&drain(&mut world.tenants[0]));
    install(&mut world, &checked, None);
    let [wire, tenant] = settle(&mut world);
    out.extend(wire);
    came.extend(tenant);
    assert_eq!((out, came), ((0..100).collect(), (0..100).collect()));
    assert!(world.losses("a").is_empty());
    let snapshot = world.engine.snapshot(world.now);
    assert!(snapshot.lanes.iter().all(|lane| lane.program.is_none()), "it is gone");
}

/// The core may be done with all of it when its tenant is taken out: then once more.
#[test]
fn what_a_core_has_of_a_tenant_that_is_taken_out_is_counted() {
    assert!((0..20).any(|_| a_core_is_stopped_with_packets()), "in none of 20 tries");
}

/// Takes a tenant out, checks that all of its packets are counted, and says whether its core still had some.
fn a_core_is_stopped_with_packets() -> bool {
    let text = POLICY.replace("a: {port: memory}", "a: {port: memory, max: 1Mbps}");
    let (mut world, checked) = world_of(&text, &slow("egress"), &own());
    (0..300).for_each(|told| _ = world.send(0, &udp(A, ELSEWHERE, 1, told, 1_000)));
    // The rate lets some of the first batch wait in the engine.
    let mut out = 0;
    until(&mut world, |_, left| {
        out += left.len();
        out > 0
    });
    let new = policy("uplink: {port: memory, rate: 10Gbps}\ntenants:\n  b: {port: memory}\n");
    let change = world.change(&checked, &new);
    world.engine.install(change, world.now);
    let snapshot = world.engine.snapshot(world.now);
    let lane = snapshot.lanes.iter().find(|lane| lane.name == "a").expect("frames of it are in the engine");
    let (read, lost) = (lane.counters.rx_packets as usize - 1, lane.tally.losses().collect::<Vec<_>>());
    out += world.run(Span::secs(3), Span::millis(1)).len();
    let counted: u64 = lost.iter().map(|(_, count)| count).sum();
    assert_eq!(counted as usize, read - out, "{lost:?} of {read}, {out} left");
    assert!(!world.engine.pending());
    lost.iter().any(|(why, _)| *why == "stopped")
}

#[test]
fn a_program_on_its_own_core_ticks() {
    let ticks = "(func (export \"tick\") (param i64) (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1))))";
    let told = each("ingress", "(i32.store8 offset=45 (local.get $data) (i32.load (i32.const 8)))");
    let mut world = own_world(&(told + ticks));
    let begun = world.now;
    for _ in 0..10 {
        let before = now(&mut world).core_time;
        world.run(Span::millis(100), Span::millis(1));
        // The time of the test goes on meanwhile, faster than its core's.
        until(&mut world, |world, _| now(world).core_time > before);
    }
    arrive(&mut world, &udp(ELSEWHERE, A, 1, 0, 60));
    let seen = settle(&mut world)[1][0];
    let most = world.now.since(begun).as_u64() / Span::millis(100).as_u64() + 1;
    assert!(seen >= 9 && u64::from(seen) <= most, "{seen} of {most}");
}

#[test]
fn at_a_stop_what_a_core_has_is_counted() {
    let mut world = own_world(&slow("ingress"));
    (0..200).for_each(|told| arrive(&mut world, &udp(ELSEWHERE, A, 1, told, 60)));
    world.run(STEP.times(2), STEP);
    let came = drain(&mut world.tenants[0]).len() as u64;
    let stopped = world.engine.abandon(world.now);
    let lost: u64 = ["a", "uplink"].iter().flat_map(|name| world.losses(name)).map(|(_, count)| count).sum();
    assert_eq!(came + lost, 200, "{stopped} at the stop");
}

#[test]
fn a_core_that_this_process_may_not_use_is_refused() {
    let checked = policy(POLICY);
    let runtime = Runtime::new(Metering::Fuel).expect("this machine");
    let limits = program_limits(&checked, "a", &stated());
    let compiled = runtime.load(&module(&each("ingress", "")), &limits).expect("a module");
    let program = Program::new(&compiled).expect("it starts");
    let error = Hosted::on_core(9_999, program, ("a", &stated()), None).expect_err("there is none");
    assert_eq!(error.to_string(), "this process may not use core 9999");
}
