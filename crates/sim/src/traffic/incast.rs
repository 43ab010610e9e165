//! Incast: one end asks many at once, and all answer at once.
//!
//! Why: the answers meet in the queue before the end that asked, and the slowest of them is what its user waits for.
//! From: partition and aggregate as in the DCTCP paper (SIGCOMM 2010, §2.1); connections stay open from one request to the next.
//! Not here: requests to one server each (`rpc`).
//! Invariant: one request is under way at a time; a request that is due earlier waits, and its time counts from when it was due.

use std::collections::VecDeque;

use plimsoll_scenario::{Sample, WorkloadResult};
use plimsoll_units::{Nanos, Span};

use super::{Assignment, GRACE, Stack, gap, measured, sample};
use crate::chance::Chance;

/// Requests to all senders, and their answers.
#[derive(Debug)]
pub(crate) struct Incast {
    job: Assignment,
    request: u64,
    size: u64,
    pause: Span,
    /// Mean time between requests; `None` for a closed loop.
    gap: Option<Span>,
    chance: Chance,
    begun: bool,
    /// Requests that are due.
    waiting: VecDeque<Nanos>,
    /// When the request under way was due.
    due: Option<Nanos>,
    /// Requests that have been sent.
    rounds: u64,
    /// Senders that have not answered the request under way.
    open: u32,
    samples: Vec<Sample>,
    /// When requests were due whose answers came too late to count.
    late: Vec<Nanos>,
}

impl Incast {
    /// Each answer has `size` bytes; `rate` is the number of requests a second, in an open loop.
    pub(crate) fn new(
        job: Assignment,
        (request, size): (u64, u64),
        rate: Option<u32>,
        pause: Span,
        chance: Chance,
    ) -> Self {
        Self {
            job,
            request: request.max(1),
            size: size.max(1),
            pause,
            gap: rate.map(gap),
            chance,
            begun: false,
            waiting: VecDeque::new(),
            due: None,
            rounds: 0,
            open: 0,
            samples: Vec::new(),
            late: Vec::new(),
        }
    }

    /// Handles the timer: the next request is due.
    pub(super) fn timeout(&mut self, stack: &mut impl Stack) {
        let now = stack.now();
        if now >= self.job.stop {
            return;
        }
        match self.gap {
            Some(mean) => {
                // The first arrives after a gap, too.
                self.waiting.extend(self.begun.then_some(now));
                let next = now + self.chance.exponential(mean);
                stack.set_timer(self.job.timer, (next < self.job.stop).then_some(next));
            }
            None => self.waiting.push_back(now),
        }
        self.begun = true;
        self.ask(stack);
    }

    fn ask(&mut self, stack: &mut impl Stack) {
        if self.due.is_some() {
            return;
        }
        self.due = self.waiting.pop_front();
        if self.due.is_some() {
            self.rounds += 1;
            self.open = self.job.count;
            (0..self.job.count).for_each(|flow| stack.write(self.job.first + 2 * flow, self.request));
        }
    }

    pub(super) fn received(&mut self, stack: &mut impl Stack, socket: u32, total: u64) {
        if (socket - self.job.first) % 2 == 1 {
            let answered = stack.written(socket) / self.size;
            if total / self.request > answered {
                stack.answer(socket, self.size);
            }
            return;
        }
        // Each of an end's answers becomes whole once: its count of bytes only grows.
        if total < self.rounds * self.size || self.open == 0 {
            return;
        }
        self.open -= 1;
        if self.open > 0 {
            return;
        }
        match self.due.take() {
            Some(due) if stack.now() < self.job.stop + GRACE => self.samples.push(sample(due, stack.now())),
            late => self.late.extend(late),
        }
        if self.gap.is_some() {
            return self.ask(stack);
        }
        let next = stack.now() + self.pause;
        stack.set_timer(self.job.timer, (next < self.job.stop).then_some(next));
    }

    pub(super) fn finish(&mut self) -> WorkloadResult {
        let unanswered = self.due.into_iter().chain(self.waiting.iter().chain(&self.late).copied()).collect();
        measured(core::mem::take(&mut self.samples), unanswered)
    }
}
