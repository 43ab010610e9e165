//! TAP interfaces: a tenant's network card, made inside the tenant's namespace.
//!
//! Why: the packets of a container or process reach the engine in frames of up to 64 KiB, with checksums and segmentation
//! left to be done (virtio-net headers).
//! From: `/dev/net/tun` and its ioctls (Linux `Documentation/networking/tuntap.rst`).
//! Not here: reading those headers (`wire`), and waiting (`daemon`).
//! Invariant: the interface ends with the process, unless its file is kept elsewhere (`kept`), and the process does not
//! keep the namespace alive.
//!
//! The interface is made in the process's own namespace under a temporary name and then moved. Made in the tenant's
//! namespace, its file would hold that namespace open for ever, and a deleted container would never be noticed. The
//! process therefore needs `CAP_NET_ADMIN` in both.

mod gather;

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use plimsoll_wire::VnetHeader;

use crate::contract::{
    Capabilities, FRAME_ROOM, Fds, LONGEST_FRAME, Received, Trouble, asks_for_work, vnet_bytes,
};
use crate::counters::{Counters, DropReason, Sending};
use crate::device::{Device, Holds};
use crate::error::{PortError, check_interface_name};
use crate::netns::{Cidr, LinkInfo, Links, Netns, NetnsRef, number_of};

/// Options for making a TAP.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// The interface's namespace.
    pub netns: NetnsRef,
    /// The interface's name in that namespace.
    pub name: String,
    /// The interface's MAC address; a random one when absent.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet.
    pub mtu: u32,
    /// Most packets of a segment that the tenant's kernel leaves uncut; the kernel's own limit when absent.
    pub most_segments: Option<u32>,
    /// Most packets from the tenant that wait in the kernel; further ones are dropped.
    pub txqueuelen: Option<u32>,
    /// The interface's IP addresses.
    pub addresses: Vec<Cidr>,
    /// Its routes, each with its next hop; they need an interface that is up.
    pub routes: Vec<(Cidr, Option<IpAddr>)>,
    /// Whether the tenant gets checksum and segmentation offload.
    pub offload: bool,
    /// Whether to set the interface up at once.
    pub up: bool,
    /// Whether the interface stays when its file is closed, and is used again when there is one.
    pub persist: bool,
}

impl TapConfig {
    /// A TAP with offloads, 1500 bytes of MTU and no address, set up at once.
    #[must_use]
    pub fn new(netns: NetnsRef, name: impl Into<String>) -> Self {
        Self {
            netns,
            name: name.into(),
            mac: None,
            mtu: 1_500,
            most_segments: None,
            txqueuelen: None,
            addresses: Vec::new(),
            routes: Vec::new(),
            offload: true,
            up: true,
            persist: false,
        }
    }
}

/// An open TAP interface.
///
/// ```no_run
/// use plimsoll_ports::{FRAME_ROOM, Tap, TapConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config = TapConfig::new("shop".into(), "eth0");
/// config.addresses.push("10.0.0.1/24".parse()?);
/// let mut tap = Tap::open(&config)?;
/// let mut buffer = vec![0; FRAME_ROOM];
/// if let Ok(Some(frame)) = tap.receive(&mut buffer) {
///     println!("{} bytes from {}", frame.len, tap.name());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
    device: String,
    resumed: bool,
    holds: Option<Holds>,
    lacks: Option<String>,
    /// Whether the log is to be told of it.
    untold: bool,
    mac: [u8; 6],
    capabilities: Capabilities,
    counters: Counters,
    /// Whether the frame that was read last was a short one.
    short: bool,
    /// A header, and a short frame behind it.
    whole: Box<[u8; VnetHeader::LEN + SHORT]>,
}

/// Most bytes of a frame that are copied or moved to save the kernel a second place.
const SHORT: usize = 512;

impl Tap {
    /// Makes the interface that `config` describes.
    ///
    /// # Errors
    /// When the namespace does not exist, the name is taken or not allowed, or a privilege is missing.
    pub fn open(config: &TapConfig) -> Result<Self, PortError> {
        if config.persist {
            return Self::open_in_place(config);
        }
        match Self::open_queues(config, 1) {
            Err(PortError::NameTaken { .. }) if was_ours(config) => Self::open_in_place(config),
            opened => Ok(opened?.pop().expect("one queue was asked for")),
        }
    }

