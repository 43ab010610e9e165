//! Frames that a port has accepted and then cannot send.
//!
//! Why: sockets and files collect frames for one call and may refuse one of them later; the caller of `send` needs to know
//! which, to charge the loss to its tenant.
//! From: frame numbers, as the port knows no tenants: the n-th frame that it accepted, counted from zero.
//! Not here: counting by reason (`counters`), and the tenant of a frame.
//! Invariant: each number is reported at most once, and at most [`MOST`] ranges of numbers wait to be fetched.

use std::collections::VecDeque;

use crate::counters::DropReason;

/// A range of frames that [`crate::Port::send`] had accepted and that could not leave. The port counts them as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Number of the first frame.
    pub first: u64,
    /// Number of frames in the range.
    pub frames: u64,
    /// Why they could not leave.
    pub reason: DropReason,
}

/// Most ranges that wait to be fetched; later ones are not kept.
const MOST: usize = 64;

/// Counts the frames that a port has accepted, and keeps the ranges that it could not send.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    taken: u64,
    refused: VecDeque<Refused>,
}

impl Ledger {
    /// Counts one more accepted frame.
    pub(crate) fn take(&mut self) {
        self.taken += 1;
    }

    /// Number of accepted frames.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Notes that of the last `staged` accepted frames, the first `frames` could not leave.
    pub(crate) fn refuse(&mut self, staged: usize, frames: u64, reason: DropReason) {
        let first = self.taken.saturating_sub(staged as u64);
        let full = self.refused.len() == MOST;
        match self.refused.back_mut() {
            Some(last) if last.first + last.frames == first && last.reason == reason => last.frames += frames,
            _ if frames == 0 || full => {}
            _ => self.refused.push_back(Refused { first, frames, reason }),
        }
    }

    /// Takes the oldest range that was not fetched yet.
    pub(crate) fn next_refused(&mut self) -> Option<Refused> {
        self.refused.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_told_once_by_number() {
        let mut ledger = Ledger::default();
        (0..10).for_each(|_| ledger.take());
        ledger.refuse(4, 1, DropReason::Oversize);
        ledger.refuse(3, 1, DropReason::Oversize);
        ledger.refuse(1, 1, DropReason::Gone);
        ledger.refuse(0, 0, DropReason::Gone);
        let told: Vec<_> = std::iter::from_fn(|| ledger.next_refused()).collect();
        let refused = |first, frames, reason| Refused { first, frames, reason };
        assert_eq!(told, [refused(6, 2, DropReason::Oversize), refused(9, 1, DropReason::Gone)]);
        for _ in 0..1_000 {
            (0..2).for_each(|_| ledger.take());
            ledger.refuse(1, 1, DropReason::Kernel);
        }
        assert_eq!(std::iter::from_fn(|| ledger.next_refused()).count(), MOST);
    }
}
