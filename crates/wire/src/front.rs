//! A frame of which only the first bytes are at hand.
//!
//! Why: headers decide where a frame goes and when; its payload may stay with the sender until then.
//! From: SENIC §3.3 (late pull): the scheduler sees descriptors, the payload moves once.
//! Not here: where the other bytes are (`ports`).
//! Invariant: no more bytes are at hand than the frame has.

use crate::bytes;

/// The first bytes of a frame, and its length.
///
/// ```
/// let whole = plimsoll_wire::Front::whole(&[1, 2, 3]);
/// let front = plimsoll_wire::Front::new(&[1, 2, 3], 1_500);
/// assert_eq!((whole.len(), front.len(), front.bytes().len()), (3, 1_500, 3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Front<'a> {
    /// The first bytes of a frame of `len` bytes; more than that are cut off.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8], len: usize) -> Self {
        Self { bytes: bytes.get(..len).unwrap_or(bytes), len }
    }

    /// A frame that is at hand as a whole.
    #[inline]
    #[must_use]
    pub const fn whole(frame: &'a [u8]) -> Self {
        Self { bytes: frame, len: frame.len() }
    }

    /// The bytes that are at hand.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Length of the frame.
    #[inline]
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether the frame has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The part before `end`; `None` where the frame ends earlier.
    #[inline]
    pub(crate) fn until(self, end: usize) -> Option<Self> {
        (end <= self.len).then(|| Self::new(self.bytes, end))
    }

    /// The part from `begin` on; empty where the frame ends earlier.
    #[inline]
    pub(crate) fn from(self, begin: usize) -> Self {
        Self { bytes: self.bytes.get(begin..).unwrap_or_default(), len: self.len.saturating_sub(begin) }
    }

    /// The `N` bytes at `at`, if they are at hand.
    #[inline]
    pub(crate) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        bytes::array(self.bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{VnetHeader, parse, parse_front};

    /// A frame of TCP or UDP over IPv4 or IPv6, up to two of whose bytes are any.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let bytes = proptest::collection::vec(any::<u8>(), 60..400);
        let any_of = proptest::collection::vec((0_usize..120, any::<u8>()), 0..3);
        (bytes, any::<(bool, bool, bool)>(), any_of).prop_map(|(mut frame, (six, tcp, tag), changes)| {
            let l3 = if tag { 18 } else { 14 };
            let rest = |from: usize| u16::try_from(frame.len() - from).unwrap_or(0).to_be_bytes();
            let (v4, v6) = (rest(l3), rest((l3 + 40).min(frame.len())));
            if tag {
                frame[12..14].copy_from_slice(&[0x81, 0]);
            }
            frame[l3 - 2..l3].copy_from_slice(if six { &[0x86, 0xdd] } else { &[8, 0] });
            let number = if tcp { 6 } else { 17 };
            if six {
                frame[l3] = 0x60;
                frame[l3 + 4..l3 + 6].copy_from_slice(&v6);
                frame[l3 + 6] = number;
            } else {
                (frame[l3], frame[l3 + 9]) = (0x45, number);
                frame[l3 + 2..l3 + 4].copy_from_slice(&v4);
                frame[l3 + 6..l3 + 8].copy_from_slice(&[0, 0]);
            }
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            frame
        })
    }

    proptest! {
        #[test]
        fn what_the_front_tells_is_what_the_frame_tells(
            frame in frame(),
            cut in 0_usize..400,
            bytes in any::<[u8; 10]>(),
        ) {
            let front = Front::new(&frame[..cut.min(frame.len())], frame.len());
            let (told, known) = (parse_front(front), parse(&frame));
            if let Ok(told) = &told {
                prop_assert_eq!(Some(told), known.as_ref().ok());
                if usize::from(told.ip.map_or(told.l3, |ip| ip.payload)) <= front.bytes().len() {
                    let vnet = VnetHeader::from_bytes(bytes);
                    prop_assert_eq!(vnet.offload_front(front, told), vnet.offload(&frame, told));
                }
            } else if cut >= 200 || cut >= frame.len() {
                prop_assert!(known.is_err(), "{known:?}");
            }
        }
    }
}
