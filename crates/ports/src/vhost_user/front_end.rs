//! The front end behind the socket: its messages read and answered, its descriptors taken over.
//!
//! Why: whoever owns the virtual machine says where its memory and its rings are, and may say so again at any moment.
//! From: QEMU's `docs/interop/vhost-user.rst`; the order in which QEMU 7.2 and DPDK's virtio-user send.
//! Not here: what messages look like (`message`), and the frames (`port`).
//! Invariant: nothing here waits, nor asks a file of a file system that could, nor closes what could (`foreign`); each look
//! handles so many messages; a message that makes no sense ends the connection, is counted and told, and changes nothing for
//! anybody else; no descriptor is kept that could keep the front end's end of the connection open.

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
use super::memory::{Memory, is_memory};
use super::message::{
    HEADER, Header, LONGEST, MAX_REGIONS, MAX_RING, Nonsense, Request, answer, answer_ring, feature, protocol,
};
use super::ring::{Habits, Ring};
use super::{Completions, VhostUser};
use crate::error::PortError;
use crate::foreign::{Closer, Connection, Foreign, ForeignFd, Listener};
use crate::port::DropReason;

/// Who is connected, and what it has sent of its next message.
#[derive(Debug)]
pub(super) struct FrontEnd {
    socket: Connection,
    header: Option<Header>,
    bytes: [u8; LONGEST],
    have: usize,
    descriptors: Vec<ForeignFd>,
    /// It has said something that makes sense.
    spoken: bool,
}

/// What a look at the socket finds.
enum Incoming {
    Message(Header, Result<Request, Nonsense>, Vec<ForeignFd>),
    Nothing,
    Nonsense(Nonsense),
    /// It has said all that it will ever say.
    Closed,
    Broken,
}

impl FrontEnd {
    fn new(socket: Connection) -> Self {
        Self { socket, header: None, bytes: [0; LONGEST], have: 0, descriptors: Vec::new(), spoken: false }
    }

