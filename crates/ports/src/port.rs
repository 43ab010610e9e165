//! The one face that every port shows to the engine's thread.
//!
//! Why: the daemon polls TAPs, sockets and files in one loop and must not care which is which.
//! From: an enum with a `match`, so that no call per packet goes through a table of functions.
//! Not here: threads, waiting, classification, and any decision on which frame goes next.
//! Invariant: every frame taken or refused is counted once, as sent or with the reason why not.

use std::os::fd::RawFd;

use plimsoll_units::{Nanos, Span};
use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;
use serde::{Deserialize, Serialize};

use crate::af_packet::PacketSocket;
use crate::af_xdp::XdpSocket;
use crate::apart::Apart;
use crate::error::PortError;
use crate::ledger::Refused;
use crate::memory::MemoryPort;
use crate::pcap::PcapPort;
use crate::posted::{Ticket, Took};
use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicPort, VnicRequest};
use crate::tap::Tap;
use crate::vhost_user::VhostUser;

/// A receive buffer of this size holds any frame that Linux hands out: 64 KiB of IP packet, link
/// header and VLAN tags, and one byte so that a frame cut short can be told from one that fits.
pub const FRAME_ROOM: usize = 65_536 + 64;

/// What came in with one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the frame now in the caller's buffer.
    pub len: usize,
    /// Checksum and segmentation that the sender left to us; `None` when the port has no such headers.
    pub vnet: Option<VnetHeader>,
    /// When the frame was captured, for ports that know (`pcap`).
    pub at: Option<Nanos>,
    /// How long the kernel had it before it was read from there, for ports that know (`af_packet`).
    pub waited: Option<Span>,
}

/// How a frame handed to [`Port::send`] fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The port has it; [`Port::flush`] makes sure that it leaves.
    Sent,
    /// No room now; keep the frame and come back when [`Port::fds`] says writable.
    Full,
    /// This frame cannot be sent, ever; it has been counted under the reason.
    Refused(DropReason),
}

/// Why a port as a whole carries nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The interface is down; it may come up again, so try again later.
    Down,
    /// The interface or its namespace has disappeared; only opening it anew helps.
    Gone,
}

/// Why a port lost a frame. One counter for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Shorter than an Ethernet header.
    TooShort,
    /// Longer than the device or the buffer takes.
    Oversize,
    /// Its offload fields ask for what the device or the kernel refuses.
    BadOffload,
    /// The interface disappeared before a frame that the port had taken could leave.
    Gone,
    /// The capture file could not be written (a full disk, say).
    FileFull,
    /// The capture file holds something that is no frame.
    BadRecord,
    /// The kernel dropped it for want of room before we read it.
    KernelFull,
    /// The kernel refused it for another reason.
    Kernel,
    /// A vNIC's client rang for a flow queue that it has not.
    UnmappedQueue,
    /// A vNIC's client wrote a doorbell that makes no sense, or is not for it to give.
    BadDoorbell,
    /// A vNIC's client, or a virtual machine, wrote a descriptor, or the end of a ring, that makes no sense.
    BadDescriptor,
    /// A virtual machine's front end sent a message that makes no sense, and was hung up on.
    BadMessage,
    /// A tenant that is served apart had no buffer for it when its thread came to it.
    NoBuffer,
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = 13;

    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::TooShort,
        Self::Oversize,
        Self::BadOffload,
        Self::Gone,
        Self::FileFull,
        Self::BadRecord,
        Self::KernelFull,
        Self::Kernel,
        Self::UnmappedQueue,
        Self::BadDoorbell,
        Self::BadDescriptor,
        Self::BadMessage,
        Self::NoBuffer,
    ];

    /// The name under which operators see it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::Oversize => "oversize",
            Self::BadOffload => "bad_offload",
            Self::Gone => "gone",
            Self::FileFull => "file_full",
            Self::BadRecord => "bad_record",
            Self::KernelFull => "kernel_full",
            Self::Kernel => "kernel",
            Self::UnmappedQueue => "unmapped_queue",
            Self::BadDoorbell => "bad_doorbell",
            Self::BadDescriptor => "bad_descriptor",
            Self::BadMessage => "bad_message",
            Self::NoBuffer => "no_buffer",
        }
    }
}

