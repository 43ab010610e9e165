//! Which packet goes to which class: the order of the rules, and rules that can never fire.
//!
//! Why: an operator's match comes before a tenant's, and a class that no packet reaches is a mistake.
//! From: Loom §3, "Traffic Classification" and "Composing Sub-Policies".
//! Not here: evaluating rules (`program`, `classifier`).
//! Invariant: rules are in this order: a file's matches as written, then its tenants, then its default class.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{Draft, DraftKind, Graph, NodeIx, RuleDraft, ScopeIx, scoped, tenant_id};
use super::metadata::{self, Unfilled};
use super::shadow::{self, Claim};
use crate::law::{Law, Problem, Problems};
use crate::program::{Match, TenantId};
use crate::read::syntax::MatchEntry;
use plimsoll_document::Mark;
use plimsoll_units::Span;

/// All rules, the first that matches deciding.
pub(crate) struct Rules {
    pub rules: Vec<RuleDraft>,
    pub default: NodeIx,
}

/// Gives every file a class for what it does not match, adding a leaf `default` where it has none.
pub(crate) fn add_defaults(graph: &mut Graph, problems: &mut Problems) {
    for scope in 0..graph.scopes.len() {
        let unmatched =
            graph.scopes[scope].leaves.iter().copied().filter(|&leaf| graph.nodes[leaf].matches.is_none());
        let mut unmatched: Vec<NodeIx> = unmatched.collect();
        unmatched.sort_by_key(|&leaf| graph.nodes[leaf].loose); // one with a place comes first
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

fn implicit_default(graph: &mut Graph, problems: &mut Problems, scope: ScopeIx) -> NodeIx {
    let root = graph.scopes[scope].root;
    if let Some(taken) = graph.scopes[scope].class("default") {
        let at = graph.nodes[taken].at;
        let problem = Problem::error(Law::BadName, at, "class `default` is not where unmatched traffic goes");
        problems.push(problem.label("has a `match` or children").help(
            "`default` is what a file's class without `match` is called when the file states none: rename this class",
        ));
    }
    let name = scoped(&graph.nodes[root].name, "default");
    let (at, tenant, depth) = (graph.nodes[root].at, graph.nodes[root].tenant, graph.nodes[root].depth + 1);
    let node = graph.nodes.len();
    let parent = Some(root);
    let kind = DraftKind::Leaf { flows: graph.flows, tag: Span::ZERO };
    graph.nodes.push(Draft { parent, depth, kind, tenant, implicit: true, ..Draft::leaf(name, at, scope) });
    graph.nodes[root].children.push(node);
    node
}

/// Every rule, in order.
pub(crate) fn rules(graph: &Graph, problems: &mut Problems) -> Rules {
    let seen = vec![false; graph.scopes.len()];
    let (rules, claims, left) = (Vec::new(), Vec::new(), MOST_VALUES);
    let own = vec![OWN_VALUES / (graph.tenants.len() as u64).max(1); graph.tenants.len()];
    let reach = Reach::default();
    let mut writer = Writer { graph, problems, rules, claims, floor: 0, seen, own, left, reach };
    writer.scope(0, &Match::default());
    let in_place = writer.rules.len();
    writer.scopes_aside();
    writer.report_unmet();
    let (mut rules, claims) = (writer.rules, writer.claims);
    shadow::judge(graph, &rules, &claims, problems);
    rules.truncate(in_place);
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
    problems: &'a mut Problems,
    rules: Vec<RuleDraft>,
    claims: Vec<Claim>,
    /// Rules before this one cannot take packets of those that are written now.
    floor: usize,
    /// The files whose rules are written.
    seen: Vec<bool>,
    /// Values of matches that may still be compared or written for each tenant, whatever other tenants' matches list.
    own: Vec<u64>,
    /// Further values, for any tenant; 0 once their end was reported.
    left: u64,
    reach: Reach,
}

/// Whether packets can match each leaf, over all places that its file is read at: a file that several tenants reach may
/// have a class for one of them.
#[derive(Default)]
struct Reach {
    /// Leaves and the tenants that their matches name, with a rule at one place at least.
    met: BTreeSet<(NodeIx, Option<TenantId>)>,
    /// Those whose match excludes all packets of some place.
    excluded: BTreeSet<(NodeIx, Option<TenantId>)>,
    /// Leaves whose match is on a field that no port fills at some place.
    unfilled: BTreeMap<NodeIx, Unfilled>,
}

/// Values of matches that are compared or written for one policy: a match with a thousand addresses for a thousand
/// tenants is a million, and a sub-policy's match is compared with that of its place.
const MOST_VALUES: u64 = 1 << 26;

/// Values reserved for tenants beside those, an equal part for each: if one tenant's file lists as many as it may, the
/// others still have their ordinary matches.
const OWN_VALUES: u64 = MOST_VALUES / 8;

impl Writer<'_> {
    /// Rules of files that no packet reaches, because something above them is wrong: each for itself.
    fn scopes_aside(&mut self) {
        for scope in 0..self.seen.len() {
            if !self.seen[scope] {
                self.floor = self.rules.len();
                let tenant = Vec::from_iter(self.graph.scopes[scope].tenant.map(tenant_id));
                self.scope(scope, &Match { tenant, ..Match::default() });
            }
        }
    }

    /// A file's rules, for the packets that its place gets.
    fn scope(&mut self, scope: ScopeIx, context: &Match) {
        let graph = self.graph;
        self.seen[scope] = true;
        for &leaf in &graph.scopes[scope].leaves {
            let Some(entry) = &graph.nodes[leaf].matches else { continue };
            if !entry.whole || entry.conditions.impossible().is_some() {
                continue; // told already
            }
            if !self.leaf(scope, leaf, entry, context) {
                return;
            }
        }
        if scope == 0 {
            for (index, tenant) in graph.tenants.iter().enumerate() {
                let Some(node) = tenant.node else { continue };
                let matches = Match { tenant: vec![tenant_id(index)], ..Match::default() };
                let claim = self.claim(node, tenant.at);
                self.deliver(scope, node, matches, Some(claim));
                self.claims[claim].end = self.claims.len();
            }
        }
        if let Some(default) = graph.scopes[scope].default
            && (scope != 0 || graph.nodes[default].sub.is_some())
        {
            // The operator's own default class may well wait for tenants to come.
            let stated = scope != 0 && !graph.nodes[default].implicit;
            let claim = stated.then(|| self.claim(default, graph.nodes[default].at));
            self.deliver(scope, default, context.clone(), claim);
            claim.into_iter().for_each(|claim| self.claims[claim].end = self.claims.len());
        }
    }

    /// The rules of a leaf with a match, for the packets that its file's place gets; false when no more rules are afforded.
    fn leaf(&mut self, scope: ScopeIx, leaf: NodeIx, entry: &MatchEntry, context: &Match) -> bool {
        let graph = self.graph;
        let claim = self.claim(leaf, entry.at);
        for tenant in self.tenants(scope, leaf) {
            if !self.affords(&entry.conditions, context, tenant, entry.at) {
                return false;
            }
            let own = Match { tenant: Vec::from_iter(tenant), ..entry.conditions.clone() };
            let Some(both) = context.and(&own) else {
                self.reach.excluded.insert((leaf, tenant));
                continue;
            };
            match metadata::settle(graph, both) {
                Ok(settled) => {
                    self.reach.met.insert((leaf, tenant));
                    for (number, one) in settled.into_iter().enumerate() {
                        if number > 0 && !self.affords(&one, context, one.tenant.first().copied(), entry.at) {
                            return false;
                        }
                        self.deliver(scope, leaf, one, Some(claim));
                    }
                }
                Err(why) => drop(self.reach.unfilled.insert(leaf, why)),
            }
        }
        self.claims[claim].end = self.claims.len();
        true
    }

    /// Reports the matches that hold at no place.
    fn report_unmet(&mut self) {
        if self.left == 0 {
            return; // not all places were looked at, and that was reported
        }
        let Reach { met, excluded, unfilled } = std::mem::take(&mut self.reach);
        for &(leaf, _) in excluded.difference(&met) {
            let name = &self.graph.nodes[leaf].name;
            let message = format!("no packet that reaches this file matches class `{name}`");
            self.never(leaf, message, "widen the match, or remove the class".to_owned());
        }
        let met: BTreeSet<NodeIx> = met.into_iter().map(|(leaf, _)| leaf).collect();
        for (leaf, Unfilled { why, help }) in unfilled.into_iter().filter(|(leaf, _)| !met.contains(leaf)) {
            let message = format!("no packet matches class `{}`: {why}", self.graph.nodes[leaf].name);
            self.never(leaf, message, help);
        }
    }

    fn never(&mut self, leaf: NodeIx, message: String, help: String) {
        let at = self.graph.nodes[leaf].matches.as_ref().map_or(self.graph.nodes[leaf].at, |entry| entry.at);
        let problem = Problem::error(Law::NeverMatches, at, message).label("never holds");
        self.problems.push(problem.help(help));
    }

    /// Whether the policy may have this rule too, of this tenant if it names one; reports the first that it may not have.
    fn affords(&mut self, own: &Match, context: &Match, tenant: Option<TenantId>, at: Mark) -> bool {
        let mut values = own.pairs_with(context) + own.size() as u64 + context.size() as u64;
        let tenant = tenant.or(context.tenant.first().copied());
        if let Some(share) = tenant.and_then(|TenantId(tenant)| self.own.get_mut(tenant as usize)) {
            let taken = values.min(*share);
            (*share, values) = (*share - taken, values - taken);
        }
        if values == 0 || self.left == 0 {
            return values == 0;
        }
        self.left = self.left.saturating_sub(values);
        if self.left == 0 {
            let message = "the composed policy's matches list too many values to be compared";
            let problem = Problem::error(Law::TooLarge, at, message).label("at this match");
            self.problems.push(problem.help(
                "write prefixes and ranges in place of single values, and name fewer tenants in one long match",
            ));
        }
        self.left > 0
    }

    /// Opens the claim of a class to packets; claims of the files below it follow.
    fn claim(&mut self, class: NodeIx, at: Mark) -> usize {
        self.claims.push(Claim { class, at, wanted: Vec::new(), end: 0 });
        self.claims.len() - 1
    }

    /// `from` is the scope that delivers: its own root may be a leaf.
    fn deliver(&mut self, from: ScopeIx, node: NodeIx, matches: Match, claim: Option<usize>) {
        let at = claim.map(|claim| self.claims[claim].at);
        if let Some(claim) = claim {
            self.claims[claim].wanted.push((matches.clone(), self.floor..self.rules.len()));
        }
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
        let own = graph.scopes[scope].tenant;
        let known = entry.tenant.iter().filter_map(|name| graph.tenant_named(&name.value));
        known
            .filter(|&tenant| own.is_none_or(|own| own == tenant))
            .map(|tenant| Some(tenant_id(tenant)))
            .collect()
    }
}
