//! Several of the daemon's engines under one policy, as its threads run them, in virtual time: frames and addresses between them,
//! and the link.
//!
//! Not here: threads and clocks (the live tests), and what leases are (`leases`).

mod programs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_daemon::{
    Asker, Change, Command, Control, Dataplane, DepartureLog, Habits, LeaseRoom, Leasing, Migration, Stats,
    several, spawn_all,
};
use plimsoll_policy::Checked;
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port, Sending};
use plimsoll_units::{Nanos, Span};

use proptest::prelude::*;

use crate::support::{drain, number, policy, udp};

const STEP: Span = Span::micros(10);

/// Engines, the far ends of their queues of the uplink, and of the tenants' ports.
struct Host {
    engines: Vec<Dataplane>,
    wires: Vec<MemoryPort>,
    tenants: Vec<MemoryPort>,
    now: Nanos,
}

impl Host {
    fn new(text: &str, threads: usize) -> Self {
        Self::between(&policy(text), threads)
    }

    fn between(checked: &Checked, threads: usize) -> Self {
        let memory = |name: &str| {
            let config = MemoryConfig { slots: 512, frame: FRAME_ROOM, ..MemoryConfig::default() };
            MemoryPort::pair(name, config).expect("memory")
        };
        let (mut uplinks, mut wires, mut ports, mut tenants) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..threads {
            let (uplink, wire) = memory("uplink");
            uplinks.push(Port::Memory(uplink));
            wires.push(wire);
        }
        for tenant in &checked.config.tenants {
            let (port, end) = memory(&tenant.name);
            ports.push(Some(Port::Memory(port)));
            tenants.push(end);
        }
        let logs: Vec<_> = (0..threads).map(|_| Arc::new(DepartureLog::default())).collect();
        let engines = several(checked, uplinks, ports, &logs).expect("a policy for threads");
        Self { engines, wires, tenants, now: Nanos::ZERO }
    }

    fn send(&mut self, tenant: usize, frame: &[u8]) -> Sending {
        self.tenants[tenant].send(frame, None).expect("the engine's end is there")
    }

    fn turn(&mut self) {
        self.now += STEP;
        for engine in &mut self.engines {
            engine.turn(self.now);
        }
    }

    fn turns(&mut self, turns: usize) {
        (0..turns).for_each(|_| self.turn());
    }

    /// Moves a tenant to a thread, where nothing keeps its frames from leaving.
    fn migrate(&mut self, tenant: usize, to: usize) {
        let name = format!("t{tenant}");
        let served = |engine: &mut Dataplane| engine.loads().iter().any(|(served, _)| *served == name);
        let from = self.engines.iter_mut().position(served).expect("one serves it");
        loop {
            match self.engines[from].halt(&name) {
                Some(true) => break,
                Some(false) => self.turn(),
                // With its program it stays.
                None => return self.engines[from].resume(&name),
            }
        }
        let (migration, now) = (Migration::new(name, to, self.engines.len()), self.now);
        std::thread::scope(|scope| {
            for engine in &mut self.engines {
                scope.spawn(|| migration.take_part(engine, now));
            }
        });
    }

    /// Losses of a tenant, or of the uplink, on all threads.
    fn losses(&mut self, name: &str) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        for engine in &mut self.engines {
            let snapshot = engine.snapshot(self.now);
            let ports = snapshot.lanes.iter().chain([&snapshot.uplink]);
            all.extend(
                ports
                    .filter(|port| port.name == name)
                    .flat_map(|port| port.tally.losses().collect::<Vec<_>>()),
            );
        }
        all
    }
}

const TWO: &str = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 2},
    tenants: {a: {port: memory}, b: {port: memory}, c: {port: memory}, d: {port: memory}}}";

