//! Limits: the classes that send through them, which lie inside which, and whether they can ever hold a packet.
//!
//! Why: a limit that holds nothing looks like protection and is none.
//! From: Loom §3: rate classes are independent of scheduling classes, may be parallel and nested, and are shared.
//! Not here: the envelopes' `max`, which are limits too (`envelope`).
//! Invariant: afterwards each limit knows every node that sends through it, its own and its inner limits'.

use std::collections::HashMap;

use plimsoll_units::{BitRate, Bytes, Span};

use super::compose::Composer;
use super::graph::{Graph, LimitDraft, LimitIx, NodeIx, RuleDraft, tenant_id};
use super::link::Link;
use super::metadata::{self, Unfilled};
use super::rules;
use crate::law::{Law, Problem, Problems};
use crate::program::Match;
use plimsoll_document::{Located, Mark, Name};

/// Pairs of limits and rules that are compared at most; beyond, a limit that never holds goes unnoticed.
const MOST_COMPARED: usize = 1 << 20;

/// Classes that are noted at limits around theirs, for each class of the policy, at most; a packet may be behind as many.
const MOST_AROUND: usize = 32;
/// Least value of that bound, for small policies.
const MOST_USERS: usize = 1 << 20;

/// A burst that takes longer at its limit's rate is a mistake: the limit would hold nothing back for so long.
const LONGEST_BURST: Span = Span::secs(60);

/// Resolves the names in limits and spreads users over nested ones.
pub(crate) fn resolve(composer: &mut Composer<'_>) {
    // A limit may name the class `default`, which is there without being stated.
    rules::add_defaults(&mut composer.graph, &mut composer.problems);
    for (node, limits) in composer.graph.nodes.iter().map(|node| node.via.clone()).enumerate() {
        for limit in limits {
            composer.graph.limits[limit].via.push(node);
        }
    }
    for limit in 0..composer.graph.limits.len() {
        stated_users(composer, limit);
        let scope = composer.graph.limits[limit].scope;
        let names = composer.graph.limits[limit].entry.via.clone();
        let outer = composer.limits_named(&names, scope);
        composer.graph.limits[limit].outer = outer;
    }
    nest(composer);
    let graph = &composer.graph;
    let unused = graph.limits.iter().filter(|limit| limit.via.is_empty() && !limit.again).map(|limit| {
        let name = &limit.entry.name;
        let message = format!("nothing sends through limit `{}`", name.value);
        let problem = Problem::error(Law::UnusedLimit, name.at, message).label("limits nothing");
        problem.help(format!(
            "write `via: [{0}]` in the classes or tenants that it should hold (in `root` for all), name them in its \
             `match`, or remove it",
            name.value
        ))
    });
    let unused: Vec<Problem> = unused.collect();
    composer.problems.extend(unused);
}

/// `match: {tenant: …}` and `match: {class: …}` name what a limit holds without a `via` there.
fn stated_users(composer: &mut Composer<'_>, limit: LimitIx) {
    let draft = &composer.graph.limits[limit];
    let (scope, matches) = (draft.scope, draft.entry.matches.clone());
    let mut users: Vec<NodeIx> = Vec::new();
    for class in &matches.class {
        match find_class(&composer.graph, scope, class) {
            Some(node) => users.push(node),
            None => composer.unknown_name(class, scope, "class"),
        }
    }
    let mut tenants = Vec::new();
    for name in &matches.tenant {
        let known = composer.graph.tenant_named(&name.value);
        let own = composer.graph.scopes[scope].tenant;
        if own.is_some() && known != own {
            let message = format!("`{}` is not this file's tenant", name.value);
            let problem = Problem::error(Law::Outside, name.at, message).label("outside of this sub-policy");
            composer
                .problems
                .push(problem.help("limits of this file hold its own tenant only: leave `tenant` out"));
        } else if let Some(known) = known {
            tenants.push(known);
        } else {
            composer.unknown_name(name, scope, "tenant");
        }
    }
    if !tenants.is_empty() && users.is_empty() && composer.graph.limits[limit].via.is_empty() {
        users.push(composer.graph.scopes[scope].root);
    }
    tenants.sort_unstable();
    tenants.dedup();
    composer.graph.limits[limit].tenants = tenants;
    composer.graph.limits[limit].via.extend(users);
}

