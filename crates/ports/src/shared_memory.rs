//! A client process's vNIC over shared memory: the daemon's side.
//!
//! Why: a process that bypasses the kernel is scheduled as any tenant, with a queue for each of its flows.
//! From: Loom §4.3 (descriptor rings, batched doorbells), SENIC §5.1 (slices of the NIC behind a translation table);
//! `docs/vnic.md` states the format, `plimsoll-vnic` holds it.
//! Not here: classification and the order of packets (the daemon, `nic`).
//! Invariant: whatever a client writes, whenever it writes it: each word is copied out once and the copy is checked, each
//! call is bounded, nothing outside the region is touched, and no call waits.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::{fs, io};

use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use plimsoll_vnic::layout::{self, MAX_PIECES, VERSION, completion_words, header};
use plimsoll_vnic::message::Message;
use plimsoll_vnic::socket::{self, Incoming};
use plimsoll_vnic::{
    Descriptor, FlowSpec, Identity, Layout, LayoutError, OpenRefusal, Posted, Region, Rule, Scope, Sizes,
    Status, Used,
};
use plimsoll_wire::VnetHeader;
use plimsoll_wire::doorbell::Note;

use crate::error::PortError;
use crate::port::{Capabilities, Counters, DropReason, Fds, MIN_FRAME, Received, Sending, Trouble};

/// How a [`VnicPort`] is made.
#[derive(Clone, Debug)]
pub struct VnicConfig {
    /// The socket that the client connects to.
    pub path: PathBuf,
    /// How much there is of everything.
    pub sizes: Sizes,
    /// Largest IP packet that the client receives.
    pub mtu: u32,
    /// The interface's hardware address.
    pub mac: [u8; 6],
}

impl VnicConfig {
    /// The usual sizes.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let mac = [2, 0, 0, 0, 0, 1];
        Self { path: path.into(), sizes: Sizes::default(), mtu: 1_500, mac }
    }
}

/// One client's virtual NIC. It serves one client in its life: with the client's end it is [`Trouble::Gone`], and a new
/// one is made, region and all, away from the engine's thread.
#[derive(Debug)]
pub struct VnicPort {
    config: VnicConfig,
    layout: Layout,
    region: Region,
    memory: OwnedFd,
    kick: EventFd,
    wake: OwnedFd,
    wake_end: OwnedFd,
    listener: OwnedFd,
    inode: u64,
    events: Epoll,
    client: Option<Client>,
    /// Who was told last that the vNIC is taken: kept, as an end that is closed before it has read what was sent to it
    /// takes its answer along.
    turned_away: Option<OwnedFd>,
    gone: bool,
    session: u32,
    /// Batches begun, to look at the sockets now and then however busy the rings are.
    batches: u32,
    queues: Vec<Flow>,
    /// Flow queues that have descriptors to take, each once.
    pending: VecDeque<u32>,
    doorbell_heads: Vec<u32>,
    words: Vec<u16>,
    /// Pieces of the frame taken last: where in the region, and how many bytes.
    pieces: Vec<(usize, usize)>,
    in_flight: u32,
    completed: Written,
    filled: Written,
    posted_head: u32,
    counters: Counters,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// It has the region.
    welcome: bool,
    /// It may have sent a message.
    talks: bool,
    /// It has asked for a rule: others are told to it unasked.
    asks: bool,
    /// Rules told unasked.
    news: u32,
}

/// A ring that the daemon writes.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    tail: u32,
    published: u32,
}

/// A flow queue of the client's.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    place: Place,
    /// Descriptors taken.
    head: u32,
    /// Descriptors that a doorbell told of.
    tail: u32,
    /// Frames taken that have not completed.
    in_flight: u32,
    /// For descriptors that bring none.
    tag: u32,
    /// It is in `pending`.
    pending: bool,
    /// It has as many frames on their way as it may.
    blocked: bool,
}

/// Where a local queue leads: the translation table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Unmapped,
    /// Queue 0: each packet is classified.
    Classified,
    /// The owner's number for the flow queue behind it.
    Mapped(u32),
}

/// A frame that the client posted; [`VnicPort::copy`] brings its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The flow queue behind the client's, as [`VnicPort::map`] was told; none for queue 0, which is to be classified.
    pub target: Option<u32>,
    /// Bytes of the frame.
    pub len: usize,
    /// Checksum and segmentation left to us.
    pub vnet: VnetHeader,
    /// Slack or deadline in microseconds, 0 for the class's own.
    pub tag: u32,
    /// For its completion.
    pub ticket: Ticket,
}

