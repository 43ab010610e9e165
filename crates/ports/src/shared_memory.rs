//! A client process's vNIC over shared memory: the daemon's side.
//!
//! Why: a process that bypasses the kernel is scheduled as any tenant, with a queue for each of its flows.
//! From: Loom §4.3 (descriptor rings, batched doorbells), SENIC §5.1 (slices of the NIC behind a translation table);
//! `docs/vnic.md` states the format, `plimsoll-vnic` holds it.
//! Not here: classification and the order of packets (the daemon, `nic`).
//! Invariant: whatever a client writes, and whenever: each word is copied out once and the copy is checked, each
//! call is bounded, nothing outside the region is touched, and no call waits.

mod client;
mod late;
mod rings;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::{fs, io};

use nix::sys::epoll::Epoll;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockType, shutdown, socketpair};
use plimsoll_vnic::layout::MAX_PIECES;
use plimsoll_vnic::{
    FlowSpec, Identity, Layout, LayoutError, OpenRefusal, PacketMetadata, Posted, Region, Rule, Scope, Sizes,
    Status, Used,
};
use plimsoll_wire::VnetHeader;

use client::{listen, watch};
use late::Late;

use crate::contract::{Capabilities, Fds, LONGEST_FRAME, Received, Trouble};
use crate::counters::{Counters, DropReason, Sending};
use crate::error::PortError;
use crate::foreign::{Closer, Connection, Foreign, ForeignFd, Listener};
use crate::frame::Frame;
use crate::mapped::Memory;
use crate::posted::{Took, new_session};
use crate::release::Release;

/// How a [`VnicPort`] is made.
#[derive(Clone, Debug)]
pub struct VnicConfig {
    /// The socket that the client connects to.
    pub path: PathBuf,
    /// The sizes of the region's parts.
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
    /// Client and daemon both hold the memory and the bells; each is freed when the last of them lets go of it.
    region: Foreign<Region>,
    memory: ForeignFd,
    /// The region once more, for payloads that go from there straight to where they are sent.
    view: Foreign<Memory>,
    late: Late,
    kick: Foreign<EventFd>,
    wake: ForeignFd,
    wake_end: ForeignFd,
    listener: Listener,
    closer: Closer,
    inode: u64,
    release: Option<Release>,
    events: Epoll,
    /// Whether the listener is watched for new connections.
    open: bool,
    /// Connections without a message so far, the oldest first: the first to send `Hello` gets the vNIC.
    silent: VecDeque<Connection>,
    client: Option<Client>,
    /// Connections that were refused, the last few: a socket that is closed before its peer has read the refusal takes it
    /// along.
    turned_away: VecDeque<Connection>,
    gone: bool,
    session: u32,
    /// Batches begun; the sockets are looked at every few batches, however busy the rings are.
    batches: u32,
    queues: Vec<Flow>,
    /// The metadata that the client has set for each flow queue; valid where [`Flow::described`].
    metadata: Vec<PacketMetadata>,
    /// Flow queues with descriptors to take, each once.
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

/// The client that has the region.
#[derive(Debug)]
struct Client {
    socket: Connection,
    /// Whether the client may have sent a message.
    talks: bool,
    /// Whether the client's messages stay in the socket, which is not watched then.
    held: bool,
    /// Whether the client has asked for a rule; it is then sent others unasked.
    asks: bool,
    /// Rules sent unasked.
    news: u32,
}

/// A ring that the daemon writes.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    tail: u32,
    published: u32,
}

/// One flow queue of the client.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    place: Place,
    /// Descriptors taken.
    head: u32,
    /// Descriptors that a doorbell told of.
    tail: u32,
    /// Frames taken that have not completed.
    in_flight: u32,
    /// The slack or deadline of descriptors that state none.
    tag: u32,
    /// The doorbell queue that named it last.
    core: u16,
    /// Whether the client has set metadata for it.
    described: bool,
    /// Whether it is in `pending`.
    pending: bool,
    /// Whether it has as many frames on their way as it may have.
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