    /// Uses the interface that is there, or makes it, and has it stay or not, as `config` states. The file is opened inside
    /// the namespace, and so keeps that open: the kernel finds an interface in its file's namespace only.
    fn open_in_place(config: &TapConfig) -> Result<Self, PortError> {
        check_interface_name(&config.name)?;
        let netns = Netns::open(&config.netns)?;
        let links = netns.links();
        let before = links.get(&config.name).ok();
        let queue = netns.run(|| TapQueue::new(&config.name, config, 0))??;
        set_persist(&queue.file, config.persist).map_err(|error| {
            let stay = if config.persist { "stay" } else { "end with this process" };
            PortError::system(format!("have TAP `{}` {stay}", config.name), netns.place(), error)
        })?;
        let link = adjust(&links, config)?;
        // One that its tenant has set down stays down.
        let up = before.as_ref().map_or(config.up, |before| before.up);
        if up && before.is_none() {
            links.set_up(&config.name)?;
        }
        let lacks = address_or_lack(&links, config, up)?;
        let device = device_key(&netns, &link)?;
        let tap = Self { resumed: before.is_some(), ..Self::with(queue, config, device, &link) };
        Ok(tap.lacking(lacks).holding(config, &netns))
    }

    /// Makes the interface with `queues` transmit and receive queues, one value for each.
    ///
    /// # Errors
    /// As for [`Tap::open`].
    pub fn open_queues(config: &TapConfig, queues: u16) -> Result<Vec<Self>, PortError> {
        check_interface_name(&config.name)?;
        let netns = Netns::open(&config.netns)?;
        let first_name = if netns.is_own() { config.name.clone() } else { temporary_name() };
        let extra = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };

