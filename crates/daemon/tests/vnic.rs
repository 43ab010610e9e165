//! Clients on shared memory are tenants like others: scheduled, limited, isolated, counted.

mod support;

use std::sync::Arc;

use plimsoll_daemon::{Change, DepartureLog, Engine, Setup, engine_config, lane_spec};
use plimsoll_policy::Checked;
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port, VnicConfig, VnicPort};
use plimsoll_units::{Nanos, Span};
use plimsoll_vnic::{FlowSpec, Offload, OpenRefusal, Status, Vnic, VnicError};
use support::{drain, policy, udp};

/// An engine whose tenants have vNICs, and a wire in memory.
struct World {
    engine: Engine,
    wire: MemoryPort,
    now: Nanos,
    folder: tempfile::TempDir,
    checked: Checked,
}

const STEP: Span = Span::micros(10);
const OUTSIDE: u8 = 99;

const TWO: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants: {shop: {port: memory, via: [slow]}, batch: {port: memory}}
limits: {slow: {match: {src_port: 7}, rate: 1Mbps, burst: 1518B}}
";

fn vnic(folder: &tempfile::TempDir, name: &str) -> Port {
    let path = folder.path().join(name);
    Port::Vnic(VnicPort::open(&VnicConfig::new(path)).expect("a port"))
}

impl World {
    fn new(text: &str) -> Self {
        let checked = policy(text);
        let folder = tempfile::tempdir().expect("a directory");
        let config = MemoryConfig { slots: 4_096, frame: FRAME_ROOM, ..MemoryConfig::default() };
        let (uplink, wire) = MemoryPort::pair("uplink", config).expect("memory");
        let uplink = Port::Memory(uplink);
        let lanes = (checked.config.tenants.iter())
            .map(|tenant| lane_spec(&checked, &tenant.name, Some(vnic(&folder, &tenant.name))));
        let engine = Engine::new(Setup {
            program: Arc::new(checked.program.clone()),
            config: engine_config(&checked, &uplink),
            lanes: lanes.collect(),
            uplink,
            log: Arc::new(DepartureLog::default()),
        });
        Self { engine, wire, now: Nanos::ZERO, folder, checked }
    }

    /// What `ask` does on a thread of its own, while the engine turns.
    fn while_turning<T: Send + 'static>(&mut self, ask: impl FnOnce() -> T + Send + 'static) -> T {
        let asking = std::thread::spawn(ask);
        while !asking.is_finished() {
            self.turn();
        }
        asking.join().expect("no panic")
    }

    fn client(&mut self, name: &str) -> Vnic {
        let path = self.folder.path().join(name);
        self.while_turning(move || Vnic::connect(path)).expect("connected")
    }

    fn open(&mut self, mut client: Vnic, src_port: u16) -> (Vnic, Result<u32, VnicError>) {
        self.while_turning(move || {
            let queue = client.open_flow(&spec(src_port));
            (client, queue)
        })
    }

    /// As when the waiter names every port.
    fn turn(&mut self) {
        self.engine.all_ready();
        self.engine.turn(self.now);
        self.now += STEP;
        std::thread::yield_now();
    }

    fn run(&mut self, span: Span) -> Vec<Vec<u8>> {
        let end = self.now + span;
        let mut out = Vec::new();
        while self.now < end {
            self.turn();
            out.extend(drain(&mut self.wire));
        }
        out
    }

    fn drops(&mut self, name: &str) -> Vec<(&'static str, u64)> {
        let snapshot = self.engine.snapshot(self.now);
        let found = snapshot.lanes.iter().find(|lane| lane.name == name).expect("a lane");
        let names = plimsoll_ports::DropReason::ALL.map(plimsoll_ports::DropReason::name);
        names.into_iter().zip(found.counters.rx_drops).filter(|&(_, count)| count > 0).collect()
    }
}

/// What [`udp`] writes for a tenant's frame to the outside.
fn spec(src_port: u16) -> FlowSpec {
    FlowSpec {
        addresses: Some(([10, 0, 0, 1].into(), [10, 0, 0, OUTSIDE].into())),
        protocol: Some(17),
        ports: Some((src_port, 80)),
        ..FlowSpec::default()
    }
}

fn statuses(client: &mut Vnic) -> Vec<Status> {
    let mut found = Vec::new();
    client.poll_completions(|done| found.push(done.status));
    found
}

#[test]
fn frames_leave_in_order_and_complete_when_they_have_left() {
    let mut world = World::new(TWO);
    let mut client = world.client("shop");
    let frames: Vec<_> = (0..100).map(|number| udp(1, OUTSIDE, 1, number, 1_000)).collect();
    for frame in &frames {
        client.send(0, frame).expect("room");
    }
    client.ring().expect("a kick");
    world.turn();
    assert!(statuses(&mut client).len() < 50, "1 Gb/s needs 8 µs for each");
    assert_eq!(world.run(Span::millis(2)), frames);
    statuses(&mut client);
    assert_eq!(client.on_their_way(), 0);
}

