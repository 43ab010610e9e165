//! Frame buffers of one tenant: a fixed number of small and of large ones.
//!
//! Why: a tenant that fills its buffers waits at its own port, and no other tenant notices.
//! From: `docs/architecture.md`, "memory is fixed by configuration".
//! Not here: the order of waiting frames (`nic`), and when a port is read (`dataplane`).
//! Invariant: a buffer has one holder; taking and giving back allocate nothing.

use plimsoll_nic::{Descriptor, Transmit};
use plimsoll_ports::Ticket;
use plimsoll_wire::{Ecn, Offload};
use prefetch_index::prefetch_index;

use super::mac_table::Mac;
use crate::departures::{Headers, Packed};

/// Holds a frame of at most one ordinary MTU, VLAN tags included.
pub const SMALL: usize = 2_048;

/// Holds the largest frame that segmentation offload hands over: 64 KiB of payload and its headers.
pub const LARGE: usize = 68 * 1_024;

/// Bytes that are copied of a frame whose payload stays with its sender: two tags, and the headers of TCP over IPv6 with all options
/// (122 bytes).
pub(crate) const FRONT: usize = 128;

/// The number of a buffer in its pool; the top bit is set for a large one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer(u32);

/// What is known of the frame in a buffer, or of each frame of a train.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Bytes of one frame.
    pub len: u32,
    /// Offload work that is still to be done.
    pub offload: Offload,
    /// The ticket for its completion, if its port wants one.
    pub ticket: Option<Ticket>,
    /// Further frames of a train, which stand behind it in the buffer, each with a ticket of its own.
    pub following: u16,
    /// Frames of a train that have been given back to their sender, the first ones.
    pub given: u16,
    /// Frames of a train that have been sent, a bit for each: the others are lost when it ends.
    pub sent: u32,
    /// Whether the buffer holds only the first 128 bytes, and the others are still with the sender.
    pub late: bool,
    /// Its receiver in a fleet.
    pub to: Mac,
    /// Its headers for the departure log.
    pub headers: Headers,
    /// A number by which the fabric chooses a path: equal for all frames of its flow.
    pub hash: u32,
}

/// The buffers of one tenant, with what is known of the frame in each.
#[derive(Debug)]
pub struct Pool<H = Held> {
    small: Slab<H>,
    large: Slab<H>,
}

#[derive(Debug)]
struct Slab<H> {
    bytes: Vec<u8>,
    /// Where the first buffer begins: each begins with a cache line.
    first: usize,
    size: usize,
    free: Vec<u32>,
    held: Vec<H>,
    /// Metadata for the departure log, where a frame's headers say that it has some.
    metadata: Vec<Packed>,
}

const LARGE_BIT: u32 = 1 << 31;

/// Bytes of a cache line. Buffers lie one line further apart than they are long: beginnings at multiples of 2,048 bytes would share two
/// of the 64 places of a first-level cache.
const LINE: usize = 64;

const ETHERNET: u32 = 14;

/// Bytes that the frames of a train have on the wire, together: those of one frame of an ordinary MTU. So a train
/// occupies the link no longer than one frame may, and no packet waits longer for it.
const TRAIN: usize = 1_538;

/// Bytes between two frames on the wire: check sequence, gap and preamble.
const APART: usize = 24;

/// The most frames of `len` bytes that make a train.
pub(crate) fn train_of(len: usize) -> u16 {
    (TRAIN / (len + APART)).clamp(1, MOST as usize) as u16
}

/// The most frames of a train, which are the shortest ones.
const MOST: u16 = 18;

/// The most frames of `len` bytes that make a train of which the payload stays with the sender: as many as have their first bytes and
/// tickets in a small buffer, and half as much as a segment. The engine cuts such a train as it cuts a segment.
pub(crate) fn late_train_of(len: usize) -> u16 {
    (LATE / len.max(1)).clamp(1, cookie_at(0) / FRONT) as u16
}

/// Most bytes of such a train.
const LATE: usize = 32 << 10;

/// Bytes that are at hand of a frame of `len` bytes.
#[inline]
pub(crate) fn at_hand(len: usize, late: bool) -> usize {
    if late { len.min(FRONT) } else { len }
}

/// Where a small buffer keeps the tickets of a train's frames: behind all of them.
const fn cookie_at(number: u16) -> usize {
    SMALL - 4 * MOST as usize + 4 * number as usize
}

const _: () = assert!(
    TRAIN <= cookie_at(0) && cookie_at(0) / FRONT <= MOST as usize,
    "frames and cookies lie side by side"
);

impl Buffer {
    /// The buffer and its lane as a descriptor's opaque address.
    #[must_use]
    pub fn address(self, lane: u32) -> u64 {
        u64::from(lane) << 32 | u64::from(self.0)
    }

