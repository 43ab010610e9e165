//! Minima of sub-policies: whether their place is guaranteed what their classes are promised.
//!
//! Why: a sub-policy's author states minima, and only the operator's file says whether the place can keep them.
//! From: `docs/policy.md`, "Envelopes".
//! Not here: what a place is guaranteed (`bounds`), minima beyond a `max` or the link (`envelope`).
//! Invariant: the policy works either way; these are warnings.

use plimsoll_units::BitRate;

use super::compile::node_id;
use crate::bounds::node_rates;
use crate::law::{Law, Problem, Problems};
use crate::program::{NodeId, Program};
use plimsoll_document::Mark;

/// Warns where a sub-policy's classes are promised more than its place is guaranteed.
pub(super) fn not_backed(places: &[(usize, Mark)], program: &Program, problems: &mut Problems) {
    if places.is_empty() {
        return;
    }
    let nodes: Vec<NodeId> = places.iter().map(|&(place, _)| node_id(place)).collect();
    for (&(place, at), rate) in places.iter().zip(node_rates(program, &nodes)) {
        let node = &program.nodes[place];
        let minima = node.children.iter().filter_map(|&child| program.node(child).min);
        let promised: u128 = minima.map(|min| u128::from(min.get())).sum();
        if promised <= rate {
            continue;
        }
        let amount = |bits: u128| {
            u64::try_from(bits).ok().and_then(BitRate::new).map_or("nothing".to_owned(), |r| r.to_string())
        };
        let message = format!(
            "the classes of `{}` are promised {} together, but it is itself guaranteed {}",
            node.name,
            amount(promised),
            amount(rate)
        );
        let problem = Problem::warning(Law::MinNotBacked, at, message).label("not always kept");
        problems.push(
            problem
                .help(format!("lower these minima, or have the operator raise the `min` of `{}`", node.name)),
        );
    }
}
