//! A sweep's results: one row for each point and system.
//!
//! Why: how a figure depends on a value is one table, for people and for programs.
//! From: tidy tables: one row an observation, one column a variable.
//! Not here: which points there are (`read`), the figures of one point (`summary`).
//! Invariant: every row has the same columns, in the same order; what was not measured is empty.

use std::collections::BTreeSet;

use comfy_table::CellAlignment;

use crate::summary::{Summary, summarise};
use crate::table::{figure, mega, new_table};
use crate::{Results, Scenario, Status, Verdict};

/// One point of a sweep: a scenario with some of its values set.
#[derive(Clone, Debug)]
pub struct Point {
    /// The values set, by path, as the sweep lists them; none without a sweep.
    pub settings: Vec<(String, String)>,
    /// The scenario with them.
    pub scenario: Scenario,
}

/// The measurements of one system at one point: medians over its runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The point.
    pub settings: Vec<(String, String)>,
    /// The system.
    pub system: String,
    /// Expectations about the system: those that were met, and all of them.
    pub met: (usize, usize),
    /// Figures by name: `shop.throughput_bps`, `ask.p99_s`.
    pub figures: Vec<(String, Option<f64>)>,
}

impl Row {
    /// A figure by its name.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(figure, _)| figure == name).and_then(|(_, value)| *value)
    }
}

/// The names of all rows' figures: rows may have figures that others lack, such as those of sizes of flows that came.
pub(crate) fn figure_names(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    for (name, _) in rows.iter().flat_map(|row| &row.figures) {
        if known.insert(name) {
            names.push(name);
        }
    }
    names
}

/// The rows of one point.
#[must_use]
pub fn rows(point: &Point, results: &Results, verdicts: &[Verdict]) -> Vec<Row> {
    let summaries = summarise(&point.scenario, results);
    let row = |summary: &Summary| {
        let own = point.scenario.expect.iter().zip(verdicts);
        let own = own.filter(|(expectation, _)| expectation.systems().contains(&summary.system.as_str()));
        let own: Vec<&Verdict> = own.map(|(_, verdict)| verdict).collect();
        let met = own.iter().filter(|verdict| verdict.status == Status::Passed).count();
        Row {
            settings: point.settings.clone(),
            system: summary.system.clone(),
            met: (met, own.len()),
            figures: figures(summary),
        }
    };
    summaries.iter().filter(|summary| summary.runs > 0).map(row).collect()
}

fn figures(summary: &Summary) -> Vec<(String, Option<f64>)> {
    let mut figures = vec![("throughput_bps".to_owned(), summary.throughput_bps)];
    figures.push(("jain".to_owned(), summary.jain));
    figures.push(("cpu_cores".to_owned(), summary.cpu));
    for tenant in &summary.tenants {
        figures.push((format!("{}.throughput_bps", tenant.tenant), tenant.throughput_bps));
        figures.push((
            format!("{}.drops", tenant.tenant),
            Some(tenant.drops.values().fold(0.0, |sum, count| sum + count)),
        ));
    }
    for latency in &summary.latency {
        let mut add = |name: &str, value| figures.push((format!("{}.{name}", latency.workload), value));
        add("requests_per_s", latency.requests_per_second);
        add("p50_s", latency.p50);
        add("p90_s", latency.p90);
        add("p99_s", latency.p99);
        add("p99.9_s", latency.p99_9);
        add("unanswered", latency.unanswered);
        add("errors", latency.errors);
    }
    for flows in &summary.flows {
        let mut add =
            |name: &str, value| figures.push((format!("{}.{name}{}", flows.workload, flows.suffix), value));
        add("fct_mean_s", flows.fct_mean);
        add("fct_p99_s", flows.fct_p99);
        add("slowdown_mean", flows.slowdown_mean);
        add("slowdown_p99", flows.slowdown_p99);
        add("unfinished", flows.unfinished);
    }
    figures
}

