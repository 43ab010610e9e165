//! What the service manager is told, over a socket that is connected beforehand.
//!
//! Why: whoever gives up its user may no longer connect to the manager's socket, and must go on telling it things.
//! From: `sd_notify(3)`; connecting takes the right to write to the socket's file, sending over a connection does not.
//! Not here: what is told (`kept`, the daemon).
//! Invariant: without a service manager nothing is sent, and nothing fails.

use std::fmt::Write;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sd_notify::NotifyState;

static CONNECTED: OnceLock<UnixDatagram> = OnceLock::new();

/// Connects to the manager, to be called while that is allowed; without this each message connects anew.
pub fn connect() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // Another kind of address, or a manager that is gone: each message then tries as `sd_notify` does.
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path).map(|()| socket));
    if let Ok(socket) = connected {
        let _ = CONNECTED.set(socket);
    }
}

/// Tells the manager, with descriptors for it to keep.
///
/// # Errors
/// When it cannot be told.
pub fn notify(states: &[NotifyState<'_>], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    match CONNECTED.get().map(|socket| send(socket, states, files)) {
        Some(Ok(())) => Ok(()),
        _ if files.is_empty() => sd_notify::notify(states),
        _ => sd_notify::notify_with_fds(states, files),
    }
}

fn send(socket: &UnixDatagram, states: &[NotifyState<'_>], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut text = String::new();
    for state in states {
        let _ = writeln!(text, "{state}"); // into memory: cannot fail
    }
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut rights = SendAncillaryBuffer::new(&mut room);
    if !files.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Descriptors that go with one message.
const MOST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_arrives_as_lines_and_with_its_descriptors() {
        let (here, there) = UnixDatagram::pair().expect("a pair");
        let file = std::fs::File::open("/dev/null").expect("there");
        let states = [NotifyState::FdStore, NotifyState::FdName("1a.f0")];
        send(&here, &states, &[std::os::fd::AsFd::as_fd(&file)]).expect("sent");
        let mut text = [0; 64];
        let len = there.recv(&mut text).expect("received");
        assert_eq!(&text[..len], b"FDSTORE=1\nFDNAME=1a.f0\n");
    }
}
