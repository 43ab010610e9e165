//! What every port has in common: received frames, offloads, levels, descriptors to wait on.
//!
//! Why: a port of one kind need not know the others to speak their language.
//! From: Linux's network devices and virtio-net headers.
//! Not here: the ports of all kinds behind one type (`port`), results and losses (`counters`).
//! Invariant: a frame that a port takes fits a buffer of [`FRAME_ROOM`] bytes.

use std::os::fd::RawFd;

use plimsoll_units::{Nanos, Span};
use plimsoll_wire::VnetHeader;
use serde::{Deserialize, Serialize};

use crate::counters::DropReason;

/// A receive buffer of this size holds any frame that Linux hands out: 64 KiB of IP packet, link
/// header and VLAN tags, and one byte so that a frame cut short can be told from one that fits.
pub const FRAME_ROOM: usize = 65_536 + 64;

/// The longest frame, link headers included.
pub(crate) const LONGEST_FRAME: usize = FRAME_ROOM - 1;

/// A received frame, whose bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Length of the frame in bytes.
    pub len: usize,
    /// Checksum and segmentation that the sender has left to be done; `None` when the port has no such headers.
    pub vnet: Option<VnetHeader>,
    /// Time of capture, for ports that know it (`pcap`).
    pub at: Option<Nanos>,
    /// Time that the frame spent in the kernel before it was read, for ports that know it (`af_packet`).
    pub waited: Option<Span>,
}

/// Takes frames of a port, a batch at a time: [`crate::Port::receive_batch`].
pub trait Batch {
    /// Looks at the frame in this place of the batch, which stays where it lies.
    fn look(&mut self, at: usize, frame: &[u8]);
    /// Takes the frame in this place of the batch, which was looked at before.
    fn take(&mut self, at: usize, frame: &[u8], received: &Received);
}

/// Most frames of a [`Batch`].
pub const MOST_LENT: usize = 64;

/// Why a port as a whole carries no frames now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The interface is down; it may come up again, so try again later.
    Down,
    /// The interface or its namespace has disappeared; the port must be opened anew.
    Gone,
}

/// The level of backpressure that a port gives its guest, ordered by how much the guest must be changed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A frame belongs to the engine once it was read; one without room is lost and counted. Needs no change in the guest.
    L0,
    /// A descriptor stays with the port until its frame has left, and completes in order.
    L1,
    /// A descriptor stays with the port until its frame has left, and completes in any order, so that flows do not wait for
    /// each other.
    L2,
    /// The guest has a queue for each flow, and states each frame's flow and metadata.
    L3,
}

impl Level {
    /// The level's name for operators.
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

/// The offloads and MTU of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Frames larger than the MTU may be sent, with a virtio-net header that says how to segment them.
    pub takes_segmentation: bool,
    /// Frames larger than the MTU may be received, with such a header.
    pub gives_segmentation: bool,
    /// Segmentation covers UDP as well as TCP (an older kernel may lack it).
    pub udp_segmentation: bool,
    /// Segmentation covers TCP segments whose first packet says that the congestion window was reduced (CWR): it alone may say so.
    #[serde(default)]
    pub cwr_segmentation: bool,
    /// Frames may be sent with their transport checksum still to be completed.
    pub takes_partial_checksum: bool,
    /// Largest IP packet of one segment, link headers not counted.
    pub mtu: u32,
}

impl Capabilities {
    /// Why no frame of `len` bytes can be sent with this header through a port whose longest frame has `longest` bytes; `None`: it can.
    #[inline]
    pub(crate) fn unfit(&self, len: usize, longest: usize, vnet: Option<&VnetHeader>) -> Option<DropReason> {
        if len < MIN_FRAME {
            Some(DropReason::TooShort)
        } else if len > longest {
            Some(DropReason::Oversize)
        } else {
            (!self.allow(vnet)).then_some(DropReason::BadOffload)
        }
    }

    /// Whether a frame may be sent with this header.
    pub(crate) fn allow(&self, vnet: Option<&VnetHeader>) -> bool {
        vnet.is_none_or(|vnet| match vnet.gso_type {
            VnetHeader::GSO_NONE => vnet.flags & VnetHeader::NEEDS_CSUM == 0 || self.takes_partial_checksum,
            VnetHeader::GSO_UDP_L4 => self.udp_segmentation,
            kind if kind & VnetHeader::GSO_ECN != 0 => self.takes_segmentation && self.cwr_segmentation,
            _ => self.takes_segmentation,
        })
    }
}

/// File descriptors to wait on, with `poll` or `epoll`. They remain the port's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fds {
    /// Readable when [`crate::Port::receive`] has a frame; `None` for ports that must be polled.
    pub receive: Option<RawFd>,
    /// Writable when [`crate::Port::send`] has room again; `None` for ports that must be polled.
    pub transmit: Option<RawFd>,
}

/// One frame to send, for [`crate::Port::send_batch`].
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The frame from its Ethernet header on.
    pub frame: &'a [u8],
    /// Checksum and segmentation left to be done; `None` for a finished frame.
    pub vnet: Option<&'a VnetHeader>,
}

/// Length of the shortest frame: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Whether a header asks for an offload, which a port without virtio-net headers cannot do.
pub(crate) fn asks_for_work(vnet: Option<&VnetHeader>) -> bool {
    vnet.is_some_and(|vnet| vnet.flags & VnetHeader::NEEDS_CSUM != 0 || vnet.gso_type != VnetHeader::GSO_NONE)
}

/// The header as Linux's devices expect it: ten bytes, without the number of buffers.
pub(crate) fn vnet_bytes(vnet: Option<&VnetHeader>) -> [u8; VnetHeader::LEN] {
    let mut bytes = [0; VnetHeader::LEN];
    if let Some(vnet) = vnet {
        bytes.copy_from_slice(&vnet.to_bytes()[..VnetHeader::LEN]);
    }
    bytes
}