/// What completes a frame, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    session: u32,
    cookie: u32,
    queue: u16,
    descriptors: u16,
}

/// What a look at the rings found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// A frame.
    Frame(Taken),
    /// Descriptors that make no sense: completed as such, and counted.
    Refused,
    /// Nothing that may be taken now.
    Nothing,
}

/// What a client asks of the port's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnicRequest {
    /// A flow queue for such packets: to be answered by [`VnicPort::map`] or [`VnicPort::refuse`].
    Open(FlowSpec),
    /// Where such packets go: to be answered by [`VnicPort::tell_rule`].
    Ask(FlowSpec),
    /// It needs the flow queue with this number no longer.
    Close(u32),
}

impl VnicPort {
    /// Makes the region and listens for the client.
    ///
    /// # Errors
    /// When the sizes fit no region, memory is short, or the socket's place is taken.
    pub fn open(config: &VnicConfig) -> Result<Self, PortError> {
        let place = config.path.display().to_string();
        let failed = |what: &str| {
            let (what, place) = (what.to_owned(), place.clone());
            move |source: io::Error| PortError::system(what, place, source)
        };
        let layout = Layout::new(config.sizes).map_err(|error: LayoutError| PortError::Config {
            what: format!("vnic {place}"),
            problem: error.to_string(),
        })?;
        let (region, memory) =
            Region::create(layout.region_len()).map_err(failed("making the shared memory"))?;
        layout.write_header(&region, &Identity { mac: config.mac, mtu: config.mtu });
        let kick = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let kick = kick.map_err(io::Error::from).map_err(failed("making the bell"))?;
        let pipe = nix::unistd::pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC);
        let (wake_end, wake) = pipe.map_err(io::Error::from).map_err(failed("making the bell"))?;
        let (listener, inode) = listen(&config.path)?;
        let events = watch(&listener, &kick).map_err(failed("watching the socket"))?;
        let sizes = *layout.sizes();
        let mut port = Self {
            config: config.clone(),
            region,
            memory,
            kick,
            wake,
            wake_end,
            listener,
            inode,
            events,
            client: None,
            turned_away: None,
            gone: false,
            session: SESSIONS.fetch_add(1, Ordering::Relaxed),
            batches: 0,
            queues: vec![Flow::default(); sizes.flow_queues as usize],
            pending: VecDeque::with_capacity(sizes.flow_queues as usize),
            doorbell_heads: vec![0; sizes.doorbell_queues as usize],
            words: Vec::with_capacity(sizes.doorbell_words as usize),
            pieces: Vec::with_capacity(MAX_PIECES),
            in_flight: 0,
            completed: Written::default(),
            filled: Written::default(),
            posted_head: 0,
            counters: Counters::default(),
            layout,
        };
        port.queues[0].place = Place::Classified;
        Ok(port)
    }

    /// Begins a batch: reads the doorbells, and now and then the sockets.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the client has gone.
    pub fn begin(&mut self) -> Result<(), Trouble> {
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        if self.gone {
            return Err(Trouble::Gone);
        }
        self.read_doorbells();
        Ok(())
    }

    /// The next frame of the flow queues that doorbells named, one of each in turn. A flow queue with `window` frames on
    /// their way keeps its descriptors, and holds up no other.
    pub fn take(&mut self, window: u32) -> Took {
        while let Some(queue) = self.pending.pop_front() {
            self.look_ahead(queue);
            let flow = &mut self.queues[queue as usize];
            flow.pending = false;
            if flow.place == Place::Unmapped || flow.head == flow.tail {
                continue;
            }
            if flow.in_flight >= window {
                flow.blocked = true;
                continue;
            }
            if self.in_flight >= self.layout.sizes().completions {
                // More than an honest client posts: it waits until something has completed.
                self.pend(queue);
                return Took::Nothing;
            }
            return self.take_from(queue);
        }
        Took::Nothing
    }

    /// Copies the frame taken last.
    ///
    /// Panics when `into` is shorter than the frame.
    pub fn copy(&self, into: &mut [u8]) {
        let mut rest = into;
        for &(at, len) in &self.pieces {
            let (piece, others) = rest.split_at_mut(len);
            self.region.read(at, piece);
            rest = others;
        }
    }

    /// A frame is through; [`VnicPort::flush`] tells the client. Answers whether another may be taken now. A ticket of an
    /// earlier client's is ignored.
    pub fn complete(&mut self, ticket: Ticket, status: Status) -> bool {
        if ticket.session != self.session {
            return false;
        }
        let queue = u32::from(ticket.queue);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.write_completion(ticket.cookie, queue, status, ticket.descriptors.into());
        let flow = &mut self.queues[queue as usize];
        flow.in_flight = flow.in_flight.saturating_sub(1);
        if flow.blocked {
            flow.blocked = false;
            self.pend(queue);
        }
        !self.pending.is_empty()
    }

    /// Nothing is to be taken: asks the client to ring when that changes. Answers whether the owner may sleep; if not, it
    /// should begin another batch.
    pub fn rest(&mut self) -> bool {
        self.look();
        if self.gone || self.client.as_ref().is_some_and(|client| client.talks) {
            return false;
        }
        self.region.word32(header::DAEMON_WAITS).store(1, Ordering::Relaxed);
        // Orders the flag before the look; pairs with the client's fence between its tail and its look at the flag.
        fence(Ordering::SeqCst);
        let rung = (0..).zip(&self.doorbell_heads).any(|(core, &head)| {
            self.region.word32(self.layout.doorbell_tail(core)).load(Ordering::Relaxed) != head
        });
        if rung {
            self.region.word32(header::DAEMON_WAITS).store(0, Ordering::Relaxed);
        }
        !rung
    }

    /// What the client asks for next.
    pub fn request(&mut self) -> Option<VnicRequest> {
        while let Some(client) = self.client.as_mut().filter(|client| client.talks) {
            match socket::read_message(&client.socket) {
                Incoming::Nothing => client.talks = false,
                Incoming::Message(Message::Hello(version)) if !client.welcome => self.welcome(version),
                Incoming::Message(Message::Open(spec)) if client.welcome => {
                    if self.free_queue().is_some() {
                        return Some(VnicRequest::Open(spec));
                    }
                    self.refuse(OpenRefusal::NoQueue);
                }
                Incoming::Message(Message::Ask(spec)) if client.welcome => {
                    client.asks = true;
                    return Some(VnicRequest::Ask(spec));
                }
                Incoming::Message(Message::Close(queue)) if client.welcome => return self.unmap(queue),
                Incoming::Message(_) | Incoming::Garbage | Incoming::Closed => self.lose_client(),
            }
        }
        None
    }

    /// Answers [`VnicRequest::Open`]: the client gets a flow queue that leads to `target`.
    pub fn map(&mut self, target: u32) {
        match self.lead_to(target) {
            Some(queue) => self.answer(Message::Opened(queue)),
            None => self.refuse(OpenRefusal::NoQueue),
        }
    }

    /// Lets a flow queue of the client's lead to `target`: its number, if there is one left.
    pub fn lead_to(&mut self, target: u32) -> Option<u32> {
        let queue = self.free_queue()?;
        // What lies in the ring is an earlier flow's; an honest client continues its count from there.
        let tail = self.region.word32(self.layout.ring_tail(queue)).load(Ordering::Relaxed);
        self.queues[queue as usize] =
            Flow { place: Place::Mapped(target), head: tail, tail, ..Flow::default() };
        Some(queue)
    }

    /// The client's flow queue that leads to `target`.
    #[must_use]
    pub fn queue_of(&self, target: u32) -> Option<u32> {
        let found = self.queues.iter().position(|flow| flow.place == Place::Mapped(target))?;
        u32::try_from(found).ok()
    }

    /// Whether another flow queue may lead somewhere.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.free_queue().is_some()
    }

    /// Whether so many are left that each flow may have its own: a quarter.
    #[must_use]
    pub fn has_many_queues(&self) -> bool {
        let mapped = self.queues.iter().filter(|flow| matches!(flow.place, Place::Mapped(_))).count();
        mapped < self.queues.len() - self.queues.len().div_ceil(4)
    }

    /// Answers [`VnicRequest::Ask`].
    pub fn tell_rule(&mut self, rule: &Rule) {
        self.answer(Message::Rule(*rule));
    }

    /// Tells a rule that was not asked for, if the client asks for rules at all. One that does not read them goes without:
    /// it asks when it needs one. [`VnicPort::tell_news`] lets it know.
    pub fn push_rule(&mut self, rule: &Rule) {
        let Some(client) = self.client.as_mut().filter(|client| client.asks) else { return };
        if socket::send_message(&client.socket, Message::Rule(*rule), &[]).is_ok() {
            client.news = client.news.wrapping_add(1);
        }
    }

    /// Lets the client know how many rules it was told unasked.
    pub fn tell_news(&mut self) {
        let Some(client) = &self.client else { return };
        // Release: pairs with the client's Acquire; whoever sees the count finds the rules in its socket.
        self.region.word32(header::NEWS).store(client.news, Ordering::Release);
    }

    /// From now on packets of the flow queue that leads to `target` are to be classified one by one.
    pub fn classify_target(&mut self, target: u32) {
        for flow in self.queues.iter_mut().filter(|flow| flow.place == Place::Mapped(target)) {
            flow.place = Place::Classified;
        }
    }

    /// The same for every flow queue that leads anywhere.
    pub fn classify_all(&mut self) {
        for flow in self.queues.iter_mut().filter(|flow| matches!(flow.place, Place::Mapped(_))) {
            flow.place = Place::Classified;
        }
    }

    /// Answers [`VnicRequest::Open`] otherwise.
    pub fn refuse(&mut self, why: OpenRefusal) {
        self.answer(Message::NotOpened(why));
    }

    /// Closes the flow queues that lead to `target`: what the client rings for there is refused and counted.
    pub fn unmap_target(&mut self, target: u32) {
        for flow in self.queues.iter_mut().filter(|flow| flow.place == Place::Mapped(target)) {
            flow.place = Place::Unmapped;
        }
    }

    /// Tells the client which policy is in force.
    pub fn set_generation(&mut self, generation: u32) {
        self.region.word32(header::GENERATION).store(generation, Ordering::Release);
    }

    /// Takes the next frame, classified or not, and completes it at once; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the client has gone.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        if self.pending.is_empty() {
            self.begin()?;
            while let Some(request) = self.request() {
                match request {
                    VnicRequest::Open(_) => self.refuse(OpenRefusal::Forced),
                    VnicRequest::Ask(spec) => self.tell_rule(&Rule {
                        flow: Scope::NOTHING.of(&spec),
                        scope: Scope::NOTHING,
                        queue: 0,
                        generation: 0,
                        asked: true,
                    }),
                    VnicRequest::Close(_) => {}
                }
            }
        }
        for _ in 0..REFUSALS {
            match self.take(u32::MAX) {
                Took::Frame(taken) if taken.len <= buffer.len() => {
                    self.copy(&mut buffer[..taken.len]);
                    self.complete(taken.ticket, Status::Sent);
                    self.publish();
                    return Ok(Some(Received { len: taken.len, vnet: Some(taken.vnet), at: None }));
                }
                Took::Frame(taken) => {
                    self.counters.lose(DropReason::Oversize);
                    self.complete(taken.ticket, Status::Malformed);
                }
                Took::Refused => {}
                Took::Nothing => break,
            }
        }
        self.publish();
        let _ = self.rest();
        Ok(None)
    }

    /// Puts a frame into the next buffer that the client has posted; see [`crate::Port::send`].
    ///
    /// # Errors
    /// [`Trouble::Down`] without a client.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        if !self.is_connected() {
            return Err(Trouble::Down);
        }
        if crate::port::asks_for_work(vnet) {
            return Ok(self.counters.refuse(DropReason::BadOffload));
        }
        if frame.len() < MIN_FRAME {
            return Ok(self.counters.refuse(DropReason::TooShort));
        }
        // Acquire: pairs with the client's Release, so that the entries before the tail are whole.
        let tail = self.region.word32(self.layout.posted_tail()).load(Ordering::Acquire);
        let posted = tail.wrapping_sub(self.posted_head);
        if posted == 0 {
            return Ok(Sending::Full);
        }
        if posted > self.layout.sizes().receive {
            return Ok(self.counters.refuse(DropReason::BadDescriptor));
        }
        let buffer = Posted::load(&self.region, self.layout.posted(self.posted_head));
        self.posted_head = self.posted_head.wrapping_add(1);
        let Some(at) = self.layout.in_buffers(buffer.addr, buffer.len) else {
            return Ok(self.counters.refuse(DropReason::BadDescriptor));
        };
        if frame.len() > buffer.len as usize {
            // The buffer goes back, empty.
            self.fill(Used { len: 0, cookie: buffer.cookie });
            return Ok(self.counters.refuse(DropReason::Oversize));
        }
        self.region.write(at, frame);
        self.fill(Used { len: frame.len() as u32, cookie: buffer.cookie });
        Ok(self.counters.sent(frame.len()))
    }

    /// Shows the client its completions and frames, and wakes it if it sleeps.
    ///
    /// # Errors
    /// None.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        self.publish();
        Ok(())
    }

    /// Whether a client has the region.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.gone && self.client.as_ref().is_some_and(|client| client.welcome)
    }

    /// Frames taken that have not completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The interface's hardware address.
    #[must_use]
    pub fn tenant_mac(&self) -> Option<[u8; 6]> {
        Some(self.config.mac)
    }

    /// What to wait on: one descriptor for the socket, the client and its bell.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds { receive: Some(self.events.0.as_raw_fd()), transmit: None }
    }

    /// Whether its client, if it ever had one, is still there.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when not.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        self.look();
        if self.gone { Err(Trouble::Gone) } else { Ok(()) }
    }

    /// What it can do. Frames for the client are finished ones.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities { gives_segmentation: true, mtu: self.config.mtu, ..Capabilities::default() }
    }

    /// What it has carried.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How operators know it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("vnic {}", self.config.path.display())
    }

    /// Reads each doorbell queue to its end, once.
    fn read_doorbells(&mut self) {
        let capacity = self.layout.sizes().doorbell_words;
        for core in 0..self.layout.sizes().doorbell_queues {
            let head = self.doorbell_heads[core as usize];
            // Acquire: pairs with the client's Release, so that the words before the tail are there.
            let tail = self.region.word32(self.layout.doorbell_tail(core)).load(Ordering::Acquire);
            if tail == head {
                continue;
            }
            let count = tail.wrapping_sub(head);
            let mut words = core::mem::take(&mut self.words);
            words.clear();
            if count <= capacity {
                words.extend((0..count).map(|index| {
                    let at = self.layout.doorbell_word(core, head.wrapping_add(index));
                    self.region.word16(at).load(Ordering::Relaxed)
                }));
            } else {
                self.counters.lose(DropReason::BadDoorbell);
            }
            self.doorbell_heads[core as usize] = tail;
            // Release: pairs with the client's Acquire; the words have been copied out before it sees their room.
            self.region.word32(self.layout.doorbell_head(core)).store(tail, Ordering::Release);
            self.heed(&words);
            self.words = words;
        }
    }

    fn heed(&mut self, mut words: &[u16]) {
        while let Some((note, used)) = Note::first(words) {
            words = words.get(used..).unwrap_or(&[]);
            match note {
                Note::Bell(queue) => self.rung(queue),
                Note::Tag(queue, tag) => match self.queues.get_mut(queue as usize) {
                    Some(flow) if flow.place != Place::Unmapped => flow.tag = tag,
                    _ => self.counters.lose(DropReason::UnmappedQueue),
                },
                // Weights and rates are the operator's to give.
                Note::Weight(..) | Note::Rate(..) | Note::ClassRate(..) | Note::Malformed => {
                    self.counters.lose(DropReason::BadDoorbell)
                }
            }
        }
    }

    /// A doorbell names a flow queue: reads how far its ring goes now.
    #[inline]
    fn rung(&mut self, queue: u32) {
        let Some(flow) = self.queues.get_mut(queue as usize).filter(|flow| flow.place != Place::Unmapped)
        else {
            return self.counters.lose(DropReason::UnmappedQueue);
        };
        // Acquire: pairs with the client's Release, so that the descriptors before the tail are whole.
        let tail = self.region.word32(self.layout.ring_tail(queue)).load(Ordering::Acquire);
        if tail.wrapping_sub(flow.head) > self.layout.sizes().ring {
            return self.counters.lose(DropReason::BadDescriptor);
        }
        flow.tail = tail;
        let (blocked, head) = (flow.blocked, flow.head);
        if !blocked {
            self.region.prefetch(self.layout.descriptor(queue, head));
            self.pend(queue);
        }
    }

    #[inline]
    fn pend(&mut self, queue: u32) {
        let flow = &mut self.queues[queue as usize];
        if !flow.pending && flow.head != flow.tail {
            flow.pending = true;
            self.pending.push_back(queue);
        }
    }

    /// What the client wrote lies in its core's cache: the bytes of a frame that is taken soon are fetched meanwhile. Its
    /// descriptor came with the doorbell.
    #[inline]
    fn look_ahead(&self, queue: u32) {
        let (queue, ahead) = self.pending.get(AHEAD).map_or((queue, AHEAD as u32), |&queue| (queue, 0));
        let index = self.queues[queue as usize].head.wrapping_add(ahead);
        let next = Descriptor::load(&self.region, self.layout.descriptor(queue, index));
        if let Some(at) = self.layout.in_buffers(next.addr, next.len) {
            self.region.prefetch(at);
        }
    }

    /// Takes the descriptors of one frame.
    #[inline]
    fn take_from(&mut self, queue: u32) -> Took {
        let flow = self.queues[queue as usize];
        let (mut len, mut count, mut sound) = (0_usize, 0_u32, true);
        let mut first = Descriptor::default();
        self.pieces.clear();
        loop {
            let at = self.layout.descriptor(queue, flow.head.wrapping_add(count));
            let piece = Descriptor::load(&self.region, at);
            if count == 0 {
                first = piece;
            }
            count += 1;
            match self.layout.in_buffers(piece.addr, piece.len) {
                Some(at) if piece.len > 0 => self.pieces.push((at, piece.len as usize)),
                _ => sound = false,
            }
            len += piece.len as usize;
            if !piece.more {
                break;
            }
            if count as usize == MAX_PIECES || flow.head.wrapping_add(count) == flow.tail {
                sound = false;
                break;
            }
        }
        let flow = &mut self.queues[queue as usize];
        flow.head = flow.head.wrapping_add(count);
        let (target, tag) = (flow.place, if first.tag == 0 { flow.tag } else { first.tag });
        self.pend(queue);
        if !sound || len > layout::MAX_FRAME {
            self.counters.lose(DropReason::BadDescriptor);
            self.write_completion(first.cookie, queue, Status::Malformed, count);
            return Took::Refused;
        }
        self.queues[queue as usize].in_flight += 1;
        self.in_flight += 1;
        self.counters.received(len);
        let ticket = Ticket {
            session: self.session,
            cookie: first.cookie,
            queue: queue as u16,
            descriptors: count as u16,
        };
        let target = if let Place::Mapped(target) = target { Some(target) } else { None };
        Took::Frame(Taken { target, len, vnet: first.offload, tag, ticket })
    }

    fn write_completion(&mut self, cookie: u32, queue: u32, status: Status, descriptors: u32) {
        let at = self.layout.completion(self.completed.tail);
        let [first, second] = completion_words(cookie, queue, status, descriptors);
        self.region.word64(at).store(first, Ordering::Relaxed);
        self.region.word64(at + 8).store(second, Ordering::Relaxed);
        self.completed.tail = self.completed.tail.wrapping_add(1);
    }

    fn fill(&mut self, used: Used) {
        used.store(&self.region, self.layout.used(self.filled.tail));
        self.filled.tail = self.filled.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        let mut news = false;
        for (ring, at) in [
            (&mut self.completed, self.layout.completion_tail()),
            (&mut self.filled, self.layout.used_tail()),
        ] {
            if ring.tail != ring.published {
                ring.published = ring.tail;
                // Release: pairs with the client's Acquire, so that whoever sees the tail also sees the entries.
                self.region.word32(at).store(ring.tail, Ordering::Release);
                news = true;
            }
        }
        if !news {
            return;
        }
        // Orders the tails before the look at the flag; pairs with the client's fence between its flag and its look.
        fence(Ordering::SeqCst);
        let waits = self.region.word32(header::CLIENT_WAITS);
        if waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0 {
            // A full pipe wakes it as well; one that nobody reads is no concern of ours.
            let _ = nix::unistd::write(&self.wake, &[1]);
        }
    }

    /// Looks at the sockets: who wants in, and whether the client has said something.
    fn look(&mut self) {
        let mut found = [EpollEvent::empty(); 4];
        let Ok(count) = self.events.wait(&mut found, EpollTimeout::ZERO) else { return };
        for event in &found[..count] {
            match event.data() {
                LISTENER => self.admit(),
                CLIENT => {
                    if let Some(client) = &mut self.client {
                        client.talks = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// The first to connect has the vNIC, others are told so.
    fn admit(&mut self) {
        for _ in 0..ADMISSIONS {
            let Ok(Some(socket)) = socket::accept_from(&self.listener) else { return };
            if self.client.is_some() {
                // It may not even wait for the answer.
                let _ = socket::send_message(&socket, Message::Occupied, &[]);
                self.turned_away = Some(socket);
                continue;
            }
            if self.events.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, CLIENT)).is_ok() {
                self.client = Some(Client { socket, welcome: false, talks: true, asks: false, news: 0 });
            }
        }
    }

    /// Hands the region over.
    fn welcome(&mut self, version: u32) {
        let Some(client) = &mut self.client else { return };
        if version != VERSION {
            let _ = socket::send_message(&client.socket, Message::OtherVersion(VERSION), &[]);
            return self.lose_client();
        }
        let len = self.layout.region_len() as u64;
        let descriptors = [self.memory.as_raw_fd(), self.kick.as_raw_fd(), self.wake_end.as_raw_fd()];
        client.welcome = true;
        if socket::send_message(&client.socket, Message::Welcome(len), &descriptors).is_err() {
            self.lose_client();
        }
    }

    fn answer(&mut self, message: Message) {
        let Some(client) = &self.client else { return };
        // A client that asks and does not read the answers has no use for them.
        if socket::send_message(&client.socket, message, &[]).is_err() {
            self.lose_client();
        }
    }

    /// One that had the region may still write to it: the port ends with it. Before that it may be another's.
    fn lose_client(&mut self) {
        if let Some(client) = self.client.take() {
            let _ = self.events.delete(&client.socket);
            self.gone |= client.welcome;
        }
    }

    /// A queue that leads nowhere and waits for nothing; failing that, one whose rule has ended and that is empty.
    fn free_queue(&self) -> Option<u32> {
        let idle = |flow: &Flow| flow.in_flight == 0 && !flow.pending;
        let free = |flow: &Flow| flow.place == Place::Unmapped && idle(flow);
        let ended = |flow: &Flow| flow.place == Place::Classified && idle(flow) && flow.head == flow.tail;
        let own = &self.queues[1..];
        let found = own.iter().position(free).or_else(|| own.iter().position(ended))?;
        u32::try_from(found + 1).ok()
    }

    /// The client gives a queue back; what leads to it.
    fn unmap(&mut self, queue: u32) -> Option<VnicRequest> {
        let flow = self.queues.get_mut(queue as usize)?;
        let Place::Mapped(target) = flow.place else {
            self.counters.lose(DropReason::UnmappedQueue);
            return None;
        };
        flow.place = Place::Unmapped;
        Some(VnicRequest::Close(target))
    }
}

impl Drop for VnicPort {
    /// The socket's place is free again, unless somebody else has taken it.
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.config.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.config.path);
        }
    }
}

