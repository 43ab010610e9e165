//! Traces of flows and links, as files.
//!
//! Why: a window that collapses or a queue that stands shows over time, and in no mean.
//! From: what `ss -i` and a switch's counters give, sampled at even intervals.
//! Not here: sampling (`sim`), pictures (`figures::series`).
//! Invariant: a rate is over the time since the sample before, or since the connection or the run began.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_units::Nanos;

use super::grid::{Cell, Grid};
use super::{csv, write_parquet};
use crate::{FlowTrace, LinkTrace, Results};

/// Writes `series-flows.csv` and `series-links.csv` into `folder`, and with `parquet` the same tables as Parquet; returns the files.
///
/// # Errors
/// Errors of the file system.
pub fn series_files(results: &Results, folder: &Path, parquet: bool) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    for (name, grid) in [("series-flows", flows(results)), ("series-links", links(results))] {
        let path = folder.join(format!("{name}.csv"));
        fs::write(&path, csv::text(&grid))?;
        files.push(path);
        if parquet {
            files.push(write_parquet(folder, name, &grid)?);
        }
    }
    Ok(files)
}

/// Bits a second at each sample of a count of bytes that begins with zero at `begun`.
pub(super) fn rates(begun: Nanos, counts: impl Iterator<Item = (Nanos, u64)>) -> impl Iterator<Item = f64> {
    let mut before = (begun, 0);
    counts.map(move |(at, bytes)| {
        let (since, least) = std::mem::replace(&mut before, (at, bytes));
        let seconds = at.since(since).as_secs_f64();
        if seconds > 0.0 { bytes.saturating_sub(least) as f64 * 8.0 / seconds } else { f64::NAN }
    })
}

/// Bits a second that a flow's receiver acknowledged, at each of its samples.
pub(super) fn flow_rates(trace: &FlowTrace) -> impl Iterator<Item = f64> {
    rates(trace.begun, trace.points.iter().map(|point| (point.at, point.acked)))
}

/// Bits a second that left over a link, at each of its samples.
pub(super) fn link_rates(trace: &LinkTrace) -> impl Iterator<Item = f64> {
    rates(Nanos::ZERO, trace.points.iter().map(|point| (point.at, point.sent)))
}

fn seconds(at: Nanos) -> Cell {
    at.since(Nanos::ZERO).as_secs_f64().into()
}

fn known(rate: f64) -> Cell {
    Some(rate).filter(|rate| rate.is_finite()).into()
}

pub(super) fn flows(results: &Results) -> Grid {
    let grid = Grid::default().text("system").number("pair").decimals("at_seconds", 9).text("workload");
    let grid = grid.number("flow").text("from").text("to").number("cwnd_bytes").number("in_flight_bytes");
    let mut grid = grid.decimals("srtt_seconds", 9).decimals("bits_per_second", 0);
    for run in &results.runs {
        for trace in run.series.iter().flat_map(|series| &series.flows) {
            for (point, rate) in trace.points.iter().zip(flow_rates(trace)) {
                let rtt = point.rtt.map(|rtt| rtt.as_secs_f64());
                let place: [Cell; 4] = [
                    run.system.as_str().into(),
                    f64::from(run.pair).into(),
                    seconds(point.at),
                    trace.workload.as_str().into(),
                ];
                let flow: [Cell; 3] =
                    [f64::from(trace.number).into(), trace.from.as_str().into(), trace.to.as_str().into()];
                let state: [Cell; 4] =
                    [(point.cwnd as f64).into(), (point.in_flight as f64).into(), rtt.into(), known(rate)];
                grid.line(place.into_iter().chain(flow).chain(state));
            }
        }
    }
    grid
}

pub(super) fn links(results: &Results) -> Grid {
    let grid = Grid::default().text("system").number("pair").decimals("at_seconds", 9).text("link");
    let mut grid = grid.number("queue_bytes").decimals("bits_per_second", 0);
    for run in &results.runs {
        for trace in run.series.iter().flat_map(|series| &series.links) {
            for (point, rate) in trace.points.iter().zip(link_rates(trace)) {
                grid.line([
                    run.system.as_str().into(),
                    f64::from(run.pair).into(),
                    seconds(point.at),
                    trace.link.as_str().into(),
                    (point.queue as f64).into(),
                    known(rate),
                ]);
            }
        }
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowPoint, LinkPoint, Run, Series};
    use plimsoll_units::Span;

    #[test]
    fn files_have_a_line_for_each_sample() {
        let at = Nanos::new;
        let point = |ms: u64, acked| FlowPoint {
            at: at(ms * 1_000_000),
            cwnd: 14_480,
            in_flight: 2_896,
            rtt: Some(Span::micros(40)),
            acked,
        };
        let flow = FlowTrace {
            workload: "w".to_owned(),
            number: 3,
            from: "h1".to_owned(),
            to: "h2".to_owned(),
            begun: at(500_000),
            points: vec![point(1, 1_000), point(2, 3_000)],
        };
        let link = LinkTrace {
            link: "up1".to_owned(),
            points: vec![LinkPoint { at: at(1_000_000), queue: 7, sent: 500 }],
        };
        let series = Series { interval: Span::millis(1), flows: vec![flow], links: vec![link], left_out: 0 };
        let run = Run { system: "fifo".to_owned(), series: Some(series), ..Run::default() };
        let results = Results { runs: vec![run], notes: Vec::new() };
        let folder = tempfile::tempdir().expect("a folder");
        let files = series_files(&results, folder.path(), true).expect("written");
        assert_eq!(files.len(), 4);
        let text = fs::read_to_string(&files[0]).expect("flows");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "fifo,0,0.001000000,w,3,h1,h2,14480,2896,0.000040000,16000000");
        assert_eq!(lines[2], "fifo,0,0.002000000,w,3,h1,h2,14480,2896,0.000040000,16000000");
        assert_eq!(
            fs::read_to_string(&files[2]).expect("links").lines().nth(1),
            Some("fifo,0,0.001000000,up1,7,4000000")
        );
    }
}