    /// Lane and buffer behind a descriptor's address.
    #[must_use]
    pub fn from_address(address: u64) -> (u32, Self) {
        let [lane, buffer] = [address >> 32, address & u64::from(u32::MAX)];
        (u32::try_from(lane).unwrap_or(u32::MAX), Self(u32::try_from(buffer).unwrap_or(u32::MAX)))
    }
}

impl<H: Copy + Default> Pool<H> {
    /// A pool with `small` and `large` buffers; memory is touched only when a buffer is first used.
    #[must_use]
    pub fn new(small: u32, large: u32) -> Self {
        Self { small: Slab::new(small, SMALL), large: Slab::new(large, LARGE) }
    }

    /// Makes room for at least `small` short frames.
    pub fn grow(&mut self, small: u32) {
        self.small.grow(small);
    }

    /// A large buffer to receive into, if one is free.
    pub fn take_large(&mut self) -> Option<Buffer> {
        self.large.free.pop().map(|index| Buffer(index | LARGE_BIT))
    }

    /// Whether `len` bytes fit this buffer.
    pub(crate) fn has_room_for(&self, buffer: Buffer, len: usize) -> bool {
        self.bytes(buffer).len() >= len
    }

    /// Whether there is a buffer for a frame of any length.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.large.free.is_empty()
    }

    /// Whether at least half of the large buffers are free.
    #[must_use]
    pub fn is_half_free(&self) -> bool {
        2 * self.large.free.len() >= self.large.held.len()
    }

    /// Takes a buffer for `len` bytes: a small one if they fit and one is free.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<Buffer> {
        let small = if len <= SMALL { self.small.free.pop().map(Buffer) } else { None };
        small.or_else(|| self.take_large())
    }

    /// Moves the `len` bytes of a large buffer to a small one when they fit and one is free. Answers where they are
    /// now; the other buffer is free again.
    pub fn settle(&mut self, buffer: Buffer, len: usize) -> Buffer {
        if len > SMALL || buffer.0 & LARGE_BIT == 0 {
            return buffer;
        }
        let Some(index) = self.small.free.pop() else { return buffer };
        let from = &self.large.slot(buffer.0 & !LARGE_BIT)[..len];
        self.small.slot_mut(index)[..len].copy_from_slice(from);
        self.give(buffer);
        Buffer(index)
    }

    /// Copies the frame of `len` bytes in a large buffer into a small one, as the one with this number.
    pub(crate) fn append(&mut self, into: Buffer, number: u16, from: Buffer, len: usize) {
        let from = &self.large.slot(from.0 & !LARGE_BIT)[..len];
        self.small.slot_mut(into.0)[usize::from(number) * len..][..len].copy_from_slice(from);
    }

    /// The bytes of a buffer.
    #[must_use]
    #[inline]
    pub fn bytes(&self, buffer: Buffer) -> &[u8] {
        match buffer.0 & LARGE_BIT {
            0 => self.small.slot(buffer.0),
            _ => self.large.slot(buffer.0 & !LARGE_BIT),
        }
    }

    /// The bytes of a buffer, to write.
    #[inline]
    pub fn bytes_mut(&mut self, buffer: Buffer) -> &mut [u8] {
        match buffer.0 & LARGE_BIT {
            0 => self.small.slot_mut(buffer.0),
            _ => self.large.slot_mut(buffer.0 & !LARGE_BIT),
        }
    }

    /// Notes what the buffer holds.
    #[inline]
    pub fn set_held(&mut self, buffer: Buffer, held: H) {
        *self.held_mut(buffer) = held;
    }

    #[inline]
    fn held_mut(&mut self, buffer: Buffer) -> &mut H {
        match buffer.0 & LARGE_BIT {
            0 => &mut self.small.held[buffer.0 as usize],
            _ => &mut self.large.held[(buffer.0 & !LARGE_BIT) as usize],
        }
    }

    /// Notes the metadata of the frame in a buffer, whose headers say that it has some.
    pub(crate) fn set_metadata(&mut self, buffer: Buffer, metadata: Packed) {
        match buffer.0 & LARGE_BIT {
            0 => self.small.metadata[buffer.0 as usize] = metadata,
            _ => self.large.metadata[(buffer.0 & !LARGE_BIT) as usize] = metadata,
        }
    }

    /// The metadata of the frame in a buffer, meaningful only where the frame's headers say that it has some.
    pub(crate) fn metadata(&self, buffer: Buffer) -> &Packed {
        match buffer.0 & LARGE_BIT {
            0 => &self.small.metadata[buffer.0 as usize],
            _ => &self.large.metadata[(buffer.0 & !LARGE_BIT) as usize],
        }
    }

    /// What is known of the frame in a buffer.
    #[must_use]
    #[inline]
    pub fn held(&self, buffer: Buffer) -> &H {
        match buffer.0 & LARGE_BIT {
            0 => &self.small.held[buffer.0 as usize],
            _ => &self.large.held[(buffer.0 & !LARGE_BIT) as usize],
        }
    }

    /// Asks for what a buffer holds, and for its first bytes.
    #[inline]
    pub(crate) fn fetch(&self, buffer: Buffer) {
        let (slab, at) = match buffer.0 & LARGE_BIT {
            0 => (&self.small, buffer.0),
            _ => (&self.large, buffer.0 & !LARGE_BIT),
        };
        prefetch_index(&slab.held, at as usize);
        prefetch_index(&slab.bytes, slab.begin(at));
    }

    /// Frees a buffer.
    #[inline]
    pub fn give(&mut self, buffer: Buffer) {
        match buffer.0 & LARGE_BIT {
            0 => self.small.free.push(buffer.0),
            _ => self.large.free.push(buffer.0 & !LARGE_BIT),
        }
    }

    /// Buffers in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.small.in_use() + self.large.in_use()
    }

    /// Buffers in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_use() + self.small.free.len() + self.large.free.len()
    }

    /// Whether the pool has no buffers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Held {
    /// The descriptor of a frame for the engine. A train looks to the engine like a segment that is cut: the part of each
    /// frame behind its Ethernet header is a segment's payload.
    pub(crate) fn descriptor(&self, addr: u64, tag: u32, ecn: Ecn) -> Descriptor {
        let Offload { header, segment, .. } = self.offload;
        match self.following {
            0 => Descriptor { addr, len: self.len, segment, header, tag, ecn },
            _ => {
                let segment = self.len - ETHERNET;
                let len = ETHERNET + segment * self.frames();
                Descriptor { addr, len, segment: segment as u16, header: ETHERNET as u16, tag, ecn }
            }
        }
    }

    /// The frames of a train that a pull consists of: the first one's number, and how many.
    pub(crate) fn pulled(&self, transmit: &Transmit) -> (u32, u32) {
        (transmit.offset / (self.len - ETHERNET).max(1), transmit.frames)
    }

    /// Bytes of each frame that are in the buffer.
    #[must_use]
    #[inline]
    pub fn at_hand(&self) -> usize {
        at_hand(self.len as usize, self.late)
    }

    /// Frames in the buffer.
    #[must_use]
    #[inline]
    pub fn frames(&self) -> u32 {
        1 + u32::from(self.following)
    }
}

