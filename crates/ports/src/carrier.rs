//! Whether an interface carries frames: its carrier and its operational state.
//!
//! Why: an interface that is set up, but whose cable or far end is gone, takes each frame and drops it without a word.
//! From: route netlink's `RTM_NEWLINK`, `IFF_LOWER_UP` and `IFF_RUNNING` (RFC 2863's operational state) of netdevice(7).
//! Not here: reading the kernel's messages (`netlink`), and what happens to frames meanwhile (`af_packet`, `af_xdp`).
//! Invariant: sending asks no system call for this; a thread waits for the kernel's messages, and ends with its [`Carrier`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::netlink::{self, HEADER, LINK};
use crate::socket;

/// The state of one interface, followed by a thread.
#[derive(Debug)]
pub(crate) struct Carrier {
    down: Arc<AtomicBool>,
    /// The thread ends when this is closed.
    _open: UnixStream,
}

impl Carrier {
    /// Opens a socket on which the kernel tells of changes to the interfaces of this thread's namespace.
    pub(crate) fn socket() -> io::Result<OwnedFd> {
        let socket = socket::open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        let mut address: libc::sockaddr_nl = socket::zeroed();
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        socket::bind(&socket, &address)?;
        Ok(socket)
    }

    /// Follows the interface with this index, on a socket that [`Carrier::socket`] has opened.
    pub(crate) fn follow(socket: OwnedFd, index: u32) -> io::Result<Self> {
        let (open, closed) = UnixStream::pair()?;
        let down = Arc::new(AtomicBool::new(false));
        // The answer to this is the state now; it comes like each change.
        ask(&socket, index)?;
        listen(&socket, index, &down)?;
        let known = Arc::clone(&down);
        let follow = move || while wait(&socket, &closed) && listen(&socket, index, &known).is_ok() {};
        std::thread::Builder::new().name("carrier".to_owned()).spawn(follow)?;
        Ok(Self { down, _open: open })
    }

    /// Whether the interface is set down, or its carrier or its operational state is down.
    pub(crate) fn is_down(&self) -> bool {
        // Nothing else is read because of this flag.
        self.down.load(Ordering::Relaxed)
    }
}

/// Waits for the kernel; returns false once the port is closed.
fn wait(socket: &OwnedFd, closed: &UnixStream) -> bool {
    let mut both =
        [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(closed.as_fd(), PollFlags::POLLIN)];
    match poll(&mut both, PollTimeout::NONE) {
        Ok(_) => both[1].any() != Some(true),
        Err(error) => error == Errno::EINTR,
    }
}

/// Takes all messages that have come. Messages that were lost are made up for by asking.
fn listen(socket: &OwnedFd, index: u32, down: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; LONGEST];
    loop {
        match socket::receive_from_kernel(socket, &mut buffer) {
            Ok(len) => {
                if let Some(carries) = netlink::carries(&buffer[..len], index) {
                    down.store(!carries, Ordering::Relaxed);
                }
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(()),
                Some(libc::EINTR) => {}
                Some(libc::ENOBUFS) => ask(socket, index)?,
                _ => return Err(error),
            },
        }
    }
}

/// The kernel's longest message by far; of a longer one the part that matters comes first.
const LONGEST: usize = 32 << 10;

/// Asks the kernel for an interface's state.
fn ask(socket: &OwnedFd, index: u32) -> io::Result<()> {
    let mut request = Vec::with_capacity(HEADER + LINK);
    request.extend(((HEADER + LINK) as u32).to_ne_bytes());
    request.extend(libc::RTM_GETLINK.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([0; 8]); // sequence and sender
    request.extend([0; 4]); // family and type
    request.extend(index.to_ne_bytes());
    request.extend([0; 8]); // flags
    nix::unistd::write(socket, &request)?;
    Ok(())
}
