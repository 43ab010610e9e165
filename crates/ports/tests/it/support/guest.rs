//! A guest and its front end in a test's hands: they say and write what they are told to, sense or nonsense.

use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use plimsoll_ports::VhostUser;
use plimsoll_vnic::Region;

/// Where guest memory begins, for the guest and for the front end.
pub const GUEST: u64 = 0x1_0000_0000;
pub const USER: u64 = 0x7f00_0000_0000;
/// Bytes of guest memory; the upper half is for buffers.
pub const MEMORY: usize = 1 << 20;
pub const BUFFERS: usize = MEMORY / 2;
/// Bytes of a page.
pub const PAGE: usize = 4_096;
/// Bytes between two rings.
const STRIDE: usize = 0x1_0000;

/// Requests by their numbers in the protocol.
pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_SIZE: u32 = 8;
pub const SET_PLACE: u32 = 9;
pub const SET_BASE: u32 = 10;
pub const GET_BASE: u32 = 11;
pub const SET_KICK: u32 = 12;
pub const SET_CALL: u32 = 13;
pub const SET_ENABLE: u32 = 18;

/// Features by their bits.
pub const GUEST_CSUM: u64 = 1 << 1;
pub const TSO: u64 = 1 << 7 | 1 << 8 | GUEST_ECN;
pub const GUEST_ECN: u64 = 1 << 9;
pub const MERGEABLE: u64 = 1 << 15;
pub const LOG_ALL: u64 = 1 << 26;
pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const PROTOCOL: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const TABLE: u16 = 4;

/// The ring to the guest, and the one from it.
pub const TO: usize = 0;
pub const FROM: usize = 1;

pub struct Guest {
    pub socket: UnixStream,
    pub region: Region,
    pub file: OwnedFd,
    pub size: u16,
    pub kicks: Vec<EventFd>,
    pub calls: Vec<EventFd>,
    /// Entries of each used ring that were read.
    pub seen: [u16; 2],
    /// Where each ring begins.
    pub bases: [u16; 2],
}

impl Guest {
    /// Connects, and says nothing yet.
    pub fn connect(path: &Path, size: u16) -> Self {
        Self::over(UnixStream::connect(path).expect("connected"), size)
    }

    /// A guest with a copy of another's memory, which is not connected yet.
    pub fn copied(size: u16, memory: &[u8]) -> Self {
        let (socket, _) = UnixStream::pair().expect("a pair");
        let guest = Self::over(socket, size);
        guest.region.write(0, memory);
        guest
    }

    fn over(socket: UnixStream, size: u16) -> Self {
        let (region, file) = Region::create(MEMORY).expect("memory");
        let bells = || (0..2).map(|_| EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("a bell")).collect();
        Self { socket, region, file, size, kicks: bells(), calls: bells(), seen: [0; 2], bases: [0; 2] }
    }

    /// A guest whose driver has agreed to `features` and whose rings run.
    pub fn start(port: &mut VhostUser, path: &Path, size: u16, features: u64) -> Self {
        let mut guest = Self::connect(path, size);
        guest.introduce(port, features);
        guest
    }

    /// Connects this guest, with its memory, to another daemon. As in QEMU, its rings begin behind what was given back.
    pub fn come_back(&mut self, port: &mut VhostUser, path: &Path, features: u64) {
        self.socket = UnixStream::connect(path).expect("connected");
        self.bases = [TO, FROM].map(|ring| self.used_end(ring));
        self.introduce(port, features);
    }

    /// All that a driver and its front end say at first.
    pub fn introduce(&mut self, port: &mut VhostUser, features: u64) {
        self.say(SET_FEATURES, &features.to_le_bytes(), &[]);
        self.share_memory();
        for ring in [TO, FROM] {
            self.describe(ring);
        }
        self.is_heard(port);
        assert!(port.is_connected());
    }

