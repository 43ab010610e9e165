//! The record of descriptors in flight, in a file that outlives the daemon.
//!
//! Why: descriptors complete in any order, so the guest's rings alone do not tell which are in flight. When a daemon was
//! killed, QEMU goes on behind the last completed descriptor: without a record, descriptors in flight would be lost and
//! others completed twice, which stops the guest's driver.
//! From: vhost-user's in-flight descriptors for split rings, which QEMU passes for disks and not for network cards; so the
//! daemon keeps a file of its own beside the socket.
//! Not here: the rings (`ring`).
//! Invariant: whenever the process ends, each descriptor in flight is in the record, unless the guest's used ring has it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use nix::fcntl::posix_fallocate;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// The file, with a page for each ring.
#[derive(Debug)]
pub(super) struct Record {
    map: Arc<MmapRegion>,
    path: PathBuf,
}

/// The record of one ring.
#[derive(Debug)]
pub(super) struct Page {
    map: Arc<MmapRegion>,
    at: usize,
    /// Number of descriptors taken since the ring was started; it orders those in flight.
    taken: u64,
}

/// Identifies a ring: the record of another guest's ring, or of an earlier start of the driver, does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) size: u16,
    /// Address of the descriptors in the front end's process.
    pub(super) descriptors: u64,
}

impl Record {
    /// Opens the record beside the socket at `path`, left by an earlier daemon or new.
    #[cfg(test)]
    pub(super) fn open(path: &Path, rings: usize) -> io::Result<Self> {
        Self::over(open_file(path)?, path, rings)
    }

    /// Maps the record of this file.
    pub(super) fn over(file: File, path: &Path, rings: usize) -> io::Result<Self> {
        let path = beside(path);
        let len = rings * PAGE;
        // Allocated in full now, as a write to a mapping fails when the file system is full.
        posix_fallocate(&file, 0, i64::try_from(len).map_err(io::Error::other)?)?;
        let map = MmapRegionBuilder::new(len)
            .with_file_offset(FileOffset::new(file, 0))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED)
            .build()
            .map_err(io::Error::other)?;
        Ok(Self { map: Arc::new(map), path })
    }

    /// Removes the file, once all descriptors have completed. To be called before the socket is removed: afterwards another
    /// port may own a record at this path.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// The page of one ring; none for a ring with more descriptors than a page can hold.
    pub(super) fn page(&self, ring: usize, size: u16) -> Option<Page> {
        (size <= MOST).then(|| Page { map: Arc::clone(&self.map), at: ring * PAGE, taken: 0 })
    }
}

impl Page {
    /// The heads that were in flight when an earlier daemon ended, oldest first, without those that the used ring has since;
    /// none when the page is of another ring. `used` is the used ring's index in guest memory, `entry` reads an entry.
    pub(super) fn left(&self, ring: Identity, used: u16, entry: impl Fn(u16) -> u32) -> Option<Vec<u16>> {
        let [size, noted] = [SIZE, USED].map(|at| self.word(at).load(Ordering::Relaxed));
        let same =
            size == u32::from(ring.size) && self.long(WHERE).load(Ordering::Relaxed) == ring.descriptors;
        let later = used.wrapping_sub(noted as u16);
        if !same || later > ring.size {
            return None;
        }
        let given: Vec<u32> = (0..later).map(|step| entry((noted as u16).wrapping_add(step))).collect();
        let number = |head: u16| self.long(OUT + usize::from(head) * 8).load(Ordering::Relaxed);
        let mut left: Vec<u16> =
            (0..ring.size).filter(|&head| number(head) != 0 && !given.contains(&head.into())).collect();
        left.sort_by_key(|&head| number(head));
        Some(left)
    }

    /// Continues the record of an earlier daemon with these heads in flight, oldest first. They stay recorded at each step,
    /// as this daemon may be killed here too.
    pub(super) fn go_on(&mut self, ring: Identity, used: u16, left: &[u16]) {
        let out = |head: u16| self.long(OUT + usize::from(head) * 8);
        let last = left.last().map_or(0, |&head| out(head).load(Ordering::Relaxed));
        let back = (0..ring.size).filter(|head| !left.contains(head));
        back.for_each(|head| out(head).store(0, Ordering::Relaxed));
        self.word(USED).store(used.into(), Ordering::Release);
        self.taken = last;
    }

