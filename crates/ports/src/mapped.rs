//! Memory of another process, a guest's or a client's: mapped piece by piece, and accessed only through this file.
//!
//! Why: addresses in a ring come from the guest and cannot be trusted, and the front end can change its file at any time.
//! From: the crate `vm-memory` for mappings and for access that other processes may race with; the memory table of the
//! vhost-user protocol.
//! Not here: the contents (`vhost_user`, `shared_memory`), and which written pages a front end wants to know (`log`).
//! Invariant: every access lies inside one mapped piece; pieces overlap neither in guest addresses nor in the front end's; a
//! page that disappears reads as zeros (`guard`).

mod bytes;
mod guard;
mod log;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use guard::Guard;
use log::Log;

pub use bytes::SenderBytes;

/// A piece of memory as the other side describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its guest physical address.
    pub(crate) guest: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// Its address in the front end's process.
    pub(crate) user: u64,
    /// Its offset in its file.
    pub(crate) offset: u64,
}

/// Where a part of a frame lies, and how many bytes it has.
pub(crate) type Part = (MappedPlace, usize);

/// The mapped pieces of another process's memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pieces: Vec<Mapped>,
    log: Log,
}

#[derive(Debug)]
struct Mapped {
    guest: u64,
    user: u64,
    len: u64,
    /// Offset of the piece in its mapping, which begins on a page.
    start: usize,
    // Dropped before the mapping that it guards.
    guard: Guard,
    map: MmapRegion,
}

/// A place in such memory that is known to be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MappedPlace {
    piece: usize,
    at: usize,
}

impl MappedPlace {
    /// The place `bytes` bytes further on, in the same piece.
    #[inline]
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self { at: self.at + bytes, ..self }
    }

    /// Whether the place is aligned to `align` bytes; its mapping begins on a page.
    pub(crate) fn is_multiple_of(self, align: usize) -> bool {
        self.at.is_multiple_of(align)
    }
}

impl Memory {
    /// Maps the pieces that the front end describes, each from its file. The caller must keep the files and close them last,
    /// on a thread that may wait: the last close frees the file's memory, which takes time.
    pub(crate) fn map(pieces: &[Piece], files: &[Arc<File>]) -> Result<Self, String> {
        check(pieces)?;
        let mapped = pieces.iter().zip(files).map(|(piece, file)| Mapped::new(piece, file));
        Ok(Self { pieces: mapped.collect::<Result<_, _>>()?, log: Log::default() })
    }

    /// Maps the first `len` bytes of a file in memory, in one piece: the address of each byte is its offset.
    pub(crate) fn of_file(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let file = Arc::new(File::from(file.try_clone()?));
        let piece = Piece { guest: 0, len: len as u64, user: 0, offset: 0 };
        let mapped = Mapped::new(&piece, &file).map_err(io::Error::other)?;
        Ok(Self { pieces: vec![mapped], log: Log::default() })
    }

    /// Whether no piece is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether a page has disappeared, so that the memory is no longer the guest's.
    #[inline]
    pub(crate) fn torn(&self) -> bool {
        self.pieces.iter().any(|piece| piece.guard.torn()) || self.log.torn()
    }

    /// The place of a guest physical address, and how many of the `len` bytes from there are in the same piece.
    #[inline]
    pub(crate) fn guest(&self, address: u64, len: usize) -> Option<(MappedPlace, usize)> {
        self.pieces.iter().enumerate().find_map(|(index, piece)| {
            let at = address.wrapping_sub(piece.guest);
            (at < piece.len).then(|| piece.place(index, at, len))
        })
    }

    /// The place of an address of the front end, if all `len` bytes from there are in the same piece.
    pub(crate) fn user(&self, address: u64, len: usize) -> Option<MappedPlace> {
        self.pieces.iter().enumerate().find_map(|(index, piece)| {
            let at = address.wrapping_sub(piece.user);
            let (place, found) = (at < piece.len).then(|| piece.place(index, at, len))?;
            (found == len).then_some(place)
        })
    }

    /// The 16-bit word at `place`. Panics outside the piece or when not aligned; the places of rings have been checked.
    #[inline]
    pub(crate) fn word16(&self, place: MappedPlace) -> &AtomicU16 {
        self.pieces[place.piece].map.get_atomic_ref(place.at).expect("an aligned word of a ring's")
    }

