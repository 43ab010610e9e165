//! TCP connections in a world: what they write leaves as packets, what arrives moves them on.
//!
//! Why: workloads think in streams, links in packets.
//! From: `tcp`, which neither waits nor sends.
//! Not here: what streams carry (`traffic`).
//! Invariant: after each call that changes an end point, what it wants to send has been sent and its deadline is on the
//! agenda, or earlier than that one.

use plimsoll_units::Bytes;

use crate::cores::Work;
use crate::packet::{Body, IP_HEADERS, Packet, SHORTEST};
use crate::tcp::{self, Flags};
use crate::world::World;

/// TCP's header with timestamps, as Linux sends it.
const TCP_HEADER: u32 = 32;
/// The same of a SYN, with what else it negotiates.
const SYN_HEADER: u32 = 40;

impl World {
    /// Appends to the stream that this end point sends.
    pub(crate) fn write(&mut self, socket: u32, bytes: u64) {
        let end = &mut self.connections[socket as usize];
        end.written += bytes;
        end.tcp.write(Bytes::new(bytes));
        self.pump(socket);
    }

    /// The same for an answer, which takes its tenant's core time where that is known.
    pub(crate) fn answer(&mut self, socket: u32, bytes: u64) {
        let end = &self.connections[socket as usize];
        match self.flows[end.flow as usize].way(socket & 1 == 1).0.core {
            Some(core) => {
                self.give(core, Work::Answer(socket, bytes));
            }
            None => self.write(socket, bytes),
        }
    }

    /// This end point always has more to send.
    pub(crate) fn write_unlimited(&mut self, socket: u32) {
        self.connections[socket as usize].tcp.write_unlimited();
        self.pump(socket);
    }

    /// Bytes written so far.
    pub(crate) fn written(&self, socket: u32) -> u64 {
        self.connections[socket as usize].written
    }

    /// Fills a socket's buffer: as much as is not acknowledged is `most` bytes then.
    pub(crate) fn fill(&mut self, socket: u32, most: u64) {
        let end = &self.connections[socket as usize];
        let room = (end.tcp.sender().acked().as_u64() + most).saturating_sub(end.written);
        if room > 0 {
            self.write(socket, room);
        }
    }

    /// The connection is gone, without a word to the other side.
    pub(crate) fn close(&mut self, socket: u32) {
        for end in [socket & !1, socket | 1] {
            let end = &mut self.connections[end as usize];
            end.closed = true;
            self.agenda.clear(end.source);
        }
    }

    /// A packet has arrived at an end point.
    pub(crate) fn socket_packet(&mut self, socket: u32, packet: &tcp::Packet) {
        let end = &mut self.connections[socket as usize];
        if end.closed {
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

    /// An end point's deadline may have come.
    pub(crate) fn socket_timeout(&mut self, socket: u32) {
        let end = &mut self.connections[socket as usize];
        if !end.closed {
            end.tcp.handle_timeout(self.now);
            self.pump(socket);
        }
    }

    /// A packet has left its host's transmit path: its socket may put as much there again.
    pub(crate) fn credit(&mut self, packet: &Packet) {
        let flow = &self.flows[packet.flow as usize];
        match &packet.body {
            Body::Tcp(tcp) => {
                let socket = flow.socket + u32::from(packet.back);
                self.connections[socket as usize].tcp.handle_sent(Bytes::new(tcp.len().into()));
                self.pump(socket);
            }
            Body::Datagram { .. } => {
                let (workload, len) = (flow.workload, packet.len);
                self.with_app(workload, |app, world| app.left(world, len));
            }
        }
    }

    /// Sends what the end point wants to send, and notes its deadline.
    fn pump(&mut self, socket: u32) {
        loop {
            let end = &mut self.connections[socket as usize];
            if end.closed {
                return;
            }
            let Some(packet) = end.tcp.poll_transmit(self.now) else { break };
            let (flow, back) = (end.flow, socket & 1 == 1);
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
    Packet { flow, back, ect, ce: false, carried: false, marked: false, apart: 0, len, body: Body::Tcp(tcp) }
}
