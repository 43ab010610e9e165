//! DPDK's `rte_sched` and `rte_member` behind a safe face.
//!
//! Why: it is the fastest scheduler that users can have today, so it is the bar.
//! From: DPDK's QoS framework and its sketch; the C half is in `shim`.
//! Not here: what is measured beside them (`engine`, `heavy`).
//! Invariant: at most one port and one sketch are open, because the shim keeps them in statics.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::heavy::{Key, TOP};
use crate::hold::Moved;

unsafe extern "C" {
    fn plimsoll_dpdk_start() -> i32;
    fn plimsoll_sched_open(pipes: u32, frames: u32) -> i32;
    fn plimsoll_sched_run(frames: u64, moved: *mut u64, lost: *mut u64) -> u64;
    fn plimsoll_sched_close();
    fn plimsoll_member_open(top: u32) -> i32;
    fn plimsoll_member_add(keys: *const u8, count: u64);
    fn plimsoll_member_report(keys: *mut u8, counts: *mut u64) -> i32;
    fn plimsoll_member_close();
}

/// Whether DPDK was started; locked while it is used.
static STARTED: Mutex<bool> = Mutex::new(false);

/// Starts DPDK in this process, the first time; one part of the bench may use it at a time.
pub fn start() -> Result<Dpdk> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        // SAFETY: called once per process, under the lock; takes nothing from us.
        let code = unsafe { plimsoll_dpdk_start() };
        ensure!(code == 0, "DPDK does not start: error {}", -code);
        *started = true;
    }
    Ok(Dpdk(started))
}

/// DPDK, started.
pub struct Dpdk(#[expect(dead_code, reason = "one user at a time")] MutexGuard<'static, bool>);

/// A sketch of `rte_member`.
pub struct Sketch<'a>(#[expect(dead_code, reason = "one sketch at a time")] &'a mut Dpdk);

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

    /// A sketch that reports the heaviest flows.
    pub fn sketch(&mut self) -> Result<Sketch<'_>> {
        // SAFETY: DPDK runs (`self` exists), and no sketch is open (`Sketch` borrows `self` for its life).
        let code = unsafe { plimsoll_member_open(TOP as u32) };
        ensure!(code == 0, "rte_member does not open: error {code}");
        Ok(Sketch(self))
    }
}

impl Sketch<'_> {
    /// Counts a packet of each key.
    pub fn add(&mut self, keys: &[Key]) {
        // SAFETY: the sketch is open while `self` lives; `keys` holds that many keys of 40 bytes.
        unsafe { plimsoll_member_add(keys.as_ptr().cast(), keys.len() as u64) }
    }

    /// The heaviest flows with their counts.
    pub fn report(&mut self) -> Vec<(Key, u64)> {
        let (mut keys, mut counts) = ([Key::default(); TOP], [0; TOP]);
        // SAFETY: the sketch is open, and both arrays have room for all that it was made to report.
        let found = unsafe { plimsoll_member_report(keys.as_mut_ptr().cast(), counts.as_mut_ptr()) };
        keys.into_iter().zip(counts).take(usize::try_from(found).unwrap_or(0)).collect()
    }
}

impl Drop for Sketch<'_> {
    fn drop(&mut self) {
        // SAFETY: the sketch was opened by `Dpdk::sketch` and is closed here only.
        unsafe { plimsoll_member_close() }
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
