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

/// The sizes of random policies.
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
    let order = prop_oneof![
        3 => Just("wfq"), 2 => Just("priority"), 2 => Just("rate_share"), 1 => Just("drr"), 1 => Just("fifo")
    ];
    let shared = vec(10_u64..=60, if shape.limits { 0..=2 } else { 0..=0 });
    let tenants = vec(spot(shape), 1..=shape.tenants.max(1));
    (order, tenants, shared)
        .prop_map(move |(order, tenants, shared)| write_policy(shape, order, &tenants, &shared))
}

/// A class or node with its place among its siblings.
#[derive(Clone, Debug)]
struct Spot {
    weight: u32,
    /// Below a `rate_share`, its rate in percent of what reaches that.
    rate: u64,
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
            3 => Just("wfq"), 2 => Just("priority"), 2 => Just("rate_share"), 1 => Just("drr"), 1 => Just("fifo"),
            1 => Just("lstf"), 1 => Just("edf")
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
    (1_u32..=9, 5_u64..=100, min, max, proptest::bool::weighted(0.3), tree)
        .prop_map(move |(weight, rate, min, max, limited, tree)| Spot {
            weight,
            rate,
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
    let room = Headroom { floor: link, cap: link, drain: link * 1_000, by_packets: false };
    let order = room.order(order);
    for (index, spot) in tenants.iter().enumerate() {
        let (envelope, room) = room.below(order, tenants, spot);
        let via = if limits.is_empty() { String::new() } else { format!(", via: [{}]", limits.join(", ")) };
        let file = format!("t{index}.yaml");
        let _ = writeln!(host, "  t{index}: {{port: memory, policy: {file}{envelope}{via}}}");
        files.push((file, tenant_file(spot, room)));
    }
    if !shared.is_empty() {
        host.push_str("limits:\n");
    }
    for (index, percent) in shared.iter().enumerate() {
        let rate = (link * percent / 100).max(1);
        let _ = writeln!(host, "  shared{index}: {{match: {{dst: 10.9.{index}.0/24}}, rate: {rate}Mbps}}");
    }
    let names = (0..tenants.len()).map(|index| format!("t{index}"));
    let _ = writeln!(host, "policy:\n  root: {{{order}: {}}}", room.listed(order, names, tenants));
    files.insert(0, ("policy.yaml".to_owned(), host));
    Policy { files }
}

/// The rates that a class may give to those below it.
#[derive(Clone, Copy)]
struct Headroom {
    /// Sum of the minima that may be promised, in Mbit/s.
    floor: u64,
    /// The largest `max`, in Mbit/s.
    cap: u64,
    /// The most that comes here in real time, in kbit/s.
    drain: u64,
    /// Whether an order above looks at packets.
    by_packets: bool,
}

impl Headroom {
    /// The order that a node may have here: strict rates do not hold below one that looks at packets.
    fn order<'o>(&self, order: &'o str) -> &'o str {
        if order == "rate_share" && self.by_packets { "wfq" } else { order }
    }

    /// The envelope, as text, of one child of a node of this order, and its room.
    fn below(&self, order: &str, siblings: &[Spot], spot: &Spot) -> (String, Self) {
        let drain = if order == "rate_share" { self.rate(siblings, spot) } else { self.drain };
        // Rates are promises of their own, of which those below give away no more than there is.
        let floor = (self.floor / siblings.len() as u64).min(drain / 1_000);
        let by_packets = self.by_packets || matches!(order, "fifo" | "lstf" | "edf");
        let room = Self { floor, drain, by_packets, ..*self };
        let min = spot.min.filter(|_| order != "rate_share").map_or(0, |percent| floor * percent / 100);
        let mut text = if min > 0 { format!(", min: {min}Mbps") } else { String::new() };
        let least = min.max(floor);
        let max = spot.max.map(|percent| (least + self.cap.saturating_sub(least) * percent / 100).max(1));
        if let Some(max) = max {
            let _ = write!(text, ", max: {max}Mbps");
        }
        (text, Self { cap: max.unwrap_or(self.cap), ..room })
    }

    /// The rate of one child, in kbit/s: all of them fit where another level of rates may follow, and need not elsewhere.
    fn rate(&self, siblings: &[Spot], spot: &Spot) -> u64 {
        let inner = |spot: &Spot| matches!(spot.tree, Tree::Node("rate_share", _));
        let whole =
            if siblings.iter().any(inner) { siblings.iter().map(|spot| spot.rate).sum() } else { 100 };
        (self.drain * spot.rate / whole).max(1)
    }

    /// Children as their parent lists them.
    fn listed(&self, order: &str, names: impl Iterator<Item = String>, children: &[Spot]) -> String {
        let child = |(name, spot): (String, &Spot)| match order {
            "wfq" | "drr" => format!("{name}: {}", spot.weight),
            "rate_share" => format!("{name}: {}kbps", self.rate(children, spot)),
            _ => name,
        };
        let list = names.zip(children).map(child).collect::<Vec<_>>().join(", ");
        if matches!(order, "wfq" | "drr" | "rate_share") {
            format!("{{{list}}}")
        } else {
            format!("[{list}]")
        }
    }
}

/// Writes classes, numbering them as they come.
struct Writer {
    classes: String,
    limits: String,
    leaves: u32,
    nodes: u32,
}

fn tenant_file(spot: &Spot, room: Headroom) -> String {
    let mut writer = Writer { classes: String::new(), limits: String::new(), leaves: 0, nodes: 0 };
    let body = writer.body(&spot.tree, "root", room);
    let limits = if writer.limits.is_empty() { String::new() } else { format!("limits:\n{}", writer.limits) };
    format!("{limits}policy:\n  root: {{{body}}}\n{}", writer.classes)
}

impl Writer {
    /// The text between a class's braces; its children are written before.
    fn body(&mut self, tree: &Tree, name: &str, room: Headroom) -> String {
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
                let order = room.order(order);
                let names: Vec<String> = children
                    .iter()
                    .map(|_| {
                        self.nodes += 1;
                        format!("c{}", self.nodes)
                    })
                    .collect();
                for (name, spot) in names.iter().zip(children) {
                    let (envelope, room) = room.below(order, children, spot);
                    self.class(name, spot, &envelope, room);
                }
                format!("{order}: {}", room.listed(order, names.into_iter(), children))
            }
        }
    }

    fn class(&mut self, name: &str, spot: &Spot, envelope: &str, room: Headroom) {
        let body = self.body(&spot.tree, name, room);
        let mut via = String::new();
        if spot.limited {
            let rate = (room.cap / 2).max(1);
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
