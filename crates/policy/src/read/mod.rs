//! From a tree of YAML to what the file says, every mistake on the way noted.
//!
//! Why: a mistake in one value must not hide the next one.
//! From: `docs/policy.md`, one function for each of its tables.
//! Not here: the keys (`keys`), what names refer to and whether the policy is legal (`check`).
//! Invariant: reading goes on after each mistake; what could not be read is absent from the result.

mod addresses;
mod backpressure;
mod class;
mod host;
mod interface;
mod matches;
pub(crate) mod names;
mod offload;
mod overlay;
pub(crate) mod syntax;

pub(crate) use class::policy_file;
pub(crate) use host::{DEFAULT_MTU, any_host, host_file, included_file};
pub(crate) use plimsoll_document::read_all;
use plimsoll_document::{Name, Tree};

pub(crate) use crate::keys::{MAX_WEIGHT, MOST_QUEUES};
use crate::law::{Law, Problem};

/// Notes what is wrong while it reads.
type Reader = plimsoll_document::Reader<Law>;

/// The entries of maps whose keys the operator chooses; those with a bad or a repeated name are included.
fn named<'t>(reader: &mut Reader, trees: &[&'t Tree], what: &str) -> Vec<(&'t Name, &'t Tree)> {
    let entries = reader.map(trees, what, "names and what they are");
    for (name, _) in &entries {
        good_name(reader, name);
    }
    entries
}

/// Reports a name that is none.
fn good_name(reader: &mut Reader, name: &Name) {
    let text = &name.value;
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let fine =
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(inner) && text.len() <= 64;
    if !fine {
        let problem = Problem::error(Law::BadName, name.at, format!("`{text}` is no name"));
        reader.report(problem.label("a name belongs here").help(
            "names start with a letter and go on with letters, digits, `_`, `-` and `.`, 64 characters at most",
        ));
    }
}
