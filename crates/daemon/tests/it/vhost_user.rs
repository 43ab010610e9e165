//! Virtual machines are tenants like others; frames beyond a limit wait in the guest, and hold up no other flow.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::guest::{FROM, Guest, VERSION_1};
use crate::support::{KEY, drain, fleet_of, policy, udp};
use plimsoll_control::{Allowance, For, HostId, Limits, Sealer, Vnic};
use plimsoll_daemon::{Change, Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_policy::Checked;
use plimsoll_ports::{
    CompletionOrder, FRAME_ROOM, MemoryConfig, MemoryPort, Port, VhostUser, VhostUserConfig,
};
use plimsoll_units::{BitRate, Nanos, Span};

const STEP: Span = Span::micros(20);
const OUTSIDE: u8 = 99;
const SIZE: u16 = 64;
/// Packets from port 7 at 1 Mbit/s, the others as fast as the link.
const ONE: &str = "
uplink: {port: memory, rate: 100Mbps}
tenants: {vm: {port: memory, flows: fifo, via: [slow]}}
limits: {slow: {match: {src_port: 7}, rate: 1Mbps, burst: 1518B}}
";

/// An engine, a wire in memory, and a guest whose sockets have a bounded number of packets on their way.
struct World {
    engine: Dataplane,
    wire: MemoryPort,
    guest: Guest,
    now: Nanos,
    checked: Checked,
    free: Vec<u16>,
    /// The source port of the packet behind each head.
    behind: BTreeMap<u16, u16>,
    posted: BTreeMap<u16, u64>,
    left: BTreeMap<u16, u64>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(completions: CompletionOrder) -> Self {
        Self::of(ONE, completions)
    }

    fn of(text: &str, completions: CompletionOrder) -> Self {
        Self::with_rings(SIZE, text, completions)
    }

    fn with_rings(size: u16, text: &str, completions: CompletionOrder) -> Self {
        let checked = policy(text);
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("vm.sock");
        let config = VhostUserConfig { completions, ..VhostUserConfig::new(&path) };
        let mut port = VhostUser::open(&config).expect("a port");
        let guest = Guest::start(&mut port, &path, size, VERSION_1);
        let memory = MemoryConfig { slots: 4_096, frame: FRAME_ROOM, ..MemoryConfig::default() };
        let (uplink, wire) = MemoryPort::pair("uplink", memory).expect("memory");
        let uplink = Port::Memory(uplink);
        let mut program = checked.program.clone();
        let fleet = fleet_of(&checked, &mut program, [1_000, 7]);
        let engine = Dataplane::new(Setup {
            program: Arc::new(program),
            config: engine_config(&checked, &uplink),
            lanes: vec![lane_spec(&checked, "vm", Some(Port::VhostUser(port)))],
            uplink,
            log: Arc::new(DepartureLog::default()),
            fleet,
        });
        let free = (0..size).rev().collect();
        let (behind, posted, left) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { engine, wire, guest, now: Nanos::ZERO, checked, free, behind, posted, left, _folder: folder }
    }

    /// Posts a packet of the flow, if the guest has a descriptor for it.
    fn post(&mut self, flow: u16) -> bool {
        let Some(head) = self.free.pop() else { return false };
        let number = self.posted.entry(flow).or_default();
        let to = if self.checked.config.overlay.is_some() { flow as u8 } else { OUTSIDE };
        self.guest.post(head, &udp(1, to, flow, *number as u32, 1_000));
        *number += 1;
        self.behind.insert(head, flow);
        true
    }

    fn on_its_way(&self, flow: u16) -> usize {
        self.behind.values().filter(|&&of| of == flow).count()
    }

    /// Posts as a guest's sockets do: each keeps a fixed number of packets on their way.
    fn run(&mut self, span: Span, sockets: &[(u16, usize)]) {
        let end = self.now + span;
        while self.now < end {
            for &(flow, most) in sockets {
                while self.on_its_way(flow) < most && self.post(flow) {}
            }
            self.engine.all_ready();
            self.engine.turn(self.now);
            self.now += STEP;
            for frame in drain(&mut self.wire) {
                let frame = inner(&frame);
                *self.left.entry(u16::from_be_bytes([frame[34], frame[35]])).or_default() += 1;
            }
            for head in self.guest.heads(FROM) {
                let head = u16::try_from(head).expect("a head");
                self.behind.remove(&head).expect("it was out");
                self.free.push(head);
            }
        }
    }

    fn left(&self, flow: u16) -> u64 {
        self.left.get(&flow).copied().unwrap_or(0)
    }

    fn event(&mut self, event: &str) -> u64 {
        let snapshot = self.engine.snapshot(self.now);
        snapshot.lanes[0].tally.events().find(|&(found, _)| found == event).map_or(0, |(_, count)| count)
    }

    fn losses(&mut self) -> Vec<(&'static str, u64)> {
        self.engine.snapshot(self.now).lanes[0].tally.losses().collect()
    }
}

/// A tenant's frame: as it is, or within Geneve.
fn inner(frame: &[u8]) -> &[u8] {
    let geneve = frame[36..38] == 6_081_u16.to_be_bytes();
    if geneve { &frame[50 + 4 * usize::from(frame[42] & 0x3f)..] } else { frame }
}

/// A guest chooses how long its rings are.
#[test]
fn rings_of_very_few_descriptors_carry_what_they_can() {
    for size in [1, 2, 4] {
        let mut world = World::with_rings(size, ONE, CompletionOrder::OutOfOrder);
        world.run(Span::millis(20), &[(1, 8)]);
        assert!(world.left(1) > 50, "{size}: {}", world.left(1));
        assert!(world.losses().is_empty());
    }
}

#[test]
fn where_descriptors_come_back_early_they_come_back_before_anything_has_left() {
    for (completions, out) in [(CompletionOrder::Early, 0), (CompletionOrder::OutOfOrder, 8)] {
        let mut world = World::new(completions);
        // 1 Mbit/s lets one leave at once, and another after nine milliseconds.
        for posted in [1, 8] {
            (0..posted).for_each(|_| assert!(world.post(7)));
            world.run(Span::millis(1), &[]);
            assert_eq!(world.left(7), 1);
        }
        assert_eq!(world.behind.len(), out, "{completions:?}");
    }
}

/// A limited flow fills its part of the engine, and the others go on: also while the guest is served apart.
#[test]
fn where_descriptors_come_back_early_a_slow_flow_holds_up_no_other_apart_either() {
    let mut world = World::of(&format!("{ONE}\nengine: {{ring: 4096}}"), CompletionOrder::Early);
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while world.losses().is_empty() {
        assert!(std::time::Instant::now() < end, "{} in the engine", world.engine.held());
        world.run(Span::micros(100), &[(7, 32)]);
    }
    assert!(matches!(world.losses()[..], [("flow_full", _)]), "{:?}", world.losses());
    while world.left(1) < 100 {
        assert!(std::time::Instant::now() < end, "{} have left", world.left(1));
        world.run(Span::micros(100), &[(1, 16)]);
    }
    assert_eq!(world.event("served_back"), 0, "all of that apart");
}

/// PicNIC's Figure 2, with UDP for all: the slow flow holds half of the ring.
fn beside_a_slow_flow(completions: CompletionOrder) -> (u64, u64) {
    let mut alone = World::new(completions);
    alone.run(Span::millis(400), &[(1, 16)]);
    let mut world = World::new(completions);
    world.run(Span::millis(400), &[(7, 32), (1, 16)]);
    // 1 Mbit/s of frames of 1,066 bytes, with preamble and gap.
    assert!((40..60).contains(&world.left(7)), "{}", world.left(7));
    assert!(world.losses().is_empty());
    (alone.left(1), world.left(1))
}

#[test]
fn a_flow_beyond_its_limit_holds_up_no_other_when_completions_come_in_any_order() {
    let (alone, beside) = beside_a_slow_flow(CompletionOrder::OutOfOrder);
    assert!(beside * 100 >= alone * 95, "{beside} of {alone}");
}

#[test]
fn in_order_it_holds_up_all() {
    let (alone, beside) = beside_a_slow_flow(CompletionOrder::InOrder);
    assert!(beside * 2 < alone, "{beside} of {alone}");
}

#[test]
fn what_is_beyond_a_flows_cap_waits_with_the_guest_in_order_and_is_lost_only_at_the_end() {
    let mut world = World::new(CompletionOrder::OutOfOrder);
    let most = usize::from(SIZE - SIZE / 8);
    world.run(Span::millis(20), &[(7, most)]);
    assert!(world.on_its_way(7) >= most - 1, "none comes back but what has left");
    assert!(world.event("held_by_sender") > 0 && world.losses().is_empty(), "{:?}", world.losses());
    assert!(world.engine.held() <= u32::from(SIZE) / 2, "{} in the engine", world.engine.held());
    // The guest floods one flow; the rest of its ring is for other flows nevertheless.
    world.run(Span::millis(20), &[(1, 4), (7, SIZE.into())]);
    let lost: Vec<_> = world.losses();
    assert!(matches!(lost[..], [("flow_full", _)]), "{lost:?}");
    let before = world.left(1);
    world.run(Span::millis(100), &[(1, 4), (7, SIZE.into())]);
    assert!(world.left(1) > before + 100, "{} more", world.left(1) - before);
    // All posted frames leave or are counted.
    world.run(Span::secs(2), &[]);
    assert_eq!((world.engine.held(), world.behind.len()), (0, 0));
    let lost: u64 = world.losses().iter().map(|&(_, count)| count).sum();
    assert_eq!(world.posted.values().sum::<u64>(), world.left.values().sum::<u64>() + lost);
}

/// Two tenants at another host, called by the last byte of their addresses, which are their flows' ports as well.
const ELSEWHERE: &str = "
uplink: {port: memory, rate: 100Mbps}
tenants: {vm: {port: memory, flows: fifo}}
overlay:
  kind: geneve
  vni: 7
  host: a
  hosts:
    a: {address: 192.0.2.1, tenants: {vm: 02:00:00:00:00:01}}
    b: {address: 192.0.2.2, mac: 06:00:00:00:00:02, tenants: {near: 02:00:00:00:00:0b, far: 02:00:00:00:00:0c}}
  feedback: {key: /not/read, epoch: 2ms, lapse: 60s, fallback: 90Mbps}
";
const NEAR: u16 = 0x0b;
const FAR: u16 = 0x0c;

/// A limit of a receiver on another host holds frames in the guest's own ring: none is lost, and frames to other tenants
/// go on.
#[test]
fn what_a_receiver_elsewhere_does_not_take_waits_with_the_guest() {
    let both = [(FAR, 40), (NEAR, 16)];
    let mut alone = World::of(ELSEWHERE, CompletionOrder::OutOfOrder);
    alone.run(Span::millis(400), &both[1..]);
    let mut world = World::of(ELSEWHERE, CompletionOrder::OutOfOrder);
    let hosts = &world.checked.config.overlay.as_ref().expect("stated").hosts;
    let [a, b] = [0, 1].map(|host: usize| HostId(hosts[host].number));
    let receiver = Vnic { network: 7, mac: [2, 0, 0, 0, 0, 0x0c] };
    let limits = Limits { bits: BitRate::mbps(1), packets: None };
    let mut message = Vec::new();
    Sealer::new(&KEY, b, 1, 1).seal(a, &[Allowance { receiver, whom: For::Each, limits }], &mut message);
    world.engine.hear_channel(&message, world.now);
    world.run(Span::millis(400), &both);
    assert!((35..60).contains(&world.left(FAR)), "{} at 1 Mb/s", world.left(FAR));
    assert!(world.on_its_way(FAR) >= 38 && world.event("held_by_sender") > 0, "{}", world.on_its_way(FAR));
    assert!(world.losses().is_empty(), "{:?}", world.losses());
    let (beside, alone) = (world.left(NEAR), alone.left(NEAR));
    assert!(beside * 100 >= alone * 95, "{beside} of {alone}");
}

#[test]
fn early_completions_lose_what_the_guest_is_never_told_to_hold() {
    let mut world = World::new(CompletionOrder::Early);
    world.run(Span::millis(200), &[(7, 32), (1, 16)]);
    let lost = world.losses();
    assert!(lost.iter().any(|&(why, count)| why == "flow_full" && count > 100), "{lost:?}");
    assert_eq!(world.event("held_by_sender"), 0);
}

#[test]
fn a_reload_leaves_the_guest_and_what_it_has_on_its_way_alone() {
    let mut world = World::new(CompletionOrder::OutOfOrder);
    world.run(Span::millis(20), &[(7, 40), (1, 8)]);
    let before = (world.on_its_way(7), world.engine.held());
    assert!(before.0 > 30 && before.1 > 2, "{before:?}");
    let next = policy(&ONE.replace("rate: 1Mbps", "rate: 2Mbps"));
    world.engine.install(Change::between(&world.checked, &next), world.now);
    world.checked = next;
    assert_eq!((world.on_its_way(7), world.engine.held()), before);
    world.run(Span::secs(1), &[]);
    assert_eq!((world.engine.held(), world.behind.len()), (0, 0));
    assert_eq!(world.posted, world.left, "nothing was lost");
}

/// A TAP's interface has an address that the daemon reads; a guest's is its front end's choice, so that the file states it.
#[test]
fn a_guest_keeps_the_address_that_the_policy_states() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("vm.sock");
    let text = format!(
        "uplink: {{port: memory, rate: 1Gbps}}\n\
         tenants: {{vm: {{port: {{vhost_user: {{socket: {}, mac: '02:00:00:00:00:77'}}}}}}}}",
        socket.display()
    );
    let checked = policy(&text);
    let port =
        plimsoll_daemon::open("tenant vm", &checked.config.tenants[0].port, 1_500, None).expect("open");
    assert_eq!(port.tenant_mac(), Some([2, 0, 0, 0, 0, 0x77]));
}
