//! Linux's HTB in virtual time, for one root class with a class for each tenant below it.
//!
//! Why: a policy is compared with what an operator has without it.
//! From: tc-htb(8) and `net/sched/sch_htb.c`: two buckets for each class (`rate` and `ceil`); a class that has used up its own
//! rate borrows from the one above; classes take turns by quantum; each class's packets wait in a FIFO.
//! Not here: deeper trees, priorities, hysteresis.
//! Invariant: in any time a class sends at most `ceil` and the burst of `ceil`, and all classes together at most the line's rate
//! and burst.

use std::collections::VecDeque;

use plimsoll_scenario::Tenant;
use plimsoll_units::{BitRate, Bytes, Nanos};

use super::QUEUE;
use crate::packet::Packet;

/// The longest time for which credit is saved, as the kernel's `mbuffer`.
const LONGEST: i64 = 60_000_000_000;

/// The queueing discipline of one host.
#[derive(Clone, Debug)]
pub(super) struct Htb {
    root: Credit,
    leaves: Vec<Leaf>,
    /// The leaf whose turn it is, among those with credit of their own and among those that borrow.
    turns: [usize; 2],
}

#[derive(Clone, Debug)]
struct Leaf {
    credit: Credit,
    quantum: i64,
    /// Bytes left of its turn, by kind.
    deficits: [i64; 2],
    waiting: VecDeque<Packet>,
}

/// Credit at `rate` and at `ceil`, in nanoseconds of each.
#[derive(Clone, Debug)]
struct Credit {
    rate: BitRate,
    ceil: BitRate,
    burst: i64,
    ceil_burst: i64,
    tokens: i64,
    ceil_tokens: i64,
    checked: Nanos,
}

/// Whether a class sends with its own credit or its parent's.
const OWN: usize = 0;
const BORROWED: usize = 1;

impl Htb {
    /// A class for each tenant: `rate` its min, `ceil` its max, quanta by weight, bursts of a millisecond, as the lab
    /// sets them.
    pub(super) fn new(tenants: &[Tenant], line: BitRate, mtu: u32) -> Self {
        let frame = u64::from(mtu) + 14;
        let floor = BitRate::new((line.get() / 1_000).max(8_000)).unwrap_or(line);
        let leaf = |tenant: &Tenant| {
            let rate = tenant.min.unwrap_or(floor);
            let ceil = tenant.max.unwrap_or(line).max(rate);
            let quantum = i64::try_from(u64::from(tenant.weight) * frame).unwrap_or(i64::MAX);
            let credit = Credit::new(rate, ceil, frame);
            Leaf { credit, quantum, deficits: [0; 2], waiting: VecDeque::new() }
        };
        Self {
            root: Credit::new(line, line, frame),
            leaves: tenants.iter().map(leaf).collect(),
            turns: [0; 2],
        }
    }

    /// Takes a tenant's packet; `false` when its queue is full.
    pub(super) fn offer(&mut self, tenant: u32, packet: Packet) -> bool {
        let waiting = &mut self.leaves[tenant as usize].waiting;
        let room = waiting.len() < QUEUE;
        if room {
            waiting.push_back(packet);
        }
        room
    }

    /// Packets of a tenant in its queue.
    pub(super) fn backlog(&self, tenant: u32) -> usize {
        self.leaves[tenant as usize].waiting.len()
    }

    /// Whether a packet may leave now.
    pub(super) fn has_due(&self, now: Nanos) -> bool {
        self.leaves.iter().any(|leaf| !leaf.waiting.is_empty() && leaf.next(&self.root, now) <= now)
    }

    /// Removes the next packet that may leave now.
    pub(super) fn dequeue(&mut self, now: Nanos) -> Option<Packet> {
        let own = |leaf: &Leaf, _: &Credit| leaf.credit.own(now) >= 0;
        let borrowed = |leaf: &Leaf, root: &Credit| leaf.credit.own(now) < 0 && root.own(now) >= 0;
        match self.turn(OWN, now, own) {
            Some(index) => Some(self.send(index, OWN, now)),
            None => self.turn(BORROWED, now, borrowed).map(|index| self.send(index, BORROWED, now)),
        }
    }

