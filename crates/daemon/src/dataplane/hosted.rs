//! Tenants' programs: packets wait in a program's pool until their tenant's share of the core lets it run.
//!
//! Why: a program may take any time, and only its own tenant is to feel that.
//! From: FairNIC §4.1 (batches run to completion), §4.2.1 (packets lie in their tenant's own pool), §3.1.1 (what leaves a program is scheduled
//! behind it, by the size that it has then); PicNIC §5.2 (the core's time is charged as measured).
//! Not here: the program itself (`plimsoll-offload`), whose turn it is (`nic`'s ingress), the files of modules (`crate::programs`).
//! Invariant: a packet for a program, or from its tenant, passes it, or is lost for a counted reason; what a program sends is checked and
//! scheduled like any frame of its tenant's, from memory that the program does not reach.

mod direct;
mod own_core;
mod place;
mod replace;
mod run;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use plimsoll_offload::{Pace, Packet, Program, Request, Slot, Way};
use plimsoll_policy::{Fails, StateKept, TenantProgram};
use plimsoll_ports::Frame;
use plimsoll_units::{Nanos, Span};
use plimsoll_vnic::Status;
use plimsoll_wire::{Offload, parse_front};

use direct::Arrived;
pub(super) use direct::{Lifted, is_in_pool};
use place::{OwnCore, Place};

use super::Dataplane;
use super::drops::Loss;
use super::emit::{Emitted, Part, segments, write};
use super::lane::Lane;
use super::outward::check;
use super::pool::Held;
use super::posted::Copied;
use crate::epochs::Epochs;

/// Buffers that packets for the tenant leave free, for those that it sends and those that its program adds.
pub(crate) const RESERVED: u32 = 2 * plimsoll_offload::BATCH as u32;

/// Most frames of the tenant's that wait for its program: its port is not read while there are as many.
const MOST_OUT: usize = 64;

/// A call that has returned and took longer than this should have been ended before: what is one instruction, as the filling of much memory,
/// is not ended in its midst.
pub(super) const LONGEST_CALL: Span = Span::micros(1_500);

/// A tenant's program, with the packets that wait for it.
pub struct Hosted {
    program: Place,
    /// Its tenant's name.
    tenant: Arc<str>,
    fails: Fails,
    state: StateKept,
    /// Ends calls that take too long; without it, fuel does.
    epochs: Option<Arc<Epochs>>,
    /// Frames from the uplink that wait at the tenant's station and lie in the program's pool, in the station's order.
    arrived: VecDeque<Arrived>,
    /// Packets for the tenant, in the program's pool.
    incoming: VecDeque<Packet>,
    /// Packets of the tenant's that come back from coprocessors, in the program's pool.
    returned: VecDeque<Packet>,
    /// Frames of the tenant's, in its lane's buffers.
    outgoing: VecDeque<Copied>,
    /// How far the first of these has been given to the program: its frames, and payload bytes of the next one.
    begun: (u16, u32),
    /// Empty between two calls.
    batch: Vec<Packet>,
    pace: Pace,
    ticked: Nanos,
    /// Set where another program, or none, is to follow this one, whose core still has packets.
    leaving: Option<Leaving>,
    pub(crate) now: ProgramNow,
}

/// What is to follow a program.
struct Leaving {
    next: Option<Box<Hosted>>,
}

/// What a program has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramNow {
    /// Calls with packets.
    pub calls: u64,
    /// Packets that it was given.
    pub packets: u64,
    /// Of these, packets that were written into its memory as they were fetched from the uplink.
    pub direct: u64,
    /// Packets that it has added.
    pub added: u64,
    /// Packets that it has sent to another port than they were going to.
    pub redirected: u64,
    /// Packets that it has sent to coprocessors.
    pub to_units: u64,
    /// Calls that have done what WebAssembly forbids, or answered a wrong number of packets.
    pub faults: u64,
    /// Calls that have taken too long.
    pub overruns: u64,
    /// Whether it was halted for that.
    pub halted: bool,
    /// Whether its state was taken over at the last reload that changed it; none where there was none, or it was not to be kept.
    pub kept_state: Option<bool>,
    /// The core that it has to itself.
    pub core: Option<u32>,
    /// CPU time that its calls have taken there.
    pub core_time: Span,
}

impl Hosted {
    /// A program that has been started, as the policy states it. `epochs` are those of its runtime, if calls end by them.
    #[must_use]
    pub fn new(
        program: Program,
        (tenant, stated): (&str, &TenantProgram),
        epochs: Option<Arc<Epochs>>,
    ) -> Self {
        Self::at(Place::Here(Box::new(program)), (tenant, stated), epochs)
    }

