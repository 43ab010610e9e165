//! The screen of `plimsoll top`.
//!
//! Why: the whole tree with its figures fits on one screen, the most important first.
//! From: two readings of the counters.
//! Not here: keys and time.
//! Invariant: drawing never fails, whatever the size of the terminal and the counters.

use std::collections::HashMap;

use plimsoll_daemon::{HeavyReport, NodeStats, PortStats, Stats};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::heavy;
use crate::show::{count, drops, micros, rate, uplink};

/// The contents of the screen.
#[derive(Debug)]
pub(crate) struct View {
    now: Stats,
    before: Option<Stats>,
    heavy: Option<HeavyReport>,
    trouble: Option<String>,
    first: usize,
    /// Whether updates are suspended.
    pub(crate) paused: bool,
}

impl View {
    /// A view of the first reading; rates are shown from the second on.
    pub(crate) fn new(now: Stats, heavy: Option<HeavyReport>) -> Self {
        Self { now, before: None, heavy, trouble: None, first: 0, paused: false }
    }

    /// Takes the next reading.
    pub(crate) fn update(&mut self, stats: Stats, heavy: Option<HeavyReport>) {
        (self.trouble, self.heavy) = (None, heavy);
        self.before = Some(std::mem::replace(&mut self.now, stats));
    }

