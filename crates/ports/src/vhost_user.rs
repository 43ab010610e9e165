//! A virtual machine's network card: the back end of vhost-user, with virtio-net's split rings.
//!
//! Why: QEMU, libvirt, cloud-hypervisor and DPDK's virtio-user connect this way, and holding back a descriptor gives
//! backpressure to the guest's sockets.
//! From: QEMU's `docs/interop/vhost-user.rst`, virtio 1.2 (2.7 and 5.1), PicNIC §5.4.3; `docs/vhost-user.md`.
//! Not here: classification and the order of packets (the daemon, `nic`), waiting (the daemon).
//! Invariant: whatever guest and front end write at any time, each word is copied out once and the copy is checked, each
//! call is bounded, nothing outside guest memory is touched, and no call waits.

mod bell;
mod buffers;
mod front_end;
mod message;
mod offered;
mod ring;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sys::epoll::{Epoll, EpollCreateFlags};
use plimsoll_wire::VnetHeader;
use plimsoll_wire::doorbell::PacketMetadata;

use buffers::{Gathered, gather, put, take_front};
use front_end::{CLOSED, FrontEnd, listen, watch};
use message::feature;
use ring::{Direction, Live, MOST_KEPT, MOST_PARTS, Next, Ring};

use crate::contract::{
    Capabilities, FRAME_ROOM, Fds, LONGEST_FRAME, Level, MIN_FRAME, Received, Trouble, vnet_bytes,
};
use crate::counters::{Counters, DropReason, PairCounters, Sending};
use crate::error::PortError;
use crate::foreign::{Closer, Foreign, Listener};
use crate::frame::Frame;
use crate::mapped::{Memory, Part, SenderBytes};
use crate::posted::{Taken, Ticket, Took, new_session};
use crate::release::Release;

/// Options of a [`VhostUser`].
#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// The socket that the front end connects to.
    pub path: PathBuf,
    /// Most pairs of rings that the guest may use.
    pub pairs: u16,
    /// Time and order in which the guest gets its descriptors back.
    pub completions: CompletionOrder,
    /// Largest IP packet of one segment.
    pub mtu: u32,
    /// The hardware address of the guest's interface, if it is known beforehand; the front end chooses it.
    pub mac: Option<[u8; 6]>,
}

impl VhostUserConfig {
    /// Up to eight pairs of rings, completions in any order, and 1500 bytes of MTU.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), pairs: 8, completions: CompletionOrder::default(), mtu: 1_500, mac: None }
    }
}

/// Time and order in which a guest gets its transmit descriptors back (PicNIC §5.4.3 and Appendix B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionOrder {
    /// Each descriptor when its packet has left or was dropped.
    #[default]
    OutOfOrder,
    /// Each descriptor when its packet and all earlier ones have left or were dropped. For comparison: one slow flow then
    /// holds up all others.
    InOrder,
    /// Each descriptor when its packet is read. For comparison: the guest then gets no backpressure.
    Early,
}

/// A virtual machine's virtual NIC. The port stays when a guest disconnects, and serves the next one.
#[derive(Debug)]
pub struct VhostUser {
    config: VhostUserConfig,
    listener: Listener,
    inode: u64,
    release: Option<Release>,
    events: Epoll,
    front_end: Option<Box<FrontEnd>>,
    closer: Closer,
    /// Pending connections are accepted.
    accepting: bool,
    /// The front end's socket may have a message.
    readable: bool,
    /// A connection was accepted, and more may be pending.
    more_pending: bool,
    memory: Foreign<Memory>,
    /// Pairs of rings: to the guest, then from it.
    rings: Vec<Ring>,
    /// Features that the driver has accepted.
    features: u64,
    /// Protocol features that the front end has accepted.
    protocol: u64,
    /// Size of the shortest running ring from the guest.
    depth: Option<u32>,
    /// Number of pairs up to the last whose ring from the guest runs.
    from_guest: usize,
    /// Number of pairs up to the first whose ring to the guest does not run.
    to_guest: usize,
    /// The pair from which the next frame is taken.
    turn: usize,
    /// Number of batches begun, to poll the sockets now and then however busy the rings are.
    batches: u32,
    /// Places of the bytes of the frame taken last, kept until it is copied.
    parts: Vec<Part>,
    /// Places for the bytes of a frame for the guest.
    places: Vec<Part>,
    /// The buffers for a frame for the guest: the head of each, and the end of its parts in `places`.
    buffers: Vec<(u16, usize)>,
    /// The virtio-net header of the frame taken last, where it lies in one piece with others of its bytes.
    header: Option<(u64, u32)>,
    counters: Counters,
    pairs: Vec<PairCounters>,
    problem: Option<PortError>,
}

