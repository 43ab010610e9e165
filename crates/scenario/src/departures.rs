//! Figures from the moments at which packets crossed the uplink.
//!
//! Why: whether a rate is kept evenly shows in the gaps between packets, and in nothing that is counted by the window.
//! From: SENIC's figures 1 and table 3 (standard deviation of the gaps, and their mean), its service model (§3.1), and
//! the token bucket as a bound on what may come in any stretch of time.
//! Not here: where the moments come from (`Run`), other measures (`measure`).
//! Invariant: moments are in their order; a figure of too few packets is `NaN`.

use plimsoll_units::{NS_PER_SEC, Nanos};

use crate::expect::Gauge;
use crate::results::Departure;
use crate::window::Window;

/// Packets of one subject, and those of all others.
#[derive(Debug)]
pub(crate) struct Departures {
    /// Every packet of the uplink, and whether it is the subject's.
    all: Vec<(Departure, bool)>,
}

impl Departures {
    pub(crate) fn new(mut all: Vec<(Departure, bool)>) -> Self {
        all.sort_by_key(|(departure, _)| departure.at);
        Self { all }
    }

    /// A measure over the packets that crossed the uplink in the window.
    pub(crate) fn gauge(&self, gauge: Gauge, window: Window) -> f64 {
        let from = self.all.partition_point(|(departure, _)| departure.at < window.from);
        let to = self.all.partition_point(|(departure, _)| departure.at < window.to);
        let all = &self.all[from..to];
        let own: Vec<Departure> = all.iter().filter(|(_, own)| *own).map(|(one, _)| *one).collect();
        let gaps = || own.windows(2).map(|pair| pair[1].at.since(pair[0].at).as_secs_f64());
        match gauge {
            Gauge::GapMean => mean(&own),
            Gauge::GapStddev => {
                let mean = mean(&own);
                let squares: f64 = gaps().map(|gap| (gap - mean) * (gap - mean)).sum();
                (squares / gaps().count() as f64).sqrt()
            }
            Gauge::GapMin => gaps().fold(f64::NAN, f64::min),
            Gauge::GapMax => gaps().fold(f64::NAN, f64::max),
            Gauge::First => own.first().map_or(f64::NAN, |one| one.at.since(Nanos::ZERO).as_secs_f64()),
            Gauge::Sent => own.iter().map(|one| f64::from(one.len)).sum(),
            Gauge::LeastOf(count) => among(all, count).map_or(f64::NAN, |(least, _)| least.into()),
            Gauge::MostOf(count) => among(all, count).map_or(f64::NAN, |(_, most)| most.into()),
            Gauge::Beyond(rate) => beyond(&own, rate),
            _ => f64::NAN,
        }
    }
}

/// The mean gap: the time from the first packet to the last, divided by the number of gaps.
fn mean(own: &[Departure]) -> f64 {
    match own {
        [first, .., last] => last.at.since(first.at).as_secs_f64() / (own.len() - 1) as f64,
        _ => f64::NAN,
    }
}

/// The fewest and the most of the subject's packets in any `count` that follow each other.
fn among(all: &[(Departure, bool)], count: u32) -> Option<(u32, u32)> {
    let count = count as usize;
    let mut own = all.get(..count)?.iter().filter(|(_, own)| *own).count() as u32;
    let (mut least, mut most) = (own, own);
    for (come, gone) in all[count..].iter().zip(all) {
        own = own + u32::from(come.1) - u32::from(gone.1);
        (least, most) = (least.min(own), most.max(own));
    }
    Some((least, most))
}

/// The most bytes by which any run of packets exceeded what the rate carries in the time of the run. The run's first packet
/// sets the time and does not count; the last one counts.
fn beyond(own: &[Departure], rate: u64) -> f64 {
    if own.len() < 2 {
        return f64::NAN;
    }
    // In bit-nanoseconds per second, so that nothing is rounded.
    let (mut excess, mut worst) = (0_i128, 0_i128);
    for pair in own.windows(2) {
        let earned = i128::from(pair[1].at.since(pair[0].at).as_u64()) * i128::from(rate);
        let sent = i128::from(pair[1].len) * 8 * i128::from(NS_PER_SEC);
        // The stretch that begins latest starts anew where the one before earned more than it sent.
        excess = excess.max(0) + sent - earned;
        worst = worst.max(excess);
    }
    worst as f64 / 8.0 / NS_PER_SEC as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::Span;

    fn departures(own: &[(u64, bool)]) -> Departures {
        let one = |&(at, own): &(u64, bool)| (Departure { at: Nanos::new(at), len: 1_500 }, own);
        Departures::new(own.iter().map(one).collect())
    }

    fn gauge(of: &Departures, gauge: Gauge) -> f64 {
        of.gauge(gauge, Window::new(Span::ZERO, Span::secs(1)))
    }

    #[test]
    fn gaps_are_those_between_ones_own_packets() {
        let all = departures(&[(1_000, true), (1_500, false), (3_000, true), (7_000, true)]);
        assert!((gauge(&all, Gauge::GapMean) - 3e-6).abs() < 1e-15);
        assert!((gauge(&all, Gauge::GapStddev) - 1e-6).abs() < 1e-15);
        assert_eq!(gauge(&all, Gauge::GapMin).to_bits(), 2e-6_f64.to_bits());
        assert_eq!(gauge(&all, Gauge::Sent).to_bits(), 4_500.0_f64.to_bits());
        assert!(gauge(&departures(&[(5, true)]), Gauge::GapMean).is_nan(), "one packet has no gap");
    }

    #[test]
    fn any_so_many_packets_are_looked_at() {
        let all = departures(&[(1, true), (2, true), (3, false), (4, false), (5, true)]);
        assert_eq!(gauge(&all, Gauge::LeastOf(2)).to_bits(), 0.0_f64.to_bits());
        assert_eq!(gauge(&all, Gauge::MostOf(2)).to_bits(), 2.0_f64.to_bits());
        assert!(gauge(&all, Gauge::MostOf(6)).is_nan());
    }

    #[test]
    fn what_is_beyond_a_rate_is_that_of_the_worst_stretch() {
        // 1,500 B at 12 Gb/s take 1,000 ns: the third comes 600 ns early, the fourth 100 ns late, the fifth 400 early.
        let all = departures(&[(0, true), (1_000, true), (1_400, true), (2_500, true), (3_100, true)]);
        let worst = gauge(&all, Gauge::Beyond(12_000_000_000));
        assert!((worst - 1_350.0).abs() < 1e-6, "600 - 100 + 400 ns are 900 ns, or 1,350 B: {worst}");
    }
}
