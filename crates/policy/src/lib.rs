//! The policy language: parse, compose, check, explain, compile to a flat [`Program`].
#![forbid(unsafe_code)]

mod bounds;
mod check;
mod config;
mod matching;
mod problem;
mod program;
mod read;
mod source;
mod spelling;
mod tree;

pub use check::{Checked, Cost, check_str, check_with, cost, load};
pub use config::{Api, Config, Engine, Netns, Port, TenantConfig, Uplink};
pub use problem::{Errors, Problem, ProblemRecord, Rule as Law, Severity};
pub use program::*;
pub use source::{FileId, Mark, SourceFile, Sources};
