//! A daemon's engine between memory ports, without root, clock or threads.

use std::sync::Arc;

use plimsoll_daemon::{
    Change, Core, Counting, Dataplane, DepartureLog, ExperimentCore, FleetSetup, HeavyFlows, Lane, Setup,
    engine_config, fleet_map, lane_spec,
};
use plimsoll_policy::{Checked, Program};
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port, Sending};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::overlay::{Addresses, Format, Path, Ports};
use plimsoll_wire::{Mac, VnetHeader};

/// A core whose CPU time a test states.
pub struct Stated(pub Span);

impl Core for Stated {
    fn used(&self) -> Span {
        self.0
    }
}

/// The key of every fleet in these tests.
pub const KEY: [u8; 32] = [7; 32];

/// The fleet of a policy, if it has one: makes room for its limits in the program, and answers the engine's parts.
pub fn fleet_of(checked: &Checked, program: &mut Program, [sequence, start]: [u64; 2]) -> Option<FleetSetup> {
    let map = fleet_map(checked, program)?;
    let overlay = checked.config.overlay.as_ref().expect("a fleet is an overlay's");
    let mac = [6, 0, 0, 0, 0, overlay.own().number.to_be_bytes()[3]];
    let keys = overlay.key.as_ref().map(|_| KEY.into());
    Some(FleetSetup { map, mac, keys, sequence, start })
}

/// The engine, and the other end of each of its ports.
pub struct World {
    /// The engine under test.
    pub engine: Dataplane,
    /// The departure log.
    pub log: Arc<DepartureLog>,
    /// Tenants' ends, in the policy's order.
    pub tenants: Vec<MemoryPort>,
    /// The uplink's other end.
    pub wire: MemoryPort,
    /// The time.
    pub now: Nanos,
    /// The core that the policy's experiment wants for the way in.
    core: Option<ExperimentCore>,
}

