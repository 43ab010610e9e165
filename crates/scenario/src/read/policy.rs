//! Taking the policy's sections out of a scenario or a policy file.
//!
//! Why: the scenario's author writes the policy in place, or points at one that is in use.
//! From: `docs/scenarios.md`, "Policy"; the sections themselves are `docs/policy.md`'s.
//! Not here: what the sections mean; `plimsoll-policy` checks them.
//! Invariant: sections keep the order of their keys.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_document::{self as document, Tree, Value};

use plimsoll_policy::HOST_FILE;

use super::fields::{Fields, Reader};
use super::no_yaml;
use crate::Problem;
use crate::sections::PolicySections;

/// Keys of a tenant that only a scenario knows.
const OURS: [&str; 5] = ["host", "address", "core", "forwards", "tcp_ecn"];

impl Reader {
    /// `policy:`, `limits:`, `engine:` and the envelopes of `tenants:`.
    pub(super) fn sections(
        &mut self,
        fields: &Fields<'_>,
        tenants: Option<&Tree>,
        folder: &Path,
    ) -> PolicySections {
        let mut sections = match fields.get("policy_file") {
            Some(tree) => self.policy_file(fields, tree, folder),
            None => PolicySections { base: folder.to_owned(), ..PolicySections::default() },
        };
        let own = |key| fields.get(key).cloned();
        sections.policy = own("policy").or(sections.policy);
        sections.limits = own("limits").or(sections.limits);
        sections.engine = own("engine").or(sections.engine);
        sections.backpressure = backpressure(fields).cloned().or(sections.backpressure);
        if let Some(tenants) = tenants {
            self.entries(tenants, "`tenants`");
            let known = sections.tenants.iter().enumerate();
            let known: HashMap<String, usize> = known.map(|(at, (name, _))| (name.clone(), at)).collect();
            for (name, entries) in promises(tenants, &OURS) {
                match known.get(&name).map(|&at| &mut sections.tenants[at].1) {
                    Some(found) if entries.is_empty() => found.retain(|(key, _)| key != "port"),
                    Some(found) => *found = entries,
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
        let text = match plimsoll_policy::read_text(&path, plimsoll_policy::MAX_FILE) {
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
                // The keys that are not taken from it may stand in it, or be left out: the file is one in use.
                let top = self.some_fields(&file, file.at, "a policy file", &HOST_FILE);
                let own = |key| top.get(key).cloned();
                (sections.policy, sections.limits, sections.engine) =
                    (own("policy"), own("limits"), own("engine"));
                sections.backpressure = own("backpressure");
                if let Some(tenants) = own("tenants") {
                    self.entries(&tenants, "`tenants`");
                    sections.tenants = promises(&tenants, &["port"]);
                }
                sections.base = path.parent().unwrap_or(folder).to_owned();
            }
        }
        sections
    }
}

/// `backpressure`, unless it is `off`.
fn backpressure<'t>(fields: &Fields<'t>) -> Option<&'t Tree> {
    fields.get("backpressure").filter(|tree| !is_off(tree))
}

/// Whether a section is switched off.
pub(super) fn is_off(tree: &Tree) -> bool {
    matches!(&tree.value, Value::Text(text) if text == "off")
}

/// Each tenant's keys without those in `leave`.
fn promises(tenants: &Tree, leave: &[&str]) -> Vec<(String, Vec<(String, Tree)>)> {
    let kept = |tree: &Tree| {
        let kept = tree.entries().iter().filter(|(key, _)| !leave.contains(&key.value.as_str()));
        kept.map(|(key, value)| (key.value.clone(), value.clone())).collect()
    };
    tenants.entries().iter().map(|(key, tree)| (key.value.clone(), kept(tree))).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Form, Scenario};

    const SCENARIO: &str = "
name: t
rate: 10Mbps
duration: 1s
systems: [plimsoll]
tenants: {a: {}, b: {}}
workloads: {w: {tenant: a, kind: bulk}}
policy_file: p.yaml
";

    fn read(policy: &str) -> Result<Scenario, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("p.yaml"), policy).expect("written");
        let read = Scenario::parse(SCENARIO, "t.yaml", folder.path(), Form::Full);
        read.map_err(|errors| errors.render(false))
    }

    #[test]
    fn a_policy_files_unknown_keys_are_refused_with_their_place() {
        read("uplink: {port: memory, rate: 1Gbps}\npolicy: {root: {wfq: {a: 2, b: 1}}}\n")
            .expect("a policy file");
        let shown = read("policy: {root: {wfq: {a: 2, b: 1}}}\nlimts: {}\n").expect_err("a slip");
        assert!(shown.contains("p.yaml:2:1") && shown.contains("did you mean `limits`?"), "{shown}");
        let shown = read("polcy: {root: {wfq: {a: 2, b: 1}}}\n").expect_err("a slip");
        assert!(shown.contains("p.yaml:1:1") && shown.contains("did you mean `policy`?"), "{shown}");
        let shown = read(SCENARIO).expect_err("another kind of file");
        assert!(shown.contains("a policy file has no key `name`"), "{shown}");
        let shown = read("- policy\n").expect_err("no map");
        assert!(shown.contains("a policy file is a list, not a map"), "{shown}");
    }
}
