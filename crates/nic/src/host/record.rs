//! The record of a flow queue: all that its packets need, but for the descriptors, in one cache line.
//!
//! Why: of thousands of flow queues each packet touches another one.
//! From: Shreedhar and Varghese (1995), for turns.
//! Not here: which flow queue has a record (`host`), and the rings (`rings`).
//! Invariant: done <= head <= seen <= tail, modulo 2^16; an empty flow queue begins again at the first line of its ring.

use plimsoll_policy::NodeId;
use plimsoll_queues::codel::Verdict;
use plimsoll_units::{Nanos, Span};

use super::cut::{Cut, Piece};
use super::rings::Slot;
use crate::ids::{OwnerId, QueueId, Tagged};
use crate::stats::Transmit;

/// The record of a flow queue that holds descriptors, all of it in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Record {
    /// The next descriptor to be scheduled.
    pub(super) head: u16,
    /// The end of the descriptors that a doorbell told of.
    pub(super) seen: u16,
    /// The end of the descriptors that the host wrote.
    pub(super) tail: u16,
    /// The oldest that has not completed.
    pub(super) done: u16,
    /// Bytes that the next pull will be charged; behind limits at all times, or [`Record::UNREAD`]; elsewhere since the flow queue
    /// was empty.
    pub(super) charge: u32,
    pub(super) home: Tagged,
    /// The owner of the account that its descriptors are charged to.
    pub(super) owner: OwnerId,
    /// Payload bytes of the head that were pulled before.
    pub(super) offset: u32,
    /// Tag for descriptors that bring none.
    pub(super) tag: u32,
    /// Bytes left of its turn, in a class that takes turns.
    pub(super) deficit: i32,
    /// Bytes of the descriptors that a doorbell told of and that have not left.
    pub(super) backlog: u32,
    /// Most bytes, as charged, of one pull.
    pub(super) pull: u32,
    /// Frames that left, and their bytes: what has not been added up yet to the sums of its bundle, or of its class where it is
    /// the only one. So a packet changes no counter in another cache line.
    pub(super) packets: u32,
    pub(super) bytes: u32,
    /// The flow queue that has this record; [`Record::NO_QUEUE`] while none has.
    pub(super) queue: QueueId,
    /// When the head became the head.
    pub(super) since: Nanos,
}

impl Record {
    /// A charge that has to be read from the head's descriptor.
    pub(super) const UNREAD: u32 = 0;
    pub(super) const NO_QUEUE: QueueId = QueueId(u32::MAX);
    pub(super) const FREE: Self = Self {
        head: 0,
        seen: 0,
        tail: 0,
        done: 0,
        charge: 0,
        home: Tagged::NOTHING,
        owner: OwnerId::NONE,
        offset: 0,
        tag: 0,
        deficit: 0,
        backlog: 0,
        pull: 0,
        packets: 0,
        bytes: 0,
        queue: Self::NO_QUEUE,
        since: Nanos::ZERO,
    };

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        !self.home.is_nothing()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.done == self.tail
    }

    #[inline]
    pub(super) fn release(&mut self) -> OwnerId {
        self.done = self.done.wrapping_add(1);
        // An empty ring begins again at its first line (see `Rings`). Without a branch, as it cannot be predicted.
        let keep = u16::from(self.done != self.tail).wrapping_neg();
        (self.head, self.seen, self.tail, self.done) =
            (self.head & keep, self.seen & keep, self.tail & keep, self.done & keep);
        self.owner
    }

    /// Copies what limits ask of the head.
    #[inline]
    pub(super) fn load(&mut self, slot: &Slot, cut: Cut) {
        self.charge = cut.piece(slot, self.offset, self.pull).charge;
    }

    /// Counts what has left. Returns whether it is time to add the counts up.
    #[inline]
    pub(super) fn count(&mut self, piece: &Piece) -> bool {
        (self.packets, self.bytes) = (self.packets + piece.frames, self.bytes + piece.bytes);
        (self.packets | self.bytes) >> 31 != 0
    }

    /// Charges the turn for a pull that has left. Returns whether the turn is over (Shreedhar and Varghese, 1995).
    #[inline]
    pub(super) fn use_turn(&mut self, len: u32, quantum: i32, more: bool) -> bool {
        // A turn that is over begins anew with this packet. That cannot be predicted, so there is no branch. Neither sum overflows:
        // a deficit that is not positive meets a quantum that is not negative, and a positive one a charge below 2^31 (`Cut`).
        let again = -i32::from(self.deficit <= 0);
        let begun = (self.deficit + (quantum & again)).max(1);
        let left = begun.wrapping_sub(len as i32);
        // An idle one saves nothing up, and takes its debt along.
        self.deficit = if more { left } else { left.min(0) };
        self.deficit <= 0
    }
}

/// What leaves, as far as its flow queue knows: limits, marks and drops are noted by those who know of them.
#[inline(always)]
pub(super) fn transmit(record: &Record, slot: &Slot, class: NodeId, piece: &Piece) -> Transmit {
    Transmit {
        queue: record.queue,
        class,
        addr: slot.addr,
        offset: record.offset,
        len: piece.len,
        segment: slot.segment,
        header: slot.header,
        frames: piece.frames,
        last: piece.last,
        arrived: Nanos::new(slot.arrived),
        head: record.since,
        limited_by: None,
        limited: Span::ZERO,
        verdict: Verdict::Pass,
    }
}
