//! The way out to other hosts: each finished frame in the overlay's headers, with feedback where it has room.
//!
//! Why: the underlay carries packets between hosts only, and no tenant's frame by itself.
//! From: `wire::overlay`: segments are cut first, so that each has outer lengths and checksums of its own.
//! Not here: which host (`map`), which feedback (`steer`), segments that leave in one datagram (`together`).
//! Invariant: a frame for many hosts that has begun to leave ends before another frame leaves, and each host gets one copy,
//! also if a reload changes their order; feedback is not lost with a frame, as a message that did not leave goes with the
//! next.

use plimsoll_control::Session;
use plimsoll_ports::{Frame, Port, Sending, Trouble};
use plimsoll_units::Nanos;
use plimsoll_wire::overlay::{Inner, MOST_IN_OPTION, Path, SEALED_HEAD, SEALED_TAG, Vni};
use plimsoll_wire::{Offload, SegmentError};

use super::super::depart::{Handed, Route};
use super::super::drops::Loss;
use super::super::emit::{Emitted, Part, cut, write};
use super::super::mac_table::is_group;
use super::super::{Dataplane, Held};
use super::addresses;
use super::sealed::Way;
use super::together::Together;

/// How much of a frame for all hosts has left to one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Copied {
    #[default]
    Not,
    Begun,
    Whole,
}

/// The headers and feedback that go with each of a frame's segments.
pub(super) struct Wrapping<'a> {
    pub(super) path: Path,
    pub(super) inner: Inner<'a>,
    /// The other host's session, where the frame is sealed.
    pub(super) session: Option<&'a mut Session>,
    /// Whether the feedback has left.
    told: bool,
}

impl Dataplane {
    /// Sends to the host that has the address, or to all hosts with tenants of the network. `whole` is the pull before any of it has left.
    pub(in super::super) fn send_out(
        &mut self,
        frame: &[u8],
        held: &Held,
        part: &mut Part,
        whole: Part,
        way: Route,
        now: Nanos,
    ) -> Handed {
        if !is_group(held.to) {
            let host = self.fleet.as_ref().and_then(|fleet| fleet.map.host_of(way.network, held.to));
            let Some(host) = host else { return Handed::Lost(Loss::NoPeer) };
            return self.send_to(host, frame, held, part, way, now);
        }
        // Other hosts accept frames from addresses that the map has at this host; a frame that has begun to leave goes on.
        if self.uplink.flooded == 0 && !self.is_known_source(way.network, frame) {
            return Handed::Curtailed(Loss::ForeignSource);
        }
        let first = self.begin_copies();
        if first.is_none() {
            // The host that had a part of it has left the map.
            *part = whole;
        }
        let hosts = self.fleet.as_ref().map_or(0, |fleet| fleet.links.len());
        let mut handed = Handed::Done;
        for host in first.into_iter().chain(0..hosts) {
            if !self.has_network(host, way.network) || self.copied(host, Copied::Begun) {
                continue;
            }
            match self.send_to(host, frame, held, part, way, now) {
                Handed::Wait => return Handed::Wait,
                Handed::Lost(why) => handed = Handed::Curtailed(why),
                _ => {}
            }
            self.copied(host, Copied::Whole);
            *part = whole;
        }
        self.uplink.flooded = 0;
        handed
    }

    /// Whether a tenant of this network is at this host.
    fn has_network(&self, host: usize, network: Vni) -> bool {
        let host = self.fleet.as_ref().and_then(|fleet| fleet.map.hosts.get(host));
        host.is_some_and(|host| host.networks.contains(&network))
    }

    fn is_known_source(&self, network: Vni, frame: &[u8]) -> bool {
        let (Some(fleet), Some((_, source))) = (&self.fleet, addresses(frame)) else { return false };
        fleet.map.home_of(network, source) == Some(fleet.map.members.own())
    }

    /// Begins a frame for all hosts, or continues one; answers the host that has a part of it.
    fn begin_copies(&mut self) -> Option<usize> {
        let links = self.fleet.as_mut().map_or(&mut [][..], |fleet| &mut fleet.links);
        if self.uplink.flooded == 0 {
            self.uplink.flooded = 1;
            links.iter_mut().for_each(|link| link.copy = Copied::Not);
        }
        links.iter().position(|link| link.copy == Copied::Begun)
    }

