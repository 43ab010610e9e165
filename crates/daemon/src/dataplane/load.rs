//! The load of what the policy watches, and the decisions that follow from it.
//!
//! Why: flows are slowed down only while something is overloaded.
//! From: MIMIC §III-A.
//! Not here: which flows, and how (`press`).
//! Invariant: the load is read at most once in the policy's `poll`, and only while packets come: an engine at rest is not
//! woken for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use plimsoll_policy::Watch;
use plimsoll_units::{Nanos, Span};

use super::{Core, Dataplane};

/// The CPU time of a cgroup or of threads, which another thread measures while the engine asks for it.
#[derive(Clone, Debug, Default)]
pub struct Sampled(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    newest: Mutex<Newest>,
    /// Whether the engine has asked since the last measurement.
    asked: AtomicBool,
    /// The measuring thread, while it waits to be asked.
    waits: Mutex<Option<Thread>>,
}

/// What a measuring thread knows of the CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Newest {
    /// Nothing yet, or another measurement is being noted.
    #[default]
    Unknown,
    /// What was used until this moment.
    Used(Span, Nanos),
    /// It cannot be measured: the cgroup or a thread has gone, or never was.
    Gone,
}

impl Sampled {
    /// Notes that the CPU time cannot be measured, until the next [`note`](Self::note).
    pub fn lose(&self) {
        *self.0.newest.lock().unwrap_or_else(PoisonError::into_inner) = Newest::Gone;
    }

    /// Notes the CPU time that was used until `at`, and answers whether the engine has asked since the last time.
    pub fn note(&self, used: Span, at: Nanos) -> bool {
        *self.0.newest.lock().unwrap_or_else(PoisonError::into_inner) = Newest::Used(used, at);
        self.0.asked.swap(false, Ordering::Relaxed)
    }

    /// Waits until the engine asks. Answers whether there is still an engine that could.
    pub fn wait_to_be_asked(&self) -> bool {
        *self.0.waits.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        std::thread::park_timeout(PATIENCE);
        self.is_used()
    }

    /// Whether an engine can ask.
    #[must_use]
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The newest measurement.
    pub(crate) fn newest(&self) -> Newest {
        self.0.asked.store(true, Ordering::Relaxed);
        if let Some(thread) = self.0.waits.try_lock().ok().and_then(|mut waits| waits.take()) {
            thread.unpark();
        }
        self.0.newest.try_lock().map_or(Newest::Unknown, |newest| *newest)
    }
}

/// How often a measuring thread looks whether it is still needed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the frames that other tenants of this host send to the watched tenant cost.
///
/// They do not pass the way in, but are delivered as they depart. A round's departures are timed together, so each frame counts as an
/// equal part of that time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Near {
    /// The lane of the watched tenant.
    lane: Option<u32>,
    /// Frames of this round's departures: all, and those to the watched tenant, with the packets that these are on a wire.
    all: u64,
    to_watched: u64,
    packets: u64,
    /// Time and packets so far.
    used: Span,
    served: u64,
}

impl Near {
    /// Begins a round's departures while this lane's tenant is watched.
    pub(super) fn begin(&mut self, watched: Option<usize>) {
        self.lane = watched.and_then(|lane| u32::try_from(lane).ok());
        (self.all, self.to_watched, self.packets) = (0, 0, 0);
    }

    /// Notes a frame that departs, to a tenant of this host or to the uplink.
    #[inline]
    pub(super) fn note(&mut self, to: Option<u32>, packets: u32) {
        self.all += 1;
        if to.is_some() && to == self.lane {
            self.to_watched += 1;
            self.packets += u64::from(packets);
        }
    }

    /// Like [`Near::note`], for frames that are a packet each.
    #[inline]
    pub(super) fn note_run(&mut self, to: Option<u32>, frames: u32) {
        let frames = u64::from(frames);
        self.all += frames;
        if to.is_some() && to == self.lane {
            self.to_watched += frames;
            self.packets += frames;
        }
    }

