//! The policy as the coordinator fills it: vertices with weights, minima and maxima, members as leaves.
//!
//! Not here: rates (`fill`), and which thread has which part (`parts`).
//! Invariant: a parent's index is lower than its children's; the policy's nodes come first, under their own indices.

use plimsoll_policy::{NodeId, NodeKind, Program, Unsupported};
use plimsoll_units::BitRate;

/// A node of the policy, or a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vertex {
    pub(super) parent: u32,
    /// Place among its siblings, in the policy's order.
    pub(super) place: u32,
    pub(super) by_priority: bool,
    pub(super) weight: u64,
    /// Bits per second.
    pub(super) min: u64,
    /// Bits per second; [`NO_MAX`] without one.
    pub(super) max: u64,
}

pub(super) const NO_MAX: u64 = u64::MAX;

/// The vertices of a policy.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) vertices: Vec<Vertex>,
    /// How many of them are nodes of the policy.
    pub(super) nodes: usize,
}

/// The largest factor by which weights grow, so that a part of a weight is a whole number.
const FINEST: u64 = 1_024;

/// The most that the weights of siblings may add up to: beyond it virtual time would lose precision.
const MOST_WEIGHT: u64 = 1 << 20;

impl Tree {
    pub(super) fn new(program: &Program, members: usize) -> Self {
        let mut vertices: Vec<Vertex> = program.nodes.iter().map(|node| vertex(program, node)).collect();
        for node in &program.nodes {
            for (place, child) in (0..).zip(&node.children) {
                vertices[child.0 as usize].place = place;
            }
        }
        vertices.reserve_exact(members);
        Self { nodes: vertices.len(), vertices }
    }

    /// Adds a member of a class, and returns its index.
    pub(super) fn add_member(&mut self, class: NodeId) -> u32 {
        let index = self.vertices.len() as u32;
        let parent = class.0;
        self.vertices.push(Vertex {
            parent,
            place: index,
            by_priority: false,
            weight: 1,
            min: 0,
            max: NO_MAX,
        });
        index
    }

    /// From a vertex to the root, both included.
    pub(super) fn path(&self, from: u32) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(Some(from), |&at| (at > 0).then(|| self.vertices[at as usize].parent))
    }
}

fn vertex(program: &Program, node: &plimsoll_policy::Node) -> Vertex {
    let rate = node.rate.map_or(NO_MAX, BitRate::get);
    let max = node.max.map_or(NO_MAX, |limit| program.limit(limit).rate.get()).min(rate);
    Vertex {
        parent: node.parent.map_or(0, |parent| parent.0),
        place: 0,
        by_priority: node.kind == NodeKind::Priority,
        weight: node.rate.map_or(u64::from(node.weight.max(1)), |rate| rate.get().div_ceil(1_000)),
        min: node.min.map_or(0, BitRate::get),
        max,
    }
}

/// The factor of the weights of each node's children in the engines' program; 1 where no child spans threads.
fn factors(program: &Program, spanning: &[bool]) -> Vec<u64> {
    let factor = |node: &plimsoll_policy::Node| {
        let weights = node.children.iter().map(|child| u64::from(program.node(*child).weight.max(1)));
        let splits = node.children.iter().any(|child| spanning[child.0 as usize]);
        let fair = matches!(node.kind, NodeKind::Wfq | NodeKind::Drr);
        if splits && fair { (MOST_WEIGHT / weights.sum::<u64>().max(1)).clamp(1, FINEST) } else { 1 }
    };
    program.nodes.iter().map(factor).collect()
}

/// The program for the engine of each thread. Weights are larger by a factor, so that a thread's part of a weight is a whole
/// number; turns (`drr`) among nodes that are split become weighted fair queueing, whose shares are the same.
///
/// # Errors
/// The first thing that several threads do not keep.
pub fn for_threads(program: &Program) -> Result<Program, Unsupported> {
    if let Some(unsupported) = program.unsupported_by_threads() {
        return Err(unsupported);
    }
    let spanning = program.spanning();
    let factors = factors(program, &spanning);
    let mut made = program.clone();
    for (id, node) in program.nodes.iter().enumerate() {
        let splits = node.children.iter().any(|child| spanning[child.0 as usize]);
        if splits && node.kind == NodeKind::Drr {
            made.nodes[id].kind = NodeKind::Wfq;
        }
        for child in &node.children {
            let weight = u64::from(node_weight(program, *child)) * factors[id];
            made.nodes[child.0 as usize].weight = u32::try_from(weight).unwrap_or(u32::MAX);
        }
    }
    Ok(made)
}

fn node_weight(program: &Program, id: NodeId) -> u32 {
    program.node(id).weight.max(1)
}
