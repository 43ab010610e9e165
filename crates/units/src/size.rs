//! Sizes in bytes.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

use crate::parse::{self, UnitError};

/// A size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// `n` bytes.
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// `n` times 1,024 bytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1_024))
    }

    /// The size as a number of bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The size in bits, saturating.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0.saturating_mul(8)
    }

    /// This size `n` times; saturates.
    #[must_use]
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl core::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000 => (1, "B"),
            1_000..1_000_000 => (1_000, "kB"),
            1_000_000..1_000_000_000 => (1_000_000, "MB"),
            _ => (1_000_000_000, "GB"),
        };
        f.pad(&parse::decimal(self.0, unit, name))
    }
}

impl core::str::FromStr for Bytes {
    type Err = UnitError;
    /// Reads `1500B`, `64KiB`, `1.5MB`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let units = [
            ("B", 1),
            ("kB", 1_000),
            ("KB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
        ];
        parse::quantity(text, "a size such as `1500B` or `64KiB`", &units).map(Self)
    }
}

parse::text_serde!(
    Bytes,
    "a size with its unit: `1500B`, `64KiB`, `1.5MB`",
    r"^[0-9][0-9_.]*\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)$"
);
