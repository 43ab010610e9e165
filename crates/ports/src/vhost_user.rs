//! A virtual machine's network card: vhost-user's back end, with virtio-net's split rings.
//!
//! Why: QEMU, libvirt, cloud-hypervisor and DPDK's virtio-user reach us this way, and a descriptor that is held back holds
//! back the guest's sockets.
//! From: QEMU's `docs/interop/vhost-user.rst`, virtio 1.2 (2.7 and 5.1), PicNIC §5.4.3; `docs/vhost-user.md`.
//! Not here: classification and the order of packets (the daemon, `nic`), waiting (the daemon).
//! Invariant: whatever guest and front end write, whenever they write it: each word is copied out once and the copy is
//! checked, each call is bounded, nothing outside guest memory is touched, and no call waits.

mod bell;
mod front_end;
mod guard;
mod memory;
mod message;
mod record;
mod ring;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::epoll::{Epoll, EpollCreateFlags};
use plimsoll_wire::VnetHeader;

use front_end::{CLOSED, FrontEnd, listen, watch};
use memory::Memory;
use message::feature;
use record::Record;
pub(crate) use record::beside as record_of;
use ring::{Live, MOST_PARTS, Next, Part, Ring, Way};

use crate::error::PortError;
use crate::foreign::{Closer, Foreign, Listener};
use crate::handover::Release;
use crate::port::{
    Capabilities, Counters, DropReason, FRAME_ROOM, Fds, Level, MIN_FRAME, PairCounters, Received, Sending,
    Trouble, vnet_bytes,
};
use crate::posted::{Taken, Ticket, Took};

/// How a [`VhostUser`] is made.
#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// The socket that the front end connects to.
    pub path: PathBuf,
    /// Pairs of rings that the guest may use.
    pub pairs: u16,
    /// When and in which order the guest gets its descriptors back.
    pub completions: Completions,
    /// Largest IP packet of one segment.
    pub mtu: u32,
    /// The hardware address of the guest's interface, where it is known beforehand: the front end chooses it.
    pub mac: Option<[u8; 6]>,
}

impl VhostUserConfig {
    /// Up to eight pairs of rings, completions in any order, and 1500 bytes of MTU.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), pairs: 8, completions: Completions::default(), mtu: 1_500, mac: None }
    }
}

/// When and in which order a guest gets back the descriptors that it has sent (PicNIC §5.4.3 and Appendix B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completions {
    /// Each when its packet has left or was dropped.
    #[default]
    OutOfOrder,
    /// The same, but never before one that was posted earlier: for comparison, as one slow flow then holds up all.
    InOrder,
    /// Each when it is taken: for comparison, as the guest then never learns that it sends too much.
    Early,
}

/// One virtual machine's virtual NIC. It outlives its guests: one goes, another may come.
#[derive(Debug)]
pub struct VhostUser {
    config: VhostUserConfig,
    listener: Listener,
    inode: u64,
    release: Option<Release>,
    events: Epoll,
    front_end: Option<Box<FrontEnd>>,
    closer: Closer,
    /// Those who want in are heard.
    open: bool,
    /// The front end may have sent a message.
    talks: bool,
    /// Somebody was let in, and others may wait behind.
    knocks: bool,
    memory: Foreign<Memory>,
    record: Record,
    /// Pairs of rings: to the guest, then from it.
    rings: Vec<Ring>,
    /// What the driver has agreed to.
    features: u64,
    /// What the front end has agreed to.
    protocol: u64,
    /// Descriptors of the shortest ring from the guest that runs.
    depth: Option<u32>,
    /// Pairs up to the last whose ring from the guest runs.
    from_guest: usize,
    /// Pairs from the first on whose ring to the guest runs.
    to_guest: usize,
    /// The pair that is taken from next.
    turn: usize,
    /// Batches begun, to look at the sockets now and then however busy the rings are.
    batches: u32,
    /// Where the bytes of the frame taken last lie: it may be copied after others have been sent.
    parts: Vec<Part>,
    /// Where those of a frame for the guest are to go.
    places: Vec<Part>,
    /// Buffers that a frame for the guest is put into: heads, and where the parts of each end.
    buffers: Vec<(u16, usize)>,
    counters: Counters,
    pairs: Vec<PairCounters>,
    problem: Option<PortError>,
}

