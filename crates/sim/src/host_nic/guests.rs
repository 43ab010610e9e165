//! Tenants' sides of their devices: rings, and packets that wait because a ring or the engine has no room.
//!
//! Why: with 10,000 tenants that wait, a completion must not look at each of them.
//! From: virtio devices, whose queue the host reads again when a descriptor comes free.
//! Not here: what the engine takes (`host_nic`), who owns descriptors (`nic`).
//! Invariant: `waiting` holds the tenants that have packets in `Guest::waiting`; one that is neither eased nor met a full
//! engine has no more room than when it was last asked.

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
    waiting: BTreeSet<u32>,
    /// Tenants of which packets completed since guests were last read.
    eased: Vec<u32>,
    /// A packet completed while the engine had no descriptor free: any tenant may have room since.
    all_eased: bool,
    /// The tenant that is read first when descriptors that all tenants share come free; `None` where each tenant has its own.
    first: Option<u32>,
}

impl Guests {
    pub(super) fn new(count: usize) -> Self {
        let each = vec![Guest::default(); count];
        Self { each, waiting: BTreeSet::new(), eased: Vec::new(), all_eased: false, first: None }
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

    pub(super) fn someone_waits(&self) -> bool {
        !self.waiting.is_empty()
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
        self.waiting.insert(tenant);
        Ok(())
    }

    /// Takes the packet of a tenant that has waited longest.
    pub(super) fn pop(&mut self, tenant: u32) -> Option<(QueueId, Packet)> {
        let guest = &mut self.each[tenant as usize];
        let popped = guest.waiting.pop_front();
        if guest.waiting.is_empty() {
            self.waiting.remove(&tenant);
        }
        popped
    }

    /// Notes that a tenant's packet gives its descriptor back to an engine that was full, or was not.
    #[inline]
    pub(super) fn ease(&mut self, tenant: u32, was_full: bool) {
        if self.someone_waits() {
            self.eased.push(tenant);
            self.all_eased |= was_full;
        }
    }

    /// Begins to read guests that waited: those that may have room now, each once, in the order of the tenants from the
    /// first on.
    pub(super) fn turns(&mut self) -> Turns {
        let count = self.each.len() as u32;
        let first = self.first.map_or(0, |first| (first + 1) % count.max(1));
        self.first = self.first.map(|_| first);
        let mut eased = core::mem::take(&mut self.eased);
        let all = core::mem::take(&mut self.all_eased);
        if !all {
            eased.sort_unstable();
            eased.dedup();
            eased.retain(|tenant| self.waiting.contains(tenant));
            let at = eased.partition_point(|&tenant| tenant < first);
            eased.rotate_left(at);
        }
        Turns { all, next: 0, from: first, left: self.waiting.len(), eased }
    }

    /// The next tenant to read.
    pub(super) fn next(&self, turns: &mut Turns) -> Option<u32> {
        if !turns.all {
            turns.next += 1;
            return turns.eased.get(turns.next - 1).copied();
        }
        turns.left = turns.left.checked_sub(1)?;
        let found = self.waiting.range(turns.from..).next().or_else(|| self.waiting.first()).copied()?;
        turns.from = found + 1;
        Some(found)
    }

    /// Ends the reading; its buffer is used again.
    pub(super) fn end(&mut self, turns: Turns) {
        self.eased = turns.eased;
        self.eased.clear();
    }
}

/// How far a reading of guests has come.
#[derive(Debug)]
pub(super) struct Turns {
    /// Whether each tenant that waits has a turn.
    all: bool,
    /// The next of `eased`.
    next: usize,
    /// The next tenant of all.
    from: u32,
    /// Turns of all tenants that are left.
    left: usize,
    eased: Vec<u32>,
}
