//! Leftovers once the tree stands: classes and tenants without a place, and names that mean two things.
//!
//! Why: a class that no class lists would silently get no packets, and a tenant that no class carries no service.
//! From: Loom §3 (the graph is connected and without cycles).
//! Not here: growing the tree (`compose`).
//! Invariant: each orphan and each cycle is told once, at its first member.

use std::collections::HashSet;

use super::super::graph::{NodeIx, ScopeIx};
use super::{Composer, Family};
use crate::law::{Law, Problem};
use crate::read::syntax::ClassEntry;
use plimsoll_document::Name;

impl Composer<'_> {
    /// Gives classes that no path from the root reaches a place, so that they are judged too; reports them.
    pub(super) fn leftovers(&mut self, family: &mut Family<'_>) {
        let classes = family.classes;
        let again =
            |family: &Family<'_>, index: usize| family.names[classes[index].name.value.as_str()] != index;
        for index in (0..classes.len()).filter(|&index| again(family, index)).collect::<Vec<_>>() {
            self.grow_loose(family, index, &|_| false); // told where it was read
        }
        let mut parent = vec![None; classes.len()];
        for (index, class) in classes.iter().enumerate().filter(|(index, _)| family.nodes[*index].is_none()) {
            for child in class.order.iter().flat_map(|order| &order.children) {
                match family.names.get(child.name.value.as_str()) {
                    Some(&child) if family.nodes[child].is_none() && parent[child].is_none() => {
                        parent[child] = Some(index)
                    }
                    _ => {}
                }
            }
        }
        self.loose_ends(family, &parent);
    }

    /// Reports the classes that the root does not reach: those that no class lists, and those that form a cycle.
    fn loose_ends(&mut self, family: &mut Family<'_>, parent: &[Option<usize>]) {
        if self.full {
            return;
        }
        let classes = family.classes;
        let mut seen = vec![None; classes.len()];
        let mut starts = Vec::new();
        let mut circling = HashSet::new();
        for start in (0..classes.len()).filter(|&index| family.nodes[index].is_none()) {
            let mut chain = Vec::new();
            let mut at = start;
            while seen[at].is_none() {
                seen[at] = Some(start);
                chain.push(at);
                match parent[at] {
                    Some(above) => at = above,
                    None => {
                        starts.push(at);
                        if !family.rootless {
                            self.orphan(&classes[at]);
                        }
                        break;
                    }
                }
            }
            if parent[at].is_some() && seen[at] == Some(start) {
                let members: Vec<usize> = chain.iter().skip_while(|&&member| member != at).copied().collect();
                self.cycle(&members.iter().map(|&member| &classes[member]).collect::<Vec<_>>());
                starts.extend(members.first());
                circling.extend(members);
            }
        }
        for start in starts {
            self.grow_loose(family, start, &|class| !circling.contains(&class));
        }
    }

    fn orphan(&mut self, class: &ClassEntry) {
        let message = format!("class `{}` hangs nowhere", class.name.value);
        let problem = Problem::error(Law::Orphan, class.name.at, message).label("no parent");
        self.problems.push(problem.help("list it among the children of a class, or remove it"));
    }

    fn cycle(&mut self, members: &[&ClassEntry]) {
        let Some(first) = members.first() else { return };
        let chain = members.iter().take(8).map(|class| format!("`{}`", class.name.value));
        let chain = chain.collect::<Vec<_>>().join(", which is below ");
        let message = format!("{chain}, which is below `{}`", first.name.value);
        let problem = Problem::error(Law::Cycle, first.name.at, message).label("part of a cycle");
        self.problems
            .push(problem.help("list one of them among the children of a class below `root` instead"));
    }

    pub(super) fn clashes(&mut self, classes: &[ClassEntry], scope: ScopeIx) {
        for class in classes {
            let name = &class.name;
            let tenant = if scope == 0 { self.graph.tenant_named(&name.value) } else { None };
            let limit = self.graph.scopes[scope].limit(&name.value);
            let first = match (tenant, limit) {
                (Some(tenant), _) => Some((self.graph.tenants[tenant].at, "a tenant")),
                (None, Some(limit)) => Some((self.graph.limits[limit].entry.name.at, "a limit")),
                (None, None) => None,
            };
            let Some((first, what)) = first else { continue };
            let problem =
                Problem::error(Law::NameClash, name.at, format!("class `{}` is also {what}", name.value));
            let help = match what {
                "a tenant" => {
                    "rename the class; a tenant's envelope goes into `tenants:`, its classes into the file that \
                     its `policy` names"
                }
                _ => "rename one of the two",
            };
            self.problems
                .push(problem.label("again here").also(first, format!("{what} of that name")).help(help));
        }
    }

    pub(super) fn unplaced_tenants(&mut self) {
        let matched: Vec<(NodeIx, Name)> = self.graph.scopes.first().map_or_else(Vec::new, |scope| {
            let matches = |&node: &NodeIx| {
                let names = self.graph.nodes[node].matches.iter().flat_map(|found| found.tenant.clone());
                names.map(move |name| (node, name)).collect::<Vec<_>>()
            };
            scope.leaves.iter().flat_map(matches).collect()
        });
        for (node, name) in matched {
            if let Some(tenant) = self.graph.tenant_named(&name.value) {
                self.graph.tenants[tenant].matched_by.push(node);
            }
        }
        for index in 0..self.tenants.len() {
            let draft = &self.graph.tenants[index];
            if draft.node.is_some() || self.full {
                continue;
            }
            if draft.matched_by.is_empty() {
                if !self.rootless && self.is_first_tenant(index) {
                    self.tenant_without_class(index);
                }
                let node = self.place_loose(index);
                self.graph.tenants[index].node = Some(node);
            } else if self.envelope_without_place(index) {
                self.place_loose(index);
            }
        }
    }

    fn place_loose(&mut self, tenant: usize) -> NodeIx {
        let node = self.place_tenant(tenant, 0, self.weights[tenant], 0);
        self.graph.nodes[node].loose = true;
        node
    }

    fn tenant_without_class(&mut self, index: usize) {
        let draft = &self.graph.tenants[index];
        let message = format!("no class carries tenant `{}`", draft.name);
        let problem = Problem::error(Law::Orphan, draft.at, message).label("no parent");
        let help = format!(
            "list `{0}` among the children of a class, as in `wfq: {{{0}: 1}}`, or match it: \
             `match: {{tenant: {0}}}`; or list `others`, all tenants without a place of their own",
            draft.name
        );
        self.problems.push(problem.help(help));
    }

    /// Reports the envelope of a tenant that classes only match: it has no node that could keep it. Returns whether there was one.
    fn envelope_without_place(&mut self, index: usize) -> bool {
        let entry = &self.tenants[index];
        let class = &entry.class;
        let stated = [
            class.min.map(|found| (found.at, "min")),
            class.max.map(|found| (found.at, "max")),
            entry.weight.map(|found| (found.at, "weight")),
            class.policy.as_ref().map(|found| (found.at, "policy")),
            class.via.first().map(|found| (found.at, "via")),
            class.flows.map(|found| (found.at, "flows")),
            class.queues.as_ref().map(|found| (found.at, "queues")),
        ];
        let told = self.problems.len();
        for (at, key) in stated.into_iter().flatten() {
            let message = format!(
                "`{key}` of tenant `{}` holds nowhere: the tree has no place for it",
                entry.name.value
            );
            let problem = Problem::error(Law::Meaningless, at, message).label("no effect");
            let help =
                format!("list `{}` among the children of a class, or leave `{key}` out", entry.name.value);
            self.problems.push(problem.help(help));
        }
        self.problems.len() > told
    }
}
