//! Envelopes: what classes are promised, and what they may never exceed.
//!
//! Why: a promise that the link cannot keep is worse than none.
//! From: `docs/policy.md`, "Envelopes" (progressive filling: `min` first, the rest by weight, no class above `max`).
//! Not here: what each class is guaranteed in the end (`bounds`).
//! Invariant: a node's effective minimum is the larger of its own and its children's together; a sub-policy's
//! promises stay inside its place, which its author cannot widen.

use plimsoll_units::BitRate;

use super::graph::{Graph, NodeIx};
use super::limits::wrong_burst;
use super::link::Link;
use crate::law::{Law, Problem, Problems};
use plimsoll_document::Located;

/// Each node's effective minimum.
pub(crate) fn minima(graph: &Graph) -> Vec<Option<BitRate>> {
    let mut minima: Vec<Option<BitRate>> =
        graph.nodes.iter().map(|node| node.min.map(|min| min.value)).collect();
    for index in (0..graph.nodes.len()).rev() {
        if graph.nodes[index].sub.is_none() {
            minima[index] = minima[index].max(promised(graph, &minima, index));
        }
    }
    if let Some(root) = minima.first_mut() {
        *root = None;
    }
    minima
}

/// The sum of what a node's children are promised.
fn promised(graph: &Graph, minima: &[Option<BitRate>], node: NodeIx) -> Option<BitRate> {
    let children = graph.nodes[node].children.iter().filter_map(|&child| minima[child]);
    BitRate::new(children.fold(0_u64, |sum, min| sum.saturating_add(min.get())))
}

/// Checks every envelope.
pub(crate) fn judge(graph: &Graph, minima: &[Option<BitRate>], link: Link, problems: &mut Problems) {
    for (index, node) in graph.nodes.iter().enumerate() {
        problems.extend(wrong_burst(&format!("`{}`", node.name), node.burst, node.max, link));
        max_is_useful(graph, index, link, problems);
        own_min_fits(graph, index, link, problems);
        children_fit(graph, minima, index, link, problems);
    }
}

/// The most that a node may send, and the file's word for it.
#[derive(Clone, Copy)]
struct Most {
    node: NodeIx,
    rate: BitRate,
    word: &'static str,
}

/// A node's own `max`, or its rate below a `rate_share`, whichever is less.
fn own_most(graph: &Graph, node: NodeIx) -> Option<Most> {
    let most = |rate: Option<Located<BitRate>>, word| rate.map(|rate| Most { node, rate: rate.value, word });
    let (max, rate) = (most(graph.nodes[node].max, "`max`"), most(graph.nodes[node].rate, "rate"));
    max.into_iter().chain(rate).min_by_key(|most| most.rate)
}

/// The least that a node above may send at most.
fn most_above(graph: &Graph, node: NodeIx) -> Option<Most> {
    graph.path(node).skip(1).filter_map(|above| own_most(graph, above)).min_by_key(|most| most.rate)
}

fn max_is_useful(graph: &Graph, index: NodeIx, link: Link, problems: &mut Problems) {
    let node = &graph.nodes[index];
    let Some(max) = node.max else { return };
    if max.value > link.rate {
        let message = format!("`max` of `{}` is {}, above the link's {}", node.name, max.value, link.rate);
        let problem = Problem::warning(Law::MaxAboveLink, max.at, message).label("limits nothing");
        problems.push(problem.help(format!("lower it below {}, or leave it out", link.rate)));
    }
}

