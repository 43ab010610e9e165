//! Which packet goes to which class: the order of the rules, and rules that can never fire.
//!
//! Why: an operator's match comes before a tenant's, and a class that no packet reaches is a mistake.
//! From: Loom §3, "Traffic Classification" and "Composing Sub-Policies".
//! Not here: evaluating rules (`program`, `classifier`).
//! Invariant: rules are in this order: a file's matches as written, then its tenants, then its default class.

use super::graph::{Draft, Graph, NodeIx, ScopeIx, TenantIx};
use crate::document::Mark;
use crate::law::{Law, Problem};
use crate::program::{Match, TenantId};

/// A rule in the making.
pub(crate) struct RuleDraft {
    pub matches: Match,
    pub class: NodeIx,
    /// Where the operator looks when it is wrong; `None` for rules that nobody wrote.
    pub at: Option<Mark>,
}

/// All rules, the first that matches deciding.
pub(crate) struct Rules {
    pub rules: Vec<RuleDraft>,
    pub default: NodeIx,
}

/// Earlier rules that a rule is compared with; more than this many cannot be told apart in bounded time.
const MOST_COMPARED: usize = 4_096;

/// Gives every file a class for what it does not match, adding a leaf `default` where it has none.
pub(crate) fn add_defaults(graph: &mut Graph, problems: &mut Vec<Problem>) {
    for scope in 0..graph.scopes.len() {
        let unmatched =
            graph.scopes[scope].leaves.iter().copied().filter(|&leaf| graph.nodes[leaf].matches.is_none());
        let unmatched: Vec<NodeIx> = unmatched.collect();
        for &extra in unmatched.iter().skip(1) {
            let leaf = &graph.nodes[extra];
            let message = format!("no packet reaches class `{}`: it has no `match`", leaf.name);
            let problem = Problem::error(Law::NeverMatches, leaf.at, message).label("a second default class");
            let first = &graph.nodes[unmatched[0]];
            problems.push(
                problem.also(first.at, format!("`{}` takes all that nothing matches", first.name)).help(
                    "give it a `match`; one class of each file may go without, and gets what no other takes",
                ),
            );
        }
        let root = graph.scopes[scope].root;
        let default = match unmatched.first() {
            Some(&leaf) => leaf,
            None if graph.nodes[root].is_leaf() => root,
            None => implicit_default(graph, problems, scope),
        };
        graph.scopes[scope].default = Some(default);
    }
}

fn implicit_default(graph: &mut Graph, problems: &mut Vec<Problem>, scope: ScopeIx) -> NodeIx {
    let root = graph.scopes[scope].root;
    if let Some(taken) = graph.scopes[scope].class("default") {
        let at = graph.nodes[taken].at;
        let problem = Problem::error(Law::BadName, at, "class `default` is not where unmatched traffic goes");
        problems.push(problem.label("has a `match` or children").help(
            "`default` is what a file's class without `match` is called when nobody wrote one: rename this class",
        ));
    }
    let name = super::compose::scoped(&graph.nodes[root].name, "default");
    let (at, tenant) = (graph.nodes[root].at, graph.nodes[root].tenant);
    let node = graph.nodes.len();
    graph.nodes.push(Draft { parent: Some(root), tenant, implicit: true, ..Draft::leaf(name, at, scope) });
    graph.nodes[root].children.push(node);
    node
}

/// Every rule, in order.
pub(crate) fn rules(graph: &Graph, problems: &mut Vec<Problem>) -> Rules {
    let mut writer = Writer { graph, problems, rules: Vec::new() };
    writer.scope(0, &Match::default());
    let mut rules = writer.rules;
    report_shadowed(graph, &rules, problems);
    let fallback = graph.scopes[0].default.unwrap_or(0);
    match rules.last() {
        Some(last) if last.matches == Match::default() => {
            let default = last.class;
            rules.pop();
            Rules { rules, default }
        }
        _ => Rules { rules, default: fallback },
    }
}

struct Writer<'a> {
    graph: &'a Graph,
    problems: &'a mut Vec<Problem>,
    rules: Vec<RuleDraft>,
}

