//! Tenants' programs in a world: packets come to them, and go where they say.
//!
//! Why: a program decides about packets, and the world has the places to which they go.
//! From: the daemon's `dataplane/hosted/run`.
//! Not here: the program (`hosted`), whose turn it is (`receive`).
//! Invariant: each packet of a turn is delivered, sent, or counted with a reason; what a program has added counts as sent.

use plimsoll_offload::Way;

use super::{Node, World};
use crate::flow::End;
use crate::hosted::{Ended, To};
use crate::packet::Packet;
use crate::receive::{Beside, QUEUE_FULL};

/// The loss reason where what a program sends finds no descriptor.
const NO_ROOM: &str = "program_no_room";
/// That where as many packets wait for a program as its tenant's device holds.
const GUEST_QUEUE_FULL: &str = "guest_queue_full";
/// That of a tenant that has had its maximum.
const OVER_MAX: &str = "ingress_over_max";

impl World {
    /// Puts a packet that its tenant sends where its program finds it; `false` if no program looks at it.
    #[inline]
    pub(super) fn offer_to_program(&mut self, packet: &Packet) -> bool {
        self.programmed && self.find_program(packet)
    }

    fn find_program(&mut self, packet: &Packet) -> bool {
        let &End { node, tenant, .. } = self.flows[packet.flow as usize].leg(packet).0;
        let receive = self.nodes[node as usize].receive.as_mut();
        let hosted = receive.zip(tenant).and_then(|(receive, tenant)| receive.program(tenant));
        let Some(hosted) = hosted.filter(|hosted| hosted.takes(Way::Egress)) else { return false };
        if hosted.offer(*packet) {
            self.wake_programs(node);
        } else {
            self.completed.push(*packet); // the guest learns that its buffer is free
            self.lose_out(packet, GUEST_QUEUE_FULL);
        }
        true
    }

    /// Delivers a packet from another tenant of the same host, past its receiver's program.
    pub(super) fn arrive_inside(&mut self, packet: Packet) {
        let &End { node, tenant, .. } = self.flows[packet.flow as usize].leg(&packet).1;
        let Node { carrier, receive, .. } = &mut self.nodes[node as usize];
        let (Some(receive), Some(tenant)) = (receive, tenant) else { return self.deliver_at_once(&packet) };
        if !receive.program(tenant).is_some_and(|hosted| hosted.takes(Way::Ingress)) {
            return self.deliver_at_once(&packet);
        }
        let room = |tenant| carrier.room(tenant);
        let beside = Beside { flows: &self.flows, room: &room };
        match receive.offer_inside(packet, tenant, self.now, &beside) {
            Ok(()) => self.agenda.keep(receive.source, receive.next()),
            Err(why) => self.lose_in(node, &packet, why),
        }
    }

    /// Lets the programs of a host run whose packets may leave now.
    pub(super) fn wake_programs(&mut self, node: u32) {
        if !self.programmed {
            return;
        }
        let Node { carrier, receive, .. } = &mut self.nodes[node as usize];
        let room = |tenant| carrier.room(tenant);
        let Some(receive) = receive else { return };
        if receive.programs().any(|hosted| hosted.has_work(room(hosted.tenant()), self.now)) {
            receive.wake(self.now, &Beside { flows: &self.flows, room: &room });
            self.agenda.keep(receive.source, receive.next());
        }
    }

    /// Does what a program has decided in the turn that has ended, if one has.
    pub(super) fn end_turn(&mut self, node: u32) {
        let receive = self.nodes[node as usize].receive.as_mut();
        let Some(turn) = receive.and_then(|receive| receive.take_turn(self.now)) else { return };
        self.completed.extend(turn.freed);
        for come in turn.ended.iter().filter(|ended| ended.waits.is_some()) {
            let workload = self.flows[come.packet.flow as usize].workload as usize;
            let called = turn.called.into_iter();
            called.for_each(|called| self.meters[workload].call(called, come.packet.back, self.now));
        }
        for ended in turn.ended {
            self.carry_out(node, turn.tenant, &ended);
        }
        let Node { carrier, receive, .. } = &mut self.nodes[node as usize];
        let room = |tenant| carrier.room(tenant);
        let Some(receive) = receive else { return };
        receive.begin_next(self.now, &Beside { flows: &self.flows, room: &room });
        self.agenda.keep(receive.source, receive.next());
    }

    fn carry_out(&mut self, node: u32, tenant: u32, ended: &Ended) {
        let &Ended { packet, to, added, waits } = ended;
        if added {
            let workload = self.flows[packet.flow as usize].workload as usize;
            self.tallies[workload].sent += 1;
        }
        match (to, waits) {
            (To::Tenant, Some(waits)) => self.processed(node, packet, waits),
            (To::Tenant, None) => self.deliver_at_once(&packet),
            (To::Network, _) => self.send_of_program(node, tenant, packet),
            (To::Nowhere(why @ (QUEUE_FULL | OVER_MAX)), _) => self.lose_in(node, &packet, why),
            (To::Nowhere(why), _) => self.lose_at_program(node, tenant, &packet, why),
        }
    }

    /// Sends a packet as a tenant's, past its program.
    fn send_of_program(&mut self, node: u32, tenant: u32, packet: Packet) {
        if self.nodes[node as usize].carrier.room(tenant) == 0 {
            return self.lose_at_program(node, tenant, &packet, NO_ROOM);
        }
        let carried = self.encapsulated;
        self.leave(Packet { settled: true, carried, marked: false, ..packet });
    }

    /// Counts a packet that is lost at a tenant's program.
    fn lose_at_program(&mut self, node: u32, tenant: u32, packet: &Packet, why: &'static str) {
        if let Some(watch) = self.watch(node) {
            watch.lost(Some(tenant), packet.frames(), why);
        }
        self.lose(packet, why);
    }
}
