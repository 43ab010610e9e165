//! Frames of flows that are known: counted and posted without being parsed, looked up and classified again.
//!
//! Why: of the time that a frame takes on its way in, most is spent on what is the same for all frames of its flow.
//! From: Open vSwitch's exact-match cache (Pfaff et al., NSDI 2015).
//! Not here: the cache itself (`flow_cache`).
//! Invariant: a frame fares as it would if it were looked at.

use std::net::IpAddr;

use plimsoll_nic::QueueId;
use plimsoll_policy::Metadata;
use plimsoll_units::Span;
use plimsoll_wire::{Ecn, Offload, Parsed};

use super::super::Dataplane;
use super::super::flow_cache::{Decided, FlowCache, Version};
use super::super::flows::{Hashed, Lookup};
use super::super::heavy::markable;
use super::super::inward::{can_be_known, source_of};
use super::super::paced::Passed;
use super::super::posted::Origin;
use super::Arrived;
use crate::departures::Headers;

/// How often the flow table is told that a known flow still sends: far below the time after which it counts as silent.
const TELL_AGAIN: Span = Span::millis(100);

impl Dataplane {
    /// Whether frames like this one may be of a flow that is known. While other hosts ask for rates, and where connections are mediated
    /// or windows made smaller, each frame is looked at; and so is one with metadata, or with a queue that its client chose.
    pub(super) fn caches_flows(&mut self, origin: &Origin) -> bool {
        let plain = origin.queue.is_none()
            && origin.passed == Passed::Nothing
            && origin.metadata == Metadata::default();
        plain
            && self.inward.knows()
            && !self.backpressure.mediates
            && self.fleet.as_ref().is_none_or(|fleet| !fleet.holds_flows())
            && self.backpressure.heavy.as_mut().is_none_or(|heavy| heavy.windows().is_none())
    }

    pub(in super::super) fn known_at(&self) -> Version {
        Version { addresses: self.macs.version_of_tenants(), policy: self.policy.changes }
    }

    /// Counts and posts a frame, if its flow is known; `false`: it is to be looked at.
    pub(super) fn admit_known(&mut self, arrived: &Arrived) -> bool {
        let Some(lane) = &mut self.tenants.lanes[arrived.index] else { return false };
        let Some(mut cache) = lane.cache.take() else { return false };
        let admitted = self.admit_from(&mut cache, arrived);
        if let Some(lane) = &mut self.tenants.lanes[arrived.index] {
            lane.cache = Some(cache);
        }
        admitted
    }

    fn admit_from(&mut self, cache: &mut FlowCache, arrived: &Arrived) -> bool {
        let &Arrived { index, buffer, received, origin, now } = arrived;
        let Some(lane) = &self.tenants.lanes[index] else { return false };
        let front = origin.front(lane.pool.bytes(buffer), received.len);
        let found = cache.find(front, received.vnet, self.known_at());
        let Some((known, counts)) = found.filter(|(known, _)| lane.flows.stays(&known.stay)) else {
            return false;
        };
        if !lane.sent_from(source_of(front.bytes()), now) {
            return false;
        }
        if let Some(counts) = counts
            && self.backpressure.heavy.is_some()
            && !self.hold_flow(arrived, counts, known.ecn, &known.offload)
        {
            return true;
        }
        if now.since(known.told) >= TELL_AGAIN
            && let Some(lane) = &mut self.tenants.lanes[index]
        {
            known.told = now;
            lane.flows.note_seen(&known.stay, now);
        }
        self.post(arrived, &known.offload, (known.to, known.headers, known.hash), Ok(known.queue));
        true
    }

    /// Notes what the headers of a frame decide, for the next frames of its flow; of some flows only.
    pub(super) fn note_flow(
        &mut self,
        &Arrived { index, buffer, received, origin, now }: &Arrived,
        (parsed, flow): (&Parsed, &Hashed),
        offload: &Offload,
        queue: QueueId,
    ) {
        let peer = self.peer_of(index, parsed.dst_mac.0);
        let hash = self.path_hash(parsed);
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        let frame = &lane.pool.bytes(buffer)[..origin.at_hand(received.len)];
        if !can_be_known(frame, received) || comes_from_link_local(parsed) {
            return;
        }
        let Some(mut cache) = lane.cache.take_if(|cache| cache.is_to_note()) else { return };
        let Some(lane) = &self.tenants.lanes[index] else { return };
        let front = origin.front(lane.pool.bytes(buffer), received.len);
        let found = lane.flows.lookup(flow, peer, &Metadata::default(), now, |_| true);
        // A mark that was written into this frame is not in the next ones.
        let unmarked = Ecn::of(front.bytes()) == parsed.ip.as_ref().map(|ip| Ecn::from_bits(ip.ecn));
        if let Lookup::Known(slot) = found
            && unmarked
        {
            let decided = Decided {
                offload: *offload,
                to: parsed.dst_mac.0,
                headers: Headers::of(parsed),
                hash,
                ecn: markable(parsed),
                stay: lane.flows.stay(slot),
                queue,
                told: now,
            };
            let counts = self.counted_as(index, parsed, flow);
            cache.note(front, received.vnet, self.known_at(), (decided, counts));
        }
        if let Some(lane) = &mut self.tenants.lanes[index] {
            lane.cache = Some(cache);
        }
    }
}

/// Whether the source is an IPv6 link-local address. It is made from a hardware address, which may become one behind the uplink at any
/// time: then the frame is not the tenant's to send.
fn comes_from_link_local(parsed: &Parsed) -> bool {
    let source = parsed.addresses().map(|(source, _)| source);
    matches!(source, Some(IpAddr::V6(source)) if source.is_unicast_link_local())
}
