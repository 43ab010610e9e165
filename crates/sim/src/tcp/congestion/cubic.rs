//! CUBIC's curve (RFC 9438) in integers.
//!
//! Time is in units of 2^-20 s, about a microsecond, so that a round trip in a data centre is not nothing; a cube of
//! it is in 2^-60 s³ and needs 128 bits.

use plimsoll_units::{Nanos, Span};

use super::Progress;

/// The state of one congestion epoch. Windows are bytes.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    /// When the epoch began; `None` before its first growth.
    epoch: Option<Nanos>,
    /// The window at the last reduction, lowered by fast convergence; 0 before the first, and after a timeout.
    w_max: u64,
    /// The curve's plateau.
    origin: u64,
    /// When the curve is at its plateau, after `epoch`, in 2^-20 s.
    k: u64,
    /// Reno's window, had it been there.
    w_est: u64,
    est_credit: u64,
    /// C, 0.4 segments/s³, as bytes/s³ in 2^-20.
    c: u64,
    mss: u64,
}

impl Cubic {
    pub(super) fn new(mss: u64) -> Self {
        Self { epoch: None, w_max: 0, origin: 0, k: 0, w_est: 0, est_credit: 0, c: (mss << 20) * 2 / 5, mss }
    }

    /// §4.6 and §4.7: 0.7 of the window; and the plateau is put lower when it was not reached this time.
    pub(super) fn reduce(&mut self, cwnd: u64) -> u64 {
        self.w_max = if cwnd < self.w_max { cwnd / 20 * 17 } else { cwnd };
        self.epoch = None;
        cwnd * 7 / 10
    }

    /// A timeout has emptied the path: as in Linux, nothing is known of it any more.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.mss);
    }

    /// Idle time is no part of the epoch (§4.2, as Linux does it).
    pub(super) fn skip(&mut self, idle: u64) {
        if let Some(epoch) = &mut self.epoch {
            *epoch += Span::ns(idle);
        }
    }

    /// §4.2 to 4.5. Returns the new window; `credit` keeps what is short of a segment.
    pub(super) fn grow(&mut self, cwnd: u64, credit: &mut u64, delivered: u64, progress: &Progress) -> u64 {
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => {
                *credit = 0;
                self.begin(cwnd, progress.now)
            }
        };
        let elapsed = progress.now.since(epoch).as_u64();
        let reno = self.grow_estimate(cwnd, delivered);

        // The target one round trip ahead, at most half a window away (§4.2).
        let target = self.curve(ticks(elapsed + progress.srtt)).min(cwnd + cwnd / 2);
        // In the concave or convex region grow by (target - cwnd) / cwnd per segment.
        *credit += target.saturating_sub(cwnd).max(self.least_step(cwnd)).saturating_mul(delivered);
        let price = cwnd * self.mss;
        let mut grown = cwnd;
        if *credit >= price {
            let segments = *credit / price;
            *credit -= segments * price;
            grown += segments * self.mss;
        }
        grown.max(reno)
    }

    /// What the window grows by in a round trip at least. Without a reduction the curve begins too flat, as the path's rate is
    /// unknown: Linux grows by a twentieth. A flow that `HyStart` has taken out of slow start early finds the rate so.
    fn least_step(&self, cwnd: u64) -> u64 {
        if self.w_max == 0 { cwnd / 20 } else { 0 }
    }

    /// The curve's anchors, from the first growth after a reduction (§4.2, `K`).
    fn begin(&mut self, cwnd: u64, now: Nanos) -> Nanos {
        if cwnd < self.w_max {
            self.k = cube_root((u128::from(self.w_max - cwnd) << 80) / u128::from(self.c.max(1)));
            self.origin = self.w_max;
        } else {
            self.k = 0;
            self.origin = cwnd;
        }
        self.w_est = cwnd;
        self.est_credit = 0;
        self.epoch = Some(now);
        now
    }

    /// W_cubic(t) = C (t - K)³ + plateau.
    fn curve(&self, t: u64) -> u64 {
        // Nine minutes from the plateau, where the product still fits; the curve is past any window by then.
        let offset = t.abs_diff(self.k).min(1 << 29);
        let cube = u128::from(offset * offset) * u128::from(offset);
        let distance = u64::try_from((cube * u128::from(self.c)) >> 80).unwrap_or(u64::MAX);
        if t < self.k { self.origin.saturating_sub(distance) } else { self.origin.saturating_add(distance) }
    }

    /// W_est (§4.3): grows by 9/17 segments a round trip. Past the window before the reduction it goes on so, as in
    /// Linux, where the RFC would have it grow as Reno.
    fn grow_estimate(&mut self, cwnd: u64, delivered: u64) -> u64 {
        self.est_credit += delivered * 9;
        let price = cwnd * 17;
        if self.est_credit >= price {
            self.est_credit -= price;
            self.w_est += self.mss;
        }
        self.w_est
    }
}

