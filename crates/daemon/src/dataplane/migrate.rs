//! A tenant moves to another engine thread.
//!
//! Why: threads are equal only while their tenants' load is.
//! From: `plimsoll_control::leases::Spread` says who moves. None of a tenant's frames may overtake another, in either direction.
//! Not here: when a tenant moves (`control`), and frames between threads (`crossing`).
//! Invariants: of what the tenant sends, nothing is in its old thread's engine when its new thread reads its first frame. Of what it
//! receives, frames that other threads have sent to its old thread are handed over before they send any to its new one, as all of
//! them meet twice.

use std::sync::{Mutex, PoisonError};

use plimsoll_control::backpressure::{FlowSource, SenderMac};
use plimsoll_ports::{Port, Received};
use plimsoll_units::Nanos;

use super::Dataplane;
use super::crossing::Via;
use super::inward::COMMON;
use super::lane::Lane;
use super::mac_table::Mac;
use crate::seats::Meeting;

/// A tenant's move, which all threads take part in.
#[derive(Debug)]
pub struct Migration {
    /// The tenant's name.
    name: String,
    /// The thread that is to serve it.
    to: usize,
    /// No thread sends to another one once all have come here.
    gathered: Meeting,
    /// The tenant's old thread has handed it over.
    given: Meeting,
    parcel: Mutex<Option<Box<Parcel>>>,
}

/// What one thread hands over to another of a tenant.
#[derive(Debug)]
struct Parcel {
    port: Option<Port>,
    first_mac: Option<Mac>,
    offered_again: Option<u32>,
    /// Frames that wait to be delivered to it.
    frames: Vec<Inbound>,
}

/// A frame that waits to be delivered.
#[derive(Debug)]
struct Inbound {
    bytes: Vec<u8>,
    received: Received,
    /// The number of the tenant that sent it; none for the uplink.
    from: Option<u32>,
    /// Whether it is for this tenant: a reload may have given its place to this one since it came.
    sure: bool,
}

impl Migration {
    /// The move of a tenant to the thread `to`, of `threads`.
    #[must_use]
    pub fn new(name: String, to: usize, threads: usize) -> Self {
        let (gathered, given) = (Meeting::of(threads), Meeting::of(threads));
        Self { name, to, gathered, given, parcel: Mutex::default() }
    }

    /// One thread's part: it waits for the others twice, for some tens of microseconds.
    pub fn take_part(&self, dataplane: &mut Dataplane, now: Nanos) {
        // These are sent on to other threads.
        dataplane.deliver_common(now);
        self.gathered.meet();
        if let Some(parcel) = dataplane.give_away(&self.name, now) {
            *self.parcel() = Some(parcel);
        }
        self.given.meet();
        dataplane.seat_at(&self.name, self.to);
        if dataplane.thread() == Some(self.to)
            && let Some(parcel) = self.parcel().take()
            && let Err(parcel) = dataplane.take_over(&self.name, parcel, now)
        {
            *self.parcel() = Some(parcel);
        }
    }

    /// The port, if no thread has taken it: to be closed by another thread.
    pub(crate) fn left_over(&self) -> Option<Port> {
        self.parcel().take().and_then(|parcel| parcel.port)
    }

    fn parcel(&self) -> std::sync::MutexGuard<'_, Option<Box<Parcel>>> {
        self.parcel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// Whether another thread could serve its port: none of the NIC engine's flow queues is its client's, no thread of its own
    /// copies its frames, and it has no program, in whose memory its packets wait.
    fn may_migrate(&self) -> bool {
        let movable = match self.port {
            Some(
                Port::Tap(_) | Port::AfPacket(_) | Port::AfXdp(_) | Port::VhostUser(_) | Port::Memory(_),
            ) => true,
            None | Some(Port::Vnic(_) | Port::Apart(_) | Port::Pcap(_)) => false,
        };
        movable
            && self.is_served_here()
            && self.opened.is_empty()
            && self.guest.is_none()
            && self.program.is_none()
    }
}

impl Dataplane {
    /// The number of this thread, of several.
    pub(super) fn thread(&self) -> Option<usize> {
        self.threads.crossing.as_ref().map(|crossing| crossing.thread())
    }

    /// The tenants that this thread serves, and the frames of each so far, in both directions.
    pub fn loads(&mut self) -> Vec<(String, u64)> {
        let served = self.tenants.all().filter(|lane| lane.is_served_here());
        let frames = |lane: &mut Lane| {
            let counters = lane.port.as_mut().map(Port::counters).unwrap_or_default();
            (lane.name.clone(), counters.rx_packets + counters.tx_packets)
        };
        served.map(frames).collect()
    }