impl VhostUser {
    /// Listens for the front end.
    ///
    /// # Errors
    /// When the socket's place is taken, or descriptors are short.
    pub fn open(config: &VhostUserConfig) -> Result<Self, PortError> {
        let (listener, inode, record) = Self::listen(config)?;
        Self::over(config, listener, inode, record, None)
    }

    /// Listens for the front end: the socket, its inode, and the record of what is out.
    pub(crate) fn listen(config: &VhostUserConfig) -> Result<(OwnedFd, u64, File), PortError> {
        let failed = |source: io::Error| watching(config, source);
        let closer = Closer::of(&config.path).map_err(failed)?;
        let (listener, inode) = listen(&config.path, &closer)?;
        let record = record::open_file(&config.path).map_err(failed)?;
        Ok((listener.into_inner(), inode, record))
    }

    /// The port behind a socket that listens; `release` frees its place, where this process may not.
    pub(crate) fn over(
        config: &VhostUserConfig,
        listener: OwnedFd,
        inode: u64,
        record: File,
        release: Option<Release>,
    ) -> Result<Self, PortError> {
        let failed = |source: io::Error| watching(config, source);
        let closer = Closer::of(&config.path).map_err(failed)?;
        let listener = Listener::new(listener, &closer);
        listener.set_nonblocking().map_err(failed)?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| failed(error.into()))?;
        let record = Record::over(record, &config.path, usize::from(config.pairs)).map_err(failed)?;
        watch(&events, &listener).map_err(failed)?;
        closer.watch(&events, CLOSED).map_err(failed)?;
        Ok(Self {
            config: config.clone(),
            listener,
            inode,
            release,
            events,
            front_end: None,
            closer,
            open: true,
            talks: false,
            knocks: false,
            memory: Foreign::ours(Memory::default()),
            record,
            rings: (0..2 * config.pairs).map(|_| Ring::default()).collect(),
            features: 0,
            protocol: 0,
            depth: None,
            from_guest: 0,
            to_guest: 0,
            turn: 0,
            batches: 0,
            parts: Vec::with_capacity(MOST_PARTS),
            places: Vec::with_capacity(MOST_PARTS),
            buffers: Vec::with_capacity(MOST_BUFFERS),
            counters: Counters::default(),
            pairs: vec![PairCounters::default(); config.pairs.into()],
            problem: None,
        })
    }

    /// Begins a batch: now and then looks at the sockets.
    ///
    /// # Errors
    /// None: a port without a guest has nothing to be taken.
    pub fn begin(&mut self) -> Result<(), Trouble> {
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        if self.memory.torn() {
            self.lose_memory();
        }
        for ring in self.rings.iter_mut().skip(1).step_by(2) {
            if let Some(live) = &mut ring.live {
                live.mute(&self.memory);
            }
        }
        Ok(())
    }

    /// The next frame that the guest has posted, of one pair of rings after the other.
    pub fn take(&mut self) -> Took {
        for _ in 0..self.from_guest {
            let index = 2 * self.turn + 1;
            self.turn = if self.turn + 1 < self.from_guest { self.turn + 1 } else { 0 };
            match self.take_from(index) {
                Took::Nothing => {}
                took => return took,
            }
        }
        Took::Nothing
    }

    /// The next frame of the ring that the one with this ticket came from, which was taken last.
    #[inline]
    pub fn take_after(&mut self, ticket: Ticket) -> Took {
        self.take_from(ticket.queue.into())
    }

    #[inline]
    fn take_from(&mut self, index: usize) -> Took {
        let Some(live) = self.rings.get_mut(index).and_then(Ring::running) else { return Took::Nothing };
        self.parts.clear();
        match live.take(&self.memory, Way::Out, &mut self.parts) {
            Next::Head(head) => self.take_frame(index, head),
            Next::Nothing if !live.take_bad_end(&self.memory) => Took::Nothing,
            Next::Nothing | Next::Bad => {
                self.counters.lose(DropReason::BadDescriptor);
                Took::Refused
            }
        }
    }

    /// Reads the header and leaves `parts` with the frame.
    #[inline]
    fn take_frame(&mut self, index: usize, head: u16) -> Took {
        let room = self.header_len();
        let mut header = [0; VnetHeader::LEN_WITH_BUFFERS];
        let read = take_front(&self.memory, &mut self.parts, &mut header[..room]);
        let len: usize = self.parts.iter().map(|&(_, len)| len).sum();
        let Some(live) = &mut self.rings[index].live else { return Took::Nothing };
        if read < room || !(1..FRAME_ROOM).contains(&len) {
            live.give(&self.memory, head, 0);
            self.counters.lose(DropReason::BadDescriptor);
            return Took::Refused;
        }
        let ticket =
            Ticket { session: live.session, cookie: head.into(), queue: index as u16, descriptors: 1 };
        if self.config.completions == Completions::Early {
            // The guest learns of it at the next flush, after the copy.
            live.give(&self.memory, head, 0);
        }
        let vnet = header.first_chunk().map(|bytes| VnetHeader::from_bytes(*bytes)).unwrap_or_default();
        self.counters.received(len);
        self.pairs[index / 2].rx_packets += 1;
        Took::Frame(Taken { target: None, len, vnet, tag: 0, ticket })
    }

    /// Copies the frame taken last.
    ///
    /// Panics when `into` is shorter than the frame.
    pub fn copy(&self, into: &mut [u8]) {
        let mut rest = into;
        for &(place, len) in &self.parts {
            let (part, others) = rest.split_at_mut(len);
            self.memory.read(place, part);
            rest = others;
        }
    }

    /// A frame is through: its descriptor is the guest's again. [`VhostUser::flush`] tells it. Answers whether another may
    /// be taken now. The ticket of a ring that has been stopped since is ignored.
    pub fn complete(&mut self, ticket: Ticket) -> bool {
        let Some(Ring { live: Some(live), .. }) = self.rings.get_mut(usize::from(ticket.queue)) else {
            return false;
        };
        if live.session != ticket.session {
            return false;
        }
        live.give(&self.memory, ticket.cookie as u16, 0);
        false
    }

    /// Nothing is to be taken: asks the guest to ring when that changes. Answers whether the owner may sleep; if not, it
    /// should begin another batch.
    pub fn rest(&mut self) -> bool {
        self.look();
        let mut quiet = !self.has_more_to_say();
        for ring in self.rings.iter_mut().skip(1).step_by(2) {
            if let Some(live) = ring.running() {
                quiet &= live.listen(&self.memory);
                if !quiet {
                    live.mute(&self.memory);
                }
            }
        }
        quiet
    }

    /// Takes the next frame and completes it at once; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// None.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        self.begin()?;
        for _ in 0..REFUSALS {
            match self.take() {
                Took::Frame(taken) if taken.len <= buffer.len() => {
                    self.copy(&mut buffer[..taken.len]);
                    self.complete(taken.ticket);
                    self.flush()?;
                    return Ok(Some(Received {
                        len: taken.len,
                        vnet: Some(taken.vnet),
                        ..Received::default()
                    }));
                }
                Took::Frame(taken) => {
                    self.counters.lose(DropReason::Oversize);
                    self.complete(taken.ticket);
                }
                Took::Refused => {}
                Took::Nothing => break,
            }
        }
        self.flush()?;
        let _ = self.rest();
        Ok(None)
    }

    /// Puts a frame into buffers that the guest has posted; see [`crate::Port::send`].
    ///
    /// # Errors
    /// [`Trouble::Down`] without a guest, or one whose driver is not there.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        let (room, several) = (self.header_len(), self.features & feature::MRG_RXBUF != 0);
        let pair = if self.to_guest > 1 { spread(frame) as usize % self.to_guest } else { 0 };
        let able = self.capabilities();
        let Some(live) = self.rings[2 * pair].running() else { return Err(Trouble::Down) };
        if !able.allow(vnet) {
            return Ok(self.counters.refuse(DropReason::BadOffload));
        }
        if frame.len() < MIN_FRAME {
            return Ok(self.counters.refuse(DropReason::TooShort));
        }
        self.places.clear();
        self.buffers.clear();
        let most = if several { MOST_BUFFERS } else { 1 };
        match gather(live, &self.memory, room + frame.len(), most, &mut self.places, &mut self.buffers) {
            Gathered::Enough => {}
            Gathered::Full => return Ok(Sending::Full),
            Gathered::Short => return Ok(self.counters.refuse(DropReason::Oversize)),
            Gathered::Bad => return Ok(self.counters.refuse(DropReason::BadDescriptor)),
        }
        let mut header = [0; VnetHeader::LEN_WITH_BUFFERS];
        header[..VnetHeader::LEN].copy_from_slice(&vnet_bytes(vnet));
        header[VnetHeader::LEN..].copy_from_slice(&(self.buffers.len() as u16).to_le_bytes());
        put(live, &self.memory, &[&header[..room], frame], &self.places, &self.buffers);
        self.pairs[pair].tx_packets += 1;
        Ok(self.counters.sent(frame.len()))
    }

    /// Shows the guest its completions and frames, and wakes it if it wants to be.
    ///
    /// # Errors
    /// None.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        if self.memory.torn() {
            self.lose_memory();
        }
        let memory = &self.memory;
        self.rings.iter_mut().for_each(|ring| ring.publish(memory));
        Ok(())
    }

    /// Whether a front end is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.front_end.is_some()
    }

    /// Frames taken that have not completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let from_guest = self.rings.iter().skip(1).step_by(2).filter_map(|ring| ring.live.as_ref());
        from_guest.map(|live| u32::from(live.in_flight)).sum()
    }

    /// Descriptors of the shortest ring that the guest sends with; none without a guest, or where it gets them back early.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> Option<u32> {
        self.depth.filter(|_| self.config.completions != Completions::Early)
    }

    /// What to wait on: one descriptor for the socket, the front end and the guest's kicks.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds { receive: Some(self.events.0.as_raw_fd()), transmit: None }
    }

    /// Looks at the sockets. The port itself is always there.
    ///
    /// # Errors
    /// None.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        self.look();
        Ok(())
    }

    /// Whether there is more at the sockets than the last look took, which nobody will tell again.
    #[must_use]
    pub fn has_more_to_say(&self) -> bool {
        self.knocks || self.talks && !self.closer.is_full()
    }

    /// Why a front end was hung up on, told once.
    pub fn take_problem(&mut self) -> Option<PortError> {
        self.problem.take()
    }

    /// The guest's hardware address, where it is known beforehand.
    #[must_use]
    pub fn tenant_mac(&self) -> Option<[u8; 6]> {
        self.config.mac
    }

    /// What it can do: what the guest's driver has agreed to.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let agreed = |features: u64| self.features & features == features;
        Capabilities {
            takes_segmentation: agreed(TAKES_TCP),
            gives_segmentation: true,
            udp_segmentation: agreed(TAKES_TCP | feature::GUEST_USO4 | feature::GUEST_USO6),
            takes_partial_checksum: agreed(feature::GUEST_CSUM),
            mtu: self.config.mtu,
        }
    }

    /// What it has carried.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Each pair of rings, up to the last that is in use.
    #[must_use]
    pub fn pairs(&self) -> Vec<PairCounters> {
        let mut pairs = self.pairs.clone();
        for (pair, rings) in pairs.iter_mut().zip(self.rings.chunks(2)) {
            let [to_guest, from_guest] = rings else { continue };
            pair.free = to_guest.waiting(&self.memory);
            pair.posted = from_guest.waiting(&self.memory);
            let live = from_guest.live.as_ref();
            pair.in_flight = live.map_or(0, |live| live.in_flight.into());
            pair.out_of_turn = live.map_or(0, Live::out_of_turn);
        }
        pairs.truncate(
            pairs.iter().rposition(|pair| *pair != PairCounters::default()).map_or(0, |last| last + 1),
        );
        pairs
    }

    /// What it leaves with the guest.
    #[must_use]
    pub fn level(&self) -> Level {
        match self.config.completions {
            Completions::Early => Level::L0,
            Completions::InOrder => Level::L1,
            Completions::OutOfOrder => Level::L2,
        }
    }

    /// How operators know it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("vhost-user {}", self.config.path.display())
    }

    /// Bytes of the header before each frame: the number of buffers is there where frames may have several.
    #[inline]
    fn header_len(&self) -> usize {
        if self.features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0 {
            VnetHeader::LEN_WITH_BUFFERS
        } else {
            VnetHeader::LEN
        }
    }

    /// Guest memory has been cut off: there is no guest any more.
    #[cold]
    fn lose_memory(&mut self) {
        self.counters.lose(DropReason::BadDescriptor);
        self.problem.get_or_insert_with(|| PortError::Config {
            what: format!("vhost-user {}", self.config.path.display()),
            problem:
                "the file of the guest's memory was cut off; the connection was closed, and it may try again"
                    .to_owned(),
        });
        self.hang_up();
    }
}

