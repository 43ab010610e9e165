//! The events of a trace, and their encoding.
//!
//! Why: one list of all inputs and outputs of an engine, for the writer and the reader.
//! From: the methods of `plimsoll_nic::Nic`, one event for each that can change a decision.
//! Not here: blocks, files.
//! Invariant: every event that was written is read back; other bytes are refused, or read as harmless events.

use plimsoll_nic::{Config, Descriptor, QueueId, Refusal, Transmit};
use plimsoll_policy::{LimitId, NodeId, Placement, Sources};
use plimsoll_units::{Bytes, Nanos, Span};
use plimsoll_wire::Ecn;

use crate::numbers::{Cursor, Unreadable, put};

/// One call of the engine, with the engine's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The engine was created; always the first event.
    Start {
        /// The engine's sizes.
        config: Config,
        /// The policy's files, the main file first.
        files: Vec<File>,
    },
    /// A flow queue was opened, or refused.
    Open {
        /// The class and the limits of its packets.
        placement: Placement,
        /// The queue; none when it was refused.
        queue: Option<QueueId>,
    },
    /// A flow queue was closed, or could not be.
    Close {
        /// The flow queue.
        queue: QueueId,
        /// Whether the engine closed it.
        closed: bool,
    },
    /// A packet's descriptor was posted, or refused.
    Post {
        /// The packet's flow queue.
        queue: QueueId,
        /// The descriptor, without its address.
        descriptor: Descriptor,
        /// The reason when the descriptor was refused.
        refused: Option<Refusal>,
    },
    /// Doorbells rang.
    Ring {
        /// The time of the call.
        now: Nanos,
        /// The doorbell words.
        words: Vec<u16>,
    },
    /// The engine was polled for packets to transmit.
    Poll {
        /// The time of the poll.
        now: Nanos,
        /// Most packets that this poll could return.
        room: u32,
        /// The packets that left.
        left: Vec<Left>,
    },
    /// The oldest `count` packets that had left were completed and gave their descriptors back.
    Complete {
        /// Number of packets.
        count: u64,
    },
    /// A new policy came into force.
    Install {
        /// The time of the change.
        now: Nanos,
        /// The new policy's files.
        files: Vec<File>,
        /// The new placement of each open flow queue.
        places: Vec<(QueueId, Placement)>,
    },
    /// Number of descriptors of the host, from the next policy on.
    Descriptors(u32),
    /// Most bytes of one pull, from the next policy on.
    Pull(Bytes),
    /// The recording ends.
    End(End),
}

/// One file of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The file's path.
    pub name: String,
    /// The file's contents.
    pub text: String,
}

/// A frame, or a part of a large segment, that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The frame's flow queue.
    pub queue: QueueId,
    /// Bytes, headers included.
    pub len: u32,
    /// Offset of its payload in the segment.
    pub offset: u32,
    /// Whether it was the last frame of its descriptor.
    pub last: bool,
    /// Time since its doorbell.
    pub waited: Span,
    /// The limit that held the frame longest, and the time that all limits together held it.
    pub limited: Option<(LimitId, Span)>,
}

/// Why a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The daemon stopped.
    Stopped,
    /// The file has reached its size limit.
    Full,
    /// The disk was slower than the recording.
    Overrun,
    /// The file has no end event: the daemon crashed, or a copy was cut off.
    Torn,
}

const START: u8 = 1;
const OPEN: u8 = 2;
const CLOSE: u8 = 3;
const POST: u8 = 4;
/// Short form of `POST` for a frame without segmentation or tag that was accepted: most frames are.
const FRAME: u8 = 5;
const RING: u8 = 6;
const POLL: u8 = 7;
const COMPLETE: u8 = 8;
const INSTALL: u8 = 9;
const DESCRIPTORS: u8 = 10;
const PULL: u8 = 11;
const END: u8 = 12;

const LAST: u64 = 1;
const LATER_PART: u64 = 2;
const LIMITED: u64 = 4;

/// Largest `room` that is accepted in a poll.
const MOST_ROOM: u32 = 1 << 16;

impl Left {
    /// The part of a transmit that a replay must reproduce.
    #[must_use]
    pub fn of(transmit: &Transmit, now: Nanos) -> Self {
        Self {
            queue: transmit.queue,
            len: transmit.len,
            offset: transmit.offset,
            last: transmit.last,
            waited: now.since(transmit.arrived),
            limited: transmit.limited_by.map(|limit| (limit, transmit.limited)),
        }
    }

    #[inline]
    fn write(&self, to: &mut Vec<u8>) {
        let mut flags = 0;
        flags |= if self.last { LAST } else { 0 };
        flags |= if self.offset > 0 { LATER_PART } else { 0 };
        flags |= if self.limited.is_some() { LIMITED } else { 0 };
        put(to, self.queue.0.into());
        put(to, u64::from(self.len) << 3 | flags);
        put(to, self.waited.as_u64());
        if self.offset > 0 {
            put(to, self.offset.into());
        }
        if let Some((limit, span)) = self.limited {
            put(to, limit.0.into());
            put(to, span.as_u64());
        }
    }

