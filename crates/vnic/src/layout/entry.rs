//! The entries of the rings: pieces to send, completions, buffers to fill, buffers that are filled.
//!
//! Why: an entry is written by one program and read by another; both take it from here.
//! From: `docs/vnic.md`, "Flow rings", "Completions", "Receiving".
//! Not here: where an entry lies (`layout`), and whether it is valid (`ports` checks what a client writes).
//! Invariant: an entry is copied out once, word by word; any words can be read as an entry.

use std::sync::atomic::Ordering;

use plimsoll_wire::VnetHeader;
use plimsoll_wire::doorbell::PacketMetadata;

use crate::region::Region;

/// A piece of a frame to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Where it lies, from the beginning of the buffers.
    pub addr: u64,
    /// Its bytes.
    pub len: u32,
    /// Whether the next descriptor continues this frame. The fields after this one are read from a frame's first descriptor.
    pub more: bool,
    /// Work left to the daemon; all zero for a finished frame.
    pub offload: VnetHeader,
    /// Slack or deadline in microseconds from the doorbell; 0 for the class's own.
    pub tag: u32,
    /// Given back with the completion.
    pub cookie: u32,
}

const MORE: u64 = 1;
const CONTEXT: u64 = 2;

/// A context descriptor: metadata of the frame whose pieces follow it. It stands first, and counts as one of the frame's
/// descriptors but as none of its pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The frame's metadata, in place of its flow queue's.
    pub metadata: PacketMetadata,
    /// Given back with the completion.
    pub cookie: u32,
}

/// The content of one place in a flow ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// A piece of a frame.
    Piece(Descriptor),
    /// The metadata of the frame that follows.
    Context(Context),
}

impl Context {
    /// The words that it takes in the ring.
    #[must_use]
    pub fn to_words(&self) -> [u64; 4] {
        let PacketMetadata { priority, cgroup, user, app } = self.metadata;
        let [priority, user, app] = [priority, user, app].map(|value| u64::from(value.unwrap_or_default()));
        let present = u64::from(self.metadata.present());
        [
            cgroup.unwrap_or_default(),
            priority | (MORE | CONTEXT) << 32 | present << 48,
            user | app << 32,
            u64::from(self.cookie) << 32,
        ]
    }

    /// Writes it into its place.
    #[inline]
    pub fn store(&self, region: &Region, at: usize) {
        store_words(self.to_words(), region, at);
    }
}

impl Posting {
    /// Reads it from a ring's words. Any words can be read; the caller checks whether the values are valid.
    #[inline]
    #[must_use]
    pub fn from_words(words: [u64; 4]) -> Self {
        let [first, second, third, fourth] = words;
        if second >> 32 & CONTEXT == 0 {
            return Self::Piece(Descriptor::from_words(words));
        }
        let metadata = PacketMetadata {
            priority: Some(second as u32),
            cgroup: Some(first),
            user: Some(third as u32),
            app: Some((third >> 32) as u32),
        };
        Self::Context(Context {
            metadata: metadata.only((second >> 48) as u8),
            cookie: (fourth >> 32) as u32,
        })
    }

    /// Copies it out, once.
    #[inline]
    #[must_use]
    pub fn load(region: &Region, at: usize) -> Self {
        Self::from_words(load_words(region, at))
    }
}

#[inline]
fn store_words(words: [u64; 4], region: &Region, at: usize) {
    for (word, at) in words.into_iter().zip((at..).step_by(8)) {
        region.word64(at).store(word, Ordering::Relaxed);
    }
}

#[inline]
fn load_words(region: &Region, at: usize) -> [u64; 4] {
    let word = |index: usize| region.word64(at + 8 * index).load(Ordering::Relaxed);
    [word(0), word(1), word(2), word(3)]
}

impl Descriptor {
    pub(super) const LEN: usize = 32;

    /// The words that it takes in the ring.
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; 4] {
        let VnetHeader { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = self.offload;
        let more = if self.more { MORE } else { 0 };
        [
            self.addr,
            u64::from(self.len) | more << 32 | u64::from(flags) << 48 | u64::from(gso_type) << 56,
            u64::from(hdr_len)
                | u64::from(gso_size) << 16
                | u64::from(csum_start) << 32
                | u64::from(csum_offset) << 48,
            u64::from(self.tag) | u64::from(self.cookie) << 32,
        ]
    }

    /// Reads it from a ring's words. Any words can be read; the caller checks whether the values are valid.
    #[inline]
    #[must_use]
    pub fn from_words(words: [u64; 4]) -> Self {
        let [addr, second, third, fourth] = words;
        Self {
            addr,
            len: second as u32,
            more: second >> 32 & MORE != 0,
            offload: VnetHeader {
                flags: (second >> 48) as u8,
                gso_type: (second >> 56) as u8,
                hdr_len: third as u16,
                gso_size: (third >> 16) as u16,
                csum_start: (third >> 32) as u16,
                csum_offset: (third >> 48) as u16,
            },
            tag: fourth as u32,
            cookie: (fourth >> 32) as u32,
        }
    }

    /// Writes it into its place.
    #[inline]
    pub fn store(&self, region: &Region, at: usize) {
        store_words(self.to_words(), region, at);
    }

    /// Copies it out, once.
    #[inline]
    #[must_use]
    pub fn load(region: &Region, at: usize) -> Self {
        Self::from_words(load_words(region, at))
    }
}

