//! The figures of a report.
//!
//! Why: which tenant was served when, and how long requests waited, show in a picture what a table hides.
//! From: Loom §7 (throughput per 50 ms, Figures 9 to 13), latency distributions with their tail.
//! Not here: axes and colours (`canvas`), files (`mod`).
//! Invariant: panels of one figure have the same scales, so that they compare.

mod flows;
mod series;

use kuva::render::render::Scene;
use plimsoll_units::Span;

use super::canvas::{Axis, Canvas};
use crate::measure::{Measures, median, percentile};
use crate::summary::Summary;
use crate::table::MOST_COLUMNS;
use crate::window::Window;
use crate::{Results, Run, Scenario, Workload};

/// A figure and its names.
pub(super) struct Figure {
    /// The name of its files.
    pub name: &'static str,
    /// The caption below it in the report.
    pub caption: String,
    pub scene: Scene,
}

/// Points of a curve for each system.
type Curves = Vec<Vec<(f64, f64)>>;

/// Every figure for which there are measurements.
pub(super) fn figures(scenario: &Scenario, results: &Results, summaries: &[Summary]) -> Vec<Figure> {
    let measures = Measures::new(scenario, results);
    let ran: Vec<&Summary> = summaries.iter().filter(|summary| summary.runs > 0).collect();
    if ran.is_empty() {
        return Vec::new();
    }
    let mut figures = vec![throughput(scenario, &measures, &ran)];
    figures.extend(destination(scenario, &measures, &ran));
    figures.extend(load(scenario, &measures, &ran));
    figures.extend(latency(scenario, &measures, &ran));
    figures.extend(flows::slowdown(&ran));
    figures.extend(series::figures(scenario, results, &ran));
    figures.extend(bars(scenario, &ran));
    figures.extend(fairness(scenario, &measures, &ran));
    figures
}

/// Throughput of each tenant over time: a panel for each system.
fn throughput(scenario: &Scenario, measures: &Measures<'_>, ran: &[&Summary]) -> Figure {
    let tenants = drawn(scenario, ran[0]);
    let window = shown_window(scenario);
    let series: Vec<Vec<Vec<(f64, f64)>>> = ran
        .iter()
        .map(|summary| {
            let runs: Vec<&Run> = measures.runs(&summary.system).collect();
            let of = |tenant: &String| {
                over_time(scenario, &runs, window, |run, part| measures.throughput(run, Some(tenant), part))
            };
            tenants.iter().map(of).collect()
        })
        .collect();
    let most = series
        .iter()
        .flatten()
        .flatten()
        .map(|(_, rate)| *rate)
        .fold(scenario.rate.get() as f64 / 1e6, f64::max);
    let most = most.min(scenario.rate.get() as f64 / 1e6 * 1.3);
    let mut canvas = Canvas::new("Throughput of each tenant over time");
    canvas.legend(&tenants);
    for (summary, series) in ran.iter().zip(&series) {
        let seconds = scenario.duration.as_secs_f64();
        let x = Axis::linear("time since the start (s)", seconds).until(seconds);
        let panel = canvas.panel(&summary.system, 170.0, x, Axis::linear("throughput (Mb/s)", most));
        for (at, note) in arrivals(scenario) {
            canvas.moment(&panel, at, &note);
        }
        for (n, values) in series.iter().enumerate() {
            canvas.curve(&panel, n, values);
        }
    }
    let of_all = scenario.tenants.len() > tenants.len();
    let some = if of_all {
        format!(" Drawn: {} of {}.", tenants.len(), scenario.tenants.len())
    } else {
        String::new()
    };
    let caption = format!(
        "Whole frames over the uplink in windows of {window}; dashed lines: workloads that begin or end. \
         The uplink carries {}.{some}",
        scenario.rate
    );
    Figure { name: "throughput", caption, scene: canvas.scene() }
}