#[test]
fn tenants_of_two_threads_reach_each_other_both_ways_in_order() {
    let mut host = Host::new(TWO, 2);
    // Tenants 0 and 2 are on the first thread, and 1 and 3 on the second. Each says who it is.
    for tenant in 0..4 {
        host.send(tenant, &udp(tenant as u8 + 1, 99, 1, 0, 100));
    }
    host.turns(30);
    host.wires.iter_mut().for_each(|wire| assert_eq!(drain(wire).len(), 2));
    for n in 0..200 {
        assert_eq!(host.send(0, &udp(1, 2, 7, n, 300)), Sending::Sent);
        assert_eq!(host.send(1, &udp(2, 1, 8, n, 300)), Sending::Sent);
        assert_eq!(host.send(2, &udp(3, 1, 9, n, 300)), Sending::Sent);
        host.turn();
    }
    host.turns(100);
    let order = |frames: &[Vec<u8>], flow| {
        let of_flow = frames.iter().map(|frame| number(frame)).filter(|&(port, _)| port == flow);
        of_flow.map(|(_, number)| number).collect::<Vec<_>>()
    };
    let all: Vec<u32> = (0..200).collect();
    assert_eq!(order(&drain(&mut host.tenants[1]), 7), all);
    let first = drain(&mut host.tenants[0]);
    assert_eq!((order(&first, 8), order(&first, 9)), (all.clone(), all));
    assert!(host.wires.iter_mut().all(|wire| drain(wire).is_empty()), "nothing of it left the host");
    for name in ["a", "b", "c", "uplink"] {
        assert_eq!(host.losses(name), []);
    }
}

#[test]
fn a_frame_from_the_uplink_reaches_a_tenant_of_another_thread() {
    let mut host = Host::new(TWO, 2);
    host.send(1, &udp(2, 99, 1, 0, 100));
    host.turns(3);
    // Its receiver is on the second thread, and it comes by the first one's queue.
    assert_eq!(host.wires[0].send(&udp(99, 2, 5, 42, 200), None), Ok(Sending::Sent));
    host.turns(3);
    let came = drain(&mut host.tenants[1]);
    assert_eq!(came.iter().map(|frame| number(frame)).collect::<Vec<_>>(), [(5, 42)]);
    // The sender is behind the uplink: no tenant can send in its name, on either thread.
    host.turns(2);
    for tenant in 0..2 {
        host.send(tenant, &udp(99, 2, 5, 0, 200));
    }
    host.turns(3);
    assert_eq!(host.losses("a"), [("foreign_source", 1)]);
    assert_eq!(host.losses("b"), [("foreign_source", 1)]);
}

#[test]
fn a_broadcast_reaches_all_tenants_of_all_threads_and_the_wire_once() {
    let mut host = Host::new(TWO, 2);
    let mut frame = udp(1, 0, 5, 7, 100);
    frame[..6].fill(0xff);
    host.send(0, &frame);
    host.turns(4);
    let copies: Vec<usize> = host.tenants.iter_mut().map(|tenant| drain(tenant).len()).collect();
    assert_eq!(copies, [0, 1, 1, 1], "all but its sender");
    let left: usize = host.wires.iter_mut().map(|wire| drain(wire).len()).sum();
    assert_eq!(left, 1);
    // One from outside, by the second thread's queue.
    frame[11] = 99;
    assert_eq!(host.wires[1].send(&frame, None), Ok(Sending::Sent));
    host.turns(4);
    let copies: Vec<usize> = host.tenants.iter_mut().map(|tenant| drain(tenant).len()).collect();
    assert_eq!(copies, [1, 1, 1, 1]);
}

#[test]
fn no_tenant_takes_an_address_of_another_threads_tenant() {
    let mut host = Host::new(TWO, 2);
    host.send(0, &udp(1, 99, 1, 0, 100));
    host.turns(2);
    // Tenant 1, on the other thread, sends in the name of tenant 0, to tenant 2 and to the wire.
    host.send(1, &udp(1, 3, 1, 0, 100));
    host.send(1, &udp(1, 99, 1, 0, 100));
    host.turns(3);
    assert_eq!(host.losses("b"), [("foreign_source", 2)]);
    assert!(drain(&mut host.tenants[2]).is_empty());
    // What crosses teaches the other thread nothing about the uplink: the sender's address stays the tenant's.
    host.send(2, &udp(3, 99, 1, 0, 100));
    host.send(1, &udp(2, 99, 1, 0, 100));
    host.turns(2);
    for _ in 0..3 {
        host.send(1, &udp(2, 3, 1, 0, 100));
        host.turns(2);
        host.send(2, &udp(3, 2, 1, 0, 100));
        host.turns(2);
    }
    assert_eq!((drain(&mut host.tenants[1]).len(), drain(&mut host.tenants[2]).len()), (3, 3));
}

