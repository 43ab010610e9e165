//! Frames of ports that must be read to be seen, TAPs above all.
//!
//! Why: small frames of one flow that a tenant sends together are parsed, classified and scheduled once for all of them, as those of a
//! guest are.
//! From: decision 10 (trains). A batch is read first and then admitted, so that what is known of its flows is fetched for all of it.
//! Not here: ports whose frames lie with their sender (`posted`).
//! Invariant: a frame that was read is admitted, in the order of reading; a turn reads at most [`BATCH`] frames of a port.

use plimsoll_ports::{Port, Received};
use plimsoll_units::Nanos;
use plimsoll_wire::{VnetHeader, alike};

use super::super::drops::Event;
use super::super::lane::Lane;
use super::super::pool::{Buffer, train_of};
use super::super::posted::{Copied, Origin};
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
struct Reading {
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
        let mut reading = Reading::default();
        let mut batch = core::mem::take(&mut self.buffers.batch);
        loop {
            let ended = self.read_batch(index, &mut reading, &mut batch);
            batch.extend(reading.begun.take().map(Begun::ended));
            self.admit_batch(index, &mut batch, now);
            if ended {
                break;
            }
        }
        self.buffers.batch = batch;
        if let (Some(spare), Some(lane)) = (reading.spare, &mut self.tenants.lanes[index]) {
            lane.pool.give(spare);
        }
        reading.read
    }

    /// Reads frames into the batch, as many as there is room for. Answers whether the turn has had its frames, or there are no more.
    fn read_batch(&mut self, index: usize, reading: &mut Reading, batch: &mut Vec<Copied>) -> bool {
        while reading.read < BATCH {
            let Some(lane) = &mut self.tenants.lanes[index] else { return true };
            let (Some(tenant), Some(port)) = (lane.tenant, &mut lane.port) else { return true };
            // Each of these needs a descriptor.
            let waiting = batch.len() + usize::from(reading.begun.is_some());
            let full = if self.scheduler.nic.tenant_room(tenant) as usize <= waiting {
                Err(Event::TenantAtCap)
            } else {
                reading.spare.take().or_else(|| lane.pool.take_large()).ok_or(Event::BuffersInUse)
            };
            let buffer = match full {
                Ok(buffer) => buffer,
                // Some of these may be parked or lost, so that there is room again.
                Err(_) if waiting > 0 => return false,
                Err(event) => {
                    lane.tally.event(event);
                    return true;
                }
            };
            match port.receive(lane.pool.bytes_mut(buffer)) {
                Ok(Some(received)) => {
                    reading.read += 1;
                    lane.note_read(reading, batch, (buffer, received), self.scheduler.window);
                }
                Ok(None) => {
                    lane.pool.give(buffer);
                    lane.ready = false;
                    return true;
                }
                // What came before is admitted first, while the port's addresses are known.
                Err(_) if waiting > 0 => {
                    reading.spare = Some(buffer);
                    return false;
                }
                Err(trouble) => {
                    lane.pool.give(buffer);
                    lane.ready = false;
                    let gone = lane.trouble(trouble);
                    self.note_lost_lane(index, gone);
                    return true;
                }
            }
        }
        true
    }
}

impl Begun {
    /// No frame joins it any more.
    fn ended(self) -> Copied {
        let Self { buffer, received, following } = self;
        Copied::read(buffer, received, Origin { following, ..Origin::default() })
    }
}

impl Lane {
    /// Puts a frame behind those before it, if it is of their flow; otherwise these go into the batch, and it begins a train, if it may.
    fn note_read(
        &mut self,
        reading: &mut Reading,
        batch: &mut Vec<Copied>,
        (buffer, received): (Buffer, Received),
        window: u32,
    ) {
        let most = train_of(received.len).min((window / 2) as u16);
        if let Some(begun) = &mut reading.begun
            && self.joins(begun, most, (buffer, &received))
        {
            reading.spare = Some(buffer);
            return;
        }
        batch.extend(reading.begun.take().map(Begun::ended));
        if most > 1 && self.is_tap() && is_alone(&received) {
            let begun = self.pool.settle(buffer, received.len);
            // Otherwise there is no small buffer left.
            if begun != buffer {
                reading.begun = Some(Begun { buffer: begun, received, following: 0 });
                return;
            }
        }
        batch.push(Copied::read(buffer, received, Origin::default()));
    }

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
