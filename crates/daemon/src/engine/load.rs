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

use plimsoll_control::backpressure::Means;
use plimsoll_policy::Watch;
use plimsoll_units::{Nanos, Span};

use super::heavy::Counted;
use super::press::PressNews;
use super::{Core, Engine};
use crate::heavy::headers;

/// The CPU time of a cgroup or of threads, which another thread measures while the engine asks for it.
#[derive(Clone, Debug, Default)]
pub struct Sampled(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    newest: Mutex<Option<(Span, Nanos)>>,
    /// Whether the engine has asked since the last measurement.
    asked: AtomicBool,
    /// The measuring thread, while it waits to be asked.
    waits: Mutex<Option<Thread>>,
}

impl Sampled {
    /// Notes the CPU time that was used until `at`, and answers whether the engine has asked since the last time.
    pub fn note(&self, used: Span, at: Nanos) -> bool {
        *self.0.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((used, at));
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

    /// The newest measurement; `None` also while another one is being noted.
    pub(crate) fn newest(&self) -> Option<(Span, Nanos)> {
        self.0.asked.store(true, Ordering::Relaxed);
        if let Some(thread) = self.0.waits.try_lock().ok().and_then(|mut waits| waits.take()) {
            thread.unpark();
        }
        *self.0.newest.try_lock().ok()?
    }
}

/// How often a measuring thread looks whether it is still needed.
const PATIENCE: Duration = Duration::from_secs(5);

impl Engine {
    /// Takes the CPU time of what the policy watches from another thread's measurements.
    pub fn watch_load(&mut self, sampled: Option<Sampled>) {
        self.sampled = sampled;
    }

    /// Moves the counts of flows on, and slows flows down where the load demands it.
    pub(super) fn tend_flows(&mut self, core: &impl Core, now: Nanos) {
        let Some(heavy) = &mut self.heavy else { return };
        heavy.advance(now);
        let Some(watch) = heavy.watch(now) else { return };
        let load = match watch {
            Watch::Engine => Some((core.used(), None, now)),
            Watch::Tenant(_) => heavy.watched_lane().and_then(|lane| {
                let lane = u32::try_from(lane).ok()?;
                let seen = self.inward.seen(Some(lane)).0;
                Some((seen.cpu, Some(seen.served), now))
            }),
            Watch::Cgroup(_) | Watch::Pids(_) => {
                self.sampled.as_ref().and_then(Sampled::newest).map(|(used, at)| (used, None, at))
            }
        };
        let Some((used, packets, at)) = load else { return };
        let mut tells = Vec::new();
        heavy.press((used, at), packets, &mut tells, now);
        if !tells.is_empty() {
            self.notify(&tells, now);
        }
        self.note_presses();
    }

    /// Puts into words what an operator is told.
    fn note_presses(&mut self) {
        let Some(heavy) = &mut self.heavy else { return };
        let news = heavy.take_news();
        if news.is_empty() {
            return;
        }
        let watched = heavy.watched_now().map_or_else(String::new, |watched| watched.what.to_string());
        for (tenant, news) in news {
            let line = match news {
                PressNews::Overload(true) => format!("backpressure: {watched} is overloaded"),
                PressNews::Overload(false) => format!("backpressure: {watched} is overloaded no more"),
                PressNews::Top(flow, part) => {
                    let (way, headers) = (way(&flow), headers(&flow.flow));
                    let part = f64::from(part) / 10.0;
                    format!(
                        "backpressure: {headers} {way} tenant {tenant} has {part:.1} % of heavy hitters' packets"
                    )
                }
                PressNews::Start(flow, pressed, means) => {
                    let way = way(&flow);
                    let how = match means {
                        Means::Marked => format!("one of {} packets is marked", pressed.interval),
                        Means::MeteredHere => "what is beyond waits here, or is dropped".to_owned(),
                        Means::Told(_) => "the host that it comes from is told".to_owned(),
                        Means::Windowed => "its receive window is made smaller".to_owned(),
                        Means::MarkedAndMetered => {
                            format!("one of {} packets is marked, and it is metered here", pressed.interval)
                        }
                        Means::MarkedAndTold(_) => format!(
                            "one of {} packets is marked, and the host that it comes from is told",
                            pressed.interval
                        ),
                    };
                    let headers = headers(&flow.flow);
                    let rate = pressed.target;
                    format!("backpressure: {headers} {way} tenant {tenant} is slowed down to {rate}: {how}")
                }
                PressNews::End(flow, lasted) => {
                    let (way, headers, seconds) = (way(&flow), headers(&flow.flow), lasted.as_secs_f64());
                    format!(
                        "backpressure: {headers} {way} tenant {tenant} is let go; it was slowed down for {seconds:.1}s"
                    )
                }
            };
            self.tell(line);
        }
    }

    /// Keeps a line for the log, if few wait.
    pub(super) fn tell(&mut self, line: String) {
        if self.told.len() < MOST_TOLD {
            self.told.push(line);
        }
    }

    /// Lines for the daemon's log since the last call.
    pub fn take_told(&mut self) -> Vec<String> {
        core::mem::take(&mut self.told)
    }
}

fn way(flow: &Counted) -> &'static str {
    if flow.inward { "to" } else { "of" }
}

/// Most lines that wait for the log.
const MOST_TOLD: usize = 32;