    /// Notes a host's progress; answers whether it has the whole frame already.
    fn copied(&mut self, host: usize, copied: Copied) -> bool {
        let Some(link) = self.fleet.as_mut().and_then(|fleet| fleet.links.get_mut(host)) else { return true };
        let all = link.copy == Copied::Whole;
        link.copy = if all { Copied::Whole } else { copied };
        all
    }

    fn send_to(
        &mut self,
        host: usize,
        frame: &[u8],
        held: &Held,
        part: &mut Part,
        way: Route,
        now: Nanos,
    ) -> Handed {
        let (Some(port), Some(fleet)) = (&mut self.uplink.port, &mut self.fleet) else { return Handed::Wait };
        let Some(path) = fleet.path(host) else { return Handed::Lost(Loss::NoNextHop) };
        let feedback = fleet.steering.as_ref().and_then(|steering| steering.riding(host));
        let inner = Inner { vni: way.network, flow_hash: held.hash.into(), feedback };
        let session = match fleet.seals.as_mut().map(|seals| seals.way(host)) {
            Some(Way::Sealed(session)) => Some(session),
            Some(Way::NoSession) => return Handed::Lost(Loss::NoSession),
            Some(Way::Plain) | None => None,
        };
        let mut wrapping = Wrapping { path, inner, session, told: false };
        let before = packets_left(part, &held.offload);
        let emitted =
            emit_wrapped(port, &mut wrapping, frame, &held.offload, part, &mut self.buffers.scratch);
        let told = wrapping.told;
        self.uplink.senders.note(port.taken(), way.from);
        self.uplink.down = emitted.is_err();
        fleet.links[host].sent += u64::from(before - packets_left(part, &held.offload));
        if told && let Some(steering) = &mut fleet.steering {
            steering.rode(host);
        }
        match emitted {
            Ok(Ok(Emitted::Sent)) => {
                fleet.steering.iter_mut().for_each(|steering| steering.agent.handle_sent(host, now));
                Handed::Done
            }
            Ok(Ok(Emitted::Full)) | Err(Trouble::Down) => Handed::Wait,
            Ok(Ok(Emitted::Refused(why))) => {
                self.uplink.blamed[why as usize] += 1;
                Handed::Refused(why)
            }
            Ok(Ok(Emitted::Inconsistent)) => Handed::Lost(Loss::Inconsistent),
            Ok(Ok(Emitted::TakenBack)) => Handed::Lost(Loss::TakenBack),
            Ok(Err(why)) => Handed::Unfit(why),
            Err(Trouble::Gone) => {
                self.lose_uplink();
                Handed::Wait
            }
        }
    }
}

/// Packets of the part that are still to leave.
fn packets_left(part: &Part, offload: &Offload) -> u32 {
    if part.payload == 0 { 0 } else { part.packets(offload) }
}

impl<'a> Wrapping<'a> {
    /// The feedback that goes with a finished frame of this length, if it has not left and there is room for it.
    pub(super) fn feedback_for(&self, frame: usize) -> Option<&'a [u8]> {
        let seal = if self.session.is_some() { SEALED_HEAD + SEALED_TAG } else { 0 };
        let fits = |message: &&[u8]| {
            frame + seal + self.path.head_room(Some(message.len()))
                <= usize::from(self.path.mtu) + super::ETHERNET
        };
        self.inner.feedback.filter(|_| !self.told).filter(fits)
    }
}

pub(super) type Wrapped = Result<Emitted, plimsoll_wire::EncapsulationError>;

/// Sends each segment, which is finished behind room for its headers, with these headers.
fn emit_wrapped(
    port: &mut Port,
    wrapping: &mut Wrapping<'_>,
    frame: &[u8],
    offload: &Offload,
    part: &mut Part,
    scratch: &mut [u8],
) -> Result<Wrapped, Trouble> {
    let frame = Frame::whole(frame);
    cut(part, |part| {
        if let Some(together) = Together::of(port, wrapping, offload, part) {
            return together.send(port, wrapping, (&frame, offload), part, scratch);
        }
        let piece = part.first(offload);
        let sent = emit_piece(port, wrapping, &frame, offload, piece, scratch)?;
        if let Ok(emitted) = sent {
            part.left(piece, emitted);
        }
        Ok(sent)
    })
}

