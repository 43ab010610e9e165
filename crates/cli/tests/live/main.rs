//! Live hosts and virtual machines, one at a time: these tests measure what a fault costs its neighbours, or take the cores
//! of a small machine.

mod directory;
#[path = "../../../fleet/tests/etcd/server.rs"]
mod etcd;
mod faults;
mod mediate;
mod programs;
#[path = "../it/support/mod.rs"]
mod support;
mod threads;
mod vhost_user;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests of this binary waiting until the guard goes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
