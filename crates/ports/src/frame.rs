//! A frame to be sent, whose payload may still lie with its sender.
//!
//! Why: a payload that waits with its sender is copied once, when its turn has come, and straight to its destination.
//! From: SENIC §3.3 and §4.1 (late pull), Loom §4.3 (the scheduler sees descriptors).
//! Not here: which frames wait in this way (the daemon), and how a sender's memory is read (`vhost_user`).
//! Invariant: the first bytes, with all headers, are the engine's own: what the sender changes later changes payload only.

use core::ops::Range;

use plimsoll_wire::Front;

use crate::mapped::SenderBytes;

/// A frame: its first bytes, and the bytes behind them, which may lie in the memory of its sender.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    front: &'a [u8],
    rest: Option<SenderBytes<'a>>,
}

impl<'a> Frame<'a> {
    /// A frame that lies in one piece.
    #[inline]
    #[must_use]
    pub const fn whole(frame: &'a [u8]) -> Self {
        Self { front: frame, rest: None }
    }

    /// A frame of which `rest` still lies with its sender; see [`crate::Port::kept`].
    #[inline(always)]
    #[must_use]
    pub const fn late(front: &'a [u8], rest: SenderBytes<'a>) -> Self {
        Self { front, rest: Some(rest) }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.front.len() + self.rest.as_ref().map_or(0, SenderBytes::len)
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its first bytes, with all headers.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Front<'a> {
        Front::new(self.front, self.len())
    }

    /// Its bytes, if they lie in one piece.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> Option<&'a [u8]> {
        match self.rest {
            None => Some(self.front),
            Some(_) => None,
        }
    }

    /// The bytes behind the first ones.
    #[inline]
    pub(crate) const fn rest(&self) -> Option<&SenderBytes<'a>> {
        self.rest.as_ref()
    }

    /// A part of it; what lies outside the frame is left out.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let own = self.front.len();
        let front = self.front.get(range.start.min(own)..range.end.min(own)).unwrap_or_default();
        let rest =
            |rest: SenderBytes<'a>| rest.part(range.start.saturating_sub(own)..range.end.saturating_sub(own));
        Self { front, rest: self.rest.map(rest).filter(|rest| rest.len() > 0) }
    }

    /// Whether the sender's memory is still there.
    #[inline]
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.rest.as_ref().is_none_or(SenderBytes::is_intact)
    }

    /// Copies it. Returns whether the sender's memory was there: otherwise some bytes may be zero.
    ///
    /// Panics when `into` is shorter than the frame.
    pub fn copy(&self, into: &mut [u8]) -> bool {
        let (front, behind) = into.split_at_mut(self.front.len());
        front.copy_from_slice(self.front);
        if let Some(rest) = &self.rest {
            rest.copy(&mut behind[..rest.len()]);
        }
        self.is_intact()
    }
}
