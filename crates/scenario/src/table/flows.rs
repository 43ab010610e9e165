//! Tables of flows that arrive, and of confidence intervals.
//!
//! Why: completion times of short flows and long ones have nothing in common, and a mean over few runs may be chance.
//! From: pFabric's and Homa's figures: times and slowdowns by size.
//! Not here: the figures (`summary`).
//! Invariant: the page of the report has the same rows.

use comfy_table::Table;

use super::{align, figure, mega, new_table};
use crate::Unit;
use crate::expect::show;
use crate::interval::{FEW, IntervalSummary, quantile};
use crate::summary::{FlowSummary, Summary};

/// Titles of the columns of [`flow_figures`].
pub(crate) const FLOWS: [&str; 9] = [
    "flows",
    "not\ndone",
    "offered\nMb/s",
    "FCT mean\nms",
    "FCT p50\nms",
    "FCT p99\nms",
    "slowdown\nmean",
    "slowdown\np50",
    "slowdown\np99",
];

/// What the flows of one class of sizes did.
pub(crate) fn flow_figures(flows: &FlowSummary) -> [String; 9] {
    let count = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    let milli = |secs: Option<f64>| figure(secs.map(|secs| secs * 1e3));
    [
        count(flows.arrived),
        count(flows.unfinished),
        mega(flows.offered_bps),
        milli(flows.fct_mean),
        milli(flows.fct_p50),
        milli(flows.fct_p99),
        figure(flows.slowdown_mean),
        figure(flows.slowdown_p50),
        figure(flows.slowdown_p99),
    ]
}

/// Flows that arrive, a row for each system, workload and class of sizes.
pub(super) fn flows(summaries: &[Summary], width: u16) -> Option<Table> {
    let mut table = new_table(width);
    let titles = ["system", "flows of", "size"].into_iter().chain(FLOWS);
    table.set_header(titles);
    for summary in summaries {
        for one in &summary.flows {
            let names = [summary.system.clone(), one.workload.clone(), one.sizes.clone()];
            table.add_row(names.into_iter().chain(flow_figures(one)));
        }
    }
    align(&mut table, 3, FLOWS.len());
    (!table.is_empty()).then_some(table)
}

/// What a figure is of and its name, its mean, and half the width of its interval; nothing for one that tables leave out.
pub(crate) fn interval_figures(one: &IntervalSummary) -> Option<[String; 4]> {
    if one.shown.is_empty() {
        return None;
    }
    let unit = match one.figure.as_str() {
        name if name.contains("_bps") => Unit::Rate,
        name if name.contains("_seconds") => Unit::Time,
        _ => Unit::Plain,
    };
    let subject = if one.subject.is_empty() { "all" } else { &one.subject };
    let (mean, half) = (one.interval.mean, one.interval.half_width);
    Some([subject.to_owned(), one.shown.clone(), show(mean, unit), format!("± {}", show(half, unit))])
}

/// What intervals are of, and how far to trust them; nothing without any.
pub(crate) fn interval_title(summaries: &[Summary]) -> Option<String> {
    let runs = summaries.iter().flat_map(|summary| &summary.intervals).map(|one| one.interval.runs).max()?;
    let mut title = format!("means of {runs} runs with 95 % confidence intervals (Student's t)");
    if runs < FEW {
        let factor = show(quantile(runs - 1), Unit::Plain);
        title += &format!(
            "; {runs} runs are few: intervals are {factor} standard errors wide to each side, and more seeds narrow them"
        );
    }
    Some(title)
}

/// Means over runs with their confidence intervals, a row for each system and figure.
pub(super) fn intervals(summaries: &[Summary], width: u16) -> Option<String> {
    let title = interval_title(summaries)?;
    let mut table = new_table(width);
    table.set_header(["system", "of", "figure", "mean", "95 %"]);
    for summary in summaries {
        for row in summary.intervals.iter().filter_map(interval_figures) {
            table.add_row([summary.system.clone()].into_iter().chain(row));
        }
    }
    align(&mut table, 3, 2);
    Some(format!("{}\n{table}", title.replace("; ", "\n")))
}
