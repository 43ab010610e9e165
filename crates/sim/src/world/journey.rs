//! A packet's way: from an application over its core, a carrier, links and the way in, to the other end.
//!
//! Why: one place sees every packet, so that none is lost without being counted.
//! From: discrete-event simulation.
//! Not here: when each step is taken (`world`), and the decisions of an engine, a limiter or a link.
//! Invariant: each packet is at one place, delivered, or counted with a drop reason.

use plimsoll_nic::{Verdict, WAITED_TOO_LONG};
use plimsoll_units::{Nanos, Span};

use super::pressing::Gate;
use super::{Carrier, LinkEnd, Node, Way, World};
use crate::agenda::Agenda;
use crate::cores::Work;
use crate::fault::DOWN;
use crate::flow::End;
use crate::host_nic::Refused;
use crate::hosted::Waits;
use crate::link::Offered;
use crate::packet::{Body, Packet};
use crate::packet_pool::{PacketPool, Slot};
use crate::receive::{Beside, Fate, QUEUE_FULL};
use crate::tcp::Ecn;
use crate::trace;
use crate::traffic::Stack;

impl World {
    /// Counts a tenant's packet that is lost on its way out.
    pub(super) fn lose_out(&mut self, packet: &Packet, why: &'static str) {
        let &End { node, tenant, .. } = self.flows[packet.flow as usize].leg(packet).0;
        if let Some(watch) = self.watch(node) {
            watch.lost(tenant, packet.frames(), why);
        }
        self.lose(packet, why);
    }

    /// Sends a packet from an end of a flow.
    pub(super) fn send(&mut self, packet: Packet) {
        let flow = &self.flows[packet.flow as usize];
        let (core, workload) = (flow.way(packet.back).0.core, flow.workload as usize);
        self.tallies[workload].sent += u64::from(packet.frames());
        match core {
            None => self.transmit(packet),
            Some(core) if self.give(core, Work::Send(packet)) => {}
            Some(_) => self.lose(&packet, "core_busy"),
        }
    }

    /// Gives a core work; `false` if the core refuses it.
    pub(super) fn give(&mut self, core: u32, work: Work) -> bool {
        let core = &mut self.cores[core as usize];
        let taken = core.take(work, self.now);
        self.agenda.keep(core.source, core.next());
        taken
    }

    pub(super) fn core_done(&mut self, core: u32) {
        while let Some(work) = self.cores[core as usize].done(self.now) {
            match work {
                Work::Send(packet) => self.transmit(packet),
                Work::Answer(socket, bytes) => self.write(socket, bytes),
            }
        }
        let core = &self.cores[core as usize];
        self.agenda.keep(core.source, core.next());
    }

    /// Takes a packet from its sender, and hands it on unless it has to wait for its tenant's program, or for its flow's rate.
    fn transmit(&mut self, mut packet: Packet) {
        let flow = &self.flows[packet.flow as usize];
        let (from, _) = flow.leg(&packet);
        let node = from.node;
        packet.carried = self.encapsulated && from.tenant.is_some();
        let from = *from;
        if let Some(watch) = &mut self.nodes[node as usize].watch {
            watch.offered(from.tenant, packet.len);
        }
        if self.nodes[node as usize].down {
            self.completed.push(packet); // no daemon holds the guest's buffer any more
            return self.lose_out(&packet, DOWN);
        }
        if !self.offer_to_program(&packet) && self.pass_out(&mut packet, Gate::Asked) {
            self.enter(&mut packet);
        }
    }

    /// Hands a packet on unless it has to wait for its flow's rate.
    pub(super) fn leave(&mut self, mut packet: Packet) {
        if self.pass_out(&mut packet, Gate::Asked) {
            self.enter(&mut packet);
        }
    }

    /// Mediates a packet's ECN, and hands it to its host's carrier.
    pub(super) fn enter(&mut self, packet: &mut Packet) {
        self.mediate_out(packet);
        let flow = &self.flows[packet.flow as usize];
        let (from, to) = flow.leg(packet);
        let (node, from) = (from.node, *from);
        let carrier = &mut self.nodes[node as usize].carrier;
        if let (Carrier::Limiter { limiter, .. }, Some(tenant)) = (&mut *carrier, from.tenant) {
            if limiter.offer(tenant, *packet, self.now) {
                return self.offered.push(node);
            }
            return self.lose(packet, "queue full");
        }
        let Carrier::Nic { nic, .. } = carrier else {
            return if to.node == node { self.local.push_back(*packet) } else { self.begin(node, packet) };
        };
        let Some(tenant) = from.tenant else { return self.begin(node, packet) };
        let queue = match from.queue {
            Some(queue) => queue,
            None => match nic.open(flow.fields(packet.back), tenant, to.elsewhere(node)) {
                Some(queue) => {
                    self.flows[packet.flow as usize].sender_mut(packet).queue = Some(queue);
                    queue
                }
                None => return self.lose_out(packet, "no_queue"),
            },
        };
        let late = nic.completes_late();
        let why = match nic.offer(tenant, queue, packet, self.now) {
            Ok(()) => {
                if self.offered.last() != Some(&node) {
                    self.offered.push(node);
                }
                return;
            }
            Err(Refused::Engine(why)) => why,
            Err(Refused::GuestQueue) => "guest_queue_full",
        };
        if late {
            self.completed.push(*packet); // the guest learns that its buffer is free
        }
        self.lose_out(packet, why);
    }

