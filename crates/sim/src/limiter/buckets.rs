//! Parallel token buckets, each with a queue of its own.
//!
//! Why: EyeQ has one token bucket for each tenant; a NIC has a few, among which its tenants are divided.
//! From: SENIC §2.2.2 (classes beyond the NIC's 16 limiters are assigned to them round robin, each limiter at the sum of
//! their rates), §7.2 (PTB) and §8 (sharing limiters: as in FasTrak, the busiest tenants have one each). A bucket holds
//! one packet: all pace.
//! Not here: the CPU time of a packet on the core that sends it (`crate::cores`).
//! Invariant: in any time a bucket sends at most its rate and one packet, whichever of its tenants have packets; packets of
//! a tenant keep their order when it gets another bucket.

use core::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

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
    /// Packets offered so far.
    arrivals: u64,
    /// Where the busiest tenants have a bucket each; all others then share the last.
    busiest: Option<Busiest>,
}

#[derive(Debug)]
struct Bucket {
    pace: Pace,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    arrival: u64,
    tenant: u32,
    packet: Packet,
}

/// What is known of tenants to find the busiest.
#[derive(Debug)]
struct Busiest {
    rates: Vec<BitRate>,
    /// Bytes that each tenant has offered since the last assignment.
    offered: Vec<u64>,
    every: Span,
    next: Nanos,
}

impl Buckets {
    /// A bucket for each tenant.
    pub(super) fn for_each(rates: &[BitRate]) -> Self {
        Self::shared(rates, rates.len())
    }

    /// At most `count` buckets, to which the tenants are assigned round robin.
    pub(super) fn shared(rates: &[BitRate], count: usize) -> Self {
        let count = count.min(rates.len()).max(1);
        Self::assigned(rates, count, (0..rates.len()).map(|tenant| (tenant % count) as u32).collect())
    }

    /// At most `count` buckets: every `every`, the tenants that offered most in it get one each, and all others share the
    /// last.
    pub(super) fn for_the_busiest(rates: &[BitRate], count: usize, every: Span) -> Self {
        let count = count.min(rates.len()).max(1);
        let mut buckets = Self::assigned(
            rates,
            count,
            (0..rates.len()).map(|tenant| tenant.min(count - 1) as u32).collect(),
        );
        let (rates, offered) = (rates.to_vec(), vec![0; rates.len()]);
        buckets.busiest = Some(Busiest { rates, offered, every, next: Nanos::ZERO + every });
        buckets
    }

    fn assigned(rates: &[BitRate], count: usize, of: Vec<u32>) -> Self {
        let bucket = |index| Bucket { pace: Pace::new(rate_of(index, &of, rates)), waiting: VecDeque::new() };
        let buckets = (0..count as u32).map(bucket).collect();
        Self { buckets, of, due: BTreeSet::new(), arrivals: 0, busiest: None }
    }

    pub(super) fn offer(&mut self, tenant: u32, packet: Packet, now: Nanos) -> bool {
        self.count(tenant, packet.len, now);
        let index = self.of[tenant as usize];
        let bucket = &mut self.buckets[index as usize];
        if bucket.waiting.len() >= QUEUE {
            return false;
        }
        bucket.waiting.push_back(Waiting { arrival: self.arrivals, tenant, packet });
        self.arrivals += 1;
        if bucket.waiting.len() == 1 {
            self.due.insert((bucket.pace.earned().max(now), index));
        }
        true
    }

    pub(super) fn dequeue(&mut self, now: Nanos) -> Option<Packet> {
        let &(at, index) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        let bucket = &mut self.buckets[index as usize];
        let packet = bucket.waiting.pop_front()?.packet;
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
        self.buckets.iter().flat_map(|bucket| bucket.waiting.iter().map(|waiting| &waiting.packet))
    }

    /// Counts what a tenant offers, and assigns buckets anew when it is time.
    fn count(&mut self, tenant: u32, len: u32, now: Nanos) {
        let Some(busiest) = &mut self.busiest else { return };
        if now >= busiest.next {
            busiest.next = now + busiest.every;
            let offered = core::mem::replace(&mut busiest.offered, vec![0; self.of.len()]);
            self.assign(&offered, now);
        }
        let Some(busiest) = &mut self.busiest else { return };
        busiest.offered[tenant as usize] += u64::from(len);
    }

    /// Gives the tenants that offered most a bucket each. A tenant that has one and is still among them keeps it.
    fn assign(&mut self, offered: &[u64], now: Nanos) {
        let Some(Busiest { rates, .. }) = &self.busiest else { return };
        let shared = self.buckets.len() as u32 - 1;
        let mut order: Vec<usize> = (0..offered.len()).collect();
        order.sort_by_key(|&tenant| Reverse(offered[tenant]));
        let (busiest, others) = order.split_at(shared as usize);
        let mut free = Vec::new();
        for &tenant in others {
            let old = core::mem::replace(&mut self.of[tenant], shared);
            free.extend((old < shared).then_some(old));
        }
        for &tenant in busiest {
            if self.of[tenant] == shared {
                self.of[tenant] = free.pop().expect("each bucket but the shared one has one tenant");
            }
        }
        for (index, bucket) in (0..).zip(&mut self.buckets) {
            bucket.pace.change_rate(rate_of(index, &self.of, rates), now);
        }
        self.move_packets(now);
    }

    /// Moves waiting packets to their tenants' buckets, in the order in which they came.
    fn move_packets(&mut self, now: Nanos) {
        let drain = |bucket: &mut Bucket| core::mem::take(&mut bucket.waiting);
        let mut all: Vec<Waiting> = self.buckets.iter_mut().flat_map(drain).collect();
        all.sort_by_key(|waiting| waiting.arrival);
        for waiting in all {
            self.buckets[self.of[waiting.tenant as usize] as usize].waiting.push_back(waiting);
        }
        let busy = (0..).zip(&self.buckets).filter(|(_, bucket)| !bucket.waiting.is_empty());
        self.due = busy.map(|(index, bucket)| (bucket.pace.earned().max(now), index)).collect();
    }
}

/// The sum of the rates of a bucket's tenants.
fn rate_of(bucket: u32, of: &[u32], rates: &[BitRate]) -> BitRate {
    let own = of.iter().zip(rates).filter(|(of, _)| **of == bucket);
    let sum = own.fold(0_u64, |sum, (_, rate)| sum.saturating_add(rate.get()));
    BitRate::new(sum).unwrap_or(BitRate::gbps(1))
}
