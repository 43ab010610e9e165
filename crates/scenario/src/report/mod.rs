//! The written report: one HTML file with its figures inside, and PNG, CSV and JSON files beside it.
//!
//! Why: a result is sent to someone else, who has neither the machine nor the program.
//! From: the figures of Loom §7.
//! Not here: the figures' numbers (`summary`, `measure`), the terminal (`table`).
//! Invariant: the HTML file refers to nothing outside of itself.

mod canvas;
mod csv;
mod figures;
mod html;
mod json;
mod sweep;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kuva::PngBackend;
use kuva::backend::svg::SvgBackend;

use crate::summary::summarise;
use crate::{Results, Scenario, Verdict};

pub use json::json;
pub use sweep::sweep_report;

/// What was written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The self-contained page.
    pub html: PathBuf,
    /// Everything that was written, the page included.
    pub files: Vec<PathBuf>,
}

/// Writes the report into `folder`, which is made if need be; files of the same name are replaced.
pub fn report(
    scenario: &Scenario,
    results: &Results,
    verdicts: &[Verdict],
    folder: &Path,
) -> io::Result<Report> {
    fs::create_dir_all(folder)?;
    let summaries = summarise(scenario, results);
    let figures = figures::figures(scenario, results, &summaries);
    let mut files = Vec::new();
    let mut write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).map(|()| files.push(path))
    };
    let svg = SvgBackend::new();
    let drawn: Vec<String> = figures.iter().map(|figure| svg.render_scene(&figure.scene)).collect();
    let page = html::page(scenario, results, &summaries, verdicts, &figures, &drawn);
    write("report.html", page.as_bytes())?;
    for figure in &figures {
        let png = PngBackend::new().with_scale(2.0).render_scene(&figure.scene).map_err(io::Error::other)?;
        write(&format!("{}.png", figure.name), &png)?;
    }
    write("summary.csv", csv::summary(&summaries).as_bytes())?;
    write("throughput.csv", csv::throughput(scenario, results).as_bytes())?;
    write("latency.csv", csv::latency(scenario, results).as_bytes())?;
    let machine = serde_json::to_vec_pretty(&json(scenario, results, verdicts)).map_err(io::Error::other)?;
    write("results.json", &machine)?;
    Ok(Report { html: folder.join("report.html"), files })
}
