//! A daemon's engine between memory ports.
//!
//! Why: what a packet costs the engine's thread shows without kernel, clock and other threads.
//! From: the daemon's own tests, which drive it in this way.
//! Not here: what is measured (`ingress`, `control`).
//! Invariant: the far ends live as long as the engine.

use std::sync::Arc;

use anyhow::{Context, Result};
use plimsoll_daemon::{
    Counting, Dataplane, DepartureLog, FleetSetup, HeavyFlows, Setup, engine_config, fleet_map, lane_spec,
};
use plimsoll_policy::Checked;
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port};
use plimsoll_units::Nanos;

/// An engine and the far ends of its ports.
pub struct Host {
    pub engine: Dataplane,
    pub wire: MemoryPort,
    /// In the policy's order.
    pub tenants: Vec<MemoryPort>,
    buffer: Vec<u8>,
}

impl Host {
    /// `wire` and `slots` are how many frames the uplink and each tenant's port hold.
    pub fn new(policy: &str, wire: usize, slots: usize) -> Result<Self> {
        let checked: Checked = plimsoll_policy::check_str("bench.yaml", policy)
            .map_err(|errors| anyhow::anyhow!(errors.render(false)))?;
        let (uplink, wire) = memory(wire, None)?;
        let uplink = Port::Memory(uplink);
        let (mut lanes, mut tenants) = (Vec::new(), Vec::new());
        for (n, tenant) in (0..).zip(&checked.config.tenants) {
            let (port, end) = memory(slots, Some(mac(n)))?;
            lanes.push(lane_spec(&checked, &tenant.name, Some(Port::Memory(port))));
            tenants.push(end);
        }
        let mut program = checked.program.clone();
        let fleet = fleet_map(&checked, &mut program).map(|map| {
            let overlay = checked.config.overlay.as_ref().expect("a fleet is an overlay's");
            let [.., number] = overlay.own().number.to_be_bytes();
            let keys = overlay.key.as_ref().map(|_| [7; 32].into());
            FleetSetup { map, mac: [6, 0, 0, 0, 0, number], keys, sequence: 1, start: 1 }
        });
        let mut engine = Dataplane::new(Setup {
            config: engine_config(&checked, &uplink),
            program: Arc::new(program),
            uplink,
            lanes,
            log: Arc::new(DepartureLog::default()),
            fleet,
        });
        if let Some(counting) = Counting::of(&checked.config) {
            engine.count_flows(&counting, Box::new(HeavyFlows::new(&counting.stated)), Nanos::ZERO);
        }
        Ok(Self { engine, wire, tenants, buffer: vec![0; FRAME_ROOM] })
    }

    /// Gives the frames that have left to another host. Returns how many there were.
    pub fn hand_over(&mut self, to: &mut Self) -> usize {
        let mut frames = 0;
        while let Ok(Some(received)) = self.wire.receive(&mut self.buffer) {
            let _ = to.wire.send(&self.buffer[..received.len], None);
            frames += 1;
        }
        frames
    }

    /// Throws away the frames that have come for a tenant. Returns how many there were.
    pub fn drain(&mut self, tenant: usize) -> usize {
        let mut frames = 0;
        while let Ok(Some(_)) = self.tenants[tenant].receive(&mut self.buffer) {
            frames += 1;
        }
        frames
    }
}

/// A pair of ports, small enough for the caches, as memory is not what is measured.
pub fn memory(slots: usize, mac: Option<[u8; 6]>) -> Result<(MemoryPort, MemoryPort)> {
    let config = MemoryConfig { slots, mac, ..MemoryConfig::default() };
    MemoryPort::pair("bench", config).context("memory ports")
}

/// A tenant's address.
pub fn mac(tenant: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, tenant]
}

/// A UDP datagram from one address to another in a frame of the given length, without checksums.
pub fn datagram(from: [u8; 6], to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    let ip = u16::try_from(len - 14).expect("a frame");
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&ip.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..30].copy_from_slice(&[10, 99, from[4], from[5]]);
    frame[30..34].copy_from_slice(&[10, 99, to[4], to[5]]);
    frame[34..36].copy_from_slice(&10_000_u16.to_be_bytes());
    frame[36..38].copy_from_slice(&9_u16.to_be_bytes());
    frame[38..40].copy_from_slice(&(ip - 20).to_be_bytes());
    frame
}