    /// The class of this kind whose turn it is.
    fn turn(&self, kind: usize, now: Nanos, may: impl Fn(&Leaf, &Credit) -> bool) -> Option<usize> {
        let count = self.leaves.len();
        let places = (0..count).map(|step| (self.turns[kind] + step) % count);
        places.into_iter().find(|&index| {
            let leaf = &self.leaves[index];
            !leaf.waiting.is_empty() && leaf.credit.ceiling(now) >= 0 && may(leaf, &self.root)
        })
    }

    fn send(&mut self, index: usize, kind: usize, now: Nanos) -> Packet {
        let leaf = &mut self.leaves[index];
        let packet = leaf.waiting.pop_front().expect("its turn came because it has one");
        let len = Bytes::new(packet.len.into());
        leaf.deficits[kind] -= i64::from(packet.len);
        self.turns[kind] = index;
        if leaf.deficits[kind] < 0 || leaf.waiting.is_empty() {
            leaf.deficits[kind] = (leaf.deficits[kind] + leaf.quantum).max(0);
            self.turns[kind] = (index + 1) % self.leaves.len();
        }
        self.leaves[index].credit.charge(len, kind == OWN, now);
        self.root.charge(len, true, now);
        packet
    }

    /// The next time at which a packet may leave, if none may now.
    pub(super) fn next(&self, now: Nanos) -> Option<Nanos> {
        let waiting = self.leaves.iter().filter(|leaf| !leaf.waiting.is_empty());
        waiting.map(|leaf| leaf.next(&self.root, now)).min()
    }

    /// All packets that wait.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.leaves.iter().flat_map(|leaf| &leaf.waiting)
    }
}

impl Leaf {
    fn next(&self, root: &Credit, now: Nanos) -> Nanos {
        let wait = (-self.credit.own(now)).min(-root.own(now)).max(-self.credit.ceiling(now)).max(0);
        now + plimsoll_units::Span::ns(wait.unsigned_abs())
    }
}

impl Credit {
    fn new(rate: BitRate, ceil: BitRate, frame: u64) -> Self {
        // A millisecond of the rate, and never less than two frames.
        let burst = |rate: BitRate| nanos(rate, Bytes::new((rate.get() / 8_000).max(2 * frame)));
        let (burst, ceil_burst) = (burst(rate), burst(ceil));
        Self { rate, ceil, burst, ceil_burst, tokens: burst, ceil_tokens: ceil_burst, checked: Nanos::ZERO }
    }

    fn since(&self, now: Nanos) -> i64 {
        i64::try_from(now.since(self.checked).as_u64()).unwrap_or(LONGEST).min(LONGEST)
    }

    /// Credit at its rate.
    fn own(&self, now: Nanos) -> i64 {
        self.tokens + self.since(now)
    }

    /// Credit at its ceiling.
    fn ceiling(&self, now: Nanos) -> i64 {
        self.ceil_tokens + self.since(now)
    }

    /// Pays for a packet, at its own rate only if that is what let it pass.
    fn charge(&mut self, len: Bytes, own: bool, now: Nanos) {
        let pay = |credit: i64, burst: i64, cost: i64| (credit.min(burst) - cost).max(1 - LONGEST);
        self.tokens = if own { pay(self.own(now), self.burst, nanos(self.rate, len)) } else { self.own(now) };
        self.ceil_tokens = pay(self.ceiling(now), self.ceil_burst, nanos(self.ceil, len));
        self.checked = now;
    }
}

fn nanos(rate: BitRate, len: Bytes) -> i64 {
    i64::try_from(rate.wire_time(len).as_u64()).unwrap_or(LONGEST)
}
