//! A limit over all threads: what it has earned, and what it lends for a lease.
//!
//! Not here: each thread's part (`parts`).
//! Invariant: the credit is never above the burst.

use plimsoll_policy::{Counts, Scope};

use super::rates::Elapsed;

/// A limit, over all threads.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    /// Bits per second.
    pub(super) rate: u64,
    /// Bytes.
    pub(super) burst: u64,
    /// Bytes that may leave at once, on all threads together; below zero, bytes that left too early.
    pub(super) credit: i64,
    /// The most bytes that left too early.
    pub(super) most_owed: u64,
    /// Whether it cuts across the tree.
    pub(super) by_match: bool,
    pub(super) is_listed: bool,
    /// Members behind it that are active in this epoch.
    pub(super) members: Vec<u32>,
}

impl Limit {
    pub(super) fn new(limit: &plimsoll_policy::Limit) -> Self {
        Self {
            rate: limit.rate.get(),
            burst: limit.burst.as_u64(),
            credit: i64::try_from(limit.burst.as_u64()).unwrap_or(i64::MAX),
            most_owed: 0,
            by_match: matches!(limit.scope, Scope::Match { .. }) && limit.counts == Counts::Bytes,
            is_listed: false,
            members: Vec::new(),
        }
    }

    /// Bytes have passed on all threads together.
    pub(super) fn pass(&mut self, bytes: u64, elapsed: Elapsed) {
        let earned = i64::try_from(elapsed.bytes_of(self.rate)).unwrap_or(i64::MAX);
        let passed = i64::try_from(bytes).unwrap_or(i64::MAX);
        let burst = i64::try_from(self.burst).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(earned).saturating_sub(passed).min(burst);
        self.most_owed = self.most_owed.max(self.credit.min(0).unsigned_abs());
    }

    /// Bits per second that threads may use together in the next lease: the rate, less what was used too much, half at most.
    pub(super) fn lends(&self, elapsed: Elapsed) -> u64 {
        let owed = self.credit.min(0).unsigned_abs();
        self.rate - elapsed.rate_of(owed).min(self.rate / 2)
    }
}
