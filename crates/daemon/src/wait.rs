//! Waiting for ports, for a moment, or for a command.
//!
//! Why: an idle host must cost next to nothing, and a paced packet must not be late.
//! From: epoll for readiness, and a timer of its own for nanoseconds (`timer`).
//! Not here: what to do once awake (`thread`).
//! Invariant: a port that became readable since it was last found empty ends the wait.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use plimsoll_units::Span;

use crate::quiet::Quiet;
use crate::timer::Timer;

const WAKER: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);
const UPLINK: Token = Token(usize::MAX - 2);

/// Ports, a timer and a bell for commands.
#[derive(Debug)]
pub struct Waiter {
    poll: Poll,
    events: Events,
    timer: Timer,
    /// Ports that end a nap.
    quiet: Quiet,
    /// When the timer is to ring, unless it has since it was set.
    rings: Option<Instant>,
    wakeup: Span,
    /// The latest wake-up since that was last asked.
    latest: Span,
}

impl Waiter {
    /// A waiter without ports, and the bell that ends its waits.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let timer = Timer::new(&poll, TIMER)?;
        let events = Events::with_capacity(256);
        let quiet = Quiet::new()?;
        let mut waiter = Self { poll, events, timer, quiet, rings: None, wakeup: LEAST, latest: Span::ZERO };
        waiter.measure_wakeup()?;
        Ok((waiter, waker))
    }

    /// How much later than asked for a sleep ends: nine tenths of recent sleeps were no later. Between 5 and 100 µs.
    #[must_use]
    pub fn wakeup(&self) -> Span {
        self.wakeup
    }

    /// The latest wake-up by the timer since this was last asked.
    pub fn take_latest(&mut self) -> Span {
        core::mem::replace(&mut self.latest, Span::ZERO)
    }

    /// Watches a port's descriptor. `lane` is the tenant's; the uplink's when absent.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn watch(&mut self, lane: Option<u32>, fd: RawFd) -> io::Result<()> {
        self.poll.registry().register(&mut SourceFd(&fd), token(lane), Interest::READABLE)?;
        self.quiet.watch(token(lane), fd);
        Ok(())
    }

    /// Stops watching a descriptor. To be called before it is closed; it is no error if the kernel has dropped it already.
    pub fn forget(&mut self, fd: RawFd) {
        self.quiet.forget(fd);
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
    }

    /// Waits for at most `most` (for ever when absent), and names the ports that may have something.
    ///
    /// # Errors
    /// What the kernel says; an interruption is no error.
    pub fn wait(&mut self, most: Option<Span>, mut ready: impl FnMut(Option<u32>)) -> io::Result<()> {
        let begun = Instant::now();
        let timeout = (most == Some(Span::ZERO)).then_some(Duration::ZERO);
        if let Some(span) = most.filter(|_| timeout.is_none()) {
            self.arm(begun, span)?;
        }
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            match event.token() {
                WAKER => {}
                TIMER => {
                    // The timer's counter is not read: every expiry is an event of its own, and arming the timer resets it.
                    // An expiry while the thread was at work, and did not sleep, does not show how long a wake-up takes.
                    let slept = |rings: &Instant| timeout.is_none() && *rings >= begun;
                    if let Some(rings) = self.rings.take().filter(slept) {
                        let late = Span::ns(u64::try_from(rings.elapsed().as_nanos()).unwrap_or(u64::MAX));
                        self.wakeup = learn(self.wakeup, late);
                        self.latest = self.latest.max(late);
                    }
                }
                port => {
                    self.quiet.heard(port);
                    ready(if port == UPLINK { None } else { u32::try_from(port.0).ok() });
                }
            }
        }
        Ok(())
    }

    /// Sleeps for this long, or until a quiet port has something; the next wait reports it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn nap(&mut self, span: Span) -> io::Result<()> {
        let begun = Instant::now();
        if !self.quiet.nap(span)? {
            return Ok(());
        }
        let late = begun.elapsed().saturating_sub(span.to_std());
        self.latest = self.latest.max(Span::ns(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX)));
        Ok(())
    }

    /// Sets the timer, unless it rings earlier already: most waits are ended by frames, and setting it anew for each of them
    /// (8 to 14 µs in a virtual machine, where it is the core's next timer) costs more than to wake in vain now and then.
    fn arm(&mut self, now: Instant, span: Span) -> io::Result<()> {
        let at = now + span.to_std();
        if self.rings.is_some_and(|rings| rings <= at + AS_GOOD.to_std()) {
            return Ok(());
        }
        self.timer.set(span)?;
        self.rings = Some(at);
        Ok(())
    }

    /// Measures a few short sleeps, to begin with a value.
    fn measure_wakeup(&mut self) -> io::Result<()> {
        for _ in 0..16 {
            self.wait(Some(Span::micros(50)), |_| {})?;
        }
        Ok(())
    }
}

