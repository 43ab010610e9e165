//! Moments and the distances between them.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

use crate::NS_PER_SEC;
use crate::parse::{self, UnitError};

/// A moment, in nanoseconds since the driver's zero: the start of the daemon or of a simulated run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Nanos(u64);

/// A distance between two moments, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Nanos {
    /// The moment that the driver counts from.
    pub const ZERO: Self = Self(0);

    /// The moment `ns` nanoseconds after zero.
    #[must_use]
    pub const fn new(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since zero.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to this moment; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);

    /// `n` nanoseconds.
    #[must_use]
    pub const fn ns(n: u64) -> Self {
        Self(n)
    }

    /// `n` microseconds.
    #[must_use]
    pub const fn micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// `n` milliseconds.
    #[must_use]
    pub const fn millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// `n` seconds.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(n.saturating_mul(NS_PER_SEC))
    }

    /// The span in nanoseconds.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The span in seconds, for reports only.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NS_PER_SEC as f64
    }

    /// This span `n` times; saturates.
    #[must_use]
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }

    /// This span as the standard library's `Duration`.
    #[must_use]
    pub const fn to_std(self) -> core::time::Duration {
        core::time::Duration::from_nanos(self.0)
    }
}

impl Add<Span> for Nanos {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Nanos {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub for Nanos {
    type Output = Span;
    /// Equals [`Nanos::since`].
    fn sub(self, earlier: Self) -> Span {
        self.since(earlier)
    }
}

impl Sub<Span> for Nanos {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl core::iter::Sum for Span {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Span {
    /// Prints at most three decimals of the largest unit that fits: `1.25ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..NS_PER_SEC => (1_000_000, "ms"),
            _ => (NS_PER_SEC, "s"),
        };
        f.pad(&parse::decimal(self.0, unit, name))
    }
}

impl core::str::FromStr for Span {
    type Err = UnitError;
    /// Reads `50us`, `1.5ms`, `2s`, `3min`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let units = [
            ("ns", 1),
            ("us", 1_000),
            ("µs", 1_000),
            ("ms", 1_000_000),
            ("s", NS_PER_SEC),
            ("min", 60 * NS_PER_SEC),
            ("h", 3_600 * NS_PER_SEC),
        ];
        parse::quantity(text, "a time such as `50us` or `2s`", &units).map(Self)
    }
}

parse::text_serde!(
    Span,
    "a time with its unit: `50us`, `1.5ms`, `2s`",
    r"^[0-9][0-9_.]*\s*(ns|us|µs|ms|s|min|h)$"
);
