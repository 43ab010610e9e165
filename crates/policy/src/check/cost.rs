//! What a policy costs the engine: depth, and time for each packet.
//!
//! Why: a policy that the engine cannot run at line rate would break every promise in it.
//! From: Loom §3, "Policy Limitations" (the NIC refuses what is too large or too slow) and §4.2.3 (depth).
//! The constants follow what `make bench` measures, part `costs`; tests/it/cost.rs holds them within a factor of 1.5 of it.
//! Not here: measuring the engine (`docs/performance.md`, "What `check` expects a packet to cost").
//! Invariant: the estimate never decreases when a node or a limit is added on a class's path.

use plimsoll_units::{Bytes, Span};

use super::graph::{Draft, Graph};
use crate::config::EngineConfig;
use crate::law::{Law, Problem, Problems};
use crate::program::{FlowOrder, Form, Match, NodeId, NodeKind, Program, Scope};
use plimsoll_document::Mark;

/// A class's estimated cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The class.
    pub class: NodeId,
    /// Nodes from the root to the class, both counted.
    pub depth: u32,
    /// Time that the engine spends on one of its packets.
    pub packet: Span,
}

/// Doorbell, descriptor, pull and completion of a packet.
const BASE: u64 = 34;
/// Limits that the engine keeps for one packet.
const MOST_LIMITS: u64 = 32;
/// Asking one limit, waiting for it and being released.
const LIMIT: u64 = 18;
/// Added for each doubling of the policy's limits: fewer of them are in a core's own caches.
const DOUBLED_LIMITS: u64 = 6;
/// Children of one node that a core's first cache holds.
const NEAR_CHILDREN: usize = 64;
/// Added for each doubling of a node's children beyond those.
const DOUBLED_CHILDREN: u64 = 7;
/// Limits by match of one node that are compared with each other; beyond those each counts.
const MOST_COMPARED: usize = 256;

/// Each class's estimated cost, in the order of the nodes.
#[must_use]
pub fn cost(program: &Program) -> Vec<Cost> {
    let program = &program.carried_out();
    let classes = (0_u32..).zip(&program.nodes).filter(|(_, node)| matches!(node.kind, NodeKind::Class(_)));
    let limits_at = at_once(program);
    let limit = LIMIT + DOUBLED_LIMITS * doublings(program.limits.len());
    let ids = (0_u32..).map(NodeId).zip(&program.nodes).map(|(id, _)| id);
    let each: Vec<u64> = ids.map(|id| node_cost(program, id) + limits_at[id.0 as usize] * limit).collect();
    let class = |(index, _)| {
        let class = NodeId(index);
        let path: u64 = program.path(class).map(|id| each[id.0 as usize]).sum();
        let depth = u32::try_from(program.path(class).count()).unwrap_or(u32::MAX);
        Cost { class, depth, packet: Span::ns(BASE + path) }
    };
    classes.map(class).collect()
}

/// The binary logarithm, rounded down.
fn doublings(number: usize) -> u64 {
    number.checked_ilog2().unwrap_or(0).into()
}

/// Limits that hold from each node downwards.
fn limits_at(program: &Program) -> Vec<u64> {
    let mut count = vec![0; program.nodes.len()];
    for limit in &program.limits {
        match &limit.scope {
            Scope::Subtree(node) => count[node.0 as usize] += 1,
            Scope::Match { via, .. } => via.iter().for_each(|node| count[node.0 as usize] += 1),
            Scope::Peer(_) => {}
        }
    }
    count
}

/// Limits from each node downwards that can hold one packet at once: of limits by match that exclude each other, one.
fn at_once(program: &Program) -> Vec<u64> {
    let mut groups: Vec<Vec<Vec<&Match>>> = vec![Vec::new(); program.nodes.len()];
    let mut count = limits_at(program);
    for limit in &program.limits {
        let Scope::Match { matches, via } = &limit.scope else { continue };
        for node in via {
            let groups = &mut groups[node.0 as usize];
            let apart = |group: &&mut Vec<&Match>| group.iter().all(|other| !matches.may_meet(other));
            if groups.iter().map(Vec::len).sum::<usize>() >= MOST_COMPARED {
                continue;
            }
            match groups.iter_mut().find(apart) {
                Some(group) => {
                    group.push(matches);
                    count[node.0 as usize] -= 1;
                }
                None => groups.push(vec![matches]),
            }
        }
    }
    count
}

/// Nanoseconds that one node adds.
fn node_cost(program: &Program, id: NodeId) -> u64 {
    let node = program.node(id);
    let promises = node.children.iter().any(|&child| program.node(child).min.is_some());
    let algorithm = match node.kind {
        NodeKind::Priority | NodeKind::Drr => 12,
        NodeKind::Wfq if node.children.len() == 1 => 8,
        NodeKind::Wfq => 16,
        NodeKind::RateShare(Form::Exact) => 45,
        NodeKind::RateShare(Form::Grouped) => 16,
        NodeKind::Fifo | NodeKind::Lstf | NodeKind::Edf => 40,
        NodeKind::Program(id) => 40 + program.ranks[id.0 as usize].nanoseconds(),
        NodeKind::Class(FlowOrder::Fifo | FlowOrder::Drr) => 10,
        NodeKind::Class(FlowOrder::Lstf(_) | FlowOrder::Edf(_) | FlowOrder::Ranked(_) | FlowOrder::Fq(_)) => {
            14
        }
    };
    let far = DOUBLED_CHILDREN * doublings(node.children.len() / NEAR_CHILDREN);
    algorithm + far + if promises { 8 } else { 0 }
}

