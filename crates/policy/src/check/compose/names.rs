//! Names: what they stand for, and the problems of those that stand for nothing.
//!
//! Why: a mistaken name is the commonest mistake, and its message should say what was meant.
//! From: `docs/policy.md`, "Errors".
//! Not here: building the tree (`compose`).
//! Invariant: a sub-policy's messages name nothing outside of it.

use std::collections::HashMap;

use super::super::graph::{Known, NodeIx, ScopeIx, TenantDraft};
use super::Composer;
use crate::law::{Law, Problem};
use crate::read::syntax::{Child, ClassEntry, PolicyFile};
use plimsoll_document::{Located, Mark, Name, nearest};

/// The tenant of the host's own traffic, once the host has a port.
const HOST: &str = "host";

/// Names under which operators see something else than a tenant.
const RESERVED: [(&str, &str); 3] = [
    ("root", "the whole tree"),
    ("default", "the class of what no match takes"),
    ("uplink", "the uplink's counters"),
];

/// Mistakes beyond which no more names are guessed.
const GUESSES: usize = 100;

/// The problem of a tenant's name that stands for something else wherever names are shown.
pub(super) fn reserved(name: &Located<String>) -> Option<Problem> {
    let (_, what) = RESERVED.iter().find(|(reserved, _)| *reserved == name.value)?;
    let message = format!("a tenant cannot be called `{}`, which is {what}", name.value);
    let problem = Problem::error(Law::BadName, name.at, message).label("taken");
    Some(problem.help("choose another name, such as the machine's or the customer's"))
}