/// The tenants with a curve: all of them where they are few, or those that sent most.
fn drawn(scenario: &Scenario, summary: &Summary) -> Vec<String> {
    let names: Vec<String> = scenario.tenants.iter().map(|tenant| tenant.name.clone()).collect();
    if names.len() <= MOST_COLUMNS {
        return names;
    }
    let mut shown: Vec<_> = summary.tenants.iter().collect();
    shown.sort_by(|a, b| b.throughput_bps.unwrap_or(0.0).total_cmp(&a.throughput_bps.unwrap_or(0.0)));
    shown.into_iter().take(MOST_COLUMNS).map(|tenant| tenant.tenant.clone()).collect()
}

/// Throughput to the second destination over time, a curve for each system.
fn destination(scenario: &Scenario, measures: &Measures<'_>, ran: &[&Summary]) -> Option<Figure> {
    let name = scenario.shown_destinations().next()?;
    let (window, seconds) = (shown_window(scenario), scenario.duration.as_secs_f64());
    let curves = ran.iter().map(|summary| {
        let runs: Vec<&Run> = measures.runs(&summary.system).collect();
        over_time(scenario, &runs, window, |run, part| measures.to(run, name, part))
    });
    let curves: Vec<Vec<(f64, f64)>> = curves.collect();
    let most = curves.iter().flatten().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut canvas = Canvas::new(&format!("Throughput to {name} over time, of all tenants together"));
    canvas.legend(&ran.iter().map(|summary| summary.system.clone()).collect::<Vec<_>>());
    let x = Axis::linear("time since the start (s)", seconds).until(seconds);
    let panel = canvas.panel("", 240.0, x, Axis::linear("throughput (Mb/s)", most));
    for (at, note) in arrivals(scenario) {
        canvas.moment(&panel, at, &note);
    }
    for (n, curve) in curves.iter().enumerate() {
        canvas.curve(&panel, n, curve);
    }
    let caption = format!("Whole frames in windows of {window}; dashed lines: workloads that begin or end.");
    Some(Figure { name: "destination", caption, scene: canvas.scene() })
}

/// The middle of a window of the given length, in seconds.
fn middle(part: Window, window: Span) -> f64 {
    part.from.since(plimsoll_units::Nanos::ZERO).as_secs_f64() + window.as_secs_f64() / 2.0
}

/// Load of a gateway's CPU over time, a curve for each system.
fn load(scenario: &Scenario, measures: &Measures<'_>, ran: &[&Summary]) -> Option<Figure> {
    let host = ran.iter().flat_map(|summary| &summary.through).next()?.host.as_str();
    let window = shown_window(scenario);
    let seconds = scenario.duration.as_secs_f64();
    let mut canvas = Canvas::new(&format!("Load of the CPU that receives packets on host {host}"));
    canvas.legend(&ran.iter().map(|summary| summary.system.clone()).collect::<Vec<_>>());
    let x = Axis::linear("time since the start (s)", seconds).until(seconds);
    let panel = canvas.panel("", 240.0, x, Axis::linear("load (%)", 100.0));
    for (at, note) in arrivals(scenario) {
        canvas.moment(&panel, at, &note);
    }
    for (n, summary) in ran.iter().enumerate() {
        let runs: Vec<&Run> = measures.runs(&summary.system).collect();
        let parts = Window::new(Span::ZERO, scenario.duration).parts(window);
        let curve = parts.map(|part| {
            let loads: Vec<f64> = runs.iter().map(|run| measures.load(run, Some(host), part)).collect();
            (middle(part, window), (median(&loads) * 100.0).min(100.0))
        });
        let known: Vec<(f64, f64)> = curve.filter(|(_, load)| load.is_finite()).collect();
        canvas.curve(&panel, n, &known);
    }
    let caption = format!(
        "Part of its time for which the CPU works, in windows of {window}; dashed lines: workloads that begin or end."
    );
    Some(Figure { name: "load", caption, scene: canvas.scene() })
}

/// Windows that a reader can see: at least a 250th of the run.
fn shown_window(scenario: &Scenario) -> Span {
    let window = scenario.measure.window;
    window.times((scenario.duration.as_u64() / 250 / window.as_u64()).max(1))
}

