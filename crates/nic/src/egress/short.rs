//! Marks and drops: what becomes of a packet that has waited for too long in a class with `flows: fq`.
//!
//! Why: senders fill what they find; a queue is short only if they are told.
//! From: RFC 8290 (FQ-CoDel).
//! Not here: when a packet has waited for too long (`plimsoll_queues::codel`), and writing the mark (the caller).
//! Invariant: a drop takes no time on the link, uses up nothing that a limit has granted, and leaves its flow queue in its
//! place, with packets.

use plimsoll_queues::codel::Verdict;
use plimsoll_units::Nanos;

use super::{Nic, note_limits};
use crate::host::Turn;
use crate::ids::BundleId;
use crate::order::Seen;
use crate::stats::Transmit;

impl Nic {
    /// Takes the head off its flow queue and hands it out as dropped. The picked bundle then stands where it stood, and is picked
    /// again unless its new head ranks behind another bundle's.
    #[cold]
    pub(super) fn drop_head(&mut self, id: BundleId, now: Nanos, out: &mut Vec<Transmit>) {
        let bundle = &self.bundles[id];
        let record = bundle.front().expect("a bundle in a tree holds packets");
        let (class, turn) = (bundle.class, Turn { quantum: None, next: bundle.next_charge() });
        let pull = self.host.pull(record, class, turn, now, out);
        assert!(pull.more(), "a drop leaves packets behind");
        if !self.ranks.is_empty() {
            self.tell_program(now, out);
        }
        note_limits(&self.bundles[id], out);
        if let Some(dropped) = out.last_mut() {
            dropped.verdict = Verdict::Drop;
            self.host.uncount(record, dropped);
            self.bundles[id].note_drop(dropped.frames);
        }
        let bundle = &mut self.bundles[id];
        bundle.forget_waits();
        bundle.entries = 1; // its next head stands in the tree
        if bundle.seen == Seen::Head {
            self.announce_head(id);
        }
    }
}
