//! The table that a terminal shows.
//!
//! Why: an operator sees at once which system keeps which promise.
//! From: systems side by side, one row each.
//! Not here: the figures (`summary`).
//! Invariant: same figures, same text; nothing depends on the terminal but the width that is given.

mod flows;

use std::cmp::Reverse;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};

pub(crate) use self::flows::{FLOWS, flow_figures, interval_figures, interval_title};
use crate::expect::show;
use crate::measure::percentile;
use crate::promises::{Fared, promises, rank};
use crate::summary::{LatencySummary, Summary, ThroughSummary};
use crate::{Kind, Results, Scenario, Status, Unit, Verdict};

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
    let shown = shown_beside(scenario);
    text += &format!("{}\n", systems(summaries, shown, width));
    if let Some(table) = others(summaries, shown, width) {
        text += &format!("{table}\n");
    }
    if let Some(table) = flows::flows(summaries, width) {
        text += &format!("{table}\n");
    }
    if let Some(table) = through(summaries, width) {
        text += &format!("{table}\n");
    }
    if let Some(table) = kept(&promises(scenario, results), width, colour) {
        text += &table;
    }
    if let Some(table) = flows::intervals(summaries, width) {
        text += &format!("{table}\n");
    }
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

/// The workload with requests whose columns stand beside the throughputs: the first that is no shuffle.
pub(crate) fn shown_beside(scenario: &Scenario) -> Option<usize> {
    let mut asking = scenario.shown_asking().into_iter();
    asking.position(|(_, workload)| !matches!(workload.kind, Kind::Shuffle { .. }))
}

fn systems(summaries: &[Summary], shown: Option<usize>, width: u16) -> Table {
    let mut table = new_table(width);
    let columns = latency_columns(summaries);
    let Some(first) = summaries.first() else { return table };
    let mut header = vec!["system".to_owned()];
    header.extend(tenant_titles(first));
    header.push("all\nMb/s".to_owned());
    header.extend(first.destinations.iter().map(|one| format!("to {}\nMb/s", one.destination)));
    if let Some(latency) = shown.and_then(|n| first.latency.get(n)) {
        header.push(format!("{}\n1/s", latency.workload));
        header.extend(LATENCY[..columns].iter().map(|&title| title.to_owned()));
    }
    header.push("drops by reason".to_owned());
    let figures = header.len() - 2;
    let figures_of = |latency| latency_figures(latency, columns);
    table.set_header(header);
    for summary in summaries {
        let mut row = vec![summary.system.clone()];
        row.extend(tenant_figures(summary));
        row.push(mega(summary.throughput_bps));
        row.extend(summary.destinations.iter().map(|one| mega(one.throughput_bps)));
        row.extend(shown.and_then(|n| summary.latency.get(n)).into_iter().flat_map(figures_of));
        let lost = summary.lost();
        row.push(if lost.is_empty() { "-".to_owned() } else { lost.join("\n") });
        table.add_row(row);
    }
    align(&mut table, 1, figures);
    table
}

/// Tenants that have a column each. Of more there are three columns: the least, the median and the most.
pub(crate) const MOST_COLUMNS: usize = 16;

/// Titles of the columns of [`tenant_figures`], each with its unit on a second line.
pub(crate) fn tenant_titles(summary: &Summary) -> Vec<String> {
    let tenants = &summary.tenants;
    if tenants.len() <= MOST_COLUMNS {
        return tenants.iter().map(|tenant| format!("{}\nMb/s", tenant.tenant)).collect();
    }
    let least = format!("least of {}\nMb/s", tenants.len());
    vec![least, "median\nMb/s".to_owned(), "most\nMb/s".to_owned()]
}

