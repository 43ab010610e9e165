//! The packet that a frame is which a program has left.
//!
//! Why: a program writes bytes, and the simulator carries fields: what these cannot say is lost for a counted reason.
//! From: the daemon checks what a program sends as any frame of its tenant's.
//! Not here: what becomes of the packet (`world/programs`).
//! Invariant: hostile bytes give a packet of a flow of the batch, at its tenant's end, or a reason.

use plimsoll_wire::{Fragment, Ip, parse, protocol};

use super::{Hosted, To};
use crate::flow::{End, Flow};
use crate::frame::NOTHING;
use crate::packet::{Body, Packet, SHORTEST};

/// What the simulator has no packet for: another flow's addresses, a TCP segment or a fragment that is not as it was, a payload where it
/// goes elsewhere than its addresses say.
const NOT_MODELLED: &str = "program_not_modelled";
/// A frame that is longer than its link takes.
const TOO_LONG: &str = "program_too_long";
/// A frame that is sent in another's name.
const FOREIGN: &str = "foreign_source";

/// The bits of the ECN field.
const CE: u8 = 3;

impl Hosted {
    /// The packet that a frame is; `own` is the place in the batch of the packet that was in its buffer.
    pub(super) fn left(
        &self,
        frame: &[u8],
        own: Option<usize>,
        to: To,
        flows: &[Flow],
    ) -> Result<Packet, &'static str> {
        let packet = match own.filter(|&own| self.is_as_before(frame, own)) {
            Some(own) => self.batch[own].packet,
            None => self.read(frame, own, flows)?,
        };
        self.at_its_tenant(packet, to, &flows[packet.flow as usize])
    }

    /// Whether a frame has the bytes that its packet was given with.
    fn is_as_before(&self, frame: &[u8], own: usize) -> bool {
        let begun = &self.batch[own];
        let headers = &self.headers[begun.headers.0..begun.headers.1];
        frame.len() == begun.packet.len as usize
            && frame.strip_prefix(headers).is_some_and(|rest| NOTHING.get(..rest.len()) == Some(rest))
    }

    /// A datagram that a program has written or changed.
    pub(super) fn read(
        &self,
        frame: &[u8],
        own: Option<usize>,
        flows: &[Flow],
    ) -> Result<Packet, &'static str> {
        let parsed = parse(frame).map_err(|error| error.name())?;
        let ip = parsed.ip.as_ref().filter(|_| parsed.vlan == 0).ok_or(NOT_MODELLED)?;
        if ip.protocol != protocol::UDP || ip.fragment != Fragment::Whole {
            return Err(NOT_MODELLED);
        }
        let candidates = own.map_or(0..self.batch.len(), |own| own..own + 1);
        let found = candidates.map(|at| &self.batch[at].packet).find_map(|packet| {
            let (from, to) = flows[packet.flow as usize].way(packet.back);
            let turned = [false, true].into_iter().find(|&turned| match turned {
                false => is_between(ip, from, to),
                true => is_between(ip, to, from),
            })?;
            let Body::Datagram { number, offset: 0, last: true, .. } = packet.body else { return None };
            Some((packet, number, turned))
        });
        let (packet, number, turned) = found.ok_or(NOT_MODELLED)?;
        let (ce, ect) = (ip.ecn == CE, ip.ecn != 0);
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX).max(SHORTEST);
        if len > self.longest {
            return Err(TOO_LONG);
        }
        let size = u16::try_from(ip.end.saturating_sub(ip.payload.into())).unwrap_or(u16::MAX);
        let body = Body::Datagram { number, offset: 0, size, last: true };
        if turned {
            let back = Packet::new((packet.flow, !packet.back), ect, len, body);
            return Ok(Packet { ce, ..back });
        }
        Ok(Packet { ect, ce, len, body, ..*packet })
    }

    /// The packet on the leg that begins or ends at this tenant.
    fn at_its_tenant(&self, packet: Packet, to: To, flow: &Flow) -> Result<Packet, &'static str> {
        let here = |end: &End| (end.node, end.tenant) == (self.node, Some(self.tenant));
        let (from, at) = flow.leg(&packet);
        match to {
            To::Tenant if here(at) => Ok(packet),
            To::Network if here(from) => Ok(packet),
            // A tenant that forwards may send it on.
            To::Network if here(at) && flow.through.is_some() && !packet.passed => {
                Ok(Packet { passed: true, ..packet })
            }
            To::Network => Err(FOREIGN),
            To::Tenant | To::Nowhere(_) => Err(NOT_MODELLED),
        }
    }
}

fn is_between(ip: &Ip, from: &End, to: &End) -> bool {
    (ip.src, ip.dst) == (from.address.into(), to.address.into()) && ip.ports == Some((from.port, to.port))
}