    /// The 32-bit word at `place`. Panics like [`Memory::word16`].
    #[inline]
    pub(crate) fn word32(&self, place: MappedPlace) -> &AtomicU32 {
        self.pieces[place.piece].map.get_atomic_ref(place.at).expect("an aligned word of a ring's")
    }

    /// Writes a 16-bit word of a ring's. Panics like [`Memory::word16`].
    #[inline]
    pub(crate) fn store16(&self, place: MappedPlace, word: u16, ordering: Ordering) {
        self.word16(place).store(word.to_le(), ordering);
        self.wrote(place, 2);
    }

    /// Writes a 32-bit word of a ring's. Panics like [`Memory::word16`].
    #[inline]
    pub(crate) fn store32(&self, place: MappedPlace, word: u32) {
        self.word32(place).store(word.to_le(), Ordering::Relaxed);
        self.wrote(place, 4);
    }

    /// The two 64-bit words of a descriptor, copied out once; `None` outside the piece or when not aligned.
    #[inline]
    pub(crate) fn pair(&self, place: MappedPlace) -> Option<[u64; 2]> {
        let map = &self.pieces[place.piece].map;
        let first: &AtomicU64 = map.get_atomic_ref(place.at).ok()?;
        let second: &AtomicU64 = map.get_atomic_ref(place.at + 8).ok()?;
        Some([u64::from_le(first.load(Ordering::Relaxed)), u64::from_le(second.load(Ordering::Relaxed))])
    }

    /// Copies out the twelve bytes at `place` as two numbers, which stay in registers. Panics outside the piece.
    #[inline]
    pub(crate) fn twelve(&self, place: MappedPlace) -> (u64, u32) {
        let bytes = self.slice(place, 12);
        let known = "inside the twelve bytes";
        let first = bytes.get_ref::<u64>(0).expect(known).load();
        (first, bytes.get_ref::<u32>(8).expect(known).load())
    }

    /// Copies bytes out of guest memory. Panics outside the piece.
    #[inline]
    pub(crate) fn read(&self, place: MappedPlace, into: &mut [u8]) {
        self.slice(place, into.len()).copy_to(into);
    }

    /// Copies bytes into guest memory. Panics outside the piece.
    #[inline]
    pub(crate) fn write(&self, place: MappedPlace, from: &[u8]) {
        self.slice(place, from.len()).copy_from(from);
        self.wrote(place, from.len());
    }

    #[inline]
    fn slice(&self, place: MappedPlace, len: usize) -> VolatileSlice<'_> {
        self.pieces[place.piece].map.get_slice(place.at, len).expect("bytes of a place that was found")
    }

    /// Where a part lies, for a system call that reads it. Panics outside the piece.
    pub(crate) fn vector(&self, (place, len): Part) -> libc::iovec {
        let base = self.slice(place, len).ptr_guard().as_ptr();
        libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len }
    }

    /// Copies bytes from another guest's memory, or from this one's. Panics outside the pieces.
    #[inline]
    pub(crate) fn write_from(&self, place: MappedPlace, other: &Self, from: MappedPlace, len: usize) {
        other.slice(from, len).copy_to_volatile_slice(self.slice(place, len));
        self.wrote(place, len);
    }

    /// Logs what was written, after it was: a front end that clears its log before reads what it then copies.
    #[inline]
    fn wrote(&self, place: MappedPlace, len: usize) {
        if self.log.is_on() {
            let piece = &self.pieces[place.piece];
            self.log.note(piece.guest + (place.at - piece.start) as u64, len);
        }
    }

    /// Notes written pages in `log` from now on, once that is switched on. Returns the earlier log.
    pub(crate) fn set_log(&mut self, log: Self) -> Self {
        self.log.set(log)
    }

    /// Takes over the log of the memory before this one.
    pub(crate) fn share_log(&mut self, before: &mut Self) {
        self.log = core::mem::take(&mut before.log);
    }

    /// Switches the log on or off.
    pub(crate) fn set_logging(&mut self, on: bool) {
        self.log.switch(on);
    }

    /// Sets bits of the byte at this offset of a log; nothing beyond its end.
    fn set_bits(&self, at: u64, bits: u8) {
        if let Some((place, 1)) = self.guest(at, 1)
            && let Ok(byte) = self.pieces[place.piece].map.get_atomic_ref::<AtomicU8>(place.at)
        {
            byte.fetch_or(bits, Ordering::Release);
        }
    }
}

