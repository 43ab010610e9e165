//! Clients on shared memory are tenants like others: scheduled, limited, isolated, counted.

mod apart;
mod floods;
mod late;
mod live;
mod scribbling;

use std::sync::Arc;

use crate::support::{drain, policy, udp};
use plimsoll_daemon::{Change, Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_policy::Checked;
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port, VnicConfig, VnicPort};
use plimsoll_units::{Nanos, Span};
use plimsoll_vnic::{
    FlowSpec, OpenRefusal, PacketMetadata, RuleCounts, Sizes, Status, VnetHeader, Vnic, VnicError,
};

/// An engine whose tenants have vNICs, and a wire in memory.
struct World {
    engine: Dataplane,
    wire: MemoryPort,
    log: Arc<DepartureLog>,
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

fn vnic(folder: &tempfile::TempDir, name: &str, sizes: Sizes) -> Port {
    let path = folder.path().join(name);
    Port::Vnic(VnicPort::open(&VnicConfig { sizes, ..VnicConfig::new(path) }).expect("a port"))
}

impl World {
    fn new(text: &str) -> Self {
        Self::sized(text, Sizes::default())
    }

    fn sized(text: &str, sizes: Sizes) -> Self {
        let checked = policy(text);
        let folder = tempfile::tempdir().expect("a directory");
        let config = MemoryConfig { slots: 4_096, frame: FRAME_ROOM, ..MemoryConfig::default() };
        let (uplink, wire) = MemoryPort::pair("uplink", config).expect("memory");
        let uplink = Port::Memory(uplink);
        let lanes = (checked.config.tenants.iter())
            .map(|tenant| lane_spec(&checked, &tenant.name, Some(vnic(&folder, &tenant.name, sizes))));
        let log = Arc::new(DepartureLog::default());
        let engine = Dataplane::new(Setup {
            program: Arc::new(checked.program.clone()),
            config: engine_config(&checked, &uplink),
            lanes: lanes.collect(),
            uplink,
            log: Arc::clone(&log),
            fleet: None,
        });
        Self { engine, wire, log, now: Nanos::ZERO, folder, checked }
    }

    /// Runs `ask` on a thread of its own, while the engine turns.
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

    /// The flow queue of each flow, by the rules.
    fn queues_for(&mut self, mut client: Vnic, flows: Vec<FlowSpec>) -> (Vnic, Vec<u32>) {
        self.while_turning(move || {
            let queues = flows.iter().map(|flow| client.queue_for(flow).expect("the daemon is there"));
            let queues = queues.collect();
            (client, queues)
        })
    }

    fn reload(&mut self, text: &str) {
        let next = policy(text);
        self.engine.install(Change::between(&self.checked, &next), self.now);
        self.checked = next;
    }

    fn event(&mut self, name: &str, event: &str) -> u64 {
        let snapshot = self.engine.snapshot(self.now);
        let lane = snapshot.lanes.iter().find(|lane| lane.name == name).expect("a lane");
        lane.tally.events().find(|&(found, _)| found == event).map_or(0, |(_, count)| count)
    }

