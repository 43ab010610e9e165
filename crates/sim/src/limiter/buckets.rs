//! Parallel token buckets, each with a queue of its own.
//!
//! Why: EyeQ has one token bucket for each tenant; a NIC has a few, among which its tenants are divided.
//! From: SENIC §2.2.2 (classes beyond the NIC's 16 limiters are assigned to them round robin, each limiter at the sum of
//! their rates) and §7.2 (PTB). A bucket holds one packet: both pace.
//! Not here: the CPU time of a packet on the core that sends it (`crate::cores`).
//! Invariant: in any time a bucket sends at most its rate and one packet, whichever of its tenants have packets.

use std::collections::{BTreeSet, VecDeque};

use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos};

use super::QUEUE;
use crate::packet::Packet;

/// All buckets of a host.
#[derive(Debug)]
pub(crate) struct Buckets {
    buckets: Vec<Bucket>,
    /// By tenant: its bucket.
    of: Vec<u32>,
    /// The buckets with packets, by the moment at which the first packet may leave.
    due: BTreeSet<(Nanos, u32)>,
}

#[derive(Debug)]
struct Bucket {
    pace: Pace,
    waiting: VecDeque<Packet>,
}

impl Buckets {
    /// A bucket for each tenant.
    pub(super) fn for_each(rates: &[BitRate]) -> Self {
        Self::shared(rates, rates.len())
    }

    /// At most `count` buckets, to which the tenants are assigned round robin.
    pub(super) fn shared(rates: &[BitRate], count: usize) -> Self {
        let count = count.min(rates.len()).max(1);
        let sum = |bucket: usize| {
            let own = rates.iter().skip(bucket).step_by(count);
            own.fold(0_u64, |sum, rate| sum.saturating_add(rate.get()))
        };
        let bucket = |index| {
            let rate = BitRate::new(sum(index)).unwrap_or(BitRate::gbps(1));
            Bucket { pace: Pace::new(rate), waiting: VecDeque::new() }
        };
        Self {
            buckets: (0..count).map(bucket).collect(),
            of: (0..rates.len()).map(|tenant| (tenant % count) as u32).collect(),
            due: BTreeSet::new(),
        }
    }

    pub(super) fn offer(&mut self, tenant: u32, packet: Packet, now: Nanos) -> bool {
        let index = self.of[tenant as usize];
        let bucket = &mut self.buckets[index as usize];
        if bucket.waiting.len() >= QUEUE {
            return false;
        }
        bucket.waiting.push_back(packet);
        if bucket.waiting.len() == 1 {
            self.due.insert((bucket.pace.earned().max(now), index));
        }
        true
    }

    pub(super) fn dequeue(&mut self, now: Nanos) -> Option<Packet> {
        let &(at, index) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        let bucket = &mut self.buckets[index as usize];
        let packet = bucket.waiting.pop_front()?;
        bucket.pace.catch_up(at);
        bucket.pace.charge(Bytes::new(packet.len.into()));
        if !bucket.waiting.is_empty() {
            self.due.insert((bucket.pace.earned(), index));
        }
        Some(packet)
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.buckets.iter().flat_map(|bucket| &bucket.waiting)
    }
}
