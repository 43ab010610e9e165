//! The first part of the way out: frames from tenants' ports go into flow queues.
//!
//! Why: every frame is parsed and classified once, and bears its tenant's name from then on.
//! From: Loom §4.1: the host states a packet's queue, in one write for a batch.
//! Not here: ports whose frames lie with their sender until they are taken (`posted`), a frame's flow queue (`queues`),
//! departures (`depart`).
//! Invariant: a turn reads a bounded number of frames from each tenant; each is queued, parked with its sender, or lost
//! for a counted reason.

mod counted;
mod known;
mod read;

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use plimsoll_nic::{QueueId, Refusal};
use plimsoll_policy::Metadata;
use plimsoll_ports::Received;
use plimsoll_units::Nanos;
use plimsoll_vnic::Status;
use plimsoll_wire::{Ecn, FlowKey, FrameError, Front, Offload, Parsed, VnetError, parse_front, protocol};

use super::apart::Charged;
use super::drops::{Event, Loss, Tally};
use super::flows::Hashed;
use super::mac_table::{Learned, Mac, Owner};
use super::paced::Passed;
use super::pool::{self, Buffer};
use super::posted::Origin;
use super::{Dataplane, Part, parked};
use crate::departures::{Headers, pack_metadata};

impl Dataplane {
    /// Reads a batch from each tenant that has frames and room; each turn begins with another tenant. Answers how many
    /// frames it read.
    pub(super) fn read_tenants(&mut self, now: Nanos, clock: &impl Fn(Part) -> Nanos) -> usize {
        let mut read = 0;
        // The end of one tenant's batch is the beginning of the next one's, where that is timed as well.
        let mut begun = Some(now);
        for index in self.tenants.in_turn() {
            self.release_requests(index, now);
            if !self.is_read(index) {
                continue;
            }
            let came = if self.tenants.lanes[index].as_ref().is_some_and(|lane| lane.copies()) {
                let from = begun.unwrap_or_else(|| clock(Part::Read));
                self.touch(index);
                let came = self.read_posted(index, now);
                let after = clock(Part::Read);
                self.part_took(after.since(from), Charged::No, after);
                begun = Some(after);
                came
            } else {
                begun = None;
                self.read_lane(index, now)
            };
            if came > 0 {
                self.note_moved(index);
            }
            read += came;
        }
        self.scheduler.ring(now);
        read
    }

    /// Whether a lane may have frames to be read.
    fn is_read(&self, index: usize) -> bool {
        let lane = self.tenants.lanes[index].as_ref();
        lane.is_some_and(|lane| {
            lane.tenant.is_some()
                && !lane.halted
                && (lane.ready || lane.must_be_asked())
                && lane.program.as_ref().is_none_or(|hosted| hosted.may_read())
        })
    }

