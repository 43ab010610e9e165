//! Frames that a port has taken and may yet find that it cannot send.
//!
//! Why: sockets and files take many frames for one call and refuse one later; whoever handed it over wants to know whose
//! it was.
//! From: numbers, as the port knows no senders: the n-th frame that it took, counted from zero.
//! Not here: counting by reason (`port::Counters`), and whose a frame is.
//! Invariant: each number is told at most once, and at most [`MOST`] stretches of them wait to be asked for.

use std::collections::VecDeque;

use crate::port::DropReason;

/// Frames that [`crate::Port::send`] had taken and that could not leave after all. They count as lost by the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The number of the first.
    pub first: u64,
    /// How many.
    pub frames: u64,
    /// Why.
    pub reason: DropReason,
}

/// Stretches that wait: a port that is never asked needs no more.
const MOST: usize = 64;

/// What a port has taken, and what it refused of that.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    taken: u64,
    refused: VecDeque<Refused>,
}

impl Ledger {
    /// One more frame was taken.
    pub(crate) fn take(&mut self) {
        self.taken += 1;
    }

    /// How many were.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Of the last `staged` frames taken, the first so many could not leave.
    pub(crate) fn refuse(&mut self, staged: usize, frames: u64, reason: DropReason) {
        let first = self.taken.saturating_sub(staged as u64);
        let full = self.refused.len() == MOST;
        match self.refused.back_mut() {
            Some(last) if last.first + last.frames == first && last.reason == reason => last.frames += frames,
            _ if frames == 0 || full => {}
            _ => self.refused.push_back(Refused { first, frames, reason }),
        }
    }

    /// The oldest stretch that nobody has asked for.
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
