//! Tables as comma-separated values.
//!
//! Why: spreadsheets and plotting programs read them.
//! From: RFC 4180.
//! Not here: which tables there are (`tables`).
//! Invariant: one header line; one observation in each line.

use super::grid::Grid;

/// The table as text; nothing when it has no columns.
pub(super) fn text(grid: &Grid) -> String {
    if grid.columns.is_empty() {
        return String::new();
    }
    let header: Vec<String> = grid.columns.iter().map(|column| quoted(&column.name)).collect();
    let mut text = header.join(",") + "\n";
    for line in 0..grid.lines() {
        let cells: Vec<String> =
            grid.columns.iter().map(|column| quoted(&column.cells.shown(line))).collect();
        text += &(cells.join(",") + "\n");
    }
    text
}

/// A value with a comma or a quote in it stands in quotes.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
