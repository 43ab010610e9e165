//! The link: its rate, its overhead and its largest frame, as rules and tables need them.
//!
//! Why: bursts, bounds and costs are judged by what the link carries and what a frame takes of it.
//! From: `docs/policy.md`, "`uplink`".
//! Not here: the uplink's port (`ports`).
//! Invariant: the largest frame has room for one VLAN tag.

use plimsoll_units::{BitRate, Bytes, Span};

use crate::read;
use crate::read::syntax::UplinkEntry;

/// The uplink's numbers.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub rate: BitRate,
    pub overhead: Bytes,
    pub max_frame: Bytes,
    /// The longest wake-up grain, if stated.
    pub grain: Option<Span>,
}

impl Link {
    /// The bytes charged for a largest frame.
    pub fn charged_frame(&self) -> Bytes {
        self.max_frame + self.overhead
    }

    /// Burst of a limit that states none: what it carries in 5 ms, at most 64 kB, but at least what it carries in 1 ms, and two frames.
    /// A millisecond's burst at a slow rate would wake the engine's thread for very few bytes each time.
    pub fn default_burst(&self, rate: BitRate) -> Bytes {
        let slow = rate.bytes_in(Span::millis(5)).min(Bytes::new(64_000));
        self.charged_frame().times(2).max(slow).max(rate.bytes_in(Span::millis(1)))
    }
}

/// Bytes of an Ethernet header with one VLAN tag: what a frame has beyond the MTU.
const HEADER: u64 = 18;

pub(super) fn link(uplink: Option<&UplinkEntry>, rate: BitRate) -> Link {
    let (mtu, overhead) =
        uplink.map_or((read::DEFAULT_MTU, Bytes::ZERO), |uplink| (uplink.mtu, uplink.overhead));
    let grain = uplink.and_then(|uplink| uplink.grain);
    Link { rate, overhead, max_frame: Bytes::new(u64::from(mtu) + HEADER), grain }
}
