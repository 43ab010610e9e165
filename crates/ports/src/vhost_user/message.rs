//! What a front end says, and what it is answered: vhost-user's messages as bytes.
//!
//! Why: the crates' own request handlers hang up on QEMU 7.2, which enables rings before it sets features, and offer no
//! way to parse a message without them.
//! From: QEMU's `docs/interop/vhost-user.rst`; the numbers are those of the protocol.
//! Not here: what a message does (`front_end`), and its descriptors' meaning.
//! Invariant: whatever the bytes, a message is understood whole or refused; nothing is believed that is not checked here
//! or marked as an address, which `memory` checks.

/// Bytes of the header before each message.
pub(super) const HEADER: usize = 12;
/// Bytes that follow it at most: the largest message that is known is a memory table.
pub(super) const LONGEST: usize = 8 + MAX_REGIONS * 32;
/// Pieces of guest memory: what the protocol allows.
pub(super) const MAX_REGIONS: usize = 8;
/// Largest ring of the virtio specification.
pub(super) const MAX_RING: u32 = 32_768;

/// Features of the protocol, by bit.
pub(super) mod protocol {
    /// Several pairs of rings.
    pub(in super::super) const MQ: u64 = 1 << 0;
    /// Any request may ask for an answer.
    pub(in super::super) const REPLY_ACK: u64 = 1 << 3;
}

/// Features of the device, by bit. "Host" is us: what the guest may leave to us; "guest" what we may leave to it.
pub(super) mod feature {
    /// Frames from the guest may come with their checksum still to be completed.
    pub(in super::super) const CSUM: u64 = 1 << 0;
    /// Frames for the guest may.
    pub(in super::super) const GUEST_CSUM: u64 = 1 << 1;
    /// Frames for the guest may be larger than the MTU: TCP over IPv4.
    pub(in super::super) const GUEST_TSO4: u64 = 1 << 7;
    /// TCP over IPv6.
    pub(in super::super) const GUEST_TSO6: u64 = 1 << 8;
    /// TCP with CWR.
    pub(in super::super) const GUEST_ECN: u64 = 1 << 9;
    /// Frames from the guest may be larger than the MTU: TCP over IPv4.
    pub(in super::super) const HOST_TSO4: u64 = 1 << 11;
    /// TCP over IPv6.
    pub(in super::super) const HOST_TSO6: u64 = 1 << 12;
    /// TCP with CWR.
    pub(in super::super) const HOST_ECN: u64 = 1 << 13;
    /// A frame for the guest may lie in several buffers.
    pub(in super::super) const MRG_RXBUF: u64 = 1 << 15;
    /// The guest may have several pairs of rings.
    pub(in super::super) const MQ: u64 = 1 << 22;
    /// A header may share a descriptor with the frame.
    pub(in super::super) const ANY_LAYOUT: u64 = 1 << 27;
    /// Descriptors may be in a table of their own.
    pub(in super::super) const INDIRECT: u64 = 1 << 28;
    /// Each side says from which entry on it wants to be woken.
    pub(in super::super) const EVENT_IDX: u64 = 1 << 29;
    /// The protocol has features of its own; rings start disabled.
    pub(in super::super) const PROTOCOL: u64 = 1 << 30;
    /// virtio 1.0: little endian, a header of twelve bytes.
    pub(in super::super) const VERSION_1: u64 = 1 << 32;
    /// UDP for the guest in datagrams: over IPv4.
    pub(in super::super) const GUEST_USO4: u64 = 1 << 54;
    /// Over IPv6.
    pub(in super::super) const GUEST_USO6: u64 = 1 << 55;
    /// UDP from the guest in datagrams.
    pub(in super::super) const HOST_USO: u64 = 1 << 56;

    /// All that is offered. Not IN_ORDER: completions come in any order.
    pub(in super::super) const OFFERED: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_ECN
        | HOST_TSO4
        | HOST_TSO6
        | HOST_ECN
        | MRG_RXBUF
        | MQ
        | ANY_LAYOUT
        | INDIRECT
        | EVENT_IDX
        | PROTOCOL
        | VERSION_1
        | GUEST_USO4
        | GUEST_USO6
        | HOST_USO;
}

