//! Live hosts and virtual machines, one at a time: these tests measure what a fault costs its neighbours, or take the cores
//! of a small machine.

mod faults;
#[path = "../it/support/mod.rs"]
mod support;
mod vhost_user;