    /// A turn in which every port may have frames.
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

/// Classes of one tenant by its client's metadata, and one of its neighbour's.
const TOLD: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants: {shop: {port: {vnic: /run/shop.sock}}, batch: {port: {vnic: /run/batch.sock}}}
policy:
  root:    {wfq: {orders: 3, search: 1, thread: 1, shop: 1, nightly: 6, batch: 6}}
  orders:  {match: {tenant: shop, app: 1}}
  search:  {match: {tenant: shop, app: 2}}
  thread:  {match: {tenant: shop, core: 1}, max: 50Mbps}
  nightly: {match: {tenant: batch, user: 7}}
";

fn app(app: u32) -> PacketMetadata {
    PacketMetadata { app: Some(app), ..PacketMetadata::default() }
}

impl World {
    /// Packets that have left each class.
    fn left(&mut self) -> Vec<(String, u64)> {
        let counters = self.engine.nic().all_class_counters();
        let names = self.checked.program.nodes.iter().map(|node| node.name.clone());
        names.zip(counters).skip(1).map(|(name, counters)| (name, counters.packets)).collect()
    }
}

/// The flow of a tenant's frame from [`udp`] to the outside.
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
    // The engine takes two or three of these frames as one.
    let held = world.engine.held();
    assert!(
        (40..=128).contains(&held),
        "no more than a flow queue holds; the others wait with the client: {held}"
    );
    let mut done = [0; 2];
    client.poll_completions(|completion| done[usize::from(completion.queue == fast)] += 1);
    assert_eq!(done, [of(7), 100]);
}

/// The engine takes short frames of one flow as one; the client is told of each what became of it.
#[test]
fn frames_that_travel_together_complete_each_with_its_own_outcome() {
    let mut world = World::new(TWO);
    let config =
        MemoryConfig { slots: 16, frame: 2_048, mac: Some([2, 0, 0, 0, 0, 2]), ..MemoryConfig::default() };
    let (port, mut end) = MemoryPort::pair("batch", config).expect("memory");
    let lane = lane_spec(&world.checked, "batch", Some(Port::Memory(port)));
    let shop = lane_spec(&world.checked, "shop", Some(vnic(&world.folder, "again", Sizes::default())));
    let uplink = MemoryPort::pair("uplink", MemoryConfig::default()).expect("memory").0;
    let uplink = Port::Memory(uplink);
    world.engine = Dataplane::new(Setup {
        program: Arc::new(world.checked.program.clone()),
        config: engine_config(&world.checked, &uplink),
        lanes: vec![shop, lane],
        uplink,
        log: Arc::clone(&world.log),
        fleet: None,
    });
    let client = world.client("again");
    let (mut client, queue) = world.open(client, 8);
    let queue = queue.expect("a flow queue");
    for number in 0..40 {
        client.send(queue, &udp(1, 2, 8, number, 60)).expect("room");
    }
    client.ring().expect("a kick");
    world.run(Span::millis(1));
    let mut told = Vec::new();
    client.poll_completions(|completion| told.push(completion.status));
    let came = drain(&mut end).len();
    let sent = told.iter().filter(|status| **status == Status::Sent).count();
    assert!(
        told.len() == 40 && came == sent && (1..40).contains(&came),
        "{came} came, {sent} of {}",
        told.len()
    );
    assert!(told[..came].iter().all(|status| *status == Status::Sent), "the first have found room: {told:?}");
    assert!(told[came..].iter().all(|status| *status == Status::Dropped), "the others have not: {told:?}");
}

#[test]
fn a_segment_of_64_kib_is_cut_and_completes_once() {
    let mut world = World::new(TWO);
    let mut client = world.client("shop");
    let large = udp(1, OUTSIDE, 1, 0, 42 + 40 * 1_000);
    let offload =
        VnetHeader { flags: 1, gso_type: 5, hdr_len: 42, gso_size: 1_000, csum_start: 34, csum_offset: 6 };
    client.send_with(0, &large, &offload, 0).expect("room");
    client.send_with(0, &large[..60], &VnetHeader { gso_type: 77, ..offload }, 0).expect("room");
    client.ring().expect("a kick");
    let out = world.run(Span::millis(3));
    assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [1_042; 40]);
    let mut found = statuses(&mut client);
    found.sort_by_key(|&status| status as u16);
    assert_eq!(found, [Status::Sent, Status::Malformed]);
}

