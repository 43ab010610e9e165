//! From the checked graph to the flat tables that the engine installs.
//!
//! Why: the engine wants indices in arrays, not names in files.
//! From: Loom §3 (scheduling forms a tree, shaping cuts across it).
//! Not here: any judgement; whatever gets here is legal.
//! Invariant: a `max` becomes the limit of its subtree; the policy's own limits follow in the order of the files.

use std::collections::BTreeMap;

use plimsoll_units::BitRate;

use super::graph::{Draft, DraftKind, Graph, LimitDraft, NodeIx, tenant_id};
use super::link::Link;
use super::rules::Rules;
use super::{limits, rates, short};
use crate::program::{
    Counts, FlowOrder, Limit, LimitId, Node, NodeId, NodeKind, Program, Rule, Scope, Tenant, TenantId,
};
use crate::read::syntax::{Flows, OrderKind};
use crate::slo::{self, Slo};

/// `minima` are the nodes' effective ones, `descriptors` the tenants' caps and `slos` what follows from what they are
/// promised, in the order of the tables.
pub(crate) fn compile(
    graph: &Graph,
    rules: Rules,
    link: Link,
    minima: &[Option<BitRate>],
    descriptors: &[u32],
    slos: Vec<Slo>,
) -> Program {
    let mut limits = Vec::new();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for (index, draft) in graph.nodes.iter().enumerate() {
        let max = draft.max.map(|max| {
            let each_way = draft.tenant.and_then(|tenant| slos.get(tenant)?.each_way);
            let default = || match each_way {
                Some(each_way) => slo::burst(max.value, each_way, link.charged_frame()),
                None => link.default_burst(max.value),
            };
            let burst = draft.burst.map_or_else(default, |burst| burst.value);
            let name = format!("max({})", draft.name);
            let scope = Scope::Subtree(node_id(index));
            limits.push(Limit { name, counts: Counts::Bytes, rate: max.value, burst, scope });
            limit_id(limits.len() - 1)
        });
        nodes.push(Node {
            name: draft.name.clone(),
            parent: draft.parent.map(node_id),
            kind: kind(draft),
            weight: draft.weight,
            rate: rates::of(graph, index, link.rate),
            min: minima[index],
            max,
            descriptors: draft.descriptors,
            children: draft.children.iter().map(|&child| node_id(child)).collect(),
            tenant: draft.tenant.map(tenant_id),
            sender: None,
        });
    }
    state_senders(&mut nodes, &rules);
    limits.extend(graph.limits.iter().filter_map(|draft| stated_limit(graph, draft, link)));
    let mut program = Program {
        link: link.rate,
        overhead: link.overhead,
        max_frame: link.max_frame,
        grain: link.grain,
        nodes,
        limits,
        tenants: tenants(graph, descriptors, slos),
        rules: rules
            .rules
            .into_iter()
            .map(|rule| Rule { matches: rule.matches, class: node_id(rule.class) })
            .collect(),
        default_class: node_id(rules.default),
        ranks: graph.ranks.clone(),
    };
    short::complete(&mut program);
    program
}

/// Gives each class the tenant that all rules to it name.
fn state_senders(nodes: &mut [Node], rules: &Rules) {
    let mut senders: BTreeMap<usize, Option<TenantId>> = BTreeMap::from([(rules.default, None)]);
    for rule in &rules.rules {
        let sender = senders.entry(rule.class).or_insert(rule.matches.tenant.first().copied());
        *sender = sender.filter(|&sender| rule.matches.tenant == [sender]);
    }
    for (class, sender) in senders {
        nodes[class].sender = sender;
    }
}

fn stated_limit(graph: &Graph, draft: &LimitDraft, link: Link) -> Option<Limit> {
    let rate = draft.entry.rate?.value;
    let matches = limits::packets_of(graph, draft).ok()?;
    let via = draft.via.iter().map(|&node| node_id(node)).collect();
    Some(Limit {
        name: draft.name.clone(),
        counts: Counts::Bytes,
        rate,
        burst: draft.entry.burst.map_or_else(|| link.default_burst(rate), |burst| burst.value),
        scope: Scope::Match { matches, via },
    })
}

fn tenants(graph: &Graph, descriptors: &[u32], slos: Vec<Slo>) -> Vec<Tenant> {
    let tenant = |((index, tenant), slo): ((usize, &super::graph::TenantDraft), Slo)| Tenant {
        name: tenant.name.clone(),
        node: node_id(tenant.node.unwrap_or_else(|| common_ancestor(graph, &tenant.matched_by))),
        descriptors: descriptors.get(index).copied().unwrap_or(u32::MAX),
        stated: tenant.known.stated(),
        from_client: tenant.known.from_client,
        slo,
    };
    graph.tenants.iter().enumerate().zip(slos).map(tenant).collect()
}

/// The lowest node that all of these lie below.
fn common_ancestor(graph: &Graph, nodes: &[NodeIx]) -> NodeIx {
    let Some((&first, rest)) = nodes.split_first() else { return 0 };
    let above_all =
        |&candidate: &NodeIx| rest.iter().all(|&node| graph.path(node).any(|ancestor| ancestor == candidate));
    graph.path(first).find(above_all).unwrap_or(0)
}

fn kind(draft: &Draft) -> NodeKind {
    match draft.kind {
        DraftKind::Order(OrderKind::Priority) => NodeKind::Priority,
        DraftKind::Order(OrderKind::Wfq) => NodeKind::Wfq,
        DraftKind::Order(OrderKind::Drr) => NodeKind::Drr,
        DraftKind::Order(OrderKind::Fifo) => NodeKind::Fifo,
        DraftKind::Order(OrderKind::Lstf) => NodeKind::Lstf,
        DraftKind::Order(OrderKind::Edf) => NodeKind::Edf,
        // One that could not be read is an error, so that the policy is not installed.
        DraftKind::Order(OrderKind::Program) => draft.rank.map_or(NodeKind::Fifo, NodeKind::Program),
        DraftKind::Order(OrderKind::RateShare) => NodeKind::RateShare(rates::form(draft)),
        DraftKind::Leaf { flows: Flows::Fifo, .. } => NodeKind::Class(FlowOrder::Fifo),
        DraftKind::Leaf { flows: Flows::Drr, .. } => NodeKind::Class(FlowOrder::Drr),
        DraftKind::Leaf { flows: Flows::Fq(stated), .. } => {
            NodeKind::Class(FlowOrder::Fq(short::stated(stated)))
        }
        DraftKind::Leaf { flows: Flows::Lstf, tag } => NodeKind::Class(FlowOrder::Lstf(tag)),
        DraftKind::Leaf { flows: Flows::Edf, tag } => NodeKind::Class(FlowOrder::Edf(tag)),
        DraftKind::Leaf { flows: Flows::Ranked, tag } => NodeKind::Class(FlowOrder::Ranked(tag)),
    }
}

pub(super) fn node_id(index: NodeIx) -> NodeId {
    NodeId(u32::try_from(index).unwrap_or(u32::MAX))
}

fn limit_id(index: usize) -> LimitId {
    LimitId(u32::try_from(index).unwrap_or(u32::MAX))
}
