//! Memory that two processes share.
//!
//! Why: the other side may write any byte at any moment, so that no reference to plain memory may ever point here.
//! From: memfd_create(2) with seals; the C++11 memory model, which gives relaxed atomics a meaning under a race.
//! Not here: what lies where (`layout`).
//! Invariant: every access lies inside the mapping, which lives as long as the `Region`; every access is atomic.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A shared mapping.
///
/// ```
/// use plimsoll_vnic::Region;
/// let (here, file) = Region::create(4_096)?;
/// let there = Region::map(&file, 4_096)?;
/// here.write(100, b"hello");
/// let mut bytes = [0; 5];
/// there.read(100, &mut bytes);
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process and not to a thread, and every access to it is atomic.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes a region of zeros, and the file that other processes map. The file can neither shrink nor grow, so no page of a
    /// mapping disappears.
    ///
    /// # Errors
    /// What the kernel says: no memory, or no file descriptor.
    pub fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: the name is a constant that ends in a zero; the rest are integers.
        let fd = check(unsafe {
            libc::memfd_create(c"plimsoll-vnic".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        })?;
        // SAFETY: the kernel just made `fd` for us, and no other code knows it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = libc::off_t::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: takes integers only.
        check(unsafe { libc::ftruncate(fd, size) })?;
        // SAFETY: takes integers only.
        check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) })?;
        let region = Self::map(&file, len)?;
        // So that the first packets do not pay for page faults. An older kernel, which cannot do it, makes pages on demand.
        // SAFETY: the range is the whole mapping made above; its content does not change.
        let _ = unsafe { libc::madvise(region.base.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
        Ok((region, file))
    }

    /// Maps `len` bytes of a file that [`Region::create`] made.
    ///
    /// # Errors
    /// When the file is shorter than `len`, or could become shorter: a page that disappears kills its reader.
    pub fn map(file: &impl AsFd, len: usize) -> io::Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: takes integers only.
        let seals = check(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is not sealed against shrinking",
            ));
        }
        // SAFETY: takes integers only; the offset does not matter, as no code reads this file through it.
        let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
        if len == 0 || usize::try_from(size).map_or(true, |size| size < len) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is shorter than its header says",
            ));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Self { base, len })
    }

    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is no empty mapping.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The byte at `at`. Panics outside the region.
    #[inline]
    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.len, "a byte of the region");
        // SAFETY: inside the mapping by the assert; the mapping lives as long as `self`; all access is atomic.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)) }
    }

    /// The 16-bit word at `at`. Panics outside the region, and where it is not aligned.
    #[inline]
    #[must_use]
    pub fn word16(&self, at: usize) -> &AtomicU16 {
        self.check(at, 2);
        // SAFETY: inside the mapping and aligned by `check` (a mapping begins on a page); the mapping lives as long as
        // `self`; all access is atomic.
        unsafe { AtomicU16::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The 32-bit word at `at`. Panics as [`Region::word16`].
    #[inline]
    #[must_use]
    pub fn word32(&self, at: usize) -> &AtomicU32 {
        self.check(at, 4);
        // SAFETY: as in `word16`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The 64-bit word at `at`. Panics as [`Region::word16`].
    #[inline]
    #[must_use]
    pub fn word64(&self, at: usize) -> &AtomicU64 {
        self.check(at, 8);
        // SAFETY: as in `word16`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Asks the CPU to fetch the cache line at `at`, which is read soon. Does nothing outside the region.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if at < self.len {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch reads nothing; the address lies inside the mapping besides.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(at).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Copies out from `at`. Panics outside the region. A write by the other side at the same time may be seen in part.
    #[inline]
    pub fn read(&self, mut at: usize, mut into: &mut [u8]) {
        assert!(at <= self.len && into.len() <= self.len - at, "bytes of the region");
        while !at.is_multiple_of(8) && !into.is_empty() {
            into[0] = self.byte(at).load(Ordering::Relaxed);
            (at, into) = (at + 1, &mut into[1..]);
        }
        let (words, rest) = into.as_chunks_mut::<8>();
        for word in words {
            *word = self.word64(at).load(Ordering::Relaxed).to_ne_bytes();
            at += 8;
        }
        for byte in rest {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
    }

    /// Copies in to `at`. Panics outside the region.
    #[inline]
    pub fn write(&self, mut at: usize, mut from: &[u8]) {
        assert!(at <= self.len && from.len() <= self.len - at, "bytes of the region");
        while !at.is_multiple_of(8) && !from.is_empty() {
            self.byte(at).store(from[0], Ordering::Relaxed);
            (at, from) = (at + 1, &from[1..]);
        }
        let (words, rest) = from.as_chunks::<8>();
        for word in words {
            self.word64(at).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += 8;
        }
        for &byte in rest {
            self.byte(at).store(byte, Ordering::Relaxed);
            at += 1;
        }
    }

    #[inline]
    fn check(&self, at: usize, size: usize) {
        assert!(at.is_multiple_of(size) && at < self.len && size <= self.len - at, "a word of the region");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, of that length; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The size is fixed, and no seal can be added or removed.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_start_and_length_is_copied_as_it_is() {
        let (region, _file) = Region::create(4_096).unwrap();
        let bytes: Vec<u8> = (0..64).collect();
        for start in 0..16 {
            for len in 0..40 {
                region.write(start, &bytes[..len]);
                let mut read = vec![0xff; len];
                region.read(start, &mut read);
                assert_eq!(read, bytes[..len], "{start}+{len}");
            }
        }
    }

    #[test]
    fn the_file_cannot_be_made_shorter() {
        let (_region, file) = Region::create(8_192).unwrap();
        // SAFETY: takes integers only.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 4_096) }, -1);
        assert!(Region::map(&file, 8_193).is_err(), "no more than there is");
    }

    #[test]
    #[should_panic(expected = "a word of the region")]
    fn the_last_word_is_the_last() {
        let (region, _file) = Region::create(4_096).unwrap();
        let _ = region.word32(4_096);
    }

    #[test]
    #[should_panic(expected = "bytes of the region")]
    fn a_length_that_wraps_is_outside() {
        let (region, _file) = Region::create(4_096).unwrap();
        region.read(usize::MAX - 3, &mut [0; 8]);
    }
}
