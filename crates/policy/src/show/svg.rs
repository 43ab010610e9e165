//! The policy as a drawing: the tree from the classes on the left to the link on the right, limits across it.
//!
//! Why: a graph is read faster than a file.
//! From: Loom Figure 1.
//! Not here: a general layout; a tree and a row of limits need none.
//! Invariant: all text is escaped, and the drawing has no script and no outside reference.

use std::fmt::Write as _;

use super::words::{describe_match, order_words, short, weighed};
use crate::check::Checked;
use crate::program::{NodeId, NodeKind, Program, Scope};

const BOX: (f64, f64) = (178.0, 50.0);
const GAP: (f64, f64) = (70.0, 18.0);
const MARGIN: f64 = 24.0;
/// Distance of two limits' lines.
const TRACK: f64 = 9.0;
/// Colours of limits that readers who confuse red and green can tell apart.
const COLOURS: [&str; 6] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#b8860b", "#56b4e9"];

const STYLE: &str = "text{font-family:'DejaVu Sans','Helvetica Neue',Arial,sans-serif;fill:#1d2733}\
    .name{font-size:14px;font-weight:600}.detail{font-size:11px;fill:#526070}.small{font-size:11px;fill:#526070;paint-order:stroke;stroke:#fff;stroke-width:4px}\
    .edge{fill:none;stroke:#8794a3;stroke-width:1.6}.node{fill:#eef2f7;stroke:#8794a3}\
    .class{fill:#ffffff;stroke:#526070}.tenant{fill:#fff6e0;stroke:#b8860b}.via{fill:none;stroke-width:1.6;\
    stroke-linejoin:round}";

/// Draws the policy as SVG.
#[must_use]
pub fn svg(checked: &Checked) -> String {
    let program = &checked.program;
    let layout = Layout::new(program);
    let (width, height) = layout.size;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        escape(checked.sources.files().first().map_or("policy", |file| file.name.as_str()))
    );
    edges(&mut out, program, &layout);
    for index in 0..program.nodes.len() {
        node(&mut out, program, &layout, index);
    }
    limits(&mut out, program, &layout);
    link(&mut out, program, &layout);
    out.push_str("</svg>\n");
    out
}

/// Where everything goes. Columns are numbered by depth, so that the root's is 0 and on the right.
struct Layout {
    depth: Vec<usize>,
    /// Upper left corner of each node's box.
    nodes: Vec<(f64, f64)>,
    /// Stated limits, one below the other: index and upper left corner.
    limits: Vec<(usize, (f64, f64))>,
    /// For each column, the limits whose lines run down on its left.
    tracks: Vec<Vec<usize>>,
    size: (f64, f64),
}

impl Layout {
    fn new(program: &Program) -> Self {
        let mut depth = vec![0_usize; program.nodes.len()];
        for (index, node) in program.nodes.iter().enumerate() {
            depth[index] = node.parent.map_or(0, |parent| depth[parent.0 as usize] + 1);
        }
        let deepest = depth.iter().max().copied().unwrap_or(0);
        let tracks = tracks(program, &depth, deepest);
        let mut columns = vec![0.0; deepest + 1];
        let mut x = MARGIN - GAP.0 + 10.0;
        for column in (0..=deepest).rev() {
            x += GAP.0 + TRACK * tracks[column].len() as f64;
            columns[column] = x;
            x += BOX.0;
        }
        let rows = rows(program);
        let row = |row: f64| MARGIN + row * (BOX.1 + GAP.1);
        let nodes: Vec<(f64, f64)> =
            (0..rows.len()).map(|index| (columns[depth[index]], row(rows[index]))).collect();
        let bottom = nodes.iter().map(|(_, y)| y + BOX.1).fold(0.0, f64::max);
        let stated = program.limits.iter().enumerate();
        let stated = stated.filter(|(_, limit)| matches!(limit.scope, Scope::Match { .. }));
        let place = |(position, (index, _)): (usize, (usize, _))| {
            (index, (columns[deepest], bottom + 44.0 + position as f64 * (BOX.1 + 12.0)))
        };
        let limits: Vec<_> = stated.enumerate().map(place).collect();
        let height = limits.iter().map(|(_, (_, y))| y + BOX.1).fold(bottom, f64::max) + MARGIN;
        Self { depth, nodes, limits, tracks, size: (columns[0] + BOX.0 + 110.0, height) }
    }

    /// Where the line of `limit` runs down, left of `column`.
    fn track(&self, column: usize, x: f64, limit: usize) -> (f64, usize) {
        let position = self.tracks[column].iter().position(|&known| known == limit).unwrap_or(0);
        (x - 10.0 - TRACK * position as f64, position)
    }
}

/// For each column, the limits that its nodes send through.
fn tracks(program: &Program, depth: &[usize], deepest: usize) -> Vec<Vec<usize>> {
    let mut tracks = vec![Vec::new(); deepest + 1];
    for (index, limit) in program.limits.iter().enumerate() {
        let Scope::Match { via, .. } = &limit.scope else { continue };
        for user in via {
            let track = &mut tracks[depth[user.0 as usize]];
            if track.last() != Some(&index) {
                track.push(index);
            }
        }
    }
    tracks
}

/// Each leaf has a row, and each parent stands in the middle of its children.
fn rows(program: &Program) -> Vec<f64> {
    let mut rows = vec![0.0; program.nodes.len()];
    let mut next = 0.0;
    let mut open = vec![NodeId(0)];
    while let Some(id) = open.pop() {
        let node = program.node(id);
        if node.children.is_empty() {
            rows[id.0 as usize] = next;
            next += 1.0;
        }
        open.extend(node.children.iter().rev());
    }
    for index in (0..program.nodes.len()).rev() {
        let children = &program.nodes[index].children;
        if let (Some(first), Some(last)) = (children.first(), children.last()) {
            rows[index] = f64::midpoint(rows[first.0 as usize], rows[last.0 as usize]);
        }
    }
    rows
}

