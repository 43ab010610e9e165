//! The client behind the socket: its connection, its requests, and what it is sent.
//!
//! Why: what happens once for each flow may cost a system call, and must be answered.
//! From: SENIC §5.1 (slices of the NIC behind a translation table); `docs/vnic.md`, "The socket" and "Rules".
//! Not here: the rings (`rings`), and the answers themselves (the daemon).
//! Invariant: nothing here waits, nor closes what could (`foreign`); each call handles one message at most; a client that
//! does not read its answers is disconnected, one that does not read its rules misses them, one that sends file
//! descriptors is disconnected.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::{fs, io};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use plimsoll_vnic::layout::{VERSION, header};
use plimsoll_vnic::message::{LEN, Message};
use plimsoll_vnic::socket::{self, Incoming};
use plimsoll_vnic::{OpenRefusal, Rule};

use super::{Client, Flow, Place, QueuesLeft, VnicAnswer, VnicPort, VnicRequest};
use crate::counters::DropReason;
use crate::error::PortError;
use crate::foreign::{Closer, Connection, Foreign, ForeignFd, Listener, Read};

impl VnicPort {
    /// Reads the client's next message and answers the request in it. `None` when there is no message.
    pub fn request(&mut self) -> Option<VnicRequest> {
        let client = self.client.as_mut().filter(|client| client.talks)?;
        match hear(&client.socket) {
            Incoming::Nothing => {
                client.talks = false;
                None
            }
            Incoming::Message(Message::Open(spec)) => {
                if self.free_queue().is_some() {
                    return Some(VnicRequest::Open(spec));
                }
                self.refuse(OpenRefusal::NoQueue);
                Some(VnicRequest::Refused)
            }
            Incoming::Message(Message::Ask(spec)) => {
                client.asks = true;
                Some(VnicRequest::Ask(spec))
            }
            Incoming::Message(Message::Close(queue)) => Some(self.unmap(queue)),
            Incoming::Message(_) | Incoming::Garbage | Incoming::Closed => {
                self.lose_client();
                None
            }
        }
    }

    /// Leaves the client's messages in its socket (`true`), or reads them again. Messages that are left there do not wake
    /// the port's owner; once the socket is full, the client waits.
    pub fn hold_requests(&mut self, hold: bool) {
        let Some(client) = self.client.as_mut().filter(|client| client.held != hold) else { return };
        if hold {
            client.socket.unwatch(&self.events);
        } else if client.socket.watch(&self.events, when_ready(CLIENT)).is_err() {
            // The port would never learn of this client's messages again.
            return self.lose_client();
        }
        client.held = hold;
        client.talks = !hold;
    }

    /// Answers the request that was read last.
    pub fn answer(&mut self, answer: &VnicAnswer) {
        match *answer {
            VnicAnswer::Opened(Ok(target)) => self.map(target),
            VnicAnswer::Opened(Err(why)) => self.refuse(why),
            VnicAnswer::Rule(rule, target) => {
                let queue = target.and_then(|target| self.queue_of(target).or_else(|| self.lead_to(target)));
                self.tell_rule(&Rule { queue: queue.unwrap_or(0), ..rule });
            }
            VnicAnswer::Closed => {}
        }
    }

    /// Answers [`VnicRequest::Open`]: the client gets a flow queue that leads to `target`.
    pub fn map(&mut self, target: u32) {
        match self.lead_to(target) {
            Some(queue) => self.say(Message::Opened(queue)),
            None => self.refuse(OpenRefusal::NoQueue),
        }
    }

