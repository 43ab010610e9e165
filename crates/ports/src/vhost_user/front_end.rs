//! The connection to the front end: accepts it, reads and answers its messages, and takes its descriptors.
//!
//! Why: the front end, such as QEMU, tells where the guest's memory and rings are, and can change that at any time.
//! From: QEMU's `docs/interop/vhost-user.rst`; the order in which QEMU 7.2 and DPDK's virtio-user send.
//! Not here: the encoding of messages (`message`), and the frames (`vhost_user`).
//! Invariant: no call here waits, asks a file system that may wait, or closes a file that may wait (`foreign`); each poll
//! handles a bounded number of messages; an invalid message ends the connection, is counted and reported, and affects no
//! other tenant; no descriptor is kept that could hold the front end's end of the connection open.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use rustix::io::Errno;

use super::bell::{Bell, is_bell};
use super::message::{
    HEADER, Header, LONGEST, MAX_REGIONS, MAX_RING, ProtocolError, Request, answer, answer_ring, feature,
    protocol,
};
use super::ring::Ring;
use super::{CompletionOrder, VhostUser};
use crate::counters::DropReason;
use crate::error::PortError;
use crate::foreign::{Closer, Connection, Foreign, ForeignFd, Listener};
use crate::mapped::{Memory, Piece, is_memory};

/// The connected front end, and the received part of its next message.
#[derive(Debug)]
pub(super) struct FrontEnd {
    socket: Connection,
    header: Option<Header>,
    bytes: [u8; LONGEST],
    have: usize,
    descriptors: Vec<ForeignFd>,
    /// It has sent a whole message.
    spoken: bool,
}

/// The result of reading the socket.
enum Incoming {
    Message(Header, Result<Request, ProtocolError>, Vec<ForeignFd>),
    Nothing,
    Invalid(ProtocolError),
    /// The front end has closed its sending side.
    Closed,
    Broken,
}

impl FrontEnd {
    fn new(socket: Connection) -> Self {
        Self { socket, header: None, bytes: [0; LONGEST], have: 0, descriptors: Vec::new(), spoken: false }
    }

    /// Reads until a message is whole, or the socket is empty.
    fn read(&mut self, closer: &Closer) -> Incoming {
        loop {
            let wanted = self.header.map_or(HEADER, |header| header.len);
            if self.have < wanted {
                let known = self.descriptors.len();
                let into = &mut self.bytes[self.have..wanted];
                match self.socket.receive(into, closer, &mut self.descriptors) {
                    Ok(0) => return Incoming::Closed,
                    Ok(read) => self.have += read,
                    Err(Errno::AGAIN | Errno::INTR) => return Incoming::Nothing,
                    Err(_) => return Incoming::Broken,
                }
                if self.descriptors.len() > MAX_REGIONS || !self.descriptors[known..].iter().all(belongs) {
                    return Incoming::Invalid(ProtocolError::DescriptorKind);
                }
                continue;
            }
            self.have = 0;
            let Some(header) = self.header.take() else {
                let header = self.bytes.first_chunk().map(|bytes| Header::parse(*bytes));
                match header.unwrap_or(Err(ProtocolError::Version(0))) {
                    Ok(header) => self.header = Some(header),
                    Err(error) => return Incoming::Invalid(error),
                }
                continue;
            };
            let descriptors = std::mem::take(&mut self.descriptors);
            self.spoken = true;
            let request = Request::parse(&header, &self.bytes[..wanted], descriptors.len());
            return Incoming::Message(header, request, descriptors);
        }
    }
}

/// Whether a descriptor is of a kind that the protocol passes: a file of memory, or an eventfd. It is checked as soon as it
/// arrives, as the rest of its message may never come. A descriptor of another kind could hold the front end's own end of
/// this connection (the socket itself, another socket with it in its queue, an io_uring), and while that is open, the end of
/// the front end would go unnoticed.
fn belongs(descriptor: &ForeignFd) -> bool {
    is_memory(&**descriptor) || is_bell(descriptor).is_ok()
}

impl VhostUser {
    /// Polls the sockets: accepts a pending connection, and handles the front end's messages.
    pub(super) fn poll_sockets(&mut self) {
        // Room for all watched descriptors: a kick for each ring, and three others.
        let mut found = [EpollEvent::empty(); 32];
        let Ok(count) = self.events.wait(&mut found, EpollTimeout::ZERO) else { return };
        let is_ready = |token| found[..count].iter().any(|event| event.data() == token);
        self.readable |= is_ready(FRONT_END);
        self.read_messages();
        // Messages come first: a front end that reconnects has ended its old connection.
        self.more_pending = is_ready(LISTENER) && !self.closer.is_busy() && self.accept();
        if self.more_pending {
            self.read_messages();
        }
        self.set_accepting(!self.closer.is_busy());
    }

