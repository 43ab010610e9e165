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

    /// After a reload. Packets that wait keep their ranks below the same program; `before` is where that ranked them. Below another one
    /// they have rank 0, and leave first, in the order of their arrival: to run it for each of them would hold up all that wait. They leave
    /// the place where they were ranked.
    pub(crate) fn keep_or_clear_ranks(&mut self, id: RecordId, class: NodeId, before: Option<Below>) {
        let here = self.ranks.above(class);
        if before.zip(here).is_some_and(|(before, here)| before.is_same_child(here)) {
            return;
        }
        if !before.zip(here).is_some_and(|(before, here)| before.is_same_program(here)) {
            self.host.clear_ranks(id);
        }
        self.ranks.note_ranked_elsewhere(id, self.host.waiting(id), before);
    }

    /// Tells the program above it that the packet has left which was handed out last, if it has left whole.
    #[cold]
    pub(super) fn tell_program(&mut self, now: Nanos, out: &[Transmit]) {
        let Some(left) = out.last().filter(|left| left.last) else { return };
        let Some(id) = self.host.resolve(left.queue) else { return };
        let class = self.class_at(self.host.home_of(id));
        if let Some(below) = self.ranks.place_of_gone(id, class) {
            let packet = self.host.gone(id);
            self.ranks.dequeue(below, packet, now);
        }
    }
}
