//! A shuffle: rounds in which every flow sends one block, and none begins the next before all have arrived.
//!
//! Why: such a job is as fast as its last flow.
//! From: Spark's `TeraSort`, as Loom §7 runs it; one byte from the receiver acknowledges a block.
//! Not here: requests (`rpc`).
//! Invariant: a round is one sample, from its first byte offered to its last acknowledgement.

use plimsoll_scenario::{Sample, WorkloadResult};
use plimsoll_units::{Nanos, Span};

use super::{Assignment, Stack, measured, sample};

/// Flows that each send one block a round.
#[derive(Debug)]
pub(crate) struct Rounds {
    job: Assignment,
    block: u64,
    pause: Span,
    /// Rounds that have begun.
    rounds: u64,
    begun: Nanos,
    /// Flows whose block of this round is not acknowledged.
    open: u32,
    samples: Vec<Sample>,
}

impl Rounds {
    pub(crate) fn new(job: Assignment, block: u64, pause: Span) -> Self {
        Self { job, block: block.max(1), pause, rounds: 0, begun: Nanos::ZERO, open: 0, samples: Vec::new() }
    }

    /// Handles a timer: the first one begins the next round, the second one ends the workload.
    pub(super) fn timeout(&mut self, stack: &mut impl Stack, timer: u32) {
        if timer == 1 || stack.now() >= self.job.stop {
            return (0..2 * self.job.count).for_each(|socket| stack.close(self.job.first + socket));
        }
        if self.rounds == 0 {
            stack.set_timer(self.job.timer + 1, Some(self.job.stop));
        }
        self.rounds += 1;
        (self.begun, self.open) = (stack.now(), self.job.count);
        for flow in 0..self.job.count {
            stack.write(self.job.first + 2 * flow, self.block);
        }
    }

    pub(super) fn received(&mut self, stack: &mut impl Stack, socket: u32, total: u64) {
        if (socket - self.job.first) % 2 == 1 {
            // A whole block is acknowledged once: each end point's count of bytes only grows.
            let (whole, answered) = (total / self.block, stack.written(socket));
            if whole > answered {
                stack.write(socket, whole - answered);
            }
            return;
        }
        if total < self.rounds || self.open == 0 {
            return;
        }
        self.open -= 1;
        if self.open == 0 {
            if stack.now() < self.job.stop {
                self.samples.push(sample(self.begun, stack.now()));
            }
            stack.set_timer(self.job.timer, Some(stack.now() + self.pause));
        }
    }

    pub(super) fn finish(&mut self) -> WorkloadResult {
        measured(core::mem::take(&mut self.samples), Vec::new())
    }
}
