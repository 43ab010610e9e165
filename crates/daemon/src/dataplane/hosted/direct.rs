//! Frames from the uplink that are written into a program's pool when they are fetched, and wait there.
//!
//! Why: a frame that is finished is copied once, from the uplink's port into its tenant's own memory.
//! From: FairNIC §4.2.1: a buffer pool for each tenant, into which the port writes.
//! Not here: frames of other tenants, and those that are still to be cut or unwrapped (`hosted`).
//! Invariant: such frames are at the station in the order in which the program's pool has them.

use plimsoll_nic::{Arrival, Verdict};
use plimsoll_offload::{Packet, Slot, Way};
use plimsoll_policy::Program;
use plimsoll_ports::Received;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::{Ecn, Front, VnetHeader, parse};

use super::super::Dataplane;
use super::super::crossing::Via;
use super::super::drops::Loss;
use super::super::inward::{COMMON, Inward};
use super::super::mac_table::Mac;
use super::super::outward::check;
use super::super::tenants::Tenants;
use super::{Hosted, RESERVED};

/// A frame that waits in the pool, and what was known of it before the program could reach it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) slot: Slot,
    sender: Mac,
    /// How long it had been in the kernel.
    waited: Option<Span>,
}

/// The address of a frame at a station that lies in the pool of the tenant's program.
const IN_POOL: u64 = 1 << 63;

/// A frame that was lifted out of a pool.
pub(in super::super) type Lifted = (Vec<u8>, Received, Via, bool);

/// Whether a frame at a station lies in the pool of the tenant's program.
#[inline]
pub(in super::super) fn is_in_pool(arrival: &Arrival) -> bool {
    arrival.addr & IN_POOL != 0
}

impl Tenants {
    /// The program at whose station a frame would wait, if that looks at frames for its tenant.
    #[inline]
    pub(in super::super) fn program_at(&mut self, station: u32) -> Option<&mut Hosted> {
        let lane = self.lane(station.checked_sub(COMMON + 1)?)?;
        lane.program.as_deref_mut().filter(|hosted| hosted.takes(Way::Ingress) && !hosted.now.halted)
    }
}

impl Hosted {
    /// Writes a frame from the uplink into a free buffer, and adds it to its station's queue. `None` where it needs a buffer elsewhere.
    pub(in super::super) fn store_direct(
        &mut self,
        inward: &mut Inward,
        station: u32,
        (frame, received): (&[u8], &Received),
        now: Nanos,
    ) -> Option<Result<(), Loss>> {
        let finished = received.vnet.is_none_or(|vnet| {
            vnet.gso_type == VnetHeader::GSO_NONE && vnet.flags & VnetHeader::NEEDS_CSUM == 0
        });
        let limits = self.program.limits();
        if !finished || frame.len() > limits.buffer as usize || self.program.free() <= RESERVED as usize {
            return None;
        }
        // One that is malformed is counted where all are. Nothing of the frame is looked at later: the program may have written there.
        let sender = check(&parse(frame), Front::whole(frame), received).ok()?.0.src_mac.0;
        let slot = self.program.take()?;
        let stored = inward.offer(station, IN_POOL, frame, now);
        if stored.is_ok() {
            self.program.bytes_mut(slot)[..frame.len()].copy_from_slice(frame);
            self.arrived.push_back(Arrived { slot, sender, waited: received.waited });
        } else {
            self.program.give(slot);
        }
        Some(stored)
    }
}

impl Dataplane {
    /// Whether frames from the uplink may be written into pools of programs as they are fetched: nothing else looks at them first.
    pub(in super::super) fn stores_direct(&self) -> bool {
        self.tenants.has_programs && !self.backpressure.mediates && self.backpressure.heavy.is_none()
    }

    /// Hands a frame that lies in the pool of its tenant's program over to the program. Answers when it was fetched, and how long it had
    /// been in the kernel; `None` where it is lost.
    pub(in super::super) fn deliver_in_pool(
        &mut self,
        station: u32,
        (arrival, verdict): (&Arrival, Verdict),
        now: Nanos,
    ) -> Option<(Nanos, Option<Span>)> {
        let index = station - COMMON - 1;
        self.inward.via = Via::Uplink;
        let lane = self.tenants.lane(index)?;
        let hosted = lane.program.as_mut()?;
        let Arrived { slot, sender, waited } = hosted.arrived.pop_front()?;
        let untouched = lane.untouched;
        let frame = &mut hosted.program.bytes_mut(slot)[..arrival.len as usize];
        if verdict != Verdict::Pass && (verdict != Verdict::Mark || untouched || !Ecn::Ce.write(frame)) {
            hosted.program.give(slot);
            self.arrivals_tally().lost(Loss::IngressOverMax);
            return None;
        }
        hosted.incoming.push_back(Packet::new(slot, arrival.len, Packet::NETWORK));
        hosted.now.direct += 1;
        self.inward.set_work(index, true);
        self.learn_outside(sender, now);
        Some((arrival.at, waited))
    }

    /// Takes the frames that wait at a tenant's station out of the pool of its program, which is to be replaced.
    pub(in super::super) fn lift_from_pool(&mut self, index: u32) -> Vec<Lifted> {
        let hosted = self.tenants.lane(index).and_then(|lane| lane.program.as_deref_mut());
        match hosted.filter(|hosted| !hosted.arrived.is_empty()) {
            Some(hosted) => self.inward.take_all(index + COMMON + 1, || {
                let Arrived { slot, waited, .. } = hosted.arrived.pop_front()?;
                let bytes = hosted.program.bytes(slot).to_vec();
                hosted.program.give(slot);
                Some((bytes, waited))
            }),
            None => Vec::new(),
        }
    }

    /// Takes the frames of tenants that the next policy does not have out of the pools of their programs: they wait on as all others do.
    pub(in super::super) fn lift_leaving(&mut self, next: &Program, now: Nanos) {
        for index in 0..self.tenants.lanes.len() as u32 {
            let stays = |name: &str| next.tenants.iter().any(|tenant| tenant.name == name);
            if self.tenants.lane(index).is_some_and(|lane| lane.program.is_some() && !stays(&lane.name)) {
                let lifted = self.lift_from_pool(index);
                self.store_lifted(index, &lifted, now);
            }
        }
    }

    /// Adds frames to a tenant's station again that were lifted out of a pool.
    pub(in super::super) fn store_lifted(&mut self, index: u32, frames: &[Lifted], now: Nanos) {
        for (frame, received, via, _) in frames {
            self.inward.via = *via;
            if let Err(why) = self.inward.store_again(index + COMMON + 1, frame, received, now) {
                self.uplink.tally.lost(why);
            }
        }
        self.inward.via = Via::Uplink;
    }
}
