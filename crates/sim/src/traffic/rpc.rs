//! Requests and responses over TCP, in a closed or an open loop.
//!
//! Why: a tenant's users notice the time from when a request was due to its answer.
//! From: memcached-like load generators; open-loop arrivals are Poisson, and a request that waits for a free connection
//! has been waiting since it was due.
//! Not here: rounds of blocks (`rounds`).
//! Invariant: each connection has at most one request under way.

use std::collections::VecDeque;

use plimsoll_scenario::{Sample, WorkloadResult};
use plimsoll_units::{Nanos, Span};

use super::{Assignment, GRACE, Sizes, Stack, gap, measured, sample};
use crate::chance::Chance;

/// Clients that send requests, and a server that answers at once.
#[derive(Debug)]
pub(crate) struct Rpc {
    job: Assignment,
    sizes: Sizes,
    /// Mean time between requests; `None` for a closed loop.
    gap: Option<Span>,
    /// Whether the time between requests is always the mean.
    even: bool,
    chance: Chance,
    begun: bool,
    calls: Vec<Call>,
    /// Connections without a request, the longest idle first: requests go round all connections, and so all hosts.
    idle: VecDeque<u32>,
    /// Requests that are due and wait for a connection.
    waiting: VecDeque<Nanos>,
    samples: Vec<Sample>,
    /// When requests were due whose answers came too late to count.
    late: Vec<Nanos>,
}

/// A connection and the request under way on it.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    due: Option<Nanos>,
    /// Bytes that the server has received when it has the whole request.
    asked: u64,
    /// Bytes that the client has received when it has the whole response.
    answered: u64,
    /// Bytes that the server will write then; zero once it has.
    response: u64,
}

impl Rpc {
    pub(crate) fn new(job: Assignment, sizes: Sizes, rate: Option<u32>, even: bool, chance: Chance) -> Self {
        let calls = vec![Call::default(); job.count as usize];
        Self {
            sizes,
            gap: rate.map(gap),
            even,
            chance,
            begun: false,
            calls,
            idle: (0..job.count).collect(),
            waiting: VecDeque::new(),
            samples: Vec::new(),
            late: Vec::new(),
            job,
        }
    }

    pub(super) fn timeout(&mut self, stack: &mut impl Stack) {
        let now = stack.now();
        match self.gap {
            Some(gap) => {
                if self.begun {
                    self.waiting.push_back(now);
                }
                let next = now
                    + match (self.even, self.begun) {
                        (false, _) => self.chance.exponential(gap),
                        (true, true) => gap,
                        // Each client begins at a moment of its own.
                        (true, false) => Span::ns(
                            self.chance.below(u32::try_from(gap.as_u64()).unwrap_or(u32::MAX)).into(),
                        ),
                    };
                stack.set_timer(self.job.timer, (next < self.job.stop).then_some(next));
            }
            None => self.waiting.extend(core::iter::repeat_n(now, self.calls.len())),
        }
        self.begun = true;
        self.dispatch(stack);
    }

    /// Gives due requests to idle connections.
    fn dispatch(&mut self, stack: &mut impl Stack) {
        while !self.waiting.is_empty()
            && let Some(index) = self.idle.pop_front()
        {
            let due = self.waiting.pop_front();
            let (request, response) = self.sizes.draw(&mut self.chance);
            let call = &mut self.calls[index as usize];
            call.due = due;
            call.asked += request;
            call.answered += response;
            call.response = response;
            stack.write(self.job.first + 2 * index, request);
        }
    }

    pub(super) fn received(&mut self, stack: &mut impl Stack, socket: u32, total: u64) {
        let (index, server) = ((socket - self.job.first) / 2, (socket - self.job.first) % 2 == 1);
        let call = &mut self.calls[index as usize];
        if server {
            if total >= call.asked {
                let response = core::mem::take(&mut call.response);
                stack.answer(socket, response);
            }
            return;
        }
        if total < call.answered {
            return;
        }
        let Some(due) = call.due.take() else { return };
        if stack.now() < self.job.stop + GRACE {
            self.samples.push(sample(due, stack.now()));
        } else {
            self.late.push(due);
        }
        self.idle.push_back(index);
        if self.gap.is_none() && stack.now() < self.job.stop {
            self.waiting.push_back(stack.now());
        }
        self.dispatch(stack);
    }

    pub(super) fn finish(&mut self) -> WorkloadResult {
        let under_way = self.calls.iter().filter_map(|call| call.due);
        let mut unanswered: Vec<Nanos> =
            under_way.chain(self.waiting.iter().chain(&self.late).copied()).collect();
        unanswered.sort_unstable();
        measured(core::mem::take(&mut self.samples), unanswered)
    }
}
