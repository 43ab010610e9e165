//! Descriptor rings: what the host wrote and the engine has not completed.
//!
//! Why: a ring for each flow queue, all in one allocation, laid out so that what is in use lies together.
//! From: Loom §4.3 (descriptor queues).
//! Not here: which part of a ring is in use (`host`).
//! Invariant: a ring's slots are addressed modulo its size, a power of two.

use plimsoll_wire::Ecn;
use prefetch_index::prefetch_index;

use crate::ids::RecordId;

/// The descriptor rings, interleaved by cache line: first every ring's first line, then every ring's second, and so on.
/// Most rings hold little, and begin again at their first line once they are empty, so that what is in use lies
/// together, in few lines and few pages.
#[derive(Clone, Debug)]
pub(super) struct Rings {
    /// Slots of each ring, less one.
    pub(super) mask: u16,
    /// Lines from one line of a ring to its next.
    stride: usize,
    lines: Vec<Line>,
    /// The ranks of the slots' packets, in the order of `lines`; empty without rank programs.
    ranks: Vec<u64>,
}

/// A cache line of a ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([Slot; SLOTS_PER_LINE]);

const SLOTS_PER_LINE: usize = 2;
pub(crate) const SLOT_BYTES: usize = size_of::<Slot>();

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) addr: u64,
    pub(super) arrived: u64,
    pub(super) len: u32,
    pub(super) arrival: u32,
    pub(super) segment: u16,
    pub(super) header: u16,
    pub(super) tag: SlotTag,
}

/// A descriptor's slack or deadline in microseconds, and in the upper two bits its ECN field: two slots fill a cache line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotTag(u32);

impl SlotTag {
    const MICROS: u32 = u32::MAX >> 2;

    /// A slack or deadline of more than 17 minutes becomes one of 17 minutes.
    #[inline]
    pub(super) fn new(micros: u32, ecn: Ecn) -> Self {
        Self(micros.min(Self::MICROS) | u32::from(ecn.bits()) << 30)
    }

    #[inline]
    pub(super) fn micros(self) -> u32 {
        self.0 & Self::MICROS
    }

    #[inline]
    pub(super) fn ecn(self) -> Ecn {
        Ecn::from_bits((self.0 >> 30) as u8)
    }
}

impl Rings {
    pub(super) fn new(records: u32, slots: u16) -> Self {
        let slots = slots.clamp(SLOTS_PER_LINE as u16, 1 << 14).next_power_of_two();
        // Odd, so that the lines of one ring do not compete for the same few places of a cache.
        let stride = records as usize | 1;
        let lines = stride * (usize::from(slots) / SLOTS_PER_LINE);
        Self { mask: slots - 1, stride, lines: vec![Line::default(); lines], ranks: Vec::new() }
    }

    /// Keeps a rank for each slot from now on, or none.
    pub(super) fn keep_ranks(&mut self, keep: bool) {
        self.ranks.resize(if keep { self.lines.len() * SLOTS_PER_LINE } else { 0 }, 0);
        self.ranks.shrink_to_fit();
    }

    #[inline]
    fn place(&self, id: RecordId, index: u16) -> usize {
        self.line(id, index) * SLOTS_PER_LINE + usize::from(index) % SLOTS_PER_LINE
    }

    #[inline]
    pub(super) fn rank(&self, id: RecordId, index: u16) -> u64 {
        self.ranks.get(self.place(id, index)).copied().unwrap_or(0)
    }

    pub(super) fn set_rank(&mut self, id: RecordId, index: u16, rank: u64) {
        let place = self.place(id, index);
        if let Some(slot) = self.ranks.get_mut(place) {
            *slot = rank;
        }
    }

    /// Makes room for the rings of more flow queues; descriptors stay where they are.
    pub(super) fn grow(&mut self, records: u32) {
        let mut grown = Self::new(records, self.mask + 1);
        grown.keep_ranks(!self.ranks.is_empty());
        for id in (0..).map(RecordId).take(self.stride) {
            for index in 0..=self.mask {
                *grown.slot_mut(id, index) = *self.slot(id, index);
                grown.set_rank(id, index, self.rank(id, index));
            }
        }
        *self = grown;
    }

    #[inline]
    pub(super) fn line(&self, id: RecordId, index: u16) -> usize {
        usize::from(index & self.mask) / SLOTS_PER_LINE * self.stride + id.0 as usize
    }

    #[inline]
    pub(super) fn slot(&self, id: RecordId, index: u16) -> &Slot {
        &self.lines[self.line(id, index)].0[usize::from(index) % SLOTS_PER_LINE]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, id: RecordId, index: u16) -> &mut Slot {
        let line = self.line(id, index);
        &mut self.lines[line].0[usize::from(index) % SLOTS_PER_LINE]
    }

    #[inline]
    pub(super) fn prefetch(&self, id: RecordId, index: u16) {
        prefetch_index(&self.lines, self.line(id, index));
    }
}
