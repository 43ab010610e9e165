//! One look at a host: what its engine has counted by a moment.
//!
//! Why: promises are judged by what was measured, and live hosts and simulated ones measure the same.
//! From: PicNIC §2's stations: the way out, the NIC and the engine on the way in, and what lies between hosts.
//! Not here: taking a look (the daemon's engine, `sim`), what passed between two of them (`passed`).
//! Invariant: counters only grow, but for an engine that began anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_policy::Program;
use plimsoll_units::{Nanos, Span};

use crate::Parts;

/// One look.
#[derive(Clone, Debug)]
pub struct Watched {
    /// When.
    pub at: Nanos,
    /// The policy in force.
    pub program: Arc<Program>,
    /// Tenants' ports, of tenants in the policy.
    pub lanes: Vec<LaneWatched>,
    /// The uplink.
    pub uplink: UplinkWatched,
    /// The engine's thread.
    pub pulse: Pulse,
}

/// One tenant, since the start unless it says otherwise.
#[derive(Clone, Debug, Default)]
pub struct LaneWatched {
    /// The tenant's name.
    pub name: String,
    /// Bytes from its port.
    pub offered_bytes: u64,
    /// Bytes that its port took.
    pub received_bytes: u64,
    /// Frames lost on the way out, by reason.
    pub losses: BTreeMap<&'static str, u64>,
    /// Frames that left and are known not to have come to the other host.
    pub strayed: u64,
    /// Times that what a receiver elsewhere allows held its packets, by receiver.
    pub pressed: BTreeMap<String, u64>,
    /// What the uplink brought for it.
    pub inward: InwardWatched,
    /// Delays and what left, since the last look; none where nothing did.
    pub parts: Option<Box<Parts>>,
    /// Times that its port was not read, as it was at its cap.
    pub held_back: u64,
    /// Its port is gone.
    pub away: bool,
}

/// What the uplink brought for a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InwardWatched {
    /// Bytes that came, lost ones included.
    pub bytes: u64,
    /// Frames that the NIC or the kernel dropped before they were told apart, where it is known whose they were.
    pub nic_full: u64,
    /// Frames that found its queue full.
    pub queue_full: u64,
    /// Frames beyond what it may receive.
    pub over_max: u64,
    /// CPU time that they took.
    pub cpu: Span,
}

/// The uplink, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct UplinkWatched {
    /// Bytes that it took.
    pub sent_bytes: u64,
    /// Bytes that it brought.
    pub received_bytes: u64,
    /// Times that it had no room.
    pub full: u64,
    /// Frames that the kernel or the NIC dropped before they were read.
    pub kernel_drops: u64,
    /// It is down or gone.
    pub away: bool,
}

/// How the engine's thread fares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pulse {
    /// Time on a core, since the start.
    pub cpu: Span,
    /// Time that it could have run and had no core; none where the kernel does not say.
    pub no_core: Option<Span>,
    /// The latest wake-up since the last look.
    pub late: Span,
}
