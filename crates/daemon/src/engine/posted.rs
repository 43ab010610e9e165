//! Frames that lie with their sender until they are taken, and are completed when they have left: clients on shared
//! memory, and virtual machines.
//!
//! Why: a sender that is told of a packet's completion when it has really left keeps later packets in its own sockets; a
//! client that describes a flow once need not have each packet classified.
//! From: PicNIC §5.4.3 (deferred completions); SENIC §5.1 (the host's table classifies, the client remembers the queue);
//! Loom §4.3.
//! Not here: the client's requests (`rules`), its trustworthiness (`verify`), checks of what it writes (`ports`), and the
//! order of packets (`nic`).
//! Invariant: each frame that is taken is completed once; a flow queue belongs to one lane; a turn takes at most [`POSTED`]
//! frames of a sender.

use plimsoll_nic::{Outcome, QueueId};
use plimsoll_policy::{LookedAt, Metadata};
use plimsoll_ports::{Frame, Port, Received, Taken, Ticket, Took, VnicPort};
use plimsoll_units::{Nanos, Span};
use plimsoll_vnic::{PacketMetadata, Status};
use plimsoll_wire::{Front, VnetHeader, alike};

use super::drops::{Event, Loss};
use super::lane::Lane;
use super::paced::Passed;
use super::pool::{Buffer, FRONT, Held, at_hand, late_train_of, train_of};
use super::{BATCH, Engine};

/// What a port tells of a frame beside its bytes; empty for a port that only reads frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// The flow queue that the client chose.
    pub(crate) queue: Option<QueueId>,
    /// Slack or deadline in microseconds.
    pub(crate) tag: u32,
    /// Its sender's metadata, as far as the policy looks at it.
    pub(crate) metadata: Metadata,
    /// The ticket for its completion.
    pub(crate) ticket: Option<Ticket>,
    /// Further frames of a train, which stand behind it in its buffer.
    pub(crate) following: u16,
    /// Whether only its first 128 bytes are in its buffer, and its port has the others.
    pub(crate) late: bool,
    /// What it has waited for, if its flow is slowed down.
    pub(crate) passed: Passed,
}

/// Frames in a row that no frame of their flow followed. Where flows come in turn, a train is tried for few frames only, as the frame
/// behind is then copied twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alone(u32);

impl Alone {
    #[inline]
    fn is_tried(self) -> bool {
        self.0 < ALONE || self.0.is_multiple_of(ALONE)
    }

    #[inline]
    fn note(&mut self, following: u16) {
        self.0 = if following > 0 { 0 } else { self.0.wrapping_add(1) };
    }
}

/// How many, until then and in between.
const ALONE: u32 = 16;

impl Origin {
    /// The part of a frame of `len` bytes that is in its buffer, which has these bytes.
    #[inline]
    pub(crate) fn front<'a>(&self, bytes: &'a [u8], len: usize) -> Front<'a> {
        Front::new(&bytes[..self.at_hand(len)], len)
    }

    /// Bytes of each frame that are in its buffer, of `len`.
    #[inline]
    pub(crate) fn at_hand(&self, len: usize) -> usize {
        at_hand(len, self.late)
    }

    /// The frames of the train, the first included.
    #[inline]
    pub(crate) fn frames(&self) -> u32 {
        1 + u32::from(self.following)
    }
}

/// How long a sender that has gone quiet is still looked at before it is asked to kick: about the time that a kick, a system
/// call and a wake-up, costs both sides.
const ATTENTION: Span = Span::micros(20);

/// Most frames taken from one sender in a turn: as many as may leave in it, as taking one needs no system call.
const POSTED: usize = 2 * BATCH;

/// Most bytes taken from one client in a turn, as the others wait while they are copied: 64 frames of an MTU, or two of the
/// longest. The last frame that begins within them is taken whole.
const COPIED: usize = 96 * 1_024;

