//! Where each part of the shared region lies.
//!
//! Why: two programs, perhaps of different versions and languages, read the same bytes.
//! From: `docs/vnic.md`, which this file follows section by section.
//! Not here: the header's words (`header`), what an entry means (`entry`), which sizes are valid (`sizes`), and checks of
//! what a client writes (`ports`).
//! Invariant: the parts of a [`Layout`] lie inside its length, each on a cache line of its own, none over another.

mod entry;
pub mod header;
mod sizes;

pub use entry::{Context, Descriptor, Done, Posted, Posting, Status, Used};
pub use header::Identity;
pub use sizes::{LayoutError, Sizes};

/// The first eight bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PLMSVNIC");
/// Version of the format; it changes when an older client would misread the region.
pub const VERSION: u32 = 1;
/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Bytes of a buffer.
pub const BUFFER: usize = 2_048;
/// Most descriptors that one frame may take.
pub const MAX_PIECES: usize = 40;
/// Largest frame in all: 64 KiB of IP packet, its link header and VLAN tags.
pub const MAX_FRAME: usize = 65_536 + 64;

/// The offset of each part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    sizes: Sizes,
    rings: usize,
    doorbells: usize,
    completions: usize,
    posted: usize,
    used: usize,
    buffers: usize,
    len: usize,
}

impl Layout {
    /// Lays out a region of these sizes.
    ///
    /// # Errors
    /// [`LayoutError::Size`] when one is out of its bounds.
    pub fn new(sizes: Sizes) -> Result<Self, LayoutError> {
        sizes.check()?;
        let Sizes { flow_queues, ring, doorbell_queues, doorbell_words, completions, receive, buffers } =
            sizes;
        let n = |count: u32| count as usize;
        let mut end = header::LEN;
        let mut part = |len: usize| {
            let at = end;
            end += len.next_multiple_of(LINE);
            at
        };
        let rings = part(n(flow_queues) * (LINE + n(ring) * Descriptor::LEN));
        let doorbells = part(n(doorbell_queues) * (2 * LINE + n(doorbell_words) * 2));
        let completions = part(LINE + n(completions) * Done::LEN);
        let posted = part(LINE + n(receive) * Posted::LEN);
        let used = part(LINE + n(receive) * Used::LEN);
        end = end.next_multiple_of(4_096);
        let at = end;
        let len = at + n(buffers) * BUFFER;
        Ok(Self { sizes, rings, doorbells, completions, posted, used, buffers: at, len })
    }

    /// The sizes that the region was laid out for.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Bytes of the region.
    #[must_use]
    pub fn region_len(&self) -> usize {
        self.len
    }

    /// Offset of a flow ring's tail (written by the client): descriptors written so far.
    #[inline]
    #[must_use]
    pub fn ring_tail(&self, queue: u32) -> usize {
        self.rings + queue as usize * (LINE + self.sizes.ring as usize * Descriptor::LEN)
    }

    /// Offset of a descriptor of a flow ring.
    #[inline]
    #[must_use]
    pub fn descriptor(&self, queue: u32, index: u32) -> usize {
        self.ring_tail(queue) + LINE + (index & (self.sizes.ring - 1)) as usize * Descriptor::LEN
    }

    /// Offset of a doorbell queue's tail (written by the client): words written so far.
    #[inline]
    #[must_use]
    pub fn doorbell_tail(&self, core: u32) -> usize {
        self.doorbells + core as usize * (2 * LINE + self.sizes.doorbell_words as usize * 2)
    }

    /// Offset of a doorbell queue's head (written by the daemon): words read so far.
    #[inline]
    #[must_use]
    pub fn doorbell_head(&self, core: u32) -> usize {
        self.doorbell_tail(core) + LINE
    }

    /// Offset of a word of a doorbell queue.
    #[inline]
    #[must_use]
    pub fn doorbell_word(&self, core: u32, index: u32) -> usize {
        self.doorbell_tail(core) + 2 * LINE + (index & (self.sizes.doorbell_words - 1)) as usize * 2
    }

    /// Offset of the completion ring's tail (written by the daemon): completions written so far.
    #[inline]
    #[must_use]
    pub fn completion_tail(&self) -> usize {
        self.completions
    }

    /// Offset of a completion.
    #[inline]
    #[must_use]
    pub fn completion(&self, index: u32) -> usize {
        self.completions + LINE + (index & (self.sizes.completions - 1)) as usize * Done::LEN
    }

    /// Offset of the tail of posted receive buffers (written by the client): buffers posted so far.
    #[inline]
    #[must_use]
    pub fn posted_tail(&self) -> usize {
        self.posted
    }

    /// Offset of a posted receive buffer's entry.
    #[inline]
    #[must_use]
    pub fn posted(&self, index: u32) -> usize {
        self.posted + LINE + (index & (self.sizes.receive - 1)) as usize * Posted::LEN
    }

    /// Offset of the tail of filled receive buffers (written by the daemon): buffers filled so far.
    #[inline]
    #[must_use]
    pub fn used_tail(&self) -> usize {
        self.used
    }

    /// Offset of a filled receive buffer's entry.
    #[inline]
    #[must_use]
    pub fn used(&self, index: u32) -> usize {
        self.used + LINE + (index & (self.sizes.receive - 1)) as usize * Used::LEN
    }

    /// Offset in the region of `len` bytes at `addr` of the buffer area; `None` unless all of them lie in that area.
    #[inline]
    #[must_use]
    pub fn in_buffers(&self, addr: u64, len: u32) -> Option<usize> {
        let room = (self.len - self.buffers) as u64;
        let inside = addr <= room && u64::from(len) <= room - addr;
        inside.then(|| self.buffers + addr as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_in_order_on_lines_of_their_own() {
        let layout = Layout::new(Sizes::small()).unwrap();
        let parts = [
            layout.ring_tail(0),
            layout.descriptor(0, 3) + Descriptor::LEN - 1,
            layout.ring_tail(2),
            layout.descriptor(2, 3) + Descriptor::LEN - 1,
            layout.doorbell_tail(0),
            layout.doorbell_word(0, 31) + 1,
            layout.doorbell_tail(1),
            layout.doorbell_word(1, 31) + 1,
            layout.completion_tail(),
            layout.completion(7) + Done::LEN - 1,
            layout.posted_tail(),
            layout.posted(3) + Posted::LEN - 1,
            layout.used_tail(),
            layout.used(3) + Used::LEN - 1,
            layout.in_buffers(0, 1).unwrap(),
        ];
        assert!(parts.is_sorted(), "{parts:?}");
        assert!(parts.iter().step_by(2).all(|at| at % LINE == 0), "{parts:?}");
        assert_eq!(layout.descriptor(1, 5), layout.descriptor(1, 1), "rings wrap");
        assert_eq!(layout.region_len(), layout.in_buffers(0, 0).unwrap() + 5 * BUFFER);
    }

    #[test]
    fn bytes_outside_the_buffers_are_nowhere() {
        let layout = Layout::new(Sizes::small()).unwrap();
        let room = 5 * BUFFER as u64;
        assert!(layout.in_buffers(room - 10, 10).is_some());
        for (addr, len) in [(room - 10, 11), (room + 1, 0), (u64::MAX, 1), (u64::MAX - 3, 8), (0, u32::MAX)] {
            assert_eq!(layout.in_buffers(addr, len), None, "{addr}+{len}");
        }
    }
}
