//! Decodes vhost-user's messages and encodes the answers.
//!
//! Why: the request handlers of existing crates disconnect QEMU 7.2, which enables rings before it sets features, and these
//! crates cannot parse a message without them.
//! From: QEMU's `docs/interop/vhost-user.rst`; the numbers are those of the protocol.
//! Not here: the effect of a message (`front_end`), and the use of its descriptors.
//! Invariant: a message is decoded whole or refused, whatever its bytes. Its values are checked here, except addresses,
//! which `mapped` checks.

use crate::mapped::Piece;

/// Length of the header before each message.
pub(super) const HEADER: usize = 12;
/// Longest payload: that of a memory table.
pub(super) const LONGEST: usize = 8 + MAX_REGIONS * 32;
/// Most pieces of guest memory that the protocol allows.
pub(super) const MAX_REGIONS: usize = 8;
/// Largest ring of the virtio specification.
pub(super) const MAX_RING: u32 = 32_768;

/// Features of the protocol, by bit.
pub(super) mod protocol {
    /// Multiqueue: several pairs of rings.
    pub(in super::super) const MQ: u64 = 1 << 0;
    /// The log of written pages lies in memory that the front end shares.
    pub(in super::super) const LOG_SHMFD: u64 = 1 << 1;
    /// Any request may ask for an answer.
    pub(in super::super) const REPLY_ACK: u64 = 1 << 3;
}

/// Features of the device, by bit. `HOST_` features are offloads for frames from the guest, done by this device; `GUEST_`
/// features are offloads for frames to the guest, done by its driver.
pub(super) mod feature {
    /// Frames from the guest may have a partial checksum.
    pub(in super::super) const CSUM: u64 = 1 << 0;
    /// Frames for the guest may have a partial checksum.
    pub(in super::super) const GUEST_CSUM: u64 = 1 << 1;
    /// Frames for the guest may be larger than the MTU: TCP over IPv4.
    pub(in super::super) const GUEST_TSO4: u64 = 1 << 7;
    /// Frames for the guest may be larger than the MTU: TCP over IPv6.
    pub(in super::super) const GUEST_TSO6: u64 = 1 << 8;
    /// Frames for the guest may be larger than the MTU: TCP with CWR.
    pub(in super::super) const GUEST_ECN: u64 = 1 << 9;
    /// Frames from the guest may be larger than the MTU: TCP over IPv4.
    pub(in super::super) const HOST_TSO4: u64 = 1 << 11;
    /// Frames from the guest may be larger than the MTU: TCP over IPv6.
    pub(in super::super) const HOST_TSO6: u64 = 1 << 12;
    /// Frames from the guest may be larger than the MTU: TCP with CWR.
    pub(in super::super) const HOST_ECN: u64 = 1 << 13;
    /// A frame for the guest may lie in several buffers.
    pub(in super::super) const MRG_RXBUF: u64 = 1 << 15;
    /// The guest tells its neighbours where it is once it has moved to another host; the front end asks it to.
    pub(in super::super) const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// The guest may have several pairs of rings.
    pub(in super::super) const MQ: u64 = 1 << 22;
    /// What is written to guest memory is noted in a log, while the guest moves to another host.
    pub(in super::super) const LOG_ALL: u64 = 1 << 26;
    /// A header may share a descriptor with the frame.
    pub(in super::super) const ANY_LAYOUT: u64 = 1 << 27;
    /// Descriptors may be in a table of their own.
    pub(in super::super) const INDIRECT: u64 = 1 << 28;
    /// Each side states the ring index from which on it wants to be woken.
    pub(in super::super) const EVENT_IDX: u64 = 1 << 29;
    /// There are protocol features; rings start disabled.
    pub(in super::super) const PROTOCOL: u64 = 1 << 30;
    /// virtio 1.0: little endian, a header of twelve bytes.
    pub(in super::super) const VERSION_1: u64 = 1 << 32;
    /// Frames for the guest may be larger than the MTU: UDP over IPv4.
    pub(in super::super) const GUEST_USO4: u64 = 1 << 54;
    /// Frames for the guest may be larger than the MTU: UDP over IPv6.
    pub(in super::super) const GUEST_USO6: u64 = 1 << 55;
    /// Frames from the guest may be larger than the MTU: UDP.
    pub(in super::super) const HOST_USO: u64 = 1 << 56;

    /// All offered features. Not IN_ORDER: completions come in any order.
    pub(in super::super) const OFFERED: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_ECN
        | HOST_TSO4
        | HOST_TSO6
        | HOST_ECN
        | MRG_RXBUF
        | GUEST_ANNOUNCE
        | MQ
        | LOG_ALL
        | ANY_LAYOUT
        | INDIRECT
        | EVENT_IDX
        | PROTOCOL
        | VERSION_1
        | GUEST_USO4
        | GUEST_USO6
        | HOST_USO;
}

/// The addresses of a ring's three parts, in the front end's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingPlace {
    pub(super) descriptors: u64,
    pub(super) used: u64,
    pub(super) available: u64,
}

/// A front end's request, with the front end's ring numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    GetFeatures,
    SetFeatures(u64),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetOwner,
    ResetOwner,
    /// Comes with one file descriptor for each piece.
    SetMemTable(Vec<Piece>),
    /// The log of written pages; comes with a file descriptor.
    SetLogBase {
        /// Its bytes.
        len: u64,
        /// Where it begins in its file.
        offset: u64,
    },
    /// What to ring when something was logged, which no front end needs; comes with a file descriptor.
    SetLogBell,
    SetRingSize(u32, u32),
    SetRingPlace(u32, RingPlace),
    SetRingBase(u32, u32),
    GetRingBase(u32),
    /// Comes with a file descriptor if the second field is true; otherwise the ring is to be polled.
    SetKick(u32, bool),
    SetCall(u32, bool),
    SetErr(u32, bool),
    SetEnable(u32, bool),
}

