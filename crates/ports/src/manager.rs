//! Notifications to the service manager, over a socket that is connected early.
//!
//! Why: after the daemon has changed to another user it may no longer connect to the manager's socket, but must still send
//! notifications.
//! From: `sd_notify(3)`; connecting needs write permission on the socket's file, sending over a connection does not.
//! Not here: the contents of notifications (`kept`, the daemon).
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

/// Connects to the manager, while the process still may; without this each notification connects anew.
pub fn connect() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // Fails for another kind of address, or a manager that is gone: each notification then connects as `sd_notify` does.
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path).map(|()| socket));
    if let Ok(socket) = connected {
        let _ = CONNECTED.set(socket);
    }
}

/// Sends a notification, with descriptors for the manager to keep.
///
/// # Errors
/// When it cannot be sent.
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

/// Most descriptors of one notification.
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