#[test]
fn a_frame_that_finds_no_room_on_its_way_to_another_thread_is_counted_for_its_sender() {
    let mut host = Host::new(
        "{uplink: {port: memory, rate: 100Gbps}, engine: {threads: 2}, tenants: {a: {port: memory}, b: {port: memory}}}",
        2,
    );
    for tenant in 0..2 {
        host.send(tenant, &udp(tenant as u8 + 1, 99, 1, 0, 100));
    }
    host.turns(3);
    drain(&mut host.tenants[1]);
    // The second thread has no turn, and the first one goes on.
    let mut sent = 0;
    for _ in 0..200 {
        for n in 0..32 {
            sent += u64::from(host.send(0, &udp(1, 2, 7, n, 200)) == Sending::Sent);
        }
        host.now += STEP;
        host.engines[0].turn(host.now);
    }
    // Then it has turns until all has come that waited.
    let mut came = 0;
    for _ in 0..100 {
        host.turn();
        came += drain(&mut host.tenants[1]).len() as u64;
    }
    let lost: u64 = host.losses("a").iter().map(|(_, count)| count).sum();
    assert!(
        host.losses("a").iter().any(|&(why, count)| why == "thread_full" && count > 1_000),
        "{:?}",
        host.losses("a")
    );
    assert_eq!(came + lost, sent, "{:?}", host.losses("a"));
}

/// Frames of each tenant that left in this time; each one sends as much as its port takes.
fn shares(host: &mut Host, busy: &[usize], span: Span) -> Vec<f64> {
    let mut left = vec![0_u64; host.tenants.len()];
    let end = host.now + span;
    while host.now < end {
        for &tenant in busy {
            let frame = udp(tenant as u8 + 1, 99, 1, 0, 1_000);
            while host.send(tenant, &frame) == Sending::Sent {}
        }
        host.turn();
        for wire in &mut host.wires {
            for frame in drain(wire) {
                left[usize::from(frame[11]) - 1] += 1;
            }
        }
    }
    let per_second = 8_000.0 / span.as_secs_f64() / 1e6;
    left.iter().map(|&frames| frames as f64 * per_second).collect()
}

fn assert_close(got: &[f64], wanted: &[f64], within: f64) {
    for (tenant, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            (got - wanted).abs() <= within * wanted.max(20.0),
            "tenant {tenant}: {got:.1} Mb/s, should {wanted}"
        );
    }
}

#[test]
fn threads_share_the_link_by_the_policy_and_tenants_that_stop_leave_it_to_the_others() {
    let text = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 2}, tenants: {
        a: {port: memory, weight: 3}, b: {port: memory}, c: {port: memory, max: 100Mbps}, d: {port: memory}}}";
    let mut host = Host::new(text, 2);
    shares(&mut host, &[0, 1, 2, 3], Span::millis(10));
    // 100 for c, and 900 for the others, 3 to 1 to 1.
    assert_close(&shares(&mut host, &[0, 1, 2, 3], Span::millis(30)), &[540.0, 180.0, 100.0, 180.0], 0.05);
    shares(&mut host, &[0, 1], Span::millis(40));
    assert_close(&shares(&mut host, &[0, 1], Span::millis(30)), &[750.0, 250.0, 0.0, 0.0], 0.05);
    shares(&mut host, &[1, 3], Span::millis(40));
    assert_close(&shares(&mut host, &[1, 3], Span::millis(30)), &[0.0, 500.0, 0.0, 500.0], 0.05);
    let now = host.engines[0].leases().expect("leases");
    assert!(now.epochs > 1_000 && now.unleased == 0, "{now:?}");
    assert!(now.exactness.shares <= 20, "{now:?}");
}