/// What a port has carried since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received, link headers included.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent, link headers included.
    pub tx_bytes: u64,
    /// Frames lost on the way in, by [`DropReason`].
    pub rx_drops: [u64; DropReason::COUNT],
    /// Frames lost on the way out, by [`DropReason`].
    pub tx_drops: [u64; DropReason::COUNT],
}

/// One pair of a virtual machine's rings: what it has carried, and what is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairCounters {
    /// Frames that the guest has posted in it.
    pub rx_packets: u64,
    /// Frames for the guest that were put into it.
    pub tx_packets: u64,
    /// Frames that the guest has posted and that have not been taken.
    pub posted: u32,
    /// Frames that were taken and have not left.
    pub in_flight: u32,
    /// Frames that have left and whose descriptors wait for those before them; none where any order will do.
    pub out_of_turn: u32,
    /// Buffers that the guest has free for frames to come.
    pub free: u32,
}

/// How much of its work a port leaves with its guest; by how much a guest must be changed for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A frame is the engine's from when it was read: what has no room then is lost, and counted. No guest is changed.
    L0,
    /// A frame stays its guest's until it has left, and is given back in the order in which it came.
    L1,
    /// The same in any order, so that one flow's wait is no other's.
    L2,
    /// Its sender states which flow a frame is of and what is known of it, in a queue for each.
    L3,
}

impl Level {
    /// The name under which operators see it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::L0 => "L0",
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
        }
    }
}

impl Counters {
    /// Frames lost on the way in for `reason`.
    #[must_use]
    pub const fn rx_dropped(&self, reason: DropReason) -> u64 {
        self.rx_drops[reason as usize]
    }

    /// Frames lost on the way out for `reason`.
    #[must_use]
    pub const fn tx_dropped(&self, reason: DropReason) -> u64 {
        self.tx_drops[reason as usize]
    }

    pub(crate) fn received(&mut self, len: usize) {
        self.rx_packets += 1;
        self.rx_bytes += len as u64;
    }

    pub(crate) fn sent(&mut self, len: usize) -> Sending {
        self.tx_packets += 1;
        self.tx_bytes += len as u64;
        Sending::Sent
    }

    pub(crate) fn refuse(&mut self, reason: DropReason) -> Sending {
        self.tx_drops[reason as usize] += 1;
        Sending::Refused(reason)
    }

    pub(crate) fn lose(&mut self, reason: DropReason) {
        self.rx_drops[reason as usize] += 1;
    }

    /// Counts frames that a port had taken and that disappeared with it.
    pub(crate) fn gone(&mut self, frames: usize) {
        self.tx_drops[DropReason::Gone as usize] += frames as u64;
    }
}

/// What a port can do for the frames it carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Frames larger than the MTU may be sent, with a header that says how to cut them.
    pub takes_segmentation: bool,
    /// Frames larger than the MTU may be received, with such a header.
    pub gives_segmentation: bool,
    /// UDP segmentation as well as TCP's (an older kernel may lack it).
    pub udp_segmentation: bool,
    /// A frame may be sent with its transport checksum still to be computed.
    pub takes_partial_checksum: bool,
    /// Largest IP packet of one segment, link headers not counted.
    pub mtu: u32,
}

impl Capabilities {
    /// Whether a frame may be sent with such a header.
    pub(crate) fn allow(&self, vnet: Option<&VnetHeader>) -> bool {
        vnet.is_none_or(|vnet| match vnet.gso_type {
            VnetHeader::GSO_NONE => vnet.flags & VnetHeader::NEEDS_CSUM == 0 || self.takes_partial_checksum,
            VnetHeader::GSO_UDP_L4 => self.udp_segmentation,
            _ => self.takes_segmentation,
        })
    }
}

/// What to wait on, for `poll` or `epoll`. The descriptors stay the port's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fds {
    /// Readable when [`Port::receive`] has something; `None` for ports that must be asked.
    pub receive: Option<RawFd>,
    /// Writable when [`Port::send`] has room again; `None` for ports that must be asked.
    pub transmit: Option<RawFd>,
}

