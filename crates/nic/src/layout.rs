//! Where the parts of a policy are in the engine's tables.
//!
//! Why: an install, a new weight or a new rate finds by name what the packet path knows by index.
//! Not here: the tables themselves (`egress`), and filling them (`install`).

use std::collections::HashMap;

use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Placement, Program};

use crate::ids::{BundleId, TreeId};

/// The indices of a policy's parts in the engine's tables.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: TreeId,
    pub(crate) largest: u64,
    /// Bytes of a flow queue's turn, in classes that take turns.
    pub(crate) quantum: i32,
    /// Whether anything in the policy orders by deadline, or by a program's rank.
    pub(crate) deadlines: bool,
    /// Classes that have bundles: their nodes of the main tree.
    pub(crate) classes: HashMap<NodeId, TreeId>,
    pub(crate) bundles: HashMap<Placement, BundleId>,
    pub(crate) copies: HashMap<(LimitId, NodeId), TreeId>,
    /// Copies of each node of the policy behind limits.
    pub(crate) copied: HashMap<NodeId, Vec<TreeId>>,
}

impl Layout {
    pub(crate) fn new(program: &Program, largest: u64) -> Self {
        Self {
            root: TreeId(0),
            largest,
            quantum: i32::try_from(largest).unwrap_or(i32::MAX),
            deadlines: program.nodes.iter().any(|node| by_deadline(node.kind)),
            classes: HashMap::new(),
            bundles: HashMap::new(),
            copies: HashMap::new(),
            copied: HashMap::new(),
        }
    }

    /// Copies of a node behind limits.
    pub(crate) fn copies_of(&self, node: NodeId) -> &[TreeId] {
        self.copied.get(&node).map_or(&[], Vec::as_slice)
    }
}

fn by_deadline(kind: NodeKind) -> bool {
    let of_flows = |order| matches!(order, FlowOrder::Lstf(_) | FlowOrder::Edf(_) | FlowOrder::Ranked(_));
    match kind {
        NodeKind::Lstf | NodeKind::Edf | NodeKind::Program(_) => true,
        NodeKind::Class(order) => of_flows(order),
        _ => false,
    }
}
