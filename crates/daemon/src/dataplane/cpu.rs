//! The CPU core that the way in runs on, as a turn sees it.
//!
//! Why: an experiment runs the way in on a slower core, or with one queue; the data path must not ask for either.
//! From: the engine takes time as an argument, and takes how fast the core is in the same way.
//! Not here: the experiment's core (`experiment`).
//! Invariant: on [`ThisCore`] each method on a frame's way is a constant, so that the compiler leaves nothing of it.

use nix::time::{ClockId, clock_gettime};
use plimsoll_units::{Nanos, Span};

/// A core on which frames are fetched from the uplink and delivered. What is not stated otherwise is as on [`ThisCore`].
pub trait Core {
    /// Whether the core still works on frames that it took before.
    #[inline]
    fn is_busy(&mut self, _now: Nanos) -> bool {
        false
    }

    /// When the core is free, if it was busy when it was last asked.
    #[inline]
    fn free_at(&self) -> Option<Nanos> {
        None
    }

    /// How many frames are fetched at once, and how many delivered before the next tenant is chosen, given the most of each.
    #[inline]
    fn batches(&self, fetches: usize, deliveries: usize) -> (usize, usize) {
        (fetches, deliveries)
    }

    /// Whether frames are fetched while others wait to be delivered.
    #[inline]
    fn fetches_first(&self) -> bool {
        true
    }

    /// The receive queue for a frame that is for this station.
    #[inline]
    fn queue(&self, station: u32) -> u32 {
        station
    }

    /// Notes that the core has fetched `frames`, and answers how long that takes on it; this machine needed `took`.
    #[inline]
    fn fetched(&mut self, _frames: usize, took: Span) -> Span {
        took
    }

    /// Notes that the core has delivered `frames`, and answers how long that takes on it; this machine needed `took`.
    #[inline]
    fn delivered(&mut self, _frames: usize, took: Span) -> Span {
        took
    }

    /// CPU time that the engine's thread has used since its start.
    fn used(&self) -> Span {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(std::time::Duration::from);
        Span::ns(time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Notes that no frame is left to be fetched or delivered.
    #[inline]
    fn idle(&mut self) {}
}

/// The core that the engine's thread has.
#[derive(Clone, Copy, Debug)]
pub struct ThisCore;

impl Core for ThisCore {}
