//! Departures: sends frames to the uplink, to another tenant, or to all.
//!
//! Why: every frame of a tenant passes the policy, also one to a neighbour on the same host.
//! From: `docs/architecture.md`, "live".
//! Not here: the order (`nic`), and the queues of frames from the uplink (`inward`).
//! Invariant: a frame that the uplink has no room for is kept and tried again, in its place.

use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_control::backpressure::{FlowSource, Place};
use plimsoll_nic::{Outcome, Transmit, Verdict};
use plimsoll_policy::NodeId;
use plimsoll_ports::{DropReason, Frame, Port, Sending, Trouble};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::{Ecn, EncapsulationError, Front, Offload, OffloadKind, parse};

use super::crossing::Via;
use super::drops::{Event, Loss, Tally};
use super::emit::{Emitted, Part, emit};
use super::flows::Hashed;
use super::heavy::{HashedCount, markable};
use super::lane::{Lane, sum};
use super::mac_table::{Learned, Mac, Owner, is_group};
use super::outward::{check, on_wire};
use super::pool::Buffer;
use super::press::{Act, Way};
use super::{DEPARTURES, Dataplane, Held};
use crate::departures::{Headers, Packed, Passage};

/// The result of sending one frame to one receiver.
pub(super) enum Handed {
    Done,
    /// The uplink has no room: try again later.
    Wait,
    Lost(Loss),
    /// The port could not take it.
    Refused(DropReason),
    /// It left, but not to all its receivers.
    Curtailed(Loss),
    /// The overlay does not carry it.
    Unfit(EncapsulationError),
}

/// What the headers of a frame from the uplink decide; it holds for all frames with the same headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    offload: Offload,
    to: Receiver,
    /// Its flow, where it is counted.
    flow: Option<HashedCount>,
    /// Its ECN field, where it may be marked.
    ecn: Codepoint,
    /// Packets and bytes of frames with these headers that are still to be counted for the flow.
    uncounted: (u16, u32),
}

impl Bound {
    /// Whether frames with these headers are still to be counted.
    #[inline]
    pub(super) fn is_uncounted(&self) -> bool {
        self.uncounted.0 > 0
    }

    /// Whether its flow, where that is counted, comes from there.
    #[inline]
    pub(super) fn comes_from(&self, from: FlowSource) -> bool {
        self.flow.as_ref().is_none_or(|flow| flow.of.from == from)
    }

    /// The lane of the receiver, where nothing is to be done but to hand the frame on.
    #[inline]
    pub(super) fn plain(&self) -> Option<u32> {
        let Receiver::Lane(lane) = self.to else { return None };
        lane.filter(|_| self.offload.kind == OffloadKind::Plain && self.flow.is_none())
    }
}

/// The receiver of a frame from the uplink.
#[derive(Clone, Copy, Debug)]
enum Receiver {
    /// A lane, if its address is known.
    Lane(Option<u32>),
    All,
}

/// Copies of broadcast frames that may still be made in this turn: each frame is charged as one, so its copies would
/// otherwise keep the thread from other work. Tenants and the uplink have separate budgets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copies {
    of_tenants: usize,
    of_uplink: usize,
}

impl Default for Copies {
    fn default() -> Self {
        Self { of_tenants: COPIES, of_uplink: COPIES }
    }
}

/// As many copies as two turns' departures. The last frame that begins within it is still copied to all.
const COPIES: usize = 2 * DEPARTURES;

impl Tally {
    /// Counts the result of a frame of the tenant's. `None`: the frame waits.
    fn account(&mut self, handed: Handed) -> Option<Outcome> {
        match handed {
            Handed::Done => return Some(Outcome::Sent),
            Handed::Wait => return None,
            Handed::Curtailed(why) => {
                self.lost(why);
                return Some(Outcome::Sent);
            }
            Handed::Lost(why) => self.lost(why),
            Handed::Refused(why) => self.undelivered(why),
            Handed::Unfit(why) => self.not_wrapped(why, 1),
        }
        Some(Outcome::Dropped)
    }
}

