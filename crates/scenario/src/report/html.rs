//! The page.
//!
//! Why: it must open anywhere, now and in ten years: no script, no font, no address in it.
//! From: plain HTML 5 with inline SVG.
//! Not here: the figures themselves (`figures`).
//! Invariant: every text from a file is escaped.

use std::fmt::Write as _;

use super::figures::Figure;
use crate::promises::{Fared, promises};
use crate::summary::Summary;
use crate::table::{
    FLOWS, LATENCY, THROUGH, figure, flow_figures, interval_figures, interval_title, latency_columns,
    latency_figures, mega, setting, shown_beside, tenant_figures, tenant_titles, through_figures,
};
use crate::{Results, Scenario, Status, Verdict};

pub(super) const STYLE: &str = "
body { font: 16px/1.5 'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif; color: #222; background: #fff;
       max-width: 1000px; margin: 2em auto; padding: 0 20px; }
h1 { font-size: 1.7em; margin-bottom: 0; } h2 { font-size: 1.2em; margin-top: 2em; }
.setting { color: #555; margin-top: .2em; }
.scroll { overflow-x: auto; }
table { margin-bottom: 1em; border-collapse: collapse; font-size: .86em; font-variant-numeric: tabular-nums; }
th, td { padding: .35em .7em; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #888; font-weight: 600; } th small { font-weight: 400; color: #555; }
th.left, td.left { text-align: left; }
td.name { font-weight: 600; text-align: left; }
code { font: .95em 'DejaVu Sans Mono', Menlo, Consolas, monospace; }
.pass, .fail, .skip { font-weight: 700; white-space: nowrap; text-align: left; }
.pass { color: #00624a; } .fail { color: #a32d00; } .skip { color: #666; }
.why { color: #555; } figure { margin: 1.2em 0; } figure svg { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .88em; }
footer { margin: 3em 0 1em; color: #666; font-size: .85em; }
";

pub(super) fn page(
    scenario: &Scenario,
    results: &Results,
    summaries: &[Summary],
    verdicts: &[Verdict],
    figures: &[Figure],
    drawn: &[String],
) -> String {
    let name = escape(&scenario.name);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n\
         <p class=\"setting\">{}</p>\n<p>{}</p>\n",
        escape(&setting(scenario)),
        escape(&scenario.about)
    );
    systems(&mut page, summaries, shown_beside(scenario));
    flows(&mut page, summaries);
    through(&mut page, summaries);
    intervals(&mut page, summaries);
    kept(&mut page, &promises(scenario, results));
    notes(&mut page, results);
    expectations(&mut page, verdicts);
    page.push_str("<h2>Figures</h2>\n");
    for (figure, svg) in figures.iter().zip(drawn) {
        let label = escape(&figure.caption);
        let _ = write!(page, "<figure>\n{}\n<figcaption>{label}</figcaption>\n</figure>\n", inline(svg));
    }
    let _ = write!(
        page,
        "<footer>Written by plimsoll {}. The figures lie beside this page as PNG, the numbers as CSV and JSON.\
         </footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    page
}

/// Inside HTML an SVG needs no namespace address, and scales with the page by its view box.
pub(super) fn inline(svg: &str) -> String {
    let svg = svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    let attribute = |name: &str| {
        let start = svg.find(&format!("{name}=\""))? + name.len() + 2;
        svg[start..].split('"').next()
    };
    let (width, height) = (attribute("width").unwrap_or("960"), attribute("height").unwrap_or("600"));
    svg.replacen("<svg", &format!("<svg role=\"img\" viewBox=\"0 0 {width} {height}\""), 1)
}

fn systems(page: &mut String, summaries: &[Summary], shown: Option<usize>) {
    let Some(first) = summaries.first() else { return };
    let columns = latency_columns(summaries);
    page.push_str(
        "<h2>Systems side by side</h2>\n<div class=\"scroll\"><table>\n<tr><th class=\"left\">system</th>",
    );
    for title in tenant_titles(first).iter().filter_map(|title| title.split_once('\n')) {
        let _ = write!(page, "<th>{}<br><small>{}</small></th>", escape(title.0), title.1);
    }
    page.push_str("<th>all<br><small>Mb/s</small></th>");
    for one in &first.destinations {
        let _ = write!(page, "<th>to {}<br><small>Mb/s</small></th>", escape(&one.destination));
    }
    if let Some(latency) = shown.and_then(|n| first.latency.get(n)) {
        let _ = write!(
            page,
            "<th>{}<br><small>answers/s</small></th>{}",
            escape(&latency.workload),
            latency_titles(columns)
        );
    }
    page.push_str("<th>fairness<br><small>Jain</small></th><th class=\"left\">drops by reason</th></tr>\n");
    for summary in summaries {
        row(page, summary, shown, columns);
    }
    page.push_str("</table></div>\n");
    others(page, summaries, shown);
}

/// Titles of the first of the columns that [`LATENCY`] names.
fn latency_titles(columns: usize) -> String {
    let titles = LATENCY[..columns].iter().filter_map(|title| title.split_once('\n'));
    titles.map(|(name, unit)| format!("<th>{name}<br><small>{unit}</small></th>")).collect()
}

fn row(page: &mut String, summary: &Summary, shown: Option<usize>, columns: usize) {
    let mut cells = tenant_figures(summary);
    cells.push(mega(summary.throughput_bps));
    cells.extend(summary.destinations.iter().map(|one| mega(one.throughput_bps)));
    let latency = shown.and_then(|n| summary.latency.get(n));
    cells.extend(latency.into_iter().flat_map(|latency| latency_figures(latency, columns)));
    cells.push(figure(summary.jain));
    let _ = write!(page, "<tr><td class=\"name\">{}</td>", escape(&summary.system));
    for cell in cells {
        let _ = write!(page, "<td>{cell}</td>");
    }
    let drops: Vec<String> = summary.lost().iter().map(|line| escape(line)).collect();
    let drops = if drops.is_empty() { "-".to_owned() } else { drops.join("<br>") };
    let _ = writeln!(page, "<td class=\"left\">{drops}</td></tr>");
}

/// Further workloads with requests, a row for each of them and each system.
fn others(page: &mut String, summaries: &[Summary], shown: Option<usize>) {
    let (mut rows, columns) = (String::new(), latency_columns(summaries));
    for summary in summaries {
        for (_, latency) in summary.latency.iter().enumerate().filter(|(n, _)| Some(*n) != shown) {
            let (system, workload) = (escape(&summary.system), escape(&latency.workload));
            let _ = write!(rows, "<tr><td class=\"name\">{system}</td><td class=\"left\">{workload}</td>");
            for cell in latency_figures(latency, columns) {
                let _ = write!(rows, "<td>{cell}</td>");
            }
            rows.push_str("</tr>\n");
        }
    }
    if !rows.is_empty() {
        let _ = write!(
            page,
            "<div class=\"scroll\"><table>\n<tr><th class=\"left\">system</th><th class=\"left\">answers to</th>\
             <th>answers/s</th>{}</tr>\n{rows}</table></div>\n",
            latency_titles(columns)
        );
    }
}

/// Flows that arrive, a row for each system, workload and class of sizes.
fn flows(page: &mut String, summaries: &[Summary]) {
    if summaries.iter().all(|summary| summary.flows.is_empty()) {
        return;
    }
    page.push_str("<h2>Flows that arrive</h2>\n<div class=\"scroll\"><table>\n<tr>");
    for title in ["system", "flows of", "size"] {
        let _ = write!(page, "<th class=\"left\">{title}</th>");
    }
    for title in FLOWS {
        let _ = write!(page, "<th>{}</th>", title.replace('\n', "<br>"));
    }
    page.push_str("</tr>\n");
    for summary in summaries {
        for one in &summary.flows {
            let names = [&summary.system, &one.workload, &one.sizes].map(|name| escape(name));
            let [system, workload, sizes] = names;
            let _ = write!(
                page,
                "<tr><td class=\"name\">{system}</td><td class=\"left\">{workload}</td><td class=\"left\">{sizes}</td>"
            );
            for cell in flow_figures(one) {
                let _ = write!(page, "<td>{cell}</td>");
            }
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</table></div>\n");
}

/// Means over runs with their confidence intervals.
fn intervals(page: &mut String, summaries: &[Summary]) {
    let Some(title) = interval_title(summaries) else { return };
    let _ = write!(
        page,
        "<h2>Confidence</h2>\n<p>{}.</p>\n<div class=\"scroll\"><table>\n<tr><th class=\"left\">system</th>\
         <th class=\"left\">of</th><th class=\"left\">figure</th><th>mean</th><th>95 %</th></tr>\n",
        escape(&title)
    );
    for summary in summaries {
        for row in summary.intervals.iter().filter_map(interval_figures) {
            let [subject, name, mean, half] = row.map(|text| escape(&text));
            let _ = writeln!(
                page,
                "<tr><td class=\"name\">{}</td><td class=\"left\">{subject}</td><td class=\"left\">{name}</td>\
                 <td>{mean}</td><td>{half}</td></tr>",
                escape(&summary.system)
            );
        }
    }
    page.push_str("</table></div>\n");
}

/// Workloads that send through a gateway, a row for each of them and each system.
fn through(page: &mut String, summaries: &[Summary]) {
    let Some(first) = summaries.iter().flat_map(|summary| &summary.through).next() else { return };
    page.push_str("<div class=\"scroll\"><table>\n<tr><th class=\"left\">system</th>");
    page.push_str("<th class=\"left\">through a gateway</th>");
    for title in THROUGH {
        let _ = write!(page, "<th>{}</th>", title.replace('\n', "<br>"));
    }
    let _ = writeln!(page, "<th>load of<br>{}</th></tr>", escape(&first.host));
    for summary in summaries {
        for one in &summary.through {
            let (system, workload) = (escape(&summary.system), escape(&one.workload));
            let _ = write!(page, "<tr><td class=\"name\">{system}</td><td class=\"left\">{workload}</td>");
            for cell in through_figures(one) {
                let _ = write!(page, "<td>{cell}</td>");
            }
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</table></div>\n");
}

/// The table of promises: whether each held, and the cause where it did not.
fn kept(page: &mut String, all: &[Fared]) {
    if all.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Whether promises held</h2>\n<div class=\"scroll\"><table>\n<tr><th class=\"left\">system</th>\
         <th class=\"left\">tenant</th><th></th><th>windows<br>kept</th><th class=\"left\">cause</th></tr>\n",
    );
    for fared in all {
        let class = match fared.verdict {
            plimsoll_slo::Verdict::Broken => "fail",
            plimsoll_slo::Verdict::Held => "pass",
            _ => "skip",
        };
        let why: Vec<String> = fared.why().iter().map(|line| escape(line)).collect();
        let why = if why.is_empty() { "-".to_owned() } else { why.join("<br>") };
        let [system, subject] = [&fared.system, &fared.subject()].map(|text| escape(text));
        let _ = writeln!(
            page,
            "<tr><td class=\"name\">{system}</td><td class=\"left\">{subject}</td><td class=\"{class}\">{}</td>\
             <td>{} of {}</td><td class=\"left\">{why}</td></tr>",
            fared.verdict.words(),
            fared.kept,
            fared.seen
        );
    }
    page.push_str("</table></div>\n");
}

fn notes(page: &mut String, results: &Results) {
    let noted = results
        .runs
        .iter()
        .flat_map(|run| run.notes.iter().map(move |note| format!("{}: {note}", run.system)));
    let mut all: Vec<String> = results.notes.iter().cloned().chain(noted).collect();
    all.dedup();
    if !all.is_empty() {
        let items: String = all.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
        let _ = write!(page, "<h2>Notes</h2>\n<ul>\n{items}</ul>\n");
    }
}

fn expectations(page: &mut String, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    let count = |status| verdicts.iter().filter(|verdict| verdict.status == status).count();
    let (passed, failed, skipped) = (count(Status::Passed), count(Status::Failed), count(Status::Skipped));
    let _ = write!(
        page,
        "<h2>What was expected</h2>\n<p>{passed} passed, {failed} failed, {skipped} skipped.</p>\n\
         <div class=\"scroll\"><table>\n<tr><th></th><th class=\"left\">expected</th><th class=\"left\">measured</th></tr>\n"
    );
    for verdict in verdicts {
        let (class, word) = match verdict.status {
            Status::Passed => ("pass", "&#10003; pass"),
            Status::Failed => ("fail", "&#10007; FAIL"),
            Status::Skipped => ("skip", "skipped"),
        };
        let why =
            verdict.because.as_ref().map(|why| format!("<br><span class=\"why\">{}</span>", escape(why)));
        let _ = writeln!(
            page,
            "<tr><td class=\"{class}\">{word}</td><td class=\"left\"><code>{}</code>{}</td><td class=\"left\">{}</td></tr>",
            escape(&verdict.expect),
            why.unwrap_or_default(),
            escape(&verdict.detail)
        );
    }
    page.push_str("</table></div>\n");
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
