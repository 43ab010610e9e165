//! Local connections: accepted, read and answered.
//!
//! Why: whoever connects to a Unix socket may send descriptors along, whether or not the protocol has any, and the kernel
//! closes those that a reader has no room for in the reader's own call.
//! From: unix(7) and recvmsg(2): `MSG_PEEK` tells with `MSG_CTRUNC` that a message brings descriptors, and takes none.
//! Not here: what the bytes say.
//! Invariant: nothing here waits, whatever the other side has sent; no descriptor is closed here.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::epoll::{Epoll, EpollEvent};
use nix::sys::socket::{ControlMessage, MsgFlags, Shutdown, SockFlag, UnixAddr, accept4, sendmsg, shutdown};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recv, recvmsg};

use super::{Closer, Foreign, ForeignFd};

/// A listening socket: connections that nobody has accepted lie in it, and what was sent over them.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: ForeignFd,
    closer: Closer,
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd, closer: &Closer) -> Self {
        Self { socket: Foreign::new(socket, closer), closer: closer.clone() }
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&*self.socket, true)?)
    }

    /// The next one that wants to connect, if there is one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the room that accepts: what comes is foreign from here on"
    )]
    pub(crate) fn accept(&self) -> Option<Connection> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let accepted = accept4(self.socket.as_raw_fd(), flags).ok()?;
        // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
        let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
        Some(Connection(Foreign::new(accepted, &self.closer)))
    }

    pub(crate) fn watch(&self, events: &Epoll, event: EpollEvent) -> io::Result<()> {
        Ok(events.add(&*self.socket, event)?)
    }

    pub(crate) fn unwatch(&self, events: &Epoll) -> io::Result<()> {
        Ok(events.delete(&*self.socket)?)
    }
}

impl Drop for Listener {
    /// Those who wait to be let in are told at once that nobody will: the listener itself may be closed much later.
    fn drop(&mut self) {
        hang_up(&*self.socket);
        // No more come from here on.
        while self.accept().is_some() {}
    }
}

/// A connection that was accepted. Its descriptor is nobody's to read from but this room's. The other side learns of its end
/// at once, also where its close takes long.
#[derive(Debug)]
pub(crate) struct Connection(ForeignFd);

/// What a read of bytes finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Bytes(usize),
    Nothing,
    /// Descriptors, where none may come. They lie in the queue still.
    Descriptors,
    /// The other side is gone, or has said all that it will ever say.
    End,
}

impl Connection {
    /// Bytes, where nothing else may come.
    pub(crate) fn read(&self, into: &mut [u8]) -> Read {
        match read(&*self.0, into) {
            Ok(0) => Read::End,
            Ok(len) => Read::Bytes(len),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Read::Nothing,
                io::ErrorKind::InvalidData => Read::Descriptors,
                _ => Read::End,
            },
        }
    }

    /// Bytes, and the descriptors that come along, also where there was no room in the process for all of them.
    #[expect(
        clippy::disallowed_methods,
        reason = "the room that receives: what comes is foreign from here on"
    )]
    pub(crate) fn receive(
        &self,
        into: &mut [u8],
        closer: &Closer,
        descriptors: &mut Vec<ForeignFd>,
    ) -> Result<usize, Errno> {
        // As many as the kernel passes at once: none is ever lost for want of room here.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&*self.0, &mut [IoSliceMut::new(into)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed.map(|descriptor| Foreign::new(descriptor, closer)));
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) { Err(Errno::MFILE) } else { Ok(received.bytes) }
    }

    /// Sends bytes, with descriptors if there are any; how many bytes went.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<usize> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let rights = [ControlMessage::ScmRights(descriptors)];
        let rights = if descriptors.is_empty() { &[][..] } else { &rights };
        Ok(sendmsg::<UnixAddr>(self.0.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None)?)
    }

    pub(crate) fn watch(&self, events: &Epoll, event: EpollEvent) -> io::Result<()> {
        Ok(events.add(&*self.0, event)?)
    }

    pub(crate) fn unwatch(&self, events: &Epoll) {
        // One that was never watched is not watched now.
        let _ = events.delete(&*self.0);
    }

    /// Closes it here and now if the other side of this stream can send nothing more and nothing lies in its queue: that waits
    /// for nobody.
    pub(crate) fn close_if_drained(mut self) {
        if matches!(read(&*self.0, &mut [0]), Ok(0)) {
            self.0.make_ours();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        hang_up(&*self.0);
    }
}

/// Tells the other side of a connection that it has ended, and closes nothing.
pub fn hang_up(connection: &impl AsFd) {
    // One that is not connected any more needs no telling.
    let _ = shutdown(connection.as_fd().as_raw_fd(), Shutdown::Both);
}

/// Reads bytes of a local connection over which nothing else may come, without waiting. Descriptors that were sent along stay
/// where they are, unread.
///
/// # Errors
/// `InvalidData` where descriptors come along: the connection is of no more use. `WouldBlock` where nothing has come, and what the
/// kernel says.
#[expect(clippy::disallowed_methods, reason = "the room that receives: descriptors are left where they are")]
pub fn read(connection: &impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let mut none = RecvAncillaryBuffer::default();
    let ahead = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let seen = recvmsg(connection, &mut [IoSliceMut::new(into)], &mut none, ahead)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors came along, and none may"));
    }
    if seen.bytes == 0 {
        return Ok(0);
    }
    // No more than was looked at: what came meanwhile was not.
    let (read, _) = recv(connection, &mut into[..seen.bytes], RecvFlags::DONTWAIT)?;
    Ok(read)
}
