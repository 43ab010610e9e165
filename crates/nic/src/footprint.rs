//! The engine's memory for a policy, to the byte of its tables.
//!
//! Why: how many classes a host carries is a matter of bytes; an operator should know before the traffic does.
//! From: SENIC §4.2 (what a class costs), for this engine's own tables.
//! Not here: other schedulers' formats (`plimsoll check` compares with them); allocators' rounding; what the daemon keeps;
//! bundles, for classes with several flow queues or limits.
//! Invariant: a test compares the sum with what an engine really allocates.

use core::mem::size_of;

use plimsoll_policy::{Match, Node, NodeId, NodeKind, Program};
use plimsoll_queues::Wheel;

use crate::config::Config;
use crate::host::{FLOW_BYTES, NAME_BYTES, RECORD_BYTES, SLOT_BYTES};
use crate::limit::Limit;
use crate::order::{fixed_bytes, place_bytes};
use crate::ranks::Ranks;
use crate::refusal::Refusal;
use crate::stats::Completion;
use crate::tree::{CHILD_BYTES, GATE_BYTES, NODE_BYTES, SEAT_BYTES};

/// Bytes of an engine, idle, with one flow queue for each class.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// Classes of the policy; what lies below one rate is one class, of several queues perhaps (SENIC §5.2).
    pub classes: u64,
    /// Queues of all classes: leaves of the tree.
    pub queues: u64,
    /// Scheduler state of an idle class on average, without its ring, by purpose.
    pub class: Vec<Part>,
    /// The sum of these.
    pub class_bytes: u64,
    /// The ring of one flow queue, which it has while it holds descriptors.
    pub ring_bytes: u64,
    /// Other memory of a class, which no scheduling decision reads, by purpose.
    pub beside: Vec<Part>,
    /// The sum of these.
    pub beside_bytes: u64,
    /// Memory that does not grow with the number of classes, by purpose.
    pub global: Vec<Part>,
    /// The sum of these.
    pub global_bytes: u64,
    /// Classes, what is beside them, and the rest.
    pub total_bytes: u64,
}

/// Bytes for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The purpose.
    pub what: &'static str,
    /// The number of bytes.
    pub bytes: u64,
}

/// Adds up the memory of an engine with this configuration for a policy.
#[must_use]
pub fn footprint(program: &Program, config: &Config) -> Footprint {
    let program = &program.carried_out();
    let roles = roles(program);
    let count = |wanted: &[Role]| roles.iter().filter(|role| wanted.contains(role)).count() as u64;
    let (classes, queues) = (count(&[Role::Class, Role::Divided]), count(&[Role::Class, Role::Queue]));
    // Bytes for all classes together.
    let sum_of = |wanted: &[Role], bytes: &dyn Fn(&Node) -> u64| -> u64 {
        program
            .nodes
            .iter()
            .zip(&roles)
            .filter(|(_, role)| wanted.contains(role))
            .map(|(node, _)| bytes(node))
            .sum()
    };
    let place = |node: &Node| node.parent.map_or(0, |parent| child_bytes(program, parent));
    let order = |node: &Node| (NODE_BYTES + fixed_bytes(node.kind, node.children.len())) as u64;
    let below = sum_of(&[Role::Queue, Role::Inside], &place) + sum_of(&[Role::Divided, Role::Inside], &order);
    let mut class = vec![
        Part { what: "where it hangs in the tree", bytes: queues * SEAT_BYTES as u64 },
        Part {
            what: "place and rate in its parent's order",
            bytes: sum_of(&[Role::Class, Role::Divided], &place),
        },
        Part { what: "flow queue that holds nothing", bytes: queues * NAME_BYTES as u64 },
    ];
    if crate::install::has_fair_class(program) {
        let bytes = queues * FLOW_BYTES as u64;
        class.push(Part { what: "what CoDel and turns remember of a flow", bytes });
    }
    if queues > classes {
        class.push(Part { what: "the order among its queues", bytes: below });
    }
    let mut beside = vec![
        Part { what: "counters", bytes: queues * ((Refusal::COUNT + 2) * size_of::<u64>()) as u64 },
        Part { what: "the policy: names, rates, matches", bytes: policy_bytes(program) },
    ];
    let rank_bytes = if program.ranks.is_empty() { 0 } else { size_of::<u64>() };
    let ring_bytes = (SLOT_BYTES + rank_bytes) as u64 * u64::from(config.ring);
    let gates = program.nodes.iter().filter(|node| node.max.is_some() && !node.children.is_empty()).count();
    let (limits, records) = (program.limits.len(), queues.min(config.descriptors.into()));
    let mut global = vec![
        Part { what: "inner nodes and their orders", bytes: sum_of(&[Role::Above], &order) },
        Part { what: "records of flow queues with packets", bytes: records * RECORD_AND_NUMBER },
        Part { what: "their rings", bytes: records * ring_bytes },
        part("wheel", Wheel::bytes(crate::install::WHEEL_SLOTS)),
        part(
            "limits",
            limits * (size_of::<Limit>() + Wheel::ENTRY_BYTES + size_of::<u32>()) + gates * GATE_BYTES,
        ),
        part("completions", config.descriptors as usize * size_of::<Completion>()),
    ];
    if !program.ranks.is_empty() {
        global.push(part("rank programs", Ranks::new(program).bytes()));
    }
    let sum = |parts: &[Part]| parts.iter().map(|part| part.bytes).sum::<u64>();
    let (total_bytes, global_bytes) = (sum(&class) + sum(&beside) + sum(&global), sum(&global));
    // From here on for one class, on average.
    class.iter_mut().chain(&mut beside).for_each(|part| part.bytes /= classes.max(1));
    let (class_bytes, beside_bytes) = (sum(&class), sum(&beside));
    Footprint {
        classes,
        queues,
        total_bytes,
        class,
        class_bytes,
        ring_bytes,
        beside,
        beside_bytes,
        global,
        global_bytes,
    }
}

