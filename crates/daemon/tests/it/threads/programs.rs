//! Programs with several engine threads: each runs on the thread that serves its tenant's port.

use std::sync::OnceLock;

use plimsoll_daemon::{Hosted, ProgramNow, Units, program_limits};
use plimsoll_offload::{Metering, Module, Operation, Program, Runtime};

use super::*;
use crate::programs::{each, hosted_of, module, stated, through_unit};

impl Host {
    /// Gives programs that pass every packet to some of the tenants `t0`, `t1` and so on.
    pub(super) fn start_programs(&mut self, checked: &Checked, with: &[bool]) {
        for (number, _) in with.iter().enumerate().filter(|(_, with)| **with) {
            let name = format!("t{number}");
            let program = Program::new(passes(checked)).expect("it starts");
            let thread = number % self.engines.len();
            self.engines[thread]
                .start_program(&name, Box::new(Hosted::new(program, (&name, &stated()), None)));
        }
    }

    /// What each thread says of a tenant's program.
    fn programs(&mut self, name: &str) -> Vec<Option<ProgramNow>> {
        let now = self.now;
        let of = |engine: &mut Dataplane| {
            let snapshot = engine.snapshot(now);
            snapshot.lanes.iter().find(|lane| lane.name == name).and_then(|lane| lane.program)
        };
        self.engines.iter_mut().map(of).collect()
    }
}

/// A program that passes every packet; compiled once, as a property starts many.
fn passes(checked: &Checked) -> &'static Module {
    static PASSES: OnceLock<Module> = OnceLock::new();
    PASSES.get_or_init(|| {
        let runtime = Runtime::new(Metering::Fuel).expect("this machine");
        let limits = program_limits(checked, "t0", &stated());
        runtime.load(&module(&(each("ingress", "") + &each("egress", ""))), &limits).expect("a module")
    })
}

/// Writes 5 into the last byte of the payload's number.
const MARK: &str = "(i32.store8 offset=45 (local.get $data) (i32.const 5))";

#[test]
fn a_program_sees_what_comes_for_its_tenant_on_any_thread_and_runs_on_its_tenants_own() {
    let mut host = Host::new(TWO, 2);
    for tenant in 0..4 {
        host.send(tenant, &udp(tenant as u8 + 1, 99, 1, 0, 100));
    }
    host.turns(30);
    host.wires.iter_mut().for_each(|wire| drop(drain(wire)));
    // The tenant b is served by the second thread.
    let marks = module(&(each("ingress", MARK) + &each("egress", MARK)));
    host.engines[1].start_program("b", hosted_of(&policy(TWO), "b", &marks, &stated()));
    let before = served(&mut host.engines[1], "b");
    for n in 0..50 {
        // From the other thread's tenant, from its own thread's, and by both queues of the uplink.
        host.send(0, &udp(1, 2, 0, n << 8, 100));
        host.send(3, &udp(4, 2, 3, n << 8, 100));
        for queue in 0..2 {
            host.wires[queue].send(&udp(99, 2, 90 + queue as u16, n << 8, 100), None).expect("sent");
        }
        host.send(1, &udp(2, 99, 1, n << 8, 100));
        host.send(1, &udp(2, 1, 2, n << 8, 100));
        host.turn();
    }
    host.turns(100);
    let marked: Vec<u32> = (0..50).map(|n| n << 8 | 5).collect();
    let of = |frames: &[Vec<u8>], flow| {
        let flow = frames.iter().map(|frame| number(frame)).filter(|&(port, _)| port == flow);
        flow.map(|(_, number)| number).collect::<Vec<_>>()
    };
    let came = drain(&mut host.tenants[1]);
    for flow in [0, 3, 90, 91] {
        assert_eq!(of(&came, flow), marked, "{flow}");
    }
    assert_eq!(of(&drain(&mut host.tenants[0]), 2), marked);
    assert_eq!(of(&drain(&mut host.wires[1]), 1), marked);
    let programs = host.programs("b");
    assert!(programs[0].is_none() && programs[1].is_some_and(|seen| seen.packets == 300), "{programs:?}");
    // All that came from elsewhere had its turns on the tenant's own thread, which are what it is charged for.
    assert_eq!((served(&mut host.engines[0], "b"), served(&mut host.engines[1], "b") - before), (0, 150));
    for name in ["a", "b", "c", "d", "uplink"] {
        assert_eq!(host.losses(name), []);
    }
}

/// Packets for a tenant that have had their turn on a thread.
fn served(engine: &mut Dataplane, name: &str) -> u64 {
    let snapshot = engine.snapshot(Nanos::ZERO);
    snapshot.lanes.iter().find(|lane| lane.name == name).expect("it is there").ingress.served
}