impl VhostUser {
    /// Listens for the front end.
    ///
    /// # Errors
    /// When the socket's path is in use, or the process has no file descriptor left.
    pub fn open(config: &VhostUserConfig) -> Result<Self, PortError> {
        let (listener, inode) = Self::listen(config)?;
        Self::over(config, listener, inode, None)
    }

    /// Listens for the front end; returns the socket and its inode.
    pub(crate) fn listen(config: &VhostUserConfig) -> Result<(OwnedFd, u64), PortError> {
        let failed = |source: io::Error| watching(config, source);
        let closer = Closer::of(&config.path).map_err(failed)?;
        let (listener, inode) = listen(&config.path, &closer)?;
        Ok((listener.into_inner(), inode))
    }

    /// Makes the port of a listening socket; `release` removes the socket's path where this process may not.
    pub(crate) fn over(
        config: &VhostUserConfig,
        listener: OwnedFd,
        inode: u64,
        release: Option<Release>,
    ) -> Result<Self, PortError> {
        let failed = |source: io::Error| watching(config, source);
        let closer = Closer::of(&config.path).map_err(failed)?;
        let listener = Listener::new(listener, &closer);
        listener.set_nonblocking().map_err(failed)?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| failed(error.into()))?;
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
            accepting: true,
            readable: false,
            more_pending: false,
            memory: Foreign::ours(Memory::default()),
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
            header: None,
            counters: Counters::default(),
            pairs: vec![PairCounters::default(); config.pairs.into()],
            problem: None,
        })
    }

    /// Begins a batch; polls the sockets now and then.
    ///
    /// # Errors
    /// None: a port without a guest has no frames to take.
    pub fn begin(&mut self) -> Result<(), Trouble> {
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(LOOK_EVERY) {
            self.poll_sockets();
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

    /// Takes the next frame that the guest has posted, from one pair of rings after the other.
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

    /// Takes the next frame of the same ring as the frame taken last, which has this ticket.
    #[inline]
    pub fn take_after(&mut self, ticket: Ticket) -> Took {
        self.take_from(ticket.queue().into())
    }

    #[inline]
    fn take_from(&mut self, index: usize) -> Took {
        let Some(live) = self.rings.get_mut(index).and_then(Ring::running) else { return Took::Nothing };
        self.parts.clear();
        match live.take(&self.memory, Direction::Out, &mut self.parts) {
            Next::Head(head) => self.take_frame(index, head),
            Next::Nothing if !live.take_bad_end(&self.memory) => Took::Nothing,
            Next::Nothing | Next::Bad => {
                self.counters.lose(DropReason::BadDescriptor);
                Took::Refused
            }
        }
    }

    /// Takes the frame behind the one taken last, which has this ticket and is of `len` bytes, if it is as long, has the same virtio-net
    /// header, and lies in one piece; copies its first bytes, and leaves the others where they are if it is `late`. Returns the cookie
    /// of its ticket. [`VhostUser::copy`] and its like do not apply to it.
    #[inline]
    pub fn take_like(&mut self, ticket: Ticket, len: usize, late: bool, into: &mut [u8]) -> Option<u32> {
        let (index, room, header) = (usize::from(ticket.queue()), self.header_len(), self.header?);
        let memory = &self.memory;
        let same = |place| {
            let mut found = memory.twelve(place);
            if room == VnetHeader::LEN {
                found.1 &= FIRST_TWO;
            }
            found == header
        };
        let live = self.rings.get_mut(index)?.running()?;
        if len < MIN_FRAME || live.session != ticket.session {
            return None;
        }
        let (head, place) = live.take_plain(memory, Direction::Out, (room + len, room + len), same)?;
        let frame = place.plus(room);
        memory.read(frame, into);
        if late {
            live.keep(head, &[(frame.plus(into.len()), len - into.len())]);
        } else if self.config.completions == CompletionOrder::Early {
            live.give(memory, head, 0);
        }
        self.counters.received(len);
        self.pairs[index / 2].rx_packets += 1;
        Some(head.into())
    }

    /// Reads the virtio-net header and removes it from `parts`.
    #[inline]
    fn take_frame(&mut self, index: usize, head: u16) -> Took {
        let room = self.header_len();
        let mut header = [0; VnetHeader::LEN_WITH_BUFFERS];
        let read = match self.parts.first_mut() {
            // As numbers: bytes that were just written one by one are not read together without waiting.
            Some((place, len)) if *len > header.len() => {
                let (first, last) = self.memory.twelve(*place);
                let last = if room == VnetHeader::LEN { last & FIRST_TWO } else { last };
                self.header = Some((first, last));
                header[..8].copy_from_slice(&first.to_ne_bytes());
                header[8..].copy_from_slice(&last.to_ne_bytes());
                (*place, *len) = (place.plus(room), *len - room);
                room
            }
            _ => {
                self.header = None;
                take_front(&self.memory, &mut self.parts, &mut header[..room])
            }
        };
        let len: usize = self.parts.iter().map(|&(_, len)| len).sum();
        let Some(live) = &mut self.rings[index].live else { return Took::Nothing };
        if read < room || !(1..FRAME_ROOM).contains(&len) {
            live.give(&self.memory, head, 0);
            self.counters.lose(DropReason::BadDescriptor);
            return Took::Refused;
        }
        let ticket = Ticket::new(live.session, head.into(), index as u16, 1);
        if self.config.completions == CompletionOrder::Early {
            // The guest gets the descriptor back at the next flush, after the copy.
            live.give(&self.memory, head, 0);
        }
        let vnet = if self.header == Some((0, 0)) {
            VnetHeader::default()
        } else {
            header.first_chunk().map(|bytes| VnetHeader::from_bytes(*bytes)).unwrap_or_default()
        };
        self.counters.received(len);
        self.pairs[index / 2].rx_packets += 1;
        let metadata = PacketMetadata::default();
        Took::Frame(Taken { target: None, len, vnet, tag: 0, metadata, core: None, ticket })
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

    /// Whether the payload of the frame taken last may stay where it is until it leaves: not in very many parts, as their places are
    /// kept; and only where the descriptor may be offered again.
    #[must_use]
    #[inline]
    pub fn keeps(&self) -> bool {
        self.config.completions == CompletionOrder::OutOfOrder && self.parts.len() <= MOST_KEPT
    }

    /// Offers all frames in flight once more, if any was left where it is, as the owner cannot read it there any longer. Returns a
    /// session: what the owner has with tickets from before it is not to be sent.
    pub fn offer_again(&mut self) -> Option<u32> {
        if !self.rings.iter().any(Ring::has_kept) {
            return None;
        }
        self.rings.iter_mut().skip(1).step_by(2).for_each(|ring| ring.withdraw(&self.memory));
        let session = new_session();
        if self.start_rings().is_err() {
            self.hang_up();
        }
        Some(session)
    }

    /// Copies the first bytes of the frame taken last, without those that are longer than the frame.
    #[inline]
    pub fn peek(&self, front: &mut [u8]) {
        let mut rest = front;
        for &(place, len) in &self.parts {
            let (part, others) = rest.split_at_mut(len.min(rest.len()));
            self.memory.read(place, part);
            if others.is_empty() {
                return;
            }
            rest = others;
        }
    }

    /// Leaves the bytes of the frame taken last, which has this ticket, where they are until it completes, but for the first ones:
    /// [`VhostUser::kept`].
    #[inline]
    pub fn leave(&mut self, mut first: usize, ticket: Ticket) {
        for (place, len) in &mut self.parts {
            let count = first.min(*len);
            (*place, *len, first) = (place.plus(count), *len - count, first - count);
        }
        if let Some(Ring { live: Some(live), .. }) = self.rings.get_mut(usize::from(ticket.queue())) {
            live.keep(ticket.cookie as u16, &self.parts);
        }
    }

    /// The bytes of a frame that [`VhostUser::leave`] left where they are; none once its ring was stopped.
    #[must_use]
    #[inline(always)]
    pub fn kept(&self, ticket: Ticket) -> Option<SenderBytes<'_>> {
        let live = self.rings.get(usize::from(ticket.queue()))?.live.as_ref()?;
        let parts = live.kept(ticket.cookie as u16).filter(|_| live.session == ticket.session)?;
        Some(SenderBytes::new(&self.memory, parts))
    }

    /// Completes a frame: gives its descriptor back to the guest, which [`VhostUser::flush`] shows. A ticket of a ring that
    /// was stopped since is ignored. Always returns false: no frame waits for this completion.
    pub fn complete(&mut self, ticket: Ticket) -> bool {
        let Some(Ring { live: Some(live), .. }) = self.rings.get_mut(usize::from(ticket.queue())) else {
            return false;
        };
        if live.session != ticket.session {
            return false;
        }
        live.give(&self.memory, ticket.cookie as u16, 0);
        false
    }

    /// Like [`VhostUser::complete`], for frames of the same rings as the one with this ticket, from the cookies of their tickets.
    pub fn complete_all(&mut self, ticket: Ticket, cookies: impl Iterator<Item = u32>) {
        if let Some(Ring { live: Some(live), .. }) = self.rings.get_mut(usize::from(ticket.queue()))
            && live.session == ticket.session
        {
            cookies.for_each(|cookie| live.give(&self.memory, cookie as u16, 0));
        }
    }

    /// Asks the guest to ring for new frames. Returns whether the owner may sleep; if not, it should begin another batch.
    pub fn rest(&mut self) -> bool {
        self.poll_sockets();
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
    /// [`Trouble::Down`] without a guest, or before the guest's driver has started.
    #[inline]
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        self.send_gathered(frame, &Frame::whole(&[]), vnet)
    }

    /// Puts a frame that needs no work into the next buffer, if the guest has one pair of rings, and that buffer is a single piece with
    /// room for the frame. Otherwise nothing has happened.
    #[inline]
    fn put_plain(&mut self, header: &[u8], payload: &Frame<'_>) -> Option<Sending> {
        let (room, front) = (self.header_len(), payload.front().bytes());
        let len = header.len() + payload.len();
        if self.to_guest > 1 || len < MIN_FRAME {
            return None;
        }
        let live = self.rings.first_mut()?.running()?;
        let (head, place) =
            live.take_plain(&self.memory, Direction::In, (room + len, FRAME_ROOM), |_| true)?;
        // Of a header without work all bytes are zero but the number of buffers, which is one.
        self.memory.write(place, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0][..room]);
        let mut at = place.plus(room);
        for piece in [header, front] {
            self.memory.write(at, piece);
            at = at.plus(piece.len());
        }
        if let Some(rest) = payload.rest() {
            rest.each(|other, (from, len)| {
                self.memory.write_from(at, other, from, len);
                at = at.plus(len);
            });
            if !rest.is_intact() {
                live.untake(core::iter::once(head));
                // The sender's loss, which is counted there.
                return Some(Sending::Refused(DropReason::Gone));
            }
        }
        live.give(&self.memory, head, (room + len) as u32);
        self.pairs[0].tx_packets += 1;
        Some(self.counters.sent(len))
    }

    /// Puts a frame that consists of two parts into buffers that the guest has posted; see [`crate::Port::send_gathered`].
    ///
    /// # Errors
    /// [`Trouble::Down`] without a guest, or before the guest's driver has started.
    pub fn send_gathered(
        &mut self,
        header: &[u8],
        payload: &Frame<'_>,
        vnet: Option<&VnetHeader>,
    ) -> Result<Sending, Trouble> {
        if vnet.is_none()
            && let Some(sending) = self.put_plain(header, payload)
        {
            return Ok(sending);
        }
        let (front, len) = (payload.front().bytes(), header.len() + payload.len());
        let (room, several) = (self.header_len(), self.features & feature::MRG_RXBUF != 0);
        let pair = if self.to_guest > 1 {
            flow_hash(if header.is_empty() { front } else { header }) as usize % self.to_guest
        } else {
            0
        };
        let able = self.capabilities();
        let Some(live) = self.rings[2 * pair].running() else { return Err(Trouble::Down) };
        if let Some(reason) = able.unfit(len, LONGEST_FRAME, vnet) {
            return Ok(self.counters.refuse(reason));
        }
        self.places.clear();
        self.buffers.clear();
        let most = if several { MOST_BUFFERS } else { 1 };
        match gather(live, &self.memory, room + len, most, &mut self.places, &mut self.buffers) {
            Gathered::Enough => {}
            Gathered::Full => return Ok(Sending::Full),
            Gathered::Short => return Ok(self.counters.refuse(DropReason::Oversize)),
            Gathered::Bad => return Ok(self.counters.refuse(DropReason::BadDescriptor)),
        }
        let mut vnet_header = [0; VnetHeader::LEN_WITH_BUFFERS];
        vnet_header[..VnetHeader::LEN].copy_from_slice(&vnet_bytes(vnet));
        vnet_header[VnetHeader::LEN..].copy_from_slice(&(self.buffers.len() as u16).to_le_bytes());
        let pieces = (&[&vnet_header[..room], header, front][..], payload.rest());
        if !put(live, &self.memory, pieces, &self.places, &self.buffers) {
            // The sender's loss, which is counted there.
            return Ok(Sending::Refused(DropReason::Gone));
        }
        self.pairs[pair].tx_packets += 1;
        Ok(self.counters.sent(len))
    }

    /// Shows the guest its completions and frames, and wakes it if it wants to be woken.
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

    /// Number of frames taken that have not completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let from_guest = self.rings.iter().skip(1).step_by(2).filter_map(|ring| ring.live.as_ref());
        from_guest.map(|live| u32::from(live.in_flight)).sum()
    }

    /// Size of the shortest ring with which the guest sends; none without a guest, or with early completions.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> Option<u32> {
        self.depth.filter(|_| self.config.completions != CompletionOrder::Early)
    }

    /// The file descriptor to wait on: one for the socket, the front end and the guest's kicks.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds { receive: Some(self.events.0.as_raw_fd()), transmit: None }
    }

    /// Polls the sockets. The port itself always exists.
    ///
    /// # Errors
    /// None.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        self.poll_sockets();
        Ok(())
    }

    /// Whether messages or connections are left unread; `epoll` will not report them again.
    #[must_use]
    pub fn has_more_to_say(&self) -> bool {
        self.more_pending || self.readable && !self.closer.is_full()
    }

    /// Why a front end's connection was closed, reported once.
    pub fn take_problem(&mut self) -> Option<PortError> {
        self.problem.take()
    }

    /// The guest's hardware address, if it is known beforehand.
    #[must_use]
    pub fn tenant_mac(&self) -> Option<[u8; 6]> {
        self.config.mac
    }

    /// The offloads that the guest's driver has accepted, and the MTU.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let agreed = |features: u64| self.features & features == features;
        Capabilities {
            takes_segmentation: agreed(TAKES_TCP),
            gives_segmentation: true,
            udp_segmentation: agreed(TAKES_TCP | feature::GUEST_USO4 | feature::GUEST_USO6),
            cwr_segmentation: agreed(feature::GUEST_ECN),
            takes_partial_checksum: agreed(feature::GUEST_CSUM),
            mtu: self.config.mtu,
        }
    }

    /// The port's traffic so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Counters of each pair of rings, up to the last in use.
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

    /// The level of backpressure that the port gives the guest.
    #[must_use]
    pub fn level(&self) -> Level {
        match self.config.completions {
            CompletionOrder::Early => Level::L0,
            CompletionOrder::InOrder => Level::L1,
            CompletionOrder::OutOfOrder => Level::L2,
        }
    }

    /// The port's name for operators.
    #[must_use]
    pub fn name(&self) -> String {
        format!("vhost-user {}", self.config.path.display())
    }

    /// Length of the virtio-net header before each frame; it may include the number of buffers.
    #[inline]
    fn header_len(&self) -> usize {
        if self.features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0 {
            VnetHeader::LEN_WITH_BUFFERS
        } else {
            VnetHeader::LEN
        }
    }

    /// Closes the front end's connection after the file of the guest's memory was truncated.
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
    /// Gives the guest its descriptors back, and removes the socket's path, unless another socket has it by now.
    fn drop(&mut self) {
        self.hang_up();
        if let Some(release) = self.release.take() {
            return release.free();
        }
        if fs::symlink_metadata(&self.config.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.config.path);
        }
    }
}

/// A hash that packets of one connection share: of addresses and ports behind an IPv4 header without options or an IPv6
/// header.
fn flow_hash(frame: &[u8]) -> u32 {
    let hashed = match frame.get(12..15) {
        // Only the first fragment has ports, so all fragments are hashed by their addresses alone.
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
    let hash = hashed.unwrap_or_default().iter().fold(0x811c_9dc5, step);
    hash ^ (hash >> 16)
}

/// Features that the driver must accept to receive TCP segments larger than the MTU.
const TAKES_TCP: u64 = feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6;

/// Most buffers of one frame for the guest: enough for 64 KiB in buffers of 1,526 bytes, the smallest that Linux posts.
const MOST_BUFFERS: usize = 64;
/// The first two bytes of four, in memory.
const FIRST_TWO: u32 = u32::from_ne_bytes([0xff, 0xff, 0, 0]);
/// Number of batches between polls of the sockets while the rings are busy: one system call in 64 batches costs little.
const LOOK_EVERY: u32 = 64;
/// Most invalid descriptors skipped in one call.
const REFUSALS: usize = 32;
