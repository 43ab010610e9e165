//! Why a scenario was refused, or a run failed, as a Python exception.
//!
//! Why: the message must be the command line's, and the exception's type tells a wrong file from a failed run.
//! From: the exit codes of `plimsoll`: 2 is a `ScenarioError`, 1 a `RunError`.
//! Invariant: problems of a file are in the exception as JSON, too.

use plimsoll_scenario::{Errors, Wrong};
use plimsoll_sim::SimError;
use pyo3::PyErr;

mod python {
    pyo3::import_exception!(plimsoll.errors, ScenarioError);
    pyo3::import_exception!(plimsoll.errors, RunError);
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The file has mistakes.
    Wrong(Wrong),
    /// It cannot be simulated, or its run failed.
    Sim(SimError),
    /// An argument or a file beside the scenario's is wrong.
    Argument(String),
    /// A result cannot be read or written.
    Failed(String),
    /// The work panicked: our fault.
    Panicked,
}

impl From<Errors> for Refusal {
    fn from(errors: Errors) -> Self {
        Self::Wrong(Wrong::Scenario(Box::new(errors)))
    }
}

impl From<SimError> for Refusal {
    fn from(error: SimError) -> Self {
        match error {
            SimError::Scenario(errors) => Self::from(*errors),
            other => Self::Sim(other),
        }
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        let wrong = |message: String, problems: String| python::ScenarioError::new_err((message, problems));
        let failed = |message: String| python::RunError::new_err((message,));
        match refusal {
            Refusal::Wrong(wrong_file) => {
                let problems = serde_json::Value::from(wrong_file.records()).to_string();
                wrong(wrong_file.render(false).trim_end().to_owned(), problems)
            }
            Refusal::Sim(
                error @ (SimError::Panicked { .. } | SimError::Trace { .. } | SimError::Stopped),
            ) => failed(error.to_string()),
            Refusal::Sim(error) => wrong(error.to_string(), "[]".to_owned()),
            Refusal::Argument(why) => wrong(why, "[]".to_owned()),
            Refusal::Failed(why) => failed(why),
            Refusal::Panicked => {
                failed("Plimsoll panicked; please report the scenario, and what was asked of it".to_owned())
            }
        }
    }
}
