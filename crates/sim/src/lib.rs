//! Scenarios in virtual time: the same engine, many hosts, any rate.
//!
//! Why: a policy can be designed and verified before it meets traffic, and a paper's experiment repeated at its rates.
//! From: `docs/scenarios.md`.
//! Not here: a second engine. It drives `nic` as the daemon does; only the clock differs.
//! Invariant: one seed, one result, whatever the machine and the number of threads.
#![forbid(unsafe_code)]

pub mod tcp;
