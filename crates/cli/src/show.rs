//! Tables and figures for terminals.
//!
//! Why: aligned columns and figures with units are quick to read.
//! From: comfy-table without borders; widths follow the contents.
//! Not here: the contents.
//! Invariant: every figure has at most four digits and its unit.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_daemon::{StandbyStats, Stats};

/// A table with these heads, one alignment for each column.
pub(crate) fn table(heads: &[&str], alignments: &[CellAlignment]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads.iter().map(|head| head.to_uppercase()));
    for (column, &alignment) in table.column_iter_mut().zip(alignments) {
        column.set_cell_alignment(alignment);
        column.set_padding((0, 2));
    }
    table
}

/// The name of the uplink's row: says so while its standby is active.
pub(crate) fn uplink(stats: &Stats) -> &'static str {
    let standby = stats.standby.as_ref().is_some_and(StandbyStats::stands_in);
    if standby { "uplink (standby)" } else { "uplink" }
}

/// A count with three digits: `12`, `3.41k`, `1.2M`.
pub(crate) fn count(n: u64) -> String {
    if n < 1_000 { n.to_string() } else { scaled(n as f64, &["", "k", "M", "G", "T", "P"]) }
}

/// A rate in bits per second: `940Mbps`, `0bps`.
pub(crate) fn rate(bits: f64) -> String {
    scaled(bits, &["bps", "kbps", "Mbps", "Gbps", "Tbps"])
}

/// A time given in microseconds, with the unit that fits: `12us`, `3.4ms`.
pub(crate) fn micros(us: f64) -> String {
    if us < 1.0 { format!("{:.0}ns", us * 1e3) } else { scaled(us, &["us", "ms", "s"]) }
}

/// Drops by reason in one line: `flow_full 12, oversize 3`, or a dash.
pub(crate) fn drops(reasons: &BTreeMap<String, u64>) -> String {
    if reasons.is_empty() {
        return "-".to_owned();
    }
    listed(reasons).join(", ")
}

/// Drops by reason for a column, one line each, as a dozen would not fit into a line.
pub(crate) fn drops_below_each_other(reasons: &BTreeMap<String, u64>) -> String {
    if reasons.is_empty() { drops(reasons) } else { listed(reasons).join("\n") }
}

fn listed(reasons: &BTreeMap<String, u64>) -> Vec<String> {
    reasons.iter().map(|(why, n)| format!("{why} {}", count(*n))).collect()
}

/// A value with three significant digits and a unit in steps of a thousand.
fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = match value {
        v if v == 0.0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_units() {
        assert_eq!([count(7), count(3_410), count(1_200_000)], ["7", "3.41k", "1.2M"]);
        assert_eq!([rate(0.0), rate(940e6), rate(9.99951e9)], ["0bps", "940Mbps", "10Gbps"]);
        assert_eq!([micros(0.5), micros(12.34), micros(3_400.0)], ["500ns", "12.3us", "3.4ms"]);
    }

    #[test]
    fn many_reasons_make_a_row_higher_not_wider() {
        let reasons: BTreeMap<String, u64> =
            (0..12).map(|n| (format!("vnet_a_long_reason_{n:02}"), n + 1)).collect();
        let mut table = table(&["port", "drops"], &[CellAlignment::Left; 2]);
        table.add_row(["shop".to_owned(), drops_below_each_other(&reasons)]);
        let text = table.to_string();
        assert_eq!(text.lines().count(), 13, "{text}");
        assert!(text.lines().all(|line| line.len() < 40), "{text}");
    }

    #[test]
    fn columns_line_up() {
        let mut table = table(&["name", "packets"], &[CellAlignment::Left, CellAlignment::Right]);
        table.add_row(["root", "7"]);
        table.add_row(["  shop", "3.41k"]);
        let text = table.to_string();
        let ends: Vec<usize> = text.lines().map(|line| line.trim_end().len()).collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }
}
