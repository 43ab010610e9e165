//! `sockperf under-load`: paced messages, each answered by its server; its full log gives every message.
//!
//! Why: Loom measures its quiet tenant with it.
//! From: sockperf(1), `--full-log`: sent and received times in seconds since its start. It needs two
//!       seconds to measure the CPU's clock before it sends, and leaves its first 400 ms out of the log.
//! Not here: the lab's own probes (`traffic::probe`).

use super::{log, run_until_end, wait_until_bound};
use crate::command::Running;
use crate::error::LabError;
use crate::traffic::{Measured, Side};
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::Bytes;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time from its start to its first message.
pub(super) const STARTUP: Duration = Duration::from_secs(2);
/// Longest wait for its log.
const REPORT: Duration = Duration::from_secs(2);

pub(super) fn serve(side: &Side<'_>, tcp: bool, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    let (address, port) = (side.job.peer.address, side.job.workload.port);
    let args = words(&format!("server -i {address} -p {port}"), tcp);
    let mut server = Running::start(Path::new("sockperf"), &args, &log(side, "server"))?;
    wait_until_bound(side, &mut server, tcp)?;
    ready();
    run_until_end(side, &mut server, side.last());
    Ok(WorkloadResult::default())
}

pub(super) fn send(side: &Side<'_>, size: Bytes, rate: u32, tcp: bool) -> Result<WorkloadResult, LabError> {
    let (address, port) = (side.job.peer.address, side.job.workload.port);
    let full = side.job.scratch.join(format!("{}-full.csv", side.job.workload.name));
    let length = Duration::from_nanos(side.end() - side.start());
    let seconds = length.as_secs() + u64::from(length.subsec_nanos() > 0);
    let line = format!(
        "under-load -i {address} -p {port} --mps {rate} --msg-size {} -t {seconds} --reply-every 1 \
         --dontwarmup --tos {} --full-log {}",
        size.as_u64().max(14),
        side.job.workload.dscp << 2,
        full.display(),
    );
    let begun = Instant::now();
    let mut client = Running::start(Path::new("sockperf"), &words(&line, tcp), &log(side, "client"))?;
    // It ends by itself only after whole seconds; a workload with another length interrupts it.
    run_until_end(side, &mut client, side.end() + 50_000_000);
    client.interrupt(REPORT);
    let text = std::fs::read_to_string(&full).unwrap_or_default();
    let mut measured = Measured::default();
    let zero = side.clock.offset(begun);
    let mut logged = 0_u64;
    for (sent, received) in text.lines().filter_map(message) {
        let moment = |seconds: f64| u64::try_from(zero + (seconds * 1e9) as i64).unwrap_or(0);
        let (at, back) = (moment(sent), moment(received));
        // The latency is what sockperf reports: half of the round trip.
        measured.answered(at, at + (back.saturating_sub(at)) / 2);
        logged += 1;
    }
    if logged == 0 {
        return Err(side.failed("sockperf logged nothing", client.last_words()));
    }
    measured.errors(dropped(&client.output()));
    Ok(measured.finish())
}

/// The sent and received times of a log line `17, 2.490902710, 2.490958392, 27.841`: number, sent, received, latency.
fn message(line: &str) -> Option<(f64, f64)> {
    let mut fields = line.split(',').map(str::trim);
    fields.next()?.parse::<u64>().ok()?;
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// sockperf's count of messages that never came back.
fn dropped(output: &str) -> u64 {
    let count = output.split("dropped messages = ").nth(1).and_then(|rest| rest.split(';').next());
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn words(line: &str, tcp: bool) -> Vec<String> {
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    if tcp {
        words.push("--tcp".to_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_gives_both_moments() {
        assert_eq!(message("0, 2.405903172, 2.405976390, 36.609"), Some((2.405903172, 2.405976390)));
        assert_eq!(message("packet, txTime(sec), rxTime(sec), latency(usec)"), None);
        assert_eq!(message("------------------------------"), None);
    }

    #[test]
    fn lost_messages_are_read_from_its_summary() {
        assert_eq!(dropped("sockperf: # dropped messages = 12; # duplicated messages = 0"), 12);
        assert_eq!(dropped(""), 0);
    }
}