#[test]
fn long_frames_are_taken_a_few_at_a_time() {
    let mut world = World::new(TWO);
    let mut client = world.client("shop");
    let large = udp(1, OUTSIDE, 1, 0, 42 + 40 * 1_000);
    let offload =
        VnetHeader { flags: 1, gso_type: 5, hdr_len: 42, gso_size: 1_000, csum_start: 34, csum_offset: 6 };
    for _ in 0..12 {
        client.send_with(0, &large, &offload, 0).expect("room");
    }
    client.ring().expect("a kick");
    world.turn();
    assert!(world.engine.held() <= 3, "their copies would keep the others waiting: {}", world.engine.held());
    assert_eq!(world.run(Span::millis(10)).len(), 12 * 40);
    assert_eq!(statuses(&mut client), [Status::Sent; 12]);
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
    assert!(world.engine.attach(Some(0), vnic(&world.folder, "shop", Sizes::default()), world.now).is_none());
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

/// Two applications of one client, whose packets have the same headers: through flow queues of their own, for which the
/// client sets metadata, or through one, where each packet has its own.
#[test]
fn applications_of_one_client_share_by_their_classes() {
    for by_packet in [false, true] {
        let mut world = World::new(TOLD);
        let client = world.client("shop");
        let (client, first) = world.open(client, 7);
        let (mut client, second) = world.open(client, 7);
        let queues = [first.expect("a flow queue"), if by_packet { 0 } else { second.expect("another") }];
        let frames = [1, 2].map(|number| udp(1, OUTSIDE, 7, number, 1_000));
        if !by_packet {
            for (queue, number) in queues.into_iter().zip([1, 2]) {
                client.set_metadata(queue, &app(number)).expect("room");
            }
        }
        let (mut left, mut next) = ([0_u32; 2], false);
        for turn in 0..3_000 {
            // Both always have more frames than leave: a turn sends one or two.
            let mut refused = [false; 2];
            while refused != [true; 2] {
                let index = usize::from(next);
                let metadata = if by_packet { app(index as u32 + 1) } else { PacketMetadata::default() };
                let queue = if by_packet { queues[0] } else { queues[index] };
                let busy = client
                    .send_described(queue, &[&frames[index]], &VnetHeader::default(), 0, &metadata)
                    .is_err();
                refused[index] = busy;
                if by_packet && busy {
                    break;
                }
                next = !next;
            }
            client.ring().expect("a kick");
            world.turn();
            client.poll_completions(|_| {});
            for frame in drain(&mut world.wire) {
                if turn > 500 {
                    left[usize::from(frame == frames[1])] += 1;
                }
            }
        }
        let [orders, search] = left.map(f64::from);
        if by_packet {
            // They come in turns through one ring, so as many of each leave, and each in its own class.
            let classes = world.left();
            assert!(classes[0].1 > 1_000 && classes[1].1 > 1_000, "{classes:?}");
            assert!(classes[2..].iter().all(|(_, packets)| *packets == 0), "{classes:?}");
        } else {
            assert!((orders / search - 3.0).abs() < 0.09, "{orders} to {search}");
        }
    }
}

/// Packets of a flow queue that the client opened and of queue 0; one of which nothing is said has no application.
#[test]
fn explain_finds_packets_by_what_their_client_said() {
    let mut world = World::new(&TOLD.replace("{vnic: /run/shop.sock}", "{vnic: /run/shop.sock}, cgroup: 7"));
    let client = world.client("shop");
    let (mut client, queue) = world.open(client, 7);
    let queue = queue.expect("a flow queue");
    for (port, queue) in [(8, 0), (7, queue)] {
        for said in [app(1), app(2), PacketMetadata::default()] {
            for _ in 0..10 {
                let frame = udp(1, OUTSIDE, port, 1, 100);
                client.send_described(queue, &[&frame], &VnetHeader::default(), 0, &said).expect("room");
            }
            client.ring().expect("a kick");
            world.run(Span::millis(1));
            client.poll_completions(|_| {});
        }
    }
    let snapshot = world.engine.snapshot(world.now);
    let log = world.log.last(usize::MAX);
    let packets = |filter: &str| {
        let filter = filter.parse().expect("a filter");
        let matching = plimsoll_daemon::explain(&snapshot, &log, &filter, &[]);
        (matching.class, matching.matched)
    };
    // A departure may be of several frames.
    let (class, orders) = packets("tenant=shop app=1");
    assert_eq!(class, "orders");
    assert_eq!(packets("class=orders").1, orders);
    assert_eq!(packets("tenant=shop app=2"), ("search".to_owned(), packets("class=search").1));
    assert!(orders > 0 && packets("tenant=shop app=2").1 > 0);
    assert_eq!(packets("tenant=shop").1, log.len());
    assert!(packets("class=shop").1 > 0, "those of which nothing is said");
    assert_eq!(packets("tenant=shop app=3").1, 0);
    assert_eq!(packets("app=1 cgroup=7"), ("orders".to_owned(), orders), "as the operator states");
    assert_eq!(packets("app=1 cgroup=8").1, 0);
}

#[test]
fn a_thread_is_held_to_the_rate_of_its_cores_class() {
    let mut world = World::new(TOLD);
    let client = world.client("shop");
    let (mut client, queue) = world.open(client, 7);
    let queue = queue.expect("a flow queue");
    let mut poster = client.poster(&[queue], 1_000).expect("a doorbell queue and buffers");
    let (mut left, mut held) = (0, 0);
    // 20 ms: 1 Gb/s carries 2,500 frames of 1,000 bytes, and 50 Mb/s 125, with a burst of what it carries in 5 ms: 31.
    for _ in 0..2_000 {
        while client.on_their_way() < 200 && client.send(0, &udp(1, OUTSIDE, 8, 1, 1_000)).is_ok() {}
        while poster.on_their_way() < 200 && poster.send(queue, &udp(1, OUTSIDE, 7, 2, 1_000)).is_ok() {}
        client.ring().expect("a kick");
        poster.ring().expect("a kick");
        world.turn();
        client.poll_completions(|_| {});
        poster.poll_completions(|_| {});
        for frame in drain(&mut world.wire) {
            *(if frame[35] == 7 { &mut held } else { &mut left }) += 1;
        }
    }
    assert!((150..=162).contains(&held), "{held} frames of the second thread's");
    assert!(left > 2_300, "{left} frames of the first thread's");
}

/// Whatever metadata a client sets, and in whatever way, none of its packets reaches a class of its neighbour's.
#[test]
fn a_client_that_says_what_its_neighbours_classes_ask_for_stays_in_its_own() {
    let mut world = World::new(TOLD);
    let client = world.client("shop");
    let (mut client, queue) = world.open(client, 7);
    let queue = queue.expect("a flow queue");
    let mut state = 1_u64;
    let mut draw = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % most
    };
    let mut sent = 0;
    for _ in 0..2_000 {
        let some = |value: u64| (value > 0).then_some(value as u32);
        let metadata = PacketMetadata {
            priority: some(draw(9)),
            cgroup: Some(draw(9)),
            user: some(draw(9)),
            app: some(draw(4)),
        };
        let to = [0, queue][draw(2) as usize];
        if draw(2) == 0 {
            let _ = client.set_metadata(to, &metadata);
        }
        let own = if draw(2) == 0 { metadata } else { PacketMetadata::default() };
        let frame = udp(1, OUTSIDE, draw(3) as u16, 1, 100);
        sent += u64::from(client.send_described(to, &[&frame], &VnetHeader::default(), 0, &own).is_ok());
        client.ring().expect("a kick");
        world.turn();
        client.poll_completions(|_| {});
    }
    world.run(Span::millis(5));
    let classes = world.left();
    let of = |name: &str| classes.iter().find(|(class, _)| class == name).expect("a class").1;
    assert!(of("orders") > 100 && of("search") > 100 && of("shop") > 100, "{classes:?}");
    assert_eq!(of("orders") + of("search") + of("shop") + of("thread"), sent, "{classes:?}");
    assert_eq!((of("nightly"), of("batch")), (0, 0), "{classes:?}");
}

