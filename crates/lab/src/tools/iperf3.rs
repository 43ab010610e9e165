//! `iperf3`: the client in the tenant, the server beyond the uplink, which says what arrived every 100 ms.
//!
//! Why: it is what everybody measures bandwidth with.
//! From: iperf3(1). Its intervals count from the test's start, which it does not tell: each line comes when its
//!       interval is over, and the line that came soonest says when that start was.
//! Not here: our own bulk flows (`traffic::bulk`).

use super::{log, run_until_end, wait_until_bound};
use crate::command::Running;
use crate::error::LabError;
use crate::traffic::{Framing, SOURCE_PORTS, Side, UDP_HEADERS};
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::BitRate;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long either side may take to write its report after the test.
const REPORT: Duration = Duration::from_secs(2);
/// How often the server's lines are looked at.
const LOOK: Duration = Duration::from_millis(10);

pub(super) fn serve(
    side: &Side<'_>,
    flows: u32,
    udp: bool,
    ready: &dyn Fn(),
) -> Result<WorkloadResult, LabError> {
    let port = side.job.workload.port;
    let words = format!("-s -1 -i 0.1 -f k --forceflush -p {port}");
    let args: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut server = Running::start(Path::new("iperf3"), &args, &log(side, "server"))?;
    wait_until_bound(side, &mut server, true)?;
    ready();
    let mut intervals: Vec<Interval> = Vec::new();
    let mut begun = u64::MAX;
    while !side.over(side.last()) && server.ended().is_none() {
        std::thread::sleep(LOOK);
        let now = side.clock.now();
        let (text, known) = (server.output(), intervals.len());
        intervals = text.lines().filter_map(|line| interval(line, flows)).collect();
        for new in intervals.iter().skip(known) {
            begun = begun.min(now.saturating_sub(new.to));
        }
    }
    server.stop(REPORT);
    let mut measured = side.measured();
    let framing = Framing::new(side.job.mtu);
    for one in &intervals {
        let packets = if udp { one.datagrams } else { framing.packets(one.payload) };
        let bytes = if udp { one.payload + packets * UDP_HEADERS } else { framing.bytes(one.payload) };
        let begun = begun.max(side.start());
        measured.spread(begun + one.from, begun + one.to, bytes, packets);
    }
    Ok(measured.finish())
}

/// What arrived between two moments of the test.
#[derive(Debug, PartialEq, Eq)]
struct Interval {
    from: u64,
    to: u64,
    payload: u64,
    datagrams: u64,
}

/// `[SUM]   0.10-0.20   sec   256 KBytes  20973 Kbits/sec`, behind which UDP has `0.008 ms  0/4 (0%)`. With one flow
/// there is no sum, and its own line counts. The last lines sum the whole test up and do not.
fn interval(line: &str, flows: u32) -> Option<Interval> {
    let (of, rest) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    if (flows > 1) != (of.trim() == "SUM") || rest.contains("receiver") || rest.contains("sender") {
        return None;
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (from, to) = words.first()?.split_once('-')?;
    let nanos = |seconds: &str| Some((seconds.parse::<f64>().ok()? * 1e9).round() as u64);
    let (from, to) = (nanos(from)?, nanos(to)?);
    let unit = words.iter().position(|word| *word == "Kbits/sec")?;
    let kilobits: f64 = words.get(unit.checked_sub(1)?)?.parse().ok()?;
    let payload = (kilobits * 125.0 * to.saturating_sub(from) as f64 / 1e9).round() as u64;
    let counts = words.iter().find_map(|word| word.split_once('/').filter(|_| *word != "Kbits/sec"));
    let arrived =
        |(lost, all): (&str, &str)| Some(all.parse::<u64>().ok()?.saturating_sub(lost.parse().ok()?));
    Some(Interval { from, to, payload, datagrams: counts.and_then(arrived).unwrap_or(0) })
}

pub(super) fn send(side: &Side<'_>, flows: u32, udp: Option<BitRate>) -> Result<WorkloadResult, LabError> {
    // Whole seconds are all it takes: longer than needed, and interrupted in time.
    let seconds = Duration::from_nanos(side.end() - side.start()).as_secs() + 5;
    let (peer, port) = (side.job.peer.address, side.job.workload.port);
    let mut words =
        format!("-c {peer} -p {port} -P {flows} -t {seconds} -J -S {}", side.job.workload.dscp << 2);
    if flows == 1 {
        let port = fastrand::Rng::with_seed(side.job.seed).u16(SOURCE_PORTS);
        words.push_str(&format!(" --cport {port}"));
    }
    if let Some(rate) = udp {
        words.push_str(&format!(" -u -b {} -l {}", rate.get(), side.job.mtu - 28));
    }
    let args: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut client = Running::start(Path::new("iperf3"), &args, &log(side, "client"))?;
    run_until_end(side, &mut client, side.end());
    client.interrupt(REPORT);
    let report: Value = serde_json::from_str(&client.output()).unwrap_or(Value::Null);
    let error = report["error"].as_str().filter(|error| !error.contains("interrupt"));
    match error {
        Some(error) => Err(side.failed("iperf3's client", error)),
        None => Ok(WorkloadResult::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_lines_give_what_arrived_and_summaries_do_not_count() {
        let sum = "[SUM]   0.10-0.20   sec   256 KBytes  20973 Kbits/sec                  ";
        let expected = Interval { from: 100_000_000, to: 200_000_000, payload: 262_163, datagrams: 0 };
        assert_eq!(interval(sum, 2), Some(expected));
        assert_eq!(interval(sum, 1), None);
        let one = "[  5]   0.00-0.10   sec   128 KBytes  10480 Kbits/sec  0.008 ms  1/4 (25%)  ";
        let expected = Interval { from: 0, to: 100_000_000, payload: 131_000, datagrams: 3 };
        assert_eq!(interval(one, 1), Some(expected));
        assert_eq!(interval(one, 2), None);
        let last = "[SUM]   0.00-1.00   sec  2.50 MBytes  20966 Kbits/sec                  receiver";
        assert_eq!(interval(last, 2), None);
        assert_eq!(interval("[ ID] Interval           Transfer     Bitrate", 1), None);
        assert_eq!(interval("[  5] local 10.0.0.1 port 5201 connected to 10.0.0.2 port 41748", 1), None);
    }
}
