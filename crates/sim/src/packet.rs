//! A packet: what its headers say, without its bytes.
//!
//! Why: millions a second are copied from ring to ring; nobody looks at payload.
//! From: Ethernet, IPv4, UDP and TCP header lengths.
//! Not here: frames with all their bytes, which `trace` makes when somebody wants to see them.
//! Invariant: `len` is the whole frame from the Ethernet header on, at least the shortest that Ethernet sends.

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

/// Ethernet and IPv4 headers.
pub(crate) const IP_HEADERS: u32 = 14 + 20;
/// Those and UDP's.
pub(crate) const UDP_HEADERS: u32 = IP_HEADERS + 8;
/// The shortest frame, without its check sequence.
pub(crate) const SHORTEST: u32 = 60;
