//! What crossed the uplink for a workload, and what was delivered, by window.
//!
//! Why: throughput is what arrived on the wire, as the lab's meter counts it; goodput is what its receiver got.
//! From: Loom §7: bytes per 50 ms; PicNIC §6: loss-free receive rates.
//! Not here: latency (`traffic`).
//! Invariant: frames are counted in the window in which they arrived; those after the run's end in none.

use plimsoll_scenario::{Departure, Measure};
use plimsoll_units::{Nanos, Span};

/// Bytes of one workload's tenant.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    /// Whether the tenant is the flow's second end.
    back: bool,
    pub(crate) crossed: Windows,
    pub(crate) delivered: Windows,
    pub(crate) packets: u64,
    /// Whether each packet's moment is kept.
    moments: bool,
    pub(crate) departures: Vec<Departure>,
}

/// Bytes by window.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    length: u64,
    end: Nanos,
    /// Where the window that is counted now ends.
    until: Nanos,
    pub(crate) bytes: Vec<u64>,
}

impl Meter {
    /// For a run of this length; `back` if the tenant is the server.
    pub(crate) fn new(measure: &Measure, duration: Span, back: bool) -> Self {
        let windows = Windows {
            length: measure.window.as_u64().max(1),
            end: Nanos::ZERO + duration,
            until: Nanos::ZERO,
            bytes: Vec::new(),
        };
        Self {
            back,
            crossed: windows.clone(),
            delivered: windows,
            packets: 0,
            moments: measure.gaps,
            departures: Vec::new(),
        }
    }

    /// A frame has come across the uplink.
    #[inline]
    pub(crate) fn cross(&mut self, len: u32, back: bool, now: Nanos) {
        if back != self.back {
            return;
        }
        self.packets += 1;
        if self.crossed.add(len, now) && self.moments {
            self.departures.push(Departure { at: now, len });
        }
    }

    /// A frame has reached the end of its flow.
    #[inline]
    pub(crate) fn deliver(&mut self, len: u32, back: bool, now: Nanos) {
        if back == self.back {
            self.delivered.add(len, now);
        }
    }
}

impl Windows {
    /// Counts it, unless the run is over.
    #[inline]
    fn add(&mut self, len: u32, now: Nanos) -> bool {
        if now >= self.until {
            if now >= self.end {
                return false;
            }
            let index = now.as_u64() / self.length;
            self.bytes.resize(index as usize + 1, 0);
            self.until = Nanos::new((index + 1) * self.length).min(self.end);
        }
        if let Some(bytes) = self.bytes.last_mut() {
            *bytes += u64::from(len);
        }
        true
    }
}
