//! A snapshot of a host's counters.
//!
//! Why: promises are judged by measurements, and live and simulated hosts are measured alike.
//! From: PicNIC §2's stations: egress, the NIC and the engine on ingress, and the fabric between hosts.
//! Not here: taking a snapshot (the daemon's engine, `sim`), the difference of two snapshots (`passed`).
//! Invariant: counters only grow, except when the engine has restarted.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_policy::{NodeId, Program};
use plimsoll_units::{BitRate, Nanos, Span};

use crate::Parts;

/// A snapshot of a host's counters.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Time of the snapshot.
    pub at: Nanos,
    /// The policy in force.
    pub program: Arc<Program>,
    /// Rates that were changed since that policy came into force, by node: they are in force in place of its own.
    pub rates: Arc<BTreeMap<NodeId, BitRate>>,
    /// Counters of each tenant in the policy.
    pub lanes: Vec<LaneWatched>,
    /// Counters of the uplink.
    pub uplink: UplinkWatched,
    /// Counters of the engine's thread.
    pub pulse: Pulse,
}

/// Counters of one tenant, since the start unless a field says otherwise.
#[derive(Clone, Debug, Default)]
pub struct LaneWatched {
    /// The tenant's name.
    pub name: String,
    /// Bytes read from the tenant's port.
    pub offered_bytes: u64,
    /// Bytes delivered to the tenant's port.
    pub received_bytes: u64,
    /// Frames dropped on egress, by drop reason.
    pub losses: BTreeMap<&'static str, u64>,
    /// Frames that left this host and are known to be lost between the hosts.
    pub strayed: u64,
    /// Times that the tenant's packets were held for a receiver or by backpressure, by who held them.
    pub pressed: BTreeMap<String, u64>,
    /// Traffic from the uplink for the tenant.
    pub inward: InwardWatched,
    /// Delays and bytes sent since the last snapshot; none when no packet left or came.
    pub parts: Option<Box<Parts>>,
    /// Times that the port was not read because the tenant held its maximum of descriptors.
    pub held_back: u64,
    /// Whether the tenant's port is gone.
    pub away: bool,
}

/// Counters of the traffic from the uplink for one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InwardWatched {
    /// Bytes that came, including lost frames.
    pub bytes: u64,
    /// Frames that the NIC or the kernel dropped before the engine read them, where their tenant is known.
    pub nic_full: u64,
    /// Frames dropped because the tenant's ingress queue was full.
    pub queue_full: u64,
    /// Frames dropped because the tenant received more than its maximum.
    pub over_max: u64,
    /// CPU time spent on the frames.
    pub cpu: Span,
}

/// Counters of the uplink since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct UplinkWatched {
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Times that the uplink had no room for a frame.
    pub full: u64,
    /// Frames that the kernel or the NIC dropped before the engine read them.
    pub kernel_drops: u64,
    /// Whether the uplink is down or gone.
    pub away: bool,
}

/// Scheduling of the engine's thread by the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pulse {
    /// Time on a core, since the start.
    pub cpu: Span,
    /// Time that the thread was ready to run and had no core; none where the kernel does not report it.
    pub no_core: Option<Span>,
    /// The longest delay of a wake-up since the last snapshot.
    pub late: Span,
}