    /// Watches the listening socket or not: no connection is accepted while resources of an earlier one are being closed.
    fn set_accepting(&mut self, accepting: bool) {
        if accepting && !self.accepting {
            self.accepting = watch(&self.events, &self.listener).is_ok();
        } else if !accepting && self.accepting {
            self.accepting = self.listener.unwatch(&self.events).is_err();
        }
    }

    /// Accepts one pending connection, if there is one; returns whether there was. The first front end to send a message
    /// has the port; others are disconnected, and may try again. Only one for each poll, so that a peer that connects
    /// without end takes little of the daemon's time.
    fn accept(&mut self) -> bool {
        let Some(socket) = self.listener.accept() else { return false };
        if self.front_end.as_ref().is_some_and(|front_end| front_end.spoken) {
            return true;
        }
        // A connection that sends no message must not keep others out.
        self.hang_up();
        let watched = EpollEvent::new(EpollFlags::EPOLLIN, FRONT_END);
        if socket.watch(&self.events, watched).is_ok() {
            self.front_end = Some(Box::new(FrontEnd::new(socket)));
            self.readable = true;
        }
        true
    }

    /// Handles some of the front end's messages. While the closer is full, messages stay in the socket: otherwise a front
    /// end could make any number of descriptors wait to be closed.
    fn read_messages(&mut self) {
        for _ in 0..MESSAGES {
            if !self.readable || self.closer.is_full() {
                return;
            }
            let Some(front_end) = &mut self.front_end else {
                self.readable = false;
                return;
            };
            match front_end.read(&self.closer) {
                Incoming::Nothing => self.readable = false,
                Incoming::Closed => {
                    if let Some(gone) = self.front_end.take() {
                        gone.socket.unwatch(&self.events);
                        gone.socket.close_if_drained();
                    }
                    self.hang_up();
                }
                Incoming::Broken => self.hang_up(),
                Incoming::Invalid(error) => self.refuse(&error),
                Incoming::Message(header, request, mut descriptors) => {
                    let handled = request.and_then(|request| self.handle(&header, request, &mut descriptors));
                    if let Err(error) = handled {
                        self.refuse(&error);
                    }
                }
            }
        }
    }

    /// Closes the connection and forgets its state; frames that the guest has posted still leave.
    pub(super) fn hang_up(&mut self) {
        if let Some(front_end) = self.front_end.take() {
            front_end.socket.unwatch(&self.events);
        }
        for ring in &mut self.rings {
            ring.stop(&self.memory);
            unwatch(&self.events, ring.kick.take());
            *ring = Ring::default();
        }
        self.memory = Foreign::ours(Memory::default());
        (self.features, self.protocol, self.readable) = (0, 0, false);
        self.count_rings();
    }

    /// Closes the connection after an invalid message.
    fn refuse(&mut self, error: &ProtocolError) {
        self.counters.lose(DropReason::BadMessage);
        self.problem.get_or_insert_with(|| PortError::Config {
            what: format!("vhost-user {}", self.config.path.display()),
            problem: format!("the front end sent {error}; the connection was closed, and it may try again"),
        });
        self.hang_up();
    }

    fn handle(
        &mut self,
        header: &Header,
        request: Request,
        descriptors: &mut Vec<ForeignFd>,
    ) -> Result<(), ProtocolError> {
        let reply = match request {
            Request::GetFeatures => Some(answer(header.request, feature::OFFERED)),
            Request::GetProtocolFeatures => Some(answer(header.request, PROTOCOL)),
            Request::GetQueueNum => Some(answer(header.request, (self.rings.len() / 2) as u64)),
            Request::GetRingBase(index) => {
                let memory = &self.memory;
                let ring = ring(&mut self.rings, index)?;
                ring.stop(memory);
                ring.started = false;
                let base = ring.base;
                self.count_rings();
                Some(answer_ring(header.request, index, base.into()))
            }
            Request::SetLogBase { len, offset } => {
                self.set_log(len, offset, descriptors)?;
                Some(answer(header.request, 0))
            }
            other => {
                self.apply(other, descriptors)?;
                let acknowledges = header.wants_answer && self.protocol & protocol::REPLY_ACK != 0;
                acknowledges.then(|| answer(header.request, 0))
            }
        };
        if let (Some(reply), Some(front_end)) = (reply, &self.front_end) {
            // A front end that does not read its answers is disconnected.
            let sent = front_end.socket.send(&reply, &[]);
            if !matches!(sent, Ok(len) if len == reply.len()) {
                self.hang_up();
            }
        }
        Ok(())
    }