impl Dataplane {
    /// Sends frames that are due, at most [`DEPARTURES`]; answers whether any left.
    pub(super) fn depart(&mut self, now: Nanos) -> bool {
        let mut departed = 0;
        self.copies = Copies::default();
        self.uplink.blocked = false;
        self.near.begin(self.heavy.as_ref().and_then(|heavy| heavy.watched_lane()));
        while departed < DEPARTURES {
            if self.sent == self.out.len() {
                self.sent = 0;
                self.out.clear();
                self.nic.poll_transmit(now, &mut self.out);
                if self.out.is_empty() {
                    break;
                }
            }
            let transmit = self.out[self.sent];
            let Some((outcome, frames)) = self.send(&transmit, now) else {
                self.uplink.blocked = true;
                if !self.uplink.is_away() {
                    self.uplink.tally.event(Event::UplinkFull);
                }
                break;
            };
            self.nic.complete(&transmit, outcome);
            self.sent += 1;
            departed += frames;
        }
        self.inward.via = Via::Uplink;
        self.flush_uplink();
        self.blame_senders();
        departed > 0
    }

    /// Drops all frames that are held, when a stop takes too long. Answers how many they were.
    pub fn abandon(&mut self, now: Nanos) -> u64 {
        let mut lost = 0;
        let mut later = now;
        // Parked frames enter as room is made.
        while self.held() > 0 || self.free_parked(later) {
            if self.sent == self.out.len() {
                self.sent = 0;
                self.out.clear();
                self.nic.poll_transmit(later, &mut self.out);
                match (self.out.is_empty(), self.nic.poll_timeout()) {
                    (true, None) => break,
                    (true, Some(next)) => later = next.max(later + Span::micros(1)),
                    (false, _) => {}
                }
                continue;
            }
            let transmit = self.out[self.sent];
            self.sent += 1;
            let gone = core::mem::take(&mut self.uplink.resume);
            self.uplink.flooded = 0;
            self.nic.complete(&transmit, Outcome::Dropped);
            lost += self.count_stopped(&transmit, gone);
        }
        let ports = self.uplink.port.iter().chain(self.uplink.idle());
        let staged: usize = ports.map(Port::staged).sum();
        self.uplink.tally.lost_many(Loss::Stopped, staged as u64);
        lost + staged as u64
    }

    /// Frees completed buffers; answers whether parked frames entered in their place.
    fn free_parked(&mut self, now: Nanos) -> bool {
        self.free_completed(now);
        self.held() > 0
    }

