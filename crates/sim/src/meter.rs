//! A workload's measurements by window: bytes that crossed the uplink, bytes delivered, and waits.
//!
//! Why: throughput counts bytes on the wire, as the lab's meter does; goodput counts bytes that the receiver got.
//! From: Loom §7: bytes per 50 ms; PicNIC §6: loss-free receive rates.
//! Not here: latency (`traffic`).
//! Invariant: a frame is counted in the window in which it arrived; after the run's end, in none.

use plimsoll_scenario::{Departure, Measure, Sample};
use plimsoll_units::{Nanos, Span};

use crate::packet::Packet;

/// Measurements of one workload's packets from its tenant.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Meter {
    /// Whether the tenant is the flow's second end.
    back: bool,
    /// Whether each packet's moment is kept.
    moments: bool,
    /// Whether each packet's wait on the way in is kept.
    ingress: bool,
    /// Whether waits on the way out are kept.
    egress: bool,
    pub(crate) packets: u64,
    pub(crate) crossed: Windows,
    pub(crate) delivered: Windows,
    /// TCP segments sent again, both ways.
    pub(crate) resent: Windows,
    pub(crate) departures: Vec<Departure>,
    pub(crate) waits: Vec<Sample>,
    pub(crate) nic_waits: Vec<Sample>,
    pub(crate) calls: Vec<Sample>,
    pub(crate) egress_waits: Vec<Sample>,
}

/// Packets in an engine, by workload: those that the workload's tenant sends.
#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    length: u64,
    end: Nanos,
    /// By flow and direction: the workload that counts the packets.
    whose: Vec<[Option<u32>; 2]>,
    held: Vec<Held>,
}

/// A workload's packets in an engine.
#[derive(Clone, Debug, Default)]
struct Held {
    now: u64,
    since: Nanos,
    /// Packets times nanoseconds, by window.
    windows: Vec<u64>,
}

/// Bytes by window.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Windows {
    /// The end of the present window, and its bytes so far: all that most packets look at.
    until: Nanos,
    present: u64,
    length: u64,
    end: Nanos,
    bytes: Vec<u64>,
}

impl Meter {
    /// A meter for a run of this length; `back` if the tenant is the server.
    pub(crate) fn new(measure: &Measure, duration: Span, back: bool) -> Self {
        let windows = Windows {
            length: measure.window.as_u64().max(1),
            end: Nanos::ZERO + duration,
            until: Nanos::ZERO,
            present: 0,
            bytes: Vec::new(),
        };
        Self {
            back,
            crossed: windows.clone(),
            delivered: windows.clone(),
            packets: 0,
            resent: windows,
            moments: measure.gaps,
            departures: Vec::new(),
            ingress: measure.ingress,
            waits: Vec::new(),
            nic_waits: Vec::new(),
            calls: Vec::new(),
            egress: measure.egress,
            egress_waits: Vec::new(),
        }
    }

    /// Counts a frame that has crossed the uplink.
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

    /// Counts segments that are sent again.
    pub(crate) fn resend(&mut self, count: u32, now: Nanos) {
        self.resent.add(count, now);
    }

    /// Counts a frame that has reached the end of its flow.
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

    /// Notes the wait of a packet that the CPU has taken, and the part of the wait in the NIC.
    #[inline]
    pub(crate) fn wait(&mut self, waited: Span, in_nic: Span, back: bool, now: Nanos) {
        if self.ingress && back == self.back && now < self.crossed.end {
            self.waits.push(Sample { at: now, latency: waited });
            self.nic_waits.push(Sample { at: now, latency: in_nic });
        }
    }

    /// Notes the time of a call that a packet's core has made.
    pub(crate) fn call(&mut self, took: Span, back: bool, now: Nanos) {
        if self.ingress && back == self.back && now < self.crossed.end {
            self.calls.push(Sample { at: now, latency: took });
        }
    }

    /// Notes the wait of a packet that the link takes.
    #[inline]
    pub(crate) fn leave(&mut self, waited: Span, back: bool, now: Nanos) {
        if self.egress && back == self.back && now < self.crossed.end {
            self.egress_waits.push(Sample { at: now, latency: waited });
        }
    }
}

impl Holdings {
    /// Holdings for a run of this length with this number of workloads.
    pub(crate) fn new(
        measure: &Measure,
        duration: Span,
        whose: Vec<[Option<u32>; 2]>,
        workloads: usize,
    ) -> Self {
        let (length, end) = (measure.window.as_u64().max(1), Nanos::ZERO + duration);
        Self { length, end, whose, held: vec![Held::default(); workloads] }
    }

    /// Counts a packet that has come (`more`), or left.
    #[inline]
    pub(crate) fn change(&mut self, packet: &Packet, more: bool, now: Nanos) {
        let Some(workload) = self.whose[packet.flow as usize][usize::from(packet.back)] else { return };
        let (length, end) = (self.length, self.end);
        let held = &mut self.held[workload as usize];
        held.advance(length, now.min(end));
        held.now = if more { held.now + 1 } else { held.now - 1 };
    }

    /// Removes all packets.
    pub(crate) fn clear(&mut self, now: Nanos) {
        let (length, now) = (self.length, now.min(self.end));
        self.held.iter_mut().for_each(|held| {
            held.advance(length, now);
            held.now = 0;
        });
    }

    /// Each workload's packets times nanoseconds, by window.
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
    /// Counts `len` bytes; `false` if the run is over.
    #[inline]
    fn add(&mut self, len: u32, now: Nanos) -> bool {
        let counts = now < self.until || self.begin(now);
        self.present += if counts { u64::from(len) } else { 0 };
        counts
    }

    /// Begins the window of this moment; `false` if the run is over.
    #[cold]
    fn begin(&mut self, now: Nanos) -> bool {
        if now >= self.end {
            return false;
        }
        self.write();
        let index = now.as_u64() / self.length;
        self.bytes.resize(index as usize + 1, 0);
        self.until = Nanos::new((index + 1) * self.length).min(self.end);
        true
    }

    fn write(&mut self) {
        if let Some(bytes) = self.bytes.last_mut() {
            *bytes += core::mem::take(&mut self.present);
        }
    }

    /// Moves out the bytes of each window up to the last that has some.
    pub(crate) fn take(&mut self) -> Vec<u64> {
        self.write();
        core::mem::take(&mut self.bytes)
    }
}
