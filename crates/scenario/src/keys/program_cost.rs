//! The keys of a host's `programs`: what tenants' programs cost in virtual time.
//!
//! Why: `keys` would be too long with them.
//! From: `docs/programs.md`, "In `sim`".
//! Not here: reading the values (`read::program_cost`).
//! Invariant: as in `keys`.

use plimsoll_document::Shape::{Map, Whole};
use plimsoll_document::mapping;

use super::{FREQUENCY, RATE, TIME};

/// The most cycles that an instruction takes.
pub(crate) const MOST_CYCLES: u32 = 1_000;
/// The most engines of a coprocessor: as many requests as may be in it.
pub(crate) const MOST_ENGINES: u32 = 64;

mapping! {
    pub(crate) static PROGRAMS = "Programs" {
        /// The clock of the core that runs programs.
        frequency: FREQUENCY,
        /// Cycles that an instruction of WebAssembly takes.
        cycles_per_instruction: Whole(1, MOST_CYCLES as u64),
        /// The coprocessors that programs call.
        units: Map(&UNITS),
    }

    pub(crate) static UNITS = "Units" {
        /// Compresses and expands.
        deflate: Map(&UNIT),
        /// Encrypts and decrypts.
        aes: Map(&UNIT),
        /// Searches for regular expressions.
        regex: Map(&UNIT),
    }

    pub(crate) static UNIT = "Unit" {
        /// Requests that it serves at a time.
        engines: Whole(1, MOST_ENGINES as u64),
        /// Time of a request, whatever its length.
        time: TIME,
        /// How fast an engine works through a request's bytes.
        rate: RATE,
    }
}
