//! The composed graph: every file's classes in one tree, every limit beside it.
//!
//! Why: the rules are about the whole policy, and its parts have several authors.
//! From: Loom §3, "Composing Sub-Policies".
//! Not here: building it (`compose`), judging it (`envelope`, `limits`, `matching`, `cost`), compiling it.
//! Invariant: a node's parent has a lower index; node 0 is the root.

use std::collections::{HashMap, HashSet};

use plimsoll_units::{BitRate, Bytes, Span};

use crate::config::Port;
use crate::program::{Form, Match, Metadata, RankId, RankProgram, TenantId};
use crate::read::syntax::{Flows, LimitEntry, MatchEntry, OrderKind, TenantEntry};
use plimsoll_document::{Located, Mark};

pub(crate) type NodeIx = usize;
pub(crate) type ScopeIx = usize;
pub(crate) type LimitIx = usize;
pub(crate) type TenantIx = usize;

#[derive(Default)]
pub(crate) struct Graph {
    pub nodes: Vec<Draft>,
    pub limits: Vec<LimitDraft>,
    /// One for each file; the operator's is first.
    pub scopes: Vec<Scope>,
    pub tenants: Vec<TenantDraft>,
    pub tenant_names: HashMap<String, TenantIx>,
    /// The order of flows in leaves that state none.
    pub flows: Flows,
    /// The programs of `program` nodes.
    pub ranks: Vec<RankProgram>,
}

/// A node of the tree.
pub(crate) struct Draft {
    /// Path from the root, or the ends of a long one.
    pub name: String,
    /// Where it is stated.
    pub at: Mark,
    pub parent: Option<NodeIx>,
    /// Levels from the root, both counted, where its file puts it: more than the nodes above it if that is too deep.
    pub depth: usize,
    pub kind: DraftKind,
    /// Its share below a `wfq` or `drr` node.
    pub weight: u32,
    /// Its rate below a `rate_share` node.
    pub rate: Option<Located<BitRate>>,
    /// How a `rate_share` node looks for the next child, if the file says so.
    pub form: Option<Located<Form>>,
    pub min: Option<Located<BitRate>>,
    pub max: Option<Located<BitRate>>,
    pub burst: Option<Located<Bytes>>,
    /// A leaf's own cap; a tenant's is the tenant's.
    pub descriptors: Option<u32>,
    pub via: Vec<LimitIx>,
    pub matches: Option<MatchEntry>,
    pub children: Vec<NodeIx>,
    /// A `program` node's, by its place in [`Graph::ranks`]; none if it could not be read.
    pub rank: Option<RankId>,
    pub tenant: Option<TenantIx>,
    /// The scope whose file states it.
    pub scope: ScopeIx,
    /// The scope whose root takes its place.
    pub sub: Option<ScopeIx>,
    /// No file states it: it is the class of a file's unmatched traffic.
    pub implicit: bool,
    /// It has no place, and is here so that its own mistakes are reported.
    pub loose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftKind {
    Order(OrderKind),
    Leaf { flows: Flows, tag: Span },
}

/// One file's part of the graph.
pub(crate) struct Scope {
    /// Where a message about the file as a whole points.
    pub at: Mark,
    /// The tenant that it belongs to; `None` for the operator.
    pub tenant: Option<TenantIx>,
    /// The node whose place its root has.
    pub root: NodeIx,
    /// The scope that names this file.
    pub outer: Option<ScopeIx>,
    /// Its leaves in the order of the file (which decides which matches first).
    pub leaves: Vec<NodeIx>,
    /// By the name in the file.
    pub limits: HashMap<String, LimitIx>,
    /// By the name in the file; reachable classes only.
    pub classes: HashMap<String, NodeIx>,
    /// Every class that the file states, reachable or not.
    pub stated: HashSet<String>,
    /// The leaf of what no other leaf's match takes.
    pub default: Option<NodeIx>,
}

pub(crate) struct LimitDraft {
    /// Scoped name.
    pub name: String,
    pub entry: LimitEntry,
    pub scope: ScopeIx,
    /// Nodes that send through it.
    pub via: Vec<NodeIx>,
    /// The tenants that its match names.
    pub tenants: Vec<TenantIx>,
    /// Limits around it.
    pub outer: Vec<LimitIx>,
    /// Another limit of the file has the name already.
    pub again: bool,
}

pub(crate) struct TenantDraft {
    pub name: String,
    pub at: Mark,
    /// Its place in the tree, if it has one.
    pub node: Option<NodeIx>,
    /// Operator's classes that match it by name.
    pub matched_by: Vec<NodeIx>,
    /// What its port and the operator state about its packets.
    pub known: Known,
}

/// The facts about one tenant's packets that are not in their headers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    /// The control group that the operator states.
    pub cgroup: Option<u64>,
    /// The user that the operator states.
    pub user: Option<u32>,
    /// Its port is a vNIC: the client may say what the operator does not state.
    pub from_client: bool,
    /// Its port is in memory, as that of each tenant of a scenario is.
    pub in_memory: bool,
}

