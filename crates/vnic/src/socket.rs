//! The Unix socket of a vNIC: messages, and the descriptors that come with the first answer.
//!
//! Why: the daemon hands shared memory to the process that may connect, and to no other.
//! From: unix(7), SOCK_SEQPACKET and SCM_RIGHTS.
//! Not here: the messages (`message`), and how the daemon accepts and reads (`ports`).
//! Invariant: no function here but [`wait_readable`] waits, whatever the other side does to its end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    bind, connect, listen, recv, recvmsg, send, sendmsg, socket,
};

use crate::message::{LEN, Message};

/// What was read from the socket.
#[derive(Debug)]
pub enum Incoming {
    /// A message.
    Message(Message),
    /// Bytes that are no message.
    Garbage,
    /// Nothing now.
    Nothing,
    /// The other side is gone.
    Closed,
}

fn new() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// Makes a listening socket at `path`, where no file may be.
///
/// # Errors
/// What the kernel says.
pub fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let listener = new()?;
    bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&listener, Backlog::new(4)?)?;
    Ok(listener)
}

/// Connects to the daemon's socket at `path`.
///
/// # Errors
/// What the kernel says.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let end = new()?;
    connect(end.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(end)
}

/// Sends a message, with descriptors if there are any.
///
/// # Errors
/// What the kernel says; `WouldBlock` when the other side does not read.
pub fn send_message(socket: &OwnedFd, message: Message, descriptors: &[RawFd]) -> io::Result<()> {
    let bytes = message.to_bytes();
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    if descriptors.is_empty() {
        send(socket.as_raw_fd(), &bytes, flags)?;
        return Ok(());
    }
    let slices = [io::IoSlice::new(&bytes)];
    let rights = [ControlMessage::ScmRights(descriptors)];
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &slices, &rights, flags, None)?;
    Ok(())
}

/// Reads a message of the daemon's. Descriptors that come with it are closed; the daemon sends none after its welcome.
#[expect(clippy::disallowed_methods, reason = "a client trusts its daemon")]
pub fn read_message(socket: &OwnedFd) -> Incoming {
    let mut bytes = [0; LEN + 1];
    match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
        Ok(0) => Incoming::Closed,
        Ok(len) => Message::from_bytes(&bytes[..len]).map_or(Incoming::Garbage, Incoming::Message),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => Incoming::Nothing,
        Err(_) => Incoming::Closed,
    }
}

/// Reads the daemon's answer to the first message, and the descriptors with it.
///
/// # Errors
/// What the kernel says; `UnexpectedEof` when the daemon is gone.
#[expect(clippy::disallowed_methods, reason = "a client trusts its daemon")]
pub fn read_welcome(socket: &OwnedFd) -> io::Result<(Option<Message>, Vec<OwnedFd>)> {
    let mut bytes = [0; LEN];
    let mut slices = [io::IoSliceMut::new(&mut bytes)];
    let mut space = cmsg_space!([RawFd; DESCRIPTORS]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut descriptors = Vec::new();
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            // SAFETY: the kernel just made these descriptors for us, and no other code knows them.
            descriptors.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let len = received.bytes;
    if len == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((Message::from_bytes(&bytes[..len]), descriptors))
}

/// Waits until a descriptor can be read, for at most `millis` (for ever when negative), and answers whether it can.
///
/// # Errors
/// What the kernel says; an interruption is no error.
pub fn wait_readable(fd: &impl AsFd, millis: i32) -> io::Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let timeout = if millis < 0 {
        PollTimeout::NONE
    } else {
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    };
    match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Descriptors in the daemon's welcome: region, kick and wake.
pub const DESCRIPTORS: usize = 3;
