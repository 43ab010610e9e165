//! Taking the policy's sections out of a scenario or a policy file.
//!
//! Why: the scenario's author writes the policy in place, or points at one that is in use.
//! From: `docs/scenarios.md`, "Policy"; the sections themselves are `docs/policy.md`'s.
//! Not here: what the sections mean; `plimsoll-policy` checks them.
//! Invariant: sections keep the order of their keys.

use std::path::Path;

use plimsoll_policy::document::{self, Tree};

use super::fields::{Fields, Reader};
use super::no_yaml;
use crate::Problem;
use crate::model::PolicySections;

/// Keys of a tenant that only a scenario knows.
const OURS: [&str; 3] = ["host", "address", "core"];

impl Reader {
    /// `policy:`, `limits:`, `engine:` and what `tenants:` promises.
    pub(super) fn sections(&mut self, fields: &Fields<'_>, folder: &Path) -> PolicySections {
        let mut sections = match fields.get("policy_file") {
            Some(tree) => self.policy_file(fields, tree, folder),
            None => PolicySections { base: folder.to_owned(), ..PolicySections::default() },
        };
        let own = |key| fields.get(key).cloned();
        sections.policy = own("policy").or(sections.policy);
        sections.limits = own("limits").or(sections.limits);
        sections.engine = own("engine").or(sections.engine);
        if let Some(tenants) = fields.get("tenants") {
            for (name, entries) in promises(tenants, &OURS) {
                match sections.tenants.iter_mut().find(|(tenant, _)| *tenant == name) {
                    Some((_, found)) if entries.is_empty() => found.retain(|(key, _)| key != "port"),
                    Some((_, found)) => *found = entries,
                    None => sections.tenants.push((name, entries)),
                }
            }
        }
        sections
    }

    fn policy_file(&mut self, fields: &Fields<'_>, tree: &Tree, folder: &Path) -> PolicySections {
        let mut sections = PolicySections { base: folder.to_owned(), ..PolicySections::default() };
        if fields.get("policy").is_some() {
            let problem = Problem::new(tree.at, "there is both a `policy` and a `policy_file`");
            self.problem(problem.label("one too many").help("keep one of them"));
        }
        let Some(name) = self.text(tree) else { return sections };
        let path = folder.join(name);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                let problem = Problem::new(tree.at, format!("{}: {error}", path.display()));
                self.problem(
                    problem.label("cannot be read").help("paths start in the scenario's own folder"),
                );
                return sections;
            }
        };
        let file = self.sources.add(&path.to_string_lossy(), text);
        match document::parse(&self.sources, file) {
            Err(error) => self.problem(no_yaml(error).also(tree.at, "names this file")),
            Ok(file) => {
                let own = |key| file.get(key).cloned();
                (sections.policy, sections.limits, sections.engine) =
                    (own("policy"), own("limits"), own("engine"));
                sections.tenants =
                    own("tenants").map_or_else(Vec::new, |tenants| promises(&tenants, &["port"]));
                sections.base = path.parent().unwrap_or(folder).to_owned();
            }
        }
        sections
    }
}

/// Each tenant's keys without those in `leave`.
fn promises(tenants: &Tree, leave: &[&str]) -> Vec<(String, Vec<(String, Tree)>)> {
    let kept = |tree: &Tree| {
        let kept = tree.entries().iter().filter(|(key, _)| !leave.contains(&key.value.as_str()));
        kept.map(|(key, value)| (key.value.clone(), value.clone())).collect()
    };
    tenants.entries().iter().map(|(key, tree)| (key.value.clone(), kept(tree))).collect()
}
