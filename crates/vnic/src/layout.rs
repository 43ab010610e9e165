//! What lies where in the shared region, and what each entry means.
//!
//! Why: two programs, perhaps of different versions and languages, read the same bytes.
//! From: `docs/vnic.md`, which this file follows section by section.
//! Not here: who may believe what (`ports` checks all that a client writes).
//! Invariant: the parts of a [`Layout`] lie inside its length, each on a cache line of its own, none over another.

use std::sync::atomic::Ordering;

use plimsoll_wire::VnetHeader;

use crate::region::Region;

/// The first eight bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PLMSVNIC");
/// Changed when a client of before would misread what is here.
pub const VERSION: u32 = 1;
/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Bytes of a buffer.
pub const BUFFER: usize = 2_048;
/// Most descriptors that one frame may take.
pub const MAX_PIECES: usize = 40;
/// Largest frame in all: 64 KiB of IP packet, its link header and VLAN tags.
pub const MAX_FRAME: usize = 65_536 + 64;

/// Where the header's words lie.
pub mod header {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 8;
    /// Flow queues.
    pub const FLOW_QUEUES: usize = 12;
    /// Descriptors of one flow ring.
    pub const RING: usize = 16;
    /// Doorbell queues.
    pub const DOORBELL_QUEUES: usize = 20;
    /// Words of one doorbell queue.
    pub const DOORBELL_WORDS: usize = 24;
    /// Entries of the completion ring.
    pub const COMPLETIONS: usize = 28;
    /// Entries of each receive ring.
    pub const RECEIVE: usize = 32;
    /// Buffers.
    pub const BUFFERS: usize = 36;
    /// Bytes of the region.
    pub const LENGTH: usize = 40;
    /// Where flow ring 0 begins.
    pub const RINGS_AT: usize = 48;
    /// Where doorbell queue 0 begins.
    pub const DOORBELLS_AT: usize = 52;
    /// Where the completion ring begins.
    pub const COMPLETIONS_AT: usize = 56;
    /// Where the ring of posted receive buffers begins.
    pub const POSTED_AT: usize = 60;
    /// Where the ring of filled receive buffers begins.
    pub const USED_AT: usize = 64;
    /// Where the buffers begin.
    pub const BUFFERS_AT: usize = 68;
    /// Largest IP packet that is received.
    pub const MTU: usize = 72;
    /// The interface's hardware address, six bytes.
    pub const MAC: usize = 76;
    /// The daemon's: number of the policy in force, one more with each reload.
    pub const GENERATION: usize = 128;
    /// The daemon's: messages that it has sent without being asked, so that nobody reads the socket in vain.
    pub const NEWS: usize = 132;
    /// The client's: it sleeps, and wants to be woken.
    pub const CLIENT_WAITS: usize = 192;
    /// The daemon's (the client may clear it): it sleeps, and wants to be woken.
    pub const DAEMON_WAITS: usize = 256;
    /// Bytes of the header.
    pub const LEN: usize = 4_096;
}

const DESCRIPTOR: usize = 32;
const COMPLETION: usize = 16;
const POSTED: usize = 16;
const USED: usize = 8;

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Flow queues, number 0 included; at most 4,096.
    pub flow_queues: u32,
    /// Descriptors of one flow ring, a power of two up to 4,096.
    pub ring: u32,
    /// Doorbell queues, one for each thread that sends; at most 64.
    pub doorbell_queues: u32,
    /// Words of one doorbell queue, a power of two from 32 to 4,096.
    pub doorbell_words: u32,
    /// Entries of the completion ring, a power of two up to 65,536: a client has no more frames on their way.
    pub completions: u32,
    /// Entries of each receive ring, a power of two up to 16,384.
    pub receive: u32,
    /// Buffers of 2 KiB, up to 65,536, for both directions.
    pub buffers: u32,
}

impl Default for Sizes {
    /// 11 MiB: 256 flow queues, 4,096 frames on their way, 512 to be received.
    fn default() -> Self {
        Self {
            flow_queues: 256,
            ring: 256,
            doorbell_queues: 4,
            doorbell_words: 1_024,
            completions: 4_096,
            receive: 512,
            buffers: 4_608,
        }
    }
}