    /// Makes a free flow queue of the client lead to `target`, and answers its number; `None` when none is free.
    fn lead_to(&mut self, target: u32) -> Option<u32> {
        let queue = self.free_queue()?;
        // Descriptors in the ring are an earlier flow's; an honest client continues its count from there.
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

    /// How many flow queues the client may still open.
    #[must_use]
    pub fn queues_left(&self) -> QueuesLeft {
        let mapped = self.queues.iter().filter(|flow| matches!(flow.place, Place::Mapped(_))).count();
        let many = mapped < self.queues.len() - self.queues.len().div_ceil(4);
        QueuesLeft { any: self.free_queue().is_some(), many }
    }

    /// Answers [`VnicRequest::Ask`].
    pub fn tell_rule(&mut self, rule: &Rule) {
        self.say(Message::Rule(*rule));
    }

    /// Sends a rule unasked, if the client has asked for a rule before. A client whose socket is full misses it, and asks
    /// when it needs it. [`VnicPort::tell_news`] tells the client how many there are.
    pub fn push_rule(&mut self, rule: &Rule) {
        let Some(client) = self.client.as_mut().filter(|client| client.asks) else { return };
        if tell(&client.socket, Message::Rule(*rule)).is_ok() {
            client.news = client.news.wrapping_add(1);
        }
    }

    /// Writes how many rules were sent unasked into the header, for the client to see.
    pub fn tell_news(&mut self) {
        let Some(client) = &self.client else { return };
        // Release: pairs with the client's Acquire, so that a client that sees the count finds the rules in its socket.
        self.region.word32(header::NEWS).store(client.news, Ordering::Release);
    }

    /// Has the packets of the flow queue that leads to `target` classified one by one from now on.
    pub fn classify_target(&mut self, target: u32) {
        for flow in self.queues.iter_mut().filter(|flow| flow.place == Place::Mapped(target)) {
            flow.place = Place::Classified;
        }
    }

    /// Has the packets of every open flow queue classified one by one from now on.
    pub fn classify_all(&mut self) {
        for flow in self.queues.iter_mut().filter(|flow| matches!(flow.place, Place::Mapped(_))) {
            flow.place = Place::Classified;
        }
    }

    /// Answers [`VnicRequest::Open`] with a refusal.
    pub fn refuse(&mut self, why: OpenRefusal) {
        self.say(Message::NotOpened(why));
    }

    /// Closes the flow queues that lead to `target`: doorbells for them are refused and counted from now on.
    pub fn unmap_target(&mut self, target: u32) {
        for flow in self.queues.iter_mut().filter(|flow| flow.place == Place::Mapped(target)) {
            flow.place = Place::Unmapped;
        }
    }

    /// Writes the number of the policy in force into the header.
    pub fn set_generation(&mut self, generation: u32) {
        self.region.word32(header::GENERATION).store(generation, Ordering::Release);
    }

    /// Looks at the sockets for new connections and messages. Answers `true` when there may be more: the caller must then
    /// look again before it waits, as connections that are there already raise no further event.
    pub(super) fn look(&mut self) -> bool {
        if self.gone {
            return false;
        }
        // As many as are watched at most: the silent connections, and four others.
        let mut found = [EpollEvent::empty(); SILENT + 4];
        let Ok(count) = self.events.wait(&mut found, EpollTimeout::ZERO) else { return false };
        let mut more = false;
        for event in &found[..count] {
            match event.data() {
                LISTENER => more |= !self.closer.is_full() && self.admit(),
                HELLO => {
                    self.hear_hello();
                    more = true;
                }
                CLIENT => {
                    if let Some(client) = &mut self.client {
                        client.talks = true;
                    }
                }
                _ => {}
            }
        }
        self.set_open(!self.closer.is_full());
        more
    }

    /// Watches the listener or stops watching it: no connection is accepted while too many others wait to be closed.
    fn set_open(&mut self, open: bool) {
        if open && !self.open {
            self.open = self.listener.watch(&self.events, when_ready(LISTENER)).is_ok();
        } else if !open && self.open {
            self.open = self.listener.unwatch(&self.events).is_err();
        }
    }

    /// Accepts one pending connection; where the vNIC has a client, it is refused. One for each look, so that a program that
    /// connects without end takes little of the daemon's time. `false` when no connection is pending.
    fn admit(&mut self) -> bool {
        let Some(socket) = self.listener.accept() else { return false };
        if self.client.is_some() {
            self.turn_away(socket);
            return true;
        }
        // Silent connections must not keep others out: the one that has been silent longest makes room.
        if self.silent.len() == SILENT
            && let Some(oldest) = self.silent.pop_front()
        {
            oldest.unwatch(&self.events);
        }
        if socket.watch(&self.events, when_ready(HELLO)).is_ok() {
            self.silent.push_back(socket);
            // Most have sent their `Hello` before they are accepted.
            self.hear_hello();
        }
        true
    }

    /// Reads from the silent connections; the first `Hello` gets the vNIC.
    fn hear_hello(&mut self) {
        for _ in 0..self.silent.len() {
            let Some(socket) = self.silent.pop_front() else { return };
            let heard = hear(&socket);
            if matches!(heard, Incoming::Nothing) {
                self.silent.push_back(socket);
                continue;
            }
            socket.unwatch(&self.events);
            match heard {
                Incoming::Message(Message::Hello(_)) if self.client.is_some() => self.turn_away(socket),
                Incoming::Message(Message::Hello(VERSION)) => self.welcome(socket),
                Incoming::Message(Message::Hello(_)) => {
                    self.send_away(socket, Message::OtherVersion(VERSION));
                }
                _ => {}
            }
        }
    }

    fn turn_away(&mut self, socket: Connection) {
        // Closing a socket with unread data would discard the answer.
        let _ = hear(&socket);
        self.send_away(socket, Message::Occupied);
    }

    /// Sends a refusal. The socket stays open for a while, so that a client that has not sent `Hello` yet can read it.
    fn send_away(&mut self, socket: Connection, why: Message) {
        // An error: the other side has gone, and needs no answer.
        let _ = tell(&socket, why);
        if self.turned_away.len() == SILENT {
            self.turned_away.pop_front();
        }
        self.turned_away.push_back(socket);
    }

    /// Hands the region over to a new client.
    fn welcome(&mut self, socket: Connection) {
        let len = self.layout.region_len() as u64;
        let descriptors = [self.memory.as_raw_fd(), self.kick.as_raw_fd(), self.wake_end.as_raw_fd()];
        let watched = socket.watch(&self.events, when_ready(CLIENT));
        let welcome = Message::Welcome(len).to_bytes();
        // A client that has gone already has not got the region; the vNIC stays free for the next.
        if watched.is_ok() && socket.send(&welcome, &descriptors).is_ok() {
            self.client = Some(Client { socket, talks: true, held: false, asks: false, news: 0 });
        }
    }

    fn say(&mut self, message: Message) {
        let Some(client) = &self.client else { return };
        // A client that asks and does not read the answers is disconnected.
        if tell(&client.socket, message).is_err() {
            self.lose_client();
        }
    }

    /// Ends the port with its client, which may still write to the region.
    fn lose_client(&mut self) {
        if let Some(client) = self.client.take() {
            client.socket.unwatch(&self.events);
            self.gone = true;
        }
    }

    /// A flow queue that leads nowhere and has no frames on their way; failing that, an empty one whose rule has ended.
    fn free_queue(&self) -> Option<u32> {
        let idle = |flow: &Flow| flow.in_flight == 0 && !flow.pending;
        let free = |flow: &Flow| flow.place == Place::Unmapped && idle(flow);
        let ended = |flow: &Flow| flow.place == Place::Classified && idle(flow) && flow.head == flow.tail;
        let own = &self.queues[1..];
        let found = own.iter().position(free).or_else(|| own.iter().position(ended))?;
        u32::try_from(found + 1).ok()
    }

    /// Unmaps a flow queue that the client gives back; answers the number that it led to.
    fn unmap(&mut self, queue: u32) -> VnicRequest {
        let Some(flow) = self.queues.get_mut(queue as usize) else { return VnicRequest::Refused };
        let Place::Mapped(target) = flow.place else {
            self.counters.lose(DropReason::UnmappedQueue);
            return VnicRequest::Refused;
        };
        flow.place = Place::Unmapped;
        VnicRequest::Close(target)
    }
}

/// Reads a message. A message with file descriptors counts as garbage and stays unread.
fn hear(connection: &Connection) -> Incoming {
    let mut bytes = [0; LEN + 1];
    match connection.read(&mut bytes) {
        Read::Bytes(len) => Message::from_bytes(&bytes[..len]).map_or(Incoming::Garbage, Incoming::Message),
        Read::Nothing => Incoming::Nothing,
        Read::Descriptors => Incoming::Garbage,
        Read::End => Incoming::Closed,
    }
}

fn tell(connection: &Connection, message: Message) -> io::Result<usize> {
    connection.send(&message.to_bytes(), &[])
}

/// Listens at `path`; a socket there that no program listens on any more is replaced. Its owner and group may connect.
pub(super) fn listen(path: &Path, closer: &Closer) -> Result<(ForeignFd, u64), PortError> {
    let what = "listening for the vNIC's client";
    let place = || path.display().to_string();
    let failed = |source: io::Error| PortError::system(what, place(), source);
    let listener = match socket::listen_at(path) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
            // A program that answers may send anything before the connection is closed, so the closer's thread closes it.
            let connect = || socket::connect_to(path).map(|end| drop(Foreign::new(end, closer)));
            let old = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
                && connect().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !old {
                return Err(PortError::File {
                    path: path.to_owned(),
                    problem: "another program listens there, or it is not a socket".to_owned(),
                    advice: "stop that program, move the file away, or name another socket",
                });
            }
            fs::remove_file(path).map_err(failed)?;
            socket::listen_at(path).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    let listener = Foreign::new(listener, closer);
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
    let inode = fs::symlink_metadata(path).map_err(failed)?.ino();
    Ok((listener, inode))
}

pub(super) fn watch(listener: &Listener, kick: &EventFd, closer: &Closer) -> io::Result<Epoll> {
    let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    listener.watch(&events, when_ready(LISTENER))?;
    closer.watch(&events, CLOSED)?;
    // Edge-triggered, so that it never has to be read: the client has it too, and could make a read or a write of it wait.
    events.add(kick, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, KICK))?;
    Ok(events)
}

fn when_ready(token: u64) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, token)
}

const LISTENER: u64 = 0;
const CLIENT: u64 = 1;
const KICK: u64 = 2;
const HELLO: u64 = 3;
const CLOSED: u64 = 4;
/// Most connections that may be silent at once.
pub(super) const SILENT: usize = 4;
