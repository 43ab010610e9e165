//! Probes: datagrams sent at Poisson times, which the destination sends back.
//!
//! Why: Poisson arrivals see time averages (PASTA), so the round trips show the queue as a random packet meets it.
//! From: Loom's sockperf tenant, without the tool.
//! Not here: requests over TCP (`rpc`), the contents of other datagrams (`tools`).
//! Invariant: a probe's latency counts from when it was due; one that is not echoed is an error.

use super::bulk::exponential;
use super::socket::{self, would_block};
use super::{Events, Measured, Side};
use crate::error::LabError;
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::{Bytes, Span};
use std::cell::Cell;
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
    let size = usize::try_from(size.as_u64()).unwrap_or(usize::MAX).clamp(NUMBER, 65_000);
    let mut payload = vec![0; size];
    let mut probe = |number: u64, datagram: &mut Vec<u8>| {
        payload[..NUMBER].copy_from_slice(&number.to_be_bytes());
        datagram.clone_from(&payload);
    };
    let number = |echo: &[u8]| Some(u64::from_be_bytes(echo.get(..NUMBER)?.try_into().ok()?));
    ask_numbered(side, rate, &mut probe, &number)
}

/// Sends datagrams at random moments until the workload ends, and waits for the last answers. `request` writes one with its number, modulo
/// 2^16, into a buffer, and `number` reads the number of an answer.
pub(crate) fn ask_datagrams(
    side: &Side<'_>,
    rate: u32,
    request: &mut dyn FnMut(u16, &mut Vec<u8>),
    number: &dyn Fn(&[u8]) -> Option<u16>,
) -> Result<WorkloadResult, LabError> {
    // The number of the latest request, to which the short one of an answer is completed.
    let latest = Cell::new(0_u64);
    let mut numbered = |whole: u64, datagram: &mut Vec<u8>| {
        latest.set(whole);
        request(whole as u16, datagram);
    };
    let whole = |answer: &[u8]| {
        let back = (latest.get() as u16).wrapping_sub(number(answer)?);
        latest.get().checked_sub(back.into())
    };
    ask_numbered(side, rate, &mut numbered, &whole)
}

fn ask_numbered(
    side: &Side<'_>,
    rate: u32,
    request: &mut dyn FnMut(u64, &mut Vec<u8>),
    number: &dyn Fn(&[u8]) -> Option<u64>,
) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("probe", error);
    let mut random = fastrand::Rng::with_seed(side.job.seed);
    let server = side.job.server_and_client().0;
    let to = SocketAddrV4::new(server.address, side.job.workload.port);
    let socket = socket::datagrams_to(to, side.job.workload.dscp, &mut random).map_err(failed)?;
    let mut events = Events::new().map_err(failed)?;
    events.watch(&socket, 0, false).map_err(failed)?;
    let gap = Span::ns(1_000_000_000 / u64::from(rate.max(1)));
    let (mut datagram, mut answer) = (Vec::new(), vec![0; 65_536]);
    let mut sent: Vec<Option<u64>> = Vec::new();
    let mut missing = 0_u64;
    let mut due = side.start() + exponential(&mut random, gap);
    let mut measured = Measured::default();
    while !side.over(side.end()) || (missing > 0 && !side.over(side.last())) {
        let next = if due < side.end() { due } else { side.last() };
        events.wait(side.clock.until(next)).map_err(failed)?;
        while due <= side.clock.now() && due < side.end() {
            request(sent.len() as u64, &mut datagram);
            sent.push(Some(due));
            missing += 1;
            side.sent_datagram();
            // One that the device's queue refuses is lost, and counted as never answered.
            let _ = socket.send(&datagram);
            due += exponential(&mut random, gap);
        }
        while let Ok(len) = socket.recv(&mut answer) {
            let known = number(&answer[..len]).and_then(|number| usize::try_from(number).ok());
            if let Some(due) = known.and_then(|number| sent.get_mut(number)).and_then(Option::take) {
                measured.answered(due, side.clock.now());
                missing -= 1;
            }
        }
    }
    measured.unanswered(sent.into_iter().flatten());
    Ok(measured.finish())
}