    /// Like [`Hosted::new`], with a thread for the program on this core.
    ///
    /// # Errors
    /// When the system has no more threads, or the process may not use the core.
    pub fn on_core(
        core: u32,
        program: Program,
        (tenant, stated): (&str, &TenantProgram),
        epochs: Option<Arc<Epochs>>,
    ) -> io::Result<Self> {
        let place = Place::Core(Box::new(OwnCore::start(core, program, epochs.clone())?));
        Ok(Self::at(place, (tenant, stated), epochs))
    }

    fn at(program: Place, (tenant, stated): (&str, &TenantProgram), epochs: Option<Arc<Epochs>>) -> Self {
        let (slots, core) = (program.free(), program.own_core());
        Self {
            program,
            tenant: tenant.into(),
            fails: stated.fails,
            state: stated.state,
            epochs,
            arrived: VecDeque::with_capacity(slots),
            incoming: VecDeque::with_capacity(slots),
            returned: VecDeque::new(),
            outgoing: VecDeque::with_capacity(2 * MOST_OUT),
            begun: (0, 0),
            batch: Vec::with_capacity(Pace::BATCH),
            pace: Pace::default(),
            ticked: Nanos::ZERO,
            leaving: None,
            now: ProgramNow { core, ..ProgramNow::default() },
        }
    }

    /// Whether packets of this direction pass it, or are lost as it was halted.
    #[inline]
    pub(crate) fn takes(&self, way: Way) -> bool {
        self.program.looks_at(way) && !(self.now.halted && self.fails == Fails::Open && !self.has_packets())
    }

    /// Whether packets for it are lost, as it was halted.
    fn refuses(&self) -> bool {
        self.now.halted && self.fails == Fails::Closed && self.leaving.is_none()
    }

    /// Whether the engine's thread runs it.
    pub(super) fn is_here(&self) -> bool {
        self.program.own_core().is_none()
    }

    /// Whether its tenant's port may be read.
    #[inline]
    pub(crate) fn may_read(&self) -> bool {
        self.outgoing.len() < MOST_OUT
    }

    /// Whether packets wait for it, or are with it.
    pub(crate) fn has_packets(&self) -> bool {
        self.has_waiting() || self.program.inside() != [0; 2]
    }

    /// Whether packets wait for it.
    fn has_waiting(&self) -> bool {
        !self.incoming.is_empty() || !self.outgoing.is_empty() || !self.returned.is_empty()
    }

    /// Takes a packet back from a coprocessor; false without a free buffer.
    pub(super) fn come_back(&mut self, request: &Request, result: u32, way: Way) -> bool {
        let Some(packet) = self.program.give_back(request, result) else { return false };
        match way {
            Way::Ingress => self.incoming.push_back(packet),
            Way::Egress => self.returned.push_back(packet),
        }
        true
    }

    /// Whether as many packets wait for it as one call takes.
    pub(super) fn is_full(&self) -> bool {
        self.incoming.len() + self.outgoing.len() + self.returned.len() >= self.most()
    }

    /// When `tick` is to be called next, if the program has it.
    pub(super) fn ticks_at(&self) -> Option<Nanos> {
        (self.program.ticks() && !self.now.halted).then(|| self.ticked + Pace::TICK)
    }

    /// Most packets of the next call, so that others do not wait for long.
    fn most(&self) -> usize {
        self.pace.most()
    }

    /// Notes how long a call took.
    pub(super) fn took(&mut self, packets: usize, took: Span) {
        self.pace.took(packets, took);
    }

    /// Puts a frame for the tenant into the program's pool, as packets that are finished: segments are cut, and checksums are written.
    /// Without a free buffer the rest of its segments is lost.
    fn store(&mut self, frame: &Frame<'_>, offload: &Offload, part: &mut Part) -> Result<Emitted, Loss> {
        // None of its segments is longer than the first.
        if !self.fits(offload, part.first(offload)) {
            return Err(Loss::ProgramTooLong);
        }
        let emitted = segments(offload, part, |piece| {
            if self.program.free() <= RESERVED as usize {
                return Ok(Emitted::Full);
            }
            Ok(match self.put(frame, offload, piece) {
                Ok(packet) => {
                    self.incoming.push_back(Packet { port: Packet::NETWORK, ..packet });
                    Emitted::Sent
                }
                Err(why) => why,
            })
        });
        Ok(emitted.unwrap_or(Emitted::Full))
    }

