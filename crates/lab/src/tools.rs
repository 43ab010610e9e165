//! Real tools as workloads: `iperf3`, `memcached`, `sockperf`.
//!
//! Why: measurements of well-known tools are trusted, and the lab's own can be compared with them.
//! From: the tools' own logs, in the formats of Debian 12's versions.
//! Not here: the lab's own sources and sinks (`traffic`).
//! Invariant: each tool's process ends with the thread that started it.

mod iperf3;
mod memcached;
mod sockperf;

use crate::error::LabError;
use crate::netns;
use crate::traffic::Side;
use plimsoll_scenario::{Kind, WorkloadResult};
use std::time::Duration;

/// Longest wait for a tool's server to listen.
const LISTENING: Duration = Duration::from_secs(5);

/// Whether this kind of workload is a tool.
pub(crate) fn drives(kind: &Kind) -> bool {
    kind.program().is_some()
}

/// Time before its workload's start at which this tool must be started.
pub(crate) fn lead(kind: &Kind) -> Duration {
    if matches!(kind, Kind::Sockperf { .. }) { sockperf::STARTUP } else { Duration::ZERO }
}

/// Runs the tool's server until the workload is over.
pub(crate) fn serve(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    netns::enter(&side.job.server_and_client().0.netns)?;
    match &side.job.workload.kind {
        Kind::Iperf3 { .. } => iperf3::serve(side, ready),
        Kind::Memcached { key, value, udp, .. } => memcached::serve(side, (*key, *value), *udp, ready),
        Kind::Sockperf { tcp, .. } => sockperf::serve(side, *tcp, ready),
        other => Err(side.failed("serve", format!("{} is no tool", other.name()))),
    }
}

/// Runs the tool's client, in the calling thread's namespace, from the workload's start to its end.
pub(crate) fn send(side: &Side<'_>) -> Result<WorkloadResult, LabError> {
    if !side.wait_until_before_start(lead(&side.job.workload.kind)) {
        return Ok(WorkloadResult::default());
    }
    match &side.job.workload.kind {
        Kind::Iperf3 { flows, udp } => iperf3::send(side, *flows, *udp),
        Kind::Memcached { key, value, rate, udp: true, .. } => {
            memcached::ask_by_datagrams(side, *key, *value, *rate)
        }
        Kind::Memcached { key, value, connections, rate, .. } => {
            memcached::ask(side, *key, *value, *connections, *rate)
        }
        Kind::Sockperf { size, rate, tcp } => sockperf::send(side, *size, *rate, *tcp),
        other => Err(side.failed("send", format!("{} is no tool", other.name()))),
    }
}

/// Sockets of one protocol and local port in the calling thread's namespace, by the kernel's state numbers.
fn sockets(protocol: &str, port: u16) -> Vec<u8> {
    let tables = [protocol.to_owned(), format!("{protocol}6")];
    let texts =
        tables.iter().filter_map(|t| std::fs::read_to_string(format!("/proc/thread-self/net/{t}")).ok());
    texts.flat_map(|text| text.lines().filter_map(|line| state_on(line, port)).collect::<Vec<_>>()).collect()
}

/// The state of a line's socket when its local port is `port`: `0: 00000000:1F90 00000000:0000 0A ...`.
fn state_on(line: &str, port: u16) -> Option<u8> {
    let mut fields = line.split_whitespace().skip(1);
    let (_, local) = fields.next()?.rsplit_once(':')?;
    let state = fields.nth(1)?;
    (u16::from_str_radix(local, 16).ok()? == port).then(|| u8::from_str_radix(state, 16).ok())?
}

/// The kernel's `TCP_LISTEN`.
const LISTEN: u8 = 10;
/// The kernel's state of an unconnected UDP socket.
const UNCONNECTED: u8 = 7;

/// Waits until a server that was just started is bound to the workload's port.
fn wait_until_bound(
    side: &Side<'_>,
    server: &mut crate::command::Running,
    tcp: bool,
) -> Result<(), LabError> {
    let (protocol, state) = if tcp { ("tcp", LISTEN) } else { ("udp", UNCONNECTED) };
    let begun = std::time::Instant::now();
    while begun.elapsed() < LISTENING {
        if sockets(protocol, side.job.workload.port).contains(&state) {
            return Ok(());
        }
        if let Some(status) = server.ended() {
            return Err(side.failed("serve", format!("it ended ({status}); {}", server.last_words())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(side
        .failed("serve", format!("not listening after {} s; {}", LISTENING.as_secs(), server.last_words())))
}

/// Path of a tool's log file.
fn log(side: &Side<'_>, what: &str) -> std::path::PathBuf {
    side.job.scratch.join(format!("{}-{what}.log", side.job.workload.name))
}

/// Sleeps until the workload's end or an early stop, as long as the tool lives.
fn run_until_end(side: &Side<'_>, tool: &mut crate::command::Running, end: u64) {
    while !side.over(end) && tool.ended().is_none() {
        std::thread::sleep(side.clock.until(end).min(Duration::from_millis(50)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_found_by_its_port() {
        let line = "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 1 1";
        assert_eq!(state_on(line, 8_080), Some(LISTEN));
        assert_eq!(state_on(line, 8_081), None);
        assert_eq!(state_on("  sl  local_address rem_address   st", 1), None);
    }
}
