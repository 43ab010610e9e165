//! Guards mappings of other processes' memory: when pages of one disappear, it reads as zeros instead of ending the daemon.
//!
//! Why: the front end can truncate the file of its guest's memory, or the host can run out of huge pages. Reading there
//! raises SIGBUS, which would end the process and with it every tenant's network.
//! From: mmap(2), sigaction(2). A vNIC's region cannot be truncated: the daemon makes it and seals it.
//! Not here: the consequence for the guest (`vhost_user`), whose memory is all zeros from then on.
//! Invariant: the handler touches only this table of atomics and the mapping that failed; a fault elsewhere goes to the
//! handler that was installed before.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Guards a mapping while this value lives.
#[derive(Debug)]
pub(super) struct Guard(usize);

/// An entry of the table; free while `len` is zero.
struct Guarded {
    base: AtomicUsize,
    len: AtomicUsize,
    torn: AtomicBool,
}

/// Most pieces of guest memory mapped at once: 512 guests with the 8 pieces that the protocol allows.
const MOST: usize = 4_096;

static TABLE: [Guarded; MOST] =
    [const { Guarded { base: AtomicUsize::new(0), len: AtomicUsize::new(0), torn: AtomicBool::new(false) } };
        MOST];

/// Whether the handler is installed; locked while an entry is taken.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// The handler that was installed before, for faults outside the table; written before the new handler is installed.
static BEFORE: std::sync::OnceLock<libc::sigaction> = std::sync::OnceLock::new();

impl Guard {
    /// Guards the mapping of `len` bytes at `base`. It must be dropped before the mapping is unmapped.
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

    /// Whether a page has disappeared. Then the whole mapping reads as zeros, and writes do not reach the guest.
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

/// The signal handler: maps zeros over the failed mapping, so that the access is repeated and succeeds.
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
            // are made (`memory`), so that no code relies on its contents.
            let mapped = unsafe { libc::mmap(base as *mut libc::c_void, len, protection, flags, -1, 0) };
            if mapped != libc::MAP_FAILED {
                return;
            }
        }
    }
    // Not in the table, or the new mapping failed: the access fails again, in the handler from before.
    if let Some(before) = BEFORE.get() {
        // SAFETY: `before` is what sigaction itself gave us.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}