/// What makes no region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The first bytes are others.
    #[error("this is no vNIC's region: it begins with {0:#x}")]
    NotARegion(u64),
    /// Another version.
    #[error(
        "the daemon speaks version {0} of the vNIC's format, and this client {VERSION}; use the client of that release"
    )]
    Version(u32),
    /// A size out of its bounds.
    #[error("`{name}` is {value}; {bounds}")]
    Size {
        /// Which size.
        name: &'static str,
        /// Its value.
        value: u32,
        /// What it may be.
        bounds: &'static str,
    },
    /// The header's offsets are not those of its sizes.
    #[error("the region's header contradicts itself; the daemon is broken")]
    Inconsistent,
}

/// Where everything lies.
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

/// What the header says about the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet that is received.
    pub mtu: u32,
}

impl Layout {
    /// Lays out a region of these sizes.
    ///
    /// # Errors
    /// [`LayoutError::Size`] when one is out of its bounds.
    pub fn new(sizes: Sizes) -> Result<Self, LayoutError> {
        check_sizes(&sizes)?;
        let Sizes { flow_queues, ring, doorbell_queues, doorbell_words, completions, receive, buffers } =
            sizes;
        let n = |count: u32| count as usize;
        let mut end = header::LEN;
        let mut part = |len: usize| {
            let at = end;
            end += len.next_multiple_of(LINE);
            at
        };
        let rings = part(n(flow_queues) * (LINE + n(ring) * DESCRIPTOR));
        let doorbells = part(n(doorbell_queues) * (2 * LINE + n(doorbell_words) * 2));
        let completions = part(LINE + n(completions) * COMPLETION);
        let posted = part(LINE + n(receive) * POSTED);
        let used = part(LINE + n(receive) * USED);
        end = end.next_multiple_of(4_096);
        let at = end;
        let len = at + n(buffers) * BUFFER;
        Ok(Self { sizes, rings, doorbells, completions, posted, used, buffers: at, len })
    }

    /// How much there is of everything.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Bytes of the region.
    #[must_use]
    pub fn region_len(&self) -> usize {
        self.len
    }

    /// Writes the header into a region of zeros.
    pub fn write_header(&self, region: &Region, identity: &Identity) {
        for (at, value) in self.header_words() {
            region.word32(at).store(value, Ordering::Relaxed);
        }
        region.word64(header::LENGTH).store(self.len as u64, Ordering::Relaxed);
        region.word32(header::MTU).store(identity.mtu, Ordering::Relaxed);
        region.write(header::MAC, &identity.mac);
        region.word64(header::MAGIC).store(MAGIC, Ordering::Release);
    }

