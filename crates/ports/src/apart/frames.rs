//! Passes frames between two threads: heads in one ring, bytes in another.
//!
//! Why: a frame of 60 bytes must not take the room of one of 64 KiB, and no frame needs an allocation.
//! From: rings with one writer and one reader (`rtrb`).
//! Not here: the contents of the heads (`apart`).
//! Invariant: a head in its ring has its bytes in the other; frames come out whole, once and in order.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::contract::FRAME_ROOM;

/// Makes the two ends of a pair of rings.
pub(super) fn ring<H>() -> (Writer<H>, Reader<H>) {
    let (heads, heads_out) = RingBuffer::new(FRAMES);
    let (bytes, bytes_out) = RingBuffer::new(BYTES);
    (Writer { heads, bytes }, Reader { heads: heads_out, bytes: bytes_out })
}

/// The writing end.
pub(super) struct Writer<H> {
    heads: Producer<H>,
    bytes: Producer<u8>,
}

/// The reading end.
pub(super) struct Reader<H> {
    heads: Consumer<H>,
    bytes: Consumer<u8>,
}

/// A head that knows the length of its frame.
pub(super) trait Length {
    fn length(&self) -> usize;
}

impl<H: Length> Writer<H> {
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.heads.slots() > 0 && self.bytes.slots() >= len
    }

    /// Adds a frame; false when there is no room.
    pub(super) fn push(&mut self, head: H, frame: &[u8]) -> bool {
        // The head last: a reader that sees it finds the bytes.
        self.has_room(frame.len())
            && self.bytes.push_entire_slice(frame).is_ok()
            && self.heads.push(head).is_ok()
    }
}

impl<H: Length> Reader<H> {
    pub(super) fn pop(&mut self, into: &mut [u8]) -> Option<H> {
        let head = self.heads.pop().ok()?;
        self.bytes.pop_entire_slice(&mut into[..head.length()]).ok().map(|()| head)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.heads.slots()
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.heads.is_abandoned()
    }
}

/// Most frames that wait in one direction: two guests' rings.
const FRAMES: usize = 512;
/// Most bytes that wait in one direction: 16 of the longest frames.
const BYTES: usize = 16 * FRAME_ROOM;
