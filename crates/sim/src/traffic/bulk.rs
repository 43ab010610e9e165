//! Bulk TCP: flows that always have something to send, or send and pause in turn.
//!
//! Why: each flow takes all the bandwidth that it can get; isolation must keep it to its tenant's share.
//! From: iperf3's idea; on/off times are exponential, as most traffic models have them.
//! Not here: shuffles, whose flows wait for each other (`rounds`).
//! Invariant: at the stop unsent data is thrown away, not drained.

use plimsoll_units::{Nanos, Span};

use super::{Assignment, Stack};
use crate::chance::Chance;

/// Flows that send all the time, or by turns.
#[derive(Debug)]
pub(crate) struct Bulk {
    job: Assignment,
    rhythm: Option<Rhythm>,
    sending: Vec<bool>,
    /// When each flow begins, the latest first; those that have begun are gone.
    starts: Vec<(Nanos, u32)>,
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

impl Bulk {
    pub(crate) fn new(job: Assignment, rhythm: Option<Rhythm>) -> Self {
        let starts = (0..job.count).rev().map(|flow| (job.start, flow)).collect();
        Self { sending: vec![true; job.count as usize], job, rhythm, starts, reverse: false }
    }

    /// Makes the server send. The client asks for it first.
    pub(crate) fn reversed(self) -> Self {
        Self { reverse: true, ..self }
    }

    /// Makes each flow begin up to `most` after the workload's start.
    pub(crate) fn spread(mut self, most: Span, mut chance: Chance) -> Self {
        for (start, _) in &mut self.starts {
            *start += chance.within(most);
        }
        self.starts.sort_unstable_by(|one, other| other.cmp(one));
        self
    }

    /// Handles a timer: the first one begins flows and stops the workload, timer n + 1 switches flow n on and off.
    pub(super) fn timeout(&mut self, stack: &mut impl Stack, timer: u32) {
        if stack.now() >= self.job.stop {
            return if timer == 0 { self.end(stack) } else { stack.set_timer(self.job.timer + timer, None) };
        }
        if timer == 0 {
            return self.begin(stack);
        }
        let (flow, socket) = (timer as usize - 1, self.job.first + 2 * (timer - 1));
        self.sending[flow] = !self.sending[flow];
        self.next_turn(stack, timer - 1);
        if self.sending[flow] { stack.write_unlimited(socket) } else { stack.stop(socket) }
    }

    /// Begins the flows whose time has come.
    fn begin(&mut self, stack: &mut impl Stack) {
        let now = stack.now();
        while let Some((_, flow)) = self.starts.pop_if(|(start, _)| *start <= now) {
            let socket = self.job.first + 2 * flow;
            if self.reverse {
                stack.write_unlimited(socket + 1);
                stack.write(socket, COOKIE);
            } else {
                self.next_turn(stack, flow);
                stack.write_unlimited(socket);
            }
        }
        let next = self.starts.last().map_or(self.job.stop, |(start, _)| *start);
        stack.set_timer(self.job.timer, Some(next.min(self.job.stop)));
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
}
