//! Rates: bits, packets and cycles per second.

use core::fmt;
use core::num::NonZeroU64;

use crate::parse::{self, UnitError};
use crate::{Bytes, NS_PER_SEC, Span};

/// Bits per second; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(NonZeroU64);

/// Packets per second; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketRate(NonZeroU64);

/// Cycles of a clock per second; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frequency(NonZeroU64);

impl BitRate {
    /// `n` bits per second, or `None` for zero.
    #[must_use]
    pub const fn new(n: u64) -> Option<Self> {
        match NonZeroU64::new(n) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// `n` Mbit/s. Panics on zero: meant for constants.
    #[must_use]
    pub const fn mbps(n: u64) -> Self {
        Self::new(n * 1_000_000).expect("a rate above zero")
    }

    /// `n` Gbit/s. Panics on zero: meant for constants.
    #[must_use]
    pub const fn gbps(n: u64) -> Self {
        Self::new(n * 1_000_000_000).expect("a rate above zero")
    }

    /// Bits per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// How long `len` occupies the wire at this rate, rounded up: a shaper may be a nanosecond late, never early.
    ///
    /// ```
    /// use plimsoll_units::{BitRate, Bytes, Span};
    /// assert_eq!(BitRate::gbps(12).wire_time(Bytes::new(1_500)), Span::ns(1_000));
    /// ```
    #[must_use]
    pub fn wire_time(self, len: Bytes) -> Span {
        let bit_nanos = u128::from(len.as_u64()) * 8 * u128::from(NS_PER_SEC);
        let ns = bit_nanos.div_ceil(u128::from(self.get()));
        Span::ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Whole bytes that this rate carries in `span`, rounded down.
    #[must_use]
    pub fn bytes_in(self, span: Span) -> Bytes {
        let bits = u128::from(self.get()) * u128::from(span.as_u64()) / u128::from(NS_PER_SEC);
        Bytes::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }
}

impl PacketRate {
    /// `n` packets per second, or `None` for zero.
    #[must_use]
    pub const fn new(n: u64) -> Option<Self> {
        match NonZeroU64::new(n) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// Packets per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl Frequency {
    /// `n` cycles per second, or `None` for zero.
    #[must_use]
    pub const fn new(n: u64) -> Option<Self> {
        match NonZeroU64::new(n) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// `n` million cycles per second. Panics on zero: meant for constants.
    #[must_use]
    pub const fn mhz(n: u64) -> Self {
        Self::new(n * 1_000_000).expect("a frequency above zero")
    }

    /// Cycles per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.get() {
            0..1_000 => (1, "bps"),
            1_000..1_000_000 => (1_000, "kbps"),
            1_000_000..1_000_000_000 => (1_000_000, "Mbps"),
            _ => (1_000_000_000, "Gbps"),
        };
        f.pad(&parse::decimal(self.get(), unit, name))
    }
}

impl core::str::FromStr for BitRate {
    type Err = UnitError;
    /// Reads `10Gbps`, `500Mbps`, `1.5Gbit/s`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let want = "a rate such as `500Mbps` or `10Gbps`";
        let units = [
            ("bps", 1),
            ("kbps", 1_000),
            ("Mbps", 1_000_000),
            ("Gbps", 1_000_000_000),
            ("bit/s", 1),
            ("kbit/s", 1_000),
            ("Mbit/s", 1_000_000),
            ("Gbit/s", 1_000_000_000),
        ];
        Self::new(parse::quantity(text, want, &units)?).ok_or_else(|| UnitError::zero(text, want))
    }
}

impl fmt::Display for PacketRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.get() {
            0..1_000 => (1, "pps"),
            1_000..1_000_000 => (1_000, "kpps"),
            _ => (1_000_000, "Mpps"),
        };
        f.pad(&parse::decimal(self.get(), unit, name))
    }
}

impl core::str::FromStr for PacketRate {
    type Err = UnitError;
    /// Reads `100kpps`, `1.5Mpps`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let want = "a packet rate such as `100kpps`";
        let units = [("pps", 1), ("kpps", 1_000), ("Mpps", 1_000_000)];
        Self::new(parse::quantity(text, want, &units)?).ok_or_else(|| UnitError::zero(text, want))
    }
}

impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.get() {
            0..1_000 => (1, "Hz"),
            1_000..1_000_000 => (1_000, "kHz"),
            1_000_000..1_000_000_000 => (1_000_000, "MHz"),
            _ => (1_000_000_000, "GHz"),
        };
        f.pad(&parse::decimal(self.get(), unit, name))
    }
}

impl core::str::FromStr for Frequency {
    type Err = UnitError;
    /// Reads `800MHz`, `2.4GHz`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let want = "a frequency such as `3GHz`";
        let units = [("Hz", 1), ("kHz", 1_000), ("MHz", 1_000_000), ("GHz", 1_000_000_000)];
        Self::new(parse::quantity(text, want, &units)?).ok_or_else(|| UnitError::zero(text, want))
    }
}

parse::text_serde!(
    BitRate,
    "a bit rate with its unit: `500Mbps`, `10Gbps`",
    r"^[0-9][0-9_.]*\s*[kMG]?(bps|bit/s)$"
);
parse::text_serde!(PacketRate, "a packet rate with its unit: `100kpps`", r"^[0-9][0-9_.]*\s*[kM]?pps$");
parse::text_serde!(Frequency, "a frequency with its unit: `3GHz`", r"^[0-9][0-9_.]*\s*[kMG]?Hz$");
