//! The engine: host interface, egress and ingress of the virtual NIC.
//!
//! Why: one deterministic state machine decides which packet leaves next, live and in simulation.
//! From: Loom (NSDI 2019) and, for late pull and accounting, SENIC (NSDI 2014) and PicNIC (SIGCOMM 2019).
//! Not here: clocks, threads, sockets, frames' bytes. The caller passes the time.
//! Invariants: each descriptor completes exactly once; order within a flow queue is kept; nothing leaves before its
//! limits allow; if an eligible packet exists the link is not idle; memory is fixed by configuration; the same
//! inputs give the same outputs.
//!
//! ```
//! use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome};
//! use plimsoll_policy::{FlowOrder, Node, NodeId, NodeKind, Placement, Program};
//! use plimsoll_units::{BitRate, Bytes, Nanos};
//!
//! // One class that owns a 12 Gb/s link.
//! let root = Node { name: "root".into(), parent: None, kind: NodeKind::Class(FlowOrder::Fifo), weight: 1, rate: None,
//!                   min: None, max: None, descriptors: None, children: vec![], tenant: None, sender: None };
//! let program = Program { link: BitRate::gbps(12), overhead: Bytes::ZERO, max_frame: Bytes::new(1_514), grain: None,
//!                         nodes: vec![root], limits: vec![], tenants: vec![], rules: vec![],
//!                         default_class: NodeId(0), ranks: Vec::new() };
//! let mut nic = Nic::new(&program, &Config::default());
//! let queue = nic.open_queue(&Placement { class: NodeId(0), limits: vec![] })?;
//!
//! nic.post(queue, Descriptor { addr: 7, len: 1_500, ..Descriptor::default() })?;
//! let mut doorbells = DoorbellQueue::default();
//! doorbells.bell(queue);
//! doorbells.flush(|words| nic.ring(words, Nanos::ZERO));
//!
//! let mut out = Vec::with_capacity(32);
//! nic.poll_transmit(Nanos::ZERO, &mut out);
//! assert_eq!(out[0].addr, 7);
//! nic.complete(&out[0], Outcome::Sent);
//! assert_eq!(nic.poll_completion().map(|done| done.addr), Some(7));
//! # Ok::<(), plimsoll_nic::Refusal>(())
//! ```
#![forbid(unsafe_code)]

mod account;
mod bundle;
mod circle;
mod completions;
mod config;
mod counters;
mod doorbell;
mod egress;
mod fair;
mod footprint;
mod heads;
mod host;
mod ids;
mod ingress;
mod install;
mod layout;
mod limit;
mod order;
mod ranks;
mod refusal;
mod stats;
mod tree;
mod waits;

pub use config::Config;
pub use doorbell::{DoorbellQueue, ENTRIES_PER_LINE, PcieWrites};
pub use egress::{ClassBytes, Nic};
pub use footprint::{Footprint, Part, footprint};
pub use host::{Descriptor, MAX_DESCRIPTOR};
pub use ids::QueueId;
pub use ingress::{Arrival, Drain, Ingress, IngressCounters, NotQueued, Station};
pub use plimsoll_queues::codel::Verdict;
pub use refusal::Refusal;
pub use stats::{
    ClassCounters, Completion, EngineStats, LimitCounters, NodeRank, Outcome, TenantCounters, Transmit,
    WAITED_TOO_LONG,
};
pub use waits::Waits;