/// Metadata that the policy does not look at changes nothing; after a reload that looks at it, packets are told apart by it.
#[test]
fn what_the_policy_does_not_ask_for_changes_nothing_until_it_does() {
    let plain = [("app: 1", "vlan: 1"), ("app: 2", "vlan: 2"), ("core: 1", "vlan: 3")]
        .into_iter()
        .fold(TOLD.to_owned(), |text, (from, to)| text.replace(from, to));
    let mut world = World::new(&plain);
    let client = world.client("shop");
    let (mut client, queue) = world.open(client, 7);
    let queue = queue.expect("a flow queue");
    client.set_metadata(queue, &app(1)).expect("room");
    let mut send = |world: &mut World| {
        for _ in 0..50 {
            client.send(queue, &udp(1, OUTSIDE, 7, 1, 100)).expect("room");
        }
        client.ring().expect("a kick");
        world.run(Span::millis(1));
        client.poll_completions(|_| {});
    };
    send(&mut world);
    assert_eq!(world.engine.nic().open_queues(), 1, "the client's own");
    assert_eq!(world.left()[3], ("shop".to_owned(), 50));
    world.reload(TOLD);
    send(&mut world);
    assert_eq!(world.left()[0], ("orders".to_owned(), 50));
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

#[test]
fn a_client_asks_once_for_each_flow_and_is_told_anew_after_a_reload() {
    let mut world = World::new(TWO);
    let client = world.client("shop");
    let flows = vec![spec(7), spec(8), spec(7), spec(8), spec(8)];
    let (mut client, queues) = world.queues_for(client, flows.clone());
    assert_eq!(queues, [1, 2, 1, 2, 2]);
    assert_eq!(client.rule_counts(), RuleCounts { hits: 3, misses: 2, pushed: 0, ended: 0 });
    for number in 0..20 {
        let frame = udp(1, OUTSIDE, 7, number, 500);
        let queue = client.classify(&frame).expect("known");
        client.send(queue, &frame).expect("room");
    }
    client.ring().expect("a kick");
    assert!(world.run(Span::millis(3)).len() < 5, "under the limit");
    world.reload(&TWO.replace("src_port: 7", "src_port: 8"));
    let (client, queues) = world.queues_for(client, flows);
    assert_eq!(queues, [1, 2, 1, 2, 2], "the flow queues stay");
    let RuleCounts { misses, pushed, ended, .. } = client.rule_counts();
    assert_eq!((misses, pushed, ended), (2, 2, 2), "told without a question");
    assert_eq!(world.run(Span::millis(3)).len(), 17, "what waited is free of the limit");
}

#[test]
fn a_client_that_comes_after_a_reload_asks_once_for_each_flow_as_well() {
    let mut world = World::new(TWO);
    drop(world.client("shop"));
    while !world.engine.has_lost() {
        world.turn();
    }
    drop(world.engine.take_lost());
    world.reload(&TWO.replace("1Mbps", "2Mbps"));
    assert!(world.engine.attach(Some(0), vnic(&world.folder, "shop", Sizes::default()), world.now).is_none());
    let client = world.client("shop");
    let (client, queues) = world.queues_for(client, vec![spec(7), spec(8), spec(7), spec(8)]);
    assert_eq!(queues, [1, 2, 1, 2]);
    assert_eq!(client.rule_counts(), RuleCounts { hits: 2, misses: 2, pushed: 0, ended: 0 });
}

#[test]
fn where_flow_queues_are_few_flows_share_those_that_the_policy_does_not_tell_apart() {
    let mut world = World::sized(TWO, Sizes { flow_queues: 8, ..Sizes::default() });
    let client = world.client("shop");
    let to = |host: u8, src_port: u16| FlowSpec {
        addresses: Some(([10, 0, 0, 1].into(), [10, 0, host, 9].into())),
        ..spec(src_port)
    };
    let own = (1..=6).map(|host| to(host, 100)).collect();
    let (client, queues) = world.queues_for(client, own);
    assert_eq!(queues, [1, 2, 3, 4, 5, 6], "a flow queue for each flow");
    let (client, queues) = world.queues_for(client, (10..20).map(|host| to(host, 100)).collect());
    assert_eq!(queues, [7; 10], "the policy looks at the source port only");
    assert_eq!(client.rule_counts().misses, 7, "and one question is enough");
    let (client, queues) = world.queues_for(client, vec![to(1, 200), to(1, 201), to(1, 100)]);
    assert_eq!(queues, [0, 0, 1], "the daemon classifies what no flow queue is left for");
    // A policy that looks at more: packets of shared queues are classified one by one, and none is lost or misplaced.
    world.reload(&TWO.replace("src_port: 7", "dst: 10.0.12.0/24"));
    world.engine.set_sampler(plimsoll_daemon::Sampler::new(1, 1));
    let mut client = client;
    for number in 0..20 {
        let mut frame = udp(1, OUTSIDE, 100, number, 500);
        frame[32] = 12;
        client.send(7, &frame).expect("room");
    }
    client.ring().expect("a kick");
    assert!(world.run(Span::millis(3)).len() < 5, "these are under the limit now");
    assert_eq!(world.event("shop", "misclassified"), 0, "which does not count against the client");
}

#[test]
fn a_client_that_posts_to_wrong_flow_queues_is_told_on_halted_and_classified() {
    let mut world = World::new(TWO);
    world.engine.set_sampler(plimsoll_daemon::Sampler::new(1, 1));
    // Virtual time goes on while a client connects, so the neighbour connects before a second matters.
    let mut neighbour = world.client("batch");
    let client = world.client("shop");
    let (mut client, queue) = world.open(client, 8);
    let queue = queue.expect("a flow queue");
    let cheat = |world: &mut World, client: &mut Vnic, span| {
        client.send(queue, &udp(1, OUTSIDE, 7, 0, 500)).expect("room");
        client.ring().expect("a kick");
        world.run(span);
        (world.engine.take_steps().into_iter().map(|(name, step)| (name, format!("{step:?}"))))
            .collect::<Vec<_>>()
    };
    let told = |step: &str| vec![("shop".to_owned(), step.to_owned())];
    assert_eq!(cheat(&mut world, &mut client, Span::micros(50)), told("Alert"));
    assert_eq!(cheat(&mut world, &mut client, Span::micros(50)), []);
    assert_eq!(cheat(&mut world, &mut client, Span::micros(50)), told("Halt"));
    // Halted: no frame is taken from it for a second; its neighbour goes on.
    neighbour.send(0, &udp(2, OUTSIDE, 9, 0, 500)).expect("room");
    neighbour.ring().expect("a kick");
    assert_eq!(cheat(&mut world, &mut client, Span::millis(10)), []);
    assert_eq!(statuses(&mut neighbour), [Status::Sent]);
    assert_eq!(world.event("shop", "verified"), 3);
    world.now += Span::secs(1);
    world.run(Span::micros(50));
    assert_eq!(world.engine.take_steps().len(), 1, "what it posted meanwhile is wrong as well");
    for (event, count) in [("misclassified", 4), ("trust_alert", 1), ("trust_halt", 1), ("trust_forced", 1)] {
        assert_eq!(world.event("shop", event), count, "{event}");
    }
    // Forced: each packet goes where it belongs, no sample is taken any more, and there are no flow queues.
    assert_eq!(cheat(&mut world, &mut client, Span::millis(1)), []);
    assert_eq!(world.event("shop", "misclassified"), 4);
    let (client, refused) = world.open(client, 9);
    assert!(matches!(refused, Err(VnicError::NotOpened(OpenRefusal::Forced))), "{refused:?}");
    let (client, queues) = world.queues_for(client, vec![spec(8), spec(9)]);
    assert_eq!(queues, [0, 0]);
    world.reload(TWO);
    let (client, queues) = world.queues_for(client, vec![spec(9)]);
    assert_ne!(queues, [0], "a reload begins anew");
    drop(client);
}

#[test]
fn a_client_that_keeps_to_the_rules_is_never_suspected() {
    let mut world = World::new(TWO);
    world.engine.set_sampler(plimsoll_daemon::Sampler::new(1, 1));
    let client = world.client("shop");
    let (mut client, _) = world.queues_for(client, (1..20).map(spec).collect());
    for number in 0..100 {
        let frame = udp(1, OUTSIDE, 1 + (number % 19) as u16, number, 200);
        let queue = client.classify(&frame).expect("known");
        assert_ne!(queue, 0);
        client.send(queue, &frame).expect("room");
    }
    client.ring().expect("a kick");
    world.run(Span::millis(2));
    assert_eq!((world.event("shop", "verified"), world.event("shop", "misclassified")), (100, 0));
}

#[test]
fn pieces_that_lie_apart_leave_as_one_frame() {
    let mut world = World::new(TWO);
    let mut client = world.client("shop");
    let frame = udp(1, OUTSIDE, 1, 9, 1_400);
    let parts = [&frame[..14], &frame[14..42], &[], &frame[42..43], &frame[43..]];
    client.send_gathered(0, &parts, &VnetHeader::default(), 0).expect("room");
    client.ring().expect("a kick");
    assert_eq!(world.run(Span::micros(100)), [frame]);
    assert_eq!(statuses(&mut client), [Status::Sent]);
}
