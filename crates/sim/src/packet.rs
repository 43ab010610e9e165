//! A packet: the fields of its headers, without its bytes.
//!
//! Why: millions a second are copied from ring to ring, and the simulator never reads payload.
//! From: Ethernet, IPv4, UDP and TCP header lengths.
//! Not here: frames with all their bytes, which `trace` makes for a capture file.
//! Invariant: `len` is the whole frame from the Ethernet header on, at least the shortest that Ethernet sends. Only
//! between a guest and its engine may it be longer than a link carries: a segment that the NIC cuts.

use crate::tcp;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The flow that it belongs to.
    pub(crate) flow: u32,
    /// Whether the flow's second end (the server) sent it.
    pub(crate) back: bool,
    /// Whether routers may mark it in place of dropping it.
    pub(crate) ect: bool,
    /// Whether a router has marked it: congestion experienced.
    pub(crate) ce: bool,
    /// Whether it travels in an outer header that routers may mark.
    pub(crate) carried: bool,
    /// Whether a router has marked the outer header.
    pub(crate) marked: bool,
    /// Whether the tenant that forwards its flow's packets has forwarded it.
    pub(crate) passed: bool,
    /// Header bytes that the NIC reads separately from the payload, of a frame that it cut out of a longer segment.
    pub(crate) apart: u8,
    /// Bytes of the frame.
    pub(crate) len: u32,
    /// Its content.
    pub(crate) body: Body,
}

/// The content of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// A datagram, or a fragment of one.
    Datagram {
        /// Its number within its flow.
        number: u64,
        /// Offset of this fragment in the IP payload of the whole datagram, in bytes.
        offset: u16,
        /// Bytes of the whole datagram's payload.
        size: u16,
        /// Whether this is the datagram's last fragment.
        last: bool,
    },
    /// A TCP segment, an acknowledgement, or both.
    Tcp(tcp::Packet),
}

impl Packet {
    /// A packet that its sender has just made: whole, on its own, and marked nowhere.
    #[inline]
    pub(crate) fn new((flow, back): (u32, bool), ect: bool, len: u32, body: Body) -> Self {
        let (ce, carried, marked, passed, apart) = (false, false, false, false, 0);
        Self { flow, back, ect, ce, carried, marked, passed, apart, len, body }
    }

    /// Frames on a link.
    #[inline]
    pub(crate) fn frames(&self) -> u32 {
        match &self.body {
            Body::Tcp(tcp::Packet { segment: Some(segment), .. }) => segment.packet_count(),
            _ => 1,
        }
    }

    /// Bytes of each frame's payload and of its header, for a segment that the NIC cuts; zeros for a single frame.
    #[inline]
    pub(crate) fn cut_as(&self) -> (u16, u16) {
        match &self.body {
            Body::Tcp(tcp::Packet { segment: Some(segment), .. }) if segment.packet_count() > 1 => {
                (segment.mss, (self.len - segment.len) as u16)
            }
            _ => (0, 0),
        }
    }

    /// The frame that begins `offset` payload bytes into the segment. CWR stays on the first frame, PSH on the last.
    pub(crate) fn cut(mut self, offset: u32) -> Self {
        let Body::Tcp(tcp::Packet { segment: Some(segment), .. }) = &mut self.body else { return self };
        let header = self.len - segment.len;
        segment.split_front(offset / u32::from(segment.mss.max(1)));
        if let Some(front) = segment.split_front(1) {
            *segment = front;
        }
        self.len = header + segment.len;
        self.apart = header as u8;
        self
    }
}

/// Bytes of the Ethernet and IPv4 headers.
pub(crate) const IP_HEADERS: u32 = 14 + 20;
/// Bytes of the Ethernet, IPv4 and UDP headers.
pub(crate) const UDP_HEADERS: u32 = IP_HEADERS + 8;
/// Bytes of the shortest frame, without its check sequence.
pub(crate) const SHORTEST: u32 = 60;
