//! The native part of the Python package `plimsoll`: scenarios read, checked and run in virtual time.
//!
//! Why: who plans policies works in notebooks, and sweeps take more than one machine.
//! From: the crates `scenario` and `sim`, as `plimsoll sim` uses them.
//! Not here: what Python code can do: arguments, frames, plots and clusters (`plimsoll/`).
//! Invariant: the interpreter's lock is free while anything runs, and no panic reaches Python.
#![forbid(unsafe_code)]

mod columns;
mod off_thread;
mod outcomes;
mod refusal;
mod study;

use pyo3::prelude::*;

/// The native part of the package.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::outcomes::Outcomes;
    #[pymodule_export]
    use super::study::{Study, check, load};
}
