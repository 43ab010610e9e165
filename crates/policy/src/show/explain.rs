//! The treatment of a packet: class, rule, path and limits.

use std::fmt;
use std::net::IpAddr;

use plimsoll_units::{BitRate, Span};
use serde::Serialize;

use super::filter::Filter;
use super::words::{describe_match, order_words, scope_words, weighed};
use crate::bounds::bounds;
use crate::classifier::Classifier;
use crate::program::{Fields, LimitId, Match, NodeId, NodeKind, Placement, Prefix, Program, Scope};

/// The treatment that a packet would get under a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The class and limits of exactly the filter's fields, as the engine knows them.
    #[serde(skip)]
    pub placement: Placement,
    /// Its class; where that depends on the tenant, which the filter leaves open, the class of each.
    pub class: String,
    /// The rule that decides, or none if it goes to the default class.
    pub rule: Option<String>,
    /// From the class to the root; empty where the class depends on the tenant.
    pub path: Vec<Step>,
    /// The limits that hold it, in the order in which it passes them.
    pub limits: Vec<super::report::LimitRecord>,
    /// Limits that hold it too if what the filter leaves open fits them.
    pub perhaps: Vec<super::report::LimitRecord>,
    /// The rate that its class is guaranteed.
    pub guaranteed: Option<BitRate>,
    /// The longest time that it waits.
    pub delay: Option<Span>,
    /// Where these figures come from, or why there are none.
    pub why: String,
}

/// A node on a packet's way.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The node.
    pub node: String,
    /// How it orders what is below it.
    pub order: String,
    /// The place of its class among its siblings.
    pub place: String,
}

/// Explains the treatment of a packet that looks like `filter`.
#[must_use]
pub fn explain(program: &Program, filter: &Filter) -> Explanation {
    let classifier = Classifier::new(program);
    let (fields, own) = (&filter.fields, classifier.classify(program, &filter.fields));
    let senders = program.senders(fields.tenant, &fields.metadata);
    let mut each: Vec<Fields> =
        senders.into_iter().map(|tenant| Fields { tenant: Some(tenant), ..*fields }).collect();
    if each.is_empty() {
        each.push(*fields);
    }
    let placements: Vec<Placement> = each.iter().map(|fields| classifier.classify(program, fields)).collect();
    let class = placements[0].class;
    if placements.iter().any(|placement| placement.class != class) {
        return by_tenant(program, &each, &placements, own);
    }
    // The other limits hold the packets of some of these tenants.
    let of_all = |id: &LimitId| placements.iter().all(|placement| placement.limits.contains(id));
    let limits = placements[0].limits.iter().copied().filter(of_all).collect();
    let rule = deciding(program, &classifier, &each);
    Explanation { placement: own, rule, ..treatment(program, fields, Placement { class, limits }) }
}

/// The rules that decide, as words; none where it is always the default class.
fn deciding(program: &Program, classifier: &Classifier, each: &[Fields]) -> Option<String> {
    let mut rules: Vec<_> =
        each.iter().map(|fields| classifier.rule(program, fields).map(|(index, _)| index)).collect();
    rules.sort_unstable();
    rules.dedup();
    if rules == [None] {
        return None;
    }
    let words = |index: usize| {
        let matches = describe_match(program, &program.rules[index].matches);
        let matches = if matches.is_empty() { "everything" } else { &matches };
        format!("rule {} of {}: {matches}", index + 1, program.rules.len())
    };
    let words = |rule: &Option<usize>| rule.map_or_else(|| NO_RULE.to_owned(), words);
    let named: Vec<String> = rules.iter().take(MOST_NAMED).map(words).collect();
    Some(named.join("; ") + if rules.len() > MOST_NAMED { "; .." } else { "" })
}

/// The classes of packets whose tenant the filter leaves open, with the tenants of each.
fn by_tenant(program: &Program, each: &[Fields], placements: &[Placement], own: Placement) -> Explanation {
    let mut classes: Vec<(NodeId, Vec<&str>)> = Vec::new();
    for (fields, placement) in each.iter().zip(placements) {
        let tenant = fields.tenant.map_or("", |tenant| &program.tenants[tenant.0 as usize].name);
        match classes.iter_mut().find(|(class, _)| *class == placement.class) {
            Some((_, tenants)) => tenants.push(tenant),
            None => classes.push((placement.class, vec![tenant])),
        }
    }
    let some = |names: &[&str]| match names.get(..MOST_NAMED) {
        Some(first) if names.len() > MOST_NAMED => format!("{}, ..", first.join(", ")),
        _ => names.join(", "),
    };
    let of_tenants = |(class, tenants): &(NodeId, Vec<&str>)| {
        format!("{} for {}", program.node(*class).name, some(tenants))
    };
    let mut named: Vec<String> = classes.iter().take(MOST_NAMED).map(of_tenants).collect();
    named.extend((classes.len() > MOST_NAMED).then(|| "..".to_owned()));
    Explanation {
        placement: own,
        class: format!("depends on the tenant: {}", named.join("; ")),
        rule: None,
        path: Vec::new(),
        limits: Vec::new(),
        perhaps: Vec::new(),
        guaranteed: None,
        delay: None,
        why: "name the tenant to see its limits and its rate".to_owned(),
    }
}

