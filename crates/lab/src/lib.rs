//! Scenarios on real namespaces, TAPs and Linux TCP.
//!
//! Why: a policy is believed when real Linux traffic obeys it, beside what the kernel offers for the same job.
//! From: Loom §7's experiments, folded into one machine at rates that it holds.
//! Not here: reading scenarios, expectations and reports (`scenario`); the engine (`daemon`, started as the real
//! `plimsoll run`).
//! Invariant: a lab leaves nothing behind: all it makes is held by private namespaces that die with it.
#![forbid(unsafe_code)]

mod clock;
mod command;
mod error;
mod meter;
mod netns;
mod privileges;
mod refuse;
mod run;
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

/// How to run a scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The `plimsoll` binary for engine systems; else `PLIMSOLL_BIN`, else this process's own.
    pub binary: Option<PathBuf>,
    /// Names of the systems to run; empty means all.
    pub systems: Vec<String>,
    /// Repetitions in place of the scenario's own.
    pub pairs: Option<u32>,
}

/// What a lab tells while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The next system's world is being built, or its turn begins.
    System {
        /// Which run of all, from 0.
        index: usize,
        /// How many runs there are.
        total: usize,
        /// The system's name.
        name: String,
        /// Which repetition, from 0.
        pair: u32,
    },
    /// Traffic is flowing.
    Tick {
        /// Time since the run's start; of the first turn, where systems take turns.
        elapsed: Duration,
        /// What each tenant got across the uplink since the last tick, in bits per second.
        rates: BTreeMap<String, f64>,
    },
}