#[test]
fn a_class_and_a_limit_hold_over_members_on_several_threads() {
    let text = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 4}, tenants: {
        a: {port: memory}, b: {port: memory}, c: {port: memory}, d: {port: memory}},
        policy: {root: {wfq: {web: 1, a: 3, b: 3, c: 3, d: 3}}, web: {match: {src_port: 1}}},
        limits: {slow: {match: {tenant: [a, b, c]}, rate: 120Mbps}}}";
    let mut host = Host::new(text, 4);
    shares(&mut host, &[0, 1, 2, 3], Span::millis(20));
    // All are of class web, on four threads; three of them pass the limit.
    let got = shares(&mut host, &[0, 1, 2, 3], Span::millis(30));
    let limited: f64 = got[..3].iter().sum();
    assert!((limited - 120.0).abs() < 6.0, "{got:?}");
    assert!((got[3] - 880.0).abs() < 30.0, "{got:?}");
}

#[test]
fn a_thread_without_traffic_reports_once_and_then_needs_no_turn() {
    let mut host = Host::new(TWO, 2);
    for tenant in 0..4 {
        host.send(tenant, &udp(tenant as u8 + 1, 99, 1, 0, 100));
    }
    host.turns(100);
    let now = host.now + STEP;
    for engine in &mut host.engines {
        let turn = engine.turn(now);
        let soon = [turn.next, turn.lazily].into_iter().flatten().min();
        assert!(soon.is_none_or(|at| at.since(now) > Span::millis(5)), "{turn:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whoever sends to whom, on one thread or several, whichever tenants move between them, and whichever have programs: each tenant
    /// gets what it would get from one, each flow in its order.
    #[test]
    fn several_threads_deliver_what_one_does(
        threads in 2_usize..5,
        sends in proptest::collection::vec((0_u8..6, 0_u8..9, any::<bool>()), 1..150),
        moves in proptest::collection::vec((0_u32..150, 0_usize..6, 0_usize..4), 0..12),
        with_programs in proptest::collection::vec(any::<bool>(), 6),
    ) {
        let text = |threads| {
            let tenants: Vec<String> = (0..6).map(|n| format!("t{n}: {{port: memory}}")).collect();
            format!("{{uplink: {{port: memory, rate: 10Gbps}}, engine: {{threads: {threads}}}, tenants: {{{}}}}}", tenants.join(", "))
        };
        let run = |threads: usize| {
            let mut host = Host::new(&text(threads), threads);
            host.start_programs(&policy(&text(threads)), &with_programs);
            for tenant in 0..6_u8 {
                host.send(tenant.into(), &udp(tenant + 1, 99, 1, 0, 100));
            }
            // One behind the uplink, too.
            host.wires[0].send(&udp(88, 1, 1, 0, 100), None).expect("the engine's end is there");
            host.turns(60);
            host.tenants.iter_mut().chain(&mut host.wires).for_each(|end| drop(drain(end)));
            for (n, &(from, to, outside)) in (0_u32..).zip(&sends) {
                let mut frame = udp(if outside { 88 } else { from + 1 }, to + 1, u16::from(from), n, 120);
                if to == 7 {
                    frame[..6].fill(0xff);
                } else if to > 5 {
                    frame[5] = 88; // the host behind the uplink
                }
                if outside {
                    let queue = usize::from(from) % host.wires.len();
                    host.wires[queue].send(&frame, None).expect("the engine's end is there");
                } else {
                    host.send(from.into(), &frame);
                }
                for &(_, tenant, to) in moves.iter().filter(|&&(at, ..)| threads > 1 && at == n) {
                    host.migrate(tenant, to % threads);
                }
                if n % 5 == 0 {
                    host.turn();
                }
            }
            host.turns(120);
            // By receiver, kind of destination, sender and flow: the numbers of frames, in the order in which they came.
            let mut came = BTreeMap::<(usize, [u8; 2], u16), Vec<u32>>::new();
            for (receiver, end) in host.tenants.iter_mut().enumerate() {
                for frame in drain(end) {
                    let (flow, n) = number(&frame);
                    came.entry((receiver, [frame[0], frame[11]], flow)).or_default().push(n);
                }
            }
            let mut out: Vec<u32> = host.wires.iter_mut().flat_map(drain).map(|frame| number(&frame).1).collect();
            out.sort_unstable();
            (came, out)
        };
        prop_assert_eq!(run(threads), run(1));
    }
}

/// Runs the engines of a policy on threads of their own.
fn live(
    text: &str,
    act: impl AsyncFnOnce(&Arc<Control>, &std::path::Path, &mut Vec<MemoryPort>, &mut Vec<MemoryPort>),
) {
    let checked = policy(text);
    let Host { engines, mut wires, mut tenants, .. } =
        Host::between(&checked, checked.config.engine.threads as usize);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plimsoll.yaml");
    let (handle, threads) = spawn_all(engines, &Habits::default(), |_| {}).expect("threads");
    let control = Arc::new(Control::new(path, checked, handle));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(act(&control, folder.path(), &mut tenants, &mut wires));
    control.handle().send(Command::Stop(Span::secs(2))).expect("they run");
    threads.into_iter().for_each(|thread| thread.join().expect("it ended in peace"));
}

#[test]
fn a_reload_on_all_threads_loses_nothing_and_what_crosses_keeps_its_order() {
    let before = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 2}, tenants: {
        a: {port: memory, weight: 3}, b: {port: memory}, c: {port: memory}}}";
    live(before, async |control, folder, tenants, wires| {
        for (number, tenant) in (1..).zip(tenants.iter_mut()) {
            tenant.send(&udp(number, 99, 1, 0, 100), None).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(20));
        let (mut sent, mut crossed, mut left) = ([0_u32; 2], Vec::new(), Vec::new());
        let begun = Instant::now();
        let mut reloads = 0;
        let mut next = Instant::now() + Duration::from_millis(50);
        while reloads < 4 && begun.elapsed() < Duration::from_secs(60) {
            // Some to the other thread's tenant, and some to the wire.
            for (kind, to) in [(0, 2), (1, 99)] {
                if tenants[0].send(&udp(1, to, 7 + kind as u16, sent[kind], 200), None) == Ok(Sending::Sent) {
                    sent[kind] += 1;
                }
            }
            crossed.extend(drain(&mut tenants[1]));
            wires.iter_mut().for_each(|wire| left.extend(drain(wire)));
            if Instant::now() > next {
                // A tenant that comes and goes, on the thread with fewer, and other weights.
                let socket = folder.join("d.sock").display().to_string();
                let more = if reloads % 2 == 0 {
                    format!(", d: {{port: {{vnic: {socket}}}, max: 10Mbps}}")
                } else {
                    String::new()
                };
                let text = before
                    .replace("weight: 3", &format!("weight: {}", reloads + 1))
                    .replace("c: {port: memory}", &format!("c: {{port: memory}}{more}"));
                std::fs::write(control.file(), text).expect("written");
                let reloaded = control.reload(&Asker::default(), false).await.expect("reloaded");
                reloads += 1;
                next = Instant::now() + Duration::from_millis(50);
                assert_eq!(u64::from(reloaded.generation), reloads);
                let snapshot = control.handle().ask(Command::Snapshot).await.expect("they run");
                assert_eq!(
                    snapshot.lanes.iter().any(|lane| lane.name == "d" && lane.thread == Some(1)),
                    reloads % 2 == 1
                );
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        assert_eq!(reloads, 4);
        let ended = Instant::now();
        while ended.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(10));
            crossed.extend(drain(&mut tenants[1]));
            wires.iter_mut().for_each(|wire| left.extend(drain(wire)));
        }
        let numbers = |frames: &[Vec<u8>], flow| {
            let of_flow = frames.iter().map(|frame| number(frame)).filter(|&(port, _)| port == flow);
            of_flow.map(|(_, number)| number).collect::<Vec<_>>()
        };
        let snapshot = control.handle().ask(Command::Snapshot).await.expect("they run");
        let stats = Stats::from(&snapshot);
        assert_eq!(numbers(&crossed, 7), (0..sent[0]).collect::<Vec<_>>(), "{:?}", stats.tenants["a"]);
        assert_eq!(numbers(&left, 8), (0..sent[1]).collect::<Vec<_>>(), "{:?}", stats.tenants["a"]);
        // All threads' counters are one's.
        let of_a = stats.nodes.iter().find(|node| node.path == "a").expect("its class");
        assert_eq!(of_a.packets, u64::from(sent[0] + sent[1]) + 1);
        assert_eq!(stats.tenants["a"].rx_packets, u64::from(sent[0] + sent[1]) + 1);
        assert_eq!(stats.tenants["b"].tx_packets, u64::from(sent[0]));
        assert_eq!(
            (stats.tenants["a"].thread, stats.tenants["b"].thread, stats.tenants["c"].thread),
            (Some(0), Some(1), Some(0))
        );
        let page = plimsoll_daemon::prometheus_page(&stats);
        assert!(
            page.contains("plimsoll_engine_threads 2\n") && page.contains("plimsoll_lease_share_error_ratio"),
            "{page}"
        );
    });
}

