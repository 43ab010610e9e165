//! A frame's receiver: the uplink, another tenant, or all of them.
//!
//! Why: every frame of a tenant passes the policy, also one to a neighbour on the same host.
//! From: `docs/architecture.md`, "live".
//! Not here: which frame is next (`depart`), other hosts (`fleet::wrap`), what a port needs of a frame (`emit`).
//! Invariant: what a receiver cannot take is lost for a counted reason; only the uplink makes a frame wait.

use plimsoll_ports::{DropReason, Frame, Port, Sending, Trouble};
use plimsoll_units::Nanos;
use plimsoll_wire::overlay::Vni;
use plimsoll_wire::{EncapsulationError, Offload};

use super::super::crossing::Via;
use super::super::drops::{Event, Loss};
use super::super::emit::{Emitted, Part, emit};
use super::super::lane::{Lane, sum};
use super::super::mac_table::{Owner, is_group};
use super::super::{DEPARTURES, Dataplane, Held};

/// Where a tenant's frame comes from, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Route {
    /// The sender's lane.
    pub from: u32,
    /// The sender's network, which the frame never leaves.
    pub network: Vni,
    /// The owner of the destination address in that network.
    pub to: Option<Owner>,
}

impl Route {
    /// The lane of another tenant here that it goes to.
    pub(super) fn lane(self) -> Option<u32> {
        match self.to {
            Some(Owner::Lane(to)) if to != self.from => Some(to),
            _ => None,
        }
    }
}

/// The result of sending one frame to one receiver.
pub(in super::super) enum Handed {
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

/// Copies of broadcast frames that may still be made in this turn: each frame is charged as one, so its copies would
/// otherwise keep the thread from other work. Tenants and the uplink have separate budgets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copies {
    of_tenants: usize,
    pub(in super::super) of_uplink: usize,
}

impl Default for Copies {
    fn default() -> Self {
        Self { of_tenants: COPIES, of_uplink: COPIES }
    }
}

/// As many copies as two turns' departures. The last frame that begins within it is still copied to all.
const COPIES: usize = 2 * DEPARTURES;

