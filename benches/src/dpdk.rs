//! DPDK's `rte_sched` behind a safe face.
//!
//! Why: it is the fastest scheduler that users can have today, so it is the bar.
//! From: DPDK's QoS framework; the C half is `shim/sched.c`.
//! Not here: what is measured beside it (`engine`).
//! Invariant: at most one port is open, because the shim keeps it in a static.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::hold::Moved;

unsafe extern "C" {
    fn plimsoll_dpdk_start() -> i32;
    fn plimsoll_sched_open(pipes: u32, frames: u32) -> i32;
    fn plimsoll_sched_run(frames: u64, moved: *mut u64, lost: *mut u64) -> u64;
    fn plimsoll_sched_close();
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Starts DPDK in this process: once, and on one thread.
pub fn start() -> Result<Dpdk> {
    ensure!(!STARTED.swap(true, Ordering::Relaxed), "DPDK runs already");
    // SAFETY: called once per process, by the swap above; takes nothing from us.
    let code = unsafe { plimsoll_dpdk_start() };
    ensure!(code == 0, "DPDK does not start: error {}", -code);
    Ok(Dpdk(()))
}

/// DPDK, started.
pub struct Dpdk(());

/// A port of `rte_sched`, full of frames.
pub struct Sched<'a>(#[expect(dead_code, reason = "one port at a time")] &'a mut Dpdk);

impl Dpdk {
    /// A port with `pipes` pipes (a power of two) of four queues, and `frames` frames in them.
    pub fn sched(&mut self, pipes: u32, frames: u32) -> Result<Sched<'_>> {
        // SAFETY: DPDK runs (`self` exists), and no port is open (`Sched` borrows `self` for its life).
        let code = unsafe { plimsoll_sched_open(pipes, frames) };
        ensure!(code == 0, "rte_sched with {pipes} pipes does not open: error {code}");
        Ok(Sched(self))
    }
}

impl Sched<'_> {
    /// Moves at least `frames` frames out of the port and in again.
    pub fn run(&mut self, frames: u64) -> Moved {
        let (mut packets, mut lost) = (0, 0);
        // SAFETY: the port is open while `self` lives, and both pointers are to live locals.
        let nanos = unsafe { plimsoll_sched_run(frames, &raw mut packets, &raw mut lost) };
        Moved { packets, lost, spent: Duration::from_nanos(nanos) }
    }
}

impl Drop for Sched<'_> {
    fn drop(&mut self) {
        // SAFETY: the port was opened by `Dpdk::sched` and is closed here only.
        unsafe { plimsoll_sched_close() }
    }
}
