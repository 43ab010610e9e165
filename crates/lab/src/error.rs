//! What can go wrong while a world is built or run, for the person at the terminal.
//!
//! Why: a lab touches namespaces, devices and other people's tools; each failure names the one to look at.
//! From: the project's rule for messages: what, where, what to do.
//! Not here: failed expectations (they are results, in `scenario`).

use std::path::PathBuf;

/// Why a lab could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The process may not make network namespaces.
    #[error(
        "no permission to make network namespaces ({reason}); run as root, or allow unprivileged user namespaces ({hint})"
    )]
    NoPrivileges {
        /// What the kernel answered.
        reason: String,
        /// The setting that most probably stands in the way.
        hint: &'static str,
    },
    /// A tool of the system is not installed.
    #[error("`{tool}` is not installed; on Debian: apt-get install {package}")]
    MissingTool {
        /// The command looked for.
        tool: String,
        /// Debian's package that holds it.
        package: &'static str,
    },
    /// A tool of the system refused.
    #[error("`{command}` failed: {message}")]
    Tool {
        /// The command and its arguments.
        command: String,
        /// What it printed.
        message: String,
    },
    /// The `plimsoll` binary to run was not found.
    #[error("cannot find the plimsoll binary at {path}; build it, or point PLIMSOLL_BIN at it")]
    NoBinary {
        /// Where it was expected.
        path: PathBuf,
    },
    /// The engine's process ended or did not answer.
    #[error("`plimsoll run` did not come up in the world of `{system}`: {reason}")]
    Engine {
        /// The system whose world it was.
        system: String,
        /// Its last words, or that there were none.
        reason: String,
    },
    /// A traffic source or sink could not do its work.
    #[error("workload `{workload}`: {reason}")]
    Workload {
        /// Its name in the scenario.
        workload: String,
        /// What happened.
        reason: String,
    },
    /// The scenario asks for something that a lab cannot build.
    #[error("scenario: {0}")]
    Scenario(String),
    /// The operator pressed Ctrl-C, or the process was asked to end.
    #[error("interrupted; the namespaces and processes of this lab are gone")]
    Interrupted,
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The refusal.
        source: std::io::Error,
    },
}

impl LabError {
    /// An operating system's refusal while doing `what`.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// A workload's failure.
    pub fn workload(name: &str, reason: impl std::fmt::Display) -> Self {
        Self::Workload { workload: name.to_owned(), reason: reason.to_string() }
    }
}
