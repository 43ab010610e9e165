//! The way in: frames from the uplink to 64 tenants, each by its share of the CPU.
//!
//! Why: isolation on the way in is paid for by each frame.
//! From: the bar of 5 million packets a second and core, through memory ports (PicNIC's budget is about 100 ns, §6.5).
//! Not here: what a flood costs its neighbours (the tests).
//! Invariant: both sides take the frames from the same port and put them into the same tenants' ports, and only that is
//! charged; the frames are made before and thrown away after.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use plimsoll_daemon::Clock;
use plimsoll_ports::{FRAME_ROOM, MemoryPort, Sending};

use crate::hold::processor_time;
use crate::host::{Host, datagram, mac, memory};
use crate::report::{Goal, Row};
use crate::scheduler::Effort;

/// How many tenants there are.
pub const TENANTS: u8 = 64;

/// Frames that wait at the uplink when a side gets its turn.
pub const BATCH: usize = 512;

/// Frames that a tenant's port holds.
const SLOTS: usize = 4 * BATCH / TENANTS as usize;

/// Goal for one core, beside the copy loop.
const BAR: f64 = 0.6;

/// Frames without their check sequence: 64 B, and simple IMIX, seven of 64 B to four of 594 and one of 1,518.
const SMALL: [usize; 1] = [60];
const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1_514, 60, 590, 60, 60, 590];

/// `rounds` times, the sides taking turns.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    let small = row("64 B", &SMALL, effort)?;
    let imix = row("IMIX", &IMIX, effort)?;
    Ok(vec![
        small
            .goal(Goal::RatioAtLeast(BAR))
            .note("one core; ours with a queue for each tenant, served by CPU time"),
        imix.goal(Goal::RatioAtLeast(BAR)).note("7 frames of 64 B to 4 of 594 and one of 1,518"),
    ])
}

fn row(what: &str, sizes: &[usize], effort: Effort) -> Result<Row> {
    let to = |tenant| sizes.iter().map(move |size| datagram([2, 0, 0, 0, 2, 2], mac(tenant), *size));
    let frames: Vec<Vec<_>> = (0..TENANTS).map(|tenant| to(tenant).collect()).collect();
    let (mut peer, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        peer.push(rate(effort.packets, &frames, &mut Loop::new()?)?);
        ours.push(rate(effort.packets, &frames, &mut Ours::new("")?)?);
    }
    let name = format!("frames in, {what}, {TENANTS} tenants");
    Ok(Row::new(name, "a loop that copies by address", "packets/s").figures(&peer, &ours))
}

/// Moves frames from the uplink to their tenants.
pub trait Side {
    /// The far ends: the wire's, and the tenants'.
    fn ends(&mut self) -> (&mut MemoryPort, &mut [MemoryPort]);
    /// Moves everything that waits.
    fn move_all(&mut self);
}

/// Packets a second of one side, by the time that it takes to move them: each tenant's frames in turn.
pub fn rate(packets: u64, frames: &[Vec<Vec<u8>>], side: &mut dyn Side) -> Result<f64> {
    let mut spent = Duration::ZERO;
    let (mut arrived, mut buffer) = (0, vec![0; FRAME_ROOM]);
    let batches = packets.div_ceil(BATCH as u64);
    for _ in 0..batches {
        for n in 0..BATCH {
            let own = &frames[n % frames.len()];
            let sent = side.ends().0.send(&own[n / frames.len() % own.len()], None);
            ensure!(sent == Ok(Sending::Sent), "the wire takes no frame: {sent:?}");
        }
        let begun = processor_time();
        side.move_all();
        spent += processor_time() - begun;
        for tenant in side.ends().1 {
            while let Ok(Some(_)) = tenant.receive(&mut buffer) {
                arrived += 1;
            }
        }
    }
    ensure!(arrived == batches * BATCH as u64, "{arrived} of {} frames arrived", batches * BATCH as u64);
    Ok(arrived as f64 / spent.as_secs_f64())
}

/// A daemon's engine.
pub struct Ours {
    pub host: Host,
    pub clock: Clock,
}

impl Ours {
    /// With `more` at the end of the policy.
    pub fn new(more: &str) -> Result<Self> {
        Self::with("", more)
    }

    /// With `keys` of each tenant, and `more` at the end of the policy.
    pub fn with(keys: &str, more: &str) -> Result<Self> {
        let mut policy = "uplink: {port: memory, rate: 100Gbps}\ntenants:\n".to_owned();
        (0..TENANTS).for_each(|n| policy += &format!("  t{n}: {{port: memory, max: 10Gbps{keys}}}\n"));
        policy += more;
        Ok(Self { host: Host::new(&policy, BATCH, SLOTS)?, clock: Clock::default() })
    }
}

impl Side for Ours {
    fn ends(&mut self) -> (&mut MemoryPort, &mut [MemoryPort]) {
        (&mut self.host.wire, &mut self.host.tenants)
    }

    fn move_all(&mut self) {
        let clock = self.clock;
        while self.host.engine.turn_by(&|_| clock.now()).busy {}
    }
}

/// The least work that delivers: take a frame, look its address up, hand it on.
pub struct Loop {
    uplink: MemoryPort,
    wire: MemoryPort,
    ports: Vec<MemoryPort>,
    tenants: Vec<MemoryPort>,
    by_address: HashMap<[u8; 6], usize>,
    buffer: Vec<u8>,
}

impl Loop {
    pub fn new() -> Result<Self> {
        let (uplink, wire) = memory(BATCH, None)?;
        let (mut ports, mut tenants) = (Vec::new(), Vec::new());
        for n in 0..TENANTS {
            let (port, end) = memory(SLOTS, Some(mac(n)))?;
            ports.push(port);
            tenants.push(end);
        }
        let by_address = (0..TENANTS).map(|n| (mac(n), usize::from(n))).collect();
        Ok(Self { uplink, wire, ports, tenants, by_address, buffer: vec![0; FRAME_ROOM] })
    }
}

impl Side for Loop {
    fn ends(&mut self) -> (&mut MemoryPort, &mut [MemoryPort]) {
        (&mut self.wire, &mut self.tenants)
    }

    fn move_all(&mut self) {
        while let Ok(Some(received)) = self.uplink.receive(&mut self.buffer) {
            let frame = &self.buffer[..received.len];
            let owner = frame.first_chunk().and_then(|mac| self.by_address.get(mac));
            if let Some(&tenant) = owner {
                let _ = self.ports[tenant].send(frame, None);
            }
        }
        for port in &mut self.ports {
            let _ = port.flush();
        }
    }
}
