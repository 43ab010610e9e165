//! One queue of an interface: the socket, its memory and its four rings.
//!
//! Why: the rings and the kernel's calls on them stand apart from the port that counts frames.
//! From: `Documentation/networking/af_xdp.rst`.
//! Not here: attaching the program (`bpf`), mapping memory (`memory`).
//! Invariant: each frame of the UMEM is in one place: in a ring, in the free list, or with the kernel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::XdpConfig;
use super::memory::{Umem, XdpRing};
use crate::contract::Trouble;
use crate::error::PortError;
use crate::netns::LinkInfo;
use crate::socket;

/// The layout of the UMEM: `frames` receive frames, then `frames` transmit frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    frames: u32,
    pub(super) chunk: u32,
}

impl Layout {
    pub(super) fn new(config: &XdpConfig, link: &LinkInfo, what: &str) -> Result<Self, PortError> {
        let wrong = |problem: String| PortError::Config { what: what.to_owned(), problem };
        if !config.frames.is_power_of_two() || !(64..=65_536).contains(&config.frames) {
            return Err(wrong(format!("{} frames; give a power of two from 64 to 65,536", config.frames)));
        }
        let needed = link.mtu + LINK_HEADERS + HEADROOM;
        let chunk = [2_048, 4_096].into_iter().find(|&chunk| needed <= chunk).ok_or_else(|| {
            let most = 4_096 - LINK_HEADERS - HEADROOM;
            wrong(format!(
                "the MTU is {} and AF_XDP carries at most {most}; lower it or use `af_packet`",
                link.mtu
            ))
        })?;
        Ok(Self { frames: config.frames, chunk })
    }

    fn bytes(self) -> usize {
        2 * self.frames as usize * self.chunk as usize
    }

    fn address(self, frame: u32) -> u64 {
        u64::from(frame) * u64::from(self.chunk)
    }
}

/// The socket, its memory and its rings.
#[derive(Debug)]
pub(super) struct Queue {
    // The rings come before the memory and the socket: fields are dropped in this order.
    fill: XdpRing<u64>,
    pub(super) completion: XdpRing<u64>,
    receive: XdpRing<libc::xdp_desc>,
    pub(super) transmit: XdpRing<libc::xdp_desc>,
    pub(super) socket: OwnedFd,
    pub(super) umem: Umem,
    pub(super) layout: Layout,
    /// Addresses of unused transmit frames.
    pub(super) free: Vec<u64>,
    /// For each transmit frame the bytes that are being sent; 0 while it is unused.
    under_way: Box<[u32]>,
    /// Received frames whose ring places have not been released to the kernel yet.
    unreleased: u32,
    /// Calls in a row that found no frame.
    idle: u32,
}

impl Queue {
    pub(super) fn open(interface: u32, number: u32, layout: Layout, flags: u16) -> io::Result<Self> {
        Self::over(socket::open(libc::AF_XDP, libc::SOCK_RAW, 0)?, interface, number, layout, flags)
    }

    /// Gives a socket its memory and rings, and binds it.
    pub(super) fn over(
        socket: OwnedFd,
        interface: u32,
        number: u32,
        layout: Layout,
        flags: u16,
    ) -> io::Result<Self> {
        let umem = Umem::new(layout.bytes())?;
        let mut register: libc::xdp_umem_reg = socket::zeroed();
        register.addr = umem.address();
        register.len = umem.len() as u64;
        register.chunk_size = layout.chunk;
        socket::set(&socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &register)?;
        let size = layout.frames;
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            socket::set(&socket, libc::SOL_XDP, ring, &size)?;
        }
        // Most frames sent per call; older kernels lack this option and send 32.
        let _ = socket::set(&socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &TX_BUDGET);

        let mut at: libc::xdp_mmap_offsets = socket::zeroed();
        socket::get(&socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut at)?;
        let mut queue = Self {
            fill: XdpRing::map(&socket, at.fr, size, libc::XDP_UMEM_PGOFF_FILL_RING)?,
            completion: XdpRing::map(&socket, at.cr, size, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?,
            receive: XdpRing::map(&socket, at.rx, size, libc::XDP_PGOFF_RX_RING.cast_unsigned())?,
            transmit: XdpRing::map(&socket, at.tx, size, libc::XDP_PGOFF_TX_RING.cast_unsigned())?,
            socket,
            umem,
            layout,
            free: (0..size).map(|frame| layout.address(size + frame)).collect(),
            under_way: vec![0; size as usize].into_boxed_slice(),
            unreleased: 0,
            idle: 0,
        };
        for frame in 0..queue.fill.room(size).min(size) {
            queue.fill.push(layout.address(frame));
        }
        queue.fill.publish();

        let mut address: libc::sockaddr_xdp = socket::zeroed();
        address.sxdp_family = libc::AF_XDP as libc::sa_family_t;
        address.sxdp_flags = flags;
        address.sxdp_ifindex = interface;
        address.sxdp_queue_id = number;
        socket::bind(&queue.socket, &address)?;
        Ok(queue)
    }

    /// The next frame that the kernel has received.
    pub(super) fn next_received(&mut self) -> Option<libc::xdp_desc> {
        if self.receive.available() == 0 {
            return None;
        }
        self.idle = 0;
        Some(self.receive.take())
    }

    /// The bytes of a frame that the kernel has received, if they are less than `room`.
    pub(super) fn frame(&self, address: u64, len: usize, room: usize) -> Option<&[u8]> {
        if len < room { self.umem.bytes(address, len) } else { None }
    }

