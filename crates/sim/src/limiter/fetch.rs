//! SENIC's hardware: a token bucket for each class, a round-robin scheduler, and modules that fetch over PCIe.
//!
//! Why: how fast the paper's NIC can be, and how evenly it paces, follows from its cycles and its DMA latency.
//! From: SENIC §6.2 and §7.1: in each iteration the scheduler reads one active class, refreshes its tokens and, if they
//! pay for its head packet, hands it to a class-fetch module and disables it; the module reads the next descriptor and
//! the head's payload and waits for them, until tokens or burst are used up; then it gives the class back. A scheduler
//! that finds no module free waits for that. Doorbells and feedback have their own slots in each iteration.
//! Not here: the other realisation, by virtual times (the engine's `rate_share`); what doorbells cost the host.
//! Invariant: a class is empty, waits for the scheduler, or is with one module; feedback writes tokens and head, the host
//! writes the tail alone; modules hold their packets while the link is busy, so that no packet is pulled faster than the link
//! sends.

use std::collections::VecDeque;

use plimsoll_scenario::Fetch;
use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Nanos, Span};

use super::QUEUE;
use crate::chance::Chance;
use crate::packet::Packet;

/// The scheduler, its classes and modules.
#[derive(Debug)]
pub(crate) struct ClassFetch {
    spec: Fetch,
    /// The time for one class.
    iteration: Span,
    chance: Chance,
    classes: Vec<Class>,
    /// Classes with packets that are with no module, in the order in which the scheduler reads them.
    round: VecDeque<u32>,
    /// When the next iteration begins.
    slot: Nanos,
    /// When the scheduler reads the first class of the round that has tokens, and its place; computed when the round changes.
    first: Option<(Nanos, usize)>,
    modules: Vec<Option<FetchWork>>,
    counted: Counted,
}

#[derive(Debug)]
struct Class {
    waiting: VecDeque<Packet>,
    rate: BitRate,
    /// Its tokens, in bits times 10^9.
    tokens: i128,
    /// The most tokens that it saves: for one burst, and one packet of the largest size.
    most: i128,
    refreshed: Nanos,
    fetched: bool,
}

/// The present work of a module.
#[derive(Debug)]
struct FetchWork {
    class: u32,
    /// When its packet is in the NIC.
    ready: Nanos,
    packet: Packet,
    /// Bytes that it may still fetch.
    rest: u64,
}

/// Counters of the hardware.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    decisions: u64,
    reads: u64,
    /// The largest number of accesses to the class table in one iteration.
    cycles: u64,
    /// The iteration in which a doorbell was written last.
    doorbell: Option<u64>,
    /// The iteration in which feedback was written last.
    feedback: Option<u64>,
}

/// Cycles of an iteration without doorbells and feedback: to read a class, and to refresh and dispatch it.
const LOOK: u64 = 2;
/// Cycles of a doorbell, and of feedback.
const DOORBELL: u64 = 2;
const FEEDBACK: u64 = 1;

impl ClassFetch {
    pub(super) fn new(spec: Fetch, rates: &[BitRate], mtu: u32, chance: Chance) -> Self {
        let most = bit_nanos(spec.burst.as_u64().max(u64::from(mtu) + 14) + u64::from(mtu) + 14);
        let class = |&rate: &BitRate| Class {
            waiting: VecDeque::new(),
            rate,
            tokens: most,
            most,
            refreshed: Nanos::ZERO,
            fetched: false,
        };
        Self {
            iteration: spec.cycle.times(spec.cycles.into()),
            chance,
            classes: rates.iter().map(class).collect(),
            round: VecDeque::new(),
            slot: Nanos::ZERO,
            first: None,
            modules: (0..spec.modules).map(|_| None).collect(),
            counted: Counted::default(),
            spec,
        }
    }

    /// Takes a packet for a class, with the host's doorbell.
    pub(super) fn offer(&mut self, tenant: u32, packet: Packet, now: Nanos) -> bool {
        let class = &mut self.classes[tenant as usize];
        if class.waiting.len() >= QUEUE {
            return false;
        }
        class.waiting.push_back(packet);
        let comes = class.waiting.len() == 1 && !class.fetched;
        self.counted.doorbell = Some(self.iteration_at(now));
        if comes {
            self.go_round_until(now);
            self.join(tenant);
        }
        true
    }

    /// Removes the next packet that is in the NIC, once the link is free.
    pub(super) fn dequeue(&mut self, now: Nanos, free: Nanos) -> Option<Packet> {
        self.dispatch_until(now);
        if free > now {
            return None;
        }
        let ready =
            |work: &Option<FetchWork>| work.as_ref().map(|work| work.ready).filter(|ready| *ready <= now);
        let modules = self.modules.iter().enumerate();
        let (_, index) = modules.filter_map(|(index, work)| Some((ready(work)?, index))).min()?;
        let work = self.modules[index].take()?;
        self.go_on(index, work.class, work.rest, now);
        Some(work.packet)
    }

