//! Bulk TCP: flows that always have data to send, or send and pause in turn.
//!
//! Why: each flow takes as much bandwidth as it can get; isolation must limit it to its share.
//! From: iperf3; on and off times are exponential, as for Loom's probes and in most traffic models.
//! Not here: shuffles, whose flows wait for each other (`rounds`).
//! Invariant: one thread, one connection for each flow; unsent data is discarded at the end.
//!
//! Reversed flows are opened by the side that receives.

use super::socket::{self, would_block};
use super::{Events, Measured, Side};
use crate::error::LabError;
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::Span;
use std::io::Write;
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

/// Most writes of a flow before the next flow's turn, so that no flow starves another of the same sender.
const WRITES: usize = 4;
const CHUNK: usize = 64 * 1024;
const LISTENER: usize = usize::MAX - 1;

/// Accepts flows and reads their data.
pub(super) fn sink(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("receive", error);
    let listener = socket::listen(&side.job.workload, 0).map_err(failed)?;
    let mut events = Events::new().map_err(failed)?;
    events.watch(&listener, LISTENER, false).map_err(failed)?;
    ready();
    let mut flows: Vec<Option<TcpStream>> = Vec::new();
    let mut measured = Measured::default();
    let mut buffer = vec![0; 256 * 1024];
    while !side.over(side.last()) {
        events.wait(Duration::from_millis(50)).map_err(failed)?;
        for found in events.ready() {
            if found.token == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    let _ = stream.set_nonblocking(true);
                    events.watch(&stream, flows.len(), false).map_err(failed)?;
                    flows.push(Some(stream));
                }
                continue;
            }
            let Some(stream) = flows[found.token].as_mut() else { continue };
            if socket::read_some(stream, &mut buffer).is_none() {
                measured.ends(stream, false);
                flows[found.token] = None;
            }
        }
    }
    flows.iter().flatten().for_each(|stream| measured.ends(stream, false));
    Ok(measured.finish())
}

/// Accepts flows and keeps them busy until the workload ends.
pub(super) fn sends_to_callers(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("send", error);
    let listener = socket::listen(&side.job.workload, side.job.workload.dscp).map_err(failed)?;
    let mut events = Events::new().map_err(failed)?;
    events.watch(&listener, LISTENER, false).map_err(failed)?;
    ready();
    let mut flows: Vec<Option<TcpStream>> = Vec::new();
    let mut measured = Measured::default();
    let chunk = vec![0x5a; CHUNK];
    while !side.over(side.end()) {
        events.wait(Duration::from_millis(50)).map_err(failed)?;
        for found in events.ready() {
            if found.token == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    let _ = stream.set_nonblocking(true);
                    socket::abort_on_close(&stream);
                    events.watch(&stream, flows.len(), true).map_err(failed)?;
                    flows.push(Some(stream));
                }
                continue;
            }
            let Some(stream) = flows[found.token].as_mut().filter(|_| found.writable) else { continue };
            if !fill(stream, &chunk) {
                measured.ends(stream, true);
                // The receiver ends at the same moment.
                measured.errors(u64::from(!side.over(side.end())));
                flows[found.token] = None;
            }
        }
    }
    flows.iter().flatten().for_each(|stream| measured.ends(stream, true));
    Ok(measured.finish())
}

/// Opens flows and reads what comes until the workload ends.
pub(super) fn calls_and_reads(side: &Side<'_>, flows: u32) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("receive", error);
    let to = SocketAddrV4::new(side.job.tenant.address, side.job.workload.port);
    let mut random = fastrand::Rng::with_seed(side.job.seed);
    let mut events = Events::new().map_err(failed)?;
    let mut all = Vec::new();
    for token in 0..flows as usize {
        let stream = socket::begin_connect(to, &side.job.workload, &mut random).map_err(failed)?;
        events.watch(&stream, token, false).map_err(failed)?;
        all.push(Some(stream));
    }
    let mut measured = Measured::default();
    let mut buffer = vec![0; 256 * 1024];
    while !side.over(side.end()) {
        events.wait(side.clock.until(side.end())).map_err(failed)?;
        for found in events.ready() {
            let Some(stream) = all[found.token].as_mut() else { continue };
            if socket::read_some(stream, &mut buffer).is_none() {
                // The sender ends at the same moment.
                measured.errors(u64::from(!side.over(side.end())));
                measured.ends(stream, false);
                all[found.token] = None;
            }
        }
    }
    all.iter().flatten().for_each(|stream| measured.ends(stream, false));
    Ok(measured.finish())
}

/// One sending flow.
struct Flow {
    stream: TcpStream,
    /// Time at which it next starts or stops sending; never, for flows without pauses.
    turn: u64,
    sending: bool,
}

/// Keeps `flows` connections busy until the workload ends; with `rhythm`, each sends and pauses in turn.
pub(super) fn source(
    side: &Side<'_>,
    flows: u32,
    rhythm: Option<(Span, Span)>,
) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("send", error);
    let to = SocketAddrV4::new(side.job.peer.address, side.job.workload.port);
    let mut random = fastrand::Rng::with_seed(side.job.seed);
    let mut events = Events::new().map_err(failed)?;
    let mut all = Vec::new();
    for token in 0..flows as usize {
        let stream = socket::begin_connect(to, &side.job.workload, &mut random).map_err(failed)?;
        socket::abort_on_close(&stream);
        let turn = rhythm.map_or(u64::MAX, |(on, _)| side.clock.now() + exponential(&mut random, on));
        events.watch(&stream, token, true).map_err(failed)?;
        all.push(Some(Flow { stream, turn, sending: true }));
    }
    let mut measured = Measured::default();
    let chunk = vec![0x5a; CHUNK];
    while !side.over(side.end()) {
        let next = all.iter().flatten().map(|flow| flow.turn).min().unwrap_or(u64::MAX);
        events.wait(side.clock.until(next.min(side.end()))).map_err(failed)?;
        for found in events.ready() {
            let Some(flow) = all[found.token].as_mut() else { continue };
            if found.writable && flow.sending && !fill(&mut flow.stream, &chunk) {
                measured.ends(&flow.stream, true);
                all[found.token] = None;
                measured.errors(1);
            }
        }
        let Some((on, off)) = rhythm else { continue };
        let now = side.clock.now();
        for (token, flow) in all.iter_mut().enumerate() {
            let Some(flow) = flow.as_mut().filter(|flow| flow.turn <= now) else { continue };
            flow.sending = !flow.sending;
            flow.turn = now + exponential(&mut random, if flow.sending { on } else { off });
            events.rewatch(&flow.stream, token, true, flow.sending).map_err(failed)?;
        }
    }
    all.iter().flatten().for_each(|flow| measured.ends(&flow.stream, true));
    Ok(measured.finish())
}

/// Writes until the socket is full or the flow's turn is over. False when the connection is gone.
fn fill(stream: &mut TcpStream, chunk: &[u8]) -> bool {
    for _ in 0..WRITES {
        match stream.write(chunk) {
            Ok(0) => return false,
            Ok(count) if count < chunk.len() => return true,
            Ok(_) => {}
            Err(error) => return would_block(&error),
        }
    }
    true
}

/// A random time with this mean, at least a microsecond.
pub(super) fn exponential(random: &mut fastrand::Rng, mean: Span) -> u64 {
    let draw = -(1.0 - random.f64()).ln() * mean.as_u64() as f64;
    (draw as u64).max(1_000)
}
