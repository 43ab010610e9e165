//! HTB under its one lock.
//!
//! Why: a queueing discipline has one lock that every sending core takes, and a timer that an interrupt serves; at 10 Gb/s
//! these limit the rate, not its algorithm.
//! From: SENIC §2.2.2 ("lock contention and frequent interrupts"; 6.5 Gb/s of 1,500-byte packets at most) and
//! `net/core/dev.c`: a core holds the root lock to enqueue, and the core that runs the discipline holds it for each packet.
//! Not here: HTB itself (`htb`).
//! Invariant: one operation at a time, each exponentially distributed around the lock's mean time; cores take turns, and so do
//! enqueueing and dequeueing.

use std::collections::VecDeque;

use plimsoll_scenario::{Lateness, Model};
use plimsoll_units::{Nanos, Span};

use super::QUEUE;
use super::htb::Htb;
use crate::chance::Chance;
use crate::packet::{Body, Packet};

/// HTB, the lock in front of it and the timer behind it.
#[derive(Debug)]
pub(crate) struct LockedHtb {
    htb: Htb,
    lock: Span,
    wake: Lateness,
    /// By tenant: the packets that its core waits to enqueue, with the time since when.
    coming: Vec<VecDeque<(Nanos, Packet)>>,
    /// The number of these packets.
    waiting: usize,
    /// The tenant whose turn it is.
    turn: usize,
    held: Option<(Held, Nanos)>,
    /// Whether the last operation enqueued a packet.
    let_in: bool,
    /// When the timer's interrupt takes the lock, if no core does before.
    timer: Option<Nanos>,
    chance: Chance,
    spent: Span,
}

/// An operation under the lock.
#[derive(Debug)]
enum Held {
    ToEnqueue(u32, Packet),
    ToDequeue,
}

impl LockedHtb {
    pub(super) fn new(htb: Htb, model: Model, wake: Lateness, tenants: usize, chance: Chance) -> Self {
        Self {
            htb,
            lock: model.lock,
            wake,
            chance,
            coming: vec![VecDeque::new(); tenants],
            waiting: 0,
            turn: 0,
            held: None,
            let_in: false,
            timer: None,
            spent: Span::ZERO,
        }
    }

    /// Takes a packet. A program that sends datagrams as fast as it can waits for the lock, and sends nothing meanwhile.
    pub(super) fn offer(&mut self, tenant: u32, packet: Packet, now: Nanos) -> bool {
        let entering = matches!(&self.held, Some((Held::ToEnqueue(other, _), _)) if *other == tenant);
        let waiting = self.coming[tenant as usize].len() + usize::from(entering);
        let blocked = waiting > 0 && matches!(packet.body, Body::Datagram { .. });
        if blocked || waiting + self.htb.backlog(tenant) >= QUEUE {
            return false;
        }
        if self.is_exact() {
            return self.htb.offer(tenant, packet);
        }
        self.coming[tenant as usize].push_back((now, packet));
        self.waiting += 1;
        true
    }

    pub(super) fn dequeue(&mut self, now: Nanos) -> Option<Packet> {
        if self.is_exact() {
            return self.htb.dequeue(now);
        }
        loop {
            match self.held.take() {
                Some((held, until)) if until > now => {
                    self.held = Some((held, until));
                    return None;
                }
                Some((Held::ToEnqueue(tenant, packet), until)) => {
                    self.htb.offer(tenant, packet);
                    self.let_in = true;
                    self.timer = None;
                    self.hold(until);
                }
                Some((Held::ToDequeue, until)) => {
                    let packet = self.htb.dequeue(until);
                    self.let_in = false;
                    self.hold(until);
                    if packet.is_some() {
                        return packet;
                    }
                }
                None => {
                    if self.timer.is_some_and(|timer| timer <= now) {
                        self.timer = None;
                    }
                    self.hold(now);
                    self.held.as_ref()?;
                }
            }
        }
    }

    /// Whether nothing takes time and the timer is on time.
    fn is_exact(&self) -> bool {
        self.lock == Span::ZERO && self.wake.is_none()
    }

    /// The time of an operation. Cache misses and contention for the lock make it uneven.
    fn operation(&mut self) -> Span {
        self.chance.exponential(self.lock)
    }

    /// Starts the next operation, if there is one.
    fn hold(&mut self, now: Nanos) {
        let leaves = self.timer.is_none() && self.htb.has_due(now);
        if leaves && (self.let_in || self.waiting == 0) {
            let takes = self.operation();
            self.spent += takes;
            self.held = Some((Held::ToDequeue, now + takes));
        } else if self.waiting > 0 {
            let count = self.coming.len();
            let mut places = (0..count).map(|step| (self.turn + step) % count);
            let tenant = places.find(|&tenant| !self.coming[tenant].is_empty());
            let Some(tenant) = tenant else { return };
            let Some((since, packet)) = self.coming[tenant].pop_front() else { return };
            self.waiting -= 1;
            self.turn = (tenant + 1) % count;
            // The core has spun since it came.
            let takes = self.operation();
            self.spent += takes + now.since(since);
            self.held = Some((Held::ToEnqueue(tenant as u32, packet), now + takes));
        } else if self.timer.is_none() {
            self.timer = self.htb.next(now).map(|at| at + self.chance.lateness(&self.wake));
        }
    }

    pub(super) fn next(&self, now: Nanos) -> Option<Nanos> {
        if self.is_exact() {
            return self.htb.next(now);
        }
        match &self.held {
            Some((_, until)) => Some(*until),
            None if self.waiting > 0 => Some(now),
            None => self.timer,
        }
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &Packet> {
        let held = self.held.iter().filter_map(|(held, _)| match held {
            Held::ToEnqueue(_, packet) => Some(packet),
            Held::ToDequeue => None,
        });
        self.htb.holds().chain(self.coming.iter().flatten().map(|(_, packet)| packet)).chain(held)
    }

    /// The time that all cores held the lock or waited for it.
    pub(super) fn cpu(&self) -> Option<Span> {
        (self.lock > Span::ZERO).then_some(self.spent)
    }
}
