//! `policy:` and `limits:`, which every file may have: classes, their order and their envelopes.

use std::collections::HashSet;

use super::syntax::{
    Child, ClassEntry, Flows, LimitEntry, MatchEntry, Order, OrderKind, PolicyFile, Queues, StatedCodel,
};
use super::{Reader, matches, named};
use crate::keys::{CLASS, FLOWS_LONG, FQ, LIMIT, MAX_WEIGHT, MOST_DESCRIPTORS, QUEUE, RANKED, SUB_FILE};
use crate::law::{Law, Problem};
use crate::program::{Form, Match};
use plimsoll_document::{Fields, Located, Name, Tree, Value, bad};
use plimsoll_units::Span;

/// How messages name what belongs where a rate belongs.
pub(crate) const RATE: &str = "a rate such as `500Mbps` or `10Gbps`";

const AMONG: [(&str, OrderKind); 2] = [("drr", OrderKind::Drr), ("priority", OrderKind::Priority)];
const FORMS: [(&str, Form); 2] = [("exact", Form::Exact), ("grouped", Form::Grouped)];
const FLOWS: [(&str, Flows); 5] = [
    ("fifo", Flows::Fifo),
    ("drr", Flows::Drr),
    ("fq", Flows::Fq(StatedCodel { target: None, interval: None })),
    ("lstf", Flows::Lstf),
    ("edf", Flows::Edf),
];

/// Orders in [`FLOWS`] that `engine` may state for all classes.
const DEFAULTS: usize = 3;

/// A tenant's or an application's file.
pub(crate) fn policy_file(reader: &mut Reader, tree: &Tree) -> PolicyFile {
    let top = reader.fields(tree, tree.at, "a sub-policy's file", &SUB_FILE);
    let (limits, classes) = (limits(reader, &top), classes(reader, &top));
    PolicyFile { at: tree.at, limits, classes, rootless: false }
}

/// The entries of `policy:`, if that key is there.
pub(super) fn classes(reader: &mut Reader, top: &Fields<'_>) -> Option<Vec<ClassEntry>> {
    let trees = top.all("policy");
    if trees.is_empty() {
        return None;
    }
    let named = named(reader, &trees, "`policy`");
    Some(named.into_iter().map(|(name, tree)| class(reader, name, tree)).collect())
}

/// The entries of `limits:`.
pub(super) fn limits(reader: &mut Reader, top: &Fields<'_>) -> Vec<LimitEntry> {
    let named = named(reader, &top.all("limits"), "`limits`");
    named.into_iter().map(|(name, tree)| limit(reader, name, tree)).collect()
}

fn limit(reader: &mut Reader, name: &Name, tree: &Tree) -> LimitEntry {
    let what = format!("limit `{}`", name.value);
    let keys = reader.fields(tree, name.at, &what, &LIMIT);
    let everything = MatchEntry {
        at: name.at,
        stated: false,
        whole: true,
        tenant: Vec::new(),
        class: Vec::new(),
        conditions: Match::default(),
    };
    LimitEntry {
        name: name.clone(),
        matches: keys.get("match").map_or(everything, |tree| matches::match_entry(reader, tree, true)),
        rate: keys.get("rate").and_then(|tree| reader.value(tree, &format!("`rate` of {what}"), RATE)),
        burst: keys.get("burst").and_then(|tree| reader.value(tree, &format!("`burst` of {what}"), SIZE)),
        via: keys.get("via").map_or_else(Vec::new, |tree| reader.names(tree, &format!("`via` of {what}"))),
    }
}

const SIZE: &str = "a size such as `64KiB`";
const TIME: &str = "a time such as `500us` or `10ms`";

fn class(reader: &mut Reader, name: &Name, tree: &Tree) -> ClassEntry {
    let what = format!("class `{}`", name.value);
    let keys = reader.fields(tree, name.at, &what, &CLASS);
    let mut entry = ClassEntry::new(name.clone());
    entry.order = order(reader, &keys, &what);
    entry.form = form(reader, &keys, &what, entry.order.as_ref());
    entry.matches = keys.get("match").map(|tree| matches::match_entry(reader, tree, false));
    envelope(reader, &keys, &mut entry);
    flow_order(reader, &keys, &mut entry);
    entry.descriptors = keys
        .get("descriptors")
        .and_then(|tree| reader.positive(tree, &format!("`descriptors` of {what}"), MOST_DESCRIPTORS));
    entry.queues = queues(reader, &keys, &what);
    if !matches!(tree.value, Value::Map(_) | Value::Null) {
        entry.matches = Some(MatchEntry::unreadable(tree.at));
    }
    entry
}

