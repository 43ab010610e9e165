//! Detects stalls: whether the calling thread waited for memory, rather than for a core.
//!
//! Why: a front end that punches a hole into its guest's memory makes a thread that reads or writes there wait for the
//! whole hole. A thread that was late because another process had its core must not blame a tenant for that.
//! From: getrusage(2): a page fault that waits counts as a voluntary context switch, losing the core to another process as
//! an involuntary one. A fault that clears a huge page does not wait, but takes the thread's own CPU time.
//! Not here: finding the tenant, and serving it apart (`apart`, the daemon).
//! Invariant: the system call is made after a rest and after a long batch, never after a short one.

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use plimsoll_units::Span;

/// A tenant's batch that takes this long and waited for memory is a stall: ten times as long as the longest batch without
/// one, and half of what the other tenants' p99 may be.
pub const STALL: Span = Span::millis(1);

/// Detects stalls of the calling thread between two readings of its usage.
#[derive(Debug, Default)]
pub struct Stalls {
    before: Usage,
}

/// The kernel's counters of the calling thread.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// Voluntary context switches and major page faults.
    waits: i64,
    /// Minor page faults.
    faults: i64,
    /// CPU time.
    cpu: Span,
}

impl Stalls {
    /// Starts a new measurement, after the calling thread has slept or worked for no tenant.
    pub fn rested(&mut self) {
        self.before = Usage::now();
    }

    /// Whether work that took this long was a stall: whether the thread has waited for memory since this or
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
    fn a_thread_that_waited_has_stalled_and_one_that_worked_has_not() {
        let mut stalls = Stalls::default();
        stalls.rested();
        std::thread::sleep(Duration::from_millis(2));
        assert!(!stalls.is_stall(Span::micros(999)), "too short to be checked");
        assert!(stalls.is_stall(Span::millis(2)));
        // Another process may have the core meanwhile, and the first reading may fault in a page.
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