    /// Shows why the daemon does not answer.
    pub(crate) fn trouble(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// Scrolls through a tree that is longer than the screen.
    pub(crate) fn scroll(&mut self, by: isize) {
        self.first = self.first.saturating_add_signed(by).min(self.now.nodes.len().saturating_sub(1));
    }

    /// Draws the screen.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let ports = u16::try_from(self.now.tenants.len() + 2).unwrap_or(u16::MAX);
        let limits = if self.now.limits.is_empty() { 0 } else { self.now.limits.len() + 2 };
        let limits = u16::try_from(limits).unwrap_or(u16::MAX);
        let height = frame.area().height;
        let parts = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(4),
            Constraint::Length(limits.min(height / 4)),
            Constraint::Length(heavy::rows(self.heavy.as_ref()).min(height / 4)),
            Constraint::Length(ports.min(height / 3)),
            Constraint::Length(1),
        ])
        .split(frame.area());
        frame.render_widget(Paragraph::new(self.title()), parts[0]);
        self.draw_tree(frame, parts[1]);
        self.draw_limits(frame, parts[2]);
        if let Some(report) = &self.heavy {
            heavy::draw(report, frame, parts[3]);
        }
        self.draw_ports(frame, parts[4]);
        frame.render_widget(Paragraph::new(self.footer()), parts[5]);
    }

    fn title(&self) -> Line<'static> {
        let sent = self.per_second(|stats| stats.nodes.first().map_or(0, |root| root.bytes)) * 8.0;
        let used = if self.now.link > 0 { sent / self.now.link as f64 * 100.0 } else { 0.0 };
        let name = Span::styled("plimsoll", Style::new().add_modifier(Modifier::BOLD));
        let (sent, link) = (rate(sent), rate(self.now.link as f64));
        let text = format!(
            "  {sent} of {link} ({used:.0}%)   {} packets wait   policy {}   up {:.0} s{}",
            count(self.now.engine.held.into()),
            self.now.generation,
            self.now.uptime,
            if self.paused { "   PAUSED" } else { "" },
        );
        Line::from(vec![name, Span::raw(text)])
    }

    fn footer(&self) -> Line<'static> {
        match &self.trouble {
            Some(why) => Line::styled(why.clone(), Style::new().fg(Color::Red)),
            None => {
                Line::styled("q quit   p pause   up/down scroll", Style::new().add_modifier(Modifier::DIM))
            }
        }
    }

    fn draw_tree(&self, frame: &mut Frame<'_>, area: Rect) {
        let earlier: HashMap<&str, &NodeStats> = self
            .before
            .iter()
            .flat_map(|stats| &stats.nodes)
            .map(|node| (node.path.as_str(), node))
            .collect();
        let rows = self.now.nodes.iter().skip(self.first).map(|node| {
            let before = earlier.get(node.path.as_str());
            self.tree_row(node, before.copied())
        });
        let heads = ["class", "", "rate", "packets/s", "waiting", "p50", "p99", "p99.9", "drops"];
        // On a narrow screen the room goes to the names and the drops.
        let note = if area.width < ROOMY { 0 } else { 18 };
        let widths = [
            Constraint::Fill(2),
            Constraint::Length(note),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(8),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Fill(1),
        ];
        frame.render_widget(Table::new(rows, widths).header(header(&heads)).column_spacing(1), area);
    }

    fn tree_row(&self, node: &NodeStats, before: Option<&NodeStats>) -> Row<'static> {
        let seconds = self.seconds();
        let per_second = |now: u64, before: Option<u64>| {
            before.map(|before| (now.saturating_sub(before)) as f64 / seconds)
        };
        let bits = per_second(node.bytes, before.map(|node| node.bytes)).map(|bytes| bytes * 8.0);
        let packets = per_second(node.packets, before.map(|node| node.packets));
        let name = node.path.rsplit('/').next().unwrap_or(&node.path);
        let delay = |of: fn(&plimsoll_daemon::Delay) -> f64| {
            node.delay.as_ref().map_or("-".to_owned(), |d| micros(of(d)))
        };
        let lost = Style::new().fg(if node.drops.is_empty() { Color::Reset } else { Color::Yellow });
        let weight = if node.is_class() { Modifier::empty() } else { Modifier::BOLD };
        Row::new([
            Cell::from(format!("{}{name}", "  ".repeat(node.depth as usize)))
                .style(Style::new().add_modifier(weight)),
            Cell::from(envelope(node)).style(Style::new().add_modifier(Modifier::DIM)),
            right(bits.map_or("-".to_owned(), rate), 9),
            right(packets.map_or("-".to_owned(), |n| count(n.round() as u64)), 9),
            right(count(node.backlog_packets), 8),
            right(delay(|d| d.p50), 7),
            right(delay(|d| d.p99), 7),
            right(delay(|d| d.p999), 7),
            Cell::from(with_marks(node)).style(lost),
        ])
    }

    fn draw_limits(&self, frame: &mut Frame<'_>, area: Rect) {
        let seconds = self.seconds();
        let rows = self.now.limits.iter().map(|(name, limit)| {
            let before = self.before.as_ref().and_then(|stats| stats.limits.get(name));
            let bits = before.map(|before| limit.bytes.saturating_sub(before.bytes) as f64 * 8.0 / seconds);
            Row::new([
                Cell::from(name.clone()),
                right(rate(limit.rate as f64), 9),
                right(bits.map_or("-".to_owned(), rate), 9),
                right(count(limit.waiting.into()), 9),
                right(count(limit.parked), 9),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(9),
        ];
        let heads = ["limit", "at most", "rate", "waiting", "waits"];
        frame.render_widget(Table::new(rows, widths).header(header(&heads)).column_spacing(1), area);
    }

    fn draw_ports(&self, frame: &mut Frame<'_>, area: Rect) {
        let tenants = self.now.tenants.iter().map(|(name, port)| {
            let before = self.before.as_ref().and_then(|stats| stats.tenants.get(name));
            self.port_row(name, port, before)
        });
        let before = self.before.as_ref().map(|stats| &stats.uplink);
        let uplink = self.port_row(uplink(&self.now), &self.now.uplink, before);
        let widths = [
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(6),
            Constraint::Fill(2),
        ];
        let heads = ["port", "device", "from it", "to it", "flows", "drops"];
        let rows: Vec<_> = tenants.chain([uplink]).collect();
        frame.render_widget(Table::new(rows, widths).header(header(&heads)).column_spacing(1), area);
    }

    fn port_row(&self, name: &str, port: &PortStats, before: Option<&PortStats>) -> Row<'static> {
        let seconds = self.seconds();
        let bits = |now: u64, before: Option<u64>| {
            before.map_or("-".to_owned(), |before| rate(now.saturating_sub(before) as f64 * 8.0 / seconds))
        };
        let device = match &port.port {
            Some(device) => Cell::from(device.clone()),
            None => Cell::from("LOST").style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)),
        };
        Row::new([
            Cell::from(name.to_owned()),
            device,
            right(bits(port.rx_bytes, before.map(|port| port.rx_bytes)), 9),
            right(bits(port.tx_bytes, before.map(|port| port.tx_bytes)), 9),
            right(count(port.flows.into()), 6),
            Cell::from(drops(&port.drops)),
        ])
    }

    fn seconds(&self) -> f64 {
        self.before.as_ref().map_or(1.0, |before| (self.now.uptime - before.uptime).max(1e-3))
    }

    fn per_second(&self, of: impl Fn(&Stats) -> u64) -> f64 {
        self.before
            .as_ref()
            .map_or(0.0, |before| of(&self.now).saturating_sub(of(before)) as f64 / self.seconds())
    }
}

