//! Local connections: accepted, read and answered.
//!
//! Why: a peer on a Unix socket can send descriptors along even if the protocol has none, and the kernel closes those that
//! a reader has no room for within the reader's call.
//! From: unix(7) and recvmsg(2): a read with `MSG_PEEK` takes no descriptors and reports them by `MSG_CTRUNC`.
//! Not here: the meaning of the bytes.
//! Invariant: no call here waits, whatever the peer has sent; no descriptor is closed here.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::epoll::{Epoll, EpollEvent};
use nix::sys::socket::{ControlMessage, MsgFlags, Shutdown, SockFlag, UnixAddr, accept4, sendmsg, shutdown};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recv, recvmsg};

use super::{Closer, Foreign, ForeignFd};

/// A listening socket. Its queue holds connections that were not accepted yet, with the data sent over them.
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

    /// Accepts the next pending connection, if there is one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that accepts; the connection is foreign from here on"
    )]
    pub(crate) fn accept(&self) -> Option<Connection> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let accepted = accept4(self.socket.as_raw_fd(), flags).ok()?;
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
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
    /// Hangs up on all pending connections at once, since the listener itself may be closed much later.
    fn drop(&mut self) {
        // From here on no peer can connect.
        hang_up(&*self.socket);
        while self.accept().is_some() {}
    }
}

/// An accepted connection. Only this file reads from its descriptor. The peer learns of its end at once, even where the
/// close takes long.
#[derive(Debug)]
pub(crate) struct Connection(ForeignFd);

/// The result of [`Connection::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Bytes(usize),
    Nothing,
    /// Descriptors came, and none may. They stay in the queue.
    Descriptors,
    /// The peer has gone or has closed its sending side.
    End,
}

impl Connection {
    /// Reads bytes of a protocol that passes no descriptors.
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

    /// Reads bytes, and adds the descriptors that come along to `descriptors`, even when the process had no room for all of
    /// them and the read fails.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that receives; all descriptors are foreign from here on"
    )]
    pub(crate) fn receive(
        &self,
        into: &mut [u8],
        closer: &Closer,
        descriptors: &mut Vec<ForeignFd>,
    ) -> Result<usize, Errno> {
        // 253 is the most that the kernel passes at once: no descriptor is lost for lack of room here.
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

    /// Sends bytes and descriptors, and returns the number of bytes sent.
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
        // Fails only for a connection that was never watched.
        let _ = events.delete(&*self.0);
    }

    /// Closes the connection in place if the peer has closed its sending side and the queue is empty: then the close cannot
    /// wait.
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

/// Ends a connection for the peer, without closing the descriptor.
pub fn hang_up(connection: &impl AsFd) {
    // Fails only when the socket is no longer connected.
    let _ = shutdown(connection.as_fd().as_raw_fd(), Shutdown::Both);
}

/// Reads bytes of a local connection whose protocol passes no descriptors, without waiting. Descriptors that were sent
/// along stay unread in the queue.
///
/// # Errors
/// `InvalidData` when descriptors come along; the connection is then of no further use. `WouldBlock` when no bytes have
/// come. Any other error of the kernel.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that receives; descriptors are left in the queue"
)]
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
    // No more than was peeked at: bytes that came meanwhile may bring descriptors.
    let (read, _) = recv(connection, &mut into[..seen.bytes], RecvFlags::DONTWAIT)?;
    Ok(read)
}