#[test]
fn a_tenant_that_moves_between_threads_loses_nothing_and_each_flow_keeps_its_order() {
    let text = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 2}, tenants: {
        a: {port: memory}, b: {port: memory}, c: {port: memory}}}";
    live(text, async |control, _, tenants, wires| {
        for (number, tenant) in (1..).zip(tenants.iter_mut()) {
            tenant.send(&udp(number, 99, 1, 0, 100), None).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(20));
        let (mut sent, mut came, mut left) = ([0_u32; 3], Vec::new(), Vec::new());
        let begun = Instant::now();
        let (mut moves, mut before) = (0, [0; 3]);
        while moves < 20 && begun.elapsed() < Duration::from_secs(60) {
            for _ in 0..20 {
                // To a tenant of either thread, to the wire, and to the one that moves.
                for (flow, from, to) in [(0, 0_u8, 2), (1, 0, 99), (2, 1, 1)] {
                    let frame = udp(from + 1, to, 7 + flow as u16, sent[flow], 200);
                    let sending = tenants[usize::from(from)].send(&frame, None);
                    sent[flow] += u32::from(sending == Ok(Sending::Sent));
                }
                tenants.iter_mut().for_each(|tenant| came.extend(drain(tenant)));
                wires.iter_mut().for_each(|wire| left.extend(drain(wire)));
                std::thread::sleep(Duration::from_micros(50));
            }
            // Counters that are asked for meanwhile, of one thread after the other, count nothing twice and never fall.
            let counted = async || {
                let mut seen = Vec::new();
                for _ in 0..20 {
                    let snapshot = control.handle().ask(Command::Snapshot).await.expect("they run");
                    let of_a = &Stats::from(&snapshot).tenants["a"];
                    seen.push([of_a.rx_packets, of_a.tx_packets, of_a.ingress.packets]);
                }
                seen
            };
            let (moved, seen) = tokio::join!(control.migrate("a", (moves as usize + 1) % 2), counted());
            moves += u32::from(moved.expect("they run"));
            let most = [sent[0] + sent[1] + 1, sent[2], sent[2]].map(u64::from);
            for seen in seen {
                let grew = |at: usize| before[at] <= seen[at] && seen[at] <= most[at];
                assert!((0..3).all(grew), "{before:?}, then {seen:?}, of {most:?}");
                before = seen;
            }
            // The wire has a queue for each thread.
            wires.iter_mut().for_each(|wire| left.extend(drain(wire)));
        }
        assert_eq!(moves, 20);
        let ended = Instant::now();
        while ended.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(10));
            tenants.iter_mut().for_each(|tenant| came.extend(drain(tenant)));
            wires.iter_mut().for_each(|wire| left.extend(drain(wire)));
        }
        came.extend(left);
        let snapshot = control.handle().ask(Command::Snapshot).await.expect("they run");
        let stats = Stats::from(&snapshot);
        for (flow, sent) in (7..).zip(sent) {
            let of_flow = came.iter().map(|frame| number(frame)).filter(|&(port, _)| port == flow);
            let numbers: Vec<u32> = of_flow.map(|(_, number)| number).collect();
            assert_eq!(numbers, (0..sent).collect::<Vec<_>>(), "flow {flow}: {:?}", stats.tenants);
        }
        // What each thread has counted adds up.
        assert_eq!(stats.tenants["a"].rx_packets, u64::from(sent[0] + sent[1]) + 1);
        assert_eq!(stats.tenants["a"].tx_packets, u64::from(sent[2]));
        assert_eq!((stats.tenants["a"].thread, stats.threads.expect("threads").migrations), (Some(0), 20));
    });
}