impl Mapped {
    fn new(piece: &Piece, file: &Arc<File>) -> Result<Self, String> {
        let page = page_of(file)?;
        let shift = piece.offset % page;
        let end = piece.offset.checked_add(piece.len).ok_or("a piece of memory that ends beyond any file")?;
        let found = file.metadata().map_err(|error| error.to_string())?.size();
        if end > found {
            return Err(format!("a piece of memory that ends at {end} in a file of {found} bytes"));
        }
        // Whole pages, as a huge page can only be unmapped as a whole.
        let len = (shift + piece.len).next_multiple_of(page);
        let (Ok(len), Ok(start)) = (usize::try_from(len), usize::try_from(shift)) else {
            return Err(format!("a piece of memory of {} bytes", piece.len));
        };
        let map = MmapRegionBuilder::new(len)
            .with_file_offset(FileOffset::from_arc(Arc::clone(file), piece.offset - shift))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .build()
            .map_err(|error| format!("guest memory that cannot be mapped: {error}"))?;
        let guard = Guard::new(map.as_ptr() as usize, len)
            .map_err(|error: io::Error| format!("guest memory that cannot be guarded: {error}"))?;
        Ok(Self { guest: piece.guest, user: piece.user, len: piece.len, start, guard, map })
    }

    /// The place at offset `at` of the piece, and how many of `len` bytes from there are in it. No sum wraps, as `at` lies
    /// in the piece and the piece in the address space.
    #[inline]
    fn place(&self, index: usize, at: u64, len: usize) -> (MappedPlace, usize) {
        let left = self.len - at;
        let found = usize::try_from(left).map_or(len, |left| left.min(len));
        (MappedPlace { piece: index, at: self.start + at as usize }, found)
    }
}

/// Whether a descriptor is of a file in memory. Only such files have seals, and asking for seals does not involve a file
/// system that may wait, such as FUSE or one of another machine.
pub(crate) fn is_memory(file: &impl AsFd) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS).is_ok()
}

/// Page size of the file. Files that are not memory are refused: reading a page from a disk or from another process (FUSE),
/// or even asking for the size, would make every tenant wait. A memfd lies in a tmpfs or hugetlbfs of the kernel.
fn page_of(file: &File) -> Result<u64, String> {
    if !is_memory(file) {
        return Err(
            "guest memory in a file on a disk; give the guest a memfd, or a file in tmpfs or hugetlbfs"
                .to_owned(),
        );
    }
    let found =
        fstatfs(file).map_err(|error| format!("guest memory whose file cannot be looked at: {error}"))?;
    page_in(found.filesystem_type(), u64::try_from(found.block_size()).unwrap_or(0))
}

/// Page size of a file system of this type and block size; an error for all types but the two that are memory.
fn page_in(kind: FsType, block: u64) -> Result<u64, String> {
    match kind {
        TMPFS_MAGIC => Ok(4_096),
        HUGETLBFS_MAGIC => Ok(block.max(4_096)),
        FsType(other) => Err(format!(
            "guest memory in a file system of type {other:#x}; give the guest a memfd, or a file in tmpfs or hugetlbfs"
        )),
    }
}

/// Refuses pieces that are empty, too long, wrap around, or overlap in guest addresses or in the front end's.
fn check(pieces: &[Piece]) -> Result<(), String> {
    for (index, piece) in pieces.iter().enumerate() {
        if piece.len == 0 || piece.len > LONGEST_PIECE {
            return Err(format!("a piece of memory of {} bytes", piece.len));
        }
        for begin in [piece.guest, piece.user] {
            begin.checked_add(piece.len).ok_or("a piece of memory that ends beyond any address")?;
        }
        let overlap = |a: u64, a_len: u64, b: u64, b_len: u64| a < b + b_len && b < a + a_len;
        for other in &pieces[..index] {
            if overlap(piece.guest, piece.len, other.guest, other.len) {
                return Err(format!("two pieces of guest memory at {:#x}", piece.guest.max(other.guest)));
            }
            if overlap(piece.user, piece.len, other.user, other.len) {
                return Err(format!(
                    "two pieces of the front end's memory at {:#x}",
                    piece.user.max(other.user)
                ));
            }
        }
    }
    Ok(())
}

