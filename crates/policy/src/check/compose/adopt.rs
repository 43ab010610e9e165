//! Adoption: a class or tenant becomes a node of the tree.
//!
//! Why: a class's keys depend on its place: children exclude a match, a file's root states no share.
//! From: `docs/policy.md`, "`policy`"; Loom §3.
//! Not here: which class goes where (`compose`).
//! Invariant: a node is made for each class that is adopted, whatever is wrong with it.

use plimsoll_units::Span;

use super::super::graph::{Draft, DraftKind, NodeIx, ScopeIx, TenantIx, scoped};
use super::{Composer, DEEPEST, DEFAULT_TAG, Sub};
use crate::law::{Law, Problem};
use crate::read::syntax::{Child, ClassEntry, Flows, OrderKind, Queues};
use plimsoll_document::{Located, Mark, Name, shown};

/// Names at each end of a path that is too deep to be shown whole.
const PATH_ENDS: usize = 3;

impl Composer<'_> {
    /// Puts the order of a file's root into the node of its place, which keeps its own envelope.
    pub(super) fn adopt_root(&mut self, root: &ClassEntry, scope: ScopeIx, place: NodeIx) {
        let top = self.graph.scopes[scope].outer.is_none();
        let refuse = |at: Option<Mark>, key: &str, help: &str| {
            at.map(|at| {
                let problem = Problem::error(Law::Meaningless, at, format!("`root` has `{key}`"));
                problem.label("not at the root").help(help)
            })
        };
        let min_help = "the root's share is not the file's to state: put `min` into its classes";
        let max_help = "the file that names this one states its `max`; to hold yourself back, write a limit and send via it";
        let match_help = "everything that comes here reaches the root: put the match into its classes";
        let mut refused = vec![
            refuse(root.min.map(|min| min.at), "min", min_help),
            refuse(root.matches.as_ref().map(|found| found.at), "match", match_help),
        ];
        if !top {
            refused.push(refuse(root.max.map(|max| max.at), "max", max_help));
        }
        self.problems.extend(refused.into_iter().flatten());
        let kind = self.kind_of(root, place, scope);
        let node = &mut self.graph.nodes[place];
        (node.kind, node.form) = (kind, root.form);
        node.descriptors = root.descriptors.map(|cap| cap.value).or(node.descriptors);
        if top {
            (node.at, node.max, node.burst) = (root.name.at, root.max, root.burst);
        }
        let via = self.limits_named(&root.via, scope);
        self.graph.nodes[place].via.extend(via);
        self.judge_match(root, place, scope);
        if let Some(path) = &root.policy {
            let problem = Problem::error(Law::Meaningless, path.at, "`root` is itself another file's policy");
            self.problems
                .push(problem.label("not at the root").help("name that file where this one is named"));
            self.attach_aside(path, place);
        }
        if let Some(queues) = &root.queues {
            let problem = Problem::error(Law::Meaningless, queues.at, "`root` has `queues`");
            self.problems.push(problem.label("not at the root").help(
                "list them as its children, `priority: [voice, rest]`, and give each a `match` of its own",
            ));
        }
    }

    pub(super) fn adopt(
        &mut self,
        class: &ClassEntry,
        parent: NodeIx,
        weight: u32,
        scope: ScopeIx,
    ) -> NodeIx {
        let depth = self.graph.nodes[parent].depth + 1;
        // Too deep to be walked from below: it hangs from its file's root.
        let (hung, loose) =
            if depth > DEEPEST { (self.graph.scopes[scope].root, true) } else { (parent, false) };
        let name = self.path_below(parent, &class.name.value, depth);
        let tenant = self.graph.nodes[parent].tenant;
        let parent = hung;
        let node = self.node(Draft {
            parent: Some(parent),
            depth,
            loose,
            weight,
            min: class.min,
            max: class.max,
            burst: class.burst,
            descriptors: class.descriptors.map(|cap| cap.value),
            form: class.form,
            matches: class.matches.clone(),
            tenant,
            ..Draft::leaf(name, class.name.at, scope)
        });
        self.graph.nodes[parent].children.push(node);
        self.graph.nodes[node].kind = self.kind_of(class, node, scope);
        self.graph.nodes[node].via = self.limits_named(&class.via, scope);
        self.judge_match(class, node, scope);
        if let Some(path) = &class.policy {
            self.attach(path, class, node);
        }
        if let Some(queues) = &class.queues {
            self.attach_queues(queues, class, node);
        }
        node
    }

    /// The path of a class below `parent`; of one that lies too deep, its ends.
    fn path_below(&self, parent: NodeIx, name: &str, depth: usize) -> String {
        let path = scoped(&self.graph.nodes[parent].name, &shown(name));
        if depth > self.max_depth { ends_of(&path) } else { path }
    }

    /// Reports mistakes in a match that do not depend on its place.
    fn judge_match(&mut self, class: &ClassEntry, node: NodeIx, scope: ScopeIx) {
        let Some(entry) = &class.matches else { return };
        let own = self.graph.scopes[scope].tenant;
        for name in &entry.tenant {
            let known = self.graph.tenant_named(&name.value);
            if own.is_some() && known != own {
                let message = format!("`{}` is not this file's tenant", name.value);
                let problem =
                    Problem::error(Law::Outside, name.at, message).label("outside of this sub-policy");
                self.problems.push(
                    problem.help("a sub-policy sees its own tenant's packets only: leave `tenant` out"),
                );
            } else if known.is_none() {
                self.unknown_name(name, scope, "tenant");
            }
        }
        // An empty range has been reported by the reader.
        if let Some(why) = entry.conditions.impossible().filter(|_| !entry.conditions.has_empty_range()) {
            let message = format!("no packet matches class `{}`: {why}", self.graph.nodes[node].name);
            let problem = Problem::error(Law::NeverMatches, entry.at, message).label("never holds");
            self.problems.push(problem.help("widen the match, or remove the class"));
        }
    }

    /// Gives a file without a place one, so that its mistakes are reported too.
    fn attach_aside(&mut self, path: &Name, beside: NodeIx) {
        let near = &self.graph.nodes[beside];
        let (name, at, scope, tenant) = (near.name.clone(), near.at, near.scope, near.tenant);
        let depth = near.depth;
        let aside =
            Draft { parent: Some(beside), depth, tenant, loose: true, ..Draft::leaf(name, at, scope) };
        let aside = self.node(aside);
        self.pending.push_back((Sub::File(path.clone()), aside));
    }

    /// Notes the file whose root takes this leaf's place.
    fn attach(&mut self, path: &Name, class: &ClassEntry, node: NodeIx) {
        let stated = class
            .order
            .as_ref()
            .map(|order| (order.at, "children"))
            .or(class.flows.map(|f| (f.at, "`flows`")))
            // The file may state a cap of its own, which would replace this one.
            .or(class.descriptors.map(|cap| (cap.at, "`descriptors`")));
        match stated {
            Some((at, what)) => {
                let message = format!("`{}` has {what} and a `policy` file", class.name.value);
                let problem = Problem::error(Law::Meaningless, at, message).label("stated here");
                self.problems.push(
                    problem
                        .also(path.at, "and by this file")
                        .help("say it in that file's `root`, or drop the file"),
                );
                self.attach_aside(path, node);
            }
            None => self.pending.push_back((Sub::File(path.clone()), node)),
        }
    }

    /// Notes the queues that a class divides itself into.
    fn attach_queues(&mut self, queues: &Queues, class: &ClassEntry, node: NodeIx) {
        let stated = [
            class.order.as_ref().map(|order| (order.at, "children")),
            class.policy.as_ref().map(|path| (path.at, "a `policy` file")),
            class.flows.map(|flows| (flows.at, "`flows`")),
            class.slack.map(|slack| (slack.at, "`slack`")),
            class.deadline.map(|deadline| (deadline.at, "`deadline`")),
        ];
        let Some((at, what)) = stated.into_iter().flatten().next() else {
            return self.pending.push_back((Sub::Queues(queues.clone()), node));
        };
        let message = format!("`{}` has {what} and `queues`", class.name.value);
        let problem = Problem::error(Law::Meaningless, at, message).label("stated here");
        let help = "say it in each of the queues, or leave `queues` out";
        self.problems.push(problem.also(queues.at, "its queues").help(help));
    }

    /// A child that is no class of this file: a tenant, for the operator.
    pub(super) fn adopt_tenant(
        &mut self,
        child: &Child,
        kind: OrderKind,
        parent: NodeIx,
        scope: ScopeIx,
        tell: bool,
    ) {
        let known = if scope == 0 { self.graph.tenant_named(&child.name.value) } else { None };
        let known = known.filter(|&tenant| tenant < self.tenants.len());
        let Some(tenant) = known else { return self.unknown_child(child, scope) };
        if let Some(first) = self.graph.tenants[tenant].node {
            if !tell {
                return;
            }
            let message = format!("tenant `{}` has two scheduling parents", child.name.value);
            return self.second_parent(message, child.name.at, first);
        }
        let stated = self.tenants[tenant].weight;
        let weight = child.weight.map_or(self.weights[tenant], |weight| weight.value);
        let node = self.place_tenant(tenant, parent, weight, scope);
        self.graph.nodes[node].rate = child.rate;
        self.graph.tenants[tenant].node = Some(node);
        self.weight_problems(child, stated, kind);
    }

    /// Makes a tenant's node.
    pub(super) fn place_tenant(
        &mut self,
        tenant: TenantIx,
        parent: NodeIx,
        weight: u32,
        scope: ScopeIx,
    ) -> NodeIx {
        let name = self.tenants[tenant].name.clone();
        let entry = std::mem::replace(&mut self.tenants[tenant].class, ClassEntry::new(name));
        let node = self.adopt(&entry, parent, weight, scope);
        self.tenants[tenant].class = entry;
        self.graph.nodes[node].tenant = Some(tenant);
        node
    }

    fn weight_problems(&mut self, child: &Child, stated: Option<Located<u32>>, kind: OrderKind) {
        let Some(stated) = stated else { return };
        if !kind.weighs() {
            let message = format!("the weight of tenant `{}` means nothing here", child.name.value);
            let problem = Problem::warning(Law::Meaningless, stated.at, message).label("this weight");
            self.problems.push(
                problem
                    .also(child.name.at, "no weights among these children")
                    .help("leave `weight` out, or put the tenant below a `wfq` or `drr` class"),
            );
        } else if let Some(weight) = child.weight.filter(|weight| weight.value != stated.value) {
            let message = format!("tenant `{}` has two weights; {} counts", child.name.value, weight.value);
            let problem =
                Problem::warning(Law::Meaningless, stated.at, message).label("this one does not count");
            self.problems.push(problem.also(weight.at, "this one counts").help("keep one of the two"));
        }
    }

    /// The kind of a class of the file `scope`: its order or, for a leaf, the order of its flow queues.
    fn kind_of(&mut self, class: &ClassEntry, node: NodeIx, scope: ScopeIx) -> DraftKind {
        let name = class.name.value.clone();
        if let (Some(order), Some(matches)) =
            (&class.order, class.matches.as_ref().filter(|_| name != "root"))
        {
            let message = format!("`{name}` has children and a `match`");
            let problem = Problem::error(Law::MatchOnNode, matches.at, message).label("only leaves match");
            self.problems.push(
                problem
                    .also(order.at, "has children")
                    .help("put the match into each of its leaves that it is meant for"),
            );
        }
        if let Some(order) = &class.order {
            let leaf_keys = [
                class.flows.map(|found| (found.at, "flows")),
                class.slack.map(|found| (found.at, "slack")),
                class.deadline.map(|found| (found.at, "deadline")),
                class.descriptors.map(|found| (found.at, "descriptors")),
            ];
            for (at, key) in leaf_keys.into_iter().flatten() {
                let message = format!("`{name}` has children and `{key}`");
                let problem = Problem::error(Law::Meaningless, at, message).label("only for leaves");
                self.problems.push(
                    problem
                        .also(order.at, "has children")
                        .help(format!("flow queues are in leaves: put `{key}` into the children")),
                );
            }
            if let Some(module) = &order.module {
                self.graph.nodes[node].rank = self.rank_program(module, scope, node);
            }
            return DraftKind::Order(order.kind);
        }
        let above = self.graph.path(node).skip(1).find_map(|above| match self.graph.nodes[above].kind {
            DraftKind::Order(OrderKind::Lstf) => Some(Flows::Lstf),
            DraftKind::Order(OrderKind::Edf) => Some(Flows::Edf),
            DraftKind::Order(OrderKind::Program) => Some(Flows::Ranked),
            _ => None,
        });
        // A program reads both, whichever is stated.
        let ranked = above.filter(|&above| above == Flows::Ranked);
        let stated = class.slack.map(|_| Flows::Lstf).or(class.deadline.map(|_| Flows::Edf));
        let implied = ranked.or(stated).or(above);
        let flows = class.flows.map(|flows| flows.value).or(implied).unwrap_or(self.graph.flows);
        for (stated, key, wanted) in
            [(class.slack, "slack", Flows::Lstf), (class.deadline, "deadline", Flows::Edf)]
        {
            let Some(stated) = stated.filter(|_| flows != wanted && flows != Flows::Ranked) else { continue };
            let order = key_of(wanted);
            let message = format!("`{name}` has `{key}`, but nothing there orders by it");
            let problem = Problem::error(Law::Meaningless, stated.at, message).label("no effect");
            self.problems.push(problem.help(if ranked.is_some() {
                format!(
                    "leave `flows` out: the program above then orders this class's flows, and reads `{key}`"
                )
            } else {
                format!("write `flows: {order}`, or leave `{key}` out")
            }));
        }
        let tag = match flows {
            Flows::Lstf => class.slack.map_or(DEFAULT_TAG, |slack| slack.value),
            Flows::Edf => class.deadline.map_or(DEFAULT_TAG, |deadline| deadline.value),
            Flows::Ranked => class.slack.or(class.deadline).map_or(DEFAULT_TAG, |stated| stated.value),
            Flows::Fifo | Flows::Drr | Flows::Fq(_) => Span::ZERO,
        };
        DraftKind::Leaf { flows, tag }
    }
}

fn key_of(flows: Flows) -> &'static str {
    match flows {
        Flows::Fifo => "fifo",
        Flows::Drr => "drr",
        Flows::Fq(_) => "fq",
        Flows::Lstf => "lstf",
        Flows::Edf => "edf",
        Flows::Ranked => "program",
    }
}

/// The first and the last names of a long path.
fn ends_of(path: &str) -> String {
    let names: Vec<&str> = path.split('/').collect();
    if names.len() <= 2 * PATH_ENDS + 1 {
        return path.to_owned();
    }
    let (first, last) = (&names[..PATH_ENDS], &names[names.len() - PATH_ENDS..]);
    format!("{}/…/{}", first.join("/"), last.join("/"))
}
