//! The bell that wakes a guest.
//!
//! Why: the front end has the bell's file description too. It could clear `O_NONBLOCK` and fill the counter, and a write
//! would then never return; it could as well give us a file whose writes wait for somebody else.
//! From: eventfd(2); io_submit(2), whose completions ring an eventfd from inside the kernel (`IOCB_FLAG_RESFD`), which
//! never waits and takes nothing but an eventfd. What is submitted for that is a read of an empty memory file.
//! Not here: when the guest is to be woken (`ring`).
//! Invariant: ringing never waits, whatever the front end does to its end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::foreign::ForeignFd;

/// A guest's bell.
#[derive(Debug)]
pub(super) struct Bell(ForeignFd);

impl Bell {
    /// Refuses what is none.
    pub(super) fn new(descriptor: ForeignFd) -> Result<Self, String> {
        is_bell(&descriptor).map(|()| Self(descriptor))
    }

    /// Rings. A counter that is full has been rung often enough.
    pub(super) fn ring(&self) {
        if let Ok(ringer) = Ringer::shared() {
            let _ = ringer.ring(&self.0);
        }
    }
}

/// Rings once, to find out whether it is a bell: who hears it takes a ring too many for nothing.
pub(super) fn is_bell(descriptor: &ForeignFd) -> Result<(), String> {
    let ringer = Ringer::shared().map_err(|error| format!("bells, which cannot be rung here: {error}"))?;
    ringer.ring(descriptor).map_err(|error| format!("a bell that is no eventfd: {error}"))
}

/// The kernel's context for asynchronous reads: one for the process, for as long as it lives.
#[derive(Debug)]
struct Ringer {
    context: libc::c_ulong,
    empty: OwnedFd,
    /// Reads since completions were collected last.
    submitted: AtomicU32,
}

impl Ringer {
    /// A shortage of contexts passes: it is tried again.
    fn shared() -> io::Result<&'static Self> {
        static RINGER: OnceLock<Ringer> = OnceLock::new();
        match RINGER.get() {
            Some(ringer) => Ok(ringer),
            // Of two threads' contexts the later one is not used.
            None => Self::new().map(|made| RINGER.get_or_init(|| made)),
        }
    }

    fn new() -> io::Result<Self> {
        let empty = memfd_create("plimsoll-bell", MFdFlags::MFD_CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number into a live, zeroed variable, and nothing else.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 2 * COLLECT, &raw mut context) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { context, empty, submitted: AtomicU32::new(0) })
    }

    fn ring(&self, bell: &OwnedFd) -> io::Result<()> {
        // Relaxed: a count that is a little late only collects a little later, of twice as much room.
        if self.submitted.fetch_add(1, Ordering::Relaxed) % COLLECT == COLLECT - 1 {
            self.collect();
        }
        let mut read =
            Read { opcode: PREAD, file: self.empty.as_raw_fd() as u32, flags: RESFD, ..Read::default() };
        read.bell = bell.as_raw_fd() as u32;
        let mut reads = [&raw mut read];
        // SAFETY: one pointer to one control block, both alive for the call, which copies them; the read is of no bytes,
        // so that the kernel writes nowhere.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, reads.as_mut_ptr()) };
        if taken == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes completions out of the context, so that there is room for more.
    fn collect(&self) {
        let mut events = [[0_u64; 4]; 2 * COLLECT as usize];
        // SAFETY: the kernel writes at most as many events, of 32 bytes each, as the array holds; it does not wait for any.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0,
                2 * COLLECT,
                events.as_mut_ptr(),
                std::ptr::null_mut::<libc::timespec>(),
            );
        }
    }
}

/// The kernel's `struct iocb`, little endian.
#[derive(Debug, Default)]
#[repr(C)]
struct Read {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    bell: u32,
}

const PREAD: u16 = 0;
const RESFD: u32 = 1;
/// Reads between two collections.
const COLLECT: u32 = 64;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::sys::eventfd::EventFd;

    use super::*;
    use crate::foreign::Foreign;

    fn eventfd() -> (EventFd, ForeignFd) {
        let bell = EventFd::new().expect("a descriptor");
        let other = bell.as_fd().try_clone_to_owned().expect("a descriptor");
        (bell, Foreign::ours(other))
    }

    #[test]
    fn a_bell_rings_each_time() {
        let (guest, ours) = eventfd();
        let bell = Bell::new(ours).expect("a bell");
        (0..1_000).for_each(|_| bell.ring());
        assert_eq!(guest.read().expect("rung"), 1_001);
    }

    #[test]
    fn a_bell_that_is_full_and_would_wait_is_not_waited_for() {
        let (guest, ours) = eventfd();
        let bell = Bell::new(ours).expect("a bell");
        guest.read().expect("rung");
        guest.write(u64::MAX - 1).expect("room");
        fcntl(&guest, FcntlArg::F_SETFL(OFlag::empty())).expect("waits from now on");
        bell.ring();
        bell.ring();
    }

    #[test]
    fn what_is_no_eventfd_is_no_bell() {
        let (end, _other) = nix::unistd::pipe().expect("descriptors");
        assert!(Bell::new(Foreign::ours(end)).is_err());
        let null = std::fs::File::options().write(true).open("/dev/null").expect("there");
        assert!(Bell::new(Foreign::ours(null.into())).is_err());
    }
}