    /// Sends the packets that a limiter allows now.
    fn drive_limiter(&mut self, node: u32) {
        let now = self.now;
        let free = |links: &[LinkEnd], link: u32| links[link as usize].link.last_departure();
        while let Carrier::Limiter { limiter, first, uplink, .. } = &mut self.nodes[node as usize].carrier
            // A bus that is busy holds the packets back; a link has a queue of its own.
            && (first == uplink || self.links[*first as usize].link.free() <= now)
            && let Some(packet) = limiter.dequeue(now, free(&self.links, *first))
        {
            let here = self.flows[packet.flow as usize].leg(&packet).1.node == node;
            let first = *first;
            if here {
                self.local.push_back(packet);
            } else {
                let slot = self.packets.add(&packet);
                self.put(first, slot);
            }
        }
        if let Carrier::Limiter { limiter, source, first, uplink } = &self.nodes[node as usize].carrier {
            let link = &self.links[*first as usize].link;
            let free = if first == uplink { link.last_departure() } else { link.free() };
            let next = limiter.next(now).map(|next| if next <= now { free.max(next) } else { next });
            self.agenda.keep(*source, next);
        }
    }

    /// Drives a carrier: rings its doorbells, and sends the packets that may leave now.
    pub(super) fn drive(&mut self, node: u32) {
        if matches!(self.nodes[node as usize].carrier, Carrier::Limiter { .. }) {
            return self.drive_limiter(node);
        }
        let here = &mut self.nodes[node as usize];
        let watch = &mut here.watch;
        let Carrier::Nic { nic, source, first, reads, traced } = &mut here.carrier else { return };
        let (links, flows, local, tallies) =
            (&mut self.links, &self.flows, &mut self.local, &mut self.tallies);
        let (now, agenda, completed) = (self.now, &mut self.agenda, &mut self.completed);
        let (tracer, meters, packets) = (&mut self.tracer, &mut self.meters, &mut self.packets);
        // A bus that is busy holds packets back, so that they wait where the policy chooses; a link has a queue of its own.
        let free = |links: &[LinkEnd]| match reads {
            true => links[*first as usize].link.free(),
            false => Nanos::ZERO,
        };
        nic.rouse(now);
        while !nic.is_busy(now) && free(links) <= now {
            nic.ring(now);
            let some = nic.poll(now, |packet: &Packet, transmit, waited, engine| {
                let flow = &flows[packet.flow as usize];
                if transmit.verdict == Verdict::Drop {
                    let lost = tallies[flow.workload as usize].drops.entry(WAITED_TOO_LONG).or_default();
                    *lost += u64::from(transmit.frames);
                    if let Some(watch) = watch {
                        watch.lost(flow.leg(packet).0.tenant, transmit.frames, WAITED_TOO_LONG);
                    }
                    return now;
                }
                if transmit.last && !packet.passed {
                    meters[flow.workload as usize].leave(waited, packet.back, now);
                }
                if let (Some(interface), Some(tracer)) = (*traced, tracer.as_mut()) {
                    let comment = trace::decision(transmit, engine, now);
                    tracer.record(interface, flow, packet, now, Some(&comment));
                }
                let (from, to) = flow.leg(packet);
                if let Some(watch) = watch {
                    watch.left(from.tenant, packet.len, transmit.last.then_some((transmit.limited, waited)));
                }
                if to.node == node {
                    local.push_back(*packet);
                    return now;
                }
                let end = &mut links[*first as usize];
                let slot = packets.add(packet);
                let lost = end.offer(packets, slot, now, agenda);
                if let Some(why) = lost {
                    packets.take(slot);
                    *tallies[flow.workload as usize].drops.entry(why).or_default() += 1;
                }
                if let Some(watch) = watch {
                    watch.crossed(from.tenant, packet.len, lost.is_some());
                }
                end.link.last_departure()
            });
            let late = nic.completes_late();
            nic.free_completed(now, |packet, why| {
                let flow = &flows[packet.flow as usize];
                let lost = tallies[flow.workload as usize].drops.entry(why.name()).or_default();
                *lost += u64::from(packet.frames());
                if let Some(watch) = watch {
                    watch.lost(flow.leg(&packet).0.tenant, packet.frames(), why.name());
                }
                completed.extend(late.then_some(packet));
            });
            if late {
                nic.move_completed(completed);
            }
            if !some {
                break;
            }
        }
        nic.rest(now);
        agenda.keep(*source, nic.next().map(|next| next.max(free(links))));
        self.wake_programs(node);
    }

