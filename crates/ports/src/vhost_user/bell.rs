//! The bell: the eventfd that wakes a guest.
//!
//! Why: the front end shares the bell's file description. It could clear `O_NONBLOCK` and fill the counter, so that a write
//! never returns, or pass another kind of file, whose writes wait.
//! From: eventfd(2); io_submit(2), whose completions ring an eventfd from inside the kernel (`IOCB_FLAG_RESFD`), which
//! never waits and accepts only an eventfd. The request submitted for that is a read of an empty memory file.
//! Not here: when to wake the guest (`ring`).
//! Invariant: ringing never waits, whatever the front end does to the bell.

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
    /// Takes a descriptor as bell; refuses one that is not an eventfd.
    pub(super) fn new(descriptor: ForeignFd) -> Result<Self, String> {
        is_bell(&descriptor).map(|()| Self(descriptor))
    }

    /// Rings the bell. A failure is ignored: when the counter is full, the guest has been woken already.
    pub(super) fn ring(&self) {
        if let Ok(ringer) = Ringer::shared() {
            let _ = ringer.ring(&self.0);
        }
    }
}

/// Checks that a descriptor is an eventfd, without ringing it.
pub(super) fn is_bell(descriptor: &ForeignFd) -> Result<(), String> {
    let ringer = Ringer::shared().map_err(|error| format!("bells, which cannot be rung here: {error}"))?;
    // The kernel looks at the bell first; only then does it refuse the flags.
    match ringer.submit(descriptor, NO_FLAGS) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(format!("a bell that is no eventfd: {error}")),
        Ok(()) => Err("a bell, and this kernel cannot tell whether it is an eventfd".to_owned()),
    }
}

/// The kernel's context for asynchronous reads, one for the whole process.
#[derive(Debug)]
struct Ringer {
    context: libc::c_ulong,
    empty: OwnedFd,
    /// Number of reads submitted so far.
    submitted: AtomicU32,
}

impl Ringer {
    /// The process's context, made on the first use; a failure, such as a shortage of contexts, is not kept.
    fn shared() -> io::Result<&'static Self> {
        static RINGER: OnceLock<Ringer> = OnceLock::new();
        match RINGER.get() {
            Some(ringer) => Ok(ringer),
            // When two threads make a context at once, the later one is dropped.
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
        // Relaxed: a late count only delays the collection, and there is room for twice the number.
        if self.submitted.fetch_add(1, Ordering::Relaxed) % COLLECT == COLLECT - 1 {
            self.collect();
        }
        self.submit(bell, 0)
    }

    /// Submits a read with these `RWF_` flags, whose completion rings the bell.
    fn submit(&self, bell: &OwnedFd, rw_flags: u32) -> io::Result<()> {
        let mut read = Iocb {
            opcode: PREAD,
            file: self.empty.as_raw_fd() as u32,
            flags: RESFD,
            bell: bell.as_raw_fd() as u32,
            rw_flags,
            ..Iocb::default()
        };
        let mut reads = [&raw mut read];
        // SAFETY: one pointer to one control block, both alive for the call, which copies them; the read has no bytes,
        // so the kernel writes nowhere.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, reads.as_mut_ptr()) };
        if taken == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes completions out of the context, so that there is room for more.
    fn collect(&self) {
        let mut events = [[0_u64; 4]; 2 * COLLECT as usize];
        // SAFETY: the kernel writes at most the array's number of events, of 32 bytes each; it does not wait for any.
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
struct Iocb {
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
/// An `RWF_` flag that no kernel knows. The kernel refuses a read with it, and so rings no bell.
const NO_FLAGS: u32 = 1 << 31;
/// Number of reads between two collections of completions.
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
        assert_eq!(guest.read().expect("rung"), 1_000, "and not when it was checked");
    }

    #[test]
    fn a_bell_that_is_full_and_would_wait_is_not_waited_for() {
        let (guest, ours) = eventfd();
        let bell = Bell::new(ours).expect("a bell");
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