        let first = TapQueue::new(&first_name, config, libc::IFF_TUN_EXCL | extra)?;
        let mut attached = vec![first];
        for _ in 1..queues {
            attached.push(TapQueue::new(&first_name, config, extra)?);
        }
        let (link, lacks) = move_and_configure(&netns, &first_name, config)?;
        let device = device_key(&netns, &link)?;
        let tap = |queue| Self::with(queue, config, device.clone(), &link).lacking(lacks.clone());
        Ok(attached.into_iter().map(tap).collect())
    }

    /// The namespace number and the name of the TAP that `file` is open on; none when `file` is not a TAP's, the TAP has
    /// several queues or no virtio-net headers, or the kernel is too old to report it.
    pub(crate) fn place_of(file: &OwnedFd) -> Option<(u64, String)> {
        let (name, flags) = interface_of(file)?;
        // IFF_NO_PI cannot be checked: its bit has another meaning here.
        let kind = libc::IFF_TUN | libc::IFF_TAP | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
        let ours = flags & kind == libc::IFF_TAP | libc::IFF_VNET_HDR;
        Some((namespace_of(file).filter(|_| ours)?, name))
    }

    /// Resumes an interface whose file has outlived the process that made it; `device` is the earlier result of
    /// [`Tap::device`]. Its addresses, routes and waiting packets are kept.
    ///
    /// # Errors
    /// When it cannot be configured as `config` says.
    pub(crate) fn resume(file: OwnedFd, device: String, config: &TapConfig) -> Result<Self, PortError> {
        let netns = Netns::open(&config.netns)?;
        let queue = TapQueue::ready(file.into(), config)?;
        let links = netns.links();
        let link = adjust(&links, config)?;
        let lacks = address_or_lack(&links, config, link.up)?;
        let tap = Self { resumed: true, ..Self::with(queue, config, device, &link) }.lacking(lacks);
        Ok(if config.persist { tap.holding(config, &netns) } else { tap })
    }

    /// Sets the MTU of an open TAP's interface, adds the addresses that it lacks, and sets its routes.
    ///
    /// # Errors
    /// When the interface has disappeared, or the kernel refuses.
    pub fn configure(config: &TapConfig) -> Result<(), PortError> {
        let netns = Netns::open(&config.netns)?;
        let links = netns.links();
        links.set_mtu(&config.name, config.mtu)?;
        if let Some(segments) = config.most_segments {
            links.set_most_segments(&config.name, segments)?;
        }
        address(&links, config, links.get(&config.name)?.up)
    }

    /// Has the interface stay when its file is closed, or not.
    ///
    /// # Errors
    /// When the interface has disappeared.
    pub fn set_persist(&self, persist: bool) -> io::Result<()> {
        set_persist(&self.file, persist)
    }

    /// Counts its traffic from here on: it has another owner.
    pub fn restart_counters(&mut self) {
        self.counters = Counters::default();
    }

    /// Takes the port apart into its file and the device's properties.
    pub(crate) fn into_parts(self) -> (Device, OwnedFd) {
        let Self { file, name, device: key, holds, lacks, mac, capabilities, .. } = self;
        (Device { name, key, mac, capabilities, vnet: true, holds, lacks }, file.into())
    }

    /// Puts together a port that [`Tap::into_parts`] took apart.
    pub(crate) fn from_parts(device: Device, file: OwnedFd) -> Self {
        let Device { name, key, mac, capabilities, holds, lacks, .. } = device;
        let (counters, untold) = (Counters::default(), lacks.is_some());
        let file = file.into();
        let (short, whole) = (false, Box::new([0; VnetHeader::LEN + SHORT]));
        Self {
            file,
            name,
            device: key,
            resumed: false,
            holds,
            lacks,
            untold,
            mac,
            capabilities,
            counters,
            short,
            whole,
        }
    }

    /// The file was opened in the namespace of `config`, which lives as long as the file.
    fn holding(self, config: &TapConfig, netns: &Netns) -> Self {
        let number = netns.number().ok().filter(|_| config.netns != NetnsRef::Own);
        let path = config.netns.path();
        Self { holds: number.map(|number| Holds { path, number }), ..self }
    }

    /// Whether the place in the policy is another namespace by now, and only this port keeps the one of before.
    #[must_use]
    pub fn is_left_behind(&self) -> bool {
        self.holds.as_ref().is_some_and(Holds::is_replaced)
    }

    fn lacking(self, lacks: Option<String>) -> Self {
        Self { untold: lacks.is_some(), lacks, ..self }
    }

    /// What the interface lacks of its configuration, and why.
    #[must_use]
    pub fn lacks(&self) -> Option<&str> {
        self.lacks.as_deref()
    }

    /// The interface has been configured anew, as a whole.
    pub fn set_whole(&mut self) {
        (self.lacks, self.untold) = (None, false);
    }

    /// What the interface lacks, for the log; reported once.
    pub fn take_problem(&mut self) -> Option<PortError> {
        let lacks = self.lacks.clone().filter(|_| core::mem::take(&mut self.untold))?;
        Some(PortError::Config { what: self.name.clone(), problem: lacks })
    }

    fn with(queue: TapQueue, config: &TapConfig, device: String, link: &LinkInfo) -> Self {
        let label = match &config.netns {
            NetnsRef::Own => config.name.clone(),
            NetnsRef::Name(netns) => format!("{netns}/{}", config.name),
            NetnsRef::Path(path) => format!("{}:{}", path.display(), config.name),
        };
        Self {
            file: queue.file,
            name: format!("tap {label}"),
            device,
            resumed: false,
            holds: None,
            lacks: None,
            untold: false,
            mac: link.mac.unwrap_or_default(),
            capabilities: Capabilities {
                takes_segmentation: true,
                gives_segmentation: config.offload,
                udp_segmentation: queue.udp_segmentation,
                cwr_segmentation: true,
                takes_partial_checksum: true,
                mtu: config.mtu,
            },
            counters: Counters::default(),
            short: false,
            whole: Box::new([0; VnetHeader::LEN + SHORT]),
        }
    }

    /// A short name that is unique on this machine, such as `1a.f0000093`: the interface's index when it was made, and its
    /// namespace's number. Short, as all names that a service manager keeps have to fit into 128 KiB.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether the interface was made by an earlier process and resumed (`Kept`).
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The MAC address of the tenant's side.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Reads one frame; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the interface has disappeared.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        let room = buffer.len();
        // Bounded: a frame too long for the buffer is counted, and the next one tried.
        for _ in 0..OVERSIZE_RUN {
            let (header, len) = match self.read(buffer) {
                Ok(read) => read,
                Err(error) => return self.receive_failed(&error),
            };
            if len == room {
                // The kernel cuts frames silently, so a full buffer is taken for a cut frame.
                self.counters.lose(DropReason::Oversize);
                continue;
            }
            self.counters.received(len);
            return Ok(Some(Received {
                len,
                vnet: Some(VnetHeader::from_bytes(header)),
                ..Received::default()
            }));
        }
        Ok(None)
    }

    /// Reads the header and the frame behind it. Two places cost the kernel more than one, so where the frame before was a short one,
    /// both are read to one place, and the frame is moved.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<([u8; VnetHeader::LEN], usize)> {
        let mut header = [0; VnetHeader::LEN];
        let together = self.short && buffer.len() >= FRAME_ROOM + VnetHeader::LEN;
        let read = if together {
            self.file.read(buffer)?
        } else {
            self.file.read_vectored(&mut [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)])?
        };
        let len = read.saturating_sub(VnetHeader::LEN);
        if together {
            header.copy_from_slice(&buffer[..VnetHeader::LEN]);
            buffer.copy_within(VnetHeader::LEN..VnetHeader::LEN + len, 0);
        }
        self.short = len <= SHORT;
        Ok((header, len))
    }

    /// Sends one frame; see [`crate::Port::send`].
    ///
    /// # Errors
    /// [`Trouble`] when the interface is down or has disappeared.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        if let Some(reason) = self.capabilities.unfit(frame.len(), LONGEST_FRAME, vnet) {
            return Ok(self.counters.refuse(reason));
        }
        let header = vnet_bytes(vnet);
        let written = if frame.len() <= SHORT {
            // Two places cost the kernel more than this copy.
            let whole = &mut self.whole[..VnetHeader::LEN + frame.len()];
            whole[..VnetHeader::LEN].copy_from_slice(&header);
            whole[VnetHeader::LEN..].copy_from_slice(frame);
            self.file.write(whole)
        } else {
            self.file.write_vectored(&[IoSlice::new(&header), IoSlice::new(frame)])
        };
        match written {
            Ok(written) if written >= frame.len() => Ok(self.counters.sent(frame.len())),
            Ok(_) => Ok(self.counters.refuse(DropReason::Kernel)),
            Err(error) => self.send_failed(&error, vnet),
        }
    }

    /// Does nothing, as each frame leaves when it is sent.
    ///
    /// # Errors
    /// None.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    /// The file descriptors to wait on.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds { receive: Some(self.file.as_raw_fd()), transmit: Some(self.file.as_raw_fd()) }
    }

    /// Checks that the interface still exists.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when it does not.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        let mut request = interface_request("");
        tun_ioctl(self.file.as_raw_fd(), libc::TUNGETIFF, (&raw mut request).cast())
            .map_err(|_| Trouble::Gone)
    }

    /// The offloads and MTU of the port.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// The port's traffic so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The port's name for operators.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    #[cold]
    fn receive_failed(&mut self, error: &io::Error) -> Result<Option<Received>, Trouble> {
        match error.raw_os_error() {
            Some(libc::EBADFD | libc::ENODEV | libc::EBADF | libc::ENXIO) => Err(Trouble::Gone),
            Some(libc::EIO | libc::ENETDOWN) => Err(Trouble::Down),
            _ if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::Interrupted => Ok(None),
            _ => {
                self.counters.lose(DropReason::Kernel);
                Ok(None)
            }
        }
    }

    #[cold]
    fn send_failed(&mut self, error: &io::Error, vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(Sending::Full),
            Some(libc::EBADFD | libc::ENODEV | libc::EBADF | libc::ENXIO) => Err(Trouble::Gone),
            Some(libc::EIO | libc::ENETDOWN) => Err(Trouble::Down),
            Some(libc::EINVAL) if asks_for_work(vnet) => Ok(self.counters.refuse(DropReason::BadOffload)),
            _ => Ok(self.counters.refuse(DropReason::Kernel)),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// One queue of an interface, before the interface is moved to its namespace.
struct TapQueue {
    file: File,
    udp_segmentation: bool,
}

impl TapQueue {
    fn new(name: &str, config: &TapConfig, extra: libc::c_int) -> Result<Self, PortError> {
        let what = || format!("make TAP `{}`", config.name);
        let place = || config.netns.to_string();
        let file = File::options().read(true).write(true).open(DEVICE).map_err(|error| match error.kind() {
            ErrorKind::NotFound => PortError::Unsupported {
                what: what(),
                place: place(),
                advice: "/dev/net/tun is missing; load the `tun` module, or give the container that device",
            },
            _ => PortError::system(format!("{} (open {DEVICE})", what()), place(), error),
        })?;
        let fd = file.as_raw_fd();

        let mut request = interface_request(name);
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | extra;
        // The kernel reads these sixteen bits as flags; TUN_EXCL is the sign bit, hence the cast.
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        tun_ioctl(fd, libc::TUNSETIFF, (&raw mut request).cast()).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => {
                    PortError::NameTaken { what: what(), name: config.name.clone(), place: place() }
                }
                _ => PortError::system(what(), place(), error),
            }
        })?;
        Self::ready(file, config)
    }

    /// Sets the file to virtio-net headers, offloads and non-blocking reads.
    fn ready(file: File, config: &TapConfig) -> Result<Self, PortError> {
        let (fd, what, place) =
            (file.as_raw_fd(), format!("make TAP `{}`", config.name), config.netns.to_string());
        let mut header_len = VnetHeader::LEN as libc::c_int;
        tun_ioctl(fd, libc::TUNSETVNETHDRSZ, (&raw mut header_len).cast())
            .map_err(|error| PortError::system(format!("{what}: header size"), &place, error))?;
        let udp_segmentation = config.offload && offer_offloads(fd, &what, &place)?;
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|error| PortError::system(what, place, error.into()))?;
        Ok(Self { file, udp_segmentation })
    }
}

