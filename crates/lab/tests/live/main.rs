//! Live labs, one at a time: each takes the cores of a small machine for some seconds of real time.

mod engine;
mod faults;
mod fleet;
#[path = "../../../ports/tests/it/support/itself.rs"]
mod itself;
mod mimic;
mod papers;
mod picnic;
mod programs;
mod short_queues;
mod signals;
mod support;
mod unprivileged;
mod worlds;
