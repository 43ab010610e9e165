//! Small frames of one flow that a guest posts one behind the other travel as one, and only the time shows it: each
//! arrives or is counted, in order, and its descriptor comes back once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::guest::{FROM, Guest, MERGEABLE, TO, VERSION_1, buffer};
use crate::support::{drain, number, policy, udp};
use plimsoll_daemon::{Change, Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_policy::Checked;
use plimsoll_ports::{MemoryConfig, MemoryPort, Port, VhostUser, VhostUserConfig};
use plimsoll_units::{Nanos, Span};
use proptest::prelude::*;

const STEP: Span = Span::micros(20);
const A: u8 = 1;
const B: u8 = 2;
const OUTSIDE: u8 = 99;
const SIZE: u16 = 128;
/// Frames read from a guest in a turn.
const POSTED: u64 = 64;
/// The shortest frame.
const SHORT: usize = 60;

/// Two guests, and a wire with room for a fixed number of frames.
struct World {
    engine: Dataplane,
    log: Arc<DepartureLog>,
    wire: MemoryPort,
    guests: [Guest; 2],
    checked: Checked,
    now: Nanos,
    free: Vec<u16>,
    /// Frames that A has posted and that have not completed, by head.
    out: BTreeMap<u16, Vec<u8>>,
    /// Frames that A has posted, and frames that left, by flow.
    posted: BTreeMap<u16, Vec<Vec<u8>>>,
    left: BTreeMap<u16, Vec<Vec<u8>>>,
    _folder: tempfile::TempDir,
}

fn open(folder: &Path, name: u8, size: u16) -> (VhostUser, Guest) {
    let path = folder.join(name.to_string());
    let mac = Some([2, 0, 0, 0, 0, name]);
    let mut port = VhostUser::open(&VhostUserConfig { mac, ..VhostUserConfig::new(&path) }).expect("a port");
    let guest = Guest::start(&mut port, &path, size, VERSION_1 | MERGEABLE);
    (port, guest)
}

impl World {
    fn new(rate: &str, slots: usize) -> Self {
        Self::with_rings(SIZE, rate, slots)
    }

    fn with_rings(size: u16, rate: &str, slots: usize) -> Self {
        let checked = policy(&format!(
            "uplink: {{port: memory, rate: {rate}}}\n\
             tenants: {{a: {{port: memory, via: [slow]}}, b: {{port: memory}}}}\n\
             limits: {{slow: {{match: {{src_port: 7}}, rate: 1Mbps, burst: 1518B}}}}"
        ));
        let folder = tempfile::tempdir().expect("a folder");
        let [(a, guest_a), (b, guest_b)] = [A, B].map(|name| open(folder.path(), name, size));
        let memory = MemoryConfig { slots, frame: 2_048, ..MemoryConfig::default() };
        let (uplink, wire) = MemoryPort::pair("uplink", memory).expect("memory");
        let uplink = Port::Memory(uplink);
        let log = Arc::new(DepartureLog::default());
        let lane = |name, port| lane_spec(&checked, name, Some(Port::VhostUser(port)));
        let engine = Dataplane::new(Setup {
            program: Arc::new(checked.program.clone()),
            config: engine_config(&checked, &uplink),
            lanes: vec![lane("a", a), lane("b", b)],
            uplink,
            log: Arc::clone(&log),
            fleet: None,
        });
        Self {
            engine,
            log,
            wire,
            guests: [guest_a, guest_b],
            checked,
            now: Nanos::ZERO,
            free: (0..size).rev().collect(),
            out: BTreeMap::new(),
            posted: BTreeMap::new(),
            left: BTreeMap::new(),
            _folder: folder,
        }
    }

    /// A posts a datagram of the flow, if it has a descriptor for it.
    fn post(&mut self, to: u8, flow: u16, len: usize) {
        let Some(head) = self.free.pop() else { return };
        let posted = self.posted.entry(flow).or_default();
        let mut frame = udp(A, to, flow, posted.len() as u32, len);
        frame[46..].iter_mut().zip(0_usize..).for_each(|(byte, at)| *byte = (posted.len() ^ at) as u8);
        self.guests[0].post(head, &frame);
        posted.push(frame.clone());
        self.out.insert(head, frame);
    }

    fn turn(&mut self) {
        self.engine.all_ready();
        self.engine.turn(self.now);
        self.now += STEP;
        for head in self.guests[0].heads(FROM) {
            let head = u16::try_from(head).expect("a head");
            assert!(self.out.remove(&head).is_some(), "{head} came back twice");
            self.free.push(head);
        }
    }

    /// A turn without an account of frames.
    fn turn_with_strays(&mut self) {
        self.engine.all_ready();
        self.engine.turn(self.now);
    }

    fn look(&mut self) {
        for frame in drain(&mut self.wire) {
            self.left.entry(number(&frame).0).or_default().push(frame);
        }
    }

    fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            self.turn();
            self.look();
        }
    }

    /// Turns until all posted frames have left or were lost.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.turn();
            self.look();
            self.now += Span::micros(500);
            if self.out.is_empty() {
                break;
            }
        }
        self.look();
    }

    fn losses(&mut self) -> BTreeMap<&'static str, u64> {
        self.engine.snapshot(self.now).lanes[0].tally.losses().collect()
    }
}

