//! How much of its time the CPU may spend on fetching packets while others wait to be processed.
//!
//! Why: fetching first keeps the NIC's ring empty and drops in the offender's queue; fetching only is receive livelock.
//! From: PicNIC §5.2 drains at high priority and leaves the bound open; the bound is ours.
//! Not here: what is fetched, and clocks.
//! Invariant: while packets wait, fetching takes no more than its share of the time, one batch apart.

use plimsoll_units::Span;

/// The bound on fetching.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// The part of the time that fetching may take, in thousandths.
    share: i64,
    /// Time that fetching may still take, in thousandths of nanoseconds; below zero it must wait.
    credit: i64,
}

impl Drain {
    /// At most `share` thousandths of the time.
    #[must_use]
    pub fn new(share: u32) -> Self {
        Self { share: i64::from(share.clamp(1, 999)), credit: 0 }
    }

    /// Whether to fetch now, when packets wait to be processed. When none wait, fetching delays no packet.
    #[must_use]
    #[inline]
    pub fn may(&self) -> bool {
        self.credit >= 0
    }

    /// Charges the time that fetching took.
    #[inline]
    pub fn fetched(&mut self, took: Span) {
        self.credit = (self.credit - milli(took) * (WHOLE - self.share) / WHOLE).max(-MOST);
    }

    /// Credits the time that processing took, or that was idle.
    #[inline]
    pub fn processed(&mut self, took: Span) {
        self.credit = (self.credit + milli(took) * self.share / WHOLE).min(MOST);
    }
}

fn milli(span: Span) -> i64 {
    i64::try_from(span.min(Span::secs(1)).as_u64()).unwrap_or(i64::MAX) * WHOLE
}

const WHOLE: i64 = 1_000;
/// The most credit or debt: a hundred microseconds.
const MOST: i64 = 100_000 * WHOLE;
