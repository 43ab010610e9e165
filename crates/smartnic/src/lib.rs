//! What tenants' programs share on a SmartNIC beside its link: coprocessors, and the cache of its cores.
//!
//! Why: a partition of the cores alone isolates nothing that all cores reach; FairNIC divides each such part
//! explicitly.
//! From: FairNIC (SIGCOMM 2020), §3.3, §3.4, §4.3 and §4.4.
//! Not here: the link (`nic`), programs and their sandbox (`offload`). This is a crate of its own so that `sim` has it
//! without the compiler that `offload` brings.
//! Invariant: no clock, no thread, no randomness; the same calls give the same answers.
#![forbid(unsafe_code)]

pub mod cache;
pub mod coprocessor;
pub mod queue;

pub use coprocessor::{Cost, Issue, Limiter, LimiterConfig, RequestError};
pub use queue::{Refused, Ticket, UnitQueue};
