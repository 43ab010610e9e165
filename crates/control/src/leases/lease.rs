//! What a thread's engine is told for the next lease.
//!
//! Not here: how parts are computed (`parts`), and what an engine does with them (`nic`).

use plimsoll_policy::{LimitId, NodeId};
use plimsoll_units::{BitRate, Bytes};

/// A thread's lease: it holds until the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// The thread's part of the link.
    pub link: BitRate,
    /// Nodes that have members on several threads, as far as their parts may have changed.
    pub nodes: &'a [NodeLease],
    /// Limits that have members on several threads, as far as their parts may have changed.
    pub limits: &'a [LimitLease],
}

/// A thread's part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// The node.
    pub node: NodeId,
    /// The limit behind which the weight holds; none for the link itself.
    pub behind: Option<LimitId>,
    /// Its part of the weight, among siblings of [`for_threads`](super::for_threads).
    pub weight: u32,
    /// Its part of the `min`, if the node has one.
    pub min: Option<BitRate>,
}

/// A thread's part of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitLease {
    /// The limit.
    pub limit: LimitId,
    /// Its part of the rate.
    pub rate: BitRate,
    /// Its part of the burst.
    pub burst: Bytes,
    /// The most of the burst that the thread may have saved up when the lease begins.
    pub credit: Bytes,
}
