//! The written report: one HTML file with its figures inside, and PNG, CSV, JSON and Parquet files beside it.
//!
//! Why: a result is sent to readers who have neither the machine nor the program.
//! From: the figures of Loom §7.
//! Not here: the figures' numbers (`summary`, `measure`), the terminal (`table`).
//! Invariant: the HTML file refers to nothing outside of itself.

mod canvas;
mod csv;
mod figures;
mod grid;
mod html;
mod json;
mod parquet;
mod series;
mod sweep;
mod tables;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kuva::PngBackend;
use kuva::backend::svg::SvgBackend;

use crate::summary::summarise;
use crate::sweep::Row;
use crate::{Results, Scenario, Verdict};

pub use grid::{Cells, Column, Grid};
pub use json::{json, sweep_json};
pub use series::series_files;
pub use sweep::sweep_report;

/// The files that were written.
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
    for (name, grid) in tables(scenario, results) {
        write(&format!("{name}.csv"), csv::text(&grid).as_bytes())?;
    }
    let machine = serde_json::to_vec_pretty(&json(scenario, results, verdicts)).map_err(io::Error::other)?;
    write("results.json", &machine)?;
    Ok(Report { html: folder.join("report.html"), files })
}

/// Writes the report's tables as Parquet, beside their CSV; returns the files.
///
/// # Errors
/// Errors of the file system.
pub fn parquet_report(scenario: &Scenario, results: &Results, folder: &Path) -> io::Result<Vec<PathBuf>> {
    tables(scenario, results).iter().map(|(name, grid)| write_parquet(folder, name, grid)).collect()
}

/// Writes a sweep's table as Parquet, beside its CSV; returns the file.
///
/// # Errors
/// Errors of the file system.
pub fn parquet_sweep(rows: &[Row], folder: &Path) -> io::Result<PathBuf> {
    write_parquet(folder, "sweep", &tables::sweep(rows))
}

fn write_parquet(folder: &Path, name: &str, grid: &Grid) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{name}.parquet"));
    fs::write(&path, parquet::bytes(grid)?).map(|()| path)
}

/// A table for programs by its name: `summary`, `throughput` and `latency`, which reports have, too; `samples`, a line for
/// each answered request and measured wait; `flows`, a line for each flow that arrived; `series-flows` and `series-links`,
/// traces over time. `None` if there is no such table.
#[must_use]
pub fn table_named(name: &str, scenario: &Scenario, results: &Results) -> Option<Grid> {
    Some(match name {
        "summary" => tables::summary(&summarise(scenario, results)),
        "throughput" => tables::throughput(scenario, results),
        "latency" => tables::latency(scenario, results),
        "samples" => tables::samples(results),
        "flows" => tables::flows(results),
        "series-flows" => series::flows(results),
        "series-links" => series::links(results),
        _ => return None,
    })
}

/// A sweep's table: a line for each row, with a column for each setting and figure.
#[must_use]
pub fn sweep_grid(rows: &[Row]) -> Grid {
    tables::sweep(rows)
}

/// The tables for programs, each with its file's name.
fn tables(scenario: &Scenario, results: &Results) -> [(&'static str, Grid); 3] {
    [
        ("summary", tables::summary(&summarise(scenario, results))),
        ("throughput", tables::throughput(scenario, results)),
        ("latency", tables::latency(scenario, results)),
    ]
}