    /// Notes how long the round's departures took.
    pub(super) fn end(&mut self, took: Span) {
        if self.to_watched > 0 {
            self.used += Span::ns(took.as_u64().saturating_mul(self.to_watched) / self.all);
            self.served += self.packets;
            (self.to_watched, self.packets) = (0, 0);
        }
    }
}

impl Dataplane {
    /// Takes the CPU time of what the policy watches from another thread's measurements.
    pub fn watch_load(&mut self, sampled: Option<Sampled>) {
        self.backpressure.sampled = sampled;
    }

    /// Moves the counts of flows on, and slows flows down where the load demands it.
    pub(super) fn tend_flows(&mut self, core: &impl Core, now: Nanos) {
        if !self.backpressure.heavy.as_mut().is_some_and(|heavy| heavy.counts_now(now)) {
            return;
        }
        // All frames are counted before counts move on: those of a known flow, which are counted late, must not miss an update.
        self.count_known();
        let Some(heavy) = &mut self.backpressure.heavy else { return };
        heavy.advance(now);
        let Some(watch) = heavy.watch(now) else { return };
        let load = match watch {
            Watch::Engine => Some((core.used(), None, now)),
            Watch::Tenant(_) => heavy.watched_lane().and_then(|lane| {
                let lane = u32::try_from(lane).ok()?;
                let seen = self.inward.seen(Some(lane)).0;
                let near = &self.backpressure.near;
                Some((seen.cpu + near.used, Some(seen.served + near.served), now))
            }),
            Watch::Cgroup(_) | Watch::Pids(_) => {
                match self.backpressure.sampled.as_ref().map(Sampled::newest) {
                    Some(Newest::Used(used, at)) => Some((used, None, at)),
                    _ => None,
                }
            }
        };
        let Some((used, packets, at)) = load else { return self.tend_unmeasured(now) };
        let mut tells = Vec::new();
        heavy.press((used, at), packets, &mut tells, now);
        if !tells.is_empty() {
            self.notify(&tells, now);
        }
        self.note_presses();
    }

    /// Lets go of flows that are slowed down where nothing new is measured: of each one if it is known that nothing can be.
    pub(super) fn tend_unmeasured(&mut self, now: Nanos) {
        let Some(heavy) = &mut self.backpressure.heavy else { return };
        let gone = match heavy.watched_by_policy() {
            None => return,
            Some(Watch::Engine) => false,
            Some(Watch::Tenant(_)) => heavy.watched_lane().is_none(),
            Some(Watch::Cgroup(_) | Watch::Pids(_)) => {
                self.backpressure.sampled.as_ref().is_none_or(|sampled| sampled.newest() == Newest::Gone)
            }
        };
        heavy.lapse(gone, now);
        self.note_presses();
    }

    /// Lets go of all flows that are slowed down, as the policy is about to change what is watched, or that it is.
    pub(super) fn watch_no_more(&mut self, now: Nanos) {
        if let Some(heavy) = &mut self.backpressure.heavy {
            heavy.end_watch(now);
        }
        self.note_presses();
    }

    /// Puts into words what an operator is told.
    fn note_presses(&mut self) {
        let Some(heavy) = &mut self.backpressure.heavy else { return };
        let news = heavy.take_news();
        if news.is_empty() {
            return;
        }
        let watched = heavy.watched_by_policy().map_or_else(String::new, Watch::to_string);
        for (tenant, news) in news {
            self.tell(format!("backpressure: {}", news.line(&watched, &tenant)));
        }
    }

    /// Keeps a line for the log, if few wait.
    pub(super) fn tell(&mut self, line: String) {
        if self.backpressure.told.len() < MOST_TOLD {
            self.backpressure.told.push(line);
        }
    }

    /// Lines for the daemon's log since the last call.
    pub fn take_told(&mut self) -> Vec<String> {
        core::mem::take(&mut self.backpressure.told)
    }
}

/// Most lines that wait for the log.
const MOST_TOLD: usize = 32;
