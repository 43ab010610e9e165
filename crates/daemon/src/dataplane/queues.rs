//! Chooses a packet's flow queue, and opens and closes flow queues.
//!
//! Why: flow queues are few, and each tenant must have its part of them, however many others open or leave.
//! From: MIMIC's flow queues for each tenant, divided evenly; `docs/architecture.md`, "live".
//! Not here: the table of a tenant's flows (`flows`), and what a flow queue does (`nic`).
//! Invariant: the lanes' parts are together at most all flow queues; a lane opens none beyond its part; one that is
//! empty and idle is closed.

use plimsoll_nic::{QueueId, Refusal};
use plimsoll_policy::{Fields, Metadata};
use plimsoll_units::Nanos;
use plimsoll_wire::Parsed;

use super::drops::Event;
use super::flows::{Flow, Hashed, IDLE, Lookup};
use super::lane::{Overflow, Quota};
use super::{Dataplane, fields_of, fleet};

/// Flow table slots looked at for idle flows in a turn.
const EXPIRY_STEPS: usize = 16;

impl Dataplane {
    /// The flow queue of a frame: its flow's own, or, when there is no room for one, the overflow queue of its placement.
    pub(super) fn queue_for(
        &mut self,
        index: usize,
        parsed: &Parsed,
        flow: &Hashed,
        metadata: Metadata,
        now: Nanos,
    ) -> Result<QueueId, Refusal> {
        let peer = self.peer_of(index, parsed.dst_mac.0);
        let Some(lane) = &mut self.tenants.lanes[index] else { return Err(Refusal::NoQueue) };
        let queues = &self.scheduler.queues;
        let holds = |queue: QueueId| queues[queue.0 as usize] > 0;
        let slot = match lane.flows.lookup(flow, peer, &metadata, now, holds) {
            Lookup::Known(slot) => {
                let flow = lane.flows.flow_mut(slot);
                flow.seen = now;
                return Ok(flow.queue);
            }
            Lookup::Free(slot) => slot,
            Lookup::Idle(slot) => {
                if let Some(flow) = lane.flows.remove(slot) {
                    self.scheduler.nic.close_queue(flow.queue);
                }
                slot
            }
            Lookup::Full => {
                let fields = fields_of(parsed, lane.tenant, metadata);
                return self.overflow(index, peer, &fields, now);
            }
        };
        let fields = fields_of(parsed, lane.tenant, metadata);
        let mut placement = self.policy.classifier.classify(&self.policy.program, &fields);
        placement.limits.extend(fleet::pair_of(&self.fleet, lane.tenant, peer));
        // Frames that the flow sent while the table was full leave first.
        let shared = lane.overflow.get(&placement).is_some_and(|shared| holds(shared.queue))
            || lane.leftover.iter().any(|shared| holds(shared.queue));
        let opens = !shared && lane.open_queues() < lane.quota.queues;
        let queue = if opens { self.scheduler.nic.open_queue(&placement) } else { Err(Refusal::NoQueue) };
        let Ok(queue) = queue else { return self.overflow(index, peer, &fields, now) };
        lane.flows.insert(slot, Flow { key: flow.key, peer, fields, queue, seen: now });
        Ok(queue)
    }

    /// The overflow queue of a placement: shared by all its flows that the table has no room for.
    fn overflow(
        &mut self,
        index: usize,
        peer: Option<u32>,
        fields: &Fields,
        now: Nanos,
    ) -> Result<QueueId, Refusal> {
        let Some(lane) = &mut self.tenants.lanes[index] else { return Err(Refusal::NoQueue) };
        lane.tally.event(Event::FlowTableFull);
        let mut placement = self.policy.classifier.classify(&self.policy.program, fields);
        placement.limits.extend(fleet::pair_of(&self.fleet, lane.tenant, peer));
        if let Some(shared) = lane.overflow.get_mut(&placement) {
            shared.seen = now;
            return Ok(shared.queue);
        }
        if lane.open_queues() >= lane.quota.queues {
            // An empty one is closed now, and opened again when a flow needs it.
            let nic = &mut self.scheduler.nic;
            lane.overflow.retain(|_, shared| !nic.close_queue(shared.queue));
        }
        if lane.open_queues() >= lane.quota.queues {
            return Err(Refusal::NoQueue);
        }
        let queue = self.scheduler.nic.open_queue(&placement)?;
        lane.overflow.insert(placement, Overflow { queue, fields: *fields, peer, seen: now });
        Ok(queue)
    }

