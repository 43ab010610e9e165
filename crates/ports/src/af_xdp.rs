//! AF_XDP: an interface's queues without the kernel's network stack.
//!
//! Why: the fastest kind of uplink that works with the kernel's drivers.
//! From: `Documentation/networking/af_xdp.rst`.
//! Not here: offloads. There are no virtio-net headers: frames leave finished, in one segment, and
//! over a veth pair the other side must have its checksum offload off; the port says so if it has not.
//! Invariant: each frame of the UMEM is in one place: in a ring, in the free list, or with the kernel.
//!
//! Zero copy is used where the driver supports it, else the driver's hook with copies, else the generic hook behind the
//! driver; [`XdpSocket::mode`] tells which. Loading the program needs root or `CAP_BPF` and `CAP_NET_ADMIN` of the host:
//! a user namespace is not enough.

mod bpf;
mod helped;
mod memory;
mod queue;
mod unfinished;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll_wire::VnetHeader;
use serde::{Deserialize, Serialize};

use crate::carrier::Carrier;
use crate::contract::{Batch, Capabilities, Fds, MOST_LENT, Received, Trouble};
use crate::counters::{Counters, DropReason, Sending};
use crate::error::PortError;
use crate::ledger::{Ledger, Refused};
use crate::netns::{LinkInfo, Netns, NetnsRef};
use crate::socket;
use bpf::Redirect;
pub use helped::{XdpAttempt, XdpHelper, XdpQueues};
use queue::{Layout, Queue};
use unfinished::Unfinished;

/// Options for opening an AF_XDP socket.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The namespace of the interface.
    pub netns: NetnsRef,
    /// The interface.
    pub interface: String,
    /// How many queues of the interface are to be opened: its first ones.
    pub queues: u32,
    /// Frames for each direction of each queue, and entries of each ring; a power of two.
    pub frames: u32,
    /// The best mode to try; those after it are tried in turn.
    pub mode: XdpMode,
}

impl XdpConfig {
    /// One queue, 4,096 frames in each direction, and the best mode that the driver supports.
    #[must_use]
    pub fn new(netns: NetnsRef, interface: impl Into<String>) -> Self {
        Self { netns, interface: interface.into(), queues: 1, frames: 4_096, mode: XdpMode::ZeroCopy }
    }
}

/// The mode in which frames come from the driver, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum XdpMode {
    /// The driver writes directly into the socket's frames.
    ZeroCopy,
    /// The driver's hook; the kernel copies.
    Copy,
    /// The generic hook behind the driver, on any interface; the kernel copies.
    Generic,
}

impl XdpMode {
    /// The mode's name for operators.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero copy",
            Self::Copy => "copy",
            Self::Generic => "generic",
        }
    }
}

/// One queue of an interface, opened through AF_XDP.
#[derive(Debug)]
pub struct XdpSocket {
    name: String,
    link: LinkInfo,
    mode: XdpMode,
    queue: Queue,
    /// The interface's carrier, of all its queues; none where the kernel does not tell of it.
    carrier: Option<Arc<Carrier>>,
    /// Keeps the program on the interface while any queue is open.
    attachment: Attachment,
    capabilities: Capabilities,
    counters: Counters,
    ledger: Ledger,
    interface: String,
    unfinished: Unfinished,
    /// How many of how many queues are opened, until that is told; none where all are.
    beyond: Option<(u32, u32)>,
}

/// Keeps the XDP program attached to the interface.
#[derive(Clone, Debug)]
enum Attachment {
    /// The program, loaded by this process.
    Here { redirect: Arc<Redirect> },
    /// The program's BPF link, made by another process.
    Held(#[expect(dead_code, reason = "held, not used")] Arc<OwnedFd>),
}

impl XdpSocket {
    /// Opens the interface's first queue. Its other queues, if any, stay with the kernel, unless they are opened as well
    /// ([`XdpSocket::open_next`]).
    ///
    /// # Errors
    /// When the namespace or the interface does not exist, a privilege is missing, or the MTU is too large.
    pub fn open(config: &XdpConfig) -> Result<Self, PortError> {
        let netns = Netns::open(&config.netns)?;
        let link = link_of(&netns, &config.interface)?;
        let what = format!("open AF_XDP on `{}`", config.interface);
        let layout = Layout::new(config, &link, &what)?;
        let ((mode, redirect, queue), links) = netns
            .run(|| Ok((connect(config, link.index, layout)?, Carrier::socket()?)))?
            .map_err(|error| refused(what, netns.place(), error))?;
        let attachment = Attachment::Here { redirect: Arc::new(redirect) };
        let carrier = Carrier::follow(links, link.index).ok().map(Arc::new);
        Ok(Self::with(config, &link, mode, (0, queue), carrier, attachment))
    }

