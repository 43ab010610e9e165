//! Problems of files that cannot be read.
//!
//! Why: the operator's own file and those that it names are refused in the same words.
//! From: `docs/policy.md`, "Errors".
//! Not here: reading files (`files`) and YAML (`document`).
//! Invariant: each problem has a place, if only the beginning of an empty text.

use crate::law::{Errors, Law, Problem};
use plimsoll_document::{Mark, Sources, SyntaxError};

/// The operator's own file, which cannot be opened or is too large.
pub(super) fn unreadable(name: &str, why: &str) -> Errors {
    let problem = Problem::error(Law::File, Mark::default(), format!("cannot read `{name}`: {why}"));
    let problem = problem.label("nothing here").help("name a file that can be read");
    Errors::new(vec![problem], Sources::one(name, ""))
}

/// A file that is not YAML.
pub(super) fn no_yaml(error: SyntaxError) -> Problem {
    Problem::error(Law::Syntax, error.at, error.message).label("reading stops here").help(
        "a policy file is YAML: keys and values with `:`, the same indentation for siblings, spaces and no tabs",
    )
}

/// A file whose reading ended the process that read it.
pub(super) fn ended(at: Mark, name: &str, why: &str) -> Problem {
    let problem = Problem::error(Law::File, at, format!("reading `{name}` was given up: {why}"));
    problem.label("of this file").help(
        "a tenant's file is read by a process of its own, and this one took that process further than any policy \
         should: make the file smaller; if it is small, please report it",
    )
}
