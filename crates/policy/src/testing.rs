//! Random legal policies, for property tests of this crate and of those that run policies.
//!
//! Why: a rule that holds for the examples may fail for the next policy.
//! From: proptest; whatever it makes it can also shrink.
//! Not here: illegal policies (`tests/golden` has one for each rule).
//! Invariant: every policy made here passes `check`.

use std::fmt::Write as _;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::check::{Checked, check_with};

/// A policy as files: name and text, the operator's first.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Name and text of each file.
    pub files: Vec<(String, String)>,
}

impl Policy {
    /// Checks it; panics with the messages if it is not legal after all.
    #[must_use]
    pub fn check(&self) -> Checked {
        let mut load = |name: &str| {
            let found = self.files.iter().find(|(known, _)| known == name);
            found.map(|(_, text)| text.clone()).ok_or_else(|| "no such file".to_owned())
        };
        match check_with(&self.files[0].0, &mut load) {
            Ok(checked) => checked,
            Err(errors) => panic!("{}\n{:#?}", errors.render(false), self.files),
        }
    }
}

/// What to draw from.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Rate of the uplink in Mbit/s.
    pub link_mbps: u64,
    /// Tenants at most.
    pub tenants: usize,
    /// Levels below a tenant at most.
    pub depth: u32,
    /// Whether there are limits and maxima.
    pub limits: bool,
    /// Whether there are minima.
    pub minima: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { link_mbps: 10_000, tenants: 4, depth: 3, limits: true, minima: true }
    }
}

/// Legal policies of the usual shape.
pub fn policies() -> impl Strategy<Value = Policy> {
    policies_like(Shape::default())
}

/// Legal policies of a shape.
pub fn policies_like(shape: Shape) -> impl Strategy<Value = Policy> {
    let order = prop_oneof![3 => Just("wfq"), 2 => Just("priority"), 1 => Just("drr"), 1 => Just("fifo")];
    let shared = vec(10_u64..=60, if shape.limits { 0..=2 } else { 0..=0 });
    let tenants = vec(spot(shape), 1..=shape.tenants.max(1));
    (order, tenants, shared)
        .prop_map(move |(order, tenants, shared)| write_policy(shape, order, &tenants, &shared))
}

/// A class or node with its place among its siblings.
#[derive(Clone, Debug)]
struct Spot {
    weight: u32,
    /// Share, in percent, of what could be promised.
    min: Option<u64>,
    /// Share, in percent, of the room above `min`.
    max: Option<u64>,
    /// Whether a limit by destination holds it.
    limited: bool,
    tree: Tree,
}

#[derive(Clone, Debug)]
enum Tree {
    Leaf(&'static str),
    Node(&'static str, Vec<Spot>),
}

fn spot(shape: Shape) -> BoxedStrategy<Spot> {
    let flows = prop_oneof![3 => Just("fifo"), 1 => Just("drr"), 1 => Just("lstf"), 1 => Just("edf")];
    let leaf = place(shape, flows.prop_map(Tree::Leaf).boxed());
    leaf.prop_recursive(shape.depth, 16, 4, move |inner| {
        let order = prop_oneof![
            3 => Just("wfq"), 2 => Just("priority"), 1 => Just("drr"), 1 => Just("fifo"), 1 => Just("lstf"),
            1 => Just("edf")
        ];
        place(
            shape,
            (order, vec(inner, 1..=4)).prop_map(|(order, children)| Tree::Node(order, children)).boxed(),
        )
    })
    .boxed()
}

fn place(shape: Shape, tree: BoxedStrategy<Tree>) -> BoxedStrategy<Spot> {
    let min = option::of(if shape.minima { 1..=100_u64 } else { 1..=1_u64 });
    let max = option::weighted(0.3, 5..=100_u64);
    (1_u32..=9, min, max, proptest::bool::weighted(0.3), tree)
        .prop_map(move |(weight, min, max, limited, tree)| Spot {
            weight,
            min: min.filter(|_| shape.minima),
            max: max.filter(|_| shape.limits),
            limited: limited && shape.limits,
            tree,
        })
        .boxed()
}

fn write_policy(shape: Shape, order: &str, tenants: &[Spot], shared: &[u64]) -> Policy {
    let link = shape.link_mbps;
    let mut host =
        format!("uplink: {{port: memory, rate: {link}Mbps}}\nengine: {{max_depth: 64}}\ntenants:\n");
    let mut files = Vec::new();
    let limits: Vec<String> = (0..shared.len()).map(|index| format!("shared{index}")).collect();
    for (index, spot) in tenants.iter().enumerate() {
        let floor = link / tenants.len() as u64;
        let (envelope, cap, promise) = envelope(spot, floor, link);
        let via = if limits.is_empty() { String::new() } else { format!(", via: [{}]", limits.join(", ")) };
        let file = format!("t{index}.yaml");
        let _ = writeln!(host, "  t{index}: {{port: memory, policy: {file}{envelope}{via}}}");
        files.push((file, tenant_file(spot, promise, cap)));
    }
    if !shared.is_empty() {
        host.push_str("limits:\n");
    }
    for (index, percent) in shared.iter().enumerate() {
        let rate = (link * percent / 100).max(1);
        let _ = writeln!(host, "  shared{index}: {{match: {{dst: 10.9.{index}.0/24}}, rate: {rate}Mbps}}");
    }
    let names = (0..tenants.len()).map(|index| format!("t{index}"));
    let _ = writeln!(host, "policy:\n  root: {{{order}: {}}}", listed(order, names.zip(tenants)));
    files.insert(0, ("policy.yaml".to_owned(), host));
    Policy { files }
}

/// `min` and `max` as text, the room for maxima below, and what may be promised below.
fn envelope(spot: &Spot, floor: u64, cap: u64) -> (String, u64, u64) {
    let mut text = String::new();
    let min = spot.min.map_or(0, |percent| floor * percent / 100);
    if min > 0 {
        let _ = write!(text, ", min: {min}Mbps");
    }
    let max = spot.max.map(|percent| (min.max(floor) + (cap - min.max(floor)) * percent / 100).max(1));
    if let Some(max) = max {
        let _ = write!(text, ", max: {max}Mbps");
    }
    (text, max.unwrap_or(cap), floor)
}

/// Children as their parent lists them.
fn listed<'a>(order: &str, children: impl Iterator<Item = (String, &'a Spot)>) -> String {
    let weighed = matches!(order, "wfq" | "drr");
    let child =
        |(name, spot): (String, &Spot)| if weighed { format!("{name}: {}", spot.weight) } else { name };
    let children = children.map(child).collect::<Vec<_>>().join(", ");
    if weighed { format!("{{{children}}}") } else { format!("[{children}]") }
}