    /// Reads on until a message is whole, or nothing is left.
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
                    return Incoming::Nonsense(Nonsense::Foreign);
                }
                continue;
            }
            self.have = 0;
            let Some(header) = self.header.take() else {
                let header = self.bytes.first_chunk().map(|bytes| Header::parse(*bytes));
                match header.unwrap_or(Err(Nonsense::Version(0))) {
                    Ok(header) => self.header = Some(header),
                    Err(nonsense) => return Incoming::Nonsense(nonsense),
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

/// Whether a descriptor is of a kind that the protocol passes: memory's file, or a bell. Looked at as soon as it is here, as
/// the rest of its message may never come. Anything else could hold the front end's own end of this connection (that socket
/// itself, another one with it in its queue, a ring of io_uring's), and while that is open nobody hears that it has gone.
fn belongs(descriptor: &ForeignFd) -> bool {
    is_memory(&**descriptor) || is_bell(descriptor).is_ok()
}

impl VhostUser {
    /// Looks at the sockets: who wants in, and what the front end has said.
    pub(super) fn look(&mut self) {
        // As many as are ever watched: a kick for each ring, and the three others.
        let mut found = [EpollEvent::empty(); 32];
        let Ok(count) = self.events.wait(&mut found, EpollTimeout::ZERO) else { return };
        let tells = |whom| found[..count].iter().any(|event| event.data() == whom);
        self.talks |= tells(FRONT_END);
        self.converse();
        // After that: who was there may have gone, and be the one who comes back.
        self.knocks = tells(LISTENER) && !self.closer.is_busy() && self.admit();
        if self.knocks {
            self.converse();
        }
        self.set_open(!self.closer.is_busy());
    }

    /// Whether those who want in are heard: not while something of another is being closed.
    fn set_open(&mut self, open: bool) {
        if open && !self.open {
            self.open = watch(&self.events, &self.listener).is_ok();
        } else if !open && self.open {
            self.open = self.listener.unwatch(&self.events).is_err();
        }
    }

    /// The first to speak has the port; another is hung up on, and may try again. One for each look: who connects without
    /// end takes little of the daemon's time. Answers whether there was one, so that there may be another.
    fn admit(&mut self) -> bool {
        let Some(socket) = self.listener.accept() else { return false };
        if self.front_end.as_ref().is_some_and(|front_end| front_end.spoken) {
            return true;
        }
        // Who says nothing must not keep others out.
        self.hang_up();
        let watched = EpollEvent::new(EpollFlags::EPOLLIN, FRONT_END);
        if socket.watch(&self.events, watched).is_ok() {
            self.front_end = Some(Box::new(FrontEnd::new(socket)));
            self.talks = true;
        }
        true
    }

    /// Handles some of what the front end has said. The rest waits where much is being closed: else who sends what takes long to
    /// close could have any number of descriptors wait here.
    fn converse(&mut self) {
        for _ in 0..MESSAGES {
            if !self.talks || self.closer.is_full() {
                return;
            }
            let Some(front_end) = &mut self.front_end else {
                self.talks = false;
                return;
            };
            match front_end.read(&self.closer) {
                Incoming::Nothing => self.talks = false,
                Incoming::Closed => {
                    if let Some(gone) = self.front_end.take() {
                        gone.socket.unwatch(&self.events);
                        gone.socket.close_if_drained();
                    }
                    self.hang_up();
                }
                Incoming::Broken => self.hang_up(),
                Incoming::Nonsense(nonsense) => self.refuse(nonsense),
                Incoming::Message(header, request, mut descriptors) => {
                    let handled = request.and_then(|request| self.handle(&header, request, &mut descriptors));
                    if let Err(nonsense) = handled {
                        self.refuse(nonsense);
                    }
                }
            }
        }
    }

    /// What it was told is forgotten, frames that it posted still leave.
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
        (self.features, self.protocol, self.talks) = (0, 0, false);
        self.measure();
    }

    fn refuse(&mut self, nonsense: Nonsense) {
        self.counters.lose(DropReason::BadMessage);
        self.problem.get_or_insert_with(|| PortError::Config {
            what: format!("vhost-user {}", self.config.path.display()),
            problem: format!(
                "the front end sent {nonsense}; the connection was closed, and it may try again"
            ),
        });
        self.hang_up();
    }

    fn handle(
        &mut self,
        header: &Header,
        request: Request,
        descriptors: &mut Vec<ForeignFd>,
    ) -> Result<(), Nonsense> {
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
                self.measure();
                Some(answer_ring(header.request, index, base.into()))
            }
            other => {
                self.obey(other, descriptors)?;
                let acknowledges = header.wants_answer && self.protocol & protocol::REPLY_ACK != 0;
                acknowledges.then(|| answer(header.request, 0))
            }
        };
        if let (Some(reply), Some(front_end)) = (reply, &self.front_end) {
            // Whoever asks and does not read the answers has no use for them.
            let sent = front_end.socket.send(&reply, &[]);
            if !matches!(sent, Ok(len) if len == reply.len()) {
                self.hang_up();
            }
        }
        Ok(())
    }

    fn obey(&mut self, request: Request, descriptors: &mut Vec<ForeignFd>) -> Result<(), Nonsense> {
        match request {
            Request::SetFeatures(features) => {
                let foreign = features & !feature::OFFERED;
                if foreign != 0 {
                    return Err(Nonsense::Features(foreign));
                }
                self.set_features(features);
            }
            Request::SetProtocolFeatures(features) if features & !PROTOCOL != 0 => {
                return Err(Nonsense::Features(features & !PROTOCOL));
            }
            Request::SetProtocolFeatures(features) => self.protocol = features,
            Request::SetMemTable(pieces) => {
                self.rings.iter_mut().for_each(|ring| ring.stop(&self.memory));
                let files = descriptors.drain(..).map(|file| Arc::new(fs::File::from(file.into_inner())));
                let files: Foreign<Vec<_>> = Foreign::new(files.collect(), &self.closer);
                self.memory =
                    Foreign::memory(Memory::map(&pieces, &files).map_err(Nonsense::Other)?, &self.closer);
            }
            Request::SetRingSize(index, size) => {
                if !size.is_power_of_two() || size > MAX_RING {
                    return Err(Nonsense::RingSize(size));
                }
                self.still(index)?.size = size as u16;
            }
            Request::SetRingPlace(index, place) => self.still(index)?.place = Some(place),
            Request::SetRingBase(index, base) => self.still(index)?.base = base as u16,
            Request::SetKick(index, _) => self.set_kick(index, descriptors)?,
            Request::SetCall(index, _) => {
                let ring = ring(&mut self.rings, index)?;
                // What is none stays with the message, to be closed where nobody waits.
                descriptors.iter().try_for_each(is_bell).map_err(Nonsense::Other)?;
                ring.bell = descriptors.pop().map(Bell::new).transpose().map_err(Nonsense::Other)?;
            }
            Request::SetErr(index, _) => drop(ring(&mut self.rings, index)?),
            Request::SetEnable(index, enabled) => ring(&mut self.rings, index)?.enabled = enabled,
            // Owning the device, and giving it up, is what the connection stands for.
            _ => {}
        }
        self.start_rings()
    }

    /// Rings keep running: only those that are started later see another layout, as a driver stops them first.
    fn set_features(&mut self, features: u64) {
        if features & feature::PROTOCOL == 0 {
            // Without features of its own the protocol knows no disabled rings.
            self.rings.iter_mut().for_each(|ring| ring.enabled = true);
        }
        if features != self.features {
            self.rings.iter_mut().for_each(|ring| ring.stop(&self.memory));
            self.features = features;
        }
    }

    /// A ring that a message changes does not run meanwhile.
    fn still(&mut self, index: u32) -> Result<&mut Ring, Nonsense> {
        let memory = &self.memory;
        let ring = ring(&mut self.rings, index)?;
        ring.stop(memory);
        Ok(ring)
    }

    /// By edges, so that it never has to be read: the front end has it too, and could make a read of it wait.
    fn set_kick(&mut self, index: u32, passed: &mut Vec<ForeignFd>) -> Result<(), Nonsense> {
        let Some(kick) = passed.last() else {
            return Err(Nonsense::Other(
                "a ring without a kick descriptor, which would have to be polled".to_owned(),
            ));
        };
        let watched = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, KICK);
        ring(&mut self.rings, index)?;
        self.events.add(&**kick, watched).map_err(|error| {
            Nonsense::Other(format!("a kick descriptor that cannot be waited for: {error}"))
        })?;
        let ring = ring(&mut self.rings, index)?;
        unwatch(&self.events, std::mem::replace(&mut ring.kick, passed.pop()));
        ring.started = true;
        Ok(())
    }

    /// Puts those to work of which all is known.
    fn start_rings(&mut self) -> Result<(), Nonsense> {
        for (index, ring) in self.rings.iter_mut().enumerate() {
            if ring.live.is_some() || self.memory.is_empty() {
                continue;
            }
            let from_guest = index % 2 == 1;
            let habits = Habits {
                // Buffers for the guest are filled one after the other anyway, and none is out for longer than a call.
                in_order: from_guest && self.config.completions == Completions::InOrder,
                page: if from_guest { self.record.page(index / 2, ring.size) } else { None },
            };
            ring.start(&self.memory, self.features, habits).map_err(Nonsense::Other)?;
            if index % 2 == 0
                && let Some(live) = &mut ring.live
            {
                // Buffers for the guest are looked for when there is a frame for one.
                live.mute(&self.memory);
            }
        }
        self.measure();
        Ok(())
    }

    /// What of the rings is asked for often.
    fn measure(&mut self) {
        let live = |ring: &&Ring| ring.live.is_some();
        let from_guest = || self.rings.iter().skip(1).step_by(2);
        self.depth = from_guest().filter(live).map(|ring| u32::from(ring.size)).min();
        self.from_guest = from_guest().rposition(|ring| ring.live.is_some()).map_or(0, |last| last + 1);
        let mut to_guest = self.rings.iter().step_by(2);
        let all = to_guest.len();
        self.to_guest = to_guest.position(|ring| !ring.enabled || ring.live.is_none()).unwrap_or(all);
    }
}