    /// Whether a buffer of the pool holds this piece of a frame.
    fn fits(&self, offload: &Offload, piece: Part) -> bool {
        piece.len(offload) <= self.program.limits().buffer as usize
    }

    /// Writes one packet of a frame into a free buffer of the pool.
    fn put(&mut self, frame: &Frame<'_>, offload: &Offload, piece: Part) -> Result<Packet, Emitted> {
        let len = piece.len(offload);
        let slot = self.program.take().ok_or(Emitted::Full)?;
        let written = write(frame, offload, piece, &mut self.program.bytes_mut(slot)[..len]);
        match written {
            Ok(true) => Ok(Packet::new(slot, len as u32, TENANT)),
            Ok(false) => Err(self.give_up(slot, Emitted::TakenBack)),
            Err(_) => Err(self.give_up(slot, Emitted::Inconsistent)),
        }
    }

    fn give_up(&mut self, slot: Slot, why: Emitted) -> Emitted {
        self.program.give(slot);
        why
    }

    /// Puts packets of the tenant's into the batch, at most `most`, and gives frames back to their sender that are there whole.
    fn fill(&mut self, lane: &mut Lane, most: usize) {
        let returned = self.returned.len().min(most);
        self.batch.extend(self.returned.drain(..returned));
        while self.batch.len() < most {
            let Some(&Copied { buffer, ref origin, .. }) = self.outgoing.front() else { break };
            let (frames, (number, gone)) = (origin.frames(), self.begun);
            let held = *lane.pool.held(buffer);
            if (number, gone) == (0, 0) && lane.was_offered_again(buffer) {
                lane.tally.lost_many(Loss::TakenBack, frames.into());
                lane.give_held(buffer, Status::Dropped);
                self.outgoing.pop_front();
                continue;
            }
            let mut part = Part::whole(held.len, &held.offload);
            part.skip(gone);
            let piece = part.first(&held.offload);
            let len = held.at_hand();
            let frame = Frame::whole(&lane.pool.frame(buffer).0[usize::from(number) * len..][..len]);
            let put = self.fits(&held.offload, piece).then(|| self.put(&frame, &held.offload, piece));
            match put {
                Some(Ok(packet)) => self.batch.push(packet),
                Some(Err(Emitted::Full)) => break,
                Some(Err(_)) => lane.tally.lost(Loss::Inconsistent),
                None => lane.tally.lost(Loss::ProgramTooLong),
            }
            self.begun =
                if piece.payload < part.payload { (number, gone + piece.payload) } else { (number + 1, 0) };
            if u32::from(self.begun.0) == frames {
                // Each of them has left, as far as its sender is concerned.
                lane.pool.add_sent(buffer, u32::MAX);
                lane.give_held(buffer, Status::Sent);
                self.outgoing.pop_front();
                self.begun = (0, 0);
            }
        }
    }

    /// Gives up the packets that its core has; answers how many they were, by direction.
    fn abandon(&mut self) -> [u64; 2] {
        self.program.core_mut().map_or([0; 2], |core| core.abandon())
    }

    /// Notes that a call has taken too long; answers whether the program is halted for that.
    fn overrun(&mut self, now: Nanos) -> bool {
        self.now.overruns += 1;
        let halts = self.pace.overrun(now);
        self.now.halted |= halts;
        halts
    }
}

/// The port that stands for the tenant's own.
const TENANT: u8 = 1;

