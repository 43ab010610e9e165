//! Runs scenarios live: on real namespaces, TAPs and Linux TCP.
//!
//! Why: a policy must be shown to work with real Linux traffic, compared with the kernel's own means for the same job.
//! From: Loom §7's experiments, scaled down to one machine and rates that it can carry.
//! Not here: reading scenarios, expectations and reports (`scenario`); the engine (`daemon`, started as the real
//! `plimsoll run`).
//! Invariant: a lab leaves nothing behind: all its devices are in private namespaces that end with it.
#![forbid(unsafe_code)]

mod clock;
mod command;
mod error;
mod load;
mod meter;
mod netns;
mod privileges;
mod refuse;
mod run;
mod timeline;
mod tools;
mod traffic;
mod turns;
mod world;

pub use error::LabError;
pub use privileges::ensure_privileges;
pub use run::run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Options for running a scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The `plimsoll` binary to run as daemon; by default `PLIMSOLL_BIN`, else this process's own.
    pub binary: Option<PathBuf>,
    /// Names of the systems to run; empty means all.
    pub systems: Vec<String>,
    /// Number of repetitions, in place of the scenario's.
    pub pairs: Option<u32>,
}

/// Progress of a running lab.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The next system's world is being built, or its turn begins.
    System {
        /// Index of the run, from 0.
        index: usize,
        /// Number of runs.
        total: usize,
        /// The system's name.
        name: String,
        /// Index of the repetition, from 0.
        pair: u32,
    },
    /// Traffic is flowing.
    Tick {
        /// Time since the run's start; where systems take turns, since the start of the first turn.
        elapsed: Duration,
        /// Each tenant's throughput on the uplink since the last tick, in bits per second.
        rates: BTreeMap<String, f64>,
    },
}
