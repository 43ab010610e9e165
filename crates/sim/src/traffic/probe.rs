//! Probes: datagrams at Poisson moments that their destination sends back.
//!
//! Why: Poisson arrivals see what a random packet sees (PASTA), so their round trips show the queue as it is.
//! From: the lab's probes, and Loom's sockperf tenant, which reports half of a round trip as latency.
//! Not here: requests over TCP (`rpc`).
//! Invariant: a probe's latency counts from when it was due; one that is not echoed is an error.

use plimsoll_scenario::{Sample, WorkloadResult};
use plimsoll_units::{Nanos, Span};

use super::{Assignment, Stack, gap, measured, sample, udp};
use crate::chance::Chance;

/// A prober.
#[derive(Debug)]
pub(crate) struct Probe {
    job: Assignment,
    size: u32,
    mtu: u32,
    gap: Span,
    /// Whether half of the round trip is reported, as by sockperf.
    half: bool,
    chance: Chance,
    /// When each probe was due that is not back yet.
    sent: Vec<Option<Nanos>>,
    samples: Vec<Sample>,
}

impl Probe {
    pub(crate) fn new(job: Assignment, size: u32, mtu: u32, rate: u32, half: bool, chance: Chance) -> Self {
        Self { job, size, mtu, gap: gap(rate), half, chance, sent: Vec::new(), samples: Vec::new() }
    }

    pub(super) fn timeout(&mut self, stack: &mut impl Stack) {
        if stack.now() > self.job.start {
            let number = self.sent.len() as u64;
            self.sent.push(Some(stack.now()));
            udp::send(stack, self.job.first, (false, false), number, self.size, self.mtu);
        }
        let next = stack.now() + self.chance.exponential(self.gap);
        stack.set_timer(self.job.timer, (next < self.job.stop).then_some(next));
    }

    pub(super) fn datagram(&mut self, stack: &mut impl Stack, flow: u32, back: bool, number: u64) {
        if !back {
            udp::send(stack, flow, (true, false), number, self.size, self.mtu);
            return;
        }
        if let Some(due) = self.sent.get_mut(number as usize).and_then(Option::take) {
            let mut sample = sample(due, stack.now());
            if self.half {
                sample.latency = Span::ns(sample.latency.as_u64() / 2);
            }
            self.samples.push(sample);
        }
    }

    pub(super) fn finish(&mut self) -> WorkloadResult {
        let unanswered = core::mem::take(&mut self.sent).into_iter().flatten().collect();
        measured(core::mem::take(&mut self.samples), unanswered)
    }
}
