//! What has arrived beyond a gap, and which of it was latest.

use std::collections::VecDeque;

use super::segment::{Ack, SackBlock};

/// Runs of bytes beyond the first gap, apart from each other, in order.
#[derive(Clone, Debug)]
pub(super) struct Reassembly {
    runs: VecDeque<SackBlock>,
    /// The runs that have changed last, the latest first (RFC 2018 §4).
    recent: [SackBlock; Ack::BLOCKS],
    recent_len: usize,
}

impl Reassembly {
    pub(super) fn new() -> Self {
        Self { runs: VecDeque::with_capacity(16), recent: [SackBlock::default(); Ack::BLOCKS], recent_len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Keeps `run`; `false` when all of it was there already. O(log runs), and a move of the runs beyond it.
    pub(super) fn insert(&mut self, run: SackBlock) -> bool {
        // The first run that ends at or after our start is the first that touches us.
        let first = self.runs.partition_point(|kept| kept.end < run.start);
        let mut merged = run;
        let mut last = first;
        while let Some(kept) = self.runs.get(last).filter(|kept| kept.start <= run.end) {
            if kept.start <= run.start && kept.end >= run.end {
                return false;
            }
            merged = SackBlock { start: merged.start.min(kept.start), end: merged.end.max(kept.end) };
            last += 1;
        }
        if first == last {
            self.runs.insert(first, merged);
        } else {
            self.runs[first] = merged;
            self.runs.drain(first + 1..last);
        }
        self.note_recent(merged);
        true
    }

    /// Gives up the runs that `next` has reached, and says how far the bytes before the first gap go now.
    pub(super) fn advance(&mut self, mut next: u64) -> u64 {
        while let Some(run) = self.runs.front().filter(|run| run.start <= next) {
            next = next.max(run.end);
            self.runs.pop_front();
        }
        self.retain_recent(|run| run.end > next);
        next
    }

    /// The latest runs, the latest first.
    pub(super) fn recent(&self) -> &[SackBlock] {
        &self.recent[..self.recent_len]
    }

    fn note_recent(&mut self, merged: SackBlock) {
        self.retain_recent(|run| run.end < merged.start || run.start > merged.end);
        self.recent_len = (self.recent_len + 1).min(Ack::BLOCKS);
        self.recent[..self.recent_len].rotate_right(1);
        self.recent[0] = merged;
    }

    fn retain_recent(&mut self, keep: impl Fn(&SackBlock) -> bool) {
        let mut kept = 0;
        for place in 0..self.recent_len {
            if keep(&self.recent[place]) {
                self.recent[kept] = self.recent[place];
                kept += 1;
            }
        }
        self.recent_len = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> SackBlock {
        SackBlock { start, end }
    }

    #[test]
    fn the_latest_run_comes_first_and_the_oldest_is_forgotten() {
        let mut runs = Reassembly::new();
        for start in [10, 30, 50, 70] {
            assert!(runs.insert(run(start, start + 10)));
        }
        assert_eq!(runs.recent(), [run(70, 80), run(50, 60), run(30, 40)]);
        assert!(runs.insert(run(40, 50)), "the hole between two runs");
        assert_eq!(runs.recent(), [run(30, 60), run(70, 80)]);
    }

    #[test]
    fn what_is_there_already_is_told_apart() {
        let mut runs = Reassembly::new();
        assert!(runs.insert(run(10, 20)));
        assert!(!runs.insert(run(12, 18)));
        assert!(runs.insert(run(12, 25)));
        assert!(!runs.insert(run(10, 25)));
    }

    #[test]
    fn filling_the_gap_delivers_all_that_touches() {
        let mut runs = Reassembly::new();
        runs.insert(run(10, 20));
        runs.insert(run(30, 40));
        assert_eq!(runs.advance(5), 5);
        assert_eq!(runs.advance(10), 20);
        assert_eq!(runs.recent(), [run(30, 40)]);
        assert_eq!(runs.advance(35), 40);
        assert!(runs.is_empty() && runs.recent().is_empty());
    }
}