impl Writer<'_> {
    /// A file's rules, for the packets that its place gets.
    fn scope(&mut self, scope: ScopeIx, context: &Match) {
        let graph = self.graph;
        for &leaf in &graph.scopes[scope].leaves {
            let Some(entry) = &graph.nodes[leaf].matches else { continue };
            if let Some(why) = entry.conditions.impossible() {
                // An empty range was told where it was read.
                if !entry.conditions.has_empty_range() {
                    self.never(
                        entry.at,
                        format!("no packet matches class `{}`: {why}", graph.nodes[leaf].name),
                    );
                }
                continue;
            }
            for tenant in self.tenants(scope, leaf) {
                let own = Match { tenant, ..entry.conditions.clone() };
                match context.and(&own) {
                    Some(both) => self.deliver(scope, leaf, both, Some(entry.at)),
                    None => {
                        let name = &graph.nodes[leaf].name;
                        let message = format!("no packet that reaches this file matches class `{name}`");
                        self.never(entry.at, message);
                    }
                }
            }
        }
        if scope == 0 {
            for (index, tenant) in graph.tenants.iter().enumerate() {
                let Some(node) = tenant.node else { continue };
                let matches = Match { tenant: Some(tenant_id(index)), ..Match::default() };
                self.deliver(scope, node, matches, Some(tenant.at));
            }
        }
        if let Some(default) = graph.scopes[scope].default {
            let at = (!graph.nodes[default].implicit).then_some(graph.nodes[default].at);
            if scope != 0 || graph.nodes[default].sub.is_some() {
                self.deliver(scope, default, context.clone(), at);
            }
        }
    }

    /// `from` is the scope that delivers: its own root may be a leaf.
    fn deliver(&mut self, from: ScopeIx, node: NodeIx, matches: Match, at: Option<Mark>) {
        match self.graph.nodes[node].sub.filter(|&sub| sub != from) {
            Some(sub) => self.scope(sub, &matches),
            None => self.rules.push(RuleDraft { matches, class: node, at }),
        }
    }

    /// The tenants that a leaf's match names, or one `None` if it names none.
    fn tenants(&mut self, scope: ScopeIx, leaf: NodeIx) -> Vec<Option<TenantId>> {
        let graph = self.graph;
        let Some(entry) = &graph.nodes[leaf].matches else { return Vec::new() };
        if entry.tenant.is_empty() {
            return vec![None];
        }
        let mut found = Vec::new();
        for name in &entry.tenant {
            let known = graph.tenant_named(&name.value);
            let own = graph.scopes[scope].tenant;
            if own.is_some() && known != own {
                let message = format!("`{}` is not this file's tenant", name.value);
                let problem =
                    Problem::error(Law::Outside, name.at, message).label("outside of this sub-policy");
                self.problems.push(
                    problem.help("a sub-policy sees its own tenant's packets only: leave `tenant` out"),
                );
            } else if let Some(tenant) = known {
                found.push(Some(tenant_id(tenant)));
            }
        }
        found
    }

    fn never(&mut self, at: Mark, message: String) {
        let problem = Problem::error(Law::NeverMatches, at, message).label("never holds");
        self.problems.push(problem.help("widen the match, or remove the class"));
    }
}

pub(crate) fn tenant_id(index: TenantIx) -> TenantId {
    TenantId(u32::try_from(index).unwrap_or(u32::MAX))
}

/// Rules behind broader ones.
fn report_shadowed(graph: &Graph, rules: &[RuleDraft], problems: &mut Vec<Problem>) {
    let mut general: Vec<usize> = Vec::new();
    let mut by_tenant: Vec<Vec<usize>> = vec![Vec::new(); graph.tenants.len()];
    for (index, rule) in rules.iter().enumerate() {
        let tenant = rule.matches.tenant.and_then(|tenant| by_tenant.get(tenant.0 as usize));
        let own: &[usize] = tenant.map_or(&[], |rules| rules.as_slice());
        let earlier = general.iter().chain(own).take(MOST_COMPARED).find(|&&earlier| {
            let earlier = &rules[earlier];
            earlier.class != rule.class && earlier.matches.covers(&rule.matches)
        });
        if let (Some(&earlier), Some(at)) = (earlier, rule.at) {
            problems.push(shadowed(graph, rule, at, &rules[earlier]));
        }
        match rule.matches.tenant {
            Some(tenant) => {
                if let Some(list) = by_tenant.get_mut(tenant.0 as usize) {
                    list.push(index);
                }
            }
            None => general.push(index),
        }
    }
}

fn shadowed(graph: &Graph, rule: &RuleDraft, at: Mark, earlier: &RuleDraft) -> Problem {
    let (name, first) = (&graph.nodes[rule.class].name, &graph.nodes[earlier.class].name);
    let message = format!("no packet reaches class `{name}`: `{first}` takes them all");
    let problem = Problem::error(Law::NeverMatches, at, message).label("never holds");
    let problem = match earlier.at {
        Some(first_at) => problem.also(first_at, "this takes every such packet first"),
        None => problem,
    };
    problem.help(
        "matches are tried in the order of the file, the operator's before a tenant's: put the narrower one first, \
         or narrow the broader one",
    )
}