/// The change from one policy to another for one of two threads, in which no tenant comes or goes.
fn change(old: &Checked, new: &Checked, room: &Arc<LeaseRoom>, thread: usize) -> Change {
    let mut change = Change::between(old, new);
    change.program = Arc::clone(room.program());
    change.leases = Some(Box::new(Leasing::new(Arc::clone(room), thread)));
    change
}

#[test]
fn an_address_that_a_reload_moves_to_another_threads_tenant_is_that_ones() {
    let before = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 3}, tenants: {
        a: {port: memory, addresses: ['02:00:00:00:00:4d']}, b: {port: memory}, c: {port: memory}}}";
    let after = before
        .replace("00:4d", "00:01")
        .replace("b: {port: memory}", "b: {port: memory, addresses: ['02:00:00:00:00:4d']}");
    let (old, new) = (policy(before), policy(&after));
    // Whichever thread is first to have the new policy, and to tell the others.
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 2, 0]] {
        let mut host = Host::between(&old, 3);
        host.turns(3);
        let room = Arc::new(LeaseRoom::new(&new.program, 3).expect("a policy for threads"));
        for thread in order {
            let installed = host.engines[thread].install(change(&old, &new, &room, thread), host.now);
            assert!(installed.leases.is_some(), "the last leases are not freed by the thread");
        }
        for thread in order {
            host.now += STEP;
            host.engines[thread].turn(host.now);
        }
        host.turns(3);
        // A host behind the uplink says that the address is its own, on each thread, and does not get it.
        for wire in &mut host.wires {
            wire.send(&udp(0x4d, 1, 1, 0, 100), None).expect("sent");
        }
        host.turns(3);
        host.send(1, &udp(0x4d, 99, 7, 0, 100));
        // The third thread's tenant reaches the address's owner.
        host.send(2, &udp(3, 0x4d, 8, 0, 100));
        host.turns(5);
        let left: Vec<_> = host.wires.iter_mut().flat_map(drain).map(|frame| number(&frame).0).collect();
        let came: Vec<_> = drain(&mut host.tenants[1]).iter().map(|frame| number(frame).0).collect();
        assert_eq!((left, came), (vec![7], vec![8]), "{order:?}: {:?}", host.losses("b"));
    }
}

