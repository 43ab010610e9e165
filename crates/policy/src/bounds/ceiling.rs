//! Ceilings: the most that a class, or a node with all below it, can send.
//!
//! Why: what siblings cannot take is left over for a class, whatever its weight (argument 3 of `bounds`).
//! From: token buckets, `max` and limits; SENIC's strict rates.
//! Not here: what is guaranteed (`bounds`).
//! Invariant: a ceiling is never below what the engine lets through.

use plimsoll_units::BitRate;

use crate::program::{Form, Limit, LimitId, Match, Node, NodeId, NodeKind, Program, Scope};

/// The most that a subtree can send in `t`: `rate * t + burst` bits.
#[derive(Clone, Copy)]
pub(super) struct Ceiling {
    pub rate: u128,
    pub burst: u128,
}

impl Ceiling {
    pub const NONE: Self = Self { rate: 0, burst: 0 };

    /// Two subtrees together, and the frame of the second that may just have begun.
    pub fn with(self, other: Self, frame: u128) -> Self {
        Self { rate: self.rate + other.rate, burst: self.burst + other.burst + frame }
    }
}

/// Bottom up: the least of a node's own limits and of its children's ceilings together.
pub(super) fn ceilings(program: &Program, frame: u128, idle: Option<NodeId>) -> Vec<Option<Ceiling>> {
    let bundles = bundles(program);
    let mut ceilings: Vec<Option<Ceiling>> = vec![None; program.nodes.len()];
    let own = whole_limits(program);
    for (index, node) in program.nodes.iter().enumerate().rev() {
        let limits = own[index].iter().map(|&id| {
            let limit = program.limit(id);
            let burst = u128::from(limit.burst.bits()).max(frame);
            let released = released(program, index, limit, bundles[index]);
            Ceiling { rate: bits_of(limit.rate), burst: burst + released * frame }
        });
        let below = (!node.children.is_empty())
            .then(|| {
                node.children.iter().try_fold(Ceiling { rate: 0, burst: 0 }, |sum, child| {
                    if idle == Some(*child) {
                        return Some(sum);
                    }
                    let child = ceilings[child.0 as usize]?;
                    Some(Ceiling { rate: sum.rate + child.rate, burst: sum.burst + child.burst })
                })
            })
            .flatten();
        let own_rate = strict_rate(program, frame, node);
        ceilings[index] = limits.chain(below).chain(own_rate).min_by_key(|ceiling| ceiling.rate);
    }
    ceilings
}

/// Packets that a limit of the node may have let go and that are not yet gone: none where the node itself opens and
/// closes, one of each bundle elsewhere.
fn released(program: &Program, index: usize, limit: &Limit, bundles: u128) -> u128 {
    let node = &program.nodes[index];
    let opens = matches!(limit.scope, Scope::Subtree(_)) && !is_ordered_by_packets(program, node.parent);
    match node.kind {
        _ if !opens => bundles,
        NodeKind::Class(_) => 1, // one bundle alone waits beside the tree
        _ => 0,
    }
}

/// Whether an order above looks at packets.
fn is_ordered_by_packets(program: &Program, parent: Option<NodeId>) -> bool {
    let by_packets = |id: NodeId| program.node(id).kind.looks_at_packets();
    parent.is_some_and(|parent| program.path(parent).any(by_packets))
}

/// The rate that a child of a `rate_share` can take.
fn strict_rate(program: &Program, frame: u128, node: &Node) -> Option<Ceiling> {
    let (parent, rate) = (node.parent?, node.rate?);
    let NodeKind::RateShare(form) = program.node(parent).kind else { return None };
    let strict = !is_ordered_by_packets(program, Some(parent));
    strict.then(|| Ceiling { rate: bits_of(rate), burst: slack_of(form) * frame })
}

/// Below each node, pairs of a class and a set of limits: each may have one packet released and not yet gone.
fn bundles(program: &Program) -> Vec<u128> {
    let mut matching = vec![0_u32; program.nodes.len()];
    for limit in &program.limits {
        if let Scope::Match { via, matches } = &limit.scope
            && *matches != Match::default()
        {
            via.iter().for_each(|node| matching[node.0 as usize] += 1);
        }
    }
    let mut above = vec![0_u32; program.nodes.len()];
    let mut bundles = vec![0_u128; program.nodes.len()];
    for (index, node) in program.nodes.iter().enumerate() {
        above[index] = matching[index] + node.parent.map_or(0, |parent| above[parent.0 as usize]);
        if matches!(node.kind, NodeKind::Class(_)) {
            bundles[index] = 1 << above[index].min(32);
        }
    }
    for (index, node) in program.nodes.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            bundles[parent.0 as usize] += bundles[index];
        }
    }
    bundles
}

/// The limits that take every packet of a node.
fn whole_limits(program: &Program) -> Vec<Vec<LimitId>> {
    let mut own = vec![Vec::new(); program.nodes.len()];
    for (index, limit) in (0_u32..).zip(&program.limits) {
        match &limit.scope {
            Scope::Subtree(node) => own[node.0 as usize].push(LimitId(index)),
            Scope::Match { matches, via } if *matches == Match::default() => {
                via.iter().for_each(|node| own[node.0 as usize].push(LimitId(index)));
            }
            Scope::Match { .. } | Scope::Peer(_) => {}
        }
    }
    own
}

/// Frames by which service strays from the rates.
pub(super) fn slack_of(form: Form) -> u128 {
    match form {
        Form::Exact => 8,
        Form::Grouped => 16,
    }
}

pub(super) fn bits_of(rate: BitRate) -> u128 {
    rate.get().into()
}