/// Writes classes, numbering them as they come.
struct Writer {
    classes: String,
    limits: String,
    leaves: u32,
    nodes: u32,
}

fn tenant_file(spot: &Spot, floor: u64, cap: u64) -> String {
    let mut writer = Writer { classes: String::new(), limits: String::new(), leaves: 0, nodes: 0 };
    let body = writer.body(&spot.tree, "root", floor, cap);
    let limits = if writer.limits.is_empty() { String::new() } else { format!("limits:\n{}", writer.limits) };
    format!("{limits}policy:\n  root: {{{body}}}\n{}", writer.classes)
}

impl Writer {
    /// What stands between a class's braces, its children written before.
    fn body(&mut self, tree: &Tree, name: &str, floor: u64, cap: u64) -> String {
        match tree {
            Tree::Leaf(flows) if name == "root" => format!("flows: {flows}"),
            Tree::Leaf(flows) => {
                self.leaves += 1;
                let port = 1_000 + self.leaves;
                // The first leaf has no match: it gets what no other takes.
                let matches =
                    if self.leaves == 1 { String::new() } else { format!(", match: {{dst_port: {port}}}") };
                format!("flows: {flows}{matches}")
            }
            Tree::Node(order, children) => {
                let share = floor / children.len() as u64;
                let names: Vec<String> = children
                    .iter()
                    .map(|_| {
                        self.nodes += 1;
                        format!("c{}", self.nodes)
                    })
                    .collect();
                for (name, spot) in names.iter().zip(children) {
                    self.class(name, spot, share, cap);
                }
                format!("{order}: {}", listed(order, names.into_iter().zip(children)))
            }
        }
    }

    fn class(&mut self, name: &str, spot: &Spot, floor: u64, cap: u64) {
        let (envelope, cap, floor) = envelope(spot, floor, cap);
        let body = self.body(&spot.tree, name, floor, cap);
        let mut via = String::new();
        if spot.limited {
            let rate = (cap / 2).max(1);
            let _ = writeln!(self.limits, "  l-{name}: {{match: {{dst: 10.8.0.0/16}}, rate: {rate}Mbps}}");
            let _ = write!(via, ", via: l-{name}");
        }
        let _ = writeln!(self.classes, "  {name}: {{{body}{envelope}{via}}}");
    }
}

/// Packets that the rules of such policies tell apart.
pub fn fields(tenants: u32) -> impl Strategy<Value = crate::Fields> {
    let tenant = option::weighted(0.95, 0..tenants.max(1)).prop_map(|tenant| tenant.map(crate::TenantId));
    let dst =
        prop_oneof![Just([10, 9, 0, 1]), Just([10, 9, 1, 1]), Just([10, 8, 3, 1]), Just([192, 0, 2, 1])];
    (tenant, dst, option::of(1_000_u16..=1_020)).prop_map(|(tenant, dst, port)| crate::Fields {
        tenant,
        addresses: Some(([10, 0, 0, 1].into(), dst.into())),
        protocol: Some(6),
        ports: port.map(|port| (40_000, port)),
        ..crate::Fields::default()
    })
}