/// A class's drops by reason, and its marked packets.
fn with_marks(node: &NodeStats) -> String {
    match (node.marked, node.drops.is_empty()) {
        (0, _) => drops(&node.drops),
        (marked, true) => format!("marked {}", count(marked)),
        (marked, false) => format!("{}, marked {}", drops(&node.drops), count(marked)),
    }
}

/// A node's note: `400Mbps` for a strict rate, an envelope `2Gbps..8Gbps` or `..8Gbps`, or the kind of its order.
fn envelope(node: &NodeStats) -> String {
    let shown = |bits: Option<u64>| bits.map_or(String::new(), |bits| rate(bits as f64));
    match (node.min, node.max) {
        (None, None) if node.rate.is_some() => shown(node.rate),
        (None, None) if node.is_class() => String::new(),
        (None, None) => node.kind.clone(),
        (min, max) => format!("{}..{}", shown(min), shown(max)),
    }
}

pub(super) fn header(heads: &[&'static str]) -> Row<'static> {
    Row::new(heads.iter().map(|head| {
        // Heads of figures are aligned with their last digit.
        let width = match *head {
            "rate" | "packets/s" | "at most" | "from it" | "to it" | "waits" => 9,
            "waiting" => 8,
            "p50" | "p99" | "p99.9" => 7,
            "part" => 7,
            "since" => 8,
            "flows" => 6,
            _ => 0,
        };
        Cell::from(format!("{:>width$}", head.to_uppercase()))
    }))
    .style(Style::new().add_modifier(Modifier::UNDERLINED))
}

pub(super) fn right(text: String, width: usize) -> Cell<'static> {
    Cell::from(format!("{text:>width$}"))
}

/// Width of the screen from which on envelopes are shown beside classes.
pub(super) const ROOMY: u16 = 100;

#[cfg(test)]
mod tests {
    use plimsoll_daemon::{Delay, HeavyRow, LimitStats, PressedRow, StandbyStats, WatchedRow};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn stats(uptime: f64, bytes: u64) -> Stats {
        let node = |path: &str, depth, kind: &str, bytes| NodeStats {
            path: path.into(),
            depth,
            kind: kind.into(),
            bytes,
            packets: bytes / 1_500,
            ..NodeStats::default()
        };
        let mut shop = node("root/shop", 1, "class", bytes);
        (shop.min, shop.max) = (Some(2_000_000_000), Some(8_000_000_000));
        shop.delay = Some(Delay { count: 9, p50: 12.0, p99: 140.0, p999: 1_500.0, ..Delay::default() });
        shop.drops.insert("flow_full".into(), 12);
        shop.marked = 40;
        let mut batch = node("root/batch", 1, "class", 0);
        batch.rate = Some(300_000_000);
        let port = PortStats {
            port: Some("tap shop/eth0".into()),
            rx_bytes: bytes,
            flows: 3,
            ..PortStats::default()
        };
        let limit = LimitStats { rate: 500_000_000, bytes, waiting: 2, parked: 40, ..LimitStats::default() };
        Stats {
            uptime,
            link: 10_000_000_000,
            nodes: vec![node("root", 0, "wfq", bytes), shop, batch],
            limits: [("wan".to_owned(), limit)].into(),
            tenants: [("shop".to_owned(), port)].into(),
            ..Stats::default()
        }
    }

    #[test]
    fn the_uplinks_row_says_when_its_standby_is_active() {
        let on = |active: &str| {
            let standby = StandbyStats { active: active.into(), ..StandbyStats::default() };
            let uplink = PortStats { port: Some("af_packet up1".into()), ..PortStats::default() };
            let stats = Stats { standby: Some(standby), uplink, ..stats(1.0, 0) };
            screen(&View::new(stats, None), 100, 30)
        };
        assert!(on("standby").contains("uplink (standby)"), "{}", on("standby"));
        assert!(on("port").contains("uplink  ") && !on("port").contains("(standby)"), "{}", on("port"));
    }

    /// As many heavy hitters, each with half of the packets of the one before. The first is slowed down.
    fn heavy(flows: u16) -> HeavyReport {
        let pressed =
            PressedRow { rate: 850_000_000, how: "marked".to_owned(), interval: Some(1_983), age: 3.0 };
        let row = |n: u16| HeavyRow {
            tenant: "gateway".to_owned(),
            direction: "in".to_owned(),
            from: None,
            src: "10.0.0.9".parse().ok(),
            dst: "10.0.0.1".parse().ok(),
            protocol: Some(6),
            src_port: Some(40_000 + n),
            dst_port: Some(5_201),
            ethertype: None,
            packets: 80_000.0 / f64::from(1 << n.min(20)),
            bits: 960e6 / f64::from(1 << n.min(20)),
            part: 0.8 / f64::from(1 << n.min(20)),
            age: 12.4,
            round_trip: Some(770e-6),
            pressed: (n == 0).then(|| pressed.clone()),
        };
        let watched = WatchedRow {
            what: "engine".to_owned(),
            measured: true,
            overloaded: true,
            top: Some(0.8),
            overloads: 1,
            started: 1,
            ended: 0,
            marked: 7,
            left: 0,
        };
        HeavyReport {
            over: 2.5,
            flows: (0..flows).map(row).collect(),
            packets: 100_000.0,
            bits: 1e9,
            counted: [250_000, 0],
            watched: Some(watched),
            held: Vec::new(),
            updates: Default::default(),
        }
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn shows_the_tree_with_rates_delays_and_drops() {
        let mut view = View::new(stats(10.0, 0), None);
        view.update(stats(12.0, 250_000_000), None);
        let screen = screen(&view, 120, 24);
        for expected in [
            "plimsoll  1Gbps of 10Gbps (10%)",
            "  shop",
            "2Gbps..8Gbps",
            "flow_full 12, ma",
            "140us",
            "tap shop/eth0",
            "wan",
            "500Mbps",
            "300Mbps",
            "q quit",
        ] {
            assert!(screen.contains(expected), "{expected} is missing in\n{screen}");
        }
    }

    #[test]
    fn heavy_hitters_have_a_pane_with_what_is_done_about_them() {
        let mut view = View::new(stats(10.0, 0), None);
        assert!(!screen(&view, 120, 24).contains("HEAVY"), "flows are not counted");
        view.update(stats(12.0, 250_000_000), Some(heavy(2)));
        let shown = screen(&view, 120, 24);
        let at = shown.lines().position(|line| line.starts_with("HEAVY HITTER")).expect("a pane");
        let pane: Vec<&str> = shown.lines().skip(at).take(4).collect();
        assert_eq!(
            pane,
            [
                "HEAVY HITTER                              TENANT       PACKETS/S      RATE    PART    SINCE SLOWED DOWN (OVERLOADED)",
                "tcp 10.0.0.9:40000 > 10.0.0.1:5201        in gateway         80k   960Mbps  80.0 %  12s ago to 850Mbps, 1 of 1983 marked",
                "tcp 10.0.0.9:40001 > 10.0.0.1:5201        in gateway         40k   480Mbps  40.0 %  12s ago",
                "",
            ],
            "{shown}"
        );
        view.update(stats(13.0, 250_000_000), Some(heavy(0)));
        assert!(!screen(&view, 120, 24).contains("HEAVY"), "no flow is heavy");
        // Of many the first have room, and the rest of the screen stays.
        view.update(stats(14.0, 250_000_000), Some(heavy(200)));
        let shown = screen(&view, 120, 24);
        assert!(shown.matches("tcp 10.0.0.9").count() == 5 && shown.contains("q quit"), "{shown}");
        assert!(shown.contains("tap shop/eth0"), "{shown}");
    }

    #[test]
    fn figures_end_below_the_end_of_their_head() {
        let mut view = View::new(stats(10.0, 0), None);
        view.update(stats(12.0, 250_000_000), None);
        let screen = screen(&view, 120, 24);
        let end = |needle: &str| {
            let line =
                screen.lines().find(|line| line.contains(needle)).unwrap_or_else(|| panic!("{needle}"));
            line.find(needle).map(|start| start + needle.len())
        };
        assert_eq!(end("P99"), end("140us"), "{screen}");
    }

    #[test]
    fn any_size_can_be_drawn() {
        let mut view = View::new(stats(10.0, 0), None);
        view.update(stats(10.0, 5), Some(heavy(300)));
        view.trouble("no plimsoll answers".into());
        view.scroll(100);
        for (width, height) in [(1, 1), (10, 3), (300, 100)] {
            screen(&view, width, height);
        }
    }

    #[test]
    fn a_reload_in_between_shows_no_rate_for_new_classes() {
        let mut view = View::new(Stats::default(), None);
        view.update(stats(12.0, 250_000_000), None);
        assert!(screen(&view, 120, 24).contains(" - "));
    }
}