/// Calls a program, so that it ends if it takes too long.
fn in_time<T>(epochs: Option<&Arc<Epochs>>, call: impl FnOnce() -> T) -> T {
    let running = epochs.map(|epochs| epochs.run());
    let answer = call();
    drop(running);
    answer
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted")
            .field("program", &self.program)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Dataplane {
    /// Puts a frame for a tenant where its program finds it. `None` where the tenant has no program that looks at such frames.
    #[inline]
    pub(super) fn store_for_program(
        &mut self,
        frame: &Frame<'_>,
        offload: &Offload,
        part: &mut Part,
        to: u32,
    ) -> Option<Result<Emitted, Loss>> {
        let lane = self.tenants.lane(to)?;
        let hosted = lane.program.as_mut()?;
        if !hosted.takes(Way::Ingress) {
            return None;
        }
        if hosted.refuses() {
            return Some(Err(Loss::ProgramHalted));
        }
        let mut emitted = hosted.store(frame, offload, part);
        if matches!(emitted, Ok(Emitted::Full)) && !hosted.is_here() {
            // It is slower than its packets come, on a core that is its own: no loss of the sender's.
            lane.tally.lost(Loss::ProgramBusy);
            emitted = Ok(Emitted::Sent);
        }
        self.inward.set_work(to, hosted.has_packets());
        Some(emitted)
    }

    /// Whether frames that a tenant sends pass a program first.
    #[inline]
    pub(super) fn sends_through_program(&self, index: usize) -> bool {
        let hosted = self.tenants.lanes[index].as_ref().and_then(|lane| lane.program.as_ref());
        hosted.is_some_and(|hosted| hosted.takes(Way::Egress))
    }

    /// Puts frames that a tenant sends where its program finds them, and empties the batch.
    pub(super) fn queue_for_program(&mut self, index: usize, batch: &mut Vec<Copied>) {
        let Some(lane) = self.tenants.lanes[index].as_deref_mut() else { return batch.clear() };
        let Some(mut hosted) = lane.program.take() else { return batch.clear() };
        for mut copied in batch.drain(..) {
            let Copied { buffer, received, origin, .. } = &mut copied;
            if hosted.refuses() {
                lane.tally.lost_many(Loss::ProgramHalted, origin.frames().into());
                lane.give(*buffer, origin, Status::Dropped);
                continue;
            }
            let front = origin.front(lane.pool.bytes(*buffer), received.len);
            let offload = match check(&parse_front(front), front, received) {
                Ok((_, offload)) => offload,
                Err(why) => {
                    why.count(&mut lane.tally, origin.frames());
                    lane.give(*buffer, origin, Status::Malformed);
                    continue;
                }
            };
            if origin.following == 0 {
                *buffer = lane.pool.settle(*buffer, received.len);
            }
            let (ticket, following) = (origin.ticket, origin.following);
            let len = received.len as u32;
            lane.pool.set_held(*buffer, Held { len, offload, ticket, following, ..Held::default() });
            hosted.outgoing.push_back(copied);
        }
        let has_packets = hosted.has_packets();
        lane.program = Some(hosted);
        self.inward.set_work(index as u32, has_packets);
    }

    /// Lets programs take part that could not run for want of descriptors, and those whose time for `tick` has come. Answers when the
    /// next one is to tick.
    pub(super) fn tend_programs(&mut self, now: Nanos) -> Option<Nanos> {
        if !self.tenants.has_programs {
            return None;
        }
        let (mut next, mut left) = (None, None);
        for (index, lane) in (0_u32..).zip(&self.tenants.lanes) {
            let Some(hosted) = lane.as_ref().and_then(|lane| lane.program.as_ref()) else { continue };
            let ticks = hosted.ticks_at().filter(|_| hosted.may_call());
            let has_work =
                hosted.has_waiting() || hosted.program.has_done() || ticks.is_some_and(|at| at <= now);
            self.inward.set_work(index, has_work);
            next = next.into_iter().chain(ticks).chain(hosted.look_at(now)).min();
            left = left.or(hosted.has_left().then_some(index));
        }
        left.into_iter().for_each(|index| self.follow_program(index, now));
        next
    }
}

impl Lane {
    /// Takes its program out, as its tenant is gone; what waits for it is lost.
    pub(super) fn drop_program(&mut self) -> Option<Box<Hosted>> {
        let mut hosted = self.program.take()?;
        let [incoming, outgoing] = hosted.abandon();
        let waiting = (hosted.incoming.len() + hosted.returned.len()) as u64;
        self.tally.lost_many(Loss::ReceiverGone, incoming + waiting);
        self.tally.lost_many(Loss::Stopped, outgoing);
        self.lose_outgoing(&mut hosted, Loss::Stopped);
        Some(hosted)
    }

    /// Counts what waits for its program at a stop.
    pub(super) fn stop_program(&mut self) -> u64 {
        let Some(mut hosted) = self.program.take() else { return 0 };
        let waiting = (hosted.arrived.len() + hosted.incoming.len() + hosted.returned.len()) as u64;
        let inside = waiting + hosted.abandon().iter().sum::<u64>();
        self.tally.lost_many(Loss::Stopped, inside);
        let sent = self.lose_outgoing(&mut hosted, Loss::Stopped);
        self.program = Some(hosted);
        inside + sent
    }

    /// Drops what it has sent and its program has not seen.
    pub(super) fn lose_outgoing(&mut self, hosted: &mut Hosted, why: Loss) -> u64 {
        let mut lost = 0;
        for Copied { buffer, origin, .. } in hosted.outgoing.drain(..) {
            let begun = core::mem::take(&mut hosted.begun);
            lost += u64::from(origin.frames()) - u64::from(begun.0);
            self.give_held(buffer, Status::Dropped);
        }
        self.tally.lost_many(why, lost);
        lost
    }
}
