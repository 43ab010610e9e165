//! A packet: what its headers say, without its bytes.
//!
//! Why: millions a second are copied from ring to ring; nobody looks at payload.
//! From: Ethernet, IPv4, UDP and TCP header lengths.
//! Not here: frames with all their bytes, which `trace` makes when somebody wants to see them.
//! Invariant: `len` is the whole frame from the Ethernet header on, at least the shortest that Ethernet sends. Only
//! between a guest and its engine may it be longer than a link carries: a segment that the NIC cuts.

use crate::tcp;

/// What travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// Which flow's.
    pub(crate) flow: u32,
    /// Sent by the flow's second end (the server).
    pub(crate) back: bool,
    /// Whether routers may mark it in place of dropping it.
    pub(crate) ect: bool,
    /// Congestion was experienced.
    pub(crate) ce: bool,
    /// It travels in an outer header that routers may mark.
    pub(crate) carried: bool,
    /// They have: congestion in the fabric.
    pub(crate) marked: bool,
    /// Header bytes that the NIC reads apart from the payload, of a frame that it cut out of a longer segment.
    pub(crate) apart: u8,
    /// Bytes of the frame.
    pub(crate) len: u32,
    /// What it carries.
    pub(crate) body: Body,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// A datagram, or a fragment of one.
    Datagram {
        /// Which one of its flow.
        number: u64,
        /// Where in the IP payload of the whole datagram this begins, in bytes.
        offset: u16,
        /// Bytes of the whole datagram's payload.
        size: u16,
        /// Whether this completes it.
        last: bool,
    },
    /// A TCP segment, an acknowledgement, or both.
    Tcp(tcp::Packet),
}

impl Packet {
    /// Frames on a link.
    #[inline]
    pub(crate) fn frames(&self) -> u32 {
        match &self.body {
            Body::Tcp(tcp::Packet { segment: Some(segment), .. }) => segment.packet_count(),
            _ => 1,
        }
    }

    /// Payload bytes of each frame, and the header's, of a segment that the NIC cuts; zeros for a frame.
    #[inline]
    pub(crate) fn cut_as(&self) -> (u16, u16) {
        match &self.body {
            Body::Tcp(tcp::Packet { segment: Some(segment), .. }) if segment.packet_count() > 1 => {
                (segment.mss, (self.len - segment.len) as u16)
            }
            _ => (0, 0),
        }
    }

    /// The frame that begins so many payload bytes into the segment. CWR stays on the first, PSH on the last.
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

/// Ethernet and IPv4 headers.
pub(crate) const IP_HEADERS: u32 = 14 + 20;
/// Those and UDP's.
pub(crate) const UDP_HEADERS: u32 = IP_HEADERS + 8;
/// The shortest frame, without its check sequence.
pub(crate) const SHORTEST: u32 = 60;
