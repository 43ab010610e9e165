//! Bytes, spans and bits per second, rounded down.

use plimsoll_units::{NS_PER_SEC, Span};

/// Bytes of a rate in a span.
pub(super) fn bytes_of(rate: u64, span: Span) -> u64 {
    let bytes = u128::from(rate) * u128::from(span.as_u64()) / u128::from(8 * NS_PER_SEC);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Bits per second of so many bytes in a span.
pub(super) fn rate_of(bytes: u64, span: Span) -> u64 {
    let bits = u128::from(bytes) * 8 * u128::from(NS_PER_SEC) / u128::from(span.as_u64().max(1));
    u64::try_from(bits).unwrap_or(u64::MAX)
}