    /// Handles a frame from a tenant: parses, classifies and posts it, or counts why not. A frame of a flow that is known is only
    /// posted.
    pub(super) fn admit(
        &mut self,
        index: usize,
        buffer: Buffer,
        received: &Received,
        origin: &Origin,
        now: Nanos,
    ) {
        let arrived = Arrived { index, buffer, received, origin, now };
        let cached = self.caches_flows(origin);
        if cached && self.admit_known(&arrived) {
            return;
        }
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        let front = origin.front(lane.pool.bytes(buffer), received.len);
        let parsed = parse_front(front);
        // The headers of frames in a train are at hand, as they are compared.
        if origin.late && origin.following == 0 && !are_headers_at_hand(&parsed) {
            if let Some(whole) = self.make_whole(index, buffer, received.len, origin) {
                self.admit(index, whole, received, &Origin { late: false, ..*origin }, now);
            }
            return;
        }
        let frame = front.bytes();
        let (parsed, offload) = match check(&parsed, front, received) {
            Ok(checked) => checked,
            Err(why) => {
                why.count(&mut lane.tally, origin.frames());
                return lane.give(buffer, origin, Status::Malformed);
            }
        };
        let verdict =
            self.tenants.bindings.verify(index, frame, parsed, &mut self.macs, (&mut lane.first_mac, now));
        if let Err(why) = verdict {
            lane.tally.spoofed(why, origin.frames().into());
            return lane.give(buffer, origin, Status::Dropped);
        }
        if self.fleet.is_some() && !self.may_leave(index, buffer, parsed, &offload, origin, received.len, now)
        {
            return;
        }
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        let token = u32::try_from(index).unwrap_or(u32::MAX);
        if !lane.sent_from(parsed.src_mac.0, now) {
            match self.macs.learn(lane.network, parsed.src_mac.0, Owner::Lane(token), now) {
                Learned::Own | Learned::Taken(_) => lane.source = Some((parsed.src_mac.0, now)),
                Learned::Foreign => {
                    lane.tally.lost_many(Loss::ForeignSource, origin.frames().into());
                    return lane.give(buffer, origin, Status::Dropped);
                }
                Learned::TooMany => lane.tally.event(Event::TooManyAddresses),
            }
        }
        // The sender's address is known to be this tenant's by now: it is part of what other hosts ask for.
        if self.fleet.is_some()
            && origin.passed < Passed::Asked
            && !self.may_go_there((index, buffer), parsed, &offload, origin, received, now)
        {
            return;
        }
        if self.backpressure.mediates
            && origin.passed < Passed::Reported
            && !self.may_go_marked((index, buffer), parsed, &offload, origin, received, now)
        {
            return;
        }
        let counted = self.backpressure.heavy.is_some() && origin.passed < Passed::Here;
        let flow = counted.then(|| Hashed::of(parsed));
        if let Some(flow) = flow
            && !self.may_flow(&arrived, (parsed, &flow), &offload)
        {
            return;
        }
        if self.backpressure.mediates {
            self.mediate(
                (index, buffer),
                parsed,
                &offload,
                (origin.at_hand(received.len), origin.frames()),
                now,
            );
        }
        // A client's choice does not tell the receiver, and each receiver has limits of its own.
        let queue = match origin.queue.filter(|_| !self.is_steered()) {
            // All frames of a train are in one flow queue, and each may be drawn.
            Some(queue) => match (0..origin.frames()).filter(|_| self.verifying.sampler.draw()).count() {
                0 => Ok(queue),
                drawn => self.verify(index, (queue, drawn as u32), parsed, now),
            },
            None => {
                let flow = flow.unwrap_or_else(|| Hashed::of(parsed));
                let queue = self.queue_for(index, parsed, &flow, origin.metadata, now);
                if cached && let Ok(queue) = queue {
                    self.note_flow(&arrived, (parsed, &flow), &offload, queue);
                }
                queue
            }
        };
        let (to, mut headers) = (parsed.dst_mac.0, Headers::of(parsed));
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        if origin.metadata != Metadata::default() {
            headers = headers.with_metadata();
            lane.pool.set_metadata(buffer, pack_metadata(&origin.metadata));
        }
        let hash = self.path_hash(parsed);
        self.post(&arrived, &offload, (to, headers, hash), queue);
    }

    /// The number by which the fabric chooses a frame's path; 0 outside a fleet.
    pub(super) fn path_hash(&self, parsed: &Parsed) -> u32 {
        if self.fleet.is_some() { flow_hash(parsed) } else { 0 }
    }

