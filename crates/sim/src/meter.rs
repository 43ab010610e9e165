//! What crossed the uplink for a workload, by window.
//!
//! Why: throughput is what arrived on the wire, as the lab's meter counts it.
//! From: Loom §7: bytes per 50 ms.
//! Not here: latency (`traffic`).
//! Invariant: frames are counted in the window in which they arrived; those after the run's end in none.

use plimsoll_scenario::{Departure, Measure};
use plimsoll_units::{Nanos, Span};

/// Bytes of one workload's tenant.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    /// Whether the tenant is the flow's second end.
    back: bool,
    window: u64,
    end: Nanos,
    /// Where the window that is counted now ends.
    until: Nanos,
    pub(crate) bytes: Vec<u64>,
    pub(crate) packets: u64,
    /// Whether each packet's moment is kept.
    moments: bool,
    pub(crate) departures: Vec<Departure>,
}

impl Meter {
    /// For a run of this length; `back` if the tenant is the server.
    pub(crate) fn new(measure: &Measure, duration: Span, back: bool) -> Self {
        Self {
            back,
            window: measure.window.as_u64().max(1),
            end: Nanos::ZERO + duration,
            until: Nanos::ZERO,
            bytes: Vec::new(),
            packets: 0,
            moments: measure.gaps,
            departures: Vec::new(),
        }
    }

    /// A frame has come across.
    #[inline]
    pub(crate) fn count(&mut self, len: u32, back: bool, now: Nanos) {
        if back != self.back {
            return;
        }
        self.packets += 1;
        if now >= self.until {
            if now >= self.end {
                return;
            }
            let index = now.as_u64() / self.window;
            self.bytes.resize(index as usize + 1, 0);
            self.until = Nanos::new((index + 1) * self.window).min(self.end);
        }
        if self.moments {
            self.departures.push(Departure { at: now, len });
        }
        if let Some(bytes) = self.bytes.last_mut() {
            *bytes += u64::from(len);
        }
    }
}
