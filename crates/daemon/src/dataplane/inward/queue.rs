//! Queueing: a frame is copied into its tenant's buffers, and waits in its tenant's queue.
//!
//! Why: a frame that waits must take its own tenant's room only.
//! From: PicNIC §5.2 (a queue for each tenant).
//! Not here: whose frame it is (`fetch`, `fleet`), and in which order queues are served (`share`, `nic`).
//! Invariant: a frame that is not queued takes no buffer, and is lost for the reason that is returned.

use core::num::NonZeroU32;

use plimsoll_nic::{Arrival, Ingress, NotQueued};
use plimsoll_ports::Received;
use plimsoll_units::Nanos;
use plimsoll_wire::Ecn;

use super::super::drops::Loss;
use super::super::sources::Sources;
use super::{Inward, Waits};

/// Where a frame for a station came from.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Provenance {
    /// The host in whose name it came, if that is not proven.
    pub(in super::super) source: Option<usize>,
    /// Whether it came in one datagram with the frame that follows.
    pub(in super::super) followed: bool,
    /// The number of that datagram, equal for pieces with the same headers.
    pub(in super::super) datagram: Option<NonZeroU32>,
}

impl Inward {
    /// Adds a frame that has waited in a queue, and was counted there.
    pub(in super::super) fn store_again(
        &mut self,
        station: u32,
        frame: &[u8],
        received: &Received,
        now: Nanos,
    ) -> Result<(), Loss> {
        let stored = self.store(station, frame, received, Provenance::default(), now);
        self.ingress.counted_elsewhere(station, u32::try_from(frame.len()).unwrap_or(u32::MAX));
        stored
    }

    /// Adds a frame to its station's queue, unless the queue is full, its tenant is over its ceiling, or unsealed frames
    /// in its host's name have used up their part of the queue.
    pub(in super::super) fn store(
        &mut self,
        station: u32,
        frame: &[u8],
        received: &Received,
        Provenance { source, followed, datagram }: Provenance,
        now: Nanos,
    ) -> Result<(), Loss> {
        let place = Sources::place(source);
        if place.is_some() && self.is_over_share(station, place) {
            self.ingress.drop(station, u32::try_from(frame.len()).unwrap_or(u32::MAX), now);
            return Err(Loss::SourceOverShare);
        }
        let waits =
            Waits { vnet: received.vnet, waited: received.waited, place, via: self.via, followed, datagram };
        self.queue(station, frame, waits, now)?;
        if place.is_some() {
            self.sources[station as usize].begin(place);
        }
        Ok(())
    }

    /// Whether the frames of one place have used up their part of a station's queue that has room.
    fn is_over_share(&self, station: u32, place: Option<u8>) -> bool {
        let free = self.ingress.slots(station).saturating_sub(self.ingress.waiting(station).len() as u32);
        free > 0 && !self.sources[station as usize].admit(place, free)
    }

    /// Adds a frame with this address to its station's queue.
    #[inline]
    pub(in super::super) fn offer(
        &mut self,
        station: u32,
        addr: u64,
        frame: &[u8],
        now: Nanos,
    ) -> Result<(), Loss> {
        offer(&mut self.ingress, station, (addr, frame), now)
    }

    fn queue(&mut self, station: u32, frame: &[u8], waits: Waits, now: Nanos) -> Result<(), Loss> {
        let Self { ingress, pools, .. } = self;
        let pool = pools[station as usize].as_mut().expect("in its place between deliveries");
        let Some(buffer) = pool.take(frame.len()) else {
            let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
            return Err(loss_of(ingress.drop(station, len, now)));
        };
        if let Err(why) = offer(ingress, station, (buffer.address(station), frame), now) {
            pool.give(buffer);
            return Err(why);
        }
        pool.bytes_mut(buffer)[..frame.len()].copy_from_slice(frame);
        pool.set_held(buffer, waits);
        Ok(())
    }
}

#[inline]
fn offer(ingress: &mut Ingress, station: u32, (addr, frame): (u64, &[u8]), now: Nanos) -> Result<(), Loss> {
    let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let ecn = if ingress.has_maximum(station) { Ecn::of(frame) } else { None };
    let arrival = Arrival { addr, len, at: now, ecn: ecn.unwrap_or_default() };
    ingress.offer(station, arrival).map_err(loss_of)
}

fn loss_of(why: NotQueued) -> Loss {
    match why {
        NotQueued::Full => Loss::IngressFull,
        NotQueued::OverMax => Loss::IngressOverMax,
    }
}
