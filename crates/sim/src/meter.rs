//! What crossed the uplink for a workload, what was delivered, and what waited where, by window.
//!
//! Why: throughput is what arrived on the wire, as the lab's meter counts it; goodput is what its receiver got.
//! From: Loom §7: bytes per 50 ms; PicNIC §6: loss-free receive rates.
//! Not here: latency (`traffic`).
//! Invariant: frames are counted in the window in which they arrived; those after the run's end in none.

use plimsoll_scenario::{Departure, Measure, Sample};
use plimsoll_units::{Nanos, Span};

use crate::packet::Packet;

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
    /// Whether each packet's wait on the way in is kept.
    ingress: bool,
    pub(crate) waits: Vec<Sample>,
    pub(crate) nic_waits: Vec<Sample>,
    /// Whether waits on the way out are kept.
    egress: bool,
    pub(crate) egress_waits: Vec<Sample>,
}

/// Packets that an engine holds, by workload: those of the tenant's side.
#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    length: u64,
    end: Nanos,
    /// Whose packets a flow's are, by flow and by direction.
    whose: Vec<[Option<u32>; 2]>,
    held: Vec<Held>,
}

/// Those of one workload.
#[derive(Clone, Debug, Default)]
struct Held {
    now: u64,
    since: Nanos,
    /// Packets times nanoseconds, by window.
    windows: Vec<u64>,
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
            ingress: measure.ingress,
            waits: Vec::new(),
            nic_waits: Vec::new(),
            egress: measure.egress,
            egress_waits: Vec::new(),
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

impl Meter {
    /// Whether the tenant is the flow's second end.
    pub(crate) fn is_back(&self) -> bool {
        self.back
    }

    /// The CPU has taken a packet that came in so long ago, and was in the NIC for so much of that.
    #[inline]
    pub(crate) fn wait(&mut self, waited: Span, in_nic: Span, back: bool, now: Nanos) {
        if self.ingress && back == self.back && now < self.crossed.end {
            self.waits.push(Sample { at: now, latency: waited });
            self.nic_waits.push(Sample { at: now, latency: in_nic });
        }
    }

    /// The link takes a packet that has waited so long for its turn.
    #[inline]
    pub(crate) fn leave(&mut self, waited: Span, back: bool, now: Nanos) {
        if self.egress && back == self.back && now < self.crossed.end {
            self.egress_waits.push(Sample { at: now, latency: waited });
        }
    }
}

impl Holdings {
    /// For a run of this length and so many workloads.
    pub(crate) fn new(
        measure: &Measure,
        duration: Span,
        whose: Vec<[Option<u32>; 2]>,
        workloads: usize,
    ) -> Self {
        let (length, end) = (measure.window.as_u64().max(1), Nanos::ZERO + duration);
        Self { length, end, whose, held: vec![Held::default(); workloads] }
    }

    /// A packet has come, or it has left.
    #[inline]
    pub(crate) fn change(&mut self, packet: &Packet, more: bool, now: Nanos) {
        let Some(workload) = self.whose[packet.flow as usize][usize::from(packet.back)] else { return };
        let (length, end) = (self.length, self.end);
        let held = &mut self.held[workload as usize];
        held.advance(length, now.min(end));
        held.now = if more { held.now + 1 } else { held.now - 1 };
    }

    /// Everything is gone.
    pub(crate) fn clear(&mut self, now: Nanos) {
        let (length, now) = (self.length, now.min(self.end));
        self.held.iter_mut().for_each(|held| {
            held.advance(length, now);
            held.now = 0;
        });
    }

    /// What each workload's packets came to.
    pub(crate) fn finish(&mut self) -> impl Iterator<Item = &[u64]> {
        let (length, end) = (self.length, self.end);
        self.held.iter_mut().map(move |held| {
            held.advance(length, end);
            held.windows.as_slice()
        })
    }
}

impl Held {
    fn advance(&mut self, length: u64, now: Nanos) {
        let (mut from, to) = (self.since.as_u64(), now.as_u64());
        while from < to {
            let window = from / length;
            let until = ((window + 1) * length).min(to);
            if self.windows.len() <= window as usize {
                self.windows.resize(window as usize + 1, 0);
            }
            self.windows[window as usize] += self.now * (until - from);
            from = until;
        }
        self.since = self.since.max(now);
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
