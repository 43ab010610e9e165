//! How long a tenant's packets took, part by part.
//!
//! Why: a tenant that waits should learn on which way and at which station, and whether its promise held.
//! From: PicNIC §4: delay from the sender's ring to the receiver's, without the fabric and without intended shaping; the
//! way in split into the NIC's queue and the engine.
//! Not here: whether a promise held (`slo`), what tenants are promised (`policy`).
//! Invariant: a packet is in each part at most once; recording allocates nothing.
//!
//! # What is measured
//!
//! *Egress* is from the engine's taking a packet (its doorbell) until the port has it. The time behind limits is not
//! counted, nor that behind earlier packets of its own flow while limits held these. *NIC* is the
//! time in the NIC's and the kernel's queue, by the kernel's receive timestamp; only a packet socket has one. *Engine* is
//! from our taking a packet off the uplink until the tenant's port has it. A packet from tenant to tenant on this host has
//! the first part only.

use hdrhistogram::Histogram;
use plimsoll_units::{NS_PER_SEC, Span};

/// One tenant's parts.
#[derive(Clone, Debug)]
pub struct Parts {
    /// On the way out.
    pub egress: Histogram<u64>,
    /// Before we had it, on the way in.
    pub nic: Histogram<u64>,
    /// With us, on the way in.
    pub engine: Histogram<u64>,
    /// Packets that took longer than each target's half: on the way out, and on the way in.
    pub late: [Vec<u64>; 2],
    /// Bytes that left, those of packets that have not left whole included.
    pub sent_bytes: u64,
    /// Time that limits held what left.
    pub shaped: Span,
    /// Time that it waited otherwise.
    pub waited: Span,
    /// Frames for it that its device had no room for, or that came while it was gone.
    pub unread: u64,
}

/// Which way a packet went.
const OUT: usize = 0;
const IN: usize = 1;

impl Default for Parts {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Parts {
    /// Nothing yet, for so many targets.
    #[must_use]
    pub fn new(targets: usize) -> Self {
        Self {
            egress: coarse(),
            nic: coarse(),
            engine: coarse(),
            late: [vec![0; targets], vec![0; targets]],
            sent_bytes: 0,
            shaped: Span::ZERO,
            waited: Span::ZERO,
            unread: 0,
        }
    }

    /// Whether anything happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent_bytes == 0 && self.egress.is_empty() && self.engine.is_empty() && self.unread == 0
    }

    /// The last of so many packets that left together; limits held them for so long, and they have waited so long
    /// otherwise.
    #[inline]
    pub fn left(&mut self, limited: Span, took: Span, packets: u32, halves: &[Span]) {
        self.egress.saturating_record_n(took.as_u64(), packets.into());
        self.shaped += limited.times(packets.into());
        self.waited += took.times(packets.into());
        count_late(&mut self.late[OUT], halves, took, packets);
    }

    /// A packet from the uplink has been delivered.
    #[inline]
    pub fn delivered(&mut self, before: Option<Span>, with_us: Span, halves: &[Span]) {
        if let Some(before) = before {
            self.nic.saturating_record(before.as_u64());
        }
        self.engine.saturating_record(with_us.as_u64());
        count_late(&mut self.late[IN], halves, before.unwrap_or(Span::ZERO) + with_us, 1);
    }

    /// These and what came later; for other targets only what came later counts.
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
        self.waited += later.waited;
        self.unread += later.unread;
    }

    /// Begins anew, for so many targets.
    pub fn clear(&mut self, targets: usize) {
        [&mut self.egress, &mut self.nic, &mut self.engine].into_iter().for_each(Histogram::clear);
        for late in &mut self.late {
            late.clear();
            late.resize(targets, 0);
        }
        (self.sent_bytes, self.shaped, self.waited, self.unread) = (0, Span::ZERO, Span::ZERO, 0);
    }
}

#[inline]
fn count_late(late: &mut [u64], halves: &[Span], took: Span, packets: u32) {
    for (late, &half) in late.iter_mut().zip(halves) {
        *late += u64::from(packets) * u64::from(took > half);
    }
}

/// A microsecond to a minute, to one digit: three kilobytes, so that a tenant can have three of them.
fn coarse() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60 * NS_PER_SEC, 1).expect("constant bounds in order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_behind_limits_is_nobodys_delay() {
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
            parts.delivered(before, Span::micros(5), &[Span::micros(10)]);
        }
        assert_eq!((parts.late[IN][0], parts.nic.len(), parts.engine.len()), (1, 1, 2));
        let mut all = Parts::new(1);
        all.add(&parts);
        parts.clear(2);
        assert!(parts.is_empty() && all.engine.len() == 2);
    }
}
