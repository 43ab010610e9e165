//! The errors of building or running a lab.
//!
//! Why: a lab uses namespaces, devices and the system's tools; each error names the one that failed.
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
        /// The kernel's error.
        reason: String,
        /// The setting that most probably prevents it.
        hint: &'static str,
    },
    /// A tool of the system is not installed.
    #[error("`{tool}` is not installed; on Debian: apt-get install {package}")]
    MissingTool {
        /// The missing command.
        tool: String,
        /// Debian's package with the command.
        package: &'static str,
    },
    /// A tool of the system failed.
    #[error("`{command}` failed: {message}")]
    Tool {
        /// The command and its arguments.
        command: String,
        /// The tool's error output.
        message: String,
    },
    /// The `plimsoll` binary to run was not found.
    #[error("cannot find the plimsoll binary at {path}; build it, or point PLIMSOLL_BIN at it")]
    NoBinary {
        /// The path where it was expected.
        path: PathBuf,
    },
    /// The daemon's process ended or did not answer.
    #[error("`plimsoll run` did not come up in the world of `{system}`: {reason}")]
    Engine {
        /// The system that was being run.
        system: String,
        /// The last lines of its output, or that there were none.
        reason: String,
    },
    /// A traffic source or sink failed.
    #[error("workload `{workload}`: {reason}")]
    Workload {
        /// The workload's name in the scenario.
        workload: String,
        /// Why it failed.
        reason: String,
    },
    /// The scenario asks for something that a lab cannot build.
    #[error("scenario: {0}")]
    Scenario(String),
    /// The operator pressed Ctrl-C, or the process was asked to end.
    #[error("interrupted; the namespaces and processes of this lab are gone")]
    Interrupted,
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl LabError {
    /// The error for the action `what` that the operating system refused.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// The error for a workload that failed.
    pub fn workload(name: &str, reason: impl std::fmt::Display) -> Self {
        Self::Workload { workload: name.to_owned(), reason: reason.to_string() }
    }
}
