//! Packets below a rank program: their ranks on arrival, and word to the program when they leave.
//!
//! Why: what a packet's rank is stands fixed from its doorbell on, so that trees compare numbers.
//! From: Loom §4.1.
//! Not here: the programs (`ranks`), the ranks' place (`host`).
//! Invariant: a flow queue below a program holds no packet without a rank once its doorbell has been heard.

use plimsoll_policy::NodeId;
use plimsoll_units::Nanos;

use super::Nic;
use crate::ids::RecordId;
use crate::ranks::{Below, Seen};
use crate::stats::Transmit;

impl Nic {
    /// Gives the packets of a flow queue their ranks, from `first` on.
    #[cold]
    pub(crate) fn rank_from(&mut self, id: RecordId, first: u16, now: Nanos) {
        let class = self.class_at(self.host.home_of(id));
        let Some(below) = self.ranks.above(class) else { return };
        let (mut at, mut remaining) = (first, self.host.backlog(id));
        while let Some(packet) = self.host.packet(id, at) {
            // What waits now stands for what the flow will send: the engine knows of nothing else.
            let rank = self.ranks.enqueue(below, Seen { remaining, ..packet }, now);
            self.host.set_rank(id, at, rank);
            remaining -= u64::from(packet.len);
            at = at.wrapping_add(1);
        }
    }

    /// After a reload: packets that wait keep their ranks in the same place, `before`. Elsewhere they leave that place for its program, and
    /// arrive at the new one.
    pub(crate) fn rank_again(&mut self, id: RecordId, class: NodeId, before: Option<Below>, now: Nanos) {
        let here = self.ranks.above(class);
        if before.zip(here).is_some_and(|(before, here)| before.is_same_child(here)) {
            return;
        }
        let mut at = self.host.head(id);
        while let Some(before) = before
            && let Some(packet) = self.host.packet(id, at)
        {
            self.ranks.dequeue(before, packet, now);
            at = at.wrapping_add(1);
        }
        self.rank_from(id, self.host.head(id), now);
    }

    /// Tells the program above it that the packet has left which was handed out last, if it has left whole.
    #[cold]
    pub(super) fn tell_program(&mut self, now: Nanos, out: &[Transmit]) {
        let Some(left) = out.last().filter(|left| left.last) else { return };
        let Some(id) = self.host.resolve(left.queue) else { return };
        let class = self.class_at(self.host.home_of(id));
        if let Some(below) = self.ranks.above(class) {
            let packet = self.host.gone(id);
            self.ranks.dequeue(below, packet, now);
        }
    }
}