fn draft_name(graph: &Graph, limit: LimitIx) -> &str {
    &graph.limits[limit].entry.name.value
}

/// A class or a tenant of the limit's own file.
fn find_class(graph: &Graph, scope: usize, name: &Name) -> Option<NodeIx> {
    let class = graph.scopes[scope].class(&name.value);
    let tenant = || graph.tenant_named(&name.value).filter(|_| scope == 0);
    let implicit = || {
        let default = graph.scopes[scope].default.filter(|_| name.value == "default");
        default.filter(|&node| graph.nodes[node].implicit)
    };
    class.or_else(|| tenant().and_then(|tenant| graph.tenants[tenant].node)).or_else(implicit)
}

/// Adds the users of each limit to the limits around it.
fn nest(composer: &mut Composer<'_>) {
    let count = composer.graph.limits.len();
    let mut state = vec![0_u8; count]; // 0 new, 1 on the way, 2 done
    let mut order = Vec::with_capacity(count); // outer ones first
    for start in 0..count {
        let mut stack = vec![(start, 0)];
        while let Some((limit, next)) = stack.pop() {
            if next == 0 {
                if state[limit] != 0 {
                    continue;
                }
                state[limit] = 1;
            }
            match composer.graph.limits[limit].outer.get(next).copied() {
                Some(outer) => {
                    stack.push((limit, next + 1));
                    if state[outer] == 1 {
                        limit_cycle(composer, limit, outer);
                    } else {
                        stack.push((outer, 0));
                    }
                }
                None => {
                    state[limit] = 2;
                    order.push(limit);
                }
            }
        }
    }
    let mut left = MOST_USERS.max(composer.graph.nodes.len() * MOST_AROUND);
    'nesting: for limit in order.into_iter().rev() {
        each_once(&mut composer.graph.limits[limit].via);
        for outer in composer.graph.limits[limit].outer.clone() {
            not_nested(composer, limit, outer);
            let users = composer.graph.limits[limit].via.clone();
            if users.len() > left {
                too_nested(composer, limit);
                break 'nesting;
            }
            left -= users.len();
            composer.graph.limits[outer].via.extend(users);
        }
    }
    composer.graph.limits.iter_mut().for_each(|limit| each_once(&mut limit.via));
}

fn each_once(users: &mut Vec<NodeIx>) {
    users.sort_unstable();
    users.dedup();
}

/// Reports limits that lie within each other in too many ways to follow.
fn too_nested(composer: &mut Composer<'_>, limit: LimitIx) {
    let name = &composer.graph.limits[limit].entry.name;
    let message = format!("limits lie within each other too often: `{}` and those around it", name.value);
    let problem = Problem::error(Law::TooLarge, name.at, message).label("not followed further");
    composer.problems.push(problem.help("a packet can be behind 32 limits: nest fewer, `via` by `via`"));
}

fn limit_cycle(composer: &mut Composer<'_>, limit: LimitIx, outer: LimitIx) {
    let (inner, outer) = (&composer.graph.limits[limit].entry.name, &composer.graph.limits[outer].entry.name);
    let message = format!("limit `{}` lies around itself", outer.value);
    let problem = Problem::error(Law::Cycle, inner.at, message).label("closes a cycle");
    let problem =
        problem.also(outer.at, "starts here").help("take one `via` out: the outer limit names no inner one");
    composer.problems.push(problem);
}

/// Reports an inner limit whose packets need not match the outer one: they would pass the outer limit by.
fn not_nested(composer: &mut Composer<'_>, inner: LimitIx, outer: LimitIx) {
    let graph = &composer.graph;
    let (inner_match, outer_match) = (limit_match(graph, inner), limit_match(graph, outer));
    let known = graph.limits[inner].entry.matches.whole && graph.limits[outer].entry.matches.whole;
    if !known || outer_match.covers(&inner_match) {
        return;
    }
    let (inner, outer) = (&graph.limits[inner].entry, &graph.limits[outer].entry);
    let message =
        format!("packets that pass limit `{}` need not match `{}`", inner.name.value, outer.name.value);
    let problem = Problem::error(Law::Nesting, inner.name.at, message).label("the inner limit");
    let problem = problem
        .also(outer.matches.at, "the outer limit's match is not as wide")
        .help("widen the outer limit's `match` (leave it out to take everything), or narrow the inner one's");
    composer.problems.push(problem);
}