/// The treatment of a packet of a class, without the rule that decides the class.
fn treatment(program: &Program, fields: &Fields, placement: Placement) -> Explanation {
    let bound = bounds(program).into_iter().find(|bound| bound.class == placement.class);
    let record = |id: LimitId| {
        let limit = program.limit(id);
        let (matches, via) = scope_words(program, limit);
        super::report::LimitRecord {
            name: limit.name.clone(),
            rate: limit.rate,
            burst: limit.burst,
            matches,
            via,
        }
    };
    let open = (0..).map(LimitId).take(program.limits.len());
    let perhaps =
        open.filter(|id| !placement.limits.contains(id) && may_hold(program, *id, &placement, fields));
    Explanation {
        class: program.node(placement.class).name.clone(),
        rule: None,
        path: steps(program, &placement),
        limits: placement.limits.iter().copied().map(record).collect(),
        perhaps: perhaps.map(record).collect(),
        guaranteed: bound.as_ref().and_then(|bound| bound.guaranteed),
        delay: bound.as_ref().and_then(|bound| bound.delay),
        why: bound.map_or_else(String::new, |bound| bound.why),
        placement,
    }
}

const NO_RULE: &str = "no rule: the default class";

/// Rules, classes and tenants of a class that an answer names.
const MOST_NAMED: usize = 8;

/// Whether a packet of that class, of which only `fields` are known, could be held by the limit.
fn may_hold(program: &Program, id: LimitId, placement: &Placement, fields: &Fields) -> bool {
    let Scope::Match { matches, via } = &program.limit(id).scope else { return false };
    let sends_through = program.path(placement.class).any(|node| via.contains(&node));
    sends_through && matches.and(&stated(fields)).is_some_and(|both| both.impossible().is_none())
}

/// The known fields of a packet, as conditions.
fn stated(fields: &Fields) -> Match {
    let exactly = |addr: IpAddr| Prefix { addr, len: if addr.is_ipv4() { 32 } else { 128 } };
    let port = |port: u16| if port == 0 { vec![] } else { vec![(port, port)] };
    let known = |addr: &IpAddr| !addr.is_unspecified();
    let (src, dst) = fields.addresses.map_or((None, None), |(src, dst)| (Some(src), Some(dst)));
    let (from, to) = fields.ports.unwrap_or_default();
    Match {
        tenant: fields.tenant.into_iter().collect(),
        src: src.filter(known).map(exactly).into_iter().collect(),
        dst: dst.filter(known).map(exactly).into_iter().collect(),
        protocol: fields.protocol.into_iter().collect(),
        src_port: port(from),
        dst_port: port(to),
        priority: fields.metadata.priority.into_iter().collect(),
        cgroup: fields.metadata.cgroup.into_iter().collect(),
        user: fields.metadata.user.into_iter().collect(),
        app: fields.metadata.app.into_iter().collect(),
        core: fields.metadata.core.into_iter().collect(),
        ..Match::default()
    }
}

fn steps(program: &Program, placement: &Placement) -> Vec<Step> {
    let step = |id| {
        let node = program.node(id);
        let parent = node.parent.map(|parent| program.node(parent));
        let mut place = match parent {
            Some(parent) if parent.kind == NodeKind::Priority => {
                let position =
                    parent.children.iter().position(|&child| child == id).map_or(0, |index| index + 1);
                format!("priority {position} of {}", parent.children.len())
            }
            Some(parent) if weighed(program, node) => {
                let total: u64 =
                    parent.children.iter().map(|&child| u64::from(program.node(child).weight)).sum();
                format!("weight {} of {total}", node.weight)
            }
            _ => node.rate.map_or_else(String::new, |rate| format!("rate {rate}")),
        };
        if let Some(min) = node.min {
            let comma = if place.is_empty() { "" } else { ", " };
            place.push_str(&format!("{comma}first {min} before its siblings"));
        }
        Step { node: node.name.clone(), order: order_words(program, node), place }
    };
    program.path(placement.class).map(step).collect()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "class  {}", self.class)?;
        if self.path.is_empty() {
            return writeln!(f, "       {}", self.why);
        }
        writeln!(f, "by     {}", self.rule.as_deref().unwrap_or(NO_RULE))?;
        for (index, step) in self.path.iter().enumerate() {
            let head = if index == 0 { "path " } else { "     " };
            let comma = if step.place.is_empty() { "" } else { ", " };
            writeln!(f, "{head}  {} ({}){comma}{}", step.node, step.order, step.place)?;
        }
        if self.limits.is_empty() {
            writeln!(f, "limits none")?;
        }
        for (index, limit) in self.limits.iter().enumerate() {
            let head = if index == 0 { "limits" } else { "      " };
            writeln!(f, "{head} {} at {}, burst {}: {}", limit.name, limit.rate, limit.burst, limit.matches)?;
        }
        for limit in &self.perhaps {
            writeln!(f, "perhaps {} at {}, if {}", limit.name, limit.rate, limit.matches)?;
        }
        let rate = self.guaranteed.map_or_else(|| "no rate".to_owned(), |rate| rate.to_string());
        let delay = self
            .delay
            .map_or_else(|| "no bound on delay".to_owned(), |delay| format!("leaves within {delay}"));
        writeln!(f, "gets   {rate}, {delay} ({})", self.why)
    }
}