/// Refuses classes behind more limits than the engine keeps for one packet, `of_pairs` of which other hosts state.
pub(crate) fn too_many_limits(graph: &Graph, program: &Program, of_pairs: u64, problems: &mut Problems) {
    let most = MOST_LIMITS - of_pairs;
    let limits_at = limits_at(program);
    let mut above = vec![0_u64; program.nodes.len()];
    for (index, node) in program.nodes.iter().enumerate() {
        let outer = node.parent.map_or(0, |parent| above[parent.0 as usize]);
        above[index] = limits_at[index] + outer;
        if above[index] > most && outer <= most {
            let at = graph.nodes[index].at;
            let message = format!("packets of `{}` may be behind {} limits", node.name, above[index]);
            let problem = Problem::error(Law::TooLarge, at, message).label("too many limits");
            problems.push(problem.help(format!(
                "a packet can be behind {most} limits, every `max` on its way counted: send it through fewer"
            )));
        }
    }
}

/// Refuses classes that lie too deep.
pub(crate) fn too_deep(graph: &Graph, engine: &EngineConfig, problems: &mut Problems) {
    let most = usize::try_from(engine.max_depth).unwrap_or(usize::MAX);
    let too_deep = |node: &&Draft| node.depth > most && !node.implicit;
    let Some(node) = graph.nodes.iter().find(too_deep) else { return };
    let deepest = graph.nodes.iter().map(|node| node.depth).max().unwrap_or(most);
    let message =
        format!("class `{}` lies too deep: the tree has {deepest} levels, {most} are allowed", node.name);
    let problem = Problem::error(Law::TooDeep, node.at, message).label(format!("level {}", node.depth));
    problems.push(
        problem.help("merge levels, or raise `max_depth` in `engine` and check that it keeps line rate"),
    );
}

/// Refuses classes whose packets cost more time than a frame has.
pub(crate) fn too_costly(
    graph: &Graph,
    program: &Program,
    engine: &EngineConfig,
    engine_at: Mark,
    problems: &mut Problems,
) {
    // One beyond the largest frame accepts that no frame reaches line rate.
    let frame = engine.line_rate_frame.unwrap_or(program.max_frame);
    let budget = program.link.wire_time(frame + program.overhead);
    let worst = cost(program).into_iter().max_by_key(|cost| cost.packet);
    let Some(worst) = worst.filter(|worst| worst.packet > budget) else { return };
    let node = &graph.nodes[worst.class.0 as usize];
    let message = format!(
        "a packet of class `{}` costs about {}, but at {} a frame of {} bytes lasts {budget}",
        node.name,
        worst.packet,
        program.link,
        frame.as_u64()
    );
    let problem = Problem::error(Law::TooCostly, node.at, message)
        .label(format!("{} levels and their limits", worst.depth))
        .also(engine_at, "for this engine");
    let needed = frame_that_lasts(program, worst.packet);
    let ranks = program.path(worst.class).find_map(|id| match program.node(id).kind {
        NodeKind::Program(rank) => Some(&program.ranks[rank.0 as usize]),
        _ => None,
    });
    let shorten = ranks.map_or_else(String::new, |rank| {
        format!("shorten `{}`, which takes {} instructions for a packet; ", rank.module, rank.instructions)
    });
    problems.push(problem.help(format!(
        "{shorten}merge levels or drop limits on its path; or accept that only frames of {} bytes and more reach line rate: \
         `line_rate_frame: {}B` in `engine`",
        needed.as_u64(),
        needed.as_u64()
    )));
}

/// The smallest frame that occupies the link for `span`, overhead left out.
fn frame_that_lasts(program: &Program, span: Span) -> Bytes {
    program.link.bytes_in(span) + Bytes::new(1) - program.overhead
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds of a packet of each of two classes that take turns, beside the default class.
    fn costs(max: &str) -> [u64; 2] {
        let text = format!(
            "{{uplink: {{port: memory, rate: 10Gbps}}, tenants: {{a: {{port: memory{max}}}, b: {{port: memory}}}}, \
             policy: {{root: {{drr: {{a: 1, b: 1}}}}}}}}"
        );
        let checked = crate::check_str("p.yaml", &text);
        let program = checked.unwrap_or_else(|errors| panic!("{}", errors.render(false))).program;
        let costs = cost(&program);
        [0, 1].map(|class: usize| costs[class].packet.as_u64())
    }

    #[test]
    fn rounds_that_a_limit_interrupts_cost_what_weighted_fair_queueing_does() {
        assert_eq!(costs(""), [60, 60], "34 ns, 12 for the rounds and 14 for the class");
        assert_eq!(costs(", max: 1Gbps"), [82, 64], "16 for `wfq`, and 18 for the limit");
    }
}