    /// Opens queue `number` of the interface, whose first queue is `self`, in the same mode; in a process without privileges with the
    /// help of another one. `number` is less than the number of queues that `config` states.
    ///
    /// # Errors
    /// As for [`XdpSocket::open`], or when the interface has fewer queues.
    pub fn open_next(
        &self,
        config: &XdpConfig,
        number: u32,
        helper: Option<&mut dyn XdpHelper>,
    ) -> Result<Self, PortError> {
        let what = format!("open AF_XDP on queue {number} of `{}`", config.interface);
        let (index, layout, flags) = (self.link.index, self.queue.layout, self.mode.flags());
        let opened = match (&self.attachment, helper) {
            (Attachment::Here { redirect }, _) => Netns::open(&config.netns)?.run(|| {
                let queue = patiently(|| Queue::open(index, number, layout, flags))?;
                redirect.sockets().set(number, &queue.socket)?;
                Ok(queue)
            })?,
            (Attachment::Held(_), Some(helper)) => helped::open_next(helper, (index, number), layout, flags),
            (Attachment::Held(_), None) => Err(io::Error::other("another process has its program")),
        };
        let queue = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => PortError::Config {
                what: what.clone(),
                problem: "the interface has fewer queues; each engine thread needs one \
                          (`ethtool -L NAME combined N` sets their number)"
                    .into(),
            },
            _ => refused(what.clone(), &config.netns.to_string(), error),
        })?;
        let (carrier, attachment) = (self.carrier.clone(), self.attachment.clone());
        // The first queue tells how many are not opened.
        let link = LinkInfo { queues: None, ..self.link.clone() };
        Ok(Self::with(config, &link, self.mode, (number, queue), carrier, attachment))
    }

    fn with(
        config: &XdpConfig,
        link: &LinkInfo,
        mode: XdpMode,
        (number, queue): (u32, Queue),
        carrier: Option<Arc<Carrier>>,
        attachment: Attachment,
    ) -> Self {
        Self {
            name: format!("af_xdp {} queue {number} ({})", config.interface, mode.name()),
            link: link.clone(),
            mode,
            queue,
            carrier,
            attachment,
            capabilities: Capabilities { mtu: link.mtu, ..Capabilities::default() },
            counters: Counters::default(),
            ledger: Ledger::default(),
            interface: config.interface.clone(),
            unfinished: Unfinished::default(),
            beyond: link
                .queues
                .filter(|queues| *queues > config.queues)
                .map(|queues| (config.queues, queues)),
        }
    }

    /// Whether the interface carries no frames: it is set down, its cable or far end is gone, or it waits for a protocol.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.carrier.as_ref().is_some_and(|carrier| carrier.is_down())
    }

    /// The mode in which frames come from the driver.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// The interface's MAC address when it was opened.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.link.mac.unwrap_or_default()
    }

    /// Reads one frame; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// [`Trouble`] when the interface is down or has disappeared. An idle queue asks the kernel only now and then; call
    /// [`XdpSocket::probe`] once a second to be sure.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        self.receive_with(buffer.len(), |frame, received| {
            buffer[..frame.len()].copy_from_slice(frame);
            *received
        })
    }

    /// Takes one frame of less than `room` bytes; see [`crate::Port::receive_with`].
    ///
    /// # Errors
    /// As for [`XdpSocket::receive`].
    pub fn receive_with<R>(
        &mut self,
        room: usize,
        take: impl FnOnce(&[u8], &Received) -> R,
    ) -> Result<Option<R>, Trouble> {
        let Some(place) = self.queue.next_received() else {
            return self.queue.refresh().map(|()| None);
        };
        let len = place.len as usize;
        let taken = self.queue.frame(place.addr, len, room).map(|frame| {
            self.unfinished.note(frame);
            take(frame, &Received { len, ..Received::default() })
        });
        if taken.is_some() {
            self.counters.received(len);
        } else {
            self.counters.lose(DropReason::Oversize);
        }
        self.queue.refill(place.addr);
        Ok(taken)
    }

    /// Takes up to `most` frames of less than `room` bytes; see [`crate::Port::receive_batch`].
    ///
    /// # Errors
    /// As for [`XdpSocket::receive`].
    pub fn receive_batch(
        &mut self,
        room: usize,
        most: usize,
        batch: &mut impl Batch,
    ) -> Result<usize, Trouble> {
        let mut places = [(0, 0); MOST_LENT];
        let mut came = 0;
        for place in places.iter_mut().take(most) {
            let Some(libc::xdp_desc { addr, len, .. }) = self.queue.next_received() else { break };
            *place = (addr, len as usize);
            came += 1;
        }
        if came == 0 {
            return self.queue.refresh().map(|()| 0);
        }
        let places = &places[..came];
        for (at, &(addr, len)) in places.iter().enumerate() {
            if let Some(frame) = self.queue.frame(addr, len, room) {
                batch.look(at, frame);
            }
        }
        for (at, &(addr, len)) in places.iter().enumerate() {
            if let Some(frame) = self.queue.frame(addr, len, room) {
                self.unfinished.note(frame);
                batch.take(at, frame, &Received { len, ..Received::default() });
                self.counters.received(len);
            } else {
                self.counters.lose(DropReason::Oversize);
            }
            self.queue.refill(addr);
        }
        Ok(came)
    }

    /// Stages one frame to be sent with others; see [`crate::Port::send`]. It is counted when it has left.
    ///
    /// # Errors
    /// [`Trouble`] when the interface has no carrier; [`XdpSocket::flush`] reports the device's other errors.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        self.place(frame.len(), vnet, |room| {
            room.copy_from_slice(frame);
            true
        })
    }

    /// Sends a frame of `len` bytes that `fill` writes in its place; see [`crate::Port::place`].
    ///
    /// # Errors
    /// As for [`XdpSocket::send`].
    pub fn place(
        &mut self,
        len: usize,
        vnet: Option<&VnetHeader>,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Sending, Trouble> {
        if let Some(reason) = self.capabilities.unfit(len, self.queue.layout.chunk as usize, vnet) {
            return Ok(self.counters.refuse(reason));
        }
        if let Some(trouble) = self.carries_nothing() {
            return Err(trouble);
        }
        if self.queue.free.is_empty() {
            self.reap();
        }
        Ok(match self.queue.push(len, fill) {
            None => Sending::Full,
            Some(false) => Sending::Refused(DropReason::Gone),
            Some(true) => {
                self.ledger.take();
                Sending::Sent
            }
        })
    }

    /// Makes the kernel send the staged frames, and takes back the frames that it has sent.
    ///
    /// # Errors
    /// [`Trouble`] when the interface is down (staged frames stay and leave later) or has disappeared.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        // The kernel would take frames that an interface without a carrier drops, and report them as sent.
        let nothing = if self.staged() > 0 { self.carries_nothing() } else { None };
        let outcome = nothing.map_or_else(|| self.queue.kick(), Err);
        self.reap();
        if outcome == Err(Trouble::Gone) {
            // Frames leave in the order in which they were accepted, so the lost ones are the last.
            let lost = self.queue.forget();
            self.ledger.refuse(lost, lost as u64, DropReason::Gone);
            self.counters.gone(lost);
        }
        outcome
    }

    /// Frames in the transmit ring that the kernel has not taken yet.
    #[must_use]
    pub fn staged(&self) -> usize {
        self.queue.transmit.waiting() as usize
    }

    /// Number of frames accepted by `send` so far, sent or not.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.ledger.taken()
    }

    /// Accepted frames that could not leave; see [`crate::Port::take_refused`].
    pub fn take_refused(&mut self) -> Option<Refused> {
        self.ledger.next_refused()
    }

    /// Why receivers will drop frames; see [`crate::Port::take_problem`].
    pub fn take_problem(&mut self) -> Option<PortError> {
        let unfinished = self.unfinished.take_problem(&self.name, &self.interface);
        unfinished.or_else(|| self.beyond.take().map(|(opened, queues)| self.is_bypassed(opened, queues)))
    }

    /// Frames arrive by queues that are not opened.
    fn is_bypassed(&self, opened: u32, queues: u32) -> PortError {
        let interface = &self.interface;
        PortError::Config {
            what: self.name.clone(),
            problem: format!(
                "receives from {opened} of {queues} queues of `{interface}`: frames that arrive by the others go to the \
                 host's kernel, and no tenant gets them. Run `ethtool -L {interface} combined {opened}` (for a veth: `rx \
                 {opened} tx {opened}`), or use `af_packet: {interface}`, which receives from all"
            ),
        }
    }

    /// The file descriptors to wait on.
    #[must_use]
    pub fn fds(&self) -> Fds {
        let fd = self.queue.socket.as_raw_fd();
        Fds { receive: Some(fd), transmit: Some(fd) }
    }

    /// Checks that the interface exists and is up; costs one system call.
    ///
    /// # Errors
    /// [`Trouble`] when it is down or has disappeared.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        self.queue.wake()
    }

    /// The offloads and MTU of the port.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Traffic so far, and frames that the kernel dropped before they were read.
    #[must_use]
    pub fn counters(&mut self) -> Counters {
        self.reap();
        let mut since_opened: libc::xdp_statistics = socket::zeroed();
        if socket::get(&self.queue.socket, libc::SOL_XDP, libc::XDP_STATISTICS, &mut since_opened).is_ok() {
            let dropped = since_opened.rx_dropped + since_opened.rx_ring_full;
            self.counters.rx_drops[DropReason::KernelFull as usize] = dropped;
        }
        self.counters
    }

    /// The port's name for operators.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Why no frame can leave, where the carrier is down; an interface that was deleted loses its carrier first.
    fn carries_nothing(&mut self) -> Option<Trouble> {
        self.is_down().then(|| self.probe().err().unwrap_or(Trouble::Down))
    }

    /// Takes back the frames that have left, and counts them.
    fn reap(&mut self) {
        for _ in 0..self.queue.completion.available() {
            let address = self.queue.completion.take();
            if let Some(len) = self.queue.take_back(address) {
                self.counters.sent(len as usize);
            }
        }
        self.queue.completion.release();
    }
}