/// What a client asks of the port's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnicRequest {
    /// A flow queue for a flow's packets; answered by [`VnicAnswer::Opened`].
    Open(FlowSpec),
    /// The flow queue that a flow's packets go to; answered by [`VnicAnswer::Rule`].
    Ask(FlowSpec),
    /// The client no longer needs the flow queue with this number.
    Close(u32),
    /// Nothing: the port has answered this message itself. It counts as a message, as reading it took time.
    Refused,
}

/// The port owner's answer to a [`VnicRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnicAnswer {
    /// A flow queue that leads to this number, or the reason why there is none.
    Opened(Result<u32, OpenRefusal>),
    /// A rule, and the number that its flow queue leads to: queue 0 when absent. The port fills in [`Rule::queue`].
    Rule(Rule, Option<u32>),
    /// The flow queue is closed; the client gets no message.
    Closed,
}

impl VnicAnswer {
    /// The number that the flow queue leads to.
    #[must_use]
    pub fn target(&self) -> Option<u32> {
        match *self {
            Self::Opened(opened) => opened.ok(),
            Self::Rule(_, target) => target,
            Self::Closed => None,
        }
    }
}

/// How many flow queues a client may still open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuesLeft {
    /// At least one.
    pub any: bool,
    /// More than a quarter of them: each flow may have its own.
    pub many: bool,
}

impl VnicPort {
    /// Makes the region and listens for the client.
    ///
    /// # Errors
    /// When the sizes fit no region, memory is short, or the socket's place is taken.
    pub fn open(config: &VnicConfig) -> Result<Self, PortError> {
        let (listener, inode) = Self::listen(config)?;
        Self::over(config, listener, inode, None)
    }

    /// Listens for the client: the socket, and its inode.
    pub(crate) fn listen(config: &VnicConfig) -> Result<(OwnedFd, u64), PortError> {
        let closer = closer(config)?;
        let (listener, inode) = listen(&config.path, &closer)?;
        Ok((listener.into_inner(), inode))
    }

