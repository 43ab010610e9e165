//! Packet sockets: any interface that Linux knows, without a driver's help.
//!
//! Why: an uplink where AF_XDP is not available, and one with segmentation offload everywhere.
//! From: packet(7): `recvmmsg` and `sendmmsg` with virtio-net headers. The receive ring
//! (TPACKET_V3) was rejected: it hands over blocks, and a block waits for its timer.
//! Not here: filtering; the socket receives all frames that arrive at the interface.
//! Invariant: VLAN tags that the kernel removed are put back before the frame is handed on.

mod batch;
mod fanout;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use plimsoll_wire::VnetHeader;

use crate::carrier::Carrier;
use crate::contract::{Capabilities, FRAME_ROOM, Fds, LONGEST_FRAME, Received, Trouble, vnet_bytes};
use crate::counters::{Counters, DropReason, Sending};
use crate::device::Device;
use crate::error::PortError;
use crate::ledger::{Ledger, Refused};
use crate::netns::{Netns, NetnsRef};
use crate::socket;
use batch::{Inbox, Outbox, send_one};

/// Options for opening a packet socket.
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The namespace of the interface.
    pub netns: NetnsRef,
    /// The interface.
    pub interface: String,
    /// Exchange virtio-net headers, so that checksums and segmentation can be left to the device.
    pub vnet: bool,
    /// Send past the interface's queueing discipline. The kernel then cannot segment for a device
    /// that cannot do it itself, so [`Capabilities::takes_segmentation`] is off.
    pub bypass: bool,
    /// Receive frames for all MAC addresses: tenants have addresses of their own.
    pub promiscuous: bool,
    /// Bytes of the kernel's buffer for received frames.
    pub receive_buffer: u32,
}

impl PacketConfig {
    /// Offloads on, the queueing discipline kept, all addresses, 8 MiB of buffer.
    #[must_use]
    pub fn new(netns: NetnsRef, interface: impl Into<String>) -> Self {
        Self {
            netns,
            interface: interface.into(),
            vnet: true,
            bypass: false,
            promiscuous: true,
            receive_buffer: 8 << 20,
        }
    }
}

/// Bytes of a frame that is sent from where it lies.
const LONG: usize = 16 << 10;

/// Most frames that are thrown away when several sockets begin to share an interface.
const MOST_BEFORE: usize = 65_536;

/// An open packet socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    /// The interface's carrier; none where the kernel does not tell of it.
    carrier: Option<Carrier>,
    name: String,
    vnet: bool,
    mac: [u8; 6],
    inbox: Inbox,
    outbox: Outbox,
    capabilities: Capabilities,
    counters: Counters,
    ledger: Ledger,
}

impl PacketSocket {
    /// Opens what `config` describes.
    ///
    /// # Errors
    /// When the namespace or the interface does not exist, or a privilege is missing.
    pub fn open(config: &PacketConfig) -> Result<Self, PortError> {
        let (device, socket, links) = Self::open_parts(config)?;
        Ok(Self::from_parts(device, socket, links))
    }

    /// Opens its sockets, of which [`PacketSocket::from_parts`] makes the port: its own, and one on which the kernel tells of
    /// links.
    pub(crate) fn open_parts(config: &PacketConfig) -> Result<(Device, OwnedFd, OwnedFd), PortError> {
        let netns = Netns::open(&config.netns)?;
        let link = netns.links().get(&config.interface)?;
        let what = format!("open a packet socket on `{}`", config.interface);
        let (socket, links) = netns
            .run(|| Ok((connect(config, link.index)?, Carrier::socket()?)))?
            .map_err(|error| PortError::system(what, netns.place(), error))?;
        let device = Device {
            name: format!("af_packet {}", config.interface),
            key: String::new(),
            mac: link.mac.unwrap_or_default(),
            capabilities: Capabilities {
                takes_segmentation: config.vnet && !config.bypass,
                gives_segmentation: config.vnet,
                udp_segmentation: config.vnet
                    && !config.bypass
                    && socket::kernel_is_at_least(UDP_SEGMENTATION),
                cwr_segmentation: true,
                takes_partial_checksum: config.vnet,
                mtu: link.mtu,
            },
            vnet: config.vnet,
            holds: None,
            lacks: None,
        };
        Ok((device, socket, links))
    }

    /// Puts together the port of the sockets that [`PacketSocket::open_parts`] has opened.
    pub(crate) fn from_parts(device: Device, socket: OwnedFd, links: OwnedFd) -> Self {
        let Device { name, mac, capabilities, vnet, .. } = device;
        let index = socket::bound_interface(&socket).ok().and_then(|index| u32::try_from(index).ok());
        let carrier = index.and_then(|index| Carrier::follow(links, index).ok());
        Self {
            socket,
            carrier,
            name,
            vnet,
            mac,
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            capabilities,
            counters: Counters::default(),
            ledger: Ledger::default(),
        }
    }