/// The tenants' throughputs in Mb/s.
pub(crate) fn tenant_figures(summary: &Summary) -> Vec<String> {
    let rates = summary.tenants.iter().map(|tenant| tenant.throughput_bps);
    if summary.tenants.len() <= MOST_COLUMNS {
        return rates.map(mega).collect();
    }
    let mut known: Vec<f64> = rates.flatten().collect();
    known.sort_by(f64::total_cmp);
    [0.0, 50.0, 100.0]
        .map(|percent| mega(Some(percentile(&known, percent)).filter(|rate| !rate.is_nan())))
        .into()
}

/// Further workloads with requests, a row for each of them and each system.
fn others(summaries: &[Summary], shown: Option<usize>, width: u16) -> Option<Table> {
    let mut table = new_table(width);
    let columns = latency_columns(summaries);
    table.set_header(["system", "answers to", "1/s"].iter().chain(&LATENCY[..columns]));
    for summary in summaries {
        for (_, latency) in summary.latency.iter().enumerate().filter(|(n, _)| Some(*n) != shown) {
            let names = [summary.system.clone(), latency.workload.clone()];
            table.add_row(names.into_iter().chain(latency_figures(latency, columns)));
        }
    }
    align(&mut table, 2, 1 + columns);
    (!table.is_empty()).then_some(table)
}

/// Workloads that send through a gateway, a row for each of them and each system.
fn through(summaries: &[Summary], width: u16) -> Option<Table> {
    let mut table = new_table(width);
    let host = summaries.iter().flat_map(|summary| &summary.through).next().map(|one| one.host.clone())?;
    let mut header = vec!["system".to_owned(), "through a gateway".to_owned()];
    header.extend(THROUGH.map(str::to_owned));
    header.push(format!("load of\n{host}"));
    table.set_header(header);
    for summary in summaries {
        for one in &summary.through {
            let names = [summary.system.clone(), one.workload.clone()];
            table.add_row(names.into_iter().chain(through_figures(one)));
        }
    }
    align(&mut table, 2, 5);
    Some(table)
}

/// Titles of the columns of [`through_figures`], but for the last, which names the host.
pub(crate) const THROUGH: [&str; 4] = ["Mb/s", "sent\nagain", "marked", "metered"];

/// What a workload through a gateway sent, packets by what happened to them, and the load of the gateway's CPU.
pub(crate) fn through_figures(through: &ThroughSummary) -> [String; 5] {
    let ThroughSummary { throughput_bps, retransmits, marks, metered, load, .. } = through;
    let count = |count: &Option<f64>| count.map_or_else(|| "-".to_owned(), |count| format!("{count:.0}"));
    let load = load.map_or_else(|| "-".to_owned(), |load| format!("{:.0} %", load * 100.0));
    [mega(*throughput_bps), count(retransmits), count(marks), count(metered), load]
}

