//! Confidence intervals of means over runs.
//!
//! Why: a difference between two systems is a finding only if it is larger than what another seed changes.
//! From: Student's t distribution: runs with seeds of their own are independent, and few.
//! Not here: which figures have one (`summary`), how they are shown (`table`, `report`).
//! Invariant: no interval for one run, or where some run has no value.

use serde::Serialize;

use crate::measure::mean;

/// The mean of a figure over runs, and how far the true mean may be from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The number of runs.
    pub runs: usize,
    /// The mean over the runs.
    pub mean: f64,
    /// Half of the width of the 95 % confidence interval.
    pub half_width: f64,
}

/// A figure with its interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IntervalSummary {
    /// A tenant or a workload; empty for the whole system.
    pub subject: String,
    /// The figure's name in `summary.csv`.
    pub figure: String,
    /// Its name in tables: `slowdown p99 ≤ 10 kB`; empty for one that tables leave out.
    #[serde(skip)]
    pub(crate) shown: String,
    /// Its mean and interval.
    #[serde(flatten)]
    pub interval: Interval,
}

/// Runs below which intervals are said to be wide.
pub(crate) const FEW: usize = 5;

impl Interval {
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        if values.len() < 2 || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let (runs, mean) = (values.len(), mean(values));
        let squares = values.iter().fold(0.0, |sum, value| sum + (value - mean) * (value - mean));
        let error = (squares / (runs - 1) as f64 / runs as f64).sqrt();
        Some(Self { runs, mean, half_width: quantile(runs - 1) * error })
    }
}

/// The quantile 0.975 of Student's t distribution with this many degrees of freedom.
pub(crate) fn quantile(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    const NORMAL: f64 = 1.959_964;
    let beyond = || {
        // Cornish and Fisher's expansion around the normal distribution: good to four digits here.
        let (z, v) = (NORMAL, freedom as f64);
        let cube = z * z * z;
        z + (cube + z) / (4.0 * v) + (5.0 * cube * z * z + 16.0 * cube + 3.0 * z) / (96.0 * v * v)
    };
    TABLE.get(freedom.saturating_sub(1)).copied().unwrap_or_else(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_textbooks() {
        // Mean 5, sample deviation sqrt(2.5): 2.776 * sqrt(2.5 / 5).
        let interval = Interval::of(&[3.0, 4.0, 5.0, 6.0, 7.0]).expect("five runs");
        assert_eq!((interval.runs, interval.mean), (5, 5.0));
        assert!((interval.half_width - 1.963).abs() < 1e-3, "{interval:?}");
        assert_eq!(Interval::of(&[2.0, 2.0]).map(|same| same.half_width), Some(0.0));
        assert_eq!(Interval::of(&[3.0]), None);
        assert_eq!(Interval::of(&[3.0, f64::NAN]), None);
    }

    #[test]
    fn quantiles_go_on_beyond_the_table() {
        assert!((quantile(31) - 2.0395).abs() < 1e-3, "{}", quantile(31));
        assert!((quantile(120) - 1.9799).abs() < 1e-3, "{}", quantile(120));
        assert!(quantile(30) > quantile(31));
    }
}
