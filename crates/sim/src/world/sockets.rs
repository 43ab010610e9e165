//! TCP connections in a world: their segments leave as packets, and packets that arrive reach their end points.
//!
//! Why: workloads think in streams, links in packets.
//! From: `tcp`, which neither waits nor sends.
//! Not here: what streams carry (`traffic`).
//! Invariant: after each call that changes an end point, all that it wants to send has been sent, and the agenda has its
//! deadline or an earlier moment.

use plimsoll_units::{Bytes, Nanos};

use super::{Carrier, Socket, Source, World};
use crate::agenda::SourceId;
use crate::cores::Work;
use crate::packet::{Body, IP_HEADERS, Packet, SHORTEST};
use crate::tcp::{self, Connection, Flags};
use crate::traffic::Stack;

/// Bytes of TCP's header with timestamps, as Linux sends it.
pub(crate) const TCP_HEADER: u32 = 32;
/// Bytes of a SYN's header, with all its options.
pub(crate) const SYN_HEADER: u32 = 40;

/// What a workload's released connections counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retired {
    pub(crate) connections: u64,
    /// Packets sent again, by both ends.
    pub(crate) resent: u64,
    /// Connections whose client, and whose server, uses ECN, and packets of which it was told that they came marked.
    pub(crate) ecn: [u64; 2],
    pub(crate) echoed: [u64; 2],
}

impl Stack for World {
    fn now(&self) -> Nanos {
        self.now
    }

    fn set_timer(&mut self, timer: SourceId, at: Option<Nanos>) {
        self.agenda.keep(timer, at);
    }

    fn send_packet(&mut self, packet: Packet) {
        self.send(packet);
    }

    fn write(&mut self, socket: u32, bytes: u64) {
        let end = &mut self.connections[socket as usize];
        end.written += bytes;
        end.tcp.write(Bytes::new(bytes));
        self.pump(socket);
    }

    fn answer(&mut self, socket: u32, bytes: u64) {
        let end = &self.connections[socket as usize];
        match self.flows[end.flow as usize].way(socket & 1 == 1).0.core {
            Some(core) => {
                self.give(core, Work::Answer(socket, bytes));
            }
            None => self.write(socket, bytes),
        }
    }

    fn write_unlimited(&mut self, socket: u32) {
        self.connections[socket as usize].tcp.write_unlimited();
        self.pump(socket);
    }

    fn written(&self, socket: u32) -> u64 {
        self.connections[socket as usize].written
    }

    fn stop(&mut self, socket: u32) {
        self.connections[socket as usize].tcp.stop();
        self.pump(socket);
    }

    fn close(&mut self, socket: u32) {
        for end in [socket & !1, socket | 1] {
            let end = &mut self.connections[end as usize];
            end.closed = true;
            self.agenda.clear(end.source);
        }
    }

    fn acked(&self, socket: u32) -> u64 {
        self.connections[socket as usize].tcp.sender().acked().as_u64()
    }

    fn connect(&mut self, flow: u32, settings: [u16; 2]) -> u32 {
        let phase = u64::from(flow) << 32;
        let [client, server] = settings.map(|number| {
            let usual = &self.settings[usize::from(number)];
            tcp::Config { seed: usual.seed.wrapping_add(phase), ..usual.clone() }
        });
        let ends = [Connection::client(&client), Connection::server(&server)];
        let first = self.spare.pop().unwrap_or_else(|| self.add_sockets());
        for (end, tcp) in self.connections[first as usize..].iter_mut().zip(ends) {
            *end = Socket { source: end.source, flow, written: 0, closed: false, tcp };
        }
        let flow = &mut self.flows[flow as usize];
        flow.socket = first;
        // Where all ports between two ends are taken, flows share one: nothing here tells flows apart by it.
        flow.ends[0].port = self.ports.take(&flow.ends, flow.protocol).unwrap_or(flow.ends[0].port);
        first
    }

    fn release(&mut self, socket: u32) {
        self.close(socket);
        let flow = self.connections[socket as usize].flow as usize;
        let retired = &mut self.retired[self.flows[flow].workload as usize];
        retired.connections += 1;
        for (end, place) in self.connections[socket as usize..].iter_mut().zip([0, 1]) {
            let sender = end.tcp.sender();
            retired.resent += sender.stats().resent;
            retired.ecn[place] += u64::from(sender.ecn());
            retired.echoed[place] += sender.stats().echoed;
            end.tcp = Connection::client(&tcp::Config::default());
        }
        self.ports.give_back(&self.flows[flow]);
        for end in self.flows[flow].all_ends() {
            if let (Some(queue), Some(tenant), Carrier::Nic { nic, .. }) =
                (end.queue.take(), end.tenant, &mut self.nodes[end.node as usize].carrier)
            {
                nic.close(queue, tenant);
            }
        }
        self.spare.push(socket);
    }
}

