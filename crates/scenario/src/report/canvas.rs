//! Axes and marks on a drawing that becomes SVG and PNG alike.
//!
//! Why: every figure has the same margins, type sizes, colours and ticks.
//! From: kuva's scenes and back ends; the palette of Okabe and Ito, which colour-blind readers tell apart.
//! Not here: what is drawn (`figures`).
//! Invariant: nothing is drawn outside of a panel but its labels.

use kuva::render::color::Color;
use kuva::render::render::{Primitive, Scene, TextAnchor};

/// Eight colours that colour-blind readers tell apart on white.
const PALETTE: [(u8, u8, u8); 8] = [
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (102, 102, 102),
    (148, 103, 36),
];
const INK: Color = Color::Rgb(34, 34, 34);
const GREY: Color = Color::Rgb(90, 90, 90);
const GRID: Color = Color::Rgb(226, 226, 226);
/// Dashes tell lines apart where colours come round again, and in print.
const DASHES: [Option<&str>; 3] = [None, Some("6,3"), Some("2,2")];

/// Width of every figure.
pub(super) const WIDTH: f64 = 960.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;

/// Where values lie between the ends of an axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub title: String,
    /// Value and label.
    pub ticks: Vec<(f64, String)>,
    pub from: f64,
    pub to: f64,
    /// Maps a value before it is placed linearly.
    pub map: fn(f64) -> f64,
}

impl Axis {
    /// From zero to a round number at or above `most`, with round ticks.
    pub(super) fn linear(title: &str, most: f64) -> Self {
        let step = round_step(most);
        let to = (most / step).ceil().max(1.0) * step;
        let count = (to / step).round() as u32;
        let ticks = (0..=count).map(|n| (f64::from(n) * step, plain(f64::from(n) * step))).collect();
        Self { title: title.to_owned(), ticks, from: 0.0, to, map: |value| value }
    }

    /// This axis, cut off at a value that need not be round.
    pub(super) fn until(mut self, to: f64) -> Self {
        self.ticks.retain(|(tick, _)| *tick <= to);
        Self { to, ..self }
    }

