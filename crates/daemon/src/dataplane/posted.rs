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
use super::{BATCH, Dataplane};

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

/// A frame, or a train, that was copied out of its sender's memory and is to be admitted.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(super) buffer: Buffer,
    pub(super) received: Received,
    pub(super) origin: Origin,
    /// Under which its flow is kept in mind, if it is.
    tag: u32,
}

impl Copied {
    /// A frame, or a train, that was read from a port.
    #[inline]
    pub(super) fn read(buffer: Buffer, received: Received, origin: Origin) -> Self {
        Self { buffer, received, origin, tag: 0 }
    }
}

/// How far the batch of one sender is, in this turn.
#[derive(Debug, Default)]
struct Reading {
    read: usize,
    copied: usize,
    /// A frame that was taken, and is the next to be copied.
    next: Option<Taken>,
}

/// Frames in a row that no frame of their flow followed. Where flows come in turn, a train is tried for few frames only, as the frame
/// behind is then copied twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alone {
    frames: u32,
    /// How many followed the last one.
    last: u16,
}

impl Alone {
    #[inline]
    fn is_tried(self) -> bool {
        self.frames < ALONE || self.frames.is_multiple_of(ALONE)
    }

    /// How many frames to copy before they are compared.
    #[inline]
    fn at_once(self) -> u16 {
        if self.last == 0 { 64 } else { self.last }
    }

