//! Segments, and the acknowledgements that come back.

use core::ops::{BitOr, BitOrAssign};

use plimsoll_units::Nanos;

/// The ECN field of the IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The sender does not understand marks: a queue drops instead.
    #[default]
    NotEct,
    /// ECN-capable, the codepoint that Linux uses.
    Ect0,
    /// ECN-capable, the other codepoint.
    Ect1,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// The codepoint after a mark by a queue; `None` if the queue has to drop the packet instead.
    #[must_use]
    pub const fn marked(self) -> Option<Self> {
        match self {
            Self::NotEct => None,
            Self::Ect0 | Self::Ect1 | Self::Ce => Some(Self::Ce),
        }
    }
}

/// The flags of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// Opens a connection.
    pub const SYN: Self = Self(1);
    /// The last bytes that the application has written so far.
    pub const PSH: Self = Self(2);
    /// The sender has reduced its window since the last echo of a mark (RFC 3168).
    pub const CWR: Self = Self(4);
    /// On a SYN: the sender asks for ECN (the header's ECE and CWR together).
    pub const ECN_SETUP: Self = Self(8);
    /// These bytes have been sent before. Not on a real wire; for traces and statistics.
    pub const RETRANSMISSION: Self = Self(16);
    /// Asks for an acknowledgement and carries nothing (Linux's window probe).
    pub const PROBE: Self = Self(32);

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// A run of bytes on its way: one packet, or a descriptor for segmentation offload that is several packets long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Offset of the first byte in the stream.
    pub seq: u64,
    /// When it was handed over: RFC 7323's timestamp, which its acknowledgement echoes.
    pub sent: Nanos,
    /// Payload bytes; none on a SYN and on a window probe.
    pub len: u32,
    /// Payload bytes of each packet but the last, when the segment is cut; at least 1.
    pub mss: u16,
    /// Its flags.
    pub flags: Flags,
    /// The IP header's ECN field; a queue on the way may change it.
    pub ecn: Ecn,
}

impl Segment {
    /// Offset of the byte after the last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.seq.saturating_add(self.len as u64)
    }

    /// How many packets it is on the wire: at least one.
    #[must_use]
    pub const fn packet_count(&self) -> u32 {
        if self.len <= self.mss as u32 { 1 } else { self.len.div_ceil(self.mss as u32) }
    }

    /// Cuts it into packets as a NIC does: CWR stays on the first, PSH on the last.
    #[must_use]
    pub const fn packets(self) -> Packets {
        Packets { rest: Some(self) }
    }

    /// Takes the first `packets` packets off and leaves the rest; `None` leaves nothing, and the segment is whole.
    ///
    /// For a scheduler that serves a descriptor a packet at a time.
    pub fn split_front(&mut self, packets: u32) -> Option<Self> {
        let cut = packets.saturating_mul(u32::from(self.mss));
        if cut == 0 || cut >= self.len {
            return None;
        }
        let mut front = *self;
        front.len = cut;
        front.flags = front.flags.without(Flags::PSH);
        self.seq += u64::from(cut);
        self.len -= cut;
        self.flags = self.flags.without(Flags::CWR);
        Some(front)
    }
}

/// The packets of one segment, in order.
#[derive(Clone, Debug)]
pub struct Packets {
    rest: Option<Segment>,
}

impl Iterator for Packets {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let rest = self.rest.as_mut()?;
        match rest.split_front(1) {
            Some(front) => Some(front),
            None => self.rest.take(),
        }
    }
}

/// A run of bytes that has arrived out of order: `start..end`, in stream offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SackBlock {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// An acknowledgement from a receiver.
///
/// Blocks are kept as signed distances from `ack`, which a receive window of at most 1 GiB lets fit 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ack {
    /// The next byte that the receiver waits for: all before it have arrived.
    pub ack: u64,
    /// [`Segment::sent`] of the segment that this answers (RFC 7323 §4.3).
    pub echo: Nanos,
    /// How many bytes after `ack` the receiver has room for.
    pub window: u32,
    blocks: [(i32, i32); Self::BLOCKS],
    count: u8,
    // Not bits of a byte, so that `Option<Ack>` is no larger.
    ece: bool,
    syn: bool,
    held: bool,
}

impl Ack {
    /// SACK blocks in one acknowledgement: three fit beside the timestamps (RFC 2018 §3).
    pub const BLOCKS: usize = 3;

