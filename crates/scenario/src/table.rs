//! The table that a terminal shows.
//!
//! Why: one glance says which system keeps which promise.
//! From: systems side by side, one row each.
//! Not here: the figures (`summary`).
//! Invariant: same figures, same text; nothing depends on the terminal but the width that is given.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};

use crate::expect::show;
use crate::summary::{LatencySummary, Summary, TenantSummary};
use crate::{Results, Scenario, Status, Unit, Verdict};

/// The systems' figures, what could not run, and the expectations; at most `width` characters wide where that can
/// be done.
#[must_use]
pub fn table(
    scenario: &Scenario,
    results: &Results,
    summaries: &[Summary],
    verdicts: &[Verdict],
    width: u16,
    colour: bool,
) -> String {
    let mut text = format!("{}: {}\n", scenario.name, setting(scenario));
    text += &format!("{}\n", systems(summaries, width));
    let noted = results
        .runs
        .iter()
        .flat_map(|run| run.notes.iter().map(move |note| format!("{}: {note}", run.system)));
    let mut notes: Vec<String> = results.notes.iter().cloned().chain(noted).collect();
    notes.dedup();
    for note in notes {
        text += &format!("note: {note}\n");
    }
    if !verdicts.is_empty() {
        text += &format!("{}\n", expectations(verdicts, width, colour));
    }
    text
}

/// Rate, moments and repetitions in one line.
pub(crate) fn setting(scenario: &Scenario) -> String {
    let measure = scenario.measure;
    let pairs = match scenario.pairs {
        1 => String::new(),
        pairs => format!(", medians of {pairs} interleaved runs"),
    };
    let short = match (scenario.short, scenario.time) {
        (false, _) => String::new(),
        (true, 1.0) => ", short form".to_owned(),
        (true, time) => format!(", short form (moments in expectations come at {time} times theirs)"),
    };
    format!(
        "{} uplink, {}..{} of {}{pairs}{short}",
        scenario.rate, measure.from, measure.to, scenario.duration
    )
}

fn systems(summaries: &[Summary], width: u16) -> Table {
    let mut table = new_table(width);
    let Some(first) = summaries.first() else { return table };
    let mut header = vec!["system".to_owned()];
    header.extend(first.tenants.iter().map(|tenant| format!("{}\nMb/s", tenant.tenant)));
    header.push("all\nMb/s".to_owned());
    for latency in &first.latency {
        let name = &latency.workload;
        header.extend([
            format!("{name}\n1/s"),
            "p50\nms".to_owned(),
            "p99\nms".to_owned(),
            "p99.9\nms".to_owned(),
        ]);
    }
    header.push("drops by reason".to_owned());
    let figures = header.len() - 2;
    table.set_header(header);
    for summary in summaries {
        let mut row = vec![Cell::new(&summary.system)];
        row.extend(figures_of(summary).into_iter().map(Cell::new));
        row.push(Cell::new(drops(&summary.tenants)));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1).take(figures) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn figures_of(summary: &Summary) -> Vec<String> {
    let mega = |bps: Option<f64>| figure(bps.map(|bps| bps / 1e6));
    let milli = |secs: Option<f64>| figure(secs.map(|secs| secs * 1e3));
    let mut figures: Vec<String> = summary.tenants.iter().map(|tenant| mega(tenant.throughput_bps)).collect();
    figures.push(mega(summary.throughput_bps));
    let latency =
        |l: &LatencySummary| [figure(l.requests_per_second), milli(l.p50), milli(l.p99), milli(l.p99_9)];
    figures.extend(summary.latency.iter().flat_map(latency));
    figures
}

/// `batch3 flow_full 1234`, a line for each.
fn drops(tenants: &[TenantSummary]) -> String {
    let line = |tenant: &TenantSummary| {
        let some = tenant.drops.iter().filter(|(_, count)| **count > 0.0);
        some.map(|(reason, count)| format!("{} {reason} {count:.0}", tenant.tenant)).collect::<Vec<_>>()
    };
    let lines: Vec<String> = tenants.iter().flat_map(line).collect();
    if lines.is_empty() { "-".to_owned() } else { lines.join("\n") }
}

fn expectations(verdicts: &[Verdict], width: u16, colour: bool) -> Table {
    let mut table = new_table(width);
    table.set_header(["", "expected", "measured"]);
    for verdict in verdicts {
        let (word, shade) = match verdict.status {
            Status::Passed => ("pass", Color::Green),
            Status::Failed => ("FAIL", Color::Red),
            Status::Skipped => ("skip", Color::DarkGrey),
        };
        let word = Cell::new(word);
        let word = if colour { word.fg(shade) } else { word };
        let why = verdict.because.as_ref().map(|why| format!("\n{why}")).unwrap_or_default();
        table.add_row([word, Cell::new(format!("{}{why}", verdict.expect)), Cell::new(&verdict.detail)]);
    }
    if colour {
        table.enforce_styling();
    }
    table
}

fn new_table(width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    table
}

/// Three or four digits, or a dash for nothing.
pub(crate) fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| show(value, Unit::Plain))
}