    /// Puts a packet that links have not carried yet on the link towards its destination.
    fn begin(&mut self, node: u32, packet: &Packet) {
        let slot = self.packets.add(packet);
        self.forward(node, slot);
    }

    /// Puts a packet on the link towards its destination.
    #[inline]
    fn forward(&mut self, node: u32, slot: Slot) {
        let packet = &self.packets[slot];
        let flow = &self.flows[packet.flow as usize];
        let to = flow.leg(packet).1.node;
        let link = match self.routes.ways(node, to) {
            &[link] => link,
            [] => panic!("every flow has a route, checked when the world is built"),
            ways => self.balance.choose(node, flow, packet, self.claims[flow.workload as usize], ways),
        };
        self.put(link, slot);
    }

    /// Puts a packet on a link.
    #[inline]
    fn put(&mut self, link: u32, slot: Slot) {
        let end = &mut self.links[link as usize];
        if let Some(why) = end.offer(&mut self.packets, slot, self.now, &mut self.agenda) {
            let packet = &self.packets.take(slot);
            let &End { node, tenant, .. } = self.flows[packet.flow as usize].leg(packet).0;
            if let Some(watch) = self.watch(node) {
                watch.strayed(tenant);
            }
            self.lose(packet, why);
        }
    }

    /// Handles the next packet that arrives at a link's far end.
    #[inline]
    pub(super) fn arrive(&mut self, link: u32) {
        let end = &mut self.links[link as usize];
        let (node, kind, source) = (end.to, end.kind, end.source);
        let Some(slot) = end.link.arrive() else { return self.agenda.clear(source) };
        self.agenda.renew(source, end.link.next_arrival());
        self.hops += 1;
        let packet = &self.packets[slot];
        let flow = &self.flows[packet.flow as usize];
        if let (Some(interface), Some(tracer)) = (self.links[link as usize].traced, &mut self.tracer) {
            tracer.record(interface, flow, packet, self.now, None);
        }
        let (from, to) = flow.leg(packet);
        if kind == Way::Uplink && from.tenant.is_some() {
            if !packet.passed {
                self.meters[flow.workload as usize].cross(packet.len, packet.back, self.now);
            }
            if let Some(control) = &mut self.control {
                control.note_sent(from.node, to.node, self.now);
            }
        }
        if to.node != node {
            return self.forward(node, slot);
        }
        let to = *to;
        let mut packet = self.packets.take(slot);
        if let Some(watch) = &mut self.nodes[node as usize].watch {
            watch.came(to.tenant, packet.len);
        }
        if self.nodes[node as usize].down {
            if let Some(watch) = self.watch(node) {
                watch.nic_full(to.tenant);
            }
            return self.lose(&packet, DOWN);
        }
        if self.nodes[node as usize].receive.is_none() {
            if self.pass_in(&mut packet) {
                self.deliver_at_once(&packet);
            }
            return;
        }
        let Node { carrier, receive, .. } = &mut self.nodes[node as usize];
        let room = |tenant| carrier.room(tenant);
        let Some(receive) = receive else { return };
        let beside = Beside { flows: &self.flows, room: &room };
        if receive.offer(packet, to.tenant.unwrap_or(self.tenants), self.now, &beside) {
            self.agenda.keep(receive.source, receive.next());
        } else {
            if let Some(watch) = self.watch(node) {
                watch.nic_full(to.tenant);
            }
            self.nodes[node as usize].drop_seconds.dropped(1, self.now);
            self.lose(&packet, "rx_ring_full");
        }
    }

    /// Handles a piece of work that the CPU behind a receive ring has finished.
    pub(super) fn received(&mut self, node: u32) {
        let (control, now) = (&mut self.control, self.now);
        let admits = &mut |packet: &Packet| {
            let flow = &self.flows[packet.flow as usize];
            let (from, to) = flow.leg(packet);
            let (Some(control), Some(to)) = (control.as_mut(), to.vm()) else { return true };
            let known = packet.back || packet.passed || !self.spoofed[flow.workload as usize];
            let from = from.vm().filter(|_| known);
            control.admits(to, from, packet, now)
        };
        let Node { carrier, receive, .. } = &mut self.nodes[node as usize];
        let room = |tenant| carrier.room(tenant);
        let Some(receive) = receive else { return };
        let done = receive.finish(now, admits, &Beside { flows: &self.flows, room: &room });
        self.agenda.keep(receive.source, receive.next());
        match done {
            Some((packet, Fate::Delivered { waited, in_nic, called })) => {
                let workload = self.flows[packet.flow as usize].workload as usize;
                if let Some(called) = called {
                    self.meters[workload].call(called, packet.back, self.now);
                }
                self.processed(node, packet, Waits { waited, in_nic });
            }
            Some((packet, Fate::Answered(took))) => {
                let workload = self.flows[packet.flow as usize].workload as usize;
                self.meters[workload].call(took, packet.back, self.now);
            }
            Some((packet, Fate::Dropped(why))) => self.lose_in(node, &packet, why),
            None => self.end_turn(node),
        }
    }