    /// Begins a new record, with no descriptor in flight.
    pub(super) fn begin(&mut self, ring: Identity, used: u16) {
        // Until the page is complete for the new ring, it must apply to no ring.
        self.end();
        compiler_fence(Ordering::SeqCst);
        self.taken = 0;
        (0..ring.size).for_each(|head| self.long(OUT + usize::from(head) * 8).store(0, Ordering::Relaxed));
        self.word(USED).store(used.into(), Ordering::Relaxed);
        self.long(WHERE).store(ring.descriptors, Ordering::Relaxed);
        self.word(SIZE).store(ring.size.into(), Ordering::Release);
    }

    /// Ends the record when the ring has stopped, with no descriptor in flight.
    pub(super) fn end(&self) {
        self.word(SIZE).store(0, Ordering::Release);
    }

    /// Records a descriptor as in flight.
    #[inline]
    pub(super) fn take(&mut self, head: u16) {
        self.taken += 1;
        self.long(OUT + usize::from(head) * 8).store(self.taken, Ordering::Release);
    }

    /// Removes completed heads from the record; the guest's used ring now ends at `used`.
    #[inline]
    pub(super) fn give(&self, heads: &[u16], used: u16) {
        // Only after the used ring has them: the process may be killed between any two of these steps.
        compiler_fence(Ordering::SeqCst);
        for &head in heads {
            self.long(OUT + usize::from(head) * 8).store(0, Ordering::Relaxed);
        }
        // Release: after the heads, or one of them would stay in flight for ever.
        self.word(USED).store(used.into(), Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        self.map.get_atomic_ref(self.at + at).expect("a word of the page")
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        self.map.get_atomic_ref(self.at + at).expect("a word of the page")
    }
}

/// Path of the record of the socket at `path`.
pub(crate) fn beside(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.inflight", path.display()))
}

/// Opens the file of the record beside the socket at `path`, left by an earlier daemon or new.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    own_file(&beside(path))
}

/// Opens or creates the file. A file that another user may have written is removed first, as a guest's front end may be
/// allowed to write beside its socket.
fn own_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    if let Ok(file) = options.open(path) {
        let found = file.metadata()?;
        if found.is_file() && found.nlink() == 1 && found.uid() == nix::unistd::geteuid().as_raw() {
            return Ok(file);
        }
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    options.create_new(true).open(path)
}

/// Size of the longest ring that is recorded, the longest of QEMU.
const MOST: u16 = 1_024;
// Offsets in a page.
const SIZE: usize = 0;
const USED: usize = 4;
const WHERE: usize = 8;
const OUT: usize = 64;
const PAGE: usize = OUT + MOST as usize * 8;

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Identity = Identity { size: 8, descriptors: 0x7000 };

    #[test]
    fn what_was_out_is_found_by_the_next_daemon_in_its_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("vm.sock");
        let record = Record::open(&socket, 2).expect("a record");
        let mut page = record.page(1, 8).expect("room");
        page.begin(RING, 65_535);
        [3, 1, 7, 2].iter().for_each(|&head| page.take(head));
        page.give(&[1], 0);
        // The daemon is killed, and the file stays. The guest has 7 back, which was not recorded.
        let later = Record::open(&socket, 2).expect("a record");
        let found = later.page(1, 8).expect("room");
        assert_eq!(found.left(RING, 1, |_| 7), Some(vec![3, 2]));
        assert_eq!(found.left(RING, 0, |_| 7), Some(vec![3, 7, 2]));
        assert!(found.left(Identity { size: 16, ..RING }, 1, |_| 7).is_none());
        assert!(found.left(Identity { descriptors: 0, ..RING }, 1, |_| 7).is_none());
        assert!(found.left(RING, 9, |_| 7).is_none(), "more than a ring has come back since");
        page.end();
        assert!(found.left(RING, 1, |_| 7).is_none());
        assert!(record.page(0, 2_048).is_none());
    }

    #[test]
    fn a_daemon_killed_right_after_it_continues_a_record_loses_no_head() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("vm.sock");
        let page = || Record::open(&socket, 1).expect("a record").page(0, 8).expect("room");
        let mut first = page();
        first.begin(RING, 0);
        [3, 1, 7, 2].iter().for_each(|&head| first.take(head));
        let mut second = page();
        let left = second.left(RING, 1, |_| 1).expect("the same ring");
        second.go_on(RING, 1, &left);
        assert_eq!(page().left(RING, 1, |_| 1), Some(vec![3, 7, 2]), "before any is taken again");
        second.take(3);
        assert_eq!(page().left(RING, 1, |_| 1), Some(vec![7, 2, 3]), "and after one");
        second.give(&[3], 2);
        assert_eq!(page().left(RING, 2, |_| 3), Some(vec![7, 2]));
    }
}