/// Offers all offloads, or those that an older kernel knows; returns whether UDP segmentation is among them.
fn offer_offloads(fd: RawFd, what: &str, place: &str) -> Result<bool, PortError> {
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let mut refusal = None;
    for offer in [tcp | udp, tcp, libc::TUN_F_CSUM] {
        match set_offload(fd, offer) {
            Ok(()) => return Ok(offer & udp != 0),
            Err(error) => refusal = Some(error),
        }
    }
    let error = refusal.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
    Err(PortError::system(format!("{what}: offloads"), place, error))
}

/// Whether the interface that has the name is a TAP that an earlier process made for `config`, which persists: it has the
/// hardware address of this machine's TAP of that name. Whether another process holds it shows when it is opened.
fn was_ours(config: &TapConfig) -> bool {
    let Ok(netns) = Netns::open(&config.netns) else { return false };
    let there = netns.links().get(&config.name);
    there.is_ok_and(|there| there.mac.is_some() && there.mac == config.mac)
}

fn set_persist(file: &File, persist: bool) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST takes its argument by value and writes no memory.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(persist)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves the interface to its namespace and configures it; returns its properties.
fn move_and_configure(
    netns: &Netns,
    first_name: &str,
    config: &TapConfig,
) -> Result<(LinkInfo, Option<String>), PortError> {
    if !netns.is_own() {
        Netns::own()?.links().move_to(first_name, netns)?;
        netns.links().rename(first_name, &config.name)?;
    }
    let (links, name) = (netns.links(), config.name.as_str());
    let link = adjust(&links, config)?;
    if config.up {
        links.set_up(name)?;
    }
    Ok((link, address_or_lack(&links, config, config.up)?))
}