    /// Asks for the features and waits for the answer: by then the port has handled every message before it. Connections that
    /// it hung up on, and memory that it let go, may still be closing.
    pub fn is_heard(&mut self, port: &mut VhostUser) {
        self.say(GET_FEATURES, &[], &[]);
        self.socket.set_nonblocking(true).expect("ours");
        let (begun, mut answer) = (Instant::now(), [0; 20]);
        while self.socket.read_exact(&mut answer).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(5), "the port does not answer");
            port.probe().expect("always there");
        }
        self.socket.set_nonblocking(false).expect("ours");
    }

    /// One message, whole or not.
    pub fn say(&self, request: u32, payload: &[u8], descriptors: &[RawFd]) {
        let mut bytes = Vec::new();
        for word in [request, 1, payload.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(payload);
        self.send(&bytes, descriptors);
    }

    /// Sends bytes as they are; does nothing once the port has hung up.
    pub fn send(&self, bytes: &[u8], descriptors: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let rights = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None);
    }

    /// The number in the next answer.
    pub fn answer(&mut self) -> u64 {
        let mut bytes = [0; 20];
        self.socket.read_exact(&mut bytes).expect("an answer");
        assert_eq!(bytes[4..12], [5, 0, 0, 0, 8, 0, 0, 0], "an answer of eight bytes");
        u64::from_le_bytes(bytes[12..].try_into().expect("eight bytes"))
    }

    pub fn share_memory(&self) {
        let table = [1, GUEST, MEMORY as u64, USER, 0].map(u64::to_le_bytes).concat();
        self.say(SET_MEM_TABLE, &table, &[self.file.as_fd().as_raw_fd()]);
    }

    /// Asks for a log of the pages that the device writes, as a front end does that begins to move its guest. Returns the log: a bit
    /// for each page of memory from guest address 0 on.
    pub fn ask_for_log(&self, features: u64) -> Region {
        let bytes = (GUEST as usize + MEMORY).div_ceil(8 * PAGE);
        let (log, file) = Region::create(bytes.next_multiple_of(PAGE)).expect("memory");
        let payload = [bytes as u64, 0].map(u64::to_le_bytes).concat();
        self.say(SET_LOG_BASE, &payload, &[file.as_fd().as_raw_fd()]);
        self.say(SET_FEATURES, &(features | LOG_ALL).to_le_bytes(), &[]);
        for ring in [TO, FROM] {
            self.place(ring, USER);
        }
        log
    }

    /// The pages of guest memory that are in the log, by number.
    pub fn logged(log: &Region) -> Vec<usize> {
        let first = GUEST as usize / PAGE;
        let mut bits = vec![0; (first + MEMORY / PAGE) / 8];
        log.read(0, &mut bits);
        assert!(bits[..first / 8].iter().all(|byte| *byte == 0), "pages that are not the guest's");
        let is_set = |page: &usize| bits[(first + page) / 8] & 1 << ((first + page) % 8) != 0;
        (0..MEMORY / PAGE).filter(is_set).collect()
    }

    /// All that there is to say about a ring.
    pub fn describe(&self, ring: usize) {
        let pair = |a: u32, b: u32| [a.to_le_bytes(), b.to_le_bytes()].concat();
        let index = ring as u32;
        self.say(SET_SIZE, &pair(index, self.size.into()), &[]);
        self.say(SET_BASE, &pair(index, self.bases[ring].into()), &[]);
        self.place(ring, USER);
        self.say(SET_KICK, &u64::from(index).to_le_bytes(), &[self.kicks[ring].as_raw_fd()]);
        self.say(SET_CALL, &u64::from(index).to_le_bytes(), &[self.calls[ring].as_raw_fd()]);
        self.say(SET_ENABLE, &pair(index, 1), &[]);
    }

    /// Where a ring lies, if memory began at `base`.
    pub fn place(&self, ring: usize, base: u64) {
        let at = |offset: usize| (base + offset as u64).to_le_bytes();
        let mut payload = (ring as u64).to_le_bytes().to_vec();
        for address in [at(descriptors(ring)), at(used(ring)), at(available(ring)), [0; 8]] {
            payload.extend(address);
        }
        self.say(SET_PLACE, &payload, &[]);
    }

    pub fn descriptor(&self, ring: usize, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.table_entry(descriptors(ring), index, address, len, flags, next);
    }

    /// A descriptor of the table at `table`.
    pub fn table_entry(&self, table: usize, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let at = table + usize::from(index) * 16;
        self.region.word64(at).store(address, Ordering::Relaxed);
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.region.word64(at + 8).store(rest, Ordering::Relaxed);
    }

    /// Makes a chain available.
    pub fn offer(&self, ring: usize, head: u16) {
        let end = self.region.word16(available(ring) + 2);
        let index = end.load(Ordering::Relaxed);
        let entry = available(ring) + 4 + usize::from(index % self.size) * 2;
        self.region.word16(entry).store(head, Ordering::Relaxed);
        end.store(index.wrapping_add(1), Ordering::Release);
    }

    /// What the front end takes for the heads in flight, and those that were not taken, when the daemon is gone: the entries of
    /// the available ring behind the used ring's end.
    pub fn offered(&self, ring: usize) -> Vec<u16> {
        let [mut index, end] =
            [used(ring), available(ring)].map(|at| self.region.word16(at + 2).load(Ordering::Relaxed));
        let mut found = Vec::new();
        while index != end {
            let entry = available(ring) + 4 + usize::from(index % self.size) * 2;
            found.push(self.region.word16(entry).load(Ordering::Relaxed));
            index = index.wrapping_add(1);
        }
        found
    }

    pub fn move_end(&self, ring: usize, end: u16) {
        self.region.word16(available(ring) + 2).store(end, Ordering::Release);
    }

    /// Posts a frame behind a header of twelve bytes, in a descriptor of its own.
    pub fn post(&self, head: u16, frame: &[u8]) {
        self.post_with(head, &[0; 12], frame);
    }

    pub fn post_with(&self, head: u16, header: &[u8], frame: &[u8]) {
        let at = buffer(head);
        self.region.write(at, header);
        self.region.write(at + header.len(), frame);
        let len = (header.len() + frame.len()) as u32;
        self.descriptor(FROM, head, GUEST + at as u64, len, 0, 0);
        self.offer(FROM, head);
    }

    /// Posts an empty buffer.
    pub fn lend(&self, head: u16, len: u32) {
        self.descriptor(TO, head, GUEST + buffer(head) as u64, len, WRITE, 0);
        self.offer(TO, head);
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(at, &mut bytes);
        bytes
    }

    /// What has been given back since the last call: heads, and bytes written.
    pub fn given_back(&mut self, ring: usize) -> Vec<(u32, u32)> {
        let end = self.region.word16(used(ring) + 2).load(Ordering::Acquire);
        let mut found = Vec::new();
        while self.seen[ring] != end {
            let at = used(ring) + 4 + usize::from(self.seen[ring] % self.size) * 8;
            let [id, len] = [at, at + 4].map(|at| self.region.word32(at).load(Ordering::Relaxed));
            found.push((id, len));
            self.seen[ring] = self.seen[ring].wrapping_add(1);
        }
        found
    }

    pub fn heads(&mut self, ring: usize) -> Vec<u32> {
        self.given_back(ring).into_iter().map(|(head, _)| head).collect()
    }

    /// The index of the entry of a used ring that is written next.
    pub fn used_end(&self, ring: usize) -> u16 {
        self.region.word16(used(ring) + 2).load(Ordering::Relaxed)
    }

    /// Rings heard since the last call.
    pub fn rung(&self, ring: usize) -> u64 {
        self.calls[ring].read().unwrap_or(0)
    }

    /// After how many entries the guest wants to be woken, or the device did.
    pub fn want(&self, ring: usize, entry: u16) {
        let at = available(ring) + 4 + usize::from(self.size) * 2;
        self.region.word16(at).store(entry, Ordering::Relaxed);
    }

    pub fn wanted(&self, ring: usize) -> u16 {
        self.region.word16(used(ring) + 4 + usize::from(self.size) * 8).load(Ordering::Relaxed)
    }
}

pub const fn descriptors(ring: usize) -> usize {
    ring * STRIDE
}

pub const fn available(ring: usize) -> usize {
    ring * STRIDE + 0x4000
}

pub const fn used(ring: usize) -> usize {
    ring * STRIDE + 0x8000
}

/// A place for the bytes behind a head: 4 KiB.
pub const fn buffer(head: u16) -> usize {
    BUFFERS + head as usize * 4_096
}
