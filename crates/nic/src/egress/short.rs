//! Marks and drops: what becomes of a packet that has waited for too long in a class with `flows: fq`.
//!
//! Why: senders fill what they find; a queue is short only if they are told.
//! From: RFC 8290 (FQ-CoDel).
//! Not here: when a packet has waited for too long (`plimsoll_queues::codel`), and writing the mark (the caller).
//! Invariant: a drop takes no time on the link, uses up nothing that a limit has granted, and leaves its flow queue in its
//! place, with packets.

use plimsoll_queues::codel::Verdict;
use plimsoll_units::Nanos;

use super::{Nic, transmit};
use crate::ids::{BundleId, RecordId};
use crate::stats::Transmit;

impl Nic {
    /// Counts the mark, or takes the head off its flow queue and hands it out as dropped. Returns whether it did: the picked
    /// bundle then stands where it stood, and is picked again unless its new head ranks behind another bundle's.
    #[cold]
    pub(super) fn signal(
        &mut self,
        id: BundleId,
        record: RecordId,
        verdict: Verdict,
        now: Nanos,
        out: &mut Vec<Transmit>,
    ) -> bool {
        let bundle = &mut self.bundles[id];
        let [marked, dropped] = &mut self.signalled[bundle.class];
        if verdict == Verdict::Mark {
            *marked += u64::from(self.host.frames_of_pull(record));
            return false;
        }
        let pull = self.host.pull(record, now, None);
        assert!(pull.more, "a drop leaves packets behind");
        *dropped += u64::from(pull.frames);
        out.push(transmit(bundle.class, (bundle.limited_by, bundle.limited), &pull, verdict));
        bundle.forget_waits();
        bundle.entries = 1; // its next head stands in the tree
        if bundle.ranks_packets {
            self.announce_head(id);
        }
        true
    }
}
