//! Flows of tenants here that are held to a rate for others: hosts that asked for it, and receivers that report marks.
//!
//! Why: a tenant's frames wait here for what happens elsewhere, and its operator must see for whom.
//! From: MIMIC §III-C: a meter at the source, installed by a notice.
//! Not here: the meters of reported marks (`mediate`), notices (`steer`), and frames that wait (`paced`).
//! Invariant: a frame passes, waits, or is counted as lost.

use plimsoll_control::backpressure::Metered;
use plimsoll_ports::Received;
use plimsoll_units::{BitRate, Nanos};
use plimsoll_wire::overlay::Vni;
use plimsoll_wire::{FlowKey, Offload, Parsed};

use super::super::Dataplane;
use super::super::mac_table::Mac;
use super::super::paced::Held;
use super::super::pool::Buffer;
use super::super::posted::Origin;

/// What another host asks about: the address that a flow's frames go to, the one that they are sent from, and their headers.
///
/// The sender's own address counts because another tenant of this host may copy the headers. It is a tenant's before its frames
/// are held to a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Asked {
    /// The network of both.
    pub(crate) network: Vni,
    pub(crate) to: Mac,
    pub(crate) from: Mac,
    pub(crate) flow: FlowKey,
}

/// A flow of a tenant here that is held to a rate for something elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedNow {
    /// Its headers; without DSCP if its receiver reports marks.
    pub flow: FlowKey,
    /// The tenant that sends it.
    pub of: String,
    /// What asks for that.
    pub by: AskedBy,
    /// Its rate.
    pub rate: BitRate,
    /// Since when.
    pub since: Nanos,
    /// Until when, if it is not asked for again.
    pub until: Nanos,
}

/// Why a flow is held to a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// Another host asked for it.
    Host {
        /// The tenant that the flow goes to.
        to: String,
        /// The host.
        host: String,
    },
    /// The flow's receiver reports marks (ECN), and the connections of the tenant that sends it are mediated.
    Receiver,
}

impl Dataplane {
    /// The flows that are held to a rate for other hosts and receivers: by destination and headers, and by tenant and headers.
    #[must_use]
    pub fn asked(&self, now: Nanos) -> Vec<AskedNow> {
        let of_fleet = self.fleet.iter().flat_map(|fleet| {
            fleet.asked.list(now).into_iter().filter_map(
                |(Asked { network, to, from, flow }, Metered { meter, since, .. })| {
                    let peer = &fleet.map.members.vms()[fleet.map.vm(network, to)? as usize];
                    let host = fleet.map.hosts[peer.host].name.clone();
                    let by = AskedBy::Host { to: peer.name.clone(), host };
                    let of = fleet.map.own_name(network, from)?.to_owned();
                    Some(AskedNow { flow, of, by, rate: meter.rate(), since, until: meter.until() })
                },
            )
        });
        of_fleet.chain(self.reported(now)).collect()
    }

    /// Whether a tenant's frame for another host is within the rate that this host has asked for its flow. Else it waits, or it
    /// is counted, and its buffer is freed.
    pub(in super::super) fn may_go_there(
        &mut self,
        (index, buffer): (usize, Buffer),
        parsed: &Parsed,
        offload: &Offload,
        origin: &Origin,
        received: &Received,
        now: Nanos,
    ) -> bool {
        if self.fleet.as_ref().is_none_or(|fleet| !fleet.holds_flows()) {
            return true;
        }
        let flow = FlowKey::of(parsed);
        let network = self.network_of(Some(index as u32));
        let held = Held::Asked(Asked { network, to: parsed.dst_mac.0, from: parsed.src_mac.0, flow });
        self.may_pass(held, (index, buffer), offload, received, origin, now)
    }
}