/// A policy from its text.
pub fn policy(text: &str) -> Checked {
    plimsoll_policy::check_str("test.yaml", text).unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

fn memory(name: &str, segmentation: bool) -> (MemoryPort, MemoryPort) {
    let frame = if segmentation { FRAME_ROOM } else { 2_048 };
    let config = MemoryConfig { slots: 512, frame, segmentation, ..MemoryConfig::default() };
    MemoryPort::pair(name, config).expect("memory")
}

impl World {
    /// An engine for this policy, whose tenants' ports take and give segmentation offload or not.
    pub fn new(text: &str, segmentation: bool) -> Self {
        Self::between(&policy(text), segmentation, false)
    }

    /// An engine whose uplink cuts segments itself, as do its tenants' ports.
    pub fn with_cutting_uplink(text: &str) -> Self {
        Self::between(&policy(text), true, true)
    }

    /// An engine for a policy that is checked already.
    pub fn between(checked: &Checked, segmentation: bool, cutting: bool) -> Self {
        Self::started(checked, segmentation, cutting, [1_000, 7])
    }

    /// An engine of a fleet that starts with this number, which other starts may have had, and this random one.
    pub fn started(checked: &Checked, segmentation: bool, cutting: bool, start: [u64; 2]) -> Self {
        let (uplink, wire) = memory("uplink", cutting);
        let uplink = Port::Memory(uplink);
        let (mut lanes, mut tenants) = (Vec::new(), Vec::new());
        for tenant in &checked.config.tenants {
            let (port, end) = memory(&tenant.name, segmentation);
            lanes.push(lane_spec(checked, &tenant.name, Some(Port::Memory(port))));
            tenants.push(end);
        }
        let log = Arc::new(DepartureLog::default());
        let mut program = checked.program.clone();
        let fleet = fleet_of(checked, &mut program, start);
        let mut engine = Dataplane::new(Setup {
            program: Arc::new(program),
            config: engine_config(checked, &uplink),
            uplink,
            lanes,
            log: Arc::clone(&log),
            fleet,
        });
        if let Some(counting) = Counting::of(&checked.config) {
            engine.count_flows(&counting, Box::new(HeavyFlows::new(&counting.stated)), Nanos::ZERO);
        }
        let experiment = checked.config.engine.experiment.as_ref();
        experiment.iter().for_each(|experiment| engine.set_drain_share(experiment.drain_share));
        let core = experiment.map(ExperimentCore::new);
        Self { engine, log, tenants, wire, now: Nanos::ZERO, core }
    }

    /// A tenant sends a frame.
    pub fn send(&mut self, tenant: usize, frame: &[u8]) -> Sending {
        self.tenants[tenant].send(frame, None).expect("the engine's end is there")
    }

    /// A tenant sends a frame with a virtio-net header.
    pub fn send_with(&mut self, tenant: usize, frame: &[u8], vnet: &VnetHeader) -> Sending {
        self.tenants[tenant].send(frame, Some(vnet)).expect("the engine's end is there")
    }

    /// Turns of the engine, `step` apart, for `span`, on a core that is always busy; answers what came out on the wire.
    pub fn run(&mut self, span: Span, step: Span) -> Vec<Vec<u8>> {
        let end = self.now + span;
        let mut out = Vec::new();
        while self.now < end {
            let mut core = Stated(self.now - Nanos::ZERO);
            out.extend(self.run_on(&mut core, step, step));
        }
        out
    }

    /// Like [`World::run`], on this core unless the policy's experiment wants another.
    pub fn run_on(&mut self, core: &mut impl Core, span: Span, step: Span) -> Vec<Vec<u8>> {
        let end = self.now + span;
        let mut out = Vec::new();
        while self.now < end {
            self.turn(core);
            out.extend(self.received());
            self.now += step;
        }
        out
    }

    fn turn(&mut self, other: &mut impl Core) {
        let now = self.now;
        match &mut self.core {
            None => self.engine.turn_on(other, &|_| now),
            Some(core) => self.engine.turn_on(core, &|_| now),
        };
    }

    /// Frames that wait at the wire's end.
    pub fn received(&mut self) -> Vec<Vec<u8>> {
        drain(&mut self.wire)
    }

    /// A change to another policy, with memory ports for tenants that are new. Their ends are added in order.
    pub fn change(&mut self, old: &Checked, new: &Checked) -> Change {
        let mut added = Vec::new();
        for tenant in &new.config.tenants {
            if old.config.tenants.iter().all(|before| before.name != tenant.name) {
                let (port, end) = memory(&tenant.name, false);
                added.push(Lane::new(lane_spec(new, &tenant.name, Some(Port::Memory(port)))));
                self.tenants.push(end);
            }
        }
        Change { added, ..Change::between(old, new) }
    }

    /// Losses of a tenant, or of the uplink, by reason.
    pub fn losses(&mut self, name: &str) -> Vec<(&'static str, u64)> {
        let snapshot = self.engine.snapshot(self.now);
        let ports = snapshot.lanes.iter().chain([&snapshot.uplink]);
        ports
            .filter(|port| port.name == name)
            .flat_map(|port| port.tally.losses().collect::<Vec<_>>())
            .collect()
    }

    /// Events of a tenant, or of the uplink.
    pub fn events(&mut self, name: &str) -> Vec<(&'static str, u64)> {
        let snapshot = self.engine.snapshot(self.now);
        let ports = snapshot.lanes.iter().chain([&snapshot.uplink]);
        ports
            .filter(|port| port.name == name)
            .flat_map(|port| port.tally.events().collect::<Vec<_>>())
            .collect()
    }
}

/// A path between two hosts of an IPv4 underlay, by the last bytes of their addresses, to this hardware address.
pub fn path(src: u8, dst: u8, dst_mac: Mac) -> Path {
    Path {
        format: Format::Geneve,
        src_mac: Mac([6; 6]),
        dst_mac,
        addresses: Addresses::V4 { src: [192, 0, 2, src].into(), dst: [192, 0, 2, dst].into() },
        dscp: 0,
        mtu: 1_500,
        v6_checksum: true,
        capable: false,
        ports: Ports::default(),
    }
}

/// Every frame that waits at a port.
pub fn drain(port: &mut MemoryPort) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; FRAME_ROOM];
    let mut frames = Vec::new();
    while let Ok(Some(received)) = port.receive(&mut buffer) {
        frames.push(buffer[..received.len].to_vec());
    }
    frames
}

/// A UDP datagram over IPv4 in a frame of `len` bytes, from MAC `from` to MAC `to`, with a number as its payload.
pub fn udp(from: u8, to: u8, src_port: u16, number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip_len = u16::try_from(len - 14).expect("fits");
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[10, 0, 0, from]);
    frame[30..34].copy_from_slice(&[10, 0, 0, to]);
    frame[34..36].copy_from_slice(&src_port.to_be_bytes());
    frame[36..38].copy_from_slice(&80_u16.to_be_bytes());
    frame[38..40].copy_from_slice(&(ip_len - 20).to_be_bytes());
    frame[42..46].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Source port and number of such a datagram.
pub fn number(frame: &[u8]) -> (u16, u32) {
    let port = u16::from_be_bytes([frame[34], frame[35]]);
    (port, u32::from_be_bytes([frame[42], frame[43], frame[44], frame[45]]))
}
