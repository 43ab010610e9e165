//! What is kept of a flow in a class with `flows: fq`.
//!
//! Why: CoDel remembers each flow's last drops, and a flow that comes back within a round has used up its part of it.
//! From: RFC 8289 and RFC 8290.
//! Not here: the lists of flows (`fair`), and CoDel's law (`plimsoll_queues::codel`).
//! Invariant: a drop leaves more of its flow queue behind than the largest frame, so it never empties one.

use plimsoll_queues::codel::{Codel, CodelTimes, Leaving, Markable, Verdict};
use plimsoll_units::Nanos;
use plimsoll_wire::Ecn;

use super::Host;
use crate::ids::{QueueId, RecordId};

/// What is kept of a flow beside its record, also while its queue is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowState {
    codel: Codel,
    /// The turn of its bundle at which its next full turn may begin, while it is empty; while it waits among the old flows, the
    /// turn at which it goes before new ones.
    rests_until: u64,
}

pub(crate) const FLOW_BYTES: usize = size_of::<FlowState>();

impl Host {
    /// Makes room for the state of flows in classes with `flows: fq`, if the policy has one.
    pub(crate) fn keep_flows(&mut self, wanted: bool) {
        let queues = if wanted { self.names.len() } else { 0 };
        self.fair = vec![FlowState::default(); queues].into();
    }

    #[inline]
    pub(crate) fn keeps_flows(&self) -> bool {
        !self.fair.is_empty()
    }

    /// A flow queue begins anew.
    pub(super) fn forget_flow(&mut self, queue: QueueId) {
        if let Some(flow) = self.fair.get_mut(queue) {
            *flow = FlowState::default();
        }
    }

    /// CoDel's decision about the next pull.
    #[inline]
    pub(crate) fn judge(&mut self, id: RecordId, times: &CodelTimes, now: Nanos) -> Verdict {
        let record = &self.records[id];
        let slot = self.rings.slot(id, record.head);
        let piece = self.cut.piece(slot, record.offset, record.pull);
        let taken = if piece.last { slot.len } else { record.offset + piece.len };
        let leaving = Leaving {
            waited: now.since(Nanos::new(slot.arrived)),
            backlogged: record.backlog.saturating_sub(taken) > self.cut.max_frame,
            ecn: markable(slot.tag.ecn()),
        };
        self.fair[record.queue].codel.decide(times, leaving, now)
    }

    /// A flow that was empty holds packets, at a turn of its bundle. Returns whether it goes first: because it begins a full turn,
    /// and the next one not before the end of this round, or because the rest of its last turn pays for its next packet.
    #[inline]
    pub(crate) fn comes_first(&mut self, id: RecordId, turn: u64, round: u64) -> bool {
        let record = &self.records[id];
        if self.fair[record.queue].rests_until > turn {
            return i64::from(record.deficit) >= i64::from(record.charge);
        }
        let record = &mut self.records[id];
        let rests_until = &mut self.fair[record.queue].rests_until;
        *rests_until = round;
        record.deficit = record.deficit.min(0); // a full turn takes the place of the rest of the last one
        true
    }

    /// Charges a flow's turn for a pull that has left. Returns whether the turn is over.
    #[inline]
    pub(crate) fn charge_turn(&mut self, id: RecordId, len: u32, quantum: i32) -> bool {
        self.records[id].use_turn(len, quantum, true)
    }

    /// A flow waits among the old ones, before the new ones from this turn on.
    #[inline]
    pub(crate) fn waits_until(&mut self, id: RecordId, turn: u64) {
        self.fair[self.records[id].queue].rests_until = turn;
    }

    /// Whether a flow that waits among the old ones goes before new ones.
    #[inline]
    pub(crate) fn is_overdue(&self, id: RecordId, turn: u64) -> bool {
        self.fair[self.records[id].queue].rests_until <= turn
    }

    /// A flow has become empty: until this turn of its bundle it may only use up what is left of its own.
    #[inline]
    pub(crate) fn rest(&mut self, id: RecordId, until: u64) {
        self.fair[self.records[id].queue].rests_until = until;
    }
}

/// Whether a packet with this ECN field may be marked.
pub(crate) fn markable(ecn: Ecn) -> Markable {
    match ecn {
        Ecn::NotEct => Markable::No,
        Ecn::Ect0 | Ecn::Ce => Markable::Classic,
        Ecn::Ect1 => Markable::Scalable,
    }
}