impl Composer<'_> {
    /// Adds the tenant `host` where a match names it and the host has no port yet; warns of it.
    pub(super) fn host_tenant(&mut self, file: &PolicyFile) {
        let classes = file.classes.iter().flatten().flat_map(|class| &class.matches);
        let mut matches = classes.chain(file.limits.iter().map(|limit| &limit.matches));
        let named = matches.find_map(|found| found.tenant.iter().find(|name| name.value == HOST));
        if let Some(name) = named.filter(|_| self.graph.tenant_named(HOST).is_none()) {
            self.graph.tenant_names.insert(HOST.to_owned(), self.graph.tenants.len());
            let (name, at) = (HOST.to_owned(), name.at);
            self.graph.tenants.push(TenantDraft {
                name,
                at,
                node: None,
                matched_by: Vec::new(),
                known: Known::default(),
            });
            let problem = Problem::warning(Law::NeverMatches, at, "no port is the tenant `host`'s");
            self.problems.push(problem.label("nothing comes from there").help(
                "the kernel's own packets pass by: give the host a port, as in `tenants: {host: {port: {tap: {name: \
                 host0}}}}`, and that interface the host's address in place of the uplink's",
            ));
        }
    }

    pub(super) fn unknown_child(&mut self, child: &Child, scope: ScopeIx) {
        if self.problems.is_full() {
            return self.problems.count_error();
        }
        let name = &child.name;
        if self.graph.scopes[scope].limit(&name.value).is_some() {
            let problem =
                Problem::error(Law::WrongKind, name.at, format!("`{}` is a limit, not a class", name.value));
            self.problems.push(problem.label("a class belongs here").help(format!(
                "limits shape and do not order: write `via: [{}]` in the class that it should hold",
                name.value
            )));
            return;
        }
        self.unknown_name(name, scope, "class");
    }

    /// Reports a name that this file cannot use: it is unknown, or stands in another file.
    pub fn unknown_name(&mut self, name: &Name, scope: ScopeIx, what: &str) {
        if self.problems.is_full() {
            return self.problems.count_error();
        }
        let elsewhere = || {
            let own = &self.graph.scopes[scope];
            let here = usize::from(own.stated.contains(&name.value) || own.limit(&name.value).is_some());
            self.stated.get(&name.value).is_some_and(|scopes| *scopes > here)
        };
        if scope != 0 && (self.graph.tenant_named(&name.value).is_some() || elsewhere()) {
            let message = format!("`{}` is not this file's to name", name.value);
            let problem = Problem::error(Law::Outside, name.at, message).label("outside of this sub-policy");
            self.problems.push(
                problem.help("a sub-policy names only its own classes and limits: define it in this file"),
            );
            return;
        }
        let known = &self.graph.scopes[scope];
        let classes = known.stated.iter().map(String::as_str);
        let limits = known.limits.keys().map(String::as_str);
        let tenants = self.graph.tenants.iter().filter(|_| scope == 0).map(|tenant| tenant.name.as_str());
        // Each guess looks at every name: after the first hundred a tenant's file would take too long.
        let near = match what {
            _ if self.problems.len() >= GUESSES => None,
            "limit" => nearest(&name.value, limits),
            "tenant" => nearest(&name.value, tenants),
            _ => nearest(&name.value, classes.chain(tenants)),
        };
        let help = match near {
            Some(near) => format!("did you mean `{near}`? Otherwise define it, or take the name out"),
            None => format!("define {what} `{}` in this file, or take the name out", name.value),
        };
        let problem =
            Problem::error(Law::UnknownName, name.at, format!("there is no {what} `{}`", name.value));
        self.problems.push(problem.label("unknown").help(help));
    }

    pub(super) fn claimed_twice(
        &mut self,
        child: &Child,
        class: &ClassEntry,
        node: Option<NodeIx>,
        parent: NodeIx,
    ) {
        let Some(node) = node else { return };
        if self.graph.path(parent).any(|ancestor| ancestor == node) {
            let message = format!("`{}` would lie below itself", child.name.value);
            let problem = Problem::error(Law::Cycle, child.name.at, message).label("closes a cycle");
            self.problems.push(
                problem
                    .also(class.name.at, "starts here")
                    .help("a packet would never reach the root: take this child out, or hang it elsewhere"),
            );
            return;
        }
        self.second_parent(format!("`{}` has two scheduling parents", child.name.value), child.name.at, node);
    }

    pub(super) fn second_parent(&mut self, message: String, at: Mark, node: NodeIx) {
        let parent = self.graph.nodes[node].parent.map_or(0, |parent| parent);
        let (parent_at, parent_name) = (self.graph.nodes[parent].at, self.graph.nodes[parent].name.clone());
        let problem = Problem::error(Law::SecondParent, at, message).label("second parent");
        self.problems.push(problem.also(parent_at, format!("`{parent_name}` is its parent already")).help(
            "without limits the graph must be a tree: keep one parent; to hold traffic of several classes to one \
             rate, use a limit and `via`",
        ));
    }

    /// Limits that `via` names.
    pub fn limits_named(&mut self, names: &[Name], scope: ScopeIx) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        let mut seen: HashMap<&str, Mark> = HashMap::with_capacity(names.len());
        for name in names {
            if let Some(&first) = seen.get(name.value.as_str()) {
                let message = format!("this `via` names `{}` twice", name.value);
                let problem = Problem::error(Law::BadValue, name.at, message).label("again here");
                self.problems.push(problem.also(first, "first here").help(
                    "take one of the two out: a packet passes a limit once (was another limit's name meant?)",
                ));
                continue;
            }
            seen.insert(&name.value, name.at);
            match self.graph.scopes[scope].limit(&name.value) {
                Some(limit) => found.push(limit),
                None => self.unknown_limit(name, scope),
            }
        }
        found
    }

    fn unknown_limit(&mut self, name: &Name, scope: ScopeIx) {
        let is_class = self.graph.scopes[scope].stated.contains(&name.value)
            || (scope == 0 && self.graph.tenant_named(&name.value).is_some());
        if is_class || name.value == "root" {
            let problem =
                Problem::error(Law::WrongKind, name.at, format!("`{}` is a class, not a limit", name.value));
            self.problems.push(
                problem
                    .label("a limit belongs here")
                    .help("`via` names limits; a class's parent is the one that lists it among its children"),
            );
            return;
        }
        self.unknown_name(name, scope, "limit");
    }
}