/// Longest piece that is accepted, 16 TiB.
const LONGEST_PIECE: u64 = 1 << 44;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::*;

    fn file(len: i64) -> Arc<File> {
        let file = memfd_create("guest", MFdFlags::MFD_CLOEXEC).expect("a memfd");
        ftruncate(&file, len).expect("long enough");
        Arc::new(file.into())
    }

    fn piece(guest: u64, len: u64) -> Piece {
        Piece { guest, len, user: guest.wrapping_add(0x7000_0000), offset: 0 }
    }

    #[test]
    fn an_address_is_found_in_its_piece_and_no_further() {
        let pieces = [piece(0, 0x2000), piece(0x2000, 0x1000)];
        let memory = Memory::map(&pieces, &[file(0x2000), file(0x1000)]).expect("mapped");
        let (place, found) = memory.guest(0x1ff0, 0x100).expect("mapped");
        assert_eq!(found, 0x10, "the rest is in another piece");
        memory.write(place, &[7; 16]);
        let mut read = [0; 16];
        memory.read(place, &mut read);
        assert_eq!(read, [7; 16]);
        for address in [0x3000, u64::MAX, 1 << 63] {
            assert_eq!(memory.guest(address, 1), None, "{address:#x}");
        }
        assert!(memory.user(0x7000_1000, 0x1000).is_some());
        assert_eq!(memory.user(0x7000_1000, 0x1001), None, "a ring lies in one piece");
    }

    #[test]
    fn pieces_that_overlap_wrap_or_are_longer_than_their_file_are_refused() {
        for pieces in [
            vec![piece(0, 0x2000), piece(0x1000, 0x1000)],
            vec![piece(u64::MAX - 0xfff, 0x2000)],
            vec![piece(0, 0)],
            vec![piece(0, 1 << 60)],
            vec![piece(0, 0x3000)],
            vec![Piece { offset: u64::MAX, ..piece(0, 0x1000) }],
        ] {
            let files: Vec<_> = pieces.iter().map(|_| file(0x2000)).collect();
            assert!(Memory::map(&pieces, &files).is_err(), "{pieces:x?}");
        }
        if let Ok(disk) = tempfile::tempfile_in("/") {
            ftruncate(&disk, 0x1000).expect("long enough");
            let refused = Memory::map(&[piece(0, 0x1000)], &[Arc::new(disk)]);
            assert!(refused.is_err_and(|why| why.contains("memfd")));
        }
    }

    #[test]
    fn memory_lies_in_a_memfd_in_tmpfs_or_in_hugetlbfs_and_nowhere_else() {
        let shared = tempfile::tempfile_in("/dev/shm").expect("a file in tmpfs");
        ftruncate(&shared, 0x1000).expect("long enough");
        Memory::map(&[piece(0, 0x1000)], &[Arc::new(shared)]).expect("tmpfs is memory");
        assert_eq!(page_of(&file(0x1000)), Ok(4_096), "a memfd");
        assert_eq!(page_in(HUGETLBFS_MAGIC, 2 << 20), Ok(2 << 20));
        // FUSE, ext4, XFS, overlayfs, NFS, and an unused number.
        for other in [0x6573_5546, 0xef53, 0x5846_5342, 0x794c_7630, 0x6969, 0] {
            let refused = page_in(FsType(other), 4_096).expect_err("not memory");
            assert!(refused.contains(&format!("{other:#x}")) && refused.contains("memfd"), "{refused}");
        }
    }

    #[test]
    fn memory_that_is_cut_off_reads_as_zeros() {
        let (file, other) = (file(0x4000), file(0x1000));
        let end = file.as_fd().try_clone_to_owned().expect("a descriptor");
        let pieces = [piece(0, 0x4000), piece(0x10000, 0x1000)];
        let memory = Memory::map(&pieces, &[file, other]).expect("mapped");
        let (place, _) = memory.guest(0x2000, 8).expect("mapped");
        memory.write(place, &[9; 8]);
        assert!(!memory.torn());
        ftruncate(&end, 0).expect("cut off");
        let mut read = [1; 8];
        memory.read(place, &mut read);
        assert_eq!(read, [0; 8]);
        assert!(memory.torn());
        memory.write(place, &[3; 8]);
        let (whole, _) = memory.guest(0x10000, 8).expect("mapped");
        memory.write(whole, &[5; 8]);
        memory.read(whole, &mut read);
        assert_eq!(read, [5; 8], "the others are as they were");
    }
}
