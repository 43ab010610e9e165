//! Departures: pulls what is due from the scheduler, sends it, and completes it.
//!
//! Why: a tenant's payload moves once, when its turn has come.
//! From: Loom §4, SENIC §3.1 (late pull).
//! Not here: the order (`nic`), a frame's receiver (`hand`), and the queues of frames from the uplink (`inward`).
//! Invariant: a frame that the uplink has no room for is kept and tried again, in its place.

mod hand;

use plimsoll_nic::{Outcome, Transmit, Verdict};
use plimsoll_policy::NodeId;
use plimsoll_ports::{Frame, Port};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::OffloadKind;

use super::crossing::Via;
use super::drops::{Event, Loss, Tally};
use super::emit::Part;
use super::lane::Lane;
use super::pool::Buffer;
use super::{DEPARTURES, Dataplane};
use crate::departures::{Headers, Packed, Passage};
pub(crate) use hand::Copies;
pub(super) use hand::{Handed, Route};

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
        self.backpressure.near.begin(self.backpressure.heavy.as_ref().and_then(|heavy| heavy.watched_lane()));
        while departed < DEPARTURES {
            let Some(transmit) = self.scheduler.next(now) else { break };
            let Some((outcome, frames)) = self.send(&transmit, now) else {
                self.uplink.blocked = true;
                if !self.uplink.is_away() {
                    self.uplink.tally.event(Event::UplinkFull);
                }
                break;
            };
            self.scheduler.complete(&transmit, outcome);
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
            let Some(transmit) = self.scheduler.next(later) else {
                let Some(next) = self.scheduler.nic.poll_timeout() else { break };
                later = next.max(later + Span::micros(1));
                continue;
            };
            let gone = core::mem::take(&mut self.uplink.resume);
            self.uplink.flooded = 0;
            self.scheduler.complete(&transmit, Outcome::Dropped);
            lost += self.count_stopped(&transmit, gone);
        }
        let ports = self.uplink.port.iter().chain(self.uplink.idle());
        let staged: usize = ports.map(Port::staged).sum();
        self.uplink.tally.lost_many(Loss::Stopped, staged as u64);
        let at_units = self.at_units() as u64;
        self.uplink.tally.lost_many(Loss::Stopped, at_units);
        lost += at_units;
        lost += self.tenants.all().map(Lane::stop_program).sum::<u64>();
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
        let Some(mut lane) = self.tenants.take(from) else {
            (self.uplink.resume, self.uplink.flooded) = (0, 0);
            return Some((Outcome::Dropped, 1));
        };
        let sent = self.send_from(&mut lane, (from, buffer), transmit, now);
        self.tenants.put_back(from, lane);
        sent
    }

    /// Sends one pull of the tenant in this lane, which is taken out of its place meanwhile.
    #[inline]
    fn send_from(
        &mut self,
        lane: &mut Lane,
        (from, buffer): (u32, Buffer),
        transmit: &Transmit,
        now: Nanos,
    ) -> Option<(Outcome, usize)> {
        if lane.was_offered_again(buffer) {
            let gone = core::mem::take(&mut self.uplink.resume);
            self.uplink.flooded = 0;
            let train = lane.pool.held(buffer).following > 0;
            let frames = if train { transmit.frames - gone } else { u32::from(transmit.last) };
            lane.tally.lost_many(Loss::TakenBack, frames.into());
            return Some((Outcome::Dropped, 1));
        }
        if transmit.verdict != Verdict::Pass && self.signal(lane, buffer, transmit) {
            return Some((Outcome::Dropped, 1));
        }
        let held = lane.pool.held(buffer);
        if held.following > 0 {
            let outcome = self.send_train(lane, buffer, transmit, from, now);
            return outcome.map(|outcome| (outcome, transmit.frames as usize));
        }
        let payload = transmit.len - u32::from(held.offload.header);
        let mut part = Part::at(transmit.offset, payload);
        part.skip(self.uplink.resume);
        let to = self.macs.owner(lane.network, held.to);
        let way = Route { from, network: lane.network, to };
        let handed = if held.late {
            lane.conduct.touched = self.copying.part;
            let handed = match lane.frame(buffer, 0) {
                Some(frame) => self.hand(&frame, held, &mut part, way, now),
                None => Handed::Lost(Loss::TakenBack),
            };
            lane.tally.event_many(Event::PayloadRead, part.sent.into());
            handed
        } else {
            let frame = Frame::whole(lane.pool.frame(buffer).0);
            self.hand(&frame, held, &mut part, way, now)
        };
        self.uplink.resume = if matches!(handed, Handed::Wait) { payload - part.payload } else { 0 };
        if !matches!(handed, Handed::Wait) {
            let frames = u32::from(transmit.last);
            self.note(transmit, (&held.headers, lane.pool.metadata(buffer)), from, frames, now);
            self.measure(lane, transmit, frames, now);
        }
        let outcome = lane.tally.account(handed);
        // A pull that is cut here takes as long as its frames.
        let cut = !self.uplink.segments && way.lane().is_none();
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
        let to = self.macs.owner(lane.network, held.to);
        let way = Route { from, network: lane.network, to };
        let gone = core::mem::take(&mut self.uplink.resume);
        let (mut sent, mut read): (u32, u64) = (0, 0);
        if held.late {
            lane.conduct.touched = self.copying.part;
        }
        let (bytes, len) = (lane.pool.frame(buffer).0, held.at_hand());
        let finished = !held.late && held.offload.kind == OffloadKind::Plain;
        let mut number = gone;
        while number < count {
            let behind = &bytes[(first + number) as usize * len..(first + count) as usize * len];
            let run = if finished { self.hand_run(behind.chunks_exact(len), &held, way) } else { None };
            let (left, handed) = run.unwrap_or_else(|| {
                let frame = if held.late {
                    lane.frame(buffer, (first + number) as u16)
                } else {
                    Some(Frame::whole(&behind[..len]))
                };
                let mut part = Part::whole(held.len, &held.offload);
                let handed = match frame {
                    Some(frame) => self.hand(&frame, &held, &mut part, way, now),
                    None => Handed::Lost(Loss::TakenBack),
                };
                read += u64::from(part.sent);
                (0, Some(handed))
            });
            sent |= ((1 << left) - 1) << (first + number);
            number += left;
            if held.late {
                lane.tally.event_many(Event::PayloadRead, core::mem::take(&mut read));
            }
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
            self.scheduler.completed(transmit.queue, count);
        }
        let whole = Transmit { len: held.len * count, ..*transmit };
        self.note(&whole, (&held.headers, lane.pool.metadata(buffer)), from, count, now);
        self.measure(lane, &whole, count, now);
        Some(outcome)
    }

    /// Notes for the tenant how long the frames of a pull have waited.
    fn measure(&mut self, lane: &mut Lane, transmit: &Transmit, frames: u32, now: Nanos) {
        let took = self.scheduler.waits.of(transmit, now);
        lane.recent.sent_bytes += u64::from(transmit.len);
        if frames > 0 {
            lane.recent.left(transmit.limited, took, frames, &lane.halves);
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
            generation: self.policy.generation,
            lane: u16::try_from(self.logged_lane(lane)).unwrap_or(u16::MAX),
            len: transmit.len,
            frames: u8::try_from(frames.max(1)).unwrap_or(u8::MAX),
        };
        self.accounts.log.push(&passage, headers, metadata);
        if frames > 0 {
            let NodeId(class) = transmit.class;
            self.accounts.delays.record(class as usize, now.since(transmit.arrived), frames.into());
        }
    }

    /// Counts frames that are dropped at a stop, with the last pull of their descriptor; answers how many they are. Of a
    /// train, `gone` frames have been handled before.
    fn count_stopped(&mut self, transmit: &Transmit, gone: u32) -> u64 {
        let (from, buffer) = Buffer::from_address(transmit.addr);
        let Some(lane) = self.tenants.lane(from) else { return 0 };
        let held = lane.pool.held(buffer);
        let frames = if held.following > 0 { transmit.frames - gone } else { u32::from(transmit.last) };
        lane.tally.lost_many(Loss::Stopped, frames.into());
        frames.into()
    }

    /// Whether a port has taken frames that it still keeps, or frames wait for their flow's rate: they have completed, or are
    /// not in the engine yet, but it must not end.
    #[must_use]
    pub fn pending(&self) -> bool {
        // What the idle one of the uplink's ports keeps cannot leave.
        let lanes = self.tenants.lanes.iter().flatten().filter_map(|lane| lane.port.as_ref());
        let programs = self.tenants.lanes.iter().flatten().filter_map(|lane| lane.program.as_ref());
        !self.backpressure.paced.is_empty()
            || programs.into_iter().any(|hosted| hosted.has_packets())
            || self.at_units() > 0
            || lanes.chain(&self.uplink.port).any(Port::pending)
    }
}