    #[inline]
    fn note(&mut self, following: u16) {
        self.frames = if following > 0 { 0 } else { self.frames.wrapping_add(1) };
        self.last = following;
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
pub(super) const POSTED: usize = 2 * BATCH;

/// Most bytes taken from one client in a turn, as the others wait while they are copied: 64 frames of an MTU, or two of the
/// longest. The last frame that begins within them is taken whole.
const COPIED: usize = 96 * 1_024;

impl Dataplane {
    /// Reads a batch from a sender's rings. Frames without room stay there.
    pub(super) fn read_posted(&mut self, index: usize, now: Nanos) -> usize {
        let Some(lane) = &mut self.tenants.lanes[index] else { return 0 };
        let (Some(_), Some(port)) = (lane.tenant, &mut lane.port) else { return 0 };
        let halted = lane.trust.halted(now);
        let begun = if halted.is_some() { port.probe() } else { port.begin() };
        if let Err(trouble) = begun {
            lane.ready = false;
            let gone = lane.trouble(trouble);
            self.note_lost_lane(index, gone);
            return 0;
        }
        if let Some(until) = halted {
            self.due.wake_at = Some(self.due.wake_at.map_or(until, |at| at.min(until)));
            return 0;
        }
        self.answer_requests(index, now);
        let mut reading = Reading::default();
        let mut batch = core::mem::take(&mut self.buffers.batch);
        loop {
            let ended = self.take_batch(index, &mut reading, &mut batch, now);
            self.admit_batch(index, &mut batch, now);
            if ended {
                break;
            }
        }
        self.buffers.batch = batch;
        if reading.read > 0
            && let Some(lane) = &mut self.tenants.lanes[index]
        {
            lane.quiet_since = now;
        }
        reading.read
    }

    /// Takes frames from a sender's rings into the batch, as many as there is room for. Answers whether the turn has had its frames, or
    /// there are no more.
    fn take_batch(
        &mut self,
        index: usize,
        reading: &mut Reading,
        batch: &mut Vec<Copied>,
        now: Nanos,
    ) -> bool {
        while reading.next.is_some() || reading.read < POSTED && reading.copied < COPIED {
            let Some(lane) = &mut self.tenants.lanes[index] else { return true };
            let (Some(tenant), Some(port)) = (lane.tenant, &mut lane.port) else { return true };
            let full = if reading.next.is_some() {
                None
            } else if self.scheduler.nic.tenant_room(tenant) as usize <= batch.len() {
                Some(Event::TenantAtCap)
            } else if !lane.pool.has_room() {
                Some(Event::BuffersInUse)
            } else {
                None
            };
            if let Some(event) = full {
                if !batch.is_empty() {
                    // Some of these may be parked or lost, so that there is room again.
                    return false;
                }
                lane.tally.event(event);
                // This also finds out whether the client is still there; the next batch reacts to it.
                let _ = port.probe();
                self.due.attentive |= port.has_more_to_say();
                return true;
            }
            let took = reading.next.take().map_or_else(|| port.take(self.scheduler.window), Took::Frame);
            match took {
                Took::Frame(taken) => {
                    // With early completions its descriptor has just been given back: the flush publishes that.
                    lane.wrote = true;
                    self.copy_taken(index, &taken, reading, batch);
                }
                Took::Refused => {
                    lane.wrote = true;
                    reading.read += 1;
                }
                Took::Nothing => {
                    if reading.read == 0 && now.since(lane.quiet_since) >= ATTENTION {
                        lane.ready = !port.rest();
                    }
                    // While its rings are polled, the thread must not sleep: the client does not kick.
                    self.due.attentive |= lane.ready;
                    return true;
                }
            }
        }
        true
    }

    /// Admits the frames of a batch, and empties it. What is known of their flows is fetched for all of them first.
    pub(super) fn admit_batch(&mut self, index: usize, batch: &mut Vec<Copied>, now: Nanos) {
        if self.sends_through_program(index) {
            return self.queue_for_program(index, batch);
        }
        if let Some(Lane { pool, cache: Some(cache), .. }) = self.tenants.lanes[index].as_deref()
            && batch.len() > 1
        {
            let tag =
                |frame: &Copied| cache.tag(frame.origin.front(pool.bytes(frame.buffer), frame.received.len));
            batch.iter_mut().for_each(|frame| frame.tag = tag(frame));
            batch.iter().for_each(|frame| cache.fetch(frame.tag));
        }
        for Copied { buffer, received, origin, .. } in batch.iter() {
            self.admit(index, *buffer, received, origin, now);
        }
        batch.clear();
    }

    /// Copies a frame out of the sender's memory, after which it can no longer change, and with it the frames that follow
    /// and have the same headers. The frame after them stays taken.
    fn copy_taken(&mut self, index: usize, taken: &Taken, reading: &mut Reading, batch: &mut Vec<Copied>) {
        // At the end of the turn no further frame is taken, as it could not be queued any more.
        let most = if reading.copied < COPIED { POSTED.saturating_sub(reading.read) } else { 1 };
        reading.read += 1;
        reading.copied += taken.len;
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        let Some(port) = &mut lane.port else { return };
        let train = train_of(taken.len);
        // Where frames are wrapped, connections mediated or a program looks at them, the payload is needed before the frame leaves.
        let late = train == 1
            && self.fleet.is_none()
            && !self.backpressure.mediates
            && lane.program.is_none()
            && port.keeps();
        let Some(buffer) = lane.pool.take(at_hand(taken.len, late)) else {
            return lane.complete(Some(taken.ticket), Status::Dropped);
        };
        let bytes = &mut lane.pool.bytes_mut(buffer)[..at_hand(taken.len, late)];
        let ticket = if late {
            port.peek(bytes);
            port.leave(bytes.len(), taken.ticket)
        } else {
            port.copy(bytes);
            taken.ticket
        };
        let train = if late { late_train_of(taken.len) } else { train };
        // Each frame that is copied may need a descriptor and a buffer of its own, and so may the one behind them.
        let room = lane.tenant.map_or(0, |tenant| self.scheduler.nic.tenant_room(tenant) as usize);
        let room = room.saturating_sub(batch.len() + 1).min(lane.pool.free()).min(POSTED);
        let more = room > 0 && lane.pool.has_room() && (port.takes_like() || lane.alone.is_tried());
        // Half of a short ring, as for a flow; of a ring with one descriptor that is none.
        let half = port.depth().unwrap_or(self.scheduler.window) as usize / 2;
        let most = if more { usize::from(train).min(most).min(half) as u16 } else { 1 };
        let tenant = lane.tenant;
        let looked_at = *lane.looked_at.get_or_insert_with(|| {
            tenant.map_or_else(LookedAt::default, |of| self.policy.program.metadata_of(of))
        });
        let first = First { taken, late, looked_at };
        let (copied, alike) = lane.follow(buffer, &first, most, room as u16);
        let mut following = alike;
        if copied == alike {
            (following, reading.next) = lane.couple(buffer, &first, copied, (most, self.scheduler.window));
        }
        let behind = following.max(copied);
        reading.read += usize::from(behind);
        reading.copied += usize::from(behind) * taken.len;
        if late {
            lane.tally.event_many(Event::HeadersRead, u64::from(behind) + 1);
        }
        lane.alone.note(following);
        batch.push(first.copied(buffer, ticket, following));
        lane.part(buffer, &first, (alike + 1, copied + 1), batch);
    }
}

/// The first frame of a train.
struct First<'a> {
    taken: &'a Taken,
    late: bool,
    looked_at: LookedAt,
}

impl First<'_> {
    /// Bytes of each of its frames that are in the buffer.
    fn at_hand(&self) -> usize {
        at_hand(self.taken.len, self.late)
    }

    /// A frame like this one, with others that follow it.
    #[inline]
    fn copied(&self, buffer: Buffer, ticket: Ticket, following: u16) -> Copied {
        let taken = self.taken;
        let metadata = metadata_of(taken, self.looked_at);
        Copied {
            buffer,
            received: Received { len: taken.len, vnet: Some(taken.vnet), ..Received::default() },
            origin: Origin {
                // A flow queue was opened for packets without metadata: packets with metadata are looked up one by one.
                queue: taken.target.filter(|_| metadata == Metadata::default()).map(QueueId),
                tag: taken.tag,
                metadata,
                ticket: Some(ticket),
                following,
                late: self.late,
                passed: Passed::Nothing,
            },
            tag: 0,
        }
    }
}

