//! A command's failure: its message and exit code.
//!
//! Why: scripts tell a wrong file from a failed run by the exit code, people by the message.
//! From: the project's rule for messages: where, what, what to do.
//! Not here: the messages themselves; each crate writes its own.
//! Invariant: a failure is reported once, on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use plimsoll_daemon::{ClientError, RunError};
use plimsoll_sim::SimError;

/// A command's failure.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A policy with mistakes.
    Policy(Box<plimsoll_policy::Errors>),
    /// A scenario with mistakes.
    Scenario(Box<plimsoll_scenario::Errors>),
    /// A scenario with mistakes, or with mistakes in the policies of its systems.
    Rejected(Box<plimsoll_scenario::Wrong>),
    /// Another file or an argument is wrong.
    Wrong(String),
    /// The command could not be carried out.
    Failed(String),
    /// The failure was reported already; only the exit code is left.
    Said,
    /// The reader of standard output has gone, which is no failure.
    PipeClosed,
}

impl Failure {
    /// Writes the message to standard error, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let (text, code) = match self {
            Self::Policy(errors) => (errors.render(colour), 2),
            Self::Scenario(errors) => (errors.render(colour), 2),
            Self::Rejected(wrong) => (wrong.render(colour), 2),
            Self::Wrong(why) => (format!("error: {why}\n"), 2),
            Self::Failed(why) => (format!("error: {why}\n"), 1),
            Self::Said => (String::new(), 1),
            Self::PipeClosed => return ExitCode::SUCCESS,
        };
        // Without standard error the exit code must be enough.
        let _ = io::stderr().write_all(text.as_bytes());
        ExitCode::from(code)
    }

    /// What is wrong, for an answer to another program.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Policy(errors) => errors.render(false),
            Self::Scenario(errors) => errors.render(false),
            Self::Rejected(wrong) => wrong.render(false),
            Self::Wrong(why) | Self::Failed(why) => why.clone(),
            Self::Said | Self::PipeClosed => String::new(),
        }
    }

    /// A failure of the action `what` on a file.
    pub(crate) fn io(what: impl Display, error: &io::Error) -> Self {
        Self::Failed(format!("{what}: {error}"))
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Policy(errors) => Self::Policy(errors),
            error @ RunError::NoCore { .. } => Self::Wrong(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Self {
        match error {
            SimError::Scenario(errors) => Self::Scenario(errors),
            SimError::Panicked { .. } | SimError::Trace { .. } => Self::Failed(error.to_string()),
            wrong => Self::Wrong(wrong.to_string()),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Writes to standard output. When its reader has gone (`| head`), the command ends without an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::PipeClosed,
        _ => Failure::io("standard output", &error),
    })
}

/// Writes a value as JSON to standard output.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Failed(error.to_string()))?;
    print(&format!("{text}\n"))
}