/// `queues` and `among`: several queues of one class, and which of them goes first.
pub(super) fn queues(reader: &mut Reader, keys: &Fields<'_>, what: &str) -> Option<Queues> {
    let among = keys.get("among").and_then(|tree| among(reader, tree, what));
    let Some(tree) = keys.get("queues") else {
        if let Some(at) = keys.key_at("among") {
            let problem = Problem::error(Law::Meaningless, at, format!("{what} has `among` but no `queues`"));
            reader.report(problem.label("among which queues?").help("add `queues`, or leave `among` out"));
        }
        return None;
    };
    let here = format!("`queues` of {what}");
    if tree.entries().is_empty() && matches!(tree.value, Value::Map(_) | Value::Null) {
        let help = "name its queues, as in `queues: {voice: {match: {dscp: ef}}, rest: {}}`, or leave it out";
        reader.report(bad(tree.at, format!("{here} names none"), help));
    }
    let named = named(reader, &[tree], &here);
    let list = named.into_iter().map(|(name, tree)| queue(reader, name, tree, what)).collect();
    Some(Queues {
        at: keys.key_at("queues").unwrap_or(tree.at),
        among: among.unwrap_or(OrderKind::Drr),
        list,
    })
}

fn among(reader: &mut Reader, tree: &Tree, what: &str) -> Option<OrderKind> {
    let (here, example) = (format!("`among` of {what}"), "`drr` or `priority`");
    let text = reader.text(tree, &here, example)?;
    let found = AMONG.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
    if found.is_none() {
        let help = "write `drr` for turns, or `priority` for the first listed with a packet";
        reader.report(bad(tree.at, format!("{here} is `{text}`, not {example}"), help));
    }
    found
}

fn queue(reader: &mut Reader, name: &Name, tree: &Tree, class: &str) -> ClassEntry {
    let keys = reader.fields(tree, name.at, &format!("queue `{}` of {class}", name.value), &QUEUE);
    if name.value == "root" {
        let problem = Problem::error(Law::BadName, name.at, "a queue cannot be called `root`");
        reader.report(problem.label("this queue").help("`root` is the topmost class: rename the queue"));
    }
    let mut entry = ClassEntry::new(name.clone());
    entry.matches = keys.get("match").map(|tree| matches::match_entry(reader, tree, false));
    flow_order(reader, &keys, &mut entry);
    entry
}

/// `min`, `max`, `burst`, `via` and `policy`: what any class and any tenant may state.
pub(super) fn envelope(reader: &mut Reader, keys: &Fields<'_>, entry: &mut ClassEntry) {
    let owner = entry.name.value.clone();
    let what = |key: &str| format!("`{key}` of `{owner}`");
    entry.min = keys.get("min").and_then(|tree| reader.value(tree, &what("min"), RATE));
    entry.max = keys.get("max").and_then(|tree| reader.value(tree, &what("max"), RATE));
    entry.burst = keys.get("burst").and_then(|tree| reader.value(tree, &what("burst"), SIZE));
    entry.via = keys.get("via").map_or_else(Vec::new, |tree| reader.names(tree, &what("via")));
    entry.policy = keys.get("policy").and_then(|tree| {
        let text = reader.text(tree, &what("policy"), "the path of a file with a policy")?;
        Some(Located::new(text.to_owned(), tree.at))
    });
    if let (Some(burst), None) = (&entry.burst, keys.get("max")) {
        let problem =
            Problem::error(Law::Meaningless, burst.at, format!("`{owner}` has `burst` but no `max`"));
        reader.report(problem.label("the burst of which limit?").help("add a `max`, or leave `burst` out"));
    }
}

/// `flows`, `slack` and `deadline`: how a leaf orders its flow queues.
pub(super) fn flow_order(reader: &mut Reader, keys: &Fields<'_>, entry: &mut ClassEntry) {
    let owner = entry.name.value.clone();
    let what = |key: &str| format!("`{key}` of `{owner}`");
    entry.flows = keys.get("flows").and_then(|tree| {
        let example = "`fifo`, `drr`, `fq`, `lstf` or `edf`";
        if let Value::Map(_) = tree.value {
            return fair_queueing(reader, tree, &what("flows"));
        }
        let text = reader.text(tree, &what("flows"), example)?;
        match FLOWS.iter().find(|(name, _)| *name == text) {
            Some((_, flows)) => Some(Located::new(*flows, tree.at)),
            None => {
                let message = format!("{} is `{text}`, not {example}", what("flows"));
                reader.report(bad(tree.at, message, format!("write {example}")));
                None
            }
        }
    });
    entry.slack = keys.get("slack").and_then(|tree| reader.value(tree, &what("slack"), TIME));
    entry.deadline = keys.get("deadline").and_then(|tree| reader.value(tree, &what("deadline"), TIME));
}

