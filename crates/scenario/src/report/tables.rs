//! The tables of a report that programs read.
//!
//! Why: spreadsheets, plotting programs and data frames start from them.
//! From: the same figures as people see.
//! Not here: their formats (`csv`, `parquet`).
//! Invariant: units are in the columns' names.

use plimsoll_units::{Nanos, Span};

use super::figures::distribution;
use super::grid::{Cell, Grid};
use crate::measure::Measures;
use crate::summary::Summary;
use crate::sweep::{Row, figure_names};
use crate::window::Window;
use crate::{Results, Scenario};

/// Each system's figures, one in each line.
pub(super) fn summary(summaries: &[Summary]) -> Grid {
    let mut grid = Grid::default().text("system").text("subject").text("figure").number("value");
    let mut line = |system: &str, subject: &str, figure: &str, value: Option<f64>| {
        if value.is_some() {
            grid.line([system.into(), subject.into(), figure.into(), value.into()]);
        }
    };
    for summary in summaries {
        let system = summary.system.as_str();
        line(system, "", "throughput_bps", summary.throughput_bps);
        line(system, "", "jain", summary.jain);
        line(system, "", "cpu_cores", summary.cpu);
        for (what, count) in &summary.drops {
            line(system, "", &format!("drops_{}", what.replace(' ', "_")), Some(*count));
        }
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
            line(system, &latency.workload, "unanswered", latency.unanswered);
            line(system, &latency.workload, "errors", latency.errors);
        }
        for flows in &summary.flows {
            let figures = [
                ("offered_bps", flows.offered_bps),
                ("flows", flows.arrived),
                ("unfinished", flows.unfinished),
                ("fct_mean_seconds", flows.fct_mean),
                ("fct_p50_seconds", flows.fct_p50),
                ("fct_p99_seconds", flows.fct_p99),
                ("slowdown_mean", flows.slowdown_mean),
                ("slowdown_p50", flows.slowdown_p50),
                ("slowdown_p99", flows.slowdown_p99),
            ];
            for (figure, value) in figures {
                line(system, &flows.workload, &format!("{figure}{}", flows.suffix), value);
            }
        }
        for one in &summary.intervals {
            line(system, &one.subject, &format!("{}_mean", one.figure), Some(one.interval.mean));
            let half = Some(one.interval.half_width);
            line(system, &one.subject, &format!("{}_ci95_half_width", one.figure), half);
        }
    }
    grid
}

/// Throughput of each workload in each window of each run.
pub(super) fn throughput(scenario: &Scenario, results: &Results) -> Grid {
    let measures = Measures::new(scenario, results);
    let grid = Grid::default().text("system").number("pair").number("from_seconds");
    let mut grid = grid.text("tenant").text("workload").decimals("bits_per_second", 0);
    for run in &results.runs {
        for part in Window::new(Span::ZERO, scenario.duration).parts(scenario.measure.window) {
            let from = part.from.since(Nanos::ZERO).as_secs_f64();
            for workload in &scenario.workloads {
                let rate = measures.throughput(run, Some(&workload.name), part);
                let place: [Cell; 3] = [run.system.as_str().into(), f64::from(run.pair).into(), from.into()];
                let what: [Cell; 3] =
                    [workload.tenant.as_str().into(), workload.name.as_str().into(), rate.into()];
                grid.line(place.into_iter().chain(what));
            }
        }
    }
    grid
}

/// Latency distributions over all runs of each system.
pub(super) fn latency(scenario: &Scenario, results: &Results) -> Grid {
    let measures = Measures::new(scenario, results);
    let grid = Grid::default().text("system").text("workload");
    let mut grid = grid.decimals("part", 6).decimals("seconds", 9);
    for system in &scenario.systems {
        for workload in &scenario.workloads {
            for (ms, part) in distribution(&measures, &system.name, &workload.name) {
                let seconds = ms / 1e3;
                grid.line([
                    system.name.as_str().into(),
                    workload.name.as_str().into(),
                    part.into(),
                    seconds.into(),
                ]);
            }
        }
    }
    grid
}

