//! Parts of a policy as words.

use plimsoll_units::Span;

use crate::program::{
    Codel, FlowOrder, Form, Limit, Match, Node, NodeId, NodeKind, Program, Scope, TenantId,
};
use crate::read::names::{code_point_name, protocol_name};

/// A match as a filter writes it: `tenant=shop dst=10.0.0.0/8 dst_port=80`; empty when it takes everything.
#[must_use]
pub fn describe_match(program: &Program, matches: &Match) -> String {
    let mut parts = Vec::new();
    let name = |tenant: &TenantId| {
        program.tenants.get(tenant.0 as usize).map_or("?", |tenant| tenant.name.as_str()).to_owned()
    };
    if !matches.tenant.is_empty() {
        parts.push(format!("tenant={}", matches.tenant.iter().map(name).collect::<Vec<_>>().join(",")));
    }
    list(&mut parts, "src", &matches.src, ToString::to_string);
    list(&mut parts, "dst", &matches.dst, ToString::to_string);
    list(&mut parts, "protocol", &matches.protocol, |&protocol| protocol_name(protocol));
    list(&mut parts, "src_port", &matches.src_port, range);
    list(&mut parts, "dst_port", &matches.dst_port, range);
    list(&mut parts, "dscp", &matches.dscp, |&dscp| code_point_name(dscp));
    list(&mut parts, "vlan", &matches.vlan, ToString::to_string);
    list(&mut parts, "priority", &matches.priority, ToString::to_string);
    list(&mut parts, "cgroup", &matches.cgroup, ToString::to_string);
    list(&mut parts, "user", &matches.user, ToString::to_string);
    list(&mut parts, "app", &matches.app, ToString::to_string);
    list(&mut parts, "core", &matches.core, ToString::to_string);
    parts.join(" ")
}

fn list<T>(parts: &mut Vec<String>, key: &str, values: &[T], word: impl Fn(&T) -> String) {
    if !values.is_empty() {
        let values: Vec<String> = values.iter().map(word).collect();
        parts.push(format!("{key}={}", values.join(",")));
    }
}

fn range(&(from, to): &(u16, u16)) -> String {
    if from == to { from.to_string() } else { format!("{from}-{to}") }
}

/// How a node orders what is below it. One that has a rate and only queues below it is one class.
pub(super) fn order_words(program: &Program, node: &Node) -> String {
    let leaf = |&child: &NodeId| matches!(program.node(child).kind, NodeKind::Class(_));
    let among = match node.kind {
        NodeKind::Priority => "priority",
        NodeKind::Drr => "drr",
        NodeKind::Program(id) => return format!("program {}", program.ranks[id.0 as usize].module),
        kind => return kind_words(kind),
    };
    if node.rate.is_some() && node.children.iter().all(leaf) {
        format!("class of {} queues, {among}", node.children.len())
    } else {
        among.to_owned()
    }
}

fn kind_words(kind: NodeKind) -> String {
    let tagged = |name: &str, key: &str, tag: Span| format!("{name} ({key} {tag})");
    match kind {
        NodeKind::Priority => "priority".to_owned(),
        NodeKind::Wfq => "wfq".to_owned(),
        NodeKind::Drr => "drr".to_owned(),
        NodeKind::Fifo => "fifo of children".to_owned(),
        NodeKind::Lstf => "lstf of children".to_owned(),
        NodeKind::Edf => "edf of children".to_owned(),
        NodeKind::Program(_) => "program".to_owned(),
        NodeKind::RateShare(Form::Exact) => "rate_share".to_owned(),
        NodeKind::RateShare(Form::Grouped) => "rate_share, grouped".to_owned(),
        NodeKind::Class(FlowOrder::Fifo) => "class, fifo".to_owned(),
        NodeKind::Class(FlowOrder::Drr) => "class, drr".to_owned(),
        NodeKind::Class(FlowOrder::Fq(Codel::DEFAULT)) => "class, fq".to_owned(),
        NodeKind::Class(FlowOrder::Fq(Codel { target, interval })) => {
            format!("class, fq, target {target}, interval {interval}")
        }
        NodeKind::Class(FlowOrder::Lstf(slack)) => tagged("class, lstf", "slack", slack),
        NodeKind::Class(FlowOrder::Edf(deadline)) => tagged("class, edf", "deadline", deadline),
        NodeKind::Class(FlowOrder::Ranked(slack)) => tagged("class, by rank", "slack", slack),
    }
}

/// Whether a weight means anything at this node.
pub(super) fn weighed(program: &Program, node: &Node) -> bool {
    let kind = node.parent.map(|parent| program.node(parent).kind);
    matches!(kind, Some(NodeKind::Wfq | NodeKind::Drr | NodeKind::Program(_)))
}

/// The last part of a node's path.
pub(super) fn short(node: &Node) -> &str {
    node.name.rsplit('/').next().unwrap_or(&node.name)
}

/// A limit's match, and the classes that send through it.
pub(super) fn scope_words(program: &Program, limit: &Limit) -> (String, Vec<String>) {
    match &limit.scope {
        Scope::Subtree(node) => ("everything".to_owned(), vec![program.node(*node).name.clone()]),
        Scope::Peer(peer) => (format!("what goes to peer {peer}"), Vec::new()),
        Scope::Match { matches, via } => {
            let what = describe_match(program, matches);
            let what = if what.is_empty() { "everything".to_owned() } else { what };
            (what, via.iter().map(|&node| program.node(node).name.clone()).collect())
        }
    }
}
