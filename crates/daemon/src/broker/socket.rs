//! Messages with descriptors over a Unix socket.
//!
//! Why: a message may be a policy of many megabytes, longer than one datagram, and bring open files.
//! From: unix(7): descriptors arrive with the first byte that they were sent with.
//! Not here: what messages say (`message`).
//! Invariant: a message is as long as the receiver takes, or nothing of it is kept; the broker takes no descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Descriptors of one message: a port has two at most.
const FILES: usize = 4;

/// Longest request: it holds names.
pub(super) const REQUEST: usize = 64 << 10;

/// Longest answer, and longest start: the files of a policy, of which one has up to 16 MB.
pub(super) const ANSWER: usize = 1 << 30;

/// Sends a message.
///
/// # Errors
/// What the kernel says, also that the other side is gone; `InvalidInput` for a message that no receiver takes, of which
/// nothing is sent.
pub(super) fn send(
    mut socket: &UnixStream,
    message: &impl Serialize,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > ANSWER {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {} bytes", text.len()),
        ));
    }
    let len = u32::try_from(text.len()).map_err(io::Error::other)?.to_le_bytes();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut rights = SendAncillaryBuffer::new(&mut room);
    if !files.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("more descriptors than a message takes"));
    }
    let sent = retry(|| sendmsg(socket, &[IoSlice::new(&len)], &mut rights, SendFlags::NOSIGNAL))?;
    socket.write_all(&len[sent..])?;
    socket.write_all(&text)
}

/// Waits for a message of at most `most` bytes; none once the other side is gone. Descriptors are taken where `takes`.
///
/// # Errors
/// What the kernel says, or that the message is longer or makes no sense.
#[expect(
    clippy::disallowed_methods,
    reason = "the other side is this program, too: it passes what it has opened itself"
)]
pub(super) fn receive<T: DeserializeOwned>(
    mut socket: &UnixStream,
    most: usize,
    takes: bool,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut len = [0; 4];
    let mut files = Vec::new();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    // Without room the kernel closes what comes along.
    let mut rights = RecvAncillaryBuffer::new(if takes { &mut room } else { &mut [] });
    let first =
        retry(|| recvmsg(socket, &mut [IoSliceMut::new(&mut len)], &mut rights, RecvFlags::CMSG_CLOEXEC))?;
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            files.extend(came);
        }
    }
    if first.bytes == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut len[first.bytes..])?;
    let len = usize::try_from(u32::from_le_bytes(len)).map_err(io::Error::other)?;
    if len > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes")));
    }
    let mut text = vec![0; len];
    socket.read_exact(&mut text)?;
    Ok(Some((serde_json::from_slice(&text)?, files)))
}

fn retry<T>(mut call: impl FnMut() -> Result<T, rustix::io::Errno>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a pair")
    }

    #[test]
    fn a_long_message_comes_whole_and_with_its_files() {
        let (here, there) = pair();
        let text = "x".repeat(3 << 20);
        let file = File::open("/dev/null").expect("there");
        let sender = {
            let text = text.clone();
            std::thread::spawn(move || send(&here, &text, &[file.as_fd(), file.as_fd()]).expect("sent"))
        };
        let (came, files): (String, _) = receive(&there, ANSWER, true).expect("received").expect("one");
        sender.join().expect("sent");
        assert_eq!((came == text, files.len()), (true, 2));
        assert!(receive::<String>(&there, ANSWER, true).expect("an end").is_none());
    }

    #[test]
    fn a_receiver_that_takes_no_descriptors_gets_none() {
        let (here, there) = pair();
        let file = File::open("/dev/null").expect("there");
        send(&here, &1, &[file.as_fd()]).expect("sent");
        let (came, files): (u32, _) = receive(&there, REQUEST, false).expect("received").expect("one");
        assert_eq!((came, files.len()), (1, 0));
    }

    #[test]
    fn a_message_too_long_is_refused_before_it_is_read() {
        let (mut here, there) = pair();
        here.write_all(&u32::MAX.to_le_bytes()).expect("sent");
        let error = receive::<String>(&there, REQUEST, false).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
