//! A timer that ends a poll.
//!
//! Why: epoll's own timeout counts milliseconds, and packets are due within microseconds.
//! From: timerfd_create(2).
//! Not here: what is waited for besides (`wait`, `quiet`).
//! Invariant: each expiry is one event of the poll, and setting the timer anew withdraws an expiry that was not polled yet.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use plimsoll_units::Span;

/// A timer of one poll.
#[derive(Debug)]
pub(crate) struct Timer(TimerFd);

impl Timer {
    /// A timer that is not set, whose expiries are events of `poll` with this token.
    pub(crate) fn new(poll: &Poll, token: Token) -> io::Result<Self> {
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        poll.registry().register(&mut SourceFd(&timer.as_fd().as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// Lets the timer expire once, after `span`, which is not zero.
    pub(crate) fn set(&self, span: Span) -> io::Result<()> {
        let after = TimeSpec::from_duration(span.to_std());
        Ok(self.0.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mio::Events;

    use super::*;

    #[test]
    fn each_expiry_is_one_event_and_setting_anew_withdraws_one() {
        let mut poll = Poll::new().expect("a descriptor");
        let timer = Timer::new(&poll, Token(5)).expect("a descriptor");
        let mut events = Events::with_capacity(4);
        let mut expired = |most: Duration| {
            poll.poll(&mut events, Some(most)).expect("polled");
            events.iter().map(|event| event.token()).collect::<Vec<_>>()
        };
        let (none, long) = (Duration::ZERO, Duration::from_secs(20));
        assert!(expired(none).is_empty(), "not set");
        for _ in 0..2 {
            timer.set(Span::micros(100)).expect("set");
            assert_eq!(expired(long), [Token(5)]);
            assert!(expired(none).is_empty(), "told once");
        }
        timer.set(Span::micros(100)).expect("set");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        timer.set(Span::secs(3_600)).expect("set");
        assert!(expired(none).is_empty(), "withdrawn");
    }
}