    /// Posts a frame in its flow queue, where there is room.
    fn post(
        &mut self,
        &Arrived { index, buffer, received, origin, .. }: &Arrived,
        offload: &Offload,
        (to, headers, hash): (Mac, Headers, u32),
        queue: Result<QueueId, Refusal>,
    ) {
        let token = u32::try_from(index).unwrap_or(u32::MAX);
        let len = u32::try_from(received.len).unwrap_or(u32::MAX);
        let following = match queue {
            Ok(queue) if origin.ticket.is_none() => self.scheduler.fitting(queue, origin.following),
            _ => origin.following,
        };
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        lane.tally.refused_many(Refusal::FlowFull, (origin.following - following).into());
        let alone = origin.following == 0;
        let buffer = if alone { lane.pool.settle(buffer, received.len) } else { buffer };
        let held = pool::Held {
            len,
            offload: *offload,
            ticket: origin.ticket,
            following,
            given: 0,
            sent: 0,
            late: origin.late,
            to,
            headers,
            hash,
        };
        lane.pool.set_held(buffer, held);
        // Read anew: backpressure and mediation may have written it.
        let ecn = if self.scheduler.nic.keeps_queues_short() && !lane.untouched {
            Ecn::of(lane.pool.bytes(buffer))
        } else {
            None
        };
        let descriptor = held.descriptor(buffer.address(token), origin.tag, ecn.unwrap_or_default());
        let frames = held.frames();
        let posted = queue.and_then(|queue| {
            match lane.room(queue, frames, self.scheduler.holds(queue), self.scheduler.window) {
                parked::Admission::Engine => self.scheduler.post(queue, descriptor, frames),
                parked::Admission::Sender => {
                    lane.parked.push(queue, descriptor, frames);
                    lane.tally.event_many(Event::HeldBySender, frames.into());
                    Ok(())
                }
                parked::Admission::Nowhere => Err(Refusal::FlowFull),
            }
        });
        if let Err(why) = posted {
            lane.give(buffer, origin, Status::Dropped);
            lane.tally.refused_many(why, frames.into());
        }
    }
}

/// A frame that was read from a tenant's port.
pub(super) struct Arrived<'a> {
    /// The lane's index.
    index: usize,
    buffer: Buffer,
    received: &'a Received,
    origin: &'a Origin,
    now: Nanos,
}

/// The frames and bytes that leave for a descriptor: a segment that is cut is many frames.
#[inline]
pub(super) fn on_wire(offload: &Offload, len: usize, train: u32) -> (u16, u32) {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    if (offload.segment, train) == (0, 1) {
        return (1, len);
    }
    let payload = len.saturating_sub(u32::from(offload.header));
    let cut = if offload.segment > 0 { payload.div_ceil(offload.segment.into()).max(1) } else { 1 };
    let bytes = len + (cut - 1) * u32::from(offload.header);
    (u16::try_from(cut * train).unwrap_or(u16::MAX), bytes.saturating_mul(train))
}

/// Why a frame from a port is not taken.
pub(super) enum Bad {
    Frame(FrameError),
    Offload(VnetError),
}

impl Bad {
    pub(super) fn count(&self, tally: &mut Tally, frames: u32) {
        match *self {
            Self::Frame(why) => tally.bad_frame(why, frames.into()),
            Self::Offload(why) => tally.bad_offload(why, frames.into()),
        }
    }
}

/// Whether the first bytes of a frame hold all its headers, and nobody looks at the bytes behind them.
fn are_headers_at_hand(parsed: &Result<Parsed, FrameError>) -> bool {
    let ip = parsed.as_ref().ok().and_then(|parsed| parsed.ip.as_ref());
    ip.is_some_and(|ip| {
        matches!(ip.protocol, protocol::TCP | protocol::UDP) && usize::from(ip.payload) <= pool::FRONT
    })
}

/// Headers and offloads of a frame, checked once: no later step checks them again.
///
/// By reference: the parser writes headers in small parts, and moving them at once would wait for these writes.
pub(super) fn check<'p>(
    parsed: &'p Result<Parsed, FrameError>,
    front: Front<'_>,
    received: &Received,
) -> Result<(&'p Parsed, Offload), Bad> {
    let parsed = parsed.as_ref().map_err(|&why| Bad::Frame(why))?;
    let offload = match received.vnet {
        Some(vnet) => vnet.offload_front(front, parsed).map_err(Bad::Offload)?,
        None => Offload::PLAIN,
    };
    Ok((parsed, offload))
}

/// A number by which the fabric chooses a path: equal for all packets of a flow.
fn flow_hash(parsed: &Parsed) -> u32 {
    FixedState::default().hash_one(FlowKey::of(parsed)) as u32
}