impl Engine {
    /// Reads a batch from a sender's rings. Frames without room stay there.
    pub(super) fn read_posted(&mut self, index: usize, now: Nanos) -> usize {
        let Some(lane) = &mut self.lanes[index] else { return 0 };
        let (Some(tenant), Some(port)) = (lane.tenant, &mut lane.port) else { return 0 };
        let halted = lane.trust.halted(now);
        let begun = if halted.is_some() { port.probe() } else { port.begin() };
        if let Err(trouble) = begun {
            lane.ready = false;
            let gone = lane.trouble(trouble);
            self.note_lost_lane(index, gone);
            return 0;
        }
        if let Some(until) = halted {
            self.wake_at = Some(self.wake_at.map_or(until, |at| at.min(until)));
            return 0;
        }
        self.answer_requests(index, now);
        let (mut read, mut copied) = (0, 0);
        let mut next = None;
        while next.is_some() || read < POSTED && copied < COPIED {
            let Some(lane) = &mut self.lanes[index] else { return read };
            let Some(port) = &mut lane.port else { return read };
            let full = if next.is_some() {
                None
            } else if self.nic.tenant_room(tenant) == 0 {
                Some(Event::TenantAtCap)
            } else if !lane.pool.has_room() {
                Some(Event::BuffersInUse)
            } else {
                None
            };
            if let Some(event) = full {
                lane.tally.event(event);
                // This also finds out whether the client is still there; the next batch reacts to it.
                let _ = port.probe();
                self.attentive |= port.has_more_to_say();
                return read;
            }
            let took = next.take().map_or_else(|| port.take(self.window), Took::Frame);
            match took {
                Took::Frame(taken) => {
                    // With early completions its descriptor has just been given back: the flush publishes that.
                    lane.wrote = true;
                    let frames;
                    // At the end of the turn no further frame is taken, as it could not be queued any more.
                    let most = if copied < COPIED { POSTED.saturating_sub(read) } else { 1 };
                    (frames, next) = self.admit_taken(index, &taken, most, now);
                    (read, copied) = (read + frames, copied + frames * taken.len);
                }
                Took::Refused => {
                    lane.wrote = true;
                    read += 1;
                }
                Took::Nothing => {
                    if read > 0 {
                        lane.quiet_since = now;
                    } else if now.since(lane.quiet_since) >= ATTENTION {
                        lane.ready = !port.rest();
                    }
                    // While its rings are polled, the thread must not sleep: the client does not kick.
                    self.attentive |= lane.ready;
                    return read;
                }
            }
        }
        read
    }

    /// Copies a frame out of the sender's memory, after which it can no longer change, and with it the frames that follow
    /// and have the same headers, `most` in all. Answers how many it copied, and the frame after them, if it has been
    /// taken.
    fn admit_taken(
        &mut self,
        index: usize,
        taken: &Taken,
        most: usize,
        now: Nanos,
    ) -> (usize, Option<Taken>) {
        let Some(lane) = &mut self.lanes[index] else { return (1, None) };
        let Some(port) = &mut lane.port else { return (1, None) };
        let train = train_of(taken.len);
        // Where frames are wrapped or connections mediated, the payload is needed before the frame leaves.
        let late = train == 1 && self.fleet.is_none() && !self.mediates && port.keeps();
        let Some(buffer) = lane.pool.take(at_hand(taken.len, late)) else {
            lane.complete(Some(taken.ticket), Status::Dropped);
            return (1, None);
        };
        let bytes = &mut lane.pool.bytes_mut(buffer)[..at_hand(taken.len, late)];
        if late {
            port.peek(bytes);
            port.leave(bytes.len(), taken.ticket);
        } else {
            port.copy(bytes);
        }
        let train = if late { late_train_of(taken.len) } else { train };
        // The frame that ends the train needs a buffer as well.
        let more = lane.tenant.is_some_and(|tenant| self.nic.tenant_room(tenant) > 1) && lane.pool.has_room();
        // Half of a short ring, as for a flow; of a ring with one descriptor that is none.
        let half = port.depth().unwrap_or(self.window) as usize / 2;
        let most = if more && lane.alone.is_tried() { usize::from(train).min(most).min(half) } else { 1 };
        let tenant = lane.tenant;
        let looked_at = *lane
            .looked_at
            .get_or_insert_with(|| tenant.map_or_else(LookedAt::default, |of| self.program.metadata_of(of)));
        let (following, next) = lane.couple(buffer, (taken, late), looked_at, (most as u16, self.window));
        lane.alone.note(following);
        let received = Received { len: taken.len, vnet: Some(taken.vnet), ..Received::default() };
        let metadata = metadata_of(taken, looked_at);
        // A flow queue was opened for packets without metadata: packets with metadata are looked up one by one.
        let queue = taken.target.filter(|_| metadata == Metadata::default()).map(QueueId);
        let origin = Origin {
            queue,
            tag: taken.tag,
            metadata,
            ticket: Some(taken.ticket),
            following,
            late,
            passed: Passed::Nothing,
        };
        self.admit(index, buffer, &received, origin, now);
        (1 + usize::from(following), next)
    }
}