/// One frame to send, for [`Port::send_batch`].
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The frame from its Ethernet header on.
    pub frame: &'a [u8],
    /// Checksum and segmentation left to the receiver; `None` for a finished frame.
    pub vnet: Option<&'a VnetHeader>,
}

/// A place where packets enter and leave.
#[derive(Debug)]
pub enum Port {
    /// A TAP interface in some network namespace.
    Tap(Tap),
    /// An interface through a packet socket.
    AfPacket(PacketSocket),
    /// One queue of an interface through AF_XDP.
    AfXdp(XdpSocket),
    /// Capture files.
    Pcap(PcapPort),
    /// The other end is in this process.
    Memory(MemoryPort),
    /// A client process, through shared memory.
    Vnic(VnicPort),
    /// A virtual machine, through its virtio rings.
    VhostUser(VhostUser),
    /// One of the latter two, served by a thread of its own.
    Apart(Box<Apart>),
}

/// Calls `$call` on whichever port this is.
macro_rules! each {
    ($port:expr, $it:ident => $call:expr) => {
        match $port {
            Port::Tap($it) => $call,
            Port::AfPacket($it) => $call,
            Port::AfXdp($it) => $call,
            Port::Pcap($it) => $call,
            Port::Memory($it) => $call,
            Port::Vnic($it) => $call,
            Port::VhostUser($it) => $call,
            Port::Apart($it) => $call,
        }
    };
}