    /// Reads no more of a tenant's frames, as it is to move. Answers whether none of those that were read is left here; `None`: it
    /// cannot move now.
    pub fn halt(&mut self, name: &str) -> Option<bool> {
        let index = self.lane_of(name)?;
        let elsewhere = self.has_at_units(index);
        let lane = self.tenants.lane(index)?;
        lane.halted = lane.may_migrate();
        lane.halted.then(|| lane.pool.in_use() == 0 && !lane.wrote && !elsewhere)
    }

    /// Reads a tenant's frames again.
    pub fn resume(&mut self, name: &str) {
        if let Some(lane) = self.lane_of(name).and_then(|index| self.tenants.lane(index)) {
            (lane.halted, lane.ready) = (false, true);
        }
    }

    /// Takes what other threads have sent, none of which sends now, and hands a tenant over if it is served here.
    fn give_away(&mut self, name: &str, now: Nanos) -> Option<Box<Parcel>> {
        while self.has_arrivals() {
            self.come_across(now);
            self.deliver_common(now);
        }
        let index = self.lane_of(name)?;
        let lane = self.tenants.lane(index).filter(|lane| lane.is_served_here())?;
        lane.halted = false;
        let (first_mac, offered_again) = (lane.first_mac.take(), lane.offered_again.take());
        let told = self.macs_of(index as usize);
        let lane = self.tenants.lane(index)?;
        // These addresses are told by another thread from now on.
        (lane.told_macs, lane.source) = (told, None);
        let port = lane.give_away();
        self.count_known();
        let frames = self.take_inbound(index + COMMON + 1);
        Some(Box::new(Parcel { port, first_mac, offered_again, frames }))
    }

    /// Takes the frames that wait at a station.
    fn take_inbound(&mut self, station: u32) -> Vec<Inbound> {
        let Some(crossing) = &self.threads.crossing else { return Vec::new() };
        let from = |via| match via {
            Via::Uplink => None,
            Via::Tenant(lane) => crossing.number(lane),
            Via::Thread(number) => number,
        };
        self.inward
            .take_all(station, || None)
            .into_iter()
            .map(|(bytes, received, via, sure)| Inbound { bytes, received, from: from(via), sure })
            .collect()
    }

    /// Notes that another thread serves a tenant from now on, or this one.
    fn seat_at(&mut self, name: &str, to: usize) {
        let Some(index) = self.lane_of(name) else { return };
        let here = self.thread() == Some(to);
        if let Some(lane) = self.tenants.lane(index) {
            lane.seat.elsewhere = (!here).then_some(to as u32);
        }
        self.seat_lanes();
    }

    /// Serves a tenant from now on. Answers what cannot be used.
    fn take_over(&mut self, name: &str, parcel: Box<Parcel>, now: Nanos) -> Result<(), Box<Parcel>> {
        let Some(index) = self.lane_of(name) else { return Err(parcel) };
        let Some(lane) = self.tenants.lane(index) else { return Err(parcel) };
        let Parcel { port, first_mac, offered_again, frames } = *parcel;
        let number = lane.seat.number;
        lane.take_over(port);
        (lane.first_mac, lane.offered_again) = (first_mac, offered_again);
        lane.told_macs.clear();
        self.threads.taken_over += 1;
        self.pin_addresses();
        // Frames between tenants of one thread are delivered at once, and the next ones must not overtake these.
        for inbound in frames {
            let at_once = inbound.from.is_some();
            self.come_again(index, inbound, at_once, now);
        }
        self.deliver_from_tenant(number, now);
        Ok(())
    }

    /// Delivers what waits here of a tenant that this thread serves from now on.
    fn deliver_from_tenant(&mut self, number: u32, now: Nanos) {
        for index in 0..self.tenants.lanes.len() as u32 {
            let station = index + COMMON + 1;
            if !self.inward.holds_from(station, Via::Thread(Some(number))) {
                continue;
            }
            for inbound in self.take_inbound(station) {
                let at_once = inbound.from == Some(number);
                self.come_again(index, inbound, at_once, now);
            }
        }
    }

    /// Delivers a frame that has waited for the tenant in this lane at once, or lets it wait here.
    fn come_again(&mut self, index: u32, inbound: Inbound, at_once: bool, now: Nanos) {
        let Inbound { mut bytes, received, from, sure } = inbound;
        self.inward.via = Via::Thread(from);
        if at_once || !sure {
            let source = FlowSource::Elsewhere(SenderMac::default());
            self.deliver_once(&mut bytes, &received, (sure.then_some(index), source), now);
        } else if let Err(why) = self.inward.store_again(index + COMMON + 1, &bytes, &received, now) {
            self.arrivals_tally().lost(why);
        }
        self.inward.via = Via::Uplink;
    }
}
