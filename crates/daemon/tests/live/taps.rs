//! Trains of frames that are read from a TAP.

use std::sync::Arc;

use crate::support::{drain, number, policy, udp};
use plimsoll_daemon::{Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_ports::netns::{Netns, NetnsRef};
use plimsoll_ports::{
    FRAME_ROOM, MemoryConfig, MemoryPort, PacketConfig, PacketSocket, Port, Sending, Tap, TapConfig,
};
use plimsoll_units::{Nanos, Span};

const OUTSIDE: u8 = 99;

/// An engine with one tenant behind a TAP, the tenant's own end, and a wire in memory.
struct World {
    engine: Dataplane,
    tenant: PacketSocket,
    wire: MemoryPort,
    now: Nanos,
    _netns: Netns,
}

impl World {
    /// `None` where namespaces are not allowed.
    fn new(text: &str) -> Option<Self> {
        let netns = Netns::anonymous("trains").ok()?;
        for which in ["all", "default"] {
            let _ = netns.set_sysctl(&format!("net.ipv6.conf.{which}.disable_ipv6"), "1");
        }
        let mut config = TapConfig::new(NetnsRef::Path(netns.path()), "eth0");
        config.addresses.push("10.0.0.1/24".parse().expect("an address"));
        let tap = Tap::open(&config).expect("a TAP");
        let packet = PacketConfig { vnet: false, ..PacketConfig::new(NetnsRef::Path(netns.path()), "eth0") };
        let tenant = PacketSocket::open(&packet).expect("a packet socket");
        let memory = MemoryConfig { slots: 4_096, frame: FRAME_ROOM, ..MemoryConfig::default() };
        let (uplink, wire) = MemoryPort::pair("uplink", memory).expect("memory");
        let (checked, uplink) = (policy(text), Port::Memory(uplink));
        let engine = Dataplane::new(Setup {
            program: Arc::new(checked.program.clone()),
            config: engine_config(&checked, &uplink),
            lanes: vec![lane_spec(&checked, "shop", Some(Port::Tap(tap)))],
            uplink,
            log: Arc::new(DepartureLog::default()),
            fleet: None,
        });
        Some(Self { engine, tenant, wire, now: Nanos::ZERO, _netns: netns })
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            assert_eq!(self.tenant.send(frame, None), Ok(Sending::Sent));
        }
        self.tenant.flush().expect("it is up");
    }

    fn run(&mut self, span: Span) -> Vec<Vec<u8>> {
        let end = self.now + span;
        let mut left = Vec::new();
        while self.now < end {
            self.engine.all_ready();
            self.engine.turn(self.now);
            self.now += Span::micros(10);
            left.extend(drain(&mut self.wire));
        }
        // What the interface says for itself.
        left.retain(|frame| frame[12..14] == [8, 0] && frame[23] == 17);
        left
    }
}

#[test]
fn frames_of_a_tap_leave_whole_each_flows_in_order() {
    let text = "{uplink: {port: memory, rate: 10Gbps}, tenants: {shop: {port: memory, flows: fifo}}}";
    let Some(mut world) = World::new(text) else { return };
    let runs = [(7, 20, 60), (8, 3, 60), (7, 20, 90), (9, 1, 1_400), (7, 1, 60), (8, 40, 70)];
    let mut frames = Vec::new();
    for (port, count, len) in runs {
        let begun = frames.len() as u32;
        frames.extend((0..count).map(|n| udp(1, OUTSIDE, port, begun + n, len)));
    }
    world.send(&frames);
    let left = world.run(Span::millis(1));
    assert_eq!(left.len(), frames.len());
    for port in [7, 8, 9] {
        let of = |all: &[Vec<u8>]| -> Vec<Vec<u8>> {
            all.iter().filter(|frame| number(frame).0 == port).cloned().collect()
        };
        assert_eq!(of(&left), of(&frames), "flow {port}");
    }
    assert_eq!(world.engine.held(), 0);
}

/// A flow queue holds a number of frames, also where several of them are one descriptor.
#[test]
fn frames_beyond_a_flow_queues_ring_are_lost_and_counted() {
    let text = "{uplink: {port: memory, rate: 10Gbps}, engine: {ring: 8},
        tenants: {shop: {port: memory, flows: fifo, max: 100kbps}}}";
    let Some(mut world) = World::new(text) else { return };
    let frames: Vec<_> = (0..30).map(|n| udp(1, OUTSIDE, 7, n, 60)).collect();
    world.send(&frames);
    let left = world.run(Span::millis(200));
    let snapshot = world.engine.snapshot(world.now);
    let losses: Vec<_> = snapshot.lanes[0].tally.losses().collect();
    let lost = losses.iter().find(|(why, _)| *why == "flow_full").map_or(0, |&(_, count)| count);
    assert_eq!(left.len() as u64 + lost, 30, "{losses:?}");
    assert!((8..30).contains(&left.len()), "{} left", left.len());
    assert_eq!(left, frames[..left.len()], "the first ones");
}