fn align(table: &mut Table, first: usize, count: usize) {
    for column in table.column_iter_mut().skip(first).take(count) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

pub(crate) fn mega(bps: Option<f64>) -> String {
    figure(bps.map(|bps| bps / 1e6))
}

/// Titles of the columns of [`latency_figures`], but for the first, which is answers a second.
pub(crate) const LATENCY: [&str; 4] = ["p50\nms", "p99\nms", "p99.9\nms", "unanswered\n%"];

/// How many of [`LATENCY`] are shown: the last only where a request had no answer.
pub(crate) fn latency_columns(summaries: &[Summary]) -> usize {
    let mut all = summaries.iter().flat_map(|summary| &summary.latency);
    let all_answered = !all.any(|latency| latency.unanswered.is_some_and(|part| part > 0.0));
    LATENCY.len() - usize::from(all_answered)
}

/// Answers a second, and the first columns of [`LATENCY`]: percentiles of the time that answered requests took, and the part
/// that was not answered.
pub(crate) fn latency_figures(latency: &LatencySummary, columns: usize) -> Vec<String> {
    let LatencySummary { requests_per_second, p50, p99, p99_9, unanswered, .. } = latency;
    // As expectations say it: there were requests, and none was answered.
    let never = *unanswered == Some(1.0);
    let milli = |secs: &Option<f64>| match secs {
        None if never => show(f64::INFINITY, Unit::Time),
        secs => figure(secs.map(|secs| secs * 1e3)),
    };
    let percent = figure(unanswered.map(|part| part * 100.0));
    let all = [figure(*requests_per_second), milli(p50), milli(p99), milli(p99_9), percent];
    all.into_iter().take(1 + columns).collect()
}

/// Promises that a terminal shows.
const MOST_PROMISES: usize = 40;

/// The table of promises: whether each held, and the cause where it did not. Of very many, the worst.
fn kept(all: &[Fared], width: u16, colour: bool) -> Option<String> {
    let mut shown: Vec<&Fared> = all.iter().collect();
    if shown.len() > MOST_PROMISES {
        shown.sort_by_key(|fared| Reverse(rank(fared.verdict)));
    }
    let rest = shown.split_off(shown.len().min(MOST_PROMISES));
    let mut table = new_table(width);
    table.set_header(["system", "tenant", "promise", "windows\nkept", "cause"]);
    for fared in shown {
        let word = Cell::new(fared.verdict.words());
        let shade = match fared.verdict {
            plimsoll_slo::Verdict::Broken => Color::Red,
            plimsoll_slo::Verdict::Held => Color::Green,
            _ => Color::DarkGrey,
        };
        let cause = plimsoll_slo::causes(&fared.breaches).unwrap_or_else(|| "-".to_owned());
        table.add_row([
            Cell::new(&fared.system),
            Cell::new(fared.subject()),
            if colour { word.fg(shade) } else { word },
            Cell::new(format!("{} of {}", fared.kept, fared.seen)),
            Cell::new(cause),
        ]);
    }
    align(&mut table, 3, 1);
    if colour {
        table.enforce_styling();
    }
    let mut text = format!("{table}\n");
    if !rest.is_empty() {
        let broken = rest.iter().filter(|fared| fared.verdict == plimsoll_slo::Verdict::Broken).count();
        text += &format!(
            "... and {} more, {broken} of them broken: all are in the report and in --json\n",
            rest.len()
        );
    }
    (!all.is_empty()).then_some(text)
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

pub(crate) fn new_table(width: u16) -> Table {
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

#[cfg(test)]
mod tests {
    use plimsoll_slo::Verdict;

    use super::*;

    fn fared(tenant: usize, verdict: Verdict) -> Fared {
        let (system, host) = ("plimsoll".to_owned(), String::new());
        Fared { system, host, tenant: format!("t{tenant}"), verdict, kept: 3, seen: 4, breaches: Vec::new() }
    }

    #[test]
    fn of_very_many_promises_the_broken_ones_are_shown() {
        let verdict = |n: usize| if n % 1_000 == 999 { Verdict::Broken } else { Verdict::Held };
        let all: Vec<Fared> = (0..10_000).map(|n| fared(n, verdict(n))).collect();
        let text = kept(&all, 120, false).expect("promises");
        assert_eq!(text.matches("│ plimsoll ").count(), MOST_PROMISES, "{text}");
        assert!(
            (0..10)
                .all(|n| text
                    .contains(&format!(" t{}999 ", if n == 0 { String::new() } else { n.to_string() }))),
            "{text}"
        );
        assert!(
            text.ends_with("... and 9960 more, 0 of them broken: all are in the report and in --json\n"),
            "{text}"
        );

        let few = kept(&all[..MOST_PROMISES], 120, false).expect("promises");
        assert!(few.contains(" t39 ") && !few.contains("more"), "{few}");
        let broken: Vec<Fared> = (0..50).map(|n| fared(n, Verdict::Broken)).collect();
        assert!(kept(&broken, 120, false).expect("promises").contains("and 10 more, 10 of them broken"));
        assert_eq!(kept(&[], 120, false), None);
    }
}