/// The packets that a limit's match takes; a match that no packet can meet is reported by `judge`.
fn limit_match(graph: &Graph, limit: LimitIx) -> Match {
    let draft = &graph.limits[limit];
    packets_of(graph, draft).unwrap_or_else(|_| written(draft))
}

fn written(draft: &LimitDraft) -> Match {
    Match {
        tenant: draft.tenants.iter().copied().map(tenant_id).collect(),
        ..draft.entry.matches.conditions.clone()
    }
}

/// A limit's match as the engine will have it, or why its conditions on metadata take no packet. A file's limits hold the
/// file's own tenant.
pub(super) fn packets_of(graph: &Graph, draft: &LimitDraft) -> Result<Match, Unfilled> {
    let plain = written(draft);
    if !metadata::looks_at(&plain) {
        return Ok(plain);
    }
    let tenant = match &plain.tenant[..] {
        [] => Vec::from_iter(graph.scopes[draft.scope].tenant.map(tenant_id)),
        named => named.to_vec(),
    };
    metadata::settle(graph, Match { tenant, ..plain }).and_then(metadata::joined)
}

/// Limits that can hold no packet of their classes, bursts below a frame, rates that the link cannot reach.
pub(crate) fn judge(graph: &Graph, rules: &[RuleDraft], link: Link, problems: &mut Problems) {
    let mut compared = 0_usize;
    let values: usize = rules.iter().map(|rule| rule.matches.size()).sum();
    for draft in &graph.limits {
        let entry = &draft.entry;
        problems.extend(wrong_burst(&format!("limit `{}`", entry.name.value), entry.burst, entry.rate, link));
        if let Some(rate) = entry.rate.filter(|rate| rate.value > link.rate) {
            let message =
                format!("limit `{}` is {}, above the link's {}", entry.name.value, rate.value, link.rate);
            let problem = Problem::warning(Law::MaxAboveLink, rate.at, message).label("limits nothing");
            problems.push(problem.help(format!("lower it below {}, or remove the limit", link.rate)));
        }
        if !entry.matches.whole {
            continue;
        }
        let matches = match packets_of(graph, draft) {
            Ok(matches) => matches,
            Err(Unfilled { why, help }) => {
                let message = format!("limit `{}` matches no packet: {why}", entry.name.value);
                let problem = Problem::error(Law::NeverMatches, entry.matches.at, message);
                problems.push(problem.label("never holds").help(help));
                continue;
            }
        };
        if let Some(why) = matches.impossible() {
            problems.push(never(
                draft.entry.matches.at,
                format!("limit `{}` matches no packet: {why}", entry.name.value),
            ));
            continue;
        }
        compared += rules.len() + matches.size().saturating_mul(values) / 8;
        if matches == Match::default() || draft.via.is_empty() || compared > MOST_COMPARED {
            continue;
        }
        let below = |class: NodeIx| graph.path(class).any(|node| draft.via.binary_search(&node).is_ok());
        let holds = rules.iter().any(|rule| below(rule.class) && rule.matches.and(&matches).is_some());
        let default =
            graph.scopes[0].default.is_some_and(|default| below(default) && matches.tenant.is_empty());
        if !holds && !default {
            let message =
                format!("limit `{}` matches no packet of the classes that send through it", entry.name.value);
            problems.push(never(draft.entry.matches.at, message));
        }
    }
    never_bind(graph, link, problems);
}

