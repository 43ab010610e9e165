//! A lane: everything that belongs to one tenant's port.
//!
//! Why: what a tenant uses up is its own: buffers, flows, counters. Nothing here is shared.
//! From: `docs/architecture.md`, "live".
//! Not here: when it is read, and where its frames go (`engine`).
//! Invariant: a lane whose port is gone keeps what it holds until that has left.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use plimsoll_nic::QueueId;
use plimsoll_policy::{Fields, Placement, TenantId};
use plimsoll_ports::{Counters, DropReason, Port, Trouble};

use super::drops::{Event, Tally};
use super::flows::FlowTable;
use super::pool::Pool;

/// One tenant's port and all that it uses.
#[derive(Debug)]
pub struct Lane {
    /// The operator's name for the tenant.
    pub name: String,
    /// The tenant in the policy in force; none once a reload has removed it.
    pub tenant: Option<TenantId>,
    /// The port, unless it is lost.
    pub(crate) port: Option<Port>,
    /// Whether the port may have something to read.
    pub(crate) ready: bool,
    pub(crate) pool: Pool,
    pub(crate) flows: FlowTable,
    /// Queues for what the flow table has no room for, by placement.
    pub(crate) overflow: HashMap<Placement, Overflow, RandomState>,
    pub(crate) tally: Tally,
    /// Delivered to the tenant since the port was last flushed.
    pub(crate) wrote: bool,
    /// What earlier ports of this lane had carried.
    past: Counters,
}

/// A queue that flows share for which the table has no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overflow {
    pub(crate) queue: QueueId,
    /// Those of the first of them, for a later policy.
    pub(crate) fields: Fields,
}

/// What a lane is made from; made outside the engine's thread, as it allocates.
#[derive(Debug)]
pub struct LaneSpec {
    /// The operator's name for the tenant.
    pub name: String,
    /// The tenant in the policy.
    pub tenant: TenantId,
    /// Its port.
    pub port: Option<Port>,
    /// Descriptors that it may have in the engine.
    pub descriptors: u32,
    /// Flows that it may have a queue for.
    pub flows: u32,
}

impl Lane {
    /// Allocates what the tenant may use.
    #[must_use]
    pub fn new(spec: LaneSpec) -> Self {
        Self {
            name: spec.name,
            tenant: Some(spec.tenant),
            port: spec.port,
            ready: true,
            pool: Pool::for_descriptors(spec.descriptors),
            flows: FlowTable::new(spec.flows),
            overflow: HashMap::default(),
            tally: Tally::default(),
            wrote: false,
            past: Counters::default(),
        }
    }

    /// Whether the port must be asked for frames because it cannot be waited on.
    pub(crate) fn must_be_asked(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.fds().receive.is_none())
    }

    /// Reacts to a port in trouble. One that is gone is taken out; its counters stay.
    pub(crate) fn trouble(&mut self, trouble: Trouble) -> Option<Port> {
        self.ready = false;
        if trouble == Trouble::Down {
            return None;
        }
        self.tally.event(Event::PortLost);
        self.detach()
    }

    /// Takes the port out; what it has carried stays counted.
    pub(crate) fn detach(&mut self) -> Option<Port> {
        let mut port = self.port.take()?;
        self.past = sum(&self.past, &port.counters());
        Some(port)
    }

    /// Puts a port in.
    pub(crate) fn attach(&mut self, port: Port) {
        self.detach();
        self.port = Some(port);
        self.ready = true;
    }

    /// What the lane's ports have carried, all of them together.
    pub(crate) fn counters(&mut self) -> Counters {
        match &mut self.port {
            Some(port) => sum(&self.past, &port.counters()),
            None => self.past,
        }
    }
}

/// Two ports' counters together.
pub(crate) fn sum(a: &Counters, b: &Counters) -> Counters {
    let add =
        |a: [u64; DropReason::COUNT], b: [u64; DropReason::COUNT]| core::array::from_fn(|i| a[i] + b[i]);
    Counters {
        rx_packets: a.rx_packets + b.rx_packets,
        rx_bytes: a.rx_bytes + b.rx_bytes,
        tx_packets: a.tx_packets + b.tx_packets,
        tx_bytes: a.tx_bytes + b.tx_bytes,
        rx_drops: add(a.rx_drops, b.rx_drops),
        tx_drops: add(a.tx_drops, b.tx_drops),
    }
}