/// Two tenants that are held to their own addresses, and whose ports tell none, say at the same time that they have the same one.
#[test]
fn of_two_threads_tenants_that_begin_with_the_same_address_one_has_it() {
    let text = "{uplink: {port: memory, rate: 1Gbps}, engine: {threads: 2}, tenants: {
        a: {port: memory, addresses: [10.0.0.0/9]}, b: {port: memory, addresses: [10.128.0.0/9]}}}";
    let frame = |tenant: u8, source: u8, n| {
        let mut frame = udp(source, 99, 7, n, 100);
        frame[26..30].copy_from_slice(&[10, tenant * 128, 0, 5]);
        frame
    };
    for first in [None, Some(0), Some(1)] {
        let mut host = Host::new(text, 2);
        host.turns(2);
        if let Some(first) = first {
            host.send(first, &frame(first as u8, 7, 0));
            host.now += STEP;
            host.engines[first].turn(host.now);
        }
        host.send(0, &frame(0, 7, 1));
        host.send(1, &frame(1, 7, 1));
        host.turns(5);
        host.wires.iter_mut().for_each(|wire| drop(drain(wire)));
        for n in 2..5 {
            host.send(0, &frame(0, 7, n));
            host.send(1, &frame(1, 7, n));
            host.turns(3);
        }
        let left: Vec<_> = host.wires.iter_mut().flat_map(drain).map(|frame| frame[27] / 128).collect();
        let winner = first.unwrap_or(0);
        assert_eq!(left, [winner as u8; 3], "{:?} {:?}", host.losses("a"), host.losses("b"));
        // The other one takes the next address that it sends from.
        let other = 1 - winner;
        host.send(other, &frame(other as u8, 8, 9));
        host.turns(5);
        assert!(host.wires.iter_mut().flat_map(drain).any(|frame| frame[11] == 8));
    }
}

