//! The experiment of a paper that a scenario repeats, and our figures beside the paper's.
//!
//! Why: one table, made from the files that are run, shows how faithful the engine is to the papers.
//! From: `paper:` in scenario files; `plimsoll papers` and `docs/fidelity.md` show it.
//! Not here: whether an experiment passes; its expectations say that (`expect`).
//! Invariant: a figure is the median and the range over all seeds, worked out as expectations work out their sides.

use std::fmt;

use serde::Serialize;

use crate::expect::{Quantity, show, value_in};
use crate::measure::{Measures, median};
use crate::{Results, Scenario, Unit};

/// An experiment of a paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Paper {
    /// The paper's letters, the kind (E, M, C or S) and the number: `LO-E4`, `PN-C4`.
    pub id: String,
    /// Where the paper shows it: `Figure 9`, `Table 2`, `section 7.3`.
    pub figure: String,
    /// The result that it shows, in one line.
    pub shows: String,
    /// The paper's figures, each with ours.
    pub numbers: Vec<Number>,
    /// Differences from the paper, and parts that could not be repeated, with the reason.
    pub differs: String,
}

/// One figure of the paper, and ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// The quantity, where an experiment has several figures.
    pub of: String,
    /// The paper's, in words and figures.
    pub paper: String,
    /// The sweep's points that ours is taken from, by paths and values; all of them if empty.
    pub at: Vec<(String, String)>,
    pub(crate) ours: Quantity,
}

impl Paper {
    /// The paper's letters: `LO` of `LO-E4`.
    #[must_use]
    pub fn series(&self) -> &str {
        self.id.split('-').next().unwrap_or_default()
    }

    /// Whether a word such as `LO` or `LO-E4` means it.
    #[must_use]
    pub fn is_meant_by(&self, word: &str) -> bool {
        word.eq_ignore_ascii_case(&self.id) || word.eq_ignore_ascii_case(self.series())
    }
}

impl Number {
    /// The quantity that stands beside the paper's figure, as the file has it.
    #[must_use]
    pub fn ours(&self) -> &str {
        &self.ours.text
    }

    /// Whether our figure is taken from a sweep's point with these settings.
    #[must_use]
    pub fn is_at(&self, settings: &[(String, String)]) -> bool {
        self.at.iter().all(|wanted| settings.contains(wanted))
    }

    /// Its value with each seed; what was not measured is missing.
    #[must_use]
    pub fn values(&self, scenario: &Scenario, results: &Results) -> Vec<f64> {
        let measures = Measures::new(scenario, results);
        let pairs = results.runs.iter().map(|run| run.pair + 1).max().unwrap_or(0);
        (0..pairs).filter_map(|pair| value_in(&self.ours, &measures, pair)).collect()
    }

    /// Median and range of values.
    #[must_use]
    pub fn figure(&self, values: &[f64]) -> Option<Figure> {
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        Some(Figure { median: median(values), least, most, unit: self.ours.expr.unit() })
    }
}

/// A figure over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The least value.
    pub least: f64,
    /// The greatest value.
    pub most: f64,
    /// Its unit: bits a second, seconds, bytes, or a count.
    pub unit: Unit,
}

impl fmt::Display for Figure {
    /// `2.5Gbps (2.48Gbps..2.52Gbps)`; the median alone where all are equal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median, self.least, self.most].map(|value| show(value, self.unit));
        match least == most {
            true => f.pad(&median),
            false => f.pad(&format!("{median} ({least}..{most})")),
        }
    }
}
