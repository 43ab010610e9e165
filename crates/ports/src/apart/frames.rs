//! Frames between two threads: heads in one ring, their bytes in another.
//!
//! Why: a frame of 60 bytes shall not take the room of one of 64 KiB, nor shall any be allocated for.
//! From: rings between one writer and one reader (`rtrb`).
//! Not here: what the heads say (`apart`).
//! Invariant: a head stands for bytes that are there; frames come out whole, once, in the order in which they went in.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::port::FRAME_ROOM;

/// Frames and their heads, one behind the other: a head stands for bytes that are there.
pub(super) fn ring<H>() -> (Writer<H>, Reader<H>) {
    let (heads, heads_out) = RingBuffer::new(FRAMES);
    let (bytes, bytes_out) = RingBuffer::new(BYTES);
    (Writer { heads, bytes }, Reader { heads: heads_out, bytes: bytes_out })
}

/// Where they go in.
pub(super) struct Writer<H> {
    heads: Producer<H>,
    bytes: Producer<u8>,
}

/// Where they come out.
pub(super) struct Reader<H> {
    heads: Consumer<H>,
    bytes: Consumer<u8>,
}

/// How many bytes stand behind a head.
pub(super) trait Length {
    fn length(&self) -> usize;
}

impl<H: Length> Writer<H> {
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.heads.slots() > 0 && self.bytes.slots() >= len
    }

    /// Answers whether there was room.
    pub(super) fn push(&mut self, head: H, frame: &[u8]) -> bool {
        // The head last: who sees it finds the bytes.
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

/// Frames that wait between the engine and the thread, each way, and their bytes: two guests' rings, or 16 of the longest.
const FRAMES: usize = 512;
const BYTES: usize = 16 * FRAME_ROOM;
