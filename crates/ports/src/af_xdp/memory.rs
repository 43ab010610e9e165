//! Memory shared with the kernel: the frames (UMEM) and the four rings over them.
//!
//! Why: AF_XDP moves frames by their addresses, through rings mapped into both sides.
//! From: `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`.
//! Not here: the ownership of each frame.
//! Invariant: no index or address leaves its mapping, whatever the kernel wrote.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A memory mapping, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `socket` at `offset`, or fresh memory without a socket.
    fn new(len: usize, socket: Option<(&OwnedFd, u64)>) -> io::Result<Self> {
        let (fd, offset, kind) = match socket {
            Some((socket, offset)) => (socket.as_raw_fd(), offset, libc::MAP_SHARED),
            None => (-1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind | libc::MAP_POPULATE, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast())
            .map(|base| Self { base, len })
            .ok_or_else(|| io::Error::other("mapped at zero"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what `mmap` returned, and no reference into the mapping is left: all
        // of them borrow its owner.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The UMEM: the frames in one piece of memory, which the kernel reads and writes too.
#[derive(Debug)]
pub(super) struct Umem {
    map: Mapping,
}

impl Umem {
    pub(super) fn new(len: usize) -> io::Result<Self> {
        Ok(Self { map: Mapping::new(len, None)? })
    }

    pub(super) fn address(&self) -> u64 {
        self.map.base.as_ptr() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.map.len
    }

    /// The `len` bytes at `at`; none when they are not all inside the mapping.
    ///
    /// The caller owns the frame: it was taken from the receive ring and is not yet back in the fill ring.
    pub(super) fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = self.range(at, len)?;
        // SAFETY: `range` keeps the bytes inside the mapping, which is of this process and initialised; the kernel writes to a frame only
        // between its entry in the fill ring and in the receive ring, and the borrow lets no other access exist.
        Some(unsafe { std::slice::from_raw_parts(from, len) })
    }

    /// Room for `len` bytes at `at`; none when they do not fit. The caller owns the frame at `at`: the kernel does not have it.
    pub(super) fn room(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let to = self.range(at, len)?;
        // SAFETY: `range` keeps the bytes inside the mapping, which is of this process and initialised; the kernel reads a frame only
        // between its descriptor's entry in the transmit ring and in the completion ring, and the borrow lets no other access exist.
        Some(unsafe { std::slice::from_raw_parts_mut(to, len) })
    }

    fn range(&self, at: u64, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(at).ok()?;
        if at.checked_add(len)? > self.map.len {
            return None;
        }
        // SAFETY: `at` lies inside the mapping, by the check above.
        Some(unsafe { self.map.base.as_ptr().add(at) })
    }
}

/// An entry of a ring: plain integers, for which every bit pattern is valid.
pub(super) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

/// One ring shared with the kernel; this process is either its producer or its consumer.
#[derive(Debug)]
pub(super) struct XdpRing<T: Entry> {
    map: Mapping,
    offsets: libc::xdp_ring_offset,
    size: u32,
    /// Positions of producer and consumer: one is this process's own, the other as last read from the ring.
    produced: u32,
    consumed: u32,
    entries: PhantomData<T>,
}

// SAFETY: the mapping is reached through this value only, and the kernel accepts calls from any thread.
unsafe impl<T: Entry> Send for XdpRing<T> {}
// SAFETY: as for `XdpRing`.
unsafe impl Send for Umem {}

impl<T: Entry> XdpRing<T> {
    /// Maps the ring of `size` entries (a power of two) that the socket keeps at `page`.
    pub(super) fn map(
        socket: &OwnedFd,
        offsets: libc::xdp_ring_offset,
        size: u32,
        page: u64,
    ) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "AF_XDP rings have a power of two entries");
        let end = offsets.desc as usize + size as usize * size_of::<T>();
        let last_word = offsets.producer.max(offsets.consumer).max(offsets.flags) as usize + size_of::<u32>();
        let map = Mapping::new(end.max(last_word), Some((socket, page)))?;
        let aligned = |at: u64, to: usize| (at as usize).is_multiple_of(to);
        let words = [offsets.producer, offsets.consumer, offsets.flags];
        if !words.into_iter().all(|at| aligned(at, align_of::<AtomicU32>()))
            || !aligned(offsets.desc, align_of::<T>())
        {
            return Err(io::Error::other("the kernel's ring is not aligned"));
        }
        Ok(Self { map, offsets, size, produced: 0, consumed: 0, entries: PhantomData })
    }

    /// Number of free places; reads the kernel's position only when fewer than `wanted` are known.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.size.wrapping_sub(self.waiting()) < wanted {
            // Acquire: pairs with the kernel's release of the entries it has read.
            self.consumed = self.word(self.offsets.consumer).load(Ordering::Acquire);
        }
        self.size.saturating_sub(self.waiting())
    }

    /// Writes the next entry; `publish` shows it to the kernel. The caller has checked for `room`.
    pub(super) fn push(&mut self, entry: T) {
        let at = self.entry(self.produced);
        // SAFETY: `entry` points to an aligned place inside the mapping, which the kernel does not read until
        // the producer's word passes it.
        unsafe { at.write(entry) };
        self.produced = self.produced.wrapping_add(1);
    }

    /// Whether the kernel has read all pushed entries.
    pub(super) fn is_drained(&mut self) -> bool {
        self.room(self.size) == self.size
    }

    /// Shows the kernel the pushed entries.
    pub(super) fn publish(&self) {
        // Release: pairs with the kernel's acquire, so that the kernel sees the entries before the new position.
        self.word(self.offsets.producer).store(self.produced, Ordering::Release);
    }

    /// Number of entries that can be taken.
    pub(super) fn available(&mut self) -> u32 {
        if self.waiting() == 0 {
            // Acquire: pairs with the kernel's release of the entries it has written.
            self.produced = self.word(self.offsets.producer).load(Ordering::Acquire);
        }
        // At most `size`: a broken producer's word must not make an entry be read twice.
        self.waiting().min(self.size)
    }

    /// Takes the next entry; `release` gives its place back. The caller has checked that one is `available`.
    pub(super) fn take(&mut self) -> T {
        let at = self.entry(self.consumed);
        // SAFETY: `entry` points to an aligned place inside the mapping; any bits are a valid `T`,
        // and the kernel writes no place before the consumer's word has passed it.
        let entry = unsafe { at.read() };
        self.consumed = self.consumed.wrapping_add(1);
        entry
    }

    /// Gives the places of the taken entries back to the kernel.
    pub(super) fn release(&self) {
        // Release: pairs with the kernel's acquire, so that the kernel overwrites an entry only after it was read.
        self.word(self.offsets.consumer).store(self.consumed, Ordering::Release);
    }

    /// Whether the kernel sleeps on this ring and needs a system call to go on.
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint; a stale value costs one call, or one turn of waiting.
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Number of entries between the two positions, as last read.
    pub(super) fn waiting(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed)
    }

    fn entry(&self, place: u32) -> *mut T {
        let index = (place & (self.size - 1)) as usize;
        // SAFETY: the mapping was made long enough for `size` entries behind `desc`.
        unsafe { self.map.base.as_ptr().add(self.offsets.desc as usize).cast::<T>().add(index) }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: `map` checked that the three words are aligned and inside the mapping, which lives
        // as long as `self`; both sides use them atomically.
        unsafe { &*self.map.base.as_ptr().add(at as usize).cast::<AtomicU32>() }
    }
}