    /// Delivers a packet that the CPU behind a receive ring has processed, after these waits.
    pub(super) fn processed(&mut self, node: u32, mut packet: Packet, waits: Waits) {
        let Waits { waited, in_nic } = waits;
        let flow = &self.flows[packet.flow as usize];
        let tenant = flow.leg(&packet).1.tenant;
        self.meters[flow.workload as usize].wait(waited, in_nic, packet.back, self.now);
        let stalled = self.is_stalled(&packet);
        if let Some(watch) = self.watch(node) {
            let with_us = Span::ns(waited.as_u64() - in_nic.as_u64());
            match stalled {
                true => watch.unread(tenant),
                false => watch.delivered(tenant, packet.len, Some(in_nic), with_us),
            }
        }
        if stalled {
            return self.lose(&packet, "guest_full");
        }
        if self.pass_in(&mut packet) {
            self.deliver(&packet);
        }
    }

    /// Counts a tenant's packet that its queue on the way in does not take.
    pub(super) fn lose_in(&mut self, node: u32, packet: &Packet, why: &'static str) {
        let tenant = self.flows[packet.flow as usize].leg(packet).1.tenant;
        if let Some(watch) = self.watch(node) {
            match why {
                QUEUE_FULL => watch.queue_full(tenant),
                _ => watch.over_max(tenant),
            }
        }
        self.lose(packet, why);
    }

    /// Delivers a packet that has no queue on its way in.
    pub(super) fn deliver_at_once(&mut self, packet: &Packet) {
        let &End { node, tenant, .. } = self.flows[packet.flow as usize].leg(packet).1;
        if let Some(watch) = self.watch(node) {
            watch.took(tenant, packet.len);
        }
        self.deliver(packet);
    }

    /// Delivers a packet at the end of its flow, or has it forwarded.
    fn deliver(&mut self, packet: &Packet) {
        let flow = &self.flows[packet.flow as usize];
        if flow.through.is_some() && !packet.passed {
            return self.transmit(Packet { passed: true, ..*packet });
        }
        let (workload, socket) = (flow.workload, flow.socket);
        self.tallies[workload as usize].delivered += 1;
        if packet.ce {
            self.marked[workload as usize] += 1;
        }
        if packet.is_changed() {
            self.changed[workload as usize] += 1;
        }
        self.meters[workload as usize].deliver(packet.len, packet.back, self.now);
        match packet.body {
            Body::Datagram { number, last, .. } => {
                if last {
                    self.with_app(workload, |app, world| {
                        app.datagram(world, packet.flow, packet.back, number)
                    });
                }
            }
            Body::Tcp(mut tcp) => {
                if packet.ce
                    && let Some(segment) = &mut tcp.segment
                {
                    segment.ecn = Ecn::Ce;
                }
                self.socket_packet(packet.flow, socket + u32::from(!packet.back), &tcp);
            }
        }
    }

    /// Counts a lost packet, with all its frames.
    pub(super) fn lose(&mut self, packet: &Packet, why: &'static str) {
        self.lose_frames(packet, packet.frames(), why);
    }

    /// Counts a number of lost frames of a packet.
    pub(super) fn lose_frames(&mut self, packet: &Packet, frames: u32, why: &'static str) {
        let workload = self.flows[packet.flow as usize].workload as usize;
        *self.tallies[workload].drops.entry(why).or_default() += u64::from(frames);
    }
}

impl LinkEnd {
    /// Puts a packet on the link; returns the drop reason if it is lost.
    #[inline]
    fn offer(
        &mut self,
        packets: &mut PacketPool,
        slot: Slot,
        now: Nanos,
        agenda: &mut Agenda,
    ) -> Option<&'static str> {
        match self.link.offer(&mut packets[slot], slot, now) {
            Offered::Taken { first: true } => agenda.keep(self.source, self.link.next_arrival()),
            Offered::Taken { first: false } => {}
            Offered::Full => return Some(self.full),
            Offered::Early => return Some(EARLY),
            Offered::Lost => return Some(LOST),
        }
        None
    }
}

/// The drop reason of a queue that is kept short by active queue management.
const EARLY: &str = "dropped early";
/// The drop reason on a link that loses packets.
const LOST: &str = "lost on a link";