    fn read(bytes: &mut Cursor<'_>) -> Result<Self, Unreadable> {
        let queue = QueueId(bytes.small()?);
        let word = bytes.number()?;
        let waited = Span::ns(bytes.number()?);
        let offset = if word & LATER_PART == 0 { 0 } else { bytes.small()? };
        let limited = if word & LIMITED == 0 {
            None
        } else {
            Some((LimitId(bytes.small()?), Span::ns(bytes.number()?)))
        };
        let len = u32::try_from(word >> 3).map_err(|_| Unreadable)?;
        Ok(Self { queue, len, offset, last: word & LAST != 0, waited, limited })
    }
}

/// Encoding: one function for each event, so that the packet path builds no [`Event`] only to write it.
pub(crate) mod write {
    use super::*;

    pub(crate) fn start(to: &mut Vec<u8>, config: &Config, sources: &Sources) {
        to.push(START);
        let Config { queues, ring, descriptors, pull, catch_up } = config;
        let numbers =
            [(*queues).into(), (*ring).into(), (*descriptors).into(), pull.as_u64(), catch_up.as_u64()];
        numbers.into_iter().for_each(|number| put(to, number));
        files(to, sources);
    }

    fn files(to: &mut Vec<u8>, sources: &Sources) {
        put(to, sources.files().len() as u64);
        for file in sources.files() {
            for text in [&file.name, file.text.as_ref()] {
                put(to, text.len() as u64);
                to.extend_from_slice(text.as_bytes());
            }
        }
    }

    fn placement(to: &mut Vec<u8>, placement: &Placement) {
        put(to, placement.class.0.into());
        put(to, placement.limits.len() as u64);
        placement.limits.iter().for_each(|limit| put(to, limit.0.into()));
    }

    pub(crate) fn open(to: &mut Vec<u8>, place: &Placement, queue: Option<QueueId>) {
        to.push(OPEN);
        placement(to, place);
        put(to, queue.map_or(0, |QueueId(queue)| u64::from(queue) + 1));
    }

    pub(crate) fn close(to: &mut Vec<u8>, queue: QueueId, closed: bool) {
        to.push(CLOSE);
        put(to, queue.0.into());
        to.push(closed.into());
    }

    #[inline]
    pub(crate) fn post(to: &mut Vec<u8>, queue: QueueId, descriptor: &Descriptor, refused: Option<Refusal>) {
        let Descriptor { len, segment, header, tag, ecn, addr: _ } = *descriptor;
        let plain = (segment, header, tag, ecn, refused) == (0, 0, 0, Ecn::NotEct, None);
        to.push(if plain { FRAME } else { POST });
        put(to, queue.0.into());
        put(to, len.into());
        if !plain {
            // The ECN field stands above the header's length: traces without it read as before.
            let header = u64::from(header) | u64::from(ecn.bits()) << 16;
            let rest = [segment.into(), header, tag.into(), refused.map_or(0, |why| why as u64 + 1)];
            rest.into_iter().for_each(|number| put(to, number));
        }
    }

    #[inline]
    pub(crate) fn ring(to: &mut Vec<u8>, after: Span, words: &[u16]) {
        to.push(RING);
        put(to, after.as_u64());
        put(to, words.len() as u64);
        words.iter().for_each(|&word| put(to, word.into()));
    }

    #[inline]
    pub(crate) fn poll(to: &mut Vec<u8>, after: Span, room: usize, now: Nanos, left: &[Transmit]) {
        to.push(POLL);
        put(to, after.as_u64());
        put(to, room as u64);
        put(to, left.len() as u64);
        left.iter().for_each(|transmit| Left::of(transmit, now).write(to));
    }

    pub(crate) fn complete(to: &mut Vec<u8>, count: u64) {
        to.push(COMPLETE);
        put(to, count);
    }

    pub(crate) fn install(to: &mut Vec<u8>, after: Span, sources: &Sources, places: &[(QueueId, Placement)]) {
        to.push(INSTALL);
        put(to, after.as_u64());
        files(to, sources);
        put(to, places.len() as u64);
        for (queue, place) in places {
            put(to, queue.0.into());
            placement(to, place);
        }
    }

    pub(crate) fn descriptors(to: &mut Vec<u8>, descriptors: u32) {
        to.push(DESCRIPTORS);
        put(to, descriptors.into());
    }

    pub(crate) fn pull(to: &mut Vec<u8>, pull: Bytes) {
        to.push(PULL);
        put(to, pull.as_u64());
    }

