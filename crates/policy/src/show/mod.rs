//! A checked policy as text, drawing and data, and the treatment of a packet.
//!
//! Why: an operator understands a policy by its tree, its promises and the way of one packet.
//! From: Loom Figure 1 (the drawing); `docs/policy.md`.
//! Not here: problems (`problem`), printing (the command line's).
//! Invariant: the same policy gives the same text, byte for byte.

mod addresses;
mod backpressure;
mod diff;
mod explain;
mod filter;
mod offload;
mod report;
mod svg;
mod text;
mod words;

pub use diff::{Change, Diff, diff};
pub use explain::{Explanation, Step, explain};
pub use filter::{Filter, FilterError};
pub use report::{
    ClassRecord, LimitRecord, NodeRecord, Report, RuleRecord, StandbyRecord, TenantRecord, report,
};
pub use svg::svg;
pub use text::{sub_policy_text, tree_text};
pub use words::describe_match;