/// The table that a terminal shows, at most `width` characters wide where that can be done.
#[must_use]
pub fn sweep_table(rows: &[Row], width: u16) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut table = new_table(width);
    let shown: Vec<(&str, String, f64)> = figure_names(rows).into_iter().filter_map(heading).collect();
    let mut header: Vec<String> = first.settings.iter().map(|(path, _)| path.clone()).collect();
    header.push("system".to_owned());
    header.extend(shown.iter().map(|(_, heading, _)| heading.clone()));
    header.push("met".to_owned());
    table.set_header(header);
    for row in rows {
        let mut cells: Vec<String> = row.settings.iter().map(|(_, value)| value.clone()).collect();
        cells.push(row.system.clone());
        for (name, _, scale) in &shown {
            let value = row.figure(name);
            cells.push(if *scale == MEGA { mega(value) } else { figure(value.map(|value| value / scale)) });
        }
        cells.push(if row.met.1 == 0 { "-".to_owned() } else { format!("{}/{}", row.met.0, row.met.1) });
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(first.settings.len() + 1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

const MEGA: f64 = 1e6;
const MILLI: f64 = 1e-3;
const PERCENT: f64 = 1e-2;

/// The heading of a figure that is shown first, and its divisor.
fn heading(name: &str) -> Option<(&str, String, f64)> {
    let subject = |end: &str| name.strip_suffix(end).map(|subject| subject.trim_end_matches('.'));
    if let Some(tenant) = subject("throughput_bps") {
        let whose = if tenant.is_empty() { "all" } else { tenant };
        return Some((name, format!("{whose}\nMb/s"), MEGA));
    }
    if let Some(workload) = subject("p50_s") {
        return Some((name, format!("{workload}\np50 ms"), MILLI));
    }
    if let Some(workload) = subject("unanswered") {
        return Some((name, format!("{workload}\nunanswered %"), PERCENT));
    }
    if let Some(workload) = subject("slowdown_p99") {
        return Some((name, format!("{workload}\nslowdown p99"), 1.0));
    }
    if name.ends_with("fct_p99_s") {
        return None;
    }
    subject("p99_s").map(|workload| (name, format!("{workload}\np99 ms"), MILLI))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_figures_of_their_own_have_them_under_their_names() {
        let row = |figures: &[(&str, f64)]| Row {
            settings: vec![("size".to_owned(), "8kB".to_owned())],
            system: "fifo".to_owned(),
            met: (0, 0),
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), Some(*value))).collect(),
        };
        let rows = [row(&[("a", 1.0), ("b", 2.0)]), row(&[("a", 3.0), ("c", 4.0)])];
        assert_eq!(figure_names(&rows), ["a", "b", "c"]);
        assert_eq!((rows[1].figure("b"), rows[1].figure("c")), (None, Some(4.0)));
    }
    use crate::Form;
    use std::path::Path;

    const TEXT: &str = "
name: t
rate: 10Mbps
duration: 1s
systems: [fifo, plimsoll]
tenants: {a: {}, b: {}}
workloads: {w: {tenant: a, kind: bulk}}
sweep:
  tenants.a.weight: [1, 3]
  workloads.w.flows: [1, 4, 16]
";

    fn points(settings: &[(&str, &str)]) -> Vec<Point> {
        let settings: Vec<_> = settings.iter().map(|(p, v)| ((*p).to_owned(), (*v).to_owned())).collect();
        Scenario::points(TEXT, "t.yaml", Path::new(""), Form::Full, &settings)
            .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
    }

    #[test]
    fn every_combination_is_a_point_and_the_last_path_varies_fastest() {
        let points = points(&[]);
        let settings: Vec<String> = points
            .iter()
            .map(|point| point.settings.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(settings, ["1 1", "1 4", "1 16", "3 1", "3 4", "3 16"]);
        assert_eq!(points[4].scenario.tenants[0].weight, 3);
        assert_eq!(points[4].scenario.workloads[0].kind, crate::Kind::Bulk { flows: 4, reverse: false });
    }

    #[test]
    fn a_setting_fixes_what_would_be_varied() {
        let points = points(&[("tenants.a.weight", "7"), ("rate", "20Mbps")]);
        assert_eq!(points.len(), 3);
        assert!(points.iter().all(|point| point.scenario.tenants[0].weight == 7));
        assert_eq!(points[0].scenario.rate, plimsoll_units::BitRate::mbps(20));
    }

    #[test]
    fn a_path_to_nowhere_is_a_mistake_with_its_place() {
        let text = TEXT.replace("workloads.w.flows", "workloads.v.flows");
        let errors =
            Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full).expect_err("no such workload");
        let shown = errors.render(false);
        assert!(shown.contains("leads nowhere: there is no `v`") && shown.contains("t.yaml:10"), "{shown}");
    }
}