/// Like [`address`]; where the interface can have no IPv6 address, it gets the others, and the answer is what it lacks.
fn address_or_lack(links: &Links<'_>, config: &TapConfig, up: bool) -> Result<Option<String>, PortError> {
    let lacks = match address(links, config, up) {
        Err(error @ PortError::NoIpv6 { .. }) => error.to_string(),
        addressed => return addressed.map(|()| None),
    };
    let mut rest = config.clone();
    rest.addresses.retain(|one| one.addr.is_ipv4());
    rest.routes.retain(|(to, _)| to.addr.is_ipv4());
    address(links, &rest, up)?;
    Ok(Some(lacks))
}

/// Gives an interface the addresses that it lacks and, if it is `up`, its routes.
fn address(links: &Links<'_>, config: &TapConfig, up: bool) -> Result<(), PortError> {
    let name = config.name.as_str();
    for &address in &config.addresses {
        match links.add_address(name, address) {
            Ok(()) | Err(PortError::NameTaken { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut routes = config.routes.iter().filter(|_| up);
    routes.try_for_each(|&(to, via)| links.replace_route(to, via, Some(name)))
}

/// Sets the MAC address, MTU and queue length of an interface; returns its properties. A MAC address that it has already
/// is not set again, as that would clear its neighbour table.
fn adjust(links: &Links<'_>, config: &TapConfig) -> Result<LinkInfo, PortError> {
    let name = config.name.as_str();
    let had = links.get(name)?.mac;
    if let Some(mac) = config.mac.filter(|&mac| had != Some(mac)) {
        links.set_mac(name, mac)?;
    }
    links.set_mtu(name, config.mtu)?;
    if let Some(segments) = config.most_segments {
        links.set_most_segments(name, segments)?;
    }
    if let Some(packets) = config.txqueuelen {
        links.set_txqueuelen(name, packets)?;
    }
    links.get(name)
}

/// Makes the name for [`Tap::device`].
fn device_key(netns: &Netns, link: &LinkInfo) -> Result<String, PortError> {
    let number = netns.number().map_err(|error| PortError::system("look at", netns.place(), error))?;
    Ok(format!("{:x}.{number:x}", link.index))
}

/// Name and flags of the interface that a file of [`DEVICE`] belongs to.
fn interface_of(file: &OwnedFd) -> Option<(String, libc::c_int)> {
    let mut found = interface_request("");
    tun_ioctl(file.as_raw_fd(), libc::TUNGETIFF, (&raw mut found).cast()).ok()?;
    let name = found.ifr_name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    // SAFETY: TUNGETIFF fills the flags in.
    let flags = unsafe { found.ifr_ifru.ifru_flags };
    Some((String::from_utf8(name).ok()?, flags.into()))
}

/// Number of the namespace that the interface of such a file is in.
fn namespace_of(file: &OwnedFd) -> Option<u64> {
    // SAFETY: TUNGETDEVNETNS takes no argument and returns a descriptor, or an error.
    let place = unsafe { libc::ioctl(file.as_raw_fd(), TUNGETDEVNETNS) };
    // SAFETY: the kernel has just opened it, and nothing else owns it.
    let place = (place >= 0).then(|| unsafe { OwnedFd::from_raw_fd(place) })?;
    number_of(&place).ok()
}

/// A unique name for the interface before its move, made of the process id and a count.
fn temporary_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: it only matters that the counts differ.
    let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xffff;
    format!("plm{:x}.{count:x}", std::process::id() & 0x3f_ffff)
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` holds integers and a pointer; all zeroes is a valid value of each.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero: names have been checked to leave room for it.
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn tun_ioctl(fd: RawFd, request: libc::Ioctl, argument: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: the callers in this file pass a pointer to a live value of the type that `request`
    // reads and writes: an `ifreq` for TUNSETIFF and TUNGETIFF, an `int` for TUNSETVNETHDRSZ. Files of other kinds
    // refuse these requests.
    let answer = unsafe { libc::ioctl(fd, request, argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_offload(fd: RawFd, offer: libc::c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value and writes no memory.
    let answer = unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD, libc::c_ulong::from(offer)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The device file through which TAPs are made.
const DEVICE: &str = "/dev/net/tun";

/// The request for a TAP's namespace; since Linux 5.2, and not yet in `libc`.
const TUNGETDEVNETNS: libc::Ioctl = libc::_IO(b'T' as u32, 227);

/// Most frames longer than the buffer that one call skips.
const OVERSIZE_RUN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_fit_and_differ() {
        let (one, two) = (temporary_name(), temporary_name());
        assert_ne!(one, two);
        for name in [one, two] {
            assert!(check_interface_name(&name).is_ok(), "{name}");
        }
    }
}