    pub(crate) fn end(to: &mut Vec<u8>, why: End) {
        to.push(END);
        to.push(why as u8);
    }
}

impl Event {
    /// Reads the next event; moves `now` on to the event's time.
    pub(crate) fn read(bytes: &mut Cursor<'_>, now: &mut Nanos) -> Result<Self, Unreadable> {
        Ok(match bytes.byte()? {
            START => Self::Start { config: read_config(bytes)?, files: read_files(bytes)? },
            OPEN => Self::Open { placement: read_placement(bytes)?, queue: read_answer(bytes)? },
            CLOSE => Self::Close { queue: QueueId(bytes.small()?), closed: bytes.byte()? != 0 },
            kind @ (POST | FRAME) => read_post(bytes, kind == FRAME)?,
            RING => {
                let now = advance(bytes, now)?;
                let count = bytes.count()?;
                Self::Ring { now, words: (0..count).map(|_| bytes.small()).collect::<Result<_, _>>()? }
            }
            POLL => {
                let (now, room) = (advance(bytes, now)?, bytes.small()?);
                let count = bytes.count()?;
                let left = (0..count).map(|_| Left::read(bytes)).collect::<Result<_, _>>()?;
                if room > MOST_ROOM {
                    return Err(Unreadable);
                }
                Self::Poll { now, room, left }
            }
            COMPLETE => Self::Complete { count: bytes.number()? },
            INSTALL => {
                let (now, files) = (advance(bytes, now)?, read_files(bytes)?);
                let count = bytes.count()?;
                let place = |_| Ok((QueueId(bytes.small()?), read_placement(bytes)?));
                Self::Install { now, files, places: (0..count).map(place).collect::<Result<_, _>>()? }
            }
            DESCRIPTORS => Self::Descriptors(bytes.small()?),
            PULL => Self::Pull(Bytes::new(bytes.number()?)),
            END => Self::End(match bytes.byte()? {
                0 => End::Stopped,
                1 => End::Full,
                2 => End::Overrun,
                _ => return Err(Unreadable),
            }),
            _ => return Err(Unreadable),
        })
    }
}

/// Times in a trace are below this: 146 years. It leaves room for what an engine adds to the time.
const LATEST: u64 = 1 << 62;

fn advance(bytes: &mut Cursor<'_>, now: &mut Nanos) -> Result<Nanos, Unreadable> {
    let next = now.as_u64().checked_add(bytes.number()?).filter(|&next| next < LATEST).ok_or(Unreadable)?;
    *now = Nanos::new(next);
    Ok(*now)
}

fn read_config(bytes: &mut Cursor<'_>) -> Result<Config, Unreadable> {
    let (queues, ring, descriptors) = (bytes.small()?, bytes.small()?, bytes.small()?);
    let (pull, catch_up) = (Bytes::new(bytes.number()?), Span::ns(bytes.number()?));
    Ok(Config { queues, ring, descriptors, pull, catch_up })
}

fn read_files(bytes: &mut Cursor<'_>) -> Result<Vec<File>, Unreadable> {
    let count = bytes.count()?;
    (0..count).map(|_| Ok(File { name: bytes.text()?, text: bytes.text()? })).collect()
}

fn read_placement(bytes: &mut Cursor<'_>) -> Result<Placement, Unreadable> {
    let class = NodeId(bytes.small()?);
    let count = bytes.count()?;
    let limits = (0..count).map(|_| Ok(LimitId(bytes.small()?))).collect::<Result<_, Unreadable>>()?;
    Ok(Placement { class, limits })
}

fn read_answer(bytes: &mut Cursor<'_>) -> Result<Option<QueueId>, Unreadable> {
    match bytes.number()?.checked_sub(1) {
        None => Ok(None),
        Some(queue) => u32::try_from(queue).map(|queue| Some(QueueId(queue))).map_err(|_| Unreadable),
    }
}

fn read_post(bytes: &mut Cursor<'_>, plain: bool) -> Result<Event, Unreadable> {
    let (queue, len) = (QueueId(bytes.small()?), bytes.small()?);
    if plain {
        return Ok(Event::Post {
            queue,
            descriptor: Descriptor { len, ..Descriptor::default() },
            refused: None,
        });
    }
    let (segment, header, tag) = (bytes.small()?, bytes.small::<u32>()?, bytes.small()?);
    let ecn = header >> 16;
    if ecn > u32::from(Ecn::Ce.bits()) {
        return Err(Unreadable);
    }
    let (header, ecn) = (header as u16, Ecn::from_bits(ecn as u8));
    let refused = match bytes.small::<usize>()?.checked_sub(1) {
        None => None,
        Some(why) => Some(*Refusal::ALL.get(why).ok_or(Unreadable)?),
    };
    Ok(Event::Post { queue, descriptor: Descriptor { addr: 0, len, segment, header, tag, ecn }, refused })
}