/// Nanoseconds in 2^-20 s, rounded down.
fn ticks(ns: u64) -> u64 {
    // 2^84 / 10^9, rounded: exact to 2^-64, which is a tick in 500,000 years.
    const PER_NS: u128 = ((1 << 84) + 500_000_000) / 1_000_000_000;
    u64::try_from((u128::from(ns) * PER_NS) >> 64).unwrap_or(u64::MAX)
}

/// The largest integer whose cube is at most `n`, by halving: once per epoch.
fn cube_root(n: u128) -> u64 {
    let (mut low, mut high) = (0_u64, 1 << 42);
    while low < high {
        let middle = (low + high).div_ceil(2);
        let cube = u128::from(middle) * u128::from(middle) * u128::from(middle);
        if cube <= n {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_exact() {
        for root in [0_u64, 1, 2, 999, 1 << 20, (1 << 42) - 1] {
            let cube = u128::from(root).pow(3);
            assert_eq!(cube_root(cube), root);
            assert_eq!(cube_root(cube + 1), root.max(u64::from(root == 0)));
        }
    }

    #[test]
    fn a_second_is_two_to_the_twenty_ticks() {
        assert_eq!(ticks(1_000_000_000), 1 << 20);
        assert_eq!(ticks(0), 0);
    }

    #[test]
    fn the_curve_is_back_at_its_plateau_after_k() {
        let mut cubic = Cubic::new(1_000);
        let ssthresh = cubic.reduce(1_000_000);
        assert_eq!(ssthresh, 700_000);
        cubic.begin(ssthresh, Nanos::ZERO);
        // K = cbrt(300 segments / 0.4) = 9.0856 s.
        assert_eq!(cubic.k * 1_000 / (1 << 20), 9_085);
        assert_eq!(cubic.curve(0) / 1_000, 700, "it starts where the window is");
        assert_eq!(cubic.curve(cubic.k), 1_000_000);
        // One second past the plateau: 0.4 segments more.
        assert_eq!(cubic.curve(cubic.k + (1 << 20)), 1_000_400);
    }

    #[test]
    fn fast_convergence_gives_up_some_of_the_plateau() {
        let mut cubic = Cubic::new(1_000);
        cubic.reduce(1_000_000);
        assert_eq!(cubic.w_max, 1_000_000);
        cubic.reduce(800_000); // before it was reached again: (1 + 0.7) / 2
        assert_eq!(cubic.w_max, 680_000);
    }

    /// The window after `rounds` round trips of 10 ms.
    fn after(cubic: &mut Cubic, mut cwnd: u64, rounds: u64) -> u64 {
        let mut credit = 0;
        for round in 0..rounds {
            for _ in 0..cwnd / 1_000 {
                let now = Nanos::new(10_000_000 * round);
                let progress =
                    Progress { delivered: 1_000, una: 0, nxt: 0, rtt: None, srtt: 10_000_000, now };
                cwnd = cubic.grow(cwnd, &mut credit, 1_000, &progress);
            }
        }
        cwnd
    }

    #[test]
    fn before_the_first_reduction_the_window_grows_by_a_twentieth_a_round_trip() {
        let mut cubic = Cubic::new(1_000);
        let grown = after(&mut cubic, 100_000, 14);
        assert!((190_000..205_000).contains(&grown), "1.05^14 is 1.98: {grown}");
        cubic.reduce(200_000);
        let known = after(&mut cubic, 140_000, 14);
        assert!(known < 160_000, "the curve's plateau is 200, seven seconds away: {known}");
        cubic.reset();
        assert_eq!(after(&mut cubic, 100_000, 14), grown, "a timeout forgets the plateau");
    }

    #[test]
    fn a_small_window_follows_reno() {
        let mut cubic = Cubic::new(1_000);
        let mut cwnd = cubic.reduce(10_000);
        let mut credit = 0;
        // Five round trips of 1 ms: the curve has hardly moved, Reno's estimate has grown by 5 x 9/17 segments.
        for round in 0..5 {
            for _ in 0..cwnd / 1_000 {
                let now = Nanos::new(1_000_000 * round);
                let progress = Progress { delivered: 1_000, una: 0, nxt: 0, rtt: None, srtt: 1_000_000, now };
                cwnd = cubic.grow(cwnd, &mut credit, 1_000, &progress);
            }
        }
        assert_eq!(cwnd, 9_000);
    }
}