fn watching(config: &VhostUserConfig, source: io::Error) -> PortError {
    PortError::system("watching the socket", config.path.display().to_string(), source)
}

impl Drop for VhostUser {
    /// The socket's place is free again, unless somebody else has taken it. The guest gets back what it had posted.
    fn drop(&mut self) {
        self.hang_up();
        if let Some(release) = self.release.take() {
            return release.free();
        }
        if fs::symlink_metadata(&self.config.path).is_ok_and(|found| found.ino() == self.inode) {
            self.record.remove();
            let _ = fs::remove_file(&self.config.path);
        }
    }
}

/// A number that packets of one connection share: of its addresses and ports, where a plain IP header says where they
/// are.
fn spread(frame: &[u8]) -> u32 {
    let looked_at = match frame.get(12..15) {
        // Of a fragment's ports only the first knows: all of them go by their addresses.
        Some([0x08, 0x00, 0x45])
            if frame.get(20..22).is_some_and(|bits| bits[0] & 0x3f != 0 || bits[1] != 0) =>
        {
            frame.get(26..34)
        }
        Some([0x08, 0x00, 0x45]) => frame.get(26..38),
        Some([0x86, 0xdd, _]) => frame.get(22..58),
        _ => None,
    };
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = looked_at.unwrap_or_default().iter().fold(0x811c_9dc5, step);
    hash ^ (hash >> 16)
}

