//! The queue of completions, from the engine to the host.
//!
//! Why: the host may use a descriptor's memory again only when it is told so.
//! From: Loom §4.3 (completion queues).
//! Not here: whether a frame left (`Outcome`, said by the caller).
//! Invariant: completions are seen once each, in the order in which they were pushed.

use crate::stats::Completion;

/// Completions that the host has not seen, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompletionQueue {
    entries: Vec<Completion>,
    seen: usize,
}

impl CompletionQueue {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self { entries: Vec::with_capacity(entries), seen: 0 }
    }

    /// Makes room for `entries` in all.
    pub(crate) fn reserve(&mut self, entries: usize) {
        self.entries.reserve(entries.saturating_sub(self.entries.len()));
    }

    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.drain(..self.seen); // for a host that never drains the queue to its end
            self.seen = 0;
        }
        self.entries.push(completion);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let next = self.entries.get(self.seen).copied();
        self.seen += 1;
        if next.is_none() {
            self.entries.clear();
            self.seen = 0;
        }
        next
    }
}