#[test]
fn a_reload_gives_a_tenant_of_any_thread_a_program_with_which_it_stays() {
    let text = |program: &str| {
        format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, engine: {{threads: 2}}, tenants: {{a: {{port: memory}}, b: {{port: memory{program}}}}}}}"
        )
    };
    let before = text("");
    live(&before, async |control, folder, tenants, _| {
        std::fs::write(folder.join("marks.wasm"), module(&each("ingress", MARK))).expect("written");
        for (number, tenant) in (1..).zip(tenants.iter_mut()) {
            tenant.send(&udp(number, 99, 1, 0, 100), None).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(20));
        let mut number_of = 0;
        for (program, mark, may_move) in
            [("", 0, true), (", program: {module: marks.wasm}", 5, false), ("", 0, true)]
        {
            std::fs::write(control.file(), text(program)).expect("written");
            control.reload(&Asker::default(), false).await.expect("reloaded");
            let sent: Vec<u32> = (0..20).map(|n| (number_of + n) << 8).collect();
            number_of += 20;
            for &n in &sent {
                tenants[0].send(&udp(1, 2, 7, n, 100), None).expect("sent");
            }
            let (mut came, begun) = (Vec::new(), Instant::now());
            while came.len() < 20 && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
                came.extend(drain(&mut tenants[1]).iter().map(|frame| number(frame).1));
            }
            assert_eq!(came, sent.iter().map(|n| n | mark).collect::<Vec<_>>());
            let snapshot = control.handle().ask(Command::Snapshot).await.expect("they run");
            let stats = Stats::from(&snapshot);
            assert_eq!(stats.tenants["b"].program.is_some_and(|seen| seen.packets == 20), !may_move);
            // There and back.
            let thread = stats.tenants["b"].thread.expect("one serves it") as usize;
            for to in [1 - thread, thread] {
                let moved = control.migrate("b", to).await.expect("they run");
                assert_eq!(moved, may_move, "to {to}");
            }
        }
    });
}

/// Turns until a packet has come, as coprocessors are threads.
fn settle(host: &mut Host) {
    let begun = Instant::now();
    host.turn();
    while host.engines.iter().any(|engine| engine.pending()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "not in time");
        host.turn();
    }
    host.turns(10);
}

#[test]
fn programs_of_several_threads_have_the_same_coprocessors_and_get_their_own_packets_back() {
    let mut host = Host::new(TWO, 2);
    let asks = module(&through_unit("ingress", Operation::Match.number(), 8));
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        host.engines[number % 2].start_program(name, hosted_of(&policy(TWO), name, &asks, &stated()));
    }
    let weights = [("a".to_owned(), [0, 0, 1]), ("b".to_owned(), [0, 0, 3]), ("c".to_owned(), [1, 0, 0])];
    for (engine, units) in host.engines.iter_mut().zip(Units::start(2, true).expect("threads")) {
        engine.set_units(Box::new(units), &weights);
    }
    for tenant in 0..3 {
        host.send(tenant, &udp(tenant as u8 + 1, 99, 1, 0, 100));
    }
    host.turns(30);
    for n in 0..40 {
        for tenant in 1..4 {
            host.wires[0].send(&udp(99, tenant, tenant.into(), n << 8, 200), None).expect("sent");
        }
    }
    settle(&mut host);
    for tenant in 0..2 {
        let came = drain(&mut host.tenants[tenant]);
        assert_eq!(came.len(), 40, "{tenant}");
        assert!(came.iter().all(|frame| number(frame).0 == tenant as u16 + 1), "each has its own");
    }
    assert_eq!(host.losses("c"), [("program_no_unit", 40)], "it may use another one only");
    for (name, thread) in [("a", 0), ("b", 1)] {
        assert_eq!(host.losses(name), []);
        let on_thread = host.programs(name)[thread].expect("it runs there");
        assert_eq!((on_thread.packets, on_thread.to_units), (80, 40));
    }
}

#[test]
fn a_reload_of_several_threads_brings_coprocessors() {
    let text = |units: &str| {
        format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, engine: {{threads: 2}}, tenants: {{a: {{port: memory}}, b: {{port: memory, program: {{module: asks.wasm{units}}}}}}}}}"
        )
    };
    let before = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 2}, tenants: {a: {port: memory}, b: {port: memory}}}";
    live(before, async |control, folder, tenants, _| {
        let asks = module(&through_unit("ingress", Operation::Match.number(), 8));
        std::fs::write(folder.join("asks.wasm"), asks).expect("written");
        for (number, tenant) in (1..).zip(tenants.iter_mut()) {
            tenant.send(&udp(number, 99, 1, 0, 100), None).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(20));
        for (units, comes) in [("", 0), (", units: {regex: 1}", 20), (", units: {aes: 1}", 0)] {
            std::fs::write(control.file(), text(units)).expect("written");
            control.reload(&Asker::default(), false).await.expect("reloaded");
            for n in 0..20 {
                tenants[0].send(&udp(1, 2, 7, n << 8, 200), None).expect("sent");
            }
            let (mut came, begun, wait) = (0, Instant::now(), if comes > 0 { 20_000 } else { 100 });
            while (came < comes || comes == 0) && begun.elapsed() < Duration::from_millis(wait) {
                std::thread::sleep(Duration::from_millis(1));
                came += drain(&mut tenants[1]).len();
            }
            assert_eq!(came, comes, "{units}");
        }
        let stats = Stats::from(&control.handle().ask(Command::Snapshot).await.expect("they run"));
        assert_eq!(stats.tenants["b"].drops["program_no_unit"], 40);
    });
}
