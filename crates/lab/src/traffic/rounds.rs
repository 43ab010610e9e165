//! A shuffle: rounds in which every flow sends one block; the next round begins when all blocks have arrived.
//!
//! Why: such a job is done only when its last flow is done.
//! From: Spark's TeraSort, as Loom §7 runs it.
//! Not here: the receiving side (`rpc`): a block is a request, and one byte acknowledges it.
//! Invariant: a round is one sample, from its first byte offered to its last acknowledgement.

use super::rpc::Exchange;
use super::socket::{self, would_block};
use super::{Events, Measured, Side};
use crate::error::LabError;
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::{Bytes, Span};
use std::io::Write;
use std::net::{SocketAddrV4, TcpStream};

/// The exchange of one round of a flow, for the receiving side.
pub(super) fn exchange(block: Bytes) -> Exchange {
    Exchange::of(block, Bytes::new(1))
}

struct Flow {
    stream: TcpStream,
    unsent: u64,
    acknowledged: bool,
}

/// Runs rounds until the workload ends.
pub(super) fn source(
    side: &Side<'_>,
    flows: u32,
    block: Bytes,
    pause: Span,
) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("shuffle", error);
    let to = SocketAddrV4::new(side.job.peer.address, side.job.workload.port);
    let mut events = Events::new().map_err(failed)?;
    let mut random = fastrand::Rng::with_seed(side.job.seed);
    let mut all = Vec::new();
    for token in 0..flows as usize {
        let stream = socket::begin_connect(to, &side.job.workload, &mut random).map_err(failed)?;
        socket::abort_on_close(&stream);
        events.watch(&stream, token, true).map_err(failed)?;
        all.push(Flow { stream, unsent: block.as_u64(), acknowledged: false });
    }
    let mut measured = Measured::default();
    let chunk = vec![0x5a; 64 * 1024];
    let mut buffer = [0; 64];
    let mut begun = side.start();
    while !side.over(side.end()) {
        events.wait(side.clock.until(side.end())).map_err(failed)?;
        for found in events.ready() {
            let flow = &mut all[found.token];
            if found.writable && !write_on(flow, &chunk) {
                return Err(failed(std::io::ErrorKind::ConnectionReset.into()));
            }
            if found.readable {
                match socket::read_some(&mut flow.stream, &mut buffer) {
                    Some(count) => flow.acknowledged |= count > 0,
                    None => return Err(failed(std::io::ErrorKind::ConnectionReset.into())),
                }
            }
            events.rewatch(&flow.stream, found.token, true, flow.unsent > 0).map_err(failed)?;
        }
        if all.iter().all(|flow| flow.acknowledged) {
            measured.answered(begun, side.clock.now());
            begun = next_round(side, pause);
            for (token, flow) in all.iter_mut().enumerate() {
                (flow.unsent, flow.acknowledged) = (block.as_u64(), false);
                events.rewatch(&flow.stream, token, true, true).map_err(failed)?;
            }
        }
    }
    all.iter().for_each(|flow| measured.ends(&flow.stream, true));
    Ok(measured.finish())
}

/// Sleeps through the pause between rounds; returns the time at which the next round begins.
fn next_round(side: &Side<'_>, pause: Span) -> u64 {
    let begin = side.clock.now() + pause.as_u64();
    while !side.over(begin.min(side.end())) {
        std::thread::sleep(side.clock.until(begin.min(side.end())).min(std::time::Duration::from_millis(50)));
    }
    side.clock.now()
}

/// Writes a flow's block as far as the socket accepts it. False when the connection is gone.
fn write_on(flow: &mut Flow, chunk: &[u8]) -> bool {
    while flow.unsent > 0 {
        let size = usize::try_from(flow.unsent).unwrap_or(usize::MAX).min(chunk.len());
        match flow.stream.write(&chunk[..size]) {
            Ok(0) => return false,
            Ok(count) => flow.unsent -= count as u64,
            Err(error) => return would_block(&error) || error.kind() == std::io::ErrorKind::NotConnected,
        }
    }
    true
}
