//! `iperf3`: the client in the tenant, the server beyond the uplink, which says what arrived every 100 ms.
//!
//! Why: it is what everybody measures bandwidth with.
//! From: iperf3(1), `-J`. Its intervals count from the test's start, which is when all its connections are there.
//! Not here: our own bulk flows (`traffic::bulk`).

use super::{ESTABLISHED, UNCONNECTED, log, run_until_end, sockets, wait_until_bound};
use crate::command::Running;
use crate::error::LabError;
use crate::traffic::{Framing, Measured, SOURCE_PORTS, Side, UDP_HEADERS};
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::BitRate;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long the server may take to write its report after the client has ended.
const REPORT: Duration = Duration::from_secs(2);

pub(super) fn serve(
    side: &Side<'_>,
    flows: u32,
    udp: bool,
    ready: &dyn Fn(),
) -> Result<WorkloadResult, LabError> {
    let port = side.job.workload.port;
    let words = format!("-s -1 -J -i 0.1 -p {port}");
    let args: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut server = Running::start(Path::new("iperf3"), &args, &log(side, "server"))?;
    wait_until_bound(side, &mut server, true)?;
    ready();
    let begun = wait_for_flows(side, &mut server, flows, udp);
    run_until_end(side, &mut server, side.last());
    if server.wait(REPORT).is_none() {
        server.stop(REPORT);
    }
    let text = server.output();
    let mut measured = side.measured();
    let report: Value = serde_json::from_str(&text)
        .map_err(|e| side.failed("read iperf3's report", format!("{e}; {}", server.last_words())))?;
    read_report(side, &report, begun, udp, &mut measured);
    Ok(measured.finish())
}

/// Waits until the test's connections are there; that moment is its start.
fn wait_for_flows(side: &Side<'_>, server: &mut Running, flows: u32, udp: bool) -> u64 {
    let port = side.job.workload.port;
    let wanted = flows as usize + usize::from(!udp);
    while !side.over(side.end()) && server.ended().is_none() {
        let there = if udp {
            sockets("udp", port).into_iter().filter(|state| *state != UNCONNECTED).count()
        } else {
            sockets("tcp", port).into_iter().filter(|state| *state == ESTABLISHED).count()
        };
        if there >= wanted {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    side.clock.now().max(side.start())
}

/// Counts each interval's bytes, spread evenly over it.
fn read_report(side: &Side<'_>, report: &Value, begun: u64, udp: bool, measured: &mut Measured<'_>) {
    let framing = Framing::new(side.job.mtu);
    for interval in report["intervals"].as_array().into_iter().flatten() {
        let sum = &interval["sum"];
        let (Some(start), Some(end)) = (sum["start"].as_f64(), sum["end"].as_f64()) else { continue };
        let payload = sum["bytes"].as_u64().unwrap_or(0);
        let packets = if udp { sum["packets"].as_u64().unwrap_or(0) } else { framing.packets(payload) };
        let bytes = if udp { payload + packets * UDP_HEADERS } else { framing.bytes(payload) };
        let moment = |seconds: f64| begun + Duration::from_secs_f64(seconds.max(0.0)).as_nanos() as u64;
        measured.spread(moment(start), moment(end), bytes, packets);
    }
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