impl Dataplane {
    /// Sends to the uplink, to the lane that owns the address, or to all.
    pub(in super::super) fn hand(
        &mut self,
        frame: &Frame<'_>,
        held: &Held,
        part: &mut Part,
        way: Route,
        now: Nanos,
    ) -> Handed {
        let (target, from) = (held.to, way.from);
        self.inward.via = Via::Tenant(from);
        match way.lane() {
            Some(to) => {
                self.backpressure.near.note(Some(to), part.packets(&held.offload));
                self.send_one(frame, &held.offload, part, to)
            }
            None => {
                self.backpressure.near.note(None, 1);
                let left = self.uplink.resume;
                let whole = Part::at(part.offset - left, part.payload + left);
                let handed = match self.fleet {
                    // In a fleet no payload waits with its sender.
                    Some(_) => match frame.bytes() {
                        Some(frame) => self.send_out(frame, held, part, whole, way, now),
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
                let made = self.send_all(frame, &held.offload, whole, way.network);
                self.copies.of_tenants = self.copies.of_tenants.saturating_sub(made);
                handed
            }
        }
    }

    /// Sends finished frames to one receiver, one after the other, until one does not leave. Answers how many left, and what became of
    /// the next one, if there is one; nothing where each needs a look.
    #[inline]
    pub(in super::super) fn hand_run<'f>(
        &mut self,
        mut frames: impl ExactSizeIterator<Item = &'f [u8]>,
        held: &Held,
        way: Route,
    ) -> Option<(u32, Option<Handed>)> {
        let to = match way.lane() {
            Some(to) => Some(to),
            _ if self.fleet.is_some() || is_group(held.to) => return None,
            _ => None,
        };
        let port = match to {
            Some(to) => {
                let lane = self.tenants.lane(to).filter(|lane| lane.program.is_none())?;
                lane.port.as_mut()
            }
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
        self.backpressure.near.note_run(to, left + u32::from(left < all));
        let emitted = last.map(Emitted::from);
        let handed = match to {
            Some(to) => self.after_lane(to, emitted),
            None => {
                self.uplink.senders.note(taken, way.from);
                self.after_uplink(emitted)
            }
        };
        Some((left, (left < all).then_some(handed)))
    }

    pub(in super::super) fn send_uplink(
        &mut self,
        frame: &Frame<'_>,
        offload: &Offload,
        part: &mut Part,
        from: u32,
    ) -> Handed {
        let Some(port) = &mut self.uplink.port else { return Handed::Wait };
        let emitted = emit(port, frame, offload, part, &mut self.buffers.scratch);
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
    pub(in super::super) fn send_one(
        &mut self,
        frame: &Frame<'_>,
        offload: &Offload,
        part: &mut Part,
        to: u32,
    ) -> Handed {
        let handed = self.send_lane(frame, offload, part, to);
        self.blame_sender(&handed, to);
        handed
    }

    /// Counts what a tenant's port could not take for the sender only.
    #[inline]
    pub(in super::super) fn blame_sender(&mut self, handed: &Handed, to: u32) {
        if let (Handed::Refused(why), Some(lane)) = (handed, self.tenants.lane(to)) {
            lane.blamed[*why as usize] += 1;
        }
    }

    /// A tenant that has no room in the middle of many segments loses the rest of them.
    pub(in super::super) fn send_lane(
        &mut self,
        frame: &Frame<'_>,
        offload: &Offload,
        part: &mut Part,
        to: u32,
    ) -> Handed {
        if self.tenants.has_programs
            && let Some(stored) = self.store_for_program(frame, offload, part, to)
        {
            return match stored {
                Ok(Emitted::Sent) => Handed::Done,
                Ok(emitted) => self.lane_refused(Ok(emitted), to),
                Err(why) => Handed::Lost(why),
            };
        }
        let Some(lane) = self.tenants.lane(to) else {
            return Handed::Lost(Loss::ReceiverGone);
        };
        let Some(port) = &mut lane.port else { return self.send_across(frame, offload, part, to) };
        let emitted = emit(port, frame, offload, part, &mut self.buffers.scratch);
        self.after_send(to, emitted)
    }

    /// What became of frames for one tenant, as [`Dataplane::send_one`] answers it.
    #[inline]
    fn after_lane(&mut self, to: u32, emitted: Result<Emitted, Trouble>) -> Handed {
        let handed = self.after_send(to, emitted);
        self.blame_sender(&handed, to);
        handed
    }

    /// What became of a frame that was given to a tenant's port.
    pub(in super::super) fn after_send(&mut self, to: u32, emitted: Result<Emitted, Trouble>) -> Handed {
        let Some(lane) = self.tenants.lane(to) else {
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
    pub(in super::super) fn lane_refused(&mut self, emitted: Result<Emitted, Trouble>, to: u32) -> Handed {
        let Some(lane) = self.tenants.lane(to) else {
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

    /// Sends to each tenant of a network with a port; answers how many those were. The sender's lane is taken out meanwhile,
    /// so it gets no copy.
    pub(in super::super) fn send_all(
        &mut self,
        frame: &Frame<'_>,
        offload: &Offload,
        part: Part,
        network: Vni,
    ) -> usize {
        let mut made = self.send_all_across(frame, offload, part);
        for to in 0..self.tenants.lanes.len() {
            let gets = |lane: &Lane| lane.network == network && lane.seat.elsewhere.is_none();
            if !self.tenants.lanes[to].as_deref().is_some_and(gets) {
                continue;
            }
            made += 1;
            // A receiver that cannot take a broadcast is no loss of the sender: the port counts it.
            let _ = self.send_lane(frame, offload, &mut part.clone(), u32::try_from(to).unwrap_or(u32::MAX));
        }
        made
    }

    /// Notes that the tenant in this lane has lost an address, so that its next frame from it is learned again.
    pub(in super::super) fn note_taken(&mut self, from: u32) {
        if let Some(lane) = self.tenants.lane(from) {
            lane.source = None;
            // Of several threads, the tenant's own counts it.
            if lane.seat.elsewhere.is_none() {
                lane.tally.event(Event::AddressTaken);
            }
        }
    }

    /// Flushes the uplink, also of frames that it has kept for lack of room since an earlier turn.
    pub(in super::super) fn flush_uplink(&mut self) {
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

    /// Flushes each port that was written to; answers whether one of them, or the uplink, keeps frames. Other deadlines are
    /// not affected, as many devices take these frames a moment later by themselves.
    pub(in super::super) fn flush_lanes(&mut self) -> bool {
        let mut pending = self.uplink.port.as_ref().is_some_and(Port::pending);
        for index in 0..self.tenants.lanes.len() {
            let Some(lane) = &mut self.tenants.lanes[index] else { continue };
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
    pub(in super::super) fn lose_uplink(&mut self) {
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
