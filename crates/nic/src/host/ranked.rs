//! The ranks of packets below rank programs.
//!
//! Why: a packet's rank is fixed on arrival, and needs a place of its own only in policies with such programs.
//! From: Loom §4.1.
//! Not here: what a packet's rank is (`ranks`).
//! Invariant: a rank stands at the place of its packet's descriptor.

use super::Host;
use crate::ids::{QueueId, RecordId};
use crate::ranks::Seen;

impl Host {
    /// Keeps a rank for each descriptor from now on, or none.
    pub(crate) fn keep_ranks(&mut self, keep: bool) {
        self.rings.keep_ranks(keep);
    }

    /// The place of the first descriptor that no doorbell has told of.
    pub(crate) fn first_new(&self, queue: QueueId) -> Option<u16> {
        self.resolve(queue).map(|id| self.records[id].seen)
    }

    /// Packets that wait, as far as doorbells have told of them.
    pub(crate) fn waiting(&self, id: RecordId) -> u16 {
        let record = &self.records[id];
        record.seen.wrapping_sub(record.head)
    }

    /// Gives rank 0 to all packets that wait.
    pub(crate) fn clear_ranks(&mut self, id: RecordId) {
        let (head, seen) = (self.records[id].head, self.records[id].seen);
        let mut at = head;
        while at != seen {
            self.rings.set_rank(id, at, 0);
            at = at.wrapping_add(1);
        }
    }

    /// The packet that waits at this place, unless it is the end of the flow queue.
    pub(crate) fn packet(&self, id: RecordId, at: u16) -> Option<Seen> {
        (at != self.records[id].seen).then(|| self.seen_at(id, at, 0))
    }

    /// Bytes of all packets that wait.
    pub(crate) fn backlog(&self, id: RecordId) -> u64 {
        self.records[id].backlog.into()
    }

    /// The packet that was the head until it left.
    pub(crate) fn gone(&self, id: RecordId) -> Seen {
        let record = &self.records[id];
        let gone = self.seen_at(id, record.head.wrapping_sub(1), record.backlog.into());
        Seen { remaining: gone.remaining + u64::from(gone.len), ..gone }
    }

    fn seen_at(&self, id: RecordId, at: u16, remaining: u64) -> Seen {
        let slot = self.rings.slot(id, at);
        let rank = self.rings.rank(id, at);
        Seen { len: slot.len, slack: slot.tag.micros(), arrived: slot.arrived, remaining, rank }
    }

    /// The rank of the head.
    #[inline]
    pub(crate) fn rank(&self, id: RecordId) -> u64 {
        self.rings.rank(id, self.records[id].head)
    }

    pub(crate) fn set_rank(&mut self, id: RecordId, at: u16, rank: u64) {
        self.rings.set_rank(id, at, rank);
    }
}
