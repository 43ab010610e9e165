//! Bulk TCP: flows that always have something to send, or send and pause in turn.
//!
//! Why: each flow takes all the bandwidth that it can get; isolation must keep it to its tenant's share.
//! From: iperf3's idea; on/off times are exponential, as most traffic models have them.
//! Not here: shuffles, whose flows wait for each other (`rounds`).
//! Invariant: at the stop unsent data is thrown away, not drained.

use plimsoll_units::Span;

use super::{Assignment, Stack};
use crate::chance::Chance;

/// Flows that send all the time, or by turns.
#[derive(Debug)]
pub(crate) struct Bulk {
    job: Assignment,
    rhythm: Option<Rhythm>,
    sending: Vec<bool>,
    begun: bool,
    /// Whether the server sends.
    reverse: bool,
}

/// Times of sending and of pausing.
#[derive(Debug)]
pub(crate) struct Rhythm {
    pub(crate) on: Span,
    pub(crate) off: Span,
    pub(crate) chance: Chance,
}

/// Bytes with which `iperf3` begins a connection.
const COOKIE: u64 = 37;
/// Bytes in a socket's buffer that may not be acknowledged yet: Linux's usual maximum.
const BUFFER: u64 = 4 << 20;

impl Bulk {
    pub(crate) fn new(job: Assignment, rhythm: Option<Rhythm>) -> Self {
        Self { sending: vec![true; job.count as usize], job, rhythm, begun: false, reverse: false }
    }

    /// Makes the server send. The client asks for it first.
    pub(crate) fn reversed(self) -> Self {
        Self { reverse: true, ..self }
    }

    /// Handles a timer: the first one starts and stops the workload, timer n + 1 switches flow n on and off.
    pub(super) fn timeout(&mut self, stack: &mut impl Stack, timer: u32) {
        if timer == 0 {
            return if self.begun { self.end(stack) } else { self.begin(stack) };
        }
        let (flow, socket) = (timer as usize - 1, self.job.first + 2 * (timer - 1));
        if stack.now() >= self.job.stop {
            return;
        }
        self.sending[flow] = !self.sending[flow];
        self.next_turn(stack, timer - 1);
        self.acknowledged(stack, socket);
    }

    fn begin(&mut self, stack: &mut impl Stack) {
        self.begun = true;
        stack.set_timer(self.job.timer, Some(self.job.stop));
        for flow in 0..self.job.count {
            let socket = self.job.first + 2 * flow;
            match self.rhythm {
                None if self.reverse => {
                    stack.write_unlimited(socket + 1);
                    stack.write(socket, COOKIE);
                }
                None => stack.write_unlimited(socket),
                Some(_) => {
                    self.next_turn(stack, flow);
                    self.acknowledged(stack, socket);
                }
            }
        }
    }

    fn end(&mut self, stack: &mut impl Stack) {
        for flow in 0..self.job.count {
            stack.close(self.job.first + 2 * flow);
            if self.rhythm.is_some() {
                stack.set_timer(self.job.timer + 1 + flow, None);
            }
        }
    }

    fn next_turn(&mut self, stack: &mut impl Stack, flow: u32) {
        if let Some(Rhythm { on, off, chance }) = &mut self.rhythm {
            let next = stack.now() + chance.exponential(if self.sending[flow as usize] { *on } else { *off });
            stack.set_timer(self.job.timer + 1 + flow, Some(next));
        }
    }

    /// Fills the socket's buffer of a flow with pauses, while it sends.
    pub(super) fn acknowledged(&mut self, stack: &mut impl Stack, socket: u32) {
        let flow = (socket - self.job.first) / 2;
        if self.rhythm.is_some() && self.sending[flow as usize] {
            stack.fill(socket, BUFFER);
        }
    }
}