/// What the driver must take for TCP to come larger than the MTU.
const TAKES_TCP: u64 = feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6 | feature::GUEST_ECN;

/// Copies the first bytes out of `parts` and takes them off; how many those were.
fn take_front(memory: &Memory, parts: &mut Vec<Part>, into: &mut [u8]) -> usize {
    let (mut done, mut used) = (0, 0);
    for (place, len) in parts.iter_mut() {
        let count = (*len).min(into.len() - done);
        memory.read(*place, &mut into[done..done + count]);
        done += count;
        (*place, *len) = (place.plus(count), *len - count);
        if *len > 0 {
            break;
        }
        used += 1;
    }
    parts.drain(..used);
    done
}

/// Whether there are buffers for a frame.
enum Gathered {
    Enough,
    /// Too few now.
    Full,
    /// Too small, and another one may not be used.
    Short,
    /// One made no sense; it was given back.
    Bad,
}

/// Takes buffers for `len` bytes, at most `most`; none is kept unless they are enough.
fn gather(
    live: &mut Live,
    memory: &Memory,
    len: usize,
    most: usize,
    parts: &mut Vec<Part>,
    buffers: &mut Vec<(u16, usize)>,
) -> Gathered {
    let mut room = 0;
    let found = loop {
        if room >= len {
            return Gathered::Enough;
        }
        if buffers.len() == most {
            break Gathered::Short;
        }
        let begun = parts.len();
        match live.take(memory, Way::In, parts) {
            Next::Head(head) => {
                room += parts[begun..].iter().map(|&(_, len)| len).sum::<usize>();
                buffers.push((head, parts.len()));
            }
            Next::Nothing => break Gathered::Full,
            // Those before it cannot be put back behind it: they go back to the guest empty.
            Next::Bad => {
                buffers.iter().for_each(|&(head, _)| live.give(memory, head, 0));
                return Gathered::Bad;
            }
        }
    };
    live.untake(buffers.iter().map(|&(head, _)| head));
    found
}

/// Writes `pieces` one after the other into the buffers, and gives them to the guest.
fn put(live: &mut Live, memory: &Memory, pieces: &[&[u8]], parts: &[Part], buffers: &[(u16, usize)]) {
    let mut pieces = pieces.iter().copied();
    let mut piece = pieces.next().unwrap_or_default();
    let mut begin = 0;
    for &(head, end) in buffers {
        let mut written = 0;
        for &(mut place, mut room) in &parts[begin..end] {
            while room > 0 {
                if piece.is_empty() {
                    let Some(next) = pieces.next() else { break };
                    piece = next;
                }
                let (now, later) = piece.split_at(room.min(piece.len()));
                memory.write(place, now);
                (place, room, written, piece) =
                    (place.plus(now.len()), room - now.len(), written + now.len(), later);
            }
        }
        live.give(memory, head, written as u32);
        begin = end;
    }
}

/// Buffers that one frame for the guest may take: 64 KiB in the 1,526 bytes that Linux posts without room for more.
const MOST_BUFFERS: usize = 64;
/// Batches between looks at the sockets while the rings are busy: a system call in 64 batches is lost in them.
const LOOK_EVERY: u32 = 64;
/// Senseless descriptors skipped in one call.
const REFUSALS: usize = 32;
