//! Bytes of a frame that wait in its sender's memory, a guest's or a client's.
//!
//! Why: a frame's payload goes from its sender's memory straight to where it is sent.
//! From: SENIC §4.1 (late pull).
//! Not here: where the frame begins, and its headers, which were copied when it was taken.
//! Invariant: every access lies inside a piece of memory that is mapped while the value lives.

use core::ops::Range;

use super::{Memory, Part};

/// Bytes in another process's memory, in several parts.
#[derive(Clone, Copy, Debug)]
pub struct SenderBytes<'a> {
    memory: &'a Memory,
    parts: &'a [Part],
    /// Bytes of the parts that are left out at the beginning.
    skip: usize,
    len: usize,
}

impl<'a> SenderBytes<'a> {
    /// Always inlined, as is what hands it on: a value that is moved while its parts are still on their way to memory waits for all
    /// stores before them, some of which are to lines in another core's cache.
    #[inline(always)]
    pub(crate) fn new(memory: &'a Memory, parts: &'a [Part]) -> Self {
        Self { memory, parts, skip: 0, len: parts.iter().map(|&(_, len)| len).sum() }
    }

    /// Number of bytes.
    #[inline]
    #[must_use]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// A part of them; what lies behind the last is left out.
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        let [start, end] = [range.start, range.end].map(|at| at.min(self.len));
        Self { skip: self.skip + start, len: end.saturating_sub(start), ..self }
    }

    /// Whether the guest's memory is still there. If not, bytes that were copied may be zero.
    #[inline]
    pub(crate) fn is_intact(&self) -> bool {
        !self.memory.torn()
    }

    /// Copies all bytes. Panics when `into` is shorter.
    pub(crate) fn copy(&self, into: &mut [u8]) {
        let mut done = 0;
        self.each(|memory, (place, len)| {
            memory.read(place, &mut into[done..done + len]);
            done += len;
        });
    }

    /// Calls `each` with each contiguous part.
    #[inline]
    pub(crate) fn each(&self, mut each: impl FnMut(&'a Memory, Part)) {
        let (mut skip, mut left) = (self.skip, self.len);
        for &(place, len) in self.parts {
            if left == 0 {
                return;
            }
            let begin = skip.min(len);
            let count = (len - begin).min(left);
            if count > 0 {
                each(self.memory, (place.plus(begin), count));
            }
            (skip, left) = (skip - begin, left - count);
        }
    }
}
