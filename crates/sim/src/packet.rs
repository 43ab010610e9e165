//! A packet: the fields of its headers, without its bytes.
//!
//! Why: millions a second are copied from ring to ring, and the simulator never reads payload.
//! From: Ethernet, IPv4, UDP and TCP header lengths.
//! Not here: frames with all their bytes, which `trace` makes for a capture file.
//! Invariant: `len` is the whole frame from the Ethernet header on, at least the shortest that Ethernet sends. Only
//! between a guest and its engine may it be longer than a link carries: a segment that the NIC cuts.

use plimsoll_control::backpressure::mediation::Codepoint;

use crate::tcp::{self, Flags};

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
    /// Whether its sender has its buffer back, as a program had the packet before it left.
    pub(crate) settled: bool,
    /// What its sender wrote of that which hosts and routers may write.
    pub(crate) written: Written,
    /// Header bytes that the NIC reads separately from the payload, of a frame that it cut out of a longer segment.
    pub(crate) apart: u8,
    /// Bytes of the frame.
    pub(crate) len: u32,
    /// Its content.
    pub(crate) body: Body,
}

/// The fields of a header that something on the way may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written(u8);

impl Written {
    const ECT: u8 = 1;
    const CE: u8 = 2;
    const ECE: u8 = 4;
    const CWR: u8 = 8;
    const SMALLER_WINDOW: u8 = 16;

    fn of(packet: &Packet) -> Self {
        let mut bits = u8::from(packet.ect) * Self::ECT + u8::from(packet.ce) * Self::CE;
        if let Body::Tcp(tcp::Packet { segment, ack }) = &packet.body {
            let flags = segment.map(|segment| segment.flags).unwrap_or_default();
            let setup = flags.contains(Flags::ECN_SETUP);
            let (ece, smaller) = ack.map_or((false, false), |ack| (ack.ece(), ack.is_held()));
            bits += u8::from(setup || flags.contains(Flags::CWR)) * Self::CWR;
            bits += u8::from(setup || ece) * Self::ECE + u8::from(smaller) * Self::SMALLER_WINDOW;
        }
        Self(bits)
    }
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
        let (ce, carried, marked, passed, settled, apart) = (false, false, false, false, false, 0);
        let written = Written::default();
        let packet =
            Self { flow, back, ect, ce, carried, marked, passed, settled, written, apart, len, body };
        Self { written: Written::of(&packet), ..packet }
    }

    /// The ECN field. Which of the two ECTs it has is of no account.
    pub(crate) fn codepoint(&self) -> Codepoint {
        match (self.ce, self.ect) {
            (true, _) => Codepoint::Ce,
            (false, true) => Codepoint::Ect0,
            (false, false) => Codepoint::NotEct,
        }
    }

    /// The ECN field for the engine.
    pub(crate) fn ecn(&self) -> plimsoll_wire::Ecn {
        match self.codepoint() {
            Codepoint::NotEct => plimsoll_wire::Ecn::NotEct,
            Codepoint::Ect0 => plimsoll_wire::Ecn::Ect0,
            Codepoint::Ect1 => plimsoll_wire::Ecn::Ect1,
            Codepoint::Ce => plimsoll_wire::Ecn::Ce,
        }
    }

    /// Whether its headers are not as its sender wrote them.
    pub(crate) fn is_changed(&self) -> bool {
        Written::of(self) != self.written
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
        if offset > 0 {
            self.written.0 &= !Written::CWR;
        }
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

#[cfg(test)]
mod tests {
    use plimsoll_units::Nanos;

    use super::*;
    use crate::tcp::{Ack, Ecn, Segment};

    /// A segment of three packets that says that its sender has reduced its window.
    fn long(flags: Flags) -> Packet {
        let segment = Segment { seq: 0, sent: Nanos::ZERO, len: 3_000, mss: 1_448, flags, ecn: Ecn::Ect0 };
        let ack = Some(Ack::new(0, 1 << 16, Nanos::ZERO));
        Packet::new((0, false), true, 3_066, Body::Tcp(tcp::Packet { segment: Some(segment), ack }))
    }

    fn with(mut packet: Packet, change: impl FnOnce(&mut Segment, &mut Ack)) -> Packet {
        if let Body::Tcp(tcp::Packet { segment: Some(segment), ack: Some(ack) }) = &mut packet.body {
            change(segment, ack);
        }
        packet
    }

    #[test]
    fn each_field_that_is_written_on_the_way_is_a_change() {
        let sent = long(Flags::PSH);
        assert!(!sent.is_changed() && !Packet { passed: true, marked: true, ..sent }.is_changed());
        assert!(Packet { ce: true, ..sent }.is_changed());
        assert!(with(sent, |segment, _| segment.flags |= Flags::CWR).is_changed());
        assert!(with(sent, |segment, _| segment.flags |= Flags::ECN_SETUP).is_changed());
        assert!(with(sent, |_, ack| *ack = ack.with_ece(true)).is_changed());
        assert!(with(sent, |_, ack| *ack = ack.with_smaller_window(1 << 12)).is_changed());
    }

    /// CWR stays on the first frame of a segment that is cut, whoever has set it.
    #[test]
    fn cutting_a_segment_changes_nothing() {
        let cuts = [0, 1_448, 2_896];
        assert_eq!(cuts.map(|offset| long(Flags::CWR).cut(offset).is_changed()), [false; 3]);
        let written = with(long(Flags::PSH), |segment, _| segment.flags |= Flags::CWR);
        assert_eq!(cuts.map(|offset| written.cut(offset).is_changed()), [true, false, false]);
    }
}
