//! `HyStart++` (RFC 9406): leaves slow start when round trips grow, before the queue overflows.

use super::Progress;

/// The round trips of this round and the last, and how far conservative slow start has come.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    round_end: u64,
    last_min: u64,
    current_min: u64,
    samples: u32,
    /// In conservative slow start: the round trip that began it.
    baseline: Option<u64>,
    conservative_rounds: u32,
}

impl HyStart {
    pub(super) fn new() -> Self {
        Self {
            round_end: 0,
            last_min: u64::MAX,
            current_min: u64::MAX,
            samples: 0,
            baseline: None,
            conservative_rounds: 0,
        }
    }

    /// How far the window may grow for what was delivered (§4.2, without a limit per acknowledgement, as Linux).
    pub(super) fn step(&mut self, progress: &Progress) -> u64 {
        if progress.una >= self.round_end {
            self.begin_round(progress.nxt);
        }
        if let Some(rtt) = progress.rtt {
            self.current_min = self.current_min.min(rtt);
            self.samples += 1;
        }
        if self.samples >= SAMPLES {
            self.judge();
        }
        if self.baseline.is_some() { progress.delivered / CONSERVATIVE_DIVISOR } else { progress.delivered }
    }

    /// Conservative slow start has found nothing to take back: congestion avoidance begins.
    pub(super) fn is_over(&self) -> bool {
        self.conservative_rounds >= CONSERVATIVE_ROUNDS
    }

    fn begin_round(&mut self, nxt: u64) {
        self.last_min = self.current_min;
        self.current_min = u64::MAX;
        self.samples = 0;
        self.round_end = nxt;
        self.conservative_rounds += u32::from(self.baseline.is_some());
    }

    fn judge(&mut self) {
        match self.baseline {
            None if self.last_min != u64::MAX => {
                let threshold = (self.last_min / 8).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
                if self.current_min >= self.last_min.saturating_add(threshold) {
                    self.baseline = Some(self.current_min);
                    self.conservative_rounds = 0;
                }
            }
            Some(baseline) if self.current_min < baseline => self.baseline = None, // it was a passing delay
            _ => {}
        }
    }
}

const SAMPLES: u32 = 8;
const MIN_THRESHOLD: u64 = 4_000_000;
const MAX_THRESHOLD: u64 = 16_000_000;
const CONSERVATIVE_DIVISOR: u64 = 4;
const CONSERVATIVE_ROUNDS: u32 = 5;
