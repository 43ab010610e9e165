//! The wall clock, which all hosts of a fleet share.
//!
//! Why: leases in a file, and the times in histories, are read at other hosts.
//! From: `SystemTime`; hosts keep it by NTP.
//! Not here: spans within a process, which `Instant` measures.
//! Invariant: a clock before 1970 counts as 1970.

use std::time::SystemTime;

/// Milliseconds since 1970.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "other hosts read it; a step moves leases in a file by as much"
)]
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since 1970.
#[must_use]
pub fn unix_time() -> u64 {
    unix_millis() / 1_000
}