/// Limits that hold the packets of another, which is as tight: same classes, same match, no more rate, no more burst.
fn never_bind(graph: &Graph, link: Link, problems: &mut Problems) {
    let mut together: HashMap<_, Vec<Bucket>> = HashMap::new();
    for (limit, draft) in graph.limits.iter().enumerate() {
        let Some(rate) = draft.entry.rate.filter(|rate| rate.value <= link.rate) else { continue };
        if draft.entry.matches.whole && !draft.again && !draft.via.is_empty() {
            let burst = draft.entry.burst.map_or_else(|| link.default_burst(rate.value), |burst| burst.value);
            let bucket = Bucket { rate: rate.value, burst, limit, at: rate.at };
            together.entry((draft.scope, draft.via.as_slice())).or_default().push(bucket);
        }
    }
    let mut compared = 0_usize;
    for buckets in together.values_mut() {
        // The tightest first; of two that are equal, the first of the file.
        buckets.sort_by_key(|bucket| (bucket.rate, bucket.burst, bucket.limit));
        for (index, loose) in buckets.iter().enumerate() {
            let wanted = limit_match(graph, loose.limit);
            compared = compared.saturating_add(index.saturating_mul(1 + wanted.size() * wanted.size() / 8));
            if compared > MOST_COMPARED {
                return;
            }
            let tight = buckets[..index].iter().find(|tight| {
                let other = || limit_match(graph, tight.limit);
                tight.burst <= loose.burst && same_packets(&wanted, &other())
            });
            problems.extend(tight.map(|tight| never_binds(graph, loose, tight)));
        }
    }
}

/// A limit as the engine will have it.
struct Bucket {
    rate: BitRate,
    burst: Bytes,
    limit: LimitIx,
    at: Mark,
}

fn same_packets(a: &Match, b: &Match) -> bool {
    a.plainly_covers(b) && b.plainly_covers(a)
}

fn never_binds(graph: &Graph, loose: &Bucket, tight: &Bucket) -> Problem {
    let [name, other] = [loose, tight].map(|bucket| draft_name(graph, bucket.limit));
    let message = format!(
        "limit `{name}` ({}) holds nothing back: `{other}` lets {} of the same packets through",
        loose.rate, tight.rate
    );
    let problem = Problem::warning(Law::NeverBinds, loose.at, message).label("never reached");
    problem.also(tight.at, format!("`{other}` is as tight, or tighter")).help(format!(
        "lower `{name}` below {}, give the two different packets, or remove one of them",
        tight.rate
    ))
}

fn never(at: Mark, message: String) -> Problem {
    let problem = Problem::error(Law::NeverMatches, at, message).label("never holds");
    problem.help("widen the match, or send other classes through the limit")
}

/// The problem of the burst of `what`, if one is stated and wrong.
pub(super) fn wrong_burst(
    what: &str,
    burst: Option<Located<Bytes>>,
    rate: Option<Located<BitRate>>,
    link: Link,
) -> Option<Problem> {
    let burst = burst?;
    if burst.value < link.charged_frame() {
        return Some(burst_too_small(what, burst, link));
    }
    let rate = rate?;
    // Two frames are always allowed, however slow the limit.
    let most = rate.value.bytes_in(LONGEST_BURST).max(link.charged_frame().times(2));
    (burst.value > most).then(|| {
        let message = format!(
            "the burst of {what} is {}, which takes {} at its rate of {}",
            burst.value,
            rate.value.wire_time(burst.value),
            rate.value
        );
        let problem =
            Problem::error(Law::BurstTooLarge, burst.at, message).label("leaves at once, unlimited");
        problem.also(rate.at, "the rate").help(format!(
            "write at most {most} ({LONGEST_BURST} of the rate, or two frames), or leave `burst` out for {}",
            link.default_burst(rate.value)
        ))
    })
}

/// A burst that does not hold the largest frame would stop it forever.
fn burst_too_small(what: &str, burst: Located<Bytes>, link: Link) -> Problem {
    let frame = link.charged_frame();
    let message = format!(
        "the burst of {what} is {} bytes, less than a frame of {}",
        burst.value.as_u64(),
        frame.as_u64()
    );
    let problem = Problem::error(Law::BurstTooSmall, burst.at, message).label("a frame would never pass");
    problem.help(format!("write at least {}B (two frames are better), or leave `burst` out", frame.as_u64()))
}