impl Pool {
    /// A pool for a tenant that may have `descriptors` in the engine: a small buffer for each, and large ones for a
    /// sixteenth of them (at least 64, at most 1,024).
    #[must_use]
    pub fn for_descriptors(descriptors: u32) -> Self {
        Self::new(descriptors.clamp(64, 65_536), (descriptors / 16).clamp(64, 1_024))
    }

    /// The frames in a buffer, one behind the other, and what is known of them; of a late one its first bytes.
    #[must_use]
    #[inline]
    pub fn frame(&self, buffer: Buffer) -> (&[u8], &Held) {
        let slab = if buffer.0 & LARGE_BIT == 0 { &self.small } else { &self.large };
        let index = buffer.0 & !LARGE_BIT;
        let held = &slab.held[index as usize];
        (&slab.slot(index)[..held.at_hand() * held.frames() as usize], held)
    }

    /// Notes that these frames of a train, a bit for each, have been sent.
    pub(crate) fn add_sent(&mut self, buffer: Buffer, sent: u32) {
        self.held_mut(buffer).sent |= sent;
    }

    /// Notes that the first frames of a train have been given back.
    pub(crate) fn set_given(&mut self, buffer: Buffer, given: u16) {
        self.held_mut(buffer).given = given;
    }

    /// Notes the cookie of a train's frame; behind its frames there is room for that.
    #[inline]
    pub fn set_cookie(&mut self, buffer: Buffer, number: u16, cookie: u32) {
        let place = cookie_at(number);
        self.bytes_mut(buffer)[place..place + 4].copy_from_slice(&cookie.to_ne_bytes());
    }

    /// The cookies of a train's frames from this one up to `end`, which is not among them. Not for the first frame.
    #[inline]
    fn cookies(&self, buffer: Buffer, begin: u16, end: u16) -> impl Iterator<Item = u32> {
        let cookies = &self.bytes(buffer)[cookie_at(begin)..cookie_at(end.max(begin))];
        cookies.as_chunks().0.iter().map(|cookie| u32::from_ne_bytes(*cookie))
    }

