//! How late a sleep ends, as a distribution.
//!
//! Why: both sides of a comparison must have the scheduling noise of one machine, and that noise is no constant.
//! From: quantiles as `plimsoll bench wakeups` measures them, on the wait of the daemon's thread.
//! Not here: what sleeps (`sim`: HTB's timer, the engine's thread), random numbers (`sim`).
//! Invariant: a larger part of all sleeps is never less late.

use core::fmt;

use plimsoll_units::Span;

/// Quantiles of how late sleeps end. Between two of them lateness grows linearly with the part of the sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness([Span; QUANTILES]);

const QUANTILES: usize = 7;

impl Lateness {
    /// The quantiles' names in a file, and the part of all sleeps that end no later.
    pub const NAMES: [(&'static str, f64); QUANTILES] = [
        ("min", 0.0),
        ("p50", 0.5),
        ("p90", 0.9),
        ("p99", 0.99),
        ("p99_9", 0.999),
        ("p99_99", 0.9999),
        ("max", 1.0),
    ];

    /// Every sleep ends as late.
    #[must_use]
    pub const fn constant(span: Span) -> Self {
        Self([span; QUANTILES])
    }

    /// A distribution with these quantiles, in the order of [`Lateness::NAMES`]; `None` if one is less than the one before.
    #[must_use]
    pub fn new(quantiles: [Span; QUANTILES]) -> Option<Self> {
        quantiles.is_sorted().then_some(Self(quantiles))
    }

    /// The nearest-rank quantiles of measured sleeps; `None` if there are none.
    #[must_use]
    pub fn measured(mut sleeps: Vec<Span>) -> Option<Self> {
        sleeps.sort_unstable();
        let last = sleeps.len().checked_sub(1)?;
        let quantile =
            |part: f64| sleeps[((part * sleeps.len() as f64).ceil() as usize).saturating_sub(1).min(last)];
        Some(Self(Self::NAMES.map(|(_, part)| quantile(part))))
    }

    /// Whether every sleep ends on time.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0[QUANTILES - 1] == Span::ZERO
    }

    /// The lateness of all sleeps, where it is one.
    #[must_use]
    pub fn as_constant(&self) -> Option<Span> {
        (self.0[0] == self.0[QUANTILES - 1]).then_some(self.0[0])
    }

    /// The lateness that this part of all sleeps, from 0 to 1, does not exceed.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Span {
        let above = Self::NAMES.iter().position(|&(_, end)| part <= end).unwrap_or(QUANTILES - 1).max(1);
        let ((_, from), (_, to)) = (Self::NAMES[above - 1], Self::NAMES[above]);
        let (low, high) = (self.0[above - 1], self.0[above]);
        let within = ((part - from) / (to - from)).clamp(0.0, 1.0);
        low + Span::ns(((high - low).as_u64() as f64 * within).round() as u64)
    }
}

/// As a file states it.
impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(constant) = self.as_constant() {
            return write!(f, "{}ns", constant.as_u64());
        }
        for (number, ((name, _), span)) in Self::NAMES.iter().zip(self.0).enumerate() {
            write!(f, "{}{name}: {}ns", if number == 0 { "{" } else { ", " }, span.as_u64())?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_quantiles_lateness_grows_with_the_part() {
        let lateness =
            Lateness::new([10, 20, 60, 100, 1_000, 3_000, 9_000].map(Span::micros)).expect("in order");
        let micros = |part| lateness.quantile(part).as_u64() / 1_000;
        assert_eq!([micros(0.0), micros(0.25), micros(0.5), micros(0.7)], [10, 15, 20, 40]);
        assert_eq!([micros(0.9), micros(0.999), micros(0.99995), micros(1.0)], [60, 1_000, 6_000, 9_000]);
        assert!(
            Lateness::new([10, 20, 60, 50, 1_000, 3_000, 9_000].map(Span::micros)).is_none(),
            "p99 below p90"
        );
        assert_eq!(Lateness::constant(Span::micros(3)).quantile(0.37), Span::micros(3));
    }

    #[test]
    fn quantiles_of_measured_sleeps_are_of_the_nearest_rank() {
        let measured = Lateness::measured((1..=1_000).rev().map(Span::ns).collect()).expect("some");
        assert_eq!(
            measured.to_string(),
            "{min: 1ns, p50: 500ns, p90: 900ns, p99: 990ns, p99_9: 999ns, p99_99: 1000ns, max: 1000ns}"
        );
        assert_eq!(Lateness::measured(Vec::new()), None);
        assert_eq!(Lateness::measured(vec![Span::ns(7)]), Some(Lateness::constant(Span::ns(7))));
    }
}