#[test]
fn a_train_is_one_descriptor_no_longer_than_one_frame_of_an_mtu() {
    let mut world = World::new("1Mbps", 512);
    world.post(OUTSIDE, 1, 1_000); // the link is taken
    world.turn();
    (0..40).for_each(|_| world.post(OUTSIDE, 1, SHORT));
    world.turn();
    assert_eq!(world.out.len(), 40);
    assert!(world.engine.held() <= 3, "{} descriptors", world.engine.held());
    world.run(Span::millis(200));
    assert_eq!(world.posted, world.left);
    assert!(world.losses().is_empty());
    let log = world.log.last(100);
    let trains = log.iter().map(|departure| departure.passage).filter(|passage| passage.frames > 1);
    assert!(trains.clone().all(|train| train.len == u32::from(train.frames) * 60 && train.len <= 1_538));
    assert_eq!((trains.count(), log.iter().map(|one| u32::from(one.passage.frames)).sum::<u32>()), (3, 41));
}

#[test]
fn frames_of_several_flows_that_are_taken_at_once_are_parted_into_their_trains() {
    for before in [0, 30] {
        let mut world = World::new("1Mbps", 512);
        // After long trains, many frames are taken before they are compared.
        (0..before).for_each(|_| world.post(OUTSIDE, 9, SHORT));
        world.run(Span::millis(100));
        world.post(OUTSIDE, 9, 1_000); // the link is taken
        world.turn();
        let flows = [1, 1, 2, 2, 2, 3, 1, 1, 4];
        flows.iter().for_each(|&flow| world.post(OUTSIDE, flow, SHORT));
        world.turn();
        assert_eq!(world.out.len(), flows.len(), "none of them has left");
        world.run(Span::millis(100));
        assert_eq!(world.posted, world.left);
        assert!(world.losses().is_empty() && world.out.is_empty());
        let frames: Vec<_> = world.log.last(6).iter().map(|one| one.passage.frames).collect();
        assert_eq!(frames.iter().sum::<u8>(), 1 + flows.len() as u8, "{frames:?}");
        assert_eq!(frames.iter().filter(|frames| **frames == 2).count(), 2, "{frames:?}");
        assert_eq!(frames.iter().filter(|frames| **frames == 3).count(), 1, "{frames:?}");
    }
}

#[test]
fn each_frame_of_a_train_is_measured() {
    let mut world = World::new("10Gbps", 512);
    (0..36).for_each(|_| world.post(OUTSIDE, 1, SHORT));
    world.run(Span::micros(100));
    let snapshot = world.engine.snapshot(world.now);
    let class =
        snapshot.nodes.iter().filter_map(|node| node.delays.as_ref()).map(|delays| delays.len()).sum();
    let parts = snapshot.lanes[0].parts.as_ref().expect("something happened");
    assert_eq!((class, parts.egress.len(), parts.sent_bytes), (36_u64, 36, 36 * SHORT as u64));
}

#[test]
fn a_limit_holds_for_the_frames_of_trains() {
    let mut world = World::new("1Gbps", 512);
    let mut early = 0;
    for millis in 0..500 {
        (0..8).for_each(|_| world.post(OUTSIDE, 7, SHORT));
        world.run(Span::millis(1));
        early = if millis == 99 { world.left[&7].len() } else { early };
    }
    // 1 Mb/s of frames of 60 bytes; a train more or less at each end is allowed.
    let later = world.left[&7].len() - early;
    assert!((815..=851).contains(&later), "{later} in 400 ms");
}

#[test]
fn who_has_too_few_buffers_gets_the_first_of_a_train_and_the_rest_is_counted() {
    let mut world = World::new("10Gbps", 512);
    (0..10).for_each(|head| world.guests[1].lend(head, 1_526));
    (0..16).for_each(|_| world.post(B, 1, SHORT));
    world.turn();
    let got = world.guests[1].given_back(TO);
    let got: Vec<_> = got
        .into_iter()
        .map(|(head, len)| world.guests[1].read(buffer(head as u16) + 12, len as usize - 12))
        .collect();
    assert_eq!(got, world.posted[&1][..10]);
    assert_eq!(world.losses(), BTreeMap::from([("receiver_full", 6)]));
    assert!(world.out.is_empty());
}