/// The interface, with the number of its queues.
fn link_of(netns: &Netns, interface: &str) -> Result<LinkInfo, PortError> {
    let link = netns.links().get(interface)?;
    let queues = netns.run(|| socket::receive_queues(interface))?;
    Ok(LinkInfo { queues, ..link })
}

/// Opens the first queue in the best mode that works; runs inside the interface's namespace.
fn connect(config: &XdpConfig, interface: u32, layout: Layout) -> io::Result<(XdpMode, Redirect, Queue)> {
    let mut refusal = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    for mode in [XdpMode::ZeroCopy, XdpMode::Copy, XdpMode::Generic] {
        if mode < config.mode {
            continue;
        }
        let attempt = || {
            let redirect = Redirect::attach(interface, config.queues, mode.hook())?;
            let queue = Queue::open(interface, 0, layout, mode.flags())?;
            redirect.sockets().set(0, &queue.socket)?;
            Ok((mode, redirect, queue))
        };
        match patiently(attempt) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => refusal = error,
            outcome => return outcome,
        }
    }
    Err(refusal)
}

/// Retries while the queue is busy: one that was closed a moment ago stays busy for a while.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BUSY_TRIES {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(BUSY_PAUSE),
            outcome => return outcome,
        }
    }
    attempt()
}

fn refused(what: String, place: &str, error: io::Error) -> PortError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PortError::Permission {
            what,
            place: place.to_owned(),
            advice: "run as root of the host (a user namespace may load no BPF program), or use `af_packet`",
        },
        Some(libc::EBUSY | libc::EEXIST) => PortError::Config {
            what: format!("{what} in {place}"),
            problem: "another XDP program or socket holds it; end that program, \
                      or detach its hook with `ip link set dev NAME xdp off`"
                .into(),
        },
        _ => PortError::system(what, place, error),
    }
}

const BUSY_TRIES: usize = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(10);
