//! Data structures of the engine: rank queues, the timing wheel, exact rate clocks, CoDel, counters of flows
//! and of distinct things.
//!
//! Why: the scheduler's speed and its promises rest on these; each is small enough to be compared with a slow oracle.
//! Not here: packets, policies, clocks.
//! Invariant: nothing allocates once it has been given its capacity.
#![forbid(unsafe_code)]

mod bits;
pub mod codel;
mod heavy;
mod hyperloglog;
pub mod pace;
pub mod rank;
pub mod wheel;

pub use bits::Bits;
pub use codel::{Codel, CodelTimes, Markable};
pub use heavy::{Heavy, HeavyConfig, HeavyCounters, HeavyHitters, Tally};
pub use hyperloglog::HyperLogLog;
pub use pace::Pace;
pub use rank::{Rank, RankHeap, RankQueue};
pub use wheel::Wheel;