    /// Sends one pull to its destination address; answers how many frames it wrote. `None`: the uplink has no room.
    fn send(&mut self, transmit: &Transmit, now: Nanos) -> Option<(Outcome, usize)> {
        let (from, buffer) = Buffer::from_address(transmit.addr);
        // Taken out meanwhile, so that the frame can be read while other lanes' ports are written.
        let Some(mut lane) = self.lanes.get_mut(from as usize).and_then(Option::take) else {
            (self.uplink.resume, self.uplink.flooded) = (0, 0);
            return Some((Outcome::Dropped, 1));
        };
        if lane.was_offered_again(buffer) {
            let gone = core::mem::take(&mut self.uplink.resume);
            self.uplink.flooded = 0;
            let train = lane.pool.held(buffer).following > 0;
            let frames = if train { transmit.frames - gone } else { u32::from(transmit.last) };
            lane.tally.lost_many(Loss::TakenBack, frames.into());
            self.lanes[from as usize] = Some(lane);
            return Some((Outcome::Dropped, 1));
        }
        if transmit.verdict != Verdict::Pass && self.signal(&mut lane, buffer, transmit) {
            self.lanes[from as usize] = Some(lane);
            return Some((Outcome::Dropped, 1));
        }
        let held = lane.pool.held(buffer);
        if held.following > 0 {
            let outcome = self.send_train(&mut lane, buffer, transmit, from, now);
            self.lanes[from as usize] = Some(lane);
            return outcome.map(|outcome| (outcome, transmit.frames as usize));
        }
        let payload = transmit.len - u32::from(held.offload.header);
        let mut part = Part { offset: transmit.offset, payload };
        part.skip(self.uplink.resume);
        let way = self.macs.owner(held.to);
        let handed = if held.late {
            lane.conduct.touched = self.copying.part;
            match lane.frame(buffer, 0) {
                Some(frame) => self.hand(&frame, held, &mut part, (from, way), now),
                None => Handed::Lost(Loss::TakenBack),
            }
        } else {
            let frame = Frame::whole(lane.pool.frame(buffer).0);
            self.hand(&frame, held, &mut part, (from, way), now)
        };
        self.uplink.resume = if matches!(handed, Handed::Wait) { payload - part.payload } else { 0 };
        if !matches!(handed, Handed::Wait) {
            let frames = u32::from(transmit.last);
            self.note(transmit, (&held.headers, lane.pool.metadata(buffer)), from, frames, now);
            self.measure(&mut lane, transmit, frames, now);
        }
        let outcome = lane.tally.account(handed);
        self.lanes[from as usize] = Some(lane);
        // A pull that is cut here takes as long as its frames.
        let cut = !self.uplink.segments && !matches!(way, Some(Owner::Lane(to)) if to != from);
        outcome.map(|outcome| (outcome, if cut { transmit.frames.max(1) as usize } else { 1 }))
    }

    /// Sends the frames of a train, one after the other; each may be lost by itself.
    fn send_train(
        &mut self,
        lane: &mut Lane,
        buffer: Buffer,
        transmit: &Transmit,
        from: u32,
        now: Nanos,
    ) -> Option<Outcome> {
        let held = *lane.pool.held(buffer);
        let (first, count) = held.pulled(transmit);
        let way = self.macs.owner(held.to);
        let gone = core::mem::take(&mut self.uplink.resume);
        let mut sent: u32 = 0;
        if held.late {
            lane.conduct.touched = self.copying.part;
        }
        let (bytes, len) = (lane.pool.frame(buffer).0, held.at_hand());
        let finished = !held.late && held.offload.kind == OffloadKind::Plain;
        let mut number = gone;
        while number < count {
            let behind = &bytes[(first + number) as usize * len..(first + count) as usize * len];
            let run =
                if finished { self.hand_run(behind.chunks_exact(len), &held, (from, way)) } else { None };
            let (left, handed) = run.unwrap_or_else(|| {
                let frame = if held.late {
                    lane.frame(buffer, (first + number) as u16)
                } else {
                    Some(Frame::whole(&behind[..len]))
                };
                let mut part = Part::whole(held.len, &held.offload);
                let handed = match frame {
                    Some(frame) => self.hand(&frame, &held, &mut part, (from, way), now),
                    None => Handed::Lost(Loss::TakenBack),
                };
                (0, Some(handed))
            });
            sent |= ((1 << left) - 1) << (first + number);
            number += left;
            match handed.map(|handed| lane.tally.account(handed)) {
                None => break,
                Some(Some(Outcome::Sent)) => sent |= 1 << (first + number),
                Some(Some(Outcome::Dropped)) => {}
                Some(None) => {
                    lane.pool.add_sent(buffer, sent);
                    self.uplink.resume = number;
                    return None;
                }
            }
            number += 1;
        }
        let outcome = if sent == 0 { Outcome::Dropped } else { Outcome::Sent };
        lane.pool.add_sent(buffer, sent);
        if !transmit.last {
            lane.give_part(buffer, count);
            self.queues[transmit.queue.0 as usize] -= count;
        }
        let whole = Transmit { len: held.len * count, ..*transmit };
        self.note(&whole, (&held.headers, lane.pool.metadata(buffer)), from, count, now);
        self.measure(lane, &whole, count, now);
        Some(outcome)
    }

