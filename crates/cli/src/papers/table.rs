//! The table for a terminal.
//!
//! Why: it shows at a glance which results hold.
//! From: a row for each figure of a paper; an experiment's first row has its id and its verdict.
//! Not here: the page for the documentation (`page`).
//! Invariant: equal findings and widths give equal text.

use comfy_table::CellAlignment::Left;
use comfy_table::{Cell, Color, ContentArrangement};

use super::Finding;
use crate::show;

/// The table, at most `width` characters wide where that is possible.
pub(super) fn table(findings: &[Finding], width: u16, colour: bool) -> String {
    let mut table = show::table(&["id", "where", "what it shows", "the paper", "ours", ""], &[Left; 6]);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    for finding in findings {
        for (place, [id, figure, what, paper, ours]) in rows(finding).into_iter().enumerate() {
            let word = if place == 0 { finding.verdict("pass", "FAIL") } else { String::new() };
            let shade = if finding.passed() { Color::Green } else { Color::Red };
            let word = if colour { Cell::new(word).fg(shade) } else { Cell::new(word) };
            table.add_row([
                Cell::new(id),
                Cell::new(figure),
                Cell::new(what),
                Cell::new(paper),
                Cell::new(ours),
                word,
            ]);
        }
    }
    let lines: Vec<String> = table.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

/// An experiment's rows: id, figure, what it shows, the paper's figure and the measured one. One row when there is one
/// figure, else the experiment's row and one for each figure.
pub(super) fn rows(finding: &Finding) -> Vec<[String; 5]> {
    let paper = &finding.paper;
    let first = |theirs: &str, ours: String| {
        [paper.id.clone(), paper.figure.clone(), paper.shows.clone(), theirs.to_owned(), ours]
    };
    let ours = |figure: &Option<_>| {
        figure.map_or_else(|| "-".to_owned(), |figure: plimsoll_scenario::Figure| figure.to_string())
    };
    if let [(number, figure)] = finding.figures.as_slice()
        && number.of.is_empty()
    {
        return vec![first(&number.paper, ours(figure))];
    }
    let mut rows = vec![first("", String::new())];
    for (number, figure) in &finding.figures {
        rows.push([
            String::new(),
            String::new(),
            format!("- {}", number.of),
            number.paper.clone(),
            ours(figure),
        ]);
    }
    rows
}
