//! The delays of a tenant's packets, part by part.
//!
//! Why: a tenant whose packets wait should learn in which direction and at which station, and whether its promise held.
//! From: PicNIC §4: delay from the sender's ring to the receiver's, without the fabric and without intended shaping;
//! ingress is split into the NIC's queue and the engine.
//! Not here: whether a promise held (`judge`), what tenants are promised (`policy`).
//! Invariant: a packet is in each part at most once; recording allocates nothing.
//!
//! # What is measured
//!
//! *Egress* is the time from a packet's doorbell until the uplink or the other tenant's port has the packet. Time behind
//! limits is not counted, nor time behind earlier packets of its flow while limits held those. *NIC* is the time in the
//! NIC's and the kernel's queue, by the kernel's receive timestamp; only a packet socket has one. *Engine* is the time
//! from when the engine reads a packet from the uplink until the tenant's port has it. A packet between two tenants of
//! this host has only the first part.

use hdrhistogram::Histogram;
use plimsoll_units::{NS_PER_SEC, Span};

/// The delays of one tenant's packets.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Delays on egress.
    pub egress: Histogram<u64>,
    /// Delays on ingress before the engine read the packet.
    pub nic: Histogram<u64>,
    /// Delays on ingress in the engine.
    pub engine: Histogram<u64>,
    /// Packets that took longer than half of each target: on egress, and on ingress.
    pub late: [Vec<u64>; 2],
    /// Bytes that left, including parts of packets that have not left whole.
    pub sent_bytes: u64,
    /// Time that limits held the packets that left.
    pub shaped: Span,
    /// The part of `shaped` for which rates of backpressure held them.
    pub pressed: Span,
    /// Time that the packets that left waited for other reasons.
    pub waited: Span,
    /// Frames for the tenant that its device had no room for, or that came while the device was gone.
    pub unread: u64,
}

/// Index of [`Parts::late`] for egress.
const OUT: usize = 0;
/// Index of [`Parts::late`] for ingress.
const IN: usize = 1;

impl Default for Parts {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Parts {
    /// Empty parts for a tenant with this number of delay targets.
    #[must_use]
    pub fn new(targets: usize) -> Self {
        Self {
            egress: coarse(),
            nic: coarse(),
            engine: coarse(),
            late: [vec![0; targets], vec![0; targets]],
            sent_bytes: 0,
            shaped: Span::ZERO,
            pressed: Span::ZERO,
            waited: Span::ZERO,
            unread: 0,
        }
    }

    /// Whether no packet has been counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent_bytes == 0 && self.egress.is_empty() && self.engine.is_empty() && self.unread == 0
    }

    /// Counts `packets` packets that left together. Limits held each for `limited`; each waited `took` for other reasons.
    /// `halves` are the halves of the delay targets.
    #[inline]
    pub fn left(&mut self, limited: Span, took: Span, packets: u32, halves: &[Span]) {
        self.egress.saturating_record_n(took.as_u64(), packets.into());
        self.shaped += limited.times(packets.into());
        self.waited += took.times(packets.into());
        count_late(&mut self.late[OUT], halves, took, packets);
    }

    /// Counts `packets` packets from the uplink that were delivered: each `before` in the NIC's queue, then `with_us` in the engine.
    #[inline]
    pub fn delivered(&mut self, before: Option<Span>, with_us: Span, packets: u32, halves: &[Span]) {
        if let Some(before) = before {
            self.nic.saturating_record_n(before.as_u64(), packets.into());
        }
        self.engine.saturating_record_n(with_us.as_u64(), packets.into());
        count_late(&mut self.late[IN], halves, before.unwrap_or(Span::ZERO) + with_us, packets);
    }

    /// Counts `packets` packets that go on together after each has waited `held` for a rate of backpressure.
    #[inline]
    pub fn pressed(&mut self, held: Span, packets: u32) {
        let held = held.times(packets.into());
        self.shaped += held;
        self.pressed += held;
    }

    /// Adds later parts. Where the number of targets has changed, late packets of earlier targets are forgotten.
    pub fn add(&mut self, later: &Self) {
        for (to, later) in [
            (&mut self.egress, &later.egress),
            (&mut self.nic, &later.nic),
            (&mut self.engine, &later.engine),
        ] {
            // Both have the same bounds, so nothing can be out of range.
            let _ = to.add(later);
        }
        for (to, later) in self.late.iter_mut().zip(&later.late) {
            if to.len() == later.len() {
                to.iter_mut().zip(later).for_each(|(to, later)| *to += later);
            } else {
                to.clone_from(later);
            }
        }
        self.sent_bytes += later.sent_bytes;
        self.shaped += later.shaped;
        self.pressed += later.pressed;
        self.waited += later.waited;
        self.unread += later.unread;
    }

    /// Empties the parts, for this number of delay targets.
    pub fn clear(&mut self, targets: usize) {
        // Its `clear` would keep the longest delay.
        [&mut self.egress, &mut self.nic, &mut self.engine].into_iter().for_each(Histogram::reset);
        for late in &mut self.late {
            late.clear();
            late.resize(targets, 0);
        }
        (self.sent_bytes, self.unread) = (0, 0);
        (self.shaped, self.pressed, self.waited) = (Span::ZERO, Span::ZERO, Span::ZERO);
    }
}

#[inline]
fn count_late(late: &mut [u64], halves: &[Span], took: Span, packets: u32) {
    for (late, &half) in late.iter_mut().zip(halves) {
        *late += u64::from(packets) * u64::from(took > half);
    }
}

/// A histogram from a microsecond to a minute with one significant digit: at 3 kB, each tenant can have three.
fn coarse() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60 * NS_PER_SEC, 1).expect("constant bounds in order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cleared_leaves_no_longest_delay_behind() {
        let mut parts = Parts::new(0);
        parts.left(Span::ZERO, Span::secs(1), 1, &[]);
        parts.clear(0);
        parts.left(Span::ZERO, Span::micros(10), 1, &[]);
        assert!(parts.egress.max() < 20_000, "{} ns", parts.egress.max());
    }

    #[test]
    fn time_behind_limits_is_no_delay() {
        let mut parts = Parts::new(1);
        parts.left(Span::micros(90), Span::micros(10), 1, &[Span::micros(20)]);
        parts.left(Span::ZERO, Span::micros(30), 1, &[Span::micros(20)]);
        assert_eq!((parts.late[OUT][0], parts.egress.len()), (1, 2));
        assert_eq!((parts.shaped, parts.waited), (Span::micros(90), Span::micros(40)));
    }

    #[test]
    fn the_way_in_is_what_the_kernel_and_we_took_together() {
        let mut parts = Parts::new(1);
        for before in [None, Some(Span::micros(8))] {
            parts.delivered(before, Span::micros(5), 1, &[Span::micros(10)]);
        }
        assert_eq!((parts.late[IN][0], parts.nic.len(), parts.engine.len()), (1, 1, 2));
        let mut all = Parts::new(1);
        all.add(&parts);
        parts.clear(2);
        assert!(parts.is_empty() && all.engine.len() == 2);
    }
}
