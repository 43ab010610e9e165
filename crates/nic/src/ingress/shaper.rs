//! Holds a tenant to what it may receive.
//!
//! Why: what comes beyond a tenant's maximum waits until it may have it, for a while.
//! From: PicNIC §4's `max` and appendix A.2's paced way in, with a queue that CoDel (RFC 8289) keeps short.
//! Not here: the queue itself.
//! Invariant: a tenant has no more than its rate and its burst in any time.

use plimsoll_policy::Ceiling;
use plimsoll_queues::Pace;
use plimsoll_queues::codel::{Codel, CodelTimes, Leaving, Verdict};
use plimsoll_units::{Bytes, Nanos, Span};

use super::Arrival;
use crate::host::markable;

/// How long a packet may have to wait behind its tenant's maximum; and two segments as long as segments get, which may always wait.
const LONGEST_WAIT: Span = Span::millis(25);
pub(super) const LEAST_POOL: Bytes = Bytes::new(131_072);

/// Holds a tenant to what it may receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shaper {
    pub(super) ceiling: Ceiling,
    /// How far ahead of its rate a burst may be.
    ahead: Span,
    pace: Pace,
    codel: Codel,
}

impl Shaper {
    pub(super) fn new(ceiling: Ceiling) -> Self {
        let (ahead, pace) = (ceiling.rate.wire_time(ceiling.burst), Pace::new(ceiling.rate));
        Self { ceiling, ahead, pace, codel: Codel::default() }
    }

    /// Bytes that may wait: those that can be taken at once, and in the longest wait.
    pub(super) fn pool(&self, now: Nanos) -> Bytes {
        let since = self.pace.earned().max(now) - self.ahead;
        self.ceiling.rate.bytes_in((now + LONGEST_WAIT).since(since))
    }

    /// When the next packet may be taken.
    #[inline]
    pub(super) fn due(&self) -> Nanos {
        self.pace.earned() - self.ahead
    }

    /// Whether the tenant has lately had more than its rate: half of its burst or more.
    pub(super) fn is_used_up(&self, now: Nanos) -> bool {
        self.pace.earned().since(now).as_u64() * 2 >= self.ahead.as_u64()
    }

    /// A packet is taken: decides whether it has waited for too long, and charges it unless it is to be dropped. What it and one as
    /// long before it take at this rate is no queue: segments come whole.
    #[inline]
    pub(super) fn take(&mut self, arrival: &Arrival, backlogged: bool, now: Nanos) -> Verdict {
        let len = Bytes::new(arrival.len.into());
        let queued = now.since(arrival.at) - self.pace.wire_time(len).times(2);
        let leaving = Leaving { waited: queued, backlogged, ecn: markable(arrival.ecn) };
        let verdict = self.codel.decide(&CodelTimes::DEFAULT, leaving, now);
        if verdict != Verdict::Drop {
            self.pace.catch_up(now);
            self.pace.charge(len);
        }
        verdict
    }
}
