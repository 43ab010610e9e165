//! UDP without answers: paced, or a flood of more than the link carries.
//!
//! Why: a neighbour that ignores congestion is the hardest one to isolate.
//! From: packet generators; a flood comes at twice the rate of its host's link, whatever that is, and at uneven moments:
//! evenly spaced it would find each free place of a queue first, or never (Floyd and Jacobson, "On Traffic Phase
//! Effects in Packet-Switched Gateways", 1992).
//! Not here: echoed datagrams (`probe`).
//! Invariant: the n-th paced datagram, or the first one of a burst, leaves exactly n gaps after the start of the workload or of
//! the turn, fractions included.

use plimsoll_units::{Nanos, Span};

use super::bulk::Rhythm;
use super::{Assignment, Stack};
use crate::chance::Chance;
use crate::packet::{Body, IP_HEADERS, Packet, SHORTEST, UDP_HEADERS};

/// A paced sender.
#[derive(Debug)]
pub(crate) struct Udp {
    job: Assignment,
    size: u32,
    mtu: u32,
    /// Nanoseconds between two datagrams, as a numerator and a denominator.
    gap: (u128, u128),
    /// Draws uneven gaps, between none and twice the mean.
    uneven: Option<Chance>,
    /// Bytes of frames that are sent at once.
    burst: u64,
    /// Bytes that were sent beyond the last burst, and count for the next one.
    bytes: u64,
    sent: u64,
    turn: Turn,
    /// Bytes of frames that its socket's buffer holds until they have left; zero for no bound.
    buffer: u64,
    /// Bytes in the buffer now.
    held: u64,
    /// Whether the program waits for room in the buffer.
    blocked: bool,
    /// Whether its datagrams say that they are ECN-capable.
    ect: bool,
}

/// A time of sending, between two pauses.
#[derive(Debug)]
struct Turn {
    begun: Nanos,
    /// Datagrams that were sent before it.
    before: u64,
    /// When it ends.
    until: Nanos,
    rhythm: Option<Rhythm>,
}

impl Udp {
    pub(crate) fn new(
        job: Assignment,
        size: u32,
        mtu: u32,
        gap: (u128, u128),
        uneven: Option<Chance>,
    ) -> Self {
        let turn = Turn { begun: job.start, before: 0, until: job.stop, rhythm: None };
        let (burst, sent, bytes, buffer, held) = (0, 0, 0, 0, 0);
        let (blocked, ect) = (false, false);
        Self { job, size, mtu, gap, uneven, burst, sent, bytes, turn, buffer, held, blocked, ect }
    }

    /// Makes its datagrams say that they are ECN-capable.
    pub(crate) fn capable(self, ect: bool) -> Self {
        Self { ect, ..self }
    }

    /// Adds pauses to it.
    pub(crate) fn in_turns(mut self, mut rhythm: Rhythm) -> Self {
        self.turn.until = self.turn.begun + rhythm.chance.exponential(rhythm.on);
        self.turn.rhythm = Some(rhythm);
        self
    }

    /// Makes it send in bursts of `burst` bytes of frames on average: a burst ends with the datagram that fills it.
    pub(crate) fn in_bursts(self, burst: u64) -> Self {
        Self { burst, ..self }
    }

    /// Makes it send through a socket whose buffer holds `buffer` bytes until they have left; the program waits while it is
    /// full. Datagrams that are late then are sent as soon as there is room.
    pub(crate) fn held_back(self, buffer: u64) -> Self {
        Self { buffer, ..self }
    }

    /// Handles a frame of `len` bytes that has left.
    pub(super) fn left(&mut self, stack: &mut impl Stack, len: u32) {
        self.held = self.held.saturating_sub(len.into());
        if self.blocked && self.held < self.buffer {
            self.blocked = false;
            self.timeout(stack);
        }
    }

    pub(super) fn timeout(&mut self, stack: &mut impl Stack) {
        if stack.now() >= self.job.stop {
            return;
        }
        if !self.send(stack) {
            return stack.set_timer(self.job.timer, None);
        }
        let next = match &mut self.uneven {
            None => self.due(self.sent),
            Some(chance) => {
                let mean = u32::try_from(self.gap.0 / self.gap.1).unwrap_or(u32::MAX / 4);
                stack.now() + Span::ns(chance.below(2 * mean + 1).into())
            }
        };
        let next = if next < self.turn.until { next } else { self.turn.next(self.sent).unwrap_or(next) };
        stack.set_timer(self.job.timer, Some(next.max(stack.now())));
    }

    /// Sends a datagram, or those of a burst; `false` if the socket has no room.
    fn send(&mut self, stack: &mut impl Stack) -> bool {
        loop {
            if self.buffer > 0 && self.held >= self.buffer {
                self.blocked = true;
                return false;
            }
            let flow = self.job.first + (self.sent % u64::from(self.job.count)) as u32;
            self.held += send(stack, flow, (false, self.ect), self.sent, self.size, self.mtu);
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
    /// Begins the next time of sending, after a pause, and returns its start; `None` without a rhythm.
    fn next(&mut self, sent: u64) -> Option<Nanos> {
        let Rhythm { on, off, chance } = self.rhythm.as_mut()?;
        self.begun = self.until + chance.exponential(*off);
        self.until = self.begun + chance.exponential(*on);
        self.before = sent;
        Some(self.begun)
    }
}

/// Sends a datagram, in as many fragments as the MTU requires, and returns the bytes of their frames.
pub(super) fn send(
    stack: &mut impl Stack,
    flow: u32,
    (back, ect): (bool, bool),
    number: u64,
    size: u32,
    mtu: u32,
) -> u64 {
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
        stack.send_packet(Packet::new((flow, back), ect, len, body));
        bytes += u64::from(len);
        if rest == 0 {
            return bytes;
        }
    }
}