impl Known {
    pub fn of(tenant: &TenantEntry) -> Self {
        let port = tenant.port.as_ref().map(|port| &port.value);
        Self {
            cgroup: tenant.cgroup.map(|found| found.value),
            user: tenant.user.map(|found| found.value),
            // A port that could not be read may have been a vNIC: it has its own error, and no other follows from it.
            from_client: matches!(port, None | Some(Port::Vnic(_))),
            in_memory: matches!(port, Some(Port::Memory)),
        }
    }

    /// The metadata that the operator states, for the program.
    pub fn stated(self) -> Metadata {
        Metadata { cgroup: self.cgroup, user: self.user, ..Metadata::default() }
    }
}

/// A rule in the making.
pub(crate) struct RuleDraft {
    pub matches: Match,
    pub class: NodeIx,
    /// The place to which a message about it points; `None` for rules that no file states.
    pub at: Option<Mark>,
}

impl Graph {
    /// From `node` to the root, both included.
    pub fn path(&self, node: NodeIx) -> impl Iterator<Item = NodeIx> + '_ {
        std::iter::successors(Some(node), |&node| self.nodes[node].parent)
    }

    pub fn tenant_named(&self, name: &str) -> Option<TenantIx> {
        self.tenant_names.get(name).copied()
    }
}

impl Draft {
    /// A leaf of which nothing is stated but its name.
    pub(super) fn leaf(name: String, at: Mark, scope: ScopeIx) -> Self {
        Self {
            name,
            at,
            parent: None,
            depth: 1,
            kind: DraftKind::Leaf { flows: Flows::Fifo, tag: Span::ZERO },
            weight: 1,
            rate: None,
            form: None,
            min: None,
            max: None,
            burst: None,
            descriptors: None,
            via: Vec::new(),
            matches: None,
            children: Vec::new(),
            rank: None,
            tenant: None,
            scope,
            sub: None,
            implicit: false,
            loose: false,
        }
    }

    /// Whether it holds flow queues.
    pub fn is_leaf(&self) -> bool {
        matches!(self.kind, DraftKind::Leaf { .. })
    }
}

impl Scope {
    pub fn limit(&self, name: &str) -> Option<LimitIx> {
        self.limits.get(name).copied()
    }

    pub fn class(&self, name: &str) -> Option<NodeIx> {
        self.classes.get(name).copied()
    }
}

/// A name below a node: `tenants/shop/web`; children of the root have no prefix.
pub(super) fn scoped(parent: &str, name: &str) -> String {
    if parent == "root" { name.to_owned() } else { format!("{parent}/{name}") }
}

pub(crate) fn tenant_id(index: TenantIx) -> TenantId {
    TenantId(u32::try_from(index).unwrap_or(u32::MAX))
}
