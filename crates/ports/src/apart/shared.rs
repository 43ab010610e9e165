//! State that the engine's side and the serving thread of a port share.
//!
//! Why: either side must be able to tell the other something, and to wake it, without waiting for it.
//! From: atomics and two eventfds; a side that is about to sleep says so first, and then checks once more.
//! Not here: frames and requests, which travel in rings (`frames`, `requests`).
//! Invariant: no call here waits, except for the lock around the published state, which the engine only tries.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use nix::sys::eventfd::{EfdFlags, EventFd};
use plimsoll_units::Span;
use plimsoll_wire::VnetHeader;

use super::served::{Served, Shown};
use crate::counters::{Counters, DropReason, Sending};

/// Counters of the thread that serves a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Begins and ends of batches: odd while a batch is at work.
    pub batches: u64,
    /// Batches that stalled.
    pub stalls: u64,
    /// The longest stalled batch.
    pub longest: Span,
    /// Frames that were lost because the port had no buffer for them.
    pub unread: u64,
}

/// State shared by the engine's side and the thread.
#[derive(Debug)]
pub(super) struct Shared {
    /// The engine has dropped the port.
    pub(super) over: AtomicBool,
    /// Frames handed over and not taken by now count as lost.
    pub(super) left: AtomicBool,
    /// The engine wants the port back.
    pub(super) wanted: AtomicBool,
    /// The port's client has gone for good.
    pub(super) gone: AtomicBool,
    /// The thread sleeps and must be woken.
    pub(super) thread_rests: AtomicBool,
    /// The engine sleeps and must be woken.
    pub(super) engine_rests: AtomicBool,
    pub(super) to_thread: EventFd,
    pub(super) to_engine: EventFd,
    pub(super) batches: AtomicU64,
    pub(super) stalls: AtomicU64,
    pub(super) longest: AtomicU64,
    pub(super) unread: AtomicU64,
    /// Number of frames that the thread has taken of those handed over.
    pub(super) delivered: AtomicU64,
    /// Number of the policy in force since this epoch began; written before the epoch.
    pub(super) generation: AtomicU32,
    pub(super) epoch: AtomicU32,
    pub(super) shown: Mutex<Option<Shown>>,
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        let bell = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        Ok(Self {
            over: AtomicBool::new(false),
            left: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            thread_rests: AtomicBool::new(false),
            engine_rests: AtomicBool::new(false),
            to_thread: bell()?,
            to_engine: bell()?,
            batches: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            shown: Mutex::new(None),
        })
    }

    /// Sends a frame; one that finds no room is counted as lost, as on the engine's thread.
    pub(super) fn send_or_count(
        &self,
        port: &mut impl Served,
        frame: &[u8],
        vnet: Option<&VnetHeader>,
        lost: &mut Counters,
    ) {
        match port.send(frame, vnet) {
            Ok(Sending::Sent | Sending::Refused(_)) => {}
            Ok(Sending::Full) => {
                lost.refuse(DropReason::NoBuffer);
                self.unread.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => lost.gone(1),
        }
    }

    pub(super) fn wake_thread(&self) {
        fence(Ordering::SeqCst);
        if self.thread_rests.load(Ordering::Relaxed) && self.thread_rests.swap(false, Ordering::Relaxed) {
            let _ = self.to_thread.write(1);
        }
    }

    pub(super) fn wake_engine(&self) {
        fence(Ordering::SeqCst);
        if self.engine_rests.load(Ordering::Relaxed) && self.engine_rests.swap(false, Ordering::Relaxed) {
            self.ring_engine();
        }
    }

    /// Wakes the engine. The eventfd is never read, as it is watched edge-triggered.
    pub(super) fn ring_engine(&self) {
        let _ = self.to_engine.write(1);
    }
}