    fn apply(&mut self, request: Request, descriptors: &mut Vec<ForeignFd>) -> Result<(), ProtocolError> {
        match request {
            Request::SetFeatures(features) => {
                let unknown = features & !feature::OFFERED;
                if unknown != 0 {
                    return Err(ProtocolError::Features(unknown));
                }
                self.set_features(features);
            }
            Request::SetProtocolFeatures(features) if features & !PROTOCOL != 0 => {
                return Err(ProtocolError::Features(features & !PROTOCOL));
            }
            Request::SetProtocolFeatures(features) => self.protocol = features,
            Request::SetMemTable(pieces) => {
                self.rings.iter_mut().for_each(|ring| ring.stop(&self.memory));
                let mut memory = self.map(&pieces, descriptors)?;
                memory.share_log(&mut self.memory);
                self.memory = Foreign::memory(memory, &self.closer);
            }
            Request::SetRingSize(index, size) => {
                if !size.is_power_of_two() || size > MAX_RING {
                    return Err(ProtocolError::RingSize(size));
                }
                self.stopped(index)?.size = size as u16;
            }
            // The same again, with another flag for its log, does not stop a ring.
            Request::SetRingPlace(index, place)
                if self.rings.get(index as usize).is_some_and(|ring| ring.place == Some(place)) => {}
            Request::SetRingPlace(index, place) => self.stopped(index)?.place = Some(place),
            Request::SetRingBase(index, base) => self.stopped(index)?.base = base as u16,
            Request::SetKick(index, _) => self.set_kick(index, descriptors)?,
            Request::SetCall(index, _) => {
                let ring = ring(&mut self.rings, index)?;
                // Other descriptors stay with the message, to be closed by the closing thread.
                descriptors.iter().try_for_each(is_bell).map_err(ProtocolError::Other)?;
                ring.bell = descriptors.pop().map(Bell::new).transpose().map_err(ProtocolError::Other)?;
                // An earlier daemon may have been killed between its last completion and its ring.
                if let Some(bell) = &ring.bell {
                    bell.ring();
                }
            }
            Request::SetErr(index, _) => drop(ring(&mut self.rings, index)?),
            Request::SetEnable(index, enabled) => ring(&mut self.rings, index)?.enabled = enabled,
            // Requests to own the device or give it up have no effect: the connection itself stands for that.
            _ => {}
        }
        self.start_rings()
    }

    /// Sets the accepted features. Stops the rings when they differ, since they change the layout of headers and rings.
    fn set_features(&mut self, features: u64) {
        if features & feature::PROTOCOL == 0 {
            // Without protocol features there are no disabled rings.
            self.rings.iter_mut().for_each(|ring| ring.enabled = true);
        }
        if (features ^ self.features) & !feature::LOG_ALL != 0 {
            self.rings.iter_mut().for_each(|ring| ring.stop(&self.memory));
        }
        self.features = features;
        self.memory.set_logging(features & feature::LOG_ALL != 0);
    }

    /// Maps the log of written pages, in place of an earlier one.
    fn set_log(
        &mut self,
        len: u64,
        offset: u64,
        descriptors: &mut Vec<ForeignFd>,
    ) -> Result<(), ProtocolError> {
        let log = self.map(&[Piece { guest: 0, len, user: 0, offset }], descriptors)?;
        drop(Foreign::memory(self.memory.set_log(log), &self.closer));
        Ok(())
    }

    /// Maps pieces of the files that came with a message.
    fn map(&self, pieces: &[Piece], descriptors: &mut Vec<ForeignFd>) -> Result<Memory, ProtocolError> {
        let files = descriptors.drain(..).map(|file| Arc::new(fs::File::from(file.into_inner())));
        let files: Foreign<Vec<_>> = Foreign::new(files.collect(), &self.closer);
        Memory::map(pieces, &files).map_err(ProtocolError::Other)
    }

    /// The ring with this number, stopped so that a message can change it.
    fn stopped(&mut self, index: u32) -> Result<&mut Ring, ProtocolError> {
        let memory = &self.memory;
        let ring = ring(&mut self.rings, index)?;
        ring.stop(memory);
        Ok(ring)
    }

