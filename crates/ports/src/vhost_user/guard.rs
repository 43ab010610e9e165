//! Guest memory that disappears under its reader does not take the daemon along.
//!
//! Why: a guest's file may be made shorter, or its huge pages run out; the kernel's answer to reading there is SIGBUS,
//! which ends the process, and so every other tenant's network.
//! From: mmap(2), sigaction(2). A vNIC's region is sealed against it by the daemon, who made it; guests' files are not ours.
//! Not here: what follows for the guest (`port`), whose memory is all zeros from then on.
//! Invariant: the handler touches nothing but this table of atomics and the mapping that failed, and a fault elsewhere
//! finds the handler that was there before.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A mapping that is watched over while this lives.
#[derive(Debug)]
pub(super) struct Guard(usize);

/// A place in the table. `len` is zero while it is free.
struct Watched {
    base: AtomicUsize,
    len: AtomicUsize,
    torn: AtomicBool,
}

/// So many pieces of guest memory may be mapped at once: 512 guests with as many as the protocol allows.
const MOST: usize = 4_096;

static TABLE: [Watched; MOST] =
    [const { Watched { base: AtomicUsize::new(0), len: AtomicUsize::new(0), torn: AtomicBool::new(false) } };
        MOST];

/// Who may take places, and whether the handler is in place.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// What was in place before, to be put back for a fault that is none of ours; written before the handler is.
static BEFORE: std::sync::OnceLock<libc::sigaction> = std::sync::OnceLock::new();

impl Guard {
    /// Watches over `len` bytes at `base`, all of a mapping. It is to be dropped before they are unmapped.
    pub(super) fn new(base: usize, len: usize) -> io::Result<Self> {
        let mut installed = INSTALLED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !*installed {
            install()?;
            *installed = true;
        }
        let free = TABLE.iter().position(|place| place.len.load(Ordering::Relaxed) == 0);
        let index = free.ok_or_else(|| io::Error::other("4096 pieces of guest memory are mapped already"))?;
        let place = &TABLE[index];
        place.torn.store(false, Ordering::Relaxed);
        place.base.store(base, Ordering::Relaxed);
        // Release: pairs with the handler's Acquire, which may run on another thread.
        place.len.store(len, Ordering::Release);
        Ok(Self(index))
    }

    /// Whether a page of it was gone: then all of it reads as zeros, and what is written reaches nobody.
    #[inline]
    pub(super) fn torn(&self) -> bool {
        TABLE[self.0].torn.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        TABLE[self.0].len.store(0, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    // SAFETY: `sigaction` holds integers and pointers; all zeroes is a valid value of each.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: the first call only reads what is in place; both structures live through the calls. The handler is
    // async-signal-safe (see there) and has the signature that SA_SIGINFO asks for.
    unsafe {
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = BEFORE.set(before);
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        if libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Puts zeros where the mapping was and lets the access that failed be tried again.
///
/// Async-signal-safe: atomics, mmap and sigaction only, each a plain system call on Linux.
extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` for a handler set with SA_SIGINFO; for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for place in &TABLE {
        let len = place.len.load(Ordering::Acquire);
        let base = place.base.load(Ordering::Relaxed);
        if len > 0 && address.wrapping_sub(base) < len {
            place.torn.store(true, Ordering::Relaxed);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the range is exactly one live mapping of guest memory, to which only volatile or atomic accesses
            // are ever made (`memory`), so that nobody relies on what it holds.
            let mapped = unsafe { libc::mmap(base as *mut libc::c_void, len, protection, flags, -1, 0) };
            if mapped != libc::MAP_FAILED {
                return;
            }
        }
    }
    // None of ours, or beyond help: the access fails again, and the handler from before has its say.
    if let Some(before) = BEFORE.get() {
        // SAFETY: `before` is what sigaction itself gave us.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}
