//! Several engine threads: what of a policy they share, and what they do not keep.
//!
//! Why: `engine: {threads: N}` gives each thread an engine of its own. A policy that orders packets of several threads by
//! arrival or deadline can't be kept by them, and its author should know before it runs.
//! Not here: how threads share a link (`plimsoll_control::leases`).
//! Invariant: a tenant's port is on one thread.

use plimsoll_units::{Bytes, Span};

use crate::program::{Counts, LimitId, Node, NodeKind, Program, Scope};

/// Most threads of an engine.
pub const MOST_THREADS: u32 = 64;

/// How long a lease lasts on a link that carries eight frames meanwhile, and the longest on a slower one.
pub const LEASE: Span = Span::micros(100);
const LONGEST_LEASE: Span = Span::millis(1);

/// Frames that a link carries in a lease at least: with fewer, a shorter lease would share nothing more exactly.
const FRAMES: u64 = 8;

/// The time over which classes get their shares, and the part in thousandths by which they may be off.
pub const SHARES_WITHIN: (Span, u32) = (Span::millis(10), 20);

/// What a policy states that several threads do not keep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// An order by arrival, slack, deadlines or strict rates among packets of several threads.
    #[error("class `{node}` orders by `{order}`, and its packets may be on several threads")]
    Order {
        /// The node.
        node: String,
        /// Its order, as the policy calls it.
        order: &'static str,
    },
    /// A limit that counts packets of several threads.
    #[error("the limit `{limit}` counts packets, and these may be on several threads")]
    Packets {
        /// The limit.
        limit: String,
    },
}

impl Program {
    /// For each node, whether its packets may be on several threads: all but tenants' own classes, and classes that one tenant
    /// sends.
    #[must_use]
    pub fn spanning(&self) -> Vec<bool> {
        let mut spanning: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let above = node.parent.is_none_or(|parent| spanning[parent.0 as usize]);
            spanning.push(above && node.tenant.is_none() && node.sender.is_none());
        }
        spanning
    }

    /// The limits whose packets may be on several threads.
    #[must_use]
    pub fn spanning_limits(&self) -> Vec<LimitId> {
        let spanning = self.spanning();
        let spans = |scope: &Scope| match scope {
            Scope::Subtree(node) => spanning[node.0 as usize],
            Scope::Match { matches, via } => {
                matches.tenant.len() != 1 && via.iter().any(|node| spanning[node.0 as usize])
            }
            Scope::Peer(_) => true,
        };
        let all = (0..).map(LimitId).zip(&self.limits);
        all.filter(|(_, limit)| spans(&limit.scope)).map(|(id, _)| id).collect()
    }

    /// The first thing in the policy that several threads do not keep.
    #[must_use]
    pub fn unsupported_by_threads(&self) -> Option<Unsupported> {
        let spanning = self.spanning();
        let order = |(node, spans): (&Node, &bool)| {
            let order = order_across(node.kind).filter(|_| *spans)?;
            Some(Unsupported::Order { node: node.name.clone(), order })
        };
        let packets = |id: LimitId| {
            let limit = self.limit(id);
            (limit.counts == Counts::Packets).then(|| Unsupported::Packets { limit: limit.name.clone() })
        };
        let orders = self.nodes.iter().zip(&spanning).find_map(order);
        orders.or_else(|| self.spanning_limits().into_iter().find_map(packets))
    }

    /// How long a lease lasts.
    #[must_use]
    pub fn lease(&self) -> Span {
        let frames = (self.max_frame + self.overhead).times(FRAMES);
        self.link.wire_time(frames).clamp(LEASE, LONGEST_LEASE)
    }

    /// The most by which several threads together exceed a limit: what it lets pass in a lease, and a frame of each thread.
    #[must_use]
    pub fn excess(&self, limit: LimitId, threads: u32) -> Bytes {
        let frame = Bytes::new((self.max_frame + self.overhead).as_u64());
        self.limit(limit).rate.bytes_in(self.lease()) + frame.times(threads.into())
    }
}

fn order_across(kind: NodeKind) -> Option<&'static str> {
    match kind {
        NodeKind::Fifo => Some("fifo"),
        NodeKind::Lstf => Some("lstf"),
        NodeKind::Edf => Some("edf"),
        NodeKind::Program(_) => Some("program"),
        NodeKind::RateShare(_) => Some("rate_share"),
        NodeKind::Priority | NodeKind::Wfq | NodeKind::Drr | NodeKind::Class(_) => None,
    }
}
