//! Whole worlds in virtual time.

mod backpressure;
mod batch;
mod controlled;
mod deterministic;
mod exact;
mod fabric;
mod faults;
mod flows;
mod limiters;
mod mediated;
mod partition;
mod policies;
mod ports;
mod programs;
mod promises;
mod rerun;
mod shares;
mod short_queues;
mod support;
mod tcp;
mod threads;
mod trace;
mod units;
mod worlds;
