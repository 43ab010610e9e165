//! Documents: the YAML that operators write, each value with its place, and what is wrong with it.
//!
//! Why: policies and scenarios are read alike, and their mistakes look alike: all in one go, with a caret under each.
//! From: YAML 1.2 through `serde-saphyr`, messages through `miette`.
//! Not here: what any key means (`policy` and `scenario`).
//! Invariant: no text makes it panic or run without end.
#![forbid(unsafe_code)]

mod excerpt;
mod lines;
mod long;
mod problem;
mod reader;
mod source;
mod spelling;
mod tree;

pub use long::shown;
pub use problem::{Errors, Problem, ProblemRecord, Problems, Rule, Severity, records, render, sort};
pub use reader::{LONGEST_ANSWER, Nonsense, answer, understand};
pub use source::{FileId, Located, Mark, Name, SourceFile, Sources};
pub use spelling::nearest;
pub use tree::{SyntaxError, Tree, Value, parse};