#[test]
fn an_uplink_that_is_full_in_the_middle_of_a_train_gets_the_rest_later() {
    let mut world = World::new("10Gbps", 5);
    (0..40).for_each(|_| world.post(OUTSIDE, 1, SHORT));
    for _ in 0..40 {
        world.turn();
        world.look();
    }
    assert_eq!(world.posted, world.left);
    assert!(world.losses().is_empty() && world.out.is_empty());
}

#[test]
fn what_a_stop_gives_up_is_counted_frame_by_frame() {
    let mut world = World::new("1Mbps", 512);
    world.post(OUTSIDE, 1, 1_000);
    (0..40).for_each(|_| world.post(OUTSIDE, 1, SHORT));
    world.turn();
    world.look();
    assert_eq!(world.engine.abandon(world.now) + world.left[&1].len() as u64, 41);
    assert_eq!(world.losses()["stopped"] + world.left[&1].len() as u64, 41);
}

/// The rest of a train whose first frames have left already.
#[test]
fn a_stop_in_the_middle_of_a_train_counts_the_rest_of_it() {
    let mut world = World::new("10Gbps", 7);
    (0..36).for_each(|_| world.post(OUTSIDE, 1, SHORT));
    world.turn();
    let stopped = world.engine.abandon(world.now);
    world.look();
    assert_eq!((world.left[&1].len(), stopped), (7, 29));
    assert_eq!(world.losses(), BTreeMap::from([("stopped", 29)]));
}

impl World {
    fn taken_and_refused(&mut self) -> (u64, u64) {
        let counters = self.engine.snapshot(self.now).lanes[0].counters;
        (counters.rx_packets, counters.rx_drops.iter().sum())
    }
}

/// A guest cannot make a turn longer, whatever it posts.
#[test]
fn a_turn_reads_so_many_frames_alike_or_not() {
    let mut world = World::new("10Gbps", 512);
    (0..SIZE).for_each(|n| world.post(OUTSIDE, n % 3, SHORT));
    world.turn();
    assert_eq!(world.taken_and_refused(), (POSTED, 0));

    let mut world = World::new("10Gbps", 512);
    for head in 0..SIZE {
        // IPv4 without a version, of other lengths in turn.
        let mut frame = udp(A, OUTSIDE, 1, 0, SHORT + usize::from(head % 2));
        frame[14] = 0;
        world.guests[0].post(head, &frame);
    }
    world.turn_with_strays();
    assert_eq!(world.taken_and_refused(), (POSTED, 0));

    let mut world = World::new("10Gbps", 512);
    (0..SIZE).for_each(|_| world.guests[0].offer(FROM, u16::MAX));
    world.turn_with_strays();
    assert_eq!(world.taken_and_refused(), (0, POSTED));
}

/// The next step of a run.
#[derive(Clone, Debug)]
enum Step {
    Post { flow: u16, len: usize, times: usize },
    Turn(u8),
    Look,
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => Just(SHORT), 1 => 60_usize..400, 1 => Just(1_514)];
    prop_oneof![
        6 => (prop_oneof![Just(1_u16), Just(2), Just(7)], len, 1_usize..20)
            .prop_map(|(flow, len, times)| Step::Post { flow, len, times }),
        4 => (1_u8..8).prop_map(Step::Turn),
        3 => Just(Step::Look),
        1 => Just(Step::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_frame_leaves_once_in_order_and_unchanged_or_is_counted(
        steps in prop::collection::vec(step(), 1..60),
        slots in prop_oneof![Just(7_usize), Just(512)],
        size in prop_oneof![Just(1_u16), Just(2), Just(16), Just(SIZE)],
    ) {
        let mut world = World::with_rings(size, "100Mbps", slots);
        for step in steps {
            match step {
                Step::Post { flow, len, times } => (0..times).for_each(|_| world.post(OUTSIDE, flow, len)),
                Step::Turn(times) => (0..times).for_each(|_| world.turn()),
                Step::Look => world.look(),
                Step::Reload => {
                    let change = Change::between(&world.checked, &world.checked.clone());
                    world.engine.install(change, world.now);
                }
            }
        }
        world.settle();
        prop_assert_eq!((world.engine.held(), world.out.len()), (0, 0));
        let lost: u64 = world.losses().into_iter().map(|(why, count)| {
            assert!(why == "flow_full" || why == "waited_too_long", "{why}");
            count
        }).sum();
        let count = |frames: &BTreeMap<u16, Vec<Vec<u8>>>| frames.values().map(Vec::len).sum::<usize>() as u64;
        prop_assert_eq!(count(&world.posted), count(&world.left) + lost);
        for (flow, left) in &world.left {
            let mut posted = world.posted[flow].iter();
            prop_assert!(left.iter().all(|frame| posted.any(|other| other == frame)), "flow {}", flow);
        }
    }
}