    /// When a module has its packet, or is given a class.
    pub(super) fn next(&self) -> Option<Nanos> {
        let ready = self.modules.iter().flatten().map(|work| work.ready).min();
        let free = self.modules.iter().any(Option::is_none);
        let dispatch = self.first.filter(|_| free).map(|(at, _)| at + self.iteration);
        ready.into_iter().chain(dispatch).min()
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &Packet> {
        let fetched = self.modules.iter().flatten().map(|work| &work.packet);
        self.classes.iter().flat_map(|class| &class.waiting).chain(fetched)
    }

    pub(super) fn counters(&self) -> [(&'static str, u64); 3] {
        let Counted { decisions, reads, cycles, .. } = self.counted;
        [("decisions", decisions), ("dma_reads", reads), ("cycles", cycles)]
    }

    /// Gives classes to modules, while a module is free and the iteration that found the class is over.
    fn dispatch_until(&mut self, now: Nanos) {
        while let Some((at, place)) = self.first.filter(|(at, _)| *at + self.iteration <= now)
            && let Some(module) = self.modules.iter().position(Option::is_none)
        {
            self.round.rotate_left(place);
            let Some(index) = self.round.pop_front() else { return };
            self.slot = at + self.iteration;
            self.count(at);
            self.classes[index as usize].refresh(at);
            self.classes[index as usize].fetched = true;
            self.go_on(module, index, self.spec.burst.as_u64(), self.slot);
            self.look();
        }
    }

    /// Makes a module fetch its class's next packet, or give the class back.
    fn go_on(&mut self, module: usize, index: u32, rest: u64, now: Nanos) {
        let class = &mut self.classes[index as usize];
        let first = rest == self.spec.burst.as_u64();
        let len = class.waiting.front().map(|packet| u64::from(packet.len));
        let len = len.filter(|&len| bit_nanos(len) <= class.tokens && (first || len <= rest));
        if let Some(packet) = len.and_then(|_| class.waiting.pop_front()) {
            let len = u64::from(packet.len);
            class.tokens -= bit_nanos(len);
            self.counted.reads += 2; // the next descriptor, and this payload
            let latency = self.chance.normal(self.spec.latency, self.spec.sigma);
            // A first packet may be longer than the burst.
            let rest = rest.saturating_sub(len).min(self.spec.burst.as_u64().saturating_sub(1));
            self.modules[module] = Some(FetchWork { class: index, ready: now + latency, packet, rest });
            return;
        }
        class.fetched = false;
        let more = !class.waiting.is_empty();
        self.counted.feedback = Some(self.iteration_at(now));
        self.resume(now);
        if more {
            self.join(index);
        }
    }

    /// Goes on after a module has come free: from the class for which the scheduler had found no module, if there is one.
    fn resume(&mut self, now: Nanos) {
        match self.first {
            Some((at, place)) if at + self.iteration <= now => {
                self.round.rotate_left(place);
                self.slot = now;
                self.look();
            }
            _ => self.go_round_until(now),
        }
    }

    /// Skips the iterations that began before `now` and found no tokens.
    fn go_round_until(&mut self, now: Nanos) {
        let until = self.first.map_or(now, |(at, _)| at.min(now));
        if self.round.is_empty() {
            self.slot = self.slot.max(now);
        } else if until > self.slot {
            let looks = until.since(self.slot).as_u64().div_ceil(self.iteration.as_u64());
            self.round.rotate_left((looks % self.round.len() as u64) as usize);
            self.slot += self.iteration.times(looks);
        }
    }

    /// Adds a class at the end of the round.
    fn join(&mut self, index: u32) {
        self.round.push_back(index);
        self.look();
    }

    /// Finds the class that the scheduler will be the first to read with tokens.
    fn look(&mut self) {
        let (len, step) = (self.round.len() as u64, self.iteration.as_u64());
        let found = |(place, &index): (usize, &u32)| {
            let class = &self.classes[index as usize];
            let visit = self.slot + self.iteration.times(place as u64);
            let behind = class.pays_from().since(visit).as_u64();
            let rounds = behind.div_ceil(step * len);
            (visit + self.iteration.times(rounds * len), place)
        };
        self.first = self.round.iter().enumerate().map(found).min();
    }

    fn iteration_at(&self, now: Nanos) -> u64 {
        now.as_u64() / self.iteration.as_u64().max(1)
    }

    /// Counts the cycles of an iteration that dispatches.
    fn count(&mut self, at: Nanos) {
        self.counted.decisions += 1;
        let here = Some(self.iteration_at(at));
        let doorbell = if self.counted.doorbell == here { DOORBELL } else { 0 };
        let feedback = if self.counted.feedback == here { FEEDBACK } else { 0 };
        self.counted.cycles = self.counted.cycles.max(LOOK + doorbell + feedback);
    }
}

impl Class {
    fn refresh(&mut self, now: Nanos) {
        let earned = i128::from(now.since(self.refreshed).as_u64()) * i128::from(self.rate.get());
        self.tokens = (self.tokens + earned).min(self.most);
        self.refreshed = now;
    }

    /// When its tokens pay for its head packet.
    fn pays_from(&self) -> Nanos {
        let head = self.waiting.front().map_or(0, |packet| u64::from(packet.len));
        let lacks = (bit_nanos(head) - self.tokens).max(0);
        let wait = lacks.unsigned_abs().div_ceil(self.rate.get().into());
        self.refreshed + Span::ns(u64::try_from(wait).unwrap_or(u64::MAX / 4))
    }
}

fn bit_nanos(bytes: u64) -> i128 {
    i128::from(Bytes::new(bytes).as_u64()) * 8 * i128::from(NS_PER_SEC)
}
