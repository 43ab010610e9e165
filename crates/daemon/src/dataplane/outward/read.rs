//! Frames of ports that must be read to be seen, TAPs above all.
//!
//! Why: small frames of one flow that a tenant sends together are parsed, classified and scheduled once for all of them, as those of a
//! guest are.
//! From: decision 10 (trains).
//! Not here: ports whose frames lie with their sender (`posted`).
//! Invariant: a frame that was read is admitted, in the order of reading; a turn reads at most [`BATCH`] frames of a port.

use plimsoll_ports::{Port, Received};
use plimsoll_units::Nanos;
use plimsoll_wire::{VnetHeader, alike};

use super::super::drops::Event;
use super::super::lane::Lane;
use super::super::pool::{Buffer, train_of};
use super::super::posted::Origin;
use super::super::{BATCH, Dataplane};

/// Frames that were read and may be joined by the next one.
struct Begun {
    /// A small one, with room for the others.
    buffer: Buffer,
    /// Of the first frame.
    received: Received,
    following: u16,
}

/// How far the batch of one port is.
#[derive(Default)]
struct Batch {
    read: usize,
    begun: Option<Begun>,
    /// A large buffer, for the next frame.
    spare: Option<Buffer>,
}

impl Dataplane {
    /// Reads a batch from a port; answers how many frames those were.
    pub(super) fn read_lane(&mut self, index: usize, now: Nanos) -> usize {
        let Some(lane) = &mut self.tenants.lanes[index] else { return 0 };
        if lane.port.as_ref().is_some_and(Port::is_posted) {
            return self.read_posted(index, now);
        }
        let mut batch = Batch::default();
        while batch.read < BATCH && self.read_next(index, &mut batch, now) {}
        self.admit_begun(index, &mut batch, now);
        if let (Some(spare), Some(lane)) = (batch.spare, &mut self.tenants.lanes[index]) {
            lane.pool.give(spare);
        }
        batch.read
    }

    /// Reads the next frame; answers whether there may be another one.
    fn read_next(&mut self, index: usize, batch: &mut Batch, now: Nanos) -> bool {
        let Some(lane) = &mut self.tenants.lanes[index] else { return false };
        let (Some(tenant), Some(port)) = (lane.tenant, &mut lane.port) else { return false };
        // What has begun needs a descriptor, too.
        if self.scheduler.nic.tenant_room(tenant) <= u32::from(batch.begun.is_some()) {
            if batch.begun.is_some() {
                self.admit_begun(index, batch, now);
                return true;
            }
            lane.tally.event(Event::TenantAtCap);
            return false;
        }
        let Some(buffer) = batch.spare.take().or_else(|| lane.pool.take_large()) else {
            lane.tally.event(Event::BuffersInUse);
            return false;
        };
        match port.receive(lane.pool.bytes_mut(buffer)) {
            Ok(Some(received)) => {
                batch.read += 1;
                self.note_read(index, batch, (buffer, &received), now);
                true
            }
            Ok(None) => {
                lane.pool.give(buffer);
                lane.ready = false;
                false
            }
            Err(trouble) => {
                lane.pool.give(buffer);
                lane.ready = false;
                let gone = lane.trouble(trouble);
                self.note_lost_lane(index, gone);
                false
            }
        }
    }

    /// Puts a frame behind those before it, if it is of their flow; otherwise they are admitted, and it begins a train, if it may.
    fn note_read(
        &mut self,
        index: usize,
        batch: &mut Batch,
        (buffer, received): (Buffer, &Received),
        now: Nanos,
    ) {
        let most = train_of(received.len).min((self.scheduler.window / 2) as u16);
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        if let Some(begun) = &mut batch.begun
            && lane.joins(begun, most, (buffer, received))
        {
            batch.spare = Some(buffer);
            return;
        }
        self.admit_begun(index, batch, now);
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        if most <= 1 || !lane.is_tap() || !is_alone(received) {
            return self.admit(index, buffer, received, &Origin::default(), now);
        }
        let begun = lane.pool.settle(buffer, received.len);
        if begun == buffer {
            // There is no small buffer left.
            return self.admit(index, buffer, received, &Origin::default(), now);
        }
        batch.begun = Some(Begun { buffer: begun, received: *received, following: 0 });
    }

    /// Admits what has begun.
    fn admit_begun(&mut self, index: usize, batch: &mut Batch, now: Nanos) {
        if let Some(Begun { buffer, received, following }) = batch.begun.take() {
            self.admit(index, buffer, &received, &Origin { following, ..Origin::default() }, now);
        }
    }
}

impl Lane {
    fn is_tap(&self) -> bool {
        matches!(self.port, Some(Port::Tap(_)))
    }

    /// Copies a frame behind those that have begun, if it has their headers and there is room.
    fn joins(&mut self, begun: &mut Begun, most: u16, (buffer, received): (Buffer, &Received)) -> bool {
        let first = &begun.received;
        let same = (received.len, received.vnet) == (first.len, first.vnet) && begun.following + 1 < most;
        let len = received.len;
        let joins = same && alike(&self.pool.bytes(begun.buffer)[..len], &self.pool.bytes(buffer)[..len]);
        if joins {
            begun.following += 1;
            self.pool.append(begun.buffer, begun.following, buffer, len);
        }
        joins
    }
}

/// Whether a frame is not a segment that is still to be cut.
fn is_alone(received: &Received) -> bool {
    received.vnet.is_none_or(|vnet| vnet.gso_type == VnetHeader::GSO_NONE)
}
