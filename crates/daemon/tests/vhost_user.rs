//! Virtual machines are tenants like others; what they send beyond a limit waits with them, and holds up nothing else.

#[path = "../../ports/tests/support/guest.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod guest;
mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use guest::{FROM, Guest, VERSION_1};
use plimsoll_daemon::{Change, DepartureLog, Engine, Setup, engine_config, lane_spec};
use plimsoll_policy::Checked;
use plimsoll_ports::{Completions, FRAME_ROOM, MemoryConfig, MemoryPort, Port, VhostUser, VhostUserConfig};
use plimsoll_units::{Nanos, Span};
use support::{drain, policy, udp};

const STEP: Span = Span::micros(20);
const OUTSIDE: u8 = 99;
const SIZE: u16 = 64;
/// Packets from port 7 at 1 Mbit/s, the others as fast as the link.
const ONE: &str = "
uplink: {port: memory, rate: 100Mbps}
tenants: {vm: {port: memory, via: [slow]}}
limits: {slow: {match: {src_port: 7}, rate: 1Mbps, burst: 1518B}}
";

/// An engine, a wire in memory, and a guest whose sockets have so many packets on their way at most.
struct World {
    engine: Engine,
    wire: MemoryPort,
    guest: Guest,
    now: Nanos,
    checked: Checked,
    free: Vec<u16>,
    /// Which port's packet is behind each head.
    behind: BTreeMap<u16, u16>,
    posted: BTreeMap<u16, u64>,
    left: BTreeMap<u16, u64>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(completions: Completions) -> Self {
        let checked = policy(ONE);
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("vm.sock");
        let config = VhostUserConfig { completions, ..VhostUserConfig::new(&path) };
        let mut port = VhostUser::open(&config).expect("a port");
        let guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
        let memory = MemoryConfig { slots: 4_096, frame: FRAME_ROOM, ..MemoryConfig::default() };
        let (uplink, wire) = MemoryPort::pair("uplink", memory).expect("memory");
        let uplink = Port::Memory(uplink);
        let engine = Engine::new(Setup {
            program: Arc::new(checked.program.clone()),
            config: engine_config(&checked, &uplink),
            lanes: vec![lane_spec(&checked, "vm", Some(Port::VhostUser(port)))],
            uplink,
            log: Arc::new(DepartureLog::default()),
            fleet: None,
        });
        let free = (0..SIZE).rev().collect();
        let (behind, posted, left) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { engine, wire, guest, now: Nanos::ZERO, checked, free, behind, posted, left, _folder: folder }
    }

    /// Posts a packet of the flow, if the guest has a descriptor for it.
    fn post(&mut self, flow: u16) -> bool {
        let Some(head) = self.free.pop() else { return false };
        let number = self.posted.entry(flow).or_default();
        self.guest.post(head, &udp(1, OUTSIDE, flow, *number as u32, 1_000));
        *number += 1;
        self.behind.insert(head, flow);
        true
    }

    fn on_its_way(&self, flow: u16) -> usize {
        self.behind.values().filter(|&&of| of == flow).count()
    }

    /// As a guest's sockets do: each keeps so many packets on their way.
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

/// PicNIC's Figure 2, with UDP for all: the slow flow holds half of the ring.
fn beside_a_slow_flow(completions: Completions) -> (u64, u64) {
    let mut alone = World::new(completions);
    alone.run(Span::millis(400), &[(1, 16)]);
    let mut world = World::new(completions);
    world.run(Span::millis(400), &[(7, 32), (1, 16)]);
    // 1 Mbit/s of 1,066 bytes with what is around them on the wire.
    assert!((40..60).contains(&world.left(7)), "{}", world.left(7));
    assert!(world.losses().is_empty());
    (alone.left(1), world.left(1))
}

#[test]
fn a_flow_beyond_its_limit_holds_up_no_other_when_completions_come_in_any_order() {
    let (alone, beside) = beside_a_slow_flow(Completions::OutOfOrder);
    assert!(beside * 100 >= alone * 95, "{beside} of {alone}");
}

#[test]
fn in_order_it_holds_up_all() {
    let (alone, beside) = beside_a_slow_flow(Completions::InOrder);
    assert!(beside * 2 < alone, "{beside} of {alone}");
}

#[test]
fn what_is_beyond_a_flows_cap_waits_with_the_guest_in_order_and_is_lost_only_at_the_end() {
    let mut world = World::new(Completions::OutOfOrder);
    let most = usize::from(SIZE - SIZE / 8);
    world.run(Span::millis(20), &[(7, most)]);
    assert!(world.on_its_way(7) >= most - 1, "none comes back but what has left");
    assert!(world.event("held_by_sender") > 0 && world.losses().is_empty(), "{:?}", world.losses());
    assert!(world.engine.held() <= u32::from(SIZE) / 2, "{} in the engine", world.engine.held());
    // The guest has no manners: the rest of its ring is for others all the same.
    world.run(Span::millis(20), &[(1, 4), (7, SIZE.into())]);
    let lost: Vec<_> = world.losses();
    assert!(matches!(lost[..], [("flow_full", _)]), "{lost:?}");
    let before = world.left(1);
    world.run(Span::millis(100), &[(1, 4), (7, SIZE.into())]);
    assert!(world.left(1) > before + 100, "{} more", world.left(1) - before);
    // All that was posted leaves or was counted.
    world.run(Span::secs(2), &[]);
    assert_eq!((world.engine.held(), world.behind.len()), (0, 0));
    let lost: u64 = world.losses().iter().map(|&(_, count)| count).sum();
    assert_eq!(world.posted.values().sum::<u64>(), world.left.values().sum::<u64>() + lost);
}

#[test]
fn early_completions_lose_what_the_guest_is_never_told_to_hold() {
    let mut world = World::new(Completions::Early);
    world.run(Span::millis(200), &[(7, 32), (1, 16)]);
    let lost = world.losses();
    assert!(lost.iter().any(|&(why, count)| why == "flow_full" && count > 100), "{lost:?}");
    assert_eq!(world.event("held_by_sender"), 0);
}

#[test]
fn a_reload_leaves_the_guest_and_what_it_has_on_its_way_alone() {
    let mut world = World::new(Completions::OutOfOrder);
    world.run(Span::millis(20), &[(7, 40), (1, 8)]);
    let before = (world.on_its_way(7), world.engine.held());
    assert!(before.1 > 20);
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