    /// Gives each tenant's lane an equal part of the flow queues. Queues that still hold packets of removed tenants are not
    /// divided until they are closed.
    pub(super) fn share_queues(&mut self) {
        let (staying, leaving): (Vec<_>, Vec<_>) = self.tenants.all().partition(|lane| lane.tenant.is_some());
        let kept: u32 = leaving.iter().map(|lane| lane.open_queues()).sum();
        let queues = u32::try_from(self.scheduler.queues.len()).unwrap_or(u32::MAX);
        let quota = Quota::of(queues.saturating_sub(kept), staying.len());
        for lane in staying {
            lane.set_quota(quota);
        }
    }

    /// Closes empty queues before a reload. Idle flows are opened again by their next packet; only flows that hold
    /// packets need a new place now.
    pub(super) fn close_empty_queues(&mut self) {
        let (nic, queues) = (&mut self.scheduler.nic, &self.scheduler.queues);
        for lane in self.tenants.all() {
            let empty: Vec<_> = (lane.flows.iter())
                .filter(|(_, flow)| queues[flow.queue.0 as usize] == 0)
                .map(|(slot, _)| slot)
                .collect();
            for flow in empty.into_iter().filter_map(|slot| lane.flows.remove(slot)) {
                nic.close_queue(flow.queue);
            }
            lane.overflow.retain(|_, shared| !nic.close_queue(shared.queue));
            lane.leftover.retain(|shared| !nic.close_queue(shared.queue));
        }
    }

    /// Closes the queues of a few flows that have fallen silent, one tenant's each turn.
    pub(super) fn expire_flows(&mut self, now: Nanos) {
        let (nic, queues) = (&mut self.scheduler.nic, &self.scheduler.queues);
        let Some(lane) = self.tenants.first() else {
            return;
        };
        if lane.open_queues() == 0 {
            return;
        }
        if lane.tenant.is_none() && lane.pool.in_use() == 0 {
            return self.close_lane(self.tenants.first_number());
        }
        let holds = |queue: QueueId| queues[queue.0 as usize] > 0;
        if let Some(flow) = lane.flows.expire(EXPIRY_STEPS, now, holds) {
            nic.close_queue(flow.queue);
        }
        lane.leftover.retain(|shared| !nic.close_queue(shared.queue));
        if lane.closing {
            lane.opened.retain(|opened| opened.live || !nic.close_queue(opened.queue));
            lane.closing = lane.opened.iter().any(|opened| !opened.live);
        }
        lane.overflow.retain(|_, shared| now.since(shared.seen) <= IDLE || !nic.close_queue(shared.queue));
    }

    /// Closes the lane of a removed tenant after its last packet, so that others may have its queues.
    fn close_lane(&mut self, index: usize) {
        let Some(lane) = self.tenants.lanes.get_mut(index).and_then(Option::as_mut) else { return };
        let shared = lane.overflow.drain().map(|(_, shared)| shared).chain(lane.leftover.drain(..));
        let opened = lane.opened.drain(..).map(|opened| opened.queue);
        let queues = lane.flows.drain().map(|flow| flow.queue).chain(shared.map(|shared| shared.queue));
        let queues = queues.chain(opened);
        for queue in queues {
            let closed = self.scheduler.nic.close_queue(queue);
            debug_assert!(closed, "a queue without buffers is empty");
        }
        self.share_queues();
    }
}
