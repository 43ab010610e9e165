//! Counters that the engine keeps, and the shapes in which it shows them.

use plimsoll_policy::{LimitId, NodeId};
use plimsoll_queues::codel::Verdict;
use plimsoll_units::{Nanos, Span};

use crate::ids::QueueId;
use crate::refusal::Refusal;

/// A frame, or a large segment, that leaves now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmit {
    /// The flow queue that it came from.
    pub queue: QueueId,
    /// The flow queue's class.
    pub class: NodeId,
    /// The descriptor's address.
    pub addr: u64,
    /// Where the payload of this part begins in its descriptor, counted from the end of the header.
    pub offset: u32,
    /// Bytes that leave: header and payload.
    pub len: u32,
    /// Payload bytes of each frame, 0 when it leaves as it is.
    pub segment: u16,
    /// Header bytes in front of each segment.
    pub header: u16,
    /// Frames on the wire.
    pub frames: u32,
    /// Whether this is the last part of its descriptor.
    pub last: bool,
    /// When the doorbell told of it.
    pub arrived: Nanos,
    /// When it became the head of its flow queue.
    pub head: Nanos,
    /// The limit that held it longest; of several maxima at once, the one that released it last.
    pub limited_by: Option<LimitId>,
    /// How long limits held it, altogether.
    pub limited: Span,
    /// Whether it leaves as it is, with a mark, or not at all: its class has `flows: fq`, and it has waited for too long. One
    /// that is dropped has taken no time on the link, and is completed as [`Outcome::Dropped`].
    pub verdict: Verdict,
}

/// The reason of drops by CoDel as counters and operators call it.
pub const WAITED_TOO_LONG: &str = "waited_too_long";

/// Whether a transmitted frame left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It left.
    Sent,
    /// It could not leave; the caller counts why.
    Dropped,
}

/// Tells the host that it may use `addr` again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The descriptor's flow queue.
    pub queue: QueueId,
    /// The descriptor's address.
    pub addr: u64,
    /// Whether it left.
    pub outcome: Outcome,
}

/// Counters of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounters {
    /// Frames that left.
    pub packets: u64,
    /// Their bytes, headers of each segment included, overhead not.
    pub bytes: u64,
    /// Descriptors that wait.
    pub backlog_packets: u64,
    /// Their bytes.
    pub backlog_bytes: u64,
    /// Descriptors that were not taken, by [`Refusal`].
    pub refused: [u64; Refusal::COUNT],
    /// Frames that left with a mark of congestion, because they had waited for too long.
    pub marked: u64,
    /// Frames that were dropped because they had waited for too long.
    pub dropped: u64,
}

/// Counters of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounters {
    /// Frames that left under it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bundles of flow queues that wait for it now; for a node's `max`, 1 while the node waits.
    pub waiting: u32,
    /// Times that a bundle, or the node, had to wait.
    pub parked: u64,
    /// Times that a waiting bundle, or the node, was released.
    pub released: u64,
}

/// Counters of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCounters {
    /// Descriptors in the engine.
    pub held: u32,
    /// Descriptors that were not taken, by [`Refusal`].
    pub refused: [u64; Refusal::COUNT],
}

/// Counters of the whole engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Pulls handed out.
    pub pulls: u64,
    /// Enqueue and dequeue pairs on the main tree (Loom §4.2.3).
    pub pairs: u64,
    /// Most pairs that one head of a class took.
    pub most_pairs: u8,
    /// Doorbell words that made no sense, or named no open flow queue.
    pub bad_doorbells: u64,
    /// Descriptors held now.
    pub held: u32,
}

/// The rank that a packet of a class would get now at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRank {
    /// The node that orders.
    pub node: NodeId,
    /// Its child on the way to the class.
    pub child: NodeId,
    /// Lower is sooner; what it counts depends on the node: place in the list (priority), bytes at weight 1 ahead of
    /// virtual time (wfq), nanoseconds of system time until its start (rate_share), bytes left of the turn (drr), the first
    /// arrival or deadline (fifo, lstf, edf).
    pub rank: u64,
}
