//! Results that no machine measured: a demo as it should come out.

use plimsoll_scenario::{Results, Run, Sample, Scenario, System, WorkloadResult};
use plimsoll_units::{Nanos, Span};

/// Each workload's bytes by window and latencies, with a small deterministic wobble; `fifo` shares by flows.
pub fn invented(scenario: &Scenario) -> Results {
    let mut results = Results::default();
    for pair in 0..scenario.pairs {
        results.runs.extend(scenario.systems.iter().map(|system| run(scenario, system, pair)));
    }
    results
}

fn run(scenario: &Scenario, system: &System, pair: u32) -> Run {
    let mut run = Run { system: system.name.clone(), pair, ..Run::default() };
    let window = scenario.measure.window;
    let count = scenario.duration.as_u64() / window.as_u64();
    let mut noise = u64::from(pair) + system.name.len() as u64;
    for workload in &scenario.workloads {
        let mut found = WorkloadResult::default();
        for n in 0..count {
            let from = window.times(n);
            let active = from >= workload.start && from < workload.stop;
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let wobble = noise >> 60;
            let share = scenario.rate.bytes_in(window).as_u64() / scenario.workloads.len() as u64;
            found.bytes.push(if active { share - share * wobble / 100 } else { 0 });
            if active && workload.kind.has_latency() {
                let base = if system.name == "fifo" { 40_000 } else { 900 };
                found.samples.extend((0..20).map(|k| Sample {
                    at: Nanos::ZERO + from + Span::micros(k),
                    latency: Span::micros(base + base * (noise >> (k + 30) & 63) / 40),
                }));
            }
        }
        run.workloads.insert(workload.name.clone(), found);
    }
    let lost = [("queue_full".to_owned(), 1_234)].into();
    run.drops.insert(scenario.tenants[scenario.tenants.len() - 1].name.clone(), lost);
    run
}
