//! The simulator beside ns-3, on the same dumbbell.
//!
//! Why: a claim to be faster than the field's own simulator needs a run of both.
//! From: `benches/ns3`: 16 TCP flows (CUBIC, SACK) of four senders over one 10 Gb/s link; ns-3 with drop-tail queues, ours
//! with a policy and an engine at every sender, and with drop-tail queues as ns-3.
//! Not here: whether either is right (`docs/tcp.md`).
//! Invariant: a hop is a packet that has crossed a link, on both sides; both are charged the processor time of one thread.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use plimsoll_scenario::{Form, Scenario};
use plimsoll_sim::{Options, run};

use crate::hold::process_time;
use crate::report::{Goal, Row};

/// How long ns-3 simulates: some seconds of its time.
const SECONDS: &str = "0.1";

/// Libraries of ns-3, as pkg-config calls them.
const LIBRARIES: [&str; 6] = [
    "ns3-applications",
    "ns3-point-to-point",
    "ns3-internet",
    "ns3-network",
    "ns3-core",
    "ns3-traffic-control",
];

/// Hops a second of both, `rounds` times, the sides taking turns; ours alone where ns-3 is not installed.
pub fn measure(rounds: u32) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let peer = compile(folder.path())?;
    let (mut theirs, mut policy, mut drop_tail) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        if let Some(program) = &peer {
            theirs.push(ns3(program)?);
        }
        policy.push(ours("plimsoll")?);
        drop_tail.push(ours("fifo")?);
    }
    let row = |name: &str, ours: &[f64]| {
        Row::new(name, "ns-3", "packet-hops/s").figures(&theirs, ours).goal(Goal::RatioAtLeast(100.0))
    };
    Ok(vec![
        row("simulator, 16 TCP flows at 10 Gb/s", &policy),
        row("simulator, the same without a policy", &drop_tail),
    ])
}

/// The program, or nothing where ns-3 is not installed.
fn compile(folder: &Path) -> Result<Option<PathBuf>> {
    let Some(flags) = flags() else {
        eprintln!("bench: ns-3 is not installed (libns3-dev, libgsl-dev): ours alone");
        return Ok(None);
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("ns3/dumbbell.cc");
    let program = folder.join("dumbbell");
    let mut compiler = Command::new("c++");
    compiler.args(["-O3", "-std=c++17", "-DNDEBUG", "-o"]).arg(&program).arg(source).args(&flags);
    let done = compiler.output().context("cannot start c++")?;
    ensure!(done.status.success(), "ns-3's dumbbell: {}", String::from_utf8_lossy(&done.stderr));
    Ok(Some(program))
}

/// Compiler flags for ns-3, if its libraries are installed.
fn flags() -> Option<Vec<String>> {
    let mut asked = Command::new("pkg-config");
    let answer = asked.args(["--cflags", "--libs"]).args(LIBRARIES).output().ok()?;
    let flags = String::from_utf8(answer.stdout).ok()?;
    answer.status.success().then(|| flags.split_whitespace().map(str::to_owned).collect())
}

fn ns3(program: &Path) -> Result<f64> {
    let done = Command::new(program).arg(SECONDS).output().context("cannot start ns-3's dumbbell")?;
    let text = String::from_utf8_lossy(&done.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[hops, seconds, rate] = numbers.as_slice() else { anyhow::bail!("ns-3's dumbbell said `{text}`") };
    ensure!(rate > 9e9, "ns-3 did not fill the link: {rate} bits a second");
    Ok(hops / seconds)
}

fn ours(system: &str) -> Result<f64> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("ns3/dumbbell.yaml");
    let scenario =
        Scenario::load(&file, Form::Full).map_err(|errors| anyhow::anyhow!(errors.render(false)))?;
    // One thread, which the bench waits for.
    let systems = vec![system.to_owned()];
    let options = Options { systems, threads: NonZeroUsize::new(1), ..Options::default() };
    let begun = process_time();
    let outcome = run(&scenario, &options, &|_| {})?;
    let spent = process_time() - begun;
    let bytes: u64 = outcome.results.runs[0].workloads.values().flat_map(|found| &found.bytes).sum();
    let rate = bytes as f64 * 8.0 / scenario.duration.as_secs_f64();
    ensure!(rate > 9e9, "the link was not filled: {rate} bits a second");
    Ok(outcome.hops as f64 / spent.as_secs_f64())
}
