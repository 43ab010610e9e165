//! Sub-policies: the files that take a leaf's place.
//!
//! Why: a tenant names files, and must neither reach others' files nor make the operator read without end.
//! From: Loom §3, "Composing Sub-Policies"; `docs/policy.md`, "How large a file may be".
//! Not here: where the text comes from (`files`), what it says (`read`), its classes' places (`compose`).
//! Invariant: each file is read once; the bytes and the number of files of one tenant have a bound, and so have those of all.

use std::rc::Rc;

use plimsoll_units::Bytes;

use super::super::graph::{NodeIx, ScopeIx};
use super::super::unread;
use super::Composer;
use crate::files::{MAX_FILE, Unread};
use crate::law::{Law, Problem};
use crate::read;
use crate::read::syntax::PolicyFile;
use plimsoll_document::{FileId, Name};

/// The size of what was read for one tenant.
#[derive(Default)]
pub(super) struct Read {
    pub files: usize,
    pub bytes: usize,
}

/// Files that a tenant's file may name, and they further ones, itself counted.
const MOST_FILES: usize = 256;
/// Bytes of all files but the operator's together: half a kilobyte for each class that a policy may have.
const MOST_BYTES: Bytes = Bytes::new(32_000_000);

impl Composer<'_> {
    /// Loads the file that takes `place`.
    pub(super) fn sub_policy(&mut self, path: &Name, place: NodeIx) {
        let Some(file) = self.read_sub(path, place) else { return };
        let outer = self.graph.nodes[place].scope;
        self.place(&file, Some(outer), place);
    }

    fn read_sub(&mut self, path: &Name, place: NodeIx) -> Option<Rc<PolicyFile>> {
        let outer = self.graph.nodes[place].scope;
        if !self.stays_inside(path, outer) {
            return None;
        }
        let name = beside(&self.sources.file(path.at.file).name, &path.value);
        let known = self.loaded.get(&name).copied();
        let id = known.or_else(|| {
            let help = "write the file, or leave `policy` out: then its traffic gets FIFO";
            self.load(path, name, (outer, place), help)
        })?;
        let mut scopes = std::iter::successors(Some(outer), |&scope| self.graph.scopes[scope].outer);
        if scopes.any(|scope| self.graph.scopes[scope].at.file == id) {
            let message = format!("`{}` contains itself", path.value);
            let problem =
                Problem::error(Law::Cycle, path.at, message).label("includes a file that includes it");
            self.problems.push(problem.help("give the sub-policy a file of its own"));
            return None;
        }
        if let Some(known) = self.read.get(&id) {
            return known.clone();
        }
        let file = match self.files.tree(self.sources, id) {
            Ok(tree) => {
                let (file, problems) = read::read_all(|reader| read::policy_file(reader, &tree));
                self.problems.append(problems);
                Some(Rc::new(self.rooted(file)))
            }
            Err(Unread::Syntax(error)) => {
                self.problems.push(unread::no_yaml(error));
                None
            }
            Err(Unread::Ended(why)) => {
                self.problems.push(unread::ended(path.at, &self.sources.file(id).name, &why));
                None
            }
        };
        self.read.insert(id, file.clone());
        file
    }

    /// Whether a file that the scope `by` names may be read; reports it if not.
    pub(super) fn stays_inside(&mut self, path: &Name, by: ScopeIx) -> bool {
        let by_tenant = self.graph.scopes[by].outer.is_some();
        let leaves = path.value.starts_with('/') || path.value.split('/').any(|part| part == "..");
        if by_tenant && leaves {
            let message = format!("`{}` leaves the directory of this file", path.value);
            let problem = Problem::error(Law::Outside, path.at, message).label("outside");
            self.problems.push(
                problem.help("a sub-policy may name only files beside or below its own file, without `..`"),
            );
        }
        !(by_tenant && leaves)
    }

    /// Reads the text of a file that `outer` names for `place`, if its tenant may have another file; `help` is for one that cannot be
    /// read.
    pub(super) fn load(
        &mut self,
        path: &Name,
        name: String,
        (outer, place): (ScopeIx, NodeIx),
        help: &str,
    ) -> Option<FileId> {
        let scopes = std::iter::successors(Some(outer), |&scope| self.graph.scopes[scope].outer);
        let first = scopes.filter(|&scope| scope != 0).last();
        let first = first.map_or(place, |scope| self.graph.scopes[scope].root);
        self.read_for.entry(first).or_default().files += 1;
        // Before it is read: what is named thousands of times must not be read as often, to be refused each time.
        if !self.affords(path, first, 0) {
            return None;
        }
        match self.files.text(&name) {
            Ok(text) => self.affords(path, first, text.len()).then(|| {
                let id = self.sources.add(&name, text);
                self.loaded.insert(name, id);
                id
            }),
            Err(why) => {
                let message = format!("cannot read `{name}`: {why}");
                let problem = Problem::error(Law::File, path.at, message).label("names this file");
                self.problems.push(problem.help(help));
                None
            }
        }
    }

    /// Whether a tenant's files, and those of all tenants together, may hold `bytes` more; reports it if not.
    fn affords(&mut self, path: &Name, first: NodeIx, bytes: usize) -> bool {
        let read = self.read_for.entry(first).or_default();
        read.bytes = read.bytes.saturating_add(bytes);
        let message = if read.files > MOST_FILES {
            format!("there are more than {MOST_FILES} files with this one")
        } else if read.bytes > MAX_FILE.as_u64() as usize {
            format!("the files down to this one hold more than {MAX_FILE} together")
        } else {
            self.read_in_all = self.read_in_all.saturating_add(bytes);
            if self.read_in_all <= MOST_BYTES.as_u64() as usize {
                return true;
            }
            // The one that is named here may be the smallest.
            let (&most, read) = self.read_for.iter().max_by_key(|(_, read)| read.bytes).expect("this one's");
            let (name, bytes) = (&self.graph.nodes[most].name, Bytes::new(read.bytes as u64));
            format!(
                "all tenants' files down to this one hold more than {MOST_BYTES} together, {bytes} of it `{name}`'s"
            )
        };
        let problem = Problem::error(Law::TooLarge, path.at, message).label("names this file");
        self.problems.push(problem.help(
            "what a tenant's file and those that it names hold together is bounded, and what all tenants' do: merge small ones, \
             drop comments",
        ));
        false
    }
}

/// A path as seen from the file that states it.
pub(in super::super) fn beside(file: &str, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    match file.rsplit_once('/') {
        Some((directory, _)) => format!("{directory}/{path}"),
        None => path.to_owned(),
    }
}
