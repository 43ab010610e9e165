//! Closing, where nobody waits for it, what came from a front end.
//!
//! Why: a close can take as long as its owner likes: a file system that a process serves (FUSE) hears of each and is waited
//! for, and a TCP connection lingers, also one that lies unread in the queue of the connection that is closed. And the memory
//! of a guest that is gone is freed by whoever has it last: a tenth of a second for each GiB.
//! From: close(2), socket(7) on `SO_LINGER`, unix(7) on descriptors in flight.
//! Not here: which descriptors those are (`front_end`).
//! Invariant: the caller never waits; while something is being closed the port lets nobody in, and while much is, hears
//! nobody: a port has a few threads at it at most, however often it is hung up on, and whatever it is told.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::Pid;

use crate::realtime;

/// What closes for one port.
#[derive(Debug)]
pub(super) struct Closer {
    busy: Arc<AtomicU32>,
    /// Rung when something has been closed.
    bell: Arc<EventFd>,
    /// Where the process's first thread may run, which keeps to no core of its own.
    cores: CpuSet,
}

impl Closer {
    /// Its bell is watched as `token`.
    pub(super) fn new(events: &Epoll, token: u64) -> io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        events.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        let cores = sched_getaffinity(Pid::this())?;
        Ok(Self { busy: Arc::default(), bell: Arc::new(bell), cores })
    }

    /// Closes these, or lets go of them, on a thread of their own.
    pub(super) fn close<T: Send + 'static>(&self, these: T) {
        let (busy, bell, cores) = (Arc::clone(&self.busy), Arc::clone(&self.bell), self.cores);
        // Relaxed, here and below: it stands for nothing else.
        busy.fetch_add(1, Ordering::Relaxed);
        let job = move || {
            // Not before anybody: it has the engine's class from the thread that it came from.
            let _ = realtime::give_back();
            // Nor on its core.
            let _ = sched_setaffinity(Pid::from_raw(0), &cores);
            drop(these);
            busy.fetch_sub(1, Ordering::Relaxed);
            let _ = bell.write(1);
        };
        let thread = thread::Builder::new().name("close".to_owned()).stack_size(1 << 16);
        if thread.spawn(job).is_err() {
            // They were closed here: a process without room for a thread has more to wait for than that.
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether so much is being closed that whoever is in is not heard meanwhile.
    pub(super) fn is_full(&self) -> bool {
        self.busy.load(Ordering::Relaxed) >= MOST
    }

    /// Whether something is being closed, and nobody is to come in meanwhile.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// The bell was heard.
    pub(super) fn hush(&self) {
        let _ = self.bell.read();
    }
}

/// Threads that close for one port while it is heard.
const MOST: u32 = 4;