fn edges(out: &mut String, program: &Program, layout: &Layout) {
    for (index, node) in program.nodes.iter().enumerate() {
        let Some(parent) = node.parent else { continue };
        let (x, y) = layout.nodes[index];
        let (start, end) = ((x + BOX.0, y + BOX.1 / 2.0), layout.nodes[parent.0 as usize]);
        let end = (end.0, end.1 + BOX.1 / 2.0);
        let bend = GAP.0 / 2.0;
        let _ = writeln!(
            out,
            "<path class=\"edge\" d=\"M{:.1} {:.1} C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}\"/>",
            start.0,
            start.1,
            start.0 + bend,
            start.1,
            end.0 - bend,
            end.1,
            end.0,
            end.1
        );
        let above = program.node(parent);
        let label = match above.kind {
            NodeKind::Priority => {
                let position = above.children.iter().position(|child| child.0 as usize == index);
                position.map(|position| format!("#{}", position + 1))
            }
            _ if weighed(program, node) => Some(format!("×{}", node.weight)),
            _ => node.rate.map(|rate| format!("={rate}")),
        };
        if let Some(label) = label {
            let _ = writeln!(
                out,
                "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                start.0 + 5.0,
                start.1 - 5.0,
                escape(&label)
            );
        }
    }
}

fn node(out: &mut String, program: &Program, layout: &Layout, index: usize) {
    let node = &program.nodes[index];
    let (x, y) = layout.nodes[index];
    let is_tenant = program.tenants.iter().any(|tenant| tenant.node.0 as usize == index && index != 0);
    let (class, round) = match node.kind {
        _ if is_tenant => ("tenant", 6),
        NodeKind::Class(_) => ("class", 6),
        _ => ("node", 22),
    };
    let mut detail = order_words(program, node);
    if let Some(min) = node.min {
        let _ = write!(detail, "  ≥{min}");
    }
    if let Some(max) = node.max {
        let _ = write!(detail, "  ≤{}", program.limit(max).rate);
    }
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" \
         rx=\"{round}\"/><text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <text class=\"detail\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
        escape(&hint(program, index)),
        BOX.0,
        BOX.1,
        x + 12.0,
        y + 21.0,
        escape(&cut(short(node), 19)),
        x + 12.0,
        y + 38.0,
        escape(&cut(&detail, 29)),
    );
}

/// The text that a browser shows over a box: the whole name, and the packets of the class.
fn hint(program: &Program, index: usize) -> String {
    let rules = program.rules.iter().filter(|rule| rule.class.0 as usize == index);
    let matches: Vec<String> = rules.map(|rule| describe_match(program, &rule.matches)).take(8).collect();
    let name = &program.nodes[index].name;
    if matches.is_empty() { name.clone() } else { format!("{name}: {}", matches.join(" | ")) }
}

fn limits(out: &mut String, program: &Program, layout: &Layout) {
    for (position, &(index, (x, y))) in layout.limits.iter().enumerate() {
        let limit = &program.limits[index];
        let Scope::Match { matches, via } = &limit.scope else { continue };
        let colour = COLOURS[position % COLOURS.len()];
        for user in via {
            line(out, layout, user.0 as usize, index, (x, y + BOX.1 / 2.0), colour);
        }
        let words = describe_match(program, matches);
        let words = if words.is_empty() { "everything".to_owned() } else { words };
        let name = limit.name.rsplit('/').next().unwrap_or(&limit.name);
        let _ = writeln!(
            out,
            "<g><title>{}: {}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" rx=\"4\" \
             fill=\"#ffffff\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <text class=\"detail\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            escape(&limit.name),
            escape(&words),
            BOX.0,
            BOX.1,
            x + 12.0,
            y + 21.0,
            escape(&cut(&format!("{name} ≤{}", limit.rate), 20)),
            x + 12.0,
            y + 38.0,
            escape(&cut(&words, 26)),
        );
    }
}

/// From a node's left side down its column's track, and along the limit's row to the limit.
fn line(out: &mut String, layout: &Layout, node: usize, limit: usize, (x, y): (f64, f64), colour: &str) {
    let (node_x, node_y) = layout.nodes[node];
    let (track, position) = layout.track(layout.depth[node], node_x, limit);
    let start = node_y + 10.0 + (TRACK * position as f64) % (BOX.1 - 16.0);
    let end = if track < x { x } else { x + BOX.0 };
    let _ = writeln!(
        out,
        "<path class=\"via\" stroke=\"{colour}\" d=\"M{node_x:.1} {start:.1} H{track:.1} V{y:.1} H{end:.1}\"/>\
         <circle cx=\"{node_x:.1}\" cy=\"{start:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
    );
}

fn link(out: &mut String, program: &Program, layout: &Layout) {
    let (x, y) = layout.nodes[0];
    let (from, middle) = (x + BOX.0, y + BOX.1 / 2.0);
    let _ = writeln!(
        out,
        "<path class=\"edge\" stroke-width=\"3\" d=\"M{from:.1} {middle:.1} h70\"/>\
         <path d=\"M{:.1} {:.1} l14 7 l-14 7 z\" fill=\"#8794a3\"/>\
         <text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        from + 70.0,
        middle - 7.0,
        from + 8.0,
        middle - 9.0,
        escape(&program.link.to_string())
    );
}

/// At most `most` characters, with an ellipsis where some are left out.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(most - 1).collect();
    cut.push('…');
    cut
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
