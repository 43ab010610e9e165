//! UDP that nobody answers: paced, or more than the link holds.
//!
//! Why: a neighbour that ignores congestion is the hardest one to live beside.
//! From: packet generators; a flood comes at twice the rate of its host's link, whatever that is, and at uneven moments:
//! evenly spaced it would find each free place of a queue first, or never (Floyd and Jacobson, "On Traffic Phase
//! Effects in Packet-Switched Gateways", 1992).
//! Not here: echoed datagrams (`probe`).
//! Invariant: the n-th paced datagram leaves exactly n gaps after the start, or after its turn's, fractions included; of
//! a burst, the first does.

use plimsoll_units::{Nanos, Span};

use super::Job;
use super::bulk::Rhythm;
use crate::chance::Chance;
use crate::packet::{Body, IP_HEADERS, Packet, SHORTEST, UDP_HEADERS};
use crate::world::World;

/// A paced sender.
#[derive(Debug)]
pub(crate) struct Udp {
    job: Job,
    size: u32,
    mtu: u32,
    /// Nanoseconds between two datagrams, as a fraction.
    gap: (u128, u128),
    /// Uneven gaps, between none and twice the mean.
    uneven: Option<Chance>,
    /// Bytes of frames that are sent at once.
    burst: u64,
    /// Of those, the bytes that count for the next burst already.
    bytes: u64,
    sent: u64,
    turn: Turn,
    /// Bytes of frames that its socket holds until they have left, if it holds any back.
    buffer: u64,
    /// Of those, what it holds now.
    held: u64,
    /// It waits for room there.
    blocked: bool,
}

/// A time of sending.
#[derive(Debug)]
struct Turn {
    begun: Nanos,
    /// How many had been sent before.
    before: u64,
    /// When it ends, and how long the next ones are; it never ends without a rhythm.
    until: Nanos,
    rhythm: Option<Rhythm>,
}

impl Udp {
    pub(crate) fn new(job: Job, size: u32, mtu: u32, gap: (u128, u128), uneven: Option<Chance>) -> Self {
        let turn = Turn { begun: job.start, before: 0, until: job.stop, rhythm: None };
        let (burst, sent, bytes, buffer, held, blocked) = (0, 0, 0, 0, 0, false);
        Self { job, size, mtu, gap, uneven, burst, sent, bytes, turn, buffer, held, blocked }
    }

    /// The same with pauses.
    pub(crate) fn in_turns(mut self, mut rhythm: Rhythm) -> Self {
        self.turn.until = self.turn.begun + rhythm.chance.exponential(rhythm.on);
        self.turn.rhythm = Some(rhythm);
        self
    }

    /// Sends so many bytes of frames at once, on average: a burst ends with the datagram that fills it.
    pub(crate) fn in_bursts(self, burst: u64) -> Self {
        Self { burst, ..self }
    }

    /// Through a socket that holds so many bytes until they have left, and whose writer waits when it is full. What is
    /// late then is sent as soon as there is room.
    pub(crate) fn held_back(self, buffer: u64) -> Self {
        Self { buffer, ..self }
    }

    /// So many bytes of frames have left.
    pub(super) fn left(&mut self, world: &mut World, len: u32) {
        self.held = self.held.saturating_sub(len.into());
        if self.blocked && self.held < self.buffer {
            self.blocked = false;
            self.timeout(world);
        }
    }

    pub(super) fn timeout(&mut self, world: &mut World) {
        if world.now >= self.job.stop {
            return;
        }
        if !self.send(world) {
            return world.set_timer(self.job.timer, None);
        }
        let next = match &mut self.uneven {
            None => self.due(self.sent),
            Some(chance) => {
                let mean = u32::try_from(self.gap.0 / self.gap.1).unwrap_or(u32::MAX / 4);
                world.now + Span::ns(chance.below(2 * mean + 1).into())
            }
        };
        let next = if next < self.turn.until { next } else { self.turn.next(self.sent).unwrap_or(next) };
        world.set_timer(self.job.timer, Some(next.max(world.now)));
    }

    /// A datagram, or as many as fill the burst; false if the socket has no room for it.
    fn send(&mut self, world: &mut World) -> bool {
        loop {
            if self.buffer > 0 && self.held >= self.buffer {
                self.blocked = true;
                return false;
            }
            let flow = self.job.first + (self.sent % u64::from(self.job.count)) as u32;
            self.held += send(world, flow, false, self.sent, self.size, self.mtu);
            self.sent += 1;
            self.bytes += u64::from((self.size + UDP_HEADERS).max(SHORTEST));
            if self.bytes >= self.burst {
                self.bytes -= self.burst;
                return true;
            }
        }
    }

    fn due(&self, number: u64) -> Nanos {
        let after = u128::from(number - self.turn.before) * self.gap.0 / self.gap.1;
        Nanos::new(self.turn.begun.as_u64().saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}

impl Turn {
    /// The pause is over: when that is. Nothing without a rhythm.
    fn next(&mut self, sent: u64) -> Option<Nanos> {
        let Rhythm { on, off, chance } = self.rhythm.as_mut()?;
        self.begun = self.until + chance.exponential(*off);
        self.until = self.begun + chance.exponential(*on);
        self.before = sent;
        Some(self.begun)
    }
}

/// Sends a datagram, in as many fragments as the MTU asks for. How many bytes of frames those are.
pub(super) fn send(world: &mut World, flow: u32, back: bool, number: u64, size: u32, mtu: u32) -> u64 {
    let whole = size + UDP_HEADERS - IP_HEADERS;
    let most = mtu + 14 - IP_HEADERS;
    let most = if whole > most { most / 8 * 8 } else { most };
    let (mut rest, mut bytes) = (whole, 0);
    let short = |bytes: u32| u16::try_from(bytes).unwrap_or(u16::MAX);
    loop {
        let (part, offset) = (rest.min(most), short(whole - rest));
        rest -= part;
        let len = (part + IP_HEADERS).max(SHORTEST);
        let body = Body::Datagram { number, offset, size: short(size), last: rest == 0 };
        world.send(Packet {
            flow,
            back,
            ect: false,
            ce: false,
            carried: false,
            marked: false,
            apart: 0,
            len,
            body,
        });
        bytes += u64::from(len);
        if rest == 0 {
            return bytes;
        }
    }
}