/// A node's part in the count of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A node that orders classes.
    Above,
    /// A class of one queue.
    Class,
    /// A class of several queues: it has the rate, which all below it share.
    Divided,
    /// A node between a divided class and its queues.
    Inside,
    /// A queue of a divided class.
    Queue,
}

fn roles(program: &Program) -> Vec<Role> {
    // Whether a node further down has a rate: parents come before children, so backwards is upwards.
    let mut above_rates = vec![false; program.nodes.len()];
    for (index, node) in program.nodes.iter().enumerate().rev() {
        if let Some(NodeId(parent)) = node.parent {
            above_rates[parent as usize] |= above_rates[index] || node.rate.is_some();
        }
    }
    let mut roles: Vec<Role> = Vec::with_capacity(program.nodes.len());
    for (index, node) in program.nodes.iter().enumerate() {
        let parent = node.parent.map(|NodeId(parent)| roles[parent as usize]);
        let leaf = matches!(node.kind, NodeKind::Class(_));
        roles.push(match (parent, leaf) {
            (Some(Role::Divided | Role::Inside), true) => Role::Queue,
            (Some(Role::Divided | Role::Inside), false) => Role::Inside,
            (_, true) => Role::Class,
            (_, false) if node.rate.is_some() && !above_rates[index] => Role::Divided,
            (_, false) => Role::Above,
        });
    }
    roles
}

/// A record, and its place in the list of spare records.
const RECORD_AND_NUMBER: u64 = (RECORD_BYTES + size_of::<u32>()) as u64;

/// The compiled policy, of which the engine keeps a copy.
fn policy_bytes(program: &Program) -> u64 {
    let node = |node: &Node| size_of_val(node) + node.name.len() + node.children.len() * size_of::<NodeId>();
    let rule = |rule: &plimsoll_policy::Rule| size_of_val(rule) + matches_bytes(&rule.matches);
    let nodes: usize = program.nodes.iter().map(node).sum();
    let rules: usize = program.rules.iter().map(rule).sum();
    let limits: usize = program.limits.iter().map(|limit| size_of_val(limit) + limit.name.len()).sum();
    let tenants: usize = program.tenants.iter().map(|tenant| size_of_val(tenant) + tenant.name.len()).sum();
    (nodes + rules + limits + tenants) as u64
}

fn matches_bytes(matches: &Match) -> usize {
    size_of_val(&*matches.src)
        + size_of_val(&*matches.dst)
        + size_of_val(&*matches.protocol)
        + size_of_val(&*matches.src_port)
        + size_of_val(&*matches.dst_port)
        + size_of_val(&*matches.dscp)
        + size_of_val(&*matches.vlan)
}

fn part(what: &'static str, bytes: usize) -> Part {
    Part { what, bytes: bytes as u64 }
}

/// Bytes that a node keeps for one child: its index, and its place in the order.
fn child_bytes(program: &Program, parent: NodeId) -> u64 {
    let node = program.node(parent);
    (CHILD_BYTES + place_bytes(node.kind, node.children.len())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(shop: &str) -> Footprint {
        let text = format!(
            "{{uplink: {{port: memory, rate: 8Gbps}}, tenants: {{shop: {{port: memory{shop}}}, batch: {{port: memory}}}}, \
             policy: {{root: {{priority: [rates, rest]}}, rates: {{rate_share: {{shop: 3Gbps, batch: 1Gbps}}}}, rest: {{}}}}}}"
        );
        let checked = plimsoll_policy::check_str("p.yaml", &text);
        let program = checked.unwrap_or_else(|errors| panic!("{}", errors.render(false))).program;
        footprint(&program, &Config::default())
    }

    #[test]
    fn a_class_with_three_queues_is_one_class() {
        let whole = said("");
        assert_eq!((whole.classes, whole.queues), (3, 3));
        assert!(whole.class.iter().all(|part| part.what != "the order among its queues"));
        let divided = said(", queues: {voice: {match: {dscp: ef}}, web: {match: {dst_port: 443}}, rest: {}}");
        assert_eq!((divided.classes, divided.queues), (3, 5));
        let more = divided.total_bytes - whole.total_bytes;
        let ring_and_record = divided.ring_bytes + RECORD_AND_NUMBER;
        assert!(
            more > 2 * ring_and_record && more < 2 * (ring_and_record + 1_000),
            "{more} B for two more queues"
        );
    }
}