impl Dataplane {
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
        let lane = self.tenants.lanes[index].as_mut()?;
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
        lane.tally.event(Event::PayloadRead);
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
    #[inline(always)]
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

    /// Puts frames of a ring that may have the same headers behind the one in the buffer, until there are `most`, and then compares them;
    /// at most `at_once` before they are compared. Answers how many it took, and how many of these are alike.
    #[inline]
    fn follow(&mut self, buffer: Buffer, first: &First<'_>, most: u16, at_once: u16) -> (u16, u16) {
        let Some(port) = &mut self.port else { return (0, 0) };
        if most <= 1 || !port.takes_like() || first.taken.vnet.gso_type != VnetHeader::GSO_NONE {
            return (0, 0);
        }
        let len = first.at_hand();
        let mut chunk = self.alone.at_once().min(at_once);
        let mut copied = 0;
        loop {
            let (begun, end) = (copied, (copied + chunk).min(most - 1));
            while copied < end {
                let room = &mut self.pool.bytes_mut(buffer)[usize::from(copied + 1) * len..][..len];
                let Some(cookie) = port.take_like(first.taken.ticket, first.taken.len, first.late, room)
                else {
                    break;
                };
                copied += 1;
                self.pool.set_cookie(buffer, copied, cookie);
            }
            // Not one by one: the processor would wait for what has just been written.
            let (head, behind) = self.pool.bytes(buffer).split_at(len);
            let same = behind.chunks_exact(len).take(copied.into()).skip(begun.into());
            let alike = begun + same.take_while(|frame| alike(head, frame)).count() as u16;
            if alike < copied || copied < end || copied + 1 == most {
                return (copied, alike);
            }
            chunk = at_once;
        }
    }

    /// Moves the frames in the buffer from one number up to another, which are not alike to the first, into buffers of their own.
    #[inline]
    fn part(
        &mut self,
        buffer: Buffer,
        first: &First<'_>,
        (mut begin, end): (u16, u16),
        batch: &mut Vec<Copied>,
    ) {
        let len = first.at_hand();
        while begin < end {
            let frames = &self.pool.bytes(buffer)[usize::from(begin) * len..usize::from(end) * len];
            let (head, behind) = frames.split_at(len);
            let following = behind.chunks_exact(len).take_while(|frame| alike(head, frame)).count() as u16;
            let Some((own, cookie)) = self.pool.part_train(buffer, begin, begin + following + 1, len) else {
                // There is one for each: `room` was asked before.
                return;
            };
            batch.push(first.copied(own, first.taken.ticket.following(cookie), following));
            self.alone.note(following);
            begin += following + 1;
        }
    }

    /// Puts frames that follow those in the buffer, and have the same headers, behind them, until there are `most`. `following` are
    /// there behind the first. Answers how many they are then, and the first other frame, if it has been taken: its bytes must be
    /// copied anew.
    fn couple(
        &mut self,
        buffer: Buffer,
        first: &First<'_>,
        following: u16,
        (most, window): (u16, u32),
    ) -> (u16, Option<Taken>) {
        let &First { taken: first, late, looked_at } = first;
        let Some(port) = &mut self.port else { return (following, None) };
        if first.vnet.gso_type != VnetHeader::GSO_NONE {
            return (following, None);
        }
        for following in following + 1..most {
            let mut next = match port.take_after(first.ticket, window) {
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
                next.ticket = port.leave(len, next.ticket);
            }
            self.pool.set_cookie(buffer, following, next.ticket.cookie());
        }
        (following.max(most.saturating_sub(1)), None)
    }

    /// Frees a buffer and completes the frames in it.
    pub(crate) fn give(&mut self, buffer: Buffer, origin: &Origin, status: Status) {
        if let (Some(first), Some(port)) = (origin.ticket, &mut self.port) {
            let frames = self.pool.tickets(buffer, first, 0, origin.following + 1);
            self.ready |= port.complete_all(first, frames.map(|cookie| (cookie, status)));
            self.wrote = true;
        }
        self.pool.give(buffer);
    }

    /// Frees a buffer with [`Held`] notes and completes the frames in it that have not been given back. Answers how many they were.
    pub(crate) fn give_held(&mut self, buffer: Buffer, status: Status) -> u32 {
        let held = *self.pool.held(buffer);
        if self.was_offered_again(buffer) {
            self.to_come_again = self.to_come_again.saturating_sub(1);
        }
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
        if held.following == 0 {
            return self.complete(held.ticket, status);
        }
        let (Some(first), Some(port)) = (held.ticket, &mut self.port) else { return };
        let status = |number: u16| if held.sent & 1 << number != 0 { Status::Sent } else { Status::Dropped };
        let frames = self.pool.tickets(buffer, first, held.given, end).zip(held.given..);
        self.ready |= port.complete_all(first, frames.map(|(cookie, number)| (cookie, status(number))));
        self.wrote = true;
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
