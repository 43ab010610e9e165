//! Backpressure in a world: packets are counted and held where they leave and come in, and hosts tell each other.
//!
//! Why: a heavy flow is found at one host and slowed down at another.
//! From: the daemon: `engine/outward` and `engine/depart` count and hold frames, `engine/load` looks at the load.
//! Not here: which flows, and how hard (`press`).
//! Invariant: a notice arrives once, after the delay of the way between the hosts.

use std::collections::BTreeMap;

use plimsoll_control::HostId;
use plimsoll_control::backpressure::{FlowSource, Place, SenderMac};
use plimsoll_policy::Watch;
use plimsoll_units::{Nanos, Span};

use super::{Carrier, World};
use crate::agenda::SourceId;
use crate::flow::End;
use crate::packet::{Body, Packet};
use crate::press::{Act, Held, Key, Notice, OVER_RATE, Press};
use crate::receive::Receive;

/// TCP's protocol number.
const TCP: u8 = 6;

/// Notices under way, and what packets met.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(crate) source: SourceId,
    /// By arrival and then by the order of sending, each with the node that it goes to.
    under_way: BTreeMap<(Nanos, u64), (u32, Notice)>,
    sent: u64,
}

/// What a packet still has to pass on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gate {
    /// The rates that other hosts asked for.
    Asked,
    /// The rates of flows whose receivers report marks.
    Reported,
    /// This host's own count and rates.
    Here,
}

impl World {
    fn key(&self, packet: &Packet) -> Key {
        let flow = &self.flows[packet.flow as usize];
        let claims = self.claims[flow.workload as usize];
        let claim = match packet.body {
            Body::Datagram { number, .. } if claims > 0 && !packet.back => {
                (number % u64::from(claims)) as u32
            }
            _ => 0,
        };
        Key { flow: packet.flow, back: packet.back, claim }
    }

    /// Where packets of this end come from, for another host. A host without a NIC of its own cannot be told. No sender copies
    /// another one's headers here.
    fn source_of(&self, end: &End) -> FlowSource {
        match end.tenant.is_some() && self.nodes[end.node as usize].press.is_some() {
            true => FlowSource::Host(HostId(end.node), SenderMac::default()),
            false => FlowSource::Elsewhere(SenderMac::default()),
        }
    }

    /// Takes a packet past the gates of its host on the way out. Returns whether it may go on now.
    #[inline]
    pub(super) fn pass_out(&mut self, packet: &mut Packet, gate: Gate) -> bool {
        !self.pressed || self.pass_gates(packet, gate)
    }

    fn pass_gates(&mut self, packet: &mut Packet, gate: Gate) -> bool {
        let flow = &self.flows[packet.flow as usize];
        let (from, to) = flow.leg(packet);
        let (node, to_node, receiver) = (from.node, to.node, to.tenant);
        let Some(tenant) = from.tenant.filter(|_| self.nodes[node as usize].press.is_some()) else {
            return true;
        };
        let away = self.source_of(to);
        let (key, now, (frames, bytes)) = (self.key(packet), self.now, on_wire(packet));
        let Some(press) = &mut self.nodes[node as usize].press else { return true };
        let mut held = None;
        if gate == Gate::Asked && to_node != node {
            held = press.stops(Held::Asked(key), bytes, now);
        }
        if held.is_none() && gate <= Gate::Reported && !press.guests.is_empty() {
            held = press.stops(Held::Reported(tenant, key), bytes, now);
        }
        if held.is_none() {
            let near = receiver.filter(|_| to_node == node);
            let there = near.map_or(Place::Away(away), |receiver| press.place_of(receiver));
            press.narrow([press.place_of(tenant), there], key, packet, now);
            let sender = press.counted(key, (tenant, receiver), false, FlowSource::Here);
            let receiver = near
                .and_then(|receiver| press.counted(key, (receiver, Some(tenant)), true, FlowSource::Here));
            held = press.stops_here([sender, receiver], packet, (frames, bytes), now);
        }
        let Some((held, act, owes)) = held else { return true };
        let kept = act == Act::Wait && press.keep(held, owes, *packet, bytes);
        let next = press.next(|packet| on_wire(packet).1, now);
        let source = self.nodes[node as usize].press_source;
        self.agenda.keep(source, next);
        let workload = self.flows[packet.flow as usize].workload as usize;
        self.metered[workload] += u64::from(frames);
        if !kept {
            self.completed.push(*packet); // the guest learns that its buffer is free
            self.lose_out(packet, OVER_RATE);
        }
        false
    }

    /// Mediates ECN in a packet that a tenant sends and that nothing holds any more: in the tenant's place, and in that of the
    /// tenant of this host that is to receive it.
    #[inline]
    pub(super) fn mediate_out(&mut self, packet: &mut Packet) {
        if self.pressed {
            self.mediate(packet);
        }
    }

    fn mediate(&mut self, packet: &mut Packet) {
        let flow = &self.flows[packet.flow as usize];
        let (&from, &to) = flow.leg(packet);
        let press = self.nodes[from.node as usize].press.as_ref();
        let mediates = |tenant: &u32| press.is_some_and(|press| press.mediates(*tenant, to.tenant));
        let Some(tenant) = from.tenant.filter(mediates) else { return };
        let (key, sender) = (self.key(packet), flow.way(packet.back).0.address);
        let Some(press) = &mut self.nodes[from.node as usize].press else { return };
        press.guests.outbound(tenant, key, packet, self.now);
        if let Some(receiver) = to.tenant.filter(|receiver| to.node == from.node && *receiver != tenant) {
            press.guests.inbound(receiver, key, packet, sender, self.now);
        }
    }

