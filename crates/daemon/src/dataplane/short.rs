//! Packets that have waited for too long in a class with `flows: fq`: marked, or lost for a counted reason.
//!
//! Why: the engine decides by descriptors; the mark stands in the frame.
//! From: RFC 3168 (the mark).
//! Not here: which packets these are (`nic`).
//! Invariant: packets from and to tenants with `ecn: untouched` leave as they came, or not at all.

use plimsoll_nic::{Transmit, Verdict};
use plimsoll_wire::Ecn;

use super::Dataplane;
use super::drops::Loss;
use super::lane::Lane;
use super::mac_table::Owner;
use super::pool::Buffer;

impl Dataplane {
    /// Marks the frames of a pull that has waited for too long, or counts it as lost. Returns whether it is lost: also where its
    /// receiver's packets may not be changed. A mark is written into the header that all frames of a long segment share.
    #[cold]
    pub(super) fn signal(&mut self, lane: &mut Lane, buffer: Buffer, transmit: &Transmit) -> bool {
        let held = *lane.pool.held(buffer);
        let untouched = match self.macs.owner(lane.network, held.to) {
            Some(Owner::Lane(to)) => self
                .tenants
                .lanes
                .get(to as usize)
                .and_then(Option::as_ref)
                .is_some_and(|lane| lane.untouched),
            _ => self.fleet.as_ref().is_some_and(|fleet| fleet.map.is_untouched(lane.network, held.to)),
        };
        if transmit.verdict == Verdict::Mark && !untouched {
            let len = held.at_hand();
            let frames = &mut lane.pool.bytes_mut(buffer)[..len * held.frames() as usize];
            let marked = frames.chunks_exact_mut(len.max(1)).all(|frame| Ecn::Ce.write(frame));
            debug_assert!(marked, "a packet with an ECN field has an IP header");
            return false;
        }
        (self.uplink.resume, self.uplink.flooded) = (0, 0);
        lane.tally.lost_many(Loss::WaitedTooLong, transmit.frames.into());
        true
    }
}