/// The decoded header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) request: u32,
    pub(super) wants_answer: bool,
    /// Length of the payload.
    pub(super) len: usize,
}

/// Why a message is invalid, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("a message of protocol version {0}; version 1 is spoken here")]
    Version(u32),
    #[error("request {request} with {len} bytes")]
    Length { request: u32, len: usize },
    #[error("request {0}, which was not offered")]
    Unknown(u32),
    #[error("request {request} with {found} file descriptors instead of {expected}")]
    Descriptors { request: u32, found: usize, expected: usize },
    #[error(
        "file descriptors that are neither memory (a memfd, or a file in tmpfs or hugetlbfs) nor eventfds, or more than 8"
    )]
    DescriptorKind,
    #[error("ring number {0}, which does not exist")]
    NoRing(u32),
    #[error("a ring of {0} descriptors; the size must be a power of two up to 32768")]
    RingSize(u32),
    #[error("features {0:#x}, which were not offered")]
    Features(u64),
    #[error("{0}")]
    Other(String),
}

impl Header {
    pub(super) fn parse(bytes: [u8; HEADER]) -> Result<Self, ProtocolError> {
        let [request, flags, len] = [0, 4, 8].map(|at| word(&bytes, at));
        if flags & 3 != 1 {
            return Err(ProtocolError::Version(flags & 3));
        }
        let len = len as usize;
        if len > LONGEST {
            return Err(ProtocolError::Length { request, len });
        }
        Ok(Self { request, wants_answer: flags & NEED_REPLY != 0, len })
    }
}

impl Request {
    /// Decodes the message behind a header; `descriptors` is the number of file descriptors that came with it.
    pub(super) fn parse(header: &Header, payload: &[u8], descriptors: usize) -> Result<Self, ProtocolError> {
        let Header { request, .. } = *header;
        let exactly = |len: usize| {
            if payload.len() == len {
                Ok(())
            } else {
                Err(ProtocolError::Length { request, len: payload.len() })
            }
        };
        let number = || exactly(8).map(|()| long(payload, 0));
        let pair = || exactly(8).map(|()| (word(payload, 0), word(payload, 4)));
        // The low byte is the ring's number; bit 8 means that no descriptor comes with it.
        let bell = || number().map(|number| ((number & 0xff) as u32, number & NO_DESCRIPTOR == 0));
        let understood = match request {
            1 => exactly(0).map(|()| Self::GetFeatures),
            2 => number().map(Self::SetFeatures),
            3 => exactly(0).map(|()| Self::SetOwner),
            4 => exactly(0).map(|()| Self::ResetOwner),
            5 => memory_table(request, payload).map(Self::SetMemTable),
            6 => exactly(16).map(|()| Self::SetLogBase { len: long(payload, 0), offset: long(payload, 8) }),
            7 => Ok(Self::SetLogBell),
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
            _ => Err(ProtocolError::Unknown(request)),
        }?;
        let expected = understood.descriptors();
        if descriptors != expected {
            return Err(ProtocolError::Descriptors { request, found: descriptors, expected });
        }
        Ok(understood)
    }

    /// Number of file descriptors that belong to the request.
    fn descriptors(&self) -> usize {
        match self {
            Self::SetMemTable(pieces) => pieces.len(),
            Self::SetLogBase { .. } | Self::SetLogBell => 1,
            Self::SetKick(_, given) | Self::SetCall(_, given) | Self::SetErr(_, given) => usize::from(*given),
            _ => 0,
        }
    }
}

/// Encodes an answer with one number.
pub(super) fn answer(request: u32, number: u64) -> [u8; HEADER + 8] {
    let mut bytes = [0; HEADER + 8];
    bytes[..4].copy_from_slice(&request.to_le_bytes());
    bytes[4..8].copy_from_slice(&(1 | REPLY).to_le_bytes());
    bytes[8..12].copy_from_slice(&8_u32.to_le_bytes());
    bytes[12..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Encodes an answer with a ring and a number.
pub(super) fn answer_ring(request: u32, ring: u32, number: u32) -> [u8; HEADER + 8] {
    answer(request, u64::from(number) << 32 | u64::from(ring))
}

fn memory_table(request: u32, payload: &[u8]) -> Result<Vec<Piece>, ProtocolError> {
    let bad = ProtocolError::Length { request, len: payload.len() };
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

/// The 32-bit number at `at`; zero beyond the end, which no caller reaches.
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
        assert!(matches!(Request::parse(&header(12, 8), &kick, 0), Err(ProtocolError::Descriptors { .. })));
        let polled = 0x103_u64.to_le_bytes();
        assert_eq!(Request::parse(&header(12, 8), &polled, 0), Ok(Request::SetKick(3, false)));
        assert!(Request::parse(&header(12, 7), &kick[..7], 1).is_err());
        assert_eq!(Request::parse(&header(99, 0), &[], 0), Err(ProtocolError::Unknown(99)));
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
        assert_eq!(Header::parse(bytes), Err(ProtocolError::Version(0)));
        bytes[4] = 9;
        assert_eq!(Header::parse(bytes), Ok(Header { request: 1, wants_answer: true, len: 0 }));
        bytes[11] = 0x80;
        assert!(Header::parse(bytes).is_err());
    }
}