impl Engine {
    /// Copies what a frame's sender still has of it, as the headers are not all in its first bytes, or are of none of the transports
    /// whose payload nobody looks at. Answers where the whole frame is.
    #[cold]
    pub(super) fn make_whole(
        &mut self,
        index: usize,
        buffer: Buffer,
        len: usize,
        origin: &Origin,
    ) -> Option<Buffer> {
        let lane = self.lanes[index].as_mut()?;
        let rest = origin.ticket.and_then(|ticket| lane.port.as_ref()?.kept(ticket));
        let here = lane.pool.has_room_for(buffer, len);
        let whole = rest.and_then(|_| if here { Some(buffer) } else { lane.pool.take(len) });
        let (Some(rest), Some(whole)) = (rest, whole) else {
            lane.tally.lost_many(Loss::TakenBack, 1);
            lane.give(buffer, origin, Status::Dropped);
            return None;
        };
        let mut front = [0; FRONT];
        let at_hand = origin.at_hand(len);
        front[..at_hand].copy_from_slice(&lane.pool.bytes(buffer)[..at_hand]);
        let intact = Frame::late(&front[..at_hand], rest).copy(&mut lane.pool.bytes_mut(whole)[..len]);
        if whole != buffer {
            lane.pool.give(buffer);
        }
        // Memory that has disappeared reads as zeros, and its sender is cut off.
        intact.then_some(whole).or_else(|| {
            lane.tally.lost_many(Loss::TakenBack, 1);
            lane.give(whole, origin, Status::Dropped);
            None
        })
    }
}

impl Lane {
    /// Whether the frames in a buffer were offered again since they were taken.
    #[inline]
    pub(super) fn was_offered_again(&self, buffer: Buffer) -> bool {
        let Some(since) = self.offered_again else { return false };
        self.pool.held(buffer).ticket.is_some_and(|ticket| ticket.is_before(since))
    }