#[test]
fn a_thread_does_not_sleep_before_it_has_heard_the_news_and_taken_its_lease() {
    let mut host = Host::new(TWO, 2);
    host.turns(40);
    assert!(host.engines[1].may_sleep());
    host.engines[1].is_awake();
    // The first thread hears from its tenant and tells the second one of the address; a while later it computes leases.
    host.send(0, &udp(1, 99, 1, 0, 100));
    host.now += STEP;
    host.engines[0].turn(host.now);
    let wakes = |host: &mut Host, what: &str| {
        assert!(!host.engines[1].may_sleep(), "{what}");
        host.engines[1].is_awake();
        host.now += STEP;
        host.engines[1].turn(host.now);
    };
    wakes(&mut host, "news");
    while host.engines[1].may_sleep() {
        host.now += STEP;
        host.engines[0].turn(host.now);
        assert!(host.now < Nanos::ZERO + Span::millis(10), "no lease");
    }
    wakes(&mut host, "a lease");
    assert!(host.engines[1].may_sleep());
}

#[test]
fn many_news_take_many_turns_and_all_are_heard() {
    let mut host = Host::new(TWO, 2);
    host.turns(3);
    // A tenant with 200 machines behind a bridge of its own.
    for n in 0..200 {
        let mut frame = udp(1, 99, 1, n, 100);
        frame[10..12].copy_from_slice(&[1, n as u8]);
        host.send(0, &frame);
    }
    for _ in 0..20 {
        host.now += STEP;
        host.engines[0].turn(host.now);
    }
    assert!(!host.engines[1].may_sleep());
    host.engines[1].is_awake();
    host.engines[1].turn(host.now);
    assert!(!host.engines[1].may_sleep(), "one turn does not hear all");
    host.engines[1].is_awake();
    host.turns(10);
    for n in 0..200 {
        let mut frame = udp(2, 99, 1, n, 100);
        frame[10..12].copy_from_slice(&[1, n as u8]);
        host.send(1, &frame);
        host.turn();
    }
    assert_eq!(host.losses("b"), [("foreign_source", 200)]);
}

#[test]
fn a_stop_waits_for_what_other_threads_still_send() {
    let text = "{uplink: {port: memory, rate: 10Mbps}, engine: {threads: 2}, tenants: {a: {port: memory}, b: {port: memory}}}";
    let checked = policy(text);
    let Host { engines, wires: _wires, mut tenants, .. } = Host::between(&checked, 2);
    for (number, tenant) in (1..).zip(tenants.iter_mut()) {
        tenant.send(&udp(number, 99, 1, 0, 100), None).expect("sent");
    }
    let (handle, threads) = spawn_all(engines, &Habits::default(), |_| {}).expect("threads");
    std::thread::sleep(Duration::from_millis(50));
    // At 10 Mb/s these take 50 ms, and their receiver's thread has nothing of its own.
    for n in 0..60 {
        assert_eq!(tenants[0].send(&udp(1, 2, 7, n, 1_000), None), Ok(Sending::Sent));
    }
    std::thread::sleep(Duration::from_millis(30));
    handle.send(Command::Stop(Span::secs(4))).expect("they run");
    threads.into_iter().for_each(|thread| thread.join().expect("it ended in peace"));
    let came = drain(&mut tenants[1]).iter().filter(|frame| number(frame).0 == 7).count();
    assert_eq!(came, 60);
}
