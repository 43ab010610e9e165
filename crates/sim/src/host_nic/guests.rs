//! Tenants' sides of their devices: rings, and packets that wait because a ring or the engine has no room.
//!
//! Why: with 10,000 tenants that wait, a completion must not look at each of them.
//! From: virtio devices, whose queue the host reads again when a descriptor comes free.
//! Not here: what the engine takes (`host_nic`), who owns descriptors (`nic`).
//! Invariant: a tenant that waits and is not in `open` has no room of its own, until a packet of its own completes.

use std::collections::{BTreeSet, VecDeque};

use plimsoll_nic::QueueId;

use super::Refused;
use crate::packet::Packet;

/// Packets that may wait at a tenant's device while it is not read: Linux's `txqueuelen`.
const GUEST_QUEUE: usize = 1_000;

/// A tenant's side of its device.
#[derive(Clone, Debug, Default)]
pub(super) struct Guest {
    /// Packets for which the ring or the engine has no room.
    waiting: VecDeque<(QueueId, Packet)>,
    /// Addresses of the packets that were posted and not completed, where completions keep their order.
    pub(super) ring: VecDeque<u32>,
    /// Descriptors of the ring in use.
    pub(super) used: u32,
    /// Packets that had to wait in the device so far.
    held_back: u64,
}

/// All tenants' sides.
#[derive(Debug)]
pub(super) struct Guests {
    each: Vec<Guest>,
    /// Tenants that wait and may have room as soon as the engine has.
    open: BTreeSet<u32>,
    /// The tenant that is read first when descriptors that all tenants share come free; `None` where each tenant has its own.
    first: Option<u32>,
}

impl Guests {
    pub(super) fn new(count: usize) -> Self {
        let each = vec![Guest::default(); count];
        Self { each, open: BTreeSet::new(), first: None }
    }

    pub(super) fn get(&self, tenant: u32) -> Option<&Guest> {
        self.each.get(tenant as usize)
    }

    pub(super) fn of(&mut self, tenant: u32) -> &mut Guest {
        &mut self.each[tenant as usize]
    }

    /// Makes all tenants share the descriptors; they are read in turn.
    pub(super) fn share_descriptors(&mut self) {
        self.first = Some(0);
    }

    /// How many of a tenant's packets had to wait.
    pub(super) fn held_back(&self, tenant: u32) -> u64 {
        self.each[tenant as usize].held_back
    }

    pub(super) fn is_waiting(&self, tenant: u32) -> bool {
        !self.each[tenant as usize].waiting.is_empty()
    }

    /// Whether a tenant that waits may have room.
    pub(super) fn any_may_read(&self) -> bool {
        !self.open.is_empty()
    }

    /// The packets that wait.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.each.iter().flat_map(|guest| &guest.waiting).map(|(_, packet)| packet)
    }

    /// Lets a packet wait in its tenant's device.
    pub(super) fn wait(&mut self, tenant: u32, queue: QueueId, packet: Packet) -> Result<(), Refused> {
        let guest = &mut self.each[tenant as usize];
        if guest.waiting.len() >= GUEST_QUEUE {
            return Err(Refused::GuestQueue);
        }
        guest.waiting.push_back((queue, packet));
        guest.held_back += 1;
        if guest.waiting.len() == 1 {
            self.open.insert(tenant);
        }
        Ok(())
    }

    /// Whether a packet for this flow queue waits in the tenant's device.
    pub(super) fn has_packets_for(&self, tenant: u32, queue: QueueId) -> bool {
        self.each[tenant as usize].waiting.iter().any(|(other, _)| *other == queue)
    }

    /// Takes the packet of a tenant that has waited longest.
    pub(super) fn pop(&mut self, tenant: u32) -> Option<(QueueId, Packet)> {
        self.each[tenant as usize].waiting.pop_front()
    }

    /// Notes that a packet of the tenant has given its descriptor back.
    #[inline]
    pub(super) fn ease(&mut self, tenant: u32) {
        if self.is_waiting(tenant) {
            self.open.insert(tenant);
        }
    }

    /// Notes that a tenant waits for no room but its own, or does not wait.
    pub(super) fn close(&mut self, tenant: u32) {
        self.open.remove(&tenant);
    }

    /// Begins to read guests that waited: those that may have room, each once, from the first on.
    pub(super) fn turns(&mut self) -> Turns {
        let first = self.first.map_or(0, |first| (first + 1) % self.each.len().max(1) as u32);
        self.first = self.first.map(|_| first);
        Turns { next: first, left: self.open.len() }
    }

    /// The next tenant to read.
    pub(super) fn next(&self, turns: &mut Turns) -> Option<u32> {
        turns.left = turns.left.checked_sub(1)?;
        let found = self.open.range(turns.next..).next().or_else(|| self.open.first()).copied()?;
        turns.next = found + 1;
        Some(found)
    }
}

/// How far a reading of guests has come.
#[derive(Debug)]
pub(super) struct Turns {
    next: u32,
    left: usize,
}
