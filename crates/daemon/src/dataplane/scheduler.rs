//! The NIC engine, with what goes into it and what comes out.
//!
//! Why: stages post descriptors and send pulls; only here does one know how full a flow queue is.
//! From: Loom §4.1: the host states a packet's queue, and rings once for a batch.
//! Not here: the order itself (`nic`), frames (`tenants`).
//! Invariant: `queues` counts the frames of each descriptor that is posted and not completed.

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId, Refusal, Transmit, Waits};
use plimsoll_policy::Program;
use plimsoll_record::Recorded;
use plimsoll_units::Nanos;

use super::{BATCH, DEPARTURES};

/// The NIC engine and its host's side.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) nic: Recorded,
    /// Frames that each flow queue holds.
    pub(crate) queues: Vec<u32>,
    pub(crate) waits: Waits,
    pub(crate) doorbells: DoorbellQueue,
    /// Descriptors that one flow queue holds.
    pub(crate) window: u32,
    /// The last batch of pulls, of which `sent` are done.
    pub(crate) out: Vec<Transmit>,
    pub(crate) sent: usize,
}

impl Scheduler {
    /// An engine for a policy, for this many lanes.
    pub(crate) fn new(program: &Program, config: &Config, lanes: usize) -> Self {
        let nic = Recorded::new(Nic::new(program, config));
        Self {
            window: u32::from(nic.slots()),
            nic,
            queues: vec![0; config.queues as usize],
            waits: Waits::new(config.queues),
            doorbells: DoorbellQueue::with_capacity(4 * BATCH * lanes),
            out: Vec::with_capacity(DEPARTURES),
            sent: 0,
        }
    }

    /// Frames that a flow queue holds.
    #[inline]
    pub(crate) fn holds(&self, queue: QueueId) -> u32 {
        self.queues[queue.0 as usize]
    }

    /// Posts a descriptor of `frames` frames; its doorbell is rung with the batch's.
    #[inline]
    pub(crate) fn post(
        &mut self,
        queue: QueueId,
        descriptor: Descriptor,
        frames: u32,
    ) -> Result<(), Refusal> {
        self.nic.post(queue, descriptor)?;
        self.queues[queue.0 as usize] += frames;
        self.doorbells.bell(queue);
        Ok(())
    }

    /// Rings for what was posted.
    #[inline]
    pub(crate) fn ring(&mut self, now: Nanos) {
        let nic = &mut self.nic;
        self.doorbells.flush(|words| nic.ring(words, now));
    }

    /// Notes that frames of a flow queue have completed.
    #[inline]
    pub(crate) fn completed(&mut self, queue: QueueId, frames: u32) {
        self.queues[queue.0 as usize] -= frames;
    }

    /// How many of the frames of a train that follow the first one have room in a flow queue: it holds a number of frames, and a train is
    /// one descriptor.
    #[inline]
    pub(crate) fn fitting(&self, queue: QueueId, following: u16) -> u16 {
        let free = self.window.saturating_sub(self.holds(queue));
        following.min(free.saturating_sub(1).min(u16::MAX.into()) as u16)
    }

    /// The pull that was next is done.
    #[inline]
    pub(crate) fn complete(&mut self, transmit: &Transmit, outcome: Outcome) {
        self.nic.complete(transmit, outcome);
        self.sent += 1;
    }

    /// The pull that is to be sent next, if one is due.
    #[inline]
    pub(crate) fn next(&mut self, now: Nanos) -> Option<Transmit> {
        if self.sent == self.out.len() {
            self.sent = 0;
            self.out.clear();
            self.nic.poll_transmit(now, &mut self.out);
        }
        self.out.get(self.sent).copied()
    }
}