/// Every answered request or echoed probe, and every wait that was measured: when it began or ended, and how long it took.
pub(super) fn samples(results: &Results) -> Grid {
    let grid = Grid::default().text("system").number("pair").text("workload").text("what");
    let mut grid = grid.decimals("at_seconds", 9).decimals("seconds", 9);
    for run in &results.runs {
        for (name, found) in &run.workloads {
            let kinds = [
                ("answer", &found.samples),
                ("ingress_wait", &found.waits),
                ("nic_wait", &found.nic_waits),
                ("call", &found.calls),
                ("egress_wait", &found.egress_waits),
            ];
            for (what, sample) in kinds.iter().flat_map(|(what, all)| all.iter().map(move |one| (*what, one)))
            {
                grid.line([
                    run.system.as_str().into(),
                    f64::from(run.pair).into(),
                    name.as_str().into(),
                    what.into(),
                    sample.at.since(Nanos::ZERO).as_secs_f64().into(),
                    sample.latency.as_secs_f64().into(),
                ]);
            }
        }
    }
    grid
}

/// Every flow that arrived; one that was not complete at the run's end has no time.
pub(super) fn flows(results: &Results) -> Grid {
    let grid = Grid::default().text("system").number("pair").text("workload").decimals("at_seconds", 9);
    let mut grid =
        grid.number("bytes").decimals("seconds", 9).decimals("ideal_seconds", 9).number("slowdown");
    for run in &results.runs {
        for (name, found) in &run.workloads {
            for flow in &found.flows {
                let place: [Cell; 3] =
                    [run.system.as_str().into(), f64::from(run.pair).into(), name.as_str().into()];
                let took = flow.took.map(Span::as_secs_f64);
                let figures: [Cell; 5] = [
                    flow.at.since(Nanos::ZERO).as_secs_f64().into(),
                    (flow.size as f64).into(),
                    took.into(),
                    flow.ideal.as_secs_f64().into(),
                    flow.slowdown().into(),
                ];
                grid.line(place.into_iter().chain(figures));
            }
        }
    }
    grid
}

/// A sweep: one line for each row, one column for each setting and figure.
pub(super) fn sweep(rows: &[Row]) -> Grid {
    let Some(first) = rows.first() else { return Grid::default() };
    let mut grid = first.settings.iter().fold(Grid::default(), |grid, (path, _)| grid.text(path));
    grid = grid.text("system").number("expectations_met").number("expectations");
    let names = figure_names(rows);
    grid = names.iter().fold(grid, |grid, name| grid.number(name));
    for row in rows {
        let settings = row.settings.iter().map(|(_, value)| Cell::from(value.as_str()));
        let (met, all) = row.met;
        let middle: [Cell; 3] = [row.system.as_str().into(), (met as f64).into(), (all as f64).into()];
        let figures = names.iter().map(|name| Cell::from(row.figure(name)));
        grid.line(settings.chain(middle).chain(figures));
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::csv;
    use crate::{FlowSample, Run, Sample, WorkloadResult};

    #[test]
    fn samples_and_flows_have_a_line_for_each_that_was_measured() {
        let at = Nanos::new(1_500);
        let sample = |us| Sample { at, latency: Span::micros(us) };
        let flow = |took| FlowSample { at, size: 3_000, took, ideal: Span::micros(2) };
        let found = WorkloadResult {
            samples: vec![sample(7)],
            egress_waits: vec![sample(1)],
            flows: vec![flow(Some(Span::micros(4))), flow(None)],
            ..WorkloadResult::default()
        };
        let workloads = [("ask".to_owned(), found)].into();
        let run = Run { system: "fifo".to_owned(), pair: 1, workloads, ..Run::default() };
        let results = Results { runs: vec![run], notes: Vec::new() };
        let lines = |grid| csv::text(&grid).lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            lines(samples(&results)),
            ["fifo,1,ask,answer,0.000001500,0.000007000", "fifo,1,ask,egress_wait,0.000001500,0.000001000"]
        );
        assert_eq!(
            lines(flows(&results)),
            [
                "fifo,1,ask,0.000001500,3000,0.000004000,0.000002000,2",
                "fifo,1,ask,0.000001500,3000,,0.000002000,"
            ]
        );
    }
}
