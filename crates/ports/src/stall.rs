//! Whether the calling thread waited for memory, rather than for a core.
//!
//! Why: a front end that punches a hole into its guest's memory makes whoever reads or writes there wait for all of it; a
//! thread that was late because another process had its core must not blame a tenant for that.
//! From: getrusage(2): a page fault that waits gives the core up of the thread's own accord; losing it to another process
//! is counted elsewhere. One that has a huge page cleared waits for nobody, and takes the thread's own time.
//! Not here: whose memory it was, and what follows (`apart`, the daemon).
//! Invariant: the system call is made after a rest, and where something took long; never for a batch that did not.

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use plimsoll_units::Span;

/// A batch of one tenant's that takes so long and waited for memory is a stall: ten times as long as the longest batch
/// without one takes, and half of what the other tenants' p99 may come to.
pub const STALL: Span = Span::millis(1);

/// What the kernel has counted of a thread that looks at it now and then.
#[derive(Debug, Default)]
pub struct Stalls {
    before: Usage,
}

/// What the kernel says of the calling thread.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// How often it gave its core up, or had pages brought from a disk.
    waits: i64,
    /// How often it had pages brought from elsewhere.
    faults: i64,
    /// How long it had a core.
    cpu: Span,
}

impl Stalls {
    /// The calling thread has slept, or done what is nobody's: what it waited for so far says nothing.
    pub fn rested(&mut self) {
        self.before = Usage::now();
    }

    /// Whether what took this long was a stall: the thread has waited, or had pages brought, since this or
    /// [`Stalls::rested`] was called last.
    #[inline]
    pub fn is_stall(&mut self, took: Span) -> bool {
        took >= STALL && self.has_waited()
    }

    #[cold]
    fn has_waited(&mut self) -> bool {
        let now = Usage::now();
        let before = std::mem::replace(&mut self.before, now);
        let worked = Span::ns(now.cpu.as_u64().saturating_sub(before.cpu.as_u64()));
        now.waits != before.waits || now.faults != before.faults && worked >= STALL
    }
}

impl Usage {
    fn now() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Self::default() };
        let waits = usage.voluntary_context_switches() + usage.major_page_faults();
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Span::ZERO, |used| {
            let (secs, nanos) = (used.tv_sec().unsigned_abs(), used.tv_nsec().unsigned_abs());
            Span::ns(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
        });
        Self { waits, faults: usage.minor_page_faults(), cpu }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn who_waited_has_stalled_and_who_worked_has_not() {
        let mut stalls = Stalls::default();
        stalls.rested();
        std::thread::sleep(Duration::from_millis(2));
        assert!(!stalls.is_stall(Span::micros(999)), "too short to be looked at");
        assert!(stalls.is_stall(Span::millis(2)));
        // Another process may have the core meanwhile, and the first look may bring a page.
        let worked = (0..20).any(|_| {
            stalls.rested();
            let end = Instant::now() + Duration::from_millis(2);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            !stalls.is_stall(Span::millis(2))
        });
        assert!(worked);
    }
}
