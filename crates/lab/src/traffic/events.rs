//! Waits for many sockets and a timer on one thread.
//!
//! Why: a workload may have hundreds of flows, on a machine with two cores.
//! From: epoll(7) and timerfd_create(2): epoll's own milliseconds are too coarse for a request's due time.
//! Not here: handling the sockets that are ready.
//! Invariant: `wait` returns at the latest 50 ms after it was called.

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// A set of watched sockets and one timer.
pub(crate) struct Events {
    epoll: Epoll,
    timer: TimerFd,
    ready: Vec<EpollEvent>,
    count: usize,
}

/// A socket that became ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub token: usize,
    pub readable: bool,
    pub writable: bool,
}

const TIMER: u64 = u64::MAX;
const LONGEST: Duration = Duration::from_millis(50);

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        epoll.add(timer.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        Ok(Self { epoll, timer, ready: vec![EpollEvent::empty(); 256], count: 0 })
    }

    /// Watches a socket for data, and for room to write when `write`.
    pub(crate) fn watch(&self, socket: impl AsFd, token: usize, write: bool) -> io::Result<()> {
        Ok(self.epoll.add(socket, interest(token, true, write))?)
    }

    /// Changes whether a watched socket is watched for data and for room to write.
    pub(crate) fn rewatch(&self, socket: impl AsFd, token: usize, read: bool, write: bool) -> io::Result<()> {
        Ok(self.epoll.modify(socket, &mut interest(token, read, write))?)
    }

    /// Waits until a socket is ready, at most for `limit` and at most 50 ms.
    pub(crate) fn wait(&mut self, limit: Duration) -> io::Result<()> {
        let limit = limit.min(LONGEST);
        let timeout = if limit.is_zero() {
            EpollTimeout::ZERO
        } else {
            let moment = Expiration::OneShot(TimeSpec::from_duration(limit));
            self.timer.set(moment, TimerSetTimeFlags::empty())?;
            EpollTimeout::NONE
        };
        self.count = match self.epoll.wait(&mut self.ready, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }

    /// The sockets that the last `wait` found ready.
    pub(crate) fn ready(&self) -> impl Iterator<Item = Ready> + use<> {
        let sockets = self.ready[..self.count].iter().filter(|event| event.data() != TIMER);
        let found: Vec<Ready> = sockets
            .map(|event| {
                let failed = event.events().intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
                Ready {
                    token: usize::try_from(event.data()).unwrap_or(usize::MAX),
                    readable: failed || event.events().contains(EpollFlags::EPOLLIN),
                    writable: failed || event.events().contains(EpollFlags::EPOLLOUT),
                }
            })
            .collect();
        found.into_iter()
    }
}

fn interest(token: usize, read: bool, write: bool) -> EpollEvent {
    let mut flags = EpollFlags::empty();
    flags.set(EpollFlags::EPOLLIN, read);
    flags.set(EpollFlags::EPOLLOUT, write);
    EpollEvent::new(flags, token as u64)
}
