//! Geneve's header and options, and the option that carries feedback.
//!
//! Why: options let a host's feedback travel on frames that go to the other host anyway.
//! From: RFC 8926 §3.4 (header), §3.5 (options, the critical bit, lengths that must agree), §7 (experimental classes).
//! Not here: the contents of feedback.
//! Invariant: reading options ends after at most 63.
//!
//! The feedback option has class [`OPTION_CLASS`] and type [`OPTION_FEEDBACK`] (not critical: a receiver that does not
//! know it skips it). Its data is the message's length in one byte, the message, and zeros up to a multiple of four. An
//! option has five bits for its length in words, so 124 bytes of data and [`MOST_IN_OPTION`] bytes of message. Longer
//! messages have a frame of their own.
//!
//! The feedback frame has Geneve's control bit, no options, VNI 0 and protocol [`PROTOCOL_FEEDBACK`]; the message is the
//! rest of the datagram. Considered: a separate UDP port. Geneve's port is open between the hosts in any case, and other
//! implementations drop a control message of an unknown protocol, as RFC 8926 demands.
//!
//! A sealed frame has [`PROTOCOL_SEALED`] in place of Ethernet's protocol type. A hello has that protocol, the control
//! bit, no options and VNI 0. Other implementations drop both.

use core::ops::Range;

use super::{TUNNEL, Vni};
use crate::bytes::{array, be16, be32, put};
use crate::reason::DecapsulationError;

/// The class of the feedback option, from the range for experiments (0xff00 to 0xffff): `P`.
pub const OPTION_CLASS: u16 = 0xff50;
/// The type of the option that carries feedback.
pub const OPTION_FEEDBACK: u8 = 0x01;
/// Longest feedback in an option.
pub const MOST_IN_OPTION: usize = 31 * 4 - 1;
/// The EtherType of a feedback frame: the first of two that IEEE 802 reserves for local experiments.
pub const PROTOCOL_FEEDBACK: u16 = 0x88b5;

/// The EtherType of a sealed frame and, with the control bit, of a hello between hosts that seal: the second of the two.
pub const PROTOCOL_SEALED: u16 = 0x88b6;

/// One option of a Geneve header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneveOption<'o> {
    /// The class, which defines the meaning of the type.
    pub class: u16,
    /// The type, with the critical bit.
    pub kind: u8,
    /// The option's data: up to 124 bytes, a multiple of four.
    pub data: &'o [u8],
}

/// Iterator over the options of a header; stops at an option that reaches behind the end.
#[derive(Clone, Debug)]
pub struct Options<'o> {
    left: &'o [u8],
}

impl GeneveOption<'_> {
    /// Whether a receiver that does not know this option must drop the packet.
    #[must_use]
    pub const fn is_critical(&self) -> bool {
        self.kind & CRITICAL != 0
    }

    const fn is_feedback(&self) -> bool {
        self.class == OPTION_CLASS && self.kind == OPTION_FEEDBACK
    }
}

impl<'o> Options<'o> {
    /// The options in the bytes between header and payload.
    #[must_use]
    pub const fn new(bytes: &'o [u8]) -> Self {
        Self { left: bytes }
    }

    fn first(&self) -> Option<(GeneveOption<'o>, &'o [u8])> {
        let (&[class_0, class_1, kind, len], rest) = self.left.split_first_chunk()?;
        let (data, rest) = rest.split_at_checked(usize::from(len & 0x1f) * 4)?;
        Some((GeneveOption { class: u16::from_be_bytes([class_0, class_1]), kind, data }, rest))
    }
}

impl<'o> Iterator for Options<'o> {
    type Item = Result<GeneveOption<'o>, DecapsulationError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let Some((option, rest)) = self.first() else {
            self.left = &[];
            return Some(Err(DecapsulationError::OptionBeyondEnd));
        };
        self.left = rest;
        Some(Ok(option))
    }
}

/// The kind of a packet's payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    Frame,
    Sealed,
    Feedback,
    Hello,
}

/// The parts of a tunnel's datagram, as offsets from its start.
pub(super) struct Layout {
    pub vni: Vni,
    pub carries: Carries,
    pub payload: usize,
    pub feedback: Option<Range<usize>>,
}