    /// Puts the frame at `address` back into the fill ring; shows the kernel every [`RELEASE_EVERY`] frames.
    pub(super) fn refill(&mut self, address: u64) {
        // The kernel's address is behind its headroom; the frame begins at a multiple of the chunk.
        let address = address - address % u64::from(self.layout.chunk);
        if address < self.layout.address(self.layout.frames) && self.fill.room(1) > 0 {
            self.fill.push(address);
        }
        self.unreleased += 1;
        if self.unreleased == RELEASE_EVERY {
            self.tell_received();
        }
    }

    fn tell_received(&mut self) {
        self.receive.release();
        self.fill.publish();
        self.unreleased = 0;
    }

    /// Called when no frame was received: releases all places to the kernel, and now and then checks the interface.
    pub(super) fn refresh(&mut self) -> Result<(), Trouble> {
        if self.unreleased > 0 {
            self.tell_received();
        }
        self.idle = self.idle.wrapping_add(1);
        if self.fill.needs_wakeup() || self.idle.is_multiple_of(ASK_EVERY) {
            return self.trouble(self.call(Wake::Receive));
        }
        Ok(())
    }

    /// Puts a frame of `len` bytes, which `fill` writes, into the transmit ring; `None` when there is no room, and false when `fill`
    /// says that there is no frame.
    pub(super) fn push(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> Option<bool> {
        if self.transmit.room(1) == 0 {
            return None;
        }
        let address = self.free.pop()?;
        let index = self.index(address)?;
        let filled = self.umem.room(address, len).is_some_and(fill);
        if filled {
            let len = len as u32;
            self.under_way[index] = len;
            self.transmit.push(libc::xdp_desc { addr: address, len, options: 0 });
        } else {
            self.free.push(address);
        }
        Some(filled)
    }

    /// Frees the transmit frame at `address` after it has left, and returns its length; none if it was not being sent.
    pub(super) fn take_back(&mut self, address: u64) -> Option<u32> {
        let index = self.index(address)?;
        let len = std::mem::take(&mut self.under_way[index]);
        if len == 0 {
            return None;
        }
        self.free.push(self.layout.address(self.layout.frames + index as u32));
        Some(len)
    }

    /// Gives up the frames that are being sent and returns their number.
    pub(super) fn forget(&mut self) -> usize {
        let lost = self.under_way.iter().filter(|&&len| len > 0).count();
        self.under_way.fill(0);
        lost
    }

    /// Index of the transmit frame at `address`.
    fn index(&self, address: u64) -> Option<usize> {
        let frame = (address / u64::from(self.layout.chunk)).checked_sub(u64::from(self.layout.frames))?;
        usize::try_from(frame).ok().filter(|&frame| frame < self.under_way.len())
    }

    /// Shows the kernel the staged frames and makes it send them.
    pub(super) fn kick(&mut self) -> Result<(), Trouble> {
        self.transmit.publish();
        for _ in 0..KICKS {
            if self.transmit.is_drained() || !self.transmit.needs_wakeup() {
                return Ok(());
            }
            self.trouble(self.call(Wake::Send))?;
        }
        Ok(())
    }

    /// Asks the kernel for the state of the interface.
    pub(super) fn wake(&self) -> Result<(), Trouble> {
        self.trouble(self.call(Wake::Receive))
    }

    /// Makes the kernel process a ring; the call itself moves no bytes.
    fn call(&self, way: Wake) -> io::Result<()> {
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let nothing = std::ptr::null_mut();
        let answer = match way {
            // SAFETY: no buffer and no address are given, so no memory is read.
            Wake::Send => unsafe { libc::sendto(fd, nothing, 0, flags, std::ptr::null(), 0) },
            // SAFETY: no buffer and no address are given, so no memory is written.
            Wake::Receive => unsafe {
                libc::recvfrom(fd, nothing, 0, flags, std::ptr::null_mut(), std::ptr::null_mut())
            },
        };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn trouble(&self, answer: io::Result<()>) -> Result<(), Trouble> {
        match answer.map_err(|error| error.raw_os_error()) {
            // The kernel unbinds the socket when the interface leaves.
            Err(Some(libc::ENXIO | libc::ENODEV | libc::EBADF)) => Err(Trouble::Gone),
            Err(Some(libc::ENETDOWN)) => Err(Trouble::Down),
            // EAGAIN: the kernel has sent its budget and frames are left. EBUSY, ENOBUFS: try later.
            _ => Ok(()),
        }
    }
}

/// The direction in which the kernel is woken to process a ring.
#[derive(Clone, Copy)]
enum Wake {
    Send,
    Receive,
}

/// Bytes of a frame beyond the MTU: link header, two VLAN tags and frame check sequence.
const LINK_HEADERS: u32 = 14 + 8 + 4;

/// Bytes that the kernel keeps free before a received frame.
const HEADROOM: u32 = 256;

/// Number of received frames after which their ring places are released to the kernel.
const RELEASE_EVERY: u32 = 32;

/// Number of idle calls after which the interface is checked.
const ASK_EVERY: u32 = 1_024;

/// Socket option for the frames that one call may send; in `linux/if_xdp.h`, not yet in `libc`.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Frames that one call may send: a quarter of a millisecond's work at a million frames a second.
const TX_BUDGET: u32 = 256;

/// Most calls of one flush: each sends 32 frames on an older kernel.
const KICKS: usize = 8;
