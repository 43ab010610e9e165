//! The units of the whole project: moments, spans, sizes and rates.
//!
//! Why: five plain integers as arguments compile in any order; five units compile in one order only.
//! From: `docs/architecture.md`; kilo is 1,000 and `KiB` is 1,024, as on a NIC's data sheet.
//! Not here: clocks (the daemon and the simulator own time), and floats.
//! Invariant: arithmetic is exact or rounds the way its documentation says; it saturates, it never wraps.
#![forbid(unsafe_code)]

mod parse;
mod rate;
mod size;
mod time;

pub use parse::UnitError;
pub use rate::{BitRate, Frequency, PacketRate};
pub use size::Bytes;
pub use time::{Nanos, Span};

/// Nanoseconds in a second.
pub const NS_PER_SEC: u64 = 1_000_000_000;