    /// Whether the interface carries no frames: it is set down, its cable or far end is gone, or it waits for a protocol.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.carrier.as_ref().is_some_and(Carrier::is_down)
    }

    /// The interface's MAC address when it was opened.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Has several sockets on one interface share the frames that arrive there: each frame goes to one of them, and all frames of a
    /// flow go to the same one. What has come before this is lost, as each of them has a copy. To be called before they are used.
    ///
    /// # Errors
    /// When the kernel does not do that for this interface.
    pub fn fan_out(sockets: &mut [&mut Self]) -> Result<(), PortError> {
        let mut group = None;
        for socket in sockets.iter_mut() {
            let joined = fanout::join(&socket.socket, group);
            group = Some(joined.map_err(|error| {
                PortError::system("divide the frames of", format!("`{}`", socket.name), error)
            })?);
        }
        let mut landing = vec![0; FRAME_ROOM];
        for socket in sockets {
            // Bounded, in case that frames come as fast as they are read.
            for _ in 0..MOST_BEFORE {
                if !matches!(socket.receive(&mut landing), Ok(Some(_))) {
                    break;
                }
            }
            socket.counters = Counters::default();
        }
        Ok(())
    }

    /// Reads one frame; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// [`Trouble`] when the interface is down or has disappeared.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        self.refill()?;
        while let Some(message) = self.inbox.next() {
            if let Some(received) = message.copy_to(buffer, self.vnet) {
                self.counters.received(received.len);
                return Ok(Some(received));
            }
            self.counters.lose(DropReason::Oversize);
        }
        Ok(None)
    }

    /// Takes one frame, of at most as many bytes as `buffer` has; see [`crate::Port::receive_with`]. A frame whose VLAN tag has to be put
    /// back is copied.
    ///
    /// # Errors
    /// As for [`PacketSocket::receive`].
    pub fn receive_with<R>(
        &mut self,
        buffer: &mut [u8],
        take: impl FnOnce(&[u8], &Received) -> R,
    ) -> Result<Option<R>, Trouble> {
        self.refill()?;
        while let Some(message) = self.inbox.next() {
            if let Some((frame, received)) = message.whole(buffer, self.vnet) {
                self.counters.received(received.len);
                return Ok(Some(take(frame, &received)));
            }
            self.counters.lose(DropReason::Oversize);
        }
        Ok(None)
    }

    /// Reads what waits in the kernel once all that was read before is taken.
    fn refill(&mut self) -> Result<(), Trouble> {
        if self.inbox.is_empty()
            && let Err(error) = self.inbox.fill(&self.socket)
        {
            return self.receive_failed(&error);
        }
        Ok(())
    }

    /// Stages one frame to be sent with others; see [`crate::Port::send`]. It is counted when it leaves. A long one leaves at once.
    ///
    /// # Errors
    /// [`Trouble`] when the interface is down or has disappeared.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        if frame.len() >= LONG && self.capabilities.unfit(frame.len(), LONGEST_FRAME, vnet).is_none() {
            return self.send_now(frame, vnet);
        }
        self.stage(frame, vnet)
    }

    /// Sends a frame from where it lies, as a copy of a long one costs more than a system call for it. Those that are staged leave before
    /// it; if they do not, or there is no room for this one, it is staged behind them.
    fn send_now(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        if let Some(trouble) = self.carries_nothing() {
            return Err(trouble);
        }
        self.flush()?;
        if !self.outbox.is_empty() {
            return self.stage(frame, vnet);
        }
        let header = vnet_bytes(vnet);
        match send_one(&self.socket, if self.vnet { &header } else { &[] }, frame) {
            Ok(()) => {
                self.ledger.take();
                Ok(self.counters.sent(frame.len()))
            }
            Err(error) => match self.send_failed(&error) {
                None => self.stage(frame, vnet),
                Some(Ok(reason)) => Ok(self.counters.refuse(reason)),
                Some(Err(trouble)) => Err(self.stopped(trouble)),
            },
        }
    }

    fn stage(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        self.place(frame.len(), vnet, |room| {
            room.copy_from_slice(frame);
            true
        })
    }

    /// Sends a frame of `len` bytes that `fill` writes in its place; see [`crate::Port::place`].
    ///
    /// # Errors
    /// As for [`PacketSocket::send`].
    pub fn place(
        &mut self,
        len: usize,
        vnet: Option<&VnetHeader>,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Sending, Trouble> {
        if let Some(reason) = self.capabilities.unfit(len, LONGEST_FRAME, vnet) {
            return Ok(self.counters.refuse(reason));
        }
        if let Some(trouble) = self.carries_nothing() {
            return Err(trouble);
        }
        if !self.outbox.has_room(len) {
            self.flush()?;
        }
        if !self.outbox.has_room(len) {
            return Ok(Sending::Full);
        }
        if !self.outbox.push(len, self.vnet.then_some(vnet), fill) {
            return Ok(Sending::Refused(DropReason::Gone));
        }
        self.ledger.take();
        Ok(Sending::Sent)
    }

    /// Sends the staged frames, as far as there is room.
    ///
    /// # Errors
    /// [`Trouble`] when the interface is down (staged frames stay and leave later) or has disappeared (staged frames are
    /// counted as lost).
    pub fn flush(&mut self) -> Result<(), Trouble> {
        // Bounded: each turn sends or refuses at least one of the staged frames.
        while !self.outbox.is_empty() {
            if let Some(trouble) = self.carries_nothing() {
                return Err(self.stopped(trouble));
            }
            match self.outbox.send(&self.socket) {
                Ok(sent) => sent.for_each(|place| _ = self.counters.sent(self.outbox.len_of(place))),
                Err(error) => match self.send_failed(&error) {
                    None => return Ok(()),
                    Some(Ok(reason)) => {
                        self.ledger.refuse(self.outbox.len(), 1, reason);
                        self.outbox.drop_first();
                        self.counters.refuse(reason);
                    }
                    Some(Err(trouble)) => return Err(self.stopped(trouble)),
                },
            }
        }
        Ok(())
    }

    /// Frames that wait for room, or for the interface to come up.
    #[must_use]
    pub fn staged(&self) -> usize {
        self.outbox.len()
    }

    /// Takes back the staged frames; see [`crate::Port::recall`].
    pub fn recall(&mut self, each: &mut dyn FnMut(&[u8], Option<&VnetHeader>)) {
        let vnet = self.vnet;
        self.outbox.waiting().for_each(|message| match message.split_first_chunk() {
            Some((header, frame)) if vnet => each(frame, Some(&VnetHeader::from_bytes(*header))),
            _ => each(message, None),
        });
        self.outbox.clear();
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

    /// The file descriptors to wait on.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds { receive: Some(self.socket.as_raw_fd()), transmit: Some(self.socket.as_raw_fd()) }
    }

    /// Checks that the interface still exists.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when it does not.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        // The kernel sets the number to -1 when the interface leaves.
        match socket::bound_interface(&self.socket) {
            Ok(index) if index > 0 => Ok(()),
            _ => Err(Trouble::Gone),
        }
    }

    /// The offloads and MTU of the port.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Traffic so far, and frames that the kernel dropped before they were read.
    #[must_use]
    pub fn counters(&mut self) -> Counters {
        let mut since_last: libc::tpacket_stats = socket::zeroed();
        // Reading resets the kernel's count.
        if socket::get(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut since_last).is_ok() {
            self.counters.rx_drops[DropReason::KernelFull as usize] += u64::from(since_last.tp_drops);
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

    /// Handles trouble with frames staged: they wait for an interface that is down, and are lost with one that is gone.
    #[cold]
    fn stopped(&mut self, trouble: Trouble) -> Trouble {
        if trouble != Trouble::Down {
            let lost = self.outbox.clear();
            self.ledger.refuse(lost, lost as u64, DropReason::Gone);
            self.counters.gone(lost);
        }
        trouble
    }

    #[cold]
    fn receive_failed(&mut self, error: &io::Error) -> Result<(), Trouble> {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(()),
            Some(libc::ENODEV | libc::ENXIO | libc::EBADF) => Err(Trouble::Gone),
            // The kernel gives this error for an interface set down and for one deleted.
            Some(libc::ENETDOWN) => Err(self.probe().err().unwrap_or(Trouble::Down)),
            _ => {
                self.counters.lose(DropReason::Kernel);
                Ok(())
            }
        }
    }

    /// Classifies a send error. `None`: try later; a reason: the first frame is at fault; a trouble: no frame can be sent.
    #[cold]
    fn send_failed(&mut self, error: &io::Error) -> Option<Result<DropReason, Trouble>> {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS) => None,
            Some(libc::ENODEV | libc::ENXIO | libc::EBADF) => Some(Err(Trouble::Gone)),
            Some(libc::ENETDOWN) => Some(Err(self.probe().err().unwrap_or(Trouble::Down))),
            Some(libc::EMSGSIZE) => Some(Ok(DropReason::Oversize)),
            Some(libc::EINVAL) if self.vnet => Some(Ok(DropReason::BadOffload)),
            _ => Some(Ok(DropReason::Kernel)),
        }
    }
}