impl Port {
    /// Reads one frame into `buffer`, which must hold [`FRAME_ROOM`] bytes; `None` when none waits.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries nothing.
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        each!(self, port => port.receive(buffer))
    }

    /// Sends one frame. A port without such headers refuses a `vnet` that asks for anything.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries nothing. The frame is the caller's still, who may try again or count
    /// it as lost; it is not counted here.
    #[inline]
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        each!(self, port => port.send(frame, vnet))
    }

    /// Sends frames in order until one finds no room, and says how many were dealt with (sent, or
    /// refused and counted). One system call for many frames where the device can; flushes.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries nothing.
    pub fn send_batch(&mut self, frames: &[Outgoing<'_>]) -> Result<usize, Trouble> {
        for (done, out) in frames.iter().enumerate() {
            if self.send(out.frame, out.vnet)? == Sending::Full {
                self.flush()?;
                return Ok(done);
            }
        }
        self.flush()?;
        Ok(frames.len())
    }

    /// Whether what it receives lies in memory shared with the sender: such frames may be taken one by one, with
    /// [`Port::begin`], [`Port::take`] and [`Port::copy`], and completed when they have left.
    #[must_use]
    #[inline]
    pub fn is_posted(&self) -> bool {
        matches!(self, Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_))
    }

    /// Descriptors that its sender has for frames on their way, where a frame may stay with it for longer than the engine
    /// has room for; none where it may not.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> Option<u32> {
        match self {
            Self::VhostUser(port) => port.depth(),
            Self::Apart(port) => port.shown().depth,
            _ => None,
        }
    }

    /// Begins a batch of [`Port::take`]: looks at what has been posted.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries nothing.
    #[inline]
    pub fn begin(&mut self) -> Result<(), Trouble> {
        match self {
            Self::Vnic(port) => port.begin(),
            Self::VhostUser(port) => port.begin(),
            Self::Apart(port) => port.begin(),
            _ => Ok(()),
        }
    }

    /// The next frame that was posted. A flow queue of a client's with `window` frames on their way keeps the rest.
    #[inline]
    pub fn take(&mut self, window: u32) -> Took {
        match self {
            Self::Vnic(port) => port.take(window),
            Self::VhostUser(port) => port.take(),
            Self::Apart(port) => port.take(),
            _ => Took::Nothing,
        }
    }

    /// The next frame that was posted right behind the one taken last, which has this ticket; its own differs by the cookie
    /// alone. Nothing from ports whose senders learn of each frame what became of it.
    #[inline]
    pub fn take_after(&mut self, ticket: Ticket) -> Took {
        match self {
            Self::VhostUser(port) => port.take_after(ticket),
            _ => Took::Nothing,
        }
    }

    /// Copies the frame taken last. Panics when `into` is shorter than the frame.
    #[inline]
    pub fn copy(&self, into: &mut [u8]) {
        match self {
            Self::Vnic(port) => port.copy(into),
            Self::VhostUser(port) => port.copy(into),
            Self::Apart(port) => port.copy(into),
            _ => {}
        }
    }

    /// A frame is through; [`Port::flush`] tells its sender. Answers whether another may be taken now.
    #[inline]
    pub fn complete(&mut self, ticket: Ticket, status: Status) -> bool {
        match self {
            Self::Vnic(port) => port.complete(ticket, status),
            Self::VhostUser(port) => port.complete(ticket),
            Self::Apart(port) => {
                port.complete(ticket, status);
                false
            }
            _ => false,
        }
    }

    /// What a vNIC's client asks for next, to be answered by [`Port::answer`]: reads one message at most. `None` when there
    /// is none.
    pub fn request(&mut self) -> Option<VnicRequest> {
        match self {
            Self::Vnic(port) => port.request(),
            Self::Apart(port) => port.request(),
            _ => None,
        }
    }

    /// Leaves what a vNIC's client asks for where it is, or lets it in again: held requests do not keep the owner awake.
    pub fn hold_requests(&mut self, hold: bool) {
        match self {
            Self::Vnic(port) => port.hold_requests(hold),
            Self::Apart(port) => port.hold_requests(hold),
            _ => {}
        }
    }

    /// Flow queues that a vNIC's client had left with its last request.
    #[must_use]
    pub fn queues_left(&self) -> QueuesLeft {
        match self {
            Self::Vnic(port) => port.queues_left(),
            Self::Apart(port) => port.queues_left(),
            _ => QueuesLeft::default(),
        }
    }

    /// Answers the request that was read last.
    pub fn answer(&mut self, answer: VnicAnswer) {
        match self {
            Self::Vnic(port) => port.answer(&answer),
            Self::Apart(port) => port.answer(answer),
            _ => {}
        }
    }

    /// Nothing is to be taken: asks the sender to ring when that changes. Answers whether the owner may sleep.
    pub fn rest(&mut self) -> bool {
        match self {
            Self::Vnic(port) => port.rest(),
            Self::VhostUser(port) => port.rest(),
            Self::Apart(port) => port.rest(),
            _ => true,
        }
    }

    /// Makes what was sent leave: call it at the end of each batch, and again while [`Port::pending`].
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries nothing.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Trouble> {
        each!(self, port => port.flush())
    }

    /// Frames taken by [`Port::send`] that the device has not taken from here yet.
    #[must_use]
    pub fn staged(&self) -> usize {
        match self {
            Self::AfPacket(port) => port.staged(),
            Self::AfXdp(port) => port.staged(),
            Self::Memory(port) => port.staged(),
            Self::Tap(_) | Self::Pcap(_) | Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_) => 0,
        }
    }

    /// Frames that [`Port::send`] has taken so far; 0 for ports that never refuse one later.
    #[must_use]
    pub fn taken(&self) -> u64 {
        match self {
            Self::AfPacket(port) => port.taken(),
            Self::AfXdp(port) => port.taken(),
            Self::Pcap(port) => port.taken(),
            Self::Memory(port) => port.taken(),
            Self::Tap(_) | Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_) => 0,
        }
    }

    /// Frames that it had taken and could not send after all, by number: each is told once, and counts as lost here.
    pub fn take_refused(&mut self) -> Option<Refused> {
        match self {
            Self::AfPacket(port) => port.take_refused(),
            Self::AfXdp(port) => port.take_refused(),
            Self::Pcap(port) => port.take_refused(),
            Self::Memory(port) => port.take_refused(),
            Self::Tap(_) | Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_) => None,
        }
    }

    /// Whether frames are staged: call [`Port::flush`] again soon, and do not close the port before they have left.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.staged() > 0
    }

    /// The hardware address of the only interface behind the port, where there is but one: a TAP's.
    #[must_use]
    pub fn tenant_mac(&self) -> Option<[u8; 6]> {
        match self {
            Self::Tap(port) => Some(port.mac()),
            Self::Memory(port) => port.tenant_mac(),
            Self::Vnic(port) => port.tenant_mac(),
            Self::VhostUser(port) => port.tenant_mac(),
            Self::Apart(port) => port.shown().mac,
            Self::AfPacket(_) | Self::AfXdp(_) | Self::Pcap(_) => None,
        }
    }

    /// What to wait on.
    #[must_use]
    pub fn fds(&self) -> Fds {
        each!(self, port => port.fds())
    }

    /// Whether frames may come that nothing announces, so that it has to be asked now and then.
    #[must_use]
    pub fn must_be_asked(&self) -> bool {
        match self {
            Self::Pcap(port) => !port.finished(),
            port => port.fds().receive.is_none(),
        }
    }

    /// Whether it comes and goes with a client of its own, whose end is no failure.
    #[must_use]
    pub fn has_clients(&self) -> bool {
        matches!(self, Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_))
    }

    /// Whether the port still exists: ask when `poll` reports an error or a hang-up.
    ///
    /// # Errors
    /// The [`Trouble`] it is in.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        each!(self, port => port.probe())
    }

    /// Whether a front end has said more than the last look took: nobody will tell that again.
    #[must_use]
    pub fn has_more_to_say(&self) -> bool {
        matches!(self, Self::VhostUser(port) if port.has_more_to_say())
    }

    /// Why frames are being lost, told once when that begins: to be logged.
    pub fn take_problem(&mut self) -> Option<PortError> {
        match self {
            Self::Pcap(port) => port.take_problem(),
            Self::VhostUser(port) => port.take_problem(),
            Self::Apart(port) => port.take_problem(),
            Self::Tap(_) | Self::AfPacket(_) | Self::AfXdp(_) | Self::Memory(_) | Self::Vnic(_) => None,
        }
    }

    /// What the port can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        each!(self, port => port.capabilities())
    }

    /// What it has carried.
    #[must_use]
    pub fn counters(&mut self) -> Counters {
        each!(self, port => port.counters())
    }

    /// Each pair of rings, up to the last that is in use; empty for ports that have no such rings.
    #[must_use]
    pub fn pairs(&self) -> Vec<PairCounters> {
        match self {
            Self::VhostUser(port) => port.pairs(),
            Self::Apart(port) => port.shown().pairs.clone(),
            _ => Vec::new(),
        }
    }

    /// What it leaves with its guest.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::VhostUser(port) => port.level(),
            Self::Apart(port) => port.shown().level.unwrap_or(Level::L0),
            Self::Vnic(_) => Level::L3,
            _ => Level::L0,
        }
    }

    /// How operators know it: `tap shop/eth0`, `af_xdp eth1 (copy)`.
    #[must_use]
    pub fn name(&self) -> String {
        each!(self, port => port.name())
    }

    /// Flushes and closes; what it has carried in the end.
    pub fn close(mut self) -> Counters {
        // A port that has gone cannot be flushed, and need not be.
        let _ = self.flush();
        self.counters()
    }
}

/// Shortest frame that has an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Whether a header asks for anything that a port without such headers cannot do.
pub(crate) fn asks_for_work(vnet: Option<&VnetHeader>) -> bool {
    vnet.is_some_and(|vnet| vnet.flags & VnetHeader::NEEDS_CSUM != 0 || vnet.gso_type != VnetHeader::GSO_NONE)
}

/// The header as Linux's devices take it: ten bytes, without the number of buffers.
pub(crate) fn vnet_bytes(vnet: Option<&VnetHeader>) -> [u8; VnetHeader::LEN] {
    let mut bytes = [0; VnetHeader::LEN];
    if let Some(vnet) = vnet {
        bytes.copy_from_slice(&vnet.to_bytes()[..VnetHeader::LEN]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_index_their_counters() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{}", reason.name());
        }
    }
}
