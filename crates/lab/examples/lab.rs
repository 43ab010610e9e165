//! Runs a scenario file and prints what each workload got: the lab without the command line around it.
//!
//! $ cargo run -p plimsoll-lab --example lab -- examples/noisy-neighbour.yaml short fifo,htb
//! fifo #0
//!   web        0.312 Mb/s   1563 answers  p50 41.2 ms  p99 77.0 ms  0 errors
//!   bulk      19.611 Mb/s      0 answers

use plimsoll_lab::{LabError, Options, Progress};
use plimsoll_scenario::{Form, Scenario, WorkloadResult};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    plimsoll_lab::ensure_privileges()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let file = words.first().ok_or("which scenario file?")?;
    let form = if words.get(1).is_some_and(|word| word == "short") { Form::Short } else { Form::Full };
    let systems = words.get(2).map(|list| list.split(',').map(str::to_owned).collect()).unwrap_or_default();
    let scenario = Scenario::load(Path::new(file), form)?;
    let options = Options { systems, ..Options::default() };
    let results = plimsoll_lab::run(&scenario, &options, &mut show).map_err(|e: LabError| e.to_string())?;
    for run in &results.runs {
        println!("{} #{} cpu {:?}", run.system, run.pair, run.cpu);
        for (name, result) in &run.workloads {
            let seconds = scenario.duration.as_secs_f64();
            println!("  {name:10} {}", line(result, seconds));
            if words.get(3).is_some_and(|word| word == "series") {
                println!("  {:?}", result.bytes);
            }
        }
        println!("  drops {:?}\n  notes {:?}", run.drops, run.notes);
    }
    println!("notes {:?}", results.notes);
    for verdict in plimsoll_scenario::judge(&scenario, &results) {
        println!("{verdict:?}");
    }
    Ok(())
}

fn show(progress: Progress) {
    match progress {
        Progress::System { index, total, name, pair } => eprintln!("{}/{total} {name} #{pair}", index + 1),
        Progress::Tick { elapsed, rates } => {
            let rates: Vec<String> =
                rates.iter().map(|(name, rate)| format!("{name} {:.1}", rate / 1e6)).collect();
            eprintln!("  {:6.2} s  {} Mb/s", elapsed.as_secs_f64(), rates.join("  "));
        }
    }
}

fn line(result: &WorkloadResult, seconds: f64) -> String {
    let megabits = result.bytes.iter().sum::<u64>() as f64 * 8.0 / 1e6 / seconds;
    let mut latencies: Vec<u64> = result.samples.iter().map(|sample| sample.latency.as_u64()).collect();
    latencies.sort_unstable();
    let quantile = |q: f64| {
        let index = (latencies.len() as f64 * q) as usize;
        latencies.get(index.min(latencies.len().saturating_sub(1))).map_or(0.0, |ns| *ns as f64 / 1e6)
    };
    let (p50, p99, count) = (quantile(0.5), quantile(0.99), latencies.len());
    format!(
        "{megabits:8.3} Mb/s {count:6} answers  p50 {p50:.1} ms  p99 {p99:.1} ms  {} errors",
        result.errors
    )
}