/// How late `count` sleeps of this length end, on a thread that waits as the engine's does: with its timer, and before all ordinary
/// threads where that is allowed. Answers also whether it is.
///
/// # Errors
/// When the process has no descriptor left, or what the kernel says.
pub fn wakeups(count: u32, sleep: Span) -> io::Result<(Vec<Span>, bool)> {
    let measure = move || {
        let first = plimsoll_ports::realtime::take().is_ok();
        let _ = nix::sys::prctl::set_timerslack(1);
        let (mut waiter, _waker) = Waiter::new()?;
        waiter.take_latest();
        let mut late = Vec::with_capacity(count as usize);
        for _ in 0..count {
            waiter.wait(Some(sleep), |_| {})?;
            late.push(waiter.take_latest());
        }
        Ok((late, first))
    };
    // A thread of its own: the caller's stays as it is.
    let measured = std::thread::spawn(measure).join();
    measured.unwrap_or_else(|_| Err(io::Error::other("the measuring thread has died")))
}

/// Two timer settings that differ by less than this count as equal: one moment, seen from two waits.
const AS_GOOD: Span = Span::micros(1);
/// Bounds of the cost of a wake-up: above the longest, spinning would cost more than it gains.
const LEAST: Span = Span::micros(5);
const MOST: Span = Span::micros(100);

/// A quantile followed one step at a time: nine up for a sleep that was later, one down for one that was not, so that
/// it comes to rest where a tenth are later. One sleep of milliseconds moves it no further than any other.
///
/// With a quarter instead, the thread used 3 % less of its core at 8,000 packets a second, and a tenth of its gaps were
/// twice as far from the ideal (docs/performance.md, "What limits accuracy, live").
fn learn(wakeup: Span, late: Span) -> Span {
    const STEP: Span = Span::ns(200);
    let next = if late > wakeup { wakeup + STEP.times(9) } else { wakeup - STEP };
    next.clamp(LEAST, MOST)
}

fn token(lane: Option<u32>) -> Token {
    lane.map_or(UPLINK, |lane| Token(lane as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_ends_a_wait_without_end() {
        let (mut waiter, waker) = Waiter::new().expect("descriptors");
        waker.wake().expect("a wake-up");
        waiter.wait(None, |_| panic!("no port is watched")).expect("awake");
    }

    #[test]
    fn a_wait_ends_by_its_timer_again_and_again() {
        let (mut waiter, _waker) = Waiter::new().expect("descriptors");
        for _ in 0..3 {
            waiter.wait(Some(Span::micros(10)), |_| {}).expect("awake");
        }
        assert!(waiter.wakeup() >= Span::micros(5));
    }

    #[test]
    fn a_timer_that_rings_too_late_is_set_anew_and_one_that_rings_before_is_left() {
        let (mut waiter, waker) = Waiter::new().expect("descriptors");
        let wait = |waiter: &mut Waiter, span| {
            waiter.wait(Some(span), |_| {}).expect("awake");
            waiter.rings
        };
        waker.wake().expect("a wake-up");
        let hour = Span::secs(3_600);
        let rings = wait(&mut waiter, hour);
        assert!(rings.is_some(), "the bell ended it");
        waker.wake().expect("a wake-up");
        assert_eq!(wait(&mut waiter, hour + hour), rings);
        assert_eq!(wait(&mut waiter, Span::millis(1)), None, "it rang");
    }

    #[test]
    fn each_sleep_has_a_lateness() {
        let (late, _) = wakeups(8, Span::micros(50)).expect("measured");
        assert!(late.len() == 8 && late.iter().all(|late| *late > Span::ZERO), "{late:?}");
    }

    #[test]
    fn a_wakeup_is_what_nine_tenths_of_the_sleeps_cost() {
        // Latenesses of 1 to 80 µs, each as often as any other, and now and then one of 5 ms.
        let mut wakeup = LEAST;
        for n in 0..20_000_u64 {
            let late = if n % 100 == 99 { Span::millis(5) } else { Span::micros(1 + n * 37 % 80) };
            wakeup = learn(wakeup, late);
        }
        assert!(wakeup > Span::micros(66) && wakeup < Span::micros(78), "{wakeup:?}");
    }
}