/// A piece of guest memory as the front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where the guest has it.
    pub(super) guest: u64,
    /// Its bytes.
    pub(super) len: u64,
    /// Where the front end has it.
    pub(super) user: u64,
    /// Where it begins in its file.
    pub(super) offset: u64,
}

/// Where a ring lies, by the front end's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingPlace {
    pub(super) descriptors: u64,
    pub(super) used: u64,
    pub(super) available: u64,
}

/// What a front end asks for. Rings are numbered as it numbers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    GetFeatures,
    SetFeatures(u64),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetOwner,
    ResetOwner,
    /// One descriptor for each piece comes with it.
    SetMemTable(Vec<Piece>),
    SetRingSize(u32, u32),
    SetRingPlace(u32, RingPlace),
    SetRingBase(u32, u32),
    GetRingBase(u32),
    /// A descriptor comes with it, unless the ring is to be polled.
    SetKick(u32, bool),
    SetCall(u32, bool),
    SetErr(u32, bool),
    SetEnable(u32, bool),
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) request: u32,
    pub(super) wants_answer: bool,
    /// Bytes that follow.
    pub(super) len: usize,
}

/// A message that makes no sense, told to the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Nonsense {
    #[error("a message of protocol version {0}; version 1 is spoken here")]
    Version(u32),
    #[error("request {request} with {len} bytes")]
    Length { request: u32, len: usize },
    #[error("request {0}, which was not offered")]
    Unknown(u32),
    #[error("request {request} with {found} file descriptors where {expected} belong")]
    Descriptors { request: u32, found: usize, expected: usize },
    #[error(
        "file descriptors that are neither memory (a memfd, or a file in tmpfs or hugetlbfs) nor eventfds, or more than 8"
    )]
    Foreign,
    #[error("ring {0}, of which there is none")]
    NoRing(u32),
    #[error("a ring of {0} descriptors; a power of two up to 32768 makes one")]
    RingSize(u32),
    #[error("features {0:#x}, which were not offered")]
    Features(u64),
    #[error("{0}")]
    Other(String),
}

impl Header {
    pub(super) fn parse(bytes: [u8; HEADER]) -> Result<Self, Nonsense> {
        let [request, flags, len] = [0, 4, 8].map(|at| word(&bytes, at));
        if flags & 3 != 1 {
            return Err(Nonsense::Version(flags & 3));
        }
        let len = len as usize;
        if len > LONGEST {
            return Err(Nonsense::Length { request, len });
        }
        Ok(Self { request, wants_answer: flags & NEED_REPLY != 0, len })
    }
}

impl Request {
    /// Understands the message behind a header; `descriptors` came with it.
    pub(super) fn parse(header: &Header, payload: &[u8], descriptors: usize) -> Result<Self, Nonsense> {
        let Header { request, .. } = *header;
        let exactly = |len: usize| {
            if payload.len() == len { Ok(()) } else { Err(Nonsense::Length { request, len: payload.len() }) }
        };
        let number = || exactly(8).map(|()| long(payload, 0));
        let pair = || exactly(8).map(|()| (word(payload, 0), word(payload, 4)));
        // The low byte names the ring; bit 8 says that no descriptor comes with it.
        let bell = || number().map(|number| ((number & 0xff) as u32, number & NO_DESCRIPTOR == 0));
        let understood = match request {
            1 => exactly(0).map(|()| Self::GetFeatures),
            2 => number().map(Self::SetFeatures),
            3 => exactly(0).map(|()| Self::SetOwner),
            4 => exactly(0).map(|()| Self::ResetOwner),
            5 => memory_table(request, payload).map(Self::SetMemTable),
            8 => pair().map(|(ring, size)| Self::SetRingSize(ring, size)),
            9 => exactly(40).map(|()| Self::SetRingPlace(word(payload, 0), ring_place(payload))),
            10 => pair().map(|(ring, base)| Self::SetRingBase(ring, base)),
            11 => pair().map(|(ring, _)| Self::GetRingBase(ring)),
            12 => bell().map(|(ring, given)| Self::SetKick(ring, given)),
            13 => bell().map(|(ring, given)| Self::SetCall(ring, given)),
            14 => bell().map(|(ring, given)| Self::SetErr(ring, given)),
            15 => exactly(0).map(|()| Self::GetProtocolFeatures),
            16 => number().map(Self::SetProtocolFeatures),
            17 => exactly(0).map(|()| Self::GetQueueNum),
            18 => pair().map(|(ring, enable)| Self::SetEnable(ring, enable != 0)),
            _ => Err(Nonsense::Unknown(request)),
        }?;
        let expected = understood.descriptors();
        if descriptors != expected {
            return Err(Nonsense::Descriptors { request, found: descriptors, expected });
        }
        Ok(understood)
    }