/// The first kernel whose packet sockets take and give datagrams that are still to be cut (`VIRTIO_NET_HDR_GSO_UDP_L4`).
const UDP_SEGMENTATION: (u32, u32) = (6, 2);

/// Opens the socket; runs inside the interface's namespace.
fn connect(config: &PacketConfig, index: u32) -> io::Result<OwnedFd> {
    // Protocol 0: nothing is received before the options are set and the interface is chosen.
    let socket = socket::open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let on: libc::c_int = 1;
    let mut options = vec![libc::PACKET_IGNORE_OUTGOING, libc::PACKET_AUXDATA];
    if config.vnet {
        options.push(libc::PACKET_VNET_HDR);
    }
    if config.bypass {
        options.push(libc::PACKET_QDISC_BYPASS);
    }
    for option in options {
        socket::set(&socket, libc::SOL_PACKET, option, &on)?;
    }
    // The time of arrival in the kernel, which gives the time in its queue.
    socket::set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on)?;
    if socket::set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &config.receive_buffer).is_err() {
        // Without CAP_NET_ADMIN over the host the buffer is limited by net.core.rmem_max.
        socket::set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &config.receive_buffer)?;
    }

    let index = libc::c_int::try_from(index).map_err(io::Error::other)?;
    let mut address: libc::sockaddr_ll = socket::zeroed();
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    socket::bind(&socket, &address)?;
    if config.promiscuous {
        let mut request: libc::packet_mreq = socket::zeroed();
        request.mr_ifindex = index;
        request.mr_type = libc::PACKET_MR_PROMISC as libc::c_ushort;
        socket::set(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// A port over a socket pair, which is full while its other end is not read, like a device with a full queue.
    fn into(end: UnixDatagram) -> PacketSocket {
        PacketSocket {
            carrier: None,
            socket: end.into(),
            name: "test".to_owned(),
            vnet: false,
            mac: [0; 6],
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            capabilities: Capabilities::default(),
            counters: Counters::default(),
            ledger: Ledger::default(),
        }
    }

    #[test]
    fn what_the_kernel_refuses_later_is_told_by_number() {
        let (here, _there) = UnixDatagram::pair().unwrap();
        let mut socket = into(here);
        socket::set(&socket.socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &2_048).unwrap();
        for len in [100, 12_000, 100] {
            assert_eq!(socket.send(&vec![0; len], None), Ok(Sending::Sent));
        }
        assert_eq!((socket.flush(), socket.taken()), (Ok(()), 3));
        assert_eq!(
            socket.take_refused(),
            Some(Refused { first: 1, frames: 1, reason: DropReason::Oversize })
        );
        assert_eq!(socket.take_refused(), None);
        assert_eq!((socket.counters.tx_packets, socket.counters.tx_dropped(DropReason::Oversize)), (2, 1));
    }

    #[test]
    fn a_long_frame_leaves_behind_what_is_staged_and_is_refused_at_once() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let mut socket = into(here);
        socket::set(&socket.socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &65_536).unwrap();
        assert_eq!(socket.send(&[1; 100], None), Ok(Sending::Sent));
        assert_eq!(socket.staged(), 1);
        assert_eq!(socket.send(&vec![2; LONG], None), Ok(Sending::Sent));
        assert_eq!((socket.staged(), socket.taken(), socket.counters.tx_packets), (0, 2, 2));
        let mut buffer = vec![0; FRAME_ROOM];
        for (len, byte) in [(100, 1), (LONG, 2)] {
            assert_eq!(there.recv(&mut buffer).unwrap(), len);
            assert!(buffer[..len].iter().all(|&found| found == byte));
        }
        socket::set(&socket.socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &2_048).unwrap();
        assert_eq!(socket.send(&vec![3; LONG], None), Ok(Sending::Refused(DropReason::Oversize)));
        assert_eq!((socket.take_refused(), socket.taken()), (None, 2), "whoever sends it knows");
        assert_eq!(socket.counters.tx_dropped(DropReason::Oversize), 1);
    }

    #[test]
    fn what_the_kernel_has_no_room_for_stays_staged_and_leaves_once() {
        let (here, there) = UnixDatagram::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let mut socket = into(here);
        let (mut sent, mut got) = (0_u32, Vec::new());
        // 4 MiB in frames of 4 KiB are more than any such pair holds.
        while sent < 1_024 {
            let mut frame = [0; 4_096];
            frame[..4].copy_from_slice(&sent.to_be_bytes());
            match socket.send(&frame, None).unwrap() {
                Sending::Sent => sent += 1,
                _ => break,
            }
        }
        assert_eq!(socket.flush(), Ok(()));
        assert!(socket.staged() > 0, "the other end was not read");
        let mut buffer = [0; 4_096];
        while got.len() < sent as usize {
            while there.recv(&mut buffer).is_ok() {
                got.push(u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]));
            }
            assert_eq!(socket.flush(), Ok(()));
        }
        assert_eq!(socket.staged(), 0);
        assert_eq!(got, (0..sent).collect::<Vec<_>>());
        assert_eq!(socket.counters.tx_packets, u64::from(sent));
    }
}