    /// Notes for the tenant how long the frames of a pull have waited.
    fn measure(&mut self, lane: &mut Lane, transmit: &Transmit, frames: u32, now: Nanos) {
        let took = self.waits.of(transmit, now);
        lane.recent.sent_bytes += u64::from(transmit.len);
        if frames > 0 {
            lane.recent.left(transmit.limited, took, frames, &lane.halves);
        }
    }

    /// Sends to the uplink, to the lane that owns the address, or to all.
    fn hand(
        &mut self,
        frame: &Frame<'_>,
        held: &Held,
        part: &mut Part,
        (from, way): (u32, Option<Owner>),
        now: Nanos,
    ) -> Handed {
        let target = held.to;
        self.inward.via = Via::Tenant(from);
        match way {
            Some(Owner::Lane(to)) if to != from => {
                self.near.note(Some(to), part.packets(&held.offload));
                self.send_one(frame, &held.offload, *part, to)
            }
            _ => {
                self.near.note(None, 1);
                let left = self.uplink.resume;
                let whole = Part { offset: part.offset - left, payload: part.payload + left };
                let handed = match self.fleet {
                    // In a fleet no payload waits with its sender.
                    Some(_) => match frame.bytes() {
                        Some(frame) => self.send_out(frame, held, part, whole, from, now),
                        None => Handed::Lost(Loss::Inconsistent),
                    },
                    None => self.send_uplink(frame, &held.offload, part, from),
                };
                if !is_group(target) || matches!(handed, Handed::Wait) {
                    return handed;
                }
                if self.copies.of_tenants == 0 {
                    return match handed {
                        // No other host got a copy, either: the frame has reached no receiver.
                        Handed::Curtailed(why @ Loss::ForeignSource) => Handed::Lost(why),
                        _ => Handed::Curtailed(Loss::FloodLimit),
                    };
                }
                let made = self.send_all(frame, &held.offload, whole);
                self.copies.of_tenants = self.copies.of_tenants.saturating_sub(made);
                handed
            }
        }
    }

