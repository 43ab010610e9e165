//! Doorbells: 16-bit notes that flow queues have new descriptors, many to a write.
//!
//! Why: a write over PCIe costs up to 900 ns; one for each of many queues misses the line rate.
//! From: Loom §4.3.1 (32 doorbells to a cache line, one write for a batch) and §4.3.2 (metadata in line). Sixteen bits
//! can neither carry values nor name more than 65,535 queues, so one entry is an escape, followed by extension words.
//! Not here: the words (`wire`), and what a doorbell does to the engine (`egress`).
//! Invariant: whatever words come in, reading them ends, and what makes no sense is counted.

use plimsoll_policy::{LimitId, NodeId};
use plimsoll_units::BitRate;
use plimsoll_wire::doorbell;
pub use plimsoll_wire::doorbell::ENTRIES_PER_LINE;

use crate::ids::QueueId;

/// One core's doorbells, on the host's side.
#[derive(Clone, Debug, Default)]
pub struct DoorbellQueue {
    batch: Vec<u16>,
    last: Option<QueueId>,
    writes: PcieWrites,
}

/// Writes over PCIe that a hardware NIC would have seen (Loom §7.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcieWrites {
    /// Loom as the paper counts it: one write for each batch.
    pub batches: u64,
    /// Loom to the cache line: one write for each 32 entries.
    pub lines: u64,
    /// One doorbell register for each queue: a write whenever the queue changes inside a batch.
    pub per_queue: u64,
    /// SENIC: a 16-byte doorbell for each of those, four to a line at best, into one queue that cores share.
    pub senic_bytes: u64,
    /// Doorbell entries of any kind.
    pub entries: u64,
}

/// The meaning of doorbell words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    NewDescriptors(QueueId),
    Weight(NodeId, u32),
    Rate(LimitId, BitRate),
    ClassRate(NodeId, BitRate),
    Tag(QueueId, u32),
    Malformed,
}

const SENIC_DOORBELL_BYTES: u64 = 16;

impl DoorbellQueue {
    /// An empty queue that holds batches of up to `entries` without allocating.
    #[must_use]
    pub fn with_capacity(entries: usize) -> Self {
        Self { batch: Vec::with_capacity(entries), ..Self::default() }
    }

    /// Notes that `queue` has new descriptors. Repeating the last one of the batch adds nothing.
    #[inline]
    pub fn bell(&mut self, queue: QueueId) {
        if self.last == Some(queue) {
            return;
        }
        self.last = Some(queue);
        self.writes.per_queue += 1;
        match u16::try_from(queue.0) {
            Ok(word) if word != doorbell::ESCAPE => {
                self.writes.entries += 1;
                self.batch.push(word);
            }
            _ => self.push(doorbell::Note::Bell(queue.0)),
        }
    }

    /// Gives a class or node another weight, from its next packet on.
    pub fn set_weight(&mut self, node: NodeId, weight: u32) {
        self.push(doorbell::Note::Weight(node.0, weight));
    }

    /// Gives a limit another rate, from its next packet on.
    pub fn set_rate(&mut self, limit: LimitId, rate: BitRate) {
        self.push(doorbell::Note::Rate(limit.0, rate.get()));
    }

    /// Gives a child of a `rate_share` node another rate, from the next decision on.
    pub fn set_class_rate(&mut self, node: NodeId, rate: BitRate) {
        self.push(doorbell::Note::ClassRate(node.0, rate.get()));
    }

    /// Gives a flow queue the tag (slack or deadline, in microseconds) of descriptors that bring none.
    pub fn set_tag(&mut self, queue: QueueId, tag: u32) {
        self.push(doorbell::Note::Tag(queue.0, tag));
    }

    /// Hands the batch over as one write, if there is anything in it.
    #[inline]
    pub fn flush(&mut self, write: impl FnOnce(&[u16])) {
        if self.batch.is_empty() {
            return;
        }
        self.writes.batches += 1;
        self.writes.lines += self.batch.len().div_ceil(ENTRIES_PER_LINE) as u64;
        write(&self.batch);
        self.batch.clear();
        self.last = None;
    }

    /// Writes so far, in each way of counting.
    #[must_use]
    pub fn writes(&self) -> PcieWrites {
        PcieWrites { senic_bytes: self.writes.per_queue * SENIC_DOORBELL_BYTES, ..self.writes }
    }

    fn push(&mut self, note: doorbell::Note) {
        let before = self.batch.len();
        note.write(&mut self.batch);
        self.writes.entries += (self.batch.len() - before) as u64;
    }
}

/// The note behind an escape entry and how many words it takes; a wrong one takes all, as nothing tells where the
/// next begins.
#[inline]
pub(crate) fn read_extension(words: &[u16]) -> (Note, usize) {
    let (note, used) = doorbell::Note::extension(words);
    let note = match note {
        doorbell::Note::Bell(queue) => Note::NewDescriptors(QueueId(queue)),
        doorbell::Note::Weight(node, weight) => Note::Weight(NodeId(node), weight),
        doorbell::Note::Tag(queue, tag) => Note::Tag(QueueId(queue), tag),
        doorbell::Note::Rate(limit, rate) => {
            BitRate::new(rate).map_or(Note::Malformed, |rate| Note::Rate(LimitId(limit), rate))
        }
        doorbell::Note::ClassRate(node, rate) => {
            BitRate::new(rate).map_or(Note::Malformed, |rate| Note::ClassRate(NodeId(node), rate))
        }
        // Metadata says which flow queue a packet belongs to, which the host has decided before it rings.
        doorbell::Note::Metadata(..) | doorbell::Note::Malformed => Note::Malformed,
    };
    (note, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a batch of doorbell words.
    fn read(mut words: &[u16]) -> impl Iterator<Item = Note> {
        core::iter::from_fn(move || {
            let (&first, rest) = words.split_first()?;
            words = rest;
            if first != doorbell::ESCAPE {
                return Some(Note::NewDescriptors(QueueId(first.into())));
            }
            let (note, used) = read_extension(words);
            words = words.get(used..).unwrap_or(&[]);
            Some(note)
        })
    }

    fn notes(queue: &mut DoorbellQueue) -> Vec<Note> {
        let mut found = Vec::new();
        queue.flush(|words| found = read(words).collect());
        found
    }

    #[test]
    fn what_is_written_is_read() {
        let mut queue = DoorbellQueue::default();
        queue.bell(QueueId(7));
        queue.bell(QueueId(7));
        queue.bell(QueueId(70_000));
        queue.bell(QueueId(65_535));
        queue.set_weight(NodeId(3), 70_000);
        queue.set_rate(LimitId(1), BitRate::gbps(100));
        queue.set_class_rate(NodeId(2), BitRate::mbps(3));
        queue.set_tag(QueueId(9), 250);
        let expected = [
            Note::NewDescriptors(QueueId(7)),
            Note::NewDescriptors(QueueId(70_000)),
            Note::NewDescriptors(QueueId(65_535)),
            Note::Weight(NodeId(3), 70_000),
            Note::Rate(LimitId(1), BitRate::gbps(100)),
            Note::ClassRate(NodeId(2), BitRate::mbps(3)),
            Note::Tag(QueueId(9), 250),
        ];
        assert_eq!(notes(&mut queue), expected);
    }

    #[test]
    fn a_batch_of_44_flows_is_one_write_or_two_lines() {
        let mut queue = DoorbellQueue::default();
        (0..44).for_each(|id| queue.bell(QueueId(id)));
        queue.flush(|_| {});
        let writes = queue.writes();
        assert_eq!((writes.batches, writes.lines, writes.per_queue), (1, 2, 44));
    }
}