fn ring(rings: &mut [Ring], index: u32) -> Result<&mut Ring, Nonsense> {
    rings.get_mut(index as usize).ok_or(Nonsense::NoRing(index))
}

/// To be called before a descriptor is closed: the front end has its description too, which would else stay watched.
fn unwatch(events: &Epoll, kick: Option<ForeignFd>) {
    if let Some(kick) = kick {
        let _ = events.delete(&*kick);
    }
}

/// Listens at `path`; a socket there that nobody listens on any more is replaced. Its owner and group may connect.
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
                    problem: "somebody else has it".to_owned(),
                    advice: "stop who listens there, move what lies there away, or name another socket",
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

/// Whether nobody listens at a socket any more. One whose listener lets nobody in has a queue that may be full: who
/// listens there is asked without waiting for room in it.
fn is_dead(path: &Path, closer: &Closer) -> bool {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let asked = socket(AddressFamily::Unix, SockType::Stream, flags, None).and_then(|end| {
        // Who answers may send anything, before it is closed again.
        let end = Foreign::new(end, closer);
        connect(end.as_raw_fd(), &UnixAddr::new(path)?)
    });
    asked == Err(nix::errno::Errno::ECONNREFUSED)
}

/// Watches the listening socket.
pub(super) fn watch(events: &Epoll, listener: &Listener) -> io::Result<()> {
    listener.watch(events, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))
}

/// What is offered of the protocol's own features.
const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK;

const LISTENER: u64 = 0;
const FRONT_END: u64 = 1;
const KICK: u64 = 2;
pub(super) const CLOSED: u64 = 3;
/// Messages handled at a look: about what starts one pair of rings.
const MESSAGES: usize = 16;
