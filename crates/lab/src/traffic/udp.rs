//! UDP without answers: paced, or as fast as the sender can.
//!
//! Why: traffic that ignores congestion harms neighbours most.
//! From: packet generators; a paced sender catches up by at most `BURST` datagrams after a delay.
//! Not here: echoed datagrams (`probe`).
//! Invariant: a flood is one thread that sleeps after each burst, so that the machine stays usable.

use super::Side;
use super::bulk::exponential;
use super::socket::{self, UDP_HEADERS};
use crate::error::LabError;
use plimsoll_scenario::{Pace, Turns, WorkloadResult};
use plimsoll_units::Bytes;
use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

/// Most datagrams sent at once to make up for a late wake-up.
const BURST: u64 = 64;
/// Datagrams of a flood between two pauses: about 30,000 a second, which fill a slow link and leave CPU time.
const FLOOD: u64 = 32;
/// Pause after each burst of a flood.
const NAP: Duration = Duration::from_millis(1);

/// Reads and discards datagrams.
pub(super) fn sink(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("receive", error);
    let socket = socket::datagrams(side.job.workload.port, 0).map_err(failed)?;
    socket.set_read_timeout(Some(Duration::from_millis(50))).map_err(failed)?;
    ready();
    let mut buffer = vec![0; 65_536];
    while !side.over(side.last()) {
        match socket.recv(&mut buffer) {
            Ok(_) => {}
            Err(error) if socket::would_block(&error) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(WorkloadResult::default())
}

/// Sends at the given pace, over `flows` source ports in turn; with `turns`, alternately sends and pauses.
pub(super) fn source(
    side: &Side<'_>,
    size: Bytes,
    (pace, turns): (Pace, Option<Turns>),
    flows: u32,
    ect: bool,
) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("send", error);
    let to = SocketAddrV4::new(side.job.peer.address, side.job.workload.port);
    let mut random = fastrand::Rng::with_seed(side.job.seed);
    let sockets: Vec<UdpSocket> = (0..flows.max(1))
        .map(|_| socket::datagrams_to(to, side.job.workload.dscp, &mut random))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    if ect {
        let capable = |socket: &UdpSocket| socket::say_capable(socket, side.job.workload.dscp);
        sockets.iter().try_for_each(capable).map_err(failed)?;
    }
    let payload = vec![0x77; usize::try_from(size.as_u64()).unwrap_or(usize::MAX).clamp(1, 65_000)];
    let mut turn = 0;
    let mut due = side.clock.now();
    let mut until = turns.map_or(u64::MAX, |turns| due + exponential(&mut random, turns.on));
    while !side.over(side.end()) {
        if let Some(turns) = turns.filter(|_| side.clock.now() >= until) {
            due = until + exponential(&mut random, turns.off);
            until = due + exponential(&mut random, turns.on);
            while side.clock.now() < due && !side.over(side.end()) {
                std::thread::sleep(side.clock.until(due).min(Duration::from_millis(50)));
            }
        }
        let gap = gap(pace, size);
        let late = side.clock.now().saturating_sub(due);
        let count = gap.map_or(FLOOD, |gap| (late / gap + 1).min(BURST));
        for _ in 0..count {
            let socket = &sockets[turn % sockets.len()];
            turn += 1;
            // A full device queue refuses datagrams: they are lost like any other.
            side.sent_datagram();
            let _ = socket.send(&payload);
        }
        match gap {
            None => std::thread::sleep(NAP),
            Some(gap) => {
                // After a long stall the missed datagrams are not sent: a paced sender saves no credit.
                due = (due + count * gap).max(side.clock.now().saturating_sub(BURST * gap));
                std::thread::sleep(side.clock.until(due).min(Duration::from_millis(50)));
            }
        }
    }
    Ok(WorkloadResult::default())
}

/// Nanoseconds between two datagrams; `None` for a flood.
fn gap(pace: Pace, size: Bytes) -> Option<u64> {
    match pace {
        Pace::Flood => None,
        Pace::Packets(rate) => Some((1_000_000_000 / rate.get()).max(1)),
        Pace::Bits(rate) => Some(rate.wire_time(Bytes::new(size.as_u64() + UDP_HEADERS)).as_u64().max(1)),
    }
}