impl World {
    /// Adds a closed connection's two sockets, and returns the first.
    fn add_sockets(&mut self) -> u32 {
        let first = self.connections.len() as u32;
        for number in [first, first + 1] {
            let source = self.sources.len() as SourceId;
            self.sources.push(Source::Socket(number));
            self.agenda.add();
            let tcp = Connection::client(&tcp::Config::default());
            self.connections.push(Socket { source, flow: 0, written: 0, closed: true, tcp });
        }
        first
    }

    /// Handles a packet of a flow that has arrived at an end point. One that comes after its connection was closed is ignored.
    pub(super) fn socket_packet(&mut self, flow: u32, socket: u32, packet: &tcp::Packet) {
        let end = &mut self.connections[socket as usize];
        if end.closed || end.flow != flow {
            return;
        }
        let (delivered, acknowledged) = (end.tcp.delivered(), end.tcp.sender().acked());
        end.tcp.handle_packet(packet, self.now);
        let (total, workload) = (end.tcp.delivered(), self.flows[end.flow as usize].workload);
        let more_acknowledged = end.tcp.sender().acked() > acknowledged;
        self.pump(socket);
        if total > delivered {
            self.with_app(workload, |app, world| app.received(world, socket, total.as_u64()));
        }
        if more_acknowledged {
            self.with_app(workload, |app, world| app.acknowledged(world, socket));
        }
    }

    /// Handles an end point's deadline, which may have moved later.
    pub(super) fn socket_timeout(&mut self, socket: u32) {
        let end = &mut self.connections[socket as usize];
        if !end.closed {
            end.tcp.handle_timeout(self.now);
            self.pump(socket);
        }
    }

    /// Returns a packet's credit to its socket: it has left its host's transmit path.
    pub(super) fn credit(&mut self, packet: &Packet) {
        if packet.passed || packet.settled {
            return; // it is a forwarding tenant's, which has no socket, or a program had it
        }
        let flow = &self.flows[packet.flow as usize];
        match &packet.body {
            Body::Tcp(tcp) => {
                let socket = flow.socket + u32::from(packet.back);
                let end = &mut self.connections[socket as usize];
                if end.flow == packet.flow {
                    end.tcp.handle_sent(Bytes::new(tcp.len().into()));
                    self.pump(socket);
                }
            }
            Body::Datagram { .. } => {
                let (workload, len) = (flow.workload, packet.len);
                self.with_app(workload, |app, world| app.left(world, len));
            }
        }
    }

    /// Sends all that the end point wants to send, and notes its deadline.
    fn pump(&mut self, socket: u32) {
        loop {
            let end = &mut self.connections[socket as usize];
            if end.closed {
                return;
            }
            let Some(packet) = end.tcp.poll_transmit(self.now) else { break };
            let (flow, back) = (end.flow, socket & 1 == 1);
            if packet.segment.is_some_and(|segment| segment.flags.contains(Flags::RETRANSMISSION)) {
                let workload = self.flows[flow as usize].workload as usize;
                self.meters[workload].resend(packet.packet_count(), self.now);
            }
            self.send(packet_of(packet, flow, back));
        }
        let end = &self.connections[socket as usize];
        let Some(deadline) = end.tcp.poll_timeout() else { return self.agenda.clear(end.source) };
        // Deadlines mostly move later; the end point is asked again when the earlier one has come.
        if self.agenda.moment(end.source).is_none_or(|moment| deadline < moment) {
            self.agenda.set(end.source, deadline.max(self.now));
        }
    }
}

fn packet_of(tcp: tcp::Packet, flow: u32, back: bool) -> Packet {
    let blocks = tcp.ack.map_or(0, |ack| ack.blocks().count() as u32);
    // A segment that is cut leaves room for the shortest header only.
    let options = if blocks > 0 && tcp.packet_count() == 1 { 4 + 8 * blocks } else { 0 };
    let syn = tcp.segment.is_some_and(|segment| segment.flags.contains(Flags::SYN));
    let syn = syn || tcp.ack.is_some_and(|ack| ack.syn());
    let header = if syn { SYN_HEADER } else { TCP_HEADER };
    let len = (IP_HEADERS + header + options + tcp.len()).max(SHORTEST);
    let ect = tcp.segment.is_some_and(|segment| segment.ecn.marked().is_some());
    Packet::new((flow, back), ect, len, Body::Tcp(tcp))
}
