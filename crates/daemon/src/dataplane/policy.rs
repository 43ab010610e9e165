//! The policy in force, as each packet meets it.
//!
//! Why: the scheduler, the classifier and what is noted of flows must follow the same one.
//! Not here: reading and checking it (`control`), the change to another one (`install`).
//! Invariant: `changes` grows before anything that was noted of a flow could be wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_policy::{Classifier, Grain, NodeId, Program};
use plimsoll_units::BitRate;

/// The policy in force.
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) program: Arc<Program>,
    /// Its wake-up grain.
    pub(crate) grain: Grain,
    pub(crate) classifier: Classifier,
    pub(crate) generation: u16,
    /// Grows with each change of the policy, and of what is counted: what was noted of flows does not hold any more.
    pub(crate) changes: u64,
    /// Rates that were changed since the policy came into force.
    pub(crate) rates: Arc<BTreeMap<NodeId, BitRate>>,
}

impl InForce {
    /// The first policy.
    pub(crate) fn new(program: Arc<Program>) -> Self {
        Self {
            grain: Grain::of(&program),
            classifier: Classifier::new(&program),
            generation: 0,
            changes: 0,
            rates: Arc::default(),
            program,
        }
    }
}
