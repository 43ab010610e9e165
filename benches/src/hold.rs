//! The hold model: what leaves comes back, so that the number of packets inside never changes.
//!
//! Why: enqueue and dequeue are measured together, at a steady size, as the published figures of the peers were.
//! From: Vaucher and Duval, 1975; the queue of a returning packet is drawn at random.
//! Not here: the schedulers (`engine`, `dpdk`).
//! Invariant: both sides draw the same sequence.

use std::time::Duration;

/// Queues below each tenant, as `rte_sched` has them below each pipe.
pub const QUEUES_PER_TENANT: u32 = 4;

pub use crate::policies::FRAME;

/// Packets that one run moved, and the time it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Packets that left and came back.
    pub packets: u64,
    /// Packets that found their queue full; a fair run has next to none.
    pub lost: u64,
    /// The processor time that took.
    pub spent: Duration,
}

impl Moved {
    /// Packets a second.
    pub fn rate(&self) -> f64 {
        self.packets as f64 / self.spent.as_secs_f64()
    }

    /// Nanoseconds for each packet.
    pub fn cost(&self) -> f64 {
        self.spent.as_secs_f64() * 1e9 / self.packets as f64
    }
}

/// The linear congruential generator that both sides draw their queues from.
#[derive(Clone, Copy, Debug)]
pub struct Draw(u32);

impl Draw {
    /// The start of the sequence.
    pub const fn new() -> Self {
        Self(1)
    }

    /// A number below `bound`.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % bound
    }
}

/// Processor time of this thread: what other work takes from the core in the meantime does not count.
pub fn processor_time() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time of all threads so far.
pub fn process_time() -> Duration {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live, and every Linux has these two clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Packets inside for `queues` queues: one for each, but enough to keep a scheduler busy and not more than
/// its caches were sized for.
pub fn in_flight(queues: u32) -> u32 {
    queues.clamp(1_024, 32_768)
}
