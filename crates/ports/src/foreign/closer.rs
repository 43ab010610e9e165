//! The thread that closes what came from outside, one for each place that it comes in by.
//!
//! Why: a close can take as long as its owner likes: a file system that a process serves (FUSE) hears of each and is waited
//! for, and a TCP connection lingers, also one that lies unread in the queue of the connection that is closed. And the memory
//! of a guest that is gone is freed by whoever has it last: a tenth of a second for each GiB.
//! From: close(2), socket(7) on `SO_LINGER`, unix(7) on descriptors in flight.
//! Not here: which descriptors those are (`foreign`).
//! Invariant: handing something over never waits and never closes; a place has one thread at most, so that what takes long to
//! close in one place keeps no other place waiting; the process's end waits for none of these threads.

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

/// What closes for one place: a tenant's socket, or the API's.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Place>);

struct Place {
    queue: Mutex<Queue>,
    /// Something was put into the queue.
    more: Condvar,
    /// The weight of what waits or is being closed.
    weight: AtomicU32,
    /// Rung when something has been closed.
    bell: EventFd,
    /// Where the process's first thread may run, which keeps to no core of its own.
    cores: CpuSet,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// A thread is there to take from it.
    served: bool,
}

struct Job {
    thing: Box<dyn Send>,
    weight: u32,
}

impl Closer {
    /// The closer of what comes in at `path`. A place keeps its closer while something is being closed there: who opens it
    /// anew begins with what its predecessor left.
    ///
    /// # Errors
    /// When descriptors are short.
    pub fn of(path: &Path) -> io::Result<Self> {
        static PLACES: Mutex<BTreeMap<PathBuf, Weak<Place>>> = Mutex::new(BTreeMap::new());
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, place| place.strong_count() > 0);
        if let Some(place) = places.get(path).and_then(Weak::upgrade) {
            return Ok(Self(place));
        }
        let place = Arc::new(Place {
            queue: Mutex::default(),
            more: Condvar::new(),
            weight: AtomicU32::new(0),
            bell: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            cores: sched_getaffinity(Pid::this())?,
        });
        places.insert(path.to_owned(), Arc::downgrade(&place));
        Ok(Self(place))
    }

    /// Adds the bell to `events` under `token`: an event each time something has been closed. By edges, so that two ports may
    /// watch it and neither has to read it.
    pub(crate) fn watch(&self, events: &Epoll, token: u64) -> io::Result<()> {
        Ok(events.add(&self.0.bell, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token))?)
    }

    /// Whether so much waits that nothing more is to be taken in here.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.weight() >= MOST
    }

    /// Whether something is being closed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.weight() > 0
    }

    /// Relaxed, here and below: the count stands for nothing else.
    fn weight(&self) -> u32 {
        let weight = self.0.weight.load(Ordering::Relaxed);
        if weight > 0 {
            // There may have been no room for a thread when something came.
            self.serve(self.0.queue());
        }
        weight
    }

    /// Drops `thing` on the place's thread.
    pub(super) fn close(&self, thing: impl Send + 'static, weight: u32) {
        self.0.weight.fetch_add(weight, Ordering::Relaxed);
        let mut queue = self.0.queue();
        queue.waiting.push_back(Job { thing: Box::new(thing), weight });
        self.serve(queue);
    }

    /// Sees to it that a thread takes what waits. Where the process may have no further thread, all of it goes on waiting.
    fn serve(&self, mut queue: MutexGuard<'_, Queue>) {
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

impl Place {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes one thing after the other, until none has come for a while.
    fn work(&self) {
        // Not before other threads: it has the engine's class from the thread that it came from.
        let _ = realtime::give_back();
        // Nor on its core.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.cores);
        while let Some(Job { thing, weight }) = self.next() {
            drop(thing);
            self.weight.fetch_sub(weight, Ordering::Relaxed);
            let _ = self.bell.write(1);
        }
    }

    fn next(&self) -> Option<Job> {
        let none = |queue: &mut Queue| queue.waiting.is_empty();
        let waited = self.more.wait_timeout_while(self.queue(), IDLE, none);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let job = queue.waiting.pop_front();
        queue.served = job.is_some();
        job
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Place").field("weight", &self.weight).finish_non_exhaustive()
    }
}

impl Drop for Place {
    /// What waits for a thread that could not be made is leaked: whoever drops the place must not wait for it.
    fn drop(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        queue.waiting.drain(..).for_each(|job| std::mem::forget(job.thing));
    }
}

/// The weight of what may wait in a place that still takes something in: so many descriptors.
pub(super) const MOST: u32 = 16;
/// How long a thread that has nothing to close waits for more: one that closes often is not made anew each time.
const IDLE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use super::*;

    /// A thing whose drop ends when it is told to, and says on which thread it was.
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
    fn who_opens_a_place_anew_finds_what_is_still_being_closed_there() {
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
