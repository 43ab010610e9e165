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
const GAP: (f64, f64) = (76.0, 18.0);
const MARGIN: f64 = 28.0;
const PILL: (f64, f64) = (216.0, 46.0);
/// Colours of limits, told apart also by those who do not see red and green as different.
const COLOURS: [&str; 6] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#b8860b", "#56b4e9"];

const STYLE: &str = "text{font-family:'DejaVu Sans','Helvetica Neue',Arial,sans-serif;fill:#1d2733}\
    .name{font-size:14px;font-weight:600}.detail{font-size:11px;fill:#526070}.small{font-size:11px;fill:#526070}\
    .edge{fill:none;stroke:#8794a3;stroke-width:1.6}.node{fill:#eef2f7;stroke:#8794a3}\
    .class{fill:#ffffff;stroke:#526070}.tenant{fill:#fff6e0;stroke:#b8860b}.via{fill:none;stroke-width:1.6;\
    stroke-dasharray:5 4}";

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
        escape(checked.sources.files().first().map_or("policy", |file| &file.name))
    );
    edges(&mut out, program, &layout);
    limits(&mut out, program, &layout);
    for index in 0..program.nodes.len() {
        node(&mut out, program, &layout, index);
    }
    link(&mut out, program, &layout);
    out.push_str("</svg>\n");
    out
}

/// Where everything goes.
struct Layout {
    /// Upper left corner of each node's box.
    nodes: Vec<(f64, f64)>,
    /// Stated limits: index and upper left corner.
    pills: Vec<(usize, (f64, f64))>,
    size: (f64, f64),
}

impl Layout {
    fn new(program: &Program) -> Self {
        let mut depth = vec![0_usize; program.nodes.len()];
        for (index, node) in program.nodes.iter().enumerate() {
            depth[index] = node.parent.map_or(0, |parent| depth[parent.0 as usize] + 1);
        }
        let deepest = depth.iter().max().copied().unwrap_or(0);
        let rows = rows(program);
        let column = |depth: usize| MARGIN + (deepest - depth) as f64 * (BOX.0 + GAP.0);
        let row = |row: f64| MARGIN + row * (BOX.1 + GAP.1);
        let nodes: Vec<(f64, f64)> =
            (0..rows.len()).map(|index| (column(depth[index]), row(rows[index]))).collect();
        let bottom = nodes.iter().map(|(_, y)| y + BOX.1).fold(0.0, f64::max);
        let tree_width = column(0) + BOX.0 + 110.0;
        let stated = program.limits.iter().enumerate();
        let stated: Vec<usize> = stated
            .filter(|(_, limit)| matches!(limit.scope, Scope::Match { .. }))
            .map(|(index, _)| index)
            .collect();
        let in_row = (((tree_width - 2.0 * MARGIN) / (PILL.0 + 24.0)) as usize).max(1);
        let pill = |(position, &index): (usize, &usize)| {
            let (x, y) = ((position % in_row) as f64, (position / in_row) as f64);
            (index, (MARGIN + x * (PILL.0 + 24.0), bottom + 62.0 + y * (PILL.1 + 16.0)))
        };
        let pills: Vec<_> = stated.iter().enumerate().map(pill).collect();
        let height = pills.iter().map(|(_, (_, y))| y + PILL.1).fold(bottom, f64::max) + MARGIN;
        Self { nodes, pills, size: (tree_width, height) }
    }
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
            _ => None,
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
    let mut detail = order_words(node.kind);
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

/// What a browser shows over a box: the whole name, and what comes here.
fn hint(program: &Program, index: usize) -> String {
    let rules = program.rules.iter().filter(|rule| rule.class.0 as usize == index);
    let matches: Vec<String> = rules.map(|rule| describe_match(program, &rule.matches)).take(8).collect();
    let name = &program.nodes[index].name;
    if matches.is_empty() { name.clone() } else { format!("{name}: {}", matches.join(" | ")) }
}

fn limits(out: &mut String, program: &Program, layout: &Layout) {
    for (position, &(index, (x, y))) in layout.pills.iter().enumerate() {
        let limit = &program.limits[index];
        let Scope::Match { matches, via } = &limit.scope else { continue };
        let colour = COLOURS[position % COLOURS.len()];
        for user in via {
            let (node_x, node_y) = layout.nodes[user.0 as usize];
            let (from, to) =
                ((x + PILL.0 / 2.0, y), (node_x + 30.0 + 14.0 * (position % 8) as f64, node_y + BOX.1));
            let bend = ((from.1 - to.1) / 2.0).clamp(20.0, 70.0);
            let _ = writeln!(
                out,
                "<path class=\"via\" stroke=\"{colour}\" d=\"M{:.1} {:.1} C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}\"/>\
                 <circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
                from.0,
                from.1,
                from.0,
                from.1 - bend,
                to.0,
                to.1 + bend,
                to.0,
                to.1,
                to.0,
                to.1
            );
        }
        let words = describe_match(program, matches);
        let words = if words.is_empty() { "everything".to_owned() } else { words };
        let _ = writeln!(
            out,
            "<g><title>{}: {}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" rx=\"23\" fill=\"#ffffff\" \
             stroke=\"{colour}\" stroke-width=\"2\"/><text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <text class=\"detail\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            escape(&limit.name),
            escape(&words),
            PILL.0,
            PILL.1,
            x + 18.0,
            y + 19.0,
            escape(&cut(
                &format!("{} {}", limit.name.rsplit('/').next().unwrap_or(&limit.name), limit.rate),
                22
            )),
            x + 18.0,
            y + 35.0,
            escape(&cut(&words, 32)),
        );
    }
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