/// `flows` of `engine`.
pub(super) fn default_flows(reader: &mut Reader, tree: &Tree) -> Option<Flows> {
    let text = reader.text(tree, "`flows` of `engine`", "`fifo`, `drr` or `fq`")?;
    let found = FLOWS.iter().take(DEFAULTS).find(|(name, _)| *name == text);
    if found.is_none() {
        let help = "write `fifo`, `drr` or `fq`; a class states the others, and its slack or deadline";
        reader.report(bad(tree.at, format!("`flows` of `engine` is `{text}`"), help));
    }
    found.map(|(_, flows)| *flows)
}

/// `flows: {fq: {target: TIME, interval: TIME}}`.
fn fair_queueing(reader: &mut Reader, tree: &Tree, what: &str) -> Option<Located<Flows>> {
    let kinds = reader.fields(tree, tree.at, what, &FLOWS_LONG);
    let Some(fq) = kinds.get("fq") else {
        let help = "write `flows: fq`, or `flows: {fq: {target: 5ms, interval: 100ms}}`";
        reader.report(bad(tree.at, format!("{what} names no order"), help));
        return None;
    };
    let keys = reader.fields(fq, fq.at, &format!("`fq` in {what}"), &FQ);
    let mut time = |key: &str| {
        let tree = keys.get(key)?;
        let time = reader.value(tree, &format!("`{key}` of {what}"), TIME)?;
        if time.value == Span::ZERO {
            let message = format!("`{key}` of {what} is zero");
            reader.report(bad(tree.at, message, format!("write {TIME}, or leave it out")));
            return None;
        }
        Some(time)
    };
    let (target, interval) = (time("target"), time("interval"));
    if let (Some(target), Some(interval)) = (&target, &interval)
        && target.value >= interval.value
    {
        let message = format!("`target` of {what} is not less than its `interval`");
        let problem = Problem::error(Law::BadValue, target.at, message).label("the target");
        let help = "write an interval of about the longest round trip, and a twentieth of it as the target";
        reader.report(problem.also(interval.at, "the interval").help(help));
    }
    let stated =
        StatedCodel { target: target.map(|time| time.value), interval: interval.map(|time| time.value) };
    Some(Located::new(Flows::Fq(stated), tree.at))
}

/// `form`: how a `rate_share` looks for the next child.
fn form(reader: &mut Reader, keys: &Fields<'_>, what: &str, order: Option<&Order>) -> Option<Located<Form>> {
    let (tree, example) = (keys.get("form")?, "`exact` or `grouped`");
    let text = reader.text(tree, &format!("`form` of {what}"), example)?;
    let Some((_, form)) = FORMS.iter().find(|(name, _)| *name == text) else {
        let message = format!("`form` of {what} is `{text}`, not {example}");
        reader.report(bad(tree.at, message, format!("write {example}, or leave it out")));
        return None;
    };
    if order.is_none_or(|order| order.kind != OrderKind::RateShare) {
        let problem =
            Problem::error(Law::Meaningless, tree.at, format!("{what} has `form` but no `rate_share`"));
        reader
            .report(problem.label("the form of what?").help("leave it out: only `rate_share` has two forms"));
    }
    Some(Located::new(*form, tree.at))
}

