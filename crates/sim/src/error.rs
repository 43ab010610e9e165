//! Why a scenario cannot be simulated, for the person at the terminal.
//!
//! Why: what, where, and what to do, before anything runs.
//! From: the project's rule for messages.
//! Not here: mistakes that the file's text alone shows (`scenario`), failed expectations (results).

use std::path::PathBuf;

use plimsoll_scenario::Errors;

/// Why a scenario cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The policy of a system breaks a rule.
    #[error("the policy of system `{system}` on host `{host}` is wrong:\n{text}")]
    Policy {
        /// The system.
        system: String,
        /// The host.
        host: String,
        /// The checker's message.
        text: String,
    },
    /// A mistake that shows only in the whole world: no route to a peer, two links of one host, a change of an unknown class.
    #[error("{}", .0.render(false))]
    Scenario(Box<Errors>),
    /// The module of a tenant's program was not read: `Scenario::read_modules` reads them.
    #[error("the module {} was not read", .0.display())]
    NoModule(PathBuf),
    /// No link has this name.
    #[error("there is no link `{name}` to trace; there are `{known}`")]
    NoLink {
        /// The name.
        name: String,
        /// The names of all links.
        known: String,
    },
    /// A trace cannot be written.
    #[error("cannot write the trace {}: {source}", file.display())]
    Trace {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The flag of [`Batch::stopped_by`](crate::Batch::stopped_by) was set.
    #[error("the simulation was stopped")]
    Stopped,
    /// The scenario has no system of this name.
    #[error("{0}")]
    NoSystem(String),
    /// A simulation thread panicked: our fault.
    #[error("the simulation of `{system}` with seed {seed} panicked; please report the scenario")]
    Panicked {
        /// The system.
        system: String,
        /// The seed.
        seed: u64,
    },
}