fn own_min_fits(graph: &Graph, index: NodeIx, link: Link, problems: &mut Problems) {
    let node = &graph.nodes[index];
    let Some(min) = node.min else { return };
    if min.value > link.rate {
        let message = format!("`min` of `{}` is {}, above the link's {}", node.name, min.value, link.rate);
        let problem = Problem::error(Law::MinAboveLink, min.at, message).label("cannot be kept");
        problems.push(problem.help(format!("promise at most {}", link.rate)));
    }
    if let Some(max) = node.max.filter(|max| max.value < min.value) {
        let message = format!("`min` of `{}` is {}, above its `max` of {}", node.name, min.value, max.value);
        let problem = Problem::error(Law::MinAboveMax, min.at, message).label("more than it may ever get");
        problems.push(problem.also(max.at, "its `max`").help("lower `min` or raise `max`"));
    }
    if let Some(Most { node: above, rate, word }) =
        most_above(graph, index).filter(|most| most.rate < min.value)
    {
        let above = &graph.nodes[above];
        let message = format!(
            "`min` of `{}` is {}, above the {word} of `{}`, {rate}",
            node.name, min.value, above.name
        );
        let problem = Problem::error(Law::MinAboveMax, min.at, message).label("more than it may ever get");
        problems.push(
            problem
                .also(above.at, format!("`{}` may send {rate} at most", above.name))
                .help(format!("lower this `min`, or raise the {word} of `{}`", above.name)),
        );
    }
    for &limit in graph.path(index).flat_map(|node| &graph.nodes[node].via) {
        let limit = &graph.limits[limit];
        let Some(rate) = limit.entry.rate.filter(|rate| rate.value < min.value) else { continue };
        if limit.entry.matches.stated {
            continue;
        }
        let message = format!(
            "`min` of `{}` is {}, above the limit `{}` that all of it passes, {}",
            node.name, min.value, limit.entry.name.value, rate.value
        );
        let problem = Problem::error(Law::MinAboveMax, min.at, message).label("more than it may ever get");
        problems.push(problem.also(rate.at, "this limit").help("lower `min`, or raise the limit's `rate`"));
    }
}

/// The children's minima together fit the node's `max`, and those of the root the link.
fn children_fit(
    graph: &Graph,
    minima: &[Option<BitRate>],
    index: NodeIx,
    link: Link,
    problems: &mut Problems,
) {
    let node = &graph.nodes[index];
    let Some(sum) = promised(graph, minima, index) else { return };
    let promising: Vec<NodeIx> =
        node.children.iter().copied().filter(|&child| minima[child].is_some()).collect();
    // One promise alone is judged where it is stated.
    let Some(&first) = promising.first().filter(|_| promising.len() > 1) else { return };
    let list = promising
        .iter()
        .take(6)
        .filter_map(|&child| minima[child].map(|min| format!("`{}` {min}", graph.nodes[child].name)));
    let list = list.collect::<Vec<_>>().join(", ");
    let more = if promising.len() > 6 { ", ..." } else { "" };
    let at = stated_min(graph, first);
    let own = own_most(graph, index).into_iter().chain(most_above(graph, index));
    let available = own.map(|most| most.rate).min();
    let (rule, whose, available) = match available {
        Some(max) if max < link.rate => (Law::MinAboveMax, format!("`{}` may send", node.name), max),
        _ => (Law::MinAboveLink, "the link carries".to_owned(), link.rate),
    };
    if sum <= available {
        return;
    }
    let message =
        format!("the children of `{}` are promised {sum} together, but {whose} {available}", node.name);
    let problem = Problem::error(rule, at, message).label("one of the promises");
    let problem = promising.iter().skip(1).take(5).fold(problem, |problem, &child| {
        problem.also(stated_min(graph, child), format!("`{}` is promised too", graph.nodes[child].name))
    });
    problems.push(
        problem.help(format!("lower a `min` so that the sum fits {available}; promised are {list}{more}")),
    );
}

/// Where a node's effective minimum comes from: its own, or the first below it.
fn stated_min(graph: &Graph, node: NodeIx) -> plimsoll_document::Mark {
    let mut at = node;
    loop {
        if let Some(min) = graph.nodes[at].min {
            return min.at;
        }
        let promising = |&&child: &&NodeIx| has_min(graph, child);
        match graph.nodes[at].children.iter().find(promising) {
            Some(&child) => at = child,
            None => return graph.nodes[at].at,
        }
    }
}

fn has_min(graph: &Graph, node: NodeIx) -> bool {
    let mut open = vec![node];
    while let Some(at) = open.pop() {
        if graph.nodes[at].min.is_some() {
            return true;
        }
        open.extend(&graph.nodes[at].children);
    }
    false
}
