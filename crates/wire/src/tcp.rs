//! The TCP header of a frame: its flags, its window and the window's scale, read and rewritten.
//!
//! Why: a host that mediates ECN between two ends, and a gateway that lowers a window, change a few bits of segments whose
//! checksum must stay right.
//! From: RFC 9293 §3.1 (the header), RFC 3168 §6.1 and RFC 9768 §3.1 (CWR, ECE and AE), RFC 7323 §2 (the scale), RFC 1624
//! (equation 3: incremental update of a checksum).
//! Not here: when to change what (`control`); the ECN field of the IP header (`ecn`).
//! Invariant: only whole TCP packets directly behind IP headers are read or changed, never a fragment, nor what is behind ESP
//! or AH. A rewrite changes the stated field and the checksum; a right checksum stays right and a wrong one wrong, and where
//! the checksum is still to be completed it is not touched.

use core::fmt;
use core::ops::BitOr;

use crate::bytes::{array, be16, be32, put};
use crate::checksum::add;
use crate::parse::{Fragment, Parsed, protocol};
use crate::vnet::{Offload, OffloadKind};

/// A set of TCP flags.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(u16);

impl TcpFlags {
    /// The sender has no more data.
    pub const FIN: Self = Self(0x001);
    /// Opens a connection.
    pub const SYN: Self = Self(0x002);
    /// Ends a connection at once.
    pub const RST: Self = Self(0x004);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(0x010);
    /// ECN-Echo: a mark has arrived. On a SYN: ECN is asked for, or granted.
    pub const ECE: Self = Self(0x040);
    /// Congestion window reduced: the echo was heard. On a SYN: ECN is asked for.
    pub const CWR: Self = Self(0x080);
    /// Accurate ECN (RFC 9768). With CWR and ECE it is a counter once such a connection is open.
    pub const AE: Self = Self(0x100);
    /// No flag.
    pub const NONE: Self = Self(0);

    const ALL: u16 = 0x1ff;

    /// Whether it has every flag of `flags`.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether it has any flag of `flags`.
    #[must_use]
    pub const fn has_any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Those of its flags that `flags` has as well.
    #[must_use]
    pub const fn and(self, flags: Self) -> Self {
        Self(self.0 & flags.0)
    }

    /// Its flags without those of `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Whether it has no flag.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for TcpFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR", "AE"];
        let set = (0..).zip(names).filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.debug_set().entries(set.map(|(_, name)| format_args!("{name}").to_string())).finish()
    }
}

/// The TCP header of a frame.
///
/// ```
/// use plimsoll_wire::{Offload, TcpFlags, TcpSegment, parse};
///
/// let mut frame = [0_u8; 54];
/// frame[12..15].copy_from_slice(&[8, 0, 0x45]);
/// (frame[17], frame[23], frame[46], frame[47]) = (40, 6, 0x50, 0x02); // lengths, TCP, SYN
/// let mut segment = TcpSegment::of(&frame, &parse(&frame)?).expect("a whole TCP packet");
/// assert!(segment.flags.has(TcpFlags::SYN));
/// let asks = TcpFlags::ECE | TcpFlags::CWR;
/// assert!(segment.set_flags(&mut frame, segment.flags | asks, &Offload::PLAIN));
/// assert_eq!(frame[47], 0xc2);
/// # Ok::<(), plimsoll_wire::FrameError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSegment {
    /// Its flags.
    pub flags: TcpFlags,
    /// The number of its first byte of payload, or of its SYN.
    pub sequence: u32,
    /// The number of the byte that its sender expects next.
    pub acknowledged: u32,
    /// The window as it is written, not scaled.
    pub window: u16,
    /// Bytes of payload.
    pub payload: u32,
    /// Offset of the TCP header.
    at: u16,
}

