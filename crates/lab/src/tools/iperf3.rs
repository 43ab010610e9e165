//! `iperf3`: the client in the tenant, the server beyond the uplink.
//!
//! Why: it is the usual tool for measuring bandwidth.
//! From: iperf3(1), `-J` for its errors.
//! Not here: the lab's own bulk flows (`traffic::bulk`), and throughput (`meter`).

use super::{log, run_until_end, wait_until_bound};
use crate::command::Running;
use crate::error::LabError;
use crate::traffic::{SOURCE_PORTS, Side};
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::BitRate;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Longest wait for the client's report after the test.
const REPORT: Duration = Duration::from_secs(2);

pub(super) fn serve(side: &Side<'_>, ready: &dyn Fn()) -> Result<WorkloadResult, LabError> {
    let words = format!("-s -1 -p {}", side.job.workload.port);
    let args: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut server = Running::start(Path::new("iperf3"), &args, &log(side, "server"))?;
    wait_until_bound(side, &mut server, true)?;
    ready();
    run_until_end(side, &mut server, side.last());
    Ok(WorkloadResult::default())
}

pub(super) fn send(side: &Side<'_>, flows: u32, udp: Option<BitRate>) -> Result<WorkloadResult, LabError> {
    // It accepts only whole seconds: it gets more than needed, and is interrupted in time.
    let seconds = Duration::from_nanos(side.end() - side.start()).as_secs() + 5;
    let (peer, port) = (side.job.peer.address, side.job.workload.port);
    let mut words =
        format!("-c {peer} -p {port} -P {flows} -t {seconds} -J -S {}", side.job.workload.dscp << 2);
    if flows == 1 {
        let port = fastrand::Rng::with_seed(side.job.seed).u16(SOURCE_PORTS);
        words.push_str(&format!(" --cport {port}"));
    }
    if udp.is_none() {
        words.push_str(&format!(" -C {}", side.job.workload.congestion.unwrap_or_default().of_linux()));
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
