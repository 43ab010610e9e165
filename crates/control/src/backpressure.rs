//! Backpressure on heavy hitters: when to slow flows down, which flows, and how hard.
//!
//! Why: one flow can fill the core of a gateway. Slowing down that flow at its source spares every other flow.
//! From: MIMIC §II, §III-A and §V-A.
//! Not here: counting packets by flow (`queues`), marking and dropping them, and carrying notifications.
//! Invariant: integers only; the same inputs give the same results.

mod choice;
mod marking;
mod meter;
mod meters;
mod trigger;

pub use choice::choose;
pub use marking::{marked_rate, marking_interval, marking_window, trimmed};
pub use meter::{Meter, Verdict};
pub use meters::{Installed, MeterCounters, MeterSettings, Meters, NotInstalled};
pub use trigger::{Overload, Thresholds, Trigger, utilization};
