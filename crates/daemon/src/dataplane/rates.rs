//! Rates that operators change while packets flow.
//!
//! Why: a class's rate may follow a contract, a time of day or a controller, and a reload costs too much for that.
//! From: SENIC §3.2: a changed rate is in force at the next decision.
//! Not here: which rates a policy may state (`plimsoll_policy`).
//! Invariant: no packet is lost or moved; the policy file is not changed, and a reload puts its rates back.

use std::sync::Arc;

use plimsoll_units::{BitRate, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Dataplane;
use crate::audit::named;

/// A rate that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rated {
    /// The class, as the policy calls it.
    pub class: String,
    /// Its rate until now.
    pub before: String,
    /// Its rate from the next decision on.
    pub rate: String,
}

/// Why a rate was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// No class has this name.
    #[error("no class is called `{0}`; `plimsoll stats` names them, from the root down")]
    NoClass(String),
    /// The class has no rate of its own that could be changed.
    #[error(
        "class `{0}` has no rate of its own, as only children of a `rate_share` have; what it gets stands in the \
         policy file, and `plimsoll reload` puts that in force"
    )]
    NoRate(String),
}

impl Dataplane {
    /// Gives a class below a `rate_share` another rate, from the next decision on.
    ///
    /// # Errors
    /// [`RateError`]; then nothing was changed.
    pub fn set_rate(&mut self, class: &str, rate: BitRate, now: Nanos) -> Result<Rated, RateError> {
        // The rate in effect is the NIC engine's, which may differ from the file's.
        let program = self.scheduler.nic.program();
        let id = program.find(class).ok_or_else(|| RateError::NoClass(named(class)))?;
        let node = program.node(id);
        let (class, before) = (node.name.clone(), node.rate);
        let before = before.ok_or_else(|| RateError::NoRate(class.clone()))?;
        self.scheduler.doorbells.set_class_rate(id, rate);
        Arc::make_mut(&mut self.policy.rates).insert(id, rate);
        self.scheduler.ring(now);
        Ok(Rated { class, before: before.to_string(), rate: rate.to_string() })
    }
}
