//! What the engine keeps in memory for a policy, to the byte of its tables.
//!
//! Why: how many classes a host carries is a matter of bytes; an operator should know before the traffic does.
//! From: SENIC §4.2 and Table 2 (30 B a class in its format, 40 B and 10 kB in all for QFQ), which stand beside ours.
//! Not here: allocators' rounding; what the policy itself and the daemon keep.
//! Invariant: a test compares the sum with what an engine really allocates.

use core::mem::size_of;

use plimsoll_policy::{NodeId, NodeKind, Placement, Program};
use plimsoll_queues::Wheel;

use crate::bundle::Bundle;
use crate::host::{FLOW_BYTES, Refusal, SLOT_BYTES};
use crate::install::Config;
use crate::limit::Limit;
use crate::order::{fixed_bytes, place_bytes};
use crate::stats::Completion;
use crate::tree::NODE_BYTES;

/// Bytes of an engine, idle, with one flow queue for each class.
#[derive(Clone, Debug)]
pub struct Footprint {
    /// Classes of the policy.
    pub classes: u64,
    /// What one class takes on average, beside its ring, by what it is for.
    pub class: Vec<Part>,
    /// The sum of these.
    pub class_bytes: u64,
    /// The ring of one flow queue.
    pub ring_bytes: u64,
    /// What does not grow with classes, by what it is for.
    pub global: Vec<Part>,
    /// The sum of these.
    pub global_bytes: u64,
    /// Classes, their rings, and the rest.
    pub total_bytes: u64,
    /// As much scheduler state in SENIC's token-bucket format.
    pub senic_bytes: u64,
    /// As much in SENIC's QFQ format.
    pub senic_qfq_bytes: u64,
    /// What queues on a NIC would take instead of host memory, at ten largest frames a class (SENIC §2).
    pub avoided_bytes: u64,
}

/// Bytes for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What they hold.
    pub what: &'static str,
    /// How many.
    pub bytes: u64,
}

/// SENIC's class record (Table 2), and what its QFQ keeps for a class and in all (§4.2).
const SENIC_CLASS: u64 = 30;
const SENIC_QFQ_CLASS: u64 = 40;
const SENIC_QFQ_GLOBAL: u64 = 10_000;
/// SENIC §2.1: 15 kB of packets a queue, which is ten frames of 1,500 B.
const FRAMES_PER_QUEUE: u64 = 10;

/// What an engine of this configuration keeps for a policy.
#[must_use]
pub fn footprint(program: &Program, config: &Config) -> Footprint {
    let is_class = |node: &plimsoll_policy::Node| matches!(node.kind, NodeKind::Class(_));
    let classes = program.nodes.iter().filter(|node| is_class(node)).count() as u64;
    let each = classes.max(1);
    let places: u64 = (0..)
        .map(NodeId)
        .zip(&program.nodes)
        .filter(|(_, node)| is_class(node))
        .map(|(_, node)| node.parent.map_or(0, |parent| child_bytes(program, parent)))
        .sum();
    let class = vec![
        part("node of the tree", NODE_BYTES),
        Part { what: "place in its parent's order", bytes: places / each },
        part("bundle of its flow queues", size_of::<Bundle>()),
        part("flow queue", FLOW_BYTES),
        part("where it is, what was refused", places_bytes() + Refusal::COUNT * size_of::<u64>()),
    ];
    let inner = program.nodes.iter().filter(|node| !is_class(node)).count();
    let orders: usize = program.nodes.iter().map(|node| fixed_bytes(node.kind, node.children.len())).sum();
    let limits = program.limits.len();
    let global = vec![
        part("inner nodes and their orders", inner * NODE_BYTES + orders),
        part("wheel", Wheel::bytes(crate::install::WHEEL_SLOTS)),
        part("limits", limits * (size_of::<Limit>() + Wheel::ENTRY_BYTES + size_of::<u32>())),
        part("completions", config.descriptors as usize * size_of::<Completion>()),
    ];
    let sum = |parts: &[Part]| parts.iter().map(|part| part.bytes).sum::<u64>();
    let (class_bytes, global_bytes) = (sum(&class), sum(&global));
    let ring_bytes = SLOT_BYTES as u64 * u64::from(config.ring);
    Footprint {
        classes,
        total_bytes: classes * (class_bytes + ring_bytes) + global_bytes,
        class,
        class_bytes,
        ring_bytes,
        global,
        global_bytes,
        senic_bytes: classes * SENIC_CLASS,
        senic_qfq_bytes: classes * SENIC_QFQ_CLASS + SENIC_QFQ_GLOBAL,
        avoided_bytes: classes * FRAMES_PER_QUEUE * program.max_frame.as_u64(),
    }
}

fn part(what: &'static str, bytes: usize) -> Part {
    Part { what, bytes: bytes as u64 }
}

/// Where a class stands in the tree, its list of bundles (of four at least), and its entry in the table of placements,
/// which doubles as it grows.
fn places_bytes() -> usize {
    let entry = size_of::<(Placement, u32)>() + 1;
    size_of::<Vec<u32>>() + 5 * size_of::<u32>() + 2 * entry
}

/// What a node keeps of one child: its name, and its place in the order.
fn child_bytes(program: &Program, parent: NodeId) -> u64 {
    let node = program.node(parent);
    (size_of::<u32>() + place_bytes(node.kind, node.children.len())) as u64
}
