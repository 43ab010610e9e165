//! The sections of a policy file that a scenario carries.
//!
//! Why: a scenario, each of its hosts and each of its systems may state a policy of its own.
//! From: `docs/scenarios.md`, "Policies".
//! Not here: the policy file that they become (`policy_file`), the language (the crate `policy`).
//! Invariant: they are kept as they are written.

use std::path::PathBuf;

use plimsoll_document::Tree;

/// The parts of a policy file that a scenario carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicySections {
    /// `policy:`.
    pub policy: Option<Tree>,
    /// `limits:`.
    pub limits: Option<Tree>,
    /// `tenants:` without what only a scenario knows.
    pub tenants: Vec<(String, Vec<(String, Tree)>)>,
    /// `engine:`.
    pub engine: Option<Tree>,
    /// `backpressure:`.
    pub backpressure: Option<Tree>,
    /// Where paths of sub-policies start.
    pub base: PathBuf,
}