    /// One of the frames in a buffer, whose payload may be with its sender, if it is still there.
    #[inline]
    pub(super) fn frame(&self, buffer: Buffer, number: u16) -> Option<Frame<'_>> {
        let (bytes, held) = self.pool.frame(buffer);
        let len = held.at_hand();
        let bytes = &bytes[usize::from(number) * len..][..len];
        if !held.late {
            return Some(Frame::whole(bytes));
        }
        let ticket = self.pool.ticket(buffer, held.ticket?, number);
        Some(Frame::late(bytes, self.port.as_ref()?.kept(ticket)?))
    }

    /// The port, if it is a client's shared memory.
    pub(crate) fn vnic(&mut self) -> Option<&mut VnicPort> {
        match &mut self.port {
            Some(Port::Vnic(port)) => Some(port),
            _ => None,
        }
    }

    /// Puts frames that follow the one in the buffer, and have the same headers, behind it, until there are `most`.
    /// Answers how many they were, and the first other frame, if it has been taken: its bytes must be copied anew.
    fn couple(
        &mut self,
        buffer: Buffer,
        (first, late): (&Taken, bool),
        looked_at: LookedAt,
        (most, window): (u16, u32),
    ) -> (u16, Option<Taken>) {
        let Some(port) = &mut self.port else { return (0, None) };
        if first.vnet.gso_type != VnetHeader::GSO_NONE {
            return (0, None);
        }
        for following in 1..most {
            let next = match port.take_after(first.ticket, window) {
                Took::Frame(next) => next,
                Took::Refused => {
                    self.wrote = true;
                    return (following - 1, None);
                }
                Took::Nothing => return (following - 1, None),
            };
            let metadata = metadata_of(&next, looked_at);
            let same = (next.len, next.vnet, next.tag) == (first.len, first.vnet, first.tag)
                && metadata == metadata_of(first, looked_at)
                && next.ticket.follows(first.ticket);
            if !same {
                return (following - 1, Some(next));
            }
            if late && !port.keeps() {
                return (following - 1, Some(next));
            }
            let len = at_hand(first.len, late);
            let (train, free) = self.pool.bytes_mut(buffer).split_at_mut(usize::from(following) * len);
            let (train, free) = (&train[..len], &mut free[..len]);
            if late {
                port.peek(free)
            } else {
                port.copy(free)
            }
            if !alike(train, free) {
                return (following - 1, Some(next));
            }
            if late {
                port.leave(len, next.ticket);
            }
            self.pool.set_following(buffer, following, next.ticket);
        }
        (most.saturating_sub(1), None)
    }

    /// Frees a buffer and completes the frames in it.
    pub(crate) fn give(&mut self, buffer: Buffer, origin: &Origin, status: Status) {
        for number in 0..=origin.following {
            let ticket = origin.ticket.map(|first| self.pool.ticket(buffer, first, number));
            self.complete(ticket, status);
        }
        self.pool.give(buffer);
    }

    /// Frees a buffer with [`Held`] notes and completes the frames in it that have not been given back. Answers how many they were.
    pub(crate) fn give_held(&mut self, buffer: Buffer, status: Status) -> u32 {
        let held = *self.pool.held(buffer);
        self.complete_train(buffer, &held, held.frames() as u16, status);
        self.pool.give(buffer);
        held.frames() - u32::from(held.given)
    }

    /// Gives the first frames of a train back that have left, while others still wait: their sender is not to wait for those.
    pub(super) fn give_part(&mut self, buffer: Buffer, frames: u32) {
        let held = *self.pool.held(buffer);
        let given = (u32::from(held.given) + frames).min(held.frames()) as u16;
        self.complete_train(buffer, &held, given, Status::Sent);
        self.pool.set_given(buffer, given);
    }

    /// Completes the frames in a buffer up to `end` that have not been given back. In a train each has been sent or lost by itself.
    #[inline]
    fn complete_train(&mut self, buffer: Buffer, held: &Held, end: u16, status: Status) {
        let Some(first) = held.ticket else { return };
        for number in held.given..end {
            let ticket = self.pool.ticket(buffer, first, number);
            let status = match held.following {
                0 => status,
                _ if held.sent & 1 << number != 0 => Status::Sent,
                _ => Status::Dropped,
            };
            self.complete(Some(ticket), status);
        }
    }

    fn complete(&mut self, ticket: Option<Ticket>, status: Status) {
        if let Some(ticket) = ticket
            && let Some(port) = &mut self.port
        {
            self.ready |= port.complete(ticket, status);
            self.wrote = true;
        }
    }
}

/// A sender's metadata of a frame, as far as the policy looks at it.
#[inline]
fn metadata_of(taken: &Taken, looked_at: LookedAt) -> Metadata {
    if looked_at.nothing() {
        return Metadata::default();
    }
    let PacketMetadata { priority, cgroup, user, app } = taken.metadata;
    Metadata { priority, cgroup, user, app, core: taken.core }.masked(looked_at)
}

/// The status that a frame completes with.
pub(super) fn status_of(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Sent => Status::Sent,
        Outcome::Dropped => Status::Dropped,
    }
}
