//! Strict rates: what the children of a `rate_share` get, and where such a node may stand.
//!
//! Why: a rate that holds in real time cannot hold below an order that looks at packets, nor two levels of them when
//! the upper one promises more than there is.
//! From: SENIC §4.2 (NSDI 2014): the rates of the upper level fit the link.
//! Not here: how rates are kept (the crate `nic`), what they guarantee (`bounds`).
//! Invariant: after `compile`, every child of a `rate_share` has a rate, and no other node.

use plimsoll_units::BitRate;

use super::graph::{Draft, DraftKind, Graph, NodeIx};
use super::link::Link;
use crate::law::{Law, Problem, Problems};
use crate::program::Form;
use crate::read::syntax::OrderKind;

/// Up to this many children a node compares each with each.
const MOST_EXACT: usize = 16;

/// A node's rate, if its parent shares by rate. A default class that no file states gets what its siblings leave of the
/// link, and a hundredth of it at least.
pub(super) fn of(graph: &Graph, node: NodeIx, link: BitRate) -> Option<BitRate> {
    let parent = graph.nodes[node].parent.filter(|&parent| is_rate_share(&graph.nodes[parent]))?;
    let stated = graph.nodes[node].rate.map(|rate| rate.value);
    stated.or_else(|| {
        BitRate::new(link.get().saturating_sub(together(graph, parent)).max(link.get() / 100).max(1))
    })
}

/// How a node looks for the next child.
pub(super) fn form(draft: &Draft) -> Form {
    let by_number = if draft.children.len() <= MOST_EXACT { Form::Exact } else { Form::Grouped };
    draft.form.map_or(by_number, |form| form.value)
}

fn is_rate_share(draft: &Draft) -> bool {
    draft.kind == DraftKind::Order(OrderKind::RateShare)
}

/// The stated rates of a node's children.
fn together(graph: &Graph, node: NodeIx) -> u64 {
    let rates = graph.nodes[node].children.iter().filter_map(|&child| graph.nodes[child].rate);
    rates.fold(0, |sum, rate| sum.saturating_add(rate.value.get()))
}

/// The most that reaches a node: the least rate of its own and of those above it, and of the link.
fn drain(graph: &Graph, node: NodeIx, link: Link) -> BitRate {
    let rates = graph.path(node).filter_map(|node| graph.nodes[node].rate);
    rates.fold(link.rate, |least, rate| least.min(rate.value))
}

/// Judges every `rate_share` and its children.
pub(crate) fn judge(graph: &Graph, link: Link, problems: &mut Problems) {
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| is_rate_share(node)) {
        below_packets(graph, index, problems);
        upper_level_fits(graph, index, link, problems);
        let available = drain(graph, index, link);
        for &child in &node.children {
            let child = &graph.nodes[child];
            if let Some(rate) = child.rate.filter(|rate| rate.value > available) {
                let message = format!(
                    "the rate of `{}` is {}, but `{}` gets {available}",
                    child.name, rate.value, node.name
                );
                let problem = Problem::warning(Law::MaxAboveLink, rate.at, message).label("never reached");
                problems.push(problem.help(format!("lower it to {available} or less")));
            }
            if let Some(min) = child.min {
                let message = format!("`{}` has a `min` below `rate_share`", child.name);
                let problem =
                    Problem::error(Law::Meaningless, min.at, message).label("its rate is its promise");
                problems.push(problem.help("leave `min` out, or raise its rate"));
            }
        }
    }
}

/// Refuses a `rate_share` below a node that orders packets: the order would have to pass over packets that its rates hold
/// back.
fn below_packets(graph: &Graph, index: NodeIx, problems: &mut Problems) {
    let by_packets = |&above: &NodeIx| {
        matches!(
            graph.nodes[above].kind,
            DraftKind::Order(OrderKind::Fifo | OrderKind::Lstf | OrderKind::Edf | OrderKind::Program)
        )
    };
    let Some(above) = graph.path(index).skip(1).find(by_packets) else { return };
    let (node, above) = (&graph.nodes[index], &graph.nodes[above]);
    let message = format!("`{}` shares by rate below `{}`, which orders by packets", node.name, above.name);
    let problem = Problem::error(Law::WrongKind, node.at, message).label("cannot keep its rates here");
    problems.push(problem.also(above.at, "orders by packets").help(
        "a packet in front would have to wait for its rate: hang `rate_share` below `priority`, `wfq`, `drr` or \
         `rate_share`, or use `wfq` here",
    ));
}

/// SENIC's two levels: the upper one is strict only, so its rates fit what there is.
fn upper_level_fits(graph: &Graph, index: NodeIx, link: Link, problems: &mut Problems) {
    let node = &graph.nodes[index];
    let inner = |child: &&NodeIx| is_rate_share(&graph.nodes[**child]);
    let (Some(&lower), sum) = (node.children.iter().find(inner), together(graph, index)) else { return };
    let available = drain(graph, index, link);
    let Some(sum) = BitRate::new(sum).filter(|&sum| sum > available) else { return };
    let message = format!("the rates below `{}` are {sum} together, but it gets {available}", node.name);
    let problem = Problem::error(Law::MinAboveLink, node.at, message).label("promises more than there is");
    let lower = &graph.nodes[lower];
    problems.push(problem.also(lower.at, "has rates of its own, which then could not hold").help(format!(
        "lower the rates so that the sum fits {available}; only a `rate_share` without others below it may promise \
         more than there is, and then shares by rate"
    )));
}
