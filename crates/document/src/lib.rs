//! Documents: the YAML that operators write, each value with its place, and what is wrong with it.
//!
//! Why: policies and scenarios are read alike, and their mistakes look alike: all in one go, with a caret under each. One
//! [key table](Mapping) for each mapping serves the reader and the JSON Schema.
//! From: YAML 1.2 through `serde-saphyr`, messages through `miette`, JSON Schema 2020-12.
//! Not here: what any key means (`policy` and `scenario`).
//! Invariant: no text makes it panic or run without end.
#![forbid(unsafe_code)]

mod answer;
mod excerpt;
mod keys;
mod lines;
mod long;
mod problem;
mod read;
mod source;
mod spelling;
mod tree;
mod trial;
pub mod yaml;

pub use answer::{LONGEST_ANSWER, Nonsense, answer, understand};
pub use keys::{Key, Mapping, Shape};
pub use long::shown;
pub use problem::{Errors, Mistake, Problem, ProblemRecord, Problems, Rule, Severity, records, render, sort};
pub use read::{Fields, Reader, bad, read_all};
pub use source::{FileId, Located, Mark, Name, SourceFile, Sources};
pub use spelling::nearest;
pub use tree::{SyntaxError, Tree, Value, parse};
pub use trial::Trial;
