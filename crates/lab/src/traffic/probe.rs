//! Probes: datagrams sent at Poisson times, which the destination sends back.
//!
//! Why: Poisson arrivals see time averages (PASTA), so the round trips show the queue as a random packet meets it.
//! From: Loom's sockperf tenant, without the tool.
//! Not here: requests over TCP (`rpc`).
//! Invariant: a probe's latency counts from when it was due; one that is not echoed is an error.

use super::bulk::exponential;
use super::socket::{self, would_block};
use super::{Events, Measured, Side};
use crate::error::LabError;
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::{Bytes, Span};
use std::net::SocketAddrV4;
use std::time::Duration;

/// Length of a probe's number, with which it begins.
const NUMBER: usize = 8;

/// Sends every datagram back.
pub(super) fn echo(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("echo", error);
    let socket = socket::datagrams(side.job.workload.port, 0).map_err(failed)?;
    socket.set_read_timeout(Some(Duration::from_millis(50))).map_err(failed)?;
    ready();
    let mut buffer = vec![0; 65_536];
    while !side.over(side.last()) {
        match socket.recv_from(&mut buffer) {
            Ok((size, from)) => {
                // An echo that finds no room is a lost probe, which its sender counts.
                let _ = socket.send_to(&buffer[..size], from);
            }
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(WorkloadResult::default())
}

/// Sends probes until the workload ends and waits for the last echoes.
pub(super) fn source(side: &Side<'_>, size: Bytes, rate: u32) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("probe", error);
    let mut random = fastrand::Rng::with_seed(side.job.seed);
    let to = SocketAddrV4::new(side.job.peer.address, side.job.workload.port);
    let socket = socket::datagrams_to(to, side.job.workload.dscp, &mut random).map_err(failed)?;
    let mut events = Events::new().map_err(failed)?;
    events.watch(&socket, 0, false).map_err(failed)?;
    let gap = Span::ns(1_000_000_000 / u64::from(rate.max(1)));
    let mut payload = vec![0; usize::try_from(size.as_u64()).unwrap_or(usize::MAX).clamp(NUMBER, 65_000)];
    let mut sent: Vec<Option<u64>> = Vec::new();
    let mut missing = 0_u64;
    let mut due = side.start() + exponential(&mut random, gap);
    let mut measured = Measured::default();
    while !side.over(side.end()) || (missing > 0 && !side.over(side.last())) {
        let next = if due < side.end() { due } else { side.last() };
        events.wait(side.clock.until(next)).map_err(failed)?;
        while due <= side.clock.now() && due < side.end() {
            payload[..NUMBER].copy_from_slice(&(sent.len() as u64).to_be_bytes());
            sent.push(Some(due));
            missing += 1;
            side.sent_datagram();
            // A probe that the device's queue refuses is lost, and counted as never echoed.
            let _ = socket.send(&payload);
            due += exponential(&mut random, gap);
        }
        let mut echo = [0; NUMBER];
        while socket.recv(&mut echo).is_ok() {
            let number = usize::try_from(u64::from_be_bytes(echo)).unwrap_or(usize::MAX);
            if let Some(due) = sent.get_mut(number).and_then(Option::take) {
                measured.answered(due, side.clock.now());
                missing -= 1;
            }
        }
    }
    measured.unanswered(sent.into_iter().flatten());
    Ok(measured.finish())
}
