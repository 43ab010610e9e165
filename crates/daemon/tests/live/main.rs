//! The daemon's threads while a guest's memory stalls: measured in real time, with no other test beside.

#[path = "../../../ports/tests/it/support/guest.rs"]
#[expect(dead_code, reason = "the tests of ports use the rest")]
mod guest;
mod stalls;
#[path = "../it/support/mod.rs"]
#[expect(dead_code, reason = "the tests beside use the rest")]
mod support;
mod taps;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests of this binary waiting until the guard goes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
