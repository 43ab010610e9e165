//! Faults to come: daemons that end, clocks that are set, guests that stop reading.
//!
//! Why: isolation must also hold while something goes wrong.
//! From: `docs/scenarios.md`, "Faults".
//! Not here: what a fault does to a world (`world/downtime`), lost and late messages between hosts (`control`), hostile
//! senders (`traffic`).
//! Invariant: steps are taken in the order of their moments.

use std::collections::BTreeMap;

use plimsoll_units::Nanos;

use crate::agenda::SourceId;
use crate::host_nic::HostNic;
use crate::receive::Receive;

/// The drop reason while a daemon is down.
pub(crate) const DOWN: &str = "daemon_down";

/// The faults still to come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The faults by moment, the last first.
    pub(crate) steps: Vec<(Nanos, FaultStep)>,
    /// By node: the daemon that takes over after each end of one, the last first.
    pub(crate) spares: BTreeMap<u32, Vec<Spare>>,
    pub(crate) source: SourceId,
}

/// A step of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultStep {
    /// A node's daemon ends.
    Down(u32),
    /// A node's daemon starts again.
    Up(u32),
    /// A node's clock is set ahead by this number of nanoseconds, or back.
    Clock(u32, i64),
    /// A tenant stops reading.
    Stall(u32),
    /// A tenant reads again.
    Resume(u32),
}

/// A daemon that has just started: its NIC and its way in.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) nic: Box<HostNic>,
    pub(crate) receive: Option<Box<Receive>>,
}
