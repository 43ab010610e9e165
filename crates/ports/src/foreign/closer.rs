//! The closing threads: one for each socket through which foreign resources come in.
//!
//! Why: a close can take as long as the resource's owner likes: a file system served by a process (FUSE) is told and
//! waited for, and a TCP connection lingers, even one that lies unread in the queue of the connection being closed. And
//! the memory of a guest that is gone is freed by its last holder, at a tenth of a second for each GiB.
//! From: close(2), socket(7) on `SO_LINGER`, unix(7) on descriptors in flight.
//! Not here: which resources are foreign (`foreign`).
//! Invariant: handing over a resource never waits and never closes it; a socket has at most one closing thread, so that a
//! slow close delays no other socket; the process's end waits for none of these threads.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::Pid;

use crate::realtime;

/// Closes the resources that came in through one socket, a tenant's or the API's, on a thread of its own.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Inner>);

struct Inner {
    queue: Mutex<Jobs>,
    /// Signalled when a job was queued.
    more: Condvar,
    /// The weight of all resources that wait or are being closed.
    weight: AtomicU32,
    /// Rung when a resource has been closed.
    bell: EventFd,
    /// The cores of the process's first thread, which is not pinned to one.
    cores: CpuSet,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Whether a closing thread runs.
    served: bool,
}

struct Job {
    thing: Box<dyn Send>,
    weight: u32,
}

impl Closer {
    /// The closer of the socket at `path`. A path keeps its closer while resources are being closed, so a socket that is
    /// opened anew there begins with the backlog of its predecessor.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn of(path: &Path) -> io::Result<Self> {
        static CLOSERS: Mutex<BTreeMap<PathBuf, Weak<Inner>>> = Mutex::new(BTreeMap::new());
        let mut places = CLOSERS.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, place| place.strong_count() > 0);
        if let Some(place) = places.get(path).and_then(Weak::upgrade) {
            return Ok(Self(place));
        }
        let place = Arc::new(Inner {
            queue: Mutex::default(),
            more: Condvar::new(),
            weight: AtomicU32::new(0),
            bell: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            cores: sched_getaffinity(Pid::this())?,
        });
        places.insert(path.to_owned(), Arc::downgrade(&place));
        Ok(Self(place))
    }

    /// Adds the bell to `events` under `token`: an event each time a resource has been closed. Edge-triggered, so that two
    /// ports can watch it and neither has to read it.
    pub(crate) fn watch(&self, events: &Epoll, token: u64) -> io::Result<()> {
        Ok(events.add(&self.0.bell, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token))?)
    }

    /// Whether the backlog is full, so that the socket must accept nothing more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.weight() >= MOST
    }

    /// Whether a resource waits or is being closed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.weight() > 0
    }

    /// The weight of the backlog; also starts the thread, if that has failed before.
    fn weight(&self) -> u32 {
        // Relaxed, here and below: the count orders no other memory.
        let weight = self.0.weight.load(Ordering::Relaxed);
        if weight > 0 {
            self.serve(self.0.queue());
        }
        weight
    }

    /// Drops `thing` on the closing thread.
    pub(super) fn close(&self, thing: impl Send + 'static, weight: u32) {
        self.0.weight.fetch_add(weight, Ordering::Relaxed);
        let mut queue = self.0.queue();
        queue.waiting.push_back(Job { thing: Box::new(thing), weight });
        self.serve(queue);
    }

    /// Starts or wakes the closing thread. Where the process may have no further thread, the backlog waits.
    fn serve(&self, mut queue: MutexGuard<'_, Jobs>) {
        if queue.waiting.is_empty() {
            return;
        }
        if queue.served {
            return self.0.more.notify_one();
        }
        let place = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("close".to_owned()).stack_size(1 << 16);
        queue.served = thread.spawn(move || place.work()).is_ok();
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Jobs> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes one resource after the other, until none has come for a while.
    fn work(&self) {
        // A new thread inherits the engine's real-time class, which this one must not have.
        let _ = realtime::give_back();
        // It inherits the engine's core too.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.cores);
        while let Some(Job { thing, weight }) = self.next() {
            drop(thing);
            self.weight.fetch_sub(weight, Ordering::Relaxed);
            let _ = self.bell.write(1);
        }
    }

    fn next(&self) -> Option<Job> {
        let none = |queue: &mut Jobs| queue.waiting.is_empty();
        let waited = self.more.wait_timeout_while(self.queue(), IDLE, none);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let job = queue.waiting.pop_front();
        queue.served = job.is_some();
        job
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Closer").field("weight", &self.weight).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    /// Leaks resources that wait for a thread that could not be started: the drop must not wait for their close.
    fn drop(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        queue.waiting.drain(..).for_each(|job| std::mem::forget(job.thing));
    }
}

/// The weight at which a closer is full. A descriptor weighs 1.
pub(super) const MOST: u32 = 16;
/// How long an idle closing thread waits for more before it ends, so that frequent closes start no new threads.
const IDLE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use super::*;

    /// A value whose drop takes until the channel's other end is dropped.
    struct Slow(Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(10), "not in time: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_place_that_is_stuck_is_full_soon_and_keeps_no_other_waiting() {
        let (stuck, free) = (Closer::of(Path::new("/test/stuck")), Closer::of(Path::new("/test/free")));
        let (stuck, free) = (stuck.expect("a closer"), free.expect("a closer"));
        let (end, ended) = channel();
        stuck.close(Slow(ended), 1);
        (1..MOST).for_each(|_| stuck.close((), 1));
        assert!(stuck.is_full() && !free.is_busy());
        free.close((), 1);
        until("the other place closes", || !free.is_busy());
        assert!(stuck.is_full());
        drop(end);
        until("all is closed", || !stuck.is_busy());
    }

    #[test]
    fn a_socket_opened_anew_has_the_backlog_of_its_predecessor() {
        let path = Path::new("/test/again");
        let closer = Closer::of(path).expect("a closer");
        let (end, ended) = channel();
        closer.close(Slow(ended), MOST);
        drop(closer);
        let again = Closer::of(path).expect("a closer");
        assert!(again.is_full());
        drop(end);
        until("it is closed", || !again.is_busy());
    }
}
