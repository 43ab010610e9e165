//! A tenant's frames as they are counted for their flow, and held to its rate.
//!
//! Why: a flow that is slowed down at its source must not go on before its rate allows it.
//! From: MIMIC §III (marks, meters), `docs/backpressure.md`.
//! Not here: which flows are slowed down (`press`), frames that wait (`paced`), frames from the uplink (`depart`).
//! Invariant: a frame counts once for the tenant that sends it and once for the tenant of this host that is to receive it, if they are
//! counted.

use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_control::backpressure::{FlowSource, Place, SenderMac};
use plimsoll_vnic::Status;
use plimsoll_wire::overlay::Vni;
use plimsoll_wire::{Ecn, Offload, Parsed};

use super::super::Dataplane;
use super::super::drops::{Event, Loss};
use super::super::fleet::Fleet;
use super::super::flows::Hashed;
use super::super::heavy::{HashedCount, markable};
use super::super::mac_table::{Mac, MacTable, Owner};
use super::super::paced::Holder;
use super::super::press::{Act, Way};
use super::{Arrived, on_wire};

impl Dataplane {
    /// The flow of a tenant's frame as it is counted for the tenant, and for the tenant of this host that is to receive it.
    pub(super) fn counted_as(
        &self,
        index: usize,
        parsed: &Parsed,
        flow: &Hashed,
    ) -> [Option<HashedCount>; 2] {
        let Some(heavy) = &self.backpressure.heavy else { return [None; 2] };
        let (to, from) = (parsed.dst_mac.0, FlowSource::Here);
        let network = self.network_of(Some(index as u32));
        let (receiver, peer_untouched) = match self.macs.owner(network, to) {
            Some(Owner::Lane(to)) => {
                let untouched = (from, heavy.is_untouched(index));
                let flow = heavy.flow((to as usize, true, Some(index)), untouched, (parsed, flow));
                (flow, heavy.is_untouched(to as usize))
            }
            _ => (None, self.fleet.as_ref().is_some_and(|fleet| fleet.map.is_untouched(network, to))),
        };
        [heavy.flow((index, false, None), (from, peer_untouched), (parsed, flow)), receiver]
    }

    /// Counts a tenant's frame, and makes the windows smaller that it announces where its flow is slowed down by them. Answers
    /// whether it may go on, as [`Dataplane::hold_flow`] does.
    pub(super) fn may_flow(
        &mut self,
        arrived: &Arrived,
        (parsed, flow): (&Parsed, &Hashed),
        offload: &Offload,
    ) -> bool {
        let mut counted = self.counted_as(arrived.index, parsed, flow);
        self.narrow_windows(arrived, &counted, parsed, offload);
        self.hold_flow(arrived, &mut counted, markable(parsed), offload)
    }

    fn narrow_windows(
        &mut self,
        &Arrived { index, buffer, received, origin, now }: &Arrived,
        counted: &[Option<HashedCount>; 2],
        parsed: &Parsed,
        offload: &Offload,
    ) {
        let (Some(heavy), Some(lane)) = (&mut self.backpressure.heavy, &mut self.tenants.lanes[index]) else {
            return;
        };
        let Some(windows) = heavy.windows().filter(|_| counted.iter().any(Option::is_some)) else { return };
        let [sender, receiver] =
            counted.each_ref().map(|flow| flow.map(|flow| Place::Tenant(flow.of.tenant)));
        let places = [
            sender.unwrap_or(Place::Uncounted(index)),
            receiver.unwrap_or_else(|| place_of(&self.macs, &self.fleet, (lane.network, parsed.dst_mac.0))),
        ];
        let len = origin.at_hand(received.len);
        let bytes = &mut lane.pool.bytes_mut(buffer)[..len * origin.frames() as usize];
        for frame in bytes.chunks_exact_mut(len.max(1)) {
            if windows.pass(places, frame, parsed, offload, now) {
                lane.tally.event(Event::FlowWindowed);
            }
        }
    }

    /// Counts a tenant's frame for its flow. Answers whether it may go on: a frame beyond the rate of a flow that is slowed down is
    /// counted, and its buffer is freed.
    pub(super) fn hold_flow(
        &mut self,
        &Arrived { index, buffer, received, origin, now }: &Arrived,
        counted: &mut [Option<HashedCount>; 2],
        mut ecn: Codepoint,
        offload: &Offload,
    ) -> bool {
        let (Some(heavy), Some(lane)) = (&mut self.backpressure.heavy, &mut self.tenants.lanes[index]) else {
            return true;
        };
        let sent = on_wire(offload, received.len, origin.frames());
        let frame = &mut lane.pool.bytes_mut(buffer)[..origin.at_hand(received.len)];
        let (mut owes, mut marked) = ([false; 2], false);
        for (flow, owes) in counted.iter_mut().flatten().zip(&mut owes) {
            let (Act { mark, way }, counted) = heavy.judge(flow, sent, (frame, ecn), now);
            if !counted {
                heavy.count(flow, sent);
            }
            if mark && Ecn::Ce.write(frame) {
                (marked, ecn) = (true, Codepoint::Ce);
            }
            match way {
                Way::Pass => {}
                Way::Wait => *owes = true,
                Way::Drop => {
                    *lane.pressed.entry(Holder::Here).or_default() += 1;
                    lane.tally.lost_many(Loss::FlowOverRate, origin.frames().into());
                    lane.give(buffer, origin, Status::Dropped);
                    return false;
                }
            }
        }
        let names = counted.iter().flatten().map(|flow| flow.of);
        let waits = self.backpressure.paced.waits_as(names, owes);
        let kept = waits.map(|held| self.keep(held, (index, buffer), received, origin, (sent.1, owes), now));
        if marked
            && kept != Some(false)
            && let Some(lane) = &mut self.tenants.lanes[index]
        {
            lane.tally.event(Event::FlowMarked);
        }
        kept.is_none()
    }
}

/// Where this address is, of a tenant whose flows are not counted or elsewhere.
fn place_of(macs: &MacTable, fleet: &Option<Box<Fleet>>, (network, mac): (Vni, Mac)) -> Place {
    match macs.owner(network, mac) {
        Some(Owner::Lane(lane)) => Place::Uncounted(lane as usize),
        _ => Place::Away(
            fleet
                .as_ref()
                .map_or(FlowSource::Elsewhere(SenderMac::default()), |fleet| fleet.source_of(network, mac)),
        ),
    }
}
