//! Windows, round trips, rates and queues over time.
//!
//! Why: the report shows at a glance what `--series` writes.
//! From: the traces that papers on congestion control print.
//! Not here: the files (`report::series`).
//! Invariant: a figure shows few curves; the files have all.

use plimsoll_units::Nanos;

use super::{Axis, Canvas, Figure, Summary};
use crate::report::series::flow_rates;
use crate::{FlowTrace, LinkTrace, Results, Scenario, Series};

/// Most curves of a panel.
const MOST: usize = 8;

/// A quantity of flows: its title, its unit on the axis, and its value at each sample.
type Quantity = (&'static str, &'static str, &'static str, fn(&FlowTrace) -> Vec<f64>);

const QUANTITIES: [Quantity; 3] = [
    ("cwnd", "Congestion windows", "cwnd (kB)", |trace| {
        trace.points.iter().map(|point| point.cwnd as f64 / 1e3).collect()
    }),
    ("rtt", "Smoothed round-trip times", "RTT (us)", |trace| {
        let rtt = |point: &crate::FlowPoint| point.rtt.map_or(f64::NAN, |rtt| rtt.as_secs_f64() * 1e6);
        trace.points.iter().map(rtt).collect()
    }),
    ("rate", "Rates of flows", "rate (Mb/s)", |trace| flow_rates(trace).map(|rate| rate / 1e6).collect()),
];

/// Figures of the first run of each system; nothing where none was traced.
pub(super) fn figures(scenario: &Scenario, results: &Results, ran: &[&Summary]) -> Vec<Figure> {
    let first = |system: &str| results.runs.iter().find(|run| run.system == system)?.series.as_ref();
    let traced = ran.iter().map(|summary| summary.system.as_str());
    let traced: Vec<(&str, &Series)> = traced.filter_map(|system| Some((system, first(system)?))).collect();
    if traced.is_empty() {
        return Vec::new();
    }
    let mut figures: Vec<Figure> =
        QUANTITIES.iter().filter_map(|quantity| flows(scenario, &traced, quantity)).collect();
    figures.extend(queues(scenario, &traced));
    figures
}

/// One quantity of the flows that were traced for longest, a panel for each system.
fn flows(scenario: &Scenario, traced: &[(&str, &Series)], quantity: &Quantity) -> Option<Figure> {
    let (name, title, unit, of) = quantity;
    let longest = traced.iter().map(|(_, series)| longest(&series.flows)).collect::<Vec<_>>();
    let values = longest.iter().map(|traces| traces.iter().map(|trace| of(trace)).collect::<Vec<_>>());
    let values: Vec<Vec<Vec<f64>>> = values.collect();
    let most =
        values.iter().flatten().flatten().copied().filter(|value| value.is_finite()).reduce(f64::max)?;
    let mut canvas = Canvas::new(&format!("{title} over time"));
    for ((traces, values), (system, _)) in longest.iter().zip(&values).zip(traced) {
        canvas.legend(
            &traces.iter().map(|trace| format!("{} {}", trace.workload, trace.number)).collect::<Vec<_>>(),
        );
        let panel = canvas.panel(system, 170.0, time(scenario), Axis::linear(unit, most));
        for (n, (trace, values)) in traces.iter().zip(values).enumerate() {
            let moments = trace.points.iter().map(|point| seconds(point.at));
            let points: Vec<(f64, f64)> = moments.zip(values.iter().copied()).collect();
            canvas.curve(&panel, n, &points);
        }
    }
    let caption = format!(
        "The {MOST} ends of connections that were traced for longest, in the first run of each system; \
         the files of --series have all."
    );
    Some(Figure { name, caption, scene: canvas.scene() })
}

/// The links with the longest queues, a panel for each system.
fn queues(scenario: &Scenario, traced: &[(&str, &Series)]) -> Option<Figure> {
    let peak = |trace: &LinkTrace| trace.points.iter().map(|point| point.queue).max().unwrap_or(0);
    let longest = traced.iter().map(|(_, series)| {
        let mut links: Vec<&LinkTrace> = series.links.iter().filter(|trace| peak(trace) > 0).collect();
        links.sort_by_key(|trace| std::cmp::Reverse(peak(trace)));
        links.truncate(MOST);
        links
    });
    let longest: Vec<Vec<&LinkTrace>> = longest.collect();
    let most = longest.iter().flatten().map(|trace| peak(trace)).max()? as f64 / 1e3;
    let mut canvas = Canvas::new("Queues over time");
    for (links, (system, _)) in longest.iter().zip(traced) {
        canvas.legend(&links.iter().map(|trace| trace.link.clone()).collect::<Vec<_>>());
        let panel = canvas.panel(system, 170.0, time(scenario), Axis::linear("queue (kB)", most));
        for (n, trace) in links.iter().enumerate() {
            let points = trace.points.iter().map(|point| (seconds(point.at), point.queue as f64 / 1e3));
            canvas.curve(&panel, n, &points.collect::<Vec<_>>());
        }
    }
    let caption = format!(
        "The {MOST} links with the longest queues, in the first run of each system; what waits in a host's engine \
         or limiter counts for its link."
    );
    Some(Figure { name: "queues", caption, scene: canvas.scene() })
}

/// The traces with the most samples, in their order.
fn longest(traces: &[FlowTrace]) -> Vec<&FlowTrace> {
    let mut all: Vec<(usize, &FlowTrace)> = traces.iter().enumerate().collect();
    all.sort_by_key(|(n, trace)| (std::cmp::Reverse(trace.points.len()), *n));
    all.truncate(MOST);
    all.sort_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, trace)| trace).collect()
}

fn time(scenario: &Scenario) -> Axis {
    let seconds = scenario.duration.as_secs_f64();
    Axis::linear("time since the start (s)", seconds).until(seconds)
}

fn seconds(at: Nanos) -> f64 {
    at.since(Nanos::ZERO).as_secs_f64()
}
