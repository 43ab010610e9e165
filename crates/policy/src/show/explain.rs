//! The treatment of a packet: class, rule, path and limits.

use std::fmt;
use std::net::IpAddr;

use plimsoll_units::{BitRate, Span};
use serde::Serialize;

use super::filter::Filter;
use super::words::{describe_match, order_words, scope_words, weighed};
use crate::bounds::bounds;
use crate::classifier::Classifier;
use crate::program::{Fields, LimitId, Match, NodeKind, Placement, Prefix, Program, Scope};

/// The treatment that a packet would get under a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Its class and limits, as the engine knows them.
    #[serde(skip)]
    pub placement: Placement,
    /// Its class.
    pub class: String,
    /// The rule that decides, or none if it goes to the default class.
    pub rule: Option<String>,
    /// From the class to the root.
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
    let fields = &filter.fields;
    let rule = classifier.rule(program, fields);
    let placement = classifier.classify(program, fields);
    let words = rule.map(|(index, rule)| {
        let matches = describe_match(program, &rule.matches);
        format!(
            "rule {} of {}: {}",
            index + 1,
            program.rules.len(),
            if matches.is_empty() { "everything" } else { &matches }
        )
    });
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
        rule: words,
        path: steps(program, &placement),
        limits: placement.limits.iter().copied().map(record).collect(),
        perhaps: perhaps.map(record).collect(),
        guaranteed: bound.as_ref().and_then(|bound| bound.guaranteed),
        delay: bound.as_ref().and_then(|bound| bound.delay),
        why: bound.map_or_else(String::new, |bound| bound.why),
        placement,
    }
}

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
        tenant: fields.tenant,
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
        writeln!(f, "by     {}", self.rule.as_deref().unwrap_or("no rule: the default class"))?;
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