    /// Sends finished frames to one receiver, one after the other, until one does not leave. Answers how many left, and what became of
    /// the next one, if there is one; nothing where each needs a look.
    #[inline]
    fn hand_run<'f>(
        &mut self,
        mut frames: impl ExactSizeIterator<Item = &'f [u8]>,
        held: &Held,
        (from, way): (u32, Option<Owner>),
    ) -> Option<(u32, Option<Handed>)> {
        let to = match way {
            Some(Owner::Lane(to)) if to != from => Some(to),
            _ if self.fleet.is_some() || is_group(held.to) => return None,
            _ => None,
        };
        let port = match to {
            Some(to) => self.lanes.get_mut(to as usize).and_then(|lane| lane.as_mut()?.port.as_mut()),
            None => self.uplink.port.as_mut(),
        }?;
        let all = frames.len() as u32;
        let mut last = Ok(Sending::Sent);
        for frame in frames.by_ref() {
            last = port.send(frame, None);
            if last != Ok(Sending::Sent) {
                break;
            }
        }
        let taken = port.taken();
        let left = all - frames.len() as u32 - u32::from(last != Ok(Sending::Sent));
        self.near.note_run(to, left + u32::from(left < all));
        let emitted = last.map(Emitted::from);
        let handed = match to {
            Some(to) => self.after_lane(to, emitted),
            None => {
                self.uplink.senders.note(taken, from);
                self.after_uplink(emitted)
            }
        };
        Some((left, (left < all).then_some(handed)))
    }

    fn send_uplink(&mut self, frame: &Frame<'_>, offload: &Offload, part: &mut Part, from: u32) -> Handed {
        let Some(port) = &mut self.uplink.port else { return Handed::Wait };
        let emitted = emit(port, frame, offload, part, &mut self.scratch);
        self.uplink.senders.note(port.taken(), from);
        self.after_uplink(emitted)
    }

    /// What became of a frame for the uplink.
    #[inline]
    fn after_uplink(&mut self, emitted: Result<Emitted, Trouble>) -> Handed {
        self.uplink.down = emitted.is_err();
        match emitted {
            Ok(Emitted::Sent) => Handed::Done,
            Ok(Emitted::Full) | Err(Trouble::Down) => Handed::Wait,
            Ok(Emitted::Refused(why)) => {
                self.uplink.blamed[why as usize] += 1;
                Handed::Refused(why)
            }
            Ok(Emitted::Inconsistent) => Handed::Lost(Loss::Inconsistent),
            Ok(Emitted::TakenBack) => Handed::Lost(Loss::TakenBack),
            Err(Trouble::Gone) => {
                self.lose_uplink();
                Handed::Wait
            }
        }
    }

    /// Sends to one tenant; a frame that its port cannot take is a loss of the sender, and counts there only.
    fn send_one(&mut self, frame: &Frame<'_>, offload: &Offload, part: Part, to: u32) -> Handed {
        let handed = self.send_lane(frame, offload, part, to);
        self.blame_sender(&handed, to);
        handed
    }

    /// Counts what a tenant's port could not take for the sender only.
    #[inline]
    fn blame_sender(&mut self, handed: &Handed, to: u32) {
        if let (Handed::Refused(why), Some(Some(lane))) = (handed, self.lanes.get_mut(to as usize)) {
            lane.blamed[*why as usize] += 1;
        }
    }

    /// A tenant that has no room in the middle of many segments loses the rest of them.
    fn send_lane(&mut self, frame: &Frame<'_>, offload: &Offload, mut part: Part, to: u32) -> Handed {
        let Some(lane) = self.lanes.get_mut(to as usize).and_then(Option::as_mut) else {
            return Handed::Lost(Loss::ReceiverGone);
        };
        let Some(port) = &mut lane.port else { return self.send_across(frame, offload, part, to) };
        let emitted = emit(port, frame, offload, &mut part, &mut self.scratch);
        self.after_send(to, emitted)
    }

    /// What became of frames for one tenant, as [`Dataplane::send_one`] answers it.
    #[inline]
    fn after_lane(&mut self, to: u32, emitted: Result<Emitted, Trouble>) -> Handed {
        let handed = self.after_send(to, emitted);
        self.blame_sender(&handed, to);
        handed
    }

    fn after_send(&mut self, to: u32, emitted: Result<Emitted, Trouble>) -> Handed {
        let Some(lane) = self.lanes.get_mut(to as usize).and_then(Option::as_mut) else {
            return Handed::Lost(Loss::ReceiverGone);
        };
        lane.wrote = true;
        lane.conduct.touched = self.copying.part;
        match emitted {
            Ok(Emitted::Sent) => Handed::Done,
            emitted => self.lane_refused(emitted, to),
        }
    }

    /// What it means that a lane's port has not sent a frame.
    #[cold]
    fn lane_refused(&mut self, emitted: Result<Emitted, Trouble>, to: u32) -> Handed {
        let Some(lane) = self.lanes.get_mut(to as usize).and_then(Option::as_mut) else {
            return Handed::Lost(Loss::ReceiverGone);
        };
        match emitted {
            Ok(Emitted::Sent) => Handed::Done,
            Ok(Emitted::Full) => {
                lane.recent.unread += 1;
                Handed::Lost(Loss::ReceiverFull)
            }
            Ok(Emitted::Refused(why)) => Handed::Refused(why),
            Ok(Emitted::Inconsistent) => Handed::Lost(Loss::Inconsistent),
            Ok(Emitted::TakenBack) => Handed::Lost(Loss::TakenBack),
            Err(trouble) => {
                let gone = lane.trouble(trouble);
                self.note_lost_lane(to as usize, gone);
                Handed::Lost(Loss::ReceiverGone)
            }
        }
    }

    /// Sends to each tenant with a port; answers how many those were. The sender's lane is taken out meanwhile, so it gets
    /// no copy.
    fn send_all(&mut self, frame: &Frame<'_>, offload: &Offload, part: Part) -> usize {
        let mut made = self.send_all_across(frame, offload, part);
        for to in 0..self.lanes.len() {
            if self.lanes[to].as_ref().is_none_or(|lane| lane.seat.elsewhere.is_some()) {
                continue;
            }
            made += 1;
            // A receiver that cannot take a broadcast is no loss of the sender: the port counts it.
            let _ = self.send_lane(frame, offload, part, u32::try_from(to).unwrap_or(u32::MAX));
        }
        made
    }

    /// Parses the headers of a frame from the uplink: it goes to the tenant with its destination address, or to all.
    /// Writes `None` when they are malformed, which is counted.
    ///
    /// It writes the result in its place: a copy would have to wait for the many short writes that made it.
    pub(super) fn look_at(
        &mut self,
        frame: &[u8],
        received: &plimsoll_ports::Received,
        (lane, from): (Option<u32>, FlowSource),
        now: Nanos,
        bound: &mut Option<Bound>,
    ) {
        let parsed = parse(frame);
        let (parsed, offload) = match check(&parsed, Front::whole(frame), received) {
            Ok(checked) => checked,
            Err(why) => {
                why.count(&mut self.uplink.tally, 1);
                *bound = None;
                return;
            }
        };
        // In a fleet the map states where each tenant is.
        if self.fleet.is_none() {
            self.learn_outside(parsed.src_mac.0, now);
        }
        let target = parsed.dst_mac.0;
        let owner = || match self.macs.owner(target) {
            Some(Owner::Lane(lane)) => Some(lane),
            _ => None,
        };
        let to = if is_group(target) { Receiver::All } else { Receiver::Lane(lane.or_else(owner)) };
        let flow = match (&self.heavy, to) {
            (Some(heavy), Receiver::Lane(Some(lane))) => {
                let sender = parsed.src_mac.0;
                let untouched = self.fleet.as_ref().is_some_and(|fleet| fleet.map.is_untouched(sender));
                heavy.flow((lane as usize, true, None), (from, untouched), (parsed, &Hashed::of(parsed)))
            }
            _ => None,
        };
        *bound = Some(Bound { offload, to, flow, ecn: markable(parsed), uncounted: (0, 0) });
    }

    /// Learns that a host with this address is behind the uplink.
    #[inline]
    pub(super) fn learn_outside(&mut self, mac: Mac, now: Nanos) {
        if matches!(self.inward.via, Via::Thread(Some(_))) {
            return; // a tenant's, which another thread has looked at
        }
        if let Learned::Taken(Owner::Lane(from)) = self.macs.learn(mac, Owner::Uplink, now) {
            self.note_taken(from);
        }
    }

    /// Counts the frames that were delivered with these headers: once for all of them, as each count costs a look-up.
    #[inline]
    pub(super) fn count_delivered(&mut self, bound: &mut Bound) {
        if let (Some(heavy), Bound { flow: Some(flow), uncounted, .. }) = (&mut self.heavy, bound)
            && uncounted.0 > 0
        {
            heavy.count(flow, core::mem::take(uncounted));
        }
    }

    /// Delivers a frame from the uplink to its receiver, unless its flow is slowed down and beyond its rate.
    /// [`Self::count_delivered`] is to be called after the last frame with these headers.
    pub(super) fn deliver(&mut self, frame: &mut [u8], bound: &mut Bound, now: Nanos) {
        let Bound { offload, to, flow, ecn, uncounted } = bound;
        if let (Some(heavy), Some(flow)) = (&mut self.heavy, flow) {
            if let Some(windows) = heavy.windows()
                && let Ok(parsed) = parse(frame)
                && windows.pass(
                    [Place::Away(flow.of.from), Place::Tenant(flow.of.tenant)],
                    frame,
                    &parsed,
                    offload,
                    now,
                )
            {
                self.uplink.tally.event(Event::FlowWindowed);
            }
            let sent = on_wire(offload, frame.len(), 1);
            let (Act { mark, way }, counted) = heavy.judge(flow, sent, (frame, *ecn), now);
            if !counted {
                let sum = uncounted.0.checked_add(sent.0).zip(uncounted.1.checked_add(sent.1));
                *uncounted = sum.unwrap_or_else(|| {
                    heavy.count(flow, *uncounted);
                    sent
                });
            }
            // A frame from elsewhere waits at its source, or not at all.
            if way != Way::Pass {
                return self.uplink.tally.lost(Loss::FlowOverRate);
            }
            if mark && Ecn::Ce.write(frame) {
                self.uplink.tally.event(Event::FlowMarked);
            }
        }
        if self.mediates
            && let Receiver::Lane(Some(to)) = *to
        {
            self.mediate_inward(to, frame, offload, now);
        }
        let frame = &*frame;
        let part = Part::whole(u32::try_from(frame.len()).unwrap_or(u32::MAX), offload);
        let handed = match *to {
            Receiver::All if self.copies.of_uplink == 0 => Handed::Lost(Loss::FloodLimit),
            Receiver::All => {
                let made = self.send_all(&Frame::whole(frame), offload, part);
                self.copies.of_uplink = self.copies.of_uplink.saturating_sub(made);
                return;
            }
            Receiver::Lane(Some(to)) => self.send_one(&Frame::whole(frame), offload, part, to),
            Receiver::Lane(None) => {
                if self.uplink.port.as_ref().is_some_and(|port| is_for_the_host(port, frame)) {
                    return self.uplink.tally.event(Event::ForTheHost);
                }
                Handed::Lost(Loss::UnknownDestination)
            }
        };
        self.count_undelivered(&handed);
    }

    /// Like [`Dataplane::deliver`], for a frame that is [`Bound::plain`], where no connection is mediated.
    #[inline]
    pub(super) fn deliver_plain(&mut self, frame: &[u8], to: u32) {
        let lane = self.lanes.get_mut(to as usize).and_then(Option::as_mut);
        let handed = if let Some(lane) = lane
            && let Some(port) = &mut lane.port
        {
            let sending = port.send(frame, None);
            lane.wrote = true;
            lane.conduct.touched = self.copying.part;
            if sending == Ok(Sending::Sent) {
                return;
            }
            self.lane_refused(sending.map(Emitted::from), to)
        } else {
            let part = Part::whole(frame.len() as u32, &Offload::PLAIN);
            self.send_across(&Frame::whole(frame), &Offload::PLAIN, part, to)
        };
        self.blame_sender(&handed, to);
        self.count_undelivered(&handed);
    }

    /// Counts a frame from the uplink that was not delivered, if it was not.
    #[inline]
    fn count_undelivered(&mut self, handed: &Handed) {
        match handed {
            Handed::Lost(why) => self.arrivals_tally().lost(*why),
            Handed::Refused(why) => self.arrivals_tally().undelivered(*why),
            _ => {}
        }
    }

    /// Notes that the tenant in this lane has lost an address, so that its next frame from it is learned again.
    pub(super) fn note_taken(&mut self, from: u32) {
        if let Some(lane) = self.lanes.get_mut(from as usize).and_then(Option::as_mut) {
            lane.source = None;
            // Of several threads, the tenant's own counts it.
            if lane.seat.elsewhere.is_none() {
                lane.tally.event(Event::AddressTaken);
            }
        }
    }

    /// Notes a departure of `frames` frames in the log, and in its class's delays.
    fn note(
        &mut self,
        transmit: &Transmit,
        (headers, metadata): (&Headers, &Packed),
        lane: u32,
        frames: u32,
        now: Nanos,
    ) {
        let passage = Passage {
            arrived: transmit.arrived,
            head: transmit.head,
            departed: now,
            limited: transmit.limited,
            limited_by: transmit.limited_by,
            class: transmit.class,
            generation: self.generation,
            lane: u16::try_from(self.logged_lane(lane)).unwrap_or(u16::MAX),
            len: transmit.len,
            frames: u8::try_from(frames.max(1)).unwrap_or(u8::MAX),
        };
        self.log.push(&passage, headers, metadata);
        if frames > 0 {
            let NodeId(class) = transmit.class;
            self.delays.record(class as usize, now.since(transmit.arrived), frames.into());
        }
    }

    /// Counts frames that are dropped at a stop, with the last pull of their descriptor; answers how many they are. Of a
    /// train, `gone` frames have been handled before.
    fn count_stopped(&mut self, transmit: &Transmit, gone: u32) -> u64 {
        let (from, buffer) = Buffer::from_address(transmit.addr);
        let Some(lane) = self.lanes.get_mut(from as usize).and_then(Option::as_mut) else { return 0 };
        let held = lane.pool.held(buffer);
        let frames = if held.following > 0 { transmit.frames - gone } else { u32::from(transmit.last) };
        lane.tally.lost_many(Loss::Stopped, frames.into());
        frames.into()
    }

    /// Flushes the uplink, also of frames that it has kept for lack of room since an earlier turn.
    fn flush_uplink(&mut self) {
        let Some(port) = &mut self.uplink.port else { return };
        let waited = port.pending();
        let flushed = port.flush();
        if waited || port.pending() {
            self.uplink.down = flushed == Err(Trouble::Down);
        }
        if flushed == Err(Trouble::Gone) {
            self.lose_uplink();
        }
    }

    /// Whether a port has taken frames that it still keeps, or frames wait for their flow's rate: they have completed, or are
    /// not in the engine yet, but it must not end.
    #[must_use]
    pub fn pending(&self) -> bool {
        // What the idle one of the uplink's ports keeps cannot leave.
        let lanes = self.lanes.iter().flatten().filter_map(|lane| lane.port.as_ref());
        !self.paced.is_empty() || lanes.chain(&self.uplink.port).any(Port::pending)
    }

    /// Flushes each port that was written to; answers whether one of them, or the uplink, keeps frames. Other deadlines are
    /// not affected, as many devices take these frames a moment later by themselves.
    pub(super) fn flush_lanes(&mut self) -> bool {
        let mut pending = self.uplink.port.as_ref().is_some_and(Port::pending);
        for index in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[index] else { continue };
            if !core::mem::take(&mut lane.wrote) {
                continue;
            }
            lane.conduct.touched = self.copying.part;
            let Some(port) = &mut lane.port else { continue };
            let flushed = port.flush();
            lane.wrote = port.pending();
            // What waits for a device that is down need not be tried again soon.
            pending |= lane.wrote && flushed != Err(Trouble::Down);
            if let Err(trouble) = flushed {
                let gone = lane.trouble(trouble);
                self.note_lost_lane(index, gone);
            }
        }
        pending
    }

    /// Handles the loss of the uplink: frames that are held wait until it is back.
    pub(super) fn lose_uplink(&mut self) {
        let Some(mut port) = self.uplink.port.take() else { return };
        // Frames that it keeps can no longer leave; this counts them.
        let _ = port.flush();
        self.uplink.senders.port_lost(&mut port);
        self.uplink.past = sum(&self.uplink.past, &port.counters());
        self.uplink.ready = false;
        self.uplink.tally.event(Event::PortLost);
        self.note_lost(self.uplink.active(), None, port);
    }
}

/// Whether the kernel of this host takes the frame itself, from a device that shows frames to both.
pub(super) fn is_for_the_host(port: &Port, frame: &[u8]) -> bool {
    matches!(port, Port::AfPacket(port) if frame.starts_with(&port.mac()))
}