/// Sends one piece, which is finished behind room for its headers.
fn emit_piece(
    port: &mut Port,
    wrapping: &mut Wrapping<'_>,
    frame: &Frame<'_>,
    offload: &Offload,
    piece: Part,
    scratch: &mut [u8],
) -> Result<Wrapped, Trouble> {
    if port.places() && wrapping.session.is_none() {
        return place_wrapped(port, wrapping, frame, offload, piece);
    }
    let len = piece.len(offload);
    let written = match scratch.get_mut(ROOM..ROOM + len) {
        Some(room) => write(frame, offload, piece, room),
        None => Err(SegmentError::NoRoom),
    };
    match written {
        Ok(true) => {}
        Ok(false) => return Ok(Ok(Emitted::TakenBack)),
        Err(error) => return Ok(Ok(error.into())),
    }
    Ok(send_wrapped(port, wrapping, &mut scratch[..ROOM + len + SEALED_TAG])?.map(Emitted::from))
}

/// Sends a piece that is written, with its headers, where the port sends it from.
fn place_wrapped(
    port: &mut Port,
    wrapping: &mut Wrapping<'_>,
    frame: &Frame<'_>,
    offload: &Offload,
    piece: Part,
) -> Result<Wrapped, Trouble> {
    let len = piece.len(offload);
    let feedback = wrapping.feedback_for(len);
    let inner = Inner { feedback, ..wrapping.inner };
    let head = wrapping.path.head_room(feedback.map(<[u8]>::len));
    let mut made = Ok(Emitted::Sent);
    let sending = port.place(head + len, None, |room| {
        made = match write(frame, offload, piece, &mut room[head..]) {
            Ok(false) => Ok(Emitted::TakenBack),
            Ok(true) => wrapping.path.encapsulate(room, head, &inner).map(|_| Emitted::Sent),
            Err(error) => Ok(error.into()),
        };
        made == Ok(Emitted::Sent)
    })?;
    if made != Ok(Emitted::Sent) {
        return Ok(made);
    }
    wrapping.told |= feedback.is_some() && sending == Sending::Sent;
    Ok(Ok(sending.into()))
}

fn send_wrapped(
    port: &mut Port,
    wrapping: &mut Wrapping<'_>,
    buffer: &mut [u8],
) -> Result<Result<Sending, plimsoll_wire::EncapsulationError>, Trouble> {
    let frame = ROOM..buffer.len() - SEALED_TAG;
    let feedback = wrapping.feedback_for(frame.len());
    let Wrapping { path, inner, told, session } = wrapping;
    let whole = if session.is_some() { ROOM - SEALED_HEAD..buffer.len() } else { frame.clone() };
    let inner = Inner { feedback, ..*inner };
    let ecn = path.outer_ecn(&buffer[frame]);
    let packet = &mut buffer[..whole.end];
    let wrapped = match session {
        Some(session) => {
            if !session.seal(inner.vni.get(), &mut packet[whole.start..]) {
                // It could not be sealed, so it must not leave.
                return Ok(Err(plimsoll_wire::EncapsulationError::NoRoom));
            }
            path.encapsulate_sealed(packet, whole.start, &inner, ecn)
        }
        None => path.encapsulate(packet, ROOM, &inner),
    };
    let start = match wrapped {
        Ok(start) => start,
        Err(why) => return Ok(Err(why)),
    };
    let sending = port.send(&buffer[start..whole.end], None)?;
    *told |= feedback.is_some() && sending == Sending::Sent;
    Ok(Ok(sending))
}

/// Room for the longest outer headers: Ethernet, IPv6, UDP, Geneve and its longest option, and a seal's head.
const ROOM: usize = 14 + 40 + 8 + 8 + 4 + MOST_IN_OPTION.next_multiple_of(4) + 4 + SEALED_HEAD;
