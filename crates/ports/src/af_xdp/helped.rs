//! AF_XDP for a process without privileges: another process opens the socket and loads the program.
//!
//! Why: the process that carries packets has no privileges. It must still own the memory of the frames and the rings, as
//! the kernel pins the pages of the process that registers them.
//! From: `SCM_RIGHTS` of unix(7): a socket stays in the network namespace in which it was opened, whichever process binds
//! it.
//! Not here: the messages between the two processes (`daemon::broker`).
//! Invariant: the program stays on the interface as long as the helped process holds its link, and no longer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bpf::{Hook, Redirect, Sockets};
use super::{Attachment, Layout, Queue, XdpConfig, XdpMode, XdpSocket, link_of, patiently, refused};
use crate::carrier::Carrier;
use crate::error::PortError;
use crate::netns::{LinkInfo, Netns};
use crate::socket;

/// The privileged process, seen from the process that it helps.
pub trait XdpHelper {
    /// Attaches a program to the interface in this mode and opens a socket; returns what [`XdpAttempt::files`] gives.
    ///
    /// # Errors
    /// The kernel's error.
    fn attach(&mut self, mode: XdpMode) -> io::Result<[OwnedFd; 3]>;

    /// Lets the program redirect packets to the socket of the last attempt, which must be bound.
    ///
    /// # Errors
    /// The kernel's error.
    fn register(&mut self) -> io::Result<()>;

    /// Opens a socket for another queue of the interface whose first queue was registered last.
    ///
    /// # Errors
    /// The kernel's error.
    fn join(&mut self, queue: u32) -> io::Result<OwnedFd>;
}

impl XdpSocket {
    /// Opens the first queue of the interface `link` with the help of another process.
    ///
    /// # Errors
    /// As for [`XdpSocket::open`].
    pub fn open_with(
        config: &XdpConfig,
        link: &LinkInfo,
        helper: &mut dyn XdpHelper,
    ) -> Result<Self, PortError> {
        let what = format!("open AF_XDP on `{}`", config.interface);
        let layout = Layout::new(config, link, &what)?;
        let connected = connect(config.mode, helper, link.index, layout);
        let Connected { mode, held, links, queue } =
            connected.map_err(|error| refused(what, &config.netns.to_string(), error))?;
        let carrier = Carrier::follow(links, link.index).ok().map(Arc::new);
        Ok(Self::with(config, link, mode, (0, queue), carrier, Attachment::Held(Arc::new(held))))
    }
}

/// A queue that was opened, and the descriptors that stay open with it.
struct Connected {
    mode: XdpMode,
    /// The program's link.
    held: OwnedFd,
    /// Where the kernel tells of links.
    links: OwnedFd,
    queue: Queue,
}

/// Opens the queue in the best mode that works.
fn connect(
    best: XdpMode,
    helper: &mut dyn XdpHelper,
    interface: u32,
    layout: Layout,
) -> io::Result<Connected> {
    let mut refusal = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    for mode in [XdpMode::ZeroCopy, XdpMode::Copy, XdpMode::Generic] {
        if mode < best {
            continue;
        }
        let attempt = || {
            let [socket, held, links] = helper.attach(mode)?;
            let queue = Queue::over(socket, interface, 0, layout, mode.flags())?;
            helper.register()?;
            Ok(Connected { mode, held, links, queue })
        };
        match patiently(attempt) {
            Ok(connected) => return Ok(connected),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// Opens a further queue.
pub(super) fn open_next(
    helper: &mut dyn XdpHelper,
    (interface, number): (u32, u32),
    layout: Layout,
    flags: u16,
) -> io::Result<Queue> {
    patiently(|| {
        let queue = Queue::over(helper.join(number)?, interface, number, layout, flags)?;
        helper.register()?;
        Ok(queue)
    })
}

/// The queues of an interface whose first is open, on the helper's side. This does not keep the program on the interface.
#[derive(Debug)]
pub struct XdpQueues {
    netns: Netns,
    sockets: Sockets,
}

impl XdpQueues {
    /// Opens a socket for another queue.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(&self) -> Result<io::Result<OwnedFd>, PortError> {
        self.netns.run(|| socket::open(libc::AF_XDP, libc::SOCK_RAW, 0))
    }

    /// Lets the program redirect packets of this queue to the socket, once the helped process has bound it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn register(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        self.sockets.set(queue, socket)
    }
}

/// An attempt to open a socket in one mode, on the helper's side.
#[derive(Debug)]
pub struct XdpAttempt {
    netns: Netns,
    socket: OwnedFd,
    redirect: Redirect,
    links: OwnedFd,
    link: LinkInfo,
}

impl XdpAttempt {
    /// Properties of the interface.
    ///
    /// # Errors
    /// When the namespace or the interface does not exist.
    pub fn link(config: &XdpConfig) -> Result<LinkInfo, PortError> {
        link_of(&Netns::open(&config.netns)?, &config.interface)
    }

    /// Attaches a program to the interface in this mode and opens a socket.
    ///
    /// # Errors
    /// When the namespace or the interface does not exist; the inner error is the kernel's refusal of this mode.
    pub fn new(config: &XdpConfig, mode: XdpMode) -> Result<io::Result<Self>, PortError> {
        let netns = Netns::open(&config.netns)?;
        let link = netns.links().get(&config.interface)?;
        let opened = netns.run(|| {
            let redirect = Redirect::attach(link.index, config.queues, mode.hook())?;
            Ok((redirect, socket::open(libc::AF_XDP, libc::SOCK_RAW, 0)?, Carrier::socket()?))
        })?;
        Ok(opened.map(|(redirect, socket, links)| Self { netns, socket, redirect, links, link }))
    }

    /// The interface.
    #[must_use]
    pub fn interface(&self) -> &LinkInfo {
        &self.link
    }

    /// The descriptors for the helped process: the socket, the program's link, and a socket on which the kernel tells of
    /// links.
    #[must_use]
    pub fn files(&self) -> [BorrowedFd<'_>; 3] {
        [self.socket.as_fd(), self.redirect.link(), self.links.as_fd()]
    }

    /// Lets the program redirect packets to the socket, once the helped process has bound it. Returns what opens further queues.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn register(self) -> io::Result<XdpQueues> {
        self.redirect.sockets().set(0, &self.socket)?;
        Ok(XdpQueues { netns: self.netns, sockets: self.redirect.into_sockets() })
    }
}

impl XdpMode {
    pub(super) const fn hook(self) -> Hook {
        match self {
            Self::ZeroCopy | Self::Copy => Hook::Driver,
            Self::Generic => Hook::Generic,
        }
    }

    /// Flags with which the socket is bound.
    pub(super) const fn flags(self) -> u16 {
        let copies = match self {
            Self::ZeroCopy => libc::XDP_ZEROCOPY,
            Self::Copy | Self::Generic => libc::XDP_COPY,
        };
        copies | libc::XDP_USE_NEED_WAKEUP
    }
}