    /// Counts a packet that has come in for a tenant, and mediates its ECN; `false` if it is lost, beyond its flow's rate.
    #[inline]
    pub(super) fn pass_in(&mut self, packet: &mut Packet) -> bool {
        !self.pressed || self.count_in(packet)
    }

    fn count_in(&mut self, packet: &mut Packet) -> bool {
        let flow = &self.flows[packet.flow as usize];
        let (from, to) = flow.leg(packet);
        let node = to.node;
        let Some(tenant) =
            to.tenant.filter(|_| from.node != node && self.nodes[node as usize].press.is_some())
        else {
            return true;
        };
        let (sender, origin) = (from.tenant, self.source_of(from));
        let key = self.key(packet);
        let Some(press) = &mut self.nodes[node as usize].press else { return true };
        press.narrow([Place::Away(origin), press.place_of(tenant)], key, packet, self.now);
        let counted = press.counted(key, (tenant, sender), true, origin);
        let counted =
            counted.map(|counted| press.count(&counted, on_wire(packet), packet.codepoint(), self.now));
        let (mark, act) = counted.unwrap_or((false, Act::Pass));
        packet.ce |= mark;
        match act {
            Act::Pass => {
                if press.mediates(tenant, sender) {
                    let from = self.flows[packet.flow as usize].way(packet.back).0.address;
                    press.guests.inbound(tenant, key, packet, from, self.now);
                }
                true
            }
            Act::Wait | Act::Drop => {
                let workload = self.flows[packet.flow as usize].workload as usize;
                self.metered[workload] += u64::from(packet.frames());
                self.lose(packet, OVER_RATE);
                false
            }
        }
    }

    /// Looks at a host's load where it is time to, and lets packets go on that have waited.
    pub(super) fn press(&mut self, node: u32) {
        let Some(mut press) = self.nodes[node as usize].press.take() else { return };
        if press.is_due(self.now) {
            let used = self.used(node, &press);
            // Live the round trip is measured in passing; here it is the least that the flow's own TCP has measured.
            let round_trip = |key: &Key| {
                let flow = &self.flows[key.flow as usize];
                let socket = (flow.protocol == TCP).then(|| flow.socket + u32::from(key.back))?;
                self.connections[socket as usize].tcp.sender().least_rtt()
            };
            for (to, notice) in press.poll(used, round_trip, self.now) {
                let at = self.now + self.notice_time(node, to);
                self.notices.under_way.insert((at, self.notices.sent), (to, notice));
                self.notices.sent += 1;
            }
            let next = self.notices.under_way.first_key_value().map(|(&(at, _), _)| at);
            self.agenda.keep(self.notices.source, next);
        }
        self.nodes[node as usize].press = Some(press);
        self.release_paced(node);
    }

    fn release_paced(&mut self, node: u32) {
        let now = self.now;
        let bytes_of = |packet: &Packet| on_wire(packet).1;
        while let Some((held, mut packet)) =
            self.nodes[node as usize].press.as_mut().and_then(|press| press.release(bytes_of, now))
        {
            let passes = match held {
                Held::Asked(_) => self.pass_out(&mut packet, Gate::Reported),
                Held::Reported(..) => self.pass_out(&mut packet, Gate::Here),
                Held::Here(..) => true,
            };
            if passes {
                self.enter(&mut packet);
            }
        }
        let here = &self.nodes[node as usize];
        let next = here.press.as_ref().and_then(|press| press.next(bytes_of, now));
        self.agenda.keep(here.press_source, next);
    }

    /// The CPU time of what a host watches, so far.
    fn used(&self, node: u32, press: &Press) -> Span {
        let here = &self.nodes[node as usize];
        let receive = here.receive.as_deref();
        match press.watch() {
            Some(Watch::Tenant(_)) => {
                let tenant = press.plan.watched.unwrap_or_default();
                receive.map_or(Span::ZERO, |receive| receive.cpu_of_tenant(tenant))
            }
            Some(Watch::Engine) => {
                let sends = match &here.carrier {
                    Carrier::Nic { nic, .. } => nic.cpu().unwrap_or_default(),
                    Carrier::Plain | Carrier::Limiter { .. } => Span::ZERO,
                };
                sends.max(receive.map(Receive::spent).unwrap_or_default())
            }
            _ => Span::ZERO,
        }
    }

    /// How long a notice takes: as long as feedback does, or as the links between the hosts delay.
    fn notice_time(&self, from: u32, to: u32) -> Span {
        if let Some(control) = &self.control {
            return control.feedback_time();
        }
        let (mut at, mut time) = (from, Span::ZERO);
        // Each link leads nearer.
        while let Some(&link) = self.routes.ways(at, to).first() {
            let end = &self.links[link as usize];
            time += end.link.delay();
            at = end.to;
        }
        time
    }

    /// Delivers the notices that have arrived. A host without a daemon hears nothing.
    pub(super) fn hear_notices(&mut self) {
        while let Some(first) = self.notices.under_way.first_entry()
            && first.key().0 <= self.now
        {
            let (to, notice) = first.remove();
            let here = &mut self.nodes[to as usize];
            if let Some(press) = here.press.as_mut().filter(|_| !here.down) {
                press.hear(&notice, self.now);
            }
        }
        let next = self.notices.under_way.first_key_value().map(|(&(at, _), _)| at);
        self.agenda.keep(self.notices.source, next);
    }
}

/// The frames and bytes that leave for a packet: a segment that is cut is many frames.
fn on_wire(packet: &Packet) -> (u32, u32) {
    let (frames, (_, header)) = (packet.frames(), packet.cut_as());
    (frames, packet.len + (frames - 1) * u32::from(header))
}