    /// How many file descriptors belong to it.
    fn descriptors(&self) -> usize {
        match self {
            Self::SetMemTable(pieces) => pieces.len(),
            Self::SetKick(_, given) | Self::SetCall(_, given) | Self::SetErr(_, given) => usize::from(*given),
            _ => 0,
        }
    }
}

/// An answer of one number.
pub(super) fn answer(request: u32, number: u64) -> [u8; HEADER + 8] {
    let mut bytes = [0; HEADER + 8];
    bytes[..4].copy_from_slice(&request.to_le_bytes());
    bytes[4..8].copy_from_slice(&(1 | REPLY).to_le_bytes());
    bytes[8..12].copy_from_slice(&8_u32.to_le_bytes());
    bytes[12..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// An answer of a ring and a number.
pub(super) fn answer_ring(request: u32, ring: u32, number: u32) -> [u8; HEADER + 8] {
    answer(request, u64::from(number) << 32 | u64::from(ring))
}

fn memory_table(request: u32, payload: &[u8]) -> Result<Vec<Piece>, Nonsense> {
    let bad = Nonsense::Length { request, len: payload.len() };
    let (count, pieces) = payload.split_at_checked(8).ok_or_else(|| bad.clone())?;
    let count = word(count, 0) as usize;
    if !(1..=MAX_REGIONS).contains(&count) || pieces.len() != count * 32 {
        return Err(bad);
    }
    let piece =
        |at: &[u8]| Piece { guest: long(at, 0), len: long(at, 8), user: long(at, 16), offset: long(at, 24) };
    Ok(pieces.chunks_exact(32).map(piece).collect())
}

fn ring_place(payload: &[u8]) -> RingPlace {
    RingPlace { descriptors: long(payload, 8), used: long(payload, 16), available: long(payload, 24) }
}

/// The number at `at`; zero beyond the end, which no caller reaches.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
const NO_DESCRIPTOR: u64 = 1 << 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(request: u32, len: usize) -> Header {
        Header { request, wants_answer: false, len }
    }

    #[test]
    fn a_message_is_understood_with_its_descriptors_and_not_without() {
        let kick = 3_u64.to_le_bytes();
        assert_eq!(Request::parse(&header(12, 8), &kick, 1), Ok(Request::SetKick(3, true)));
        assert!(matches!(Request::parse(&header(12, 8), &kick, 0), Err(Nonsense::Descriptors { .. })));
        let polled = 0x103_u64.to_le_bytes();
        assert_eq!(Request::parse(&header(12, 8), &polled, 0), Ok(Request::SetKick(3, false)));
        assert!(Request::parse(&header(12, 7), &kick[..7], 1).is_err());
        assert_eq!(Request::parse(&header(99, 0), &[], 0), Err(Nonsense::Unknown(99)));
    }

    #[test]
    fn a_memory_table_has_as_many_pieces_as_it_says() {
        let mut table = vec![0; 8 + 2 * 32];
        table[0] = 2;
        table[8 + 8] = 7;
        let parsed = Request::parse(&header(5, table.len()), &table, 2);
        let Ok(Request::SetMemTable(pieces)) = parsed else { panic!("{parsed:?}") };
        assert_eq!((pieces.len(), pieces[0].len), (2, 7));
        for count in [0, 1, 3, 9, 0xff] {
            table[0] = count;
            assert!(Request::parse(&header(5, table.len()), &table, count.into()).is_err(), "{count}");
        }
    }

    #[test]
    fn a_header_of_another_version_or_too_long_is_refused() {
        let mut bytes = [0; HEADER];
        bytes[0] = 1;
        assert_eq!(Header::parse(bytes), Err(Nonsense::Version(0)));
        bytes[4] = 9;
        assert_eq!(Header::parse(bytes), Ok(Header { request: 1, wants_answer: true, len: 0 }));
        bytes[11] = 0x80;
        assert!(Header::parse(bytes).is_err());
    }
}