#[test]
fn a_limited_flow_waits_in_its_own_ring_while_another_passes() {
    let mut world = World::new(TWO);
    let client = world.client("shop");
    let (client, slow) = world.open(client, 7);
    let (mut client, fast) = world.open(client, 8);
    let (slow, fast) = (slow.expect("a flow queue"), fast.expect("a flow queue"));
    for number in 0..200 {
        client.send(slow, &udp(1, OUTSIDE, 7, number, 500)).expect("room");
    }
    for number in 0..100 {
        client.send(fast, &udp(1, OUTSIDE, 8, number, 500)).expect("room");
    }
    client.ring().expect("a kick");
    let out = world.run(Span::millis(3));
    let of = |port: u8| out.iter().filter(|frame| frame[35] == port).count();
    assert_eq!(of(8), 100, "all of the free flow's");
    assert!((3..5).contains(&of(7)), "the burst is three frames, and 1 Mb/s one in 4 ms: {}", of(7));
    assert_eq!(world.engine.held(), 128, "no more than a flow queue holds; the others wait with the client");
    let mut done = [0; 2];
    client.poll_completions(|completion| done[usize::from(completion.queue == fast)] += 1);
    assert_eq!(done, [of(7), 100]);
}

#[test]
fn a_segment_of_64_kib_is_cut_and_completes_once() {
    let mut world = World::new(TWO);
    let mut client = world.client("shop");
    let large = udp(1, OUTSIDE, 1, 0, 42 + 40 * 1_000);
    let offload =
        Offload { flags: 1, gso_type: 5, hdr_len: 42, gso_size: 1_000, csum_start: 34, csum_offset: 6 };
    client.send_with(0, &large, &offload, 0).expect("room");
    client.send_with(0, &large[..60], &Offload { gso_type: 77, ..offload }, 0).expect("room");
    client.ring().expect("a kick");
    let out = world.run(Span::millis(3));
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [1_042; 40]);
    let mut found = statuses(&mut client);
    found.sort_by_key(|&status| status as u16);
    assert_eq!(found, [Status::Sent, Status::Malformed]);
}

#[test]
fn neighbours_on_one_host_reach_each_other() {
    let mut world = World::new(TWO);
    let mut shop = world.client("shop");
    let mut batch = world.client("batch");
    batch.send(0, &udp(2, 1, 1, 0, 60)).expect("room");
    batch.ring().expect("a kick");
    world.run(Span::micros(100));
    let question = udp(1, 2, 1, 7, 100);
    shop.send(0, &question).expect("room");
    shop.ring().expect("a kick");
    world.run(Span::micros(100));
    let mut buffer = [0; 2_048];
    let len = batch.receive(&mut buffer).expect("a frame");
    assert_eq!(buffer[..len], question);
}

#[test]
fn flow_queues_are_the_tenants_part_and_come_back_when_the_client_goes() {
    let mut world = World::new(
        "{uplink: {port: memory, rate: 1Gbps}, engine: {queues: 8}, tenants: {shop: {port: memory}, batch: {port: memory}}}",
    );
    let mut client = world.client("shop");
    for port in 1..4 {
        let (kept, queue) = world.open(client, port);
        assert_eq!(queue.expect("a flow queue"), u32::from(port));
        client = kept;
    }
    let (mut client, refused) = world.open(client, 4);
    assert!(matches!(refused, Err(VnicError::NotOpened(OpenRefusal::NoQueue))), "{refused:?}");
    client.close_flow(2).expect("the daemon is there");
    let (client, queue) = world.open(client, 5);
    assert_eq!(queue.expect("the place of the one that was closed"), 2);
    drop(client);
    while !world.engine.has_lost() {
        world.turn();
    }
    drop(world.engine.take_lost());
    world.run(Span::micros(100));
    assert_eq!(world.engine.nic().open_queues(), 0);
    assert!(world.engine.attach(Some(0), vnic(&world.folder, "shop")).is_none());
    let mut client = world.client("shop");
    client.send(0, &udp(1, OUTSIDE, 1, 0, 60)).expect("room");
    client.ring().expect("a kick");
    assert_eq!(world.run(Span::micros(100)).len(), 1);
}

#[test]
fn a_flow_queue_that_is_not_the_clients_is_refused_and_counted() {
    let mut world = World::new(TWO);
    let mut client = world.client("shop");
    client.send(3, &udp(1, OUTSIDE, 1, 0, 60)).expect("room in its own memory");
    client.ring().expect("a kick");
    assert!(world.run(Span::micros(100)).is_empty());
    assert_eq!(world.drops("shop"), [("unmapped_queue", 1)]);
}

#[test]
fn a_reload_places_open_flow_queues_anew_and_tells_the_client() {
    let mut world = World::new(TWO);
    let client = world.client("shop");
    let (mut client, queue) = world.open(client, 8);
    let queue = queue.expect("a flow queue");
    let before = client.generation();
    let next = policy(&TWO.replace("src_port: 7", "src_port: 8"));
    world.engine.install(Change::between(&world.checked, &next), world.now);
    assert_eq!(client.generation(), before + 1);
    for number in 0..20 {
        client.send(queue, &udp(1, OUTSIDE, 8, number, 500)).expect("room");
    }
    client.ring().expect("a kick");
    assert!(world.run(Span::millis(3)).len() < 5, "it is under the limit now");
}