    /// Makes the region behind a socket that listens; `release` frees its place, where this process may not.
    pub(crate) fn over(
        config: &VnicConfig,
        listener: OwnedFd,
        inode: u64,
        release: Option<Release>,
    ) -> Result<Self, PortError> {
        let place = config.path.display().to_string();
        let failed = |what: &str| {
            let (what, place) = (what.to_owned(), place.clone());
            move |source: io::Error| PortError::system(what, place, source)
        };
        let closer = closer(config)?;
        let listener = Listener::new(listener, &closer);
        let layout = Layout::new(config.sizes).map_err(|error: LayoutError| PortError::Config {
            what: format!("vnic {place}"),
            problem: error.to_string(),
        })?;
        let (region, memory) =
            Region::create(layout.region_len()).map_err(failed("making the shared memory"))?;
        let view =
            Memory::of_file(&memory, layout.region_len()).map_err(failed("mapping the shared memory"))?;
        layout.write_header(&region, &Identity { mac: config.mac, mtu: config.mtu });
        let kick = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let kick = kick.map_err(io::Error::from).map_err(failed("making the bell"))?;
        let (wake_end, wake) = wake_ends().map_err(failed("making the bell"))?;
        let events = watch(&listener, &kick, &closer).map_err(failed("watching the socket"))?;
        let sizes = *layout.sizes();
        let mut port = Self {
            config: config.clone(),
            region: Foreign::memory(region, &closer),
            memory: Foreign::new(memory, &closer),
            view: Foreign::new(view, &closer),
            late: Late::default(),
            kick: Foreign::new(kick, &closer),
            wake: Foreign::new(wake, &closer),
            wake_end: Foreign::new(wake_end, &closer),
            listener,
            closer,
            inode,
            release,
            events,
            open: true,
            silent: VecDeque::with_capacity(client::SILENT),
            client: None,
            turned_away: VecDeque::new(),
            gone: false,
            session: new_session(),
            batches: 0,
            queues: vec![Flow::default(); sizes.flow_queues as usize],
            metadata: vec![PacketMetadata::default(); sizes.flow_queues as usize],
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

    /// Takes the next frame, classified or not, and completes it at once; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the client has gone.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        if self.pending.is_empty() {
            self.begin()?;
            for _ in 0..REQUESTS {
                let Some(request) = self.request() else { break };
                match request {
                    VnicRequest::Open(_) => self.refuse(OpenRefusal::Forced),
                    VnicRequest::Ask(spec) => self.tell_rule(&Rule {
                        flow: Scope::NOTHING.of(&spec),
                        scope: Scope::NOTHING,
                        queue: 0,
                        generation: 0,
                        asked: true,
                    }),
                    VnicRequest::Close(_) | VnicRequest::Refused => {}
                }
            }
        }
        for _ in 0..REFUSALS {
            match self.take(u32::MAX) {
                Took::Frame(taken) if taken.len <= buffer.len() => {
                    self.copy(&mut buffer[..taken.len]);
                    self.complete(taken.ticket, Status::Sent);
                    self.publish();
                    return Ok(Some(Received {
                        len: taken.len,
                        vnet: Some(taken.vnet),
                        ..Received::default()
                    }));
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
        self.send_gathered(frame, &Frame::whole(&[]), vnet)
    }

    /// Like [`VnicPort::send`], for a frame that consists of a header and a payload, of which a part may lie with its sender. If that
    /// part turns out to have disappeared, the client gets an empty buffer.
    ///
    /// # Errors
    /// As for [`VnicPort::send`].
    pub fn send_gathered(
        &mut self,
        header: &[u8],
        payload: &Frame<'_>,
        vnet: Option<&VnetHeader>,
    ) -> Result<Sending, Trouble> {
        let len = header.len() + payload.len();
        if !self.is_connected() {
            return Err(Trouble::Down);
        }
        if let Some(reason) = self.capabilities().unfit(len, LONGEST_FRAME, vnet) {
            return Ok(self.counters.refuse(reason));
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
        if len > buffer.len as usize {
            // The buffer goes back, empty.
            self.fill(Used { len: 0, cookie: buffer.cookie });
            return Ok(self.counters.refuse(DropReason::Oversize));
        }
        if !self.write(at, header, payload) {
            self.fill(Used { len: 0, cookie: buffer.cookie });
            return Ok(Sending::Sent);
        }
        self.fill(Used { len: len as u32, cookie: buffer.cookie });
        Ok(self.counters.sent(len))
    }

    /// Writes a frame into the region, from `at` on. False when bytes that lie with their sender have disappeared.
    #[inline]
    fn write(&mut self, mut at: usize, header: &[u8], payload: &Frame<'_>) -> bool {
        for piece in [header, payload.front().bytes()] {
            self.region.write(at, piece);
            at += piece.len();
        }
        let Some(rest) = payload.rest() else { return true };
        let Some((mut place, _)) = self.view.guest(at as u64, rest.len()) else { return false };
        rest.each(|other, (from, len)| {
            self.view.write_from(place, other, from, len);
            place = place.plus(len);
        });
        rest.is_intact()
    }

    /// Publishes completions and received frames to the client, and wakes it if it sleeps.
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
        !self.gone && self.client.is_some()
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
}

/// Makes the stream socket that wakes the client: the client's end and the daemon's. A pipe would not do: its lock is
/// held while a reader copies, and the reader's memory decides how long that takes.
fn wake_ends() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let (theirs, ours) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    // The client can send no bytes back.
    shutdown(ours.as_raw_fd(), Shutdown::Read)?;
    Ok((theirs, ours))
}

fn closer(config: &VnicConfig) -> Result<Closer, PortError> {
    let failed = |source| PortError::system("watching the socket", config.path.display().to_string(), source);
    Closer::of(&config.path).map_err(failed)
}

impl Drop for VnicPort {
    /// Removes the socket's file, unless another program has taken the path.
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            return release.free();
        }
        if fs::symlink_metadata(&self.config.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.config.path);
        }
    }
}

/// Most invalid descriptors skipped in one call.
const REFUSALS: usize = 32;
/// Most messages answered in one call.
const REQUESTS: usize = 8;
