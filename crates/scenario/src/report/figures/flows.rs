//! Slowdown of flows that arrive, by their size.
//!
//! Why: a scheduler that helps short flows may cost long ones; one picture shows both.
//! From: Homa's figures: slowdown over size, one curve for each system.
//! Not here: the figures' numbers (`summary`).
//! Invariant: a class without complete flows is a gap.

use super::{Axis, Canvas, Figure, Summary};
use crate::expect::SizeRange;
use crate::summary::FlowSummary;

/// A figure of some flows.
type Value = fn(&FlowSummary) -> Option<f64>;

/// Median and 99th percentile of the slowdown, by size, a panel for each workload; nothing where no flows arrive.
pub(super) fn slowdown(ran: &[&Summary]) -> Option<Figure> {
    let all = || ran.iter().flat_map(|summary| &summary.flows);
    let most = all().filter_map(|flows| flows.slowdown_p99).fold(1.0, f64::max);
    let mut workloads: Vec<&str> = Vec::new();
    for flows in all() {
        if !workloads.contains(&flows.workload.as_str()) {
            workloads.push(&flows.workload);
        }
    }
    if workloads.is_empty() {
        return None;
    }
    let classes: Vec<String> = SizeRange::CLASSES.into_iter().map(SizeRange::name).collect();
    let mut canvas = Canvas::new("Slowdown of flows by their size");
    canvas.legend(&ran.iter().map(|summary| summary.system.clone()).collect::<Vec<_>>());
    let figures: [(&str, Value); 2] =
        [("median", |flows| flows.slowdown_p50), ("99th percentile", |flows| flows.slowdown_p99)];
    for workload in workloads {
        for (name, of) in figures {
            let ticks = (0_u32..).map(f64::from).zip(classes.clone()).collect();
            let (from, to) = (-0.5, classes.len() as f64 - 0.5);
            let x = Axis { title: "size of the flow".to_owned(), ticks, from, to, map: |value| value };
            let panel = canvas.panel(
                &format!("{workload}, {name}"),
                200.0,
                x,
                Axis::logarithmic("slowdown", 1.0, most),
            );
            for (n, summary) in ran.iter().enumerate() {
                let of_class = |class: &String| {
                    let mut own = summary.flows.iter().filter(|flows| flows.workload == workload);
                    own.find(|flows| flows.sizes == *class).and_then(of).unwrap_or(f64::NAN)
                };
                let points: Vec<(f64, f64)> =
                    (0_u32..).map(f64::from).zip(classes.iter().map(of_class)).collect();
                canvas.curve(&panel, n, &points);
            }
        }
    }
    let caption = "Completion time over that on an empty network, of the flows that were complete when the run ended; \
                   further down is better.";
    Some(Figure { name: "slowdown", caption: caption.to_owned(), scene: canvas.scene() })
}
