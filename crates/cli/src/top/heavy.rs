//! The pane of heavy hitters in `plimsoll top`.
//!
//! Why: the flow that fills a core, and what is done about it, belong beside the tenants that it harms.
//! From: the daemon's `/v1/heavy`, as `plimsoll heavy` shows it.
//! Not here: the rest of the screen (`view`).
//! Invariant: takes no more rows than there are flows; none without any.

use plimsoll_daemon::{HeavyReport, HeavyRow};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Style};
use ratatui::widgets::{Cell, Row, Table};

use super::view::{ROOMY, header, right};
use crate::heavy::pressed;
use crate::show::{count, rate};

/// Rows that the pane needs for all flows: none where there is no heavy hitter.
pub(super) fn rows(report: Option<&HeavyReport>) -> u16 {
    let flows = report.map_or(0, |report| report.flows.len());
    // The head, and a line of space before it.
    if flows == 0 { 0 } else { u16::try_from(flows + 2).unwrap_or(u16::MAX) }
}

/// Draws the flows with most packets that have room.
pub(super) fn draw(report: &HeavyReport, frame: &mut Frame<'_>, area: Rect) {
    let watched = report.watched.as_ref();
    let overloaded = watched.filter(|watched| watched.overloaded).is_some();
    let last = match watched {
        None => "",
        Some(watched) if !watched.measured => "slowed down (load not measured)",
        Some(_) if overloaded => "slowed down (overloaded)",
        Some(_) => "slowed down",
    };
    let heads = ["heavy hitter", "tenant", "packets/s", "rate", "part", "since", last];
    // On a narrow screen the room goes to the flow and to what is done about it.
    let tenant = if area.width < ROOMY { 0 } else { 12 };
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(tenant),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Fill(2),
    ];
    let table = Table::new(report.flows.iter().map(row), widths);
    frame.render_widget(table.header(header(&heads)).column_spacing(1), area);
}

fn row(flow: &HeavyRow) -> Row<'static> {
    let style = if flow.pressed.is_some() { Style::new().fg(Color::Yellow) } else { Style::new() };
    Row::new([
        Cell::from(flow.headers()),
        Cell::from(format!("{} {}", flow.direction, flow.tenant)),
        right(count(flow.packets.round() as u64), 9),
        right(rate(flow.bits), 9),
        right(format!("{:.1} %", flow.part * 100.0), 7),
        right(format!("{:.0}s ago", flow.age), 8),
        Cell::from(flow.pressed.as_ref().map_or_else(String::new, pressed)),
    ])
    .style(style)
}