    /// Reads the header, as a client does.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn read_header(region: &Region) -> Result<(Self, Identity), LayoutError> {
        let magic = region.word64(header::MAGIC).load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(LayoutError::NotARegion(magic));
        }
        let word = |at| region.word32(at).load(Ordering::Relaxed);
        if word(header::VERSION) != VERSION {
            return Err(LayoutError::Version(word(header::VERSION)));
        }
        let layout = Self::new(Sizes {
            flow_queues: word(header::FLOW_QUEUES),
            ring: word(header::RING),
            doorbell_queues: word(header::DOORBELL_QUEUES),
            doorbell_words: word(header::DOORBELL_WORDS),
            completions: word(header::COMPLETIONS),
            receive: word(header::RECEIVE),
            buffers: word(header::BUFFERS),
        })?;
        let same = layout.header_words().iter().all(|&(at, value)| word(at) == value);
        if !same || layout.len > region.len() {
            return Err(LayoutError::Inconsistent);
        }
        let mut mac = [0; 6];
        region.read(header::MAC, &mut mac);
        Ok((layout, Identity { mac, mtu: word(header::MTU) }))
    }

    fn header_words(&self) -> [(usize, u32); 14] {
        let at = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        let Sizes { flow_queues, ring, doorbell_queues, doorbell_words, completions, receive, buffers } =
            self.sizes;
        [
            (header::VERSION, VERSION),
            (header::FLOW_QUEUES, flow_queues),
            (header::RING, ring),
            (header::DOORBELL_QUEUES, doorbell_queues),
            (header::DOORBELL_WORDS, doorbell_words),
            (header::COMPLETIONS, completions),
            (header::RECEIVE, receive),
            (header::BUFFERS, buffers),
            (header::RINGS_AT, at(self.rings)),
            (header::DOORBELLS_AT, at(self.doorbells)),
            (header::COMPLETIONS_AT, at(self.completions)),
            (header::POSTED_AT, at(self.posted)),
            (header::USED_AT, at(self.used)),
            (header::BUFFERS_AT, at(self.buffers)),
        ]
    }

    /// The client's: descriptors written into a flow ring so far.
    #[inline]
    #[must_use]
    pub fn ring_tail(&self, queue: u32) -> usize {
        self.rings + queue as usize * (LINE + self.sizes.ring as usize * DESCRIPTOR)
    }

    /// A descriptor of a flow ring.
    #[inline]
    #[must_use]
    pub fn descriptor(&self, queue: u32, index: u32) -> usize {
        self.ring_tail(queue) + LINE + (index & (self.sizes.ring - 1)) as usize * DESCRIPTOR
    }

    /// The client's: words written into a doorbell queue so far.
    #[inline]
    #[must_use]
    pub fn doorbell_tail(&self, core: u32) -> usize {
        self.doorbells + core as usize * (2 * LINE + self.sizes.doorbell_words as usize * 2)
    }

    /// The daemon's: words read from a doorbell queue so far.
    #[inline]
    #[must_use]
    pub fn doorbell_head(&self, core: u32) -> usize {
        self.doorbell_tail(core) + LINE
    }

    /// A word of a doorbell queue.
    #[inline]
    #[must_use]
    pub fn doorbell_word(&self, core: u32, index: u32) -> usize {
        self.doorbell_tail(core) + 2 * LINE + (index & (self.sizes.doorbell_words - 1)) as usize * 2
    }

    /// The daemon's: completions written so far.
    #[inline]
    #[must_use]
    pub fn completion_tail(&self) -> usize {
        self.completions
    }

    /// A completion.
    #[inline]
    #[must_use]
    pub fn completion(&self, index: u32) -> usize {
        self.completions + LINE + (index & (self.sizes.completions - 1)) as usize * COMPLETION
    }

    /// The client's: receive buffers posted so far.
    #[inline]
    #[must_use]
    pub fn posted_tail(&self) -> usize {
        self.posted
    }

    /// A posted receive buffer.
    #[inline]
    #[must_use]
    pub fn posted(&self, index: u32) -> usize {
        self.posted + LINE + (index & (self.sizes.receive - 1)) as usize * POSTED
    }

    /// The daemon's: receive buffers filled so far.
    #[inline]
    #[must_use]
    pub fn used_tail(&self) -> usize {
        self.used
    }

    /// A filled receive buffer.
    #[inline]
    #[must_use]
    pub fn used(&self, index: u32) -> usize {
        self.used + LINE + (index & (self.sizes.receive - 1)) as usize * USED
    }

    /// Where in the region bytes of the buffer area lie, if all of them lie there.
    #[inline]
    #[must_use]
    pub fn in_buffers(&self, addr: u64, len: u32) -> Option<usize> {
        let room = (self.len - self.buffers) as u64;
        let inside = addr <= room && u64::from(len) <= room - addr;
        inside.then(|| self.buffers + addr as usize)
    }
}

fn check_sizes(sizes: &Sizes) -> Result<(), LayoutError> {
    let powers = [
        ("ring", sizes.ring, 1, 4_096, "it is a power of two up to 4096"),
        ("doorbell_words", sizes.doorbell_words, 32, 4_096, "it is a power of two from 32 to 4096"),
        ("completions", sizes.completions, 1, 65_536, "it is a power of two up to 65536"),
        ("receive", sizes.receive, 1, 16_384, "it is a power of two up to 16384"),
    ];
    for (name, value, least, most, bounds) in powers {
        if !value.is_power_of_two() || value < least || value > most {
            return Err(LayoutError::Size { name, value, bounds });
        }
    }
    let counts = [
        ("flow_queues", sizes.flow_queues, 4_096, "it is 1 to 4096"),
        ("doorbell_queues", sizes.doorbell_queues, 64, "it is 1 to 64"),
        ("buffers", sizes.buffers, 65_536, "it is 1 to 65536"),
    ];
    for (name, value, most, bounds) in counts {
        if value == 0 || value > most {
            return Err(LayoutError::Size { name, value, bounds });
        }
    }
    Ok(())
}

/// A piece of a frame to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Where it lies, from the beginning of the buffers.
    pub addr: u64,
    /// Its bytes.
    pub len: u32,
    /// The next descriptor goes on with the same frame; what follows counts of the first only.
    pub more: bool,
    /// Work left to the daemon; all zero for a finished frame.
    pub offload: VnetHeader,
    /// Slack or deadline in microseconds from the doorbell; 0 for the class's own.
    pub tag: u32,
    /// Given back with the completion.
    pub cookie: u32,
}

