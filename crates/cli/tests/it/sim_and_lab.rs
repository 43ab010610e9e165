//! One scenario file, two worlds: virtual time and real Linux TCP agree about steady throughput.
//!
//! Needs root, or user namespaces, and says so when it has to skip.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs};

use serde_json::Value;

/// Shares by weight, a flow held by a limit, a `max` that binds, and a neighbour with many flows; at a rate that any
/// machine carries. All of it is steady: how flows of one class share what the class has is not.
const SCENARIO: &str = "
name: agree
rate: 20Mbps
duration: 7s
systems: [plimsoll]
tenants: {gold: {weight: 3}, bronze: {}, capped: {max: 3Mbps}}
limits:
  slow: {match: {dst_port: 5201}, rate: 2Mbps}
policy:
  root: {wfq: {gold: 3, bronze: 1, capped: 1}, via: [slow]}
workloads:
  few:  {tenant: gold, kind: bulk, flows: 2}
  many: {tenant: bronze, kind: bulk, flows: 6}
  held: {tenant: gold, kind: bulk, flows: 1, port: 5201}
  tied: {tenant: capped, kind: bulk, flows: 1, congestion: newreno}
measure: {from: 2s}
";

/// The largest difference between the two.
const APART: f64 = 0.10;

/// Says why the test does nothing; where `PLIMSOLL_REQUIRE_LIVE=1` asks for all of them, that is a failure.
fn skip(why: &str) {
    assert!(env::var_os("PLIMSOLL_REQUIRE_LIVE").is_none_or(|value| value != "1"), "skipped: {why}");
    eprintln!("skipped: {why}");
}

/// The scenario's file and reports, until the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = Self(env::temp_dir().join(format!("plimsoll-agree-{}", std::process::id())));
        fs::create_dir_all(&folder.0).expect("a folder");
        fs::write(folder.0.join("agree.yaml"), SCENARIO).expect("written");
        folder
    }

    fn plimsoll(&self, command: &str) -> Output {
        let mut plimsoll = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        plimsoll
            .arg(command)
            .arg(self.0.join("agree.yaml"))
            .args(["--json", "--out"])
            .arg(self.0.join(command));
        plimsoll.output().expect("started")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bits a second of each workload from the third second on.
fn steady(results: &Value) -> Vec<(String, f64)> {
    let workloads = results["runs"][0]["workloads"].as_object().expect("workloads");
    let window = results["window_seconds"].as_f64().expect("a window");
    let skipped = (2.0 / window).round() as usize;
    let mean = |found: &Value| {
        let windows: Vec<f64> =
            found["throughput_bps"].as_array().expect("windows").iter().filter_map(Value::as_f64).collect();
        let steady = &windows[skipped..];
        steady.iter().sum::<f64>() / steady.len() as f64
    };
    workloads.iter().map(|(name, found)| (name.clone(), mean(found))).collect()
}

#[test]
fn virtual_time_and_linux_agree_about_steady_throughput() {
    let folder = Folder::new();
    let simulated = folder.plimsoll("sim");
    assert!(simulated.status.success(), "{}", String::from_utf8_lossy(&simulated.stderr));
    let simulated: Value = serde_json::from_slice(&simulated.stdout).expect("JSON");
    // The machine may be busy with other tests: what it cannot carry in three attempts differs for good.
    let mut apart = Vec::new();
    for _ in 0..3 {
        let live = folder.plimsoll("lab");
        let Ok(results) = serde_json::from_slice::<Value>(&live.stdout) else {
            let said = String::from_utf8_lossy(&live.stderr).into_owned();
            if ["no permission to make network namespaces", "is not installed"]
                .iter()
                .any(|why| said.contains(why))
            {
                return skip(said.trim());
            }
            apart = vec![(said, 0.0, 0.0)];
            continue;
        };
        let pairs = steady(&simulated).into_iter().zip(steady(&results));
        apart = pairs
            .map(|((name, ours), (_, linux))| (name, ours, linux))
            .filter(|(_, ours, linux)| (ours / linux - 1.0).abs() > APART)
            .collect();
        if apart.is_empty() {
            return;
        }
    }
    panic!("more than {APART} apart (workload, sim, lab): {apart:?}");
}
