//! Two of the daemon's engines under one policy, by leases, in virtual time.
//!
//! Not here: random policies, and engines without ports (the tests of `nic`).

use std::sync::Arc;

use plimsoll_control::leases::{Coordinator, Exchange, MemberId, Report, Settings, Taken};
use plimsoll_daemon::{Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_nic::ClassBytes;
use plimsoll_policy::{Checked, Fields, TenantId, check_str};
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port, Sending};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::support::udp;

const TURN: Span = Span::micros(10);
const EPOCH: Span = Span::micros(100);
const FRAME: usize = 1_000;
const OUTSIDE: u8 = 99;

/// One of the engines, and the far ends of its ports.
struct Thread {
    engine: Dataplane,
    wire: MemoryPort,
    tenants: Vec<(u8, MemoryPort)>,
    members: Vec<(usize, MemberId)>,
    taken: Option<Taken>,
    /// Frames of each tenant that have left.
    left: [u64; 6],
}

impl Thread {
    fn new(checked: &Checked, coordinator: &mut Coordinator, thread: usize, own: &[u8]) -> Self {
        let memory = |name| MemoryPort::pair(name, MemoryConfig::default()).expect("memory");
        let (uplink, wire) = memory("uplink");
        let uplink = Port::Memory(uplink);
        let (mut tenants, mut members, mut lanes) = (Vec::new(), Vec::new(), Vec::new());
        for (n, tenant) in (0..).zip(&checked.config.tenants) {
            let mut port = None;
            if own.contains(&n) {
                let (near, far) = memory(&tenant.name);
                port = Some(Port::Memory(near));
                tenants.push((n, far));
                let tenant = Some(TenantId(n.into()));
                let fields = Fields { tenant, protocol: Some(17), ports: Some((1, 80)), ..Fields::default() };
                let placement = coordinator.program().classify(&fields);
                let member = coordinator.join(&placement, thread).expect("there is room");
                members.push((placement.class.0 as usize, member));
            }
            lanes.push(lane_spec(checked, &tenant.name, port));
        }
        let engine = Dataplane::new(Setup {
            program: Arc::new(coordinator.program().clone()),
            config: engine_config(checked, &uplink),
            uplink,
            lanes,
            log: Arc::new(DepartureLog::default()),
            fleet: None,
        });
        Self { engine, wire, tenants, members, taken: None, left: [0; 6] }
    }

    /// Tenants send as much as their ports take, and the engine has a turn.
    fn turn(&mut self, thread: usize, exchange: &Exchange, now: Nanos) {
        for (tenant, port) in &mut self.tenants {
            let frame = udp(*tenant, OUTSIDE, 1, 0, FRAME);
            while port.send(&frame, None) == Ok(Sending::Sent) {}
        }
        self.engine.turn(now);
        let mut frame = vec![0; FRAME_ROOM];
        while let Ok(Some(_)) = self.wire.receive(&mut frame) {
            self.left[usize::from(frame[11])] += 1;
        }
        let taken = self.taken.get_or_insert_with(|| exchange.taken());
        self.engine.even_out(exchange, taken, Bytes::new(12_500), now);
        if let Some(lease) = exchange.take(thread, taken) {
            self.engine.take_lease(&lease, now);
        }
    }

    fn report(&self, thread: usize, exchange: &Exchange, nodes: usize) {
        let mut classes = vec![ClassBytes::default(); nodes];
        self.engine.report_classes(&mut classes);
        for &(class, member) in &self.members {
            let ClassBytes { left, waiting } = classes[class];
            exchange.report(thread, member, Report { left, waiting });
        }
    }
}

#[test]
fn two_engines_share_an_uplink_and_a_limit_as_one_would() {
    let tenants: Vec<String> = [1, 1, 2, 1, 3, 1]
        .iter()
        .enumerate()
        .map(|(n, w)| format!("t{n}: {{port: memory, weight: {w}}}"))
        .collect();
    let text = format!(
        "{{uplink: {{port: memory, rate: 1Gbps}}, engine: {{flows: drr, threads: 2}}, tenants: {{{}}}, \
         limits: {{far: {{match: {{tenant: [t0, t1], dst_port: 80}}, rate: 100Mbps}}}}}}",
        tenants.join(", ")
    );
    let checked = check_str("p.yaml", &text).expect("a policy");
    let settings = Settings { threads: 2, members: 16, epoch: EPOCH };
    let mut coordinator = Coordinator::new(&checked.program, settings).expect("a policy for threads");
    let mut threads = [
        Thread::new(&checked, &mut coordinator, 0, &[0, 2]),
        Thread::new(&checked, &mut coordinator, 1, &[1, 3, 4, 5]),
    ];
    coordinator.handle_epoch(Nanos::ZERO);
    let exchange = Exchange::new(&coordinator);
    exchange.publish(&coordinator);
    let (mut now, mut before) = (Nanos::ZERO, [0; 6]);
    for turn in 1..=5_000_u64 {
        now += TURN;
        for (n, thread) in threads.iter_mut().enumerate() {
            thread.turn(n, &exchange, now);
        }
        if turn.is_multiple_of(10) {
            for (n, thread) in threads.iter().enumerate() {
                thread.report(n, &exchange, checked.program.nodes.len());
            }
            exchange.collect(&mut coordinator);
            coordinator.handle_epoch(now);
            exchange.publish(&coordinator);
            exchange.forget_spare();
        }
        if !turn.is_multiple_of(1_000) {
            continue;
        }
        // 1,250 frames in 10 ms: 125 through the limit, and the rest by weight.
        let left: [u64; 6] = std::array::from_fn(|n| threads[0].left[n] + threads[1].left[n]);
        let wanted = [62.5, 62.5, 1_125.0 * 2.0 / 7.0, 1_125.0 / 7.0, 1_125.0 * 3.0 / 7.0, 1_125.0 / 7.0];
        for (n, wanted) in wanted.into_iter().enumerate().filter(|_| turn > 1_000) {
            let frames = left[n] - before[n];
            let off = (frames as f64 - wanted).abs();
            assert!(
                off <= 0.02 * wanted + 2.0,
                "turn {turn}: t{n} sends {frames} frames, should {wanted:.0}"
            );
        }
        before = left;
    }
    let exactness = coordinator.exactness();
    assert!(exactness.shares <= 20, "{exactness:?}");
}
