//! What an experiment's live run showed: its rows in the table and on the page.
//!
//! Why: a terminal and the documentation must show one result in the same words.
//! From: the verdicts on the experiment's expectations.
//! Not here: running it (`live`), the page around its rows (`page`).
//! Invariant: the rows begin with the command that runs the experiment again.

use plimsoll_scenario::{Status, Verdict};

use super::files::Experiment;
use crate::lab;

/// The head of the rows, for a terminal and for a page.
pub(super) const COLUMNS: [&str; 5] = ["id", "where", "what is expected", "measured", ""];

/// The result of an experiment: the verdicts on its expectations, at each point.
pub(super) struct Shown<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) verdicts: Vec<Vec<Verdict>>,
    /// The machine on which it ran.
    pub(super) machine: String,
}

impl Shown<'_> {
    pub(super) fn passed(&self) -> bool {
        self.verdicts.iter().flatten().all(|verdict| verdict.status != Status::Failed)
    }

    /// The experiment's row with the command that runs it, then a row for each expectation at each point.
    pub(super) fn rows(&self) -> Vec<[String; 5]> {
        let paper = &self.experiment.paper;
        let command = command(&self.experiment.file);
        let passed = if self.passed() { "pass" } else { "**fails**" };
        let first = [&paper.id, &paper.figure, &command, &self.machine, passed].map(ToString::to_string);
        let points = self.experiment.points.iter().zip(&self.verdicts);
        let below = points.flat_map(|(point, verdicts)| {
            let settings = lab::settings(point);
            let at = if settings.is_empty() { settings } else { format!("`{settings}`: ") };
            verdicts.iter().map(move |verdict| {
                let expected = format!("- {at}`{}`", verdict.expect);
                let word = match verdict.status {
                    Status::Passed => "",
                    Status::Failed => "**fails**",
                    Status::Skipped => "skipped",
                };
                [String::new(), String::new(), expected, verdict.detail.clone(), word.to_owned()]
            })
        });
        core::iter::once(first).chain(below).collect()
    }
}

/// The command as typed in the source folder.
fn command(file: &str) -> String {
    let path = std::path::Path::new(file);
    let place =
        if path.is_absolute() || path.exists() { String::new() } else { "examples/papers/".to_owned() };
    format!("`plimsoll lab {place}{file}`")
}