/// Listens at `path`; a socket there that nobody listens on any more is replaced. Its owner and group may connect.
fn listen(path: &Path) -> Result<(OwnedFd, u64), PortError> {
    let what = "listening for the vNIC's client";
    let place = || path.display().to_string();
    let failed = |source: io::Error| PortError::system(what, place(), source);
    let listener = match socket::listen_at(path) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
            let old = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
                && socket::connect_to(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !old {
                return Err(PortError::File {
                    path: path.to_owned(),
                    problem: "somebody else has it".to_owned(),
                    advice: "stop who listens there, move what lies there away, or name another socket",
                });
            }
            fs::remove_file(path).map_err(failed)?;
            socket::listen_at(path).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
    let inode = fs::symlink_metadata(path).map_err(failed)?.ino();
    Ok((listener, inode))
}

fn watch(listener: &impl AsFd, kick: &EventFd) -> io::Result<Epoll> {
    let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    events.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    // By edges, so that it never has to be read: the client has it too, and could make a read or a write of it wait.
    events.add(kick, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, KICK))?;
    Ok(events)
}

/// Tells the tickets of one port from those of another.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

const LISTENER: u64 = 0;
const CLIENT: u64 = 1;
const KICK: u64 = 2;
/// Batches between looks at the sockets while the rings are busy: a system call in 64 batches is lost in them.
const LOOK_EVERY: u32 = 64;
/// Flow queues between the one that is taken from and the one whose frame is fetched.
const AHEAD: usize = 3;
/// Connections accepted at a look.
const ADMISSIONS: usize = 4;
/// Senseless descriptors skipped in one call.
const REFUSALS: usize = 32;
