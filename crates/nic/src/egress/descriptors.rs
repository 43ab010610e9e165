//! Descriptors: what the host posts, and what it gets back.
//!
//! Why: a flow queue has a record only while it holds descriptors, where records are scarce.
//! From: Loom §4.3 (descriptor and completion queues).
//! Not here: when a descriptor is scheduled (`doorbells`), the rings (`host`), caps (`account`).
//! Invariant: each descriptor that was taken completes exactly once.

use plimsoll_policy::TenantId;

use super::Nic;
use crate::account::NO_TENANT;
use crate::host::Descriptor;
use crate::ids::{QueueId, RecordId, Tagged};
use crate::refusal::Refusal;
use crate::stats::{Completion, Outcome, Transmit};

impl Nic {
    /// The host writes a descriptor. It is scheduled from the next doorbell of `queue` on.
    ///
    /// # Errors
    /// A [`Refusal`], counted for the tenant and the class: the caller keeps the frame, and holds it back or drops it.
    #[inline]
    pub fn post(&mut self, queue: QueueId, descriptor: Descriptor) -> Result<(), Refusal> {
        match self.host.write(queue, &descriptor, &mut self.accounts) {
            Ok(()) => Ok(()),
            Err(why) => self.refuse(queue, descriptor, why),
        }
    }

    /// Slow path of [`Nic::post`]: gives the flow queue a record and posts again, or counts the refusal.
    #[cold]
    fn refuse(&mut self, queue: QueueId, descriptor: Descriptor, why: Refusal) -> Result<(), Refusal> {
        let why = match why {
            Refusal::NoQueue => match self.employ(queue) {
                Ok(_) => return self.post(queue, descriptor),
                Err(why) => why,
            },
            why => why,
        };
        let class = self.class_of(queue);
        self.accounts.refuse(class.map_or(NO_TENANT, |class| self.tenant_of(class)), why);
        if let Some(class) = class {
            self.refused[class][why as usize] += 1;
            self.retire(queue);
        }
        Err(why)
    }

    /// Gives a spare record to a flow queue that is about to hold something.
    fn employ(&mut self, queue: QueueId) -> Result<RecordId, Refusal> {
        let home = self.host.home(queue).ok_or(Refusal::NoQueue)?;
        let (owner, pull) = (self.owner_of(self.class_at(home)), self.pull_of(home));
        // None is spare only while as many flow queues hold descriptors as the host may.
        let id = self.host.give_record(queue, owner, pull).ok_or(Refusal::HostFull)?;
        if let Some(class) = home.as_class() {
            self.forest.hang(self.forest.seat(class), Tagged::record(id));
        }
        Ok(id)
    }

    /// Where records are scarce, frees the record of a flow queue that has become empty.
    fn retire(&mut self, queue: QueueId) {
        let held = self.host.resolve(queue).filter(|_| self.host.is_scarce());
        let Some(id) = held.filter(|&id| self.host.is_empty(id)) else { return };
        let Some(home) = self.host.home(queue) else { return };
        self.add_up(id, home);
        if let Some(class) = home.as_class() {
            self.forest.hang(self.forest.seat(class), Tagged::queue(queue));
        }
        self.host.take_record(queue);
    }

    /// Brings a flow queue into the cache: a host with a batch to post may say so for all of it first.
    #[inline]
    pub fn prefetch(&self, queue: QueueId) {
        self.host.prefetch(RecordId(queue.0));
    }

    /// Brings the ring slot of its next descriptor into the cache, once the flow queue itself is there.
    #[inline]
    pub fn prefetch_ring(&self, queue: QueueId) {
        self.host.prefetch_tail(RecordId(queue.0));
    }

    /// Descriptors that the tenant may still post; at 0 its port need not be read.
    #[must_use]
    pub fn tenant_room(&self, tenant: TenantId) -> u32 {
        self.accounts.room(tenant)
    }

    /// Descriptors that all tenants together may still bring.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.accounts.room(NO_TENANT)
    }

    /// Tells the engine that a frame has left, or could not. To be called for each [`Transmit`], in their order.
    #[inline]
    pub fn complete(&mut self, transmit: &Transmit, outcome: Outcome) {
        if !transmit.last {
            return;
        }
        let Transmit { queue, addr, .. } = *transmit;
        self.completions.push(Completion { queue, addr, outcome });
        if let Some(owner) = self.host.release(queue) {
            self.accounts.give_back(owner);
            if self.host.is_scarce() {
                self.retire(queue);
            }
        }
    }

    /// The next descriptor that the host may use again.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop()
    }

    /// Adds what a flow queue has counted to the sums of its home: the class whose only one it is, or its bundle.
    pub(crate) fn add_up(&mut self, record: RecordId, home: Tagged) {
        let counted = self.host.take_counted(record);
        if let Some(class) = home.as_class() {
            self.sums[class].add(counted);
        } else if let Some(bundle) = home.as_bundle() {
            self.bundles[bundle].done.add(counted);
        }
    }
}
