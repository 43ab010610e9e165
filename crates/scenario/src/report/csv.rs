//! The measurements as comma-separated values.
//!
//! Why: spreadsheets and plotting programs read them.
//! From: RFC 4180; names need no quotes, since scenarios allow letters, digits and `_` only.
//! Not here: figures that are worked out for people (`html`).
//! Invariant: one header line; one measurement in each line; units in the header.

use std::fmt::Write as _;

use plimsoll_units::{Nanos, Span};

use super::figures::distribution;
use crate::measure::{Measures, Window};
use crate::summary::Summary;
use crate::{Results, Scenario};

/// Each system's figures, one in each line.
pub(super) fn summary(summaries: &[Summary]) -> String {
    let mut text = String::from("system,subject,figure,value\n");
    let mut line = |system: &str, subject: &str, figure: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{system},{subject},{figure},{value}");
        }
    };
    for summary in summaries {
        let system = summary.system.as_str();
        line(system, "", "throughput_bps", summary.throughput_bps);
        line(system, "", "jain", summary.jain);
        line(system, "", "cpu_cores", summary.cpu);
        for tenant in &summary.tenants {
            line(system, &tenant.tenant, "throughput_bps", tenant.throughput_bps);
            for (reason, count) in &tenant.drops {
                line(system, &tenant.tenant, &format!("drops_{reason}"), Some(*count));
            }
        }
        for latency in &summary.latency {
            line(system, &latency.workload, "requests_per_second", latency.requests_per_second);
            line(system, &latency.workload, "p50_seconds", latency.p50);
            line(system, &latency.workload, "p90_seconds", latency.p90);
            line(system, &latency.workload, "p99_seconds", latency.p99);
            line(system, &latency.workload, "p99.9_seconds", latency.p99_9);
            line(system, &latency.workload, "errors", latency.errors);
        }
    }
    text
}

/// Throughput of each workload in each window of each run.
pub(super) fn throughput(scenario: &Scenario, results: &Results) -> String {
    let measures = Measures::new(scenario, results);
    let mut text = String::from("system,pair,from_seconds,tenant,workload,bits_per_second\n");
    for run in &results.runs {
        for part in Window::new(Span::ZERO, scenario.duration).parts(scenario.measure.window) {
            let from = part.from.since(Nanos::ZERO).as_secs_f64();
            for workload in &scenario.workloads {
                let rate = measures.throughput(run, Some(&workload.name), part);
                let (system, pair, tenant, name) = (&run.system, run.pair, &workload.tenant, &workload.name);
                let _ = writeln!(text, "{system},{pair},{from},{tenant},{name},{rate:.0}");
            }
        }
    }
    text
}

/// Latency distributions over all runs of each system.
pub(super) fn latency(scenario: &Scenario, results: &Results) -> String {
    let measures = Measures::new(scenario, results);
    let mut text = String::from("system,workload,part,seconds\n");
    for system in &scenario.systems {
        for workload in &scenario.workloads {
            for (ms, part) in distribution(&measures, &system.name, &workload.name) {
                let _ = writeln!(text, "{},{},{part:.6},{:.9}", system.name, workload.name, ms / 1e3);
            }
        }
    }
    text
}