pub(super) fn read(datagram: &[u8]) -> Result<Layout, DecapsulationError> {
    let [first, flags]: [u8; 2] = array(datagram, 0).ok_or(DecapsulationError::HeaderCut)?;
    if first >> 6 != 0 {
        return Err(DecapsulationError::BadVersion);
    }
    let protocol = be16(datagram, 2).ok_or(DecapsulationError::HeaderCut)?;
    let vni = Vni::from_word(be32(datagram, 4).ok_or(DecapsulationError::HeaderCut)?);
    let payload = TUNNEL + usize::from(first & 0x3f) * 4;
    let options = datagram.get(TUNNEL..payload).ok_or(DecapsulationError::HeaderCut)?;
    let feedback = read_options(options)?;
    let carries = match (flags & CONTROL != 0, protocol) {
        (false, ETHERNET_FRAME) => Carries::Frame,
        (false, PROTOCOL_SEALED) => Carries::Sealed,
        (false, _) => return Err(DecapsulationError::UnknownProtocol),
        (true, PROTOCOL_FEEDBACK) if payload == datagram.len() => {
            return Err(DecapsulationError::BadFeedback);
        }
        (true, PROTOCOL_FEEDBACK) => Carries::Feedback,
        (true, PROTOCOL_SEALED) => Carries::Hello,
        (true, _) => return Err(DecapsulationError::UnknownControl),
    };
    let feedback = if carries == Carries::Feedback { Some(payload..datagram.len()) } else { feedback };
    Ok(Layout { vni, carries, payload, feedback })
}

/// The place of the feedback: of the first, if there are several. All options are read, whether or not the header says
/// that one of them is critical.
fn read_options(bytes: &[u8]) -> Result<Option<Range<usize>>, DecapsulationError> {
    let mut feedback = None;
    let mut at = TUNNEL;
    for option in Options::new(bytes) {
        let option = option?;
        if option.is_feedback() {
            let place = at + OPTION + 1;
            let len = usize::from(*option.data.first().ok_or(DecapsulationError::BadFeedback)?);
            if len == 0 || len >= option.data.len() {
                return Err(DecapsulationError::BadFeedback);
            }
            feedback = feedback.or(Some(place..place + len));
        } else if option.is_critical() {
            return Err(DecapsulationError::CriticalOption);
        }
        at += OPTION + option.data.len();
    }
    Ok(feedback)
}

/// Length of the option with this many bytes of feedback, at most [`MOST_IN_OPTION`].
pub(super) const fn option_len(feedback: usize) -> usize {
    let feedback = if feedback > MOST_IN_OPTION { MOST_IN_OPTION } else { feedback };
    OPTION + (1 + feedback).next_multiple_of(4)
}

/// Writes the header and, if there is feedback, its option to the start of `to`; none when they do not fit.
pub(super) fn write(to: &mut [u8], vni: Vni, feedback: Option<&[u8]>) -> Option<()> {
    let options = feedback.map_or(0, |message| option_len(message.len()));
    put(to, 0, [(options / 4) as u8, 0])?;
    put(to, 2, ETHERNET_FRAME.to_be_bytes())?;
    put(to, 4, vni.word())?;
    let Some(message) = feedback else { return Some(()) };
    let option = to.get_mut(TUNNEL..TUNNEL + options)?;
    put(option, 0, OPTION_CLASS.to_be_bytes())?;
    put(option, 2, [OPTION_FEEDBACK, ((options - OPTION) / 4) as u8, message.len() as u8])?;
    let (place, padding) = option.get_mut(OPTION + 1..)?.split_at_mut_checked(message.len())?;
    place.copy_from_slice(message);
    padding.fill(0);
    Some(())
}

/// Sets the protocol type of a header to that of a sealed frame.
pub(super) fn set_sealed(to: &mut [u8]) -> Option<()> {
    put(to, 2, PROTOCOL_SEALED.to_be_bytes())
}

/// Writes the header of a control message.
pub(super) fn write_control(to: &mut [u8], protocol: u16) -> Option<()> {
    put(to, 0, [0, CONTROL])?;
    put(to, 2, protocol.to_be_bytes())?;
    put(to, 4, [0; 4])
}

/// Length of an option's header.
const OPTION: usize = 4;
const CRITICAL: u8 = 0x80;
const CONTROL: u8 = 0x80;
const ETHERNET_FRAME: u16 = 0x6558;
