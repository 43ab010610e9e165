//! Rows, medians, the table and the JSON file.
//!
//! Why: a figure means something beside its peer's of the same minute, and only as a median of several.
//! From: what `docs/performance.md` asks of a claim of speed.
//! Not here: the measurements.
//! Invariant: `ratio` is ours over the peer's, in the row's unit; `goal` says which side of it is good.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// A bar for a row's ratio, or for its figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Ours over the peer's is at least this.
    RatioAtLeast(f64),
    /// Ours over the peer's is at most this.
    RatioAtMost(f64),
    /// Ours and the peer's differ by this factor at most, either way.
    RatioWithin(f64),
    /// Ours is at least this.
    AtLeast(f64),
    /// Ours is at most this.
    AtMost(f64),
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The measure.
    pub name: String,
    /// The peer.
    pub against: String,
    /// The peer's figure.
    pub peer: Option<f64>,
    /// Ours.
    pub ours: Option<f64>,
    /// Unit of both.
    pub unit: &'static str,
    /// Ours over the peer's.
    pub ratio: Option<f64>,
    /// The bar, if there is one.
    pub goal: Option<Goal>,
    /// Whether the bar is met.
    pub met: Option<bool>,
    /// Remarks.
    pub note: String,
}

impl Row {
    /// A row with both figures, or with those that could be measured.
    pub fn new(name: impl Into<String>, against: impl Into<String>, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            against: against.into(),
            peer: None,
            ours: None,
            unit,
            ratio: None,
            goal: None,
            met: None,
            note: String::new(),
        }
    }

    /// Sets the figures: medians of what the rounds gave. An empty side was not measured.
    pub fn figures(mut self, peer: &[f64], ours: &[f64]) -> Self {
        self.peer = median(peer);
        self.ours = median(ours);
        self.ratio =
            self.peer.zip(self.ours).filter(|&(peer, _)| peer != 0.0).map(|(peer, ours)| ours / peer);
        self
    }

    /// Sets the bar, and whether it is met.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.met = match goal {
            Goal::RatioAtLeast(bar) => self.ratio.map(|ratio| ratio >= bar),
            Goal::RatioAtMost(bar) => self.ratio.map(|ratio| ratio <= bar),
            Goal::RatioWithin(bar) => self.ratio.map(|ratio| ratio <= bar && ratio >= 1.0 / bar),
            Goal::AtLeast(bar) => self.ours.map(|ours| ours >= bar),
            Goal::AtMost(bar) => self.ours.map(|ours| ours <= bar),
        };
        self.goal = Some(goal);
        self
    }

    /// Sets the note.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(bar) => write!(f, "ratio ≥ {bar}"),
            Self::RatioAtMost(bar) => write!(f, "ratio ≤ {bar}"),
            Self::RatioWithin(bar) => write!(f, "within {bar}×"),
            Self::AtLeast(bar) => write!(f, "≥ {}", Figure(Some(*bar))),
            Self::AtMost(bar) => write!(f, "≤ {}", Figure(Some(*bar))),
        }
    }
}

/// The middle one; of an even number, the lower of the two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(values.len().checked_sub(1)? / 2).copied()
}

/// Three significant digits, with M for millions.
struct Figure(Option<f64>);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("-"),
            Some(value) if value >= 1e5 => write!(f, "{:.2}M", value / 1e6),
            Some(value) if value >= 100.0 => write!(f, "{value:.0}"),
            Some(value) if value >= 1.0 => write!(f, "{value:.2}"),
            Some(value) => write!(f, "{value:.4}"),
        }
    }
}

/// Prints the table.
pub fn print(rows: &[Row]) {
    use comfy_table::{CellAlignment, Table, presets};
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["measure", "beside", "peer", "ours", "unit", "ratio", "goal", "", "note"]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            row.against.clone(),
            Figure(row.peer).to_string(),
            Figure(row.ours).to_string(),
            row.unit.to_owned(),
            row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            row.goal.map_or_else(String::new, |goal| goal.to_string()),
            row.met.map_or("", |met| if met { "met" } else { "NOT MET" }).to_owned(),
            row.note.clone(),
        ]);
    }
    for index in [2, 3, 5] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
}

/// Writes the rows as a JSON array.
pub fn write_json(rows: &[Row], path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(rows)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_lower_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.0));
        assert_eq!(median(&[5.0, 1.0, 3.0]), Some(3.0));
    }

    #[test]
    fn a_goal_is_judged_by_its_own_side() {
        let row = Row::new("x", "y", "ns").figures(&[10.0], &[15.0]);
        assert_eq!(row.clone().goal(Goal::RatioAtMost(2.0)).met, Some(true));
        assert_eq!(row.clone().goal(Goal::RatioAtLeast(2.0)).met, Some(false));
        assert_eq!(row.clone().goal(Goal::RatioWithin(1.5)).met, Some(true));
        assert_eq!(row.clone().goal(Goal::RatioWithin(1.4)).met, Some(false));
        assert_eq!(row.goal(Goal::AtLeast(15.0)).met, Some(true));
    }
}