    /// Watches a kick descriptor, edge-triggered, so that it never has to be read: the front end shares it, and could make
    /// a read wait.
    fn set_kick(&mut self, index: u32, passed: &mut Vec<ForeignFd>) -> Result<(), ProtocolError> {
        let Some(kick) = passed.last() else {
            return Err(ProtocolError::Other(
                "a ring without a kick descriptor, which would have to be polled".to_owned(),
            ));
        };
        let watched = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, KICK);
        ring(&mut self.rings, index)?;
        self.events.add(&**kick, watched).map_err(|error| {
            ProtocolError::Other(format!("a kick descriptor that cannot be waited for: {error}"))
        })?;
        let ring = ring(&mut self.rings, index)?;
        unwatch(&self.events, std::mem::replace(&mut ring.kick, passed.pop()));
        ring.started = true;
        Ok(())
    }

    /// Starts the rings that are fully described.
    pub(super) fn start_rings(&mut self) -> Result<(), ProtocolError> {
        for (index, ring) in self.rings.iter_mut().enumerate() {
            if ring.live.is_some() || self.memory.is_empty() {
                continue;
            }
            let from_guest = index % 2 == 1;
            // Buffers for the guest are filled in order anyway, and none is in flight for longer than a call.
            let in_order = from_guest && self.config.completions == CompletionOrder::InOrder;
            ring.start(&self.memory, self.features, in_order).map_err(ProtocolError::Other)?;
            if index % 2 == 0
                && let Some(live) = &mut ring.live
            {
                // New buffers need no kick: they are looked for when there is a frame for the guest.
                live.mute(&self.memory);
            }
        }
        self.count_rings();
        Ok(())
    }

    /// Recomputes the numbers of running rings, which are needed often.
    fn count_rings(&mut self) {
        let live = |ring: &&Ring| ring.live.is_some();
        let from_guest = || self.rings.iter().skip(1).step_by(2);
        self.depth = from_guest().filter(live).map(|ring| u32::from(ring.size)).min();
        self.from_guest = from_guest().rposition(|ring| ring.live.is_some()).map_or(0, |last| last + 1);
        let mut to_guest = self.rings.iter().step_by(2);
        let all = to_guest.len();
        self.to_guest = to_guest.position(|ring| !ring.enabled || ring.live.is_none()).unwrap_or(all);
    }
}

fn ring(rings: &mut [Ring], index: u32) -> Result<&mut Ring, ProtocolError> {
    rings.get_mut(index as usize).ok_or(ProtocolError::NoRing(index))
}

/// Stops watching a kick descriptor. Needed before it is closed: the front end shares its file description, which would
/// otherwise stay watched.
fn unwatch(events: &Epoll, kick: Option<ForeignFd>) {
    if let Some(kick) = kick {
        let _ = events.delete(&*kick);
    }
}

/// Listens at `path`, and replaces a socket there on which no process listens any more. Owner and group may connect.
pub(super) fn listen(path: &Path, closer: &Closer) -> Result<(ForeignFd, u64), PortError> {
    let failed = |source: io::Error| {
        PortError::system("listening for the virtual machine", path.display().to_string(), source)
    };
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
            if !is_socket || !is_dead(path, closer) {
                return Err(PortError::File {
                    path: path.to_owned(),
                    problem: "it is in use".to_owned(),
                    advice: "stop the process that listens there, move the file away, or name another socket",
                });
            }
            fs::remove_file(path).map_err(failed)?;
            UnixListener::bind(path).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    let listener = Foreign::new(OwnedFd::from(listener), closer);
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
    let inode = fs::symlink_metadata(path).map_err(failed)?.ino();
    Ok((listener, inode))
}

/// Whether no process listens at a socket any more. Tries to connect without waiting, as the queue of a listener that
/// accepts no connections may be full.
fn is_dead(path: &Path, closer: &Closer) -> bool {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let asked = socket(AddressFamily::Unix, SockType::Stream, flags, None).and_then(|end| {
        // The peer may send descriptors before this end is closed again.
        let end = Foreign::new(end, closer);
        connect(end.as_raw_fd(), &UnixAddr::new(path)?)
    });
    asked == Err(nix::errno::Errno::ECONNREFUSED)
}

/// Watches the listening socket.
pub(super) fn watch(events: &Epoll, listener: &Listener) -> io::Result<()> {
    listener.watch(events, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))
}

/// The protocol features that are offered.
const PROTOCOL: u64 = protocol::MQ | protocol::LOG_SHMFD | protocol::REPLY_ACK;

const LISTENER: u64 = 0;
const FRONT_END: u64 = 1;
const KICK: u64 = 2;
pub(super) const CLOSED: u64 = 3;
/// Most messages handled in one poll: about as many as start one pair of rings.
const MESSAGES: usize = 16;