    /// All before `ack` has arrived and there is room for `window` more.
    #[must_use]
    pub const fn new(ack: u64, window: u32, echo: Nanos) -> Self {
        Self {
            ack,
            echo,
            window,
            blocks: [(0, 0); Self::BLOCKS],
            count: 0,
            ece: false,
            syn: false,
            held: false,
        }
    }

    /// Adds a block, after those which it already has. One block too many, or too far from `ack`, is left out.
    #[must_use]
    pub fn with_block(mut self, block: SackBlock) -> Self {
        let near = |seq: u64| i32::try_from(i128::from(seq) - i128::from(self.ack)).ok();
        if let (Some(start), Some(end)) = (near(block.start), near(block.end))
            && let Some(place) = self.blocks.get_mut(usize::from(self.count))
        {
            *place = (start, end);
            self.count += 1;
        }
        self
    }

    /// Sets or clears the echo of a mark.
    #[must_use]
    pub const fn with_ece(mut self, ece: bool) -> Self {
        self.ece = ece;
        self
    }

    /// Sets or clears that this answers a SYN. With [`Self::ece`] it accepts ECN.
    #[must_use]
    pub const fn with_syn(mut self, syn: bool) -> Self {
        self.syn = syn;
        self
    }

    /// Whether marks are echoed.
    #[must_use]
    pub const fn ece(&self) -> bool {
        self.ece
    }

    /// Whether this answers a SYN.
    #[must_use]
    pub const fn syn(&self) -> bool {
        self.syn
    }

    /// The blocks, the most recent first; the first may repeat bytes before `ack` or of the second (RFC 2883: a
    /// duplicate has arrived).
    pub fn blocks(&self) -> impl Iterator<Item = SackBlock> + '_ {
        let far = |distance: i32| self.ack.saturating_add_signed(i64::from(distance));
        let blocks = self.blocks.iter().take(usize::from(self.count));
        blocks.map(move |&(start, end)| SackBlock { start: far(start), end: far(end) })
    }

    /// Whether it has any block.
    #[must_use]
    pub const fn has_blocks(&self) -> bool {
        self.count != 0
    }

    /// Makes the window smaller, as a host on the way does that holds the flow to a rate.
    #[must_use]
    pub const fn with_smaller_window(mut self, window: u32) -> Self {
        self.window = window;
        self.held = true;
        self
    }

    /// Whether a host on the way has made the window smaller. Not on a real wire; for statistics.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(len: u32) -> Segment {
        Segment {
            seq: 1_000,
            sent: Nanos::ZERO,
            len,
            mss: 1_448,
            flags: Flags::CWR | Flags::PSH,
            ecn: Ecn::Ect0,
        }
    }

    #[test]
    fn packets_cover_a_descriptor_and_flags_stay_at_its_ends() {
        let packets: Vec<Segment> = descriptor(3_000).packets().collect();
        assert_eq!(
            packets.iter().map(|p| (p.seq, p.len)).collect::<Vec<_>>(),
            [(1_000, 1_448), (2_448, 1_448), (3_896, 104)]
        );
        assert_eq!(
            packets.iter().map(|p| p.flags).collect::<Vec<_>>(),
            [Flags::CWR, Flags::default(), Flags::PSH]
        );
        assert_eq!(descriptor(3_000).packet_count(), 3);
    }

    #[test]
    fn a_packet_without_payload_is_one_packet() {
        assert_eq!(descriptor(0).packets().count(), 1);
        assert_eq!(descriptor(0).packet_count(), 1);
        assert_eq!(descriptor(1_448).packets().collect::<Vec<_>>(), [descriptor(1_448)]);
    }

    #[test]
    fn an_ack_gives_back_the_blocks_it_was_given() {
        let blocks = [SackBlock { start: 500, end: 600 }, SackBlock { start: 2_000, end: 3_000 }];
        let ack = blocks.into_iter().fold(Ack::new(1_000, 0, Nanos::ZERO), Ack::with_block);
        assert_eq!(ack.blocks().collect::<Vec<_>>(), blocks);
        let far = SackBlock { start: u64::MAX - 1, end: u64::MAX };
        assert_eq!(ack.with_block(far).blocks().count(), 2, "a block out of reach is left out");
    }

    #[test]
    fn what_crosses_the_network_fits_a_cache_line() {
        assert_eq!((size_of::<Segment>(), size_of::<Ack>()), (24, 48));
        assert_eq!((size_of::<Option<Segment>>(), size_of::<Option<Ack>>()), (24, 48));
    }
}
