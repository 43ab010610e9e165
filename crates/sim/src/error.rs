//! Why a scenario cannot be simulated, for the person at the terminal.
//!
//! Why: what, where, and what to do, before anything runs.
//! From: the project's rule for messages.
//! Not here: mistakes in the file's text (`scenario`), failed expectations (results).

use std::path::PathBuf;

use plimsoll_units::{BitRate, Span};

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
        /// What its checker says.
        text: String,
    },
    /// A link so fast that its packets would leave in the same nanosecond.
    #[error(
        "{what}: at {rate} a frame of 64 B takes less than a nanosecond, which is the simulator's clock; \
         lower the rate to 512 Gbps or less"
    )]
    TooFast {
        /// Which link.
        what: String,
        /// Its rate.
        rate: BitRate,
    },
    /// A link so slow that its first packet arrives after the end.
    #[error(
        "{what}: at {rate} a frame of {frame} B takes {takes}, and the run ends after {duration}; \
         raise the rate or the `duration`"
    )]
    TooSlow {
        /// Which link.
        what: String,
        /// Its rate.
        rate: BitRate,
        /// Bytes of its largest frame.
        frame: u32,
        /// How long that takes.
        takes: Span,
        /// How long the run is.
        duration: Span,
    },
    /// An engine stands before exactly one link.
    #[error(
        "host `{host}` has {links} links and its engine stands before one; give it one link, to a switch"
    )]
    Uplinks {
        /// The host.
        host: String,
        /// How many links leave it.
        links: usize,
    },
    /// Two ends of a workload between which no links lead.
    #[error("workload `{workload}`: no links lead from `{from}` to `{to}`; add one to `links`")]
    NoRoute {
        /// The workload.
        workload: String,
        /// Where its packets start.
        from: String,
        /// Where they cannot go.
        to: String,
    },
    /// A change of something that the policy has not.
    #[error(
        "timeline, at {at}: the policy of system `{system}` has no `{name}` to change so; name a limit that it states, or a class"
    )]
    NoSuchSetting {
        /// What was to change.
        name: String,
        /// The system.
        system: String,
        /// When.
        at: Span,
    },
    /// No link is called so.
    #[error("there is no link `{name}` to trace; there are `{known}`")]
    NoLink {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A trace cannot be written.
    #[error("cannot write the trace {}: {source}", file.display())]
    Trace {
        /// Which file.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A simulation thread panicked: our fault.
    #[error("the simulation of `{system}` with seed {seed} panicked; please report the scenario")]
    Panicked {
        /// The system.
        system: String,
        /// The seed.
        seed: u64,
    },
}
