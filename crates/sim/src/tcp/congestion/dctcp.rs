//! DCTCP's estimate of how many bytes are marked (RFC 8257), in 2^-10 as in Linux.
//!
//! Linux's steps are as coarse as its windows are: alpha moves by 1/1,024 at least, and a window falls by whole segments. Both
//! show where windows are small (docs/tcp.md, "DCTCP").

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
        if let Some(gain) = (self.marked << (UNIT_SHIFT - GAIN_SHIFT)).checked_div(self.acked) {
            let loss = self.alpha >> GAIN_SHIFT;
            // As Linux, an alpha that is too small to fall by a sixteenth falls to zero.
            self.alpha -= if loss == 0 { self.alpha } else { loss };
            self.alpha = u32::try_from(gain).map_or(ONE, |gain| (self.alpha + gain).min(ONE));
        }
        (self.acked, self.marked, self.window_end) = (0, 0, nxt);
    }

    /// §3.3, step 9: cwnd x (1 - alpha / 2). As in Linux, the window falls by whole segments, rounded down.
    pub(super) fn reduce(&self, cwnd: u64, mss: u64) -> u64 {
        cwnd - ((cwnd / mss * u64::from(self.alpha)) >> (UNIT_SHIFT + 1)) * mss
    }
}

const UNIT_SHIFT: u32 = 10;
const ONE: u32 = 1 << UNIT_SHIFT;
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
        // From above it stops where a sixteenth of it, rounded down, is what a window adds: 271 / 16 = 256 / 16.
        assert_eq!(dctcp.alpha(), 271);
    }

    #[test]
    fn a_window_falls_by_whole_segments() {
        let dctcp = Dctcp { alpha: ONE / 4, ..Dctcp::new() };
        assert_eq!(dctcp.reduce(80_000, 1_000), 70_000);
        // An eighth of 15 segments is 1.9 segments, and of 7 less than one.
        assert_eq!(dctcp.reduce(15_000, 1_000), 14_000);
        assert_eq!(dctcp.reduce(7_000, 1_000), 7_000);
    }

    #[test]
    fn without_marks_it_forgets_entirely() {
        let mut dctcp = Dctcp::new();
        for window in 0..100 {
            dctcp.account(1_000, false, window, window);
        }
        assert_eq!(dctcp.alpha(), 0);
        assert_eq!(dctcp.reduce(10_000, 1_000), 10_000);
    }
}