const MORE: u64 = 1;

impl Descriptor {
    /// As it lies in the ring.
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

    /// What lies in the ring means. Any words mean something; what is sensible, the reader decides.
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
        for (word, at) in self.to_words().into_iter().zip((at..).step_by(8)) {
            region.word64(at).store(word, Ordering::Relaxed);
        }
    }

    /// Copies it out, once.
    #[inline]
    #[must_use]
    pub fn load(region: &Region, at: usize) -> Self {
        let word = |index: usize| region.word64(at + 8 * index).load(Ordering::Relaxed);
        Self::from_words([word(0), word(1), word(2), word(3)])
    }
}

/// What became of a frame.
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

/// A completion's two words.
#[inline]
#[must_use]
pub fn completion_words(cookie: u32, queue: u32, status: Status, descriptors: u32) -> [u64; 2] {
    [u64::from(cookie) | u64::from(queue as u16) << 32 | u64::from(status as u16) << 48, descriptors.into()]
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

    fn small() -> Sizes {
        Sizes {
            flow_queues: 3,
            ring: 4,
            doorbell_queues: 2,
            doorbell_words: 32,
            completions: 8,
            receive: 4,
            buffers: 5,
        }
    }

    #[test]
    fn parts_lie_in_order_on_lines_of_their_own() {
        let layout = Layout::new(small()).unwrap();
        let parts = [
            layout.ring_tail(0),
            layout.descriptor(0, 3) + DESCRIPTOR - 1,
            layout.ring_tail(2),
            layout.descriptor(2, 3) + DESCRIPTOR - 1,
            layout.doorbell_tail(0),
            layout.doorbell_word(0, 31) + 1,
            layout.doorbell_tail(1),
            layout.doorbell_word(1, 31) + 1,
            layout.completion_tail(),
            layout.completion(7) + COMPLETION - 1,
            layout.posted_tail(),
            layout.posted(3) + POSTED - 1,
            layout.used_tail(),
            layout.used(3) + USED - 1,
            layout.in_buffers(0, 1).unwrap(),
        ];
        assert!(parts.is_sorted(), "{parts:?}");
        assert!(parts.iter().step_by(2).all(|at| at % LINE == 0), "{parts:?}");
        assert_eq!(layout.descriptor(1, 5), layout.descriptor(1, 1), "rings wrap");
        assert_eq!(layout.region_len(), layout.in_buffers(0, 0).unwrap() + 5 * BUFFER);
    }

    #[test]
    fn bytes_outside_the_buffers_are_nowhere() {
        let layout = Layout::new(small()).unwrap();
        let room = 5 * BUFFER as u64;
        assert!(layout.in_buffers(room - 10, 10).is_some());
        for (addr, len) in [(room - 10, 11), (room + 1, 0), (u64::MAX, 1), (u64::MAX - 3, 8), (0, u32::MAX)] {
            assert_eq!(layout.in_buffers(addr, len), None, "{addr}+{len}");
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let layout = Layout::new(small()).unwrap();
        let (region, _file) = Region::create(layout.region_len()).unwrap();
        assert_eq!(Layout::read_header(&region), Err(LayoutError::NotARegion(0)));
        let identity = Identity { mac: [2, 3, 4, 5, 6, 7], mtu: 1_500 };
        layout.write_header(&region, &identity);
        assert_eq!(Layout::read_header(&region), Ok((layout, identity)));
        region.word32(header::USED_AT).store(64, Ordering::Relaxed);
        assert_eq!(Layout::read_header(&region), Err(LayoutError::Inconsistent));
    }

    #[test]
    fn sizes_out_of_bounds_are_named() {
        let error = Layout::new(Sizes { ring: 3, ..small() }).unwrap_err();
        assert_eq!(error.to_string(), "`ring` is 3; it is a power of two up to 4096");
        assert!(Layout::new(Sizes { buffers: 0, ..small() }).is_err());
        assert!(Layout::new(Sizes::default()).is_ok());
    }

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
        let (region, _file) = Region::create(4_096).unwrap();
        let (posted, used) = (Posted { addr: 1 << 40, len: 2_048, cookie: 9 }, Used { len: 60, cookie: 9 });
        posted.store(&region, 64);
        used.store(&region, 128);
        assert_eq!((Posted::load(&region, 64), Used::load(&region, 128)), (posted, used));
    }
}