/// The one algorithm that a class names, if it names one.
fn order(reader: &mut Reader, keys: &Fields<'_>, what: &str) -> Option<Order> {
    let mut found: Option<Order> = None;
    for (key, kind) in OrderKind::ALL {
        let (Some(tree), Some(at)) = (keys.get(key), keys.key_at(key)) else { continue };
        if let Some(first) = &found {
            let message = format!("{what} orders its children in two ways");
            let problem = Problem::error(Law::BadValue, at, message).label("second here");
            reader.report(
                problem
                    .also(first.at, "first here")
                    .help("keep one algorithm; put the other into a class of its own between the two"),
            );
        }
        let told = reader.problems.len();
        let (module, list) = match kind {
            OrderKind::Program => program(reader, tree, what),
            _ => (None, Some(tree)),
        };
        let mut children = list.map_or_else(Vec::new, |list| children(reader, list, key, kind, what));
        if children.is_empty() && reader.problems.len() == told {
            let problem = Problem::error(Law::BadValue, at, format!("`{key}` of {what} has no children"));
            reader.report(
                problem.label("orders nothing").help("list its children, or leave it out for a leaf"),
            );
        }
        match &mut found {
            Some(first) => {
                let known: HashSet<&str> =
                    first.children.iter().map(|known| known.name.value.as_str()).collect();
                children.retain(|child| !known.contains(child.name.value.as_str()));
                first.children.append(&mut children);
            }
            None => found = Some(Order { kind, at, children, module }),
        }
    }
    found
}

/// `program: {module: FILE, children: ...}`: the file, and the children.
fn program<'t>(reader: &mut Reader, tree: &'t Tree, what: &str) -> (Option<Name>, Option<&'t Tree>) {
    if !matches!(tree.value, Value::Map(_)) {
        let help = "write `program: {module: srpt.rank, children: [web, bulk]}`";
        reader.report(bad(tree.at, format!("`program` of {what} is no map"), help));
        return (None, None);
    }
    let keys = reader.fields(tree, tree.at, &format!("`program` of {what}"), &RANKED);
    let path = |reader: &mut Reader, tree: &Tree| {
        let text = reader.text(tree, &format!("`module` of {what}"), "the path of a rank program's file")?;
        Some(Located::new(text.to_owned(), tree.at))
    };
    let module = match keys.get("module") {
        Some(tree) => path(reader, tree),
        None => {
            let message = format!("`program` of {what} names no `module`");
            let problem = Problem::error(Law::MissingKey, tree.at, message).label("which program?");
            let help =
                "name the file of a rank program: `program: {module: srpt.rank, children: [web, bulk]}`";
            reader.report(problem.help(help));
            None
        }
    };
    let children = keys.get("children");
    if children.is_none() {
        let message = format!("`program` of {what} has no `children`");
        let problem = Problem::error(Law::MissingKey, tree.at, message).label("orders nothing");
        let help =
            "list the children whose packets it ranks: `program: {module: srpt.rank, children: [web, bulk]}`";
        reader.report(problem.help(help));
    }
    (module, children)
}

fn children(reader: &mut Reader, tree: &Tree, key: &str, kind: OrderKind, what: &str) -> Vec<Child> {
    let here = format!("`{key}` of {what}");
    match &tree.value {
        Value::Map(entries) => {
            if !kind.weighs() && kind != OrderKind::RateShare {
                let help = format!("`{key}` has no weights: write a list, as in `{key}: [a, b]`");
                reader.report(bad(tree.at, format!("{here} is a map"), help));
            }
            let mut children: Vec<Child> = Vec::with_capacity(entries.len());
            let mut seen = HashSet::with_capacity(entries.len());
            for (name, number) in named(reader, &[tree], &here) {
                let (mut weight, mut rate) = (None, None);
                match (&number.value, kind) {
                    (Value::Null, OrderKind::RateShare) => no_rate(reader, name, &here),
                    (Value::Null, _) => {}
                    (_, OrderKind::RateShare) => {
                        rate = reader.value(number, &format!("the rate of `{}`", name.value), RATE);
                    }
                    _ => {
                        let what = format!("the weight of `{}`", name.value);
                        weight = reader.positive(number, &what, MAX_WEIGHT);
                    }
                }
                if seen.insert(&name.value) {
                    children.push(Child { name: name.clone(), weight, rate });
                }
            }
            children
        }
        Value::List(items) if items.is_empty() => Vec::new(),
        _ => {
            let names = reader.names(tree, &here);
            if let (OrderKind::RateShare, Some(first)) = (kind, names.first()) {
                no_rate(reader, first, &here);
            }
            names.into_iter().map(|name| Child { name, weight: None, rate: None }).collect()
        }
    }
}

fn no_rate(reader: &mut Reader, child: &Name, here: &str) {
    let message = format!("`{}` has no rate in {here}", child.value);
    let problem = Problem::error(Law::MissingKey, child.at, message).label("at which rate?");
    reader.report(
        problem.help(format!("write it beside the name: `rate_share: {{{}: 500Mbps}}`", child.value)),
    );
}