/// Middle of each window and Mb/s, mean over the runs.
fn over_time<'r>(
    scenario: &Scenario,
    runs: &[&'r Run],
    window: Span,
    rate: impl Fn(&'r Run, Window) -> f64,
) -> Vec<(f64, f64)> {
    let parts = Window::new(Span::ZERO, scenario.duration).parts(window);
    let value = |part: Window| {
        let sum: f64 = runs.iter().map(|run| rate(run, part)).sum();
        (middle(part, window), sum / runs.len() as f64 / 1e6)
    };
    parts.map(value).collect()
}

/// Moments at which workloads begin or end, with their names.
fn arrivals(scenario: &Scenario) -> Vec<(f64, String)> {
    let mut moments: Vec<(Span, String)> = Vec::new();
    let mut note = |at: Span, sign: &str, workload: &Workload| {
        let name = format!("{sign}{}", workload.name);
        match moments.iter_mut().find(|(moment, _)| *moment == at) {
            Some((_, names)) => *names = format!("{names} {name}"),
            None => moments.push((at, name)),
        }
    };
    for workload in &scenario.workloads {
        if workload.start > Span::ZERO {
            note(workload.start, "+", workload);
        }
        if workload.stop < scenario.duration {
            note(workload.stop, "-", workload);
        }
    }
    moments.into_iter().map(|(at, names)| (at.as_secs_f64(), names)).collect()
}

/// Latency distributions: a panel for each workload with requests, a curve for each system.
fn latency(scenario: &Scenario, measures: &Measures<'_>, ran: &[&Summary]) -> Option<Figure> {
    let asking: Vec<&Workload> = scenario.workloads.iter().filter(|w| w.kind.has_latency()).collect();
    let curves: Vec<(&Workload, Curves)> = asking
        .into_iter()
        .map(|workload| {
            (
                workload,
                ran.iter().map(|summary| distribution(measures, &summary.system, &workload.name)).collect(),
            )
        })
        .filter(|(_, curves): &(_, Curves)| curves.iter().any(|curve| !curve.is_empty()))
        .collect();
    let all = || curves.iter().flat_map(|(_, curves)| curves.iter().flatten().map(|(ms, _)| *ms));
    let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    if curves.is_empty() {
        return None;
    }
    let mut canvas = Canvas::new("How long answers took");
    canvas.legend(&ran.iter().map(|summary| summary.system.clone()).collect::<Vec<_>>());
    for (workload, curves) in &curves {
        let title = format!("{} of {}", workload.name, workload.tenant);
        let x = Axis::logarithmic("latency (ms, logarithmic)", least, most);
        let panel = canvas.panel(&title, 240.0, x, Axis::tail("answered within (tail stretched)"));
        for (n, curve) in curves.iter().enumerate() {
            canvas.curve(&panel, n, curve);
        }
    }
    let caption = format!(
        "Cumulative distribution of what was asked between {} and {}; further left is better. The upper axis is \
         stretched, so that the slowest 1 % and 0.1 % can be seen.",
        scenario.measure.from, scenario.measure.to
    );
    Some(Figure { name: "latency", caption, scene: canvas.scene() })
}

/// A distribution of fewer samples says nothing: a shuffle's rounds in a short run, for one.
const FEWEST: usize = 20;

/// Milliseconds and the part answered within, over all runs of a system.
pub(super) fn distribution(measures: &Measures<'_>, system: &str, workload: &str) -> Vec<(f64, f64)> {
    let runs = measures.runs(system);
    let mut all: Vec<f64> =
        runs.flat_map(|run| measures.latencies(run, Some(workload), measures.usual())).collect();
    if all.len() < FEWEST {
        return Vec::new();
    }
    all.sort_by(f64::total_cmp);
    // Evenly along the stretched axis, as far as there are samples to speak of.
    let steps = 160_u32;
    let deepest = 3.3_f64.min((all.len() as f64).log10());
    let parts = (0..=steps).map(|n| 1.0 - 10_f64.powf(-deepest * f64::from(n) / f64::from(steps)));
    parts.map(|part| (percentile(&all, part * 100.0) * 1e3, part)).collect()
}

/// Bars: mean throughput of each tenant under each system.
fn bars(scenario: &Scenario, ran: &[&Summary]) -> Option<Figure> {
    let most =
        ran.iter().flat_map(|summary| &summary.tenants).filter_map(|t| t.throughput_bps).fold(0.0, f64::max);
    if most == 0.0 {
        return None;
    }
    let mut canvas = Canvas::new("Throughput of each tenant under each system");
    canvas.legend(&ran.iter().map(|summary| summary.system.clone()).collect::<Vec<_>>());
    let shown = &ran[0].tenants;
    let count = shown.len();
    let caption = format!("Mean between {} and {}.", scenario.measure.from, scenario.measure.to);
    if count > MOST_COLUMNS {
        return Some(spread(ran, most / 1e6, canvas, caption));
    }
    let ticks = shown.iter().enumerate().map(|(n, tenant)| (n as f64, tenant.tenant.clone())).collect();
    let x =
        Axis { title: "tenant".to_owned(), ticks, from: -0.5, to: count as f64 - 0.5, map: |value| value };
    let panel = canvas.panel("", 240.0, x, Axis::linear("throughput (Mb/s)", most / 1e6 * 1.05));
    for (n, summary) in ran.iter().enumerate() {
        for (at, tenant) in summary.tenants.iter().enumerate() {
            let rate = tenant.throughput_bps.unwrap_or(0.0) / 1e6;
            let label = if count * ran.len() <= 24 { format!("{rate:.1}") } else { String::new() };
            canvas.bar(&panel, at as f64, (n, ran.len()), rate, &label);
        }
    }
    Some(Figure { name: "shares", caption, scene: canvas.scene() })
}

/// Throughput of many tenants: the part of them that gets no more than each rate.
fn spread(ran: &[&Summary], most: f64, mut canvas: Canvas, caption: String) -> Figure {
    let x = Axis::linear("throughput (Mb/s)", most * 1.05);
    let panel = canvas.panel("", 240.0, x, Axis::linear("part of the tenants (%)", 100.0));
    for (n, summary) in ran.iter().enumerate() {
        let mut rates: Vec<f64> = summary.tenants.iter().filter_map(|tenant| tenant.throughput_bps).collect();
        rates.sort_by(f64::total_cmp);
        let part = |at: usize| (at + 1) as f64 / rates.len() as f64 * 100.0;
        let curve: Vec<(f64, f64)> =
            rates.iter().enumerate().map(|(at, rate)| (rate / 1e6, part(at))).collect();
        canvas.curve(&panel, n, &curve);
    }
    Figure { name: "shares", caption: caption + " Cumulative over tenants.", scene: canvas.scene() }
}

/// Loom's fairness metric for two tenants: the distribution of the difference of their throughputs.
fn fairness(scenario: &Scenario, measures: &Measures<'_>, ran: &[&Summary]) -> Option<Figure> {
    let [a, b] = scenario.tenants.as_slice() else { return None };
    let line = scenario.rate.get() as f64;
    let mut canvas = Canvas::new("Difference between the two tenants' throughputs");
    canvas.legend(&ran.iter().map(|summary| summary.system.clone()).collect::<Vec<_>>());
    let x = Axis::linear("|difference| in a window (% of the line rate)", 100.0);
    let panel = canvas.panel("", 240.0, x, Axis::linear("part of the windows (%)", 100.0));
    let mut middles = Vec::new();
    for (n, summary) in ran.iter().enumerate() {
        let mut differences: Vec<f64> = Vec::new();
        for run in measures.runs(&summary.system) {
            let rate = |tenant: &str, part| measures.throughput(run, Some(tenant), part);
            let parts = measures.usual().parts(scenario.measure.window);
            differences
                .extend(parts.map(|part| (rate(&a.name, part) - rate(&b.name, part)).abs() / line * 100.0));
        }
        differences.sort_by(f64::total_cmp);
        let count = differences.len() as f64;
        let curve: Vec<(f64, f64)> =
            differences.iter().enumerate().map(|(n, fm)| (*fm, (n + 1) as f64 / count * 100.0)).collect();
        canvas.curve(&panel, n, &curve);
        middles.push(format!("{} {:.1} %", summary.system, median(&differences)));
    }
    let caption = format!(
        "FM = |{} - {}| in windows of {}, cumulative; further left is fairer. Medians: {}.",
        a.name,
        b.name,
        scenario.measure.window,
        middles.join(", ")
    );
    Some(Figure { name: "fairness", caption, scene: canvas.scene() })
}