    /// Powers of ten around `least..most`, with a tick at 1, 2 and 5 of each.
    pub(super) fn logarithmic(title: &str, least: f64, most: f64) -> Self {
        let least = least.max(1e-6);
        let most = most.max(least * 10.0);
        let (first, last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        let all = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power)));
        let ticks: Vec<f64> = all.collect();
        let from = ticks.iter().copied().rfind(|tick| *tick <= least).unwrap_or(least);
        let to = ticks.iter().copied().find(|tick| *tick >= most).unwrap_or(most);
        let sparse = to / from > 2e4;
        let shown = |tick: &f64| (from..=to).contains(tick) && (!sparse || tick.log10().fract().abs() < 1e-9);
        let ticks = ticks.into_iter().filter(shown).map(|tick| (tick, plain(tick))).collect();
        Self { title: title.to_owned(), ticks, from, to, map: f64::log10 }
    }

    /// Parts of a whole with the last per cent stretched: each step is ten times nearer to all.
    pub(super) fn tail(title: &str) -> Self {
        let ticks = [(0.0, "0"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")];
        let ticks = ticks.map(|(value, label)| (value, label.to_owned())).to_vec();
        Self {
            title: title.to_owned(),
            ticks,
            from: 0.0,
            to: 0.9995,
            map: |part| -(1.0 - part).max(1e-9).log10(),
        }
    }

    /// 0 at one end and 1 at the other; values outside are brought to the end.
    fn place(&self, value: f64) -> f64 {
        let (from, to) = ((self.map)(self.from), (self.map)(self.to));
        (((self.map)(value) - from) / (to - from)).clamp(0.0, 1.0)
    }
}

/// A drawing that grows downwards.
pub(super) struct Canvas {
    elements: Vec<Primitive>,
    bottom: f64,
}

/// The area of one diagram on a canvas.
pub(super) struct Panel {
    left: f64,
    right: f64,
    top: f64,
    height: f64,
    x: Axis,
    y: Axis,
}

impl Canvas {
    /// A drawing with its title.
    pub(super) fn new(title: &str) -> Self {
        let mut canvas = Self { elements: Vec::new(), bottom: 30.0 };
        canvas.text(LEFT, 24.0, title, 16, TextAnchor::Start, INK, true);
        canvas
    }

    /// The finished drawing.
    pub(super) fn scene(self) -> Scene {
        let mut scene = Scene::new(WIDTH, self.bottom + 8.0);
        scene.font_family = Some("DejaVu Sans, Verdana, Helvetica, Arial, sans-serif".to_owned());
        scene.elements = self.elements;
        scene
    }

    /// Names and their colours, in rows.
    pub(super) fn legend(&mut self, names: &[String]) {
        let (mut x, mut y) = (LEFT, self.bottom + 12.0);
        for (n, name) in names.iter().enumerate() {
            let width = 44.0 + 7.6 * name.chars().count() as f64;
            if x + width > WIDTH - RIGHT {
                (x, y) = (LEFT, y + 20.0);
            }
            self.line(&[(x, y), (x + 24.0, y)], n, 3.0);
            self.text(x + 30.0, y + 4.5, name, 13, TextAnchor::Start, INK, false);
            x += width;
        }
        self.bottom = y + 14.0;
    }

    /// A panel over the whole width below what is there.
    pub(super) fn panel(&mut self, title: &str, height: f64, x: Axis, y: Axis) -> Panel {
        let top = self.bottom + 26.0;
        self.text(LEFT, top - 8.0, title, 13, TextAnchor::Start, INK, true);
        let panel = Panel { left: LEFT, right: WIDTH - RIGHT, top, height, x, y };
        self.axes(&panel);
        self.bottom = top + height + 46.0;
        panel
    }

    fn axes(&mut self, panel: &Panel) {
        let bottom = panel.top + panel.height;
        for (value, label) in &panel.y.ticks {
            let y = panel.y_of(*value);
            self.rule((panel.left, y), (panel.right, y), GRID);
            self.text(panel.left - 8.0, y + 4.0, label, 12, TextAnchor::End, GREY, false);
        }
        for (value, label) in &panel.x.ticks {
            let x = panel.x_of(*value);
            self.rule((x, bottom), (x, bottom + 5.0), GREY);
            self.text(x, bottom + 19.0, label, 12, TextAnchor::Middle, GREY, false);
        }
        self.rule((panel.left, bottom), (panel.right, bottom), GREY);
        self.rule((panel.left, panel.top), (panel.left, bottom), GREY);
        let middle = f64::midpoint(panel.left, panel.right);
        self.text(middle, bottom + 36.0, &panel.x.title, 12, TextAnchor::Middle, INK, false);
        self.elements.push(Primitive::Text {
            x: 20.0,
            y: panel.top + panel.height / 2.0,
            content: panel.y.title.clone(),
            size: 12,
            anchor: TextAnchor::Middle,
            rotate: Some(-90.0),
            bold: false,
            color: Some(INK),
        });
    }

    /// A curve in the colour of number `n`, through values of the panel's axes. Gaps are `NaN`.
    pub(super) fn curve(&mut self, panel: &Panel, n: usize, values: &[(f64, f64)]) {
        for stretch in values.split(|(_, y)| y.is_nan()) {
            let points: Vec<(f64, f64)> =
                stretch.iter().map(|(x, y)| (panel.x_of(*x), panel.y_of(*y))).collect();
            if points.len() > 1 {
                self.line(&points, n, 1.8);
            }
        }
    }

    /// A vertical line across the panel with a note on top, for a moment that matters.
    pub(super) fn moment(&mut self, panel: &Panel, at: f64, note: &str) {
        let x = panel.x_of(at);
        self.elements.push(Primitive::Line {
            x1: x,
            y1: panel.top,
            x2: x,
            y2: panel.top + panel.height,
            stroke: Color::Rgb(160, 160, 160),
            stroke_width: 1.0,
            stroke_dasharray: Some("3,3".to_owned()),
        });
        self.text(x + 4.0, panel.top + 11.0, note, 11, TextAnchor::Start, GREY, false);
    }

    /// A bar from zero up, number `n` of `count` in the group around `at`, with its value written on top.
    pub(super) fn bar(
        &mut self,
        panel: &Panel,
        at: f64,
        (n, count): (usize, usize),
        value: f64,
        label: &str,
    ) {
        let group = (panel.x_of(1.0) - panel.x_of(0.0)) * 0.8;
        let width = (group / count as f64).min(80.0);
        let x = panel.x_of(at) + (n as f64 - count as f64 / 2.0) * width;
        let (y, zero) = (panel.y_of(value), panel.y_of(0.0));
        self.elements.push(Primitive::Rect {
            x: x + 1.0,
            y,
            width: width - 2.0,
            height: zero - y,
            fill: colour(n),
            stroke: None,
            stroke_width: None,
            opacity: None,
        });
        self.text(x + width / 2.0, y - 4.0, label, 11, TextAnchor::Middle, INK, false);
    }

    fn line(&mut self, points: &[(f64, f64)], n: usize, width: f64) {
        self.elements.push(Primitive::PolyLine {
            points: points.to_vec(),
            stroke: colour(n),
            stroke_width: width,
            stroke_dasharray: DASHES[(n / PALETTE.len()) % DASHES.len()].map(str::to_owned),
        });
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64), stroke: Color) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.elements.push(Primitive::Line {
            x1,
            y1,
            x2,
            y2,
            stroke,
            stroke_width: 1.0,
            stroke_dasharray: None,
        });
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call per label, and a struct would only repeat the names"
    )]
    fn text(&mut self, x: f64, y: f64, text: &str, size: u32, anchor: TextAnchor, color: Color, bold: bool) {
        // Names come from files: a dollar sign must not begin a formula.
        let content = text.replace('$', "\\$");
        self.elements.push(Primitive::Text {
            x,
            y,
            content,
            size,
            anchor,
            rotate: None,
            bold,
            color: Some(color),
        });
    }
}

impl Panel {
    fn x_of(&self, value: f64) -> f64 {
        self.left + self.x.place(value) * (self.right - self.left)
    }

    fn y_of(&self, value: f64) -> f64 {
        self.top + (1.0 - self.y.place(value)) * self.height
    }
}

fn colour(n: usize) -> Color {
    let (r, g, b) = PALETTE[n % PALETTE.len()];
    Color::Rgb(r, g, b)
}

/// A step of 1, 2 or 5 times a power of ten that divides `most` into four to eight parts.
fn round_step(most: f64) -> f64 {
    let rough = (most / 5.0).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|n| n * power >= rough * 0.8);
    nice.unwrap_or(10.0) * power
}

/// Without needless digits: `0.5`, `20`.
fn plain(value: f64) -> String {
    let digits = if value.abs() >= 1.0 || value == 0.0 { 1 } else { 1 - value.abs().log10().floor() as i32 };
    let text = format!("{value:.*}", digits.clamp(0, 6) as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