impl TcpSegment {
    /// Reads the TCP header of a parsed frame; `None` unless the frame carries one whole TCP packet.
    #[must_use]
    pub fn of(frame: &[u8], parsed: &Parsed) -> Option<Self> {
        let ip = parsed.ip.as_ref()?;
        if ip.protocol != protocol::TCP || ip.fragment != Fragment::Whole {
            return None;
        }
        let at = usize::from(ip.l4);
        Some(Self {
            flags: TcpFlags(be16(frame, at + FLAGS)? & TcpFlags::ALL),
            sequence: be32(frame, at + SEQUENCE)?,
            acknowledged: be32(frame, at + ACKNOWLEDGED)?,
            window: be16(frame, at + WINDOW)?,
            payload: ip.end.saturating_sub(u32::from(ip.payload)),
            at: ip.l4,
        })
    }

    /// The number behind the segment's last byte: SYN and FIN count as one byte each.
    #[must_use]
    pub const fn end(&self) -> u32 {
        let controls = self.flags.has(TcpFlags::SYN) as u32 + self.flags.has(TcpFlags::FIN) as u32;
        self.sequence.wrapping_add(self.payload).wrapping_add(controls)
    }

    /// The shift of the window that a SYN offers, at most 14; `None` where it offers none.
    #[must_use]
    pub fn window_scale(&self, frame: &[u8]) -> Option<u8> {
        let at = usize::from(self.at);
        let [offset] = array(frame, at + FLAGS)?;
        let mut options = frame.get(at + OPTIONS..at + usize::from(offset >> 4) * 4)?;
        // Each round takes a byte at least, of forty at most.
        loop {
            match options {
                [] | [END, ..] => return None,
                [NO_OPERATION, rest @ ..] => options = rest,
                [SCALE, 3, shift, ..] => return Some((*shift).min(GREATEST_SHIFT)),
                [_, len, ..] => options = options.get(usize::from(*len).max(2)..)?,
                [_] => return None,
            }
        }
    }

    /// Replaces the flags of the segment in `frame`, whose header this is. Answers whether it could. `offload` says whether
    /// the checksum is still to be completed.
    #[must_use]
    pub fn set_flags(&mut self, frame: &mut [u8], flags: TcpFlags, offload: &Offload) -> bool {
        let word = be16(frame, usize::from(self.at) + FLAGS);
        let new = word.map(|word| word & !TcpFlags::ALL | flags.0);
        let done = new.and_then(|new| self.write(frame, FLAGS, new, offload)).is_some();
        self.flags = if done { flags } else { self.flags };
        done
    }

    /// Replaces the window of the segment in `frame`, as [`TcpSegment::set_flags`] does the flags.
    #[must_use]
    pub fn set_window(&mut self, frame: &mut [u8], window: u16, offload: &Offload) -> bool {
        let done = self.write(frame, WINDOW, window, offload).is_some();
        self.window = if done { window } else { self.window };
        done
    }

    fn write(&self, frame: &mut [u8], field: usize, new: u16, offload: &Offload) -> Option<()> {
        let at = usize::from(self.at);
        let (old, checksum) = (be16(frame, at + field)?, be16(frame, at + CHECKSUM)?);
        put(frame, at + field, new.to_be_bytes())?;
        if old == new || self.is_unfinished(offload) {
            return Some(());
        }
        put(frame, at + CHECKSUM, (!add(&[!checksum, !old, new])).to_be_bytes())
    }

    /// Whether the checksum of this header is completed later, over all of it.
    fn is_unfinished(&self, offload: &Offload) -> bool {
        offload.kind != OffloadKind::Plain
            && offload.start == self.at
            && usize::from(offload.field) == usize::from(self.at) + CHECKSUM
    }
}

const SEQUENCE: usize = 4;
const ACKNOWLEDGED: usize = 8;
/// The offset of the data, reserved bits and the flags.
const FLAGS: usize = 12;
const WINDOW: usize = 14;
const CHECKSUM: usize = 16;
const OPTIONS: usize = 20;
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const SCALE: u8 = 3;
/// RFC 7323 §2.3.
const GREATEST_SHIFT: u8 = 14;
