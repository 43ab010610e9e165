//! A scenario checked in all its forms, with the policies of its systems.
//!
//! Why: a file that is right in one form may be wrong in another, which runs months later.
//! Not here: the checks of one form (`read`), the rules of policies (`plimsoll-policy`).
//! Invariant: a file without a mistake here has none in any form.

use plimsoll_policy::FileRead;
use serde_json::Value;

use crate::{Errors, Form, Scenario};

/// What is wrong with a scenario file.
#[derive(Clone, Debug)]
pub enum Wrong {
    /// Mistakes of the file.
    Scenario(Box<Errors>),
    /// Mistakes of the policies of its systems, those of a system together.
    Policies(Vec<plimsoll_policy::Errors>),
}

impl Wrong {
    /// All mistakes, as a terminal shows them.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        match self {
            Self::Scenario(errors) => errors.render(colour),
            Self::Policies(all) => all.iter().map(|errors| errors.render(colour)).collect(),
        }
    }

    /// All mistakes for programs, as `plimsoll check --json` lists them.
    #[must_use]
    pub fn records(&self) -> Vec<Value> {
        let machine = |record: serde_json::Result<Value>| record.unwrap_or_default();
        match self {
            Self::Scenario(errors) => {
                errors.records().iter().map(|one| machine(serde_json::to_value(one))).collect()
            }
            Self::Policies(all) => {
                let records = all.iter().flat_map(plimsoll_policy::Errors::records);
                records.map(|one| machine(serde_json::to_value(one))).collect()
            }
        }
    }
}

/// Checks a scenario in all its forms, with the policies of its systems; returns its full form.
///
/// # Errors
/// [`Wrong`].
pub fn check(file: &FileRead) -> Result<Scenario, Wrong> {
    let read = |form| Scenario::load_read(file, form).map_err(|errors| Wrong::Scenario(Box::new(errors)));
    let (full, in_virtual_time) = (read(Form::Full)?, read(Form::Virtual)?);
    read(Form::Short)?;
    read(Form::VirtualShort)?;
    let mut policies = full.check_policies();
    // The virtual form only if the live form is right: otherwise most mistakes would be shown twice.
    if policies.is_empty() {
        policies = in_virtual_time.check_policies();
    }
    let policies: Vec<_> = policies.into_iter().map(|(_, errors)| errors).collect();
    if policies.is_empty() { Ok(full) } else { Err(Wrong::Policies(policies)) }
}
