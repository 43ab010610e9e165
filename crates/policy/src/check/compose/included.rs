//! Tenants that come and go: files of an included folder, and the class `others`.
//!
//! Why: tools add and remove tenants while the operator's own file, with its comments and its tree, stays as it is.
//! From: `docs/policy.md`, "Tenants that come and go".
//! Not here: who writes such files (`plimsoll-cni`, say); what they say (`read`).
//! Invariant: an included tenant is judged as one of the operator's own file, with mistakes at their place in its file.

use std::collections::{HashMap, HashSet};

use plimsoll_units::Bytes;

use super::super::unread;
use super::{Composer, beside};
use crate::law::{Law, Problem};
use crate::read;
use crate::read::syntax::{Child, ClassEntry, HostFile, Order, OrderKind, PolicyFile, TenantEntry};
use plimsoll_document::{self as document, Located, Mark, Name};

/// The class of all tenants that have no place of their own.
const OTHERS: &str = "others";
/// Bytes of all files of an included folder together.
const MOST_BYTES: Bytes = Bytes::new(32_000_000);

impl Composer<'_> {
    /// Adds the tenants of the files in the folder that `include` names.
    pub fn include(&mut self, host: &mut HostFile) {
        let Some(folder) = &host.include else { return };
        let place = beside(&self.sources.file(folder.at.file).name, folder.value.trim_end_matches('/'));
        let files = self.files.folder(&place).unwrap_or_else(|why| {
            let help = "make the folder, or leave `include` out";
            self.not_included(folder, &place, &why, help);
            Vec::new()
        });
        let stated = |tenant: &TenantEntry| (tenant.name.value.clone(), tenant.name.at);
        let mut known: HashMap<String, Mark> = host.tenants.iter().map(stated).collect();
        let mut bytes = 0;
        for file in files {
            let Some(tenants) = self.included(folder, &file, &mut bytes) else { continue };
            for tenant in &tenants {
                if let Some(first) = known.insert(tenant.name.value.clone(), tenant.name.at)
                    && first.file != tenant.name.at.file
                {
                    self.stated_again(&tenant.name, first);
                }
            }
            host.tenants.extend(tenants);
        }
    }

    fn included(&mut self, folder: &Name, file: &str, bytes: &mut u64) -> Option<Vec<TenantEntry>> {
        let help = "remove the file, or make it readable";
        let text = self.files.text(file).map_err(|why| self.not_included(folder, file, &why, help)).ok()?;
        *bytes += text.len() as u64;
        if *bytes > MOST_BYTES.as_u64() {
            let why = format!("the files down to this one hold more than {MOST_BYTES} together");
            self.not_included(folder, file, &why, "make the files smaller");
            return None;
        }
        let id = self.sources.add(file, text);
        match document::parse(self.sources, id) {
            Ok(tree) => {
                let (tenants, problems) = read::read_all(|reader| read::included_file(reader, &tree));
                self.problems.append(problems);
                Some(tenants)
            }
            Err(error) => {
                self.problems.push(unread::no_yaml(error));
                None
            }
        }
    }

    fn not_included(&mut self, folder: &Name, file: &str, why: &str, help: &str) {
        let problem = Problem::error(Law::File, folder.at, format!("cannot read `{file}`: {why}"));
        self.problems.push(problem.label("includes it").help(help));
    }

    /// Reports a tenant that another file has stated before.
    fn stated_again(&mut self, name: &Name, first: Mark) {
        let problem =
            Problem::error(Law::NameClash, name.at, format!("tenant `{}` is stated twice", name.value));
        let problem = problem.label("again here").also(first, "first here");
        self.problems.push(problem.help("keep one of the two, or rename one"));
    }

    /// Makes the class `others` where a class lists it and nothing else is called so: all tenants that no class lists or matches share
    /// it by weight.
    pub(super) fn others(&self, file: &mut PolicyFile) {
        let classes = file.classes.get_or_insert_default();
        let listed = || classes.iter().flat_map(|class| &class.order).flat_map(|order| &order.children);
        let Some(at) = listed().find(|child| child.name.value == OTHERS).map(|child| child.name.at) else {
            return;
        };
        let stated = classes.iter().any(|class| class.name.value == OTHERS);
        if stated || self.graph.tenant_named(OTHERS).is_some() {
            return;
        }
        let matched = classes.iter().flat_map(|class| &class.matches).flat_map(|found| &found.tenant);
        let placed: HashSet<&str> =
            listed().map(|child| &child.name).chain(matched).map(|name| name.value.as_str()).collect();
        let first = (0..self.tenants.len()).filter(|&index| self.is_first_tenant(index));
        let left =
            first.map(|index| &self.tenants[index].name).filter(|name| !placed.contains(name.value.as_str()));
        let children: Vec<Child> =
            left.map(|name| Child { name: name.clone(), weight: None, rate: None }).collect();
        let mut others = ClassEntry::new(Located::new(OTHERS.to_owned(), at));
        if !children.is_empty() {
            others.order = Some(Order { kind: OrderKind::Wfq, at, children, module: None });
        }
        classes.push(others);
    }
}