/// How a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// It left.
    Sent = 0,
    /// The daemon dropped it; the operator's counters say why.
    Dropped = 1,
    /// Its descriptors, headers or offloads make no sense.
    Malformed = 2,
}

impl Status {
    /// From the word in a completion.
    #[must_use]
    pub fn from_word(word: u16) -> Self {
        match word {
            0 => Self::Sent,
            1 => Self::Dropped,
            _ => Self::Malformed,
        }
    }
}

/// The completion of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The cookie of its first descriptor.
    pub cookie: u32,
    /// Its flow queue.
    pub queue: u32,
    /// How it ended.
    pub status: Status,
    /// The descriptors that it had.
    pub descriptors: u32,
}

impl Done {
    pub(super) const LEN: usize = 16;

    /// Writes it into its place.
    #[inline]
    pub fn store(&self, region: &Region, at: usize) {
        // There are no more than 4,096 flow queues.
        let queue = u64::from(self.queue as u16);
        let first = u64::from(self.cookie) | queue << 32 | u64::from(self.status as u16) << 48;
        region.word64(at).store(first, Ordering::Relaxed);
        region.word64(at + 8).store(self.descriptors.into(), Ordering::Relaxed);
    }

    /// Copies it out, once.
    #[inline]
    #[must_use]
    pub fn load(region: &Region, at: usize) -> Self {
        let first = region.word64(at).load(Ordering::Relaxed);
        let descriptors = region.word64(at + 8).load(Ordering::Relaxed) as u32;
        let queue = u32::from((first >> 32) as u16);
        Self { cookie: first as u32, queue, status: Status::from_word((first >> 48) as u16), descriptors }
    }
}

/// An empty buffer for a frame to be received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// Where it lies, from the beginning of the buffers.
    pub addr: u64,
    /// Its bytes.
    pub len: u32,
    /// Given back when it is filled.
    pub cookie: u32,
}

impl Posted {
    pub(super) const LEN: usize = 16;

    /// Writes it into its place.
    #[inline]
    pub fn store(&self, region: &Region, at: usize) {
        region.word64(at).store(self.addr, Ordering::Relaxed);
        let second = u64::from(self.len) | u64::from(self.cookie) << 32;
        region.word64(at + 8).store(second, Ordering::Relaxed);
    }

    /// Copies it out, once.
    #[inline]
    #[must_use]
    pub fn load(region: &Region, at: usize) -> Self {
        let addr = region.word64(at).load(Ordering::Relaxed);
        let second = region.word64(at + 8).load(Ordering::Relaxed);
        Self { addr, len: second as u32, cookie: (second >> 32) as u32 }
    }
}

/// A filled buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes of the frame in it.
    pub len: u32,
    /// The buffer's cookie.
    pub cookie: u32,
}

impl Used {
    pub(super) const LEN: usize = 8;

    /// Writes it into its place.
    #[inline]
    pub fn store(&self, region: &Region, at: usize) {
        let word = u64::from(self.len) | u64::from(self.cookie) << 32;
        region.word64(at).store(word, Ordering::Relaxed);
    }

    /// Copies it out, once.
    #[inline]
    #[must_use]
    pub fn load(region: &Region, at: usize) -> Self {
        let word = region.word64(at).load(Ordering::Relaxed);
        Self { len: word as u32, cookie: (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        let descriptor = Descriptor {
            addr: 0x0102_0304_0506,
            len: 70_000,
            more: true,
            offload: VnetHeader {
                flags: 1,
                gso_type: 0x81,
                hdr_len: 54,
                gso_size: 1_448,
                csum_start: 34,
                csum_offset: 16,
            },
            tag: 250,
            cookie: u32::MAX,
        };
        assert_eq!(Descriptor::from_words(descriptor.to_words()), descriptor);
        assert_eq!(Posting::from_words(descriptor.to_words()), Posting::Piece(descriptor));
        let metadata =
            PacketMetadata { priority: Some(6), cgroup: None, user: Some(u32::MAX), app: Some(1 << 31) };
        for metadata in [metadata, PacketMetadata { cgroup: Some(u64::MAX), app: None, ..metadata }] {
            let context = Context { metadata, cookie: 77 };
            assert_eq!(Posting::from_words(context.to_words()), Posting::Context(context));
        }
        let (region, _file) = Region::create(4_096).unwrap();
        let (posted, used) = (Posted { addr: 1 << 40, len: 2_048, cookie: 9 }, Used { len: 60, cookie: 9 });
        let done = Done { cookie: 7, queue: 4_095, status: Status::Malformed, descriptors: 40 };
        posted.store(&region, 64);
        used.store(&region, 128);
        done.store(&region, 192);
        assert_eq!(Done::load(&region, 192), done);
        assert_eq!((Posted::load(&region, 64), Used::load(&region, 128)), (posted, used));
    }
}
