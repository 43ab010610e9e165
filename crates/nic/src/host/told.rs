//! What was told of flow queues, and which ones have changed since.
//!
//! Why: of thousands of flow queues few hold packets, and a report that looks at all of them costs a thread a tenth of its time.
//! Not here: what is told, and to whom (`egress::leases`).
//! Invariant: a flow queue that has changed is marked, or all of them are to be told anew. Without reports nothing is kept.

use super::record::Record;
use crate::ids::{RecordId, Table, Tagged};

/// What is told of flow queues, by record.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// By bit: those that have held packets since the last report. Empty until there is one.
    marked: Vec<u64>,
    last: Vec<Counts>,
    /// Whether counts have been added up, or flow queues have got other homes.
    is_stale: bool,
}

/// Frames and bytes of a flow queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// What has left, and has not been added up.
    pub(crate) left: [u64; 2],
    /// What waits.
    pub(crate) waits: [u64; 2],
}

impl Counts {
    fn of(record: &Record) -> Self {
        let waits = record.seen.wrapping_sub(record.head);
        Self {
            left: [record.packets.into(), record.bytes.into()],
            waits: [waits.into(), record.backlog.into()],
        }
    }
}

impl Told {
    /// A flow queue begins to hold packets.
    #[inline]
    pub(super) fn mark(&mut self, id: RecordId) {
        if let Some(word) = self.marked.get_mut(id.0 as usize / 64) {
            *word |= 1 << (id.0 % 64);
        }
    }

    /// What was told of some flow queue is not what it has counted from.
    pub(super) fn forget(&mut self) {
        self.is_stale = true;
    }

    /// Whether changes can be told.
    pub(super) fn is_known(&self) -> bool {
        !self.is_stale && !self.marked.is_empty()
    }

    /// Tells the counts of all flow queues that are in use.
    pub(super) fn all(
        &mut self,
        records: &Table<RecordId, Record>,
        used: usize,
        mut each: impl FnMut(Tagged, Counts),
    ) {
        let records = records.iter();
        self.marked.clear();
        self.marked.resize(records.len().div_ceil(64).max(1), 0);
        self.last.clear();
        self.last.resize(records.len(), Counts::default());
        self.is_stale = false;
        for (id, record) in (0..).map(RecordId).zip(records).take(used).filter(|(_, record)| record.is_open())
        {
            let counts = Counts::of(record);
            each(record.home, counts);
            self.last[id.0 as usize] = counts;
            if record.head != record.seen {
                self.mark(id);
            }
        }
    }

    /// Tells the counts of the flow queues that may have changed, as they were told before and as they are now.
    pub(super) fn changes(
        &mut self,
        records: &Table<RecordId, Record>,
        mut each: impl FnMut(Tagged, Counts, Counts),
    ) {
        for (at, word) in (0..).zip(&mut self.marked) {
            let mut bits = *word;
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                let id = RecordId(at * 64 + bit);
                let record = &records[id];
                let counts = Counts::of(record);
                let before = core::mem::replace(&mut self.last[id.0 as usize], counts);
                each(record.home, before, counts);
                if record.head == record.seen {
                    *word &= !(1 << bit);
                }
            }
        }
    }
}
