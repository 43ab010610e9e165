//! DCTCP's estimate of how many bytes are marked (RFC 8257), in 2^-20.

/// The estimate, and the window of data that it is taken over.
#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    alpha: u32,
    acked: u64,
    marked: u64,
    window_end: u64,
}

impl Dctcp {
    /// Begins as cautious as Reno: alpha is 1 (§4.2).
    pub(super) fn new() -> Self {
        Self { alpha: ONE, acked: 0, marked: 0, window_end: 0 }
    }

    pub(super) fn alpha(&self) -> u32 {
        self.alpha
    }

    /// §3.3, steps 1 to 6: once per window, alpha moves by a sixteenth towards the fraction marked in it.
    pub(super) fn account(&mut self, delivered: u64, marked: bool, una: u64, nxt: u64) {
        self.acked += delivered;
        self.marked += if marked { delivered } else { 0 };
        if una < self.window_end {
            return;
        }
        if let Some(fraction) = (self.marked << 20).checked_div(self.acked) {
            let fraction = u32::try_from(fraction).unwrap_or(ONE).min(ONE);
            // At least one step, or a small alpha would never reach zero (Linux does the same).
            self.alpha -= (self.alpha >> GAIN_SHIFT).max(u32::from(self.alpha > 0));
            self.alpha = (self.alpha + (fraction >> GAIN_SHIFT)).min(ONE);
        }
        (self.acked, self.marked, self.window_end) = (0, 0, nxt);
    }

    /// §3.3, step 9: cwnd x (1 - alpha / 2).
    pub(super) fn reduce(&self, cwnd: u64) -> u64 {
        cwnd - ((cwnd * u64::from(self.alpha)) >> 21)
    }
}

const ONE: u32 = 1 << 20;
/// g = 1/16 (§4.2).
const GAIN_SHIFT: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_marked_ends_at_a_quarter() {
        let mut dctcp = Dctcp::new();
        for window in 0..200 {
            for segment in 0..8 {
                dctcp.account(1_000, segment < 2, 8_000 * window + segment * 1_000, 8_000 * (window + 1));
            }
        }
        assert!(dctcp.alpha().abs_diff(ONE / 4) < 64, "{}", dctcp.alpha());
        assert!(dctcp.reduce(80_000).abs_diff(70_000) < 10);
    }

    #[test]
    fn without_marks_it_forgets_entirely() {
        let mut dctcp = Dctcp::new();
        for window in 0..1_000 {
            dctcp.account(1_000, false, window, window);
        }
        assert_eq!(dctcp.alpha(), 0);
        assert_eq!(dctcp.reduce(10_000), 10_000);
    }
}