    /// The tickets of the frames in a buffer from number `begin` up to `end`, as cookies, where the first frame has this ticket.
    #[inline]
    pub fn tickets(&self, buffer: Buffer, first: Ticket, begin: u16, end: u16) -> impl Iterator<Item = u32> {
        let own = (begin == 0 && end > 0).then(|| first.cookie());
        own.into_iter().chain(self.cookies(buffer, begin.max(1), end))
    }

    /// Moves the frames of a train from number `begin` up to `end`, each with `len` bytes, into a buffer of their own. Answers the
    /// cookie of the first of them; none when there is no buffer.
    pub fn part_train(&mut self, buffer: Buffer, begin: u16, end: u16, len: usize) -> Option<(Buffer, u32)> {
        let bytes = len * usize::from(begin)..len * usize::from(end);
        let own = self.take(bytes.len())?;
        if (buffer.0 | own.0) & LARGE_BIT == 0 {
            let [from, to] = [buffer, own].map(|buffer| self.small.begin(buffer.0));
            self.small.bytes.copy_within(from + bytes.start..from + bytes.end, to);
        } else {
            let copy = self.bytes(buffer)[bytes].to_vec();
            self.bytes_mut(own)[..copy.len()].copy_from_slice(&copy);
        }
        let first = self.cookies(buffer, begin, end).next()?;
        for number in begin + 1..end {
            let cookie = self.cookies(buffer, number, number + 1).next()?;
            self.set_cookie(own, number - begin, cookie);
        }
        Some((own, first))
    }

    /// How many buffers for short frames are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.small.free.len()
    }

    /// The ticket of a frame of a train, whose first has this one.
    #[inline]
    pub fn ticket(&self, buffer: Buffer, first: Ticket, number: u16) -> Ticket {
        if number == 0 {
            return first;
        }
        let cookie = self.bytes(buffer)[cookie_at(number)..].first_chunk().copied();
        first.following(u32::from_ne_bytes(cookie.expect("a cookie's place is inside the buffer")))
    }
}

impl<H: Copy + Default> Slab<H> {
    fn new(count: u32, size: usize) -> Self {
        let bytes = vec![0; count as usize * (size + LINE) + LINE];
        Self {
            first: bytes.as_ptr().align_offset(LINE).min(LINE),
            bytes,
            size,
            free: (0..count).rev().collect(),
            held: vec![H::default(); count as usize],
            metadata: vec![[0; 3]; count as usize],
        }
    }

    fn grow(&mut self, count: u32) {
        let had = self.held.len() as u32;
        if count > had {
            self.bytes.resize(count as usize * (self.size + LINE) + LINE, 0);
            self.held.resize(count as usize, H::default());
            self.metadata.resize(count as usize, [0; 3]);
            self.free.extend((had..count).rev());
        }
    }

    /// Where a buffer begins.
    #[inline]
    fn begin(&self, index: u32) -> usize {
        self.first + index as usize * (self.size + LINE)
    }

    #[inline]
    fn slot(&self, index: u32) -> &[u8] {
        &self.bytes[self.begin(index)..][..self.size]
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> &mut [u8] {
        let begin = self.begin(index);
        &mut self.bytes[begin..][..self.size]
    }

    fn in_use(&self) -> usize {
        self.held.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_frame_settles_in_a_small_buffer() {
        let mut pool: Pool = Pool::new(1, 1);
        let buffer = pool.take_large().expect("one large buffer");
        assert_eq!(pool.take_large(), None);
        pool.bytes_mut(buffer)[..3].copy_from_slice(b"abc");
        let small = pool.settle(buffer, 3);
        assert_eq!((&pool.bytes(small)[..3], pool.in_use()), (&b"abc"[..], 1));
        let again = pool.take_large().expect("the large one came back");
        assert_eq!(pool.settle(again, 3), again, "no small buffer is left: it stays where it is");
        pool.give(small);
        pool.give(again);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_pool_that_grows_keeps_what_it_holds() {
        let mut pool: Pool = Pool::new(1, 0);
        let first = pool.take(3).expect("one buffer");
        pool.bytes_mut(first)[..3].copy_from_slice(b"abc");
        assert_eq!(pool.take(3), None);
        pool.grow(2);
        let second = pool.take(3).expect("another");
        assert_eq!((&pool.bytes(first)[..3], pool.in_use()), (&b"abc"[..], 2));
        pool.give(second);
        pool.grow(1);
        assert_eq!(pool.in_use(), 1, "less room than there is changes nothing");
    }

    #[test]
    fn addresses_round_trip() {
        let mut pool: Pool = Pool::new(1, 3);
        let buffer = pool.take_large().expect("free");
        assert_eq!(Buffer::from_address(buffer.address(7)), (7, buffer));
    }
}
