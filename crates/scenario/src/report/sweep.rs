//! A sweep's report: the table as CSV and HTML, with figures over the value that varies first.
//!
//! Why: a sweep answers "how does it depend on", which a figure shows and a table proves.
//! From: small multiples: a panel for each system and setting of the other values.
//! Not here: the rows (`crate::sweep`).
//! Invariant: like every report, it refers to nothing outside of itself.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use kuva::PngBackend;
use kuva::backend::svg::SvgBackend;

use super::canvas::{Axis, Canvas};
use super::figures::Figure;
use super::html::{STYLE, escape, inline};
use super::{Report, csv, tables};
use crate::sweep::{Row, figure_names};
use crate::table::figure;

/// Writes `sweep.html`, `sweep.csv` and a PNG for each figure into `folder`.
///
/// # Errors
/// Errors of the file system.
pub fn sweep_report(name: &str, about: &str, rows: &[Row], folder: &Path) -> io::Result<Report> {
    fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    let mut write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).map(|()| files.push(path))
    };
    let figures = figures(rows);
    let svg = SvgBackend::new();
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n<p>{1}</p>\n",
        escape(name),
        escape(about)
    );
    for figure in &figures {
        let drawn = svg.render_scene(&figure.scene);
        let caption = escape(&figure.caption);
        let _ = write!(page, "<figure>\n{}\n<figcaption>{caption}</figcaption>\n</figure>\n", inline(&drawn));
    }
    page.push_str(&table(rows));
    page.push_str("</body>\n</html>\n");
    write("sweep.html", page.as_bytes())?;
    for figure in &figures {
        let png = PngBackend::new().with_scale(2.0).render_scene(&figure.scene).map_err(io::Error::other)?;
        write(&format!("{}.png", figure.name), &png)?;
    }
    write("sweep.csv", csv::text(&tables::sweep(rows)).as_bytes())?;
    Ok(Report { html: folder.join("sweep.html"), files })
}

fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut text = String::from("<div class=\"scroll\"><table>\n<tr>");
    for (path, _) in &first.settings {
        let _ = write!(text, "<th class=\"left\">{}</th>", escape(path));
    }
    text += "<th class=\"left\">system</th>";
    let names = figure_names(rows);
    for name in &names {
        let _ = write!(text, "<th>{}</th>", escape(name));
    }
    text += "<th>met</th></tr>\n";
    for row in rows {
        text += "<tr>";
        for (_, value) in &row.settings {
            let _ = write!(text, "<td class=\"left\">{}</td>", escape(value));
        }
        let _ = write!(text, "<td class=\"name\">{}</td>", escape(&row.system));
        for name in &names {
            let _ = write!(text, "<td>{}</td>", figure(row.figure(name)));
        }
        let _ = writeln!(text, "<td>{}/{}</td></tr>", row.met.0, row.met.1);
    }
    text + "</table></div>\n"
}

/// Throughput and 99th percentile over the first varied value.
fn figures(rows: &[Row]) -> Vec<Figure> {
    let Some(first) = rows.first().filter(|row| !row.settings.is_empty()) else { return Vec::new() };
    let names = |end: &str| -> Vec<String> {
        first.figures.iter().filter(|(name, _)| name.ends_with(end)).map(|(name, _)| name.clone()).collect()
    };
    let drawn = [
        ("sweep-throughput", "Throughput", "throughput (Mb/s)", names(".throughput_bps"), 1e6),
        ("sweep-p99", "99th percentile of latency", "p99 (ms)", names(".p99_s"), 1e-3),
    ];
    let drawn = drawn.into_iter().filter(|(.., names, _)| !names.is_empty());
    drawn
        .map(|(file, title, unit, names, scale)| over_first(rows, file, title, unit, &names, scale))
        .collect()
}

/// Most panels of a figure: what comes after them is in the table.
const PANELS: usize = 12;

fn over_first(
    rows: &[Row],
    file: &'static str,
    title: &str,
    unit: &str,
    names: &[String],
    scale: f64,
) -> Figure {
    let path = rows[0].settings[0].0.as_str();
    let mut ticks: Vec<String> = Vec::new();
    let mut panels: Vec<String> = Vec::new();
    for row in rows {
        if !ticks.contains(&row.settings[0].1) {
            ticks.push(row.settings[0].1.clone());
        }
        if !panels.contains(&panel_of(row)) {
            panels.push(panel_of(row));
        }
    }
    let values = |name: &str, row: &Row| row.figure(name).map(|value| value / scale);
    let all = rows.iter().flat_map(|row| names.iter().filter_map(move |name| values(name, row)));
    let most = all.fold(0.0, f64::max);
    let mut canvas = Canvas::new(title);
    canvas.legend(
        &names.iter().map(|name| name.split('.').next().unwrap_or(name).to_owned()).collect::<Vec<_>>(),
    );
    for panel in panels.iter().take(PANELS) {
        let labels = ticks.iter().enumerate().map(|(n, tick)| (n as f64, tick.clone())).collect();
        let to = (ticks.len() as f64 - 1.0).max(1.0);
        let x = Axis { title: path.to_owned(), ticks: labels, from: 0.0, to, map: |value| value };
        let drawn = canvas.panel(panel, 170.0, x, Axis::linear(unit, most));
        for (n, name) in names.iter().enumerate() {
            let own = rows.iter().filter(|row| panel_of(row) == *panel);
            let place = |row: &Row| ticks.iter().position(|tick| *tick == row.settings[0].1);
            let points: Vec<(f64, f64)> =
                own.filter_map(|row| Some((place(row)? as f64, values(name, row)?))).collect();
            canvas.curve(&drawn, n, &points);
        }
    }
    let left_out = panels.len().saturating_sub(PANELS);
    let more = if left_out > 0 {
        format!(" {left_out} further panels are only in the table.")
    } else {
        String::new()
    };
    Figure { name: file, caption: format!("{title} over `{path}`.{more}"), scene: canvas.scene() }
}

/// The system, and what else is set.
fn panel_of(row: &Row) -> String {
    let others: Vec<String> =
        row.settings[1..].iter().map(|(path, value)| format!("{path}: {value}")).collect();
    if others.is_empty() { row.system.clone() } else { format!("{}, {}", row.system, others.join(", ")) }
}
